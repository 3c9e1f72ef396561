package qmgr

import (
	"context"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/spool"
	"posthaste/internal/spooltool/faketest"
)

// What cleanup refuses to record the operator is told of, who would believe
// that the message is on hold; and a message that is gone after all is gone.
func TestRefused(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	ids := st.fill(faketest.Mail{Queue: spool.Deferred, Attempts: 1, Next: time.Now().Add(time.Hour), Content: "x\r\n",
		Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: "a@to.test"}}}})
	id := ids[0]
	st.contra = id
	st.run()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := st.tool.Call(ctx, &proto.Command{Verb: proto.VerbHold, ID: id}, nil)
	if err == nil || !strings.Contains(err.Error(), string(id)+": a change is not recorded") || !strings.Contains(err.Error(), "it cannot be") {
		t.Errorf("hold: %v", err)
	}
	if got := st.explain(id); !strings.Contains(got, "would not outlive a restart: it cannot be") {
		t.Errorf("explain:\n%s", got)
	}
	if got := st.command(proto.Command{Verb: proto.VerbDelete, ID: id}); len(got) != 1 {
		t.Errorf("deleted: %v", got)
	}
	st.waitOp(id, "that it is gone", removed)
}
