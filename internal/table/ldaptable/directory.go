package ldaptable

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-ldap/ldap/v3"

	"posthaste/internal/lockstep"
	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// directory is the servers of one table and the connection to one of them.
type directory struct {
	servers  []string // URLs
	timeout  time.Duration
	tls      *tls.Config
	startTLS bool
	bind     string // yes, no, sasl
	dn, pw   string

	mu     sync.Mutex // held while connecting: one does, the others wait
	conn   *ldap.Conn
	failed time.Time // no server could be reached then
	err    error     // and why
	closed bool
}

// again is how soon servers that could not be reached are tried again.
const again = time.Second

func newDirectory(s *query.Settings, o table.Options) *directory {
	d := &directory{timeout: s.Seconds("timeout", 10*time.Second), startTLS: s.Bool("start_tls", false),
		dn: s.Text("", "bind_dn"), pw: s.Text("", "bind_pw"), bind: strings.ToLower(s.Text("yes", "bind"))}
	port := strconv.Itoa(s.Int("server_port", 389, 1, 65535))
	for _, text := range table.SplitList(s.Text("localhost", "server_host")) {
		u, err := serverURL(text, port)
		if err != nil {
			s.Fail("server_host", "%v", err)
		}
		d.servers = append(d.servers, u)
	}
	switch d.bind {
	case "yes", "true":
		d.bind = "yes"
	case "no", "false", "none":
		d.bind = "no"
	case "sasl":
		if mechs := strings.ToUpper(s.Text("", "sasl_mechs")); !strings.Contains(mechs, "EXTERNAL") {
			s.Fail("sasl_mechs", "%q: with bind = sasl, EXTERNAL is the mechanism that there is", mechs)
		}
	default:
		s.Fail("bind", "%q: expected yes, no or sasl", d.bind)
	}
	if v := s.Int("version", 3, 2, 3); v == 2 && o.Warn != nil {
		o.Warn(s.Where() + ": version = 2: servers no longer speak version 2 (RFC 3494); version 3 is used")
	}
	if d.bind != "sasl" {
		s.NoEffect(o, "bind is not sasl", "sasl_mechs")
	}
	s.NoEffect(o, "EXTERNAL has none of it", "sasl_realm", "sasl_authz_id", "sasl_minssf")
	s.NoEffect(o, "cipher suites are those of Go's crypto/tls", "tls_cipher_suite")
	s.NoEffect(o, "the operating system's random numbers are used", "tls_random_file")
	s.NoEffect(o, "there is nothing to trace in this client", "debuglevel")
	s.NoEffect(o, "Postfix ignores it too", "cache", "cache_expiry", "cache_size", "lookup_wildcards")
	d.readTLS(s)
	return d
}

func (d *directory) readTLS(s *query.Settings) {
	d.tls = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: !s.Bool("tls_require_cert", false)}
	d.tls.RootCAs = s.Roots(s.Text("", "tls_ca_cert_file"), s.Text("", "tls_ca_cert_dir"))
	d.tls.Certificates = s.Certificate(s.Text("", "tls_cert"), s.Text("", "tls_key"))
}

// serverURL completes the name of a server.
func serverURL(text, port string) (string, error) {
	if strings.HasPrefix(text, "ldapi://") {
		return text, nil
	}
	if strings.Contains(text, "://") {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "ldap" && u.Scheme != "ldaps" || u.Host == "" {
			return "", fmt.Errorf("%q: expected ldap://host:port, ldaps://host or ldapi://%%2Fpath", text)
		}
		return u.Scheme + "://" + u.Host, nil
	}
	if host, p, err := net.SplitHostPort(text); err == nil {
		return "ldap://" + net.JoinHostPort(host, p), nil
	}
	return "ldap://" + net.JoinHostPort(strings.Trim(text, "[]"), port), nil
}

// search asks the table's servers, or that of a referral. A connection that
// has died is replaced once.
func (d *directory) search(server string, req *ldap.SearchRequest) (*ldap.SearchResult, error) {
	if server != "" {
		c, err := d.dial(server)
		if err != nil {
			return nil, err
		}
		res, err := c.Search(req)
		return res, errors.Join(err, c.Close())
	}
	for try := 0; ; try++ {
		c, fresh, err := d.connection()
		if err != nil {
			return nil, err
		}
		res, err := c.Search(req)
		if err == nil || !broken(err) {
			return res, err
		}
		d.drop(c)
		if fresh || try > 0 {
			return nil, err
		}
	}
}

// broken says whether err means that the connection is of no more use.
func broken(err error) bool {
	return ldap.IsErrorAnyOf(err, ldap.ErrorNetwork, ldap.LDAPResultUnavailable, ldap.LDAPResultServerDown, ldap.LDAPResultTimeout,
		ldap.ErrorUnexpectedMessage, ldap.ErrorUnexpectedResponse, ldap.LDAPResultBusy)
}

// connection is the present connection, or a fresh one.
func (d *directory) connection() (c *ldap.Conn, fresh bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, false, table.ErrClosed
	}
	if d.conn != nil && !d.conn.IsClosing() {
		return d.conn, false, nil
	}
	if d.err != nil && time.Since(d.failed) < again {
		return nil, false, d.err
	}
	var errs []error
	for _, s := range d.servers {
		if c, err = d.dial(s); err == nil {
			d.conn, d.err = c, nil
			return c, true, nil
		}
		errs = append(errs, err)
	}
	d.failed, d.err = time.Now(), errors.Join(errs...)
	return nil, false, d.err
}

// connect connects to a server. What it says to one question is bounded, whatever it
// makes of limits on the number of entries.
func (d *directory) connect(server string, config *tls.Config) (*ldap.Conn, error) {
	dialer := &net.Dialer{Timeout: d.timeout}
	scheme, rest, _ := strings.Cut(server, "://")
	network, addr := "tcp", rest
	if scheme == "ldapi" { // the path is the host, or, as some write it, the path
		host, after, _ := strings.Cut(rest, "/")
		path, err := url.PathUnescape(cmp.Or(host, "/"+after))
		if err != nil {
			return nil, err
		}
		if network, addr = "unix", path; path == "/" {
			addr = "/var/run/slapd/ldapi"
		}
	} else if _, _, err := net.SplitHostPort(rest); err != nil {
		port := ldap.DefaultLdapPort
		if scheme == "ldaps" {
			port = ldap.DefaultLdapsPort
		}
		addr = net.JoinHostPort(strings.Trim(rest, "[]"), port)
	}
	nc, err := dialer.Dial(network, addr)
	if err != nil {
		return nil, err
	}
	nc = lockstep.Bound(nc, query.MaxAnswer)
	if scheme == "ldaps" {
		secured := tls.Client(nc, config)
		ctx, cancel := context.WithTimeout(context.Background(), d.timeout)
		defer cancel()
		if err := secured.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, err
		}
		nc = secured
	}
	c := ldap.NewConn(nc, scheme == "ldaps")
	c.Start()
	return c, nil
}

// dial connects to a server and logs in.
func (d *directory) dial(server string) (*ldap.Conn, error) {
	config := d.tls.Clone()
	u, err := url.Parse(server)
	if err == nil {
		config.ServerName = u.Hostname()
	}
	c, err := d.connect(server, config)
	if err != nil {
		return nil, fmt.Errorf("ldap server %s: %w", server, err)
	}
	c.SetTimeout(d.timeout)
	if d.startTLS && strings.HasPrefix(server, "ldap:") {
		err = c.StartTLS(config)
	}
	if err == nil {
		err = d.login(c)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ldap server %s: %w", server, err), c.Close())
	}
	return c, nil
}

func (d *directory) login(c *ldap.Conn) error {
	var err error
	switch {
	case d.bind == "no":
		return nil
	case d.bind == "sasl":
		err = c.ExternalBind()
	case d.pw == "":
		err = c.UnauthenticatedBind(d.dn)
	default:
		err = c.Bind(d.dn, d.pw)
	}
	if err != nil {
		return fmt.Errorf("bind as %q: %w", d.dn, err)
	}
	return nil
}

func (d *directory) drop(c *ldap.Conn) {
	d.mu.Lock()
	if d.conn == c {
		d.conn = nil
	}
	d.mu.Unlock()
	_ = c.Close() // it is broken
}

func (d *directory) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.conn == nil {
		return nil
	}
	return d.conn.Close()
}

// referral is where a server that does not have the base says it is.
func referral(err error) (urls []string) {
	var e *ldap.Error
	if !errors.As(err, &e) || e.ResultCode != ldap.LDAPResultReferral || e.Packet == nil || len(e.Packet.Children) < 2 {
		return nil
	}
	for _, part := range e.Packet.Children[1].Children {
		if part.ClassType != 0x80 || part.Tag != 3 { // [3] Referral, RFC 4511 section 4.1.10
			continue
		}
		for _, u := range part.Children {
			if text, ok := u.Value.(string); ok {
				urls = append(urls, text)
			}
		}
	}
	return urls
}
