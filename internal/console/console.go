// Package console is the console service. It has web pages for the operators of the mail system,
// an API for everything that the pages can do, and it records the history of the queue. It is off
// unless master.cf has its line:
//
//	console   unix  -       -       n       60      1       console
//
// # History
//
// Master wakes the service up every minute. The service then asks the queue manager how the mail
// in the queue is distributed over domains and age, and adds a sample to queue_history_directory,
// for "posthaste qshape --at TIME" and for the pages (package history). If a sample takes more
// than 0.6 seconds, as with many millions of messages, samples are taken less often, so that they
// use no more than a hundredth of the time.
//
// # Pages and API
//
// What posthaste check -v says is found out when the service starts, and so at each reload.
//
// A forecast of the queue with other settings (package whatif) is made in the service, from the copy that the queue manager gives;
// a user has one at a time, and all have two. main.cf and master.cf are read for it when the service starts. What may be changed is
// given as plain values: one that names a file, or another parameter, is refused.
//
// Both are served at console_listen, for the users in console_user_maps, whose entries "posthaste
// passwd" makes, and with console_sasl_users for those of the SMTP server (smtpd_sasl_type) to whom console_role_maps gives a
// role, and for those of an OpenID provider (console_oidc_issuer). There are three roles. Look shows everything but what messages say. Operate is also to suspend and resume mail, to limit
// and divert destinations, and to hold, release, retry, requeue, return and delete messages. Read is also to read what messages
// say. The users in console_user_maps may look, and those of them in console_operators operate; console_role_maps gives more.
//
// The pages work without scripts; one script updates the numbers. There are pages for the present
// state of the queue and of the system (disks, spool, log, certificates, what posthaste check -v
// says), the queue by age and domain (now or at an earlier time), a destination, a
// message with its story in the log, a search of the queue and the log, and the suspensions. The
// API is below /api/v1. /api/v1/openapi.json describes it (OpenAPI), and is made from the
// declarations that the service itself uses. A program has a token of the role look, operate or read, which
// "posthaste token" makes, or gets one for a while from POST /api/v1/session, and sends it in the field
// "Authorization: Bearer TOKEN".
//
// While somebody looks at the pages, the queue is counted every ten seconds, or less often, so
// that counting uses no more than a twentieth of the time. Pages never wait for a count.
//
// # Security
//
// The service runs as mail_owner, without privileges, and has the rights of the tools: it asks
// the queue manager for counts and lists, sends it commands, reads the log, and opens messages in the queue for who may read
// them. Pages have addresses and the replies of other hosts. The content of a message, and its header, are shown only to users
// with the role read, who say why: that is in the log before the message is opened. Everything from the queue, the log and
// messages is hostile: it is escaped, and invisible characters are made visible; a message is sent as a file, and not as a page.
// What role each request needs is declared with it, and is looked at before anything else of the request.
//
// It listens on a loopback address by default; any other address needs console_tls = yes. The
// Host of a request must be an IP address, localhost, $myhostname, or one of console_hosts, so
// that a page of another site cannot make a browser send a valid request. Every change is a POST
// with a secret of the session, or with a token that is not a cookie. Pages run no code except
// the service's one script file (Content-Security-Policy). A session ends after twelve hours,
// after one hour without use, and when the service restarts. After wrong passwords, attempts are
// delayed, by address and by user: from the fifth on by a second, then twice as long each time,
// up to a quarter of an hour. That holds for all kinds of logins together. A login by an OpenID provider is by authorization
// code with PKCE, and bound to the browser that began it; the token must be signed with a public key, and be the provider's, for
// this console and this login. Its users, and groups, have names of their own in console_role_maps. Each login and each action is logged before it is carried out, with
// the user and the client's address. The numbers, the sizes and the durations of headers, bodies,
// connections, sessions and live pages are bounded.
//
// # Standards
//
//	OpenID Connect Core 1.0, Discovery 1.0, RP-Initiated Logout 1.0; RFC 7636 (PKCE), RFC 9207 (whose answer it is)
//	RFC 9457 (problem details), OpenAPI 3.1
//
// # Parameters
//
// api_token_directory, cleanup_service_name, console_hosts, console_listen, console_oidc_CAfile, console_oidc_client_id,
// console_oidc_client_secret_file, console_oidc_group_claim, console_oidc_issuer, console_oidc_name_claim, console_oidc_scopes,
// console_operators, console_role_maps, console_sasl_users, console_tls, console_url, console_user_maps, data_directory, maillog_file, message_size_limit, myhostname, queue_directory, queue_history_directory,
// queue_history_limit, queue_history_time, queue_minfree, queue_service_name, smtpd_sasl_path, smtpd_sasl_service, smtpd_sasl_type
// (and what belongs to these, see smtpd), smtpd_tls_cert_file, smtpd_tls_chain_files, smtpd_tls_key_file, spool_content_directory, spool_inline_limit, tls_acme,
// track_index_directory, track_index_limit.
//
// # Diagnostics
//
// "user=NAME client=ADDRESS: ACT TARGET: REASON" is an action of a user; with "failed", it was
// not carried out. "the history of the queue lacks a sample: ..." is logged once for each reason.
// Mail is not affected.
package console

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"posthaste/internal/apitoken"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/logread"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
	"posthaste/internal/sasl"
	"posthaste/internal/sasl/saslconf"
	"posthaste/internal/servercert"
	"posthaste/internal/service"
	"posthaste/internal/statedir"
	"posthaste/internal/table"
	"posthaste/internal/track"
	"posthaste/internal/webserver"
)

const (
	// requestTime bounds reading a request, and answerTime all of an answer; live pages have
	// bounds of their own.
	requestTime, answerTime = 15 * time.Second, 90 * time.Second
	// closeTime is how long answers under way may hold up the end of the service.
	closeTime = 2 * time.Second
	// maxConns bounds the connections.
	maxConns = 256
)

// Spec declares the service.
func Spec() service.Spec { return service.ConsoleSpec(run) }

func run(ctx context.Context, env *service.Env) error {
	cfg := env.Config
	dir, err := statedir.Open(cfg.String("queue_history_directory"))
	if err != nil {
		return fmt.Errorf("queue_history_directory: %w", err)
	}
	programs, err := apitoken.Open(cfg.String("api_token_directory"), time.Now)
	if err != nil {
		dir.Close()
		return err
	}
	defer programs.Close()
	what := openContents(env)
	defer what.close()
	who, secure, l, err := prepare(env)
	look, ahead := &machine{cfg: cfg, advice: advise(cfg, time.Now())}, openForecasts(cfg)
	if err == nil {
		look.keys = certificates(env)
		err = env.Confine()
	}
	if err == nil && l == nil {
		l, err = listenUnix(cfg.String("console_listen"))
	}
	if err != nil {
		dir.Close()
		return err
	}
	defer l.Close()
	env.Used()
	store, err := openHistory(dir, cfg, env.Log.Warning)
	if err != nil {
		return err
	}
	defer store.Close()
	manager := ipc.NewClient(env.Public(cfg.String("queue_service_name")), nil)
	defer manager.Close()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	m := &mta{manager: manager, node: nodeName(cfg), history: cfg.String("queue_history_directory"), logs: func() (track.Options, error) { return logs(cfg) }}
	c := newConsole(env, m, look, ahead, who, programs, what, serving.Done())
	k := &keeper{sampler: &sampler{manager: manager, store: store, warn: env.Log.Warning}, mta: m, live: c.live, day: c.day}
	wake := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { k.run(serving, wake) })
	failed := make(chan error, 1)
	wg.Go(func() {
		failed <- c.serve(serving, l, secure)
		stop()
	})
	err = env.ServeIPC(serving, &ipc.Server{Handler: refuse, OnTrigger: func([]byte) {
		select {
		case wake <- struct{}{}:
		default:
		}
	}}, 0)
	stop()
	return errors.Join(err, <-failed)
}

// newConsole makes what answers requests.
func newConsole(env *service.Env, m *mta, look *machine, ahead *forecasts, who *people, programs *apitoken.Store, what *contents, stopping <-chan struct{}) *console {
	cfg := env.Config
	return &console{mta: m, machine: look, people: who, sessions: newSessions(time.Now), programs: programs, contents: what, forecasts: ahead, tries: newTries(time.Now), live: newLive(), day: new(day),
		log: func(e maillog.Event) { env.Log.Log(e) }, warn: env.Log.Warning, now: time.Now, host: cfg.String("myhostname"),
		hosts: append(cfg.List("console_hosts"), cfg.String("myhostname"), who.provider.host()), version: cfg.String("mail_version"), stopping: stopping}
}

// refuse answers whoever takes the service for one of another kind.
func refuse(_ *ipc.Conn, r *ipc.Request) { r.Fail("console: unknown request %d", r.Kind) }

// prepare does what needs the rights of root: it opens tables, reads keys, and listens on a port.
// The listener is nil for a socket of another kind.
func prepare(env *service.Env) (*people, *tls.Config, net.Listener, error) {
	cfg := env.Config
	o := env.Tables()
	secure, err := webserver.TLS(cfg, o, "console_tls", "h2", "http/1.1")
	if err != nil {
		return nil, nil, nil, err
	}
	who := new(people)
	if who.operators, err = table.NewList("console_operators", cfg.List("console_operators"), table.ListOptions{Kind: table.Strings, Table: env.Tables()}); err != nil {
		return nil, nil, nil, err
	}
	who.roles = table.OpenMaps("console_role_maps", cfg.List("console_role_maps"), env.Tables())
	if maps := cfg.List("console_user_maps"); len(maps) > 0 {
		key, err := sasl.DecoyKey(cfg.String("data_directory"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			env.Log.Warning("console_user_maps: %v", err)
		}
		who.own = sasl.NewUsers(table.OpenMaps("console_user_maps", maps, env.Tables()), "", nil, key)
	}
	if cfg.Bool("console_sasl_users") {
		if who.others, err = saslUsers(env); err != nil {
			return nil, nil, nil, err
		}
		who.service = cfg.String("smtpd_sasl_service")
	}
	if who.provider, err = openProvider(env); err != nil {
		return nil, nil, nil, err
	}
	if who.own == nil && who.others == nil && who.provider == nil {
		env.Log.Warning("console: %v", errNoUsers)
	}
	address := cfg.String("console_listen")
	if strings.HasPrefix(address, "unix:") {
		return who, secure, nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("console_listen = %s: %w", address, err)
	}
	if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() && secure == nil {
		l.Close()
		return nil, nil, nil, fmt.Errorf("console_listen = %s: other machines can reach it, and passwords would be sent in clear text: set console_tls = yes", address)
	}
	return who, secure, l, nil
}

// saslUsers opens the users of smtpd_sasl_type.
func saslUsers(env *service.Env) (sasl.Backend, error) {
	options, err := env.Resolver()
	if err != nil {
		return nil, err
	}
	backend, err := saslconf.Open(env.Config, resolver.New(options), env.Config.String("smtpd_sasl_service"), env.Tables())
	if err != nil {
		return nil, fmt.Errorf("console_sasl_users: %w", err)
	}
	return backend, nil
}

// certificates are those of the SMTP server, read while there are the rights of root; nil: it has
// none that can be read. What is wrong with them is the server's to say.
func certificates(env *service.Env) *servercert.Keyring {
	keys := servercert.New(env.Config, servercert.Options{Warn: func(string) {}, Confined: env.Tables().Confined})
	if keys.Refresh(time.Now()) != nil || len(keys.Certificates()) == 0 {
		return nil
	}
	return keys
}

// listenUnix listens on a socket below the queue directory, in place of one that a process before
// this one has left.
func listenUnix(address string) (net.Listener, error) {
	path := strings.TrimPrefix(address, "unix:")
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("console_listen = %s: %w", address, err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("console_listen = %s: %w", address, err)
	}
	// Who can enter the directory can connect, and has to log in.
	return l, os.Chmod(path, 0o666)
}

// logs says where the log is.
func logs(cfg *config.Config) (o track.Options, err error) {
	name := cfg.String("maillog_file")
	if !strings.HasPrefix(name, "/") || name == "/dev/stdout" {
		return o, fmt.Errorf("%w: maillog_file is not a file: the log is kept elsewhere", errLog)
	}
	o = track.Options{Index: cfg.String("track_index_directory"), IndexLimit: cfg.Bytes("track_index_limit")}
	if o.IndexLimit == 0 {
		o.IndexLimit = math.MaxInt64
	}
	if o.Logs, err = logread.Rotated(name); err != nil {
		err = fmt.Errorf("%w: %w", errLog, err)
	}
	return o, err
}

// serve serves HTTP until ctx ends.
func (c *console) serve(ctx context.Context, l net.Listener, secure *tls.Config) error {
	l = netutil.LimitListener(l, maxConns)
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	web := &http.Server{Handler: c.handler(), ReadHeaderTimeout: requestTime, ReadTimeout: requestTime, WriteTimeout: answerTime, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: maxHeader, ErrorLog: log.New(io.Discard, "", 0)} // what clients do wrong is no news
	if err := webserver.Serve(ctx, web, l, closeTime); err != nil {
		return fmt.Errorf("console_listen: %w", err)
	}
	return nil
}
