package spools

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

const (
	// stepMessages and stepOctets bound what is moved together, by messages and by octets in memory, about.
	stepMessages = 64
	stepOctets   = 4 << 20
)

// Twice removes from a spool what others have as well, after moving its mail was interrupted. Nobody has changed any of it
// since. It returns how many messages that were.
func (s *Set) Twice(number uint8) (n int, err error) {
	from := s.numbered(number)
	if from == nil {
		return 0, nil
	}
	en := from.present().en
	for e := range en.Entries {
		for _, p := range s.parts {
			if p == from {
				continue
			}
			if _, there := p.present().en.Locate(e.ID); !there {
				continue
			}
			b := en.NewBatch()
			b.Remove(e.ID)
			if err := en.Commit(b); err != nil {
				return n, err
			}
			n++
			break
		}
	}
	return n, nil
}

// numbered is the part of that number; nil: there is none.
func (s *Set) numbered(number uint8) *part {
	i := slices.IndexFunc(s.parts, func(p *part) bool { return p.Number == number })
	if i < 0 {
		return nil
	}
	return s.parts[i]
}

// Drain moves all mail of a spool to those of the others that take new mail. Each message keeps its queue ID, and is durable
// there before it leaves this one. Nobody else changes the queue meanwhile. rd reads the set. Messages that
// cannot be read stay, and are told of. After an error, or a crash, Twice undoes what was half done.
func (s *Set) Drain(number uint8, rd storage.Reader) (moved, left int, err error) {
	from := s.numbered(number)
	var to []*part
	for _, p := range s.takers {
		if p != from && p.Takes {
			to = append(to, p)
		}
	}
	if from == nil || len(to) == 0 {
		return 0, 0, fmt.Errorf("%w: there is no other spool that takes mail", queue.ErrInvalid)
	}
	en := from.present().en
	steps := map[*part]*step{}
	for cursor, more := uint64(0), true; more; more = cursor != 0 {
		var list []queue.Placed
		list, cursor = en.Page(cursor, nil)
		for i := range list {
			e := from.ours(list[i].Entry)
			p := to[int(e.ID.Number()%uint64(len(to)))]
			st := steps[p]
			if st == nil {
				st = &step{from: en, to: p.present().en, batch: p.present().en.NewBatch()}
				steps[p] = st
			}
			n := len(st.ids)
			if err := st.add(&e, rd, s.found.InDoubt); err != nil {
				if !errors.Is(err, queue.ErrCorrupt) && !errors.Is(err, queue.ErrUnread) && !errors.Is(err, queue.ErrStale) {
					return moved, left, err
				}
				left++
				s.warn("%s stays in %s: %v", e.ID, from.Dir, err)
				continue
			}
			if n+1 < stepMessages && st.octets < stepOctets {
				continue
			}
			if err := st.end(); err != nil {
				return moved, left, err
			}
			moved += n + 1
		}
	}
	for _, p := range to {
		if st := steps[p]; st != nil && len(st.ids) > 0 {
			n := len(st.ids)
			if err := st.end(); err != nil {
				return moved, left, err
			}
			moved += n
		}
	}
	return moved, left, nil
}

// A step is messages that are moved together, to one engine.
type step struct {
	from, to storage.Engine
	batch    storage.Batch
	ids      []mail.QueueID
	octets   int
}

// end makes the messages durable in the one engine, and then has them leave the other.
func (st *step) end() error {
	if err := st.to.Commit(st.batch); err != nil {
		return err
	}
	b := st.from.NewBatch()
	for _, id := range st.ids {
		b.Remove(id)
	}
	if err := st.from.Commit(b); err != nil {
		return err
	}
	st.batch.Reset()
	st.ids, st.octets = st.ids[:0], 0
	return nil
}

// add reads a message, all of it, before anything of it is in the batch. doubts are what the start has found.
func (st *step) add(e *queue.Entry, rd storage.Reader, doubts []queue.Doubt) error {
	r, err := rd.Read(e.Ref, e.ID)
	if err != nil {
		return err
	}
	r.Overlay(e.Done)
	env, err := r.Envelope()
	if err != nil {
		return err
	}
	rcpts, err := r.Recipients(0, -1)
	if err != nil {
		return err
	}
	outcomes, err := r.Outcomes()
	if err != nil {
		return err
	}
	env.Recipients = nil
	a := storage.Addition{ID: e.ID, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, rcpts), NRcpt: len(rcpts),
		Queue: e.Queue, NextAttempt: e.NextAttempt}
	if err := st.content(r, &a); err != nil {
		return err
	}
	c := queue.Change{Set: queue.SetAttempts | queue.SetWarned | queue.SetExpire, Attempts: e.Attempts, Warned: e.Warned, Expire: e.Expire}
	for _, o := range outcomes {
		if r.Pending(o.Rcpt) {
			c.Outcomes = append(c.Outcomes, o)
			st.octets += len(o.Append(nil, 'o'))
		}
	}
	for i := range r.NRcpt() {
		if !r.Pending(i) {
			c.Done = append(c.Done, i)
		}
	}
	st.octets += len(a.Envelope) + len(a.Recipients) + len(a.Content)
	st.batch.Add(a)
	st.batch.Update(e.ID, c)
	st.hands(e, r, doubts)
	st.ids = append(st.ids, e.ID)
	return nil
}

// hands says what agents had in hand of a message.
func (st *step) hands(e *queue.Entry, r storage.Stored, doubts []queue.Doubt) {
	var pending []int
	for i := range r.NRcpt() {
		if r.Pending(i) {
			pending = append(pending, i)
		}
	}
	in := st.from.InHand(e.ID, pending)
	for _, d := range doubts {
		if d.ID == e.ID && d.Kind == queue.DoubtHanded {
			st.batch.Handed(e.ID, d.Rcpts, d.Nexthop)
			in = slices.DeleteFunc(in, func(i int) bool { return slices.Contains(d.Rcpts, i) })
		}
	}
	if len(in) > 0 {
		st.batch.Handed(e.ID, in, "")
	}
}

// content reads the content of a message into a.
func (st *step) content(r storage.Stored, a *storage.Addition) error {
	c, err := r.Content()
	if err != nil {
		return err
	}
	defer c.Close()
	if c.Len() <= int64(st.to.InlineLimit()) {
		var b bytes.Buffer
		if _, err := c.WriteTo(&b); err != nil {
			return err
		}
		a.Content = append([]byte{}, b.Bytes()...)
		return nil
	}
	f, err := st.to.NewFile()
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(f); err != nil {
		f.Abort()
		return err
	}
	a.File = f
	return nil
}
