package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/vfs"
)

// stashed puts a message with that content into the volatile area.
func stashed(t testing.TB, s *Spool, content []byte) Entry {
	t.Helper()
	id := newID(t, s)
	e, err := s.Stash(Message{ID: id, Envelope: testEnvelope(id, len(content)), Recipients: testRecipients(2), NRcpt: 2, Content: content})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// contentOf reads a message at its Ref.
func contentOf(r *Reader, e Entry) ([]byte, error) {
	c, err := r.Content(e.Ref, e.ID)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return io.ReadAll(c)
}

// A handClock stands still but for what a test adds. The spool's own goroutines read it.
type handClock struct{ micros atomic.Int64 }

func newHandClock() *handClock {
	c := new(handClock)
	c.micros.Store(time.Now().UnixMicro())
	return c
}

func (c *handClock) now() time.Time      { return time.UnixMicro(c.micros.Load()) }
func (c *handClock) add(d time.Duration) { c.micros.Add(d.Microseconds()) }

// reopened opens the spool once more. Whether it was closed, or its process killed, is the same to the volatile area.
func reopened(t testing.TB, s *Spool) *Spool {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := Open(Options{FS: s.e.fs, Dir: "spool", SegmentSize: 128 << 10, Warn: t.Logf, now: s.e.now})
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func TestStash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openTest(t, dir, Options{SegmentSize: 1 << 20})
	r := NewReader(nil, dir)
	defer r.Close()
	body := bytes.Repeat([]byte("0123456789abcdef\r\n"), 500)
	e := stashed(t, s, body)
	if _, ok := s.Locate(e.ID); ok {
		t.Error("the log knows a message of the volatile area")
	}
	st, got := readAll(t, r, e)
	if !bytes.Equal(got, body) || st.NRcpt() != 2 || e.NPending != 2 || e.Size != int64(len(body)) {
		t.Errorf("read %d octets, %d recipients: %+v", len(got), st.NRcpt(), e)
	}
	if got, err := contentOf(r, e); err != nil || !bytes.Equal(got, body) {
		t.Errorf("%d octets, %v", len(got), err)
	}
	if st := s.Stats(); st.Added > 0 || st.Commits > 0 { // batches there are: a start records itself, and promises when it is idle
		t.Errorf("the log has %d messages and %d commits", st.Added, st.Commits)
	}
	s.Drop(e.Ref, false)
	if _, err := r.Read(e.Ref, e.ID); !errors.Is(err, ErrStale) {
		t.Errorf("what was dropped is read: %v", err)
	}
	if _, err := contentOf(r, e); !errors.Is(err, ErrStale) {
		t.Errorf("what was dropped is read: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.Drop(e.Ref, false) // too late for anything
	if _, err := s.Stash(Message{ID: e.ID, Envelope: testEnvelope(e.ID, 1), Recipients: testRecipients(1), NRcpt: 1}); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed spool takes messages: %v", err)
	}
}

// A start names what was in hand, once, and nothing else.
func TestStashWithdrawn(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem(4096)
	clock := newHandClock()
	s, err := Open(Options{FS: fs, Dir: "spool", SegmentSize: 128 << 10, Warn: t.Logf, now: clock.now})
	if err != nil {
		t.Fatal(err)
	}
	lost, over, kept := stashed(t, s, []byte("lost\r\n")), stashed(t, s, []byte("over\r\n")), stashed(t, s, []byte("kept\r\n"))
	early, just := stashed(t, s, []byte("early\r\n")), stashed(t, s, []byte("just\r\n"))
	s.Drop(over.Ref, false)
	s.Drop(early.Ref, true)
	clock.add(2 * replyTime)
	s.Drop(just.Ref, true)
	var b Batch
	b.Add(Message{ID: kept.ID, Envelope: testEnvelope(kept.ID, 6), Recipients: testRecipients(2), NRcpt: 2, Content: []byte("kept\r\n")})
	if err := s.Commit(&b); err != nil {
		t.Fatal(err)
	}
	late := stashed(t, s, []byte("late\r\n"))
	next := reopened(t, s)
	rep := next.Recovery()
	want := []queue.Withdrawn{}
	for _, e := range []Entry{lost, just, late} {
		want = append(want, queue.Withdrawn{ID: e.ID, Sender: "sender@example.com", Recipients: []string{"user0@example.org", "user1@example.org"},
			Settled: e.ID == just.ID})
	}
	if !slices.EqualFunc(rep.Withdrawn, want, func(a, b queue.Withdrawn) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) || rep.MoreWithdrawn != 0 {
		t.Errorf("%+v and %d more, want %+v", rep.Withdrawn, rep.MoreWithdrawn, want)
	}
	if _, ok := next.Locate(kept.ID); !ok {
		t.Error("what was kept is not in the log")
	}
	r := NewReader(next.e.fs, "spool")
	defer r.Close()
	fresh := stashed(t, next, []byte("fresh\r\n"))
	if _, err := contentOf(r, lost); !errors.Is(err, ErrStale) {
		t.Errorf("what was withdrawn is read: %v", err)
	}
	if got, err := contentOf(r, fresh); err != nil || string(got) != "fresh\r\n" {
		t.Errorf("%q, %v", got, err)
	}
	next.Drop(fresh.Ref, false)
	if again := reopened(t, next); len(again.Recovery().Withdrawn) > 0 {
		t.Errorf("named again: %+v", again.Recovery().Withdrawn)
	}
}

// With one message in each file there is no room, until the oldest has left.
func TestStashFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	defer s.Close()
	s.stash.size = 32 << 10
	body := bytes.Repeat([]byte("x"), 20<<10)
	var in []Entry
	for range stashFiles {
		in = append(in, stashed(t, s, body))
	}
	id := newID(t, s)
	m := Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(1), NRcpt: 1, Content: body}
	if _, err := s.Stash(m); !errors.Is(err, ErrFull) {
		t.Fatalf("the error is %v", err)
	}
	s.Drop(in[0].Ref, false)
	if e, err := s.Stash(m); err != nil || e.Ref.File != in[0].Ref.File || e.Ref.Segno == in[0].Ref.Segno {
		t.Errorf("%+v, %v", e.Ref, err)
	}
	m.Content = make([]byte, 40<<10)
	if _, err := s.Stash(m); !errors.Is(err, ErrTooLarge) {
		t.Errorf("the error is %v", err)
	}
}

// A write that fails ends the use of the area for a while, and of nothing else. What was there is still read.
func TestStashFails(t *testing.T) {
	t.Parallel()
	for _, failing := range []vfs.OpKind{vfs.OpMkdir, vfs.OpCreate, vfs.OpWrite} {
		t.Run(failing.String(), func(t *testing.T) {
			t.Parallel()
			var broken bool
			var tries int
			fs := &vfs.Faulty{FS: vfs.NewMem(4096), Hook: func(op vfs.Op) error {
				if strings.Contains(op.Name, stashDir) && op.Kind == failing {
					if tries++; broken {
						return syscall.ENOSPC
					}
				}
				return nil
			}}
			var said []string
			clock := newHandClock()
			s, err := Open(Options{FS: fs, Dir: "spool", SegmentSize: 128 << 10, now: clock.now, Warn: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var first Entry
			if failing == vfs.OpWrite {
				first = stashed(t, s, []byte("first\r\n"))
			}
			id := newID(t, s)
			m := Message{ID: id, Envelope: testEnvelope(id, 4), Recipients: testRecipients(1), NRcpt: 1, Content: []byte("one\r\n")}
			broken, tries = true, 0
			for range 3 {
				for range 2 {
					if _, err := s.Stash(m); !errors.Is(err, ErrUnstored) || !errors.Is(err, syscall.ENOSPC) {
						t.Fatalf("the error is %v", err)
					}
				}
				clock.add(stashRetry)
			}
			if tries != 3 || len(said) != 1 {
				t.Errorf("%d tries in %v, and said %q", tries, 2*stashRetry, said)
			}
			var b Batch
			b.Add(m)
			if err := s.Commit(&b); err != nil {
				t.Error(err)
			}
			broken = false
			second := stashed(t, s, []byte("second\r\n"))
			third := stashed(t, s, []byte("third\r\n"))
			if len(said) != 2 {
				t.Errorf("said %q", said)
			}
			r := NewReader(fs, "spool")
			defer r.Close()
			for text, e := range map[string]Entry{"first\r\n": first, "second\r\n": second, "third\r\n": third} {
				if e.ID == "" {
					continue
				}
				if got, err := contentOf(r, e); err != nil || string(got) != text {
					t.Errorf("%q, %v, want %q", got, err, text)
				}
			}
			// A place that cannot be given up is no harm, and the area is away for a while again.
			if failing == vfs.OpWrite {
				broken = true
				s.Drop(second.Ref, false)
				if _, err := s.Stash(m); !errors.Is(err, ErrUnstored) {
					t.Errorf("the error is %v", err)
				}
				broken = false
			}
		})
	}
}

// A closed spool takes nothing, however long ago a write has failed.
func TestStashClosedAfterFailure(t *testing.T) {
	t.Parallel()
	var broken bool
	fs := &vfs.Faulty{FS: vfs.NewMem(4096), Hook: func(op vfs.Op) error {
		if strings.Contains(op.Name, stashDir) && broken { // other files are written in the background, too
			return syscall.EIO
		}
		return nil
	}}
	clock := newHandClock()
	s, err := Open(Options{FS: fs, Dir: "spool", SegmentSize: 128 << 10, Warn: t.Logf, now: clock.now})
	if err != nil {
		t.Fatal(err)
	}
	id := newID(t, s)
	m := Message{ID: id, Envelope: testEnvelope(id, 4), Recipients: testRecipients(1), NRcpt: 1, Content: []byte("one\r\n")}
	broken = true
	if _, err := s.Stash(m); !errors.Is(err, ErrUnstored) {
		t.Fatal(err)
	}
	broken = false
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	clock.add(2 * stashRetry)
	if _, err := s.Stash(m); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed spool: %v", err)
	}
}

// A file of the last process that stays is not written to: what is named of it would be named again.
func TestStashFileStays(t *testing.T) {
	t.Parallel()
	var broken bool
	fs := &vfs.Faulty{FS: vfs.NewMem(4096), Hook: func(op vfs.Op) error {
		if op.Kind == vfs.OpRemove && strings.Contains(op.Name, stashDir) && broken { // as above
			return syscall.EIO
		}
		return nil
	}}
	clock := newHandClock()
	s, err := Open(Options{FS: fs, Dir: "spool", SegmentSize: 128 << 10, Warn: t.Logf, now: clock.now})
	if err != nil {
		t.Fatal(err)
	}
	stashed(t, s, []byte("x\r\n"))
	broken = true
	next := reopened(t, s)
	defer next.Close()
	clock.add(2 * stashRetry)
	id := newID(t, next)
	if _, err := next.Stash(Message{ID: id, Envelope: testEnvelope(id, 4), Recipients: testRecipients(1), NRcpt: 1}); !errors.Is(err, syscall.EIO) {
		t.Errorf("the error is %v", err)
	}
}

// Whatever comes and goes, who is in the area is read as it was stashed, who has left it is ErrStale, its files
// are no longer than they may be, and after a kill exactly those are named who had not left.
func TestStashHistories(t *testing.T) {
	once(t)
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		fs := vfs.NewMem(4096)
		s, err := Open(Options{FS: fs, Dir: "spool", SegmentSize: 128 << 10, Warn: t.Logf})
		if err != nil {
			rt.Fatal(err)
		}
		s.stash.size = 32 << 10
		r := NewReader(fs, "spool")
		defer r.Close()
		content := map[mail.QueueID][]byte{}
		var in, out []Entry
		rt.Repeat(map[string]func(*rapid.T){
			"stash": func(rt *rapid.T) {
				body := bytes.Repeat([]byte{byte(rapid.IntRange(0, 255).Draw(rt, "octet"))}, rapid.IntRange(0, 12<<10).Draw(rt, "length"))
				id := newID(t, s)
				e, err := s.Stash(Message{ID: id, Envelope: testEnvelope(id, len(body)), Recipients: testRecipients(2), NRcpt: 2, Content: body})
				if errors.Is(err, ErrFull) && len(in) > 0 {
					return
				}
				if err != nil {
					rt.Fatal(err)
				}
				in, content[id] = append(in, e), body
			},
			"drop": func(rt *rapid.T) {
				if len(in) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(in)-1).Draw(rt, "which")
				s.Drop(in[i].Ref, false)
				out, in = append(out, in[i]), slices.Delete(in, i, i+1)
			},
			"settle": func(rt *rapid.T) {
				if len(in) == 0 {
					rt.Skip()
				}
				s.Drop(in[0].Ref, true)
				out, in = append(out, in[0]), in[1:]
			},
			"": func(rt *rapid.T) {
				for _, e := range in {
					if got, err := contentOf(r, e); err != nil || !bytes.Equal(got, content[e.ID]) {
						rt.Fatalf("%s: %d octets, %v", e.ID, len(got), err)
					}
				}
				for _, e := range out {
					if _, err := contentOf(r, e); !errors.Is(err, ErrStale) {
						rt.Fatalf("%s has left, and: %v", e.ID, err)
					}
				}
				for _, f := range s.stash.files {
					if f.f == nil {
						continue
					}
					if n, err := f.f.Size(); err != nil || n > s.stash.size {
						rt.Fatalf("a file of %d bytes, %v", n, err)
					}
				}
			},
		})
		var want, got []mail.QueueID
		for _, e := range in {
			want = append(want, e.ID)
		}
		next := reopened(t, s)
		defer next.Close()
		for _, w := range next.Recovery().Withdrawn {
			if !w.Settled {
				got = append(got, w.ID)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			rt.Fatalf("named as withdrawn: %v, want %v", got, want)
		}
	})
}

// Nobody need understand what is in the area after the power was cut: a start goes on, whatever it finds there.
func TestStashGarbage(t *testing.T) {
	once(t)
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		fs := vfs.NewMem(4096)
		s, err := Open(Options{FS: fs, Dir: "spool", SegmentSize: 128 << 10, Warn: t.Logf})
		if err != nil {
			rt.Fatal(err)
		}
		first, second := stashed(t, s, bytes.Repeat([]byte("x"), 5000)), stashed(t, s, []byte("y"))
		hurt := rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(rt, "octets")
		at := rapid.Int64Range(0, int64(first.Ref.Offset+first.Ref.Length)-int64(len(hurt))).Draw(rt, "place")
		if _, err := s.stash.files[0].f.WriteAt(hurt, at); err != nil {
			rt.Fatal(err)
		}
		next := reopened(t, s)
		defer next.Close()
		if list := next.Recovery().Withdrawn; at >= headRoom && !slices.ContainsFunc(list, func(w queue.Withdrawn) bool { return w.ID == second.ID }) {
			rt.Fatalf("what is behind the damage is not found: %+v", list)
		}
		id := newID(t, next)
		if _, err := next.Stash(Message{ID: id, Envelope: testEnvelope(id, 1), Recipients: testRecipients(1), NRcpt: 1, Content: []byte("z")}); err != nil {
			rt.Fatal(err)
		}
	})
}
