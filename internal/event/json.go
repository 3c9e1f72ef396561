package event

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"posthaste/internal/proto"
)

// A source is what the JSON form is made of.
type source struct {
	*Event
	host       string
	scope      string   // see json
	recipients []string // that are named
}

// A field is one of the JSON form. It has either text or value. What is empty is left out.
type field struct {
	name  string
	text  func(*source) string
	value func(b []byte, s *source) []byte // appends it to b, or nothing
}

// fields are all of them, in the order of the document. There is an event for each recipient of each message, twice, so
// that they are written without reflection.
var fields = []field{
	{name: "kind", text: func(s *source) string { return string(s.Kind) }},
	{name: "time", value: func(b []byte, s *source) []byte {
		return append(s.Time.UTC().AppendFormat(append(b, '"'), microTime), '"')
	}},
	{name: "host", text: func(s *source) string { return s.host }},
	{name: "queue_id", text: func(s *source) string { return s.QueueID }},
	{name: "message_id", text: func(s *source) string { return s.MessageID }},
	{name: "envid", text: func(s *source) string { return s.EnvID }},
	{name: "sender", value: func(b []byte, s *source) []byte {
		if !s.FromMessage {
			return b
		}
		return quoted(b, cut(s.Sender)) // the null sender, too
	}},
	{name: "recipient", text: func(s *source) string { return s.Recipient }},
	{name: "original_recipient", text: func(s *source) string { return s.Original }},
	{name: "recipients", value: func(b []byte, s *source) []byte {
		for i, r := range s.recipients {
			b = quoted(append(b, "[,"[min(i, 1)]), cut(r))
		}
		return closed(b, len(s.recipients))
	}},
	{name: "recipient_count", value: func(b []byte, s *source) []byte { return number(b, int64(s.Count)) }},
	{name: "size", value: func(b []byte, s *source) []byte { return number(b, s.Size) }},
	{name: "transport", text: func(s *source) string { return s.Transport }},
	{name: "next_hop", text: func(s *source) string { return s.NextHop }},
	{name: "relay", text: func(s *source) string { return s.Relay }},
	{name: "relay_address", text: func(s *source) string { return s.RelayAddr }},
	{name: "relay_port", text: func(s *source) string { return s.RelayPort }},
	{name: "dsn", text: func(s *source) string { return s.DSN }},
	{name: "reply", text: func(s *source) string { return s.Reply }},
	{name: "bounce_class", text: func(s *source) string { return s.BounceClass }},
	{name: "attempt", value: func(b []byte, s *source) []byte { return number(b, int64(s.Attempt)) }},
	{name: "delay", value: func(b []byte, s *source) []byte {
		if s.Delays == nil {
			return b
		}
		return seconds(b, s.Delay)
	}},
	{name: "delays", value: func(b []byte, s *source) []byte {
		if s.Delays == nil {
			return b
		}
		for i, d := range s.Delays {
			b = seconds(append(b, "[,"[min(i, 1)]), d)
		}
		return closed(b, len(s.Delays))
	}},
	{name: "tls", text: func(s *source) string { return s.TLS }},
	{name: "source", text: func(s *source) string { return s.Source }},
	{name: "provider", text: func(s *source) string { return s.Provider }},
	{name: "client_name", text: func(s *source) string { return s.ClientName }},
	{name: "client_address", text: func(s *source) string { return s.ClientAddr }},
	{name: "helo", text: func(s *source) string { return s.Helo }},
	{name: "protocol", text: func(s *source) string { return s.Protocol }},
	{name: "sasl_username", text: func(s *source) string { return s.SASLUser }},
	{name: "stage", text: func(s *source) string { return s.Stage }},
	{name: "notice", text: func(s *source) string { return s.Notice }},
	{name: "new_queue_id", text: func(s *source) string { return s.NewID }},
	{name: "target", text: func(s *source) string { return s.Target }},
	{name: "by", text: func(s *source) string { return s.By }},
	{name: "until", value: func(b []byte, s *source) []byte {
		if s.Until.IsZero() {
			return b
		}
		return append(s.Until.UTC().AppendFormat(append(b, '"'), time.RFC3339), '"')
	}},
	{name: "tenant", text: func(s *source) string { return s.Tenant }},
	{name: "campaign", text: func(s *source) string { return s.Campaign }},
	{name: "list", text: func(s *source) string { return s.List }},
	{name: "feedback_type", text: func(s *source) string { return s.Feedback }},
	{name: "unverified", value: func(b []byte, s *source) []byte {
		if !s.Unverified {
			return b
		}
		return append(b, "true"...)
	}},
}

// microTime is RFC 3339 with microseconds, as the log's JSON form has it.
const microTime = "2006-01-02T15:04:05.000000Z07:00"

const (
	// lineHead is what each line begins with, and the identifier and idEnd follow.
	lineHead = `{"schema":1,"id":"`
	idEnd    = `",`
	idOctets = 16
	// usualLine is how long most lines are at most.
	usualLine = 768
)

// JSON gives the event as one line without its end: an object with the schema's version and the event's
// identifier first. The identifier is a hash of all the rest, so that an event which is told again, as it was,
// has the same one. Of a kind that a message or a recipient has once, it is a hash of what names these: what a
// process that took the place of another tells again has the same identifier as well. host is $myhostname.
func (e *Event) JSON(host string) []byte { return e.json(host, host) }

// json is JSON where more than one host may tell of a message: scope is what they have in common, and takes the place of
// host in an identifier of what happens once.
func (e *Event) json(host, scope string) []byte {
	s := source{e, host, scope, e.Recipients[:min(len(e.Recipients), MaxRecipients)]}
	line := s.line()
	// Of addresses whose characters take six each in JSON fewer fit. The event must not be lost for them.
	for len(line) > proto.MaxEvent && len(s.recipients) > 0 {
		s.recipients = s.recipients[:len(s.recipients)/2]
		line = s.line()
	}
	return line
}

// line gives the object with its version and its identifier.
func (s *source) line() []byte {
	// What is hashed is the object without these two; they take the place of its first octet and of what is before that.
	const start = len(lineHead) + 2*idOctets + len(idEnd) - 1
	b := append(make([]byte, start, usualLine), '{')
	for i := range fields {
		b = fields[i].append(b, s)
	}
	b = append(b, '}')
	named := b[start:]
	if s.Kind.once() || s.Kind.reported() && s.QueueID != "" {
		named = []byte(strings.Join([]string{string(s.Kind), s.scope, cut(s.QueueID), cut(s.Recipient), cut(s.Original)}, "\x00"))
		if s.Feedback != "" { // a complaint that is withdrawn (not-spam) is another one
			named = append(append(named, 0), cut(s.Feedback)...)
		}
	}
	sum := sha256.Sum256(named)
	copy(b, lineHead)
	hex.Encode(b[len(lineHead):], sum[:idOctets])
	copy(b[start+1-len(idEnd):], idEnd)
	return b
}

// append appends the field, with a comma before it unless it is the first one, if it is not empty.
func (f *field) append(b []byte, s *source) []byte {
	n := len(b)
	if f.text != nil {
		if text := f.text(s); text != "" {
			b = quoted(f.key(b), cut(text))
		}
		return b
	}
	b = f.key(b)
	m := len(b)
	if b = f.value(b, s); len(b) == m {
		return b[:n]
	}
	return b
}

// key appends the field's name.
func (f *field) key(b []byte) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(append(append(b, '"'), f.name...), `":`...)
}

// number appends a number that is not 0.
func number(b []byte, n int64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(b, n, 10)
}

// closed ends a list of n elements.
func closed(b []byte, n int) []byte {
	if n == 0 {
		return b
	}
	return append(b, ']')
}

// seconds appends a time in seconds, to the microsecond.
func seconds(b []byte, d time.Duration) []byte {
	return strconv.AppendFloat(b, float64(d.Microseconds())/1e6, 'f', -1, 64)
}

// quoted appends a string (RFC 8259 section 7). What is not UTF-8 is replaced. Two characters are escaped besides that end
// a line in JavaScript.
func quoted(b []byte, s string) []byte {
	b = append(b, '"')
	for done := 0; done < len(s); {
		n := plain(s[done:])
		b = append(b, s[done:done+n]...)
		if done += n; done == len(s) {
			break
		}
		r, size := utf8.DecodeRuneInString(s[done:])
		done += size
		if i := strings.IndexRune("\"\\\b\f\n\r\t", r); i >= 0 {
			b = append(b, '\\', `"\bfnrt`[i])
			continue
		}
		const digits = "0123456789abcdef"
		b = append(b, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
	}
	return append(b, '"')
}

// plain is how many octets at the beginning of a text stand for themselves.
func plain(s string) int {
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < ' ' || c == '"' || c == '\\' {
				return i
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 || r == '\u2028' || r == '\u2029' {
			return i
		}
		i += size
	}
	return len(s)
}

// cut bounds a text, at a whole character.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > maxText-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
