// Messages that are delivered before their clients hear 250 (smtpd_delivery_wait). Such a message lies in the engine's
// volatile area, which is not synced, and the queue manager has it delivered like any other while the client waits. If
// all recipients have it in time, 250 is said and nothing was ever synced. If anything else happens, the message is kept:
// it is committed with what has been done, as other messages are at once, and then 250 is said.
//
// What is promised is what is always promised. 250 means that the message is on stable storage, or that nothing is left
// to do for it. If this process is killed while a client waits, the client has not been told 250 and sends the message
// again. What may have been delivered by then is named: the next process finds it in the volatile area (keeper.announce).
//
// Decisions of the queue manager that come while a message is being kept need no queue of their own. The engine
// makes durable in order what it is given in order, and all that is decided is given to it on one goroutine.

package cleanup

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
	"posthaste/internal/storage"
)

// maxWaitRcpts bounds the recipients of a message that is delivered first: with more, all will seldom be done in time.
const maxWaitRcpts = 50

// A phase is where a provisional message stands.
type phase uint8

const (
	// waiting: its client waits for the deliveries. What comes of them is known here alone.
	waiting phase = iota
	// keeping: the engine has been given it. What is decided from now on goes to the engine, behind it.
	keeping
	// ended: it is delivered, refused, in the log, or lost to a disk that does not take it. Nobody finds it any more.
	ended
)

// A step is what a decision of the queue manager leads to.
type step uint8

const (
	taken   step = iota // it is noted here, and the client waits on
	settled             // all recipients have it, or need it no more
	refused             // all recipients have failed for good, and the client is to hear so
	keep                // it takes the log: the message is to be kept, and the decision goes behind it
	behind              // the decision goes to the engine
)

// A wait is the state machine of a provisional message. It does nothing by itself.
//
//	waiting ── all are done ──────────────► ended: 250, and nothing was synced
//	        ── all have failed for good ──► ended: refused, if that is wanted
//	        ── anything else ─────────────► keeping: committed, then 250
//
// There is no way back, and none between the two ends: a message has one fate.
type wait struct {
	phase  phase
	refuse bool // a message without any recipient left may be refused
	done   []bool
	left   int           // of done, how many are false
	answer *mail.Outcome // refused: why
}

// newWait begins to wait for n recipients.
func newWait(n int, refuse bool) wait { return wait{refuse: refuse, done: make([]bool, n), left: n} }

// take takes a decision in. Only plain successes are noted here; whatever else is decided of a message belongs into the
// log, and so does the message.
func (w *wait) take(op *proto.Op) step {
	if w.phase != waiting {
		return behind
	}
	plain := !op.Keep && !op.Lost && len(op.Handed) == 0 && !op.Changes()
	switch {
	// Nobody can have been told of a failure: for that the message would have been kept.
	case op.Remove && op.Finished && plain:
		w.phase = ended
		return settled
	case op.Remove:
		w.phase = keeping
		return keep
	}
	// What is done counts, whatever else the decision says: it goes into the log with the message.
	for _, i := range op.Done {
		// The queue manager's numbers are not relied on.
		if i >= 0 && i < len(w.done) && !w.done[i] {
			w.done[i] = true
			w.left--
		}
	}
	switch {
	case w.left == 0:
		w.phase = ended
		return settled
	case plain:
		return taken
	case op.Keep && w.hopeless(op.Outcomes):
		w.phase, w.answer = ended, &op.Outcomes[0]
		return refused
	}
	// A deferral, a hold, an agent that died: all of this is for the log, where it goes behind the message.
	w.phase = keeping
	return keep
}

// hopeless says whether the message is to be refused: all recipients have failed for good, and none has it.
func (w *wait) hopeless(list []mail.Outcome) bool {
	if !w.refuse || w.left != len(w.done) {
		return false
	}
	// One of whom nothing is said, or who is to be tried again, may still get it. Of one that was expanded some
	// members may have it.
	failed := make([]bool, len(w.done))
	n := 0
	for i := range list {
		o := &list[i]
		if o.Action != dsn.Failed || len(o.Parts) > 0 || o.Rcpt < 0 || o.Rcpt >= len(failed) || failed[o.Rcpt] {
			return false
		}
		failed[o.Rcpt] = true
		n++
	}
	return n == len(failed)
}

// keep is for what makes the client's wait vain: the time is up, or the queue manager or this process goes. It says
// whether the message is to be kept now.
func (w *wait) keep() bool {
	if w.phase != waiting {
		return false
	}
	w.phase = keeping
	return true
}

// doneRcpts are the recipients that need nothing more.
func (w *wait) doneRcpts() (list []int) {
	for i, d := range w.done {
		if d {
			list = append(list, i)
		}
	}
	return list
}

// A provisional is a provisional message. Its fields are guarded by waits.mu, but for those that are not changed.
type provisional struct {
	wait
	// As the volatile area has it. Its Ref is good until the place is dropped.
	entry queue.Entry
	// The queue manager that has been told of it. Another one does not know it.
	conn *ipc.Conn
	// For the log. The memory is that of the incoming message, which waits for end, and so is batch.
	m     addition
	batch batch
	index int // in batch
	// Capacity 1: it has ended, or the commit has, with that error. It gets exactly one value, so that whoever sends it
	// need not wait: the engine's goroutine may not.
	end chan error
	// Closed when it is not among the waits any more: what there is to know of it, the engine knows.
	away chan struct{}
}

// waits are the provisional messages of a server. The zero value has none.
//
// mu is held while the engine is given a message that is to be kept, so that no decision about it can overtake it; nothing
// that waits is done under it. It is taken after no other lock of this package.
type waits struct {
	n    atomic.Int64 // of list: mostly 0, and nobody takes the lock then
	mu   sync.Mutex
	list map[mail.QueueID]*provisional
}

// forget ends a message for everybody but who waits for its end.
func (w *waits) forget(p *provisional) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(p)
}

// remove is forget for who holds mu.
func (w *waits) remove(p *provisional) {
	if w.list[p.entry.ID] == p {
		delete(w.list, p.entry.ID)
		w.n.Add(-1)
		close(p.away)
	}
}

// keepProvisional keeps all that which says, nil: all. Their submitters are answered when that is durable; this does
// not wait for it.
func (s *server) keepProvisional(which func(*provisional) bool) {
	w := &s.waits
	if w.n.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.list {
		if (which == nil || which(p)) && p.keep() {
			s.post(p)
		}
	}
}

// relieve keeps the messages that keep the volatile area from being used again: those that came first.
func (s *server) relieve() {
	s.waits.mu.Lock()
	// Uses of the area's files are numbered, so that the lowest number is that of the file which is next.
	oldest := uint64(0)
	for _, p := range s.waits.list {
		if p.phase == waiting && (oldest == 0 || p.entry.Ref.Segno < oldest) {
			oldest = p.entry.Ref.Segno
		}
	}
	s.waits.mu.Unlock()
	s.keepProvisional(func(p *provisional) bool { return p.entry.Ref.Segno == oldest })
}

// post gives a message that is to be kept to the engine. The caller holds mu: what it gives to the engine afterwards
// becomes durable behind it.
func (s *server) post(p *provisional) {
	// A disk that does not answer takes no new mail, and this is new to it.
	if err := s.opt.Engine.Silent(); err != nil {
		p.end <- err
		return
	}
	// One batch, so that no crash shows the message without what has been done of it.
	p.index = p.batch.Add(p.m)
	if done := p.doneRcpts(); len(done) > 0 {
		p.batch.Done(p.entry.ID, done)
	}
	s.opt.Engine.Post(p.batch, func(err error) {
		// The queue manager hears of it before it is answered what it has decided since, as both go the same way. Told
		// later, it would take a message that it has removed, and forgotten, for a new one, and have it delivered again.
		if e, ok := p.batch.Entry(p.index); ok && err == nil {
			p.conn.Push(&proto.Entries{List: []proto.Entry{{Entry: e}}})
		}
		p.end <- err
	})
	// Somebody waits for it: the client has waited already.
	s.opt.Engine.Hurry()
}

// provisionally takes in a decision about a provisional message. It is false when the decision is for the engine, which
// has been given the message by then. For mail that is not provisional it costs one look at a counter.
func (s *server) provisionally(op *proto.Op) bool {
	w := &s.waits
	if w.n.Load() == 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.list[op.ID]
	if p == nil {
		return false
	}
	switch p.take(op) {
	case taken:
		return true
	case settled, refused:
		w.remove(p)
		if p.answer != nil {
			o := *p.answer // the request's memory is used again
			p.answer = &o
		}
		p.end <- nil
		return true
	// The caller gives the engine the decision next.
	case keep:
		s.post(p)
	}
	return false
}

// entryOf is a provisional message as it stands.
func (w *waits) entryOf(id mail.QueueID) (queue.Entry, bool) {
	if w.n.Load() == 0 {
		return queue.Entry{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.list[id]
	if p == nil {
		return queue.Entry{}, false
	}
	// Done is what is known here: the record in the volatile area does not change.
	e := p.entry
	e.NPending = p.left
	if p.left < len(p.done) {
		e.Done = make([]byte, (len(p.done)+7)/8)
		for _, i := range p.doneRcpts() {
			e.Done[i/8] |= 1 << (i % 8)
		}
	}
	return e, true
}

// ends waits until none of these messages, which are being kept, is provisional any more, so that the queue can be told:
// as long as a commit takes, or until this process ends.
func (s *server) ends(which []*provisional) {
	for _, p := range which {
		select {
		case <-p.away:
		case <-s.ctx.Done():
			return
		}
	}
}

// leavingOthers keeps what other queue managers than that of c were told of, and returns that.
func (s *server) leavingOthers(c *ipc.Conn) (list []*provisional) {
	if s.waits.n.Load() == 0 {
		return nil
	}
	s.keepProvisional(func(p *provisional) bool { return p.conn != c })
	s.waits.mu.Lock()
	defer s.waits.mu.Unlock()
	for _, p := range s.waits.list {
		if p.conn != c {
			list = append(list, p)
		}
	}
	return list
}

// mayWait says whether the message may be delivered before it is durable. changed says that something is to be recorded
// of it besides. What is not plain new mail to a few recipients goes the ordinary way.
func (in *incoming) mayWait(res *Result, changed bool) bool {
	s, env := in.s, &res.Envelope
	// With events the first one of the message must be on the disk before anything is tried, which costs the sync that
	// is to be saved.
	if in.q.Wait <= 0 || in.file != nil || changed || s.opt.Events != nil || s.opt.Exact || s.ending.Load() {
		return false
	}
	// A content filter is not who the client waits for: the message comes back from there, and waits then.
	if res.Hold || res.Refused != nil || env.Filter != "" || in.q.Settles != nil || in.q.State != nil || in.q.Flags&proto.SubmitNoReceive != 0 ||
		env.Trace != 0 || !env.SendAt.IsZero() || len(env.Recipients) > maxWaitRcpts || len(in.stored) > maxInlineEntry {
		return false
	}
	// Its sender is to be told of the success, which takes more than that the message is gone.
	return !slices.ContainsFunc(env.Recipients, func(r mail.Recipient) bool { return r.Notify.Success() })
}

// await has the message delivered while its client waits. It is false when it cannot be, and is to be queued as others are.
func (in *incoming) await(m addition, env *mail.Envelope) (verdict *proto.SubmitReply, waited bool) {
	s := in.s
	st, ok := s.opt.Engine.(storage.Stasher)
	if !ok {
		return nil, false
	}
	// Until it is among the waits, where attach finds it, or until it has been announced.
	entered := s.queueing.enter()
	announced := sync.OnceFunc(func() { s.queueing.leave(entered) })
	defer announced()
	conn := s.attachedNow()
	// Nobody would deliver it.
	if conn == nil {
		return nil, false
	}
	e, err := st.Stash(m)
	if err != nil {
		// This one goes the ordinary way, and the next ones find room.
		if errors.Is(err, queue.ErrFull) {
			s.relieve()
		}
		return nil, false
	}
	p := &provisional{wait: newWait(m.NRcpt, in.q.Refuse), entry: e, conn: conn, m: m, batch: in.changes(), end: make(chan error, 1), away: make(chan struct{})}
	begun := time.Now()
	// From here on the submitter is to be answered, whoever retires.
	in.with = true
	s.storing.Add(1)
	in.entries.List = append(in.entries.List, proto.Entry{Entry: e, Envelope: m.Envelope, Recipients: m.Recipients, Provisional: true})
	s.begin(p, &in.entries)
	in.entries.List = reuse.Emptied(in.entries.List)
	// Looked at only now, since both look for provisional messages after they have said that they go:
	// the queue manager may have gone before it was told.
	if s.attachedNow() != conn || s.ending.Load() {
		s.keepProvisional(func(q *provisional) bool { return q == p })
	} else {
		announced()
	}
	in.token = false // the queue manager pays for it when it takes the message up
	// What ends the wait before its time is decided by whoever finds out. Here it is only waited for.
	t := time.NewTimer(in.q.Wait)
	defer t.Stop()
	select {
	case err = <-p.end:
	case <-t.C:
		s.keepProvisional(func(q *provisional) bool { return q == p })
		err = <-p.end
	case <-s.ctx.Done():
		s.keepProvisional(func(q *provisional) bool { return q == p })
		err = <-p.end
	}
	verdict = in.over(p, st, env, err)
	// The client has waited for the deliveries, and then for the disk.
	if took := time.Since(begun); verdict == &queued && p.phase == keeping && took >= submitterPatience {
		s.late(env.ID, took)
	}
	return verdict, true
}

// attachedNow is the queue manager's connection; nil: there is none.
func (s *server) attachedNow() *ipc.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.qmgr
}

// begin makes a message known as provisional, and tells the queue manager so, whose first decision may be quick. Nobody can
// have the message kept in between: that it is kept is told after that it is provisional.
func (s *server) begin(p *provisional, told *proto.Entries) {
	w := &s.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.list == nil {
		w.list = make(map[mail.QueueID]*provisional)
	}
	w.list[p.entry.ID] = p
	w.n.Add(1)
	p.conn.Push(told) // which does not wait
}

// over gives the verdict on a message that has ended, or been kept; err is that of keeping it. The order of its
// steps matters: a message is always found by whoever asks for it, and never in two places with two states.
func (in *incoming) over(p *provisional, st storage.Stasher, env *mail.Envelope, err error) *proto.SubmitReply {
	s := in.s
	switch {
	// Nothing was acknowledged, so that nothing is lost. But some may have it, and will have it twice.
	case err != nil:
		s.waits.forget(p)
		// Whether it is in the log is found out when that is opened again. What is withdrawn is named then, and the
		// queue manager is told the queue anew. Should the power fail before, this line is all that there is.
		if errors.Is(err, queue.ErrBroken) {
			s.opt.Log.Warning("%s: in doubt: it may have been delivered while its client waited, who is told 451, and may send it again", env.ID)
		} else {
			in.tellGone(p)
			st.Drop(p.entry.Ref, false)
			s.withdrawn(&queue.Withdrawn{ID: p.entry.ID, Sender: env.Sender, Recipients: addresses(env)})
		}
		return s.storageReply(env.ID, err)
	case p.answer != nil:
		// Nobody has it, so that a client that does not hear the refusal may send it again.
		st.Drop(p.entry.Ref, false)
		in.tellGone(p)
		reply := refusalOf(p.answer)
		s.opt.Log.Log(maillog.WaitRefused{ID: string(env.ID), Reply: reply.Reason()})
		return reply
	// The one that all this is for.
	case p.phase == ended:
		st.Drop(p.entry.Ref, true)
		in.count(env)
		return &queued
	}
	// It is in the log before it is not here any more, so that whoever asks where it is finds it.
	e, ok := p.batch.Entry(p.index)
	// Who was told that it is provisional has heard that it is kept (post). Another one is told the queue when this is
	// forgotten (ends), and must not be told afterwards: it may have removed it by then.
	if ok && s.attachedNow() != p.conn {
		in.announce(e, nil, nil)
	}
	s.waits.forget(p)
	st.Drop(p.entry.Ref, false)
	in.count(env)
	return &queued
}

// tellGone tells the queue manager that it is to forget the message. If the connection breaks before it hears so, it forgets
// the message when it has attached anew, since it is not told of it then.
func (in *incoming) tellGone(p *provisional) {
	p.conn.Push(&proto.Entries{Gone: []mail.QueueID{p.entry.ID}})
}

// refusalOf is what a client is told whose message cannot be delivered: what was said of the first recipient. It is
// 5xx whatever the reply was, since the agent has decided that it is final.
func refusalOf(o *mail.Outcome) *proto.SubmitReply {
	text := o.DiagText
	// The reply of a host has a code and a status of its own, which the client need not read twice.
	if len(text) > 3 && text[0] == '5' && (text[3] == ' ' || text[3] == '-') {
		text = strings.TrimPrefix(text[4:], o.Status.String()+" ")
	}
	r := &proto.SubmitReply{Code: 550, Status: o.Status, Text: cmp.Or(text, o.Reason)}
	if r.Status.Class != 5 {
		r.Status = dsn.S(5, 0, 0)
	}
	return r
}

// withdrawn names a message whose client was not told 250, and that may have been delivered all the same: in the log, and
// in the list of messages that may have arrived twice. What the process does not live to name, the next one names
// (keeper.announceWithdrawn).
func (s *server) withdrawn(w *queue.Withdrawn) {
	s.opt.Log.LogWarning(maillog.Withdrawn{ID: string(w.ID)})
	s.opt.Doubts.withdrawn(w)
}

func addresses(env *mail.Envelope) (list []string) {
	for i := range env.Recipients {
		list = append(list, env.Recipients[i].Address)
	}
	return list
}
