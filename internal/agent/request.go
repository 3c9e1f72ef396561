package agent

import (
	"errors"
	"io"
	"syscall"
	"time"

	"posthaste/internal/bounceclass"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/reuse"
)

// begin makes r the Deliverer's view of an order, which must stay as it is.
func (r *Request) begin(env *environment, d *proto.Deliver, from source) {
	r.Envelope, r.Nexthop, r.CacheLoad, r.CacheKeep = &d.Envelope, d.Nexthop, d.CacheLoad, d.CacheKeep
	r.Session, r.Keep, r.Most = d.Session, d.Keep, d.Most
	r.Source, r.SourceSpec, r.Advice, r.Provider = d.Source, d.Spec, d.Advice, d.Provider
	r.order, r.started, r.env, r.from = d, time.Now(), env, from
	n := len(d.Envelope.Recipients)
	if r.reply.Outcomes = r.one[:]; n != 1 {
		r.reply.Outcomes = make([]mail.Outcome, n)
	}
}

// NewTestRequest makes a request that is not a queue manager's, for agents'
// tests: for these recipients, with this content, logging to log. What came
// of it is in the outcomes that Outcomes returns.
func NewTestRequest(env mail.Envelope, nexthop mail.Nexthop, content []byte, log *maillog.Logger) *Request {
	now := time.Now()
	r := new(Request)
	r.begin(&environment{log: log, resolution: maillog.ResolutionLimit(2)},
		&proto.Deliver{Envelope: env, Nexthop: nexthop, Index: positions(len(env.Recipients)), Active: now}, &testSource{text: content})
	return r
}

// positions are the indexes of n recipients that are all that there are.
func positions(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// passFunc does what PassTo does.
type passFunc = func(i int, to mail.Recipient, transport mail.Transport, nexthop mail.Nexthop) (mail.Outcome, error)

// A testSource is what a test has for the spool and the other transports.
type testSource struct {
	text     []byte
	passedBy passFunc
	handedBy func(*proto.Hand) error
}

func (t *testSource) content(*Request) (Content, error) { return inMemory(t.text), nil }

func (t *testSource) pass(_ *Request, i int, to mail.Recipient, transport mail.Transport, nexthop mail.Nexthop) (mail.Outcome, error) {
	if t.passedBy == nil {
		return mail.Outcome{}, errNoTransport
	}
	return t.passedBy(i, to, transport, nexthop)
}

func (t *testSource) hand(m *proto.Hand) func() error {
	return func() error { return t.handedBy(m) }
}

// HandBy has a test, which has made r, play cleanup: r is to be delivered exactly.
func (r *Request) HandBy(f func(*proto.Hand) error) {
	r.order.Exact, r.from.(*testSource).handedBy = true, f
}

var errNoTransport = errors.New("no other transport can be reached from here")

// Configure has a test's request report as main.cf says of a program's agents.
func (r *Request) Configure(cfg *config.Config, process string) {
	r.env.softBounce, r.env.filter = cfg.Bool("soft_bounce"), OpenFilter(cfg, process, r.env.log)
}

// Classify has a test's request say what kind of failure an outcome is.
func (r *Request) Classify(rules *bounceclass.Rules) { r.env.classes = rules }

// PassBy has a test, which has made r, play the other transports: what PassTo does.
func (r *Request) PassBy(f passFunc) { r.from.(*testSource).passedBy = f }

// Outcomes is what has been reported so far, by recipient. It belongs to the
// request.
func (r *Request) Outcomes() []mail.Outcome { return r.reply.Outcomes }

// Site is the failure of the destination that was reported, if any.
func (r *Request) Site() (dsn.Status, string) { return r.reply.SiteStatus, r.reply.SiteReason }

// Busy says whether what Site says was reported by SiteBusy.
func (r *Request) Busy() bool { return r.reply.SitePartly }

// Kept says whether SessionKept was called.
func (r *Request) Kept() bool { return r.reply.Kept }

// Opened says whether ConnectionOpened was called.
func (r *Request) Opened() bool { return r.reply.Opened }

// Security is what Secured said.
func (r *Request) Security() string { return r.reply.Security }

// settle reports a verdict.
func (r *Request) settle(i int, v verdict, d Detail) { r.Adopt(i, outcome(v, d)) }

// outcome is a verdict for the queue manager.
func outcome(v verdict, d Detail) mail.Outcome {
	return mail.Outcome{Action: v.action, Status: v.status, Reason: v.text, Relay: relayOf(&d),
		MTA: d.MTA, DiagType: d.DiagType, DiagText: d.DiagText, Passed: d.Passed, Owner: d.Owner, When: time.Now()}
}

func relayOf(d *Detail) string {
	if d.Relay == "" {
		return "none"
	}
	return d.Relay
}

// Part logs what came of address to, which recipient i is or was expanded to,
// and returns it as it is to be reported. That is for the agent to do: Adopt,
// when it is known of all parts.
func (r *Request) Part(i int, to string, action dsn.Action, status dsn.Status, text string, d Detail) mail.Part {
	v := r.verdict(action, status, text)
	r.logPart(i, to, v, d)
	o := outcome(v, d)
	return o.Part(to)
}

// lines are what logPart fills in.
var lines reuse.Pool[maillog.Delivery]

// logPart logs a verdict.
func (r *Request) logPart(i int, to string, v verdict, d Detail) {
	if r.env.log == nil {
		return
	}
	now := time.Now()
	orig := r.Envelope.Recipients[i].Original
	if orig == "" && to != r.Envelope.Recipients[i].Address {
		orig = r.Envelope.Recipients[i].Address
	}
	e := lines.Get()
	*e = maillog.Delivery{ID: string(r.Envelope.ID), To: r.env.log.Address(to), OrigTo: r.env.log.Address(orig),
		Relay: relayOf(&d), ConnUse: d.ConnUse, Delay: now.Sub(r.Envelope.Arrival), Delays: r.delays(now),
		Resolution: r.env.resolution, DSN: v.status, Status: v.word(), Text: v.text,
		From: r.env.log.Address(r.OwnSender()), MessageID: r.Envelope.MessageID, EnvID: r.Envelope.EnvID, Source: r.sentFrom,
		Tenant: r.Envelope.Tenant, Campaign: r.Envelope.Campaign, Provider: r.Provider,
		Nexthop: string(r.Nexthop), Size: r.Envelope.Size, Attempt: r.order.Attempt, Session: d.TLS}
	if v.action == dsn.Deferred || v.action == dsn.Failed {
		e.Class = r.env.classes.Class(failureText(&v, &d))
		r.env.listed.failed(r, i, to, v.action, &d, e)
	}
	r.env.log.Log(e) // which does not keep it
	*e = maillog.Delivery{}
	lines.Put(e)
}

// failureText is what the rules of bounce_class_files see of a failure: the server's reply where there was
// one, else our own words.
func failureText(v *verdict, d *Detail) string {
	if d.DiagType == "smtp" && d.DiagText != "" {
		return bounceclass.Text(d.DiagText)
	}
	return bounceclass.Local(v.action == dsn.Failed, v.status.String(), v.text)
}

// delays are Postfix's four: before the queue manager, in it, connection
// set-up, transmission.
func (r *Request) delays(now time.Time) [4]time.Duration {
	settled := r.settled
	if settled.IsZero() {
		settled = r.started
		if r.connecting {
			settled = now
		}
	}
	active := r.order.Active // taken up by the queue manager
	return [4]time.Duration{max(active.Sub(r.Envelope.Arrival), 0), max(r.started.Sub(active), 0),
		max(settled.Sub(r.started), 0), max(now.Sub(settled), 0)}
}

// word is a verdict in the log.
func (v *verdict) word() string {
	switch v.action {
	case dsn.Deferred:
		if v.soft {
			return "SOFTBOUNCE"
		}
		return "deferred"
	case dsn.Failed:
		return "bounced"
	case dsn.Deliverable:
		return "deliverable"
	case dsn.Undeliverable:
		return "undeliverable"
	}
	return "sent"
}

// stored is a spool's content as an agent sees it.
type stored struct {
	c queueread.Content
	r *Request
}

func (s stored) Len() int64    { return s.c.Len() }
func (s stored) Bytes() []byte { return s.c.Bytes() }
func (s stored) Close() error  { return s.c.Close() }
func (s stored) Reader() io.Reader {
	if _, err := s.c.Seek(0, io.SeekStart); err != nil {
		return failing{err}
	}
	return s
}

// Read reads content, of which a long one is verified only now.
func (s stored) Read(p []byte) (int, error) {
	n, err := s.c.Read(p)
	return n, s.r.found(err)
}

// WriteTo spares a copy.
func (s stored) WriteTo(w io.Writer) (int64, error) {
	n, err := s.c.WriteTo(w)
	return n, s.r.found(err)
}

// found notes what an error of reading the message means for it. A disk that
// cannot be read now may be read the next time.
func (r *Request) found(err error) error {
	if errors.Is(err, queue.ErrCorrupt) && !errors.Is(err, syscall.EIO) {
		r.reply.Corrupt = true
	}
	return err
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
