package postlog

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"posthaste/internal/maillog"
	"posthaste/internal/reuse"
)

// holdTime is how long a line is held back, counted from when it was logged:
// until then lines of other processes may arrive that come before it.
const holdTime = maillog.GatherTime + 10*time.Millisecond

// batchTime is how much more the oldest line waits, so that one write has the
// lines of at least that time.
const batchTime = 10 * time.Millisecond

// A sequence holds lines back, and gives them out in the order of their time.
// Lines of the same time stay in the order in which they came.
type sequence struct {
	text  []byte // the lines, cleaned
	lines []line
	spare []byte
}

// A line is a part of the text.
type line struct {
	micros     int64 // when it was logged
	start, end int
}

// add takes the lines of a datagram that has arrived at now. Those without a
// time, which tools of others send, or with one that lies ahead, happened now.
func (q *sequence) add(datagram []byte, now time.Time) {
	for len(datagram) > 0 {
		raw := datagram
		if i := bytes.IndexByte(datagram, '\n'); i >= 0 {
			raw, datagram = datagram[:i], datagram[i+1:]
		} else {
			datagram = nil
		}
		micros, text := maillog.CutStamp(raw)
		if len(text) == 0 || len(text) == 1 && text[0] == 'W' { // an empty line, a wake-up
			continue
		}
		if latest := now.UnixMicro(); micros == 0 || micros > latest {
			micros = latest
		}
		start := len(q.text)
		q.text = append(maillog.AppendClean(q.text, text), '\n')
		q.lines = append(q.lines, line{micros, start, len(q.text)})
	}
}

// due is when lines are to be taken, or the zero time when there are none.
func (q *sequence) due(now time.Time) time.Time {
	if len(q.lines) == 0 {
		return time.Time{}
	}
	oldest := now.UnixMicro() // not later, even when the clock has been set back
	for _, l := range q.lines {
		oldest = min(oldest, l.micros)
	}
	return time.UnixMicro(oldest).Add(holdTime + batchTime)
}

// appendDue appends the lines that have been held for long enough, or all, to b,
// in order, and forgets them.
func (q *sequence) appendDue(b []byte, now time.Time, all bool) []byte {
	slices.SortStableFunc(q.lines, func(a, b line) int { return cmp.Compare(a.micros, b.micros) })
	last, n := now.Add(-holdTime).UnixMicro(), len(q.lines)
	if !all && n > 0 && q.lines[n-1].micros <= now.UnixMicro() { // else the clock has been set back
		n, _ = slices.BinarySearchFunc(q.lines, last+1, func(l line, micros int64) int { return cmp.Compare(l.micros, micros) })
	}
	for _, l := range q.lines[:n] {
		b = append(b, q.text[l.start:l.end]...)
	}
	// What is left moves to the beginning.
	left := q.lines[:0]
	text := reuse.Truncated(q.spare)
	for _, l := range q.lines[n:] {
		start := len(text)
		text = append(text, q.text[l.start:l.end]...)
		left = append(left, line{l.micros, start, len(text)})
	}
	q.text, q.spare, q.lines = text, reuse.Truncated(q.text), left
	return b
}
