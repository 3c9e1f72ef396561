package milter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"posthaste/internal/mailfilter"
)

// A Field is one header field.
type Field struct {
	Name string
	Raw  []byte // all of it, with its line ends
}

// Content is a message's content as filters see and change it.
type Content struct {
	Fields   []Field
	Body     io.ReaderAt // what follows the empty line after the header
	BodySize int64
	// BodyLimit bounds the body that filters may put in its place; 0 is no
	// limit.
	BodyLimit int64

	// HeaderChanged and BodyChanged say what filters have changed.
	HeaderChanged, BodyChanged bool
	temp                       []*spill
}

// Close frees what replaced bodies took.
func (c *Content) Close() {
	for _, t := range c.temp {
		t.close()
	}
}

// An Envelope takes what filters want of sender and recipients. Addresses are
// as filters give them, mostly in angle brackets; args are ESMTP parameters.
type Envelope interface {
	ChangeSender(addr, args string)
	AddRecipient(addr, args string)
	DeleteRecipient(addr string)
	// CheckField judges a field that a filter adds (milter_header_checks), given as
	// a whole. It returns what is to be added in its place, nil if nothing.
	CheckField(raw []byte) []byte
}

// Message shows the content to the filters and applies what they want
// changed to c and env. The message is then done with.
func (s *Session) Message(ctx context.Context, c *Content, env Envelope) mailfilter.Verdict {
	v := s.each(func(f *filter) mailfilter.Verdict {
		edits, v := s.content(ctx, f, c)
		f.opened = false
		if v.Action == mailfilter.Continue && !f.dead {
			v.Hold = v.Hold || f.apply(edits, c, env)
		}
		return v
	})
	s.Abort() // whoever was not asked to the end
	return v
}

// content shows one filter the content. What it wants changed is only good
// with a verdict that lets the message pass.
func (s *Session) content(ctx context.Context, f *filter, c *Content) (*edits, mailfilter.Verdict) {
	own := true // our Received: field, the first, is none of theirs
	for _, fd := range c.Fields {
		if own && strings.EqualFold(fd.Name, "Received") {
			own = false
			continue
		}
		v := f.send(&event{name: "HEADER", kind: cmdHeader, stage: mailfilter.StageEOH, skip: stepNoHeaders, noWait: stepNRHeader,
			fill: func(b []byte) []byte {
				return append(append(append(append(b, fd.Name...), 0), f.headerValue(fd)...), 0)
			}}, s.macros)
		if v.Action != mailfilter.Continue || f.dead || f.done {
			return nil, v
		}
	}
	v := f.send(&event{name: "EOH", kind: cmdEOH, stage: mailfilter.StageEOH, skip: stepNoEOH, noWait: stepNREOH}, s.macros)
	if v.Action != mailfilter.Continue || f.dead || f.done {
		return nil, v
	}
	if v := s.body(f, c); v.Action != mailfilter.Continue || f.dead || f.done {
		return nil, v
	}
	return f.endOfMessage(ctx, s.macros, c)
}

func (s *Session) body(f *filter, c *Content) mailfilter.Verdict {
	if f.opts.steps&stepNoBody != 0 {
		return mailfilter.Verdict{}
	}
	chunk := make([]byte, min(chunkSize, c.BodySize))
	for off := int64(0); off < c.BodySize; off += int64(len(chunk)) {
		chunk = chunk[:min(int64(len(chunk)), c.BodySize-off)]
		if _, err := c.Body.ReadAt(chunk, off); err != nil && err != io.EOF {
			return f.fail("BODY", fmt.Errorf("read the message: %w", err))
		}
		v := f.send(&event{name: "BODY", kind: cmdBody, stage: mailfilter.StageEOM, noWait: stepNRBody,
			fill: func(b []byte) []byte { return append(b, chunk...) }}, s.macros)
		if v.Action != mailfilter.Continue || f.dead || f.done || f.skip == cmdBody {
			return v
		}
	}
	return mailfilter.Verdict{}
}

// Bounds on what one filter may want changed in one message.
const (
	maxEdits     = 10000
	maxEditBytes = 4 << 20 // header fields and addresses
)

// An edit is one change.
type edit struct {
	op          byte
	index       uint32
	name, value string
}

// edits are what one filter wants changed.
type edits struct {
	list  []edit
	bytes int
	body  *spill // in place of the old one
	hold  bool
}

// endOfMessage tells the filter that it has seen all, and collects what it
// wants.
func (f *filter) endOfMessage(ctx context.Context, values map[string]string, c *Content) (*edits, mailfilter.Verdict) {
	e := &event{name: "EOM", kind: cmdEOM, stage: mailfilter.StageEOM}
	f.skip = 0
	f.out = appendPacket(f.macros(f.out, e, values), cmdEOM, nil)
	ed := new(edits)
	end := time.Now().Add(maxContentTime)
	for {
		p, err := f.answer(min(f.spec.Content, time.Until(end)))
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			ed.drop()
			return nil, f.fail(e.name, err)
		}
		switch p.kind {
		case repProgress:
		case repContinue, repAccept:
			if ed.body != nil {
				c.temp = append(c.temp, ed.body)
			}
			return ed, mailfilter.Verdict{}
		case repReject, repTempFail, repCode, repDiscard, repShutdown, repConnFail:
			ed.drop()
			return nil, f.heed(p, e)
		default:
			if err := ed.collect(p, c.BodyLimit); err != nil {
				ed.drop()
				return nil, f.fail(e.name, err)
			}
		}
	}
}

func (ed *edits) drop() {
	if ed.body != nil {
		ed.body.close()
	}
}

// collect takes one reply that wants something changed. Whether the filter had asked
// to be allowed it is not looked at: filters that forget to work with Postfix.
func (ed *edits) collect(p packet, bodyLimit int64) error {
	switch p.kind {
	case repAddRcpt, repAddRcptPar, repDelRcpt, repChgFrom, repAddHeader, repInsHeader, repChgHeader, repQuarantine:
	case repReplBody:
		return ed.replace(p.data, bodyLimit)
	default:
		return unexpectedReply(p)
	}
	ed.bytes += len(p.data) + 5 // with the length and the kind: there may be no data
	if len(ed.list) >= maxEdits || ed.bytes > maxEditBytes {
		return errors.New("it wants too much changed")
	}
	one := edit{op: p.kind}
	var err error
	if p.kind == repInsHeader || p.kind == repChgHeader {
		if one.index, err = p.index(); err != nil {
			return err
		}
	}
	want, most := 1, 1
	switch p.kind {
	case repAddHeader, repInsHeader, repChgHeader:
		want, most = 2, 2
	case repAddRcptPar, repChgFrom:
		most = 2
	case repQuarantine:
		ed.hold = true
		return nil
	}
	list, err := p.strings(want, most)
	if err != nil {
		return err
	}
	one.name = list[0]
	if len(list) > 1 {
		one.value = list[1]
	}
	ed.list = append(ed.list, one)
	return nil
}

// replace adds to the new body. Filters send lines that end in CRLF or LF.
func (ed *edits) replace(p []byte, limit int64) error {
	if ed.body == nil {
		ed.body = new(spill)
	}
	if limit > 0 && ed.body.size+int64(len(p)) > limit {
		return fmt.Errorf("the new body is larger than message_size_limit, %d", limit)
	}
	return ed.body.lines(p)
}

// apply makes the changes. It says whether the message is to be held.
func (f *filter) apply(ed *edits, c *Content, env Envelope) (hold bool) {
	if ed == nil {
		return false
	}
	for i := range ed.list {
		one := &ed.list[i]
		switch one.op {
		case repAddRcpt, repAddRcptPar:
			env.AddRecipient(one.name, one.value)
		case repDelRcpt:
			env.DeleteRecipient(one.name)
		case repChgFrom:
			env.ChangeSender(one.name, one.value)
		default:
			if err := f.changeHeader(one, c, env); err != nil {
				f.warn("milter %s: EOM event: %v; the change is not made", f.spec.Endpoint, err)
			}
		}
	}
	if ed.body != nil {
		if err := ed.body.finish(); err != nil {
			f.warn("milter %s: EOM event: new body: %v; the change is not made", f.spec.Endpoint, err)
		} else {
			c.Body, c.BodySize, c.BodyChanged = ed.body, ed.body.size, true
		}
	}
	return ed.hold
}

func (f *filter) changeHeader(one *edit, c *Content, env Envelope) error {
	at := len(c.Fields)
	old := false
	switch one.op {
	case repInsHeader:
		at = int(min(uint32(len(c.Fields)), one.index))
	case repChgHeader:
		if at, old = c.find(one.name, int(max(one.index, 1))); !old { // 0 is what Sendmail takes for 1
			at = len(c.Fields)
		}
		if one.value == "" {
			if old {
				c.HeaderChanged = true
				c.Fields = append(c.Fields[:at:at], c.Fields[at+1:]...)
			}
			return nil
		}
	}
	fd, err := f.fieldOf(one.name, one.value)
	if err != nil {
		return err
	}
	if fd.Raw = env.CheckField(fd.Raw); fd.Raw == nil {
		return nil
	}
	if name, _, _ := bytes.Cut(fd.Raw, []byte(":")); !strings.EqualFold(string(name), fd.Name) {
		fd.Name = strings.TrimRight(string(name), " \t")
	}
	c.HeaderChanged = true
	rest := c.Fields[at:]
	if old {
		rest = rest[1:]
	}
	c.Fields = append(append(c.Fields[:at:at], fd), rest...)
	return nil
}

// find finds the nth field of a name, of those that filters see.
func (c *Content) find(name string, n int) (at int, ok bool) {
	own := true
	for i := range c.Fields {
		if !strings.EqualFold(c.Fields[i].Name, name) {
			continue
		}
		if own && strings.EqualFold(name, "Received") {
			own = false
			continue
		}
		if n--; n == 0 {
			return i, true
		}
	}
	return 0, false
}

// spillAt is how much of a new body is kept in memory.
const spillAt = 256 << 10

// A spill is a body that a filter sends: in memory, or in a file without a name
// when it is long.
type spill struct {
	mem  []byte
	file *os.File
	size int64
	cr   bool // the last octet was a CR, which is not written yet
	any  bool
	last byte
}

// lines takes a part of the body, and makes all line ends CRLF.
func (s *spill) lines(p []byte) error {
	out := make([]byte, 0, len(p)+len(p)/16+2)
	for _, c := range p {
		if s.cr && c != '\n' {
			out = append(out, ' ') // a CR alone is no line end, and nothing else either
		}
		s.cr = c == '\r'
		switch c {
		case '\r':
		case '\n':
			out = append(out, '\r', '\n')
		default:
			out = append(out, c)
		}
	}
	return s.write(out)
}

func (s *spill) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	s.any, s.last = true, p[len(p)-1]
	if s.file == nil && len(s.mem)+len(p) > spillAt {
		file, err := os.CreateTemp("", "posthaste-milter-")
		if err != nil {
			return fmt.Errorf("keep the new body: %w", err)
		}
		os.Remove(file.Name())
		s.file = file
		if _, err := file.Write(s.mem); err != nil {
			return fmt.Errorf("keep the new body: %w", err)
		}
		s.mem = nil
	}
	s.size += int64(len(p))
	if s.file == nil {
		s.mem = append(s.mem, p...)
		return nil
	}
	if _, err := s.file.Write(p); err != nil {
		return fmt.Errorf("keep the new body: %w", err)
	}
	return nil
}

// finish ends the last line.
func (s *spill) finish() error {
	if s.cr || s.any && s.last != '\n' {
		s.cr = false
		return s.write(crlf)
	}
	return nil
}

// ReadAt implements io.ReaderAt.
func (s *spill) ReadAt(p []byte, off int64) (int, error) {
	if s.file != nil {
		return s.file.ReadAt(p, off)
	}
	return bytes.NewReader(s.mem).ReadAt(p, off)
}

func (s *spill) close() {
	if s.file != nil {
		s.file.Close()
		s.file = nil
	}
}
