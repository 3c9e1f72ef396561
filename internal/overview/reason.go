package overview

import (
	"fmt"
	"strings"
	"time"

	"posthaste/internal/proto"
	"posthaste/internal/replyshare"
	"posthaste/internal/selection"
)

// A Destination is where mail goes, in numbers: its window, and what its hosts answer.
type Destination struct {
	Node      string     `json:"node,omitempty" doc:"Of a queue that nodes share: the one of which this is"`
	Transport string     `json:"transport"`
	Nexthop   string     `json:"nexthop"`
	State     string     `json:"state,omitempty" doc:"ready, dead, or suspended (for a rate delay); absent: nothing is delivered there now"`
	Until     *time.Time `json:"until,omitempty" doc:"Of a destination that is dead or suspended"`
	Why       string     `json:"why,omitempty" doc:"The reply for which it is dead"`
	Window    int        `json:"window" doc:"How many deliveries may be under way"`
	Limit     int        `json:"limit,omitempty" doc:"The largest window; absent: there is no limit"`
	Set       bool       `json:"limit_set,omitempty" doc:"An operator has set it"`
	Busy      int        `json:"under_way" doc:"Deliveries under way"`
	Todo      int        `json:"waiting" doc:"Deliveries that wait"`
	Minutes   int        `json:"minutes" doc:"What follows is of so many minutes"`
	Sessions  int        `json:"sessions" doc:"Deliveries of a message that were tried"`
	Others    int        `json:"other_sessions,omitempty" doc:"Those that are in none of the replies"`
	Replies   []Reply    `json:"replies" doc:"What the hosts said, the most frequent first"`
	// The next two are only there where they were asked for.
	Course     []Minute   `json:"course,omitempty" doc:"How it has fared by the minute, in the last two hours, the earliest first; a minute in which no session ended is not there"`
	Securities []Security `json:"securities,omitempty" doc:"How its connections were secured, seen last first"`
}

// A Minute is one of a destination. Feedback is in hundredths of a step of the window.
type Minute struct {
	At       time.Time `json:"at" doc:"When it began"`
	Window   int       `json:"window" doc:"How many deliveries might be under way"`
	Limit    int       `json:"limit,omitempty" doc:"The largest window; absent: there was no limit"`
	Busy     int       `json:"under_way"`
	Todo     int       `json:"waiting"`
	Positive int       `json:"positive_feedback" doc:"At 100 the window grows"`
	Negative int       `json:"negative_feedback" doc:"At 100 the window shrinks"`
	Sessions int       `json:"sessions" doc:"Those that ended"`
	Away     int       `json:"turned_away" doc:"Those of them in which the destination took no part, or wanted less"`
	Opened   int       `json:"connections" doc:"Opened, or tried to"`
	Took     int64     `json:"milliseconds" doc:"How long a session took, on average"`
}

// A Security is how some connections were secured.
type Security struct {
	Text        string    `json:"text" doc:"Protocol, cipher, certificate and policy, in words"`
	Connections int       `json:"connections"`
	Last        time.Time `json:"last" doc:"When the last of them was used for the first time"`
}

// A Reply is what hosts said to some of the sessions.
type Reply struct {
	Percent  int       `json:"percent" doc:"Of the sessions, rounded"`
	Sessions int       `json:"sessions"`
	Accepted bool      `json:"accepted,omitempty"`
	Code     int       `json:"code,omitempty" doc:"Of SMTP; absent: no host has answered, or the message was accepted"`
	Status   string    `json:"status,omitempty" doc:"RFC 3463"`
	Text     string    `json:"text,omitempty" doc:"The words, with * for numbers, addresses, names and IDs"`
	Example  string    `json:"example,omitempty" doc:"One of the replies"`
	Last     time.Time `json:"last" doc:"When the last of the sessions ended"`
}

// Said is what was said, in one line.
func (r *Reply) Said() string {
	if r.Accepted {
		return "accepted"
	}
	return strings.Join(strings.Fields(fmt.Sprint(r.code(), " ", r.Text)), " ")
}

// code is the code and the status code; empty when no host has answered.
func (r *Reply) code() string {
	if r.Code == 0 {
		return r.Status
	}
	return strings.TrimSpace(fmt.Sprint(r.Code, " ", r.Status))
}

// Destinations are those in an answer of the queue manager's.
func Destinations(reply *proto.ExplainReply) []Destination {
	list := []Destination{}
	for i := range reply.Dests {
		d := &reply.Dests[i]
		out := Destination{Transport: d.Transport, Nexthop: d.Nexthop, State: d.State, Why: d.Why, Window: d.Window, Limit: d.Limit, Set: d.Set, Busy: d.Busy, Todo: d.Todo,
			Minutes: int(d.Span / time.Minute), Sessions: d.Sessions, Others: d.Others, Replies: []Reply{}}
		if !d.Until.IsZero() {
			out.Until = &d.Until
		}
		shares := replyshare.Shares{Sessions: d.Sessions}
		for j := range d.Replies {
			g := &d.Replies[j]
			out.Replies = append(out.Replies, Reply{shares.Percent(g.Sessions), g.Sessions, g.Accepted, g.Code, g.Status, g.Text, g.Example, g.Last})
		}
		for _, m := range d.Course {
			out.Course = append(out.Course, Minute{m.At, m.Window, m.Limit, m.Busy, m.Todo, m.Positive, m.Negative, m.Sessions, m.Away, m.Opened, m.Took.Milliseconds() / int64(max(m.Sessions, 1))})
		}
		for _, s := range d.Securities {
			out.Securities = append(out.Securities, Security(s))
		}
		list = append(list, out)
	}
	return list
}

// reason says in one line what is wrong with a domain's mail: "answers 421 4.7.0 to 83 % of
// sessions; window 2 of 20; 4,310 recipients wait, the oldest for 3 h".
func reason(h *Hurt, suspensions []Suspension) string {
	var parts []string
	for i := range suspensions {
		s := &suspensions[i]
		if t, err := selection.ParseTarget(s.Target); err == nil && t.Place(h.Domain) {
			parts = append(parts, "suspended by "+s.By)
			break
		}
	}
	if d := busiest(h.Destinations); d != nil {
		parts = append(parts, d.answers(h.Domain)...)
	}
	waits := fmt.Sprintf("%s recipients wait", Number(h.Waiting))
	if h.Waiting == 1 {
		waits = "1 recipient waits"
	}
	if h.Oldest != "" {
		waits += ", the oldest for " + h.Oldest
	}
	return strings.Join(append(parts, waits), "; ")
}

// busiest is the destination that says most about the mail; nil: there is none.
func busiest(list []Destination) (best *Destination) {
	weight := func(d *Destination) int { return d.Sessions + d.Busy + d.Todo }
	for i := range list {
		if d := &list[i]; best == nil || weight(d) > weight(best) {
			best = d
		}
	}
	return best
}

// answers is what a destination's hosts answer, and its window. Where these are of a relay host it
// is named.
func (d *Destination) answers(domain string) (parts []string) {
	who := ""
	if !strings.EqualFold(d.Nexthop, domain) {
		who = d.Nexthop + " "
	}
	if said := d.worst(); said != "" {
		parts = append(parts, who+said)
		who = ""
	}
	switch d.State {
	case "dead":
		text := who + "considered dead"
		if d.Until != nil {
			text += " until " + d.Until.Local().Format(time.TimeOnly)
		}
		parts = append(parts, text)
	case "suspended":
		parts = append(parts, who+"pauses after each delivery")
	case "ready":
		text := fmt.Sprintf("%swindow %d", who, d.Window)
		if d.Limit > 0 {
			text += fmt.Sprintf(" of %d", d.Limit)
		}
		if d.Set {
			text += ", by posthaste limit"
		}
		parts = append(parts, text)
	}
	return parts
}

// worst is the failure that most sessions met, by its codes: what it says besides may be worded in
// several ways. Empty: there were no sessions.
func (d *Destination) worst() string {
	if d.Sessions == 0 {
		return ""
	}
	var worst *Reply
	counts := map[string]int{}
	for i := range d.Replies {
		r := &d.Replies[i]
		if r.Accepted {
			continue
		}
		counts[r.code()] += r.Sessions
		if worst == nil || counts[r.code()] > counts[worst.code()] {
			worst = r
		}
	}
	shares := replyshare.Shares{Sessions: d.Sessions}
	switch {
	case worst == nil && d.Others == 0:
		return "accepts all mail"
	case worst == nil:
		return fmt.Sprintf("refuses %d %% of sessions", shares.Percent(d.Others))
	case worst.Code == 0:
		return fmt.Sprintf("fails in %d %% of sessions: %s", shares.Percent(counts[worst.code()]), worst.Said())
	}
	return fmt.Sprintf("answers %s to %d %% of sessions", worst.code(), shares.Percent(counts[worst.code()]))
}
