// Package inject is the inject service, which takes mail by HTTP from programs that have a token. It is
// off unless master.cf has its line:
//
//	127.0.0.1:8026 inet  n       -       n       -       -       inject
//
// or, for a socket in the queue directory,
//
//	inject    unix  n       -       n       -       -       inject
//
// Of two such lines one needs "-o inject_directory=..." with another directory. Each then has keys and
// quotas of its own.
//
// # Requests
//
// POST /v1/messages takes a message as JSON, a batch of them (a list, or NDJSON with a message on each
// line), or a message as it is to be (message/rfc822) with the envelope in the query. POST
// /api/inject/v1 takes KumoMTA's request. GET /v1/openapi.json describes all of it (OpenAPI), and is
// made from the declarations that the service itself uses. With a token of the role suppress,
// /v1/suppressions has the suppression list of the token's tenant, and no other's. Fields that are not described are refused,
// and so are values that would have to be left out.
//
// A message in JSON may have variables, also for each recipient, who then gets a message of its own.
// What is wrong with one recipient is said of that recipient; the others get their mail.
//
// # Durability
//
// The answer 200 means that each message it names is on stable storage, as the reply 250 of SMTP does:
// cleanup has confirmed it. A client that hears nothing does not know whether its mail was taken. With
// an idempotency key it may ask again: the same key, with the same request, is carried out once, and
// gets the same answer for inject_idempotency_time, also if the service died in between. The key is
// recorded before the messages are queued, with their queue IDs; the messages are not tried before the
// answer is recorded, or until 15 minutes (or maximal_backoff_time) have passed, so that it can always be found out which of
// them are in the queue. A repeated key with another request is refused (422), and one whose request is
// under way as well (409).
//
// # Mail
//
// The mail goes the way of all mail: it is rewritten, checked and filtered by cleanup, as mail from the
// sendmail program is (non_smtpd_milters, header_checks, content_filter, receive_override_options).
// Addresses without a domain are refused. A Received: field names HTTP and the client, unless
// smtpd_hide_client_session is set. Message-ID and Date are added where they are missing. in_flow_delay
// slows clients down as it does others.
//
// If the sender's mail is under the suppression list (suppress_list_maps, suppress_tenants), a recipient who is on it is refused (422), and
// the others get their mail. With a list in list_unsubscribe, that list of the tenant is asked. While the suppress service cannot be asked, such mail is refused with 503.
//
// # Security
//
// The service runs as mail_owner, without privileges, and can reach the queue by its services only. It
// listens where master.cf says: an address that other machines can reach needs inject_tls = yes. Each
// request needs a token of the role inject ("posthaste token"), from an address in inject_clients. A
// token may send as its senders only, in the envelope and in the fields From and Sender, and as many
// recipients a day as its quota says. Nothing that a client sends can end a line of a header: values
// with control characters are refused, also those of variables. Bodies must not be compressed. The
// sizes of headers, messages, lists, names and values, the depth of JSON, the memory of all requests,
// and the time that a client may take are bounded. A message in message/rfc822 is passed on as it comes.
//
// # Standards
//
//	RFC 5322, RFC 2045 to RFC 2047, RFC 2183, RFC 2387 (messages)
//	RFC 2369, RFC 8058 (List-Unsubscribe)
//	RFC 6531 (internationalized addresses)
//	RFC 8259 (JSON)
//	RFC 9457 (problem details)
//
// # Parameters
//
// api_token_directory, content_filter, data_directory, in_flow_delay, inject_attachment_limit,
// inject_batch_limit, inject_clients, inject_directory, inject_idempotency_limit,
// inject_idempotency_time, inject_memory_limit, inject_recipient_limit, inject_schedule_limit,
// inject_tls, maximal_backoff_time, message_size_limit, receive_override_options, smtpd_hide_client_session,
// smtputf8_autodetect_classes, smtputf8_enable, suppress_list_maps, suppress_tenants, unsubscribe_header, unsubscribe_url.
//
// # Diagnostics
//
// "ID: client=NAME[ADDRESS], token=NAME, tenant=NAME" is a message that is handed to cleanup.
// "NOQUEUE: refused: client=NAME[ADDRESS], token=NAME, request=..., status=N: REASON" is a request that
// was refused as a whole. What was refused for single recipients or messages of a batch only the client
// is told.
//
// # Bugs
//
// Of Jinja and Handlebars only variables are known; templates with more are refused. After a crash, up
// to a second of mail may not count towards quotas.
package inject

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/apitoken"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/service"
	"posthaste/internal/statedir"
	"posthaste/internal/submit"
	"posthaste/internal/suppress/suppressclient"
	"posthaste/internal/table"
	"posthaste/internal/webserver"
)

const (
	// closeTime is how long requests under way may hold up the end of the service.
	closeTime = 10 * time.Second
	// submissions is how many messages of all requests are on their way to cleanup at once.
	submissions = 256
	// slack is what a message in JSON may have besides its content.
	slack = 64 << 10
)

// Spec declares the service.
func Spec() service.Spec { return service.InjectSpec(run) }

func run(ctx context.Context, env *service.Env) error {
	cfg := env.Config
	clients, secure, err := prepare(env)
	if err != nil {
		return err
	}
	dir, err := statedir.Open(cfg.String("inject_directory"))
	if err != nil {
		return fmt.Errorf("inject_directory: %w", err)
	}
	defer dir.Close()
	lock, err := claim(dir)
	if err != nil {
		return fmt.Errorf("inject_directory = %s: %w", cfg.String("inject_directory"), err)
	}
	defer lock.Close()
	tokens, err := apitoken.Open(cfg.String("api_token_directory"), time.Now)
	if err != nil {
		return err
	}
	defer tokens.Close()
	lists, err := suppressclient.OpenLists(cfg, env.Tables())
	if err != nil {
		return err
	}
	defer lists.Close()
	if err := env.Confine(); err != nil {
		return err
	}
	keys, err := openJournal(dir, time.Now, cfg.Duration("inject_idempotency_time"), cfg.Int("inject_idempotency_limit"))
	if err != nil {
		return err
	}
	defer keys.close()
	counts, err := openQuota(dir, time.Now)
	if err != nil {
		return err
	}
	cleanup := ipc.NewClient(env.Public(cfg.String("cleanup_service_name")), nil)
	defer cleanup.Close()
	manager := ipc.NewClient(env.Public(cfg.String("queue_service_name")), nil)
	defer manager.Close()
	suppress := suppressclient.New(env.Private(suppressclient.Name)) // which is asked only of mail under the suppression list
	defer suppress.Close()
	submitter := submit.New(cleanup)
	defer submitter.Close()
	out := newReleaser(manager, env.Log)
	d := &door{submit: submitter, cleanup: cleanup, log: env.Log, journal: keys, quota: counts, release: out.add, now: time.Now,
		slots: make(chan struct{}, submissions), lists: lists, suppress: suppress}
	d.read(cfg)
	s := &server{door: d, keeper: suppress, tokens: tokens, clients: clients, log: env.Log, now: time.Now, limits: readLimits(cfg), memory: newBudget(cfg.Bytes("inject_memory_limit")),
		utf8: cfg.Bool("smtputf8_enable"), version: cfg.String("mail_version")}
	out.add(keys.recent(time.Now().Add(-releaseTime)))
	return s.run(ctx, env, secure, out)
}

// claim keeps other processes out of the directory, until the file is closed: two journals would each
// know half of the keys.
func claim(dir *statedir.Dir) (*os.File, error) {
	f, err := dir.OpenFile("lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			err = errors.New("another service of master.cf uses it: give one of them another, with the option -o inject_directory")
		}
		return nil, err
	}
	return f, nil
}

// prepare does what needs the rights of root.
func prepare(env *service.Env) (*table.List, *tls.Config, error) {
	cfg := env.Config
	o := env.Tables()
	secure, err := webserver.TLS(cfg, o, "inject_tls", "h2", "http/1.1")
	if err != nil {
		return nil, nil, err
	}
	for _, l := range env.Listeners {
		if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() && !cfg.Bool("inject_tls") {
			return nil, nil, fmt.Errorf("service %s: other machines can reach %s, and tokens would be sent in clear text: set inject_tls = yes", env.Name, a)
		}
	}
	clients, err := table.NewList("inject_clients", cfg.List("inject_clients"), table.ListOptions{Kind: table.Clients, Table: o})
	return clients, secure, err
}

// read takes over settings.
func (d *door) read(cfg *config.Config) {
	d.flags = (proto.SubmitFilter | proto.SubmitMilter | proto.SubmitBCC | proto.SubmitMap) &^ proto.OverrideFlags(cfg.List("receive_override_options"))
	d.autoUTF8 = proto.AutoUTF8(cfg.List("smtputf8_autodetect_classes"), "sendmail")
	d.filter, d.hostname, d.mailName = cfg.String("content_filter"), cfg.String("myhostname"), cfg.String("mail_name")
	d.hide = cfg.Bool("smtpd_hide_client_session")
	d.patience = min(releaseTime, cfg.Duration("maximal_backoff_time"))
}

// readLimits reads those of main.cf.
func readLimits(cfg *config.Config) limits {
	l := limits{recipients: cfg.Int("inject_recipient_limit"), attachments: cfg.Int("inject_attachment_limit"), batch: cfg.Int("inject_batch_limit"),
		message: cfg.Bytes("message_size_limit"), schedule: cfg.Duration("inject_schedule_limit")}
	if cfg.String("unsubscribe_url") != "" {
		l.unsubscribe = cfg.String("unsubscribe_header")
	}
	item := cfg.Bytes("inject_memory_limit") / 2
	if l.message > 0 {
		item = min(item, 2*l.message+slack)
	}
	l.item = int(min(max(item, slack), math.MaxInt32))
	return l
}

// run serves until ctx ends, and does meanwhile what nobody asks for.
func (s *server) run(ctx context.Context, env *service.Env, secure *tls.Config, out *releaser) error {
	serving, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { out.run(serving) })
	wg.Go(func() { s.keep(serving, env) })
	err := s.serveHTTP(ctx, env, secure)
	stop()
	wg.Wait()
	return errors.Join(err, s.door.quota.save())
}

// keep saves counts and looks after the journal. If that breaks the process ends, and the next one
// begins with what is on the disk.
func (s *server) keep(ctx context.Context, env *service.Env) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := (time.Time{}); ; {
		if err := s.door.quota.save(); err != nil {
			s.log.Warning("%v", err)
		}
		if err := s.door.journal.tidy(); err != nil {
			s.log.Warning("%v", err)
			env.Retire()
			return
		}
		if now := s.now(); now.Sub(last) >= sweepTime {
			last = now
			s.door.sweep()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// panics passes on what net/http has to say of this program. What clients do wrong is no news.
type panics struct{ log *maillog.Logger }

func (p panics) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("http: panic")) {
		p.log.Warning("%s", b)
	}
	return len(b), nil
}

// serveHTTP serves HTTP until ctx ends, with the number of clients that master.cf has.
func (s *server) serveHTTP(ctx context.Context, env *service.Env, secure *tls.Config) error {
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: requestTime, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(panics{s.log}, "", 0)}
	return webserver.ServeConns(ctx, web, secure, closeTime, env.ServeConns)
}
