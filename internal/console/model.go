package console

import (
	"time"

	"posthaste/internal/overview"
	"posthaste/internal/proto"
	"posthaste/internal/track"
)

// The types in this file are what pages show and the API answers. Their fields' comments are not:
// OpenAPI has their doc tags.

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
	Tenant     string      `json:"tenant,omitempty" doc:"Whose mail it is"`
	Campaign   string      `json:"campaign,omitempty" doc:"Of which mailing of the tenant"`
	Node       string      `json:"node,omitempty" doc:"Of a queue that nodes share: the one that has it"`
	NodeDown   bool        `json:"node_down,omitempty" doc:"That node is down, or no node has it for now"`
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
		Sender: it.Sender, User: it.SASLUser, Tenant: it.Tenant, Campaign: it.Campaign, Node: it.Node, NodeDown: it.Down, Recipients: []Recipient{}}
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
	Unread   []string  `json:"unread,omitempty" doc:"Nodes whose mail could not be listed, and why"`
	Next     int       `json:"next,omitempty" doc:"The cursor with which the list goes on, also when nothing was found so far; absent at the end"`
}

// An Explained is a message with what keeps it waiting.
type Explained struct {
	Message
	Explanation []string `json:"explanation" doc:"Why it is in the queue, in sentences"`
}

// A Destination is what there is to say about one.
type Destination struct {
	Name            string          `json:"name"`
	Explanation     []string        `json:"explanation" doc:"Window, feedback, backlog and last replies, in sentences"`
	Waits           *overview.Waits `json:"waits,omitempty" doc:"How long those have waited who wait, as the queue was counted last"`
	overview.Orders                 // those of this target
	// Destinations are the next hops.
	Destinations []overview.Destination `json:"destinations" doc:"The next hops that its mail goes to, in numbers: windows, and what their hosts answer"`
}

// Found is what a search of the log has found.
type Found struct {
	Messages []*track.Message `json:"messages"`
	Refusals []*track.Refusal `json:"refusals"`
	More     bool             `json:"more,omitempty" doc:"There is more: narrow the search"`
}
