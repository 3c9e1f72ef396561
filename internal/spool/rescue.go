package spool

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/vfs"
)

// This is what a start does about damage among what was durable: it finds out whom
// it concerns, falls back on older records, names what is lost, and keeps what is
// damaged for people to look at.

// A Finding is what damage has done to one message.
type Finding struct {
	// ID is the queue ID. When the time in it is not known it is "...z" and the end
	// of the ID, which no other message has.
	ID   string
	Lost bool   // the message is not in the queue any more
	Text string // what has become of it
}

// hurt is a damaged record of which the header is sound, or was mended.
type hurt struct {
	typ, flags uint8
	number     uint64
	batch      uint64
	id         mail.QueueID // "": not known
}

func (h *hurt) name() string {
	if h.id != "" {
		return string(h.id)
	}
	return endOfID(h.number)
}

// endOfID is what is known of the ID of a message of which only the number is.
func endOfID(number uint64) string {
	id := string(mail.MakeQueueID(time.Time{}, number))
	return "..." + id[strings.LastIndexByte(id, 'z'):]
}

// hurtOf makes out whose record it is whose metadata are damaged, or whose header was.
func hurtOf(h *header, metadata []byte) hurt {
	x := hurt{typ: h.typ, flags: h.flags, number: h.number, batch: h.batch}
	if h.typ != recMSG && h.typ != recSTATE {
		return x
	}
	p := slices.Clone(metadata)
	sound := uint32(len(p)) == h.metaLen && mendBit(p, h.metaCRC)
	x.id = idIn(p, h.number, sound)
	return x
}

// mendBit puts one wrong bit of p right, if there is none or one by its checksum.
// Longer metadata are looked at as they are: it takes a time that grows with
// their square.
func mendBit(p []byte, sum uint32) bool {
	if checksum(p) == sum {
		return true
	}
	if len(p) > maxMetaGuess {
		return false
	}
	for bit := range len(p) * 8 {
		p[bit/8] ^= 1 << (bit % 8)
		if checksum(p) == sum {
			return true
		}
		p[bit/8] ^= 1 << (bit % 8)
	}
	return false
}

// idIn looks for a message's ID in metadata. If they are damaged it counts only
// when it is in them twice.
func idIn(p []byte, number uint64, sound bool) mail.QueueID {
	var created, env mail.QueueID
	for r := pack.NewReader(p); r.Next(); {
		switch r.Tag() {
		case tagCreated:
			created = mail.MakeQueueID(time.UnixMicro(r.Int()), number)
		case tagEnvelope:
			var e mail.Envelope
			if e.Decode(r.Bytes()) == nil {
				env = e.ID
			}
		}
	}
	if sound || created == env {
		return created
	}
	return ""
}

// mend reads a record header of which one bit is wrong. It says whose it is; what the
// record says counts as damaged all the same.
func (sc *scanner) mend(off int64) (h header, ok bool) {
	p := sc.w.at(off, headerLen)
	if len(p) < headerLen || sc.any {
		return h, false
	}
	b := slices.Clone(p)
	for bit := range headerLen * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		h, ok = parseHeader(b, sc.key)
		if ok && h.segno == sc.s.segno && h.salt == sc.s.salt && h.version == recVersion &&
			h.typ > 0 && h.typ < numTypes && off+h.recLen() <= sc.s.size {
			return h, true
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	return h, false
}

// looksMendable says cheaply whether there may be a header at off.
func (sc *scanner) looksMendable(off int64) bool {
	b := sc.w.at(off, headerLen)
	return len(b) == headerLen && !isZero(b) && (bytes.HasPrefix(b, []byte("PHR1")) || bytes.Equal(b[16:24], sc.segnoBytes()))
}

// trace is what the log still says of a message that is not in the index.
type trace struct {
	rec  *rec // newest sound MSG or STATE
	seg  *segment
	done []partial // recipients done, in no order
	gone bool
	id   mail.QueueID // by a LIST, of a batch that matters; or ""
}

type partial struct {
	batch uint64
	list  []byte
}

// survey reads the whole log, also what is before the recovery point, and gives
// what there is of messages that are not in the index.
func (r *recovery) survey() (map[uint64]*trace, error) {
	e := r.e
	traces := map[uint64]*trace{}
	of := func(number uint64) *trace {
		t := traces[number]
		if t == nil {
			t = new(trace)
			traces[number] = t
		}
		return t
	}
	for _, s := range sorted(e.segs) {
		if s.segno == 0 {
			continue
		}
		sc := scanner{w: window{f: s.f, size: s.size}, s: s, planter: e.planter, key: e.key}
		sc.scan(func(b *logBatch) bool {
			for i := range b.recs {
				if b.recs[i].h.typ != recLIST {
					continue
				}
				eachListed(b.recs[i].done, func(x *listed) { // its existence proves those in it, whatever it is worth itself
					if !e.idx.has(x.number) && x.batch >= e.from.batch && !r.voided(x.batch, e.promised) {
						of(x.number).id = x.id()
					}
				})
			}
			if b.num > e.promised || r.voided(b.num, e.promised) {
				return true
			}
			for i := range b.recs {
				rc := &b.recs[i]
				if e.idx.has(rc.h.number) {
					continue
				}
				switch rc.h.typ {
				case recMSG, recSTATE:
					if t := of(rc.h.number); t.rec == nil || cmp.Or(cmp.Compare(t.rec.h.batch, b.num), cmp.Compare(t.rec.h.seq, rc.h.seq)) < 0 {
						c := *rc
						c.done = slices.Clone(rc.done)
						t.rec, t.seg = &c, s
					}
				case recDONE:
					t := of(rc.h.number)
					if rc.h.flags&recAll != 0 {
						t.gone = true
					} else {
						t.done = append(t.done, partial{b.num, slices.Clone(rc.done)})
					}
				}
			}
			return true
		})
		if err := r.unreadable(); err != nil {
			return nil, err
		}
	}
	return traces, nil
}

// rescue finds out what became of the messages whose records are damaged. It comes
// when all that is sound has been replayed, before anything is written.
func (r *recovery) rescue() error {
	if len(r.lost) == 0 {
		return nil
	}
	traces, err := r.survey()
	if err != nil {
		return err
	}
	hurts := map[uint64]*hurt{} // the last of each message
	anonymous := false
	for _, l := range r.lost {
		anonymous = anonymous || l.anonymous
		for i := range l.hurt {
			h := &l.hurt[i]
			if old := hurts[h.number]; h.number != 0 && (old == nil || old.batch <= h.batch) {
				hurts[h.number] = h
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(hurts)) {
		r.settle(hurts[n], traces[n])
	}
	if !anonymous {
		return nil
	}
	for _, n := range slices.Sorted(maps.Keys(traces)) {
		if t := traces[n]; t.rec == nil && t.id != "" && !t.gone && hurts[n] == nil {
			r.find(string(t.id), true, "LOST: nothing is left of it but that it was there")
		}
		if t := traces[n]; t.rec != nil && !t.gone && hurts[n] == nil && r.restore(n, t) {
			l := r.e.idx.edit(n)
			r.moveTo(l, Hold)
			r.unsure = append(r.unsure, n)
			r.find(string(l.id()), false, "put on hold: it is not known whether it was delivered; what would say so may be among what is lost. The log of that time tells: release it or delete it (postsuper)")
		}
	}
	return nil
}

// settle decides what becomes of a message with a damaged record.
func (r *recovery) settle(h *hurt, t *trace) {
	l := r.e.idx.find(h.number, &r.e.w.found)
	isDone := h.typ == recDONE
	switch {
	case h.typ == recHANDED:
		// It says of nobody that he is done, nor where the message is.
		if l != nil {
			r.find(string(l.id()), false, "in the queue: a record that some recipients were being delivered to is damaged; they may have got it, and may get it again")
		}
	case l != nil:
		h.id = l.id()
		if r.newest[h.number] > h.batch {
			return // a later record says it all
		}
		if isDone {
			r.find(h.name(), false, "in the queue: a record of what was delivered of it is damaged; some recipients may get it again")
		} else {
			r.find(h.name(), false, "in the queue as it was before its last change, whose record is damaged; recipients that were done then may get it again")
		}
	case t != nil && t.gone || isDone && h.flags&recAll != 0 && (t == nil || t.rec == nil):
		// It had left the queue.
	case t != nil && t.rec != nil && r.restore(h.number, t):
		l := r.e.idx.find(h.number, &r.e.w.found)
		r.find(string(l.id()), false, "in the queue again by an older record, as the last one is damaged; recipients that were done since may get it again")
	case !isDone && !r.e.planted(plantUnnamed):
		if t != nil && h.id == "" {
			h.id = t.id
		}
		r.find(h.name(), true, "LOST: its record is damaged, and there is no other")
	}
}

// restore puts a message into the index by an older record.
func (r *recovery) restore(number uint64, t *trace) bool {
	e := r.e
	r.applyState(t.seg, t.rec)
	for _, p := range t.done {
		if p.batch >= t.rec.h.batch {
			r.applyDone(&rec{h: header{typ: recDONE, number: number}, done: p.list})
		}
	}
	there := e.idx.has(number)
	if there {
		r.restored = append(r.restored, number)
	}
	return there
}

func (r *recovery) moveTo(l *live, q Queue) {
	r.e.byQueue[l.queue]--
	l.queue = uint8(q)
	r.e.byQueue[l.queue]++
}

// maxFindings bounds RecoveryReport.Findings.
const maxFindings = 1000

func (r *recovery) find(id string, lost bool, text string) {
	r.e.warn("spool: damage: message %s: %s", id, text)
	if len(r.rep.Findings) == maxFindings {
		r.rep.MoreFindings++
		return
	}
	r.rep.Findings = append(r.rep.Findings, Finding{ID: id, Lost: lost, Text: text})
}

// leaveDamage keeps what is damaged for people, records again what was restored,
// and moves the recovery point past it. In this order: a start that dies
// on the way is repeated.
func (r *recovery) leaveDamage() error {
	if r.rep.Alarms == 0 {
		return nil
	}
	if err := r.quarantine(); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	if err := r.recordRestored(); err != nil {
		return err
	}
	return r.passDamage()
}

// recordRestored writes the states of the messages that were put into the index by
// records from before the recovery point (invariant 5).
func (r *recovery) recordRestored() error {
	e := r.e
	for len(r.restored) > 0 {
		e.begin()
		for len(r.restored) > 0 && e.w.size() < e.stepBytes()/2 {
			n := r.restored[0]
			r.restored = r.restored[1:]
			if l := e.idx.find(n, &e.w.found); l != nil {
				e.putState(e.stage(n, l.created), nil)
			}
		}
		if err := r.unreadable(); err != nil {
			return err
		}
		if err := e.flush(false); err != nil {
			return err
		}
	}
	return nil
}

// passDamage writes the states of all mail when that is little, so that the next
// start does not find the damage again. With much mail the checkpoints get there.
func (r *recovery) passDamage() error {
	e := r.e
	if len(r.lost) == 0 || e.idx.len() > maxBootStates || e.metaSum > min(e.lim.unit, e.lim.segSize/4) {
		return nil
	}
	e.begin()
	e.w.force, e.w.upkeep, e.w.leave = true, true, e.left()
	e.idx.each(func(l *live) { e.putState(e.stage(l.number, l.created), nil) })
	if err := r.unreadable(); err != nil {
		return err
	}
	e.moved = point{batch: e.batch, segno: e.nextSegno + 1}
	e.turn = true // a recovery point is where a segment begins
	err := e.flush(false)
	e.turn = false
	if errors.Is(err, ErrFull) {
		e.moved = point{}
		return nil
	}
	return err
}

// Bounds of what quarantine keeps.
const (
	maxQuarantined      = 16
	maxQuarantinedBytes = 1 << 30
)

// quarantine copies damaged segments, as they are, into the directory for
// that, and a list of what was found: the segments themselves are used again once
// what is sound in them has been dealt with. While anything is in it, content files that no
// message has are kept as well.
func (r *recovery) quarantine() error {
	e := r.e
	dir := path.Join(e.dir, damagedDir)
	if err := e.fs.MkdirAll(dir); err != nil {
		return err
	}
	have, octets, err := r.quarantined(dir)
	if err != nil {
		return err
	}
	done := map[*segment]bool{}
	for _, l := range r.lost {
		s := l.seg
		if s == nil || done[s] {
			continue
		}
		done[s] = true
		name := fmt.Sprintf("%d-%08d.seg", l.segno, s.file)
		if slices.Contains(have, name) {
			continue
		}
		free, err := e.fs.Free(dir)
		if err != nil || len(done) > maxQuarantined || octets+s.size > maxQuarantinedBytes || free < s.size+e.lim.minFree+int64(forStarts+forWork)*e.lim.segSize {
			e.warn("spool: damage: there is no room for a copy of %s in %s: make one if you want to look at it, before it is used again", segName(e.dir, s.file), dir)
			continue
		}
		octets += s.size
		if err := copyFile(e.fs, s.f, s.size, path.Join(dir, name)); err != nil {
			e.warn("spool: damage: %s cannot be copied to %s: %v", segName(e.dir, s.file), dir, err)
		}
	}
	return r.writeReport(dir, have)
}

// quarantined lists what is there already.
func (r *recovery) quarantined(dir string) (names []string, octets int64, err error) {
	names, err = r.e.fs.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	for _, name := range names {
		if f, err := r.e.fs.Open(path.Join(dir, name)); err == nil {
			n, _ := f.Size()
			octets += n
			f.Close()
		}
	}
	return names, octets, err
}

// copyFile makes a durable copy, with zeros for what cannot be read. Its name is
// made durable by others.
func copyFile(fsys vfs.FS, from vfs.File, size int64, name string) error {
	to, err := fsys.Create(name)
	if err != nil {
		return err
	}
	buf := make([]byte, windowLen)
	for off := int64(0); off < size && err == nil; off += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), size-off)]
		readAround(from, b, off)
		_, err = to.WriteAt(b, off)
	}
	if err == nil {
		err = to.Datasync()
	}
	err = errors.Join(err, to.Close())
	if err != nil {
		err = errors.Join(err, fsys.Remove(name))
	}
	return err
}

// reportName is that of the report about this damage: the next start may find it
// again.
func (r *recovery) reportName() string {
	if n := len(r.lost); n > 0 {
		return fmt.Sprintf("report-%d-%d.txt", r.lost[0].num, r.lost[n-1].num)
	}
	var sum uint32
	for _, f := range r.rep.Findings {
		sum ^= checksum([]byte(f.ID))
	}
	return fmt.Sprintf("report-%08x.txt", sum)
}

// writeReport writes down what was found, once.
func (r *recovery) writeReport(dir string, have []string) error {
	e := r.e
	base := r.reportName()
	if slices.Contains(have, base) {
		return nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "Damage to the queue, found at %s:\n\n", e.now().UTC().Format(time.RFC3339))
	for _, l := range r.lost {
		fmt.Fprintf(&text, "%s\n", l.text)
	}
	text.WriteByte('\n')
	for _, f := range r.rep.Findings {
		fmt.Fprintf(&text, "message %s: %s\n", f.ID, f.Text)
	}
	if r.rep.MoreFindings > 0 {
		fmt.Fprintf(&text, "and %d more, in the log\n", r.rep.MoreFindings)
	}
	f, err := e.fs.Create(path.Join(dir, base))
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(text.String()), 0)
	if err == nil {
		err = f.Datasync()
	}
	r.rep.Report = text.String()
	return errors.Join(err, f.Close(), e.fs.SyncDir(dir))
}
