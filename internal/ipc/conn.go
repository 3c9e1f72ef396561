package ipc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/quickio"
	"posthaste/internal/reuse"
)

// Version is the protocol's: it changes when old and new processes could
// misunderstand one another. All processes of one start have the same.
const Version = 1

const (
	// MaxPayload bounds one frame. Message content over the spool's inline
	// limit travels in many frames.
	MaxPayload = 16 << 20
	// maxQueued bounds what is kept for a peer that does not read. A peer
	// that lets it grow past this is gone or stuck, and is disconnected.
	maxQueued = 32 << 20
	// softQueued is where senders begin to wait for the peer to read: what a
	// socket takes at once, so that a hundred senders do not each have their
	// message in memory twice.
	softQueued = 256 << 10
	// maxOpen and maxOpenOctets bound what a peer may have asked without having
	// been answered. One that asks for more is disconnected: waiting for it would
	// hold up the answers to what was asked of it.
	maxOpen       = 1 << 16
	maxOpenOctets = 512 << 20
	// maxKept is how large a buffer is kept for the frames to come.
	maxKept = 2 * softQueued

	// Patience is how long a call without a time limit of its own waits for its
	// answer, and how long a sender waits for a peer that reads nothing: Postfix's
	// default ipc_timeout. A peer that hangs, or is stopped, holds up nobody for
	// ever.
	Patience = time.Hour

	headerLen  = 12
	prefaceLen = 8
)

// what a frame is.
const (
	frameOneWay = iota
	frameRequest
	frameReply
	frameGoAway
	frameError
)

var (
	// ErrUnsent says that the request was not written: the peer has seen
	// nothing of it.
	ErrUnsent = errors.New("ipc: connection closed before the request was sent")
	// ErrLost says that the connection went away between request and reply:
	// it is not known whether the request was carried out.
	ErrLost = errors.New("ipc: connection lost before the reply came")
	// ErrVersion says that the peer is of another version.
	ErrVersion = errors.New("ipc: the peer speaks another protocol version; restart the mail system")
	// ErrTooLarge says that a payload is over MaxPayload.
	ErrTooLarge = errors.New("ipc: message too large")

	errNotReading = errors.New("ipc: the peer does not read")
)

// A RemoteError is what Request.Fail sent instead of a reply.
type RemoteError string

func (e RemoteError) Error() string { return string(e) }

// A foreignError says that the peer does not keep to the protocol.
type foreignError struct{ what string }

func (e *foreignError) Error() string { return "ipc: the peer sent " + e.what }

// A Message is what package proto declares: a kind and a byte form.
type Message interface {
	Kind() uint16
	Append(b []byte) []byte
	Decode(b []byte) error
}

// A Handler is told what the peer wants. It runs on the connection's reading
// goroutine, in the order in which frames came, and must not wait for
// anything: work that takes time goes to a goroutine, which answers with
// r.Reply. The payload belongs to the handler.
type Handler func(c *Conn, r *Request)

// A Request is one message from the peer.
type Request struct {
	Kind    uint16
	Payload []byte
	conn    *Conn
	id      uint32 // 0: no reply wanted
	size    int64  // octets that it counts for until it is answered
}

// Free gives the payload's memory back for another request. Nothing that
// points into it may be used afterwards. It need not be called.
func (r *Request) Free() {
	putPayload(r.Payload)
	r.Payload = nil
}

// Reply answers r. It never waits. Answering a message that wanted no answer
// does nothing.
func (r *Request) Reply(m Message) {
	if r.id == 0 {
		return
	}
	if err := r.conn.enqueue(noWait, 0, frameReply, m.Kind(), r.id, m); errors.Is(err, ErrTooLarge) {
		r.Fail("%v", err) // else the caller would wait for ever
		return
	}
	r.settled()
}

// settled: the request has been answered.
func (r *Request) settled() {
	r.conn.open.Add(-1)
	r.conn.openOctets.Add(-r.size)
}

// Fail answers r with an error that the caller sees as RemoteError.
func (r *Request) Fail(format string, args ...any) {
	if r.id != 0 {
		r.conn.enqueue(noWait, 0, frameError, r.Kind, r.id, rawMessage(fmt.Sprintf(format, args...)))
		r.settled()
	}
}

// Decode reads the payload into m.
func (r *Request) Decode(m Message) error {
	if err := m.Decode(r.Payload); err != nil {
		return fmt.Errorf("ipc: message kind %d: %w", r.Kind, err)
	}
	return nil
}

type rawMessage string

func (rawMessage) Kind() uint16             { return 0 }
func (m rawMessage) Append(b []byte) []byte { return append(b, m...) }
func (rawMessage) Decode([]byte) error      { return nil }

// A call is a request of ours that waits for its reply.
type call struct {
	done func(payload []byte, err error)
}

// A Conn is one connection. All methods may be called concurrently.
type Conn struct {
	nc      net.Conn // the socket
	stream  net.Conn // what frames go over: the socket, or pipes
	meet    func() error
	handler Handler

	wmu     sync.Mutex
	wcond   sync.Cond // queued shrank, or closed; also: something to write
	out     []byte    // frames to be written
	ready   bool      // and may be: stream is what it will be
	writing int       // octets of frames that a write under way has taken from out
	spare   []byte    // the buffer that was last written, for reuse
	closed  error     // non-nil when nothing more goes out

	cmu    sync.Mutex
	calls  map[uint32]call
	lastID uint32
	away   bool // the peer takes no new requests
	kept   int  // how many have something open there that more requests belong to

	waiters reuse.Pool[waiter] // of calls that have ended

	open, openOctets atomic.Int64 // requests of the peer's that are not answered

	readerDone chan struct{}
	writerDone chan struct{}
}

// NewConn makes a connection of nc, and takes it over. handler may be nil
// when the peer is never to ask for anything. It starts two goroutines, which
// end when the connection does; Wait waits for them.
func NewConn(nc net.Conn, handler Handler) *Conn {
	c := newConn(quickio.New(nc), handler)
	c.start()
	return c
}

// newConn makes a connection that neither reads nor writes before start.
func newConn(nc net.Conn, handler Handler) *Conn {
	c := &Conn{nc: nc, stream: nc, handler: handler, calls: make(map[uint32]call), waiters: reuse.Pool[waiter]{New: newWaiter},
		readerDone: make(chan struct{}), writerDone: make(chan struct{})}
	c.wcond.L = &c.wmu
	c.meet, c.ready = c.greeted, true
	c.out = preface(0)
	return c
}

func (c *Conn) start() {
	go c.readLoop()
	go c.writeLoop()
}

// Wait returns when the connection is closed and its goroutines have ended.
func (c *Conn) Wait() {
	<-c.readerDone
	<-c.writerDone
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.readerDone }

// Close ends the connection at once. Calls that wait get ErrLost.
func (c *Conn) Close() error {
	c.shut(net.ErrClosed)
	return nil
}

// Peer is the connection's remote credentials socket, for authorization.
func (c *Conn) Peer() net.Conn { return c.nc }

// Call sends req and waits for the reply, which is decoded into reply; reply
// may be nil when the answer's content does not matter. The error is
// ErrUnsent, ErrLost, the context's, a RemoteError, or the reply's decoding
// error. A context without an end ends after Patience. Neither req nor reply
// is used after Call has returned.
func (c *Conn) Call(ctx context.Context, req, reply Message) error {
	limit := Patience
	if _, ends := ctx.Deadline(); ends {
		limit = 0
	}
	return c.CallWithin(ctx, limit, req, reply)
}

// CallWithin is Call with a limit on the time, when that is not zero: what a
// context made for it would do, but for the cost. The error is then
// context.DeadlineExceeded.
func (c *Conn) CallWithin(ctx context.Context, limit time.Duration, req, reply Message) error {
	w := c.waiters.Get()
	if limit > 0 {
		w.timer.Reset(limit)
	}
	c.request(ctx, limit, req, false, w.done)
	select {
	case a := <-w.answered:
		w.timer.Stop()
		c.waiters.Put(w)
		if a.err != nil || reply == nil {
			return a.err
		}
		return reply.Decode(a.payload)
	case <-ctx.Done(): // the answer may still come: the waiter is of no more use
		w.timer.Stop()
		return ctx.Err()
	case <-w.timer.C:
		return context.DeadlineExceeded
	}
}

// A waiter is what a call waits with. It goes from one call to the next.
type waiter struct {
	answered chan answer
	done     func(payload []byte, err error) // fills answered
	timer    *time.Timer
}

type answer struct {
	payload []byte
	err     error
}

func newWaiter() *waiter {
	w := &waiter{answered: make(chan answer, 1), timer: time.NewTimer(Patience)}
	w.timer.Stop()
	w.done = func(payload []byte, err error) { w.answered <- answer{bytes.Clone(payload), err} }
	return w
}

// Bounded gives a context that has no end one after Patience.
func Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ends := ctx.Deadline(); ends {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, Patience)
}

// Go sends req and calls done once, with the reply's payload or an error.
// done runs on the reading goroutine, or on the caller's when the request
// cannot be sent; it must not wait. The payload is done's until it returns.
// req is not looked at any more when Go has returned.
func (c *Conn) Go(req Message, done func(payload []byte, err error)) {
	c.request(context.Background(), 0, req, false, done)
}

// GoNow is Go for callers that must not wait, even for a peer that is slow to
// read. One that falls too far behind is disconnected.
func (c *Conn) GoNow(req Message, done func(payload []byte, err error)) {
	c.request(noWait, 0, req, false, done)
}

// Continue is Go for what belongs to something that is open at the peer (the
// parts of a message), between Keep and the end of it: the request is also
// made of a peer that wants to go.
func (c *Conn) Continue(req Message, done func(payload []byte, err error)) {
	c.request(context.Background(), 0, req, true, done)
}

// Keep says that something is being opened at the peer that more requests
// belong to. A peer that wants to go is not left before end has been called,
// which may be done more than once.
func (c *Conn) Keep() (end func()) {
	c.cmu.Lock()
	c.kept++
	c.cmu.Unlock()
	return sync.OnceFunc(func() {
		c.cmu.Lock()
		c.kept--
		c.cmu.Unlock()
		c.leave()
	})
}

// noWait is the context of those who must not wait for a slow peer at all.
var noWait context.Context

// request makes a request. It waits for a peer that is slow to read until ctx
// ends, or for the time of limit, when that is not zero.
func (c *Conn) request(ctx context.Context, limit time.Duration, req Message, more bool, done func(payload []byte, err error)) {
	c.cmu.Lock()
	if c.away && !more || c.calls == nil {
		c.cmu.Unlock()
		done(nil, ErrUnsent)
		return
	}
	c.lastID++
	if c.lastID == 0 {
		c.lastID = 1
	}
	id := c.lastID
	c.calls[id] = call{done}
	c.cmu.Unlock()
	if err := c.enqueue(ctx, limit, frameRequest, req.Kind(), id, req); err != nil {
		c.cmu.Lock()
		_, mine := c.calls[id]
		delete(c.calls, id)
		c.cmu.Unlock()
		if mine { // else the closing reader has told the caller already
			if !errors.Is(err, ErrTooLarge) && (ctx == noWait || err != ctx.Err()) && err != context.DeadlineExceeded {
				err = ErrUnsent
			}
			done(nil, err)
		}
	}
}

// Send sends a message that wants no reply. It waits when the peer is slow to
// read. A nil error does not mean that the peer has it.
func (c *Conn) Send(m Message) error {
	return c.enqueue(context.Background(), 0, frameOneWay, m.Kind(), 0, m)
}

// Push is Send for callers that must not wait, handlers for instance. A peer
// that falls too far behind is disconnected.
func (c *Conn) Push(m Message) error { return c.enqueue(noWait, 0, frameOneWay, m.Kind(), 0, m) }

// GoAway tells the peer to send its further requests elsewhere. The peer
// closes the connection when all that it had asked has been answered.
func (c *Conn) GoAway() { c.enqueue(noWait, 0, frameGoAway, 0, 0, rawMessage("")) }

// Away says whether the peer has asked to be left alone, or is gone.
func (c *Conn) Away() bool {
	c.cmu.Lock()
	defer c.cmu.Unlock()
	return c.away || c.calls == nil
}

// Pending is the number of our calls that wait for a reply.
func (c *Conn) Pending() int {
	c.cmu.Lock()
	defer c.cmu.Unlock()
	return len(c.calls)
}

// enqueue has a frame written. When much is queued already it waits, as request
// says.
func (c *Conn) enqueue(ctx context.Context, limit time.Duration, what byte, kind uint16, id uint32, m Message) error {
	// All sessions of a process share the connection. While another one is at it, a frame is made beside the lock; who
	// waits for room does not make it before, see softQueued.
	if ctx == noWait && !c.wmu.TryLock() {
		f := asides.Get()
		*f = appendFrame(reuse.Truncated(*f), what, kind, id, m)
		c.wmu.Lock()
		err := c.add(append(c.out, *f...))
		if cap(*f) > maxAside {
			*f = nil
		}
		asides.Put(f)
		return err
	}
	if ctx != noWait {
		c.wmu.Lock()
		if len(c.out) > softQueued {
			if err := c.room(ctx, limit); err != nil {
				c.wmu.Unlock()
				return err
			}
		}
	}
	return c.add(appendFrame(c.out, what, kind, id, m))
}

// maxAside is how large a frame may become for its memory to be used for another one.
const maxAside = 64 << 10

// asides are frames that are made beside the lock, until they are queued.
var asides reuse.Pool[[]byte]

// appendFrame appends a frame to b. Its length is filled in when it is queued.
func appendFrame(b []byte, what byte, kind uint16, id uint32, m Message) []byte {
	start := len(b)
	var h [headerLen]byte
	binary.LittleEndian.PutUint16(h[4:], kind)
	h[6] = what
	binary.LittleEndian.PutUint32(h[8:], id)
	b = m.Append(append(b, h[:]...))
	// One that does not fit into 32 bits is too large in any case, and is never sent.
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-headerLen))
	return b
}

// add makes out, which is what is queued with one frame more, what is queued. It is called with wmu held, and unlocks it.
func (c *Conn) add(out []byte) error {
	n := len(out) - len(c.out) - headerLen
	switch {
	case c.closed != nil:
		err := c.closed
		c.wmu.Unlock()
		return err
	case n > MaxPayload:
		c.wmu.Unlock()
		return ErrTooLarge
	}
	c.out = out
	over := len(out)+c.writing > maxQueued
	c.wmu.Unlock()
	c.wcond.Broadcast() // to wake the writer takes longer than all that was done with the lock held
	if over {
		c.shut(errNotReading)
		return net.ErrClosed
	}
	return nil
}

// room waits until the peer has read what is queued: not for ever, a peer that
// hangs is disconnected. It is called with wmu held.
func (c *Conn) room(ctx context.Context, limit time.Duration) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	stop := context.AfterFunc(ctx, func() {
		c.wmu.Lock()
		c.wcond.Broadcast()
		c.wmu.Unlock()
	})
	defer stop()
	late := time.AfterFunc(Patience, func() { c.shut(errNotReading) })
	defer late.Stop()
	for len(c.out) > softQueued && c.closed == nil {
		if err := ctx.Err(); err != nil {
			return err
		}
		c.wcond.Wait()
	}
	return nil
}

func (c *Conn) writeLoop() {
	defer close(c.writerDone)
	for {
		c.wmu.Lock()
		c.writing = 0
		for (len(c.out) == 0 || !c.ready) && c.closed == nil {
			c.wcond.Wait()
		}
		if c.closed != nil {
			c.wmu.Unlock()
			return
		}
		c.wmu.Unlock()
		// Whoever is about to write a frame may do so now: one more frame in
		// this write is one system call less.
		runtime.Gosched()
		c.wmu.Lock()
		buf := c.out
		c.out, c.writing = reuse.Truncated(c.spare), len(buf)
		c.wcond.Broadcast()
		c.wmu.Unlock()
		if _, err := c.stream.Write(buf); err != nil {
			c.shut(err)
			return
		}
		if cap(buf) > maxKept { // one burst should not be held for ever
			buf = nil
		}
		c.spare = buf
	}
}

// written says that nothing waits to be written. Of a connection that is closed nothing does.
func (c *Conn) written() bool {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.closed != nil || len(c.out) == 0 && c.writing == 0
}

// shut closes the connection for the reason given. It is idempotent.
func (c *Conn) shut(err error) {
	c.wmu.Lock()
	if c.closed == nil {
		c.closed = err
	}
	c.wcond.Broadcast()
	stream := c.stream
	c.wmu.Unlock()
	if stream != c.nc {
		stream.Close()
	}
	c.nc.Close()
}

func (c *Conn) readLoop() {
	defer close(c.readerDone)
	err := c.meet()
	if err == nil {
		err = c.read()
	}
	c.shut(err)
	c.cmu.Lock()
	calls := c.calls
	c.calls = nil
	c.away = true
	c.cmu.Unlock()
	if foreign, ok := errors.AsType[*foreignError](err); ok {
		err = fmt.Errorf("%w: the peer sent %s", ErrLost, foreign.what)
	} else if !errors.Is(err, ErrVersion) {
		err = ErrLost
	}
	for _, cl := range calls {
		cl.done(nil, err)
	}
}

func (c *Conn) read() error {
	br := bufio.NewReaderSize(c.stream, 64<<10)
	var h [headerLen]byte
	for {
		if _, err := io.ReadFull(br, h[:]); err != nil {
			return err
		}
		n := binary.LittleEndian.Uint32(h[:])
		what, kind, id := h[6], binary.LittleEndian.Uint16(h[4:]), binary.LittleEndian.Uint32(h[8:])
		switch {
		case n > MaxPayload:
			return &foreignError{fmt.Sprintf("a message of %d octets", n)}
		case what > frameError || h[7] != 0:
			return &foreignError{fmt.Sprintf("a frame of unknown type %d.%d", what, h[7])}
		}
		if (what == frameReply || what == frameError) && int(n) <= br.Size() {
			payload, err := br.Peek(int(n)) // lent to who waits for it: see Go
			if err != nil {
				return err
			}
			c.dispatch(what, kind, id, payload)
			br.Discard(int(n))
			continue
		}
		payload, err := readPayload(br, int(n))
		if err != nil {
			return err
		}
		c.dispatch(what, kind, id, payload)
	}
}

// readPayload reads n octets into memory of which there is never more than twice what has come:
// that a peer says that it will send 16 MB costs it nothing.
func readPayload(r io.Reader, n int) ([]byte, error) {
	payload := getPayload(min(n, maxPooled))
	for at := 0; ; {
		if _, err := io.ReadFull(r, payload[at:]); err != nil {
			return nil, err
		}
		if at = len(payload); at == n {
			return payload, nil
		}
		more := make([]byte, min(n, 2*at))
		copy(more, payload)
		putPayload(payload)
		payload = more
	}
}

// Payloads with message content in them are worth using again: without that
// they are most of what the garbage collector has to do.
const (
	minPooled = 2 << 10
	maxPooled = 128 << 10
)

var payloads reuse.Pool[[]byte]

// getPayload is a slice of n octets with any content.
func getPayload(n int) []byte {
	if n < minPooled || n > maxPooled {
		return make([]byte, n)
	}
	p := payloads.Get()
	b := *p
	*p = nil
	holders.Put(p)
	if cap(b) < n {
		b = make([]byte, n, max(n+n/4, 16<<10))
	}
	return b[:n]
}

func putPayload(b []byte) {
	if cap(b) < minPooled || cap(b) > 2*maxPooled {
		return
	}
	p := holders.Get()
	*p = b
	payloads.Put(p)
}

// holders are what carries slices through payloads.
var holders reuse.Pool[[]byte]

func (c *Conn) dispatch(what byte, kind uint16, id uint32, payload []byte) {
	switch what {
	case frameOneWay, frameRequest:
		if what == frameOneWay {
			id = 0
		}
		r := &Request{Kind: kind, Payload: payload, conn: c, id: id, size: int64(len(payload))}
		if id != 0 && (c.open.Add(1) > maxOpen || c.openOctets.Add(r.size) > maxOpenOctets) {
			c.shut(errors.New("ipc: the peer asks for more than is agreed"))
			return
		}
		if c.handler == nil {
			r.Fail("ipc: nothing is served on this connection")
			return
		}
		c.handler(c, r)
	case frameReply, frameError:
		c.cmu.Lock()
		cl, ok := c.calls[id]
		delete(c.calls, id)
		away := c.away
		c.cmu.Unlock()
		if away { // the peer wanted to go, and may have answered everything
			defer c.leave()
		}
		switch {
		case !ok: // the caller's context ended before
		case what == frameError:
			cl.done(nil, RemoteError(payload))
		default:
			cl.done(payload, nil)
		}
	case frameGoAway:
		c.cmu.Lock()
		c.away = true
		c.cmu.Unlock()
		c.leave()
	}
}

// leave closes the connection if the peer wants to go, has answered all, and
// nothing is open there.
func (c *Conn) leave() {
	c.cmu.Lock()
	free := c.away && c.kept == 0 && len(c.calls) == 0
	c.cmu.Unlock()
	if free {
		c.shut(net.ErrClosed)
	}
}
