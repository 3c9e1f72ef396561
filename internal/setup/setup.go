// Package setup is the command posthaste setup. It writes main.cf and master.cf for one of the
// usual cases, with comments, and checks them.
//
// The files depend on the command line alone. There is no other state: afterwards the files are
// edited by hand or with postconf.
//
// # Security
//
// A configuration that somebody has changed is never overwritten. Each file is first written
// under another name and then renamed, so that a mail system that starts at the same time reads a
// complete file.
package setup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"posthaste/internal/advice"
	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/resolver"
)

const usage = `usage: posthaste setup [--dry-run] [--acme --acme-agree [--acme-email address]] [-c config_directory] [-n name] [-r relayhost] [-t chain_file] [-w networks] -d domain ... site
       posthaste setup [--dry-run] [--acme --acme-agree [--acme-email address]] [-c config_directory] [-d domain] [-n name] [-r relayhost] [-t chain_file] -w networks relay
       posthaste setup [--dry-run] [-c config_directory] [-d domain] [-n name] -r relayhost null-client
       posthaste setup [--dry-run] [--acme --acme-agree [--acme-email address]] [-c config_directory] [-n name] [-t chain_file] -d domain ... backup-mx
       posthaste setup [--dry-run] [-c config_directory] [-d domain] [-n name] sender`

// exitCreate is EX_CANTCREAT of sysexits.h: there is a configuration already.
const exitCreate = 73

// Tools are what the command needs of the program that it is part of.
type Tools struct {
	Main, Master string // the files that an installation begins with
	Hostname     func() (string, error)
	Aliases      string // the file of local aliases
	// Build builds a table, type:file, and Check is "posthaste check"; both of a
	// configuration directory, with an exit status.
	Build func(dir, table string) int
	Check func(dir string) int
	// Running says whether a mail system runs with the configuration of a directory.
	Running func(dir string) bool
}

// A choice is what was asked for.
type choice struct {
	kind     string
	domains  []string
	name     string // of this host
	relay    string
	chain    string
	acme     acme
	networks []string
	aliases  bool // the file of aliases exists
	dry      bool
	dir      string
}

// allowed are the letters of the options of each case, and needed those that it cannot do without.
var (
	allowed = map[string]string{"site": "cdnrtw", "relay": "cdnrtw", "null-client": "cdnr", "backup-mx": "cdnt", "sender": "cdn"}
	needed  = map[string]string{"site": "d", "relay": "w", "null-client": "r", "backup-mx": "d"}
	single  = []string{"relay", "null-client", "sender"} // these take one domain at most
	words   = map[byte]string{'d': "a domain", 'w': "the networks of its clients", 'r': "a relay host"}
)

// Run runs posthaste setup, and returns its exit status.
func Run(name string, args []string, tools Tools, stdout, stderr io.Writer) int {
	t := &cli.Tool{Name: name, Stdout: stdout, Stderr: stderr}
	c, err := parse(args, &tools)
	if err != nil {
		return t.Fail(err)
	}
	files := []file{{filepath.Join(c.dir, "master.cf"), tools.Master, c.master(tools.Master)}, {filepath.Join(c.dir, "main.cf"), tools.Main, c.main()}}
	if c.dry {
		for _, f := range files {
			if _, err := fmt.Fprintf(stdout, "==> %s <==\n%s\n", f.path, f.text); err != nil {
				return t.Fail(cli.Errorf(cli.ExitIO, "%w", err))
			}
		}
		return 0
	}
	for _, f := range files {
		if err := f.free(); err != nil {
			return t.Fail(err)
		}
	}
	for _, f := range files {
		if err := f.write(); err != nil {
			return t.Fail(cli.Errorf(cli.ExitIO, "%w", err))
		}
		fmt.Fprintf(stdout, "%s: written\n", f.path)
	}
	if c.aliases {
		if status := tools.Build(c.dir, "hash:"+tools.Aliases); status != 0 {
			return status
		}
	}
	lines, err := unwise(c.dir)
	if status := tools.Check(c.dir); status != 0 || err != nil {
		return t.Fatal(cli.ExitConfig, "the configuration was written, and \"posthaste check\" finds what to mend")
	}
	for _, l := range lines {
		fmt.Fprintf(stdout, "unwise: %s\n", l)
	}
	fmt.Fprintf(stdout, "posthaste check finds no error\nnext: %s\n", c.next(tools.Running(c.dir)))
	return 0
}

// unwise is what "posthaste check -v" says beyond "posthaste check", without the differences from
// Postfix, which are nothing to a new configuration: a key that everybody can read, say.
func unwise(dir string) ([]string, error) {
	cfg, err := config.Load(dir)
	if err != nil {
		return nil, err
	}
	services, _, err := config.LoadMaster(dir, cfg)
	if err != nil {
		return nil, err
	}
	return advice.Unwise(cfg, services), nil
}

// next is what somebody does with the new configuration. A package may have started the mail system
// with that of the installation: then it runs, and is to read this one.
func (c *choice) next(running bool) string {
	start := "posthaste start"
	if running {
		start = "posthaste reload"
	}
	class := map[string]string{"site": "local", "sender": "none"}[c.kind]
	switch {
	case class == "" || len(c.domains) == 0:
		return start
	case c.acme.on:
		// The authority comes to the name that the records lead here.
		return fmt.Sprintf("posthaste domain add --class %s %s; publish the records; then %s", class, c.domains[0], start)
	}
	return fmt.Sprintf("%s; then posthaste domain add --class %s %s", start, class, c.domains[0])
}

// parse reads the command line.
func parse(args []string, tools *Tools) (*choice, error) {
	c := &choice{}
	args, err := c.long(args)
	if err != nil {
		return nil, cli.Errorf(cli.ExitUsage, "%w\n%s", err, usage)
	}
	opts, rest, err := cli.Getopt(args, "c:d:n:r:t:w:")
	if err != nil || len(rest) != 1 || allowed[rest[0]] == "" {
		if err == nil {
			return nil, cli.Errorf(cli.ExitUsage, "%s", usage)
		}
		return nil, cli.Errorf(cli.ExitUsage, "%w\n%s", err, usage)
	}
	c.kind = rest[0]
	given := ""
	for _, o := range opts {
		if !strings.ContainsRune(allowed[c.kind], rune(o.Letter)) {
			return nil, cli.Errorf(cli.ExitUsage, "-%c is not for %s", o.Letter, c.kind)
		}
		given += string(o.Letter)
		if err := c.option(o); err != nil {
			return nil, cli.Errorf(cli.ExitUsage, "-%c: %w", o.Letter, err)
		}
	}
	for _, l := range []byte(needed[c.kind]) {
		if !strings.Contains(given, string(l)) {
			return nil, cli.Errorf(cli.ExitUsage, "%s needs %s: -%c", c.kind, words[l], l)
		}
	}
	if slices.Contains(single, c.kind) && len(c.domains) > 1 {
		return nil, cli.Errorf(cli.ExitUsage, "%s has one domain, that of its senders", c.kind)
	}
	if err := c.acme.valid(c); err != nil {
		return nil, cli.Errorf(cli.ExitUsage, "%w", err)
	}
	c.dir = config.Dir(c.dir)
	return c, c.complete(tools)
}

// option notes one option.
func (c *choice) option(o cli.Option) (err error) {
	switch o.Letter {
	case 'c':
		c.dir = o.Value
	case 'd':
		d, ok := resolver.Names{}.ToASCII(o.Value)
		if !ok || !strings.Contains(d, ".") {
			return fmt.Errorf("%q is not the name of a domain", o.Value)
		}
		if d = strings.ToLower(d); !slices.Contains(c.domains, d) {
			c.domains = append(c.domains, d)
		}
	case 'n':
		c.name = strings.ToLower(o.Value)
	case 'r':
		if c.relay = o.Value; o.Value == "" || strings.ContainsAny(o.Value, " \t\r\n,$#") {
			return fmt.Errorf("%q: expected [host]:port, [host] or a domain", o.Value)
		}
	case 't':
		if c.chain = o.Value; !filepath.IsAbs(o.Value) || strings.ContainsAny(o.Value, " \t\r\n,$#") {
			return fmt.Errorf("%q: expected the path of a file, beginning with / and without spaces", o.Value)
		}
	case 'w':
		for _, w := range strings.FieldsFunc(o.Value, func(r rune) bool { return r == ' ' || r == ',' }) {
			p, err := netip.ParsePrefix(strings.NewReplacer("[", "", "]", "").Replace(w))
			switch {
			case err != nil:
				return fmt.Errorf("%q: expected address/length", w)
			case p.Bits() == 0:
				return fmt.Errorf("%s is everybody: this would be an open relay", w)
			case p.Masked() != p:
				return fmt.Errorf("%s: the network is %s", w, p.Masked())
			}
			c.networks = append(c.networks, network(p))
		}
	}
	return nil
}

// network is a network as mynetworks has it.
func network(p netip.Prefix) string {
	if p.Addr().Is6() {
		return fmt.Sprintf("[%s]/%d", p.Addr(), p.Bits())
	}
	return p.String()
}

// complete finds out what was not said.
func (c *choice) complete(tools *Tools) error {
	if c.name == "" {
		name, err := tools.Hostname()
		if err != nil {
			return cli.Errorf(cli.ExitUnavailable, "name of this host: %w; give it with -n", err)
		}
		c.name = strings.ToLower(name)
	}
	if !resolver.ValidHostname(c.name) || !strings.Contains(c.name, ".") {
		return cli.Errorf(cli.ExitUsage, "%q is not a full name of this host, such as mail.example.org: give one with -n", c.name)
	}
	if _, err := os.Stat(tools.Aliases); err == nil {
		c.aliases = c.kind != "null-client"
	}
	return nil
}

// A file is one of the two, as the installation has it and as it is to be.
type file struct{ path, installed, text string }

// free says whether the file may be written: there is none, or nobody has changed it.
func (f *file) free() error {
	old, err := os.ReadFile(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return cli.Errorf(cli.ExitUnavailable, "%w", err)
	case string(old) != f.installed && string(old) != f.text:
		return cli.Errorf(exitCreate, "%s has been changed since it was installed: nothing is written; move it away, or use another directory (-c)", f.path)
	}
	return nil
}

// write replaces the file. Its directory is made if it is missing.
func (f *file) write() error {
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	w, err := os.CreateTemp(dir, filepath.Base(f.path)+".")
	if err != nil {
		return err
	}
	defer os.Remove(w.Name()) // after the rename there is none
	_, err = io.Copy(w, bytes.NewBufferString(f.text))
	err = errors.Join(err, w.Chmod(0o644), w.Sync(), w.Close())
	if err != nil {
		return err
	}
	return os.Rename(w.Name(), f.path)
}
