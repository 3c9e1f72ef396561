package qmgr

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/adaptive"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/statedir"
	"posthaste/qmgr/sched"
)

func testHandover(written time.Time) *handover {
	at := time.UnixMicro(1800000000000000)
	return &handover{written: written, learnt: sched.Snapshot{
		Dests: []sched.DestSnapshot{
			{Transport: "smtp", Queue: "a.example", Nexthop: "a.example", State: sched.DestDead, Until: at, Status: dsn.S(4, 7, 28),
				Text: "delivery temporarily suspended: 421", FailCohorts: 1.5},
			{Transport: "lmtp", Queue: "u@b", Nexthop: "unix:/b", State: sched.DestReady, Window: 17, LastDone: at, Cache: sched.CacheStore,
				Success: .25, Failure: -.5},
			{Transport: "smtp", Queue: "c from m1", Nexthop: "c", Source: "m1", State: sched.DestReady, Window: 3, Since: at, Course: adaptive.Memory{Window: 3.5, Bad: 5, Step: 2, ProbeAt: 1, Wait: 2, Interval: 3.5, Refused: 4.5,
				PaceAt: 5, PaceWait: 6, Until: 7, Rest: 8, Share: .5, Base: [2]int64{9, 10}, Half: true, Why: adaptive.Slower, Text: "421 slower", At: 11, First: 12, Proof: 13, Good: 5.5, Drop: .25}},
		},
		Sites: []sched.SiteSnapshot{{Transport: "smtp", Queue: "a.example", Alive: true, Waiting: []sched.MsgID{1, 1 << 60}}},
	}, running: []proto.Delivery{{ID: mail.MakeQueueID(at, 7), Index: []int{0, 3}}}, agents: []mail.Transport{"lmtp", "smtp"}}
}

// What one queue manager leaves the next one finds, once.
func TestHandover(t *testing.T) {
	t.Parallel()
	dir, err := statedir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	now := time.UnixMicro(1800000100000000)
	if h, err := findHandover(dir, now); h != nil || err != nil {
		t.Errorf("without one: %+v, %v", h, err)
	}
	want := testHandover(now)
	if err := want.leave(dir); err != nil {
		t.Fatal(err)
	}
	got, err := findHandover(dir, now.Add(time.Second))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: left  %+v\nfound %+v", err, want, got)
	}
	if h, err := findHandover(dir, now.Add(time.Second)); h != nil || err != nil {
		t.Errorf("found twice: %+v, %v", h, err)
	}
	for _, age := range []time.Duration{handoverLife + time.Second, -time.Second} {
		if err := want.leave(dir); err != nil {
			t.Fatal(err)
		}
		if h, err := findHandover(dir, now.Add(age)); h != nil || err != nil {
			t.Errorf("one %v old: %+v, %v", age, h, err)
		}
	}
}

// A file that is not whole, or of another version, is not believed, and is gone.
func TestHandoverDamaged(t *testing.T) {
	t.Parallel()
	now := time.Now()
	whole := testHandover(now).encode()
	name := t.TempDir()
	dir, err := statedir.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	damaged := map[string][]byte{"empty": {}, "short": whole[:20], "longer": append(append([]byte{}, whole...), 0)}
	for i := 0; i < len(whole); i += 7 {
		b := append([]byte{}, whole...)
		b[i] ^= 0x10
		damaged["octet "+string(rune('A'+i%26))+time.Duration(i).String()] = b
		damaged["cut at "+time.Duration(i).String()] = whole[:i]
	}
	for what, b := range damaged {
		if err := os.WriteFile(filepath.Join(name, handoverName), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if h, err := findHandover(dir, now); h != nil || err == nil {
			t.Errorf("%s: %+v, %v", what, h, err)
		}
		if _, err := dir.Lstat(handoverName); !os.IsNotExist(err) {
			t.Errorf("%s: it is still there: %v", what, err)
		}
	}
}

// FuzzHandover: whatever is decoded can be restored, and breaks no invariant.
func FuzzHandover(f *testing.F) {
	f.Add(testHandover(time.UnixMicro(1800000100000000)).encode()[len(handoverMagic)+32:])
	f.Fuzz(func(t *testing.T, b []byte) {
		var h handover
		if h.decodeBody(b) != nil {
			return
		}
		s := sched.New(sched.DefaultConfig())
		s.Restore(time.UnixMicro(1800000100000000), h.learnt)
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	})
}

// What its predecessor gave orders to a queue manager connects to before there
// is an order. It says that it has taken over when an agent has answered.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	var err error
	if st.state, err = statedir.Open(filepath.Join(t.TempDir(), "state")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.state.Close() })
	if err := (&handover{written: time.Now(), agents: []mail.Transport{"gone", "lmtp", "smtp"}}).leave(st.state); err != nil {
		t.Fatal(err)
	}
	st.routes["to.test"] = "smtp:to.test"
	id := st.fill(many(1, "to.test"), many(1, "to.test"))[0]
	var tookOver atomic.Bool
	st.tookOver = func() { tookOver.Store(true) }
	smtp, lmtp := st.agent("smtp", proto.Inventory{}), st.agent("lmtp", proto.Inventory{})
	st.run()
	lmtp.push(&proto.Inventory{}) // it has been connected to, without an order
	o, other := smtp.next(), smtp.next()
	st.waitExplain(id, "delivered|delivery") // an answer of the loop: it has had turns since
	if tookOver.Load() {
		t.Error("it has taken over before an agent has answered")
	}
	o.answer("ok")
	st.until("it has taken over, though there is more to deliver", tookOver.Load)
	other.answer("ok")
	if strings.Contains(st.log.String(), "gone") {
		t.Errorf("a transport that is not needed is missed:\n%s", st.log)
	}
}

// Where there is nothing to deliver it has taken over when cleanup has told the queue, and not
// before: there might be something.
func TestTakeOverNothing(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	var tookOver atomic.Bool
	st.tookOver = func() { tookOver.Store(true) }
	attached := make(chan *ipc.Conn, 1)
	st.stream = func(c *ipc.Conn) { attached <- c }
	st.run()
	cleanup := <-attached
	for range 2 { // the second is another turn of the loop
		turn := make(chan struct{})
		st.srv.post(func() { close(turn) }, sched.Event{})
		<-turn
	}
	if tookOver.Load() {
		t.Error("it has taken over before it knows the queue")
	}
	cleanup.Push(&proto.Entries{Complete: true})
	st.until("it has taken over", tookOver.Load)
}
