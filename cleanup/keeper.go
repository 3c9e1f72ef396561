// The life of a spool within the process: it is opened, served, closed when it breaks,
// and opened again. A disk that fails must not end the process, since then every client
// would wait for a service that cannot start; instead each is told at once to come back.

package cleanup

import (
	"cmp"
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
	//
	// short enough for a disk that was full for a moment, long enough not to load one
	// that is in trouble
	reopenPause = 500 * time.Millisecond
	// remindTime is how often the log says that it still cannot be.
	remindTime = time.Minute
	// retireDrain is how long clients may take to finish what they have begun when
	// the process retires, after it has lingered for them. What takes longer is
	// refused, and comes again: nobody else can bring mail meanwhile.
	retireDrain = 2 * time.Second
	// diskDrain is the same for messages that the disk has. It answers, or the spool gives
	// it up after ten seconds; a successor could not write meanwhile either.
	diskDrain = 12 * time.Second
	// brokenDrain is how long clients have to leave a spool that is broken: the
	// answers to what they have asked are on their way.
	brokenDrain = 200 * time.Millisecond
)

// A keeper has a spool served for as long as the process is to serve. While no spool can
// be opened, because a disk fails or is full, whoever brings a message is told so at once
// (451).
//
// What a broken spool has acknowledged is in the one that is opened after it; what it has
// not acknowledged is refused, as after the death of the process. All connections are
// closed in between, so that the queue manager is told the queue once more.
//
// Its fields are set before run and not changed, except engine.
type keeper struct {
	log    *maillog.Logger
	lend   func(ctx context.Context, s *ipc.Server, drain time.Duration) error // as service.Env.LendIPC
	used   func()                                                              // told that a later failure is not one of start-up
	open   func() (engine, error)
	tell   func(ctx context.Context, report string) // has postmaster told what damage a start has found, while the spool is served
	server func(engine) *server
	found  func(engine, recovery) // told of each spool before it is served, with its report, and of mail that comes into it from another node; nil: nobody is
	// settled waits until all is told of the mail that came in, for as long as mail may wait for that, and says whether it is.
	// It is asked when the whole mail system stops, in whatever order: if not all is told, the next start has to tell it, as
	// after a kill. A successor at a reload does not: agents go on, and nothing is in doubt. nil: nobody is told.
	settled func() bool
	// leaving is closed when the process is to retire, and retire has it do so. The
	// moment is chosen so that no message is on its way that takes its time: from then
	// until the successor serves, nobody else can bring mail. stopping is closed when the
	// whole mail system stops.
	leaving  <-chan struct{}
	retire   func()
	stopping <-chan struct{}
	drain    time.Duration          // instead of retireDrain; 0: that
	serving  atomic.Pointer[server] // of the engine; nil while there is none
	engine   atomic.Pointer[engine] // nil while there is none
	// late is damage that adoptions have found, for postmaster; made by run.
	late chan string
}

// maxLate bounds the reports of damage that wait until a queue is served; the log has all of it.
const maxLate = 16

// run serves until ctx ends. The error is one that time does not mend, such as a queue of
// another format.
func (k *keeper) run(ctx context.Context) error {
	// Reports that come while no queue is served wait for the next one.
	k.late = make(chan string, maxLate)
	en, err := k.open()
	for {
		if err != nil {
			en, err = k.reopen(ctx, err)
		}
		if err != nil || en == nil {
			return err
		}
		// From here on a failure is not a mistake in the configuration: master must not
		// back off from starting the service.
		k.used()
		k.announce(en.Recovery())
		if k.found != nil {
			k.found(en, en.Recovery())
		}
		k.engine.Store(&en)
		err = k.serve(ctx, en)
		k.engine.Store(nil)
		// Taken before Close, which may fail because of it.
		broken := en.Err()
		if broken == nil && k.ends() && k.settled != nil && !k.settled() {
			en.LeaveUnclean()
		}
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
			if errors.Is(broken, queue.ErrNotOurs) {
				k.log.Warning("the queue is given up: %v", broken) // another node has it, or is to have it
			} else {
				k.log.Error("the queue cannot be written any more, and is opened again: %v", broken)
			}
			en, err = k.open()
		}
	}
}

// ends says whether the whole mail system stops.
func (k *keeper) ends() bool {
	select {
	case <-k.stopping:
		return true
	default:
		return false
	}
}

// announce logs what recovery has found. The lines name what may arrive twice, for the
// postmaster; the list that "posthaste doubtful" shows has the same.
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
	k.announceWithdrawn(&r)
	if r.MoreUnanswered > 0 {
		k.log.Warning("%d more messages are in the queue whose clients may have been told 451, or nothing", r.MoreUnanswered)
	}
}

// adopted takes in that mail of another node has come into the queue while it was open. The queue manager is told
// the queue once more: it knows how to deal with that, since cleanup may die at any time. run may not have seen en
// yet: whoever attaches later is told of all that there is.
func (k *keeper) adopted(en engine, r recovery) {
	k.announce(r)
	// Not k.engine, which is set a moment after the engine is open: what is in doubt would be missing
	// in the list.
	if k.found != nil {
		k.found(en, r)
	}
	// Whether all of it is told was asked before, perhaps.
	if r.Unclean && k.ends() {
		en.LeaveUnclean()
	}
	// Postmaster is told by a message that comes in here, which the engine's goroutine must not wait for.
	if r.Report != "" {
		select {
		case k.late <- r.Report:
		default: // there is more than postmaster would read
		}
	}
	// To be told is to be told of the whole queue.
	if s := k.serving.Load(); s != nil && !r.More {
		s.tellAgain()
	}
}

// announceWithdrawn logs what was in hand before its client was told 250, when the process that had it was killed.
func (k *keeper) announceWithdrawn(r *recovery) {
	for i := range r.Withdrawn {
		if w := &r.Withdrawn[i]; w.Settled {
			k.log.Warning("%s: in doubt: it was delivered just before the end of the process; its client may have been told 451, or nothing, and may send it again", w.ID)
		} else {
			k.log.LogWarning(maillog.Withdrawn{ID: string(w.ID)})
		}
	}
	if r.MoreWithdrawn > 0 {
		k.log.Warning("%d more messages are withdrawn: their clients were never told 250, and may send them again", r.MoreWithdrawn)
	}
}

// maxNamed bounds the recipients that a line of the log names.
const maxNamed = 20

// doubtText says why a delivery is in doubt.
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
	if d.Kind == queue.DoubtLost {
		return fmt.Sprintf("records of the queue are lost, and one may have been about it: recipients number %s%s may have it, and may get it again", strings.Trim(fmt.Sprint(rcpts), "[]"), more)
	}
	return fmt.Sprintf("it was being delivered%s when the mail system ended: recipients number %s%s may have it, and may get it again",
		to, strings.Trim(fmt.Sprint(rcpts), "[]"), more)
}

// serve serves one spool until ctx ends or it breaks, and waits for everything that uses
// it. It may be closed afterwards.
func (k *keeper) serve(ctx context.Context, en engine) error {
	serving, stop := context.WithCancel(ctx)
	defer stop()
	s := k.server(en)
	k.serving.Store(s)
	defer k.serving.Store(nil)
	var watching sync.WaitGroup
	watching.Go(func() { k.watch(serving, stop, en, s) })
	// Scrubbing goes on only while the spool is served: a broken one is left
	// as it is.
	watching.Go(func() { en.Maintain(serving) })
	// While serving, because the notice is mail that comes in here.
	watching.Go(func() { k.tellDamage(serving, en.Recovery().Report) })
	err := k.lend(serving, s.IPC(), drainTime)
	stop()
	close(s.left)
	s.Wait()
	watching.Wait()
	return err
}

// tellDamage tells postmaster of the damage that the start has found, and adoptions, until ctx ends. report is
// that of the start; empty: it has found none. Reports are told of one after the other, so that mail
// is not held up by letters about it. One that ctx cuts short is not told of again: it is in the log.
func (k *keeper) tellDamage(ctx context.Context, report string) {
	for {
		if report != "" {
			k.tell(ctx, report)
		}
		select {
		case report = <-k.late:
		case <-ctx.Done():
			return
		}
	}
}

// watch chooses the moment to retire, and bounds how long clients may take to leave after
// the end. It returns when all have left, or when they are cut off.
func (k *keeper) watch(serving context.Context, stop func(), en engine, s *server) {
	leaving := k.leaving
	var quiet <-chan struct{}
	drain := cmp.Or(k.drain, retireDrain)
	for serving.Err() == nil {
		select {
		case <-leaving:
			leaving, quiet = nil, s.quiet
			s.hush()
		// A message may have begun since quiet was signalled.
		case <-quiet:
			if s.unhurried() {
				k.retire()
				quiet = nil
			}
		case <-en.Broken():
			stop()
			// Nothing that they still bring can be stored.
			drain = brokenDrain
		case <-serving.Done():
		}
	}
	s.hasten()
	k.cutOff(s, drain)
}

// cutOff gives clients that time to leave, and then closes their connections; not before
// those whose messages the disk has were told what became of them. A client that does not read what it
// is told does not hold that up for longer than the disk may.
func (k *keeper) cutOff(s *server, drain time.Duration) {
	begun := time.Now()
	late := time.NewTimer(drain)
	defer late.Stop()
	for {
		select {
		case <-late.C:
		case <-s.left:
			return
		case <-k.stopping:
			return
		}
		if s.storing.Load() == 0 && s.IPC().Written() || time.Since(begun) >= diskDrain {
			s.IPC().Close()
			return
		}
		late.Reset(brokenDrain)
	}
}

// reopen tries to open the spool until it can, and has all mail refused meanwhile. It
// returns no spool and no error when ctx ends or the process retires: the successor tries
// then.
func (k *keeper) reopen(ctx context.Context, err error) (en engine, _ error) {
	refusing, stop := context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer stop()
	var said time.Time
	var away atomic.Bool // other nodes have the queue
	for begun := false; ; begun = true {
		switch {
		case err == nil:
			return en, nil
		case !passing(err):
			return nil, err
		// refuser takes the sockets over, once.
		case !begun:
			k.used()
			serving.Go(func() { k.lend(refusing, refuser(away.Load), 0) })
		}
		away.Store(errors.Is(err, queue.ErrNotOurs))
		switch {
		// A standby waits for days, and nothing is wrong.
		case errors.Is(err, queue.ErrNotOurs):
			if said.IsZero() {
				said = time.Now()
				k.log.Info("standing by, mail is refused: %v", err)
			}
		case time.Since(said) >= remindTime:
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

// passing says whether err may pass by itself: the disk fails, is full or read-only, or
// the process lacks something. Any other error is for a person to mend.
func passing(err error) bool {
	for _, e := range []error{queue.ErrBroken, queue.ErrFull, queue.ErrNotOurs, syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EMFILE, syscall.ENFILE,
		syscall.ENOMEM, syscall.EAGAIN, syscall.EBUSY, syscall.ETIMEDOUT, syscall.ESTALE, syscall.ENXIO, syscall.ENODEV} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// refuser is the server for the time without a spool. Submitters are refused. Everything
// else gets no answer, and is asked again when the connection is closed: the queue
// manager has time. away says whether other nodes have the queue.
func refuser(away func() bool) *ipc.Server {
	return &ipc.Server{Public: func(*ipc.Request) bool { return false }, OnTrigger: func([]byte) {},
		Handler: func(_ *ipc.Conn, r *ipc.Request) {
			switch r.Kind {
			case proto.KindSubmit, proto.KindChunk:
				if away() {
					r.Reply(&elsewhere)
				} else {
					r.Reply(&writeError)
				}
			case proto.KindLease:
				if away() {
					r.Fail("%s", proto.FailElsewhere)
				} else {
					r.Fail("cleanup: the queue cannot be used now")
				}
			case proto.KindMilter, proto.KindAbort:
				r.Fail("cleanup: the queue cannot be used now")
			}
		}}
}
