// The service around the Picker: scans when it is triggered, and offers as they come.
// Nothing is scanned by the clock here: master wakes the service as master.cf says, and
// postdrop when it has left a file.

package pickup

import (
	"context"
	"errors"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/maildrop"
	"posthaste/internal/proto"
	"posthaste/internal/service"
	"posthaste/internal/statedir"
	"posthaste/internal/submit"
)

// parallel is how many messages are on their way to cleanup at once, of files and of
// offers each. They share syncs, so more are faster; beyond this, a file waits as well in
// the directory.
const parallel = 20

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "pickup", Exclusive: true, Rank: service.Intake, Confines: true, Sandbox: service.Plain, Frugal: true, Run: run}
}

// run is the process's main function. It returns when ctx ends and the last message in
// hand is settled.
func run(ctx context.Context, env *service.Env) error {
	cfg := env.Config
	client := ipc.NewClient(env.Public(cfg.String("cleanup_service_name")), nil)
	defer client.Close()
	submitter := submit.New(client)
	defer submitter.Close()
	// Opened before chroot: data_directory lies outside. Mail is taken without it, too, and only
	// what happens when this process dies is less well known then.
	state, err := statedir.Open(filepath.Join(cfg.String("data_directory"), "pickup"))
	if err != nil {
		env.Log.Warning(notNamed, err)
	} else {
		defer state.Close()
	}
	if err := env.Confine(); err != nil {
		return err
	}
	o := settings(env)
	o.Submit = submitter
	var end func(*Picker)
	o.Died, end = begin(state, env)
	p := New(o)
	defer end(p)
	// One token says that there may be files; a scan takes all there are. The first scan
	// is for what came while nobody served.
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	offers := make(chan struct{}, parallel)
	server := &ipc.Server{
		OnTrigger: func([]byte) {
			select {
			case wake <- struct{}{}:
			default:
			}
		},
		Raw: map[byte]func(net.Conn, int){maildrop.OfferFirst: func(c net.Conn, uid int) {
			select {
			case offers <- struct{}{}:
				defer func() { <-offers }()
			default:
				return // enough in hand: it goes into the directory
			}
			defer env.Busy()()
			p.offered(ctx, c, uid)
		}},
	}
	serving := make(chan error, 1)
	go func() { serving <- env.ServeIPC(ctx, server, time.Second) }()
	env.Used()
	for {
		select {
		case <-wake:
			done := env.Busy()
			if err := p.Scan(ctx); err != nil {
				env.Log.Warning("%v", err)
			}
			done()
		case <-ctx.Done():
			return <-serving
		}
	}
}

// settings are the options that main.cf says. It is called when the process has the rights
// that it keeps: without mail_owner's account files of its own user count as postsuper's.
func settings(env *service.Env) Options {
	cfg := env.Config
	return Options{
		Dir:        "maildrop",
		Log:        env.Log,
		Myhostname: cfg.String("myhostname"),
		MailName:   cfg.String("mail_name"),
		Filter:     cfg.String("content_filter"),
		Override:   proto.OverrideFlags(cfg.List("receive_override_options")),
		AutoUTF8:   proto.AutoUTF8(cfg.List("smtputf8_autodetect_classes"), "sendmail"),
		Owner:      ownerUID(cfg.String("mail_owner")),
		Began:      time.Now(),
		Change:     env.Change(),
		Parallel:   parallel,
		Slow:       len(cfg.List("non_smtpd_milters")) > 0,
	}
}

// notNamed is what it costs when the state cannot be kept.
const notNamed = "what may be queued twice, should this process die, will not be named: %v"

// begin notes that this process runs, and says whether the one before it has died. end is for
// the end. Without a state, which is nil then, nothing is known.
func begin(state *statedir.Dir, env *service.Env) (died bool, end func(*Picker)) {
	if state == nil {
		return false, func(*Picker) {}
	}
	died, remove, err := running(state, env.Change())
	if err != nil {
		// A data_directory that is not mail_owner's is somebody's choice, and of no concern to
		// who sends mail: master and "posthaste check" speak of it.
		if !errors.Is(err, os.ErrPermission) {
			env.Log.Warning(notNamed, err)
		}
		return false, func(*Picker) {}
	}
	// It is called when the last message in hand is settled.
	return died, func(p *Picker) {
		if p.doubtful() {
			return // the next process must know that one has died
		}
		if err := remove(); err != nil {
			env.Log.Warning("the next pickup process will take this one for dead: %v", err)
		}
	}
}

// ownerUID is the user number of mail_owner, whose files postsuper made. Without such a
// user it is that of this process, which serves a test.
func ownerUID(name string) int {
	u, err := user.Lookup(name)
	if err != nil {
		return os.Geteuid()
	}
	n, err := strconv.Atoi(u.Uid)
	if err != nil {
		return os.Geteuid()
	}
	return n
}
