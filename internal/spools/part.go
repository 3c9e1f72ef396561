package spools

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

const (
	// reopenPause is how long is waited before a part that has failed is opened once more, and remindTime how often it is
	// said that it cannot be.
	reopenPause = 500 * time.Millisecond
	remindTime  = time.Minute
	// fullTime is how long a part that was full is asked after the others.
	fullTime = time.Second
	// maxNamed bounds the messages that are named when a part fails.
	maxNamed = 1000
	// nameLine is how many of them a line has.
	nameLine = 25
	// maxKept bounds what is remembered for a part that has failed. Its mail does not come due meanwhile, so that
	// it is of what the queue manager had in memory, and what operators want.
	maxKept = 1 << 18
	// keptStep is how many changes are recorded together when it is back.
	keptStep = 64
)

// A part is an engine of the set, open or failed. Its methods may be called concurrently.
type part struct {
	Part
	set  *Set
	now  atomic.Pointer[condition]
	load atomic.Int64 // batches with new mail that wait for it
	full atomic.Int64 // until when others are asked first, in nanoseconds since 1970
	used sync.WaitGroup

	// mu is held while now changes, and while kept does.
	mu   sync.Mutex
	kept []change
	more int // changes beyond maxKept
}

// A condition is how a part stands. It is not changed.
type condition struct {
	en  storage.Engine // also while it is not up: closed, but it knows what it had
	up  bool
	err error // why not
	// decided is what en does not know, since it could not be recorded.
	decided *decisions
	over    chan struct{} // closed when the part is in another condition
}

func newPart(s *Set, o *Part, en storage.Engine) *part {
	p := &part{Part: *o, set: s}
	p.now.Store(&condition{en: en, up: true, decided: &decisions{}, over: make(chan struct{})})
	return p
}

func (p *part) present() *condition { return p.now.Load() }

// ours is an entry of the part as one of the set.
func (p *part) ours(e queue.Entry) queue.Entry {
	e.Ref.Spool = p.Number
	return e
}

// shown is an entry that st's engine has, as it was decided since, too. It is false when the message is done with.
func (p *part) shown(st *condition, e queue.Entry) (queue.Entry, bool) {
	there := st.decided.apply(&e)
	return p.ours(e), there
}

// locate is the engine's Locate, as shown has it.
func (p *part) locate(id mail.QueueID) (e queue.Entry, ok bool) {
	st := p.present()
	if e, ok = st.en.Locate(id); !ok {
		return e, false
	}
	return p.shown(st, e)
}

// change changes p's condition. mu is held.
func (p *part) change(c *condition) {
	c.over = make(chan struct{})
	close(p.now.Swap(c).over)
}

// fails is the error for what cannot be written to a part for now.
func (p *part) fails(err error) error {
	return fmt.Errorf("%w: the spool %s cannot be written now: %w", queue.ErrBroken, p.Dir, err)
}

// watch opens the part's engine again whenever it breaks, until the set is closed.
func (p *part) watch() {
	for {
		st := p.present()
		select {
		case <-p.set.closing:
			return
		case <-st.en.Broken():
		}
		err := st.en.Err()
		p.mu.Lock()
		p.change(&condition{en: st.en, decided: st.decided, err: err})
		p.mu.Unlock()
		p.name(st.en, err)
		p.used.Wait()
		// It is broken, and says so. What it has of files and locks is given back for the next one.
		st.en.Close()
		if !p.reopen() {
			return
		}
	}
}

// name says what has failed, and whose mail waits because of it.
func (p *part) name(en storage.Engine, err error) {
	n := 0
	var ids []mail.QueueID
	for e := range en.Entries {
		if n++; len(ids) < maxNamed {
			ids = append(ids, e.ID)
		}
	}
	p.set.warn("the spool %s cannot be written any more, and is opened again; it takes no new mail, and what becomes of the %d messages in it is recorded later: %v", p.Dir, n, err)
	for at := 0; at < len(ids); at += nameLine {
		var b strings.Builder
		for _, id := range ids[at:min(at+nameLine, len(ids))] {
			b.WriteString(" " + string(id))
		}
		p.set.warn("in the spool %s, which cannot be written:%s", p.Dir, b.String())
	}
	if more := n - len(ids); more > 0 {
		p.set.warn("in the spool %s, which cannot be written: %d more messages, as mailq lists them", p.Dir, more)
	}
}

// reopen tries to open the part until it can, or the set is closed: then it is false.
func (p *part) reopen() bool {
	said, old := time.Now(), p.present().en
	for {
		pause := time.NewTimer(reopenPause)
		select {
		case <-p.set.closing:
			pause.Stop()
			return false
		case <-pause.C:
		}
		en, err := p.Open()
		if err == nil {
			if err = p.rise(en); err == nil {
				p.set.warn("the spool %s can be written again", p.Dir)
				// Those who are told ask the set, which has it now.
				p.set.adopted(p.set, p.set.joined(storage.Recovery{Exact: true}, p, en.Recovery()))
				p.set.forget(old)
				return true
			}
			en.Close() // its error has been told
		}
		if time.Since(said) >= remindTime {
			said = time.Now()
			p.set.warn("the spool %s still cannot be opened, and its mail waits: %v", p.Dir, err)
		}
	}
}

// rise has the part work with en, which knows by then what was decided meanwhile. Nobody who decides waits for its disk.
func (p *part) rise(en storage.Engine) error {
	for {
		p.mu.Lock()
		if len(p.kept) == 0 {
			break
		}
		list := p.kept[:min(keptStep, len(p.kept))]
		p.mu.Unlock()
		b := en.NewBatch()
		b.Apart()
		for i := range list {
			list[i].put(b)
		}
		if err := en.Commit(b); err != nil {
			return err
		}
		p.mu.Lock()
		p.kept = p.kept[len(list):]
		p.mu.Unlock()
	}
	defer p.mu.Unlock()
	p.kept = nil
	if p.more > 0 {
		p.set.warn("of the mail in the spool %s, %d decisions are forgotten that were made while it could not be written: it may be delivered again", p.Dir, p.more)
		p.more = 0
	}
	p.change(&condition{en: en, up: true, decided: &decisions{}})
	return nil
}

// keep records a change as soon as the part can be written again. failed is the engine that could not record it. The
// part may have another engine by now; if nobody has noticed the failure yet, that engine is not tried again.
func (p *part) keep(c change, failed storage.Engine) {
	p.mu.Lock()
	st := p.present()
	if !st.up || st.en == failed {
		defer p.mu.Unlock()
		if len(p.kept) == maxKept {
			p.more++
			return
		}
		p.kept = append(p.kept, c)
		st.decided.add(&c)
		return
	}
	p.mu.Unlock() // the engine may answer at once
	b := st.en.NewBatch()
	b.Apart()
	c.put(b)
	st.en.Post(b, func(err error) {
		if lost(err) {
			p.keep(c, st.en)
		}
	})
}

// maintain runs the engine's background work, of one engine after the other, until ctx ends.
func (p *part) maintain(ctx context.Context) {
	for ctx.Err() == nil {
		p.mu.Lock()
		st := p.present()
		if st.up {
			p.used.Add(1) // under mu, so that watch waits for it
		}
		p.mu.Unlock()
		if st.up {
			working, stop := context.WithCancel(ctx)
			go func() { // ends with working
				select {
				case <-st.over:
				case <-working.Done():
				}
				stop()
			}()
			st.en.Maintain(working)
			stop()
			p.used.Done()
		}
		select {
		case <-st.over:
		case <-ctx.Done():
		}
	}
}

// close ends the part, whose watch has ended.
func (p *part) close() error {
	var err error
	if st := p.present(); st.up { // it may have failed, and nobody has noticed
		if p.set.unclean.Load() {
			st.en.LeaveUnclean()
		}
		err = st.en.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.kept {
		if i == maxNamed {
			break
		}
		p.set.warn("%s: in doubt: what became of it could not be recorded, since the spool %s cannot be written; some recipients may get it again", p.kept[i].id, p.Dir)
	}
	if n := len(p.kept) - maxNamed + p.more; n > 0 {
		p.set.warn("in the spool %s %d more decisions could not be recorded", p.Dir, n)
	}
	return err
}

// A change is one that is remembered for a part that has failed.
type change struct {
	kind  kind
	id    mail.QueueID
	rcpts []int
	what  queue.Change
}

func (c *change) put(b storage.Batch) {
	switch c.kind {
	case updated:
		b.Update(c.id, c.what)
	case done:
		b.Done(c.id, c.rcpts)
	case removed:
		b.Remove(c.id)
	case finished:
		b.Finish(c.id)
	}
}

// lost says whether err leaves it unknown, or certain that it is not so, that a change was recorded, since the
// engine does not write any more.
func lost(err error) bool { return errors.Is(err, queue.ErrBroken) || errors.Is(err, queue.ErrClosed) }
