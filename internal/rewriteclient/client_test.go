package rewriteclient

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/testwait"
)

// fakeRewrite answers from a counter, so that an answer tells which question
// it was given to.
type fakeRewrite struct {
	mu    sync.Mutex
	asked int
	fixed bool
	loyal bool // answers are for the same sender
	conns []*ipc.Conn
	block chan struct{} // when set, answers wait for it
	// What the pool of an answer has for members, by the address; nil: nothing.
	members func(addr string) string
	drop    int // that many questions are met with a closed connection
	wg      sync.WaitGroup
}

func start(t *testing.T) (*fakeRewrite, *Client) {
	f := &fakeRewrite{fixed: true}
	path := filepath.Join(t.TempDir(), "rewrite")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	srv := &ipc.Server{Handler: f.handle, OnConn: func(c *ipc.Conn) {
		f.mu.Lock()
		f.conns = append(f.conns, c)
		f.mu.Unlock()
	}}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(ctx, l, time.Second) }()
	c := New(ipc.Unix(path))
	t.Cleanup(func() { c.Close(); cancel(); <-done; f.wg.Wait() })
	return f, c
}

func (f *fakeRewrite) handle(c *ipc.Conn, r *ipc.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	n := f.asked
	if f.drop > 0 {
		f.drop--
		c.Close()
		return
	}
	answer := func() {
		switch r.Kind {
		case proto.KindRewrite:
			var m proto.Rewrite
			if err := r.Decode(&m); err != nil {
				r.Fail("%v", err)
				return
			}
			r.Reply(&proto.RewriteReply{Address: fmt.Sprintf("%s/%s#%d", m.Context, m.Address, n)})
		case proto.KindResolve:
			var m proto.Resolve
			if err := r.Decode(&m); err != nil {
				r.Fail("%v", err)
				return
			}
			members := ""
			if f.members != nil {
				members = f.members(m.Address)
			}
			r.Reply(&proto.ResolveReply{Members: members, Transport: "smtp", Nexthop: m.Sender, Recipient: fmt.Sprintf("%s#%d", m.Address, n),
				Fixed: f.fixed, FixedSender: f.loyal, Pool: m.Pool})
		}
	}
	if f.block != nil {
		block := f.block
		f.wg.Go(func() { <-block; answer() })
		return
	}
	answer()
}

func (f *fakeRewrite) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func rewrite(t *testing.T, c *Client, addr string) string {
	t.Helper()
	a, err := c.Rewrite(t.Context(), "local", addr)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func resolve(t *testing.T, c *Client, sender, addr string) string {
	t.Helper()
	a, err := c.Resolve(t.Context(), sender, addr)
	if err != nil {
		t.Fatal(err)
	}
	return a.Nexthop + " " + a.Recipient
}

func TestKeepsAnswers(t *testing.T) {
	t.Parallel()
	f, c := start(t)
	for range 3 {
		if got := rewrite(t, c, "a"); got != "local/a#1" {
			t.Errorf("rewrite a = %q", got)
		}
	}
	if a, ok := c.Known("a@b"); ok {
		t.Errorf("%+v is known before anybody has asked", a)
	}
	if got := resolve(t, c, "s", "a@b"); got != "s a@b#2" {
		t.Errorf("resolve = %q", got)
	}
	if a, ok := c.Known("a@b"); !ok || a.Recipient != "a@b#2" {
		t.Errorf("known is %+v, %v", a, ok)
	}
	if got := resolve(t, c, "other", "a@b"); got != "s a@b#2" { // Fixed: whoever sends it
		t.Errorf("resolve again = %q", got)
	}
	f.mu.Lock()
	f.fixed = false
	f.mu.Unlock()
	for i := range 2 {
		if got, want := resolve(t, c, "s", "c@d"), fmt.Sprintf("s c@d#%d", 3+i); got != want {
			t.Errorf("resolve = %q, want %q", got, want)
		}
		if a, ok := c.Known("c@d"); ok { // not for any sender
			t.Errorf("%+v is known", a)
		}
	}
	long := strings.Repeat("x", maxKept+1)
	if one, two := rewrite(t, c, long), rewrite(t, c, long); one == two {
		t.Error("an over-long question was kept")
	}
}

// An answer that depends on the sender, or on the pool that the envelope names, is for the same question alone.
func TestKeepsAnswersForSender(t *testing.T) {
	t.Parallel()
	from := func(c *Client, sender, pool string) string {
		a, err := c.ResolveFrom(t.Context(), sender, "a@b", pool)
		if err != nil {
			t.Fatal(err)
		}
		return a.Nexthop + " " + a.Recipient + " " + a.Pool
	}
	f, c := start(t)
	f.fixed, f.loyal = false, true
	for range 2 {
		for i, q := range []struct{ sender, pool string }{{"s", ""}, {"other", ""}, {"s", "p"}, {"other", "p"}, {"s", "q"}} {
			if got, want := from(c, q.sender, q.pool), fmt.Sprintf("%s a@b#%d %s", q.sender, i+1, q.pool); got != want {
				t.Errorf("%q from pool %q: %q, want %q", q.sender, q.pool, got, want)
			}
		}
	}
	if a, ok := c.Known("a@b"); ok {
		t.Errorf("%+v is known for any sender", a)
	}
	f.mu.Lock()
	f.conns[0].Send(&proto.Stale{})
	f.fixed, f.loyal = true, false
	f.mu.Unlock()
	rewrite(t, c, "x") // comes after the Stale on the same connection
	// One that does not depend on the sender depends on the pool.
	for range 2 {
		if got := from(c, "s", "p"); got != "s a@b#7 p" {
			t.Errorf("from a pool %q", got)
		}
		if got := from(c, "s", ""); got != "s a@b#8 " {
			t.Errorf("without a pool %q", got)
		}
	}
}

func TestStaleMakesVoid(t *testing.T) {
	t.Parallel()
	f, c := start(t)
	first, form := resolve(t, c, "s", "a@b"), rewrite(t, c, "y")
	f.mu.Lock()
	f.conns[0].Send(&proto.Stale{})
	f.mu.Unlock()
	rewrite(t, c, "x") // comes after the Stale on the same connection
	if again := rewrite(t, c, "y"); again != form {
		t.Errorf("the form %q was asked for again: %q", form, again)
	}
	if a, ok := c.Known("a@b"); ok {
		t.Errorf("%+v is still known", a)
	}
	if again := resolve(t, c, "s", "a@b"); again == first {
		t.Errorf("%q was kept over a change", first)
	}
}

// An answer given before a change and seen after it must not be kept.
func TestStaleOvertakesAnswer(t *testing.T) {
	t.Parallel()
	f, c := start(t)
	rewrite(t, c, "x")
	block := make(chan struct{})
	f.mu.Lock()
	f.block = block
	conn := f.conns[0]
	f.mu.Unlock()
	got := make(chan string)
	go func() { a, _ := c.Resolve(t.Context(), "s", "a@b"); got <- a.Recipient }()
	testwait.Until(t, "two questions", func() bool { return f.count() >= 2 })
	conn.Send(&proto.Stale{})
	f.mu.Lock()
	f.block = nil
	f.mu.Unlock()
	close(block)
	first := <-got
	if again := resolve(t, c, "s", "a@b"); strings.HasSuffix(again, first) {
		t.Errorf("%q was kept although a table changed while it was on its way", first)
	}
}

func TestLossMakesVoid(t *testing.T) {
	t.Parallel()
	f, c := start(t)
	first, form := resolve(t, c, "s", "a@b"), rewrite(t, c, "y")
	f.mu.Lock()
	conn := f.conns[0]
	f.mu.Unlock()
	conn.Close()
	conn.Wait()
	c.mu.Lock()
	mine := c.conn
	c.mu.Unlock()
	mine.Wait()
	if a, ok := c.Known("a@b"); ok {
		t.Errorf("%+v is still known", a)
	}
	if again := resolve(t, c, "s", "a@b"); again == first {
		t.Errorf("%q was kept over a lost connection", first)
	}
	if again := rewrite(t, c, "y"); again == form {
		t.Errorf("the form %q was kept over a lost connection", form)
	}
}

func TestMergesQuestions(t *testing.T) {
	t.Parallel()
	f, c := start(t)
	block := make(chan struct{})
	f.block, f.fixed = block, false
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for i := range 20 {
		wg.Go(func() {
			use := t.Context()
			if i%4 == 0 { // one that gives up must not take the others along
				use = ctx
			}
			if _, err := c.Resolve(use, "s", "a@b"); err != nil && use != ctx {
				t.Error(err)
			}
		})
	}
	testwait.Until(t, "a question", func() bool { return f.count() > 0 })
	cancel()
	testwait.Until(t, "one flight", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.flights) == 1
	})
	close(block)
	wg.Wait()
	// Late starters may have come after the answer: those ask once more.
	if n := f.count(); n > 3 {
		t.Errorf("%d questions for 20 callers", n)
	}
}

func TestAsksAgainAfterLoss(t *testing.T) {
	t.Parallel()
	f, c := start(t)
	f.drop = 3
	if got := rewrite(t, c, "a"); got != "local/a#4" {
		t.Errorf("rewrite = %q", got)
	}
}

func TestNoService(t *testing.T) {
	t.Parallel()
	c := New(ipc.Unix(filepath.Join(t.TempDir(), "none")))
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Resolve(ctx, "", "a@b"); err == nil || !strings.Contains(err.Error(), "resolve address") {
		t.Errorf("err = %v", err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	var c cache[int, int]
	for i := range 10 * generation {
		c.put(i, i, 1)
		if i%100 == 0 {
			c.get(7) // what is used stays
		}
		if n := len(c.young) + len(c.old); n > 2*generation {
			t.Fatalf("%d entries", n)
		}
	}
	if v, ok := c.get(7); !ok || v != 7 {
		t.Error("an answer in use was dropped")
	}
	if _, ok := c.get(8); ok {
		t.Error("an answer out of use was kept")
	}
	// Large answers are as many as have room.
	c.clear()
	for i := range 100 {
		c.put(i, i, generationOctets/4)
		if n := len(c.young) + len(c.old); n > 8 {
			t.Fatalf("%d answers of %d octets each", n, generationOctets/4)
		}
	}
}

// TestForesee: what is asked ahead is answered without another question, also
// while the answer is on its way. About long addresses nobody asks.
func TestForesee(t *testing.T) {
	t.Parallel()
	f, c := start(t)
	ctx := t.Context()
	c.Foresee(ctx, "s", "early@b") // there is no connection yet
	c.ForeseeResolve(ctx, "s", "early@b")
	if n := f.count(); n != 0 {
		t.Fatalf("%d questions before the first answer", n)
	}
	rewrite(t, c, "a@b")
	before := f.count()
	for range 2 {
		for i := range 3 {
			c.Foresee(ctx, "s", fmt.Sprintf("r%d@b", i))
		}
	}
	for i := range 3 {
		addr := fmt.Sprintf("r%d@b", i)
		if got := resolve(t, c, "s", addr); !strings.HasPrefix(got, "s "+addr) {
			t.Errorf("%s: %s", addr, got)
		}
		if got := rewrite(t, c, addr); !strings.HasPrefix(got, "local/"+addr) {
			t.Errorf("%s: %s", addr, got)
		}
		c.Foresee(ctx, "s", addr)
	}
	if n := f.count() - before; n != 6 {
		t.Errorf("%d questions about three addresses, want 6", n)
	}
	before = f.count()
	c.ForeseeResolve(ctx, "s", "only@b")
	resolve(t, c, "s", "only@b")
	c.Foresee(ctx, "s", strings.Repeat("x", maxKept))
	rewrite(t, c, "after@b") // on the same connection
	if n := f.count() - before; n != 2 {
		t.Errorf("%d questions, want where one goes, and one that was waited for", n)
	}
}

// TestForeseeNotFixed: an answer that is not kept is there for whoever comes soon
// and asks the same, until a table has changed.
func TestForeseeNotFixed(t *testing.T) {
	t.Parallel()
	f, c := start(t)
	f.fixed = false
	var mu sync.Mutex
	now := time.Unix(1, 0)
	c.now = func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	ctx := t.Context()
	rewrite(t, c, "first")
	ahead := func() {
		c.ForeseeResolve(ctx, "s", "a@b")
		rewrite(t, c, fmt.Sprint("after", f.count())) // on the same connection
	}
	ask := func(what, sender string, want int) {
		t.Helper()
		before := f.count()
		if got := resolve(t, c, sender, "a@b"); !strings.HasPrefix(got, sender+" a@b#") {
			t.Errorf("%s: %q", what, got)
		}
		if n := f.count() - before; n != want {
			t.Errorf("%s: %d questions, want %d", what, n, want)
		}
	}
	ahead()
	ask("at once", "s", 0)
	ask("again", "s", 0)
	ask("from another sender", "other", 1)
	mu.Lock()
	now = now.Add(shelfLife)
	mu.Unlock()
	ask("later", "s", 1)
	ask("what was not asked ahead", "s", 1)
	ahead()
	f.mu.Lock()
	f.conns[0].Send(&proto.Stale{})
	f.mu.Unlock()
	rewrite(t, c, "stale") // comes after it
	ask("after a change", "s", 1)
}

// TestForeseeBound: a service that does not answer is not given ever more to do.
func TestForeseeBound(t *testing.T) {
	t.Parallel()
	f, c := start(t)
	rewrite(t, c, "first")
	block := make(chan struct{})
	f.mu.Lock()
	f.block = block
	f.mu.Unlock()
	for i := range 2 * maxAhead {
		c.Foresee(t.Context(), "s", fmt.Sprintf("r%d", i))
	}
	c.mu.Lock()
	n := len(c.flights)
	c.mu.Unlock()
	if n != maxAhead {
		t.Errorf("%d questions under way, want %d", n, maxAhead)
	}
	close(block)
	if got, want := rewrite(t, c, "r1"), "local/r1#"; !strings.HasPrefix(got, want) {
		t.Errorf("got %q, want %s...", got, want)
	}
}

// The members of a pool are one text for all answers that have them, and count once. Where each answer has others, as many are
// kept as there is room for.
func TestMembersCount(t *testing.T) {
	t.Parallel()
	f, c := start(t)
	long := strings.Repeat("x", generationOctets/16)
	f.members = func(addr string) string {
		if strings.HasPrefix(addr, "same") {
			return long
		}
		return addr + long
	}
	ask := func(name string, n int) {
		for i := range n {
			a, err := c.Resolve(t.Context(), "s", fmt.Sprintf("%s%d@a.test", name, i))
			if err != nil || !strings.HasSuffix(a.Members, long) {
				t.Fatalf("%d octets, %v", len(a.Members), err)
			}
		}
	}
	ask("same", 40)
	c.mu.Lock()
	if n := len(c.resolves.young); n != 40 || len(c.resolves.old) > 0 {
		t.Errorf("%d answers are kept of 40 with one text", n)
	}
	c.mu.Unlock()
	ask("other", 100)
	c.mu.Lock()
	defer c.mu.Unlock()
	texts, octets := map[*byte]bool{}, 0
	for _, kept := range []map[string]kept[proto.ResolveReply]{c.resolves.young, c.resolves.old} {
		for _, a := range kept {
			if p := unsafe.StringData(a.v.Members); !texts[p] {
				texts[p] = true
				octets += len(a.v.Members)
			}
		}
	}
	if octets > 3*generationOctets {
		t.Errorf("%d octets of members are kept", octets)
	}
	if len(c.members) > 20 {
		t.Errorf("%d texts are there to be shared", len(c.members))
	}
}
