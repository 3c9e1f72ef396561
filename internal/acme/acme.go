// Package acme is the acme service: it gets the certificate of the SMTP server from a
// certification authority, and renews it (tls_acme). It is off unless master.cf has its line. Which
// line depends on the challenge:
//
//	80    inet  n       -       n       60      20      acme
//	443   inet  n       -       n       60      20      acme
//	acme  unix  -       -       n       60      20      acme
//
// The first is for http-01 and the second for tls-alpn-01: master opens the port, and the service
// needs no privileges. The third is for dns-01, which needs no port. Use one of them only. The
// wake-up, every minute, starts the service.
//
// # Certificates
//
// The certificate is renewed at a time that the authority suggests (RFC 9773), or else after two
// thirds of its lifetime. Servers load the new one within about ten seconds, and sessions are not
// disturbed. Its private key stays the same, so that a TLSA record of the kind 3 1 1 stays valid.
// Before there is a certificate, a self-signed one with the same key serves.
//
// After a failure the service waits for 15 minutes, then twice as long each time, up to 12 hours,
// and longer if the authority asks for that. It remembers this over restarts, and makes one attempt
// at a time. Each authority has waits of its own: when tls_acme_directory changes, the new one is
// asked at once, and the former one, should it be set again, not sooner than without the change.
// "posthaste cert renew" asks for an attempt at once, and "posthaste cert list" shows the state. The
// certificate in use stays until there is a new one, and mail is not affected.
//
// "posthaste cert rollover" makes the next key, and prints its TLSA record. The service uses the key,
// with a new certificate, when each name server of the zone has shown the record for two times its
// TTL (RFC 7671); at once if there are no TLSA records for port 25 of the names. Then the record of
// the former key may be removed.
//
// All files are in the directory acme below data_directory, with the mode 0600. Back them up: a new
// key needs a new TLSA record.
//
// If another web server has port 80, have it redirect or forward /.well-known/acme-challenge/ to
// another port, and give the line of acme that port.
//
// # Security
//
// The service runs as mail_owner. It reads tls_acme_update_key_file, tls_acme_eab_key_file and
// tls_acme_CAfile before it gives up root. It answers only the challenges that it has just asked for: a connection ends after
// one request, or after ten seconds, and a request has at most 8192 octets. The answers of the
// authority are bounded in size and time. A certificate is used only if it is for our key.
//
// # Standards
//
// RFC 8555 (ACME), RFC 8737 (tls-alpn-01), RFC 9773 (renewal information), RFC 2136 and RFC 8945
// (DNS updates), RFC 7671 and RFC 7672 (DANE).
//
// # Parameters
//
// data_directory, myhostname, tls_acme, tls_acme_CAfile, tls_acme_account, tls_acme_agree,
// tls_acme_challenge, tls_acme_command, tls_acme_directory, tls_acme_domains, tls_acme_eab_key_file,
// tls_acme_key_type, tls_acme_update_key_file, tls_acme_update_server.
//
// # Diagnostics
//
// "no certificate for NAMES: NAME: TYPE: DETAIL; next attempt at TIME" is a refusal, with what the
// authority says. "no certificate is requested: ..." is a setting or a file that must be mended
// first: the service is idle until then, and after a setting has changed, until "posthaste reload".
//
// # Bugs
//
// The record _acme-challenge of dns-01 must not be an alias (CNAME), unless tls_acme_command takes
// care of it.
package acme

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"

	"posthaste/internal/config"
	"posthaste/internal/nameserver"
	"posthaste/internal/resolver"
	"posthaste/internal/servercert"
	"posthaste/internal/service"
)

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "acme", Exclusive: true, Rank: service.Helper, Confines: true, Tries: true, Sandbox: sandbox, Frugal: true, Run: run}
}

// sandbox forbids to execute programs, unless there is one to be executed.
func sandbox(cfg *config.Config) (writes []string, ok bool) {
	return nil, cfg.String("tls_acme_command") == ""
}

func run(ctx context.Context, env *service.Env) error {
	set, err := read(env.Config)
	if err != nil {
		// The service stays, and idle: master would start it again and again.
		env.Log.Warning("%v", err)
	}
	if err := env.Confine(); err != nil {
		return err
	}
	env.Used()
	answers := newResponder()
	handle := answers.http
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	if set != nil {
		if set.challenge == alpn01 {
			handle = answers.alpn
		}
		m, closing, err := newManager(env, set, answers)
		if err != nil {
			stop()
			return err
		}
		defer closing()
		wg.Go(func() { m.run(ctx) })
	}
	defer wg.Wait()
	defer stop()
	return env.ServeConns(ctx, func(ctx context.Context, c net.Conn) { handle(ctx, c) })
}

// newManager opens what the manager needs.
func newManager(env *service.Env, set *settings, answers *responder) (*manager, func(), error) {
	o, err := env.Resolver()
	if err != nil {
		return nil, nil, err
	}
	store, err := servercert.OpenStore(env.Config)
	if err != nil {
		return nil, nil, err
	}
	o.CacheSize = -1 // what is new is to be seen
	names := resolver.New(o)
	seen := &view{nameserver.View[asker]{DNS: names, At: nameServer}}
	var solve solver = answers
	if set.challenge == dns01 {
		d := &dnsSolver{patience: visibleTime, publisher: set.update, view: seen, warn: env.Log.Warning}
		if set.update == nil {
			d.publisher = commander(set.command)
		}
		solve = d
	}
	closing := func() { names.Close(); store.Close() }
	return &manager{set: set, store: store, ca: newClient(set, solve), log: env.Log, spread: rand.Float64, look: lookAgain, view: seen}, closing, nil
}

// An asker answers questions.
type asker interface {
	TXT(ctx context.Context, name string) (resolver.Answer[string], error)
	TLSA(ctx context.Context, name string) (resolver.Answer[resolver.TLSA], error)
}

// A view is the DNS as its name servers have it.
type view struct{ nameserver.View[asker] }

// nameServer asks one name server alone.
func nameServer(addr netip.Addr) (asker, func()) {
	c := resolver.New(resolver.Options{Servers: []string{netip.AddrPortFrom(addr, 53).String()}, CacheSize: -1})
	return c, c.Close
}
