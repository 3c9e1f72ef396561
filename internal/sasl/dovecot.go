package sasl

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	dovecotTimeout = 60 * time.Second // of one step; Dovecot delays failures on purpose
	dovecotFresh   = time.Minute      // how long the list of mechanisms is believed
	maxDovecotLine = 32 << 10
)

// Dovecot is a Backend that relays to a Dovecot authentication server. Each
// exchange has a connection of its own.
type Dovecot struct {
	network, addr string

	mu    sync.Mutex
	mechs []Mechanism
	asked time.Time
}

// NewDovecot returns a Backend for the server at path: that of a unix-domain
// socket, or inet:host:port.
func NewDovecot(path string) *Dovecot {
	if addr, inet := strings.CutPrefix(path, "inet:"); inet {
		return &Dovecot{network: "tcp", addr: addr}
	}
	return &Dovecot{network: "unix", addr: strings.TrimPrefix(path, "unix:")}
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
	dialer := net.Dialer{Timeout: dovecotTimeout}
	nc, err := dialer.DialContext(ctx, d.network, d.addr)
	if err != nil {
		return nil, fmt.Errorf("authentication server %s: %w", d.addr, err)
	}
	c := &dovecotExchange{nc: nc, br: bufio.NewReaderSize(nc, maxDovecotLine)}
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
	nc     net.Conn
	br     *bufio.Reader
	client Client
	mech   string
	begun  bool
	user   string
}

func (c *dovecotExchange) Username() string { return c.user }
func (c *dovecotExchange) Close()           { c.nc.Close() }

func (c *dovecotExchange) line() ([]string, error) {
	c.nc.SetDeadline(time.Now().Add(dovecotTimeout))
	text, err := c.br.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\t"), nil
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
	c.nc.SetDeadline(time.Now().Add(dovecotTimeout))
	_, err := c.nc.Write([]byte(strings.Join(words, "\t") + "\n"))
	return err
}

func (c *dovecotExchange) greet() ([]Mechanism, error) {
	if err := c.send("VERSION", "1", "1"); err != nil {
		return nil, err
	}
	if err := c.send("CPID", fmt.Sprint(os.Getpid())); err != nil {
		return nil, err
	}
	var mechs []Mechanism
	versioned := false
	for n := 0; n < 200; n++ {
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
	return nil, errors.New("greeting has no end")
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
func (c *dovecotExchange) Next(_ context.Context, response []byte) ([]byte, bool, error) {
	b64 := base64.StdEncoding.EncodeToString(response)
	var err error
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
		if len(words) < 2 || words[1] != "1" {
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
