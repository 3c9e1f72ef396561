// How a verdict becomes a reply: refusals at once, refusals that wait, warnings
// instead, and the log line.

package access

import (
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/smtpwire"
)

// A verdict is what one restriction says. Its number is that of Postfix, for traces.
type verdict uint8

const (
	dunno   verdict = iota // nothing: the next restriction is asked
	ok                     // permitted: the rest of the list is not asked
	refused                // run.reply says why
)

// class is what a restriction list is about. It is in all texts, and decides
// how enhanced status codes are mended.
type class uint8

const (
	classClient class = iota
	classReverse
	classCert
	classSASL
	classHelo
	classSender
	classRcpt
	classEtrn
	classData
	classEOD
)

// classText is how texts and logs call what a restriction is about. Log analyzers
// know these words.
var classText = [...]string{
	classClient:  "Client host",
	classReverse: "Unverified Client host",
	classCert:    "Client certificate",
	classSASL:    "SASL login name",
	classHelo:    "Helo command",
	classSender:  "Sender address",
	classRcpt:    "Recipient address",
	classEtrn:    "Etrn command",
	classData:    "Data command",
	classEOD:     "End-of-data",
}

// A run is the evaluation of one list, and what nests in it. It is part of its
// Session, and used again for the next list.
type run struct {
	e    *Evaluator
	s    *Session
	name string // what the list judges: a host, an address, DATA
	cl   class  // what that is, for texts

	kind listKind // what a bare table stands for

	warn  bool            // under warn_if_reject
	depth int             // of classes within classes
	reply *smtpwire.Reply // the refusal, once a verdict is refused
}

// maxDepth bounds classes within classes: one that uses itself would have no end.
// It is Postfix's.
const maxDepth = 100

// refuse pronounces a refusal that is the client's fault.
func (r *run) refuse(code int, status dsn.Status, text string) verdict {
	return r.pronounce(&reason{reply: smtpwire.R(code, status, text)})
}

// refuseFor is refuse with the text that nearly all refusals have.
func (r *run) refuseFor(name string, cl class, code int, status dsn.Status, text string) verdict {
	return r.refuse(code, status, rejected(name, cl, text))
}

// rejected is the text of a refusal in the form that logs and clients know from
// Postfix.
func rejected(name string, cl class, text string) string {
	return "<" + name + ">: " + classText[cl] + " rejected: " + text
}

// trouble refuses because of something on our side, with a temporary code.
// warn_if_reject does not excuse it: we do not know what the verdict would have
// been.
func (r *run) trouble(code int, status dsn.Status, text string) verdict {
	return r.pronounce(&reason{reply: smtpwire.R(code, status, text), hard: true})
}

// misconfigured refuses because the administrator must mend something. The
// warning, which the caller has logged, says what.
func (r *run) misconfigured() verdict {
	return r.trouble(451, dsn.S(4, 3, 5), "Server configuration error")
}

// lookupFailed refuses because a table could not be asked about an address.
func (r *run) lookupFailed(addr string) verdict {
	return r.trouble(451, dsn.S(4, 3, 0), "<"+addr+">: Temporary lookup failure")
}

// refuses says whether a reply code is one of a refusal.
func refuses(code int) bool { return code >= 400 && code <= 599 }

// pronounce is the one place where a refusal is made, and logged. Its code may be
// an administrator's: one that the client would take for consent is replaced. Where
// an earlier restriction asked for it (defer_if_reject), a permanent refusal
// becomes that one's temporary one. Under warn_if_reject it becomes a warning in
// the log, and dunno.
func (r *run) pronounce(why *reason) verdict {
	if !refuses(why.reply.Code) {
		r.e.log.Warning("SMTP reply code configuration error: %s", why.reply)
		why = &reason{reply: smtpwire.R(450, dsn.S(4, 7, 1), "Service unavailable"), hard: why.hard}
	}
	warned := r.warn && !why.hard
	// What was put off is pronounced in place of this refusal. It is used up, or it
	// would replace itself without end.
	if later := r.s.deferReject; later != nil && !warned && why.reply.Code/100 == 5 {
		r.s.deferReject = nil
		return r.pronounce(&reason{reply: later.reply, hard: true}) // warn_if_reject does not stand before it
	}
	reply := r.e.mend(why.reply)
	if warned {
		r.log("reject_warning", reply.String())
		return dunno
	}
	r.reply = reply
	r.log("reject", reply.String())
	return refused
}

// mend makes code and status agree, as RFC 2034 wants, and softens what soft_bounce
// says is to be softened. reply itself stays as it is.
func (e *Evaluator) mend(reply *smtpwire.Reply) *smtpwire.Reply {
	out := *reply
	// soft_bounce: the administrator is trying something out, and no mail is to be
	// lost by it.
	if e.softBounce && out.Code/100 == 5 {
		out.Code -= 100
	}
	if c := uint8(out.Code / 100); !out.Status.IsZero() && out.Status.Class != c {
		out.Status = out.Status.WithClass(c)
	}
	return &out
}

// deferIfPermit keeps a refusal in case everything else says yes: what is wrong is
// temporary, and a permanent refusal by another restriction is the better answer.
// Only the first is kept. action is the value of a ..._tempfail_action parameter;
// with "defer" the refusal is pronounced at once.
func (r *run) deferIfPermit(action string, code int, status dsn.Status, text string) verdict {
	why := &reason{reply: smtpwire.R(code, status, text)}
	if action == "defer" {
		return r.pronounce(why)
	}
	if r.warn {
		return r.pronounce(why) // a warning now: it must not turn a yes into a no later
	}
	if r.s.deferPermit == nil {
		r.s.deferPermit = why
	}
	return dunno
}

// deferIfReject keeps a temporary refusal that takes the place of a permanent one
// later in the lists of this stage: something that might have permitted could not
// be asked. Only the first is kept.
func (r *run) deferIfReject(code int, status dsn.Status, text string) verdict {
	if r.s.deferReject == nil {
		r.s.deferReject = &reason{reply: smtpwire.R(code, status, text)}
	}
	return dunno
}

// log writes a log line about the run's session.
func (r *run) log(action, text string) { r.e.LogAction(r.s, action, text) }

// LogAction writes the log line that all restrictions have in common. The
// server uses it for its own refusals, so that they look the same.
func (e *Evaluator) LogAction(s *Session, action, text string) {
	addr := s.AddrText
	e.log.Log(maillog.Reject{
		QueueID: string(s.QueueID), Action: action, Stage: s.Stage, Name: s.Name, Addr: addr, Port: s.LogPort, Text: text,
		From: e.log.Address(s.Sender), HasFrom: s.HasSender,
		To: e.log.Address(s.Recipient), HasTo: s.HasRcpt,
		Proto: s.Proto, Helo: s.Helo,
		SASLMethod: s.SASL.Method, SASLUsername: s.SASL.Username, SASLSender: s.SASL.Sender,
	})
}

// fixStatus maps an enhanced status about one kind of address to the like status
// about another kind: an access table may be used for senders and recipients alike,
// and its text says the same of both. cl is what the status is going to be about.
func (r *run) fixStatus(st dsn.Status, cl class) dsn.Status {
	fixed := mapStatus(st, cl)
	if fixed != st {
		r.e.log.Info("mapping DSN status %s into %s status %s", st, classText[cl], fixed)
	}
	return fixed
}

// mapStatus is fixStatus without the log. Only X.1.Y, about addresses (RFC 3463
// section 3.2), is mapped.
func mapStatus(st dsn.Status, cl class) dsn.Status {
	if st.Subject != 1 {
		return st
	}
	switch cl {
	case classSender:
		switch st.Detail {
		case 1, 3, 4, 6, 7:
			st.Detail = 7
		case 2, 8:
			st.Detail = 8
		default:
			st.Detail = 0
		}
	case classRcpt:
		switch st.Detail {
		case 7:
			st.Detail = 3
		case 8:
			st.Detail = 2
		}
	default:
		st.Subject, st.Detail = 0, 0
	}
	return st
}

// printable is for texts from tables and services on their way to a client.
func printable(s string) string { return smtpwire.Printable(strings.TrimSpace(s)) }
