// Package mailfilter is the vocabulary of mail filters (milters): how one is
// reached and treated ([Spec]), and what filters want done ([Verdict]). smtpd, which meets
// the events, and cleanup, where filters are asked, speak of them in these words; package milter speaks to the
// filters themselves. It does no I/O.
package mailfilter

import (
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/pack"
	"posthaste/internal/smtpwire"
)

// A Stage is a moment at which macros are sent. The numbers are those of the
// protocol's macro lists; StageUnknown is not in it.
type Stage uint8

const (
	StageConnect Stage = iota
	StageHelo
	StageMail
	StageRcpt
	StageData
	StageEOM
	StageEOH
	StageUnknown
	Stages // how many there are
)

// A Spec says how one filter is reached and treated.
type Spec struct {
	Endpoint                  string // inet:host:port or unix:path, as configured
	Protocol                  int    // highest version to offer: 2, 3, 4 or 6
	NoHeaderReply             bool   // whatever the version, the filter may say that it sends no reply to each header field
	Connect, Command, Content time.Duration
	Default                   string // milter_default_action
	// Reuse says that the filter serves one SMTP session after the other on
	// one connection.
	Reuse bool
	// Macros are the names to send at each stage, unless the filter asks for
	// others.
	Macros [Stages]string
}

// Append appends the fields of s.
func (s *Spec) Append(b []byte) []byte {
	b = pack.String(b, 'e', s.Endpoint)
	b = pack.Int(b, 'p', s.Protocol)
	b = pack.Int(b, 'o', int64(s.Connect))
	b = pack.Int(b, 'c', int64(s.Command))
	b = pack.Int(b, 't', int64(s.Content))
	b = pack.String(b, 'd', s.Default)
	b = pack.Bool(b, 'r', s.Reuse)
	b = pack.Bool(b, 'n', s.NoHeaderReply)
	for _, m := range s.Macros {
		b = pack.Bytes(b, 'm', m)
	}
	return b
}

// Decode reads what Append wrote into s, which should be zero. Macros for stages that it does
// not know are passed over.
func (s *Spec) Decode(b []byte) error {
	r := pack.NewReader(b)
	n := 0
	for r.Next() {
		switch r.Tag() {
		case 'e':
			s.Endpoint = r.String()
		case 'p':
			s.Protocol = int(r.Int())
		case 'o':
			s.Connect = time.Duration(r.Int())
		case 'c':
			s.Command = time.Duration(r.Int())
		case 't':
			s.Content = time.Duration(r.Int())
		case 'd':
			s.Default = r.String()
		case 'r':
			s.Reuse = r.Bool()
		case 'n':
			s.NoHeaderReply = r.Bool()
		case 'm':
			if n < len(s.Macros) {
				s.Macros[n] = r.String()
				n++
			}
		}
	}
	return r.Err()
}

// An Action is what filters want done.
type Action uint8

const (
	Continue Action = iota
	Reject          // with Reply: the command, or after the content the message
	Discard         // accept the message and throw it away
	Shutdown        // end the SMTP session, with Reply
)

// A Verdict is what came of one event.
type Verdict struct {
	Action Action
	Hold   bool            // the message is to go to the hold queue; Action may be Continue
	Reply  *smtpwire.Reply // for Reject and Shutdown; not to be changed
}

var (
	replyUnserved = smtpwire.R(550, dsn.S(5, 5, 0), "Service unavailable")
	replyTempFail = smtpwire.R(451, dsn.S(4, 7, 1), "Service unavailable - try again later")
	replyShutdown = smtpwire.R(421, dsn.S(4, 7, 0), "Server closing connection")
)

// TempFail refuses for now.
func TempFail() Verdict { return Verdict{Action: Reject, Reply: replyTempFail} }

// Default is the verdict for a filter that cannot be asked, by the value of
// milter_default_action.
func Default(action string) Verdict {
	switch action {
	case "accept":
		return Verdict{}
	case "reject":
		return Verdict{Action: Reject, Reply: replyUnserved}
	case "quarantine":
		return Verdict{Hold: true}
	case "shutdown":
		return Verdict{Action: Shutdown, Reply: replyShutdown}
	}
	return TempFail()
}

// Strictest is the verdict when none of these filters can be asked.
func Strictest(specs []Spec) Verdict {
	var v Verdict
	for i := range specs {
		d := Default(specs[i].Default)
		if d.Action != Continue {
			return d
		}
		v.Hold = v.Hold || d.Hold
	}
	return v
}
