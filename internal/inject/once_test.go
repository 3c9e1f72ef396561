package inject

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
)

// A request with an idempotency key is carried out once: repeated, it has the same answer, also after a
// restart. Its messages wait until the answer is recorded, and are then released.
func TestOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := `{"from": "ann@from.test", "to": ["a@to.test", "b@to.test", "no"], "individual": true, "text": "x"}`
	_, _, first := w.send(body, "Idempotency-Key", "k1")
	for _, g := range w.mails() {
		if s := g.State; s == nil || s.Queue != queue.Deferred || s.Set != queue.SetQueue|queue.SetNextAttempt || !s.NextAttempt.Equal(w.clock().Add(releaseTime).Truncate(time.Microsecond)) {
			t.Errorf("%+v", g.State)
		}
	}
	for _, restart := range []bool{false, true, true} {
		if restart {
			w.restart(true)
		}
		status, text, h := w.post("/v1/messages", "application/json", body, "Idempotency-Key", `"k1"`)
		if status != 200 || text != first || h.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%d %s\nbefore %s", status, text, first)
		}
	}
	if len(w.mails()) != 2 {
		t.Errorf("%d messages", len(w.mails()))
	}
	w.leave() // which has released what was to be
	for _, g := range w.mails() {
		if !slices.Contains(w.released, g.Envelope.ID) {
			t.Errorf("%s was not released", g.Envelope.ID)
		}
	}
	w.newDoor()
	if status, _, text := w.send(strings.Replace(body, `"x"`, `"y"`, 1), "Idempotency-Key", "k1"); status != 422 || !strings.Contains(text, "another request") {
		t.Errorf("%d %s", status, text)
	}
	w.pass(24 * time.Hour)
	if status, r, text := w.send(body, "Idempotency-Key", "k1"); status != 200 || len(r.Messages) != 2 || text == first {
		t.Errorf("a day later: %d %s", status, text)
	}
}

// In a batch each message has its key.
func TestOnceInBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	line := func(key string) string {
		return fmt.Sprintf(`{"from": "ann@from.test", "to": ["a@to.test"], "text": "x", "idempotency_key": %q}`, key) + "\n"
	}
	_, first, _ := w.post("/v1/messages", "application/x-ndjson", line("1")+line("2"))
	_, second, _ := w.post("/v1/messages", "application/x-ndjson", line("1")+line("2")+line("3"))
	if len(w.mails()) != 3 || !strings.HasPrefix(second, first) {
		t.Errorf("%d messages\n%s\n%s", len(w.mails()), first, second)
	}
	if status, text, _ := w.post("/v1/messages", "application/json", line("1"), "Idempotency-Key", "other"); status != 422 {
		t.Errorf("%d %s", status, text)
	}
	// The same, with the name of the member escaped.
	_, third, _ := w.post("/v1/messages", "application/x-ndjson", strings.ReplaceAll(line("9"), "idempotency_key", `idempotency\u005fkey`))
	_, fourth, _ := w.post("/v1/messages", "application/x-ndjson", strings.ReplaceAll(strings.ReplaceAll(line("9"), "idempotency_key", `idempotency\u005fkey`), "text", "html"))
	if !strings.Contains(third, `"status":200`) || !strings.Contains(fourth, "another request") {
		t.Errorf("%s\n%s", third, fourth)
	}
}

// While a request is under way, one with the same key is refused for now.
func TestOnceBusy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e, _, err := w.server.door.journal.begin(hashKey("app", "k"), digest{1})
	if err != nil {
		t.Fatal(err)
	}
	status, _, text := w.send(hello, "Idempotency-Key", "k")
	if status != 422 { // it is another request, too
		t.Errorf("%d %s", status, text)
	}
	if _, _, err := w.server.door.journal.begin(hashKey("app", "k"), digest{1}); err != errBusy {
		t.Error(err)
	}
	w.server.door.journal.drop(e)
	if status, _, text := w.send(hello, "Idempotency-Key", "k"); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	var wg sync.WaitGroup
	counts := make([]int, 8)
	for i := range counts {
		wg.Go(func() { counts[i], _, _ = w.post("/v1/messages", "application/json", hello, "Idempotency-Key", "many") })
	}
	wg.Wait()
	for _, status := range counts {
		if status != 200 && status != 409 {
			t.Errorf("%d", status)
		}
	}
	if len(w.mails()) != 2 {
		t.Errorf("%d messages", len(w.mails()))
	}
}

// begun has the service die after some messages of a request were queued, before the answer was
// recorded.
func (w *world) begun(body, key string, queued func(*got) bool) {
	w.t.Helper()
	// The connection to cleanup breaks, so that it is not known whether the message is there.
	w.set(func() { w.lost = queued })
	if status, _, text := w.send(body, "Idempotency-Key", key); status != 503 {
		w.t.Fatalf("%d %s", status, text)
	}
	w.set(func() { w.lost = nil })
}

// A process that dies between the queue and the answer leaves a key that is carried out once all the
// same: what is in the queue stays, what is not is queued, and the answer names both.
func TestOnceAfterCrash(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		w := newWorld(t)
		w.begun(hello, "k", func(*got) bool { return true })
		if restart {
			w.restart(true)
		}
		status, r, text := w.send(hello, "Idempotency-Key", "k")
		if status != 200 || len(w.mails()) != 1 || r.Messages[0].ID != string(w.mails()[0].Envelope.ID) {
			t.Errorf("%d %s, %d messages", status, text, len(w.mails()))
		}
		w.leave()
		if !slices.Contains(w.released, w.mails()[0].Envelope.ID) {
			t.Error("it was not released")
		}
		w.newDoor()
	}
}

// A message that was queued for a client that never asks again is found and delivered, and the answer
// is right when the client asks after that.
func TestSweep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begun(hello, "k", func(*got) bool { return true })
	w.restart(true)
	w.server.door.sweep()
	id := w.mails()[0].Envelope.ID
	w.restart(true) // which waits for what is to be released
	if !slices.Contains(w.released, id) {
		t.Fatal("it was not released")
	}
	w.set(func() { delete(w.queue, id) }) // it is delivered
	w.pass(time.Hour)
	if status, r, text := w.send(hello, "Idempotency-Key", "k"); status != 200 || len(w.mails()) != 1 || r.Messages[0].ID != string(id) {
		t.Errorf("%d %s, %d messages", status, text, len(w.mails()))
	}
}

// What cannot be known is said: the service was down while the message could have been delivered.
func TestDoubt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begun(hello, "k", func(*got) bool { return true })
	w.set(func() { clear(w.queue) })
	w.pass(releaseTime + time.Second)
	w.restart(true)
	w.server.door.sweep()
	for range 2 {
		if status, _, text := w.send(hello, "Idempotency-Key", "k"); status != 409 || !strings.Contains(text, "not known whether") {
			t.Errorf("%d %s", status, text)
		}
		w.restart(true)
	}
}

// A message for soon that was not in the queue when it was looked for, right after it was handed over, may have come
// there since, and be gone.
func TestDoubtSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := fmt.Sprintf(`{"from": "ann@from.test", "to": ["a@to.test"], "text": "x", "send_at": %d}`, w.clock().Add(20*time.Second).Unix())
	w.begun(body, "k", func(g *got) bool { delete(w.queue, g.Envelope.ID); return true })
	w.server.door.sweep()
	w.pass(sweepTime + time.Second)
	w.server.door.sweep()
	if status, _, text := w.send(body, "Idempotency-Key", "k"); status != 409 || !strings.Contains(text, "not known whether") {
		t.Errorf("%d %s", status, text)
	}
}

// What was not in the queue as long as it had to wait there was never queued, and the key is free.
func TestNeverQueued(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begun(hello, "k", func(g *got) bool { delete(w.queue, g.Envelope.ID); return true })
	for range 48 {
		w.server.door.sweep()
		w.pass(sweepTime)
	}
	w.restart(true)
	if status, _, text := w.send(hello, "Idempotency-Key", "k"); status != 200 || len(w.mails()) != 2 {
		t.Errorf("%d %s, %d messages", status, text, len(w.mails()))
	}
}

// A file that ends in the middle of a record, or in a damaged one, has what was before it. Nothing that
// was answered is after it.
func TestTorn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 3 {
		if status, _, text := w.send(hello, "Idempotency-Key", fmt.Sprint(i)); status != 200 {
			t.Fatal(text)
		}
	}
	path := filepath.Join(w.dir, "inject", journalName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w.leave()
	for n := 0; n < len(whole); n += 3 {
		damaged := append([]byte(nil), whole...)
		damaged[n] ^= 0x40
		for _, text := range [][]byte{whole[:n], damaged} {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			w.newDoor()
			done, begun := 0, 0
			for _, e := range w.server.door.journal.all {
				switch e.state {
				case stateDone:
					done++
				case stateBegun:
					begun++
				}
			}
			if done > 3 || begun > 1 || n == 0 && done+begun != 0 {
				t.Fatalf("%d octets: %d done, %d begun", n, done, begun)
			}
			w.leave()
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	w.newDoor()
}

// The journal is bounded, and does not grow with what is over.
func TestJournalBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	j := w.server.door.journal
	j.limit = 10
	big := strings.Repeat("x", 200<<10)
	for round := range 6 {
		for i := range 10 {
			e, _, err := j.begin(hashKey("app", fmt.Sprint(round, i)), digest{})
			if err == nil {
				err = j.plan(e, []mail.QueueID{"4jWn4F1YhnzSshsm4"}, w.clock(), true)
			}
			if err == nil {
				err = j.done(e, []byte(big))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := j.begin(hashKey("app", "one more"), digest{}); err != errManyKeys {
			t.Fatal(err)
		}
		if _, answer, err := j.begin(hashKey("app", fmt.Sprint(round, 0)), digest{}); err != nil || string(answer) != big {
			t.Fatalf("%d %v", len(answer), err)
		}
		w.pass(25 * time.Hour)
		if err := j.tidy(); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(filepath.Join(w.dir, "inject", journalName)); err != nil || info.Size() > 2*journalSlack {
		t.Errorf("%v %v", info.Size(), err)
	}
}

// A file that cannot be written ends it: keys are refused, and mail without them is taken.
func TestJournalBroken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.door.journal.f.Close()
	if status, _, text := w.send(hello, "Idempotency-Key", "k"); status != 503 {
		t.Errorf("%d %s", status, text)
	}
	if err := w.server.door.journal.tidy(); err == nil {
		t.Error("nobody is told")
	}
	if status, _, text := w.send(hello, "Idempotency-Key", "k2"); status != 503 {
		t.Errorf("%d %s", status, text)
	}
	if status, _, text := w.send(hello); status != 200 || len(w.mails()) != 1 {
		t.Errorf("%d %s", status, text)
	}
}
