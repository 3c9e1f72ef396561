package spool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// named says whether the report names a message, by its ID or the end of it.
func (p *patient) named(id mail.QueueID) *Finding {
	for i := range p.rep.Findings {
		f := &p.rep.Findings[i]
		if f.ID == string(id) || strings.HasPrefix(f.ID, "...z") && strings.HasSuffix(string(id), f.ID[3:]) {
			return f
		}
	}
	return nil
}

// records are where the records of messages lie.
func (p *patient) records() (list []rec, segs []*segment) {
	for _, s := range sorted(p.e.segs) {
		sc := scanner{w: window{f: s.f, size: s.size}, s: s, key: p.e.key}
		sc.scan(func(b *logBatch) bool {
			for _, r := range b.recs {
				if r.h.number != 0 {
					list, segs = append(list, r), append(segs, s)
				}
			}
			return true
		})
	}
	return list, segs
}

// mailbag is a patient with mail in all states: new, deferred, delivered in part.
func mailbag(t *testing.T) *patient {
	p := newPatient(t, 64<<10)
	p.mustStart()
	var ids []mail.QueueID
	for i := range 12 {
		ids = append(ids, p.add(300+50*i))
	}
	p.deferAll(ids[3:6]...)
	var b Batch
	b.Done(ids[7], []int{1})
	p.commit(&b)
	p.deliver(ids[9])
	if err := p.e.promise(); err != nil {
		t.Fatal(err)
	}
	return p
}

// Every bit of a record's header and metadata: whoever it concerns is named, and
// all others are as they were. A message of which there is another record is
// not lost.
func TestOneBit(t *testing.T) {
	once(t)
	t.Parallel()
	p := mailbag(t)
	list, segs := p.records()
	want := p.want
	p.stop(false)
	clean := p.mem
	count := map[string]int{}
	for i := range list {
		r := &list[i]
		others := slices.ContainsFunc(list, func(o rec) bool {
			return o.h.number == r.h.number && o.h.typ != recDONE && o.off != r.off
		})
		for bit := int64(0); bit < headerLen+int64(r.h.metaLen); bit += 3 {
			p.mem = clean.Clone()
			p.fs, p.want = p.mem, want
			p.flip(segName("q", segs[i].file), int64(r.off)+bit)
			if err := p.start(); err != nil {
				t.Fatalf("%s of message %d, octet %d: %v", typeNames[r.h.typ], r.h.number, bit, err)
			}
			what := fmt.Sprintf("%s of message %d, octet %d", typeNames[r.h.typ], r.h.number, bit)
			p.judgeBit(what, r.h.number, r.h.typ, others, count)
			if t.Failed() {
				t.Fatalf("%s: %+v\n%s", what, p.rep, strings.Join(p.warns, "\n"))
			}
		}
	}
	t.Logf("%v", count)
}

func (p *patient) judgeBit(what string, number uint64, typ uint8, others bool, count map[string]int) {
	p.t.Helper()
	if p.rep.Alarms == 0 {
		p.t.Errorf("%s: no alarm", what)
	}
	var about mail.QueueID
	for id := range p.want {
		if id.Number() == number {
			about = id
		}
	}
	back := map[mail.QueueID]bool{}
	p.e.entries(func(en Entry) bool { back[en.ID] = true; return true })
	for id := range back {
		if p.want[id] == nil { // delivered: it may come back, by name
			if p.named(id) == nil {
				p.t.Errorf("%s: %s came back, and is not named", what, id)
			}
			count["came back"]++
		}
	}
	for id := range p.want {
		switch {
		case id == about && !back[id] && (typ != recMSG || others):
			p.t.Errorf("%s: it is gone, though there is another record", what)
		case id == about && !back[id]:
			count["lost"]++
			if f := p.named(id); f == nil || !f.Lost {
				p.t.Errorf("%s: it is lost and not named", what)
			}
		case !back[id]:
			p.t.Errorf("%s: %s is gone", what, id)
		case id == about:
			count["kept"]++
		}
	}
	if !strings.Contains(p.rep.Report, "Damage to the queue") {
		p.t.Errorf("%s: no report", what)
	}
}

// The states of all mail are recorded again at a start, and the recovery point is
// behind the messages themselves. When a state is damaged the message is there.
func TestDamagedStateBehindPoint(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"one bit", "a block", "a batch"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := mailbag(t)
			gone := p.add(400)
			p.deliver(gone)
			p.stop(true)
			p.mustStart() // BOOT, with all states
			p.add(500)
			if err := p.e.promise(); err != nil {
				t.Fatal(err)
			}
			list, segs := p.records()
			p.stop(false)
			top := segs[0]
			for _, s := range segs {
				if s.segno > top.segno {
					top = s
				}
			}
			var hit []rec
			for i := range list {
				if segs[i] == top && list[i].h.typ == recSTATE {
					hit = append(hit, list[i])
				}
			}
			if len(hit) < 5 || hit[0].h.batch < p.e.from.batch {
				t.Fatalf("%d states", len(hit))
			}
			name := segName("q", top.file)
			switch what {
			case "one bit":
				p.flip(name, int64(hit[2].off)+headerLen+3)
				hit = hit[2:3]
			case "a block":
				p.zero(name, headRoom, blockSize)
			case "a batch":
				p.zero(name, headRoom, alignUp(int64(hit[len(hit)-1].off), blockSize)-headRoom)
			}
			p.mustStart()
			if p.rep.Alarms == 0 {
				t.Errorf("%+v", p.rep)
			}
			back := map[mail.QueueID]Entry{}
			p.e.entries(func(en Entry) bool { back[en.ID] = en; return true })
			for id := range p.want {
				en, ok := back[id]
				f := p.named(id)
				if !ok || en.Queue == Corrupt {
					t.Errorf("%s is gone, or in %v", id, en.Queue)
				}
				if slices.ContainsFunc(hit, func(r rec) bool { return r.h.number == id.Number() }) && f == nil && en.Attempts == 0 && en.Queue == Hold {
					t.Errorf("%s is not named", id)
				}
				if en.Queue == Hold && f == nil {
					t.Errorf("%s is on hold and not named", id)
				}
			}
			if _, ok := back[gone]; ok {
				t.Errorf("%s was delivered and came back", gone)
			}
			if what == "one bit" && (len(p.rep.Findings) != 1 || p.rep.Findings[0].Lost) {
				t.Errorf("%+v", p.rep.Findings)
			}
			// It is said once, kept for people, and over.
			report := p.rep.Report
			files := p.contents()
			kept := 0
			for name := range files {
				if strings.HasPrefix(name, "q/damaged/") {
					kept++
				}
			}
			if report == "" || kept < 1 || what == "one bit" && kept < 2 {
				t.Errorf("report %q, %d files", report, kept)
			}
			p.stop(false)
			p.mustStart()
			if p.rep.Report != "" || p.rep.Alarms > 0 {
				t.Errorf("again: %+v", p.rep)
			}
			after := map[mail.QueueID]bool{}
			p.e.entries(func(en Entry) bool { after[en.ID] = true; return true })
			for id := range p.want {
				if !after[id] {
					t.Errorf("%s is gone after one more start", id)
				}
			}
		})
	}
}

// A content file of which nothing is known stays while damage is unresolved, however
// often the spool is started, and goes when somebody has dealt with that.
func TestOrphansStay(t *testing.T) {
	t.Parallel()
	p := mailbag(t)
	big := p.add(100 << 10)
	if err := p.e.promise(); err != nil {
		t.Fatal(err)
	}
	en, _ := p.e.locate(big)
	p.stop(false)
	p.zero(segName("q", en.Ref.File), int64(en.Ref.Offset), 512)
	there := func() bool { return p.contents()["q/big/"+string(big)] != "" }
	for i := range 3 {
		p.mustStart()
		if f := p.named(big); f == nil || !there() {
			t.Errorf("start %d: there %v, named %v", i, there(), f)
		}
		p.intact(big)
		p.stop(i == 1)
	}
	for name := range p.contents() {
		if strings.HasPrefix(name, "q/damaged/") {
			if err := p.mem.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.mustStart()
	if there() || p.rep.Orphans != 1 {
		t.Errorf("after the damage was dealt with: there %v, %+v", there(), p.rep)
	}
}

// A message whose sync failed, and whose client was told 451, is in the log all the
// same when the process ends: it is delivered, and named.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	p := newPatient(t, 64<<10)
	p.mustStart()
	p.add(300)
	p.add(100 << 10)
	if err := p.e.promise(); err != nil {
		t.Fatal(err)
	}
	p.stop(false)
	var fail atomic.Bool
	p.fs = &vfs.Faulty{FS: p.mem, Hook: func(op vfs.Op) error {
		if fail.Load() && op.Kind == vfs.OpSync {
			return syscall.EIO
		}
		return nil
	}}
	p.mustStart()
	answered := p.add(300)
	if err := p.e.promise(); err != nil {
		t.Fatal(err)
	}
	fail.Store(true)
	refused := mail.MakeQueueID(time.Unix(1700000000, 0), p.next)
	body := []byte("refused\r\n")
	var b Batch
	b.Add(Message{ID: refused, Envelope: testEnvelope(refused, len(body)), Recipients: testRecipients(1), NRcpt: 1, Content: body})
	if _, err := p.e.commit([]*request{{b: &b}}); !errors.Is(err, ErrBroken) {
		t.Fatal(err)
	}
	fail.Store(false)
	p.stop(false)
	p.mustStart()
	p.want[refused] = body // it is there, as nobody could take it back
	p.intact()
	if !slices.Equal(p.rep.Unanswered, []mail.QueueID{refused}) || p.rep.MoreUnanswered != 0 {
		t.Errorf("%v, want %s and not %s", p.rep.Unanswered, refused, answered)
	}
	p.stop(true)
	p.mustStart()
	if len(p.rep.Unanswered) > 0 {
		t.Errorf("after a clean end: %v", p.rep.Unanswered)
	}
}
