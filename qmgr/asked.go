// What hosts ask of us with their replies, for destination_adaptive: the scheduler is told in its own words
// (package adaptive), and reads no replies. Where it is off, this costs a look at the transport.

package qmgr

import (
	"fmt"
	"strings"
	"time"

	"posthaste/internal/adaptive"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/qmgr/sched"
)

// atGreeting is how an agent reports the reply of a host that refused before anything was said to it.
const atGreeting = " refused to talk to me: "

// readAsk adds what the reply that most recipients of a delivery got asks of the sender.
func (s *Server) readAsk(d *delivery, reply *proto.DeliverReply, res *sched.Result) {
	if len(reply.Outcomes) == 0 || !s.sched.Follows(d.transport) {
		return
	}
	// With several recipients it is what most of them got: one unknown mailbox among twenty is not about
	// how much is sent.
	answer, text := answerOf(reply.Outcomes)
	if answer.Accepted || answer.Code == 0 {
		return
	}
	// A connection that was refused is no reply, and says what it says without words: SiteFailed.
	greeting := !reply.SiteStatus.IsZero() && strings.Contains(reply.Outcomes[0].Reason, atGreeting)
	if res.Ask, res.After = adaptive.Read(answer.Code, text, greeting); res.Ask == adaptive.Nothing {
		return
	}
	// What is said of one recipient alone changes nothing, and is not kept. The rest is a stranger's
	// words, for logs and listings.
	said := strings.ToValidUTF8(text[:min(len(text), adaptive.MaxText)], "")
	res.Said = string(maillog.AppendClean(nil, []byte(said)))
}

// learntText is what "posthaste explain" says of what a destination's answers have taught; "" when there is
// nothing to say.
func learntText(l *sched.Learnt) string {
	if l == nil {
		return ""
	}
	var items []string
	// What is kept to, and then why.
	if l.Bad > 0 {
		items = append(items, fmt.Sprintf("%d at once were refused", l.Bad))
	}
	if !l.Pace.IsZero() {
		items = append(items, "pace "+l.Pace.String())
	}
	if !l.Rests.IsZero() {
		items = append(items, "rests until "+l.Rests.Format(time.DateTime))
	}
	if l.Why == adaptive.Nothing && len(items) == 0 {
		return "; it follows the answers, which ask for nothing"
	}
	// Why comes last, in brackets, with the host's own words, which are the longest part.
	text := "; it follows the answers: " + strings.Join(items, ", ")
	if l.Why != adaptive.Nothing {
		text = strings.TrimSuffix(text, " ") + fmt.Sprintf(" (%s, at %s", l.Why, l.At.Format(time.DateTime))
		if l.Text != "" {
			text += ": " + l.Text
		}
		text += ")"
	}
	return text
}
