// The content of a message on its way to the server: whether it can go as it is stored,
// what has to be done to lines that cannot, and what the end of the content is told.

package smtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/quickio"
	"posthaste/internal/reuse"
	"posthaste/internal/table"
)

// chunk is how much of a message is written under one time limit, in octets:
// smtp_data_xfer_timeout is for a server that takes nothing, not for one that is
// slow.
const chunk = 64 << 10

// longLine is the length of a line over which a message has mail.BodyLong.
const longLine = 998

// message sends the content and its end, and records what the server says to it,
// for all recipients that were accepted. With a reply of 2xx the message is the
// server's.
func (t *transaction) message(ctx context.Context) {
	d, s := t.d, t.s
	// QUIT goes with the final dot where nothing else is to come: a round trip less for the server.
	// Not in LMTP, whose replies come one after the other.
	quit := !d.more && !d.wantsKeep(s) && s.offers&offersPipelining != 0 && d.set.skipQuitReply && !d.set.lmtp
	end := ".\r\n"
	if quit {
		end = ".\r\nQUIT\r\n"
		s.bad = true // it is not to be used again
	}
	// spool_exact_doubt: the queue has it on disk that the end of the message is about to be sent.
	// It is written while the content is under way.
	var hand func() error
	if d.req.Exact() {
		hand = d.req.Hand(t.accepted, s.detail().Relay)
	}
	err := t.send(ctx, d.body, end, hand)
	if hand != nil && err != nil && !errors.Is(err, errNotRecorded) {
		_ = hand() // nobody is to ask for it any more; the recipients are accounted for
	}
	switch {
	case errors.Is(err, errNotRecorded):
		s.bad = true // without the end of the message the server has nothing
		d.record(&failure{kind: messageFailed, status: dsn.S(4, 3, 0), text: err.Error(), detail: s.detail()}, t.accepted)
		return
	case err != nil:
		t.cutShort(err)
		return
	}
	s.notes.Out([]byte("."))
	if d.set.lmtp {
		t.perRecipient()
		return
	}
	r, err := s.readReply(d.set.time.dataDone, nil)
	switch {
	case err != nil:
		// Nobody knows whether the server has the message: it will be sent again, and may arrive
		// twice (RFC 5321 section 4.5.5; RFC 1047).
		s.bad = true
		d.fail(s.broken(stageDot, err), t.accepted)
	case !r.ok():
		d.completed = true
		d.fail(s.said(messageFailed, &r, commandDot), t.accepted)
	default:
		d.completed = true
		text := r.text()
		for _, i := range t.accepted {
			d.req.Sent(i, r.status, text, t.success(i, text))
			d.some = true
		}
	}
}

// perRecipient reads the replies of LMTP, one for each accepted recipient in the
// order of RCPT, RFC 2033 section 4.2. Each stands for itself: one mailbox may be
// full, another not.
func (t *transaction) perRecipient() {
	d, s := t.d, t.s
	for n, i := range t.accepted {
		r, err := s.readReply(d.set.time.dataDone, nil)
		switch {
		case err != nil:
			s.bad = true
			// Those before have had their replies, and have their mail.
			d.fail(s.broken(stageDot, err), t.accepted[n:])
			return
		case !r.ok():
			d.fail(s.said(recipientFailed, &r, commandDot), []int{i})
		default:
			text := r.text()
			d.req.Sent(i, r.status, text, t.success(i, text))
			d.some = true
		}
	}
}

// cutShort is for a connection that broke while the message was being sent.
// Many servers say why before they hang up, and that is the better reason.
func (t *transaction) cutShort(err error) {
	d, s := t.d, t.s
	s.bad = true
	// The queue, not the server, is to blame: the log has the details, which the
	// sender is not told.
	if errors.Is(err, errLocalData) {
		d.log.LogWarning(maillog.SMTPProblem{ID: d.id, Reason: err.Error()})
	}
	f := s.broken(stageBody, err)
	if f.status == dsn.S(4, 4, 2) {
		if r, e := s.readReply(time.Second, nil); e == nil && r.code/100 == 5 {
			f = s.said(messageFailed, &r, commandDot)
		}
	}
	d.fail(f, t.accepted)
}

// errNotRecorded says that the end of the message was not sent, since the queue
// could not record that it would be (spool_exact_doubt).
var errNotRecorded = errors.New("the delivery cannot be recorded in the queue")

// send writes content and end. Between the two it waits for hand, if that is not
// nil. An error says that the server has not got the end of the message, or that
// nobody knows: the session is then of no more use.
func (t *transaction) send(ctx context.Context, content agent.Content, end string, hand func() error) error {
	s := t.s
	body := content.Bytes()
	prefix := t.prefix()
	rules := t.d.a.rules
	touched := rules.touches(t.d.env.Body, s)
	limit := t.d.set.lineLimit
	verbatim := fitsAsItIs(t.d.env.Body, limit) && !touched
	// Most mail: it goes from the queue's memory to the socket in one system call.
	if body != nil && verbatim && !s.pixDelay && prefix == nil && hand == nil {
		o := newOutput(s.wire, t.d.set, content.Len())
		return o.last(body, end)
	}
	o := newOutput(s.wire, t.d.set, content.Len())
	f := &filter{o: &o, limit: limit, start: true}
	// The fields of flags= come first, and are made fit like the rest: an address
	// in them may be long.
	f.write(prefix)
	write := f.write
	if verbatim {
		write = f.put
	}
	// What patterns may cost is bounded for the message as a whole: its lines are a
	// stranger's.
	var conv *converter
	if touched {
		ctx, _ := table.NewBudget(ctx, table.MatchBudget)
		conv = rules.newConverter(ctx, t.d, s, f)
		write = conv.write
	}
	if body != nil {
		write(body)
	} else if err := t.stream(content, write, f); err != nil {
		return err
	}
	if conv != nil {
		if conv.end(); conv.err != nil {
			return conv.err
		}
	}
	if f.err != nil {
		return f.err
	}
	// Some PIX firewalls lose the final dot when it does not come in a packet of its own.
	if s.pixDelay {
		if err := o.flush(); err != nil {
			return err
		}
		select {
		case <-time.After(t.d.set.pixDelay):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if hand != nil {
		if err := o.flush(); err != nil {
			return err
		}
		if hand() != nil {
			return errNotRecorded
		}
	}
	o.buf = append(o.buf, end...)
	return o.flush()
}

// fitsAsItIs says whether content can go over the wire as it is stored: no dot
// is to be put before one, and no line is to be broken for being over limit.
func fitsAsItIs(b mail.Body, limit int) bool {
	// BodyLong is about the limit of RFC 5321; a lower one has to be looked after.
	return b&(mail.BodyGauged|mail.BodyDots|mail.BodyLong) == mail.BodyGauged && (limit == 0 || limit >= longLine)
}

// stream reads a message that is not in memory, and has it written. An error in
// reading is errLocalData: it is not the server's.
func (t *transaction) stream(content agent.Content, write func([]byte), f *filter) error {
	_, err := io.Copy(intoFilter{write, f}, content.Reader())
	if err == nil || f.err != nil {
		return f.err
	}
	return fmt.Errorf("%w: %w", errLocalData, err)
}

// An intoFilter is a filter, or what is before one, as an io.Writer.
type intoFilter struct {
	write func([]byte)
	f     *filter
}

// Write implements io.Writer.
func (s intoFilter) Write(p []byte) (int, error) {
	if s.write(p); s.f.err != nil {
		return 0, s.f.err
	}
	return len(p), nil
}

// output gathers content and writes it in chunks, each within
// smtp_data_xfer_timeout; with smtp_per_request_deadline all of them within
// that and what smtp_min_data_rate allows for the amount.
type output struct {
	w   *wire
	set *settings
	buf []byte    // of at most chunk octets that have not been written
	by  time.Time // when the whole message must have been written; zero: each chunk has its own limit
}

// newOutput begins to write size octets of content.
func newOutput(w *wire, set *settings, size int64) output {
	o := output{w: w, set: set}
	if !set.deadline || set.time.dataXfer <= 0 {
		return o
	}
	// smtp_per_request_deadline: a large message gets the time that it needs at the
	// lowest rate allowed.
	extra := time.Duration(0)
	if set.minRate > 0 {
		extra = time.Duration(size/int64(set.minRate)) * time.Second
	}
	o.by = time.Now().Add(set.time.dataXfer + extra)
	return o
}

// arm sets the time by which the next chunk must have been written.
func (o *output) arm() error {
	at := o.by
	if at.IsZero() {
		at = until(o.set.time.dataXfer)
	}
	return o.w.writeBy(at)
}

// last writes all of body and end, without copying where the connection takes
// several pieces at once.
func (o *output) last(body []byte, end string) error {
	// In chunks, so that each has its own time limit; the last one goes out with
	// the end of the content.
	for len(body) > chunk {
		if err := o.put(body[:chunk]); err != nil {
			return err
		}
		body = body[chunk:]
	}
	if err := o.arm(); err != nil {
		return err
	}
	if conn, ok := o.w.conn.(*quickio.Conn); ok {
		o.w.out = append(reuse.Truncated(o.w.out), end...)
		_, err := conn.WriteTwo(body, o.w.out)
		o.w.out = reuse.Truncated(o.w.out)
		return err
	}
	// TLS makes a record, and a system call, of each write.
	o.w.out = append(append(reuse.Truncated(o.w.out), body...), end...)
	_, err := o.w.conn.Write(o.w.out)
	o.w.out = reuse.Truncated(o.w.out)
	if cap(o.w.out) > 16<<10 {
		o.w.out = nil // a kept session does not need it
	}
	return err
}

// write gathers b, or, when it is large, writes it as it is after what has
// gathered. Small pieces would each be a packet.
func (o *output) write(b []byte) error {
	if len(b) > chunk/2 {
		if err := o.flush(); err != nil {
			return err
		}
		return o.put(b)
	}
	o.buf = append(o.buf, b...)
	if len(o.buf) < chunk {
		return nil
	}
	return o.flush()
}

// flush writes what has gathered.
func (o *output) flush() error {
	if len(o.buf) == 0 {
		return nil
	}
	err := o.put(o.buf)
	o.buf = reuse.Truncated(o.buf)
	return err
}

// put writes b to the connection.
func (o *output) put(b []byte) error {
	if err := o.arm(); err != nil {
		return err
	}
	_, err := o.w.conn.Write(b)
	return err
}

// filter makes lines fit for sending: a dot before a dot at the start of a
// line (RFC 5321 section 4.5.2), and a line end with a blank after it where a
// line is too long (section 4.5.3.1.6). It may be given the content in pieces.
type filter struct {
	o     *output
	limit int  // longest line without its end; 0: any
	start bool // the next octet begins a line
	col   int  // octets of the present line that have been sent
	cr    bool // a CR that ended the last piece has not been sent
	err   error
}

// write sends a piece of the content. After an error it does nothing; err has the
// first one.
func (f *filter) write(b []byte) {
	if f.cr && len(b) > 0 {
		// Held back so that a line end is never cut in two.
		f.cr = false
		b = append([]byte{'\r'}, b...)
	}
	if n := len(b); n > 0 && b[n-1] == '\r' {
		f.cr = true
		b = b[:n-1]
	}
	for len(b) > 0 && f.err == nil {
		// Transparency (section 4.5.2): without the second dot a line of one dot
		// would end the message early, and what follows would be taken for
		// commands.
		if f.start && b[0] == '.' {
			f.put(dot)
			f.col-- // of the wire, not of the line
		}
		f.start = false
		n := bytes.IndexByte(b, '\n') + 1
		line := b[:n]
		if n == 0 {
			line = b
		}
		b = b[len(line):]
		f.line(line)
		if n > 0 {
			f.start, f.col = true, 0
		}
	}
}

var (
	dot  = []byte(".")
	fold = []byte("\r\n ")
)

// line sends a piece of a line, which has its end only if it is the last one. A
// line over limit is folded where the limit is reached, in the middle of a word if
// need be: RFC 5322 lets a header field be folded at blanks only, but a server may
// refuse the whole message for its length.
func (f *filter) line(p []byte) {
	text := len(p)
	if text > 0 && p[text-1] == '\n' {
		text--
		if text > 0 && p[text-1] == '\r' {
			text--
		}
	}
	limit := max(f.limit, 2) // after a fold there is a blank, and room for something
	for f.limit > 0 && f.col+text > limit {
		n := max(limit-f.col, 0)
		f.put(p[:n])
		f.put(fold)
		f.col = 1
		p, text = p[n:], text-n
	}
	f.put(p)
}

// put writes p as it is, and counts it towards the present line.
func (f *filter) put(p []byte) {
	if f.err == nil {
		f.err = f.o.write(p)
	}
	f.col += len(p)
}
