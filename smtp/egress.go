// Sources: what connections come from when the queue manager says so (egress_source_maps). A
// source that cannot be used is no reason to use another address: the mail is deferred, and
// the queue manager may have another source.

package smtp

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/proxy"

	"posthaste/internal/agent"
	"posthaste/internal/dsn"
	"posthaste/internal/egress"
	"posthaste/internal/tlspolicy"
)

// maxSources bounds the sources that are remembered: there are as many as the tables have, and few tables have more.
const maxSources = 1000

// A source with what tells its sessions apart from those of others. It is not changed: deliveries share it.
type usedSource struct {
	egress.Source
	key string
}

// usedSources are sources by their names and what was said of them. A source of the same name may have another address
// by now, and is another one then.
type usedSources struct {
	mu    sync.Mutex
	known map[[2]string]*usedSource
}

// of reads what a request is to be sent from; nil: what the settings say.
func (c *usedSources) of(r *agent.Request) (*usedSource, error) {
	if r.Source == "" {
		return nil, nil
	}
	// It is read once, and not for each message.
	c.mu.Lock()
	defer c.mu.Unlock()
	k := [2]string{r.Source, r.SourceSpec}
	if s := c.known[k]; s != nil {
		return s, nil
	}
	s, err := egress.Parse(r.Source, r.SourceSpec)
	if err != nil {
		return nil, fmt.Errorf("egress source %s: %w", r.Source, err)
	}
	if c.known == nil || len(c.known) >= maxSources {
		c.known = make(map[[2]string]*usedSource) // deliveries under way keep what they have
	}
	x := &usedSource{s, s.Name + " " + s.String()}
	c.known[k] = x
	return x, nil
}

// sourceKey tells sessions of different sources apart.
func (d *delivery) sourceKey() string {
	if d.source == nil {
		return ""
	}
	return d.source.key
}

// tlsSourceKey does the same for TLS sessions, which show the certificate with which they began:
// once it has been renewed they are of no use.
func (d *delivery) tlsSourceKey(certs []*tls.Certificate) string {
	if d.source == nil {
		return ""
	}
	key := d.sourceKey()
	if d.source.CertFile != "" {
		key += string(certs[0].Certificate[0])
	}
	return key
}

// helloName is what EHLO, HELO and LHLO say: the source's name, since receivers compare it with the
// reverse name of the address that they see.
func (d *delivery) helloName() string {
	if d.client != nil && d.client.Helo != "" {
		return d.client.Helo
	}
	if d.source != nil && d.source.Helo != "" {
		return d.source.Helo
	}
	return d.set.helloName
}

// reachable leaves out servers of a family of which the source has no address. The list is
// changed. The failure is none of the network (RFC 3463, X.4): the queue manager may have a source
// that has such an address.
func (d *delivery) reachable(list []target) ([]target, *failure) {
	if d.source == nil {
		return list, nil
	}
	// Sockets of this host have no family, and no address is needed for them.
	kept := slices.DeleteFunc(list, func(t target) bool {
		_, ok := d.source.From(t.ip)
		return t.path == "" && !ok
	})
	// All servers are of the family that the source has not.
	if len(kept) == 0 {
		family := "IPv4"
		if d.source.Address.IsValid() {
			family = "IPv6"
		}
		return nil, lookupFailure(dsn.S(4, 3, 5), fmt.Sprintf("%s has %s addresses only, and egress source %s has none", d.hop.host, family, d.source.Name))
	}
	return kept, nil
}

// dialFrom connects to a server from the source's address, or by its proxy. What dial makes
// of dialer goes to the server or to the proxy.
func (d *delivery) dialFrom(ctx context.Context, dialer *net.Dialer, t *target) (net.Conn, error) {
	// reachable has left only servers that the source has an address for.
	from, _ := d.source.From(t.ip)
	addr := net.JoinHostPort(t.ip.String(), t.port)
	switch d.source.Proxy.Kind {
	// What follows the header is the server's: its greeting is the first that is read.
	case egress.HAProxy:
		conn, err := d.dialWith(dialer)(ctx, "tcp", d.source.Proxy.Addr)
		if err != nil {
			return nil, &proxyError{d.source.Proxy.Addr, err}
		}
		if err := d.introduceTo(conn, from, t); err != nil {
			conn.Close()
			return nil, &proxyError{d.source.Proxy.Addr, err}
		}
		return conn, nil
	case egress.SOCKS5:
		// Package proxy knows no time limit of its own. The proxy is given as long as the server.
		ctx, cancel := context.WithTimeout(ctx, d.set.time.connect)
		defer cancel()
		dial := d.dialWith(dialer)
		p, err := proxy.SOCKS5("tcp", d.source.Proxy.Addr, nil, forward(func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, &proxyError{addr, err}
			}
			return conn, nil
		}))
		if err != nil {
			return nil, err
		}
		return p.(proxy.ContextDialer).DialContext(ctx, "tcp", addr)
	}
	// Without a proxy. There is no other address to fall back to: mail must not go from it.
	dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	return d.dialWith(dialer)(ctx, "tcp", addr)
}

// A proxyError is a proxy that cannot be reached. It says nothing of the server.
type proxyError struct {
	addr string
	err  error
}

func (e *proxyError) Error() string { return "proxy " + e.addr + ": " + e.err.Error() }
func (e *proxyError) Unwrap() error { return e.err }

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// dialWith is the dialer's function, or that of a test.
func (d *delivery) dialWith(dialer *net.Dialer) dialFunc {
	if d.a.dial != nil {
		return d.a.dial
	}
	return dialer.DialContext
}

// forward makes of a function what package proxy wants.
type forward dialFunc

func (f forward) Dial(network, addr string) (net.Conn, error) {
	return f(context.Background(), network, addr)
}

func (f forward) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return f(ctx, network, addr)
}

// proxySignature begins a header of the PROXY protocol, version 2.
const proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// introduceTo writes the header of the PROXY protocol, version 2 (HAProxy's
// proxy-protocol.txt, section 2.2): a connection over TCP from the source's address, any port,
// to the server. The proxy makes that connection.
func (d *delivery) introduceTo(conn net.Conn, from netip.Addr, t *target) error {
	port, err := strconv.ParseUint(t.port, 10, 16)
	if err != nil {
		return err
	}
	b := append([]byte(proxySignature), 0x21, 0x11) // version 2, PROXY; TCP over IPv4
	// Both addresses are of one family: reachable has seen to that.
	if t.ip.Is6() {
		b[len(b)-1] = 0x21
	}
	body := append(from.AsSlice(), t.ip.AsSlice()...)
	body = binary.BigEndian.AppendUint16(body, 0)
	body = binary.BigEndian.AppendUint16(body, uint16(port))
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(body))), body...)
	if err := conn.SetWriteDeadline(time.Now().Add(d.set.time.connect)); err != nil {
		return err
	}
	if _, err := conn.Write(b); err != nil {
		return err
	}
	return conn.SetWriteDeadline(time.Time{})
}

// sourceFailed words a connection that could not be made for the source's sake, and not for the
// server's; ok says whether it was that.
func (d *delivery) sourceFailed(err error) (f *failure, ok bool) {
	if d.source == nil {
		return nil, false
	}
	// The address is not this host's, or not any more. With smtp_bind_address another one would
	// do; a source is there to be that and no other.
	if isBindError(err) {
		d.log.Warning("egress source %s: bind: %s", d.source.Name, errnoText(err))
		return &failure{kind: sessionFailed, status: dsn.S(4, 3, 5), text: "server configuration error: no connection can be made from egress source " + d.source.Name}, true
	}
	return nil, false
}

// sourceCerts are the certificates of sources, which are read again when their files have
// changed. All methods may be called concurrently.
type sourceCerts struct {
	mu    sync.Mutex
	known map[[2]string]sourceCert // by the names of the files; bounded by the tables
}

// A sourceCert is a certificate with the state of its files when it was read.
type sourceCert struct {
	cert  *tls.Certificate
	state [2]fileState
}

type fileState struct {
	size int64
	time time.Time
}

// of reads the certificate of a source; nil: it has none of its own.
func (c *sourceCerts) of(s *usedSource) (*tls.Certificate, error) {
	if s == nil || s.CertFile == "" {
		return nil, nil
	}
	files := [2]string{s.CertFile, s.KeyFile}
	if s.KeyFile == "" {
		files[1] = s.CertFile
	}
	// Two calls of the system for each handshake, so that a certificate that has been renewed
	// needs no reload.
	var now [2]fileState
	for i, name := range files {
		st, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		if !st.Mode().IsRegular() {
			return nil, errors.New(name + ": no regular file")
		}
		now[i] = fileState{st.Size(), st.ModTime()}
	}
	// Handshakes of other sources wait while a file is read, which is seldom.
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.known[files]; ok && old.state == now {
		return old.cert, nil
	}
	cert, err := tlspolicy.ReadPair(files[0], files[1])
	if err != nil {
		return nil, err
	}
	if c.known == nil {
		c.known = make(map[[2]string]sourceCert)
	}
	c.known[files] = sourceCert{&cert, now}
	return &cert, nil
}

// certFailed says that the source's certificate cannot be read. Without it no connection is made:
// level may would go on in the clear.
func (d *delivery) certFailed() *failure {
	_, err := d.a.sourceCerts.of(d.source)
	if err == nil {
		return nil
	}
	d.log.Warning("egress source %s: %v", d.source.Name, err)
	return &failure{kind: sessionFailed, status: dsn.S(4, 3, 5), text: "server configuration error: the certificate of egress source " + d.source.Name + " cannot be read"}
}

// ownCerts are the certificates that a server may be shown: the source's, or those of the
// settings.
func (d *delivery) ownCerts() ([]*tls.Certificate, error) {
	cert, err := d.a.sourceCerts.of(d.source)
	if err != nil {
		return nil, fmt.Errorf("egress source %s: %w", d.source.Name, err)
	}
	if cert != nil {
		return []*tls.Certificate{cert}, nil
	}
	return d.a.tls.certs, nil
}
