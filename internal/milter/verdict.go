package milter

import (
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/mailfilter"
	"posthaste/internal/smtpwire"
)

// What filters ask for without words of their own.
var (
	replyReject   = smtpwire.R(550, dsn.S(5, 7, 1), "Command rejected")
	replyTempFail = mailfilter.TempFail().Reply
	replyShutdown = mailfilter.Default("shutdown").Reply
)

// parseReply reads the reply of a filter's own: "550 5.7.1 text", of several lines
// perhaps, each with code and status. In texts "%%" stands for "%", and "%" for
// nothing: they were formats once.
func parseReply(text string) (mailfilter.Verdict, bool) {
	var r smtpwire.Reply
	for i, line := range strings.Split(strings.TrimRight(text, "\r\n"), "\n") {
		line = strings.TrimRight(line, "\r")
		if len(line) > 3 && line[3] == '-' {
			line = line[:3] + " " + line[4:]
		}
		part, ok := smtpwire.ParseReply(line)
		if !ok || part.Code < 400 || i > 0 && part.Code != r.Code {
			return mailfilter.Verdict{}, false
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
		return mailfilter.Verdict{Action: mailfilter.Shutdown, Reply: &r}, true
	}
	return mailfilter.Verdict{Action: mailfilter.Reject, Reply: &r}, true
}
