package pffile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/spooltool/plain"
)

// maxText is how long a record of content may be: Postfix's line_length_limit.
// A longer line becomes several.
const maxText = 2048

// Write writes a queue file as Postfix's cleanup would: the envelope with the
// recipients that are not done, then content, whose lines end in CRLF.
// created is when the message was queued first. f is written from its
// beginning; it is left at some other place than its end.
func Write(f io.WriteSeeker, m *plain.Message, created time.Time, content io.Reader) error {
	w := &writer{out: bufio.NewWriterSize(f, 64<<10)}
	rcpts := m.Pending()
	w.record('C', sizes(m, 0, 0, len(rcpts))) // its place: the numbers come last
	w.envelope(&m.Envelope, created)
	for i := range rcpts {
		w.recipient(&rcpts[i])
	}
	w.record('M', "")
	start := w.at
	err := w.content(content)
	length := w.at - start
	w.record('X', "")
	w.record('E', "")
	if err = errors.Join(err, w.err, w.out.Flush()); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	w.record('C', sizes(m, start, length, len(rcpts)))
	return errors.Join(w.err, w.out.Flush())
}

// sizes is the text of the first record. All its numbers have a fixed width.
// The first is how far Postfix's queue manager goes from start to what follows
// the content, and so counts what the records have around their text.
func sizes(m *plain.Message, start, length int64, rcpts int) string {
	utf8 := 0
	if m.Envelope.Body&mail.BodySMTPUTF8 != 0 {
		utf8 = 1 // the client asked for SMTPUTF8
	}
	return fmt.Sprintf("%15d %15d %15d %15d %15d %15d", length, start, rcpts, 0, length, utf8)
}

type writer struct {
	out *bufio.Writer
	at  int64 // of the next record
	err error
}

// record writes a record. Text that cannot be in one is an error: a line
// break would end a log line, and a zero a string, in programs that read it.
func (w *writer) record(typ byte, text string) {
	if w.err != nil {
		return
	}
	if typ != 'N' && typ != 'L' && strings.ContainsAny(text, "\x00\n") {
		w.err = fmt.Errorf("%q cannot be in a queue file", text)
		return
	}
	w.raw(typ, []byte(text))
}

func (w *writer) raw(typ byte, text []byte) {
	head := []byte{typ}
	n := len(text)
	for ; n > 0x7f; n >>= 7 {
		head = append(head, byte(n)|0x80)
	}
	head = append(head, byte(n))
	w.out.Write(head)
	w.out.Write(text) // its error is that of Flush
	w.at += int64(len(head) + len(text))
}

// attribute writes an attribute that has a value.
func (w *writer) attribute(name, value string) {
	if value != "" {
		w.record('A', name+"="+value)
	}
}

func (w *writer) envelope(e *mail.Envelope, created time.Time) {
	w.record('T', fmt.Sprintf("%d %d", e.Arrival.Unix(), e.Arrival.Nanosecond()/1000))
	w.attribute("create_time", strconv.FormatInt(created.Unix(), 10))
	w.attribute("log_ident", e.LogIdent)
	w.attribute("rewrite_context", e.RewriteContext)
	w.attribute("envelope_id", e.EnvID)
	switch e.Ret {
	case dsn.RetFull:
		w.attribute("ret_flags", "1")
	case dsn.RetHeaders:
		w.attribute("ret_flags", "2")
	}
	if flags := traceFlags(e.Trace); flags != 0 {
		w.attribute("trace_flags", strconv.Itoa(flags))
	}
	w.record('S', e.Sender)
	for _, r := range []struct {
		typ  byte
		text string
	}{{'L', e.Filter}, {'>', e.Redirect}, {'V', e.VERP}} {
		if r.text != "" {
			w.record(r.typ, r.text)
		}
	}
	if e.Body&mail.Body8Bit != 0 {
		w.attribute("encoding", "8bit")
	} else {
		w.attribute("encoding", "7bit")
	}
	for _, prefix := range []string{"log_", ""} {
		w.attribute(prefix+"client_name", e.Client.Name)
		w.attribute(prefix+"client_address", e.Client.Addr)
		w.attribute(prefix+"client_port", e.Client.Port)
		w.attribute(prefix+"helo_name", e.Client.Helo)
		w.attribute(prefix+"protocol_name", e.Client.Proto)
	}
	if e.Client.Addr == "" {
		w.attribute("log_message_origin", "local")
	} else {
		w.attribute("log_message_origin", e.Client.Name+"["+e.Client.Addr+"]")
	}
	w.attribute("reverse_client_name", e.Reverse)
	w.attribute("sasl_method", e.SASL.Method)
	w.attribute("sasl_username", e.SASL.Username)
	w.attribute("sasl_sender", e.SASL.Sender)
}

// traceBits are Postfix's for what a message is traced for.
var traceBits = map[int]mail.Trace{8: mail.TraceProbe, 9: mail.TraceReport, 10: mail.TraceRecord}

func traceFlags(t mail.Trace) (flags int) {
	for bit, flag := range traceBits {
		if t&flag != 0 {
			flags |= 1 << bit
		}
	}
	return flags
}

// notifyBits are Postfix's, by bit.
var notifyBits = [...]dsn.Notify{dsn.NotifyNever, dsn.NotifySuccess, dsn.NotifyFailure, dsn.NotifyDelay}

func notifyFlags(n dsn.Notify) (flags int) {
	for bit, flag := range notifyBits {
		if n&flag != 0 {
			flags |= 1 << bit
		}
	}
	return flags
}

func (w *writer) recipient(r *mail.Recipient) {
	if flags := notifyFlags(r.Notify); flags != 0 {
		w.attribute("notify_flags", strconv.Itoa(flags))
	}
	w.attribute("dsn_orig_rcpt", r.ORCPT)
	original := r.Original
	if original == "" {
		original = r.Address
	}
	w.record('O', original)
	w.record('R', r.Address)
}

// content writes lines. The last may lack its end.
func (w *writer) content(r io.Reader) error {
	in := bufio.NewReaderSize(r, maxText)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case err == nil:
			w.raw('N', bytes.TrimSuffix(line[:len(line)-1], []byte("\r")))
		case errors.Is(err, bufio.ErrBufferFull):
			// A CR at the end may be that of the line's end: it stays for the
			// next record, if something is left for this one.
			if line[len(line)-1] == '\r' {
				if err := in.UnreadByte(); err != nil {
					return err
				}
				line = line[:len(line)-1]
			}
			w.raw('L', line)
		case err == io.EOF:
			if len(line) > 0 {
				w.raw('N', line)
			}
			return nil
		default:
			return err
		}
	}
}
