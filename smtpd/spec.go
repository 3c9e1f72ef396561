// This file is where the service meets the rest of the system: it declares smtpd and
// postscreen to package service, and connects a Server to the other processes. The
// Server takes everything that it needs through Deps, so that tests run it without
// any of this.

package smtpd

import (
	"context"
	"fmt"
	"strings"

	"posthaste/internal/anvil"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queueread"
	"posthaste/internal/resolver"
	"posthaste/internal/rewriteclient"
	"posthaste/internal/sendlimit/limitclient"
	"posthaste/internal/service"
	"posthaste/internal/submit"
	"posthaste/internal/suppress/suppressclient"
	"posthaste/internal/table"
	"posthaste/internal/verify"
	"posthaste/internal/watch"
	"posthaste/smtpd/postscreen"
)

// Spec declares the service. It is confined by the kernel as well (Sandbox), since
// it neither runs programs nor changes users: a client that finds a hole in the
// parsers gains little.
func Spec() service.Spec {
	return service.Spec{Process: "smtpd", Talks: true, Rank: service.Intake, Confines: true, Tries: true, Frugal: true, Sandbox: service.Plain, Run: func(ctx context.Context, env *service.Env) error {
		return run(ctx, env, false)
	}}
}

// rooms returns what Deps.QueueFree and Deps.ContentFree are to be, and a function that closes what they ask.
func rooms(cfg *config.Config) (queue, content func() (int64, error), done func()) {
	queue, closeQueue := queueread.OpenRoom(cfg)
	content, closeContent := contentFree(cfg)
	return queue, content, func() {
		closeQueue()
		closeContent()
	}
}

// contentFree returns what Deps.ContentFree is to be, and a function that closes
// it. Where spool_content_directory is not set or cannot be opened, free is nil and
// mail is taken without the check: cleanup opens the same directory, and reports
// what is wrong with it.
func contentFree(cfg *config.Config) (free func() (int64, error), done func()) {
	dir, err := queueread.OpenContent(cfg)
	if dir == nil || err != nil {
		return nil, func() {}
	}
	path := cfg.String("spool_content_directory")
	return func() (int64, error) { return dir.Free(path) }, func() { dir.Close() }
}

// ScreenSpec declares the same service behind postscreen's tests: what a postscreen
// entry of master.cf stands for. Postfix has postscreen hand its sockets to smtpd
// processes; here one process does both. It is Exclusive since the cache of tested
// clients has one writer.
func ScreenSpec() service.Spec {
	return service.Spec{Process: "postscreen", Talks: true, Exclusive: true, Rank: service.Intake, Confines: true, Frugal: true, Sandbox: postscreen.Writes, Run: func(ctx context.Context, env *service.Env) error {
		return run(ctx, env, true)
	}}
}

// newSpender makes the client of the sendlimit service; nil: nobody limits what accounts send.
func newSpender(env *service.Env) (s spender, free func()) {
	if len(env.Config.List("account_recipient_limit"))+len(env.Config.List("account_recipient_limit_maps")) == 0 {
		return nil, func() {}
	}
	client := limitclient.New(env.Private(limitclient.Name))
	return client, client.Close
}

// run serves until ctx ends. The order matters: what needs master's privileges or
// lies outside chroot (tables, certificates, SASL) is opened before Confine. The
// sockets that others connect to are created after it, as the user who owns them.
// Clients of other services connect when they are first used, so that a session can
// begin while cleanup or trivial-rewrite is still starting.
func run(ctx context.Context, env *service.Env, screen bool) error {
	cfg := env.Config
	cleanup := ipc.NewClient(env.Public(cfg.String("cleanup_service_name")), nil)
	defer cleanup.Close()
	submitter := submit.New(cleanup)
	defer submitter.Close()
	router := rewriteclient.New(env.Private(cfg.String("rewrite_service_name")))
	defer router.Close()
	queue := ipc.NewClient(env.Public(cfg.String("queue_service_name")), nil)
	defer queue.Close()
	prober := verify.NewClient(env.Private(cfg.String("address_verify_service_name")))
	defer prober.Close()
	limits, closeLimits := newSpender(env)
	defer closeLimits()
	suppress := suppressclient.New(env.Private(suppressclient.Name)) // which is asked only of mail under the suppression list
	defer suppress.Close()
	options, err := env.Resolver()
	if err != nil {
		return err
	}
	if filter := cfg.List("smtpd_dns_reply_filter"); len(filter) > 0 {
		maps := table.OpenMaps("smtpd_dns_reply_filter", filter, env.Tables())
		defer maps.Close()
		options.Filter = func(record string) bool { return keepRecord(env.Log, maps, record) }
	}
	dns := resolver.New(options)
	defer dns.Close()
	flush, err := newFlusher(cfg, queue, env.Tables())
	if err != nil {
		return err
	}
	room, content, closeRooms := rooms(cfg)
	defer closeRooms()
	hub := watch.New(watch.Client, env.Log.Tag())
	defer hub.Close()
	srv, err := New(ctx, Deps{Config: cfg, Log: env.Log, Service: env.Name, Submit: submitter, Router: router, Foresee: router.Foresee,
		DNS: dns, Names: newHostNames(dns), Verify: prober, Suppress: suppress, Spender: limits, Flush: flush, Milters: cleanup, Tables: env.Tables(), MaxProc: env.MaxProc, SessionConfig: env.SessionConfig, Screen: screen, Verbose: env.Verbose, Watch: hub, ContentFree: content, QueueFree: room})
	if err != nil {
		return fmt.Errorf("%w", err)
	}
	defer srv.Close()
	if err := env.Confine(); err != nil {
		return err
	}
	// If the two sockets below cannot be had, an operator cannot watch sessions, or
	// anvil's clients get no counts. Neither is a reason to refuse mail.
	if err := hub.Serve(env.Own); err != nil {
		env.Log.Warning("dialogues cannot be watched: %v", err)
	}
	if door, err := anvil.NewDoor(env.Own, env.Name, srv.limits.lookup); err != nil {
		env.Log.Warning("anvil cannot ask for the counts of clients: %v", err)
	} else {
		defer door.Close()
	}
	defer srv.limits.amongNodes(ctx, cfg, cleanup)()
	// Stopping comes before the end of ctx: sessions between two messages get their
	// 421 at once, and the others have until ctx ends to finish.
	defer context.AfterFunc(service.Stopping(ctx), srv.Drain)()
	// Clients that are tested, or wait for a session, hold connections and no sessions:
	// postscreen's gate counts the sessions.
	if screen {
		env.MaxProc += cfg.Int("postscreen_pre_queue_limit") + cfg.Int("postscreen_post_queue_limit")
	}
	return env.ServeConns(ctx, srv.ServeConn)
}

// queueFlusher implements Flusher: it asks qmgr to deliver what waits for a site.
// Only sites of fast_flush_domains may be asked for: ETRN is for those whom we hold
// mail for (RFC 1985 section 6), and a flush of other destinations would let
// strangers set the times of our retries.
type queueFlusher struct {
	queue *ipc.Client // qmgr's public socket
	sites *table.List // fast_flush_domains
}

// newFlusher reads fast_flush_domains. An error means that one of its tables or
// patterns cannot be used. o says how tables are opened.
func newFlusher(cfg interface{ List(string) []string }, queue *ipc.Client, o table.Options) (Flusher, error) {
	parent := false
	for _, name := range cfg.List("parent_domain_matches_subdomains") {
		parent = parent || name == "fast_flush_domains"
	}
	sites, err := table.NewList("fast_flush_domains", cfg.List("fast_flush_domains"),
		table.ListOptions{Kind: table.Domains, Parent: parent, Table: o})
	if err != nil {
		return nil, err
	}
	return &queueFlusher{queue: queue, sites: sites}, nil
}

// Flush implements Flusher. CallAgain may ask a second time when qmgr is replaced
// in the middle: a destination that is flushed twice is tried once.
func (f *queueFlusher) Flush(ctx context.Context, domain string) (bool, error) {
	listed, err := f.sites.Match(ctx, domain)
	if err != nil || !listed {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	var r proto.CommandReply
	if err := f.queue.CallAgain(ctx, &proto.Command{Verb: proto.VerbFlush, Site: domain}, &r); err != nil {
		return false, err
	}
	return r.Denied == "", nil
}

// keepRecord says whether smtpd_dns_reply_filter lets a DNS record pass. record is
// its text as filters of Postfix see it: name, TTL, class, type and data. Where the
// table cannot be asked the record is dropped: the filter may be there to hide
// records that are dangerous to use. A value that means nothing keeps the record,
// as with Postfix.
func keepRecord(log *maillog.Logger, maps *table.Maps, record string) bool {
	value, found, err := maps.Lookup(context.Background(), record, false)
	switch {
	case err != nil:
		log.Warning("%v", err)
		return false // what is not to be used may be dangerous
	case !found:
		return true
	case strings.EqualFold(strings.TrimSpace(value), "IGNORE"):
		log.Log(maillog.DNSRecordIgnored{Record: record})
		return false
	}
	log.Warning("%s: unknown DNS filter action: %q", maps.Title(), value)
	return true
}
