// Package unsubscribe is the unsubscribe service: the web server that links to unsubscribe lead to. It is off unless master.cf has
// one of its lines:
//
//	443                 inet  n  -  n  -  100  unsubscribe
//	127.0.0.1:8444      inet  n  -  n  -  100  unsubscribe -o unsubscribe_tls=no
//
// The second is for a system where another web server has port 443: have that forward the requests for unsubscribe_url.
//
// # Requests
//
// cleanup makes the links (unsubscribe_url, unsubscribe_header), one for each message and recipient.
//
//	POST /u/TOKEN   takes the recipient off, and answers 200. The body is List-Unsubscribe=One-Click,
//	                as a form or in parts (multipart/form-data); another one is answered with 400
//	GET /u/TOKEN    a page with a button, which sends that POST. Nothing else comes of it: filters of
//	                mail follow links, and nobody has asked them to unsubscribe their users
//
// A link that was not made here, or is too old, is answered with 404, by either. Nothing is redirected, and there are
// no cookies. The same link may be followed any number of times.
//
// # Durability
//
// The answer 200 to a POST means that the entry of the suppression list is on stable storage, and the event
// "unsubscribed" as well, where there is a sink for it. If the suppress service cannot be asked, the answer is 503, and
// mailbox providers ask again.
//
// # Security
//
// Whoever knows a link can have its recipient taken off its list, and nothing else. A link is the only proof, and no stranger can
// make one (package optout): what the answers say of one that is good is the recipient's domain and the first letter of
// the address, and of others nothing. Pages have no scripts, and a policy by which browsers run none. Of
// answers to clients nothing is kept; addresses of links are told to nobody (Referrer-Policy). A request has 15 seconds, a
// header of at most 12 KB and a body of at most 8 KB. The process limit in master.cf bounds the connections of all
// clients, unsubscribe_client_connection_limit those of one, and unsubscribe_client_error_limit bounds
// how often one may ask with links that count for nothing. The process runs as mail_owner. It reads
// unsubscribe_secret_file before it gives up its rights. What clients do wrong is not logged.
//
// # Standards
//
// RFC 8058 (one click), RFC 2369 (List-Unsubscribe).
//
// # Parameters
//
// event_sinks, myhostname, tls_server_sni_maps, unsubscribe_client_connection_limit, unsubscribe_client_error_limit,
// unsubscribe_max_age, unsubscribe_secret_file, unsubscribe_tls, unsubscribe_url.
//
// # Diagnostics
//
// The recipients who have unsubscribed are in the lines of the suppress service: see suppressd(8).
package unsubscribe

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"posthaste/internal/optout"
	"posthaste/internal/service"
	"posthaste/internal/suppress/suppressclient"
	"posthaste/internal/webserver"
)

// closeTime is how long answers under way may hold up the end of the service.
const closeTime = 5 * time.Second

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "unsubscribe", Rank: service.Intake, Confines: true, Tries: true, Sandbox: service.Plain, Frugal: true, Run: run}
}

func run(ctx context.Context, env *service.Env) error {
	links, secure, err := prepare(env)
	if err != nil {
		return err
	}
	if err := env.Confine(); err != nil {
		return err
	}
	env.Used()
	suppress := suppressclient.New(env.Private(suppressclient.Name))
	defer suppress.Close()
	d := &door{links: links, suppress: suppress, events: env.Events, warn: func(err error) { env.Log.Warning("%v", err) }, now: time.Now,
		clients: newClients(env.Config.Int("unsubscribe_client_connection_limit"), env.Config.Int("unsubscribe_client_error_limit"), time.Now)}
	return webserver.ServeConns(ctx, webserver.Public(d.handler()), secure, closeTime, d.clients.bounded(env.ServeConns))
}

// prepare does what needs the rights of root: it reads secrets and keys.
func prepare(env *service.Env) (*optout.Coder, *tls.Config, error) {
	cfg := env.Config
	links, err := suppressclient.ReadLinks(cfg)
	if err == nil && links == nil {
		err = errors.New("unsubscribe_url is not set: there are no links")
	}
	if err != nil || !cfg.Bool("unsubscribe_tls") {
		return links, nil, err
	}
	secure, err := webserver.TLS(cfg, env.Tables(), "unsubscribe_tls", "http/1.1")
	return links, secure, err
}

// An accepting is Env.ServeConns, or stands in front of it.
type accepting func(ctx context.Context, handle func(context.Context, net.Conn)) error
