package spool

import (
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// A change that is refused does not keep those that only came along with it,
// and what is more than one log batch takes goes into several, in order.
func TestApart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "q")
	s := openTest(t, dir, Options{SegmentSize: 64 << 10})
	var ids []mail.QueueID
	var add Batch
	for range 20 {
		id := newID(t, s)
		add.Add(Message{ID: id, Envelope: testEnvelope(id, 10), Recipients: testRecipients(2), NRcpt: 2, Content: []byte("x\r\n")})
		ids = append(ids, id)
	}
	if err := s.Commit(&add); err != nil {
		t.Fatal(err)
	}
	long := mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 0, 0), Reason: strings.Repeat("later ", 1500)}
	var b Batch
	for _, id := range ids { // 180 KB: a log batch of segments of 64 KiB has 28 KiB
		b.Update(id, Change{Set: SetQueue | SetAttempts, Queue: Deferred, Attempts: 1, Outcomes: []mail.Outcome{long}})
	}
	if err := s.Commit(&b); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("as one: %v, want ErrTooLarge", err)
	}
	b.Done(ids[3], []int{7}) // there is no such recipient
	b.Remove(ids[4])
	b.Update(ids[5], Change{Set: SetAttempts, Attempts: 2})
	b.Apart()
	if err := s.Commit(&b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Len() {
		if err := b.Refused(i); errors.Is(err, ErrInvalid) != (i == len(ids)) || (err != nil) != (i == len(ids)) {
			t.Errorf("change %d: refused: %v", i, err)
		}
	}
	check := func() {
		t.Helper()
		rd := NewReader(nil, dir)
		defer rd.Close()
		for i, id := range ids {
			en, ok := s.Locate(id)
			if ok != (i != 4) {
				t.Errorf("message %d: there %v", i, ok)
			}
			if !ok {
				continue
			}
			want := 1
			if i == 5 {
				want = 2
			}
			st, _ := readAll(t, rd, en)
			list, err := st.Outcomes()
			if en.Attempts != want || en.Queue != Deferred || en.NPending != 2 || err != nil || !reflect.DeepEqual(list, []mail.Outcome{long}) {
				t.Errorf("message %d: %+v, %d outcomes, %v", i, en, len(list), err)
			}
		}
	}
	check()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir, Options{SegmentSize: 64 << 10})
	defer s.Close()
	check()

	b.Reset()
	id := newID(t, s)
	b.Apart()
	b.Add(Message{ID: id, Envelope: testEnvelope(id, 10), Recipients: testRecipients(1), NRcpt: 1})
	if err := s.Commit(&b); !errors.Is(err, ErrInvalid) {
		t.Errorf("adding: %v, want ErrInvalid", err)
	}
}

// The state of whatever fits into the spool can be recorded.
func TestUpdateLongList(t *testing.T) {
	t.Parallel()
	s := openTest(t, filepath.Join(t.TempDir(), "q"), Options{SegmentSize: 64 << 10})
	defer s.Close()
	var b Batch
	id := newID(t, s)
	rcpts := testRecipients(1200)
	b.Add(Message{ID: id, Envelope: testEnvelope(id, 10), Recipients: rcpts, NRcpt: 1200})
	if err := s.Commit(&b); err != nil {
		t.Fatal(err)
	}
	if int64(len(rcpts)) < s.e.lim.unit*9/10 {
		t.Fatalf("a list of %d octets is not long, %d are possible", len(rcpts), s.e.lim.unit)
	}
	for n := range 3 {
		var c Change
		for i := range 1200 {
			c.Outcomes = append(c.Outcomes, mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: dsn.S(4, 0, 0), Reason: "try again later"})
		}
		c.Set, c.NextAttempt, c.Queue = SetNextAttempt|SetQueue, time.Unix(1800000000+int64(n), 0), Deferred
		b.Reset()
		b.Update(id, c)
		if err := s.Commit(&b); err != nil {
			t.Fatal(err)
		}
		if en, ok := s.Locate(id); !ok || !en.NextAttempt.Equal(c.NextAttempt) || en.Queue != Deferred {
			t.Errorf("%v %+v", ok, en)
		}
	}
}
