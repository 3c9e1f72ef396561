package spool

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"posthaste/internal/vfs"
)

func TestTools(t *testing.T) {
	t.Parallel()
	w := newWorld(7, 0)
	if err := w.guard(func() {
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		w.settle()
		for range 40 {
			w.step()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.e.markClose(); err != nil {
		t.Fatal(err)
	}
	w.mem.Restart()
	rep, err := Check(w.mem, "q")
	if err != nil || rep.Problems != nil || rep.Messages != len(w.now) || rep.Messages == 0 {
		t.Fatalf("%+v, %v; want %d messages", rep, err, len(w.now))
	}
	var dump strings.Builder
	if err := Dump(w.mem, "q", &dump); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"MSG", "STATE", "DONE", "CLOSE", "recover from"} {
		if !strings.Contains(dump.String(), word) {
			t.Errorf("the dump has no %s:\n%.3000s", word, dump.String())
		}
	}
	rd := NewReader(w.mem, "q")
	defer rd.Close()
	n := 0
	if err := View(w.mem, "q", nil, func(en Entry) bool {
		n++
		m := w.now[en.ID.Number()]
		st, err := rd.Read(en.Ref, en.ID)
		if err != nil {
			t.Error(err)
			return true
		}
		c, err := st.Content()
		if err != nil {
			t.Error(err)
			return true
		}
		defer c.Close()
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, m.body) {
			t.Errorf("message %s: read as %.200q, %v", en.ID, got, err)
		}
		return true
	}); err != nil || n != len(w.now) {
		t.Errorf("view: %d messages, %v", n, err)
	}
	// Damage is found and told.
	for n, m := range w.now {
		if m.big || len(m.body) == 0 {
			continue
		}
		l := w.e.idx.find(n, new(live))
		if err := w.mem.Damage(segName("q", l.conSeg), int64(l.conOff+l.conLen-1), vfs.FlipBit, w.r); err != nil {
			t.Fatal(err)
		}
		break
	}
	if rep, err := Check(w.mem, "q"); err != nil || len(rep.Problems) == 0 {
		t.Errorf("a flipped bit was not found: %+v, %v", rep, err)
	}
}
