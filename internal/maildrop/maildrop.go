// Package maildrop is how the sendmail program gives mail to the pickup
// service, and its form: one file a message in the directory maildrop, written
// by postdrop with the set-gid group's right to make files there, while the
// mail system may be running or not. When it is, a small message is offered to
// pickup on its socket first, and is a file only if pickup does not take it.
//
// # Format
//
// A file is a sequence of package pack's fields:
//
//	'V' version (first), 't' time of submission, 'u' submitter's numeric user,
//	'S' envelope sender, 'F' full name, 'R' recipients (mail.Recipient),
//	'i' DSN envelope, '<' RET, 'f' flags, 'V..' see the constants
//	'C' content, in pieces of at most MaxPiece octets, lines ended by LF or CRLF
//	'E' end (last): CRC-32 of all bytes before it, little endian
//
// A file is not a message until its mode has the owner's execute bit, and
// not without an end whose checksum is right: a power cut leaves either a
// whole message or litter.
//
// # Security
//
// Anybody may run postdrop. What it is given is read field by field with
// bounds, nothing of it names a file, and the user number in the file is what
// the kernel says of the process that wrote it: pickup compares it with the
// file's owner. Addresses and what else goes into commands, headers and logs
// must be free of control characters, an original recipient must have the form
// that SMTP would give it, and of the special kinds of delivery only those of
// sendmail -v and -bv may be asked for. Files are readable for all, because pickup is neither their
// owner nor of a group of theirs; the directory lets nobody else in.
package maildrop

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/reuse"
)

const (
	// Version of the format. pickup reads the one before, too, whose checksum is
	// CRC-32C: the tables for that take longer to make than a program that is run
	// for each message should need for all it does.
	Version = 2
	// MaxPiece bounds one field.
	MaxPiece = 64 << 10
	// MaxRecipients bounds what one submission may name.
	MaxRecipients = 100000
	// MaxHeader bounds the octets of a header: it is read into memory.
	MaxHeader = 16 << 20
)

// Flags of a submission.
type Flags uint32

const (
	Gateway Flags = 1 << iota // sendmail -G: not a local submission; headers are not completed
)

// A Header is what is known before the content.
type Header struct {
	Time       time.Time
	UID        int
	Sender     string
	FullName   string
	Recipients []mail.Recipient
	EnvID      string
	Ret        dsn.Ret
	Trace      mail.Trace
	VERP       string
	Body8Bit   bool
	SMTPUTF8   bool
	Flags      Flags
	OrigID     mail.QueueID // of a message put back by postsuper -r
	Filter     string
}

// ErrMalformed is an error of the message, not of the file system.
var ErrMalformed = errors.New("malformed message")

// malformed is an ErrMalformed that says more.
type malformed struct{ error }

func (malformed) Is(target error) bool { return target == ErrMalformed }

func malformedf(format string, args ...any) error { return malformed{fmt.Errorf(format, args...)} }

var (
	errTooMany = malformedf("maildrop: too many recipients")
	errTooLong = malformedf("maildrop: the list of recipients has more than %d octets", MaxHeader)
)

// Write writes a message: its header, then everything that content gives.
// The bytes are only a message when Write returns nil.
func Write(w io.Writer, h *Header, content io.Reader) error {
	head, err := h.head()
	if err != nil {
		return err
	}
	sum := crc32.NewIEEE()
	bw := bufio.NewWriterSize(io.MultiWriter(w, sum), MaxPiece+16)
	if _, err := bw.Write(head); err != nil {
		return err
	}
	piece := make([]byte, MaxPiece)
	var field []byte
	for {
		n, err := io.ReadFull(content, piece)
		if n > 0 {
			field = pack.Bytes(reuse.Truncated(field), 'C', piece[:n])
			if _, err := bw.Write(field); err != nil {
				return err
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := bw.Flush(); err != nil {
		return err
	}
	_, err = w.Write(appendEnd(nil, sum.Sum32()))
	return err
}

// whole is what Write writes, for content of at most MaxPiece octets.
func (h *Header) whole(content []byte) ([]byte, error) {
	b, err := h.head()
	if err != nil {
		return nil, err
	}
	if len(content) > 0 {
		b = pack.Bytes(slices.Grow(b, len(content)+32), 'C', content)
	}
	return appendEnd(b, crc32.ChecksumIEEE(b)), nil
}

func appendEnd(b []byte, sum uint32) []byte {
	return pack.Bytes(b, 'E', binary.LittleEndian.AppendUint32(nil, sum))
}

// head is the stored form of h, if it is within the bounds.
func (h *Header) head() ([]byte, error) {
	if len(h.Recipients) > MaxRecipients {
		return nil, errTooMany
	}
	b := h.append(nil)
	if len(b) > MaxHeader {
		return nil, errTooLong
	}
	return b, nil
}

func (h *Header) append(b []byte) []byte {
	b = pack.Uint(b, 'V', uint(Version))
	b = mail.AppendTime(b, 't', h.Time)
	b = pack.Int(b, 'u', h.UID)
	b = pack.Bytes(b, 'S', h.Sender)
	b = pack.String(b, 'F', h.FullName)
	b = pack.String(b, 'i', h.EnvID)
	b = pack.Uint(b, '<', h.Ret)
	b = pack.Uint(b, 'T', h.Trace)
	b = pack.String(b, 'v', h.VERP)
	b = pack.Bool(b, '8', h.Body8Bit)
	b = pack.Bool(b, '6', h.SMTPUTF8)
	b = pack.Uint(b, 'f', h.Flags)
	b = pack.String(b, 'q', h.OrigID)
	b = pack.String(b, 'L', h.Filter)
	return mail.AppendRecipients(b, h.Recipients)
}

// A Reader reads a message: its Header, and then its content by Read.
type Reader struct {
	Header
	*memory
	table *crc32.Table
	sum   uint32 // of all fields read so far, the end excepted
	piece []byte // what is left of the present one
	ended bool
}

// memory is what a Reader works in. Most messages are small beside it.
type memory struct {
	br   *bufio.Reader
	data []byte // the present field
}

var memories = reuse.Pool[memory]{New: func() *memory { return &memory{br: bufio.NewReaderSize(nil, MaxPiece)} }}

// Free gives the Reader's memory back for another one. It need not be called;
// only the Header may be used afterwards.
func (m *Reader) Free() {
	m.br.Reset(nil)
	memories.Put(m.memory)
	m.memory, m.piece, m.ended = nil, nil, true
}

// ErrIncomplete is the error of a file that lacks its end, or whose content
// is not what was written.
var ErrIncomplete = malformedf("maildrop: the file is not a whole message")

// NewReader reads the header of a message.
func NewReader(r io.Reader) (*Reader, error) {
	m := &Reader{memory: memories.Get()}
	m.br.Reset(r)
	seen, size := false, 0
	for {
		tag, data, err := m.field()
		if err != nil {
			return nil, err
		}
		if size += len(data); tag != 'C' && size > MaxHeader {
			return nil, errTooLong
		}
		if !seen && tag != 'V' {
			return nil, malformedf("maildrop: not a maildrop file")
		}
		seen = true
		switch tag {
		case 'C':
			m.add(tag, data)
			m.piece = data
			return m, nil
		case 'E':
			m.ended = true
			return m, m.checkEnd(data)
		}
		if err := m.set(tag, data); err != nil {
			return nil, err
		}
		m.add(tag, data)
	}
}

func (m *Reader) set(tag byte, data []byte) error {
	field := pack.Bytes(nil, tag, data)
	r := pack.NewReader(field)
	r.Next()
	switch tag {
	case 'V':
		switch v := r.Uint(); v {
		case Version:
			m.table = crc32.IEEETable
		case 1:
			m.table = crc32.MakeTable(crc32.Castagnoli)
		default:
			return malformedf("maildrop: format version %d, this program knows %d", v, Version)
		}
	case 't':
		m.Time = mail.ReadTime(&r)
	case 'u':
		m.UID = int(r.Int())
	case 'S':
		m.Sender = r.String()
	case 'F':
		m.FullName = r.String()
	case 'i':
		m.EnvID = r.String()
	case '<':
		m.Ret = dsn.Ret(r.Uint())
	case 'T':
		m.Trace = mail.Trace(r.Uint()) & (mail.TraceReport | mail.TraceRecord)
	case 'v':
		m.VERP = r.String()
	case '8':
		m.Body8Bit = r.Bool()
	case '6':
		m.SMTPUTF8 = r.Bool()
	case 'f':
		m.Flags = Flags(r.Uint())
	case 'q':
		m.OrigID = mail.QueueID(r.String())
	case 'L':
		m.Filter = r.String()
	case 'R':
		if len(m.Recipients) >= MaxRecipients {
			return errTooMany
		}
		var rcpt mail.Recipient
		if err := rcpt.Decode(data); err != nil {
			return malformed{err}
		}
		if err := checkRecipient(&rcpt); err != nil {
			return err
		}
		m.Recipients = append(m.Recipients, rcpt)
	}
	if err := r.Err(); err != nil {
		return malformed{err}
	}
	if strings.IndexByte("SivqL", tag) >= 0 {
		return checkText(data)
	}
	return nil
}

// checkText refuses control characters, which would end an SMTP command, a
// header field or a line of the log before its time.
func checkText[text string | []byte](s text) error {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' && s[i] != '\t' || s[i] == 0x7f {
			return malformedf("maildrop: control character in %.100q", s)
		}
	}
	return nil
}

func checkRecipient(r *mail.Recipient) error {
	if err := cmp.Or(checkText(r.Address), checkText(r.Original), checkText(r.ORCPT)); err != nil {
		return err
	}
	kind, _, ok := strings.Cut(r.ORCPT, ";")
	if r.ORCPT != "" && (!ok || kind == "" || strings.ContainsFunc(kind, notAtom)) {
		return malformedf("maildrop: original recipient %.100q: expected type;address", r.ORCPT)
	}
	return nil
}

// notAtom says whether c may not stand in an address type, RFC 3461 section 4.2.
func notAtom(c rune) bool { return c <= ' ' || c >= 127 || strings.ContainsRune(`()<>@,;:\"/[]?.=`, c) }

// field reads one field. The data is good until the next call.
func (m *Reader) field() (tag byte, data []byte, err error) {
	tag, err = m.br.ReadByte()
	if err != nil {
		return 0, nil, incomplete(err)
	}
	n, err := binary.ReadUvarint(m.br)
	if err != nil {
		return 0, nil, incomplete(err)
	}
	if n > MaxPiece {
		return 0, nil, malformedf("maildrop: field of %d octets: at most %d are allowed", n, MaxPiece)
	}
	if uint64(cap(m.data)) < n {
		m.data = make([]byte, n)
	}
	data = m.data[:n]
	if _, err := io.ReadFull(m.br, data); err != nil {
		return 0, nil, incomplete(err)
	}
	return tag, data, nil
}

// add takes a field into the checksum.
func (m *Reader) add(tag byte, data []byte) {
	var head [1 + binary.MaxVarintLen64]byte
	head[0] = tag
	m.sum = crc32.Update(m.sum, m.table, binary.AppendUvarint(head[:1], uint64(len(data))))
	m.sum = crc32.Update(m.sum, m.table, data)
}

func (m *Reader) checkEnd(data []byte) error {
	if len(data) != 4 || binary.LittleEndian.Uint32(data) != m.sum {
		return ErrIncomplete
	}
	return nil
}

func incomplete(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return ErrIncomplete
	}
	return err
}

// Read reads content. io.EOF comes only after the end record: a file that
// breaks off gives ErrIncomplete.
func (m *Reader) Read(p []byte) (int, error) {
	for len(m.piece) == 0 {
		if m.ended {
			return 0, io.EOF
		}
		tag, data, err := m.field()
		if err != nil {
			return 0, err
		}
		switch tag {
		case 'C':
			m.add(tag, data)
			m.piece = data
		case 'E':
			if err := m.checkEnd(data); err != nil {
				return 0, err
			}
			m.ended = true
		default:
			return 0, malformedf("maildrop: field %q after the content began", tag)
		}
	}
	n := copy(p, m.piece)
	m.piece = m.piece[n:]
	return n, nil
}
