package qmgr

import (
	"strings"
	"testing"
	"time"

	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// An agent that reads an order and says nothing holds the message up for a
// time, not for ever; what it says after that still counts.
func TestAgentHangs(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.deliveryTime = 3 * time.Second
	id := st.fill(many(2, "to.test"))[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	late := smtp.next()
	op := st.waitOp(id, "that it waits", inQueue(queue.Deferred))
	if len(op.Outcomes) != 2 {
		t.Errorf("of %d recipients something is recorded, want both", len(op.Outcomes))
	}
	if !strings.Contains(st.log.String(), "timeout receiving delivery status from transport: smtp") {
		t.Errorf("the log does not say why:\n%s", st.log)
	}
	late.answer("ok", "defer")
	st.until("the one who has it is known", func() bool {
		for _, op := range st.ops {
			if len(op.Outcomes) == 1 && op.Outcomes[0].Rcpt == 0 {
				return true
			}
		}
		return false
	})
	st.command(proto.Command{Verb: proto.VerbFlush, ID: id})
	again := smtp.next()
	if got := again.Envelope.Recipients; len(got) != 1 || got[0].Address != "r001@to.test" {
		t.Errorf("ordered again for %v, want r001@to.test alone", got)
	}
	again.answer("ok")
	st.waitOp(id, "that all have it", removed)
}
