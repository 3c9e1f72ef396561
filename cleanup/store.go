// Where the queue is kept: the one place in this service that knows of more than one engine. spool_type
// chooses; all other files speak to the engine alone.

package cleanup

import (
	"cmp"
	"context"

	"posthaste/internal/queueread"
	"posthaste/internal/service"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// A store opens the queue for the life of the process. Its fields are not changed.
type store struct {
	// await waits until it is the process's turn, and returns early when ctx ends.
	await func(ctx context.Context)
	// open opens the queue, after await, once or again and again.
	open func(ctx context.Context) (engine, error)
	// reader reads beside the engine: messages for the list of doubtful ones.
	reader func() queueread.Reader
	// close gives back what newStore has opened, when the process ends.
	close func()
	// Where the list of doubtful messages is kept.
	files vfs.FS
	dir   string
	// adopted is told of mail of another node that has come into the open queue; it is set before open is called.
	adopted func(engine, recovery)
	exact   bool // deliveries are recorded before they are made
}

// newStore prepares what spool_type names. It is called before the process is confined: it reads
// files that only root may read, and opens directories that may be out of reach later.
func newStore(env *service.Env) (*store, error) {
	st := &store{files: cmp.Or[vfs.FS](env.Files(), vfs.OS{}), dir: spool.Subdir, exact: storage.ExactDoubt(env.Config), close: func() {}}
	if storage.Elsewhere(env.Config) {
		return st, st.useProgram(env)
	}
	plan, err := spools.Find(env.Files(), spool.Subdir, env.Config)
	if err == nil && plan.Several() {
		return st, st.useLogs(env, plan)
	}
	if err != nil {
		return nil, err
	}
	return st, st.useLog(env)
}

// useProgram has the queue kept by the engine that the program has brought.
func (st *store) useProgram(env *service.Env) error {
	// The password file is read here, as long as the process has root's rights.
	made, err := storage.Make(env.Storage, env.Config)
	if err != nil {
		return err
	}
	cfg := env.Config
	o := storage.Options{TempDir: st.dir, InlineLimit: int(cfg.Bytes("spool_inline_limit")), PostDelay: cfg.Duration("spool_commit_delay"), Warn: env.Log.Warning,
		Adopted: func(en engine, r recovery) { st.adopted(en, r) }}
	st.await = env.Await
	// Each attempt tries to become the owner; until then all mail is refused.
	st.open = func(ctx context.Context) (engine, error) { return made.Open(ctx, o) }
	st.reader = made.Reader
	st.close = made.Close
	return nil
}

// useLog has the queue kept in the log on the local disk.
//
// The successor of a process reads the log while that still writes it: see follow.go. The engine in a database reads
// all of it when it is opened; mail is refused for that long at a reload.
func (st *store) useLog(env *service.Env) error {
	// A directory of its own for content may lie outside of what the process sees later.
	content, err := queueread.OpenContent(env.Config) // before its path is out of reach
	if err != nil {
		return err
	}
	options := logOptions(env)
	if content != nil {
		options.ContentFS = content // stays open as long as the process lives
	}
	follower := spool.NewFollower(options)
	scrub := newScrubbing(env.Config.Duration("spool_scrub_period"), env.Log, st.files, options.Dir)
	st.await = func(ctx context.Context) {
		if !awaitTurn(ctx, env, follower) {
			follower = nil
		}
	}
	st.open = func(context.Context) (engine, error) {
		o := options
		// It is of use once: a queue that is opened again has been written by this process.
		o.Follower, follower = follower, nil
		return openLog(o, scrub)
	}
	st.reader = func() queueread.Reader { return queueread.Log(spool.NewReader(options.FS, options.Dir)) }
	return nil
}
