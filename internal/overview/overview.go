// Package overview describes the queue at a glance: how many messages are in each queue, for
// which domains most mail waits and why, and what is suspended or limited. The console's pages, its API and
// "posthaste top" show this in the same words.
//
// The texts have names of domains and replies of other hosts, unchanged: whoever shows them must
// escape them.
package overview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/ipc"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
)

const (
	// worst is how many domains a glance names.
	worst = 8
	// whyLines is how many sentences each of them has.
	whyLines = 4
)

// A Suspension is mail that is not tried for now.
type Suspension struct {
	Target  string     `json:"target" doc:"As posthaste suspended prints it"`
	Name    string     `json:"name" doc:"The same in words"`
	By      string     `json:"by"`
	Reason  string     `json:"reason,omitempty"`
	Since   time.Time  `json:"since"`
	Until   *time.Time `json:"until,omitempty" doc:"Absent: until it is resumed"`
	Waiting int        `json:"waiting" doc:"Deferred messages that wait for it, as far as they have come up since it began"`
}

// A Limit is what an operator has set of a destination's concurrency for now.
type Limit struct {
	Target       string     `json:"target" doc:"The destination, as posthaste limited prints it"`
	Most         int        `json:"limit" doc:"Deliveries at once"`
	Raises       bool       `json:"raises" doc:"It counts even where main.cf allows less"`
	By           string     `json:"by"`
	Reason       string     `json:"reason,omitempty"`
	Since        time.Time  `json:"since"`
	Until        *time.Time `json:"until,omitempty" doc:"Absent: until it is lifted"`
	Destinations int        `json:"destinations" doc:"How many destinations in the queue manager's memory keep to it"`
	Busy         int        `json:"under_way" doc:"Deliveries to these under way"`
	Todo         int        `json:"waiting" doc:"Deliveries to these that wait"`
}

// A ShapeRow is one domain.
type ShapeRow struct {
	Domain string                 `json:"domain" doc:"Empty is the null sender; names in parentheses are no domains"`
	Total  int64                  `json:"total"`
	Counts [history.Buckets]int64 `json:"counts" doc:"By age: up to 5, 10, 20, 40, 80, 160, 320, 640 and 1280 minutes, and more"`
}

// A Shape is how the mail is spread over domains and age: recipients by their domains, or
// messages by the sender's.
type Shape struct {
	At      time.Time  `json:"at" doc:"When the sample was taken"`
	Queues  []string   `json:"queues"`
	Senders bool       `json:"senders"`
	Total   ShapeRow   `json:"total"`
	Rows    []ShapeRow `json:"rows" doc:"The largest first"`
	Others  int        `json:"others,omitempty" doc:"How many domains without a row are in the row (others)"`
}

// OthersName is the row of the domains without one.
const OthersName = "(others)"

// Table makes the table of some queues, of at most top rows.
func Table(s *history.Sample, queues []string, senders bool, top int) *Shape {
	out := &Shape{At: s.At, Queues: queues, Senders: senders, Rows: []ShapeRow{}}
	sums := make(map[string]*history.Counts)
	var others history.Counts
	for i := range s.Tables {
		t := &s.Tables[i]
		if t.Senders != senders || !slices.Contains(queues, t.Queue) {
			continue
		}
		for j := range t.Rows {
			name := strings.Trim(t.Rows[j].Domain, ".")
			if sums[name] == nil {
				sums[name] = new(history.Counts)
			}
			sums[name].Add(&t.Rows[j].Counts)
		}
		others.Add(&t.Others)
		out.Others += t.Names
	}
	for name, c := range sums {
		out.Rows = append(out.Rows, ShapeRow{name, c.Sum(), *c})
	}
	slices.SortFunc(out.Rows, func(a, b ShapeRow) int { return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Domain, b.Domain)) })
	for _, r := range out.Rows[min(top, len(out.Rows)):] {
		c := history.Counts(r.Counts)
		others.Add(&c)
		out.Others++
	}
	out.Rows = out.Rows[:min(top, len(out.Rows))]
	if out.Others > 0 {
		out.Rows = append(out.Rows, ShapeRow{OthersName, others.Sum(), others})
	}
	var total history.Counts
	for i := range out.Rows {
		c := history.Counts(out.Rows[i].Counts)
		total.Add(&c)
	}
	out.Total = ShapeRow{"", total.Sum(), total}
	return out
}

// A Now is the state of the queue at a glance.
type Now struct {
	At          time.Time    `json:"at" doc:"When the queue was counted"`
	Queues      []QueueState `json:"queues"`
	Hurts       []Hurt       `json:"hurts" doc:"The domains with the most mail that waits, the worst first"`
	Suspensions []Suspension `json:"suspensions"`
	Limits      []Limit      `json:"limits" doc:"What operators have set of destinations for now"`
}

// A QueueState is one queue.
type QueueState struct {
	Queue    string `json:"queue"`
	Messages int64  `json:"messages"`
	Oldest   string `json:"oldest" doc:"How old the oldest message is, in words"`
}

// A Hurt is a domain that mail waits for.
type Hurt struct {
	Domain  string   `json:"domain"`
	Waiting int64    `json:"waiting" doc:"Recipients that wait, in the deferred and the active queue"`
	Oldest  string   `json:"oldest" doc:"How old the oldest is, in words"`
	Why     []string `json:"why" doc:"What keeps them waiting, in sentences"`
}

// Oldest says how old the oldest in a row is.
func Oldest(c *history.Counts) string {
	for i := history.Buckets - 1; i >= 0; i-- {
		switch {
		case c[i] == 0:
		case i == 0:
			return "under 5 min"
		default:
			return "over " + Span(history.Tick<<(i-1))
		}
	}
	return ""
}

// Span is a time in words: 40 min, 5 h, 2 d.
func Span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d d", d/(24*time.Hour))
}

// Number is a count with its thousands apart: 4,310.
func Number(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Glance makes the state at a glance of a sample.
func Glance(s *history.Sample) *Now {
	n := &Now{At: s.At, Queues: []QueueState{}, Hurts: []Hurt{}}
	for _, q := range history.Queues {
		t := Table(s, []string{q}, true, history.MaxRows)
		c := history.Counts(t.Total.Counts)
		n.Queues = append(n.Queues, QueueState{q, t.Total.Total, Oldest(&c)})
	}
	for _, r := range Table(s, []string{"deferred", "active"}, false, history.MaxRows).Rows {
		if strings.HasPrefix(r.Domain, "(") || len(n.Hurts) == worst {
			continue
		}
		c := history.Counts(r.Counts)
		n.Hurts = append(n.Hurts, Hurt{Domain: r.Domain, Waiting: r.Total, Oldest: Oldest(&c), Why: []string{}})
	}
	return n
}

// See counts the queue, and asks what keeps the mail of the domains waiting that most mail waits
// for.
func See(ctx context.Context, conn *ipc.Conn, now time.Time) (*history.Sample, *Now, error) {
	s, err := history.Take(ctx, conn, now)
	if err != nil {
		return nil, nil, err
	}
	n := Glance(s)
	for i := range n.Hurts {
		if n.Hurts[i].Why, err = why(ctx, conn, n.Hurts[i].Domain); err != nil {
			return nil, nil, err
		}
	}
	n.Suspensions, n.Limits, err = Overrides(ctx, conn)
	return s, n, err
}

// why is what keeps mail for a domain waiting. A name that is no destination has nothing.
func why(ctx context.Context, conn *ipc.Conn, domain string) ([]string, error) {
	list := []string{}
	if _, err := selection.ParseDestination(domain); err != nil {
		return list, nil
	}
	var reply proto.ExplainReply
	if err := conn.Call(ctx, &proto.Explain{Destination: domain}, &reply); err != nil {
		return nil, fmt.Errorf("ask the queue manager: %w", err)
	}
	for _, line := range reply.Lines[min(1, len(reply.Lines)):min(len(reply.Lines), 1+whyLines)] {
		list = append(list, strings.TrimSpace(line))
	}
	return list, nil
}

// Overrides are the suspensions in force, with how many deferred messages wait for each, and the
// limits, with what keeps to each.
func Overrides(ctx context.Context, conn *ipc.Conn) ([]Suspension, []Limit, error) {
	var reply proto.OverrideReply
	if err := conn.Call(ctx, &proto.Override{Op: proto.OverrideList}, &reply); err != nil {
		return nil, nil, fmt.Errorf("ask the queue manager: %w", err)
	}
	if reply.Refused != "" {
		return nil, nil, errors.New(reply.Refused)
	}
	suspensions, limits := []Suspension{}, []Limit{}
	for i := range reply.Entries {
		e := &reply.Entries[i]
		var until *time.Time
		if !e.Until.IsZero() {
			until = &e.Until
		}
		switch {
		case e.Of == string(override.Suspension) && i < len(reply.Waiting):
			s := Suspension{Target: e.Target, Name: e.Target, By: e.By, Reason: e.Reason, Since: e.Since, Until: until, Waiting: reply.Waiting[i]}
			if t, err := selection.ParseTarget(e.Target); err == nil {
				s.Name = t.Name()
			}
			suspensions = append(suspensions, s)
		case e.Of == string(override.Limit) && i < len(reply.Uses):
			u := &reply.Uses[i]
			limits = append(limits, Limit{Target: e.Target, Most: e.Most, Raises: e.Raises, By: e.By, Reason: e.Reason, Since: e.Since, Until: until,
				Destinations: u.Destinations, Busy: u.Busy, Todo: u.Todo})
		}
	}
	return suspensions, limits, nil
}
