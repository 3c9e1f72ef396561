// Package submit is how whoever has a message hands it to cleanup: smtpd,
// pickup, bounce, local. It gives out queue IDs, streams content, and brings
// back cleanup's verdict.
//
//	id, err := client.NewID(ctx, time.Now())
//	m := client.Open(&env, submit.Options{Flags: proto.SubmitFilter})
//	m.Write(content) // as often as needed
//	reply, err := m.Commit(ctx)
//
// A message of up to proto.ChunkSize bytes is one request and one reply, so
// that many sessions share one system call. A longer one is streamed: at most
// proto.MaxUnanswered parts are under way, which bounds what it costs both
// ends in memory, and makes a slow disk slow the client down. So is a message
// whose recipients fill more than proto.ListSize: they go ahead of the content
// in parts of that size, so that the list of a mailing list may be larger than
// a frame. What bounds it is what cleanup can record as one unit.
//
// # Durability
//
// A reply with code 250 from Commit means that the message is on stable
// storage. Any other reply means that it is not in the queue, but for one
// case: when the connection is lost after the last part was sent nobody knows
// (ErrInDoubt). Whoever answers an SMTP client then says 451: the client
// sends again, and a duplicate is possible where a loss is not.
//
// # Standards
//
//	RFC 5321 section 4.1.1.4 (responsibility passes with the 250 reply)
//	RFC 1047 (duplicates)
package submit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
)

const (
	// leaseSize is how many message numbers are asked for at once. They are
	// 64 bits wide: what a crash loses does not matter.
	leaseSize = 1000
	// leaseTimeout bounds one request for numbers ahead of need, and leaseWait one
	// for who needs a number now. It is well over what a reload or the recovery of a long
	// queue takes. An SMTP client would wait five minutes for the answer to RCPT (RFC
	// 5321 section 4.5.3.2.3), but the longer it does the more of them there are.
	leaseTimeout = 30 * time.Second
	leaseWait    = 30 * time.Second
	// streamTimeout bounds the wait for cleanup to take a part of a long
	// message. It is well over what the slowest disk needs for one sync.
	streamTimeout = 5 * time.Minute
	// silentPeriod is how long after cleanup has said that the queue's disk does not
	// answer no other message is to be begun. The next one after that asks again.
	silentPeriod = time.Second
)

// ErrInDoubt says that the connection was lost between the last part of a
// message and cleanup's answer: the message may be in the queue or not.
var ErrInDoubt = errors.New("connection to cleanup lost: not known whether the message is queued")

// ErrElsewhere says that no message can be queued here, since other nodes have the queue.
var ErrElsewhere = errors.New("other nodes have the queue")

// A Client hands messages to one cleanup service. All methods may be called
// concurrently.
type Client struct {
	ipc    *ipc.Client
	silent atomic.Int64 // when cleanup last said that the queue's disk does not answer, in ns since 1970; 0: it has not
	away   atomic.Bool  // what it said then is that other nodes have the queue

	mu        sync.Mutex
	next, end uint64 // numbers not given out yet, of the present lease
	spare     proto.LeaseReply
	refilling chan struct{}      // closed when the lease asked for ahead has come or failed
	cancel    context.CancelFunc // ends the request ahead, while there is one
	closed    bool
	bg        sync.WaitGroup
}

// New returns a client that uses c, which stays the caller's to close, after
// Close.
func New(c *ipc.Client) *Client { return &Client{ipc: c} }

// Close waits for what is under way in the background. Messages that are open
// must have been committed or aborted before.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	if c.cancel != nil {
		c.cancel()
	}
	c.mu.Unlock()
	c.bg.Wait()
}

// NewID gives out a queue ID that nothing else has or will ever have. It
// waits for cleanup only when the numbers leased ahead are used up, and then not
// for ever: cleanup may be unable to start.
func (c *Client) NewID(ctx context.Context, now time.Time) (mail.QueueID, error) {
	c.mu.Lock()
	if c.next == c.end {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, leaseWait)
		defer cancel()
	}
	for c.next == c.end {
		if c.spare.N > 0 {
			c.next, c.end = c.spare.First, c.spare.First+uint64(c.spare.N)
			c.spare = proto.LeaseReply{}
			break
		}
		if wait := c.refilling; wait != nil {
			c.mu.Unlock()
			select {
			case <-wait:
			case <-ctx.Done():
				return "", fmt.Errorf("get a queue ID from cleanup: %w", ctx.Err())
			}
			c.mu.Lock()
			continue
		}
		// Whoever comes first asks; the others wait for what it gets.
		done := make(chan struct{})
		c.refilling = done
		c.mu.Unlock()
		l, err := c.lease(ctx)
		c.mu.Lock()
		c.spare, c.refilling = l, nil
		close(done)
		if err != nil {
			c.mu.Unlock()
			return "", err
		}
	}
	n := c.next
	c.next++
	if c.end-c.next < leaseSize/4 && c.spare.N == 0 && c.refilling == nil && !c.closed {
		done := make(chan struct{})
		ahead, cancel := context.WithTimeout(context.Background(), leaseTimeout)
		c.refilling, c.cancel = done, cancel
		c.bg.Go(func() { c.leaseAhead(ahead, done) })
	}
	c.mu.Unlock()
	return mail.MakeQueueID(now, n), nil
}

func (c *Client) lease(ctx context.Context) (proto.LeaseReply, error) {
	var l proto.LeaseReply
	err := c.ipc.CallAgain(ctx, &proto.Lease{N: leaseSize}, &l)
	if said, ok := errors.AsType[ipc.RemoteError](err); ok && string(said) == proto.FailElsewhere {
		return proto.LeaseReply{}, ErrElsewhere
	}
	if err != nil {
		return proto.LeaseReply{}, fmt.Errorf("get a queue ID from cleanup: %w", err)
	}
	if l.N <= 0 || l.First == 0 {
		return proto.LeaseReply{}, errors.New("get a queue ID from cleanup: it gave none")
	}
	return l, nil
}

// leaseAhead gets the next block before the present one is used up. A failure
// is not reported: who needs a number and has none asks again and hears why.
func (c *Client) leaseAhead(ctx context.Context, done chan struct{}) {
	l, _ := c.lease(ctx)
	c.mu.Lock()
	c.cancel()
	c.spare, c.refilling, c.cancel = l, nil, nil
	close(done)
	c.mu.Unlock()
}

// Silent says that a message need not be begun now: cleanup has just refused one because
// the queue's disk does not answer. A nil Client is never silent.
func (c *Client) Silent() bool {
	if c == nil {
		return false
	}
	at := c.silent.Load()
	if at == 0 {
		return false
	}
	since := time.Since(time.Unix(0, at))
	return 0 <= since && since < silentPeriod
}

// Refusal is why no message can be queued now, after Silent or an error: what to tell the client.
func (c *Client) Refusal(err error) proto.SubmitReply {
	if errors.Is(err, ErrElsewhere) || err == nil && c.away.Load() {
		return proto.SubmitReply{Code: 451, Status: proto.StatusElsewhere, Text: proto.TextElsewhere}
	}
	return tryAgain
}

// Options are what a submitter says of a message besides its envelope.
type Options struct {
	Flags    proto.SubmitFlags
	BCC      []string         // recipients that access table actions added
	Prepend  []string         // header lines that access table actions added, without CRLF
	FullName string           // of the sender, for a From: field that has to be added
	Settles  *proto.Settle    // what a notice settles
	State    *queue.Change    // how a message stood that was queued elsewhere
	Was      []mail.Recipient // see proto.Submit
	NoBCC    []string         // likewise
	Milter   uint64           // the session with filters that the message belongs to
	Told     proto.MilterTold
	Wait     time.Duration  // for the message to be delivered before it must be durable; see proto.Submit
	Refuse   bool           // likewise
	Known    []proto.Answer // likewise; not kept
	Asked    time.Time      // likewise
	// Limit bounds Commit's wait for cleanup, when not zero. It costs less than a
	// context with an end.
	Limit time.Duration
	// Late says that the content is to be kept here until Commit, so that
	// Amend may change envelope and options up to then. What goes over
	// proto.ChunkSize is kept in a temporary file.
	Late bool
}

// Open begins a message. The envelope's ID is from NewID, and its recipients
// are complete. env is not kept, but what its fields point at is: the list of
// recipients, and those of opt, must not be changed until the message has ended.
func (c *Client) Open(env *mail.Envelope, opt Options) *Message {
	m := &Message{c: c, work: works.Get()}
	m.describe(env, opt)
	return m
}

// A Message is on its way to cleanup. Its methods must not be called
// concurrently, and exactly one of Commit and Abort ends it.
type Message struct {
	c     *Client
	work  *work // nil when the message has ended
	late  bool
	limit time.Duration
	parts *parts   // nil until the first has been sent
	file  *os.File // what has been written of a Late message; it has no name any more
	err   error
}

// work is what an open message works with. It goes from one to the next.
type work struct {
	buf   []byte            // content not sent yet
	first proto.Submit      // the request that the message begins with
	reply proto.SubmitReply // the answer to a message of one request
}

// works' buffers begin small, since most mail is small, and grow to
// proto.ChunkSize at most.
var works = reuse.Pool[work]{New: func() *work { return &work{buf: make([]byte, 0, 16<<10)} }}

// parts are a streamed message's on their way.
type parts struct {
	conn *ipc.Conn
	end  func() // says that nothing more of the message goes over conn
	win  window
}

// A window counts the parts of one message that are not answered yet, and
// holds the verdict when it comes.
type window struct {
	mu      sync.Mutex
	pending int
	verdict *proto.SubmitReply
	err     error
	wake    chan struct{} // capacity 1: something changed
}

// answered is called on the connection's reading goroutine, once per part.
func (w *window) answered(payload []byte, err error) {
	w.mu.Lock()
	w.pending--
	switch {
	case err != nil:
		if w.err == nil {
			w.err = err
		}
	case len(payload) > 0 && w.verdict == nil: // an empty answer is a ChunkReply
		v := new(proto.SubmitReply)
		if err := v.Decode(payload); err != nil {
			w.err = err
		} else {
			w.verdict = v
		}
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Write adds content: CRLF lines, in parts of any size. When cleanup is slow
// it waits, at most streamTimeout. After an error, also one that says that
// cleanup wants no more, Commit still tells the verdict.
func (m *Message) Write(p []byte) (int, error) {
	n := len(p)
	w := m.work
	for {
		if m.err != nil {
			return 0, m.err
		}
		room := proto.ChunkSize - len(w.buf)
		if len(p) <= room {
			w.buf = append(w.buf, p...)
			return n, nil
		}
		w.buf = append(w.buf, p[:room]...)
		p = p[room:]
		m.err = m.part(true)
	}
}

// part sends what is buffered as a part of a streamed message.
func (m *Message) part(more bool) error {
	if m.late {
		return m.spill()
	}
	ctx, cancel := context.WithTimeout(context.Background(), streamTimeout)
	defer cancel()
	if m.parts == nil {
		return m.firstPart(ctx)
	}
	if err := m.wait(ctx, proto.MaxUnanswered-1); err != nil {
		return err
	}
	m.send(&proto.Chunk{ID: m.id(), More: more, Data: m.work.buf})
	m.work.buf = reuse.Truncated(m.work.buf)
	return nil
}

// Amend replaces envelope and options of a Late message, as long as it has
// not been committed. The queue ID stays the same. It is Open's that holds of env.
func (m *Message) Amend(env *mail.Envelope, opt Options) {
	opt.Late = true
	m.describe(env, opt)
}

// describe makes the first request, but for the content.
func (m *Message) describe(env *mail.Envelope, opt Options) {
	m.late, m.limit = opt.Late, opt.Limit
	m.work.first = proto.Submit{Envelope: *env, Flags: opt.Flags, BCC: opt.BCC, Prepend: opt.Prepend, FullName: opt.FullName,
		Settles: opt.Settles, State: opt.State, Was: opt.Was, NoBCC: opt.NoBCC, Milter: opt.Milter, Told: opt.Told,
		Wait: opt.Wait, Refuse: opt.Refuse, Known: opt.Known}
	if len(opt.Known) > 0 {
		m.work.first.Asked = opt.Asked.UnixNano()
	}
}

func (m *Message) id() mail.QueueID { return m.work.first.Envelope.ID }

// spill moves what is buffered to the temporary file.
func (m *Message) spill() error {
	if m.file == nil {
		f, err := os.CreateTemp("", "posthaste-submit-")
		if err != nil {
			return fmt.Errorf("keep message until it is judged: %w", err)
		}
		os.Remove(f.Name())
		m.file = f
	}
	if _, err := m.file.Write(m.work.buf); err != nil {
		return fmt.Errorf("keep message until it is judged: %w", err)
	}
	m.work.buf = reuse.Truncated(m.work.buf)
	return nil
}

// unspill sends what a Late message has in its file, before the rest that is
// in memory.
func (m *Message) unspill() error {
	m.late = false
	rest := append([]byte(nil), m.work.buf...)
	m.work.buf = reuse.Truncated(m.work.buf)
	if _, err := m.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read message back: %w", err)
	}
	if _, err := io.Copy(struct{ io.Writer }{m}, m.file); err != nil {
		return err
	}
	_, err := m.Write(rest)
	return err
}

// firstPart sends the envelope along. Only here may the message change over
// to another connection: nobody has seen anything of it yet.
func (m *Message) firstPart(ctx context.Context) error {
	p := &parts{win: window{wake: make(chan struct{}, 1)}}
	first := &m.work.first
	list, rest := firstOf(first.Envelope.Recipients)
	first.Envelope.Recipients, first.More = list, true
	if first.Listing = len(rest) > 0; !first.Listing {
		first.Content = m.work.buf
	}
	for m.parts == nil {
		conn, err := m.c.ipc.Conn(ctx)
		if err != nil {
			return fmt.Errorf("send message to cleanup: %w", err)
		}
		p.conn, p.end = conn, conn.Keep()
		p.win.mu.Lock()
		p.win.pending++
		p.win.mu.Unlock()
		conn.Go(first, p.win.answered) // copies what it is given before it returns
		p.win.mu.Lock()
		unsent := errors.Is(p.win.err, ipc.ErrUnsent)
		if unsent {
			p.win.err = nil
		}
		p.win.mu.Unlock()
		if unsent {
			p.end()
			continue
		}
		m.parts = p
	}
	if first.Listing {
		if err := m.list(ctx, rest); err != nil {
			return err
		}
	}
	m.work.buf = reuse.Truncated(m.work.buf)
	return nil
}

// list sends the recipients that did not fit into the first part, then the
// content that did not.
func (m *Message) list(ctx context.Context, rest []mail.Recipient) error {
	for len(rest) > 0 {
		if err := m.wait(ctx, proto.MaxUnanswered-1); err != nil {
			return err
		}
		c := &proto.Chunk{ID: m.id(), More: true}
		c.Recipients, rest = firstOf(rest)
		c.Listing = len(rest) > 0
		m.send(c)
	}
	if err := m.wait(ctx, proto.MaxUnanswered-1); err != nil {
		return err
	}
	m.send(&proto.Chunk{ID: m.id(), More: true, Data: m.work.buf})
	return nil
}

// firstOf cuts off as many recipients as go into one part, one at least.
func firstOf(all []mail.Recipient) (list, rest []mail.Recipient) {
	const fixed = 16 // what a recipient costs besides its strings, at most
	size := 0
	for i := range all {
		r := &all[i]
		size += fixed + len(r.Address) + len(r.Original) + len(r.ORCPT)
		if size > proto.ListSize && i > 0 {
			return all[:i], all[i:]
		}
	}
	return all, nil
}

func (m *Message) send(req ipc.Message) {
	p := m.parts
	p.win.mu.Lock()
	p.win.pending++
	p.win.mu.Unlock()
	p.conn.Continue(req, p.win.answered) // copies what it is given before it returns
}

var errRefused = errors.New("cleanup refused the message")

// wait waits until at most limit parts are unanswered, or there is a verdict,
// which is errRefused while parts are still to be sent.
func (m *Message) wait(ctx context.Context, limit int) error {
	win := &m.parts.win
	for {
		win.mu.Lock()
		pending, verdict, err := win.pending, win.verdict, win.err
		win.mu.Unlock()
		switch {
		case err != nil:
			return fmt.Errorf("send message to cleanup: %w", err)
		case verdict != nil:
			return errRefused
		case pending <= limit:
			return nil
		}
		select {
		case <-win.wake:
		case <-ctx.Done():
			return fmt.Errorf("send message to cleanup: no answer: %w", ctx.Err())
		}
	}
}

// Commit sends the rest and waits for the verdict. The reply is always fit to
// be given to an SMTP client; the error, when there is one, says what went
// wrong between here and cleanup, for the log: the reply is then 451 4.3.0.
// ctx bounds the wait, and so does Options.Limit; when one of them ends after
// the last part was sent the message is in doubt. The message must not be used
// afterwards.
func (m *Message) Commit(ctx context.Context) (proto.SubmitReply, error) {
	defer m.release()
	if m.err == nil && m.file != nil {
		m.err = m.unspill()
	}
	m.late = false
	if m.parts == nil && m.err == nil {
		if _, rest := firstOf(m.work.first.Envelope.Recipients); len(rest) == 0 {
			return m.commitWhole(ctx)
		}
		m.err = m.part(true)
	}
	return m.commitParts(ctx)
}

// commitWhole commits a message that is one request.
func (m *Message) commitWhole(ctx context.Context) (proto.SubmitReply, error) {
	w := m.work
	w.first.Content = w.buf
	if err := m.c.ipc.CallWithin(ctx, m.limit, &w.first, &w.reply); err != nil {
		return tryAgain, doubt(err)
	}
	return m.c.checked(w.reply)
}

// commitParts commits a message of which parts have been sent.
func (m *Message) commitParts(ctx context.Context) (proto.SubmitReply, error) {
	if m.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.limit)
		defer cancel()
	}
	if m.err == nil {
		m.err = m.part(false)
	}
	whole := m.err == nil
	if whole {
		if err := m.wait(ctx, 0); err != nil && !errors.Is(err, errRefused) {
			m.err = doubt(err)
		}
	}
	if verdict := m.verdict(); verdict != nil {
		if !whole {
			m.stop()
		}
		return m.c.checked(*verdict)
	}
	if m.err == nil {
		m.err = errors.New("send message to cleanup: it did not answer the last part")
	}
	m.stop()
	return tryAgain, m.err
}

// verdict is what cleanup has said already.
func (m *Message) verdict() *proto.SubmitReply {
	if m.parts == nil {
		return nil
	}
	win := &m.parts.win
	win.mu.Lock()
	defer win.mu.Unlock()
	return win.verdict
}

// tryAgain is what a client is told when cleanup could not be asked, or not
// heard.
var tryAgain = proto.SubmitReply{Code: 451, Status: dsn.S(4, 3, 0), Text: "Error: queue file write error"}

func doubt(err error) error {
	if errors.Is(err, ipc.ErrLost) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w (%w)", ErrInDoubt, err)
	}
	return err
}

// checked refuses a verdict that no SMTP client must see: success may only be
// said by 250.
func (c *Client) checked(r proto.SubmitReply) (proto.SubmitReply, error) {
	if r.Silent {
		c.away.Store(r.Status == proto.StatusElsewhere)
		c.silent.Store(time.Now().UnixNano())
	}
	if r.Code == 250 || r.Code >= 400 && r.Code < 600 {
		return r, nil
	}
	return tryAgain, fmt.Errorf("cleanup answered a submission with code %d", r.Code)
}

// Abort gives the message up. Nothing of it is queued.
func (m *Message) Abort() {
	m.stop()
	m.release()
}

func (m *Message) stop() {
	if m.parts != nil {
		m.parts.conn.Push(&proto.Abort{ID: m.id()}) // a lost connection aborts by itself
	}
}

func (m *Message) release() {
	if m.parts != nil {
		m.parts.end()
	}
	if w := m.work; w != nil {
		m.work = nil
		*w = work{buf: reuse.Truncated(w.buf)}
		works.Put(w)
	}
	if m.file != nil {
		m.file.Close()
		m.file = nil
	}
}
