// The list of messages that may have arrived twice, which "posthaste doubtful" shows:
// what a start found in doubt, what agents died with, what was queued after its client
// may have given up. The spool finds; this file remembers, follows what becomes of each,
// and saves.

package cleanup

import (
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/doubtful"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// saveDelay is how long changes of the list wait for others. A crash in that time forgets
// what has become of mail in the list, and the next start looks whether it is still in
// the queue, so that the list never names what is not there. What is found at a start is
// saved before the spool is served.
const saveDelay = time.Second

// doubts keeps the list. A nil one keeps nothing. Its methods may be called by any
// goroutine. It outlives a spool that breaks and is opened again.
type doubts struct {
	fs  vfs.FS
	dir string
	log *maillog.Logger

	// Whether the list has a message of which something may still be heard. Mostly it has not, and then
	// the commit path need not take the lock.
	some atomic.Bool

	mu   sync.Mutex
	list doubtful.List
	// Runs while changes wait to be saved; nil otherwise. mu guards it and list.
	save *time.Timer
}

// newDoubts reads the list. A list that cannot be read is begun anew with a warning: a
// list for people must not keep mail from being delivered.
func newDoubts(fs vfs.FS, dir string, log *maillog.Logger) *doubts {
	d := &doubts{fs: fs, dir: dir, log: log}
	list, err := doubtful.Load(fs, dir)
	if err != nil {
		log.Warning("the list of messages that may have arrived twice is begun anew: %v", err)
	}
	d.list = list
	d.look()
	return d
}

// look brings some in line with the list. The caller holds mu, or nobody else knows d
// yet.
func (d *doubts) look() {
	for i := range d.list {
		if d.list[i].IsOpen() {
			d.some.Store(true)
			return
		}
	}
	d.some.Store(false)
}

// doubtWhy is how the list names what recovery has found.
var doubtWhy = map[queue.DoubtKind]string{queue.DoubtHanded: doubtful.InHand, queue.DoubtTrace: doubtful.Trace, queue.DoubtNew: doubtful.New, queue.DoubtLost: doubtful.Lost}

// doubtOf is what recovery says of a delivery.
func doubtOf(x *queue.Doubt) doubtful.Entry {
	e := doubtful.Entry{Nexthop: x.Nexthop, Why: doubtWhy[x.Kind], Began: timeOf(x.At)}
	if x.Kind == queue.DoubtLost {
		e.Began = nil // whether it had begun nobody knows
	}
	return e
}

// found adds what a start has found, and notes which messages of the list have left the
// queue while nobody looked. exact says that agents announce from now on what they send
// (spool_exact_doubt).
func (d *doubts) found(en engine, rd queueread.Reader, rep *recovery, exact bool) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	changed := d.compare(en, exact, now)
	// Found at this start, with what recovery could tell of each.
	for i := range rep.InDoubt {
		x := &rep.InDoubt[i]
		e := doubtOf(x)
		e.Found, e.Exact = now, rep.Exact && exact
		d.add(en, rd, x.ID, x.Rcpts, e)
		changed = true
	}
	for _, id := range rep.Unanswered {
		d.add(en, rd, id, nil, doubtful.Entry{Rcpt: -1, Why: doubtful.Unanswered, Found: now})
		changed = true
	}
	for i := range rep.Withdrawn {
		d.addWithdrawn(&rep.Withdrawn[i], now)
		changed = true
	}
	d.look()
	// At once, and not by soon: the spool is not served yet.
	if changed {
		d.write()
	}
}

// compare notes which messages of the list have left the queue while nobody looked, and
// says whether there are any. The caller holds mu.
func (d *doubts) compare(en engine, exact bool, now time.Time) (changed bool) {
	owner, shared := en.(storage.Owner)
	// What is not here yet may be in what is still being read. When that is over, this is
	// called once more.
	if shared && len(owner.Reading()) > 0 {
		return false
	}
	for i := range d.list {
		e := &d.list[i]
		if !e.IsOpen() {
			continue
		}
		_, there := en.Locate(e.ID)
		if e.Exact && (!there || !exact) { // whether it was, or will be, sent again is not known any more
			e.Exact, changed = false, true
		}
		was := e.State
		switch {
		case there:
			e.State = doubtful.Queued
		// Nobody here can tell: its part of the queue may be another node's by now.
		case shared:
			e.State = doubtful.Away
		default: // the crash came before we had noted it
			e.State, e.Ended = doubtful.Delivered, &now
		}
		changed = changed || e.State != was
	}
	return changed
}

// timeOf is t in the form of an entry: nil when it is not known.
func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// lost adds deliveries whose agent died in the middle of them. With exact, only those
// count that are on record as being in an agent's hand; what was not recorded was not
// sent.
func (d *doubts) lost(en engine, rd queueread.Reader, op *proto.Op, exact bool) {
	if d == nil {
		return
	}
	rcpts := op.Handed
	if exact {
		if rcpts = en.InHand(op.ID, rcpts); len(rcpts) == 0 {
			return
		}
	}
	if e, ok := en.(storage.Drainer); ok {
		e.Doubtful(op.ID, rcpts)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(en, rd, op.ID, rcpts, doubtful.Entry{Nexthop: string(op.Nexthop), Why: doubtful.Agent, Found: time.Now(), Exact: exact})
	d.look()
	d.soon()
}

// late adds a new message that was queued after its client may have given up.
func (d *doubts) late(en engine, rd queueread.Reader, id mail.QueueID) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(en, rd, id, nil, doubtful.Entry{Rcpt: -1, Why: doubtful.Unanswered, Found: time.Now()})
	d.look()
	d.soon()
}

// withdrawn adds a message that was delivered before its client was told, and could not be kept.
func (d *doubts) withdrawn(w *queue.Withdrawn) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addWithdrawn(w, time.Now())
	d.soon()
}

// addWithdrawn adds an entry for a message that is not in the queue. The caller holds mu.
func (d *doubts) addWithdrawn(w *queue.Withdrawn, now time.Time) {
	e := doubtful.Entry{ID: w.ID, Sender: w.Sender, Rcpt: -1, Why: doubtful.Withdrawn, Found: now, State: doubtful.Left, Ended: &now,
		More: max(len(w.Recipients)-1, 0)}
	if len(w.Recipients) > 0 {
		e.Recipient = w.Recipients[0]
	}
	d.list.Add(e)
}

// add adds an entry for each of rcpts, which nil makes all that are pending; or one for
// the whole message, if e.Rcpt is negative. The caller holds mu.
func (d *doubts) add(en engine, rd queueread.Reader, id mail.QueueID, rcpts []int, e doubtful.Entry) {
	e.ID, e.State = id, doubtful.Queued
	sender, list := envelopeOf(en, rd, id, rcpts)
	e.Sender = sender
	// Nobody knows which recipients' client will send again: the entry is for the
	// message.
	if e.Rcpt < 0 {
		if len(list) > 0 {
			e.Recipient = list[0].address
		}
		e.More = max(len(list)-1, 0)
		d.list.Add(e)
		return
	}
	for i := range list[:min(len(list), doubtful.MaxRcpts)] {
		e.Rcpt, e.Recipient, e.More = list[i].index, list[i].address, 0
		// The last entry stands for the rest, too: a mailing list must not fill the list.
		if i == doubtful.MaxRcpts-1 {
			e.More = len(list) - doubtful.MaxRcpts
		}
		d.list.Add(e)
	}
}

// addressee is a recipient as the list wants it.
type addressee struct {
	index   int
	address string
}

// envelopeOf reads the sender and recipients of a message: those in rcpts, or all that
// are pending. What cannot be read stays empty. That it cannot is logged elsewhere.
func envelopeOf(en engine, rd queueread.Reader, id mail.QueueID, rcpts []int) (sender string, list []addressee) {
	for _, i := range rcpts {
		// Addresses are filled in below as far as they can be read.
		list = append(list, addressee{index: i})
	}
	at, ok := en.Locate(id)
	if !ok {
		return "", list
	}
	st, err := rd.Read(at.Ref, id)
	if err != nil {
		return "", list
	}
	// The record has the envelope as it was queued; what has been done since is
	// elsewhere.
	st.Overlay(at.Done)
	env, err := st.Envelope()
	if err != nil {
		return "", list
	}
	all, err := st.Recipients(0, -1)
	if err != nil {
		return env.Sender, list
	}
	if rcpts == nil {
		for i := range all {
			if st.Pending(i) {
				list = append(list, addressee{index: i})
			}
		}
	}
	for i := range list {
		if k := list[i].index; k < len(all) {
			list[i].address = all[k].Address
		}
	}
	return env.Sender, list
}

// recorded notes what has become of messages in the list, from changes that are durable: those of b, but for what the
// engine has left out. Of that the list must not say that it has happened.
func (d *doubts) recorded(ops []proto.Op, b batch) {
	if d == nil || !d.some.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now, changed := time.Now(), false
	for i := range ops {
		op := &ops[i]
		switch {
		case b.Refused(i) != nil:
		case op.Remove && op.Finished:
			// End first: || would skip it once something has changed.
			changed = d.list.End(op.ID, nil, doubtful.Delivered, now) || changed
		case op.Remove:
			changed = d.list.End(op.ID, nil, doubtful.Removed, now) || changed
		case len(op.Done) > 0:
			changed = d.list.End(op.ID, op.Done, doubtful.Delivered, now) || changed
		}
	}
	if changed {
		d.look()
		d.soon()
	}
}

// handed notes that agents are about to send again what is in the list.
func (d *doubts) handed(id mail.QueueID, rcpts []int) {
	if d == nil || !d.some.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.list.Handed(id, rcpts) {
		d.soon()
	}
}

// settled notes that a bounce has taken the place of recipients in the list.
func (d *doubts) settled(st *proto.Settle) {
	if d == nil || st == nil || len(st.Rcpts) == 0 || !d.some.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.list.End(st.ID, st.Rcpts, doubtful.Returned, time.Now()) {
		d.look()
		d.soon()
	}
}

// unseen is how many entries no operator has marked as seen. It is a metric, so that
// somebody looks.
func (d *doubts) unseen() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.list) == 0 {
		return 0
	}
	// A file that the command writes and this process only reads.
	seen, err := doubtful.Seen(d.fs, d.dir)
	if err != nil { // it is told of when the list is saved
		seen = time.Time{}
	}
	for i := range d.list {
		if d.list[i].Found.After(seen) {
			n++
		}
	}
	return n
}

// soon has the list saved within saveDelay. The caller holds mu.
func (d *doubts) soon() {
	if d.save == nil {
		d.save = time.AfterFunc(saveDelay, d.flush)
	}
}

// flush saves what waits to be saved. It is called by the timer, and at the end of the
// process.
func (d *doubts) flush() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.save != nil {
		d.save.Stop()
		d.write()
	}
}

// write saves the list. The caller holds mu.
func (d *doubts) write() {
	d.save = nil
	if err := d.list.Save(d.fs, d.dir); err != nil {
		d.log.Warning("the list of messages that may have arrived twice cannot be saved: %v", err)
	}
}
