package event

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"posthaste/internal/proto"
)

// The form of events is written without package json, which takes several times as long: there are two events at least
// for each message, and processes wait for them. A test holds that it is what package json would write.

// usualLine is how many octets an event has, as a rule.
const usualLine = 1 << 10

// JSON gives the event as one line without its end: an object with the schema's version and the event's
// identifier first. The identifier is a hash of all the rest, so that an event which is told again, as it was,
// has the same one. Of a kind that a message or a recipient has once, it is a hash of what names these: what a
// process that took the place of another tells again has the same identifier as well. host is $myhostname.
func (e *Event) JSON(host string) []byte {
	n := min(len(e.Recipients), MaxRecipients)
	line := e.line(host, n)
	// Of addresses whose characters take six each in JSON fewer fit. The event must not be lost for them.
	for len(line) > proto.MaxEvent && n > 0 {
		n /= 2
		line = e.line(host, n)
	}
	return line
}

// line gives the object with the first n recipients.
func (e *Event) line(host string, n int) []byte {
	const before, after = `{"schema":1,"id":"`, `"`
	var sum [sha256.Size]byte
	b := append(make([]byte, 0, usualLine), before...)
	b = append(hex.AppendEncode(b, sum[:16]), after...)
	at := len(b) // of the comma before the other fields
	b = append(e.appendFields(b, host, n), '}')
	if e.Kind.once() || e.Kind.reported() && e.QueueID != "" {
		sum = sha256.Sum256([]byte(e.name(host)))
	} else {
		b[at] = '{' // what is hashed is an object
		sum = sha256.Sum256(b[at:])
		b[at] = ','
	}
	hex.Encode(b[len(before):], sum[:16])
	return b
}

// name is what an event has the identifier of that a message or a recipient has once.
func (e *Event) name(host string) string {
	parts := []string{string(e.Kind), host, cut(e.QueueID), cut(e.Recipient), cut(e.Original)}
	if e.Feedback != "" { // a complaint that is withdrawn (not-spam) is another one
		parts = append(parts, cut(e.Feedback))
	}
	return strings.Join(parts, "\x00")
}

// appendFields appends all other fields with a comma before each, in the order of the document.
func (e *Event) appendFields(b []byte, host string, n int) []byte {
	b = appendString(append(b, `,"kind":`...), string(e.Kind))
	b = append(e.Time.UTC().AppendFormat(append(b, `,"time":"`...), microTime), '"')
	b = appendText(b, "host", host)
	b = appendText(b, "queue_id", cut(e.QueueID))
	b = appendText(b, "message_id", cut(e.MessageID))
	b = appendText(b, "envid", cut(e.EnvID))
	if e.FromMessage {
		b = appendString(append(b, `,"sender":`...), cut(e.Sender))
	}
	b = appendText(b, "recipient", cut(e.Recipient))
	b = appendText(b, "original_recipient", cut(e.Original))
	for i, r := range e.Recipients[:n] {
		if i == 0 {
			b = append(b, `,"recipients":[`...)
		}
		b = append(appendString(b, cut(r)), ","[:min(1, n-1-i)]...)
		if i == n-1 {
			b = append(b, ']')
		}
	}
	b = appendNumber(b, "recipient_count", int64(e.Count))
	b = appendNumber(b, "size", e.Size)
	b = e.appendAttempt(b)
	b = appendText(b, "client_name", cut(e.ClientName))
	b = appendText(b, "client_address", cut(e.ClientAddr))
	b = appendText(b, "helo", cut(e.Helo))
	b = appendText(b, "protocol", cut(e.Protocol))
	b = appendText(b, "sasl_username", cut(e.SASLUser))
	b = appendText(b, "stage", cut(e.Stage))
	b = appendText(b, "notice", e.Notice)
	b = appendText(b, "new_queue_id", e.NewID)
	b = appendText(b, "target", cut(e.Target))
	b = appendText(b, "by", cut(e.By))
	if !e.Until.IsZero() {
		b = append(e.Until.UTC().AppendFormat(append(b, `,"until":"`...), time.RFC3339), '"')
	}
	b = appendText(b, "tenant", e.Tenant)
	b = appendText(b, "campaign", e.Campaign)
	b = appendText(b, "list", e.List)
	b = appendText(b, "feedback_type", cut(e.Feedback))
	if e.Unverified {
		b = append(b, `,"unverified":true`...)
	}
	return b
}

// appendAttempt appends the fields of an attempt to deliver.
func (e *Event) appendAttempt(b []byte) []byte {
	b = appendText(b, "transport", cut(e.Transport))
	b = appendText(b, "next_hop", cut(e.NextHop))
	b = appendText(b, "relay", cut(e.Relay))
	b = appendText(b, "relay_address", cut(e.RelayAddr))
	b = appendText(b, "relay_port", cut(e.RelayPort))
	b = appendText(b, "dsn", e.DSN)
	b = appendText(b, "reply", cut(e.Reply))
	b = appendText(b, "bounce_class", cut(e.BounceClass))
	b = appendNumber(b, "attempt", int64(e.Attempt))
	if e.Delays != nil {
		b = appendSeconds(append(b, `,"delay":`...), e.Delay)
		b = append(b, `,"delays":`...)
		for i, d := range e.Delays {
			b = appendSeconds(append(b, "[,"[min(i, 1)]), d)
		}
		b = append(b, ']')
	}
	return appendText(b, "tls", cut(e.TLS))
}

// appendText appends a field, unless it is empty.
func appendText(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendString(append(append(append(b, ',', '"'), name...), '"', ':'), value)
}

// appendNumber appends a field, unless it is 0.
func appendNumber(b []byte, name string, n int64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(append(append(append(b, ',', '"'), name...), '"', ':'), n, 10)
}

// appendSeconds appends a time in seconds, to the microsecond.
func appendSeconds(b []byte, d time.Duration) []byte {
	return strconv.AppendFloat(b, float64(d.Microseconds())/1e6, 'f', -1, 64)
}

// appendString appends a text in quotes.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return appendEscaped(b, s)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// appendEscaped appends a text that may have more than plain ASCII.
func appendEscaped(b []byte, s string) []byte {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err) // each text can be encoded
	}
	return append(b, strings.TrimSuffix(text.String(), "\n")...)
}
