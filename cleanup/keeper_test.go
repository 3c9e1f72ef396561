package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
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
	"posthaste/internal/spool"
	"posthaste/internal/submit"
	"posthaste/internal/testwait"
	"posthaste/internal/vfs"
)

// kept is a keeper with a spool on a disk that fails when it is told to, behind a socket.
type kept struct {
	*keeper
	failing atomic.Bool
	opened  atomic.Int64
	log     *logText
	socket  string
}

func newKept(t *testing.T) *kept {
	disk := vfs.NewMem(512)
	k := &kept{log: new(logText), socket: filepath.Join(t.TempDir(), "s")}
	logger := maillog.New("postfix/cleanup", maillog.NewWriter(k.log, maillog.Format(0)))
	k.log.l = logger
	core := newCore(t, "", func(string) {})
	faulty := &vfs.Faulty{FS: disk, Hook: func(op vfs.Op) error {
		if k.failing.Load() && (op.Kind == vfs.OpWrite || op.Kind == vfs.OpSync) {
			return &fs.PathError{Op: op.Kind.String(), Path: op.Name, Err: syscall.EIO}
		}
		return nil
	}}
	k.keeper = &keeper{log: logger, used: func() {},
		lend: func(ctx context.Context, s *ipc.Server, drain time.Duration) error {
			os.Remove(k.socket)
			l, err := net.Listen("unix", k.socket)
			if err != nil {
				return err
			}
			return s.Serve(ctx, l, drain)
		},
		open: func() (engine, error) {
			k.opened.Add(1)
			return openLog(spool.Options{FS: faulty, Dir: "spool", SegmentSize: 64 << 10}, nil)
		},
		server: func(en engine) *server {
			return newServer(t.Context(), serverOptions{Core: core, Engine: en, Log: logger, Token: func() bool { return true }, BufferLimit: 1 << 20})
		}}
	return k
}

// begin has it run until stop is called; done has how it ended. c is a client, until the test ends.
func (k *kept) begin(t *testing.T) (stop context.CancelFunc, done <-chan error, c *submit.Client) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.run(ctx) }()
	conn := ipc.NewClient(ipc.Unix(k.socket), nil)
	t.Cleanup(conn.Close)
	c = submit.New(conn)
	t.Cleanup(c.Close)
	return stop, ended, c
}

// send brings a message, and gives the code of the answer; 0: there was none.
func (k *kept) send(t *testing.T, c *submit.Client) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Patience)
	defer cancel()
	id, err := c.NewID(ctx, time.Now())
	if err != nil {
		return 0
	}
	m := c.Open(&mail.Envelope{ID: id, Arrival: time.Now(), Sender: "a@from.test", Recipients: []mail.Recipient{{Address: "b@to.test"}}}, submit.Options{})
	m.Write([]byte("Subject: x\r\n\r\nx\r\n"))
	reply, err := m.Commit(ctx)
	if errors.Is(err, submit.ErrInDoubt) {
		return 451 // what the client is told
	}
	if err != nil {
		t.Fatal(err)
	}
	return reply.Code
}

func (k *kept) messages() (n int) {
	en := *k.engine.Load()
	for range en.Entries {
		n++
	}
	return n
}

// A spool that breaks is opened again, as soon as that can be done, and mail is
// refused until then, not kept waiting. Nothing that was acknowledged is missing.
func TestKeeperOpensAgain(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.failing.Store(true) // from the start
	stop, done, c := k.begin(t)
	if _, err := c.NewID(t.Context(), time.Now()); err == nil || !strings.Contains(err.Error(), "the queue cannot be used now") {
		t.Errorf("a queue ID without a queue: %v", err)
	}
	taken := 0
	for round := range 3 {
		k.failing.Store(false)
		testwait.Until(t, "mail is taken", func() bool { return k.send(t, c) == 250 })
		taken++
		if got := k.messages(); got < taken {
			t.Fatalf("round %d: %d messages, %d were acknowledged", round, got, taken)
		}
		k.failing.Store(true)
		tries := k.opened.Load()
		for k.opened.Load() < tries+2 { // it breaks, and cannot be opened
			if code := k.send(t, c); code/100 == 2 {
				t.Fatalf("acknowledged by a disk that fails")
			}
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("at the end: %v", err)
	}
	if got := k.log.String(); strings.Count(got, "error: the queue cannot be written any more, and is opened again: ") != 3 ||
		!strings.Contains(got, "error: the queue cannot be opened, mail is refused for now: ") {
		t.Errorf("log: %s", got)
	}
}

// What time does not mend ends the process.
func TestKeeperGivesUp(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{fs.ErrPermission, errors.New("the format is of a later version")} {
		k := newKept(t)
		k.open = func() (engine, error) { return nil, fault }
		if err := k.run(t.Context()); !errors.Is(err, fault) {
			t.Errorf("%v: %v", fault, err)
		}
	}
}

// What is to be recorded when the process retires is recorded at once: it is what the successor waits
// for. It would wait for company in a sync otherwise, here for an hour.
func TestKeeperRetiresAtOnce(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.open = func() (engine, error) {
		return openLog(spool.Options{Dir: filepath.Join(t.TempDir(), "spool"), SegmentSize: 64 << 10, PostDelay: time.Hour}, nil)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.run(ctx) }()
	client := ipc.NewClient(ipc.Unix(k.socket), nil)
	defer client.Close()
	var conn *ipc.Conn
	testwait.Until(t, "it is served", func() (ok bool) {
		var err error
		conn, err = client.Conn(t.Context())
		return err == nil
	})
	recorded := make(chan error, 1)
	conn.Go(&proto.Record{Ops: []proto.Op{{ID: "gone", Remove: true}}}, func(_ []byte, err error) { recorded <- err })
	if err := client.Call(t.Context(), &proto.Lease{N: 1}, new(proto.LeaseReply)); err != nil { // it has the other by then
		t.Fatal(err)
	}
	stop()
	if err := <-recorded; err != nil {
		t.Errorf("what had been posted: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A retiring engine is one whose process retires just before something is posted.
type retiring struct {
	engine
	retire func()
}

func (e *retiring) Post(b batch, done func(error)) {
	e.retire()
	e.engine.Post(b, done)
}

// The process may retire between the arrival of what is to be recorded and the moment at which the
// engine has it.
func TestKeeperRetiresMeanwhile(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	en, err := openLog(spool.Options{Dir: filepath.Join(t.TempDir(), "spool"), SegmentSize: 64 << 10, PostDelay: time.Hour}, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := &retiring{engine: en}
	s := k.server(e)
	e.retire = s.hasten
	k.server = func(engine) *server { return s }
	k.open = func() (engine, error) { return e, nil }
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.run(ctx) }()
	client := ipc.NewClient(ipc.Unix(k.socket), nil)
	defer client.Close()
	testwait.Until(t, "it is served", func() bool { _, err := client.Conn(t.Context()); return err == nil })
	patience, cancel := context.WithTimeout(t.Context(), testwait.Patience)
	defer cancel()
	if err := client.Call(patience, &proto.Record{Ops: []proto.Op{{ID: "gone", Remove: true}}}, new(proto.RecordReply)); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A message that the disk has when the process retires is acknowledged when the disk has answered,
// however long that takes: 451 would have it sent again.
func TestKeeperRetiresBesideSlowDisk(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.drain = time.Millisecond
	syncing, answer := make(chan bool, 100), make(chan bool)
	var slow atomic.Bool
	disk := &vfs.Faulty{FS: vfs.NewMem(512), Hook: func(op vfs.Op) error {
		// The segment that the messages are written to: others are made ready meanwhile.
		if slow.Load() && op.Kind == vfs.OpSync && strings.HasSuffix(op.Name, "00000000.seg") {
			syncing <- true
			<-answer
		}
		return nil
	}}
	k.open = func() (engine, error) {
		return openLog(spool.Options{FS: disk, Dir: "spool", SegmentSize: 64 << 10}, nil)
	}
	var serving atomic.Pointer[server]
	begin := k.server
	k.server = func(en engine) *server {
		s := begin(en)
		serving.Store(s)
		return s
	}
	stop, done, c := k.begin(t)
	testwait.Until(t, "mail is taken", func() bool { return k.send(t, c) == 250 })
	slow.Store(true)
	sent := make(chan int, 1)
	go func() { sent <- k.send(t, c) }()
	<-syncing
	testwait.Until(t, "the disk has the message", func() bool { return serving.Load().storing.Load() > 0 })
	stop()
	time.Sleep(100 * time.Millisecond) // a hundred times what clients have that only take their time
	slow.Store(false)
	close(answer)
	if code := <-sent; code != 250 {
		t.Errorf("the client is told %d", code)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Postmaster is told of damage while the spool is served, and the next start does not
// tell it again.
func TestKeeperTellsDamage(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "spool")
	k := newKept(t)
	k.open = func() (engine, error) { return openLog(spool.Options{Dir: dir, SegmentSize: 64 << 10}, nil) }
	told := make(chan string, 4)
	var c *submit.Client
	k.tell = func(_ context.Context, report string) {
		if k.send(t, c) != 250 {
			t.Error("no mail is taken while postmaster is told")
		}
		told <- report
	}
	life := func(during func()) {
		conn := ipc.NewClient(ipc.Unix(k.socket), nil)
		defer conn.Close()
		c = submit.New(conn)
		defer c.Close()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.run(ctx) }()
		during()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	life(func() {
		testwait.Until(t, "mail is taken", func() bool { return k.send(t, c) == 250 })
		for range 3 {
			k.send(t, c)
		}
	})
	names, err := filepath.Glob(filepath.Join(dir, "seg", "*.seg"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	damaged := 0
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+8 < len(b); i += 8 {
			if string(b[i:i+4]) == "PHR1" && b[i+4] == 1 {
				b[i+80] ^= 0xff // in the metadata of a MSG
				damaged++
				break
			}
		}
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if damaged == 0 {
		t.Fatal("no message was found to damage")
	}
	life(func() {
		select {
		case report := <-told:
			if report == "" {
				t.Error("an empty report")
			}
		case <-time.After(testwait.Patience):
			t.Fatal("postmaster was not told")
		}
	})
	life(func() {
		for k.send(t, c) != 250 {
			time.Sleep(time.Millisecond)
		}
	})
	if len(told) > 0 {
		t.Errorf("told once more: %s", <-told)
	}
}

// The letter about damage does not promise what the engine does not do.
func TestDamageLetter(t *testing.T) {
	t.Parallel()
	if letter := damageLetter("x\n", true); !strings.HasPrefix(letter, "x\n") || strings.Contains(letter, "directory") || !strings.Contains(letter, "dropped") {
		t.Error(letter)
	}
	if letter := damageLetter("x\n", false); !strings.Contains(letter, `directory "damaged"`) {
		t.Error(letter)
	}
}

// A node that does not own the queue refuses mail at once, says so once, and serves when it has come to own it. Mail
// that it adopts later has the queue manager attach again.
func TestKeeperStandsBy(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.failing.Store(false)
	var owns atomic.Bool
	disk := k.open
	k.open = func() (engine, error) {
		if !owns.Load() {
			k.opened.Add(1)
			return nil, fmt.Errorf("%w: b has it", queue.ErrNotOurs)
		}
		en, err := disk()
		if err == nil { // a shard may be adopted as early as that
			k.adopted(en, recovery{Summary: "took over the queue from c", Report: "early"})
		}
		return en, err
	}
	told := make(chan string, 2)
	k.tell = func(_ context.Context, report string) { told <- report }
	var found atomic.Int64
	k.found = func(engine, recovery) { found.Add(1) }
	stop, done, c := k.begin(t)
	testwait.Until(t, "it has tried three times", func() bool { return k.opened.Load() >= 3 })
	if code := k.send(t, c); code/100 == 2 {
		t.Error("a standby takes mail")
	}
	if _, err := c.NewID(t.Context(), time.Now()); !errors.Is(err, submit.ErrElsewhere) || c.Refusal(err).Status != proto.StatusElsewhere {
		t.Errorf("a standby says %v to who wants to send", err)
	}
	owns.Store(true)
	testwait.Until(t, "mail is taken", func() bool { return k.send(t, c) == 250 })
	manager := ipc.NewClient(ipc.Unix(k.socket), nil)
	defer manager.Close()
	conn, err := manager.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Call(t.Context(), new(proto.Attach), new(proto.RecordReply)); err != nil {
		t.Fatal(err)
	}
	// What is followed by more is taken note of, and no more: the connection works on.
	k.adopted(*k.engine.Load(), recovery{More: true})
	if err := conn.Call(t.Context(), &proto.Locate{ID: "x"}, new(proto.LocateReply)); err != nil {
		t.Errorf("the queue manager hears the queue for each part of it: %v", err)
	}
	k.adopted(*k.engine.Load(), recovery{Summary: "took over the queue from b", Report: "late"})
	testwait.Until(t, "the queue manager's connection ends", func() bool {
		return conn.Call(t.Context(), &proto.Locate{ID: "x"}, new(proto.LocateReply)) != nil
	})
	if early, late := <-told, <-told; early != "early" || late != "late" {
		t.Errorf("postmaster is told of %q and %q", early, late)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	log := k.log.String()
	if strings.Count(log, "standing by, mail is refused: ") != 1 || strings.Contains(log, "error: ") || !strings.Contains(log, "took over the queue from b") || found.Load() != 4 {
		t.Errorf("found %d times; log: %s", found.Load(), log)
	}
}

// A calm engine is one that has nothing to do.
type calm struct{ engine }

func (calm) Broken() <-chan struct{} { return nil }
func (calm) Hurry()                  {}

// The process does not retire while a message comes in parts, and does so when that is given up: nothing else may
// come that would have it look.
func TestKeeperRetiresAfterStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t.Context(), serverOptions{Core: newCore(t, "", nil), Engine: calm{}})
		key, st := streamKey{id: "A"}, &stream{parts: make(chan part)}
		s.streams[key] = st
		s.wg.Go(func() { s.receive(key, st, s.incomings.Get()) })
		leaving, retired := make(chan struct{}), false
		serving, stop := context.WithCancel(t.Context())
		k := &keeper{leaving: leaving, retire: func() { retired = true }}
		s.wg.Go(func() { k.watch(serving, stop, calm{}, s) })
		close(leaving)
		if synctest.Wait(); retired {
			t.Error("the process retires while a message is on its way")
		}
		close(st.parts) // as when its connection is gone
		if synctest.Wait(); !retired {
			t.Error("the message is given up, and the process does not retire")
		}
		stop()
		s.Wait()
	})
}

// What comes into the queue while the mail system stops may not be told of any more: the next start finds it as after a kill.
func TestKeeperAdoptsAtStop(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ stops, unclean, left bool }{{true, true, true}, {true, false, false}, {false, true, false}} {
		stopping := make(chan struct{})
		if c.stops {
			close(stopping)
		}
		k := newKept(t)
		k.stopping = stopping
		en, err := k.open()
		if err != nil {
			t.Fatal(err)
		}
		k.adopted(en, recovery{Unclean: c.unclean})
		if err := en.Close(); err != nil {
			t.Fatal(err)
		}
		if en, err = k.open(); err != nil {
			t.Fatal(err)
		}
		if en.Recovery().Unclean != c.left {
			t.Errorf("%+v: found unclean: %v", c, !c.left)
		}
		en.Close()
	}
}

// When the mail system stops, and not all is told of what came in, the next start finds the queue as after a kill, and tells it.
// A reload, whose agents go on, does not have that, nor does a stop after which nothing is left.
func TestKeeperLeavesUntold(t *testing.T) {
	t.Parallel()
	stopping := make(chan struct{})
	close(stopping)
	for _, c := range []struct {
		what          string
		stopping      <-chan struct{}
		told, unclean bool
	}{
		{"a stop, with events that were not told", stopping, false, true},
		{"a stop, with all told", stopping, true, false},
		{"a reload, with events that were not told", make(chan struct{}), false, false},
	} {
		k := newKept(t)
		k.stopping = c.stopping
		k.settled = func() bool { return c.told }
		stop, done, _ := k.begin(t)
		testwait.Until(t, "the queue is open", func() bool { return k.engine.Load() != nil })
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		en, err := k.open()
		if err != nil {
			t.Fatal(err)
		}
		if en.Recovery().Unclean != c.unclean {
			t.Errorf("%s: the next start finds it unclean: %v", c.what, !c.unclean)
		}
		en.Close()
	}
}
