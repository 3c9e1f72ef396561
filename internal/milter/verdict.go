package milter

import (
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/smtpwire"
)

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
	Reply  *smtpwire.Reply // for Reject and Shutdown
}

var (
	replyReject   = smtpwire.R(550, dsn.S(5, 7, 1), "Command rejected")
	replyTempFail = smtpwire.R(451, dsn.S(4, 7, 1), "Service unavailable - try again later")
	replyDefault  = smtpwire.R(550, dsn.S(5, 5, 0), "Service unavailable")
	replyShutdown = smtpwire.R(421, dsn.S(4, 7, 0), "Server closing connection")
)

// Default is the verdict for a filter that cannot be asked, by the value of
// milter_default_action.
func Default(action string) Verdict {
	switch action {
	case "accept":
		return Verdict{}
	case "reject":
		return Verdict{Action: Reject, Reply: replyDefault}
	case "quarantine":
		return Verdict{Hold: true}
	case "shutdown":
		return Verdict{Action: Shutdown, Reply: replyShutdown}
	}
	return Verdict{Action: Reject, Reply: replyTempFail}
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

// parseReply reads the reply of a filter's own: "550 5.7.1 text", of several lines
// perhaps, each with code and status. In texts "%%" stands for "%", and "%" for
// nothing: they were formats once.
func parseReply(text string) (Verdict, bool) {
	var r smtpwire.Reply
	for i, line := range strings.Split(strings.TrimRight(text, "\r\n"), "\n") {
		line = strings.TrimRight(line, "\r")
		if len(line) > 3 && line[3] == '-' {
			line = line[:3] + " " + line[4:]
		}
		part, ok := smtpwire.ParseReply(line)
		if !ok || part.Code < 400 || i > 0 && part.Code != r.Code {
			return Verdict{}, false
		}
		part.Text = strings.NewReplacer("%%", "%", "%", "").Replace(part.Text)
		if i == 0 {
			r = part
		} else if i < 100 {
			r.Text += "\n" + part.Text
		}
	}
	if r.Status.IsZero() {
		r.Status = dsn.S(uint8(r.Code/100), 7, 1)
	}
	if int(r.Status.Class) != r.Code/100 {
		r.Status = r.Status.WithClass(uint8(r.Code / 100))
	}
	if r.Code == 421 {
		return Verdict{Action: Shutdown, Reply: &r}, true
	}
	return Verdict{Action: Reject, Reply: &r}, true
}
