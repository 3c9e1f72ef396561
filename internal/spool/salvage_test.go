package spool

import (
	"bytes"
	"hash/crc32"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

func TestUnwind(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		start, p := rapid.Uint32().Draw(t, "start"), rapid.SliceOf(rapid.Byte()).Draw(t, "p")
		if got := unwind(crc32.Update(start, castagnoli, p), p); got != start {
			t.Fatalf("%x, want %x", got, start)
		}
	})
}

// salvage is what Salvage gets out of p's files.
func (p *patient) salvage() (got map[mail.QueueID][]byte, orphans map[string][]byte, lost []string) {
	p.t.Helper()
	got, orphans = map[mail.QueueID][]byte{}, map[string][]byte{}
	err := Salvage(p.fs, "q", func(text string) { lost = append(lost, text) }, func(rd *Reader, en Entry, sure bool) error {
		st, err := rd.Read(en.Ref, en.ID)
		if err != nil {
			return err
		}
		c, err := st.Content()
		if err != nil {
			return err
		}
		defer c.Close()
		body, err := io.ReadAll(c)
		if err == nil {
			got[en.ID] = body
		}
		return err
	}, func(name string, content io.Reader) (err error) {
		orphans[name], err = io.ReadAll(content)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return got, orphans, lost
}

// TestSalvage: whatever of a spool's identity is damaged, all mail comes out of it, and
// what is damaged otherwise is named, by check and by salvage.
func TestSalvage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		spoil func(p *patient) (lost []mail.QueueID)
		sound bool // check says that all is well
		told  string
	}{
		{"nothing", func(p *patient) []mail.QueueID { return nil }, true, ""},
		{"all headers", func(p *patient) []mail.QueueID { p.behead(p.segments()...); return nil }, false, "header is damaged"},
		{"IDENTITY", func(p *patient) []mail.QueueID { p.zero("q/IDENTITY", 0, identityLen); return nil }, false, "IDENTITY: 0 of its two records"},
		{"both", func(p *patient) []mail.QueueID {
			p.behead(p.segments()...)
			p.zero("q/IDENTITY", 0, identityLen)
			return nil
		}, false, "identity"},
		{"a message", func(p *patient) []mail.QueueID {
			id := p.some()
			p.flip(p.at(id, headerLen+30))
			return []mail.QueueID{id}
		}, false, ""},
		{"its content", func(p *patient) []mail.QueueID {
			id := p.some()
			en := p.entry(id)
			p.flip(segName("q", en.Ref.File), int64(en.Ref.Offset+en.Ref.Length)-4)
			return []mail.QueueID{id}
		}, false, ""},
		{"a large one's record", func(p *patient) []mail.QueueID {
			for id, body := range p.want {
				if len(body) > 50000 {
					p.flip(p.at(id, 1))
					return []mail.QueueID{id}
				}
			}
			return nil
		}, false, ""},
		{"a large one's content", func(p *patient) []mail.QueueID {
			for id, body := range p.want {
				if len(body) > 50000 {
					p.flip("q/big/"+string(id), 70000)
					return []mail.QueueID{id}
				}
			}
			return nil
		}, false, ""},
		{"a block that cannot be read", func(p *patient) []mail.QueueID {
			id := p.some()
			name, off := p.at(id, 0)
			s := &sick{times: 1 << 30, bad: func(n string, at int64, l int) bool {
				return n == name && at <= off && off < at+int64(l)
			}}
			p.fs = &vfs.Faulty{FS: p.mem, Hook: s.hook}
			return []mail.QueueID{id}
		}, false, "cannot be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := filled(t)
			if err := p.e.promise(); err != nil {
				t.Fatal(err)
			}
			lost := tt.spoil(p)
			p.stop(false)
			before := p.contents()
			got, orphans, told := p.salvage()
			p.unchanged(before)
			missing := 0
			for id, body := range p.want {
				if !bytes.Equal(got[id], body) {
					missing++
					if len(lost) != 1 || lost[0] != id {
						t.Errorf("%s did not come out", id)
					}
				}
				if orphan, ok := orphans[string(id)]; ok && !bytes.Equal(orphan, body) {
					t.Errorf("%s: the content alone differs: %d octets", id, len(orphan))
				}
			}
			if len(got) != len(p.want)-missing || missing > len(lost) {
				t.Errorf("%d of %d messages, %d missing", len(got), len(p.want), missing)
			}
			rep, err := Check(p.fs, "q")
			if err != nil {
				t.Fatal(err)
			}
			if (len(rep.Problems) == 0) != tt.sound {
				t.Errorf("check: %q", rep.Problems)
			}
			for _, list := range [][]string{told, rep.Problems} {
				text := strings.Join(list, "\n")
				if !strings.Contains(text, tt.told) && tt.name != "IDENTITY" {
					t.Errorf("not told %q: %s", tt.told, text)
				}
				for _, id := range lost {
					if end := endOfID(id.Number())[3:]; tt.told == "" && !strings.Contains(text, end) {
						t.Errorf("%s is not named: %s", id, text)
					}
				}
			}
		})
	}
}

// some is a message in the log that is not the last.
func (p *patient) some() mail.QueueID {
	var best mail.QueueID
	for id, body := range p.want {
		if len(body) > 3000 && len(body) < 4000 && (best == "" || id < best) {
			best = id
		}
	}
	return best
}

func (p *patient) entry(id mail.QueueID) Entry {
	p.t.Helper()
	en, ok := p.e.locate(id)
	if !ok {
		p.t.Fatalf("no message %s", id)
	}
	return en
}

// at is where an octet of a message's record is.
func (p *patient) at(id mail.QueueID, off int64) (name string, at int64) {
	en := p.entry(id)
	return segName("q", en.Ref.File), int64(en.Ref.Offset) + off
}

// TestSalvageCopies: of messages that a start has given up as lost, salvage gets out what the copies of the damaged
// segments have, and says that it is not sure of them; it does not give what has left the queue.
func TestSalvageCopies(t *testing.T) {
	t.Parallel()
	p := newPatient(t, 64<<10)
	p.mustStart()
	gone := p.add(700)
	lost := p.add(900)
	there := p.add(800)
	if err := p.e.promise(); err != nil {
		t.Fatal(err)
	}
	p.deliver(gone)
	if err := p.e.promise(); err != nil {
		t.Fatal(err)
	}
	body := p.want[lost]
	p.stop(true)
	// What was damaged then, as a copy of it has it; and an operator has removed the message since.
	seg := p.contents()
	p.mustStart()
	var b Batch
	b.Remove(there)
	p.commit(&b)
	p.stop(true)
	if err := p.mem.MkdirAll("q/" + damagedDir); err != nil {
		t.Fatal(err)
	}
	n := 0
	for name, text := range seg {
		if !strings.HasPrefix(name, "q/seg/") || !strings.Contains(text, "PHR1") {
			continue
		}
		n++
		f, err := p.mem.Create("q/" + damagedDir + "/1-" + strings.TrimPrefix(name, "q/seg/"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte(text), 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if n == 0 {
		t.Fatal("no segment to copy")
	}
	// The log knows nothing of the lost one.
	p.mem.Restart()
	for name := range p.contents() {
		if strings.HasPrefix(name, "q/seg/") {
			if err := p.mem.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	sure := map[mail.QueueID]bool{}
	got := map[mail.QueueID][]byte{}
	err := Salvage(p.fs, "q", func(text string) {}, func(rd *Reader, en Entry, ok bool) error {
		sure[en.ID] = ok
		st, err := rd.Read(en.Ref, en.ID)
		if err != nil {
			return err
		}
		c, err := st.Content()
		if err != nil {
			return err
		}
		defer c.Close()
		got[en.ID], err = io.ReadAll(c)
		return err
	}, func(string, io.Reader) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[lost], body) || sure[lost] {
		t.Errorf("the lost one: %d octets, sure %v", len(got[lost]), sure[lost])
	}
	if _, back := got[gone]; back {
		t.Error("what was delivered came out")
	}
}
