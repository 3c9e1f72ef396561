// What has been counted for shared limits, on disk. A queue manager that is replaced or
// restarted must not send a second time what may go in a day, nor after each restart what
// may go at once. The file is written once a minute while something counts, and when the
// queue manager ends. So what a crash can lose is a minute's count; but not of limits by
// the day, which are written ahead (ahead.go), or remembered by the database (portions.go).

package qmgr

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"time"

	"posthaste/internal/pack"
	"posthaste/internal/rate"
	"posthaste/internal/statedir"
	"posthaste/qmgr/sched"
)

const (
	// spentName is the file in the service's directory of state.
	spentName = "spent"
	// spentTime is how often it is written.
	spentTime = time.Minute
	// maxSpent bounds its octets. It has some 60 for each limit that has counted something.
	maxSpent = 64 << 20
	// spentMagic begins it, and ends with the version of the format. The SHA-256 of the
	// rest follows: a file that was not written to its end is none.
	spentMagic = "PHSPENT\x01"
)

// encodeSpent gives the content of the file. ended says that nothing is spent any more, and
// lost, of a process that has ended and was unsure, what its predecessor may have spent
// besides (nodeshare.Holder.Lost).
func encodeSpent(list []sched.Spent, ended bool, lost map[string]int) []byte {
	b := make([]byte, len(spentMagic)+sha256.Size, 4096)
	for i := range list {
		sp := &list[i]
		b = pack.Nested(b, 'l', func(b []byte) []byte {
			b = pack.Uint(b, 'v', uint8(sp.Level))
			b = pack.String(pack.String(b, 'n', sp.Name), 's', sp.Source)
			b = pack.String(b, 't', sp.Tenant)
			b = appendMeter(b, 'w', &sp.Warmup)
			b = appendMeter(b, 'c', &sp.Connections)
			b = appendMeter(b, 'm', &sp.Messages)
			return appendMeter(b, 'r', &sp.Recipients)
		})
	}
	for key, n := range lost {
		b = pack.Nested(b, 'k', func(b []byte) []byte { return pack.Int(pack.String(b, 'n', key), 'c', n) })
	}
	return sealSpent(pack.Bool(b, 'e', ended))
}

// sealSpent writes the head of the file into the room before its body.
func sealSpent(b []byte) []byte {
	sum := sha256.Sum256(b[len(spentMagic)+sha256.Size:])
	copy(b, spentMagic)
	copy(b[len(spentMagic):], sum[:])
	return b
}

// appendMeter and readMeter are the fields of one meter. Tags are never given another
// meaning.
func appendMeter(b []byte, tag byte, m *rate.Meter) []byte {
	// Most limits have one rate or two.
	if *m == (rate.Meter{}) {
		return b
	}
	return pack.Nested(b, tag, func(b []byte) []byte {
		b = pack.Uint(b, 'd', uint64(m.Due))
		b = pack.Uint(b, 'y', uint64(m.Date))
		return pack.Uint(b, 'c', uint64(m.Count))
	})
}

// readMeter is the inverse. What is missing is 0, and a number that is no time and no count
// is cut where it is used.
func readMeter(r pack.Reader) (m rate.Meter) {
	for r.Next() {
		switch r.Tag() {
		case 'd':
			m.Due = int64(r.Uint())
		case 'y':
			m.Date = int64(r.Uint())
		case 'c':
			m.Count = int64(r.Uint())
		}
	}
	return m
}

// decodeSpent is the inverse of encodeSpent. Numbers that make no sense are for the
// scheduler to see.
func decodeSpent(b []byte) (list []sched.Spent, ended bool, lost map[string]int, err error) {
	head := len(spentMagic) + sha256.Size
	if len(b) < head || string(b[:len(spentMagic)]) != spentMagic {
		return nil, false, nil, errHandover
	}
	if sum := sha256.Sum256(b[head:]); !bytes.Equal(sum[:], b[len(spentMagic):head]) {
		return nil, false, nil, fmt.Errorf("%w: wrong checksum", errHandover)
	}
	lost = make(map[string]int)
	// A tag that is not known is of a later version, and passed over.
	r := pack.NewReader(b[head:])
	for r.Next() {
		in := r.Nested()
		switch r.Tag() {
		case 'e':
			ended = r.Bool()
		case 'k':
			readLost(&in, lost)
		case 'l':
			list = append(list, readLimit(&in))
		}
		if err := in.Err(); err != nil {
			return nil, false, nil, err
		}
	}
	return list, ended, lost, r.Err()
}

// readLimit reads what was counted for one limit.
func readLimit(r *pack.Reader) (sp sched.Spent) {
	for r.Next() {
		switch r.Tag() {
		case 'v':
			sp.Level = sched.Level(min(r.Uint(), 255))
		case 'n':
			sp.Name = r.String()
		case 's':
			sp.Source = r.String()
		case 't':
			sp.Tenant = r.String()
		case 'w':
			sp.Warmup = readMeter(r.Nested())
		case 'c':
			sp.Connections = readMeter(r.Nested())
		case 'm':
			sp.Messages = readMeter(r.Nested())
		case 'r':
			sp.Recipients = readMeter(r.Nested())
		}
	}
	return sp
}

// readLost reads what may have been spent of one limit besides. A number that cannot be is
// no reason to stop for longer than a day has.
func readLost(r *pack.Reader, lost map[string]int) {
	key, n := "", int64(0)
	for r.Next() {
		switch r.Tag() {
		case 'n':
			key = r.String()
		case 'c':
			n = r.Int()
		}
	}
	lost[key] = int(min(max(n, 0), math.MaxInt32/2))
}

// readSpent reads the file; nothing when there is none.
func readSpent(dir *statedir.Dir) (list []sched.Spent, ended bool, lost map[string]int, err error) {
	f, err := dir.Open(spentName)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, false, nil, nil
	}
	if err != nil {
		return nil, false, nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSpent+1))
	if err != nil {
		return nil, false, nil, err
	}
	return decodeSpent(b)
}

// restoreSpent begins with what was counted before. It runs before the loop. Without the
// file counting begins anew, and mail goes; but of limits by the day, on a node of several,
// what the database has given to the predecessor counts as spent, unless that has ended in
// order.
func (s *Server) restoreSpent(now time.Time) {
	if s.nodes != nil {
		s.nodes.holder.Fresh = true
	}
	if s.opt.State == nil || !s.opt.Settings.counts() {
		return
	}
	list, ended, lost, err := readSpent(s.opt.State)
	if err != nil {
		s.opt.Log.Warning("what has been counted for limits of destinations is lost, and counting begins anew: %v", err)
	}
	// Also when nothing is limited any more: then the limits are forgotten in time.
	s.spent.kept = len(list) > 0
	s.sched.RestoreSpent(now, list)
	if s.nodes == nil {
		s.ahead = &ahead{day: dayOf(now)}
		return
	}
	// From here on the file does not say all: if this process is killed the next one must not take
	// it for more.
	if (ended || len(lost) > 0) && err == nil {
		err = s.opt.State.ReplaceDurably(spentName, encodeSpent(list, false, nil))
		s.nodes.holder.Fresh = !ended || err != nil
	}
	// An unsure predecessor that has ended in order knew of these limits what its own had
	// left. Else all that it had in advance would be lost with each reload.
	if err == nil {
		s.nodes.holder.SetLost(lost)
	}
	s.nodes.unsure = s.nodes.holder.Fresh
}

// spent is the state of the file. It belongs to the loop.
//
// The file is only looked at where limits are set. One that is left from before is read when
// they are set again, and by then mostly too old to say anything.
type spent struct {
	// When it is written next; zero at the start, when there is nothing new to write.
	at time.Time
	// There is something in it, and it must be written also when nothing counts any more.
	kept bool
	// A task is about it. Two must not be: they would write the same file.
	writing bool
}

// keepSpent writes the file in a task when it is time.
func (s *Server) keepSpent() {
	if s.opt.State == nil || !s.opt.Settings.counts() || s.now.Before(s.spent.at) || s.spent.writing {
		return
	}
	s.spent.at = s.now.Add(spentTime)
	var told map[dayBound]int64
	if s.ahead != nil {
		told = s.ahead.told
	}
	// A file that says that nothing counts is written once, over one that says something.
	if len(s.sched.Spent()) == 0 && len(told) == 0 && !s.spent.kept {
		return
	}
	s.writeSpent(told, nil)
}

// writeSpent writes the file in a task, with what is given out beyond what is spent, and
// then calls done, unless it is nil, in the loop.
func (s *Server) writeSpent(told map[dayBound]int64, done func(error)) {
	list := s.sched.Spent()
	// What is given out must be durable; for the rest a sync a minute would be too much for
	// what is worth a minute's mail. But a file that has something given out must not be
	// replaced by one that a power failure may lose.
	replace := s.opt.State.Replace
	if len(told) > 0 {
		list, replace = s.aheadOf(list, told), s.opt.State.ReplaceDurably
	}
	s.spent.kept, s.spent.writing = len(list) > 0, true
	s.tasks.Go(func() {
		err := replace(spentName, encodeSpent(list, false, nil))
		s.post(func() {
			s.spent.writing = false
			if err != nil {
				s.opt.Log.Warning("what is counted for limits of destinations is not kept: %v", err)
			}
			if done != nil {
				done(err)
			}
		}, sched.Event{})
	})
}

// leaveSpent writes the file for the last time, when nothing is ordered any more. A
// successor reads it when this process has ended.
func (s *Server) leaveSpent() {
	if s.opt.State == nil || !s.opt.Settings.counts() {
		return
	}
	list := s.sched.Spent()
	if len(list) == 0 && !s.spent.kept && s.nodes == nil {
		return
	}
	// A process that did not know what its predecessor had spent hands that down: this is no
	// end in order, for as long as it may matter.
	ended, lost := true, map[string]int(nil)
	if s.nodes != nil && s.nodes.unsure {
		ended, lost = false, s.nodes.holder.Lost()
	}
	if err := s.opt.State.ReplaceDurably(spentName, encodeSpent(list, ended, lost)); err != nil {
		s.opt.Log.Warning("what was counted for limits of destinations is not kept: %v", err)
	}
}
