// The handover file: what a queue manager that retires at a reload leaves its successor.
// Written by leave, read and removed by findHandover. If it is missing, old or damaged,
// the successor begins without, as after a stop; nothing is lost by that but time.

package qmgr

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"time"

	"posthaste/internal/adaptive"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/proto"
	"posthaste/internal/statedir"
	"posthaste/qmgr/sched"
)

const (
	// handoverName is the file in the service's directory of state in which a
	// queue manager that retires leaves what its successor is to know.
	handoverName = "handover"
	// handoverLife is how old that may be: the successor waits for it, and is
	// there within a second.
	handoverLife = time.Minute
	// maxHandover bounds its octets. It has some 150 for each destination that
	// there is mail for.
	maxHandover = 64 << 20
	// settleTime is how long deliveries under way may take when the queue manager
	// is replaced: most end within that time, and nothing is ordered in it. The
	// others become the successor's.
	settleTime = 30 * time.Millisecond
	// partTime is how long agents may take to say that all has been told.
	partTime = 200 * time.Millisecond
)

// handoverMagic begins the file. Its last octet is the version of the format: a queue
// manager of another version finds a file that it does not know, and begins without.
const handoverMagic = "PHQMGR\x00\x01"

// A handover is the content of the file. It is made at one moment, in the loop, when nothing is ordered any more; what
// happens afterwards the agents tell the successor.
type handover struct {
	// Compared with handoverLife, by the wall clock of the same machine.
	written time.Time
	// Windows, dead destinations, mail that waits for them.
	learnt sched.Snapshot
	// running are deliveries that go on. Agents will call and say so, and what
	// came of them; until then nobody else is to get an order for these recipients.
	running []proto.Delivery
	// agents are the transports that mail went to. The successor calls them at once, so that what they have in hand is
	// known when the first order for them comes (warm).
	agents []mail.Transport
}

// encode gives the content of the file: the magic, the SHA-256 of the rest, the rest. The
// sum detects a file that was not written to its end; it is no protection against an
// attacker, who would need the mail owner's rights to write there.
func (h *handover) encode() []byte {
	b := make([]byte, len(handoverMagic)+sha256.Size, 4096)
	b = mail.AppendTime(b, 't', h.written)
	for i := range h.learnt.Dests {
		d := &h.learnt.Dests[i]
		b = pack.Nested(b, 'd', func(b []byte) []byte { return appendDest(b, d) })
	}
	// The mail that waits for a destination is named one by one: the successor reads it again, and is to know then that it
	// is not to be tried at once.
	for i := range h.learnt.Sites {
		st := &h.learnt.Sites[i]
		b = pack.Nested(b, 's', func(b []byte) []byte {
			b = pack.String(b, 't', st.Transport)
			b = pack.String(b, 'q', st.Queue)
			b = pack.Bool(b, 'a', st.Alive)
			for _, id := range st.Waiting {
				b = pack.Uint(b, 'w', uint64(id))
			}
			return b
		})
	}
	for _, t := range h.agents {
		b = pack.String(b, 'a', t)
	}
	b = pack.Nested(b, 'r', (&proto.Inventory{Running: h.running}).Append)
	sum := sha256.Sum256(b[len(handoverMagic)+sha256.Size:])
	copy(b, handoverMagic)
	copy(b[len(handoverMagic):], sum[:])
	return b
}

// appendDest and decodeDest are the fields of one destination. Tags are never given
// another meaning: a file may be read by the next version.
func appendDest(b []byte, d *sched.DestSnapshot) []byte {
	b = pack.String(b, 't', d.Transport)
	b = pack.String(b, 'q', d.Queue)
	b = pack.String(pack.String(b, 'n', d.Nexthop), 's', d.Source)
	b = pack.Uint(b, 'z', uint8(d.State))
	b = mail.AppendTime(b, 'u', d.Until)
	if !d.Status.IsZero() {
		b = pack.String(b, 'x', d.Status.String())
	}
	b = pack.String(b, 'r', d.Text)
	b = pack.Int(b, 'w', d.Window)
	b = mail.AppendTime(b, 'l', d.LastDone)
	b = pack.Uint(b, 'c', uint8(d.Cache))
	b = pack.Uint(b, '+', math.Float64bits(d.Success))
	b = pack.Uint(b, '-', math.Float64bits(d.Failure))
	b = pack.Uint(b, 'f', math.Float64bits(d.FailCohorts))
	b = mail.AppendTime(b, 'e', d.Since)
	if m := &d.Course; *m != (adaptive.Memory{}) {
		b = pack.Nested(b, 'A', func(b []byte) []byte { return appendCourse(b, m) })
	}
	return b
}

// courseFields are the numbers of a course by their tags: whole ones from 'a' on, others from 'A' on. A field is
// never taken out, and new ones come behind the others.
func courseFields(m *adaptive.Memory) (whole []*int64, other []*float64) {
	return []*int64{&m.ProbeAt, &m.Wait, &m.PaceAt, &m.PaceWait, &m.Until, &m.Rest, &m.Base[0], &m.Base[1], &m.At, &m.First, &m.Proof},
		[]*float64{&m.Window, &m.Bad, &m.Step, &m.Interval, &m.Refused, &m.Share, &m.Good, &m.Drop}
}

// appendCourse and decodeCourse are what has been learnt of a destination's answers.
func appendCourse(b []byte, m *adaptive.Memory) []byte {
	whole, other := courseFields(m)
	// A zero takes no room, so each number needs a tag of its own.
	for i, n := range whole {
		b = pack.Uint(b, byte('a'+i), uint64(*n))
	}
	for i, f := range other {
		b = pack.Uint(b, byte('A'+i), math.Float64bits(*f))
	}
	b = pack.Bool(b, 'y', m.Half)
	b = pack.Uint(b, 'w', uint8(m.Why))
	return pack.String(b, 't', m.Text)
}

// decodeCourse is the inverse. What it brings is not relied on: see adaptive.Resume.
func decodeCourse(r pack.Reader) (m adaptive.Memory, err error) {
	whole, other := courseFields(&m)
	for r.Next() {
		switch tag := r.Tag(); {
		// Letters beyond those of the numbers are for what is no number.
		case tag == 'y':
			m.Half = r.Bool()
		case tag == 'w':
			m.Why = adaptive.Ask(r.Uint())
		case tag == 't':
			m.Text = r.String()
		case tag >= 'a' && int(tag-'a') < len(whole):
			*whole[tag-'a'] = int64(r.Uint())
		case tag >= 'A' && int(tag-'A') < len(other):
			*other[tag-'A'] = math.Float64frombits(r.Uint())
		}
	}
	return m, r.Err()
}

// errHandover is why a file is passed over. The log says so, since somebody else may have written it.
var errHandover = errors.New("it is not what a queue manager writes")

// decode is the inverse of encode. A tag that is not known is passed over.
func (h *handover) decode(b []byte) error {
	head := len(handoverMagic) + sha256.Size
	if len(b) < head || string(b[:len(handoverMagic)]) != handoverMagic {
		return errHandover
	}
	if sum := sha256.Sum256(b[head:]); !bytes.Equal(sum[:], b[len(handoverMagic):head]) {
		return fmt.Errorf("%w: wrong checksum", errHandover)
	}
	return h.decodeBody(b[head:])
}

// decodeBody decodes what follows the checksum.
func (h *handover) decodeBody(b []byte) error {
	r := pack.NewTextReader(b)
	for r.Next() {
		switch r.Tag() {
		case 't':
			h.written = mail.ReadTime(&r)
		case 'd':
			d, err := decodeDest(r.Nested())
			if err != nil {
				return err
			}
			h.learnt.Dests = append(h.learnt.Dests, d)
		case 's':
			st, err := decodeSite(r.Nested())
			if err != nil {
				return err
			}
			h.learnt.Sites = append(h.learnt.Sites, st)
		case 'a':
			h.agents = append(h.agents, mail.Transport(r.String()))
		case 'r':
			var inv proto.Inventory
			if err := inv.Decode(r.Bytes()); err != nil {
				return err
			}
			h.running = inv.Running
		}
	}
	return r.Err()
}

func decodeDest(r pack.Reader) (d sched.DestSnapshot, err error) {
	for r.Next() {
		switch r.Tag() {
		case 't':
			d.Transport = mail.Transport(r.String())
		case 'q':
			d.Queue = r.String()
		case 'n':
			d.Nexthop = mail.Nexthop(r.String())
		case 's':
			d.Source = r.String()
		case 'z':
			d.State = sched.DestState(r.Uint())
		case 'u':
			d.Until = mail.ReadTime(&r)
		case 'x':
			if d.Status, err = dsn.ParseStatus(r.String()); err != nil {
				return d, err
			}
		case 'r':
			d.Text = r.String()
		case 'w':
			d.Window = int(r.Int())
		case 'l':
			d.LastDone = mail.ReadTime(&r)
		case 'c':
			d.Cache = sched.Cache(r.Uint())
		case '+':
			d.Success = math.Float64frombits(r.Uint())
		case '-':
			d.Failure = math.Float64frombits(r.Uint())
		case 'f':
			d.FailCohorts = math.Float64frombits(r.Uint())
		case 'e':
			d.Since = mail.ReadTime(&r)
		case 'A':
			if d.Course, err = decodeCourse(r.Nested()); err != nil {
				return d, err
			}
		}
	}
	return d, r.Err()
}

// decodeSite decodes mail that waits for one destination.
func decodeSite(r pack.Reader) (st sched.SiteSnapshot, err error) {
	for r.Next() {
		switch r.Tag() {
		case 't':
			st.Transport = mail.Transport(r.String())
		case 'q':
			st.Queue = r.String()
		case 'a':
			st.Alive = r.Bool()
		case 'w':
			st.Waiting = append(st.Waiting, sched.MsgID(r.Uint()))
		}
	}
	return st, r.Err()
}

// leave writes the file for the successor: under another name first, so that the
// successor finds a whole file or none. It need not be durable, for after a power cut
// nobody delivers any more.
func (h *handover) leave(dir *statedir.Dir) error {
	b := h.encode()
	if len(b) > maxHandover {
		return fmt.Errorf("%d octets are too much", len(b))
	}
	const part = handoverName + ".new"
	if err := dir.WriteFile(part, b, 0o600); err != nil {
		return err
	}
	return dir.Rename(part, handoverName)
}

// findHandover takes the handover of a predecessor that has just retired: it reads the
// file and removes it, so that no later start takes it for fresh. nil without an error:
// there is none, or it is too old.
func findHandover(dir *statedir.Dir, now time.Time) (*handover, error) {
	f, err := dir.Open(handoverName)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // whoever could not write has said so
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	defer dir.Remove(handoverName)
	b, err := io.ReadAll(io.LimitReader(f, maxHandover+1))
	if err != nil {
		return nil, err
	}
	h := new(handover)
	if err := h.decode(b); err != nil {
		return nil, err
	}
	// A negative age is from a clock that has been set back; how old it really is, nobody
	// knows.
	if age := now.Sub(h.written); age < 0 || age > handoverLife {
		return nil, nil
	}
	return h, nil
}

// takeOver begins with what the predecessor has left. It runs before the loop.
func (s *Server) takeOver(now time.Time) {
	if s.opt.State == nil {
		return
	}
	h, err := findHandover(s.opt.State, now)
	if err != nil {
		s.opt.Log.Warning("what the former queue manager has learnt is lost: %v", err)
	}
	if h == nil {
		return
	}
	s.sched.Restore(now, h.learnt)
	for _, r := range h.running {
		num := msgID(r.ID)
		// conn is nil until the agent calls; after callTime without a call, silent
		// gives the delivery up.
		s.formers[num] = append(s.formers[num], &former{id: r.ID, rcpts: r.Index, active: r.Active, release: func() {}})
		s.expectAt = now.Add(s.callTime)
	}
	s.warm(h.agents)
}

// handDown leaves for the successor what it could not learn from the spool.
func (s *Server) handDown(running []proto.Delivery) error {
	h := handover{written: time.Now(), learnt: s.sched.Snapshot(), running: running, agents: s.inUse()}
	return h.leave(s.opt.State)
}

// inUse are the transports that mail has gone to lately, in the order of their names. The
// successor connects to their agents first (warm).
func (s *Server) inUse() (list []mail.Transport) {
	for t, a := range s.agents {
		if s.now.Sub(a.used) < agentIdle {
			list = append(list, t)
		}
	}
	slices.Sort(list)
	return list
}

// part tells the agents that have orders of ours that a successor will be there for the
// outcomes. An agent answers behind whatever it has told before, so that with its answer
// all is known that this process will ever hear from it.
func (s *Server) part() {
	s.parted = make(map[*ipc.Conn]bool)
	for _, d := range s.entries {
		if !d.sent {
			continue
		}
		conn := d.conn
		if _, told := s.parted[conn]; told {
			continue
		}
		s.parted[conn] = false
		s.parting++
		s.tasks.Go(func() {
			conn.Continue(&proto.Detach{}, func(_ []byte, err error) {
				s.post(func() {
					s.parting--
					s.parted[conn] = err == nil
				}, sched.Event{})
			})
		})
	}
}

// goingOn are the deliveries of which agents will tell the successor: ours that were sent
// to agents that have answered Detach, and those of former queue managers that still go
// on.
func (s *Server) goingOn() (list []proto.Delivery) {
	for _, d := range s.entries {
		if m := s.messages[d.num]; m != nil && m.active != nil && d.sent && s.parted[d.conn] {
			list = append(list, proto.Delivery{ID: m.id, Index: d.index, Active: m.active.since})
		}
	}
	for _, formers := range s.formers {
		for _, f := range formers {
			list = append(list, proto.Delivery{ID: f.id, Index: f.rcpts, Active: f.active})
		}
	}
	return list
}
