package cleanup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

const (
	// reopenPause is how long is waited before the spool is opened once more.
	reopenPause = 500 * time.Millisecond
	// remindTime is how often the log says that it still cannot be.
	remindTime = time.Minute
	// retireDrain is how long clients may take to finish what they have begun when
	// the process retires, after it has lingered for them. What takes longer is
	// refused, and comes again: nobody else can bring mail meanwhile.
	retireDrain = 2 * time.Second
	// brokenDrain is how long clients have to leave a spool that is broken: the
	// answers to what they have asked are on their way.
	brokenDrain = 200 * time.Millisecond
)

// A keeper has a spool served for as long as the process is to serve. A disk that
// fails, or is full when the spool is opened, is not the process's end: until the spool can be
// opened again whoever brings a message is told so at once (451). What a spool that
// broke has acknowledged is in the one that is opened after it; what it has not is refused, as
// after the death of the process, and everybody is connected anew, so that the queue manager is
// told the queue once more.
type keeper struct {
	log    *maillog.Logger
	lend   func(ctx context.Context, s *ipc.Server, drain time.Duration) error // as service.Env.LendIPC
	used   func()                                                              // told that a later failure is not one of start-up
	open   func() (engine, error)
	tell   func(ctx context.Context, report string) // has postmaster told what damage a start has found, while the spool is served
	server func(engine) *server
	begin  func(engine) // told of each spool before it is served, with its report; nil: nobody is
	// leaving is closed when the process is to retire, and retire has it do so:
	// when no message is on its way in that takes its time, for nobody else can bring
	// mail from then on until it has come. stopping is closed when all stops.
	leaving  <-chan struct{}
	retire   func()
	stopping <-chan struct{}
	engine   atomic.Pointer[engine] // nil while there is none
}

// run serves until ctx ends. The error is one that time does not mend.
func (k *keeper) run(ctx context.Context) error {
	en, err := k.open()
	for {
		if err != nil {
			en, err = k.reopen(ctx, err)
		}
		if err != nil || en == nil {
			return err
		}
		k.used()
		k.announce(en.Recovery())
		if k.begin != nil {
			k.begin(en)
		}
		k.engine.Store(&en)
		err = k.serve(ctx, en)
		k.engine.Store(nil)
		broken := en.Err()
		if cerr := en.Close(); broken == nil && err == nil {
			err = cerr
		}
		if broken == nil && (err == nil || ctx.Err() != nil || !passing(err)) {
			return err
		}
		if ctx.Err() != nil {
			return nil // the successor will open it; the log has why this one could not be written
		}
		if broken != nil {
			k.log.Error("the queue cannot be written any more, and is opened again: %v", broken)
			en, err = k.open()
		}
	}
}

// announce logs what recovery has found.
func (k *keeper) announce(r recovery) {
	if r.Summary != "" {
		k.log.Info("%s", r.Summary)
	}
	for i := range r.InDoubt {
		k.log.Warning("%s: in doubt: %s", r.InDoubt[i].ID, doubtText(&r.InDoubt[i]))
	}
	if r.MoreInDoubt > 0 {
		k.log.Warning("%d more messages are in doubt", r.MoreInDoubt)
	}
	for _, id := range r.Unanswered {
		k.log.Warning("%s: in doubt: it was the last to be recorded before the end of the process, and is in the queue; its client may have been told 451, or nothing, and may send it again", id)
	}
	if r.MoreUnanswered > 0 {
		k.log.Warning("%d more messages are in the queue whose clients may have been told 451, or nothing", r.MoreUnanswered)
	}
}

// maxNamed bounds the recipients that a line of the log names.
const maxNamed = 20

// doubtText says of a delivery why it is in doubt.
func doubtText(d *queue.Doubt) string {
	switch d.Kind {
	case queue.DoubtTrace:
		return "some recipients have it and are not recorded; they may get it again"
	case queue.DoubtNew:
		return "it is new, and may have been delivered to some; they may get it again"
	}
	to, more := "", ""
	if d.Nexthop != "" {
		to = " to " + d.Nexthop
	}
	rcpts := d.Rcpts
	if n := len(rcpts) - maxNamed; n > 0 {
		rcpts, more = rcpts[:maxNamed], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("it was being delivered%s when the mail system ended: recipients number %s%s may have it, and may get it again",
		to, strings.Trim(fmt.Sprint(rcpts), "[]"), more)
}

// serve serves a spool until ctx ends or it breaks.
func (k *keeper) serve(ctx context.Context, en engine) error {
	serving, stop := context.WithCancel(ctx)
	defer stop()
	s := k.server(en)
	var watching sync.WaitGroup
	watching.Go(func() { k.watch(serving, stop, en, s) })
	watching.Go(func() { en.Maintain(serving) })
	if report := en.Recovery().Report; report != "" {
		watching.Go(func() { k.tell(serving, report) })
	}
	err := k.lend(serving, s.IPC(), drainTime)
	stop()
	close(s.left)
	s.Wait()
	watching.Wait()
	return err
}

// watch has the process retire when it suits, and bounds how long clients may take
// to leave. It returns when they have to be left to themselves.
func (k *keeper) watch(serving context.Context, stop func(), en engine, s *server) {
	leaving := k.leaving
	var quiet <-chan struct{}
	drain := retireDrain
	for serving.Err() == nil {
		select {
		case <-leaving:
			leaving, quiet = nil, s.quiet
			s.hush()
		case <-quiet:
			if s.unhurried() {
				k.retire()
				quiet = nil
			}
		case <-en.Broken():
			stop()
			drain = brokenDrain
		case <-serving.Done():
		}
	}
	late := time.NewTimer(drain)
	defer late.Stop()
	select {
	case <-late.C:
		s.IPC().Close()
	case <-s.left:
	case <-k.stopping:
	}
}

// reopen tries to open the spool again and again, and refuses all that comes
// meanwhile. It gives neither a spool nor an error when ctx ends.
func (k *keeper) reopen(ctx context.Context, err error) (en engine, _ error) {
	refusing, stop := context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer stop()
	var said time.Time
	for begun := false; ; begun = true {
		switch {
		case err == nil:
			return en, nil
		case !passing(err):
			return nil, err
		case !begun:
			k.used()
			serving.Go(func() { k.lend(refusing, refuser(), 0) })
		}
		if time.Since(said) >= remindTime {
			said = time.Now()
			k.log.Error("the queue cannot be opened, mail is refused for now: %v", err)
		}
		pause := time.NewTimer(reopenPause)
		select {
		case <-pause.C:
		case <-k.leaving:
			pause.Stop()
			k.retire()
			return nil, nil
		case <-ctx.Done():
			pause.Stop()
			return nil, nil
		}
		en, err = k.open()
	}
}

// passing says whether the disk is at fault, or the lack of something, which may pass.
func passing(err error) bool {
	for _, e := range []error{queue.ErrBroken, queue.ErrFull, syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EMFILE, syscall.ENFILE,
		syscall.ENOMEM, syscall.EAGAIN, syscall.EBUSY, syscall.ETIMEDOUT, syscall.ESTALE, syscall.ENXIO, syscall.ENODEV} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// refuser is the server for the time without a spool. Who brings a message is
// told so; all else has time, and is asked again over another connection.
func refuser() *ipc.Server {
	return &ipc.Server{Public: func(*ipc.Request) bool { return false }, OnTrigger: func([]byte) {},
		Handler: func(_ *ipc.Conn, r *ipc.Request) {
			switch r.Kind {
			case proto.KindSubmit, proto.KindChunk:
				r.Reply(&writeError)
			case proto.KindLease, proto.KindMilter, proto.KindAbort:
				r.Fail("cleanup: the queue cannot be used now")
			}
		}}
}
