package qmgr

import (
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// TestBounceOrdered has an operator return mail for a time: what waits and what comes, and nobody else's. It is told
// wherever somebody looks, and holds after a restart, and when it ends mail is delivered as before.
func TestBounceOrdered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ target, subject, option, explained, look string }{
		{"campaign=news/spring", "mail of campaign news/spring", "--campaign=news/spring", "tenant=news", ""},
		{"campaign=news/spring->one.test", "mail of campaign news/spring to one.test", "'--campaign=news/spring->one.test'", "tenant=news", "one.test"},
		{"tenant=news", "mail of tenant news", "--tenant=news", "tenant=news", ""},
		{"domain=one.test", "mail to one.test", "--domain=one.test", "one.test", "one.test"},
		{"sender=s@from.test", "mail from s@from.test", "--sender=s@from.test", "", ""},
	} {
		t.Run(c.target, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "default_destination_concurrency_limit = 1\ninitial_destination_concurrency = 1\n")
			st.keep()
			of := func(tenant, sender, to string) mail.QueueID {
				m := deferredMail(queue.Hold, time.Minute, sender, "", to)
				m.Envelope.Tenant = tenant
				if tenant != "" {
					m.Envelope.Campaign = "spring"
				}
				return st.fill(m)[0]
			}
			// A second one to the same place waits in the active queue.
			under, waits, comes := of("news", "s@from.test", "a@one.test"), of("news", "s@from.test", "b@one.test"), of("news", "s@from.test", "c@one.test")
			other, after := of("shop", "x@other.test", "d@two.test"), of("news", "s@from.test", "e@one.test")
			smtp, failed := st.agent("smtp", proto.Inventory{}), st.agent("error", proto.Inventory{})
			st.run()
			st.waitAttached(1)
			release := func(id mail.QueueID) { st.command(proto.Command{Verb: proto.VerbRelease, ID: id}) }
			release(under)
			begun := smtp.next()
			release(waits)
			st.waitExplain(waits, "waits since")
			put := func(q proto.OverrideEntry) *proto.OverrideReply {
				t.Helper()
				var reply proto.OverrideReply
				q.Of, q.Target, q.By = string(override.Return), c.target, "ann"
				if err := st.tool.Call(t.Context(), &proto.Override{Op: proto.OverridePut, Entry: q}, &reply); err != nil {
					t.Fatal(err)
				}
				return &reply
			}
			if r := put(proto.OverrideEntry{}); !strings.Contains(r.Refused, "it needs an end") {
				t.Errorf("without an end: %q", r.Refused)
			}
			if r := put(proto.OverrideEntry{Reason: "wrong\x1b prices", Until: time.Now().Add(time.Hour)}); r.Refused != "" {
				t.Fatal(r.Refused)
			}
			returned := func(id mail.QueueID) {
				t.Helper()
				o := failed.next()
				if want := mail.Nexthop("5.7.1 " + c.subject + " is not accepted for now: wrong? prices"); o.Envelope.ID != id || o.Nexthop != want {
					t.Errorf("returned: %s, %q", o.Envelope.ID, o.Nexthop)
				}
				o.answer("fail")
			}
			returned(waits)
			release(comes)
			returned(comes)
			release(other)
			if o := smtp.next(); o.Envelope.ID != other {
				t.Errorf("ordered %s", o.Envelope.ID)
			} else {
				o.answer("ok")
			}
			begun.answer("ok")
			expectText(t, st.log.String(), c.subject+" returned to its senders by ann until ")
			if c.explained != "" {
				expectText(t, st.explainDest(c.explained), c.subject+" is returned by ann since ", ": wrong? prices; \"posthaste unbounce "+c.option+"\" ends it")
			}
			if c.look == "" {
				if text := st.explainDest("two.test"); strings.Contains(text, "returned") {
					t.Errorf("of another domain it is said:\n%s", text)
				}
			}
			if r := st.overrideOf(override.Return, proto.OverrideRemove, c.target); !r.Found {
				t.Error("it was not found")
			}
			release(after)
			if o := smtp.next(); o.Envelope.ID != after {
				t.Errorf("ordered %s", o.Envelope.ID)
			} else {
				o.answer("ok")
			}
			expectText(t, st.log.String(), c.subject+" not returned any more: taken back by ann")
		})
	}
}

// TestBounceRefused: what is no part of the mail by whom it is for, from, or whose, is not returned, and all mail neither.
func TestBounceRefused(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.keep()
	st.run()
	for _, target := range []string{"*", "domain=*", "one.test", "smtp:", "[one.test]", "nexthop=one.test", "source=mta1", "site=one.test"} {
		var reply proto.OverrideReply
		q := &proto.Override{Op: proto.OverridePut, Entry: proto.OverrideEntry{Of: string(override.Return), Target: target, By: "ann", Until: time.Now().Add(time.Hour)}}
		if err := st.tool.Call(t.Context(), q, &reply); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(reply.Refused, "what is returned is mail to a domain") {
			t.Errorf("%s: %q", target, reply.Refused)
		}
	}
}
