// Package posttlsfinger is the posttls-finger(1) command: it connects to the servers of a
// destination as the SMTP client would, and says what TLS they have, whether their certificate
// is what a security level demands, and how the session went.
//
//	posttls-finger [options] [inet:]domain[:port] [match ...]
//	posttls-finger -S [options] unix:pathname [match ...]
//
// It asks no tables, and no service of the mail system: policies are what the options say.
//
// # Security
//
// It runs with the rights of whoever calls it. What a server says is bounded, in lines and in
// time, and printed without control characters.
//
// # Standards
//
// RFC 3207, RFC 6125, RFC 7672, RFC 8314 (-w).
//
// # Parameters
//
// myhostname, smtp_tls_fingerprint_digest, tls_dane_digests, tls_eecdh_auto_curves,
// resolver_address, resolver_trust_ad, and what -o sets.
//
// # Diagnostics
//
// The exit status is 0, also if a server cannot be reached or is not who it must be; 1 if
// the command line is wrong, or a file that it names cannot be used.
package posttlsfinger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
	"posthaste/internal/tlspolicy"
)

const program = "posttls-finger"

// A finger is one run.
type finger struct {
	*options
	cfg   *config.Config
	dns   resolver.Resolver
	names resolver.Names // the rule that dns converts names by
	out   io.Writer
	tls   *client
}

// Run carries out the command and returns its exit status.
func Run(args []string, stdout, stderr io.Writer) int {
	if err := run(args, stdout); err != nil {
		if errors.Is(err, errUsage) {
			fmt.Fprintln(stderr, usage)
		} else {
			fmt.Fprintf(stderr, "%s: fatal: %v\n", program, err)
		}
		return 1
	}
	return 0
}

func run(args []string, stdout io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	f := &finger{options: o, out: stdout}
	if f.cfg, err = config.Load(config.Dir(""), o.overrides...); err != nil {
		return err
	}
	dnsOptions, err := resolver.Configured(f.cfg)
	if err != nil {
		return err
	}
	dnsOptions.DNSSEC = true
	dns := resolver.New(dnsOptions)
	defer dns.Close()
	f.dns, f.names = dns, dnsOptions.Names
	if f.tls, err = newClient(o, f.cfg); err != nil {
		return err
	}
	return f.finger(context.Background())
}

// say prints a line, without what could move the reader's terminal about.
func (f *finger) say(format string, args ...any) {
	fmt.Fprintf(f.out, "%s: %s\n", program, maillog.AppendClean(nil, fmt.Appendf(nil, format, args...)))
}

// finger talks to the destination, and again with -r.
func (f *finger) finger(ctx context.Context) error {
	seen := map[string]bool{}
	for n := 0; ; n++ {
		s := f.reach(ctx)
		if s == nil {
			return nil
		}
		f.session(ctx, s)
		s.conn.Close()
		switch {
		case f.reconnect == 0 || s.state == nil:
			return nil
		case n > 0 && s.state.DidResume:
			f.say("Found a previously used server.  Done reconnecting.")
			return nil
		case n == f.reconnects:
			f.say("Reached maximum number of reconnect attempts, %d", f.reconnects)
			return nil
		case n > 0 && seen[s.greeted]:
			f.say("%s: the server does not take its earlier session up again", s.peer)
			return nil
		}
		seen[s.greeted] = true
		f.logs = f.logs&^(logPeer|logMatch|logVerbose) | logCache | logSummary
		f.say("Reconnecting after %d seconds", int(f.reconnect/time.Second))
		time.Sleep(f.reconnect)
	}
}

// A target is a host that the destination leads to.
type target struct {
	host   string // its name, or address
	path   string // or a socket
	mxSafe bool   // that it serves the destination is vouched for
}

// reach connects to the first server that answers; nil: none does, which it says.
func (f *finger) reach(ctx context.Context) *session {
	targets, err := f.targets(ctx)
	if err != nil {
		f.say("Failed to establish session to %s: %v", f.dest, err)
		return nil
	}
	for _, t := range targets {
		s, err := f.connect(ctx, &t)
		if err == nil {
			return s
		}
		f.say("Failed to establish session to %s via %s: %v", f.dest, cmp.Or(t.host, t.path), err)
	}
	return nil
}

// targets are the hosts of the destination, the best first.
func (f *finger) targets(ctx context.Context) ([]target, error) {
	switch {
	case f.path != "":
		return []target{{path: f.path}}, nil
	case f.noMX || f.lmtp || !f.useDNS:
		return []target{{host: f.host, mxSafe: true}}, nil
	}
	a, err := f.dns.MX(ctx, f.host)
	if err != nil && resolver.KindOf(err) == resolver.NoData {
		return []target{{host: f.host, mxSafe: true}}, nil
	}
	if err != nil {
		return nil, err
	}
	list := slices.Clone(a.Records)
	slices.SortStableFunc(list, func(a, b resolver.MX) int { return cmp.Compare(a.Pref, b.Pref) })
	var targets []target
	for _, mx := range list {
		if mx.Host == "" {
			return nil, fmt.Errorf("domain %s does not accept mail (nullMX)", f.host)
		}
		targets = append(targets, target{host: mx.Host, mxSafe: a.Secure})
		f.verbosely("MX %d %s", mx.Pref, mx.Host)
	}
	return targets, nil
}

func (f *finger) verbosely(format string, args ...any) {
	if f.verbose {
		f.say(format, args...)
	}
}

// connect opens a connection to one of a host's addresses.
func (f *finger) connect(ctx context.Context, t *target) (*session, error) {
	if t.path != "" {
		conn, err := net.DialTimeout("unix", t.path, f.connTime)
		if err != nil {
			return nil, err
		}
		return f.newSession(t, conn, "localhost["+t.path+"]", false, ""), nil
	}
	addrs, err := f.addresses(ctx, t)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs.Records {
		f.verbosely("address %s of %s", a, t.host)
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", net.JoinHostPort(a.String(), strconv.Itoa(f.port)), f.connTime); err != nil {
			if op, ok := errors.AsType[*net.OpError](err); ok {
				err = op.Err
			}
			if call, ok := errors.AsType[interface {
				error
				Unwrap() error
			}](err); ok && call.Unwrap() != nil {
				err = call.Unwrap() // without the name of the system call
			}
			err = fmt.Errorf("connect to %s[%s]:%d: %s", t.host, a, f.port, capitalized(err))
			continue
		}
		return f.newSession(t, conn, fmt.Sprintf("%s[%s]:%d", t.host, a, f.port), addrs.Secure, addrs.Name), nil
	}
	return nil, err
}

// capitalized is an error of the system as C libraries write it.
func capitalized(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:]
}

// addresses are those of a host that may be used.
func (f *finger) addresses(ctx context.Context, t *target) (resolver.Answer[netip.Addr], error) {
	if a, err := netip.ParseAddr(t.host); err == nil {
		return resolver.Answer[netip.Addr]{Records: []netip.Addr{a}}, nil
	}
	var a resolver.Answer[netip.Addr]
	err := errors.New("no way to look names up (-h)")
	if f.useDNS {
		a, err = f.dns.Addrs(ctx, t.host, f.family)
	}
	if err != nil && f.useNative {
		a, err = f.dns.Native(ctx, t.host, f.family)
		a.Secure = false
	}
	return a, err
}

// policy says what the server's certificate must be, by the level and by DNS.
func (f *finger) policy(ctx context.Context, s *session) *policy {
	p := &policy{level: f.level, sni: f.serverName}
	if f.level.IsDane() {
		if f.dane(ctx, s, p) {
			return p
		}
		p.level = tlspolicy.Secure
	}
	match := f.match
	switch {
	case len(match) > 0 && !f.level.IsDane():
	case p.level == tlspolicy.Verify:
		match = []string{"hostname"}
	default:
		match = []string{"nexthop", "dot-nexthop"}
	}
	if p.level == tlspolicy.Fingerprint {
		p.fingerprints = f.match
		return p
	}
	p.names = tlspolicy.Names(match, s.target.host, cmp.Or(f.host, s.target.host))
	return p
}

// dane makes the policy that the server's TLSA records ask for. It returns false if there is
// none that can be used.
func (f *finger) dane(ctx context.Context, s *session, p *policy) bool {
	own, ok := f.names.ToASCII(s.target.host)
	if _, err := netip.ParseAddr(s.target.host); err == nil || !ok || s.target.path != "" || !s.target.mxSafe && !f.insecureMX.IsDane() {
		return false
	}
	if !s.addrSafe && !f.forceTLSA {
		alias, err := f.dns.CNAME(ctx, own)
		if err != nil || !alias.Secure {
			return false
		}
	}
	names := []string{own}
	if s.addrSafe && s.addrName != "" && s.addrName != own {
		names = []string{s.addrName, own}
	}
	for _, base := range names {
		question := fmt.Sprintf("_%d._tcp.%s", f.port, base)
		a, err := f.dns.TLSA(ctx, question)
		if err != nil && !resolver.NotFound(err) {
			f.say("warning: TLSA lookup error for %s: %v", question, err)
			return false
		}
		if err != nil || !a.Secure {
			continue
		}
		var records []tlspolicy.TLSA
		for _, r := range a.Records {
			records = append(records, tlspolicy.TLSA(r))
		}
		records = tlspolicy.Usable(records, f.cfg.List("tls_dane_digests"))
		for _, r := range records {
			f.say("using DANE RR: %s IN TLSA %d %d %d %s", question, r.Usage, r.Selector, r.Matching, colons(r.Data))
		}
		if len(records) == 0 {
			f.say("warning: no usable TLSA records for %s", question)
			return false
		}
		p.tlsa, p.sni, p.names = records, base, []string{base}
		if !f.noMX && s.target.mxSafe {
			p.names = append(p.names, f.host)
		}
		return true
	}
	return false
}
