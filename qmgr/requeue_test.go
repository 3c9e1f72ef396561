package qmgr

import (
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/table"
)

// What is queued again goes where today's configuration has it go, not where
// the tables of the day on which it came had it go. What the message is stays: who sent
// it, how, and what for.
func TestRequeueToday(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		main, filter string
		flags        proto.SubmitFlags
	}{
		{"", "", proto.SubmitMap | proto.SubmitFilter | proto.SubmitBCC},
		{"content_filter = scan:[new.test]\n", "scan:[new.test]", proto.SubmitMap | proto.SubmitFilter | proto.SubmitBCC},
		{"receive_override_options = no_address_mappings, no_header_body_checks\n", "", 0},
	} {
		st := newStage(t, x.main)
		was := mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Filter: "smtp:[old.test]", Redirect: "r@old.test", VERP: "+=",
			EnvID: "e", Ret: dsn.RetHeaders, RewriteContext: "remote", Client: mail.Client{Name: "c.test", Addr: "192.0.2.1"}, RequireTLS: true,
			Tenant: "acme", Campaign: "spring", Pool: "bulk",
			Recipients: []mail.Recipient{{Address: "a@to.test", Original: "o@to.test"}, {Address: "bcc@to.test", Notify: dsn.NotifyNever}}}
		id := st.fill(faketest.Mail{Content: "x\r\n", Queue: queue.Hold, Envelope: was})[0]
		st.run()
		st.command(proto.Command{Verb: proto.VerbRequeue, ID: id})
		st.waitOp(id, "requeued", removed)
		st.mu.Lock()
		if len(st.taken) != 1 {
			t.Fatalf("through cleanup: %+v", st.taken)
		}
		q := st.taken[0]
		st.mu.Unlock()
		env := q.Envelope
		if env.Filter != x.filter || env.Redirect != "" {
			t.Errorf("%q: filter %q, redirected to %q", x.main, env.Filter, env.Redirect)
		}
		if want := x.flags | proto.SubmitBounce | proto.SubmitRequeued; q.Flags != want {
			t.Errorf("%q: flags %b, want %b", x.main, q.Flags, want)
		}
		if env.Sender != was.Sender || env.VERP != was.VERP || env.EnvID != was.EnvID || env.Ret != was.Ret || env.RewriteContext != was.RewriteContext ||
			env.Client != was.Client || !env.RequireTLS || env.Tenant != was.Tenant || env.Campaign != was.Campaign || env.Pool != was.Pool {
			t.Errorf("the envelope was %+v, and is %+v", was, env)
		}
		if len(env.Recipients) != 2 || env.Recipients[0].Address != "o@to.test" || !slices.Equal(q.NoBCC, []string{"a@to.test", "bcc@to.test"}) {
			t.Errorf("recipients %+v, no BCC for %q", env.Recipients, q.NoBCC)
		}
	}
}

// Mail that local has forwarded goes to those it was forwarded to, and not back to the alias: local
// would find its own Delivered-To: there, and return it.
func TestRequeueForwarded(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	was := mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Forwarded: true,
		Recipients: []mail.Recipient{{Address: "a@to.test", Original: "list@here.test"}}}
	id := st.fill(faketest.Mail{Content: "x\r\n", Queue: queue.Hold, Envelope: was})[0]
	st.run()
	st.command(proto.Command{Verb: proto.VerbRequeue, ID: id})
	st.waitOp(id, "requeued", removed)
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.taken) != 1 || !slices.Equal(st.taken[0].Envelope.Recipients, was.Recipients) || !st.taken[0].Envelope.Forwarded {
		t.Errorf("through cleanup: %+v", st.taken)
	}
}

// The settings are those of pickup, with the options of its entry.
func TestRequeueSettings(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("content_filter = scan:\n")
	if err != nil {
		t.Fatal(err)
	}
	services := []config.Service{{Name: "smtp", Command: "smtpd", Args: []string{"-o", "content_filter=no:"}},
		{Name: "pickup", Command: "pickup", Args: []string{"-o", "content_filter=local:", "-o", "receive_override_options=no_address_mappings"}}}
	s, err := Load(cfg, services, table.Options{}, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if want := proto.SubmitFilter | proto.SubmitBounce | proto.SubmitRequeued; s.RequeueFilter != "local:" || s.RequeueFlags != want {
		t.Errorf("filter %q, flags %b, want %b", s.RequeueFilter, s.RequeueFlags, want)
	}
	many := make([]mail.Recipient, 10)
	for i := range many {
		many[i].Address = strings.Repeat("x", proto.ListSize/10)
	}
	if known(many) != nil || len(known(many[:9])) != 9 {
		t.Error("the bound on what a request lists does not hold")
	}
}
