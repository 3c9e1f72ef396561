package event

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

// lines is a log that a test reads.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Format() maillog.Format { return maillog.Plain }
func (l *lines) Close() error           { return nil }
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// A journal is what a Reporter sees of the events service: the events that have been taken, and a gate that
// each request passes.
type journal struct {
	mu   sync.Mutex
	keys []string
	gate func(*ipc.Conn, *proto.Events) (answer ipc.Message) // nil: takes all
}

func (j *journal) handle(c *ipc.Conn, r *ipc.Request) {
	var q proto.Events
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	go func() {
		var answer ipc.Message = &proto.EventsReply{}
		if j.gate != nil {
			if answer = j.gate(c, &q); answer == nil {
				return
			}
		}
		if a, ok := answer.(*proto.EventsReply); ok && a.Reason == "" {
			j.mu.Lock()
			for _, e := range q.List {
				j.keys = append(j.keys, e.Key)
			}
			j.mu.Unlock()
		}
		r.Reply(answer)
	}()
}

func (j *journal) taken() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.keys)
}

// reporter makes a Reporter that reaches j by a socket of its own.
func reporter(t *testing.T, j *journal, patience time.Duration) (*Reporter, *lines) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "events")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv := &ipc.Server{Handler: j.handle}
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(ctx, l, 0) })
	log := new(lines)
	r := newReporter(ipc.Unix(path), patience, maillog.New("test", log))
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return r, log
}

func newReporter(at ipc.Address, patience time.Duration, log *maillog.Logger) *Reporter {
	return &Reporter{host: "mail.example.org", service: "smtp", patience: patience, log: log, client: ipc.NewClient(at, nil),
		wake: make(chan struct{}, 1)}
}

func tell(r *Reporter, key string) {
	r.Tell(&Event{Kind: Delivered, Time: noon, QueueID: key, Delays: new([4]time.Duration)})
}

// Of many who wait, each is woken when its own events are settled, and not before; all are when nobody is to wait.
func TestWakesInTurn(t *testing.T) {
	t.Parallel()
	r := newReporter(ipc.Unix("/nowhere"), time.Minute, maillog.New("test", new(lines)))
	var all []waiter
	for i := range uint64(5) {
		all = append(all, waiter{i + 1, make(chan struct{})})
	}
	r.waiters = append(r.waiters, all...)
	woken := func() (n int) {
		for _, w := range all {
			select {
			case <-w.settled:
				n++
			default:
			}
		}
		return n
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range []struct {
		settled uint64
		silent  bool
		woken   int
	}{{0, false, 0}, {2, false, 2}, {3, false, 3}, {3, true, 5}} {
		r.settled, r.silent = c.settled, c.silent
		if r.advance(); woken() != c.woken {
			t.Errorf("with %d settled, silent %v: %d are woken, not %d", c.settled, c.silent, woken(), c.woken)
		}
	}
	if r.waiters != nil {
		t.Errorf("%d are left", len(r.waiters))
	}
}

// Wait returns when the journal has what was told before, and the order stays.
func TestWait(t *testing.T) {
	t.Parallel()
	j := new(journal)
	r, _ := reporter(t, j, time.Minute)
	r.Start()
	defer r.Close()
	var want []string
	for i := range 3000 {
		key := fmt.Sprint(i)
		want = append(want, key)
		tell(r, key)
		if i%700 == 0 {
			r.Wait(t.Context())
			if got := j.taken(); len(got) != i+1 {
				t.Fatalf("after %d: %d taken", i+1, len(got))
			}
		}
	}
	r.Wait(t.Context())
	if got := j.taken(); !slices.Equal(got, want) {
		t.Errorf("%d taken, in another order", len(got))
	}
}

// A request that is lost with its connection is made again.
func TestAgain(t *testing.T) {
	t.Parallel()
	j := new(journal)
	var once sync.Once
	j.gate = func(c *ipc.Conn, _ *proto.Events) ipc.Message {
		var answer ipc.Message = &proto.EventsReply{}
		once.Do(func() {
			c.Close()
			answer = nil
		})
		return answer
	}
	r, _ := reporter(t, j, time.Minute)
	r.Start()
	defer r.Close()
	tell(r, "one")
	r.Wait(t.Context())
	if got := j.taken(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("taken: %q", got)
	}
}

// Then calls in order, and not before the events are durable.
func TestThen(t *testing.T) {
	t.Parallel()
	j := new(journal)
	gate := make(chan struct{})
	j.gate = func(*ipc.Conn, *proto.Events) ipc.Message {
		<-gate
		return &proto.EventsReply{}
	}
	r, _ := reporter(t, j, time.Minute)
	r.Start()
	defer r.Close()
	called := make(chan int, 10)
	r.Then(func() { called <- 0 })
	if got := <-called; got != 0 { // nothing was told: at once
		t.Fatal(got)
	}
	for i := 1; i <= 3; i++ {
		tell(r, "x")
		r.Then(func() { called <- i })
	}
	select {
	case got := <-called:
		t.Fatalf("%d is called before its event is durable", got)
	default:
	}
	close(gate)
	for i := 1; i <= 3; i++ {
		if got := <-called; got != i {
			t.Fatalf("%d is called, and not %d", got, i)
		}
	}
}

// What the journal refuses is lost, counted and logged, and nobody waits for it.
func TestRefused(t *testing.T) {
	t.Parallel()
	j := &journal{gate: func(*ipc.Conn, *proto.Events) ipc.Message { return &proto.EventsReply{Reason: "the disk is full"} }}
	r, log := reporter(t, j, time.Minute)
	r.Start()
	tell(r, "one")
	r.Wait(t.Context())
	r.Close()
	if r.Lost() != 1 {
		t.Errorf("%d lost", r.Lost())
	}
	r.log.Flush()
	if !log.has("1 events are lost: the disk is full") {
		t.Errorf("log: %s", log.text.String())
	}
}

// While the journal does not answer mail waits once, for its time limit, and then not at all; events are kept in
// memory up to a bound. When it answers again they are handed over.
func TestSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const patience = 10 * time.Second
		up := make(chan struct{})
		log := new(lines)
		j := new(journal)
		var wg sync.WaitGroup
		at := ipc.Func("events", func(ctx context.Context) (net.Conn, error) {
			select {
			case <-up:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			a, b := net.Pipe()
			c := ipc.NewConn(b, j.handle)
			wg.Go(c.Wait)
			return a, nil
		})
		r := newReporter(at, patience, maillog.New("test", log))
		r.Start()
		begun := time.Now()
		tell(r, "0")
		r.Wait(t.Context())
		if took := time.Since(begun); took != patience {
			t.Errorf("the first waits for %v", took)
		}
		begun = time.Now()
		for i := 1; i < maxPending+5; i++ {
			tell(r, fmt.Sprint(i))
			r.Wait(t.Context())
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("the others wait for %v", took)
		}
		if r.Lost() != 5 {
			t.Errorf("%d lost", r.Lost())
		}
		close(up)
		tell(r, "none") // no room yet, or room: what matters is that the journal gets all that was kept
		synctest.Wait()
		time.Sleep(time.Minute)
		if got := j.taken(); len(got) < maxPending || got[0] != "0" || got[maxPending-1] != fmt.Sprint(maxPending-1) {
			t.Errorf("%d events are handed over", len(got))
		}
		r.log.Flush()
		for _, want := range []string{"the events service does not answer; mail goes on", "answers again", "1 events are lost"} {
			if !log.has(want) {
				t.Errorf("log: no %q", want)
			}
		}
		r.Close()
		wg.Wait()
	})
}

// A journal that hangs with a request in hand is not asked again, or it would have the events once more each time. Nobody
// waits for it meanwhile, and it has them once when it goes on.
func TestHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const patience = 10 * time.Second
		gate, requests := make(chan struct{}), atomic.Int64{}
		j := &journal{gate: func(*ipc.Conn, *proto.Events) ipc.Message {
			requests.Add(1)
			<-gate
			return &proto.EventsReply{}
		}}
		var wg sync.WaitGroup
		r := newReporter(ipc.Func("events", func(context.Context) (net.Conn, error) {
			a, b := net.Pipe()
			wg.Go(ipc.NewConn(b, j.handle).Wait)
			return a, nil
		}), patience, maillog.New("test", new(lines)))
		r.Start()
		begun, took := time.Now(), make(chan time.Duration, 1)
		tell(r, "0")
		r.Then(func() { took <- time.Since(begun) })
		if d := <-took; d != patience {
			t.Errorf("what is to be done then is done after %v", d)
		}
		tell(r, "1")
		time.Sleep(10 * time.Minute)
		begun = time.Now()
		r.Then(func() { took <- time.Since(begun) })
		if d := <-took; d != 0 {
			t.Errorf("what is to be done later is done after %v", d)
		}
		if n := requests.Load(); n != 1 {
			t.Errorf("it is asked %d times", n)
		}
		close(gate)
		r.Wait(t.Context()) // for nothing, if it is not known yet that it answers
		synctest.Wait()
		if got := j.taken(); !slices.Equal(got, []string{"0", "1"}) || !r.Settled() {
			t.Errorf("it has %q, settled: %v", got, r.Settled())
		}
		r.Close()
		wg.Wait()
	})
}

// What a node of a cluster tells again of mail that it has taken over is the event that its former node has told of. Hosts
// that share nothing do not give two messages one event.
func TestScope(t *testing.T) {
	t.Parallel()
	for spool, same := range map[string]bool{"log": false, "postgresql": true} {
		var ids []string
		for _, host := range []string{"a.test", "b.test"} {
			cfg, err := config.LoadString("event_sinks = file:/x\nspool_type = " + spool + "\nmyhostname = " + host + "\n")
			if err != nil {
				t.Fatal(err)
			}
			r := NewReporter(cfg, "", ipc.Unix("/nowhere"), nil)
			r.Tell(&Event{Kind: Received, Time: noon, QueueID: "4jWn4F1YhnzSshsm4"})
			id, rest, _ := strings.Cut(string(r.pending[0].JSON), `,"kind"`)
			if ids = append(ids, id); !strings.Contains(rest, host) {
				t.Errorf("the event does not name %s: %s", host, rest)
			}
		}
		if (ids[0] == ids[1]) != same {
			t.Errorf("%s: the identifiers of two hosts are %q", spool, ids)
		}
	}
}

// Kinds that no sink wants are not handed over.
func TestWanted(t *testing.T) {
	t.Parallel()
	for sinks, want := range map[string][]Kind{
		"file:/a": nil, "{ file:/a, events=bounced+delivered } { file:/b, name=b, events=expired+bounced }": {Bounced, Delivered, Expired},
		"{ file:/a, events=bounced } { file:/b, name=b }": nil, "fiel:/a": nil} {
		cfg, err := config.LoadString("event_sinks = " + sinks + "\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := wanted(cfg); !slices.Equal(got, want) {
			t.Errorf("%s: %v", sinks, got)
		}
		r := &Reporter{kinds: want, wake: make(chan struct{}, 1)}
		r.Tell(&Event{Kind: Rejected})
		r.Tell(&Event{Kind: Bounced})
		if n := len(r.pending); n != 2 && want == nil || n != 1 && want != nil {
			t.Errorf("%s: %d events", sinks, n)
		}
		// What the log says goes the same way, and is not made when nobody wants it.
		n := len(r.pending)
		r.Observe(0, true, maillog.Resumed{Target: "a.test"})
		r.Observe(0, true, &maillog.Delivery{Status: "bounced"})
		r.Observe(0, true, &maillog.Delivery{Status: "deliverable"})
		if n = len(r.pending) - n; n != 2 && want == nil || n != 1 && want != nil {
			t.Errorf("%s: %d events of lines", sinks, n)
		}
	}
}

// The nil Reporter does nothing.
func TestNil(t *testing.T) {
	t.Parallel()
	var r *Reporter
	r.Start()
	r.Observe(0, true, maillog.Resumed{})
	tell(r, "x")
	r.Wait(t.Context())
	called := false
	r.Then(func() { called = true })
	r.Close()
	if !called || r.Lost() != 0 {
		t.Error("it does something")
	}
}
