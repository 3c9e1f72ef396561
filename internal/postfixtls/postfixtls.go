// Package postfixtls is "posthaste tls": it turns opportunistic TLS on, and makes and deploys
// the server's keys and certificates, as postfix-tls(1) does.
//
//	posthaste tls enable-client [-r randsource]
//	posthaste tls enable-server [-r randsource] [-a algorithm] [-b bits] [hostname ...]
//	posthaste tls new-server-key [-a algorithm] [-b bits] [hostname ...]
//	posthaste tls new-server-cert [-a algorithm] [-b bits] [hostname ...]
//	posthaste tls deploy-server-cert certfile keyfile
//	posthaste tls output-server-csr [-k keyfile] [hostname ...]
//	posthaste tls output-server-tlsa [-h hostname] [keyfile ...]
//	posthaste tls all-default-client | all-default-server
//
// What a subcommand makes for other programs goes to standard output; what it tells a
// person goes to standard error and to the mail log.
//
// # Security
//
// It runs with the rights of whoever calls it. A private key is a new file, in the
// configuration directory, that its owner alone can read. Existing files are never written to.
//
// # Parameters
//
// config_directory, data_directory, myhostname, the smtp_tls_ and smtpd_tls_ parameters of
// security levels, keys and certificates, tls_random_source.
//
// # Diagnostics
//
// The exit status is 0, or 1: something failed, or (all-default) a setting is not at its default.
package postfixtls

import (
	"crypto"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
)

// Tools are what the command is made of.
type Tools struct {
	Postconf func(args []string, stdout, stderr io.Writer) int // postconf(1)
	Log      func(text string)                                 // writes a line to the mail log, at level info
	Now      time.Time
	Stdout   io.Writer
	Stderr   io.Writer
}

// The settings that must be at their defaults before anything is enabled unasked.
var (
	clientSettings = strings.Fields("smtp_use_tls smtp_enforce_tls smtp_tls_enforce_peername smtp_tls_security_level " +
		"smtp_tls_cert_file smtp_tls_dcert_file smtp_tls_eccert_file smtp_tls_chain_files")
	serverSettings = strings.Fields("smtpd_use_tls smtpd_enforce_tls smtpd_tls_security_level " +
		"smtpd_tls_cert_file smtpd_tls_dcert_file smtpd_tls_eccert_file smtpd_tls_chain_files")
)

// A subcommand is one word after tls.
type subcommand struct {
	letters string // options, as for getopt
	usage   string
	least   int // arguments that it must have
	most    int // and may have; -1: any number
	run     func(*command) error
}

var subcommands = map[string]subcommand{
	"enable-client":      {"r:", "[-r devrandom]", 0, 0, (*command).enableClient},
	"enable-server":      {"a:b:r:", "[-a algorithm] [-b bits] [-r devrandom] [hostname ...]", 0, -1, (*command).enableServer},
	"new-server-key":     {"a:b:", "[-a algorithm] [-b bits] [hostname ...]", 0, -1, func(c *command) error { return c.newPair("") }},
	"new-server-cert":    {"a:b:", "[-a algorithm] [-b bits] [hostname ...]", 0, -1, (*command).newServerCert},
	"deploy-server-cert": {"", "certfile keyfile", 2, 2, (*command).deployServerCert},
	"output-server-csr":  {"k:", "[-k keyfile] [hostname ...]", 0, -1, (*command).outputCSR},
	"output-server-tlsa": {"h:", "[-h hostname] [keyfile ...]", 0, -1, (*command).outputTLSA},
	"all-default-client": {"", "", 0, 0, func(c *command) error { return c.allDefault(clientSettings) }},
	"all-default-server": {"", "", 0, 0, func(c *command) error { return c.allDefault(serverSettings) }},
}

// command is one run.
type command struct {
	Tools
	cfg  *config.Config
	opts map[byte]string // options that were given
	args []string
}

// errNotDefault has nothing to say: its exit status is the answer.
var errNotDefault = errors.New("")

// Run carries out a subcommand, args[0], in a configuration directory and returns the exit status.
func Run(dir string, args []string, t Tools) int {
	err := run(dir, args, t)
	if err == nil {
		return 0
	}
	if err != errNotDefault {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fmt.Fprintf(t.Stderr, "posthaste: fatal: tls: %s\n", line)
		}
	}
	return 1
}

func run(dir string, args []string, t Tools) error {
	names := make([]string, 0, len(subcommands))
	for name := range subcommands {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(args) == 0 {
		return fmt.Errorf("expected one of %s", strings.Join(names, ", "))
	}
	sub, ok := subcommands[args[0]]
	if !ok {
		return fmt.Errorf("unknown command: %q: expected one of %s", args[0], strings.Join(names, ", "))
	}
	usage := strings.TrimSpace("usage: posthaste tls " + args[0] + " " + sub.usage)
	opts, rest, err := cli.Getopt(args[1:], sub.letters)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, usage)
	}
	if len(rest) < sub.least || sub.most >= 0 && len(rest) > sub.most {
		return errors.New(usage)
	}
	c := &command{Tools: t, opts: map[byte]string{}, args: rest}
	for _, o := range opts {
		c.opts[o.Letter] = o.Value
	}
	if c.cfg, err = config.Load(dir); err != nil {
		return err
	}
	return sub.run(c)
}

// inform tells a person, and the log.
func (c *command) inform(lines ...string) {
	for _, l := range lines {
		fmt.Fprintln(c.Stderr, l)
		if c.Log != nil {
			c.Log(l)
		}
	}
}

// isDefault says whether main.cf gives none of the parameters a value.
func (c *command) isDefault(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		set, _, _ := c.cfg.IsSet(name)
		return set && c.cfg.Raw(name) != ""
	})
}

func (c *command) allDefault(names []string) error {
	if !c.isDefault(names) {
		return errNotDefault
	}
	return nil
}

// set writes settings, and the source of random numbers of -r, into main.cf at once.
func (c *command) set(settings ...string) error {
	if source, ok := c.opts['r']; ok {
		settings = append(settings, "tls_random_source="+source)
	}
	var complaint strings.Builder
	if c.Postconf(append([]string{"-c", c.cfg.Dir(), "-e"}, settings...), io.Discard, &complaint) != 0 {
		return errors.New(strings.TrimSpace(complaint.String()))
	}
	return nil
}

// clientTLS are the settings of opportunistic TLS in the client.
var clientTLS = []string{"smtp_tls_security_level=may", "smtp_tls_loglevel=1", "smtp_tls_session_cache_database=btree:${data_directory}/smtp_scache"}

// indented are settings as they stand in main.cf.
func indented(settings []string) (lines []string) {
	for _, s := range settings {
		lines = append(lines, "  "+strings.Replace(s, "=", " = ", 1))
	}
	return lines
}

func (c *command) enableClient() error {
	if !c.isDefault(clientSettings) {
		c.inform("*** Settings of the SMTP client's TLS are not at their defaults: nothing was changed.")
		c.inform("For opportunistic TLS in the SMTP client these are usual:")
		c.inform(indented(clientTLS)...)
		return nil
	}
	if err := c.set(clientTLS...); err != nil {
		return err
	}
	c.inform("Opportunistic TLS in the SMTP client is enabled.", "To have it at once, run:", "  # posthaste reload")
	return nil
}

func (c *command) enableServer() error {
	if !c.isDefault(serverSettings) {
		c.inform("*** Settings of the SMTP server's TLS are not at their defaults: nothing was changed.",
			"For opportunistic TLS in the SMTP server these are usual:")
		c.inform(indented(serverTLS)...)
		c.inform(`"posthaste tls new-server-cert" makes a certificate, "posthaste tls new-server-key" a private key as well.`,
			"Before a key that DANE TLSA records name is changed, publish the records of the new one (RFC 7671, section 8).")
		return nil
	}
	p, err := c.makePair("")
	if err != nil {
		return err
	}
	if err := c.deploy(p, serverTLS...); err != nil {
		return err
	}
	c.inform("Opportunistic TLS in the SMTP server is enabled.")
	c.informDeployed()
	c.informCSR(p, false)
	c.informTLSA(p, false)
	return nil
}

// serverTLS are the settings of opportunistic TLS in the server, besides key and certificate.
var serverTLS = []string{"smtpd_tls_security_level=may", "smtpd_tls_received_header=yes", "smtpd_tls_loglevel=1"}

// newServerCert makes a certificate for the key that is deployed, if there is one.
func (c *command) newServerCert() error {
	algorithm, _, err := c.algorithm()
	if err != nil {
		return err
	}
	file := c.deployedKey(algorithm)
	if file != "" {
		if _, err := readKey(file); err != nil {
			c.inform(fmt.Sprintf("warning: %v: a new key is made", err))
			file = ""
		}
	}
	return c.newPair(file)
}

// newPair makes a certificate, and a key unless it is to be that of a file.
func (c *command) newPair(keyOf string) error {
	p, err := c.makePair(keyOf)
	if err != nil {
		return err
	}
	c.inform("A private key and a self-signed certificate have been made. To deploy them, run:",
		"  # posthaste tls deploy-server-cert "+p.certFile+" "+p.keyFile)
	c.informCSR(p, true)
	c.informTLSA(p, keyOf == "")
	return nil
}

func (c *command) informDeployed() {
	c.inform("The private key and the certificate are deployed.", "To have them at once, run:", "  # posthaste reload")
}

func (c *command) informCSR(p *pair, later bool) {
	then := "Save the chain of certificates that you get in " + p.certFile
	if later {
		then += ", and deploy it as above"
	}
	c.inform("For a certificate of an authority, make a signing request:",
		"  # posthaste tls output-server-csr -k "+p.keyFile+" [hostname ...]", then+".")
}

// informTLSA tells of DANE records, and with before set that they come first.
func (c *command) informTLSA(p *pair, before bool) {
	c.inform("For DANE TLSA records:", "  # posthaste tls output-server-tlsa [-h hostname] "+p.keyFile)
	if before {
		c.inform("(Deploy when these are in the DNS and older ones have expired everywhere.)")
	}
}

// file is a name as arguments give it, which may be relative to the configuration directory.
func (c *command) file(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(c.cfg.Dir(), name)
}

func (c *command) deployServerCert() error {
	p := &pair{certFile: c.file(c.args[0]), keyFile: c.file(c.args[1])}
	var err error
	if p.key, err = readKey(p.keyFile); err != nil {
		return err
	}
	if err := c.deploy(p); err != nil {
		return err
	}
	c.informDeployed()
	return nil
}

// deploy names a certificate and a key, which must belong together, in main.cf.
func (c *command) deploy(p *pair, more ...string) error {
	cert, err := readCertificate(p.certFile)
	if err != nil {
		return err
	}
	public, ok := p.key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(cert.PublicKey) {
		return fmt.Errorf("the certificate in %s does not match the key in %s", p.certFile, p.keyFile)
	}
	infix := ""
	if algorithmOf(p.key) == ecdsaName {
		infix = "ec"
	}
	return c.set(append([]string{"smtpd_tls_" + infix + "key_file=" + p.keyFile, "smtpd_tls_" + infix + "cert_file=" + p.certFile}, more...)...)
}

// deployedKey is the file of the key that main.cf names for an algorithm; "" when there is none.
func (c *command) deployedKey(algorithm string) string {
	name := "smtpd_tls_key_file"
	if algorithm == ecdsaName {
		name = "smtpd_tls_eckey_file"
	}
	file := c.cfg.String(name)
	if file == "" || file == "none" {
		return ""
	}
	return c.file(file)
}

// keyFile is a file that an argument names by itself or by an algorithm.
func (c *command) keyFile(arg string) string {
	switch arg {
	case rsaName, ecdsaName:
		return c.deployedKey(arg)
	case "", "none":
		return ""
	}
	return c.file(arg)
}

func (c *command) outputCSR() error {
	file := ""
	if arg, ok := c.opts['k']; ok {
		file = c.keyFile(arg)
	} else if file = c.deployedKey(rsaName); file == "" {
		file = c.deployedKey(ecdsaName)
	}
	if file == "" {
		return errors.New("no key file is named, and none is deployed")
	}
	key, err := readKey(file)
	if err != nil {
		return err
	}
	return writeRequest(c.Stdout, key, c.hostnames())
}

func (c *command) outputTLSA() error {
	host, args := c.opts['h'], c.args
	if host == "" {
		host = c.cfg.String("myhostname")
	}
	if len(args) == 0 {
		args = []string{rsaName, ecdsaName}
	}
	found := false
	for _, arg := range args {
		file := c.keyFile(arg)
		if file == "" {
			continue
		}
		key, err := readKey(file)
		if err != nil {
			return err
		}
		sum, err := publicDigest(key)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.Stdout, "; %s\n_25._tcp.%s. IN TLSA 3 1 1 %x\n", file, strings.TrimSuffix(host, "."), sum)
		found = true
	}
	if !found {
		return errors.New("no key file is named, and none is deployed")
	}
	return nil
}

// hostnames are those of the arguments, or our own.
func (c *command) hostnames() []string {
	if len(c.args) > 0 {
		return c.args
	}
	return []string{c.cfg.String("myhostname")}
}
