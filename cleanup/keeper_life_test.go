package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// plainLog is a log whose lines have no time.
func plainLog() *logText {
	l := new(logText)
	l.l = maillog.New("log", maillog.NewWriter(l, maillog.Plain))
	return l
}

// A stub is an engine that is opened, breaks and is closed as a test wants, and has no queue.
type stub struct {
	engine
	found  recovery
	broken chan struct{} // closed when it breaks
	why    error         // why it is broken
	close  error         // what Close says
	closed bool
}

func newStub() *stub { return &stub{broken: make(chan struct{})} }

func (e *stub) Recovery() recovery         { return e.found }
func (e *stub) Broken() <-chan struct{}    { return e.broken }
func (e *stub) Err() error                 { return e.why }
func (e *stub) Hurry()                     {}
func (e *stub) Maintain(c context.Context) { <-c.Done() }
func (e *stub) Close() error {
	e.closed = true
	return e.close
}

// stubbed has k serve what open opens: lend is where its clients come from.
func (k *keeper) stubbed(t *testing.T, log *logText, open func() (engine, error), lend func(context.Context, *ipc.Server, time.Duration) error) {
	core := newCore(t, "", nil)
	k.log, k.open, k.lend = log.l, open, lend
	if k.used == nil {
		k.used = func() {}
	}
	k.server = func(en engine) *server {
		return newServer(t.Context(), serverOptions{Core: core, Engine: en, Log: log.l, Token: func() bool { return true }})
	}
}

// What a start has found is in the log: a line for each message that may arrive twice, with the reason, and how many more
// there are. Of a start that has found nothing there is no line.
func TestKeeperAnnounces(t *testing.T) {
	t.Parallel()
	rcpts := make([]int, 21)
	for i := range rcpts {
		rcpts[i] = i + 1
	}
	const twenty = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"
	for name, c := range map[string]struct {
		found recovery
		want  []string
	}{
		"nothing": {},
		"summary": {recovery{Summary: "took over 100% of it"}, []string{"took over 100% of it"}},
		"in doubt": {recovery{MoreInDoubt: 3, InDoubt: []queue.Doubt{
			{ID: "A", Kind: queue.DoubtHanded, Rcpts: []int{0, 4}, Nexthop: "mx.test"},
			{ID: "B", Kind: queue.DoubtHanded, Rcpts: rcpts[:20]},
			{ID: "C", Kind: queue.DoubtHanded, Rcpts: rcpts, Nexthop: "mx.test"},
			{ID: "D", Kind: queue.DoubtTrace},
			{ID: "E", Kind: queue.DoubtNew},
			{ID: "F", Kind: queue.DoubtLost, Rcpts: []int{2}},
			{ID: "G", Kind: queue.DoubtLost, Rcpts: rcpts},
		}}, []string{
			"warning: A: in doubt: it was being delivered to mx.test when the mail system ended: recipients number 0 4 may have it, and may get it again",
			"warning: B: in doubt: it was being delivered when the mail system ended: recipients number " + twenty + " may have it, and may get it again",
			"warning: C: in doubt: it was being delivered to mx.test when the mail system ended: recipients number " + twenty + " and 1 more may have it, and may get it again",
			"warning: D: in doubt: some recipients have it and are not recorded; they may get it again",
			"warning: E: in doubt: it is new, and may have been delivered to some; they may get it again",
			"warning: F: in doubt: records of the queue are lost, and one may have been about it: recipients number 2 may have it, and may get it again",
			"warning: G: in doubt: records of the queue are lost, and one may have been about it: recipients number " + twenty + " and 1 more may have it, and may get it again",
			"warning: 3 more messages are in doubt",
		}},
		"unanswered": {recovery{Unanswered: []mail.QueueID{"A", "B"}, MoreUnanswered: 1}, []string{
			"warning: A: in doubt: it was the last to be recorded before the end of the process, and is in the queue; its client may have been told 451, or nothing, and may send it again",
			"warning: B: in doubt: it was the last to be recorded before the end of the process, and is in the queue; its client may have been told 451, or nothing, and may send it again",
			"warning: 1 more messages are in the queue whose clients may have been told 451, or nothing",
		}},
		"withdrawn": {recovery{Withdrawn: []queue.Withdrawn{{ID: "A"}, {ID: "B", Settled: true}}, MoreWithdrawn: 2}, []string{
			"warning: A: withdrawn: its client was never told 250, and may send it again",
			"warning: B: in doubt: it was delivered just before the end of the process; its client may have been told 451, or nothing, and may send it again",
			"warning: 2 more messages are withdrawn: their clients were never told 250, and may send them again",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := plainLog()
			k := new(keeper)
			en := newStub()
			en.found = c.found
			ctx, stop := context.WithCancel(t.Context())
			k.stubbed(t, log, func() (engine, error) { return en, nil }, func(context.Context, *ipc.Server, time.Duration) error { stop(); return nil })
			var told []recovery
			k.found = func(_ engine, r recovery) { told = append(told, r) }
			if err := k.run(ctx); err != nil {
				t.Error(err)
			}
			want := ""
			for _, line := range c.want {
				want += "log: " + line + "\n"
			}
			if got := log.String(); got != want {
				t.Errorf("logged\n%s\nwant\n%s", got, want)
			}
			if len(told) != 1 || len(told[0].InDoubt) != len(c.found.InDoubt) || len(told[0].Withdrawn) != len(c.found.Withdrawn) {
				t.Errorf("the list of doubtful messages is told %+v", told)
			}
		})
	}
}

// While the queue cannot be opened it is tried twice a second, the log says why at once and then each minute, and mail is
// refused over the same sockets all the time. A node that stands by says so once. It ends when the process is to retire,
// or to stop; and at once with an error that time does not mend.
func TestKeeperReminds(t *testing.T) {
	t.Parallel()
	const cannot = "log: error: the queue cannot be opened, mail is refused for now: input/output error\n"
	for name, c := range map[string]struct {
		fault error
		after time.Duration // then it ends
		how   string        // "retire", "stop"; else the queue is found to have that error
		want  string
		tries int
	}{
		"a disk that fails": {syscall.EIO, 120*time.Second + 200*time.Millisecond, "retire", cannot + cannot + cannot, 241},
		"a stop":            {syscall.EIO, 59*time.Second + 700*time.Millisecond, "stop", cannot, 120},
		"standing by":       {fmt.Errorf("%w: b has it", queue.ErrNotOurs), time.Hour + 200*time.Millisecond, "stop", "log: standing by, mail is refused: " + queue.ErrNotOurs.Error() + ": b has it\n", 7201},
		"for a person":      {syscall.EIO, time.Second + 200*time.Millisecond, "permission denied", cannot, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log := plainLog()
				leaving := make(chan struct{})
				ctx, stop := context.WithCancel(t.Context())
				var tries, lent, used, retired atomic.Int64
				var fault atomic.Pointer[error]
				fault.Store(&c.fault)
				k := &keeper{leaving: leaving, retire: func() { retired.Add(1) }, used: func() { used.Add(1) }}
				k.stubbed(t, log, func() (engine, error) { tries.Add(1); return nil, *fault.Load() },
					func(ctx context.Context, _ *ipc.Server, drain time.Duration) error {
						lent.Add(1)
						<-ctx.Done()
						if drain != 0 {
							t.Errorf("who comes to a queue that cannot be used has %v to go away", drain)
						}
						return nil
					})
				done := make(chan error, 1)
				go func() { done <- k.run(ctx) }()
				time.Sleep(c.after)
				var want error
				switch c.how {
				case "retire":
					close(leaving)
				case "stop":
					stop()
				default:
					want = fs.ErrPermission
					fault.Store(&want)
				}
				if err := <-done; !errors.Is(err, want) || (err == nil) != (want == nil) {
					t.Errorf("it ended with %v", err)
				}
				stop()
				if got := log.String(); got != c.want {
					t.Errorf("logged\n%s\nwant\n%s", got, c.want)
				}
				if tries.Load() != int64(c.tries) || lent.Load() != 1 || used.Load() != 1 || (retired.Load() == 1) != (c.how == "retire") {
					t.Errorf("tried %d times, %d servers, used %d, retired %d", tries.Load(), lent.Load(), used.Load(), retired.Load())
				}
				log.l.Close()
			})
		})
	}
}

// How it goes on, or ends, when a queue that was served is not any more.
func TestKeeperGoesOn(t *testing.T) {
	t.Parallel()
	wrong := errors.New("the last record could not be written")
	for name, c := range map[string]struct {
		ends  func(en *stub, stop func()) error // what becomes of the first; what serving says
		close error                             // what closing it says
		again bool                              // there is a second
		want  error
		log   string
	}{
		"a stop":                     {ends: func(_ *stub, stop func()) error { stop(); return nil }},
		"a stop, closed with errors": {ends: func(_ *stub, stop func()) error { stop(); return nil }, close: wrong, want: wrong},
		"no descriptor": {ends: func(*stub, func()) error { return syscall.EMFILE }, again: true,
			log: "log: error: the queue cannot be opened, mail is refused for now: too many open files\n"},
		// Nothing is lost: what could not be marked as ended in order is read by the next start.
		"closed for now": {ends: func(*stub, func()) error { return nil }, close: syscall.ENOSPC, again: true,
			log: "log: error: the queue cannot be opened, mail is refused for now: no space left on device\n"},
		"no right": {ends: func(*stub, func()) error { return fs.ErrPermission }, close: wrong, want: fs.ErrPermission},
		"broken": {ends: func(en *stub, _ func()) error { en.why = queue.ErrBroken; close(en.broken); return nil }, close: wrong, again: true,
			log: "log: error: the queue cannot be written any more, and is opened again: " + queue.ErrBroken.Error() + "\n"},
		"given up": {ends: func(en *stub, _ func()) error { en.why = queue.ErrNotOurs; close(en.broken); return nil }, again: true,
			log: "log: warning: the queue is given up: " + queue.ErrNotOurs.Error() + "\n"},
		"broken at a stop": {ends: func(en *stub, stop func()) error { en.why = queue.ErrBroken; stop(); return nil }, close: wrong},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log := plainLog()
				ctx, stop := context.WithCancel(t.Context())
				first, second := newStub(), newStub()
				first.close = c.close
				used := 0
				k := &keeper{used: func() { used++ }}
				var opened []engine
				k.stubbed(t, log, func() (engine, error) {
					en := engine(first)
					if len(opened) > 0 {
						en = second
					}
					opened = append(opened, en)
					return en, nil
				}, func(ctx context.Context, _ *ipc.Server, _ time.Duration) error {
					if s := k.serving.Load(); s == nil { // mail is refused
						<-ctx.Done()
						return nil
					} else if en := k.engine.Load(); en == nil || *en != s.opt.Engine {
						t.Error("what is served is not what is said to be open")
					} else if s.opt.Engine == engine(first) {
						return c.ends(first, stop)
					}
					stop()
					return nil
				})
				err := k.run(ctx)
				stop()
				if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
					t.Errorf("it ended with %v, want %v", err, c.want)
				}
				if !first.closed || second.closed != c.again || len(opened) != map[bool]int{false: 1, true: 2}[c.again] {
					t.Errorf("opened %d, the first closed: %v, the second: %v", len(opened), first.closed, second.closed)
				}
				if got := log.String(); got != c.log {
					t.Errorf("logged\n%s\nwant\n%s", got, c.log)
				}
				if used == 0 {
					t.Error("what fails later counts as a mistake in the configuration")
				}
				if k.engine.Load() != nil || k.serving.Load() != nil {
					t.Error("what is over is said to be served")
				}
				log.l.Close()
			})
		})
	}
}

// Clients have a time to leave when the queue is not served any more: two seconds at a reload, less when the queue is broken,
// as long as the disk may take when it has their mail, or when they do not read what they are told; and when all stops,
// until the service ends.
func TestKeeperCutsOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		drain    time.Duration
		broken   bool
		stopping bool
		storing  time.Duration // for so long the disk has a message
		deaf     bool          // the client reads nothing
		want     time.Duration
	}{
		"a reload":               {want: 2 * time.Second},
		"another time":           {drain: 5 * time.Second, want: 5 * time.Second},
		"a broken queue":         {broken: true, want: 200 * time.Millisecond},
		"all stops":              {stopping: true, want: 30 * time.Second},
		"a slow disk":            {storing: 5*time.Second + 100*time.Millisecond, want: 5*time.Second + 200*time.Millisecond},
		"no disk":                {storing: time.Hour, want: 12 * time.Second},
		"a client does not read": {deaf: true, want: 12 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log := plainLog()
				en, listener, stopping := newStub(), newPipes(), make(chan struct{})
				k := &keeper{drain: c.drain, stopping: stopping}
				k.stubbed(t, log, nil, func(ctx context.Context, s *ipc.Server, drain time.Duration) error {
					return s.Serve(ctx, listener, drain)
				})
				ctx, stop := context.WithCancel(t.Context())
				served := make(chan error, 1)
				go func() { served <- k.serve(ctx, en) }()
				ours, err := listener.dial(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := ours.Write([]byte{0}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				s := k.serving.Load()
				if c.storing > 0 {
					s.storing.Add(1)
					time.AfterFunc(c.storing, func() { s.storing.Add(-1) })
				}
				if c.stopping {
					close(stopping)
				}
				begun := time.Now()
				if c.broken {
					close(en.broken)
				} else {
					stop()
				}
				if !c.deaf {
					go func() {
						for b := make([]byte, 100); ; {
							if _, err := ours.Read(b); err != nil {
								return
							}
						}
					}()
				}
				if err := <-served; err != nil {
					t.Error(err)
				}
				if took := time.Since(begun); took != c.want {
					t.Errorf("clients have %v, want %v", took, c.want)
				}
				stop()
				ours.Close()
				log.l.Close()
			})
		})
	}
}

// Damage that is found before the queue is served, and more than postmaster would read, holds nothing up: the first
// reports are told, one after the other.
func TestKeeperBoundsReports(t *testing.T) {
	t.Parallel()
	log := plainLog()
	en := newStub()
	en.found.Report = "start"
	k := new(keeper)
	told := make(chan string)
	k.tell = func(ctx context.Context, report string) {
		select {
		case told <- report:
		case <-ctx.Done():
		}
	}
	k.stubbed(t, log, func() (engine, error) {
		for i := range 20 {
			k.adopted(en, recovery{Report: fmt.Sprint(i)})
		}
		k.adopted(en, recovery{})
		return en, nil
	}, func(ctx context.Context, _ *ipc.Server, _ time.Duration) error { <-ctx.Done(); return nil })
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.run(ctx) }()
	var got []string
	for range 17 {
		got = append(got, <-told)
	}
	if want := strings.Fields("start 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"); !slices.Equal(got, want) {
		t.Errorf("postmaster is told %q", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Without a queue, who brings mail or asks for numbers is told so at once, and whether others have the queue; who wants
// something of the queue hears nothing, and asks again when the connection has been closed.
func TestRefuser(t *testing.T) {
	t.Parallel()
	for away, text := range map[bool]string{false: "451 4.3.0 Error: queue file write error", true: fmt.Sprint("451 ", proto.StatusElsewhere, " ", proto.TextElsewhere)} {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- refuser(func() bool { return away }).Serve(ctx, l, 0) }()
		client := ipc.NewClient(ipc.Unix(path), nil)
		defer client.Close()
		conn, err := client.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan error, 1)
		conn.Go(&proto.Record{Ops: []proto.Op{{ID: "A", Remove: true}}}, func(_ []byte, err error) { asked <- err })
		for _, q := range []ipc.Message{aMessage(1, "x\r\n", "b@to.test"), &proto.Chunk{}} {
			var verdict proto.SubmitReply
			if err := conn.Call(t.Context(), q, &verdict); err != nil {
				t.Errorf("%T: %v", q, err)
			} else if got := fmt.Sprint(verdict.Code, " ", verdict.Status, " ", verdict.Text); got != text {
				t.Errorf("%T: %s, want %s", q, got, text)
			}
		}
		lease := "the queue cannot be used now"
		if away {
			lease = proto.FailElsewhere
		}
		for _, q := range []struct {
			m    ipc.Message
			want string
		}{{&proto.Lease{N: 1}, lease}, {&proto.Milter{Session: 1}, "the queue cannot be used now"}, {&proto.Abort{}, "the queue cannot be used now"}} {
			if err := conn.Call(t.Context(), q.m, new(proto.LeaseReply)); err == nil || !strings.Contains(err.Error(), q.want) {
				t.Errorf("%T: %v, want %s", q.m, err, q.want)
			}
		}
		if len(asked) > 0 {
			t.Errorf("who records something is answered: %v", <-asked)
		}
		stop()
		if err := <-asked; err == nil {
			t.Error("it is said to be recorded")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
