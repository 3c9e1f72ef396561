// Package plain is the form that a queued message has outside the spool: a text
// file that a person can read and mend, and that goes back into a queue with nothing lost.
//
// # Format
//
//	Posthaste-Message: 1
//	Queue-ID: 4jWmK60qnzz1SDZl
//	Queue: deferred
//	Arrival: 2026-11-21T08:56:26.000000Z
//	Sender: <a@from.test>
//	Client-Address: 192.0.2.1
//	Recipient: <b@to.test>
//	 State: done
//	Recipient: <c@to.test>
//	 Original: <list@to.test>
//	 Notify: SUCCESS,FAILURE
//	 Outcome: delayed 4.4.1 2026-11-21T08:56:26.000000Z
//	 Reason: connect to mx.to.test[192.0.2.9]:25: Connection refused
//	Recipient: <staff@from.test>
//	 Outcome: delayed 4.2.0 2026-11-21T08:56:26.000000Z
//	 Part: <ann@from.test>
//	  Outcome: failed 5.1.1
//	  Reason: unknown user: "ann"
//	  Told: yes
//
//	From: ...
//	(the content, with lines that end in LF)
//
// The first line says what the file is and its version. Then come fields, one a
// line, in any order, those of a recipient below it and indented by one space or tab, and
// those of a part of its outcome, one of those that an alias stands for, below that and
// indented by two; what is not there has its zero value. Names are those of the tables in field.go and are read in any
// letter case; a name that is not known is an error, since something would be lost. A value that begins with a
// quotation mark is a Go string literal: that is how whatever cannot be seen is
// written. Addresses are in angle brackets and in internal form, without quotes in the local part.
// An empty line ends the envelope.
//
// # Security
//
// A file may come from anywhere: lines and their number are bounded, and
// nothing in it names a file.
package plain

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/storage"
)

const (
	// Magic begins a file.
	Magic = "Posthaste-Message: "
	// Version is that of the format.
	Version = "1"
	// maxLine bounds a line of the envelope.
	maxLine = 64 << 10
	// maxRecipients is what the spool takes.
	maxRecipients = 1 << 22
)

// A Message is a queued message without its content.
type Message struct {
	Envelope mail.Envelope // all recipients; ID may be one of Postfix's
	Queue    string        // as Postfix names them
	Next     time.Time     // next attempt
	Attempts int
	Warned   bool
	Expire   bool
	Done     map[int]bool         // recipients with nothing more to do
	Outcomes map[int]mail.Outcome // last outcome of pending recipients
}

// Pending are the recipients that are still to get the message.
func (m *Message) Pending() []mail.Recipient {
	var list []mail.Recipient
	for i, r := range m.Envelope.Recipients {
		if !m.Done[i] {
			list = append(list, r)
		}
	}
	return list
}

// FromSpool reads the message of an entry, as it stands, from the log, and opens its content, or what is
// left of it.
func FromSpool(rd *spool.Reader, e *queue.Entry) (*Message, *Content, error) {
	st, err := rd.Read(e.Ref, e.ID)
	if err != nil {
		return nil, nil, err
	}
	m, err := fromStored(st, e)
	if err != nil {
		return nil, nil, err
	}
	c := &Content{st: st}
	inner, err := st.Content()
	if err != nil {
		err = c.salvage(err)
	} else {
		c.c = inner
	}
	if err != nil {
		return nil, nil, err
	}
	return m, c, nil
}

// FromReader is FromSpool for any engine. Content that is damaged ends with an error.
func FromReader(rd storage.Reader, e *queue.Entry) (*Message, *Content, error) {
	st, err := rd.Read(e.Ref, e.ID)
	if err != nil {
		return nil, nil, err
	}
	m, err := fromStored(st, e)
	if err != nil {
		return nil, nil, err
	}
	c, err := st.Content()
	if err != nil {
		return nil, nil, err
	}
	return m, &Content{c: c}, nil
}

// record is what a message's record can tell, whatever engine has it.
type record interface {
	Envelope() (mail.Envelope, error)
	Recipients(from, to int) ([]mail.Recipient, error)
	Pending(i int) bool
	Overlay(done []byte)
	Outcomes() ([]mail.Outcome, error)
}

// fromStored is the message of an entry, as it stands, but for the content.
func fromStored(st record, e *queue.Entry) (_ *Message, err error) {
	st.Overlay(e.Done)
	m := &Message{Queue: e.Queue.String(), Next: e.NextAttempt, Attempts: e.Attempts, Warned: e.Warned, Expire: e.Expire,
		Done: make(map[int]bool), Outcomes: make(map[int]mail.Outcome)}
	if m.Envelope, err = st.Envelope(); err != nil {
		return nil, err
	}
	if m.Envelope.Recipients, err = st.Recipients(0, -1); err != nil {
		return nil, err
	}
	for i := range m.Envelope.Recipients {
		if !st.Pending(i) {
			m.Done[i] = true
		}
	}
	outcomes, err := st.Outcomes()
	if err != nil {
		return nil, err
	}
	for _, o := range outcomes {
		m.Outcomes[o.Rcpt] = o
	}
	return m, nil
}

// Content is the content of a message in the spool. Where it is damaged it is
// given as it is found.
type Content struct {
	st      *spool.Stored // nil: what is damaged cannot be read
	c       storage.Content
	pos     int64
	damaged error
}

// Damaged says what is wrong with what has been read so far, nil if nothing is.
func (c *Content) Damaged() error { return c.damaged }

// salvage goes on without looking at checksums, if that is what has failed.
func (c *Content) salvage(cause error) error {
	if !errors.Is(cause, queue.ErrCorrupt) && !errors.Is(cause, queue.ErrUnread) || c.damaged != nil || c.st == nil {
		return cause
	}
	c.damaged = cause
	raw, err := c.st.Salvage()
	if err != nil {
		return err
	}
	if _, err := raw.Seek(c.pos, io.SeekStart); err != nil {
		return errors.Join(err, raw.Close())
	}
	old := c.c
	c.c = raw
	if old != nil {
		return old.Close()
	}
	return nil
}

func (c *Content) Read(p []byte) (int, error) {
	n, err := c.c.Read(p)
	c.pos += int64(n)
	if err != nil && err != io.EOF {
		if err = c.salvage(err); err == nil && n == 0 {
			return c.Read(p)
		}
	}
	return n, err
}

// Close gives up what Content holds.
func (c *Content) Close() error { return c.c.Close() }

// Write writes a message. The content's lines end in CRLF.
func Write(w io.Writer, m *Message, content io.Reader) error {
	out := bufio.NewWriter(w)
	out.WriteString(Magic + Version + "\n")
	for _, f := range messageFields {
		writeField(out, "", f.name, f.get(m))
	}
	for i := range m.Envelope.Recipients {
		r := &rcpt{m: m, i: i}
		writeField(out, "", recipientField, address(m.Envelope.Recipients[i].Address))
		for _, f := range rcptFields {
			writeField(out, " ", f.name, f.get(r))
		}
		o := m.Outcomes[i]
		for k := range o.Parts {
			writeField(out, " ", partField, address(o.Parts[k].Address))
			for _, f := range partFields {
				writeField(out, "  ", f.name, f.get(&o.Parts[k]))
			}
		}
	}
	out.WriteByte('\n')
	if _, err := io.Copy(out, LF(content)); err != nil {
		return errors.Join(err, out.Flush())
	}
	return out.Flush()
}

func writeField(out *bufio.Writer, indent, name, value string) {
	if value != "" {
		out.WriteString(indent + name + ": " + quote(value) + "\n")
	}
}

// quote leaves alone what a person can see as it is.
func quote(s string) string {
	plain := utf8.ValidString(s) && s[0] != '"' && s == strings.TrimSpace(s)
	for _, r := range s {
		plain = plain && strconv.IsPrint(r)
	}
	if plain {
		return s
	}
	return strconv.Quote(s)
}

func unquote(s string) (string, error) {
	if s == "" || s[0] != '"' {
		return s, nil
	}
	return strconv.Unquote(s)
}

// ErrNotPlain says that a file is something else.
var ErrNotPlain = errors.New("not an exported message")

// Read reads a message up to its content, which the returned reader gives with
// lines that end in CRLF.
func Read(r io.Reader) (*Message, io.Reader, error) {
	in := bufio.NewReaderSize(r, maxLine)
	line, err := readLine(in)
	if err != nil {
		return nil, nil, ErrNotPlain
	}
	if v, ok := strings.CutPrefix(line, Magic); !ok {
		return nil, nil, ErrNotPlain
	} else if v != Version {
		return nil, nil, fmt.Errorf("exported message of version %q: this program knows %s", v, Version)
	}
	m := &Message{Done: make(map[int]bool), Outcomes: make(map[int]mail.Outcome)}
	for n := 2; ; n++ {
		line, err := readLine(in)
		if err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", n, err)
		}
		if line == "" {
			return m, CRLF(in), nil
		}
		if err := m.set(line); err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
}

// set reads one field.
func (m *Message) set(line string) error {
	name, value, ok := strings.Cut(line, ":")
	if !ok {
		return errors.New("expected NAME: VALUE")
	}
	value, err := unquote(strings.TrimSpace(value))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	short := strings.TrimLeft(name, " \t")
	last := len(m.Envelope.Recipients) - 1
	switch {
	case short != name && last < 0:
		return fmt.Errorf("%s: no recipient before it", short)
	case len(name)-len(short) > 1:
		return setPart(&rcpt{m, last}, short, value)
	case short != name && strings.EqualFold(short, partField):
		return addPart(&rcpt{m, last}, value)
	case short != name:
		return setField(rcptFields, &rcpt{m, last}, short, value)
	case strings.EqualFold(name, recipientField):
		if last+1 >= maxRecipients {
			return fmt.Errorf("more than %d recipients", maxRecipients)
		}
		addr, err := parseAddress(value)
		m.Envelope.Recipients = append(m.Envelope.Recipients, mail.Recipient{Address: addr})
		return err
	}
	return setField(messageFields, m, name, value)
}

func setField[T any](fields []field[T], t T, name, value string) error {
	for _, f := range fields {
		if strings.EqualFold(f.name, name) {
			if err := f.set(t, value); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			return nil
		}
	}
	return fmt.Errorf("%s: no such field", name)
}

func readLine(in *bufio.Reader) (string, error) {
	line, err := in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return "", fmt.Errorf("longer than %d octets", maxLine)
	case err == io.EOF:
		return "", io.ErrUnexpectedEOF
	case err != nil:
		return "", err
	}
	return string(bytes.TrimRight(line, "\r\n")), nil
}
