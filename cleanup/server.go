// The server: requests of submitters and of the queue manager, and the way of one message
// from its first octet to the reply that it is queued. 250 is answered when the message
// is on stable storage and never before.

package cleanup

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/event"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/metrics"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/reuse"
	"posthaste/internal/table"
)

// maxInlineEntry is the largest envelope, with its recipients, that is pushed to the
// queue manager together with a new message, which then need not be read. Of larger ones
// the queue manager reads as much as it has room for.
const maxInlineEntry = 16 << 10

// serverOptions are what a server is made of. They are not changed.
type serverOptions struct {
	Core *Core
	// Engine keeps the queue.
	Engine engine
	Log    *maillog.Logger
	// Token takes a flow control token, false when there is none: the
	// submitter then waits Delay once (in_flow_delay).
	Token func() bool
	Delay time.Duration
	// PutToken gives one back: the message that it was taken for is not one
	// that the queue manager will take up.
	PutToken func()
	// BufferLimit bounds the memory for messages on their way in, over all of
	// them (spool_buffer_limit). Past it even short ones go to files.
	BufferLimit int64
	// Verify is told of probes for addresses that are aliases. It may be nil.
	Verify *ipc.Client
	// Milters are the filters. It may be nil.
	Milters *milters
	// Authenticator checks mail from strangers. It may be nil.
	Authenticator *authenticator
	// Signer signs mail. It may be nil.
	Signer *signer
	// Doubts keeps the list of messages that may have arrived twice, with Reader. It may be nil.
	Doubts *doubts
	Reader queueread.Reader
	Exact  bool // spool_exact_doubt
	// Metrics counts what is accepted. It may be nil.
	Metrics *metrics.Set
	// Events tells what was received. It may be nil.
	Events *event.Reporter
}

// A server serves submitters and the queue manager for the life of one spool. Nobody else
// changes the queue on disk.
type server struct {
	// Not changed after newServer.
	opt serverOptions
	// Ends when work in hand must stop. It does not stop a commit: half-way through,
	// nobody would know who has the message.
	ctx context.Context
	srv ipc.Server
	// The goroutines for messages and for whatever waits. Wait waits for all of them.
	wg ipc.Workers

	// Octets of content in memory, over all messages. At BufferLimit, further content
	// goes to files.
	buffered atomic.Int64

	// Storage of messages and records that are done with. Neither pool is ever empty:
	// they make what is missing.
	incomings  reuse.Pool[incoming]
	recordings reuse.Pool[recording]

	// For the end of the process. A cleanup that has a successor chooses a moment for it
	// at which no message would have to wait long (keeper.watch): slow counts the
	// messages that wait for filters or for the DNS, quiet (capacity 1) says that there
	// may be none, and left is closed when all clients have gone.
	slow  atomic.Int64
	quiet chan struct{} // capacity 1: no message is on its way that takes its time, perhaps
	left  chan struct{} // closed when all clients have gone
	// Messages that the disk has and whose submitters have not been answered. Nobody is cut off while there are
	// any: the client would be told 451 for a message that is in the queue.
	storing atomic.Int64
	// Set when the clients are to leave: nothing waits for company in a sync any more, since the
	// successor waits for the end of it.
	ending atomic.Bool

	// Messages that are delivered before they are durable. Empty unless submitters want that.
	waits waits

	// Those that are queueing a message and have not announced it.
	queueing grace

	mu sync.Mutex
	// The attached queue manager. nil before one attaches and after it has gone: messages
	// then stay in the queue, and the next one is pushed all of them.
	qmgr *ipc.Conn
	// Messages that come in parts. Empty when nothing large is on its way.
	streams map[streamKey]*stream
	// Messages that are in the queue, or are about to be, and of which the journal of events
	// has not heard: they are not for the queue manager yet. nil while nobody is told of events.
	untold map[mail.QueueID]*telling
}

// newServer makes a server for one engine. ctx ends when work in hand must stop.
func newServer(ctx context.Context, o serverOptions) *server {
	s := &server{opt: o, ctx: ctx, streams: make(map[streamKey]*stream), quiet: make(chan struct{}, 1), left: make(chan struct{})}
	s.incomings.New = func() *incoming {
		in := &incoming{s: s, buf: make([]byte, 0, 16<<10)}
		// One budget for each message that is worked on at the same time, renewed for
		// each: patterns that take exponential time must not stop the service.
		in.ctx, in.budget = table.NewBudget(s.ctx, table.MatchBudget)
		in.ctx = table.WithAnswers(in.ctx, &in.answers)
		return in
	}
	s.recordings.New = func() *recording { return &recording{s: s, batch: s.opt.Engine.NewBatch()} }
	s.srv = ipc.Server{Handler: s.handle, OnClose: s.closed, OnTrigger: func([]byte) {},
		// The socket lies where the set-gid group can reach it, for whom there is nothing here.
		Public: func(*ipc.Request) bool { return false }, Last: s.isQueueManager}
	return s
}

// IPC is the server for the service's sockets.
func (s *server) IPC() *ipc.Server { return &s.srv }

// isQueueManager says whether c is the queue manager's. Its connection is closed last
// when the service stops: the others still bring mail that it must be told of, and it
// still has outcomes to record.
func (s *server) isQueueManager(c *ipc.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.qmgr == c
}

// unhurried says that no message is on its way that takes its time: none comes in parts,
// as slowly as its client sends, and none waits for filters.
func (s *server) unhurried() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams) == 0 && s.slow.Load() == 0
}

// hush has keeper.watch look whether that is so now.
func (s *server) hush() {
	select {
	case s.quiet <- struct{}{}:
	default:
	}
}

// hasten has all that becomes of mail recorded at once from now on. Else what the queue manager
// records last would wait for company that does not come, and the successor, and all who bring
// mail, would wait for it.
func (s *server) hasten() {
	s.ending.Store(true)
	s.keepProvisional(nil)
	s.opt.Engine.Hurry()
}

// Wait waits for what is under way. It is called when the sockets are closed, and before
// the engine is.
func (s *server) Wait() { s.wg.Wait() }

// handle dispatches a request. It runs on the connection's reading goroutine: what may
// wait for the disk, a table or a filter goes to a goroutine of its own.
func (s *server) handle(c *ipc.Conn, r *ipc.Request) {
	switch r.Kind {
	case proto.KindSubmit:
		s.submit(c, r)
	case proto.KindChunk:
		s.chunk(c, r)
	case proto.KindRecord:
		s.record(r)
	case proto.KindHand:
		s.hand(r)
	case proto.KindHands:
		s.hands(r)
	case proto.KindShares, proto.KindNotes, proto.KindOwned:
		s.amongNodes(r)
	case proto.KindLease:
		s.lease(r)
	case proto.KindLocate:
		s.locate(r)
	case proto.KindAttach:
		s.attach(c, r)
	case proto.KindDue:
		s.due(c, r)
	case proto.KindPage:
		s.page(c, r)
	case proto.KindAbort:
		s.abort(c, r)
	case proto.KindMilter:
		s.milterEvent(c, r)
	default:
		r.Fail("cleanup: unknown request %d", r.Kind)
	}
}

// lease gives a submitter numbers for queue IDs, so that it can name its messages before
// they exist here. At most 100000, so that nobody exhausts them by a mistake.
func (s *server) lease(r *ipc.Request) {
	var q proto.Lease
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	n := min(max(q.N, 1), 100000)
	first, err := s.opt.Engine.Lease(n)
	if err != nil {
		r.Fail("%v", err)
		return
	}
	r.Reply(&proto.LeaseReply{First: first, N: n})
}

// locate says where a message lies now.
func (s *server) locate(r *ipc.Request) {
	var q proto.Locate
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	e, ok := s.waits.entryOf(q.ID)
	if !ok {
		e, ok = s.opt.Engine.Locate(q.ID)
	}
	r.Reply(&proto.LocateReply{Found: ok, Entry: e})
}

// closed takes in that a connection is gone. Messages of which it has not brought the end
// are given up: they were never acknowledged.
func (s *server) closed(c *ipc.Conn) {
	s.mu.Lock()
	was := s.qmgr == c
	if was {
		s.qmgr = nil
	}
	var gone []*stream
	for key, st := range s.streams {
		if key.conn == c {
			gone = append(gone, st)
			delete(s.streams, key)
		}
	}
	s.mu.Unlock()
	if was {
		s.keepProvisional(nil)
	}
	for _, st := range gone {
		close(st.parts)
	}
	if ms := s.opt.Milters; ms != nil {
		// It may wait for a filter.
		s.wg.Go(func() { ms.gone(c) })
	}
}

// submit takes a message, or the first part of a long one.
func (s *server) submit(c *ipc.Conn, r *ipc.Request) {
	in := s.incomings.Get()
	if err := r.Decode(&in.q); err != nil {
		in.release()
		r.Fail("%v", err)
		return
	}
	// While the disk does not answer, mail is refused here: accepted, it would fill the
	// memory while its clients wait.
	if err := s.opt.Engine.Silent(); err != nil {
		reply := s.storageReply(in.q.Envelope.ID, err)
		in.release()
		r.Reply(reply)
		return
	}
	if in.q.More {
		s.openStream(c, r, in)
		return
	}
	s.wg.Go(func() {
		in.begin()
		in.write(in.q.Content)
		in.answer(r)
		r.Free()
	})
}

// incoming is one message on its way in, with the memory that it takes, which is used
// again. It belongs to whoever works on the message, from server.submit until release,
// with which commit and abort end. The log, the queue manager and filters may keep
// nothing of it after a call returns.
type incoming struct {
	s   *server
	ctx context.Context // of all lookups for the message
	// What lookups in pattern tables may cost for this message.
	budget *table.Budget
	// What databases have said of the recipients, to the submitter and to us.
	answers table.Answers
	q       proto.Submit
	msg     Message
	// What msg gave back last: pieces of the content, to be stored.
	out [][]byte
	// The content so far, up to the engine's inline limit; empty when file is set. spare
	// is what replace needs for the content as it was before.
	buf   []byte
	spare []byte // for replace: content as it was before
	// Where the content goes when it is longer.
	file contentFile
	// The first error in storing the content. The rest is read and dropped, because the
	// submitter cannot be interrupted, and the reply says so at the end.
	fault error
	// A flow control token was taken, and nothing has come of it yet.
	token bool

	// The envelope and its recipients as they are stored; both the record and the queue
	// manager get these octets.
	stored  []byte
	with    bool          // the disk has got it, and it counts in server.storing
	batch   batch         // nil until a message has come so far
	entries proto.Entries // the entry for the queue manager
}

// release gives in back for another message. Nothing of this message stays but octets
// beyond the ends of empty slices.
func (in *incoming) release() {
	q := &in.q
	*q = proto.Submit{Envelope: mail.Envelope{Recipients: reuse.Emptied(q.Envelope.Recipients)}}
	in.msg.reset()
	if in.batch != nil {
		in.batch.Reset()
	}
	in.out, in.entries.List = reuse.Emptied(in.out), reuse.Emptied(in.entries.List)
	in.buf, in.spare, in.stored = reuse.Truncated(in.buf), reuse.Truncated(in.spare), reuse.Truncated(in.stored)
	// One mailing list must not cost its size for ever.
	if cap(in.stored) > maxInlineEntry {
		in.stored = nil
	}
	in.file, in.fault, in.token, in.with = nil, nil, false, false
	in.s.incomings.Put(in)
}

// changes is the batch with which the message becomes durable. It is made when the first
// message needs it.
func (in *incoming) changes() batch {
	if in.batch == nil {
		in.batch = in.s.opt.Engine.NewBatch()
	}
	return in.batch
}

// begin takes the envelope, which is complete now. When the queue manager cannot keep up,
// so that there is no flow control token, it first waits, once for each message
// (in_flow_delay).
func (in *incoming) begin() {
	s, q := in.s, &in.q
	wanted := q.Flags&proto.SubmitNoReceive == 0 && s.opt.Delay > 0
	in.token = wanted && s.opt.Token()
	if wanted && !in.token {
		t := time.NewTimer(s.opt.Delay)
		select {
		case <-t.C:
		case <-s.ctx.Done():
			t.Stop()
		}
	}
	// The wait for a token does not count.
	in.budget.Renew()
	in.answers.Hear(q.Known, time.Unix(0, q.Asked), time.Now)
	in.msg.begin(in.ctx, s.opt.Core, q)
	in.answers.Forget()
}

// write takes a piece of the content.
func (in *incoming) write(p []byte) {
	in.out = in.msg.Write(in.ctx, p, reuse.Truncated(in.out))
	in.store()
}

// store keeps what the message core gave back: in memory, until the message is too long
// or all messages together are.
func (in *incoming) store() {
	for _, p := range in.out {
		if in.fault != nil {
			return
		}
		if in.file == nil && (len(in.buf)+len(p) > in.s.opt.Engine.InlineLimit() ||
			// Many short messages at once fill the memory as well as one long one.
			in.s.buffered.Load()+int64(len(p)) > in.s.opt.BufferLimit) {
			in.spill()
		}
		if in.file == nil {
			in.buf = append(in.buf, p...)
			in.s.buffered.Add(int64(len(p)))
		} else if in.fault == nil {
			_, in.fault = in.file.Write(p)
		}
	}
}

// spill moves the content to a file of its own.
func (in *incoming) spill() {
	in.file, in.fault = in.s.opt.Engine.NewFile()
	if in.fault == nil {
		_, in.fault = in.file.Write(in.buf)
	}
	in.s.buffered.Add(-int64(len(in.buf)))
	in.buf = reuse.Truncated(in.buf)
}

// free ends the work on the message. It gives back a flow control token if the queue
// manager will not take the message up: if it was refused or discarded, or is on hold.
func (in *incoming) free() {
	if in.token {
		in.s.opt.PutToken()
	}
	in.s.buffered.Add(-int64(len(in.buf)))
	in.release()
}

// abort gives the message up. It was never acknowledged.
func (in *incoming) abort() {
	in.giveUp()
	in.free()
}

var (
	// Replies to submitters. smtpd passes them on to its client, so the codes are those
	// of RFC 5321 section 4.2 and the texts are Postfix's.
	queued     = proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"}
	writeError = proto.SubmitReply{Code: 451, Status: dsn.S(4, 3, 0), Text: "Error: queue file write error"}
	elsewhere  = proto.SubmitReply{Code: 451, Status: proto.StatusElsewhere, Text: proto.TextElsewhere}
	longHeader = proto.SubmitReply{Code: 552, Status: dsn.S(5, 3, 4), Text: "Error: the message header is too long"}
	tooLong    = proto.SubmitReply{Code: 552, Status: dsn.S(5, 5, 3), Text: "Error: too many recipients"}
	noSpace    = proto.SubmitReply{Code: 452, Status: dsn.S(4, 3, 1), Text: "Insufficient system storage"}
)

// commit ends the message, queues it and gives the verdict. The order is fixed: checks
// see what the client sent, authentication what the checks let pass, filters what
// authentication found, and the signature covers what filters made of it.
//
// with is whether the disk has got something: the caller takes that off server.storing when the
// verdict has been said.
func (in *incoming) commit() (verdict *proto.SubmitReply, with bool) {
	defer func() {
		with = in.with
		in.free()
	}()
	var res Result
	in.out, res = in.msg.Finish(in.ctx, reuse.Truncated(in.out))
	in.store()
	in.logLines(res.Log)
	if in.fault == nil {
		// From here on the message may wait for others.
		in.s.slow.Add(1)
		in.authenticate(&res)
		in.filters(&res)
		in.sign(&res)
		if in.s.slow.Add(-1) == 0 {
			in.s.hush()
		}
	}
	// Mail without a client that could be told is returned to its sender, and not tried
	// again without end.
	if errors.Is(in.fault, errHead) && in.q.Flags&proto.SubmitBounce != 0 && len(res.Envelope.Recipients) > 0 {
		in.s.opt.Log.Warning("%s: message returned to its sender: %v", in.q.Envelope.ID, in.fault)
		in.fault = nil
		res.Refused, res.Bounce, res.HeadersOnly = &refusal{Code: longHeader.Code, Status: longHeader.Status, Text: longHeader.Text}, true, true
	}
	if in.fault != nil {
		in.giveUp()
		return in.s.storageReply(in.q.Envelope.ID, in.fault), false
	}
	switch {
	// The submitter is told that all is well, as the table or filter wants.
	case res.Discard:
		in.giveUp()
		return in.settleOnly(), false
	case in.q.Envelope.Trace&mail.TraceProbe != 0 && len(res.Notices) > 0:
		in.s.probed(res.Notices, probedTime)
		if len(res.Envelope.Recipients) == 0 { // an alias: the answer is known
			in.giveUp()
			return &queued, false
		}
	case res.Refused != nil && !res.Bounce:
		in.giveUp()
		return &proto.SubmitReply{Code: res.Refused.Code, Status: res.Refused.Status, Text: res.Refused.Text, Cause: res.Refused.Cause}, false
	case res.Refused != nil:
		// It goes to the queue so that it comes back to its sender from there.
		res.Envelope.Filter = "error:" + res.Refused.Status.String() + " " + strings.TrimPrefix(res.Refused.Text, "Error: ")
		res.Envelope.Redirect = ""
		if res.HeadersOnly {
			res.Envelope.Ret = dsn.RetHeaders
		}
	}
	return in.queue(&res), false
}

// logLines writes lines that the message core has collected. It does no I/O itself.
func (in *incoming) logLines(lines []logLine) {
	for _, l := range lines {
		switch {
		case l.Event != nil:
			in.s.opt.Log.Log(l.Event)
		case l.Warning:
			in.s.opt.Log.Warning("%s", l.Text)
		default:
			in.s.opt.Log.Info("%s", l.Text)
		}
	}
}

// giveUp removes the content file, if there is one.
func (in *incoming) giveUp() {
	if in.file != nil {
		in.file.Abort()
	}
}

// answer commits the message, and tells who has brought it.
func (in *incoming) answer(r *ipc.Request) {
	s := in.s
	verdict, with := in.commit()
	r.Reply(verdict)
	if with {
		s.storing.Add(-1)
	}
}

// keep makes a batch durable. Whoever retires meanwhile waits for it, and for what is said of it.
func (in *incoming) keep(b batch) error {
	if !in.with {
		in.with = true
		in.s.storing.Add(1)
	}
	return in.s.opt.Engine.Commit(b)
}

// settleOnly records what a notice settles although the notice itself was discarded: its
// recipients would otherwise be reported again and again.
func (in *incoming) settleOnly() *proto.SubmitReply {
	if in.q.Settles == nil {
		return &queued
	}
	b := in.changes()
	settle(b, in.q.Settles)
	if err := in.keep(b); err != nil {
		return in.s.storageReply(in.q.Envelope.ID, err)
	}
	in.s.opt.Doubts.settled(in.q.Settles)
	return &queued
}

// settle adds to b what a notice has done with the message that it is about.
func settle(b batch, st *proto.Settle) {
	// The warning is in the queue now, so that it is not sent again.
	if st.Warned {
		b.Update(st.ID, queue.Change{Set: queue.SetWarned, Warned: true})
	}
	if len(st.Outcomes) > 0 {
		b.Update(st.ID, queue.Change{Outcomes: st.Outcomes})
	}
	if len(st.Rcpts) > 0 {
		b.Done(st.ID, st.Rcpts)
	}
}

// queue makes the message durable, together with what it settles. Either both are or
// neither is, so that a bounce and the end of the bounced message cannot come apart.
func (in *incoming) queue(res *Result) *proto.SubmitReply {
	env := &res.Envelope
	// Recipients who are not in the final envelope, but whose senders want to
	// hear what became of them, are kept with the message as delivered: the
	// queue manager reports them when it is through with the others.
	state, changed := in.state(res)
	for _, n := range res.Notices {
		// A number after those of the envelope, which it is put at the end of.
		n.Outcome.Rcpt = len(env.Recipients)
		state.Outcomes, changed = append(state.Outcomes, n.Outcome), true
		env.Recipients = append(env.Recipients, n.Recipient)
	}
	m := in.addition(res)
	if in.mayWait(res, changed) {
		if verdict, waited := in.await(m, env); waited {
			return verdict
		}
	}
	b := in.changes()
	i := b.Add(m)
	if changed {
		b.Update(env.ID, state)
	}
	if in.q.Settles != nil {
		settle(b, in.q.Settles)
	}
	over := in.s.tells(env.ID)
	defer func() { over() }()
	begun := time.Now()
	if err := in.keep(b); err != nil {
		// After ErrSilent or ErrBroken the message may exist all the same; the engine
		// knows, and the log says so.
		in.giveUp()
		return in.s.storageReply(env.ID, err)
	}
	if took := time.Since(begun); took >= submitterPatience {
		in.s.late(env.ID, took)
	}
	in.s.opt.Doubts.settled(in.q.Settles)
	// The queue manager will pay for the token when it takes the message up, which it does with
	// incoming ones only.
	in.token = in.token && (res.Hold || state.Set&queue.SetQueue != 0 && state.Queue != queue.Incoming)
	in.count(env)
	e, ok := b.Entry(i)
	if ok && in.mayTellLater(env, changed || res.Hold) {
		in.announceLater(env, e, len(m.Envelope), over)
		over = func() {}
		return &queued
	}
	in.s.tellReceived(env)
	if changed {
		m.Envelope, m.Recipients = nil, nil // what is recorded besides must be read
	}
	if ok {
		in.announce(e, m.Envelope, m.Recipients)
	}
	return &queued
}

// addition is the message as the engine gets it.
func (in *incoming) addition(res *Result) addition {
	env := &res.Envelope
	stored := env.Append(reuse.Truncated(in.stored))
	n := len(stored)
	stored = mail.AppendRecipients(stored, env.Recipients)
	in.stored = stored
	// The capacity is cut, so that nobody appends to the envelope over the recipients.
	m := addition{ID: env.ID, Envelope: stored[:n:n], Recipients: stored[n:], NRcpt: len(env.Recipients)}
	if res.Hold {
		m.Queue = queue.Hold
	}
	if in.file != nil {
		m.File = in.file
	} else {
		m.Content = in.buf
	}
	return m
}

// submitterPatience is the shortest time for which anybody waits for the disk to take a
// message: the sendmail program, and many an SMTP client, give up before smtpd does.
const submitterPatience = 5 * time.Minute

// late names a message that is queued now, and whose submitter may have gone before it
// could hear so.
func (s *server) late(id mail.QueueID, took time.Duration) {
	s.opt.Log.Warning("%s: in doubt: it is in the queue, which took the disk %v; its client may have been told 451, or nothing, and may send it again",
		id, took.Round(time.Second))
	s.opt.Doubts.late(s.opt.Engine, s.opt.Reader, id)
}

// count counts a message that is on stable storage, by where it came from.
func (in *incoming) count(env *mail.Envelope) {
	source := "local"
	switch {
	case in.q.Flags&proto.SubmitNoReceive != 0:
		source = "internal"
	case env.Client.Addr != "":
		source = "network"
	}
	in.s.opt.Metrics.Add(metrics.Accepted, 1, source)
	in.s.opt.Metrics.Add(metrics.AcceptedBytes, float64(env.Size), source)
}

// state is what is to be recorded of a message that was queued before, elsewhere or here,
// and whether there is anything. Outcomes go with their recipients, wherever these are in
// the final envelope; outcomes of recipients that are not in it are dropped.
func (in *incoming) state(res *Result) (c queue.Change, changed bool) {
	was := in.q.State
	if was == nil {
		return c, false
	}
	c = *was
	c.Outcomes, c.Done = nil, nil
	// A hold that was decided now outweighs the queue that it was in.
	if res.Hold {
		c.Set &^= queue.SetQueue
	}
	type key struct{ address, original string }
	at := make(map[key]int, len(res.Envelope.Recipients))
	for i, r := range res.Envelope.Recipients {
		at[key{r.Address, r.Orig()}] = i
	}
	// Outcomes count in the envelope that they came with, before it was mapped.
	of := in.q.Envelope.Recipients
	if in.q.Was != nil {
		of = in.q.Was
	}
	for _, o := range was.Outcomes {
		// The submitter's numbers are not relied on.
		if o.Rcpt < 0 || o.Rcpt >= len(of) {
			continue
		}
		r := &of[o.Rcpt]
		if i, ok := at[key{r.Address, r.Orig()}]; ok {
			o.Rcpt = i
			c.Outcomes = append(c.Outcomes, o)
		}
	}
	return c, c.Set != 0 || len(c.Outcomes) > 0
}

// storageReply words a failure to store a message, for the log and for the client. Only
// what would fail again is a permanent error.
func (s *server) storageReply(id mail.QueueID, err error) *proto.SubmitReply {
	s.opt.Log.Warning("%s: message not queued: %v", id, err)
	reply := writeError
	switch {
	case errors.Is(err, queue.ErrFull):
		reply = noSpace
	case errors.Is(err, errHead):
		reply = longHeader // it would be no shorter the next time
	case errors.Is(err, queue.ErrTooLarge):
		reply = tooLong
	// smtpd then refuses at MAIL for a moment, and does not ask for each message.
	case errors.Is(err, queue.ErrSilent):
		if errors.Is(err, queue.ErrNotOurs) {
			reply = elsewhere
		}
		reply.Silent = true
	}
	reply.Cause = err.Error()
	return &reply
}
