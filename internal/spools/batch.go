package spools

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
	"posthaste/internal/storage"
)

// kind is what an op does, by the method of storage.Batch.
type kind uint8

const (
	added kind = iota
	updated
	done
	removed
	finished
	handed
)

// An op is one change of a batch.
type op struct {
	kind    kind
	id      mail.QueueID
	add     storage.Addition
	change  queue.Change
	rcpts   []int
	nexthop string

	share   *share // that it went into; nil: it went nowhere
	at      int    // its index there
	refused error
}

// A share is the part of a batch that one engine gets.
type share struct {
	p     *part
	st    *condition // of the part when the share was made
	batch storage.Batch
	ops   []int // indexes in the batch
}

// A batch implements storage.Batch. Where its changes go is decided when it is committed.
type batch struct {
	ops    []op
	apart  bool
	shares []*share // in use: those of the last commit
	spare  []*share
}

// NewBatch implements storage.Engine.
func (s *Set) NewBatch() storage.Batch { return new(batch) }

func (b *batch) op(o op) int {
	b.ops = append(b.ops, o)
	return len(b.ops) - 1
}

func (b *batch) Add(m storage.Addition) int { return b.op(op{kind: added, id: m.ID, add: m}) }
func (b *batch) Update(id mail.QueueID, c queue.Change) int {
	return b.op(op{kind: updated, id: id, change: c})
}
func (b *batch) Done(id mail.QueueID, rcpts []int) int {
	return b.op(op{kind: done, id: id, rcpts: rcpts})
}
func (b *batch) Remove(id mail.QueueID) int { return b.op(op{kind: removed, id: id}) }
func (b *batch) Finish(id mail.QueueID) int { return b.op(op{kind: finished, id: id}) }
func (b *batch) Handed(id mail.QueueID, rcpts []int, nexthop string) int {
	return b.op(op{kind: handed, id: id, rcpts: rcpts, nexthop: nexthop})
}
func (b *batch) Apart() { b.apart = true }

// Refused implements storage.Batch. queue.ErrBroken says that the spool with the message cannot be written: the change is
// remembered, unless it is Handed, and recorded when it can be.
func (b *batch) Refused(i int) error {
	o := &b.ops[i]
	if o.refused != nil || o.share == nil {
		return o.refused
	}
	return o.share.batch.Refused(o.at)
}

// Entry implements storage.Batch.
func (b *batch) Entry(i int) (queue.Entry, bool) {
	o := &b.ops[i]
	if o.share == nil || o.refused != nil {
		return queue.Entry{}, false
	}
	e, ok := o.share.batch.Entry(o.at)
	if !ok {
		return e, false
	}
	return o.share.p.ours(e), true
}

// Reset implements storage.Batch.
func (b *batch) Reset() {
	b.recall()
	b.ops, b.apart = reuse.Emptied(b.ops), false
}

// recall takes the changes back from the shares that they are in, so that they can go into others.
func (b *batch) recall() {
	for _, sh := range b.shares {
		sh.batch.Reset()
		sh.ops = reuse.Truncated(sh.ops)
	}
	b.spare = append(b.spare, b.shares...)
	b.shares = reuse.Emptied(b.shares)
	for i := range b.ops {
		b.ops[i].share, b.ops[i].refused = nil, nil
	}
}

// to is the share of a part, made if need be.
func (b *batch) to(p *part) *share {
	for _, sh := range b.shares {
		if sh.p == p {
			return sh
		}
	}
	st := p.present()
	// What is of an engine that has been closed would keep all that it had in memory.
	b.spare = slices.DeleteFunc(b.spare, func(sh *share) bool { return sh.p == p && sh.st.en != st.en })
	for i, sh := range b.spare {
		if sh.p == p { // and for this engine: a batch is for one
			b.spare = slices.Delete(b.spare, i, i+1)
			sh.st = st
			return b.share(sh)
		}
	}
	return b.share(&share{p: p, st: st, batch: st.en.NewBatch()})
}

// share takes an empty share into use.
func (b *batch) share(sh *share) *share {
	if b.apart {
		sh.batch.Apart()
	}
	b.shares = append(b.shares, sh)
	return sh
}

// put puts change i into a share. An error is that of content that cannot be stored there.
func (b *batch) put(i int, sh *share) (err error) {
	o := &b.ops[i]
	switch o.kind {
	case added:
		m := o.add
		if f, ok := m.File.(*file); ok {
			if m.File, err = f.in(sh); err != nil {
				return err
			}
		}
		o.at = sh.batch.Add(m)
	case updated:
		o.at = sh.batch.Update(o.id, o.change)
	case done:
		o.at = sh.batch.Done(o.id, o.rcpts)
	case removed:
		o.at = sh.batch.Remove(o.id)
	case finished:
		o.at = sh.batch.Finish(o.id)
	case handed:
		o.at = sh.batch.Handed(o.id, o.rcpts, o.nexthop)
	}
	o.share = sh
	sh.ops = append(sh.ops, i)
	return nil
}

// giveUp discards content that went nowhere.
func (b *batch) giveUp() {
	for i := range b.ops {
		if f := b.ops[i].add.File; f != nil {
			f.Abort()
		}
	}
}

// keep remembers a change for its part, which has failed. What an agent has in hand it must not have without the
// record.
func (b *batch) keep(i int, sh *share, err error) {
	o := &b.ops[i]
	o.refused = sh.p.fails(err)
	if o.kind == handed {
		return
	}
	// The arguments are the caller's again when the batch is done.
	c := change{kind: o.kind, id: mail.QueueID(strings.Clone(string(o.id))), rcpts: slices.Clone(o.rcpts)}
	if o.kind == updated {
		_ = c.what.DecodeFields(o.change.AppendFields(nil)) // it reads what it wrote
	}
	sh.p.keep(c, sh.st.en)
}

// anchor is the part that has the messages that a batch changes, besides those that it adds; nil: there is none. All of
// them must be in one, since no two can be written as one.
func (s *Set) anchor(b *batch) (anchor *part, err error) {
	for i := range b.ops {
		o := &b.ops[i]
		if o.kind == added || slices.ContainsFunc(b.ops[:i], func(a op) bool { return a.kind == added && a.id == o.id }) {
			continue
		}
		p := s.goes(o.id)
		if p == nil {
			continue
		}
		if anchor != nil && anchor != p {
			return nil, fmt.Errorf("%w: messages of several spools are changed as one", queue.ErrInvalid)
		}
		anchor = p
	}
	return anchor, nil
}

// places are the parts to try for a batch that is not apart, the best one first.
func (s *Set) places(b *batch, list []*part) ([]*part, error) {
	anchor, err := s.anchor(b)
	if err != nil {
		return nil, err
	}
	adds := slices.IndexFunc(b.ops, func(o op) bool { return o.kind == added })
	switch {
	case anchor != nil:
		list = append(list, anchor)
	case adds < 0: // of messages that are not there any more: any will say so
		list = append(list, s.parts...)
	default:
		o := &b.ops[adds]
		if f, ok := o.add.File.(*file); ok && f.current() {
			list = append(list, f.p)
			break // its content cannot be had any more when that part has refused it
		}
		list = s.choose(list, o.id.Number(), o.add.File != nil)
	}
	list = slices.DeleteFunc(list, func(p *part) bool { return !p.present().up })
	if len(list) == 0 {
		if anchor != nil {
			return nil, anchor.fails(anchor.present().err)
		}
		return nil, fmt.Errorf("%w: no spool can be written now", queue.ErrBroken)
	}
	return list, nil
}

// fill puts a batch that is not apart into the share of one part. What is there already in another part, or twice, is
// ErrInvalid.
func (s *Set) fill(b *batch, p *part) (*share, error) {
	b.recall()
	sh := b.to(p)
	for i := range b.ops {
		o := &b.ops[i]
		if o.kind == added && len(s.parts) > 1 {
			if q := s.goes(o.id); q != nil && q != p {
				return nil, fmt.Errorf("%w: message %s is in the spool %s", queue.ErrInvalid, o.id, q.Dir)
			}
		}
		if err := b.put(i, sh); err != nil {
			return nil, err
		}
	}
	return sh, nil
}

// Commit implements storage.Engine.
func (s *Set) Commit(sb storage.Batch) error {
	b := sb.(*batch)
	if s.closed.Load() {
		b.giveUp()
		return queue.ErrClosed
	}
	if len(b.ops) == 0 {
		return s.barrier()
	}
	if b.apart {
		ch := make(chan error, 1)
		s.postApart(b, func(err error) { ch <- err })
		for _, sh := range b.shares {
			sh.st.en.Hurry()
		}
		return <-ch
	}
	var room [maxNumber + 2]*part
	list, err := s.places(b, room[:0])
	for i := 0; i < len(list) && err == nil; i++ {
		p := list[i]
		var sh *share
		if sh, err = s.fill(b, p); err != nil {
			break
		}
		p.load.Add(1)
		err = sh.st.en.Commit(sh.batch)
		p.load.Add(-1)
		if err == nil {
			return nil
		}
		// Content in a file is given up with the batch that had it.
		if p.elsewhere(err) && i+1 < len(list) {
			err = nil
		}
	}
	b.giveUp()
	return s.told(err)
}

// told is err as the set has it: one part that is closed is one that has failed.
func (s *Set) told(err error) error {
	if lost(err) && !s.closed.Load() {
		return fmt.Errorf("%w: %w", queue.ErrBroken, err)
	}
	return err
}

// barrier returns when all that was posted before is durable, save in parts that have failed.
func (s *Set) barrier() error {
	for _, p := range s.parts {
		if st := p.present(); st.up {
			if err := st.en.Commit(st.en.NewBatch()); err != nil && !lost(err) {
				return err
			}
		}
	}
	return nil
}

// Post implements storage.Engine.
func (s *Set) Post(sb storage.Batch, done func(error)) {
	b := sb.(*batch)
	if done == nil {
		done = func(error) {}
	}
	switch {
	case s.closed.Load():
		b.giveUp()
		done(queue.ErrClosed)
	case b.apart || len(b.ops) == 0:
		s.postApart(b, done)
	default:
		s.postWhole(b, done)
	}
}

// postWhole posts a batch that becomes durable as one.
func (s *Set) postWhole(b *batch, done func(error)) {
	var room [maxNumber + 2]*part
	list, err := s.places(b, room[:0])
	var sh *share
	if err == nil {
		sh, err = s.fill(b, list[0])
	}
	if err != nil {
		b.giveUp()
		done(s.told(err))
		return
	}
	p, n := sh.p, int64(0)
	// What is posted of these messages before they are durable goes the same way.
	s.mu.Lock()
	for i := range b.ops {
		if o := &b.ops[i]; o.kind == added {
			s.arriving[o.id] = p
			n++
		}
	}
	s.mu.Unlock()
	s.nArriving.Add(n)
	p.load.Add(1)
	sh.st.en.Post(sh.batch, func(err error) {
		p.load.Add(-1)
		s.mu.Lock()
		for i := range b.ops {
			if o := &b.ops[i]; o.kind == added {
				delete(s.arriving, o.id)
			}
		}
		s.mu.Unlock()
		s.nArriving.Add(-n)
		if err != nil {
			p.elsewhere(err)
			err = s.told(err)
		}
		done(err)
	})
}

// postApart posts changes that stand for themselves, each where its message is. Those of parts that have failed are
// remembered, and refused.
func (s *Set) postApart(b *batch, done func(error)) {
	b.recall()
	for i := range b.ops {
		p := s.goes(b.ops[i].id)
		if p == nil {
			p = s.anyUp()
		}
		_ = b.put(i, b.to(p)) // nothing is added, so that there is no content to copy
	}
	if len(b.shares) == 0 { // an empty one waits like any other
		b.to(s.anyUp())
	}
	var left atomic.Int64
	var failed atomic.Pointer[error]
	left.Store(int64(len(b.shares)))
	// Not the batch's own list: done may have it used again while the last share is still being posted here.
	shares := slices.Clone(b.shares)
	for _, sh := range shares {
		ended := func(err error) {
			switch {
			case err == nil:
			case lost(err) && !s.closed.Load():
				for _, i := range sh.ops {
					b.keep(i, sh, err)
				}
			default:
				failed.CompareAndSwap(nil, &err)
			}
			if left.Add(-1) > 0 {
				return
			}
			if e := failed.Load(); e != nil {
				done(*e)
				return
			}
			done(nil)
		}
		if !sh.st.up {
			ended(queue.ErrBroken)
			continue
		}
		sh.st.en.Post(sh.batch, ended)
	}
}

// anyUp is a part that works, or any.
func (s *Set) anyUp() *part {
	for _, p := range s.parts {
		if p.present().up {
			return p
		}
	}
	return s.parts[0]
}
