package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

// observed is a log whose lines of deliveries are kept.
func observed() (log *maillog.Logger, list func() []maillog.Delivery) {
	var got []maillog.Delivery
	log = maillog.New("smtp", new(logLines))
	log.Observe(func(_ maillog.Level, _ bool, e maillog.Event) {
		if d, ok := e.(*maillog.Delivery); ok {
			got = append(got, *d)
		}
	})
	return log, func() []maillog.Delivery { return got }
}

// What an agent says becomes this outcome and this word in the log: the class of the status follows the action, a probe
// only finds out, and soft_bounce has a failure tried again, but not what a probe has found.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		soft   bool
		trace  mail.Trace
		action dsn.Action // 0: sent
		status dsn.Status
		want   dsn.Action
		is     dsn.Status
		word   string
	}{
		{action: 0, status: dsn.S(2, 0, 0), want: dsn.Delivered, is: dsn.S(2, 0, 0), word: "sent"},
		{action: dsn.Deferred, status: dsn.S(5, 2, 1), want: dsn.Deferred, is: dsn.S(4, 2, 1), word: "deferred"},
		{action: dsn.Failed, status: dsn.S(4, 2, 1), want: dsn.Failed, is: dsn.S(5, 2, 1), word: "bounced"},
		{soft: true, action: 0, status: dsn.S(2, 0, 0), want: dsn.Delivered, is: dsn.S(2, 0, 0), word: "sent"},
		{soft: true, action: dsn.Deferred, status: dsn.S(4, 2, 1), want: dsn.Deferred, is: dsn.S(4, 2, 1), word: "deferred"},
		{soft: true, action: dsn.Failed, status: dsn.S(5, 2, 1), want: dsn.Deferred, is: dsn.S(4, 2, 1), word: "SOFTBOUNCE"},
		{soft: true, trace: mail.TraceProbe, action: dsn.Failed, status: dsn.S(5, 2, 1), want: dsn.Undeliverable, is: dsn.S(5, 2, 1), word: "undeliverable"},
		{trace: mail.TraceProbe, action: dsn.Deferred, status: dsn.S(4, 2, 1), want: dsn.Undeliverable, is: dsn.S(4, 2, 1), word: "undeliverable"},
		{trace: mail.TraceReport, action: 0, status: dsn.S(2, 0, 0), want: dsn.Deliverable, is: dsn.S(2, 0, 0), word: "deliverable"},
		{trace: mail.TraceRecord, action: dsn.Failed, status: dsn.S(5, 2, 1), want: dsn.Failed, is: dsn.S(5, 2, 1), word: "bounced"},
	} {
		log, lines := observed()
		r := NewTestRequest(mail.Envelope{ID: "Q", Trace: x.trace, Recipients: make([]mail.Recipient, 2)}, "b.test", nil, log)
		r.env.softBounce = x.soft
		switch x.action {
		case 0:
			r.Sent(1, x.status, "text", Detail{})
		case dsn.Deferred:
			r.Defer(1, x.status, "text", Detail{})
		default:
			r.Bounce(1, x.status, "text", Detail{})
		}
		o := r.Outcomes()[1]
		if o.Action != x.want || o.Status != x.is || o.Rcpt != 1 || o.Reason != "text" || o.Relay != "none" || o.When.IsZero() {
			t.Errorf("%+v: %+v", x, o)
		}
		if r.Pending(1) || !r.Pending(0) || r.Deferred(1) != (x.want == dsn.Deferred) {
			t.Errorf("%+v: pending %v and %v, deferred %v", x, r.Pending(0), r.Pending(1), r.Deferred(1))
		}
		if l := lines(); len(l) != 1 || l[0].Status != x.word || l[0].DSN != x.is {
			t.Errorf("%+v: logged %+v", x, l)
		}
	}
}

// The line of a delivery has what the order and the agent say, each in its place, and nothing of the line before.
func TestDeliveryLine(t *testing.T) {
	t.Parallel()
	log, lines := observed()
	arrival := time.Now().Add(-time.Hour)
	order := &proto.Deliver{Nexthop: "hop", Index: []int{4, 7, 9}, Active: arrival.Add(time.Minute), Attempt: 3, Source: "src", Spec: "address=192.0.2.1", Advice: "slow",
		Session: 5, Keep: time.Second, Most: 6, CacheLoad: true, CacheKeep: true,
		Envelope: mail.Envelope{ID: "Q", Sender: "s@from.test", Arrival: arrival, MessageID: "<m@x>", EnvID: "env", Tenant: "shop", Campaign: "spring", Size: 77,
			Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test", Original: "alias@to.test"}, {Address: "c@to.test"}}}}
	r := new(Request)
	r.begin(&environment{log: log, resolution: maillog.ResolutionLimit(2)}, order, &testSource{})
	if r.Source != "src" || r.SourceSpec != "address=192.0.2.1" || r.Advice != "slow" || r.Session != 5 || r.Keep != time.Second || r.Most != 6 || !r.CacheLoad || !r.CacheKeep ||
		r.Nexthop != "hop" || len(r.Outcomes()) != 3 {
		t.Errorf("the agent sees %+v", r)
	}
	r.Bounce(0, dsn.S(5, 1, 1), "never", Detail{Relay: "mx[192.0.2.2]:25", ConnUse: 2, TLS: "TLS 1.3", MTA: "mx", DiagType: "smtp", DiagText: "550 never", Owner: "owner@x", Passed: true})
	r.SentFrom()
	r.LeaveAs("b+token@bounces.test")
	r.Sent(1, dsn.S(2, 0, 0), "ok", Detail{Action: dsn.Relayed})
	r.Part(1, "leaf@to.test", dsn.Delivered, dsn.S(2, 0, 0), "ok", Detail{})
	p := r.Part(2, "member@to.test", dsn.Deferred, dsn.S(4, 2, 2), "full", Detail{})
	if o := r.Outcomes(); o[0].Rcpt != 4 || o[0].Relay != "mx[192.0.2.2]:25" || o[0].MTA != "mx" || o[0].DiagType != "smtp" || o[0].DiagText != "550 never" || o[0].Owner != "owner@x" || !o[0].Passed ||
		o[1].Rcpt != 7 || o[1].Action != dsn.Relayed || o[2].Action != 0 {
		t.Errorf("outcomes: %+v", o)
	}
	if p.Address != "member@to.test" || p.Action != dsn.Deferred || p.Status != dsn.S(4, 2, 2) || p.Reason != "full" {
		t.Errorf("part: %+v", p)
	}
	l := lines()
	if len(l) != 4 {
		t.Fatalf("lines: %+v", l)
	}
	for i := range l {
		if d := &l[i]; d.ID != "Q" || d.From != "s@from.test" || d.MessageID != "<m@x>" || d.EnvID != "env" || d.Tenant != "shop" || d.Campaign != "spring" || d.Size != 77 || d.Attempt != 3 ||
			d.Nexthop != "hop" || d.Delay < time.Hour || d.Resolution != maillog.ResolutionLimit(2) {
			t.Errorf("line %d: %+v", i, d)
		}
	}
	if d := &l[0]; d.To != "a@to.test" || d.OrigTo != "" || d.Relay != "mx[192.0.2.2]:25" || d.ConnUse != 2 || d.Session != "TLS 1.3" || d.Source != "" {
		t.Errorf("%+v", d)
	}
	if d := &l[1]; d.To != "b@to.test" || d.OrigTo != "alias@to.test" || d.Relay != "none" || d.ConnUse != 0 || d.Session != "" || d.Source != "src" {
		t.Errorf("%+v", d)
	}
	if d := &l[2]; d.To != "leaf@to.test" || d.OrigTo != "alias@to.test" {
		t.Errorf("%+v", d)
	}
	if d := &l[3]; d.To != "member@to.test" || d.OrigTo != "c@to.test" {
		t.Errorf("%+v", d)
	}
	if r.OwnSender() != "s@from.test" || r.Envelope.Sender != "b+token@bounces.test" {
		t.Errorf("sender: %s, leaves as %s", r.OwnSender(), r.Envelope.Sender)
	}
}

// The four delays: until the queue manager took the message up, until the agent got it, until the connection stood, and
// the transmission. The time of a connection that never stood was spent on that.
func TestDelays(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(1700000000+int64(s), 0) }
	for name, x := range map[string]struct {
		settled, active int
		connecting      bool
		want            [4]int
	}{
		"connected":              {settled: 15, active: 5, connecting: true, want: [4]int{5, 5, 5, 10}},
		"connected, as it seems": {settled: 15, active: 5, want: [4]int{5, 5, 5, 10}},
		"no connection":          {active: 5, connecting: true, want: [4]int{5, 5, 15, 0}},
		"none is needed":         {active: 5, want: [4]int{5, 5, 0, 15}},
		"clock set back":         {active: -5, settled: 8, want: [4]int{0, 15, 0, 17}},
		"clock set forth":        {active: 12, settled: 15, want: [4]int{12, 0, 5, 10}},
	} {
		r := &Request{Envelope: &mail.Envelope{Arrival: at(0)}, order: &proto.Deliver{Active: at(x.active)}, started: at(10)}
		if x.connecting {
			r.Connecting()
		}
		if x.settled != 0 {
			r.ConnectionDone(at(x.settled))
		}
		for i, d := range r.delays(at(25)) {
			if d != time.Duration(x.want[i])*time.Second {
				t.Errorf("%s: %v, not %v s", name, r.delays(at(25)), x.want)
				break
			}
		}
	}
}

// What another transport cannot be asked is tried again, and logged here, since nobody else does.
func TestPassFails(t *testing.T) {
	t.Parallel()
	log, lines := observed()
	r := NewTestRequest(mail.Envelope{ID: "Q", Recipients: []mail.Recipient{{Address: "a@to.test"}}}, "b.test", nil, log)
	o := r.PassTo(0, mail.Recipient{Address: "else@to.test"}, "lmtp", "hop")
	if o.Action != dsn.Deferred || o.Status != dsn.S(4, 3, 0) || o.Reason != errNoTransport.Error() || !r.Pending(0) {
		t.Errorf("%+v, pending %v", o, r.Pending(0))
	}
	if l := lines(); len(l) != 1 || l[0].To != "else@to.test" || l[0].Status != "deferred" || l[0].Text != errNoTransport.Error() {
		t.Errorf("logged %+v", l)
	}
	r.Envelope.Trace = mail.TraceProbe
	if o := r.PassTo(0, r.Envelope.Recipients[0], "lmtp", "hop"); o.Action != dsn.Undeliverable {
		t.Errorf("a probe: %+v", o)
	}
	r.Envelope.Trace = 0
	r.PassBy(func(int, mail.Recipient, mail.Transport, mail.Nexthop) (mail.Outcome, error) {
		return mail.Outcome{Action: dsn.Delivered, Status: dsn.S(2, 0, 0)}, nil
	})
	if r.Pass(0, "lmtp", "hop"); r.Outcomes()[0].Action != dsn.Delivered || len(lines()) != 2 {
		t.Errorf("%+v, %d lines", r.Outcomes(), len(lines()))
	}
}

// The first failure of a destination counts, but for one that it has answered with in part: a whole one takes its place.
func TestSiteFailures(t *testing.T) {
	t.Parallel()
	busy, dead := dsn.S(4, 7, 0), dsn.S(4, 4, 1)
	for _, x := range []struct {
		words  string
		reason string
		partly bool
	}{{"b", "b0", true}, {"d", "d0", false}, {"bd", "d1", false}, {"db", "d0", false}, {"bb", "b0", true}, {"dd", "d0", false}, {"bdd", "d1", false}} {
		r := new(Request)
		for i, w := range x.words {
			if reason := string(w) + string(rune('0'+i)); w == 'b' {
				r.SiteBusy(busy, reason)
			} else {
				r.SiteFailure(dead, reason)
			}
		}
		want := dead
		if x.partly {
			want = busy
		}
		if status, reason := r.Site(); status != want || reason != x.reason || r.Busy() != x.partly {
			t.Errorf("%s: %v %q, in part %v", x.words, status, reason, r.Busy())
		}
	}
}

// Mail for an address on the suppression list is returned with the reason, in these words. The log says what the list could not be told.
func TestListedWords(t *testing.T) {
	t.Parallel()
	for _, detail := range []string{"", "550 no"} {
		f := &answering{entry: proto.Suppression{Reason: "bounce", Detail: detail}, err: errors.New("not now")}
		lines := new(logLines)
		o := Options{Suppress: f, Before: true, Log: maillog.New("smtp", lines)}
		r := NewTestRequest(mail.Envelope{ID: "Q", Sender: "a@x.test", List: "news", Recipients: []mail.Recipient{{Address: "a@to.test"}}}, "", nil, o.Log)
		r.env.listed = newListed(&o)
		want := "recipient is on the suppression list: bounce"
		if detail != "" {
			want += " (" + detail + ")"
		}
		if r.env.listed.permits(t.Context(), r) || r.Outcomes()[0].Reason != want || r.Outcomes()[0].Status != dsn.S(5, 7, 1) {
			t.Errorf("%q: %+v", detail, r.Outcomes())
		}
		if r.failure != nil {
			t.Error("the list is told of what it has said itself")
		}
		// Of a member of the recipient, and of one that is to be tried again, it does not hear.
		r.suppressed = false
		r.Part(0, "member@to.test", dsn.Failed, dsn.S(5, 1, 1), "never", Detail{})
		r.Part(0, "a@to.test", dsn.Deferred, dsn.S(4, 1, 1), "later", Detail{})
		if r.failure != nil {
			t.Errorf("told: %+v", r.failure)
		}
		r.Part(0, "a@to.test", dsn.Failed, dsn.S(5, 1, 1), "never", Detail{})
		if r.failure == nil || r.failure.Address != "a@to.test" || r.failure.Detail != "never" || r.failure.Origin != "Q" {
			t.Errorf("told: %+v", r.failure)
		}
		r.env.listed.tell(t.Context(), r)
		o.Log.Flush()
		if got := lines.String(); !strings.Contains(got, "Q: the suppression list does not know of the failure: not now") {
			t.Errorf("logged:\n%s", got)
		}
	}
}

// answering is a suppress service that has every address on its list, and takes no news.
type answering struct {
	entry proto.Suppression
	err   error
}

func (a *answering) Ask(context.Context, *proto.SuppressAsk) (proto.SuppressAnswer, error) {
	return proto.SuppressAnswer{Suppressed: true, Entry: a.entry}, nil
}

func (a *answering) Tell(context.Context, *proto.SuppressTell) (proto.SuppressTold, error) {
	return proto.SuppressTold{}, a.err
}

// What makes no sense is refused, with the reason, and a queue manager that cannot count gets outcomes in the order of
// the recipients.
func TestOrdersWithoutSense(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve(t, dir, "smtp", Options{Deliverer: deliverer(func(_ context.Context, r *Request) {
		for i := range r.Envelope.Recipients {
			r.Sent(i, dsn.S(2, 0, 0), "ok", Detail{})
		}
	})})
	m := dial(t, dir, "smtp")
	if err := m.conn.Call(t.Context(), &proto.Locate{}, nil); err == nil || !strings.Contains(err.Error(), "agent: unknown request") {
		t.Errorf("an unknown request: %v", err)
	}
	if err := m.conn.Call(t.Context(), raw{proto.KindDeliver, []byte{0xff, 0xff}}, nil); err == nil {
		t.Error("an order that cannot be read is carried out")
	}
	d := &proto.Deliver{Nexthop: "next", Envelope: mail.Envelope{ID: mail.MakeQueueID(time.Unix(1700000000, 0), 1), Recipients: []mail.Recipient{{Address: "a@x"}, {Address: "b@x"}}}, Index: []int{7}}
	var reply proto.DeliverReply
	if err := m.conn.Call(t.Context(), d, &reply); err != nil {
		t.Fatal(err)
	}
	var rcpts []int
	for _, o := range reply.Outcomes {
		rcpts = append(rcpts, o.Rcpt)
	}
	if !slices.Equal(rcpts, []int{0, 1}) {
		t.Errorf("outcomes of recipients %v", rcpts)
	}
}

// raw is a message that is sent as it stands.
type raw struct {
	kind uint16
	body []byte
}

func (m raw) Kind() uint16           { return m.kind }
func (m raw) Append(b []byte) []byte { return append(b, m.body...) }
func (m raw) Decode([]byte) error    { return nil }

// Outcomes are kept together as long as they go to the same queue manager, within a second, and are not too many; a part
// that is forgotten lends its memory, unless it is unusually large.
func TestToldParts(t *testing.T) {
	t.Parallel()
	now := time.Unix(1700000000, 0)
	conn, other := new(ipc.Conn), new(ipc.Conn)
	var list told
	add := func(at time.Duration, c *ipc.Conn, parts int) {
		t.Helper()
		list.add(now.Add(at), c, finished(uint64(list.n+1)))
		if n := 0; len(list.parts) != parts {
			t.Errorf("after %v there are %d parts, not %d", at, len(list.parts), parts)
		} else {
			for i := range list.parts {
				n += list.parts[i].n
			}
			if n != list.n || !list.parts[parts-1].last.Equal(now.Add(at)) {
				t.Errorf("%d of %d are counted, the last at %v", n, list.n, list.parts[parts-1].last)
			}
		}
	}
	add(0, conn, 1)
	add(toldSpan, conn, 1)
	add(toldSpan+1, conn, 2)
	add(toldSpan+1, other, 3)
	add(toldSpan+1, nil, 4)
	last := &list.parts[3]
	last.packed = slices.Grow(last.packed, 3*toldSize)
	for len(last.packed) < toldSize {
		list.add(now.Add(toldSpan+1), nil, finished(9))
	}
	if len(list.parts) != 4 {
		t.Fatalf("%d parts before there are too many", len(list.parts))
	}
	for len(list.parts) == 4 && len(last.packed) < 2*toldSize {
		list.add(now.Add(toldSpan+1), nil, finished(9))
	}
	if len(list.parts) != 5 || cap(list.parts[4].packed) == 0 {
		t.Errorf("%d parts, the newest has room for %d octets", len(list.parts), cap(list.parts[4].packed))
	}
	// Those that nobody has heard stay, and what comes behind them.
	list.prune(now.Add(time.Hour))
	if len(list.parts) != 2 || list.spare == nil || !list.untold() {
		t.Errorf("%d parts are left, memory for the next: %v", len(list.parts), list.spare != nil)
	}
	list.retell(now, conn, nil)
	if list.spare = nil; list.untold() {
		t.Error("all is told, and somebody has not heard it")
	}
	list.parts = list.parts[:1] // the large one
	list.n = list.parts[0].n
	list.prune(now.Add(remembered))
	if len(list.parts) != 1 {
		t.Error("what was told a moment ago is forgotten")
	}
	if list.prune(now.Add(remembered + 1)); len(list.parts) != 0 || list.n != 0 || list.spare != nil {
		t.Errorf("%d parts are left, %d outcomes, and the large memory: %v", len(list.parts), list.n, list.spare != nil)
	}
}
