package qmgr

import (
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// A suspension of a campaign keeps its mail, and no other of the tenant; one of the tenant keeps all of it. Mail that
// waits is let go when it is over.
func TestSuspendTenant(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.keep()
	of := func(tenant, campaign, to string) (id mail.QueueID) {
		m := deferredMail(queue.Hold, time.Minute, "s@from.test", "", to)
		m.Attempts = 0
		m.Envelope.Tenant, m.Envelope.Campaign = tenant, campaign
		return st.fill(m)[0]
	}
	spring, reset, other := of("shop", "spring", "a@to.test"), of("shop", "", "b@to.test"), of("news", "spring", "c@to.test")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.override(proto.OverridePut, "campaign=shop/spring", "the prices are wrong", time.Time{})
	release := func(id mail.QueueID) { st.command(proto.Command{Verb: proto.VerbRelease, ID: id}) }
	release(spring)
	op := st.waitOp(spring, "its deferral", func(op *proto.Op) bool { return len(op.Outcomes) > 0 })
	if op.Attempts != 0 || op.Outcomes[0].Reason != "mail of campaign shop/spring is suspended: the prices are wrong" {
		t.Errorf("recorded: %+v", op)
	}
	st.waitExplain(spring, "campaign shop/spring is suspended by ann")
	expectText(t, st.explain(spring), ": the prices are wrong", `until "posthaste resume --campaign=shop/spring"`)
	for _, id := range []mail.QueueID{reset, other} {
		release(id)
		o := smtp.next()
		if o.Envelope.ID != id {
			t.Fatalf("ordered %s, not %s", o.Envelope.ID, id)
		}
		o.answer("ok")
	}
	st.override(proto.OverridePut, "tenant=shop", "", time.Time{})
	st.override(proto.OverrideRemove, "campaign=shop/spring", "", time.Time{})
	st.waitExplain(spring, "tenant shop is suspended by ann")
	st.override(proto.OverrideRemove, "tenant=shop", "", time.Time{})
	if o := smtp.next(); o.Envelope.ID != spring {
		t.Errorf("ordered %s, not %s", o.Envelope.ID, spring)
	} else {
		o.answer("ok")
	}
}
