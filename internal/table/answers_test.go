package table

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// asked is a proxymap service that notes what it is asked for. Keys with "fail" fail, and those with "none" are not there.
type asked struct {
	mu   sync.Mutex
	keys []string
}

func (a *asked) handle(_ *ipc.Conn, r *ipc.Request) {
	var q proto.Lookup
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	a.mu.Lock()
	a.keys = append(a.keys, q.Key)
	a.mu.Unlock()
	if strings.HasPrefix(q.Key, "fail") {
		r.Fail("the server is away")
		return
	}
	r.Reply(&proto.LookupReply{Found: !strings.HasPrefix(q.Key, "none"), Value: "value of " + q.Key})
}

// take is what has been asked for since it was called last.
func (a *asked) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	keys := a.keys
	a.keys = nil
	return keys
}

// newAsked starts one, and opens a table that it is asked for.
func newAsked(t *testing.T) (*asked, Table) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	a := new(asked)
	ctx, cancel := context.WithCancel(context.Background())
	srv := &ipc.Server{Handler: a.handle}
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(ctx, l, time.Second) })
	tab, err := Open("pgsql:people", Options{Proxy: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tab.Close()
		cancel()
		wg.Wait()
	})
	return a, tab
}

// What a database has said is not asked for again while the answers are open, and is otherwise. A failure is asked for again.
func TestAnswers(t *testing.T) {
	t.Parallel()
	service, tab := newAsked(t)
	var answers Answers
	ctx := WithAnswers(t.Context(), &answers)
	began := time.Unix(1000, 0)
	now := began
	clock := func() time.Time { return now }
	ask := func(keys ...string) {
		t.Helper()
		for _, key := range keys {
			value, found, err := tab.Lookup(ctx, key)
			if want := "value of " + key; (err != nil) != (key == "fail") || err == nil && (found != (key != "none") || found && value != want) {
				t.Fatalf("%s: %q, %v, %v", key, value, found, err)
			}
		}
	}
	expect := func(keys ...string) {
		t.Helper()
		if got := service.take(); !slices.Equal(got, keys) {
			t.Errorf("asked for %q, expected %q", got, keys)
		}
	}
	ask("a", "a")
	expect("a", "a")
	answers.Open(clock)
	ask("a", "a", "none", "none", "fail", "fail")
	expect("a", "none", "fail", "fail")
	answers.Close()
	ask("a")
	expect("a")

	// Another process has them for the rest of their time.
	list, since := answers.Told()
	if len(list) != 2 || !since.Equal(began) {
		t.Errorf("told %v of %v", list, since)
	}
	sent := proto.Submit{Envelope: mail.Envelope{ID: "4XyZ0000000000z1"}, Known: list, Asked: since.UnixNano()}
	var come proto.Submit
	if err := come.Decode(sent.Append(nil)); err != nil {
		t.Fatal(err)
	}
	first := answers
	for _, c := range []struct {
		later time.Duration
		keys  []string
	}{{answersLife - 1, nil}, {answersLife, []string{"a", "none"}}, {-1, []string{"a", "none"}}} {
		answers, now = Answers{}, began.Add(c.later)
		answers.Hear(come.Known, time.Unix(0, come.Asked), clock)
		ask("a", "none", "a", "none")
		expect(c.keys...)
	}

	// Who had them first asks again when they are old, and in the next transaction.
	answers, now = first, began.Add(answersLife-1)
	answers.Open(clock)
	ask("a")
	expect()
	now = began.Add(answersLife)
	answers.Open(clock)
	ask("a")
	expect("a")
	answers.Forget()
	answers.Open(clock)
	ask("a")
	expect("a")
}

// An answer is not used when it has become too old while the answers were open: a message with a thousand recipients, and a slow database, can take
// longer than that.
func TestAnswersAge(t *testing.T) {
	t.Parallel()
	service, tab := newAsked(t)
	var answers Answers
	ctx := WithAnswers(t.Context(), &answers)
	began := time.Unix(1000, 0)
	now := began
	answers.Open(func() time.Time { return now })
	for _, c := range []struct {
		at   time.Duration
		want []string
	}{{0, []string{"a"}}, {answersLife - 1, nil}, {answersLife, []string{"a"}}, {2*answersLife - 1, nil}, {2 * answersLife, []string{"a"}}} {
		now = began.Add(c.at)
		if _, _, err := tab.Lookup(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		if got := service.take(); !slices.Equal(got, c.want) {
			t.Errorf("after %v: asked for %q, expected %q", c.at, got, c.want)
		}
	}
}

// The answers are bounded, in number and in octets.
func TestAnswersBounded(t *testing.T) {
	t.Parallel()
	service, tab := newAsked(t)
	for _, c := range []struct{ size, most int }{{1, maxAnswers}, {5000, maxAnswered / 10000}} {
		var answers Answers
		ctx := WithAnswers(t.Context(), &answers)
		answers.Open(func() time.Time { return time.Unix(1000, 0) })
		var errs []error
		for n := range 2 * maxAnswers {
			_, _, err := tab.Lookup(ctx, strings.Repeat("k", c.size)+strings.Repeat("x", n))
			errs = append(errs, err)
		}
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if list, _ := answers.Told(); len(list) == 0 || len(list) > c.most {
			t.Errorf("%d answers with keys of %d octets, expected up to %d", len(list), c.size, c.most)
		}
		service.take()
	}
}
