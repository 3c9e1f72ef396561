package script

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/mailfilter"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// fakeCleanup keeps what it is given. Content asks it to misbehave:
// "X-Test-Reply: 552 5.3.4 text" in the header.
type fakeCleanup struct {
	mu     sync.Mutex
	next   uint64
	open   map[mail.QueueID]*proto.Submit
	done   []*proto.Submit
	forget bool     // keep nothing
	milter []string // what mail filters say
}

func newFakeCleanup() *fakeCleanup {
	return &fakeCleanup{next: 1, open: map[mail.QueueID]*proto.Submit{}}
}

func (f *fakeCleanup) handle(_ *ipc.Conn, r *ipc.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch r.Kind {
	case proto.KindLease:
		var m proto.Lease
		if err := r.Decode(&m); err != nil {
			r.Fail("%v", err)
			return
		}
		r.Reply(&proto.LeaseReply{First: f.next, N: m.N})
		f.next += uint64(m.N)
	case proto.KindSubmit:
		m := new(proto.Submit)
		if err := r.Decode(m); err != nil {
			r.Fail("%v", err)
			return
		}
		f.open[m.Envelope.ID] = m
		f.part(r, m, m.More)
	case proto.KindChunk:
		var c proto.Chunk
		if err := r.Decode(&c); err != nil {
			r.Fail("%v", err)
			return
		}
		m := f.open[c.ID]
		if m == nil {
			r.Reply(&proto.SubmitReply{Code: 451, Status: dsn.S(4, 3, 0), Text: "no such message"})
			return
		}
		if !f.forget {
			m.Content = append(m.Content, c.Data...)
		}
		f.part(r, m, c.More)
	case proto.KindMilter:
		var m proto.Milter
		if err := r.Decode(&m); err != nil {
			r.Fail("%v", err)
			return
		}
		if m.Event != proto.MilterClose {
			r.Reply(&proto.MilterReply{Verdict: f.milterSays(&m)})
		}
	case proto.KindAbort:
		var m proto.Abort
		if r.Decode(&m) == nil {
			delete(f.open, m.ID)
		}
	}
}

// milterEvents are the events that a rule of mail filters may be about.
var milterEvents = map[string]proto.MilterEvent{"CONNECT": proto.MilterConnect, "HELO": proto.MilterHelo, "MAIL": proto.MilterMail,
	"RCPT": proto.MilterRcpt, "DATA": proto.MilterData, "UNKNOWN": proto.MilterUnknown}

// milterSays is what the mail filters' rules have for an event.
func (f *fakeCleanup) milterSays(m *proto.Milter) mailfilter.Verdict {
	for _, rule := range f.milter {
		when, what, _ := strings.Cut(rule, " => ")
		words := strings.Fields(when)
		args := " " + strings.Join(m.Args, " ") + " "
		if len(words) == 0 || milterEvents[words[0]] != m.Event ||
			slices.ContainsFunc(words[1:], func(w string) bool { return !strings.Contains(args, " "+w+" ") }) {
			continue
		}
		if what == "DISCARD" {
			return mailfilter.Verdict{Action: mailfilter.Discard}
		}
		reply, _ := smtpwire.ParseReply(what)
		return mailfilter.Verdict{Action: mailfilter.Reject, Reply: &reply}
	}
	return mailfilter.Verdict{}
}

func (f *fakeCleanup) part(r *ipc.Request, m *proto.Submit, more bool) {
	if more {
		r.Reply(&proto.ChunkReply{})
		return
	}
	delete(f.open, m.Envelope.ID)
	if _, text, found := strings.Cut(string(m.Content), "X-Test-Reply: "); found {
		text, _, _ = strings.Cut(text, "\r\n")
		v := &proto.SubmitReply{Code: 451}
		fmt.Sscan(text, &v.Code)
		v.Status, v.Text, _ = dsn.CutStatus(text[4:])
		r.Reply(v)
		return
	}
	if !f.forget {
		f.done = append(f.done, m)
	}
	r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"})
}

// text is the queue as dialogues have it.
func (f *fakeCleanup) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, m := range f.done {
		e := &m.Envelope
		fmt.Fprintf(&b, "from <%s>", rfc5322.Quote(e.Sender))
		say := func(name, value string) {
			if value != "" {
				fmt.Fprintf(&b, " %s=%s", name, value)
			}
		}
		say("envid", e.EnvID)
		say("ret", e.Ret.String())
		say("filter", e.Filter)
		say("redirect", e.Redirect)
		say("pool", e.Pool)
		say("verp", e.VERP)
		say("context", e.RewriteContext)
		say("sasl", e.SASL.Username)
		say("ident", e.LogIdent)
		flags := ""
		for _, fl := range []struct {
			bit  proto.SubmitFlags
			name string
		}{{proto.SubmitHold, "hold"}, {proto.SubmitDiscard, "discard"}} {
			if m.Flags&fl.bit != 0 {
				flags += fl.name
			}
		}
		say("flags", flags)
		if e.Body&mail.BodySMTPUTF8 != 0 {
			say("smtputf8", "yes")
		}
		if e.RequireTLS {
			say("requiretls", "yes")
		}
		if m.Flags&proto.SubmitFilter == 0 {
			say("checks", "no")
		}
		if m.Flags&proto.SubmitMap == 0 {
			say("maps", "no")
		}
		b.WriteByte('\n')
		for _, r := range e.Recipients {
			fmt.Fprintf(&b, "to <%s> orcpt=%s", rfc5322.Quote(r.Address), r.ORCPT)
			say("notify", r.Notify.String())
			b.WriteByte('\n')
		}
		for _, a := range m.BCC {
			fmt.Fprintf(&b, "bcc <%s>\n", a)
		}
		for _, h := range m.Prepend {
			fmt.Fprintf(&b, "prepend %s\n", h)
		}
		head := string(m.Content[:min(len(m.Content), 1000)]) // Received: is in it
		head = cipher.ReplaceAllString(head, "cipher <CIPHER>")
		content := queueID.ReplaceAllString(head, "<ID>")
		content = date.ReplaceAllString(content, "<DATE>") + string(m.Content[min(len(m.Content), 1000):])
		for line := range strings.Lines(content) {
			text, crlf := strings.CutSuffix(line, "\r\n")
			if !crlf {
				text += "(NO CRLF)"
			}
			text = strings.NewReplacer("\r", `\r`, "\n", `\n`, "\x00", `\x00`).Replace(text)
			if len(text) > 200 {
				text = fmt.Sprintf("%.60s... %d octets", text, len(text))
			}
			fmt.Fprintf(&b, "| %s\n", text)
		}
	}
	return b.String()
}

// router plays trivial-rewrite for a few classes of domain.
type router struct {
	origin, domain string
	lists          []routerList
}

type routerList struct {
	list  *table.List
	flags proto.ResolveFlags
}

func newRouter(cfg *config.Config) (*router, error) {
	r := &router{origin: cfg.String("myorigin"), domain: cfg.String("mydomain")}
	for _, l := range []struct {
		name  string
		flags proto.ResolveFlags
	}{{"mydestination", proto.ResolveLocal}, {"virtual_alias_domains", proto.ResolveAlias},
		{"virtual_mailbox_domains", proto.ResolveMailbox}, {"relay_domains", proto.ResolveRelay}} {
		list, err := table.NewList(l.name, cfg.List(l.name), table.ListOptions{Kind: table.Domains, Parent: l.name == "relay_domains"})
		if err != nil {
			return nil, err
		}
		r.lists = append(r.lists, routerList{list, l.flags})
	}
	return r, nil
}

func (r *router) Rewrite(_ context.Context, _, addr string) (string, error) {
	if strings.HasPrefix(addr, "rewritefails") {
		return "", fmt.Errorf("rewrite address: no connection")
	}
	if addr != "" && !strings.Contains(addr, "@") {
		return addr + "@" + r.origin, nil
	}
	return addr, nil
}

func (r *router) Resolve(ctx context.Context, _, addr string) (proto.ResolveReply, error) {
	a := proto.ResolveReply{Transport: "smtp", Recipient: addr, Flags: proto.ResolveDefault}
	local, domain, _ := rfc5322.Split(addr)
	a.Nexthop = domain
	if strings.HasPrefix(addr, "resolvefails") {
		a.Flags = proto.ResolveFail
		return a, nil
	}
	if domain == "[192.0.2.25]" {
		a.Flags = proto.ResolveLocal
	}
	for _, l := range r.lists {
		if in, err := l.list.Match(table.WithTrace(ctx, nil), domain); err != nil || in {
			a.Flags = l.flags
			break
		}
	}
	if a.Flags == proto.ResolveLocal {
		a.Transport = "local"
	}
	if strings.ContainsAny(local, "%!@") {
		a.Flags |= proto.ResolveRouted
	}
	switch local {
	case "moved":
		a.Transport, a.Nexthop = "error", "5.1.6 User has moved to elsewhere"
	case "wait":
		a.Transport, a.Nexthop = "retry", "4.2.1 Mailbox is being moved"
	}
	return a, nil
}

// fakeFlusher has two sites.
type fakeFlusher struct{}

func (fakeFlusher) Flush(_ context.Context, domain string) (bool, error) {
	switch domain {
	case "broken.test":
		return false, fmt.Errorf("connection refused")
	case "site.test", "relay.test":
		return true, nil
	}
	return false, nil
}

// fakeSpender is the sendlimit service: what an account may do is in its name.
type fakeSpender struct{}

func (fakeSpender) Spend(_ context.Context, q *proto.Spend) (proto.SpendReply, error) {
	switch q.Account {
	case "spent":
		return proto.SpendReply{Refused: true, Limit: "500/d", Until: 1795996800}, nil
	case "locked":
		return proto.SpendReply{Refused: true, Locked: true}, nil
	case "unknown":
		return proto.SpendReply{}, fmt.Errorf("sendlimit service is not running")
	}
	return proto.SpendReply{}, nil
}

// fakeSuppressor is the suppress service: who is on the list is in the local part.
type fakeSuppressor struct{}

func (fakeSuppressor) Ask(_ context.Context, q *proto.SuppressAsk) (proto.SuppressAnswer, error) {
	local, _, _ := rfc5322.Split(q.Address)
	switch local {
	case "suppressed":
		return proto.SuppressAnswer{Suppressed: true, Entry: proto.Suppression{List: q.List, Reason: "bounce", Detail: "550 5.1.1 no such user", Time: 1795867200}}, nil
	case "left":
		return proto.SuppressAnswer{Suppressed: q.List == "shop/", Entry: proto.Suppression{List: q.List, Reason: "unsubscribe", Time: 1795867200}}, nil
	case "unknown":
		return proto.SuppressAnswer{}, fmt.Errorf("suppress service: it is not running")
	}
	return proto.SuppressAnswer{}, nil
}

// fakeProber answers by local part.
type fakeProber struct{}

func (fakeProber) Probe(_ context.Context, addr string) (proto.ProbeStatus, string, error) {
	local, _, _ := rfc5322.Split(addr)
	switch local {
	case "deferred":
		return proto.ProbeDefer, "connect to host: Connection timed out", nil
	case "undeliverable":
		return proto.ProbeBounce, "host said: 550 no such user", nil
	case "todo":
		return proto.ProbeTodo, "Address verification in progress", nil
	case "proberr":
		return 0, "", fmt.Errorf("verify service is not running")
	}
	return proto.ProbeOK, "deliverable", nil
}
