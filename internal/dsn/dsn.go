// Package dsn is the vocabulary of delivery status: enhanced status codes
// (RFC 3463), the actions and parameters of delivery status notifications
// (RFC 3461, RFC 3464), and xtext. It does no I/O and holds no state.
package dsn

import (
	"errors"
	"strconv"
	"strings"
)

// Status is an enhanced mail system status code, RFC 3463 section 2.
// The zero Status means that none is known.
type Status struct {
	Class   uint8 // 2 success, 4 persistent transient failure, 5 permanent failure
	Subject uint16
	Detail  uint16
}

// S builds a Status; it is meant for constants in code.
func S(class uint8, subject, detail uint16) Status { return Status{class, subject, detail} }

// IsZero says whether s holds no code.
func (s Status) IsZero() bool { return s.Class == 0 }

// String prints s as 2.1.5; the zero Status prints as the empty string.
func (s Status) String() string {
	if s.Class == 0 {
		return ""
	}
	var b [16]byte
	return string(s.Append(b[:0]))
}

// Append appends what String prints.
func (s Status) Append(b []byte) []byte {
	if s.Class == 0 {
		return b
	}
	b = strconv.AppendUint(b, uint64(s.Class), 10)
	b = append(b, '.')
	b = strconv.AppendUint(b, uint64(s.Subject), 10)
	b = append(b, '.')
	return strconv.AppendUint(b, uint64(s.Detail), 10)
}

// WithClass returns s with its class replaced: an agent may not report
// success with a failure's code (smtpd's reply codes and soft_bounce).
func (s Status) WithClass(class uint8) Status { s.Class = class; return s }

var errStatus = errors.New("dsn: not an enhanced status code")

// ParseStatus reads a code such as 5.1.1 that is the whole of text.
// Class is 2, 4 or 5; subject and detail have at most three digits
// (RFC 3463 section 2).
func ParseStatus(text string) (Status, error) {
	s, rest, ok := CutStatus(text)
	if !ok || rest != "" {
		return Status{}, errStatus
	}
	return s, nil
}

// CutStatus reads a code at the start of text and returns it with what
// follows, less the white space between. The code must end at the end of the
// text or at white space.
func CutStatus(text string) (s Status, rest string, ok bool) {
	if len(text) < 5 || text[1] != '.' || (text[0] != '2' && text[0] != '4' && text[0] != '5') {
		return Status{}, text, false
	}
	subject, i, ok := digits(text, 2)
	if !ok || i >= len(text) || text[i] != '.' {
		return Status{}, text, false
	}
	detail, j, ok := digits(text, i+1)
	if !ok || (j < len(text) && text[j] != ' ' && text[j] != '\t' && text[j] != '\n' && text[j] != '\r') {
		return Status{}, text, false
	}
	return Status{text[0] - '0', subject, detail}, strings.TrimLeft(text[j:], " \t\r\n"), true
}

func digits(s string, i int) (v uint16, end int, ok bool) {
	start := i
	for i < len(s) && i < start+3 && s[i] >= '0' && s[i] <= '9' {
		v = v*10 + uint16(s[i]-'0')
		i++
	}
	return v, i, i > start
}

// Action is what happened to one recipient, RFC 3464 section 2.3.3, with the
// two that Postfix adds for address probes.
type Action uint8

const (
	Delivered     Action = iota + 1 // into a mailbox, or to a system that sends its own notices
	Relayed                         // to a system that does not do DSN: success without further notice
	Expanded                        // into a list of addresses
	Deferred                        // not yet; try again ("delayed" in a notice)
	Failed                          // never ("bounced" in the log)
	Deliverable                     // an address probe found that it would be delivered
	Undeliverable                   // an address probe found that it would not
)

var actionNames = [...]string{Delivered: "delivered", Relayed: "relayed", Expanded: "expanded",
	Deferred: "delayed", Failed: "failed", Deliverable: "deliverable", Undeliverable: "undeliverable"}

// String is the word of RFC 3464 section 2.3.3.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return ""
}

// Final says whether nothing more is to be tried for the recipient.
func (a Action) Final() bool { return a != 0 && a != Deferred }

// Notify is the set of conditions under which the sender wants to hear of a
// recipient, RFC 3461 section 4.1. Zero means that the sender did not say:
// failures and, where configured, delays are then reported.
type Notify uint8

const (
	NotifySuccess Notify = 1 << iota
	NotifyFailure
	NotifyDelay
	NotifyNever
)

// Failure says whether a failure is to be reported.
func (n Notify) Failure() bool { return n == 0 || n&NotifyFailure != 0 }

// Delay says whether a delay may be reported.
func (n Notify) Delay() bool { return n == 0 || n&NotifyDelay != 0 }

// Success says whether a success is to be reported.
func (n Notify) Success() bool { return n&NotifySuccess != 0 }

// String prints the set in the syntax of the NOTIFY parameter; zero is empty.
func (n Notify) String() string {
	if n&NotifyNever != 0 {
		return "NEVER"
	}
	var words []string
	for _, w := range [...]struct {
		bit  Notify
		name string
	}{{NotifySuccess, "SUCCESS"}, {NotifyFailure, "FAILURE"}, {NotifyDelay, "DELAY"}} {
		if n&w.bit != 0 {
			words = append(words, w.name)
		}
	}
	return strings.Join(words, ",")
}

var errNotify = errors.New("dsn: NOTIFY takes NEVER, or a list of SUCCESS, FAILURE and DELAY")

// ParseNotify reads the value of a NOTIFY parameter, RFC 3461 section 4.1:
// NEVER alone, or a comma-separated list of the others, in any letter case.
func ParseNotify(text string) (Notify, error) {
	if strings.EqualFold(text, "NEVER") {
		return NotifyNever, nil
	}
	var n Notify
	for _, w := range strings.Split(text, ",") {
		switch strings.ToUpper(w) {
		case "SUCCESS":
			n |= NotifySuccess
		case "FAILURE":
			n |= NotifyFailure
		case "DELAY":
			n |= NotifyDelay
		default:
			return 0, errNotify
		}
	}
	return n, nil
}

// Ret says how much of a message a failure notice returns, RFC 3461 section 4.3.
type Ret uint8

const (
	RetUnset Ret = iota
	RetFull
	RetHeaders
)

// String prints the value of the RET parameter; unset is empty.
func (r Ret) String() string { return [...]string{"", "FULL", "HDRS"}[r%3] }

// ParseRet reads the value of a RET parameter.
func ParseRet(text string) (Ret, error) {
	switch strings.ToUpper(text) {
	case "FULL":
		return RetFull, nil
	case "HDRS":
		return RetHeaders, nil
	}
	return 0, errors.New("dsn: RET takes FULL or HDRS")
}
