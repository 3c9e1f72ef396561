// Package webclient makes HTTPS clients for sites that strangers name: the policies of mail
// domains (MTA-STS) are fetched, and reports to them (TLSRPT) are posted, where their DNS says.
//
// # Security
//
// Who is in charge of a name could have it lead to an address behind our firewall, or on
// this host. A connection is made to a public address alone, and to what [Options] allow besides: it is
// looked at when it is about to be connected to, so that no second answer of the DNS can differ from
// the one that was judged. Redirections are not followed, nothing is asked for compressed, no
// connection is kept, and no proxy is used. The caller bounds time, and what is read of the body.
//
// # Standards
//
// RFC 6890 (special-purpose addresses), RFC 6052 (IPv4 addresses in IPv6 ones), RFC 8461 section 3.3
// (no redirections).
package webclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"

	"posthaste/internal/resolver"
)

// maxAddrs bounds the addresses of a site that are tried.
const maxAddrs = 4

// maxHeader bounds the header of a reply, in octets.
const maxHeader = 16 << 10

// ErrNotPublic says that a stranger's DNS leads to a network of our own.
var ErrNotPublic = errors.New("not a public address")

// Options say what a client may do.
type Options struct {
	// Resolver says where a site is. It is not asked for addresses in brackets, or for IPv4 addresses.
	Resolver resolver.Resolver
	// Allowed says of an address that is not public that sites may have it all the same. Nil: none may. It
	// may be called concurrently.
	Allowed func(ctx context.Context, addr netip.Addr) (bool, error)
	// Roots are the authorities whose certificates count; nil: those of the system.
	Roots *x509.CertPool
}

// New makes a client. It may be used concurrently, and needs no closing.
func New(o Options) *http.Client {
	return &http.Client{
		// What comes compressed could be any number of octets for nothing.
		Transport: &http.Transport{DialContext: o.dial, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// dial connects to a site: to the first of its addresses that answers.
func (o Options) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	dialer := net.Dialer{ControlContext: o.refuseAddress}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return dialer.DialContext(ctx, network, addr)
	}
	a, err := o.Resolver.Addrs(ctx, host, resolver.IPv4|resolver.IPv6)
	if err != nil {
		return nil, err
	}
	last := fmt.Errorf("%s has no address", host)
	for _, ip := range a.Records[:min(len(a.Records), maxAddrs)] {
		conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(ip.String(), port))
		if err == nil {
			return conn, nil
		}
		last = err
	}
	return nil, last
}

// refuseAddress is called before a socket is connected.
func (o Options) refuseAddress(ctx context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ip := at.Addr().Unmap().WithZone("")
	if Public(ip) {
		return nil
	}
	if o.Allowed != nil {
		ok, err := o.Allowed(ctx, ip)
		if ok || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: %w", ip, ErrNotPublic)
}
