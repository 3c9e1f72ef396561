package submit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// fakeCleanup takes messages over real ipc, as cleanup does.
type fakeCleanup struct {
	t    *testing.T
	path string

	mu      sync.Mutex
	next    uint64
	open    map[mail.QueueID][]byte
	got     map[mail.QueueID]proto.Submit
	frames  map[mail.QueueID]int
	aborted []mail.QueueID
	under   int // parts not answered yet
	maxUnd  int
	held    []func() // answers held back

	hold    bool                                               // keep the answers to parts back
	verdict func(s *proto.Submit, c []byte) *proto.SubmitReply // nil: 250
	onPart  func(c *ipc.Conn, part int) *proto.SubmitReply     // may refuse early
}

func newFake(t *testing.T) (*fakeCleanup, *Client) {
	f := &fakeCleanup{t: t, path: filepath.Join(t.TempDir(), "cleanup"), next: 1,
		open: map[mail.QueueID][]byte{}, got: map[mail.QueueID]proto.Submit{}, frames: map[mail.QueueID]int{}}
	l, err := net.Listen("unix", f.path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	srv := &ipc.Server{Handler: f.handle}
	go func() { defer close(done); srv.Serve(ctx, l, time.Second) }()
	ic := ipc.NewClient(ipc.Unix(f.path), nil)
	c := New(ic)
	t.Cleanup(func() { c.Close(); ic.Close(); cancel(); <-done })
	return f, c
}

func (f *fakeCleanup) handle(c *ipc.Conn, r *ipc.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch r.Kind {
	case proto.KindLease:
		var m proto.Lease
		if err := r.Decode(&m); err != nil {
			f.t.Error(err)
		}
		r.Reply(&proto.LeaseReply{First: f.next, N: m.N})
		f.next += uint64(m.N)
	case proto.KindSubmit:
		var m proto.Submit
		if err := r.Decode(&m); err != nil {
			f.t.Error(err)
		}
		f.got[m.Envelope.ID] = m
		f.part(c, r, m.Envelope.ID, m.Content, m.More)
	case proto.KindChunk:
		var m proto.Chunk
		if err := r.Decode(&m); err != nil {
			f.t.Error(err)
		}
		got := f.got[m.ID]
		if len(m.Recipients) > 0 != got.Listing || len(m.Recipients) > 0 && len(m.Data) > 0 {
			f.t.Errorf("a part with %d recipients and %d octets after one that says %v", len(m.Recipients), len(m.Data), got.Listing)
		}
		if n := len(mail.AppendRecipients(nil, m.Recipients)); n > proto.ListSize {
			f.t.Errorf("%d octets of recipients in a part", n)
		}
		got.Envelope.Recipients, got.Listing = append(got.Envelope.Recipients, m.Recipients...), m.Listing
		f.got[m.ID] = got
		f.part(c, r, m.ID, m.Data, m.More)
	case proto.KindAbort:
		var m proto.Abort
		if err := r.Decode(&m); err != nil {
			f.t.Error(err)
		}
		f.aborted = append(f.aborted, m.ID)
		delete(f.open, m.ID)
	}
}

func (f *fakeCleanup) part(c *ipc.Conn, r *ipc.Request, id mail.QueueID, data []byte, more bool) {
	f.frames[id]++
	f.open[id] = append(f.open[id], data...)
	if len(data) > proto.ChunkSize {
		f.t.Errorf("a part of %d bytes", len(data))
	}
	if f.onPart != nil {
		if v := f.onPart(c, f.frames[id]); v != nil {
			r.Reply(v)
			return
		}
	}
	if !more {
		s := f.got[id]
		v := &proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"}
		if f.verdict != nil {
			v = f.verdict(&s, f.open[id])
		}
		r.Reply(v)
		return
	}
	f.under++
	f.maxUnd = max(f.maxUnd, f.under)
	answer := func() { f.under--; r.Reply(&proto.ChunkReply{}) }
	if f.hold {
		f.held = append(f.held, answer)
		if len(f.held) == proto.MaxUnanswered {
			for _, a := range f.held {
				a()
			}
			f.held = nil
		}
		return
	}
	answer()
}

func envelope(t *testing.T, c *Client) *mail.Envelope {
	id, err := c.NewID(t.Context(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &mail.Envelope{ID: id, Sender: "a@example.com", Arrival: time.Now(),
		Recipients: []mail.Recipient{{Address: "b@example.net"}}}
}

func TestOneFrame(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	env := envelope(t, c)
	m := c.Open(env, Options{Flags: proto.SubmitFilter, BCC: []string{"x@y"}, Prepend: []string{"X: y"}})
	content := bytes.Repeat([]byte("0123456789abcde\r\n"), 60<<10/17)
	for i := 0; i < len(content); i += 1000 {
		if _, err := m.Write(content[i:min(i+1000, len(content))]); err != nil {
			t.Fatal(err)
		}
	}
	r, err := m.Commit(t.Context())
	if err != nil || r.Code != 250 {
		t.Fatalf("Commit = %v, %v", r, err)
	}
	got := f.got[env.ID]
	if f.frames[env.ID] != 1 || !bytes.Equal(got.Content, content) {
		t.Errorf("%d frames, %d bytes; want one with %d", f.frames[env.ID], len(got.Content), len(content))
	}
	if got.Flags != proto.SubmitFilter || got.BCC[0] != "x@y" || got.Prepend[0] != "X: y" ||
		len(got.Envelope.Recipients) != 1 {
		t.Errorf("submitted %+v", got)
	}
}

// Nothing of one message is in the next, however the one before it ended.
func TestNextMessage(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	f.verdict = func(s *proto.Submit, _ []byte) *proto.SubmitReply {
		if len(s.BCC) > 0 {
			return &proto.SubmitReply{Code: 550, Status: dsn.S(5, 7, 1), Text: "no", Cause: "because"}
		}
		return &proto.SubmitReply{Code: 250}
	}
	for i, size := range []int{100, 5000, proto.ChunkSize + 1, 3*proto.ChunkSize + 7} {
		full := envelope(t, c)
		full.EnvID, full.Filter, full.SASL.Username = "QQ314159", "smtp:filter", "joe"
		full.Recipients = append(full.Recipients, mail.Recipient{Address: "c@example.net", Notify: dsn.NotifyNever})
		m := c.Open(full, Options{Flags: proto.SubmitHold, BCC: []string{"x@y"}, Prepend: []string{"X: y"}, FullName: "Joe",
			Settles: &proto.Settle{ID: full.ID}, State: &queue.Change{Attempts: 3}, Was: full.Recipients, Milter: 7, Told: proto.MilterTold("x"),
			Late: i%2 == 1, Limit: time.Hour})
		if _, err := m.Write(bytes.Repeat([]byte{'s'}, size)); err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			m.Abort()
		} else if r, err := m.Commit(t.Context()); err != nil || r.Code != 550 || r.Cause != "because" {
			t.Fatalf("Commit = %v, %v", r, err)
		}
		plain := envelope(t, c)
		m = c.Open(plain, Options{})
		m.Write([]byte("new\r\n"))
		r, err := m.Commit(t.Context())
		if want := (proto.SubmitReply{Code: 250}); err != nil || r != want {
			t.Fatalf("Commit = %+v, %v", r, err)
		}
		f.mu.Lock()
		got := f.got[plain.ID]
		f.mu.Unlock()
		if got.Envelope.Arrival = plain.Arrival; !reflect.DeepEqual(got, proto.Submit{Envelope: *plain, Content: []byte("new\r\n")}) {
			t.Errorf("submitted %+v", got)
		}
	}
}

// Many messages at a time do not get into one another.
func TestManyMessages(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	f.verdict = func(s *proto.Submit, content []byte) *proto.SubmitReply {
		return &proto.SubmitReply{Code: 250, Text: s.Envelope.Sender + " " + string(content[:len(content)/2])}
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 50 {
				env := envelope(t, c)
				env.Sender = fmt.Sprintf("%d-%d@example.com", i, k)
				half := strings.Repeat(env.Sender, k*i)
				m := c.Open(env, Options{Limit: time.Hour})
				m.Write([]byte(half))
				m.Write([]byte(half))
				if r, err := m.Commit(t.Context()); err != nil || r.Text != env.Sender+" "+half {
					t.Errorf("%s: %d, %v", env.Sender, r.Code, err)
				}
			}
		})
	}
	wg.Wait()
}

// Any content in any pieces arrives as it was written, in parts of bounded
// size, with a bounded number of them unanswered.
func TestAnyPieces(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	f.hold = true
	rapid.Check(t, func(rt *rapid.T) {
		env := envelope(t, c)
		size := rapid.IntRange(0, 12*proto.ChunkSize).Draw(rt, "size")
		content := make([]byte, size)
		for i := range content {
			content[i] = byte(i * 7 >> 3)
		}
		// What is held back for ever would block the message: let the last
		// few through.
		f.mu.Lock()
		f.hold = size > proto.MaxUnanswered*2*proto.ChunkSize && size%2 == 0
		if !f.hold {
			f.held = nil
		}
		f.mu.Unlock()
		m := c.Open(env, Options{})
		for rest := content; len(rest) > 0; {
			n := min(len(rest), rapid.IntRange(1, 3*proto.ChunkSize).Draw(rt, "piece"))
			if _, err := m.Write(rest[:n]); err != nil {
				rt.Fatal(err)
			}
			rest = rest[n:]
		}
		f.mu.Lock()
		for _, a := range f.held {
			a()
		}
		f.held, f.hold = nil, false
		f.mu.Unlock()
		r, err := m.Commit(t.Context())
		if err != nil || r.Code != 250 {
			rt.Fatalf("Commit = %v, %v", r, err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if !bytes.Equal(f.open[env.ID], content) {
			rt.Fatalf("arrived %d bytes, want %d", len(f.open[env.ID]), size)
		}
		if f.maxUnd > proto.MaxUnanswered {
			rt.Fatalf("%d parts unanswered", f.maxUnd)
		}
	})
}

// A list of recipients of any length arrives whole, in parts of bounded size
// before the content.
func TestLongLists(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	for _, tc := range []struct{ rcpts, content, frames int }{
		{1000, 10, 1}, {10000, 0, 4}, {10000, 10, 4}, {10000, proto.ChunkSize + 1, 4}, {100000, 3 * proto.ChunkSize, 21},
	} {
		env := envelope(t, c)
		env.Recipients = nil
		for i := range tc.rcpts {
			env.Recipients = append(env.Recipients, mail.Recipient{Address: fmt.Sprintf("member%d@example.net", i), ORCPT: "rfc822;x"})
		}
		m := c.Open(env, Options{})
		content := bytes.Repeat([]byte("x"), tc.content)
		if _, err := m.Write(content); err != nil {
			t.Fatal(err)
		}
		r, err := m.Commit(t.Context())
		if err != nil || r.Code != 250 {
			t.Fatalf("Commit = %v, %v", r, err)
		}
		f.mu.Lock()
		if got := f.got[env.ID].Envelope.Recipients; !slices.Equal(got, env.Recipients) {
			t.Errorf("%+v: %d recipients arrived, or others", tc, len(got))
		}
		if !bytes.Equal(f.open[env.ID], content) || f.frames[env.ID] != tc.frames || f.maxUnd > proto.MaxUnanswered {
			t.Errorf("%+v: %d octets in %d frames, up to %d unanswered", tc, len(f.open[env.ID]), f.frames[env.ID], f.maxUnd)
		}
		f.mu.Unlock()
	}

	env := envelope(t, c)
	env.Recipients = []mail.Recipient{{Address: strings.Repeat("a", 2*proto.ListSize)}, {Address: "b@example.net"}}
	list, rest := firstOf(env.Recipients)
	if len(list) != 1 || len(rest) != 1 {
		t.Errorf("an address that is too long for a part: %d and %d", len(list), len(rest))
	}
}

// A list may be refused before it has been sent.
func TestListRefused(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	f.onPart = func(_ *ipc.Conn, part int) *proto.SubmitReply {
		if part < 2 {
			return nil
		}
		return &proto.SubmitReply{Code: 452, Status: dsn.S(4, 3, 1), Text: "Insufficient system storage"}
	}
	env := envelope(t, c)
	env.Recipients = slices.Repeat([]mail.Recipient{{Address: "member@example.net"}}, 100000)
	r, err := c.Open(env, Options{}).Commit(t.Context())
	if err != nil || r.Code != 452 {
		t.Errorf("Commit = %v, %v", r, err)
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	full := &proto.SubmitReply{Code: 452, Status: dsn.S(4, 3, 1), Text: "Insufficient system storage"}
	// So long that it cannot be under way whole: the second part's answer is
	// waited for before the last part is sent.
	big := strings.Repeat("x", 2*proto.MaxUnanswered*proto.ChunkSize)
	for _, tc := range []struct {
		name, content string
		setup         func(*fakeCleanup)
		code          int
		err           error // nil: none
		aborted       bool
	}{
		{"refused at the end", "short\r\n", func(f *fakeCleanup) {
			f.verdict = func(*proto.Submit, []byte) *proto.SubmitReply { return full }
		}, 452, nil, false},
		{"refused in the middle", big, func(f *fakeCleanup) {
			f.onPart = func(_ *ipc.Conn, n int) *proto.SubmitReply {
				if n == 2 {
					return full
				}
				return nil
			}
		}, 452, nil, true},
		{"refused at every part", big, func(f *fakeCleanup) {
			f.onPart = func(*ipc.Conn, int) *proto.SubmitReply { return full }
		}, 452, nil, true},
		{"connection lost before the answer", "short\r\n", func(f *fakeCleanup) {
			f.onPart = func(c *ipc.Conn, _ int) *proto.SubmitReply { c.Close(); return nil }
		}, 451, ErrInDoubt, false},
		{"nonsense", "short\r\n", func(f *fakeCleanup) {
			f.verdict = func(*proto.Submit, []byte) *proto.SubmitReply { return &proto.SubmitReply{Code: 220} }
		}, 451, errors.New("cleanup answered a submission with code 220"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f, c := newFake(t)
			tc.setup(f)
			env := envelope(t, c)
			m := c.Open(env, Options{})
			for i := 0; i < len(tc.content); i += 10000 {
				m.Write([]byte(tc.content[i:min(i+10000, len(tc.content))]))
			}
			r, err := m.Commit(t.Context())
			if r.Code != tc.code {
				t.Errorf("code %d, want %d", r.Code, tc.code)
			}
			switch {
			case tc.err == nil && err != nil, tc.err != nil && (err == nil || !errors.Is(err, tc.err) && err.Error() != tc.err.Error()):
				t.Errorf("error %v, want %v", err, tc.err)
			}
			if tc.aborted { // a lease behind it on the same connection: the abort has been seen
				if err := c.ipc.Call(t.Context(), &proto.Lease{N: 1}, &proto.LeaseReply{}); err != nil {
					t.Fatal(err)
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				if len(f.aborted) != 1 || f.aborted[0] != env.ID {
					t.Errorf("aborted %v", f.aborted)
				}
			}
		})
	}
}

func TestLostInTheMiddleIsNoDoubt(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	f.onPart = func(c *ipc.Conn, n int) *proto.SubmitReply {
		if n == 2 {
			c.Close()
		}
		return nil
	}
	m := c.Open(envelope(t, c), Options{})
	var err error
	for i := 0; err == nil && i < 100; i++ {
		_, err = m.Write(make([]byte, proto.ChunkSize))
	}
	if err == nil {
		t.Fatal("no write failed")
	}
	r, err := m.Commit(t.Context())
	if r.Code != 451 || err == nil || errors.Is(err, ErrInDoubt) {
		t.Errorf("Commit = %v, %v; want 451 without doubt: the last part was never sent", r, err)
	}
}

func TestAbort(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	small := c.Open(envelope(t, c), Options{})
	small.Write([]byte("x\r\n"))
	small.Abort()
	env := envelope(t, c)
	large := c.Open(env, Options{})
	large.Write(make([]byte, 3*proto.ChunkSize))
	large.Abort()
	if err := c.ipc.Call(t.Context(), &proto.Lease{N: 1}, &proto.LeaseReply{}); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.got) != 1 || len(f.aborted) != 1 || f.aborted[0] != env.ID {
		t.Errorf("got %d messages, aborted %v; want only the large one to have been seen", len(f.got), f.aborted)
	}
}

// A Late message may be changed until it is committed, whatever its size.
func TestLate(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	for _, size := range []int{10, proto.ChunkSize, proto.ChunkSize + 1, 5*proto.ChunkSize + 7} {
		env := envelope(t, c)
		content := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
		m := c.Open(env, Options{Late: true})
		for i := 0; i < len(content); i += 7777 {
			if _, err := m.Write(content[i:min(i+7777, len(content))]); err != nil {
				t.Fatal(err)
			}
		}
		f.mu.Lock()
		if f.frames[env.ID] != 0 {
			t.Errorf("size %d: sent before Commit", size)
		}
		f.mu.Unlock()
		later := *env
		later.Redirect = "x@y"
		m.Amend(&later, Options{Flags: proto.SubmitHold})
		r, err := m.Commit(t.Context())
		if err != nil || r.Code != 250 {
			t.Fatalf("size %d: %v, %v", size, r, err)
		}
		f.mu.Lock()
		got := f.got[env.ID]
		if !bytes.Equal(f.open[env.ID], content) || got.Flags != proto.SubmitHold || got.Envelope.Redirect != "x@y" {
			t.Errorf("size %d: %d bytes, flags %v, redirect %q", size, len(f.open[env.ID]), got.Flags, got.Envelope.Redirect)
		}
		f.mu.Unlock()
	}
	m := c.Open(envelope(t, c), Options{Late: true})
	m.Write(make([]byte, 3*proto.ChunkSize))
	m.Abort()
}

func TestIDsAreUnique(t *testing.T) {
	t.Parallel()
	_, c := newFake(t)
	const workers, each = 8, 700
	now := time.Now()
	ids := make(chan mail.QueueID, workers*each)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				id, err := c.NewID(t.Context(), now)
				if err != nil {
					t.Error(err)
					return
				}
				ids <- id
			}
		})
	}
	wg.Wait()
	close(ids)
	seen := map[mail.QueueID]bool{}
	for id := range ids {
		if seen[id] || id.Number() == 0 {
			t.Fatalf("%q twice, or without number", id)
		}
		seen[id] = true
	}
	if len(seen) != workers*each {
		t.Errorf("%d IDs", len(seen))
	}
}

func TestNoCleanup(t *testing.T) {
	t.Parallel()
	ic := ipc.NewClient(ipc.Unix(filepath.Join(t.TempDir(), "none")), nil)
	defer ic.Close()
	c := New(ic)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.NewID(ctx, time.Now()); err == nil || !strings.Contains(err.Error(), "queue ID") {
		t.Errorf("NewID: %v", err)
	}
	m := c.Open(&mail.Envelope{ID: mail.MakeQueueID(time.Now(), 1)}, Options{})
	m.Write([]byte("x\r\n"))
	if r, err := m.Commit(ctx); r.Code != 451 || err == nil {
		t.Errorf("Commit = %v, %v", r, err)
	}
}

// While cleanup cannot start, whoever waits for a queue ID is told so in time,
// the one who asks for numbers and the others alike.
func TestCleanupAway(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "none")
	synctest.Test(t, func(t *testing.T) {
		ic := ipc.NewClient(ipc.Unix(path), nil)
		defer ic.Close()
		c := New(ic)
		defer c.Close()
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, err := c.NewID(context.Background(), time.Now())
				if took := time.Since(start); err == nil || took > 31*time.Second {
					t.Errorf("after %v: %v", took, err)
				}
			})
		}
		wg.Wait()
	})
}

func BenchmarkSubmit10K(b *testing.B) {
	path := filepath.Join(b.TempDir(), "c")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	srv := &ipc.Server{Handler: func(_ *ipc.Conn, r *ipc.Request) { r.Reply(&proto.SubmitReply{Code: 250}) }}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(ctx, l, time.Second) }()
	ic := ipc.NewClient(ipc.Unix(path), nil)
	c := New(ic)
	defer func() { c.Close(); ic.Close(); cancel(); <-done }()
	content := bytes.Repeat([]byte("0123456789abcd\r\n"), 640)
	env := &mail.Envelope{ID: mail.MakeQueueID(time.Now(), 1), Recipients: []mail.Recipient{{Address: "a@b"}}}
	b.ReportAllocs()
	for b.Loop() {
		m := c.Open(env, Options{})
		m.Write(content)
		if _, err := m.Commit(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
