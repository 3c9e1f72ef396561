// The service around the server: what a cleanup process opens and in which order, and how
// the queue's log is configured. Files and tables that root can read are opened first;
// then the process confines itself; the spool comes last, when the predecessor has left
// it.

package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/event"
	"posthaste/internal/ipc"
	"posthaste/internal/metrics"
	"posthaste/internal/notice"
	"posthaste/internal/resolver"
	"posthaste/internal/rewriteclient"
	"posthaste/internal/service"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
	"posthaste/internal/submit"
)

// drainTime is how long clients may take to finish what they have begun when the service
// stops. It covers a message of some size over a slow link; master waits longer before it
// kills.
const drainTime = 30 * time.Second

// Spec declares the service: one process at a time, since only one may write the spool;
// it prepares while its predecessor still serves, and lingers for a quiet moment when it
// retires.
func Spec() service.Spec {
	return service.Spec{Process: "cleanup", Queue: true, Exclusive: true, Prepares: true, Lingers: true, Rank: service.Store, Confines: true, Tries: true, Sandbox: writes, Run: run}
}

// writes are the directories that the service writes to besides the queue's, for the
// sandbox.
func writes(cfg *config.Config) (list []string, ok bool) {
	if dir := cfg.String("spool_content_directory"); dir != "" {
		list = append(list, dir)
	}
	for _, dir := range cfg.List("spool_directories") {
		if dir != spools.Own {
			list = append(list, dir)
		}
	}
	return list, true
}

// run is the process's main function. It returns when ctx ends, or with an error that
// only a person can mend.
func run(ctx context.Context, env *service.Env) error {
	cfg, log, tables := env.Config, env.Log, env.Tables()
	rewriter := rewriteclient.New(env.Private(cfg.String("rewrite_service_name")))
	defer rewriter.Close()
	core, err := NewCore(cfg, rewriter, tables)
	if err != nil {
		return err
	}
	milters, err := newMilters(cfg, log, tables)
	if err != nil {
		return err
	}
	// The tables of all of these are opened with root's rights, where the process still
	// has them.
	signer, err := newSigner(cfg, tables)
	if err != nil {
		return err
	}
	lookups, err := env.Resolver()
	if err != nil {
		return err
	}
	dns := resolver.New(lookups)
	defer dns.Close()
	authenticator, reports, err := newReportingAuthenticator(cfg, log, dns, tables)
	if err != nil {
		return err
	}
	st, err := newStore(env)
	if err != nil {
		return err
	}
	defer st.close()
	if err := env.Confine(); err != nil {
		return err
	}
	// Everything that can fail because of the configuration has been done by now.
	st.await(ctx)
	if ctx.Err() != nil {
		return nil // it has never been our turn
	}
	verify := ipc.NewClient(env.Private(cfg.String("address_verify_service_name")), nil)
	defer verify.Close()
	reader := st.reader()
	defer reader.Close()
	// It outlives the spools that are opened one after the other.
	doubts := newDoubts(st.files, st.dir, log)
	defer doubts.flush()
	defer authenticator.sendReports(ctx, env, reports)()
	k := &keeper{log: log, lend: env.LendIPC, used: env.Used, leaving: env.Leaving(), retire: env.Retire, stopping: service.Stopping(ctx).Done(),
		open: func() (engine, error) { return st.open(ctx) },
		found: func(en engine, r recovery) {
			doubts.found(en, reader, &r, st.exact)
			tellAgain(service.Stopping(ctx), env.Events, en, &r, reader)
		},
		settled: func() bool {
			if !env.Events.Wants(event.Received) {
				return true // of nothing else the queue knows more than the journal
			}
			env.Events.Wait(context.Background())
			return env.Events.Settled()
		},
		tell: func(ctx context.Context, report string) { tellDamage(ctx, env, report) },
		server: func(en engine) *server {
			return newServer(service.Stopping(ctx), serverOptions{Core: core, Engine: en, Log: log,
				Token: env.Flow.Take, PutToken: func() { env.Flow.Put(1) }, Delay: cfg.Duration("in_flow_delay"), BufferLimit: cfg.Bytes("spool_buffer_limit"),
				Verify: verify, Milters: milters, Signer: signer, Authenticator: authenticator, Metrics: env.Metrics,
				Doubts: doubts, Reader: reader, Exact: st.exact, Events: env.Events})
		}}
	st.adopted = k.adopted
	offer(env, k, doubts)
	err = k.run(ctx)
	milters.Close()
	signer.Close()
	// The most frequent mistake after a queue directory was copied; say how to mend it.
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w, in %s; \"posthaste set-permissions\" gives its files the owner that they need", err, cfg.String("queue_directory"))
	}
	return err
}

// logOptions is how main.cf wants the queue's log to be kept.
func logOptions(env *service.Env) spool.Options {
	cfg := env.Config
	return spool.Options{
		FS:          env.Files(),
		Dir:         spool.Subdir,
		ContentDir:  cfg.String("spool_content_directory"),
		SegmentSize: cfg.Bytes("spool_segment_size"),
		InlineLimit: cfg.Bytes("spool_inline_limit"),
		Budget:      cfg.Bytes("spool_size_limit"),
		MinFree:     cfg.Bytes("queue_minfree"),
		PostDelay:   cfg.Duration("spool_commit_delay"),
		ExactDoubt:  cfg.Bool("spool_exact_doubt"),
		Warn:        env.Log.Warning,
		Random:      env.Random(),
	}
}

// tellDamage tells postmaster what damage the start has found, by a message through this
// very service. It waits until the spool is served.
func tellDamage(ctx context.Context, env *service.Env, report string) {
	client := ipc.NewClient(env.Public(env.Config.String("cleanup_service_name")), nil)
	defer client.Close()
	submitter := submit.New(client)
	defer submitter.Close()
	notice.New(env.Config, submitter, env.Log).Tell(ctx, notice.Software, "queue: damage was found", damageLetter(report, storage.Elsewhere(env.Config)))
}

// damageLetter is the text of that message. elsewhere says that the queue is in a database: nothing is set aside there.
func damageLetter(report string, elsewhere bool) string {
	// There a damaged row stays where it is until its table is dropped, and "posthaste spool" knows
	// nothing of it.
	if elsewhere {
		return report + `
What is left out is not delivered. It is in the tables until nothing else in them is needed, and they are then
dropped: copy a table that is named now, with pg_dump, if you want to look into it.

Look after the database server's disk, and after its memory.
`
	}
	return report + `
Messages that are named as lost are not in the queue any more. Those that are on hold
are delivered when you release them (postsuper -H).

The damaged parts are kept, as they were, in the directory "damaged" of the spool.
While there is anything in it, content files of large messages that nobody refers
to are kept as well: remove what is in it when you have dealt with this.

Look after the disk, and after the machine's memory.
`
}

// offer publishes the queue's numbers, while there is a spool.
func offer(env *service.Env, k *keeper, d *doubts) {
	env.Metrics.Offer(func(o *metrics.Offer) {
		if en := k.engine.Load(); en != nil {
			(*en).Offer(o)
			o.Gauge(metrics.FlowTokens, float64(env.Flow.Level()))
			o.Gauge(metrics.SpoolDoubtful, float64(d.unseen()))
		}
	})
}
