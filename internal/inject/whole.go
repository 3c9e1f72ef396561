package inject

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strings"

	"posthaste/internal/submit"
)

// envelopeOf reads the envelope of a message that comes whole: from the query, or from the fields
// X-Envelope-From and X-Envelope-To.
func envelopeOf(r *http.Request, set *limits) (*message, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, malformed("the query cannot be read: %v", err)
	}
	for name, list := range values {
		if !oneOf(name, "from", "to", "send_at") {
			return nil, in(shown(name), malformed("the query has from, to and send_at"))
		}
		if name != "to" && len(list) > 1 {
			return nil, in(name, malformed("it is there twice"))
		}
	}
	from, to := values["from"], values["to"]
	if f := r.Header.Values("X-Envelope-From"); len(f) > 0 {
		if from != nil || len(f) > 1 {
			return nil, in("X-Envelope-From", malformed("there is more than one sender"))
		}
		from = []string{strings.TrimSuffix(strings.TrimPrefix(f[0], "<"), ">")}
	}
	if f := r.Header.Values("X-Envelope-To"); len(f) > 0 {
		if to != nil {
			return nil, in("X-Envelope-To", malformed("the query has recipients as well"))
		}
		for _, line := range f {
			for part := range strings.SplitSeq(line, ",") {
				to = append(to, strings.Trim(part, " \t"))
			}
		}
	}
	if from == nil {
		return nil, in("from", refuse("the sender is missing: it may be empty"))
	}
	m := &message{hasSender: true}
	if from[0] != "" {
		if m.sender, m.senderUTF8, err = mailbox(from[0]); err != nil {
			return nil, in("from", err)
		}
	}
	if len(to) > set.recipients {
		return nil, tooLarge("there are %d recipients; %d are the most (inject_recipient_limit)", len(to), set.recipients)
	}
	for _, text := range to {
		rcpt := recipient{said: text}
		rcpt.Email, rcpt.UTF8, rcpt.err = mailbox(text)
		m.to = append(m.to, rcpt)
	}
	if at := values.Get("send_at"); at != "" {
		if m.sendAt, err = parseTime(at); err != nil {
			return nil, in("send_at", err)
		}
	}
	m.raw = &template{fixed: true} // its content is not here
	return m, nil
}

// A wholeRequest is a message that comes as it is to be. Its header is looked at; the rest goes on to
// cleanup as it comes.
type wholeRequest struct {
	s      *server
	who    *caller
	o      *order
	key    string
	digest hash.Hash // of all that was asked for
	header []byte    // with what has come of the body besides
	r      io.Reader // what follows
}

// whole is POST /v1/messages with message/rfc822.
func (s *server) whole(w http.ResponseWriter, r *http.Request, who *caller) error {
	m, err := envelopeOf(r, &s.limits)
	if err != nil {
		return err
	}
	if err := m.check(s.now(), &s.limits); err != nil {
		return err
	}
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	o, err := planWhole(m, who.token, s.utf8)
	if err != nil {
		return err
	}
	limit := int64(1 << 62)
	if s.limits.message > 0 {
		limit = s.limits.message + s.limits.message/8 // an end of a line may be one octet here, and two there
	}
	q := &wholeRequest{s: s, who: who, o: o, key: key, digest: sha256.New(), r: http.MaxBytesReader(w, io.NopCloser(r.Body), limit)}
	io.WriteString(q.digest, r.URL.Path+"\x00"+r.URL.RawQuery+"\x00"+strings.Join(r.Header.Values("X-Envelope-From"), "\x00")+"\x00"+strings.Join(r.Header.Values("X-Envelope-To"), "\x00")+"\x00")
	mine := &share{b: s.memory}
	defer mine.end()
	if err := q.readHeader(r.Context(), mine); err != nil {
		return err
	}
	result, replayed, err := q.carry()
	if err != nil {
		return err
	}
	s.answer(w, r, who, result, replayed)
	return nil
}

// readHeader reads the header, verifies it, and notes its Message-ID.
func (q *wholeRequest) readHeader(ctx context.Context, mine *share) error {
	if err := mine.take(ctx, firstRead); err != nil {
		return err
	}
	b := make([]byte, 0, firstRead)
	for {
		if len(b) == cap(b) {
			if cap(b) >= maxRawHeader {
				return tooLarge("the header has more than %d octets", maxRawHeader)
			}
			if err := mine.take(ctx, cap(b)); err != nil {
				return err
			}
			b = append(make([]byte, 0, 2*cap(b)), b...)
		}
		n, err := q.r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		last := err == io.EOF
		if err != nil && !last {
			return tooLargeOr(err)
		}
		end := cutHeader(b, last)
		if end == 0 && !last {
			continue
		}
		if last {
			q.r = strings.NewReader("")
		}
		q.header = b
		var lines sliceWriter
		l := liner{w: &lines}
		_, _ = l.Write(b[:end])
		_ = l.end()
		h, err := readHead(lines)
		if err != nil {
			return err
		}
		for _, d := range q.o.drafts {
			d.messageID = h.messageID
		}
		return permitHead(&h, q.who.token)
	}
}

// tooLargeOr words the error of a body.
func tooLargeOr(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return tooLarge("5.3.4 the message has more than message_size_limit octets")
	}
	return err
}

// carry queues the message, with a key once.
func (q *wholeRequest) carry() (*Result, bool, error) {
	d := q.s.door
	if len(q.o.drafts) == 0 {
		return q.o.result(d.hostname), false, nil
	}
	if d.submit.Silent() {
		return nil, false, later(retryTime, "4.3.0 Error: queue file write error")
	}
	if q.key == "" {
		if err := d.quota.take(q.who.token, q.o.recipients()); err != nil {
			return nil, false, err
		}
		err := q.submit()
		d.unused(q.who, q.o)
		if err != nil {
			return nil, false, err
		}
		return q.o.result(d.hostname), false, nil
	}
	return q.once()
}

// submit streams the message to cleanup, without a key.
func (q *wholeRequest) submit() error {
	d, x := q.s.door, q.o.drafts[0]
	d.slots <- struct{}{}
	defer func() { <-d.slots }()
	msg, err := d.open(q.who, q.o, x, nil)
	if err != nil {
		d.log.Warning("%v", err)
		return later(retryTime, "4.3.0 Error: queue file write error")
	}
	if err := q.copy(msg); err != nil {
		msg.Abort()
		return err
	}
	d.commit(msg, x)
	return nil
}

// copy writes the content to cleanup. An error is the client's; that of
// the submission Commit tells.
func (q *wholeRequest) copy(msg *submit.Message) error {
	l := liner{w: &deaf{w: msg}}
	_, _ = l.Write(q.header)
	buf := make([]byte, 32<<10)
	for {
		n, err := q.r.Read(buf)
		_, _ = l.Write(buf[:n])
		if err == io.EOF {
			return l.end()
		}
		if err != nil {
			return tooLargeOr(err)
		}
	}
}

// A deaf writer goes on after an error: the rest of the body is read all the same.
type deaf struct {
	w      io.Writer
	failed bool
}

func (k *deaf) Write(p []byte) (int, error) {
	if !k.failed {
		_, err := k.w.Write(p)
		k.failed = err != nil
	}
	return len(p), nil
}

// once is carry with a key. What was asked for is known only when all of it has come, and then the
// message goes the same way as one that was composed. It is kept in a file until then, if it is large.
func (q *wholeRequest) once() (*Result, bool, error) {
	keep := new(spill)
	defer keep.close()
	buf := make([]byte, 32<<10)
	q.digest.Write(q.header)
	for {
		n, err := q.r.Read(buf)
		q.digest.Write(buf[:n])
		if werr := keep.write(buf[:n]); werr != nil {
			q.s.log.Warning("%v", werr)
			return nil, false, later(retryTime, "the message cannot be kept")
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, false, tooLargeOr(err)
		}
	}
	q.o.stream = func(w io.Writer) error {
		if _, err := w.Write(q.header); err != nil {
			return err
		}
		return keep.copy(w)
	}
	var what digest
	q.digest.Sum(what[:0])
	return q.s.door.carry(q.who, q.o, q.key, what)
}
