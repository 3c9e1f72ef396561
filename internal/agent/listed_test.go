package agent

import (
	"context"
	"errors"
	"io"
	"testing"

	"posthaste/internal/bounceclass"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

// fakeSuppressor has one address on its list, and notes what it is asked and told.
type fakeSuppressor struct {
	asked []proto.SuppressAsk
	told  []proto.SuppressTell
	err   error
}

func (f *fakeSuppressor) Ask(_ context.Context, q *proto.SuppressAsk) (proto.SuppressAnswer, error) {
	f.asked = append(f.asked, *q)
	if q.Address == "suppressed@to.test" {
		return proto.SuppressAnswer{Suppressed: true, Entry: proto.Suppression{Reason: "bounce", Detail: "550 no"}}, f.err
	}
	a := proto.SuppressAnswer{}
	if q.QueueID != "" {
		a.Path = "b+token@bounces.test"
	}
	return a, f.err
}

func (f *fakeSuppressor) Tell(_ context.Context, q *proto.SuppressTell) (proto.SuppressTold, error) {
	f.told = append(f.told, *q)
	return proto.SuppressTold{}, f.err
}

// Mail under the suppression list is asked for, and its failures are told of; other mail is not anybody's business.
func TestListed(t *testing.T) {
	t.Parallel()
	rules, err := bounceclass.Open([]string{bounceclass.Builtin})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		list, to       string
		leaves, before bool
		trace          mail.Trace
		filter         string
		fail           bool  // the next system refuses
		err            error // of the suppress service
		asked          int
		from           string // what it is delivered with; empty: it is not
		action         dsn.Action
		told           string // class
	}{
		"other mail":     {to: "suppressed@to.test", leaves: true, before: true, from: "ann@x.test", action: dsn.Delivered},
		"leaves":         {list: "news", to: "joe@to.test", leaves: true, before: true, asked: 1, from: "b+token@bounces.test", action: dsn.Delivered},
		"stays":          {list: "news", to: "joe@to.test", before: true, asked: 1, from: "ann@x.test", action: dsn.Delivered},
		"to a filter":    {list: "news", to: "joe@to.test", filter: "smtp:[127.0.0.1]:10025", leaves: true, before: true, asked: 1, from: "ann@x.test", action: dsn.Delivered},
		"nobody asks":    {list: "news", to: "suppressed@to.test", from: "ann@x.test", action: dsn.Delivered},
		"suppressed":     {list: "news", to: "suppressed@to.test", leaves: true, before: true, asked: 1, action: dsn.Failed},
		"only paths":     {list: "news", to: "suppressed@to.test", leaves: true, asked: 1, from: "ann@x.test", action: dsn.Delivered},
		"fails":          {list: "news", to: "joe@to.test", leaves: true, before: true, fail: true, asked: 1, from: "b+token@bounces.test", action: dsn.Failed, told: "InvalidRecipient"},
		"fails, other":   {to: "joe@to.test", leaves: true, before: true, fail: true, from: "ann@x.test", action: dsn.Failed},
		"a probe":        {list: "news", to: "suppressed@to.test", leaves: true, before: true, trace: mail.TraceProbe, from: "ann@x.test", action: dsn.Deliverable},
		"without answer": {list: "news", to: "joe@to.test", leaves: true, before: true, err: errors.New("no"), asked: 1, action: dsn.Deferred},
	} {
		f := &fakeSuppressor{err: tt.err}
		o := Options{Suppress: f, Leaves: tt.leaves, Before: tt.before, Log: maillog.New("smtp", maillog.NewWriter(io.Discard, maillog.Classic))}
		l := newListed(&o)
		r := NewTestRequest(mail.Envelope{ID: "4jWn4F1YhnzSshsm4", Sender: "ann@x.test", List: tt.list, Trace: tt.trace, Filter: tt.filter, MessageID: "<m@x>", EnvID: "e", Tenant: "shop", Campaign: "spring",
			Recipients: []mail.Recipient{{Address: tt.to}}}, "", nil, o.Log)
		r.env.listed, r.Provider, r.Source = l, "bigmail", "mta1"
		r.Classify(rules)
		from := ""
		if l.permits(t.Context(), r) {
			from = r.Envelope.Sender
			if tt.fail {
				r.Bounce(0, dsn.S(5, 1, 1), "host said: 550 5.1.1 no such user", Detail{DiagType: "smtp", DiagText: "550 5.1.1 no such user"})
			} else {
				r.Sent(0, dsn.S(2, 0, 0), "250 Ok", Detail{})
			}
		}
		l.tell(t.Context(), r)
		if got := r.Outcomes()[0].Action; from != tt.from || got != tt.action || len(f.asked) != tt.asked {
			t.Errorf("%s: delivered with %q, %v, asked %d times", name, from, got, len(f.asked))
		}
		for _, q := range f.asked {
			if path := tt.leaves && tt.filter == ""; q.List != tt.list || q.Address != tt.to || path != (q.QueueID != "") || path && (q.QueueID != "4jWn4F1YhnzSshsm4" || q.Sender != "ann@x.test" || q.MessageID != "<m@x>" || q.EnvID != "e" || q.Tenant != "shop" || q.Campaign != "spring") || q.Provider != "bigmail" || q.Source != "mta1" {
				t.Errorf("%s: asked %+v", name, q)
			}
		}
		told := ""
		for _, q := range f.told {
			if told += q.Class; q.List != tt.list || q.Address != tt.to || q.What != proto.ToldBounce || q.Provider != "bigmail" || q.Source != "mta1" || q.Detail != "550 5.1.1 no such user" {
				t.Errorf("%s: %+v", name, q)
			}
		}
		if told != tt.told {
			t.Errorf("%s: told %q", name, told)
		}
	}
	// Mail of a list goes to one recipient at a time. An order for two is none of that, whoever has given it; nor is a failure of somebody else than
	// the recipient, such as a member of an alias.
	f := new(fakeSuppressor)
	o := Options{Suppress: f, Leaves: true, Before: true, Log: maillog.New("smtp", maillog.NewWriter(io.Discard, maillog.Classic))}
	two := NewTestRequest(mail.Envelope{List: "news", Sender: "a@b", Recipients: []mail.Recipient{{Address: "suppressed@to.test"}, {Address: "x@y"}}}, "", nil, o.Log)
	if two.env.listed = newListed(&o); !two.env.listed.permits(t.Context(), two) || len(f.asked) != 0 {
		t.Errorf("asked %+v", f.asked)
	}
	member := NewTestRequest(mail.Envelope{List: "news", Sender: "a@b", Recipients: []mail.Recipient{{Address: "alias@to.test"}}}, "", nil, o.Log)
	member.env.listed = two.env.listed
	member.Part(0, "member@to.test", dsn.Failed, dsn.S(5, 1, 1), "no such user", Detail{})
	if member.env.listed.tell(t.Context(), member); len(f.told) != 0 {
		t.Errorf("told %+v", f.told)
	}
	// Without a service nothing is done.
	var none *listed
	r := NewTestRequest(mail.Envelope{List: "news", Sender: "a@b", Recipients: []mail.Recipient{{Address: "x@y"}}}, "", nil, nil)
	if !none.permits(t.Context(), r) {
		t.Error("no service, no delivery")
	}
	none.tell(t.Context(), r)
}
