package comeback

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/bounceclass"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// A farSuppress has the record of the return path that fakeSuppress has none of, or has none either.
type farSuppress struct {
	fakeSuppress
	has bool
}

func (f *farSuppress) ReturnPath(_ context.Context, q *proto.ReturnPath) (proto.ReturnPathReply, error) {
	if f.has && q.Address == "b+bare@bounces.example.org" {
		return proto.ReturnPathReply{QueueID: "Q1", Recipient: "joe@example.net", Recorded: true, List: "news", Bounced: f.bounced}, f.err
	}
	return proto.ReturnPathReply{Problem: "no mail is under the suppression list there"}, f.err
}

// What comes back to another node than the one that has sent the mail is taken in by that one, which has the record. While a node does not answer that may have
// it the report waits, for a day; what is recorded here asks nobody else.
func TestOtherNodes(t *testing.T) {
	t.Parallel()
	const bare, good = "b+bare@bounces.example.org", "b+good@bounces.example.org"
	down := errors.New("node b: it does not answer")
	for name, tt := range map[string]struct {
		to        string
		nodes     []*farSuppress
		age       time.Duration
		unknown   error // which nodes there are
		here      string
		far       string // what the last of nodes is told
		log       string
		deferring bool
	}{
		"recorded there":       {to: bare, nodes: []*farSuppress{{}, {has: true}}, far: "bounce news joe@example.net InvalidRecipient " + bare, log: "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), suppressed"},
		"again":                {to: bare, nodes: []*farSuppress{{}, {has: true, fakeSuppress: fakeSuppress{bounced: true}}}, log: "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), again"},
		"one is down":          {to: bare, nodes: []*farSuppress{{fakeSuppress: fakeSuppress{err: down}}, {has: true}}, far: "bounce news joe@example.net InvalidRecipient " + bare, log: "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), suppressed"},
		"recorded here":        {to: good, nodes: []*farSuppress{{fakeSuppress: fakeSuppress{err: down}}}, here: "bounce news joe@example.net InvalidRecipient " + good, log: "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), suppressed"},
		"recorded nowhere":     {to: bare, nodes: []*farSuppress{{}, {}}, log: "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), nothing is recorded of it"},
		"perhaps there":        {to: bare, nodes: []*farSuppress{{}, {fakeSuppress: fakeSuppress{err: down}}}, age: absence - time.Second, log: "whether another node has the record is not known: node b: it does not answer", deferring: true},
		"gone for a day":       {to: bare, nodes: []*farSuppress{{}, {fakeSuppress: fakeSuppress{err: down}}}, age: absence, log: "bounce of Q1 to joe@example.net: InvalidRecipient (550 5.1.1 no such user), nothing is recorded of it"},
		"no way to the others": {to: bare, unknown: errors.New("the queue manager is away"), log: "whether another node has the record is not known: the queue manager is away", deferring: true},
	} {
		cfg, err := config.LoadString("compatibility_level = 3.6\n")
		if err != nil {
			t.Fatal(err)
		}
		rules, err := bounceclass.Open([]string{bounceclass.Builtin})
		if err != nil {
			t.Fatal(err)
		}
		here := new(fakeSuppress)
		a := newAgent(cfg, here, nil)
		now := time.Unix(1_800_000_000, 0)
		a.now = func() time.Time { return now }
		a.others = func(context.Context) (list []suppressor, err error) {
			for _, n := range tt.nodes {
				list = append(list, n)
			}
			return list, tt.unknown
		}
		r := agent.NewTestRequest(mail.Envelope{Arrival: now.Add(-tt.age), Recipients: []mail.Recipient{{Address: tt.to}}}, "", []byte(notification(failed)), nil)
		r.Classify(rules)
		a.Deliver(t.Context(), r)
		far := ""
		if n := len(tt.nodes); n > 0 {
			far = strings.Join(tt.nodes[n-1].told, "; ")
		}
		if o := r.Outcomes()[0]; (o.Action == dsn.Deferred) != tt.deferring || o.Reason != tt.log || far != tt.far || strings.Join(here.told, "; ") != tt.here {
			t.Errorf("%s: %v\n log  %s\n want %s\n told here %q, there %q", name, o.Action, o.Reason, tt.log, here.told, far)
		}
	}
}
