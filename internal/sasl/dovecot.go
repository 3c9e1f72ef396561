package sasl

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"posthaste/internal/lockstep"
)

const (
	dovecotTimeout  = 60 * time.Second // of one step; Dovecot delays failures on purpose
	dovecotFresh    = time.Minute      // how long the list of mechanisms is believed
	maxDovecotLine  = 32 << 10
	maxDovecotLines = 200 // in one step
)

// Dovecot is a Backend that relays to a Dovecot authentication server. Each
// exchange has a connection of its own.
type Dovecot struct {
	network, addr string
	timeout       time.Duration // of one step

	mu    sync.Mutex
	mechs []Mechanism
	asked time.Time
}

// NewDovecot returns a Backend for the server at path: that of a unix-domain
// socket, or inet:host:port.
func NewDovecot(path string) *Dovecot {
	if addr, inet := strings.CutPrefix(path, "inet:"); inet {
		return &Dovecot{network: "tcp", addr: addr, timeout: dovecotTimeout}
	}
	return &Dovecot{network: "unix", addr: strings.TrimPrefix(path, "unix:"), timeout: dovecotTimeout}
}

// Close implements Backend.
func (d *Dovecot) Close() {}

// Mechanisms implements Backend: they are the same for all clients.
func (d *Dovecot) Mechanisms(ctx context.Context, _ Client) ([]Mechanism, error) {
	d.mu.Lock()
	mechs := d.mechs
	fresh := time.Since(d.asked) < dovecotFresh
	d.mu.Unlock()
	if fresh {
		return mechs, nil
	}
	c, err := d.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mechs, nil
}

// Start implements Backend.
func (d *Dovecot) Start(ctx context.Context, mechanism string, client Client) (Exchange, error) {
	c, err := d.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.client, c.mech = client, mechanism
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.mechs {
		if m.Name == mechanism {
			return c, nil
		}
	}
	c.Close()
	return nil, ErrMechanism
}

// dial connects and exchanges greetings.
func (d *Dovecot) dial(ctx context.Context) (*dovecotExchange, error) {
	dialer := net.Dialer{Timeout: d.timeout}
	nc, err := dialer.DialContext(ctx, d.network, d.addr)
	if err != nil {
		return nil, fmt.Errorf("authentication server %s: %w", d.addr, err)
	}
	c := &dovecotExchange{nc: lockstep.New(nc), timeout: d.timeout}
	mechs, err := c.greet()
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("authentication server %s: %w", d.addr, err)
	}
	d.mu.Lock()
	d.mechs, d.asked = mechs, time.Now()
	d.mu.Unlock()
	return c, nil
}

// A dovecotExchange is one connection, for one attempt.
type dovecotExchange struct {
	nc      *lockstep.Conn
	timeout time.Duration
	client  Client
	mech    string
	begun   bool
	lines   int // read in this step
	user    string
}

func (c *dovecotExchange) Username() string { return c.user }
func (c *dovecotExchange) Close()           { c.nc.Close() }

// step begins a step: what we say, and what the server says to it. All of it has one
// deadline, and one bound on the lines.
func (c *dovecotExchange) step() {
	c.nc.SetDeadline(time.Now().Add(c.timeout))
	c.lines = 0
}

func (c *dovecotExchange) line() ([]string, error) {
	if c.lines++; c.lines > maxDovecotLines {
		return nil, fmt.Errorf("%w: over %d lines", lockstep.ErrLong, maxDovecotLines)
	}
	text, err := lockstep.ReadLine(c.nc.Reader(), maxDovecotLine)
	if err != nil {
		return nil, err
	}
	return strings.Split(string(text), "\t"), nil
}

// unasked reads what has come since the last step: there may be news about the server,
// but no answer to what we have not said yet.
func (c *dovecotExchange) unasked() error {
	for {
		err := c.nc.Before()
		if !errors.Is(err, lockstep.ErrUnasked) {
			return err
		}
		words, lerr := c.line()
		if lerr != nil {
			return lerr
		}
		if c.ours(words) {
			return err
		}
	}
}

// ours says whether a line is about our login, and not news about the server.
func (c *dovecotExchange) ours(words []string) bool {
	return len(words) > 1 && words[1] == "1" && (words[0] == "OK" || words[0] == "CONT" || words[0] == "FAIL")
}

func (c *dovecotExchange) send(words ...string) error {
	for i, w := range words {
		if strings.ContainsAny(w, "\t\n\r\x00") {
			words[i] = strings.Map(func(r rune) rune {
				if r < ' ' {
					return '?'
				}
				return r
			}, w)
		}
	}
	_, err := c.nc.Write([]byte(strings.Join(words, "\t") + "\n"))
	return err
}

func (c *dovecotExchange) greet() ([]Mechanism, error) {
	c.step()
	if err := c.send("VERSION", "1", "1"); err != nil {
		return nil, err
	}
	if err := c.send("CPID", fmt.Sprint(os.Getpid())); err != nil {
		return nil, err
	}
	var mechs []Mechanism
	versioned := false
	for {
		words, err := c.line()
		if err != nil {
			return nil, err
		}
		switch words[0] {
		case "VERSION":
			if len(words) < 2 || words[1] != "1" {
				return nil, fmt.Errorf("protocol version %v is not supported", words[1:])
			}
			versioned = true
		case "MECH":
			// The protocol has no way to say what a channel is bound by.
			if len(words) > 1 && !strings.HasSuffix(words[1], "-PLUS") {
				mechs = append(mechs, Mechanism{strings.ToUpper(words[1]), dovecotProperties(words[2:])})
			}
		case "DONE":
			if !versioned {
				return nil, errors.New("no protocol version")
			}
			return mechs, nil
		}
	}
}

func dovecotProperties(words []string) (p Property) {
	for _, w := range words {
		switch w {
		case "plaintext":
			p |= Plaintext
		case "anonymous":
			p |= Anonymous
		case "dictionary":
			p |= Dictionary
		case "active":
			p |= Active
		case "forward-secrecy":
			p |= ForwardSecrecy
		case "mutual-auth":
			p |= MutualAuth
		}
	}
	return p
}

// Next implements Exchange.
func (c *dovecotExchange) Next(ctx context.Context, response []byte) (challenge []byte, done bool, err error) {
	c.step()
	stop := context.AfterFunc(ctx, func() { c.nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.unasked(); err != nil {
		return nil, false, err
	}
	b64 := base64.StdEncoding.EncodeToString(response)
	if c.begun {
		err = c.send("CONT", "1", b64)
	} else {
		words := []string{"AUTH", "1", c.mech, "service=" + c.client.Service, "nologin",
			"lip=" + c.client.LocalAddr, "rip=" + c.client.RemoteAddr, "lport=" + c.client.LocalPort, "rport=" + c.client.RemotePort}
		if c.client.TLS != nil {
			words = append(words, "secured")
		}
		if response != nil {
			words = append(words, "resp="+b64) // must be the last
		}
		c.begun = true
		err = c.send(words...)
	}
	if err != nil {
		return nil, false, err
	}
	return c.answer()
}

func (c *dovecotExchange) answer() ([]byte, bool, error) {
	for {
		words, err := c.line()
		if err != nil {
			return nil, false, err
		}
		if !c.ours(words) {
			continue // news about the server
		}
		params := map[string]string{}
		for _, w := range words[2:] {
			name, value, _ := strings.Cut(w, "=")
			params[name] = value
		}
		if u := params["user"]; u != "" {
			c.user = u
		}
		switch words[0] {
		case "OK":
			if c.user == "" {
				return nil, false, errors.New("the authentication server did not say who it is")
			}
			return nil, true, nil
		case "CONT":
			if len(words) < 3 {
				return []byte{}, false, nil
			}
			challenge, err := base64.StdEncoding.DecodeString(words[2])
			return challenge, false, err
		case "FAIL":
			reason := params["reason"]
			if _, temp := params["temp"]; temp {
				if reason == "" {
					reason = "temporary failure"
				}
				return nil, false, errors.New(reason)
			}
			if reason == "" {
				reason = "(reason unavailable)"
			}
			return nil, false, &Failure{reason}
		}
	}
}
