package mail

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/pack"
)

// The stored form of an envelope is a sequence of fields (package pack). The
// tags are those of Postfix's queue file records where there is one. They are
// on disk: a tag's meaning never changes and a tag is never used again.
// Recipients are stored apart, each a field 'R', so that they can be read in
// batches.

// AppendTime stores t to the microsecond; the zero time is left out.
func AppendTime(b []byte, tag byte, t time.Time) []byte {
	if t.IsZero() {
		return b
	}
	return pack.Int(b, tag, t.UnixMicro())
}

// ReadTime is the counterpart of AppendTime.
func ReadTime(r *pack.Reader) time.Time { return time.UnixMicro(r.Int()) }

// Append appends the stored form of e without its recipients.
func (e *Envelope) Append(b []byte) []byte {
	b = pack.String(b, 'q', e.ID)
	b = AppendTime(b, 'T', e.Arrival)
	b = pack.Bytes(b, 'S', e.Sender)
	b = pack.Int(b, 'C', e.Size)
	b = pack.Uint(b, 'B', e.Body)
	b = pack.String(b, 'i', e.EnvID)
	b = pack.Uint(b, '<', e.Ret)
	b = e.Client.Append(b, 'c')
	b = e.SASL.append(b, 'a')
	b = pack.String(b, 'v', e.Reverse)
	b = pack.Uint(b, 't', e.Trace)
	b = pack.String(b, 'w', e.RewriteContext)
	b = pack.String(b, 'I', e.LogIdent)
	b = pack.String(b, 'L', e.Filter)
	b = pack.String(b, '>', e.Redirect)
	b = pack.String(b, 'V', e.VERP)
	b = pack.Bool(b, 'x', e.RequireTLS)
	b = pack.Bool(b, 'y', e.TLSOptional)
	b = pack.Bool(b, 'f', e.Forwarded)
	b = AppendTime(b, 'l', e.SendAt)
	b = pack.String(b, 'P', e.Pool)
	b = pack.String(b, 'n', e.Tenant)
	b = pack.String(b, 'k', e.Campaign)
	b = pack.String(b, 'g', e.List)
	return pack.String(b, 'm', e.MessageID)
}

// Append appends c as one field.
func (c *Client) Append(b []byte, tag byte) []byte {
	if *c == (Client{}) {
		return b
	}
	return pack.Nested(b, tag, func(b []byte) []byte {
		b = pack.String(b, 'n', c.Name)
		b = pack.String(b, 'a', c.Addr)
		b = pack.String(b, 'p', c.Port)
		b = pack.String(b, 'h', c.Helo)
		return pack.String(b, 'r', c.Proto)
	})
}

// Decode reads what Append wrote, given the field's bytes.
func (c *Client) Decode(field []byte) error { return c.decode(pack.NewTextReader(field)) }

func (c *Client) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 'n':
			c.Name = r.String()
		case 'a':
			c.Addr = r.String()
		case 'p':
			c.Port = r.String()
		case 'h':
			c.Helo = r.String()
		case 'r':
			c.Proto = r.String()
		}
	}
	return r.Err()
}

func (s *SASL) append(b []byte, tag byte) []byte {
	if *s == (SASL{}) {
		return b
	}
	return pack.Nested(b, tag, func(b []byte) []byte {
		b = pack.String(b, 'm', s.Method)
		b = pack.String(b, 'u', s.Username)
		return pack.String(b, 's', s.Sender)
	})
}

func (s *SASL) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 'm':
			s.Method = r.String()
		case 'u':
			s.Username = r.String()
		case 's':
			s.Sender = r.String()
		}
	}
	return r.Err()
}

// Decode reads the stored form of an envelope into e, which should be zero.
// Recipients are not part of it.
func (e *Envelope) Decode(stored []byte) error {
	r := pack.NewTextReader(stored)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			e.ID = QueueID(r.String())
		case 'T':
			e.Arrival = ReadTime(&r)
		case 'S':
			e.Sender = r.String()
		case 'C':
			e.Size = r.Int()
		case 'B':
			e.Body = Body(r.Uint())
		case 'i':
			e.EnvID = r.String()
		case '<':
			e.Ret = dsn.Ret(r.Uint())
		case 'c':
			if err := e.Client.decode(r.Nested()); err != nil {
				return err
			}
		case 'a':
			if err := e.SASL.decode(r.Nested()); err != nil {
				return err
			}
		case 'v':
			e.Reverse = r.String()
		case 't':
			e.Trace = Trace(r.Uint())
		case 'w':
			e.RewriteContext = r.String()
		case 'I':
			e.LogIdent = r.String()
		case 'm':
			e.MessageID = r.String()
		default:
			e.readWay(&r)
		}
	}
	if r.Err() != nil {
		return fmt.Errorf("envelope of %q: %w", string(e.ID), r.Err())
	}
	if !e.ID.Valid() {
		return errors.New("envelope: no queue ID")
	}
	return nil
}

// readWay reads the field that r stands at, if it is one of those that say how, when and from where the
// message is to go.
func (e *Envelope) readWay(r *pack.Reader) {
	switch r.Tag() {
	case 'L':
		e.Filter = r.String()
	case 'P':
		e.Pool = r.String()
	case 'n':
		e.Tenant = r.String()
	case 'k':
		e.Campaign = r.String()
	case 'g':
		e.List = r.String()
	case '>':
		e.Redirect = r.String()
	case 'V':
		e.VERP = r.String()
	case 'x':
		e.RequireTLS = r.Bool()
	case 'y':
		e.TLSOptional = r.Bool()
	case 'f':
		e.Forwarded = r.Bool()
	case 'l':
		e.SendAt = ReadTime(r)
	}
}

// A Glimpse is what an index of the queue wants to know of an envelope.
type Glimpse struct {
	Null   bool // the sender is null
	Size   int64
	Trace  Trace
	Tenant []byte // part of the stored form
}

// Glance reads only that of an envelope's stored form.
func Glance(stored []byte) (g Glimpse, err error) {
	g.Null = true
	r := pack.NewReader(stored)
	for r.Next() {
		switch r.Tag() {
		case 'S':
			g.Null = len(r.Bytes()) == 0
		case 'C':
			g.Size = r.Int()
		case 't':
			g.Trace = Trace(r.Uint())
		case 'n':
			g.Tenant = r.Bytes()
		}
	}
	return g, r.Err()
}

// AppendRecipients appends the stored form of a list of recipients.
func AppendRecipients(b []byte, list []Recipient) []byte {
	for i := range list {
		b = list[i].Append(b, 'R')
	}
	return b
}

// plainORCPT is the type of an ORCPT that says no more than the address does,
// as most do: cleanup makes one up for whoever has none. Tag '=' is that.
const plainORCPT = "rfc822;"

// Append appends r as one field.
func (r *Recipient) Append(b []byte, tag byte) []byte {
	return pack.Nested(b, tag, func(b []byte) []byte {
		b = pack.Bytes(b, 'R', r.Address)
		b = pack.String(b, 'O', r.Original)
		if addr, plain := strings.CutPrefix(r.ORCPT, plainORCPT); plain && addr == r.Address {
			b = pack.Bool(b, '=', true)
		} else {
			b = pack.String(b, 'o', r.ORCPT)
		}
		return pack.Uint(b, 'n', r.Notify)
	})
}

// Decode reads what Append wrote, given the field's bytes.
func (r *Recipient) Decode(field []byte) error {
	var addr, orig, orcpt []byte
	plain := false
	p := pack.NewReader(field)
	for p.Next() {
		switch p.Tag() {
		case 'R':
			addr = p.Bytes()
		case 'O':
			orig = p.Bytes()
		case 'o':
			orcpt = p.Bytes()
		case '=':
			plain = p.Bool()
		case 'n':
			r.Notify = dsn.Notify(p.Uint())
		}
	}
	if err := p.Err(); err != nil {
		return err
	}
	if plain {
		orcpt = nil
	}
	// One string holds all: the address is the end of the ORCPT that was not
	// stored, and most often what the client gave, too.
	same := bytes.Equal(orig, addr)
	if same {
		orig = nil
	}
	text := plainORCPT + string(addr) + string(orig) + string(orcpt)
	n := len(plainORCPT)
	r.Address = text[n : n+len(addr)]
	r.Original = text[n+len(addr) : n+len(addr)+len(orig)]
	r.ORCPT = text[n+len(addr)+len(orig):]
	if same {
		r.Original = r.Address
	}
	if plain {
		r.ORCPT = text[:n+len(addr)]
	}
	return nil
}

// DecodeRecipients reads a stored list of recipients: it appends to list those
// with index from up to, not including, to; to < 0 means all the rest. Indexes
// past the end are no error: there are then fewer.
func DecodeRecipients(list []Recipient, stored []byte, from, to int) ([]Recipient, error) {
	i := 0
	p := pack.NewReader(stored)
	for (to < 0 || i < to) && p.Next() {
		if p.Tag() != 'R' {
			continue
		}
		if i >= from {
			var r Recipient
			if err := r.Decode(p.Bytes()); err != nil {
				return nil, fmt.Errorf("recipient %d: %w", i, err)
			}
			list = append(list, r)
		}
		i++
	}
	return list, p.Err()
}

// Append appends o as one field. The tag f was the address of the only part
// that there was anything to say of.
func (o *Outcome) Append(b []byte, tag byte) []byte {
	return pack.Nested(b, tag, func(b []byte) []byte {
		b = pack.Int(b, '#', o.Rcpt)
		b = o.appendVerdict(b)
		b = pack.Bool(b, 'p', o.Passed)
		for i := range o.Parts {
			b = o.Parts[i].append(b, 'P')
		}
		return AppendTime(b, 'w', o.When)
	})
}

// appendVerdict appends the fields that an outcome and each of its parts have.
func (o *Outcome) appendVerdict(b []byte) []byte {
	b = pack.Uint(b, 'a', o.Action)
	b = pack.Uint(b, 's', uint64(o.Status.Class)<<32|uint64(o.Status.Subject)<<16|uint64(o.Status.Detail))
	b = pack.String(b, 'r', o.Reason)
	b = pack.String(b, 'y', o.Relay)
	b = pack.String(b, 'm', o.MTA)
	b = pack.String(b, 'd', o.DiagType)
	b = pack.String(b, 't', o.DiagText)
	return pack.String(b, 'o', o.Owner)
}

// readVerdict reads one of the fields that appendVerdict appends.
func (o *Outcome) readVerdict(r *pack.Reader) {
	switch r.Tag() {
	case 'a':
		o.Action = dsn.Action(r.Uint())
	case 's':
		v := r.Uint()
		o.Status = dsn.Status{Class: uint8(v >> 32), Subject: uint16(v >> 16), Detail: uint16(v)}
	case 'r':
		o.Reason = r.String()
	case 'y':
		o.Relay = r.String()
	case 'm':
		o.MTA = r.String()
	case 'd':
		o.DiagType = r.String()
	case 't':
		o.DiagText = r.String()
	case 'o':
		o.Owner = r.String()
	}
}

// Decode reads what Append wrote, given the field's bytes.
func (o *Outcome) Decode(field []byte) error { return o.DecodeFrom(pack.NewTextReader(field)) }

// DecodeFrom is Decode for fields that are parts of what r has a copy of.
func (o *Outcome) DecodeFrom(r pack.Reader) error {
	final := ""
	for r.Next() {
		switch r.Tag() {
		case '#':
			o.Rcpt = int(r.Int())
		case 'p':
			o.Passed = r.Bool()
		case 'f':
			final = r.String()
		case 'P':
			var p Part
			if err := p.decode(r.Nested()); err != nil {
				return err
			}
			o.Parts = append(o.Parts, p)
		case 'w':
			o.When = ReadTime(&r)
		default:
			o.readVerdict(&r)
		}
	}
	if final != "" && o.Parts == nil {
		o.Parts = []Part{o.Part(final)}
	}
	return r.Err()
}
