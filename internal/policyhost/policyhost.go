// Package policyhost is the policyhost service: a small web server that tells others about the mail
// domains of this system. Senders fetch the MTA-STS policy of a domain from it, and mail programs the
// names of the servers, so that a user types no more than an address and a password. It is off unless
// master.cf has one of its lines:
//
//	443                 inet  n  -  n  -  50  policyhost
//	127.0.0.1:8443      inet  n  -  n  -  50  policyhost -o policyhost_tls=no
//
// The second is for a system where another web server has port 443: have that forward the requests for
// the names below, with the Host field as it is.
//
// # What is served
//
// DOMAIN is one of policyhost_domains. All else is answered with 404.
//
//	https://mta-sts.DOMAIN/.well-known/mta-sts.txt                     the MTA-STS policy
//	https://autoconfig.DOMAIN/mail/config-v1.1.xml                     for Thunderbird, K-9 Mail and others
//	https://DOMAIN/.well-known/autoconfig/mail/config-v1.1.xml         the same
//	https://autodiscover.DOMAIN/autodiscover/autodiscover.xml          for Outlook; a POST with the address
//	https://autoconfig.DOMAIN/email.mobileconfig?email=ADDRESS         a profile for Apple's devices
//
// Autodiscover and the profile are there under any name by which the server is called: the address of the
// user says which domain is meant. An address that does not exist is answered like one that does. Policies are
// served if policyhost_sts_mode is not off, and all others if policyhost_servers is set.
//
// # DNS
//
// For each domain the names mta-sts, autoconfig and autodiscover lead to this host, and its certificate
// must have them (tls_acme_domains, or a certificate of their own in tls_server_sni_maps). A policy needs a TXT record
// _mta-sts.DOMAIN as well. "posthaste domain records" prints all of these records once master.cf has
// the service. The id in the record is made of the policy: whenever the policy changes, publish the record anew.
//
// # Security
//
// Everything served is public, and depends on the configuration alone, but for the address that a mail
// program sends: it is echoed in its answer, and nowhere else. The service never reads mail, passwords or lists of
// users. A request has 15 seconds, a header of at most 12 KB, and a body of at most 16 KB; the process limit
// in master.cf bounds the number of connections. The process runs as mail_owner, without access to
// files outside the queue and data directories. What clients do wrong is not logged.
//
// # Standards
//
// RFC 8461 (MTA-STS), draft-ietf-mailmaint-autoconfig, [MS-OXDSCLI] (Autodiscover), Apple's Configuration
// Profile Reference.
//
// # Parameters
//
// data_directory, myhostname, policyhost_display_name, policyhost_domains, policyhost_servers, policyhost_sts_max_age,
// policyhost_sts_mode, policyhost_sts_mx, policyhost_tls, policyhost_user_name, tls_server_sni_maps.
package policyhost

import (
	"context"
	"crypto/tls"
	"time"

	"posthaste/internal/service"
	"posthaste/internal/webserver"
)

// closeTime is how long answers under way may hold up the end of the service.
const closeTime = 2 * time.Second

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "policyhost", Rank: service.Intake, Confines: true, Tries: true, Sandbox: service.Plain, Frugal: true, Run: run}
}

func run(ctx context.Context, env *service.Env) error {
	site, secure, err := prepare(env)
	if err != nil {
		return err
	}
	if err := env.Confine(); err != nil {
		return err
	}
	env.Used()
	return webserver.ServeConns(ctx, webserver.Public(site.handler()), secure, closeTime, env.ServeConns)
}

// prepare does what needs the rights of root: it opens tables and reads keys.
func prepare(env *service.Env) (*site, *tls.Config, error) {
	cfg, o := env.Config, env.Tables()
	s, err := read(cfg, o)
	if err != nil || !cfg.Bool("policyhost_tls") {
		return s, nil, err
	}
	secure, err := webserver.TLS(cfg, o, "policyhost_tls", "http/1.1")
	return s, secure, err
}
