package spool

import (
	"bytes"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/vfs"
)

func FuzzRecord(f *testing.F) {
	m := meta{created: 5, envelope: []byte("env"), recipients: []byte("rcpt"), hasEnv: true, nrcpt: 3, size: 9, next: 7, done: []byte{1}}
	b := m.append(nil)
	rec := startRecord(nil, recMSG, 0, 1, len(b), 0, checksum(b), 0)
	seal(rec, recFirst|recLast, 1, 1, 1, 0, 5, 9)
	f.Add(append(rec, b...))
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, ok := parseHeader(data, 9); ok && h.recLen() < headerLen {
			t.Errorf("record of %d bytes", h.recLen())
		}
		var m meta
		if m.decode(data) != nil {
			return
		}
		var again meta
		enc := m.append(nil)
		if err := again.decode(enc); err != nil {
			t.Fatalf("%v: %x", err, enc)
		}
		if !bytes.Equal(again.append(nil), enc) {
			t.Errorf("not stable: %x", enc)
		}
		l := live{nrcpt: m.nrcpt % 200}
		more := loadDone(&l, m.done)
		if l.npending > l.nrcpt || len(doneBitmap(&l, more)) > int(l.nrcpt+7)/8 {
			t.Errorf("%d of %d pending", l.npending, l.nrcpt)
		}
		queue.EachRcpt(data, tagRcpts, func(uint64) {})
		decodePoint(data)
		mergeOutcomes(data, data, func(uint64) bool { return false }, 100)
		var e mail.Envelope
		if e.Decode(data) == nil && e.ID == "" {
			t.Error("an envelope without a queue ID")
		}
	})
}

// FuzzRecover opens a spool whose segment has arbitrary bytes somewhere: it may
// complain, but it must open and work.
func FuzzRecover(f *testing.F) {
	f.Add(uint64(1), uint16(0), []byte("PHSEG001"))
	f.Add(uint64(2), uint16(4096), []byte("PHR1"))
	f.Add(uint64(3), uint16(8192+16), bytes.Repeat([]byte{0xff}, 600))
	f.Fuzz(func(t *testing.T, seed uint64, off uint16, data []byte) {
		w := newWorld(seed%8, 0)
		w.damage = true
		if err := w.guard(func() {
			if err := w.open(); err != nil {
				fail("%v", err)
			}
			w.settle()
			for range 6 {
				w.step()
			}
			files := sorted(w.e.segs)
			name := segName("q", files[seed%uint64(len(files))].file)
			file, err := w.mem.OpenWrite(name)
			if err != nil {
				fail("%v", err)
			}
			size, _ := file.Size()
			at := int64(off) % size
			if _, err := file.WriteAt(data[:min(int64(len(data)), size-at)], at); err != nil {
				fail("%v", err)
			}
			w.mem = w.mem.Cut(vfs.Loss{Sector: func(_, _, v int) int { return v }, Names: func(_, _, n int) int { return n }})
			if err := w.open(); err != nil {
				fail("open: %v", err)
			}
			msg, mm := w.newMessage(100, 1)
			c := &change{}
			c.add(msg, mm)
			if !w.commit(c) {
				fail("broken: %v", w.e.broken)
			}
			w.maintain(20)
			w.e.entries(func(en Entry) bool {
				tryRead(NewReader(w.mem, "q"), en)
				return true
			})
		}); err != nil {
			t.Fatal(err)
		}
	})
}
