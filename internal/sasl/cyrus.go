package sasl

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"posthaste/internal/lockstep"
	"posthaste/internal/smallfile"
)

const (
	saslauthdTimeout = 60 * time.Second // of a question and its answer: PAM delays failures on purpose
	saslauthdMux     = "/var/run/saslauthd/mux"
	maxSaslauthdWord = 256     // octets of what saslauthd takes as a name, a password or a realm
	maxSaslauthdText = 4 << 10 // octets of an answer
	maxCyrusFile     = 64 << 10
)

// Cyrus is a Backend that asks the password daemon of Cyrus SASL, saslauthd. Its settings are
// those of the application's file in Cyrus SASL's own form, as Postfix reads it. There are the
// mechanisms PLAIN and LOGIN: the daemon is told a name and a password. Each question has a
// connection of its own.
type Cyrus struct {
	socket  string
	service string // what PAM knows the service by
	realm   string // of names that have none
	mechs   []Mechanism
	timeout time.Duration
}

// CyrusOptions say where the settings are and who asks.
type CyrusOptions struct {
	Application string   // the name of the file, without .conf: smtpd
	Dirs        []string // where it is looked for, in this order
	Service     string   // smtp
	Realm       string   // smtpd_sasl_local_domain
}

// CyrusDirs are where the file is looked for when cyrus_sasl_config_path says nothing: where
// Cyrus SASL, and Debian's Postfix, look for it.
func CyrusDirs(configDir string) []string {
	return []string{filepath.Join(configDir, "sasl"), "/etc/postfix/sasl", "/etc/sasl2", "/usr/lib/sasl2", "/usr/local/lib/sasl2"}
}

// instead is what to do where Cyrus SASL would look up passwords itself.
const instead = `expected pwcheck_method: saslauthd; for users in a table or a database use smtpd_sasl_type = table ("posthaste passwd" makes entries) or dovecot`

// NewCyrus reads the application's file. The error says what of it cannot be done, with its
// place; warnings are of what has no effect.
func NewCyrus(o CyrusOptions) (c *Cyrus, warnings []string, err error) {
	if o.Application == "" || strings.Contains(o.Application, "/") {
		return nil, nil, fmt.Errorf("%q: expected the name of a file below %s, without .conf", o.Application, strings.Join(o.Dirs, ":"))
	}
	file, text, err := readCyrusFile(o)
	if err != nil {
		return nil, nil, err
	}
	c = &Cyrus{socket: saslauthdMux, service: cmp.Or(o.Service, "smtp"), realm: o.Realm, timeout: saslauthdTimeout}
	offer := []string{"PLAIN", "LOGIN"}
	method := ""
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		place := fmt.Sprintf("%s:%d", file, i+1)
		if !ok || name == "" {
			return nil, nil, fmt.Errorf("%s: expected name: value", place)
		}
		switch name {
		case "pwcheck_method":
			if method = value; !strings.EqualFold(method, "saslauthd") {
				return nil, nil, fmt.Errorf("%s: pwcheck_method: %s: %s", place, value, instead)
			}
		case "mech_list":
			var absent []string
			if offer, absent = cyrusMechanisms(value); len(offer) == 0 {
				return nil, nil, fmt.Errorf("%s: mech_list: %s: saslauthd can do PLAIN and LOGIN alone; %s", place, value, instead)
			}
			if len(absent) > 0 {
				warnings = append(warnings, fmt.Sprintf("%s: mech_list: %s: not offered, since saslauthd can do PLAIN and LOGIN alone", place, strings.Join(absent, " ")))
			}
		case "saslauthd_path":
			if !filepath.IsAbs(value) {
				return nil, nil, fmt.Errorf("%s: saslauthd_path: %s: expected the path of saslauthd's socket", place, value)
			}
			c.socket = value
		case "log_level":
		default:
			warnings = append(warnings, fmt.Sprintf("%s: %s: has no effect with saslauthd", place, name))
		}
	}
	if method == "" {
		return nil, nil, fmt.Errorf("%s: pwcheck_method is missing, which stands for auxprop: %s", file, instead)
	}
	for _, name := range offer {
		c.mechs = append(c.mechs, Mechanism{name, Plaintext | Dictionary | Active})
	}
	return c, warnings, nil
}

// readCyrusFile finds the application's file.
func readCyrusFile(o CyrusOptions) (file, text string, err error) {
	for _, dir := range o.Dirs {
		if dir == "" {
			continue
		}
		file = filepath.Join(dir, o.Application+".conf")
		b, err := smallfile.Read(file, maxCyrusFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return file, string(b), err
	}
	return "", "", fmt.Errorf("there is no %s.conf in %s; without it Cyrus SASL would use auxprop: %s", o.Application, strings.Join(o.Dirs, ":"), instead)
}

// cyrusMechanisms takes a mech_list apart: what can be offered, and what cannot.
func cyrusMechanisms(list string) (offer, absent []string) {
	for _, name := range strings.FieldsFunc(strings.ToUpper(list), func(r rune) bool { return r == ' ' || r == '\t' || r == ',' }) {
		switch {
		case name != "PLAIN" && name != "LOGIN":
			absent = append(absent, name)
		case !slices.Contains(offer, name):
			offer = append(offer, name)
		}
	}
	return offer, absent
}

// Close implements Backend.
func (c *Cyrus) Close() {}

// Mechanisms implements Backend.
func (c *Cyrus) Mechanisms(context.Context, Client) ([]Mechanism, error) { return c.mechs, nil }

// Start implements Backend.
func (c *Cyrus) Start(_ context.Context, mechanism string, _ Client) (Exchange, error) {
	if !slices.ContainsFunc(c.mechs, func(m Mechanism) bool { return m.Name == mechanism }) {
		return nil, ErrMechanism
	}
	if mechanism == "PLAIN" {
		return &cyrusExchange{&plain{users: c}, c.realm}, nil
	}
	return &cyrusExchange{&login{users: c}, c.realm}, nil
}

// A cyrusExchange calls a user by the name and the realm, as Cyrus SASL does.
type cyrusExchange struct {
	Exchange
	realm string
}

func (x *cyrusExchange) Username() string {
	name := x.Exchange.Username()
	if name == "" || x.realm == "" || strings.Contains(name, "@") {
		return name
	}
	return name + "@" + x.realm
}

// check asks saslauthd. What is after the last @ of a name is its realm.
func (c *Cyrus) check(ctx context.Context, user, password string) error {
	name, realm := user, c.realm
	if at := strings.LastIndexByte(user, '@'); at >= 0 {
		name, realm = user[:at], user[at+1:]
	}
	if password == "" || max(len(name), len(password), len(realm)) > maxSaslauthdWord {
		return errCredentials // saslauthd would hang up
	}
	var question []byte
	for _, word := range []string{name, password, c.service, realm} {
		question = binary.BigEndian.AppendUint16(question, uint16(len(word)))
		question = append(question, word...)
	}
	answer, err := c.ask(ctx, question)
	if err != nil {
		return fmt.Errorf("saslauthd %s: %w", c.socket, err)
	}
	switch {
	case strings.HasPrefix(answer, "OK"):
		return nil
	case strings.HasPrefix(answer, "NO"):
		return errCredentials
	}
	return fmt.Errorf("saslauthd %s: unexpected answer %q", c.socket, answer)
}

// ask asks one question over a connection that is not used again.
func (c *Cyrus) ask(ctx context.Context, question []byte) (answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var dialer net.Dialer
	nc, err := dialer.DialContext(ctx, "unix", c.socket)
	if err != nil {
		return "", err
	}
	defer nc.Close()
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	conn := lockstep.New(nc)
	if err := conn.Before(); err != nil {
		return "", err
	}
	if _, err := conn.Write(question); err != nil {
		return "", err
	}
	var size [2]byte
	if _, err := io.ReadFull(conn.Reader(), size[:]); err != nil {
		return "", errors.Join(err, ctx.Err())
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > maxSaslauthdText {
		return "", lockstep.ErrLong
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(conn.Reader(), text); err != nil {
		return "", errors.Join(err, ctx.Err())
	}
	if _, err := conn.After(); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.TrimRight(string(text), "\x00"), nil
}
