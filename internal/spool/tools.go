package spool

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/vfs"
)

// The functions here look at a spool without writing to it, whether or not
// another process has it open. What they see of a spool that is in use
// is of one moment per segment, not of one moment for all.

// Report is what Check finds.
type Report struct {
	Segments int // files with a use
	Free     int // files without one
	Batches  int
	Records  int
	Messages int // live
	Pending  int // their recipients with something to do
	Bytes    int64
	Tail     int      // batches that nobody promised: recovery will write them again
	Lost     []string // queue IDs of messages that are not there any more, or their ends; they are among the problems
	Half     []string // segments of which one copy of the header is damaged, or an older use's; a crash leaves such
	Kept     []string // files in the directory "damaged": of damage that was found before
	Problems []string // what is damaged or contradicts itself; nil: consistent
}

func (r *Report) problem(format string, args ...any) {
	if len(r.Problems) < 1000 {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// readOnly passes everything on that does not change the file system, and
// pretends the little of the rest that recovery does before it writes.
type readOnly struct{ vfs.FS }

var errReadOnly = errors.New("spool: opened for reading only")

func (r readOnly) OpenWrite(name string) (vfs.File, error) { return r.Open(name) }
func (r readOnly) OpenIdle(string) (vfs.File, error)       { return nil, errReadOnly }
func (r readOnly) Create(string) (vfs.File, error)         { return nil, errReadOnly }
func (r readOnly) CreateTemp(string) (vfs.File, error)     { return nil, errReadOnly }
func (r readOnly) Link(vfs.File, string) error             { return errReadOnly }
func (r readOnly) Rename(string, string) error             { return errReadOnly }
func (r readOnly) Remove(string) error                     { return nil }
func (r readOnly) MkdirAll(string) error                   { return nil }
func (r readOnly) SyncDir(string) error                    { return nil }

// view replays the log in dir without writing. Problems go to warn. With anyhow it
// goes on without an identity, too.
func view(fs vfs.FS, dir string, anyhow bool, warn func(string, ...any)) (*engine, *recovery, error) {
	if fs == nil {
		fs = vfs.OfOwner(dir)
	}
	lim, err := deriveLimits(&Options{})
	if err != nil {
		return nil, nil, err
	}
	e := &engine{fs: readOnly{fs}, dir: dir, lim: lim, warn: warn, random: func([]byte) {}, now: time.Now, sleep: time.Sleep, readOnly: true,
		idx: newIndex(), segs: map[uint32]*segment{}}
	r := newRecovery(e)
	r.anyhow = anyhow
	where, err := ContentDir(e.fs, dir)
	if errors.Is(err, ErrUnread) {
		err = nil // checkPlace says so
	}
	if err != nil {
		return nil, nil, fmt.Errorf("spool: %w", err)
	}
	e.content = awayPlace(e.fs, dir, nil, where)
	if err := r.view(); err != nil {
		return nil, nil, errors.Join(err, e.closeFiles())
	}
	return e, r, nil
}

// view replays the log, and does nothing of what a start writes.
func (r *recovery) view() error {
	if err := r.findSegments(); err != nil {
		return err
	}
	if err := r.replay(); err != nil {
		return err
	}
	for _, b := range r.tail {
		r.apply(b)
	}
	r.passTail()
	for _, l := range r.lost {
		r.alarm("%s", l.text)
	}
	if err := r.rescue(); err != nil {
		return err
	}
	r.setLost()
	return r.checkPlace()
}

// Check reads the whole of a spool, content included, verifies every
// checksum that matters, and counts. An error means that it could not look;
// what it found wrong is in the Report.
func Check(fs vfs.FS, dir string) (Report, error) {
	var rep Report
	e, r, err := view(fs, dir, false, func(format string, args ...any) { rep.problem(format, args...) })
	if errors.Is(err, ErrNoIdentity) {
		rep.problem("%v", err)
		return rep, nil
	}
	if err != nil {
		return rep, err
	}
	rep.Tail = len(r.tail)
	for _, s := range sorted(e.segs) {
		rep.Bytes += s.size
		if s.segno == 0 {
			rep.Free++
			continue
		}
		rep.Segments++
		sc := scanner{w: window{f: s.f, size: s.size}, s: s, key: e.key}
		sc.scan(func(b *logBatch) bool {
			rep.Batches++
			rep.Records += len(b.recs)
			return true
		})
	}
	for _, f := range r.rep.Findings {
		if f.Lost {
			rep.Lost = append(rep.Lost, f.ID)
		}
	}
	r.checkFiles(&rep)
	rd := NewReader(e.fs, dir)
	e.entries(func(en Entry) bool {
		rep.Messages++
		rep.Pending += en.NPending
		if en.NPending == 0 || en.NPending > en.NRcpt {
			rep.problem("message %s has %d of %d recipients pending", en.ID, en.NPending, en.NRcpt)
		}
		if err := verifyAll(rd, en); err != nil {
			rep.problem("%v", err)
		}
		return true
	})
	return rep, errors.Join(rd.Close(), e.closeFiles())
}

// checkFiles looks at what is not in the log.
func (r *recovery) checkFiles(rep *Report) {
	e := r.e
	if !r.hadIdentity && r.second {
		rep.problem("%s: gone; the segments say which spool this is", identityFile)
	}
	if r.hadIdentity && r.copies < 2 {
		rep.problem("%s: %d of its two records are sound", identityFile, r.copies)
	}
	for _, s := range sorted(e.segs) {
		var h segHeader
		b := make([]byte, headRoom)
		bad := readAround(s.f, b, 0)
		if ok, _ := h.read(b); ok && !h.whole {
			rep.Half = append(rep.Half, segName("", s.file))
		}
		if bad > 0 {
			rep.problem("%s: %d octets of its header cannot be read", segName(e.dir, s.file), bad)
		}
	}
	var err error
	if rep.Kept, _, err = r.quarantined(path.Join(e.dir, damagedDir)); err != nil {
		rep.problem("%v", err)
	}
}

// Dump writes every record of the log to w, one line each, segment by
// segment in the order of their use, with what a person needs to follow
// a message: grep for its queue ID.
func Dump(fs vfs.FS, dir string, w io.Writer) error {
	if fs == nil {
		fs = vfs.OfOwner(dir)
	}
	out := bufio.NewWriter(w)
	e := &engine{fs: readOnly{fs}, dir: dir, warn: func(format string, args ...any) { fmt.Fprintf(out, "# "+format+"\n", args...) },
		idx: newIndex(), segs: map[uint32]*segment{}, random: func([]byte) {}, sleep: time.Sleep, readOnly: true}
	r := newRecovery(e)
	if err := r.findSegments(); err != nil {
		return errors.Join(err, e.closeFiles())
	}
	list := sorted(e.segs)
	slices.SortStableFunc(list, func(a, b *segment) int { return cmp.Compare(a.segno, b.segno) })
	ids := map[uint64]mail.QueueID{} // DONE records have only the number
	for _, s := range list {
		if s.segno == 0 { // a spare, which has never been used
			continue
		}
		fmt.Fprintf(out, "segment %d file %s size %d first batch %d\n", s.segno, path.Join(segDir, fmt.Sprintf("%08d.seg", s.file)), s.size, s.firstBatch)
		sc := scanner{w: window{f: s.f, size: s.size}, s: s, key: e.key}
		sc.scan(func(b *logBatch) bool {
			state := ""
			if b.bad {
				state = " (incomplete)"
			}
			fmt.Fprintf(out, " batch %d%s\n", b.num, state)
			for i := range b.recs {
				dumpRecord(out, &b.recs[i], ids)
			}
			return true
		})
	}
	return errors.Join(out.Flush(), e.closeFiles())
}

func dumpRecord(w io.Writer, r *rec, ids map[uint64]mail.QueueID) {
	h := &r.h
	fmt.Fprintf(w, "  %9d %-5s seq %d promised %d", r.off, typeNames[h.typ], h.seq, h.promised)
	switch h.typ {
	case recMSG, recSTATE:
		l := &r.m
		ids[h.number] = l.id()
		fmt.Fprintf(w, " %s %s rcpts %d attempts %d size %d meta %d content %d", l.id(), Queue(l.queue), l.nrcpt, l.attempts, l.size, h.metaLen, h.bodyLen)
		if l.next != 0 {
			fmt.Fprintf(w, " next %s", time.UnixMicro(l.next).UTC().Format(time.RFC3339))
		}
		if len(r.tenant) > 0 {
			fmt.Fprintf(w, " tenant %s", r.tenant)
		}
		if r.big > 0 {
			fmt.Fprintf(w, " file of %d", r.big)
		}
		if h.typ == recSTATE {
			fmt.Fprintf(w, " message in segment %d at %d", r.msg.Segno, r.msg.Offset)
		}
		if len(r.done) > 0 {
			fmt.Fprintf(w, " done %x", r.done)
		}
		if h.flags&recDamaged != 0 {
			fmt.Fprint(w, " damaged")
		}
	case recDONE:
		fmt.Fprintf(w, " %s", idOf(ids, h.number))
		var list []string
		if err := queue.EachRcpt(r.done, tagRcpts, func(i uint64) { list = append(list, fmt.Sprint(i)) }); err != nil {
			fmt.Fprintf(w, " %v", err)
		}
		switch {
		case h.flags&recRemoved != 0:
			fmt.Fprint(w, " removed")
		case h.flags&recAll != 0:
			fmt.Fprint(w, " all")
		default:
			fmt.Fprintf(w, " recipients %s", strings.Join(list, ","))
		}
	case recHANDED:
		dumpHanded(w, r, ids)
	case recLIST:
		eachListed(r.done, func(x *listed) { fmt.Fprintf(w, " %s", x.id()) })
	case recBOOT:
		fmt.Fprintf(w, " void after %d", r.void)
		fallthrough
	case recCKPT:
		fmt.Fprintf(w, " recover from batch %d segment %d", r.point.batch, r.point.segno)
	}
	fmt.Fprintln(w)
}

// idOf names a message of whose records only some have the ID.
func idOf(ids map[uint64]mail.QueueID, number uint64) string {
	if id, ok := ids[number]; ok {
		return string(id)
	}
	return fmt.Sprintf("number %d", number)
}

func dumpHanded(w io.Writer, r *rec, ids map[uint64]mail.QueueID) {
	fmt.Fprintf(w, " %s", idOf(ids, r.h.number))
	err := decodeHandings(r.handed, func(h handing) {
		fmt.Fprintf(w, " recipients %s to %q at %s", strings.Trim(fmt.Sprint(h.Rcpts), "[]"), h.Nexthop, time.UnixMicro(h.At).UTC().Format(time.RFC3339))
	})
	if err != nil {
		fmt.Fprintf(w, " %v", err)
	}
}

// View calls yield for each message of a spool that is not open here, until
// it returns false: for mailq and the like when nothing runs. Damage is told
// through warn, which may be nil.
func View(fs vfs.FS, dir string, warn func(string, ...any), yield func(Entry) bool) error {
	if warn == nil {
		warn = func(string, ...any) {}
	}
	e, _, err := view(fs, dir, false, warn)
	if err != nil {
		return err
	}
	e.entries(yield)
	return e.closeFiles()
}
