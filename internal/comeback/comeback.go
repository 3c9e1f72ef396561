// Package comeback is the program behind the transport comeback, which gets what comes back to the return paths of mail
// under the suppression list: bounces that were made after the mail had been accepted, and complaints.
//
//	return_path_domain = bounces.example.org
//	transport_maps = inline:{ {bounces.example.org = comeback:} }
//	relay_domains = bounces.example.org
//
// All addresses of the domain are served, so that providers can be given one for complaints, such as
// fbl@bounces.example.org.
//
// # What it is about
//
// It asks the suppress service for the message and the recipient, in this order:
//
//   - by the address that the report has come to, if that is a return path;
//   - by a return path that the report names: Original-Mail-From of a complaint, Return-Path of the message that is
//     returned.
//
// Both are proven: nobody can make such an address. Without one of them an event has the Message-ID that the report
// claims, and says that it is unverified; nobody is suppressed for it. The address proves also who the recipient is: what a
// report says of other addresses never harms these.
//
// # What is understood
//
// Notifications (RFC 3464) whose recipients have "Action: failed". Those of a delay, of success or of relaying are dropped. If
// the failure is that of an address behind the recipient, to which the recipient's system forwards, it counts as one that
// passes. So does one that is only in words, where these have a reply with code and enhanced code. Complaints are
// feedback reports (RFC 5965) of the types abuse, opt-out and opt-out-list. Those of other types (fraud, not-spam,
// auth-failure, ...) are told of as events, and nobody is suppressed for them.
//
// # Nodes that share a queue
//
// Each node records what it delivers, and has a suppression list of its own. What comes back to any of them is taken in by the one that has the record, which is
// asked by way of the queue managers. With return_path_domain their secrets must be the same: what another secret has signed counts as forged. While a
// node does not answer that may have the record, the report waits, for a day at most.
//
// # What is passed on
//
// What is not understood goes to comeback_unknown_recipient, or is dropped. With comeback_forward, what has a return path whose
// record is still there goes to the sender of the message instead, bounces too. Either leaves with the null sender, once for
// each delivery, however many return paths of it the message was sent to. Nothing is ever answered or returned. A message that has come round in a circle (Delivered-To) is dropped.
//
// # Security
//
// Whoever can send mail can send to it. Of a message the first megabyte is read, and of that 20 parts of 256 KB, three
// deep, 100 recipients. A forged return path does nothing. Who has a good one is the recipient, or a system on the way there, and can
// have that recipient suppressed, once. The process runs as mail_owner, and knows no secret.
//
// # Standards
//
// RFC 3464, RFC 6533 section 6 (message/global-delivery-status), RFC 5965, RFC 6650.
//
// # Parameters
//
// bounce_class_files, comeback_forward, comeback_unknown_recipient, event_sinks, myhostname, queue_service_name, spool_type, suppress_list_maps, suppress_tenants.
//
// # Diagnostics
//
//	ID: to=<b+TOKEN@bounces.example.org>, relay=none, ..., dsn=2.0.0, status=sent (bounce of QUEUEID to ADDRESS: CLASS (TEXT))
//
// The log says of each message what it was taken for. Mail waits while the suppress service cannot be asked.
package comeback

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/bounceclass"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/event"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/resolver"
	"posthaste/internal/rfc5322"
	"posthaste/internal/service"
	"posthaste/internal/storage"
	"posthaste/internal/submit"
	"posthaste/internal/suppress/suppressclient"
)

// Name is the transport, and its command in master.cf.
const Name = "comeback"

// A suppressor is the suppress service. It may be called concurrently.
type suppressor interface {
	Tell(ctx context.Context, q *proto.SuppressTell) (proto.SuppressTold, error)
	ReturnPath(ctx context.Context, q *proto.ReturnPath) (proto.ReturnPathReply, error)
}

// An origin is what is known of the message that a report is about, and whose suppress service knows it.
type origin struct {
	proto.ReturnPathReply
	at suppressor
}

// An Agent is the comeback transport.
type Agent struct {
	suppress suppressor
	others   func(ctx context.Context) ([]suppressor, error) // those of the other nodes that share the queue; nil: it is not shared
	events   *event.Reporter
	// send queues a copy of a message for somebody.
	send            func(ctx context.Context, r *agent.Request, content agent.Content, from, to string) (mail.QueueID, error)
	names           resolver.Names
	forward         bool   // comeback_forward
	unknown         string // comeback_unknown_recipient
	hostname, named string // myhostname, mail_name
	now             func() time.Time
}

// Spec declares the service.
func Spec() service.Spec {
	s := agent.Spec(Name, func(env *service.Env) (agent.Deliverer, func(), error) {
		client := suppressclient.New(env.Private(suppressclient.Name))
		cleanup := ipc.NewClient(env.Public(env.Config.String("cleanup_service_name")), nil)
		submitter := submit.New(cleanup)
		a := newAgent(env.Config, client, env.Events)
		a.send = a.sender(submitter)
		manager := ipc.NewClient(env.Public(env.Config.String("queue_service_name")), nil)
		if storage.Elsewhere(env.Config) {
			a.others = othersBy(manager, &queueclient.Queue{Config: env.Config})
		}
		return a, func() { submitter.Close(); cleanup.Close(); client.Close(); manager.Close() }, nil
	})
	s.Frugal, s.Sandbox = true, service.Plain
	return s
}

func newAgent(cfg *config.Config, s suppressor, events *event.Reporter) *Agent {
	return &Agent{suppress: s, events: events, names: resolver.NamesOf(cfg), forward: cfg.Bool("comeback_forward"), unknown: cfg.String("comeback_unknown_recipient"),
		hostname: cfg.String("myhostname"), named: cfg.String("mail_name"), now: time.Now}
}

// Hands implements agent.Hander: nothing is delivered to people.
func (*Agent) Hands() {}

// later is the status of what is tried again.
var later = dsn.S(4, 3, 0)

// Deliver implements agent.Deliverer.
func (a *Agent) Deliver(ctx context.Context, r *agent.Request) {
	content, err := r.Content()
	if err != nil {
		for i := range r.Envelope.Recipients {
			r.Defer(i, later, err.Error(), agent.Detail{})
		}
		return
	}
	defer content.Close()
	rep := read(content.Reader())
	passed := make(map[string]mail.QueueID)
	for i := range r.Envelope.Recipients {
		if r.Envelope.Trace.DontDeliver() {
			r.Sent(i, dsn.S(2, 0, 0), "takes what comes back", agent.Detail{})
			continue
		}
		text, err := a.take(ctx, r, rep, content, r.Envelope.Recipients[i].Address, passed)
		if err != nil {
			r.Defer(i, later, err.Error(), agent.Detail{})
			continue
		}
		r.Sent(i, dsn.S(2, 0, 0), text, agent.Detail{})
	}
}

// take does what there is to do about a message that has come to an address, and says what that was. An error
// is one of ours: it is to be tried again, as a whole. passed has to whom this delivery has passed the message on, and as what.
func (a *Agent) take(ctx context.Context, r *agent.Request, rep *report, content agent.Content, to string, passed map[string]mail.QueueID) (string, error) {
	path, of, err := a.find(ctx, rep, to, a.now().Sub(r.Envelope.Arrival) >= absence)
	if err != nil {
		return "", err
	}
	text, known := "not understood", false
	switch rep.kind {
	case bounce, told:
		text, known, err = a.bounced(ctx, r, rep, path, &of)
	case complaint:
		text, known, err = a.complained(ctx, rep, path, &of)
	}
	if err != nil {
		return "", err
	}
	if path == "" && of.Problem != "" {
		text += "; " + of.Problem
	}
	whom := a.whom(&of, known)
	if whom == "" && known {
		return text, nil
	}
	if whom == "" {
		return text + "; dropped", nil
	}
	if slices.ContainsFunc(rep.deliveredTo, func(d string) bool { return strings.EqualFold(d, to) }) {
		return text + "; dropped: it comes round in a circle", nil
	}
	// A message to many return paths is one message to whom it is passed on.
	if passed[whom] == "" {
		if passed[whom], err = a.send(ctx, r, content, to, whom); err != nil {
			delete(passed, whom)
			return "", err
		}
	}
	return text + "; forwarded as " + string(passed[whom]), nil
}

// find finds the return path that a report is about; path is empty if there is none, and of.Problem says what is wrong
// with the address that it came to. old: see ask.
func (a *Agent) find(ctx context.Context, rep *report, to string, old bool) (path string, of origin, err error) {
	first, err := a.ask(ctx, &proto.ReturnPath{Address: to, Recipients: rep.names}, old)
	if err != nil || first.Problem == "" {
		return to, first, err
	}
	for _, p := range rep.paths {
		of, err := a.ask(ctx, &proto.ReturnPath{Address: p, Recipients: rep.names}, old)
		if err != nil || of.Problem == "" {
			return p, of, err
		}
	}
	return "", first, nil
}

// about begins the event of a report.
func (a *Agent) about(k event.Kind, rep *report, path string, of *origin) *event.Event {
	tenant, list := suppressclient.Parts(of.List)
	e := &event.Event{Kind: k, Time: a.now(), QueueID: of.QueueID, MessageID: of.MessageID, EnvID: of.EnvID, Sender: of.Sender, FromMessage: of.Recorded,
		Recipient: of.Recipient, Tenant: cmp.Or(of.Tenant, tenant), Campaign: of.Campaign, List: list, Provider: of.Provider, Source: of.Source}
	if path == "" {
		e.MessageID, e.EnvID, e.Unverified = rep.messageID, rep.envID, true
	}
	return e
}

// bounced takes in a notification. known says that it was understood.
func (a *Agent) bounced(ctx context.Context, r *agent.Request, rep *report, path string, of *origin) (text string, known bool, err error) {
	b, behind := choose(a.names, rep.blocks, of.Recipient)
	if b == nil {
		return "notification without a failure", true, nil
	}
	class := r.Class(classText(b))
	text = fmt.Sprintf("bounce of %s to %s: %s (%s)", cmp.Or(of.QueueID, rep.messageID, "unknown"), cmp.Or(of.Recipient, "unknown"), cmp.Or(class, "no class"), b.text)
	if path == "" {
		if rep.kind == told {
			return "not understood", false, nil // words of anybody
		}
		e := a.about(event.BouncedLater, rep, path, of)
		e.DSN, e.Reply, e.BounceClass = b.status, b.text, class
		a.events.Tell(e)
		return "unverified " + text, true, nil
	}
	if of.Bounced {
		return text + ", again", true, nil
	}
	e := a.about(event.BouncedLater, rep, path, of)
	e.DSN, e.Reply, e.BounceClass = b.status, b.text, class
	what := proto.ToldBounce
	if behind || rep.kind == told {
		what = proto.ToldForwarded
	}
	return a.tell(ctx, of.at, e, text, &proto.SuppressTell{What: what, List: of.List, Address: of.Recipient, Class: class, Origin: of.QueueID, Detail: b.text, Token: path})
}

// complained takes in a complaint.
func (a *Agent) complained(ctx context.Context, rep *report, path string, of *origin) (text string, known bool, err error) {
	text = fmt.Sprintf("complaint of %s about %s: %s", cmp.Or(of.Recipient, "unknown"), cmp.Or(of.QueueID, rep.messageID, "unknown"), rep.feedback)
	e := a.about(event.Complaint, rep, path, of)
	e.Feedback = rep.feedback
	switch {
	case path == "":
		a.events.Tell(e)
		return "unverified " + text, true, nil
	case of.Complained:
		return text + ", again", true, nil
	case !unwanted[rep.feedback]:
		a.events.Tell(e)
		return text, true, nil
	}
	return a.tell(ctx, of.at, e, text, &proto.SuppressTell{What: proto.ToldComplaint, List: of.List, Address: of.Recipient, Origin: of.QueueID, Detail: rep.feedback, Token: path})
}

// unwanted are the types of complaints for which a recipient is suppressed: RFC 5965 section 7.3.
var unwanted = map[string]bool{"abuse": true, "opt-out": true, "opt-out-list": true}

// tell tells of news that is proven: the journal of events first, so that it has what the suppress service remembers to
// have heard. Without a record nobody knows the list, and there is nothing to suppress.
func (a *Agent) tell(ctx context.Context, at suppressor, e *event.Event, text string, q *proto.SuppressTell) (string, bool, error) {
	a.events.Tell(e)
	if q.List == "" || q.Address == "" {
		return text + ", nothing is recorded of it", true, nil
	}
	a.events.Wait(ctx)
	told, err := at.Tell(ctx, q)
	if err != nil {
		return "", false, err
	}
	if told.Added != "" {
		text += ", suppressed"
	}
	return text, true, nil
}

// choose is the failure among what a notification says, for a recipient: behind says that it is that of another address,
// which the recipient leads to. Nil: there is none.
func choose(names resolver.Names, blocks []block, recipient string) (b *block, behind bool) {
	canonical := func(addr string) string { return suppressclient.Canonical(names, addr) }
	ours := canonical(recipient)
	same := func(addr string) bool { return addr != "" && canonical(addr) == ours }
	for i := range blocks {
		if same(blocks[i].final) || same(blocks[i].orig) && within(canonical(blocks[i].final), ours) {
			if blocks[i].action != "failed" {
				return nil, false // of the recipient itself it says something else
			}
			return &blocks[i], false
		}
	}
	i := slices.IndexFunc(blocks, func(b block) bool { return b.action == "failed" })
	if i < 0 {
		return nil, false
	}
	// Without an address, or where nobody knows the recipient, there is none behind it.
	return &blocks[i], recipient != "" && blocks[i].final != ""
}

// within says whether an address is in the domain of another one, or below it: a system may have names of its own for its
// users. The empty address is. Both are canonical.
func within(addr, of string) bool {
	domain, ours := rfc5322.Domain(addr), rfc5322.Domain(of)
	return addr == "" || domain == ours || strings.HasSuffix(domain, "."+ours)
}

// classText is what the rules of bounce_class_files see of a failure.
func classText(b *block) string {
	if text := bounceclass.Text(b.text); len(text) > 3 && text[0] == '5' && text[3] == ' ' {
		return text
	}
	return bounceclass.Local(true, b.status, b.text)
}

// whom a message is passed on to, as main.cf says; empty: nobody. known says that it was understood.
func (a *Agent) whom(of *origin, known bool) string {
	switch {
	case a.forward && of.Problem == "" && of.Sender != "":
		return of.Sender
	case !known:
		return a.unknown
	}
	return ""
}

// sender makes the function that queues a copy. It has the null sender: nobody is told if it cannot be delivered.
func (a *Agent) sender(c *submit.Client) func(ctx context.Context, r *agent.Request, content agent.Content, from, to string) (mail.QueueID, error) {
	return func(ctx context.Context, r *agent.Request, content agent.Content, from, to string) (mail.QueueID, error) {
		now := a.now()
		id, err := c.NewID(ctx, now)
		if err != nil {
			return "", err
		}
		old := r.Envelope
		env := mail.Envelope{ID: id, Arrival: now, Client: old.Client, Reverse: old.Reverse, RewriteContext: old.RewriteContext, LogIdent: old.LogIdent,
			Body: old.Body & mail.BodySMTPUTF8, Recipients: []mail.Recipient{{Address: to, Notify: dsn.NotifyNever}}}
		m := c.Open(&env, submit.Options{Flags: proto.SubmitMap | proto.SubmitNoReceive | proto.SubmitRequeued})
		_, err = fmt.Fprintf(m, "Received: by %s (%s)\r\n\tid %s; %s\r\nDelivered-To: %s\r\n", a.hostname, a.named, id, rfc5322.Date(now), rfc5322.Quote(from))
		if err == nil {
			_, err = io.Copy(m, content.Reader())
		}
		if err != nil {
			m.Abort()
			return "", err
		}
		reply, err := m.Commit(ctx)
		if err != nil {
			return "", fmt.Errorf("%s: %w", id, err)
		}
		if reply.Code != 250 {
			return "", fmt.Errorf("cleanup refused the message: %s", reply.Reason())
		}
		return id, nil
	}
}
