package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/proto"
	"posthaste/internal/track"
)

// The types in this file are what pages show and the API answers. Their fields' comments are not: OpenAPI has their doc tags.

// A Message is one message in the queue.
type Message struct {
	ID         string      `json:"queue_id" doc:"The queue ID"`
	Queue      string      `json:"queue" doc:"incoming, active, deferred or hold"`
	Arrival    time.Time   `json:"arrival"`
	Next       *time.Time  `json:"next_attempt,omitempty" doc:"When it is tried next; only in the deferred queue"`
	Size       int64       `json:"size" doc:"Octets of its content"`
	Attempts   int         `json:"attempts"`
	Expiring   bool        `json:"expiring,omitempty" doc:"It is returned to its sender when it would be tried next"`
	Sender     string      `json:"sender" doc:"The envelope sender; empty is the null sender"`
	Client     string      `json:"client,omitempty" doc:"Name and address of the client that it came from"`
	User       string      `json:"sasl_username,omitempty" doc:"As whom the client had logged in"`
	Recipients []Recipient `json:"recipients" doc:"Those that have not got it yet"`
}

// A Recipient is one of a message.
type Recipient struct {
	Address   string `json:"address"`
	Original  string `json:"orig_address,omitempty" doc:"Before aliases, if it was another"`
	Why       string `json:"why,omitempty" doc:"What it waits for: a suspension, or what the last attempt came to"`
	Suspended string `json:"suspended,omitempty" doc:"The target of the suspension for which it is not tried"`
}

func message(it *proto.Item) Message {
	m := Message{ID: string(it.ID), Queue: it.Queue, Arrival: it.Arrival, Size: it.Size, Attempts: it.Attempts, Expiring: it.ForcedExpire,
		Sender: it.Sender, User: it.SASLUser, Recipients: []Recipient{}}
	if !it.Next.IsZero() {
		m.Next = &it.Next
	}
	if it.ClientAddr != "" {
		m.Client = it.Client + "[" + it.ClientAddr + "]"
	}
	for i := range it.Recipients {
		r := &it.Recipients[i]
		out := Recipient{Address: r.Address, Why: r.Why(), Suspended: r.Suspended}
		if r.Orig != r.Address {
			out.Original = r.Orig
		}
		m.Recipients = append(m.Recipients, out)
	}
	return m
}

// Messages are a page of a list.
type Messages struct {
	Messages []Message `json:"messages"`
	Next     int       `json:"next,omitempty" doc:"The cursor with which the list goes on; absent at the end"`
}

// An Explained is a message with what keeps it waiting.
type Explained struct {
	Message
	Explanation []string `json:"explanation" doc:"Why it is in the queue, in sentences"`
}

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

// A Destination is what there is to say about one.
type Destination struct {
	Name        string       `json:"name"`
	Explanation []string     `json:"explanation" doc:"Window, feedback, backlog and last replies, in sentences"`
	Suspensions []Suspension `json:"suspensions" doc:"Those of this target"`
}

// Found is what a search of the log has found.
type Found struct {
	Messages []*track.Message `json:"messages"`
	Refusals []*track.Refusal `json:"refusals"`
	More     bool             `json:"more,omitempty" doc:"There is more: narrow the search"`
}

// A ShapeRow is one domain.
type ShapeRow struct {
	Domain string                 `json:"domain" doc:"Empty is the null sender; names in parentheses are no domains"`
	Total  int64                  `json:"total"`
	Counts [history.Buckets]int64 `json:"counts" doc:"By age: up to 5, 10, 20, 40, 80, 160, 320, 640 and 1280 minutes, and more"`
}

// A Shape is how the mail is spread over domains and age: recipients by their domains, or messages by the sender's.
type Shape struct {
	At      time.Time  `json:"at" doc:"When the sample was taken"`
	Queues  []string   `json:"queues"`
	Senders bool       `json:"senders"`
	Total   ShapeRow   `json:"total"`
	Rows    []ShapeRow `json:"rows" doc:"The largest first"`
	Others  int        `json:"others,omitempty" doc:"How many domains without a row are in the row (others)"`
}

// othersName is the row of the domains without one.
const othersName = "(others)"

// shape makes the table of some queues, of at most top rows.
func shape(s *history.Sample, queues []string, senders bool, top int) *Shape {
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
		out.Rows = append(out.Rows, ShapeRow{othersName, others.Sum(), others})
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

// oldest says how old the oldest in a row is.
func oldest(c *history.Counts) string {
	for i := history.Buckets - 1; i >= 0; i-- {
		switch {
		case c[i] == 0:
		case i == 0:
			return "under 5 min"
		default:
			return "over " + span(history.Tick<<(i-1))
		}
	}
	return ""
}

// span is a time in words: 40 min, 5 h, 2 d.
func span(d time.Duration) string {
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

// number is a count with its thousands apart: 4,310.
func number(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
