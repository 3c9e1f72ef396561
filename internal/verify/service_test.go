package verify

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/submit"
)

// A world is the service with a cleanup that keeps what it is given, in a
// bubble where time is not real.
type world struct {
	t      *testing.T
	server *server
	client *Client

	mu      sync.Mutex
	probes  []proto.Submit
	refuse  bool
	logged  strings.Builder
	endings []func()
}

func (w *world) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logged.Write(b)
}

// piped is how clients reach handler.
func (w *world) piped(handler ipc.Handler) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		conn := ipc.NewConn(far, handler)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.endings = append(w.endings, func() { conn.Close(); conn.Wait() })
		return near, nil
	}
}

// cleanup takes messages.
func (w *world) cleanup(_ *ipc.Conn, r *ipc.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r.Kind {
	case proto.KindLease:
		r.Reply(&proto.LeaseReply{First: uint64(1000 * (1 + len(w.probes))), N: 1})
	case proto.KindSubmit:
		var m proto.Submit
		if err := r.Decode(&m); err != nil || m.More {
			w.t.Errorf("probe in several parts, or %v", err)
		}
		if w.refuse {
			r.Reply(&proto.SubmitReply{Code: 451, Status: dsn.S(4, 3, 0), Text: "queue is full"})
			return
		}
		m.Content = append([]byte(nil), m.Content...)
		w.probes = append(w.probes, m)
		r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"})
	}
}

func newWorld(t *testing.T, path, settings string) *world {
	t.Helper()
	cfg, err := config.LoadString("myhostname = mx.test\nmyorigin = o.test\n" + settings)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t}
	log := maillog.New("verify", maillog.NewWriter(w, maillog.Format(0)))
	store, err := OpenStore(path, func(text string) { log.Warning("%s", text) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	toCleanup := ipc.NewClient(ipc.Func("cleanup", w.piped(w.cleanup)), nil)
	submitter := submit.New(toCleanup)
	w.server = newServer(context.Background(), cfg, store, submitter, log)
	stop := w.server.cleanEvery(cfg.Duration("address_verify_cache_cleanup_interval"))
	w.client = &Client{ipc.NewClient(ipc.Func("verify", w.piped(w.server.handle)), nil)}
	w.endings = append(w.endings, func() {
		w.client.Close()
		stop()
		w.server.wg.Wait()
		submitter.Close()
		toCleanup.Close()
		store.Close()
		log.Close()
	})
	return w
}

// end stops the service.
func (w *world) end() {
	synctest.Wait()
	for i := len(w.endings) - 1; i >= 0; i-- {
		w.endings[i]()
	}
}

// ask is the answer on an address, and how many probes have been sent since the
// last question.
func (w *world) ask(addr string) string {
	w.t.Helper()
	status, text, err := w.client.Probe(w.t.Context(), addr)
	if err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.probes)
	w.probes = nil
	return fmt.Sprintf("%s %q %d", [...]string{"ok", "defer", "bounce", "todo"}[status], text, n)
}

// expect asks.
func (w *world) expect(addr, want string) {
	w.t.Helper()
	if got := w.ask(addr); got != want {
		w.t.Errorf("%s: got %s, want %s", addr, got, want)
	}
}

// tell is what the queue manager says of a probe.
func (w *world) tell(addr string, status proto.ProbeStatus, text string) {
	w.t.Helper()
	conn, err := w.client.ipc.Conn(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	conn.Push(&proto.Probed{Address: addr, Status: status, Text: text})
	synctest.Wait()
}

const inProgress = `todo "Address verification in progress" `

// TestService follows one address: questions, probes, what comes of them, and
// a restart.
func TestService(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "verify.bolt")
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, path, "")
		w.expect("Ann@b.test", inProgress+"1")
		w.expect("ann@B.test", inProgress+"0") // one at a time
		time.Sleep(999 * time.Second)
		w.expect("ann@b.test", inProgress+"0")
		time.Sleep(2 * time.Second)
		w.expect("ann@b.test", inProgress+"1") // nothing was heard of the first
		w.tell("ann@b.test", proto.ProbeOK, "250 fine")
		w.expect("ann@b.test", `ok "250 fine" 0`)

		// A good result is refreshed after a week, and stands while that fails, for
		// which a probe is sent now and then, not at every question.
		time.Sleep(7*24*time.Hour - time.Second)
		w.expect("ann@b.test", `ok "250 fine" 0`)
		time.Sleep(time.Second)
		w.expect("ann@b.test", `ok "250 fine" 1`)
		for range 3 {
			w.tell("ann@b.test", proto.ProbeDefer, "450 busy")
			w.expect("ann@b.test", `ok "250 fine" 0`)
			time.Sleep(900 * time.Second)
			w.expect("ann@b.test", `ok "250 fine" 0`)
			time.Sleep(100 * time.Second)
			w.expect("ann@b.test", `ok "250 fine" 1`)
		}

		// What is known is known after a restart, and so is a probe under way.
		w.expect("new@b.test", inProgress+"1")
		w.end()
		w = newWorld(t, path, "")
		w.expect("ann@b.test", `ok "250 fine" 0`)
		w.expect("new@b.test", inProgress+"0")

		// It ends after 31 days, when a bad result takes its place.
		time.Sleep(24 * 24 * time.Hour)
		w.expect("ann@b.test", inProgress+"1")
		w.tell("ann@b.test", proto.ProbeBounce, "550 gone")
		w.expect("ann@b.test", `bounce "550 gone" 0`)
		time.Sleep(3 * time.Hour)
		w.expect("ann@b.test", `bounce "550 gone" 1`)
		w.tell("ann@b.test", proto.ProbeOK, "250 back")
		w.expect("ann@b.test", `ok "250 back" 0`)
		w.end()
		if w.logged.Len() > 0 {
			t.Errorf("logged %s", w.logged.String())
		}
	})
}

// TestNoNegativeCache: bad results are not kept.
func TestNoNegativeCache(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "", "address_verify_negative_cache = no\n")
		defer w.end()
		w.expect("a@b.test", inProgress+"1")
		w.tell("a@b.test", proto.ProbeBounce, "550 no")
		w.expect("a@b.test", inProgress+"1")
	})
}

// TestProbe looks at a probe.
func TestProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "", "address_verify_sender_ttl = 3h\n")
		defer w.end()
		now := time.Now()
		if _, _, err := w.client.Probe(t.Context(), "a b@c.test"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(w.probes) != 1 {
			t.Fatalf("%d probes", len(w.probes))
		}
		p := w.probes[0]
		e := &p.Envelope
		if fixed, ok := w.server.sender.Is(e.Sender, now); !ok || e.Sender == fixed || fixed != "double-bounce@o.test" {
			t.Errorf("sender %q of %q", e.Sender, fixed)
		}
		if len(e.Recipients) != 1 || e.Recipients[0].Address != "a b@c.test" || e.Recipients[0].Notify != dsn.NotifyNever || e.Trace != mail.TraceProbe {
			t.Errorf("envelope %+v", e)
		}
		content := string(p.Content)
		if !strings.HasPrefix(content, "Received: by mx.test (Posthaste)\r\n\tid "+string(e.ID)+"; ") || !strings.HasSuffix(content, "\r\nSubject: probe\r\n\r\n") {
			t.Errorf("content %q", content)
		}
	})
}

// TestLimit: so many probes may be under way, and one that nothing is heard of
// does not count for ever.
func TestLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "", "address_verify_pending_request_limit = 3\n")
		defer w.end()
		const tooMany = `defer "Too many address verification requests" 0`
		for i, want := range []string{inProgress + "1", inProgress + "1", inProgress + "1", tooMany, tooMany} {
			w.expect(fmt.Sprintf("u%d@b.test", i), want)
		}
		w.expect("u2@b.test", inProgress+"0")
		w.tell("U1@b.test", proto.ProbeOK, "250 fine")
		w.expect("u3@b.test", inProgress+"1")
		w.expect("u4@b.test", tooMany)
		time.Sleep(probeTime)
		w.expect("u4@b.test", inProgress+"1")
		w.expect("u5@b.test", inProgress+"1")
		w.expect("u6@b.test", inProgress+"1")
		time.Sleep(7*24*time.Hour - probeTime) // what is known is to be refreshed
		w.expect("u4@b.test", inProgress+"1")
		w.expect("u5@b.test", inProgress+"1")
		w.expect("u6@b.test", inProgress+"1")
		w.expect("u1@b.test", `ok "250 fine" 0`)
		w.tell("u4@b.test", proto.ProbeOK, "250 fine")
		w.expect("u1@b.test", `ok "250 fine" 1`)
	})
}

// TestManyAtOnce: one probe is sent of many that ask at the same time.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "", "")
		defer w.end()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { w.server.query("a@b.test", time.Now()) })
		}
		wg.Wait()
		synctest.Wait()
		w.expect("a@b.test", inProgress+"1")
	})
}

// TestNotSent: a probe that cannot be queued is warned of, and is not under
// way: it does not count against the limit.
func TestNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "", "address_verify_pending_request_limit = 1\n")
		w.refuse = true
		w.expect("a@b.test", inProgress+"0")
		w.refuse = false
		w.expect("c@b.test", inProgress+"1")
		w.end()
		if got := w.logged.String(); !strings.Contains(got, "warning: probe for <a@b.test> not sent: 451 4.3.0 queue is full") {
			t.Errorf("logged %q", got)
		}
	})
}

// TestCleaning: what has expired goes by itself.
func TestCleaning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "", "")
		defer w.end()
		for i := range 10 {
			addr := fmt.Sprintf("u%d@b.test", i)
			w.expect(addr, inProgress+"1")
			w.tell(addr, proto.ProbeStatus(i%2)*proto.ProbeBounce, "x")
		}
		count := func() (kept int) {
			kept, _, err := w.server.store.Clean(func(*Record) bool { return false })
			if err != nil {
				t.Error(err)
			}
			return kept
		}
		time.Sleep(3*24*time.Hour - time.Minute)
		synctest.Wait()
		if n := count(); n != 10 {
			t.Errorf("%d records after almost three days", n)
		}
		time.Sleep(13 * time.Hour)
		synctest.Wait()
		if n := count(); n != 5 {
			t.Errorf("%d records after three days and a half", n)
		}
		time.Sleep(31 * 24 * time.Hour)
		synctest.Wait()
		if n := count(); n != 0 {
			t.Errorf("%d records after a month", n)
		}
	})
}

// TestUnknownRequest is answered with an error.
func TestUnknownRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "", "")
		defer w.end()
		if err := w.client.ipc.Call(t.Context(), &proto.Lease{N: 1}, &proto.LeaseReply{}); err == nil || !strings.Contains(err.Error(), "unknown request") {
			t.Error(err)
		}
	})
}

// TestCleaningInterval: what has expired is dropped from the cache after
// address_verify_cache_cleanup_interval, and never where that is 0.
func TestCleaningInterval(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]int{"": 0, "address_verify_cache_cleanup_interval = 0\n": 1} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, "", settings)
			defer w.end()
			w.expect("a@b.test", inProgress+"1")
			w.tell("a@b.test", proto.ProbeOK, "250 fine")
			time.Sleep(32 * 24 * time.Hour)
			synctest.Wait()
			kept, _, err := w.server.store.Clean(func(*Record) bool { return false })
			if err != nil || kept != want {
				t.Errorf("%q: %d records are kept, %v; want %d", settings, kept, err, want)
			}
		})
	}
}
