// Package overview describes the queue at a glance: how many messages are in each queue, how many
// come and go, for which domains mail waits longest and why, and what operators have suspended, limited, diverted or have returned. The console's pages, its API and
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
	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
)

const (
	// worst is how many domains a glance names.
	worst = 8
	// whyLines is how many sentences each of them has.
	whyLines = 6
	// mostTenants is how many tenants a glance names.
	mostTenants = 5
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

// A Diversion is mail that goes by another next hop for now.
type Diversion struct {
	Target  string     `json:"target" doc:"As posthaste diverted prints it"`
	Name    string     `json:"name" doc:"The same in words"`
	Nexthop string     `json:"nexthop" doc:"Where the mail goes instead: nexthop, transport:nexthop or transport:"`
	By      string     `json:"by"`
	Reason  string     `json:"reason,omitempty"`
	Since   time.Time  `json:"since"`
	Until   *time.Time `json:"until,omitempty" doc:"Absent: until it is ended"`
}

// A Return is mail that is returned to its senders for now.
type Return struct {
	Target string     `json:"target" doc:"As posthaste bounced prints it"`
	Name   string     `json:"name" doc:"The same in words"`
	By     string     `json:"by" doc:"A user, or automation: a rule of shaping_files"`
	Reason string     `json:"reason,omitempty"`
	Since  time.Time  `json:"since"`
	Until  *time.Time `json:"until,omitempty"`
}

// Orders are what operators have ordered for now.
type Orders struct {
	Suspensions []Suspension `json:"suspensions"`
	Limits      []Limit      `json:"limits" doc:"Of destinations"`
	Diversions  []Diversion  `json:"diversions" doc:"To other next hops"`
	Returns     []Return     `json:"returns,omitempty" doc:"Mail that is returned to its senders; absent: none is"`
}

// NoOrders are none.
func NoOrders() Orders {
	return Orders{Suspensions: []Suspension{}, Limits: []Limit{}, Diversions: []Diversion{}}
}

// Of are those of one target.
func (o *Orders) Of(target string) Orders {
	out := NoOrders()
	for _, s := range o.Suspensions {
		if strings.EqualFold(s.Target, target) {
			out.Suspensions = append(out.Suspensions, s)
		}
	}
	for _, l := range o.Limits {
		if strings.EqualFold(l.Target, target) {
			out.Limits = append(out.Limits, l)
		}
	}
	for _, d := range o.Diversions {
		if strings.EqualFold(d.Target, target) {
			out.Diversions = append(out.Diversions, d)
		}
	}
	for _, r := range o.Returns {
		if strings.EqualFold(r.Target, target) || strings.EqualFold(r.Target, "domain="+target) {
			out.Returns = append(out.Returns, r)
		}
	}
	return out
}

// A ShapeRow is one domain.
type ShapeRow struct {
	Domain string                 `json:"domain" doc:"Empty is the null sender; names in parentheses are no domains"`
	Total  int64                  `json:"total"`
	Counts [history.Buckets]int64 `json:"counts" doc:"By age: up to 5, 10, 20, 40, 80, 160, 320, 640 and 1280 minutes, and more"`
}

// A Side is what is counted.
type Side string

// The sides: recipients by their domains, messages by the sender's domain, messages by the next hop, or
// the transport, that they wait for, and messages by their tenant, the egress source that they wait
// for, or their campaign (TENANT/CAMPAIGN): those that have one.
const (
	ByRecipient Side = "recipient"
	BySender    Side = "sender"
	ByNexthop   Side = "nexthop"
	ByTransport Side = "transport"
	ByTenant    Side = "tenant"
	BySource    Side = "source"
	ByCampaign  Side = "campaign"
)

// Sides are all of them.
var Sides = []Side{ByRecipient, BySender, ByNexthop, ByTransport, ByTenant, BySource, ByCampaign}

// of says whether a table is of a side.
func (side Side) of(t *history.Table) bool {
	switch side {
	case BySender:
		return t.Senders
	case ByNexthop, ByTransport:
		return t.Hops
	case ByTenant:
		return t.Tenants
	case BySource:
		return t.Sources
	case ByCampaign:
		return t.Campaigns
	}
	return t.Domains()
}

// name is what a row is called that a sample has under another name.
func (side Side) name(row string) string {
	if side == ByTransport {
		row, _, _ = strings.Cut(row, ":")
	}
	if side == ByRecipient || side == BySender {
		row = strings.Trim(row, ".")
	}
	return row
}

// A Shape is how the mail is spread over domains, next hops or transports, and age.
type Shape struct {
	At      time.Time  `json:"at" doc:"When the sample was taken"`
	Queues  []string   `json:"queues"`
	Side    Side       `json:"side" doc:"What is counted: recipient, recipients by their domains; sender, messages by the sender's; nexthop, transport and source, messages by what they wait for; tenant, messages by their tenant"`
	Senders bool       `json:"senders" doc:"The side is sender"`
	Total   ShapeRow   `json:"total"`
	Rows    []ShapeRow `json:"rows" doc:"The largest first"`
	Others  int        `json:"others,omitempty" doc:"How many domains without a row are in the row (others)"`
	// Of a queue that nodes share.
	Nodes   []string `json:"nodes,omitempty" doc:"The nodes whose mail is counted, where several share the queue: of an earlier time this one alone"`
	Missing []string `json:"missing_nodes,omitempty" doc:"Those that are down or do not answer: their mail is not counted"`
}

// OthersName is the row of the domains without one.
const OthersName = "(others)"

// Table makes the table of some queues, of at most top rows.
func Table(s *history.Sample, queues []string, side Side, top int) *Shape {
	out := &Shape{At: s.At, Queues: queues, Side: side, Senders: side == BySender, Rows: []ShapeRow{}}
	sums := make(map[string]*history.Counts)
	var others history.Counts
	for i := range s.Tables {
		t := &s.Tables[i]
		if !side.of(t) || !slices.Contains(queues, t.Queue) {
			continue
		}
		for j := range t.Rows {
			name := side.name(t.Rows[j].Domain)
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
	At     time.Time    `json:"at" doc:"When the queue was counted"`
	Queues []QueueState `json:"queues"`
	Rates  *Rates       `json:"rates,omitempty" doc:"What came in and went out; absent while it is not known"`
	Hurts  []Hurt       `json:"hurts" doc:"The domains whose mail has waited longest, all together, the worst first"`
	// Tenants are those with most mail, the one with most first. nil: no mail has one.
	Tenants []Tenant `json:"tenants,omitempty" doc:"Those with most mail that waits, the one with most first"`
	// Providers are nil where no mail went to any.
	Providers      []Provider `json:"providers,omitempty" doc:"How providers took mail in the last 24 hours, and what came back of it: the ten with most mail, those that complain of more than one in a thousand first"`
	ProvidersFault string     `json:"providers_problem,omitempty" doc:"Why the numbers of providers are not those of all mail"`
	// Of a queue that nodes share.
	Nodes   []string `json:"nodes,omitempty" doc:"The nodes whose mail is counted, where several share the queue; this one first"`
	Missing []string `json:"missing_nodes,omitempty" doc:"Those that are down or do not answer: their mail is not counted"`
	Orders
}

// A Tenant is whose mail waits.
type Tenant struct {
	Name    string   `json:"tenant"`
	Waiting int64    `json:"waiting" doc:"Messages, as far as they were counted"`
	Oldest  string   `json:"oldest,omitempty" doc:"How old the oldest is"`
	Why     []string `json:"why,omitempty" doc:"What there is of it, and what holds for it, in sentences"`
}

// Rates are what came in and went out just now, by the minute.
type Rates struct {
	history.Rates
	Seconds int `json:"seconds" doc:"Over how long a time"`
}

// RatesOf are the rates between two samples; nil where they are not known.
func RatesOf(before, now *history.Sample) *Rates {
	if before == nil || now == nil {
		return nil
	}
	if r, ok := history.RatesBetween(before, now); ok {
		return &Rates{r, int(now.At.Sub(before.At) / time.Second)}
	}
	return nil
}

// RatesOfAll are those of all nodes together, by what each of them said before and says now; nil as long as those of one are not
// known.
func RatesOfAll(before, now []Sampled) *Rates {
	all := new(Rates)
	for _, n := range now {
		i := slices.IndexFunc(before, func(s Sampled) bool { return s.Node == n.Node })
		if i < 0 {
			return nil // a node that was missing begins anew
		}
		r := RatesOf(before[i].Sample, n.Sample)
		if r == nil {
			return nil
		}
		all.Add(r)
	}
	return all
}

// Add adds those of another node.
func (r *Rates) Add(other *Rates) {
	r.In, r.Sent, r.Deferred, r.Bounced = r.In+other.In, r.Sent+other.Sent, r.Deferred+other.Deferred, r.Bounced+other.Bounced
	r.Seconds = max(r.Seconds, other.Seconds)
}

// A QueueState is one queue.
type QueueState struct {
	Queue    string `json:"queue"`
	Messages int64  `json:"messages"`
	Oldest   string `json:"oldest" doc:"How old the oldest message is, in words"`
}

// A Hurt is a domain that mail waits for.
type Hurt struct {
	Domain       string        `json:"domain"`
	Reason       string        `json:"reason" doc:"What is wrong, in one line: what its hosts answer, its window, how much waits"`
	Waiting      int64         `json:"waiting" doc:"Recipients that wait, in the deferred and the active queue"`
	Oldest       string        `json:"oldest" doc:"How old the oldest is, in words"`
	Why          []string      `json:"why" doc:"What keeps them waiting, in sentences"`
	Destinations []Destination `json:"destinations" doc:"That its mail goes to, in numbers"`
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
		t := Table(s, []string{q}, BySender, history.MaxRows)
		c := history.Counts(t.Total.Counts)
		n.Queues = append(n.Queues, QueueState{q, t.Total.Total, Oldest(&c)})
	}
	rows := Table(s, []string{"deferred", "active"}, ByRecipient, history.MaxRows).Rows
	slices.SortStableFunc(rows, func(a, b ShapeRow) int { return cmp.Compare(waited(&b.Counts), waited(&a.Counts)) })
	for _, r := range rows {
		if strings.HasPrefix(r.Domain, "(") || len(n.Hurts) == worst {
			continue
		}
		c := history.Counts(r.Counts)
		h := Hurt{Domain: r.Domain, Waiting: r.Total, Oldest: Oldest(&c), Why: []string{}, Destinations: []Destination{}}
		h.Reason = reason(&h, nil)
		n.Hurts = append(n.Hurts, h)
	}
	for _, r := range Table(s, []string{"incoming", "active", "deferred"}, ByTenant, mostTenants).Rows {
		if mail.GroupName(r.Domain) { // else it is that of all others, or of none
			c := history.Counts(r.Counts)
			n.Tenants = append(n.Tenants, Tenant{Name: r.Domain, Waiting: r.Total, Oldest: Oldest(&c)})
		}
	}
	return n
}

// waited is for how many minutes the recipients of a row have waited at least, all together: what
// is delivered as it comes has waited for nothing, however much it is.
func waited(c *[history.Buckets]int64) (minutes int64) {
	for i := 1; i < history.Buckets; i++ {
		minutes += c[i] * int64(history.Tick/time.Minute<<(i-1))
	}
	return minutes
}

// Overrides are the orders in force: suspensions with how many deferred messages wait for each,
// limits with what keeps to each, and diversions.
func Overrides(ctx context.Context, conn history.Manager) (Orders, error) {
	out := NoOrders()
	var reply proto.OverrideReply
	if err := conn.Call(ctx, &proto.Override{Op: proto.OverrideList}, &reply); err != nil {
		return out, fmt.Errorf("ask the queue manager: %w", err)
	}
	if reply.Refused != "" {
		return out, errors.New(reply.Refused)
	}
	for i := range reply.Entries {
		e := &reply.Entries[i]
		var until *time.Time
		if !e.Until.IsZero() {
			until = &e.Until
		}
		name := e.Target
		if t, err := selection.ParseTarget(e.Target); err == nil {
			name = t.Name()
		}
		switch {
		case e.Of == string(override.Suspension) && i < len(reply.Waiting):
			out.Suspensions = append(out.Suspensions, Suspension{Target: e.Target, Name: name, By: e.By, Reason: e.Reason, Since: e.Since, Until: until, Waiting: reply.Waiting[i]})
		case e.Of == string(override.Limit) && i < len(reply.Uses):
			u := &reply.Uses[i]
			out.Limits = append(out.Limits, Limit{Target: e.Target, Most: e.Most, Raises: e.Raises, By: e.By, Reason: e.Reason, Since: e.Since, Until: until,
				Destinations: u.Destinations, Busy: u.Busy, Todo: u.Todo})
		case e.Of == string(override.Diversion):
			out.Diversions = append(out.Diversions, Diversion{Target: e.Target, Name: name, Nexthop: e.Nexthop, By: e.By, Reason: e.Reason, Since: e.Since, Until: until})
		case e.Of == string(override.Return):
			out.Returns = append(out.Returns, Return{Target: e.Target, Name: name, By: e.By, Reason: e.Reason, Since: e.Since, Until: until})
		}
	}
	return out, nil
}
