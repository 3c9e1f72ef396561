package eventjournal

import (
	"bytes"
	"context"
	"errors"
	"io/fs"

	"posthaste/internal/proto"
	"posthaste/internal/vfs"
)

// An Entry is an event that was read.
type Entry struct {
	Seq uint64
	proto.EventRecord
}

// A Reader reads from a position on. It is one goroutine's.
type Reader struct {
	j    *Journal
	seq  uint64 // of the next event
	scan scanner
	file vfs.File // of the segment that seq is in; nil: it has to be found
	at   uint64   // the number of that segment's first event
	last uint64   // the number behind its last event; 0: it was written to when it was opened
}

// Reader makes a reader that begins with event number seq.
func (j *Journal) Reader(seq uint64) *Reader { return &Reader{j: j, seq: max(seq, 1)} }

// Close frees the file.
func (r *Reader) Close() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// Position is the number of the event that Next gives next.
func (r *Reader) Position() uint64 { return r.seq }

// Next waits until there is an event at the position, and gives it with those that follow: at most n, and
// with the first one at most so many octets of JSON. lost is how many were passed over because the journal does
// not have them any more. The error is that of ctx, ErrClosed, or one of reading: then there is no event, and the
// position is where it was but for those that are lost.
func (r *Reader) Next(ctx context.Context, n, octets int) (list []Entry, lost uint64, err error) {
	for {
		r.j.mu.Lock()
		durable, grown, closed := r.j.durable, r.j.grown, r.j.closed
		r.j.mu.Unlock()
		if closed {
			return nil, lost, ErrClosed
		}
		if r.seq < durable {
			var missed uint64
			list, missed, err = r.read(durable, n, octets)
			lost += missed
			if len(list) > 0 { // an error comes again, behind them
				return list, lost, nil
			}
			if err != nil {
				return nil, lost, err
			}
			if missed > 0 {
				continue
			}
		}
		if lost > 0 { // who is told of it can note its position
			return nil, lost, nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return nil, lost, ctx.Err()
		}
	}
}

// read reads what there is before durable.
func (r *Reader) read(durable uint64, n, octets int) (list []Entry, lost uint64, err error) {
	r.seq = min(r.seq, durable)
	for size := 0; r.seq < durable && len(list) < n; {
		if r.file == nil {
			missed, err := r.open()
			lost += missed
			if err != nil {
				return list, lost, err
			}
			if missed > 0 {
				return list, lost, nil // it comes before what follows
			}
			continue
		}
		if r.last != 0 && r.seq >= r.last {
			r.Close()
			continue
		}
		at, seq := r.scan.at, r.scan.seq
		e, ok, err := r.scan.next()
		if err != nil {
			return list, lost, err
		}
		if !ok {
			if len(list) > 0 {
				return list, lost, nil
			}
			missed := r.damaged(durable)
			if missed == 0 { // there is one by now
				continue
			}
			return nil, lost + missed, nil
		}
		if size += len(e.JSON); size > octets && len(list) > 0 {
			r.scan.at, r.scan.seq = at, seq
			return list, lost, nil
		}
		e.JSON = bytes.Clone(e.JSON)
		list = append(list, Entry{r.seq, e})
		r.seq++
	}
	return list, lost, nil
}

// open opens the segment that the position is in, or the oldest one if that is gone: then missed events are
// passed over.
func (r *Reader) open() (missed uint64, err error) {
	r.j.mu.Lock()
	i := len(r.j.segments) - 1
	for i > 0 && r.j.segments[i].first > r.seq {
		i--
	}
	if i < 0 { // somebody has removed them all
		missed, r.seq = r.j.durable-r.seq, r.j.durable
		r.j.mu.Unlock()
		return missed, nil
	}
	s := *r.j.segments[i]
	last := uint64(0)
	if i+1 < len(r.j.segments) {
		last = r.j.segments[i+1].first
	}
	r.j.mu.Unlock()
	f, err := r.j.o.FS.Open(s.name(r.j.o.Dir))
	if errors.Is(err, fs.ErrNotExist) { // removed since
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if r.seq < s.first {
		missed, r.seq = s.first-r.seq, s.first
	}
	r.file, r.at, r.last = f, s.first, last
	r.scan = scanner{f: f, size: s.size, at: headerSize, seq: s.first}
	for r.scan.seq < r.seq {
		_, ok, err := r.scan.next()
		if err != nil {
			r.Close()
			return missed, err
		}
		if !ok {
			break // damaged is asked next
		}
	}
	return missed, nil
}

// damaged is asked where a record should be and none is. There may be one by now, or the segment is full and
// has been left for another; if neither, the rest of it is damaged, and is passed over.
func (r *Reader) damaged(durable uint64) (missed uint64) {
	at, seq := r.scan.at, r.scan.seq
	r.scan.again()
	if _, ok, err := r.scan.next(); ok || err != nil {
		r.scan.at, r.scan.seq = at, seq
		return 0
	}
	next := r.following(durable)
	r.Close()
	if next > r.seq {
		missed = next - r.seq
		r.seq = next
		r.j.o.Warn("%d events in the journal are damaged, and lost", missed)
	}
	return missed
}

// following is the number behind the last event of the segment that is read, if that is known: it may have been
// removed, and open finds out what is missed then.
func (r *Reader) following(durable uint64) uint64 {
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	for i, s := range r.j.segments {
		switch {
		case s.first != r.at:
		case i+1 < len(r.j.segments):
			return r.j.segments[i+1].first
		default:
			return durable
		}
	}
	return r.seq
}
