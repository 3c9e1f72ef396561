package access

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/lockstep"
	"posthaste/internal/table"
)

// check_policy_service: a server of the site's own that is asked for an action, such as
// a greylist. The protocol is that of SMTPD_POLICY_README of Postfix: lines name=value
// and an empty line, both ways. A connection serves one request after another; there
// are as many as there are sessions that ask at the same time.

// Bounds of what a policy server may answer: octets, and attributes of which all but
// one are passed over.
const (
	maxPolicyReply = 32 << 10
	maxAttributes  = 100
)

// policySettings are what check_policy_service may be told in braces, over the
// parameters smtpd_policy_service_....
type policySettings struct {
	timeout, retryDelay, maxIdle, maxTTL time.Duration
	tries, requests                      int    // attempts for a request; requests of a connection, 0: any
	fallback, context                    string // the action if nobody answers; a word for the server
}

// A policyClient speaks to one policy server. It lives as long as the Evaluator,
// and may be used concurrently.
type policyClient struct {
	endpoint string // as configured: unix:path or inet:host:port
	network  string
	addr     string
	set      policySettings // not changed

	mu     sync.Mutex    // guards what follows
	idle   []*policyConn // in the order in which they were parked
	sweeps *time.Timer   // closes those that nobody takes; nil while there are none
	closed bool
}

// policyConn is one connection. It belongs to the session that asks, or is parked.
type policyConn struct {
	nc     *lockstep.Conn
	born   time.Time // for maxTTL
	parked time.Time // when it was parked last, for maxIdle
	used   int       // requests
}

// policyCheck is check_policy_service. Restrictions with the same argument share a
// client. When the server cannot be asked, the fallback action counts, which is to
// refuse for now unless the administrator has decided otherwise.
func policyCheck(e *Evaluator, arg string) (check, error) {
	p := e.policies[arg]
	if p == nil {
		var err error
		if p, err = newPolicyClient(e.cfg, arg); err != nil {
			return nil, err
		}
		e.policies[arg] = p
	}
	return func(r *run, ctx context.Context) verdict {
		// The action is carried out like that of an access table: a policy server
		// can do all that a table can.
		request := e.policyRequest(r.s, p.set.context)
		trace := table.TraceOf(ctx)
		if trace != nil {
			for line := range strings.Lines(string(request)) {
				if name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
					trace("send attr %s = %s", name, value)
				}
			}
		}
		action, err := p.ask(ctx, request)
		if trace != nil && err == nil {
			trace("input attribute name: action")
			trace("input attribute value: %s", action)
		}
		if err != nil {
			e.log.Warning("problem talking to server %s: %v", p.endpoint, err)
			action = p.set.fallback
		} else if e.smtputf8 && !utf8.ValidString(action) {
			e.log.Warning("malformed UTF-8 in policy server %s response: \"%s\"", p.endpoint, action)
			action = p.set.fallback
		}
		return r.act(ctx, titlePrefix+p.endpoint, action, r.name, r.cl)
	}, nil
}

// newPolicyClient reads the argument of check_policy_service. Nothing is connected
// before it is needed.
func newPolicyClient(cfg *config.Config, arg string) (*policyClient, error) {
	p := &policyClient{set: policySettings{
		timeout: cfg.Duration("smtpd_policy_service_timeout"), retryDelay: cfg.Duration("smtpd_policy_service_retry_delay"),
		maxIdle: cfg.Duration("smtpd_policy_service_max_idle"), maxTTL: cfg.Duration("smtpd_policy_service_max_ttl"),
		tries: cfg.Int("smtpd_policy_service_try_limit"), requests: cfg.Int("smtpd_policy_service_request_limit"),
		fallback: cfg.String("smtpd_policy_service_default_action"), context: cfg.String("smtpd_policy_service_policy_context"),
	}}
	words := table.SplitList(arg) // an attribute with blanks in its value is in braces
	if len(words) == 0 {
		return nil, errors.New("expected unix:path or inet:host:port")
	}
	p.endpoint = words[0]
	kind, addr, _ := strings.Cut(p.endpoint, ":")
	switch kind {
	case "unix":
		p.network, p.addr = "unix", addr
	case "inet":
		p.network, p.addr = "tcp", addr
		if !strings.Contains(addr, ":") {
			p.addr = "localhost:" + addr
		}
	default:
		return nil, fmt.Errorf("%q: expected unix:path or inet:host:port", p.endpoint)
	}
	for _, opt := range words[1:] {
		if inner, braced := strings.CutPrefix(opt, "{"); braced {
			opt = strings.TrimSuffix(inner, "}")
		}
		name, value, found := strings.Cut(opt, "=")
		if !found {
			return nil, fmt.Errorf("%s: %q: expected name=value", p.endpoint, opt)
		}
		if err := p.set.override(strings.TrimSpace(name), strings.TrimSpace(value)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// override sets one attribute.
func (s *policySettings) override(name, value string) (err error) {
	value = strings.TrimSuffix(strings.TrimPrefix(value, "{"), "}")
	duration := func(d *time.Duration) { *d, err = parseSeconds(value) }
	number := func(n *int) { *n, err = strconv.Atoi(value) }
	switch name {
	case "timeout":
		duration(&s.timeout)
	case "retry_delay":
		duration(&s.retryDelay)
	case "max_idle":
		duration(&s.maxIdle)
	case "max_ttl":
		duration(&s.maxTTL)
	case "try_limit":
		number(&s.tries)
	case "request_limit":
		number(&s.requests)
	case "default_action":
		s.fallback = strings.TrimSpace(value)
	case "policy_context":
		s.context = value
	default:
		return fmt.Errorf("check_policy_service: unknown attribute %q", name)
	}
	return err
}

// ask sends a request and returns the action. A connection that turns out to be
// dead is no failure yet: servers close idle ones as they like. Only one that was
// made for this request counts as a try.
func (p *policyClient) ask(ctx context.Context, request []byte) (string, error) {
	var err error
	for try := 0; try < max(1, p.set.tries); try++ {
		if try > 0 && !wait(ctx, p.set.retryDelay) {
			break
		}
		for {
			c, fresh, dialErr := p.conn(ctx)
			if dialErr != nil {
				err = dialErr
				break
			}
			var action string
			var keep bool
			if action, keep, err = c.exchange(ctx, request, p.set.timeout); err == nil {
				if keep {
					p.park(c)
				} else {
					c.nc.Close()
				}
				return action, nil
			}
			c.nc.Close()
			if fresh {
				break
			}
		}
	}
	return "", err
}

// conn takes an idle connection or makes one: fresh says which.
func (p *policyClient) conn(ctx context.Context) (c *policyConn, fresh bool, err error) {
	now := time.Now()
	p.mu.Lock()
	for len(p.idle) > 0 && c == nil {
		// The last one parked: those that are not needed grow old, and are swept.
		c = p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if now.Sub(c.parked) >= p.set.maxIdle || now.Sub(c.born) >= p.set.maxTTL {
			c.nc.Close()
			c = nil
		}
	}
	p.mu.Unlock()
	if c != nil {
		return c, false, nil
	}
	d := net.Dialer{Timeout: p.set.timeout}
	nc, err := d.DialContext(ctx, p.network, p.addr)
	if err != nil {
		return nil, true, err
	}
	return &policyConn{nc: lockstep.New(nc), born: now}, true, nil
}

// park keeps a connection for the next request.
func (p *policyClient) park(c *policyConn) {
	c.used++
	c.parked = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.set.requests > 0 && c.used >= p.set.requests {
		c.nc.Close()
		return
	}
	p.idle = append(p.idle, c)
	if p.sweeps == nil {
		p.sweeps = time.AfterFunc(p.set.maxIdle, p.sweep)
	}
}

// sweep closes connections that a burst of requests has left: the last one
// parked is the first one taken, so that those below it may never be.
func (p *policyClient) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for len(p.idle) > 0 && now.Sub(p.idle[0].parked) >= p.set.maxIdle {
		p.idle[0].nc.Close()
		p.idle = slices.Delete(p.idle, 0, 1)
	}
	if p.sweeps = nil; len(p.idle) > 0 {
		p.sweeps = time.AfterFunc(p.idle[0].parked.Add(p.set.maxIdle).Sub(now), p.sweep)
	}
}

// close closes idle connections, and those in use when they are parked.
func (p *policyClient) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.sweeps != nil {
		p.sweeps.Stop()
	}
	for _, c := range p.idle {
		c.nc.Close()
	}
	p.idle = nil
}

// exchange is one request and its answer. keep says that the connection is good for
// another; with an error it is not.
func (c *policyConn) exchange(ctx context.Context, request []byte, timeout time.Duration) (action string, keep bool, err error) {
	if err := c.nc.Before(); err != nil {
		return "", false, err
	}
	c.nc.SetDeadline(time.Now().Add(timeout)) // of all of it, however it drips
	// A session that ends must not wait for a policy server.
	stop := context.AfterFunc(ctx, func() { c.nc.SetDeadline(time.Unix(1, 0)) })
	if _, err = c.nc.Write(request); err == nil {
		action, err = readAction(c.nc.Reader())
	}
	if err == nil {
		keep, err = c.nc.After()
	}
	return action, stop() && keep, err
}

// readAction reads an answer: attributes, and an empty line. Attributes other than
// action are passed over. The bounds are against a server that never ends.
func readAction(r *bufio.Reader) (action string, err error) {
	found := false
	for n, left := 0, maxPolicyReply; ; n++ {
		text, err := lockstep.ReadLine(r, left)
		if err != nil {
			return "", err
		}
		if len(text) == 0 {
			break
		}
		if left -= len(text) + 1; n >= maxAttributes {
			return "", fmt.Errorf("%w: over %d attributes", lockstep.ErrLong, maxAttributes)
		}
		name, value, has := strings.Cut(string(text), "=")
		if !has {
			return "", fmt.Errorf("malformed answer %.100q: expected name=value", text)
		}
		if strings.TrimSpace(name) == "action" {
			action, found = strings.TrimSpace(value), true
		}
	}
	if !found {
		return "", errors.New("the answer has no action")
	}
	return action, nil
}

// instances counts the transactions of which a policy server was told, so that two
// of one microsecond have different names.
var instances atomic.Uint64

// policyRequest is all that a policy server is told, in Postfix's order. Values
// cannot hold line ends or NUL: a client that could put one there could add
// attributes.
func (e *Evaluator) policyRequest(s *Session, policyContext string) []byte {
	// The same for all questions about one message: greylists and the like tell
	// attempts apart by it.
	if s.Instance == "" {
		now := time.Now()
		s.Instance = fmt.Sprintf("%x.%x.%x.%x", os.Getpid(), now.Unix(), now.Nanosecond()/1000, instances.Add(1))
	}
	b := make([]byte, 0, 1024)
	add := func(name, value string) {
		b = append(append(b, name...), '=')
		for i := 0; i < len(value); i++ {
			// A line end in a value would be the end of the attribute.
			if c := value[i]; c == '\n' || c == '\r' || c == 0 {
				b = append(b, '?')
			} else {
				b = append(b, c)
			}
		}
		b = append(b, '\n')
	}
	// Postfix knows no BDAT here: policy servers are written for DATA.
	state := s.Stage
	if state == "BDAT" {
		state = "DATA"
	}
	// With several recipients there is none that the question could be about.
	rcpt, count := s.Recipient, 0
	if state == "DATA" || state == "END-OF-MESSAGE" {
		if count = s.Accepted; count > 1 {
			rcpt = ""
		}
	}
	add("request", "smtpd_access_policy")
	add("protocol_state", state)
	add("protocol_name", s.Proto)
	add("client_address", s.AddrText)
	add("client_name", s.Name)
	add("client_port", s.Port)
	add("reverse_client_name", s.ReverseName)
	add("server_address", s.ServerAddr)
	add("server_port", s.ServerPort)
	add("helo_name", s.Helo)
	add("sender", s.Sender)
	add("recipient", rcpt)
	add("recipient_count", strconv.Itoa(count))
	add("queue_id", string(s.QueueID))
	add("instance", s.Instance)
	add("size", strconv.FormatInt(s.Size, 10))
	add("etrn_domain", s.EtrnDomain)
	add("stress", e.cfg.String("stress"))
	add("sasl_method", s.SASL.Method)
	add("sasl_username", s.SASL.Username)
	add("sasl_sender", s.SASL.Sender)
	t := s.TLS
	if t == nil {
		t = &TLS{}
	}
	// Names in a certificate mean something only if a CA that we trust has signed
	// it.
	subject, issuer := "", ""
	if t.Trusted {
		subject, issuer = dsn.Xtext(t.Subject), dsn.Xtext(t.Issuer)
	}
	add("ccert_subject", subject)
	add("ccert_issuer", issuer)
	add("ccert_fingerprint", t.Fingerprint)
	add("ccert_pubkey_fingerprint", t.PubKeyPrint)
	add("encryption_protocol", t.Protocol)
	add("encryption_cipher", t.Cipher)
	add("encryption_keysize", strconv.Itoa(t.Bits))
	add("policy_context", policyContext)
	add("compatibility_level", e.cfg.String("compatibility_level"))
	add("mail_version", e.cfg.String("mail_version"))
	return append(b, '\n')
}
