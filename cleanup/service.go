package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/metrics"
	"posthaste/internal/resolver"
	"posthaste/internal/rewriteclient"
	"posthaste/internal/service"
	"posthaste/internal/spool"
)

// drainTime is how long clients may take to finish what they have begun when
// the service stops.
const drainTime = 30 * time.Second

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "cleanup", Exclusive: true, Rank: service.Store, Confines: true, Tries: true, Sandbox: service.Plain, Run: run}
}

func run(ctx context.Context, env *service.Env) error {
	cfg, log, tables := env.Config, env.Log, env.Tables()
	rewriter := rewriteclient.New(env.Private(cfg.String("rewrite_service_name")))
	defer rewriter.Close()
	core, err := NewCore(cfg, rewriter, tables)
	if err != nil {
		return err
	}
	milters, err := NewMilters(cfg, log, tables)
	if err != nil {
		return err
	}
	signer, err := NewSigner(cfg, tables)
	if err != nil {
		return err
	}
	options, err := resolver.Configured(cfg)
	if err != nil {
		return err
	}
	dns := resolver.New(options)
	defer dns.Close()
	authenticator, err := NewAuthenticator(cfg, dns, tables)
	if err != nil {
		return err
	}
	if err := env.Confine(); err != nil {
		return err
	}
	sp, err := spool.Open(spool.Options{
		Dir:         spool.Subdir,
		SegmentSize: cfg.Bytes("spool_segment_size"),
		InlineLimit: cfg.Bytes("spool_inline_limit"),
		Budget:      cfg.Bytes("spool_size_limit"),
		MinFree:     cfg.Bytes("queue_minfree"),
		PostDelay:   cfg.Duration("spool_commit_delay"),
		Warn:        log.Warning,
	})
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w, in %s; \"posthaste set-permissions\" gives its files the owner that they need", err, cfg.String("queue_directory"))
	}
	if err != nil {
		return err
	}
	env.Used() // the spool is open: a later failure is not one of start-up
	if r := sp.Recovery(); !r.Clean && r.Segments > 0 {
		log.Info("recovered the queue: %d segments, %d records read in %s, %d of them in doubt and recorded again",
			r.Segments, r.Records, r.Elapsed.Round(time.Millisecond), r.Tail)
	}
	for _, id := range sp.Recovery().InDoubt {
		log.Warning("%s: in doubt: some recipients have it and are not recorded; they may get it again", id)
	}
	if n := sp.Recovery().MoreInDoubt; n > 0 {
		log.Warning("%d more messages are in doubt", n)
	}
	verify := ipc.NewClient(env.Private(cfg.String("address_verify_service_name")), nil)
	defer verify.Close()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	s := NewServer(service.Stopping(ctx), ServerOptions{Core: core, Spool: sp, Log: log,
		Token: env.Flow.Take, PutToken: func() { env.Flow.Put(1) }, Delay: cfg.Duration("in_flow_delay"), BufferLimit: cfg.Bytes("spool_buffer_limit"),
		Verify: verify, Milters: milters, Signer: signer, Authenticator: authenticator, Metrics: env.Metrics})
	offer(env, sp)
	broken := make(chan struct{})
	go func() {
		defer close(broken)
		select {
		case <-sp.Broken():
			stop()
		case <-serving.Done():
		}
	}()
	err = env.ServeIPC(serving, s.IPC(), drainTime)
	stop()
	<-broken
	s.Wait()
	milters.Close()
	signer.Close()
	if serr := sp.Err(); serr != nil {
		return fmt.Errorf("the queue cannot be written any more: %w", serr)
	}
	if cerr := sp.Close(); err == nil {
		err = cerr
	}
	return err
}

// offer has the spool's numbers published.
func offer(env *service.Env, sp *spool.Spool) {
	env.Metrics.Offer(func(o *metrics.Offer) {
		st := sp.Stats()
		o.Gauge(metrics.SpoolMessages, float64(st.Messages))
		o.Gauge(metrics.SpoolLiveBytes, float64(st.LiveBytes))
		o.Gauge(metrics.SpoolDiskBytes, float64(st.DiskBytes))
		o.Gauge(metrics.SpoolSegments, float64(st.Segments-st.Free), "used")
		o.Gauge(metrics.SpoolSegments, float64(st.Free), "free")
		full := 0.0
		if st.Full {
			full = 1
		}
		o.Gauge(metrics.SpoolFull, full)
		o.Gauge(metrics.FlowTokens, float64(env.Flow.Level()))
		o.Total(metrics.SpoolBatches, float64(st.Batches))
		o.Total(metrics.SpoolCommits, float64(st.Commits))
		o.Total(metrics.SpoolWrittenBytes, float64(st.Written))
		o.Total(metrics.SpoolCopiedBytes, float64(st.Copied))
	})
}
