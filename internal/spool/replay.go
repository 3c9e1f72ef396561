package spool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// replay reads all segments from the recovery point on, and makes the index.
func (r *recovery) replay() error {
	r.replayed = max(r.e.from.batch, 1) - 1
	if err := r.read(context.Background()); err != nil {
		return err
	}
	return r.findTail()
}

// read reads the segments, each from where it was replayed to, and replays what is durable and has
// not been. It may return early only when a log is followed. The error is errAnew when another process
// has opened the log since what was replayed before.
func (r *recovery) read(ctx context.Context) error {
	e := r.e
	var list []*segment
	var scans []scanner
	for _, s := range r.unread() {
		sc := scanner{w: window{f: s.f, size: s.size}, s: s, from: s.since.off, growing: r.following, planter: e.planter, key: e.key}
		r.findBoot(&sc)
		if !sc.unchanged() {
			list, scans = append(list, s), append(scans, sc)
		}
	}
	if err := r.unreadable(); err != nil {
		return err
	}
	if r.booted() {
		return errAnew
	}
	ahead := readAhead(scans)
	defer ahead.stop()
	i, under := -1, uint64(0)
	for st := range ahead.steps {
		if st.scan != i {
			i, under = st.scan, ^uint64(0) // batches from there on may have to wait for later segments
			for _, s := range list[i+1:] {
				under = min(under, s.firstBatch)
			}
			if s := list[i]; s.since.off > 0 && (st.b == nil || st.b.num != s.since.num) {
				if !r.following {
					return errFollowed
				}
				r.strayed = true // it has been used again since its header was read
			}
		}
		if ctx.Err() != nil {
			break
		}
		if st.b == nil { // the segment's end
			if err := r.scanned(&scans[i], under); err != nil {
				return err
			}
			continue
		}
		<-st.b.decoded
		if r.strayed {
			e.promised = max(e.promised, st.promised)
			r.tell(st.b)
			ahead.again(st.b)
			continue
		}
		r.held = append(r.held, st.b)
		r.release(st.promised, min(under, st.b.num+1), ahead.again) // the next in this segment may come before what is held
	}
	r.release(0, ^uint64(0), ahead.again)
	return nil
}

// booted says whether another process has opened the log since it began to be followed: its BOOT may
// void batches that were replayed.
func (r *recovery) booted() bool {
	var last uint64
	for _, b := range r.boots {
		last = max(last, b.num)
	}
	if r.owed != nil && !r.begun {
		r.begun, r.lastBoot = true, last
	}
	return r.owed != nil && last > r.lastBoot
}

// unread is the segments that recovery has to read, in order.
func (r *recovery) unread() (list []*segment) {
	for _, s := range r.e.segs {
		if s.segno != 0 && s.segno >= r.e.from.segno {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *segment) int {
		return cmp.Or(cmp.Compare(a.segno, b.segno), cmp.Compare(a.file, b.file))
	})
	return list
}

// scanned is the end of a segment, which nobody reads any more.
func (r *recovery) scanned(sc *scanner, under uint64) error {
	e := r.e
	r.release(sc.promised, under, nil)
	r.maxBatch, r.maxSeq = max(r.maxBatch, sc.maxBatch), max(r.maxSeq, sc.maxSeq)
	if err := r.unreadable(); err != nil {
		return err
	}
	r.rep.Segments++
	r.rep.Bytes += sc.s.size
	if sc.newer {
		return fmt.Errorf("spool: %w", &errNewer{segName(e.dir, sc.s.file)})
	}
	if sc.w.bad > 0 {
		r.alarm("%s: %d bytes cannot be read", segName(e.dir, sc.s.file), sc.w.bad)
	}
	return nil
}

// unchanged says whether nothing follows the last batch of the segment that was replayed. Most
// segments are so when a log is followed, and are not read. Should there be something
// behind damage, its number is missing, which is noticed as for any batch that is not there.
func (sc *scanner) unchanged() bool {
	end := sc.s.since.end
	if end == 0 {
		return false
	}
	at := *sc
	at.w = window{f: sc.w.f, size: min(sc.w.size, end+blockSize)}
	_, ok := at.header(end)
	return !ok
}

// findBoot looks at a segment's first record, where a BOOT is if there is
// one, and learns what it voids before anything is replayed.
//
// Where the segment is read from further on, no more than that record is read of what is before: a
// follower comes here for each segment, again and again.
func (r *recovery) findBoot(sc *scanner) {
	first := max(sc.s.start, blockSize)
	if sc.from > first {
		at := *sc
		at.w = window{f: sc.w.f, size: min(sc.w.size, first+blockSize)} // a BOOT is shorter than a block
		sc = &at
	}
	h, ok := sc.header(first)
	if ok && h.typ == recBOOT && !r.e.planted(plantNoVoid) {
		b := logBatch{seg: sc.s}
		sc.record(&b, &h, first)
		if b.decode(); len(b.recs) > 0 {
			r.boots = append(r.boots, boot{void: b.recs[0].void, num: h.batch})
		}
	}
	r.e.promised = max(r.e.promised, sc.promised)
}

// voided says whether batch num does not count, going by boots up to limit.
func (r *recovery) voided(num, limit uint64) bool {
	for _, b := range r.boots {
		if b.num <= limit && num > b.void && num < b.num {
			return true
		}
	}
	return false
}

// release replays, in order, the batches read so far that are known to have
// been durable and that no later segment can come before. Those that are done
// with go to again, if that is not nil.
func (r *recovery) release(promised, under uint64, again func(*logBatch)) {
	e := r.e
	e.promised = max(e.promised, promised)
	slices.SortStableFunc(r.held, func(a, b *logBatch) int { return cmp.Compare(a.num, b.num) })
	n := 0
	for _, b := range r.held {
		if b.num > e.promised || b.num >= under || r.following && !r.inOrder(b) {
			break
		}
		n++
		r.use(b.seg, b.num)
		if !r.voided(b.num, e.promised) && b.num >= e.from.batch && b.num > r.carried {
			r.expect(b.num)
			if b.bad {
				r.lost = append(r.lost, loss{num: b.num, seg: b.seg, segno: b.seg.segno, hurt: b.hurt, anonymous: b.gap,
					text: fmt.Sprintf("%s: batch %d is damaged; what is sound in it is kept", segName(e.dir, b.seg.file), b.num)})
			}
			r.apply(b)
		}
		if !b.bad {
			last := &b.recs[len(b.recs)-1]
			b.seg.since = readSince{off: int64(b.recs[0].off), end: alignUp(int64(last.off)+last.h.span(), blockSize), num: b.num}
		}
		if again != nil {
			again(b)
		}
	}
	clear(r.held[:n])
	r.held = append(r.held[:0], r.held[n:]...)
}

// inOrder says whether b can be replayed while the log is being written. What is before it may
// not have been read, and what is damaged may be half written: the rest is left for later.
func (r *recovery) inOrder(b *logBatch) bool {
	// A BOOT that could not be read at first is not known to void anything. What is void itself may be
	// torn: a process has died in the middle of it.
	ok := !r.strayed && (r.voided(b.num, r.e.promised) ||
		!b.bad && (b.recs[0].h.typ != recBOOT || slices.Contains(r.boots, boot{void: b.recs[0].void, num: b.num})))
	for n := r.replayed + 1; ok && n < b.num; n++ {
		ok = r.voided(n, r.e.promised)
	}
	r.strayed = r.strayed || !ok
	return ok
}

// use notes that a batch of s may matter.
func (r *recovery) use(s *segment, num uint64) {
	r.anyUse[s] = max(r.anyUse[s], num)
	if !r.voided(num, r.e.promised) {
		s.lastBatch = max(s.lastBatch, num)
	}
}

// expect raises an alarm for durable batches missing before num.
func (r *recovery) expect(num uint64) {
	missing, last := 0, uint64(0)
	for n := r.replayed + 1; n < num; n++ {
		if r.voided(n, r.e.promised) {
			continue
		}
		last = n
		if missing++; missing > 1<<20 {
			break
		}
	}
	if missing > 0 {
		when := ""
		if r.clock > 0 {
			when = "; the mail in them came after " + time.UnixMicro(r.clock).UTC().Format(time.RFC3339)
		}
		r.lost = append(r.lost, loss{num: last, anonymous: true,
			text: fmt.Sprintf("%d batches before number %d, which were durable, are gone%s", missing, num, when)})
	}
	r.replayed = max(r.replayed, num)
}
