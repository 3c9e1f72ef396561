package pgspool

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/testseed"
	"posthaste/internal/testservers"
	"posthaste/internal/testwait"
)

// A ledger is what clients of an engine were told.
type ledger struct {
	mu      sync.Mutex
	queued  map[mail.QueueID]string // content of those that must be there
	perhaps map[mail.QueueID]string // the engine broke: there, as a whole, or not there
	removed map[mail.QueueID]bool   // must not be there
	refused map[mail.QueueID]bool   // neither
}

func newLedger() *ledger {
	return &ledger{queued: map[mail.QueueID]string{}, perhaps: map[mail.QueueID]string{}, removed: map[mail.QueueID]bool{}, refused: map[mail.QueueID]bool{}}
}

// work adds and removes messages until the engine ends.
func (l *ledger) work(t *testing.T, e *engine, r *rand.Rand) {
	for e.Err() == nil {
		n, err := e.Lease(1)
		if err != nil {
			return
		}
		content := fmt.Sprintf("%016x%0*d", r.Uint64(), r.IntN(20000), 0)
		id := mail.MakeQueueID(time.Unix(1800000000, 0), n)
		m := messageOf(id, content)
		if r.IntN(20) == 0 {
			f, err := e.NewFile()
			if err != nil {
				return
			}
			for range 20 {
				if _, err := io.WriteString(f, content); err != nil {
					t.Error(err)
				}
			}
			content = fmt.Sprint(content, content, content, content, content, content, content, content, content, content,
				content, content, content, content, content, content, content, content, content, content)
			m.Content, m.File = nil, f
		}
		b := e.NewBatch()
		b.Add(m)
		err = e.Commit(b)
		l.note(id, content, err)
		if err != nil || r.IntN(2) == 0 {
			continue
		}
		b.Reset()
		b.Remove(id)
		err = e.Commit(b)
		l.mu.Lock()
		delete(l.queued, id)
		if err == nil {
			l.removed[id] = true
		} else {
			l.perhaps[id] = content
		}
		l.mu.Unlock()
	}
}

func (l *ledger) note(id mail.QueueID, content string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.queued[id] = content
	case errors.Is(err, queue.ErrBroken):
		l.perhaps[id] = content
	default:
		l.refused[id] = true
	}
}

// size is how many messages it knows.
func (l *ledger) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queued) + len(l.perhaps) + len(l.removed) + len(l.refused)
}

// check compares the queue with what was told, and takes over what is there of what nobody knew.
func (l *ledger) check(e *engine) (wrong []string) {
	rd := e.store.Reader()
	defer rd.Close()
	there := map[mail.QueueID]bool{}
	for en := range e.Entries {
		there[en.ID] = true
		want, sure := l.queued[en.ID]
		if !sure {
			var known bool
			if want, known = l.perhaps[en.ID]; !known {
				wrong = append(wrong, fmt.Sprintf("%s is there: removed %v, refused %v", en.ID, l.removed[en.ID], l.refused[en.ID]))
				continue
			}
			l.queued[en.ID] = want
		}
		c, err := rd.Content(en.Ref, en.ID)
		if err != nil {
			wrong = append(wrong, err.Error())
			continue
		}
		got, err := io.ReadAll(c)
		c.Close()
		if err != nil || string(got) != want {
			wrong = append(wrong, fmt.Sprintf("%s: %d octets, want %d: %v", en.ID, len(got), len(want), err))
		}
	}
	for id := range l.queued {
		if !there[id] {
			wrong = append(wrong, fmt.Sprintf("%s is lost", id))
		}
	}
	clear(l.perhaps)
	return wrong
}

// crash has clients work, and kill called at a random moment, so many times, and returns what is wrong
// afterwards.
func crash(t *testing.T, st *Store, rounds int, seed uint64, kill func(*engine), back func()) (wrong []string) {
	r := rand.New(rand.NewPCG(seed, 0))
	l := newLedger()
	for range rounds {
		var e *engine
		testwait.Until(t, "the queue can be opened", func() bool {
			var err error
			e, err = st.testOpen(t)
			if err != nil && !errors.Is(err, queue.ErrBroken) {
				t.Fatal(err)
			}
			return err == nil
		})
		if wrong = append(wrong, l.check(e)...); len(wrong) > 0 {
			return wrong
		}
		var clients sync.WaitGroup
		for i := range 8 {
			own := rand.New(rand.NewPCG(r.Uint64(), uint64(i)))
			clients.Go(func() { l.work(t, e, own) })
		}
		// How much is done before it happens, not when.
		goal := l.size() + r.IntN(300)
		testwait.Until(t, "there is some mail", func() bool {
			return l.size() >= goal || e.Err() != nil
		})
		kill(e)
		clients.Wait()
		e.Close()
		back()
	}
	e := st.mustOpen(t)
	return append(wrong, l.check(e)...)
}

// Nothing that was acknowledged is lost when the database is killed at any moment, nothing that was refused
// or removed is there, and nothing is half there.
func TestDatabaseKilled(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	kill := func(*engine) { s.Kill() }
	for _, wrong := range crash(t, newDatabase(t, s, 1).store("a"), 4, testseed.First(t), kill, s.Start) {
		t.Error(wrong)
	}
}

// The same when this process loses its connections at any moment, which is what its death is to the database.
func TestConnectionLost(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	kill := func(e *engine) { e.conn.PgConn().Conn().Close() }
	for _, wrong := range crash(t, newDatabase(t, s, 1).store("a"), 6, testseed.First(t), kill, func() {}) {
		t.Error(wrong)
	}
}

// A commit that is not durable is noticed by that test. The server writes its log late here.
func TestSynchronousCommitOff(t *testing.T) {
	t.Parallel()
	s := newServer(t, "wal_writer_delay=10s", "wal_writer_flush_after=1GB", "synchronous_commit=off")
	if wrong := lostBy(t, s, plant{}); len(wrong) > 0 {
		t.Errorf("with synchronous_commit=off in the server's settings: %v", wrong)
	}
	if wrong := lostBy(t, s, plant{noSync: true}); len(wrong) == 0 {
		t.Error("the test does not notice that transactions are not durable")
	}
}

// lostBy kills the server right after messages were acknowledged, and returns what is lost.
func lostBy(t *testing.T, s *testservers.Server, p plant) []string {
	st := newDatabase(t, s, 1).store("a")
	st.plant = p
	e := st.mustOpen(t)
	l := newLedger()
	e.stop() // a renewal would be durable, and all before it
	for range 20 {
		m := message(t, e, "x")
		b := e.NewBatch()
		b.Add(m)
		l.note(m.ID, "x", e.Commit(b))
	}
	s.Kill()
	e.Close()
	s.Start()
	e = st.mustOpen(t)
	defer e.Close()
	return l.check(e)
}
