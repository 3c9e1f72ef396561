package pgspool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// readTime bounds one question to the database.
const readTime = 30 * time.Second

// A reader implements storage.Reader. It has no state but the pool.
type reader struct{ store *Store }

// Reader implements storage.Store.
func (s *Store) Reader() storage.Reader { return &reader{s} }

// Close implements storage.Reader.
func (r *reader) Close() error { return nil }

// A stored implements storage.Stored.
type stored struct {
	r    *reader
	id   mail.QueueID
	ref  queue.Ref
	st   state
	rest rest
	more []uint64
	msg  *fullRow // of the row that was read, when that has the content; nil: not yet
}

// A fullRow is a row with its content.
type fullRow struct {
	row
	body []byte
}

// Read implements storage.Reader.
func (r *reader) Read(ref queue.Ref, id mail.QueueID) (storage.Stored, error) {
	st, err := r.read(ref, id, false)
	if err != nil {
		return nil, err
	}
	if err := st.needEnvelope(); err != nil {
		return nil, err
	}
	return st, nil
}

// Content implements storage.Reader. Content that is in the record itself comes with it.
func (r *reader) Content(ref queue.Ref, id mail.QueueID) (storage.Content, error) {
	st, err := r.read(ref, id, true)
	if err != nil {
		return nil, err
	}
	return st.Content()
}

// read reads the record at ref.
func (r *reader) read(ref queue.Ref, id mail.QueueID, body bool) (*stored, error) {
	made, number, err := id.Parse()
	if err != nil || ref.IsZero() || ref.Segno > 1<<32-1 {
		return nil, fmt.Errorf("%w: message %q at %+v", queue.ErrInvalid, string(id), ref)
	}
	row, err := r.row(rowAt{ref.File, uint32(ref.Segno)}, ref.Offset, number, body)
	if err != nil {
		return nil, fmt.Errorf("message %s: %w", id, err)
	}
	if row.kind != rowMSG && row.kind != rowSTATE {
		return nil, fmt.Errorf("message %s: %w: a record of kind %d", id, queue.ErrCorrupt, row.kind)
	}
	st := &stored{r: r, id: id, ref: ref}
	if st.st, err = row.state(uint32(ref.Segno)); err == nil {
		st.rest, err = row.verified(&st.st)
	}
	if err != nil {
		return nil, fmt.Errorf("message %s: %w", id, err)
	}
	if st.st.created != made.UnixMicro() {
		return nil, fmt.Errorf("message %s: %w: it is another one there", id, queue.ErrStale)
	}
	st.st.shard, st.st.refLen = ref.File, ref.Length
	st.more = loadDone(&st.st.live, st.st.done)
	if body && row.kind == rowMSG {
		st.msg = row
	}
	return st, nil
}

// verified is the rest of a row with the state st.
func (r *row) verified(st *state) (rest, error) {
	if sum(r.rest, r.kind, r.number, 0) != st.restSum {
		return rest{}, fmt.Errorf("%w: checksum of the envelope", queue.ErrCorrupt)
	}
	return decodeRest(r.rest)
}

// row reads one row of message number. Errors: queue.ErrStale, ErrCorrupt, ErrUnread.
func (r *reader) row(p rowAt, pos uint32, number uint64, body bool) (*fullRow, error) {
	columns := "kind, number, head, coalesce(rest, ''), NULL::bytea"
	if body {
		columns = "kind, number, head, coalesce(rest, ''), body"
	}
	f := &fullRow{row: row{pos: int64(pos)}}
	err := r.query(p, func(ctx context.Context, conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, "SELECT "+columns+" FROM "+segmentTable(p.shard, p.seg)+" WHERE pos = $1", int64(pos)).
			Scan(&f.kind, &f.number, &f.head, &f.rest, &f.body)
		if err == nil && f.number != number {
			err = fmt.Errorf("%w: %w: it is another message's record there", queue.ErrCorrupt, errNoRow)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// query has f ask for something in a segment.
func (r *reader) query(p rowAt, f func(context.Context, *pgx.Conn) error) error {
	err := r.store.ask(func(ctx context.Context, conn *pgx.Conn) error {
		err := orScan(ctx, conn, func() error { return f(ctx, conn) })
		if sqlState(err) == undefinedTable {
			return r.missing(ctx, conn, p)
		}
		return err
	})
	switch {
	case err == nil, errors.Is(err, queue.ErrStale), errors.Is(err, queue.ErrCorrupt):
		return err
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: no such row", queue.ErrStale)
	}
	// Also what the database says is damaged: when that has been mended, or a standby promoted, it gives what was written, and a message that was
	// set aside would not come back.
	return fmt.Errorf("%w: %w", queue.ErrUnread, clean(err))
}

// missing says what it means that a segment's table is not there: it was dropped, and nothing that is alive was
// in it; or somebody has dropped it; or this is a database without a queue.
func (r *reader) missing(ctx context.Context, conn *pgx.Conn, p rowAt) error {
	var listed bool
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM segment WHERE shard = $1 AND segno = $2)", int(p.shard), int64(p.seg)).Scan(&listed)
	switch {
	case err != nil:
		return err
	case listed:
		return fmt.Errorf("%w: table %s is missing", queue.ErrCorrupt, segmentTable(p.shard, p.seg))
	}
	return fmt.Errorf("%w: segment %d is gone", queue.ErrStale, p.seg)
}

// needEnvelope reads the envelope from the MSG record, when the newest state does not have it.
func (st *stored) needEnvelope() error {
	if st.rest.hasEnv {
		return nil
	}
	f, err := st.msgRow(false)
	if err != nil {
		return err
	}
	s, err := f.state(st.st.msgSeg)
	var r rest
	if err == nil {
		r, err = f.verified(&s)
	}
	if err == nil && !r.hasEnv {
		err = fmt.Errorf("%w: it has no envelope", queue.ErrCorrupt)
	}
	if err != nil {
		return fmt.Errorf("message %s: %w", st.id, err)
	}
	st.rest.envelope, st.rest.recipients, st.rest.hasEnv = r.envelope, r.recipients, true
	return nil
}

// msgRow reads the MSG record.
func (st *stored) msgRow(body bool) (*fullRow, error) {
	f, err := st.r.row(rowAt{st.ref.File, st.st.msgSeg}, st.st.msgPos, st.st.number, body)
	if err == nil && f.kind != rowMSG {
		err = fmt.Errorf("%w: a record of kind %d", queue.ErrCorrupt, f.kind)
	}
	if err != nil {
		return nil, fmt.Errorf("message %s: its first record: %w", st.id, err)
	}
	return f, nil
}

// Envelope implements storage.Stored.
func (st *stored) Envelope() (mail.Envelope, error) {
	var env mail.Envelope
	if err := env.Decode(st.rest.envelope); err != nil {
		return env, fmt.Errorf("message %s: %w: envelope: %w", st.id, queue.ErrCorrupt, err)
	}
	return env, nil
}

// Recipients implements storage.Stored.
func (st *stored) Recipients(from, to int) ([]mail.Recipient, error) {
	list, err := mail.DecodeRecipients(nil, st.rest.recipients, from, to)
	if err != nil {
		return list, fmt.Errorf("message %s: %w: recipients: %w", st.id, queue.ErrCorrupt, err)
	}
	return list, nil
}

// NRcpt implements storage.Stored.
func (st *stored) NRcpt() int { return int(st.st.nrcpt) }

// Pending implements storage.Stored.
func (st *stored) Pending(i int) bool {
	return i >= 0 && i < st.NRcpt() && !isDone(&st.st.live, st.more, uint64(i))
}

// Overlay implements storage.Stored.
func (st *stored) Overlay(done []byte) {
	for i := range min(st.NRcpt(), 8*len(done)) {
		if done[i/8]>>(i%8)&1 != 0 {
			st.more = setDone(&st.st.live, st.more, uint64(i))
		}
	}
}

// Outcomes implements storage.Stored.
func (st *stored) Outcomes() (list []mail.Outcome, err error) {
	r := pack.NewReader(st.rest.outcomes)
	for r.Next() {
		var o mail.Outcome
		if err := o.Decode(r.Bytes()); err != nil {
			return list, fmt.Errorf("message %s: %w: outcomes: %w", st.id, queue.ErrCorrupt, err)
		}
		list = append(list, o)
	}
	return list, r.Err()
}

// State implements storage.Stored.
func (st *stored) State() queue.Entry {
	en := st.st.entry(st.more)
	en.ID, en.Ref = st.id, st.ref
	return en
}

// Content implements storage.Stored.
func (st *stored) Content() (storage.Content, error) {
	f := st.msg
	if f == nil {
		var err error
		if f, err = st.msgRow(st.st.flags&msgBig == 0); err != nil {
			return nil, err
		}
	}
	s, err := f.state(st.st.msgSeg)
	if err != nil {
		return nil, fmt.Errorf("message %s: %w", st.id, err)
	}
	if s.big.parts > 0 || s.flags&msgBig != 0 {
		return &content{r: st.r, id: st.id, number: s.number, shard: st.ref.File, at: s.big, size: s.bodyLen, part: -1}, nil
	}
	if int64(len(f.body)) != s.bodyLen || sum(f.body, rowMSG, s.number, 0) != s.bodySum {
		return nil, fmt.Errorf("message %s: content: %w: checksum", st.id, queue.ErrCorrupt)
	}
	if f.body == nil {
		f.body = []byte{}
	}
	return &content{id: st.id, size: s.bodyLen, whole: f.body}, nil
}

// A content implements storage.Content. It holds a part in memory at most.
type content struct {
	r      *reader
	id     mail.QueueID
	number uint64
	shard  uint32
	at     place
	size   int64
	pos    int64
	whole  []byte // all of it; nil: it has rows of its own
	part   int    // the number of the part in data; -1: none
	data   []byte
}

var errContentClosed = errors.New("the content is closed")

// Len implements storage.Content.
func (c *content) Len() int64 { return c.size }

// Bytes implements storage.Content.
func (c *content) Bytes() []byte { return c.whole }

// ahead is what memory holds from the position on.
func (c *content) ahead() ([]byte, error) {
	if c.whole != nil {
		return c.whole[c.pos:], nil
	}
	if c.r == nil {
		return nil, errContentClosed
	}
	part := int(c.pos / partLen)
	if part != c.part {
		f, err := c.r.row(rowAt{c.shard, c.at.seg}, c.at.pos+uint32(part), c.number, true)
		want := min(partLen, c.size-int64(part)*partLen)
		switch {
		case errors.Is(err, queue.ErrStale):
			// It has moved while it was read: who began anew would find it.
			return nil, fmt.Errorf("message %s: content: %w: %v", c.id, queue.ErrUnread, err)
		case err != nil:
			return nil, fmt.Errorf("message %s: content: %w", c.id, err)
		case f.kind != rowPART || int64(len(f.body)) != want || !bytes.Equal(f.head, partHead(f.body, c.number, part)):
			return nil, fmt.Errorf("message %s: content at %d: %w: checksum", c.id, int64(part)*partLen, queue.ErrCorrupt)
		}
		c.part, c.data = part, f.body
	}
	return c.data[c.pos-int64(part)*partLen:], nil
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	if c.pos >= c.size {
		return 0, io.EOF
	}
	b, err := c.ahead()
	n := copy(p, b)
	c.pos += int64(n)
	return n, err
}

// WriteTo implements io.WriterTo. An error of w is returned as it is.
func (c *content) WriteTo(w io.Writer) (n int64, err error) {
	for c.pos < c.size {
		b, err := c.ahead()
		if err != nil {
			return n, err
		}
		k, err := w.Write(b)
		n, c.pos = n+int64(k), c.pos+int64(k)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Seek implements io.Seeker.
func (c *content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.pos
	case io.SeekEnd:
		offset += c.size
	}
	if offset < 0 {
		return c.pos, errors.New("spool: seek before the start of a message")
	}
	c.pos = offset
	return offset, nil
}

// Close implements io.Closer.
func (c *content) Close() error {
	*c = content{id: c.id}
	return nil
}
