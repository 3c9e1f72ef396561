// Package pffile reads and writes Postfix's queue files, so that a site can move with its
// queue and back, and so that postcat shows them.
//
// # Format
//
// A queue file is a sequence of records: a type, a length in groups of seven
// bits (the lowest first, the high bit set on all but the last), and that many octets.
//
//	C size of content, its place, recipients, flags, length, options: as text
//	T arrival time        S sender          A name=value
//	O original recipient  R recipient       D recipient that is done
//	L content filter      > redirect        V VERP delimiters
//	M the content begins  N a line          L (there) a part of a line
//	X the content ends; more of the envelope may follow
//	p go on at this place (0: do not)       w padding    K deleted
//	E the end
//
// What is known of a recipient, as A (notify_flags, dsn_orig_rcpt) and O
// records, comes before it.
//
// # Security
//
// The files are trusted no more than mail is: records and recipients are
// bounded, no octet is read twice in one pass, wherever pointers lead, and
// nothing in a file names another.
package pffile

import (
	"bufio"
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

const (
	maxRecord     = 1 << 20 // Postfix writes a tenth of that at most
	maxRecipients = 1 << 22
)

// ErrFormat says that a file is no queue file, or a damaged one.
var ErrFormat = errors.New("not a sound Postfix queue file")

// A File is a message in Postfix's form.
type File struct {
	plain.Message        // Queue is not set
	Created       int64  // when the queue entry was made, in seconds since 1970; 0: not told
	FullName      string // of the sender, of a file in maildrop
	Whole         bool   // the file has its end

	r       *records
	content int64 // where it begins; 0: there is none
}

// Open reads the envelope of a message. r must stay open as long as the File
// is in use.
func Open(r io.ReadSeeker) (*File, error) {
	f := &File{r: &records{src: r, in: bufio.NewReaderSize(r, 64<<10)}}
	f.Done, f.Outcomes = make(map[int]bool), make(map[int]mail.Outcome)
	if err := f.r.begin(0); err != nil {
		return nil, err
	}
	first := true
	var next mail.Recipient // what has been said of the next one
	for {
		typ, data, err := f.r.next()
		if err == nil && first && !strings.ContainsRune("CSFTA", rune(typ)) {
			err = ErrFormat
		}
		first = false
		if err == nil && typ == 'E' {
			f.Whole = true
			return f, nil
		}
		if err == nil && typ == 'M' {
			f.content = f.r.at
			err = f.skipContent()
		} else if err == nil {
			err = f.record(typ, data, &next)
		}
		if err != nil {
			return nil, err
		}
	}
}

// record takes in one record of the envelope.
func (f *File) record(typ byte, data string, next *mail.Recipient) error {
	e := &f.Envelope
	switch typ {
	case 'C':
		return f.size(data)
	case 'T':
		sec, usec, _ := strings.Cut(strings.TrimSpace(data), " ")
		s, err := strconv.ParseInt(sec, 10, 64)
		us, _ := strconv.ParseInt(usec, 10, 64) // older versions have none
		if err != nil || s < 0 || us < 0 || us > 999999 {
			return fmt.Errorf("%w: arrival time %q", ErrFormat, data)
		}
		e.Arrival = time.Unix(s, us*1000)
	case 'F':
		f.FullName = data
	case 'S':
		e.Sender = data
	case 'L':
		e.Filter = data
	case '>':
		e.Redirect = data
	case 'V':
		e.VERP = data
	case 'O':
		next.Original = data
	case 'R', 'D':
		if len(e.Recipients) >= maxRecipients {
			return fmt.Errorf("%w: more than %d recipients", ErrFormat, maxRecipients)
		}
		if next.Address = data; next.Original == data {
			next.Original = ""
		}
		if typ == 'D' {
			f.Done[len(e.Recipients)] = true
		}
		e.Recipients = append(e.Recipients, *next)
		*next = mail.Recipient{}
	case '/':
		*next = mail.Recipient{}
	case 'A', 'i', 'o', 'n', '<':
		return f.attribute(typ, data, next)
	}
	return nil
}

// size reads the C record.
func (f *File) size(data string) error {
	words := strings.Fields(data)
	if len(words) < 3 {
		return fmt.Errorf("%w: size record %q", ErrFormat, data)
	}
	var err error
	if f.Envelope.Size, err = strconv.ParseInt(words[0], 10, 64); err != nil {
		return fmt.Errorf("%w: size record %q", ErrFormat, data)
	}
	if len(words) > 5 {
		// Options for sending: bit 0 is that the client asked for SMTPUTF8.
		if n, err := strconv.Atoi(words[5]); err == nil && n&1 != 0 {
			f.Envelope.Body |= mail.BodySMTPUTF8
		}
	}
	return nil
}

// attribute takes in a named attribute, or a record of its own for the same.
// Those that we have no use for are passed over.
func (f *File) attribute(typ byte, data string, next *mail.Recipient) error {
	name, value, _ := strings.Cut(data, "=")
	if typ != 'A' {
		name, value = map[byte]string{'i': "envelope_id", 'o': "dsn_orig_rcpt", 'n': "notify_flags", '<': "ret_flags"}[typ], data
	}
	e := &f.Envelope
	texts := map[string]*string{"envelope_id": &e.EnvID, "dsn_envid": &e.EnvID, "dsn_orig_rcpt": &next.ORCPT, "orig_rcpt": &next.ORCPT,
		"client_name": &e.Client.Name, "client_address": &e.Client.Addr, "client_port": &e.Client.Port, "helo_name": &e.Client.Helo,
		"protocol_name": &e.Client.Proto, "reverse_client_name": &e.Reverse, "sasl_method": &e.SASL.Method,
		"sasl_username": &e.SASL.Username, "sasl_sender": &e.SASL.Sender, "rewrite_context": &e.RewriteContext, "log_ident": &e.LogIdent}
	if at := texts[name]; at != nil {
		*at = value
		return nil
	}
	switch name {
	case "encoding":
		if value == "8bit" {
			e.Body |= mail.Body8Bit
		}
	case "create_time", "ret_flags", "notify_flags", "trace_flags":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("%w: attribute %s", ErrFormat, data)
		}
		f.number(name, n, next)
	}
	return nil
}

func (f *File) number(name string, n int64, next *mail.Recipient) {
	switch name {
	case "create_time":
		f.Created = n
	case "ret_flags":
		f.Envelope.Ret = [...]dsn.Ret{dsn.RetUnset, dsn.RetFull, dsn.RetHeaders, dsn.RetUnset}[n&3]
	case "notify_flags":
		for bit, flag := range notifyBits {
			if n>>bit&1 != 0 {
				next.Notify |= flag
			}
		}
		if next.Notify&dsn.NotifyNever != 0 {
			next.Notify = dsn.NotifyNever
		}
	case "trace_flags":
		for bit, flag := range traceBits {
			if n>>bit&1 != 0 {
				f.Envelope.Trace |= flag
			}
		}
	}
}

// skipContent reads to behind the content.
func (f *File) skipContent() error {
	for {
		typ, _, err := f.r.next()
		switch {
		case err != nil:
			return err
		case typ == 'X':
			return nil
		case !strings.ContainsRune("NLw", rune(typ)):
			return fmt.Errorf("%w: record %q in the content", ErrFormat, typ)
		}
	}
}

// Content gives the content with lines that end in CRLF. There is one reader
// at a time: another call begins anew.
func (f *File) Content() (io.Reader, error) {
	if f.content == 0 {
		return strings.NewReader(""), nil
	}
	if err := f.r.begin(f.content); err != nil {
		return nil, err
	}
	return &content{r: f.r}, nil
}

type content struct {
	r   *records
	out string
	err error
}

func (c *content) Read(p []byte) (int, error) {
	for c.out == "" {
		if c.err != nil {
			return 0, c.err
		}
		var typ byte
		var data string
		typ, data, c.err = c.r.next()
		switch {
		case c.err != nil:
		case typ == 'N':
			c.out = data + "\r\n"
		case typ == 'L':
			c.out = data
		case typ == 'X':
			c.err = io.EOF
		}
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	return n, nil
}

// records reads records and follows pointers.
type records struct {
	src  io.ReadSeeker
	in   *bufio.Reader
	at   int64 // of the next record
	left int64 // octets that may still be read in this pass
}

// begin starts a pass over the file.
func (r *records) begin(at int64) (err error) {
	if r.left, err = r.src.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	return r.seek(at)
}

func (r *records) seek(at int64) error {
	if _, err := r.src.Seek(at, io.SeekStart); err != nil {
		return err
	}
	r.in.Reset(r.src)
	r.at = at
	return nil
}

// next gives the next record that is neither a pointer nor void.
func (r *records) next() (typ byte, data string, err error) {
	for {
		typ, data, err = r.read()
		if err != nil {
			return 0, "", err
		}
		switch typ {
		case 'p':
			at, err := strconv.ParseInt(strings.TrimSpace(data), 10, 64)
			if err != nil || at < 0 {
				return 0, "", fmt.Errorf("%w: pointer %q", ErrFormat, data)
			}
			if at > 0 {
				if err := r.seek(at); err != nil {
					return 0, "", err
				}
			}
		case 'w', 'K':
		default:
			return typ, data, nil
		}
	}
}

func (r *records) read() (typ byte, data string, err error) {
	if typ, err = r.in.ReadByte(); err != nil {
		return 0, "", short(err)
	}
	n, head := 0, int64(1)
	for shift := 0; ; shift += 7 {
		b, err := r.in.ReadByte()
		if err != nil {
			return 0, "", short(err)
		}
		head++
		n |= int(b&0x7f) << shift
		if b&0x80 == 0 {
			break
		}
		if shift > 14 {
			return 0, "", fmt.Errorf("%w: length of the record at %d", ErrFormat, r.at)
		}
	}
	if n > maxRecord || typ < ' ' || typ > '~' {
		return 0, "", fmt.Errorf("%w: record at %d", ErrFormat, r.at)
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(r.in, buf); err != nil {
		return 0, "", short(err)
	}
	r.at += head + int64(n)
	if r.left -= head + int64(n); r.left < 0 {
		return 0, "", fmt.Errorf("%w: its pointers form a loop", ErrFormat)
	}
	return typ, string(buf), nil
}

// short words the end of a file before its end record.
func short(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it breaks off", ErrFormat)
	}
	return err
}
