// What went wrong, and what follows from it: for the recipients (another server,
// another time, or back to the sender), for the destination, and for the log.

package smtp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/reuse"
)

// kind is what failed. It decides what becomes of the recipients and whether
// the destination as a whole is taken to be broken.
type kind uint8

const (
	siteFailed      kind = iota + 1 // the server refuses to deal with us
	sessionFailed                   // authentication, name service, connecting: no session came to be
	streamFailed                    // time-out or lost connection
	messageFailed                   // MAIL, DATA or the message was refused
	recipientFailed                 // RCPT was refused
	notCapable                      // the server lacks what the message needs, or its TLS does not work where TLS is a wish
)

// throttles says whether the kind counts against the destination as a whole: the
// queue manager then sends it less mail, or none for a while. A failure of one
// message or recipient says nothing about the next one.
func (k kind) throttles() bool { return k <= streamFailed }

// failure is why something did not go well, in the terms of the log and of delivery
// status notifications. It does not change once it has been recorded: several
// recipients may share it.
type failure struct {
	kind   kind
	status dsn.Status   // class 4: trying again may help
	text   string       // for the log, and for the sender
	detail agent.Detail // what is known of the server; empty: none was reached
	code   int          // of the reply to AUTH; 0 for other failures
	loop   bool         // mail loops back to this host
	retry  bool         // the address may be tried again without TLS
	ours   bool         // this system is short of something: the destination is not to blame
	hangUp bool         // there is nobody to say QUIT to
	said   bool         // of a server that was reached: it is logged as it happens
	slower bool         // the server wants less mail at a time: a reply of smtp_throttle_replies, or 421
	partly bool         // and has taken some in this session
}

// Error implements error, for tests and %v.
func (f *failure) Error() string { return f.status.String() + " " + f.text }

// soft says whether trying again later, or elsewhere, may help.
func (f *failure) soft() bool { return f.status.Class == 4 }

// mayRepeat is added to the reason for recipients who may have got the message: the
// end of the content was sent, and no reply came.
const mayRepeat = " -- message may be sent more than once"

// What was going on when a session broke, in the words of Postfix's log.
const (
	stageGreeting = "receiving the initial server greeting"
	stageEHLO     = "performing the EHLO handshake"
	stageHELO     = "performing the HELO handshake"
	stageLHLO     = "performing the LHLO handshake"
	stageTLS      = "receiving the STARTTLS response"
	stageMail     = "sending MAIL FROM"
	stageRcpt     = "sending RCPT TO"
	stageData     = "sending DATA command"
	stageBody     = "sending message body"
	stageDot      = "sending end of data" + mayRepeat
)

// Commands as they appear in "(in reply to ...)".
const (
	commandMail = "MAIL FROM command"
	commandRcpt = "RCPT TO command"
	commandData = "DATA command"
	commandDot  = "end of DATA command"
)

// broken words an error of the connection during a stage, and remembers it in
// s.broke. Such failures are temporary, whatever happened.
func (s *session) broken(stage string, err error) *failure {
	f := &failure{kind: streamFailed, status: dsn.S(4, 4, 2), detail: s.detail()}
	switch {
	case s.stopping.Load():
		// Whatever the error is: the deadline that ended it was set for this reason.
		f.kind, f.status = messageFailed, dsn.S(4, 3, 2)
		f.text = "mail system is stopping: conversation with " + s.namaddr + " was cut off while " + stage
	case errors.Is(err, errLocalData):
		s.notes.Fault(notice.Data)
		f.kind, f.status = messageFailed, dsn.S(4, 3, 0) // no fault of the destination's
		f.text = "local data error while talking to " + s.namaddr
	case errors.Is(err, errReplyLimit):
		// Bounded reads: a server may not keep us reading for ever.
		f.text = "host " + s.namaddr + " sent a reply without end while " + stage
	case isTimeout(err):
		f.text = "conversation with " + s.namaddr + " timed out while " + stage
	default:
		f.text = "lost connection with " + s.namaddr + " while " + stage
	}
	s.broke = f
	return f
}

// errLocalData marks an error of the message's source, not of the network.
var errLocalData = errors.New("local data error")

// said words a server's reply to a command that it refuses. A code that makes no
// sense as a reply (1xx, 3xx) is a permanent failure, and the session is not used
// again: client and server are out of step.
func (s *session) said(k kind, r *reply, command string) *failure {
	f := s.refused(k, r)
	f.text = "host " + s.namaddr + " said: " + f.detail.DiagText + " (in reply to " + command + ")"
	f.slower, f.partly = s.throttle.has(r), s.uses > 1
	if r.code/100 != 4 && r.code/100 != 5 || r.code == 421 { // which ends the session, RFC 5321 section 3.8
		s.odd = true
	}
	if r.code/100 == 2 {
		f.text = "Protocol error: " + f.text // or it would read as a success
	}
	return f
}

// refused words a server's refusal to deal with us at all, by its greeting or its
// reply to EHLO.
func (s *session) refused(k kind, r *reply) *failure {
	s.noticeFault(r.code)
	f := &failure{kind: k, status: r.status, detail: s.detail()}
	f.detail.MTA, f.detail.DiagType, f.detail.DiagText = s.host, "smtp", r.text()
	if f.status.Class != 4 && f.status.Class != 5 {
		f.status = dsn.S(5, 5, 0)
	}
	f.text = "host " + s.namaddr + " refused to talk to me: " + f.detail.DiagText
	return f
}

// detail is what the log says of every outcome of this session: the server, and how
// often the session was used.
func (s *session) detail() agent.Detail {
	d := agent.Detail{Relay: s.relay, ConnUse: s.uses}
	if s.tls != nil {
		d.TLS = s.tls.name
	}
	return d
}

// isTimeout says whether an error of the network is one of time.
func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout() || errors.Is(err, os.ErrDeadlineExceeded)
}

// errnoText words the error of a connect or a bind as the system does, and as
// Postfix logs it: capitalized, and without what package net adds to it.
func errnoText(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		text := errno.Error()
		return strings.ToUpper(text[:1]) + text[1:]
	}
	if isTimeout(err) || errors.Is(err, context.DeadlineExceeded) {
		return "Connection timed out"
	}
	if errors.Is(err, context.Canceled) {
		return "Operation canceled"
	}
	if errors.Is(err, io.EOF) {
		return "Connection reset by peer"
	}
	return err.Error()
}

// isShortage says whether an error means that this system is short of something,
// such as descriptors or ports. The destination is not to blame, and must not be
// throttled for it.
func isShortage(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// fail says what becomes of recipients rcpts because of f: a temporary failure that
// is not the last server's leaves them for the next one; any other is recorded for
// each. Called without recipients it does nothing.
func (d *delivery) fail(f *failure, rcpts []int) {
	if len(rcpts) == 0 {
		return
	}
	// soft_bounce makes a refusal as good as a temporary one: another server may have another view.
	soft := f.soft() || d.set.softBounce
	if soft && !d.final {
		d.log.Log(maillog.SMTPPutOff{ID: d.id, Reason: f.text})
		d.why = f
		return
	}
	d.record(f, rcpts)
}

// record reports f for each of rcpts that has no outcome yet, and counts it against
// the destination where that is right. With soft_bounce a bounce becomes a
// deferral, so the outcome is asked for, not assumed.
func (d *delivery) record(f *failure, rcpts []int) {
	deferred := false
	for _, i := range rcpts {
		if !d.req.Pending(i) {
			continue
		}
		if f.soft() {
			d.req.Defer(i, f.status, f.text, f.detail)
		} else {
			d.req.Bounce(i, f.status, f.text, f.detail)
		}
		soft := d.req.Deferred(i)
		deferred = deferred || soft
		d.sayFailed(i, f, soft)
	}
	// Only what leaves mail in the queue slows the destination down, and only if nothing went well.
	if f.kind.throttles() && deferred && !d.completed {
		d.req.SiteFailure(f.status.WithClass(4), f.text)
	}
	if f.slower && deferred && (d.slower == nil || d.slower.partly) {
		d.slower = f
	}
}

// slowDown tells the queue manager when the destination wants less mail. It comes
// last: whether others have got the message must be known.
func (d *delivery) slowDown() {
	switch f := d.slower; {
	case f == nil:
	case f.partly || d.some:
		d.req.SiteBusy(f.status.WithClass(4), f.text)
	default:
		d.req.SiteFailure(f.status.WithClass(4), f.text)
	}
}

// left lists the recipients without an outcome, as indices into the envelope. The
// list is good until the next call.
func (d *delivery) left() []int {
	d.todo = slices.Grow(reuse.Truncated(d.todo), len(d.env.Recipients))
	for i := range d.env.Recipients {
		if d.req.Pending(i) {
			d.todo = append(d.todo, i)
		}
	}
	return d.todo
}

// age is how long the message has been in the system.
func (d *delivery) age() time.Duration { return time.Since(d.env.Arrival) }
