package spool

import (
	"bytes"
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
		var out bytes.Buffer
		if err := Export(rd, en, &out); err != nil {
			t.Error(err)
			return true
		}
		want := bytes.ReplaceAll(m.body, []byte("\r\n"), []byte("\n"))
		if !bytes.HasSuffix(out.Bytes(), want) || !strings.Contains(out.String(), "X-Envelope-From: <sender@example.com>") {
			t.Errorf("message %s: exported as %.200q", en.ID, out.String())
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
		_, l := w.e.idx.find(n)
		if err := w.mem.Damage(segName("q", l.conSeg), int64(l.conOff+l.conLen-1), vfs.FlipBit, w.r); err != nil {
			t.Fatal(err)
		}
		break
	}
	if rep, err := Check(w.mem, "q"); err != nil || len(rep.Problems) == 0 {
		t.Errorf("a flipped bit was not found: %+v, %v", rep, err)
	}
}

func TestExportLines(t *testing.T) {
	t.Parallel()
	w := newWorld(3, 0)
	if err := w.guard(func() {
		if err := w.open(); err != nil {
			fail("open: %v", err)
		}
		w.settle()
		msg, mm := w.newMessage(10, 1)
		long := bytes.Repeat([]byte("x"), 4095)
		mm.big = true
		f, err := w.e.newFile()
		if err != nil {
			fail("%v", err)
		}
		mm.body = []byte("a\r\n\r\nb\rc\r\n" + string(long) + "\r\n\r" + string(long) + "\r")
		f.Write(mm.body)
		msg.Content, msg.File = nil, f
		c := &change{}
		c.add(msg, mm)
		w.commit(c)
		w.settle()
		en, _ := w.e.locate(mm.id)
		var out bytes.Buffer
		if err := Export(NewReader(w.mem, "q"), en, &out); err != nil {
			fail("%v", err)
		}
		want := "a\n\nb\rc\n" + string(long) + "\n\r" + string(long) + "\r"
		if !strings.HasSuffix(out.String(), want) {
			fail("got %q", out.String())
		}
	}); err != nil {
		t.Fatal(err)
	}
}
