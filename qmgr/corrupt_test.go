package qmgr

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/selection"
)

// Mail that was set aside is told as deleted when cleanup has recorded that. What it refuses to remove is named, and a cleanup
// that says nothing is no consent.
func TestDeleteCorrupt(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.resolveTime = 10 * time.Second // what answers has that long on a busy machine, too
	set := func() mail.QueueID {
		return st.fill(deferredMail(queue.Corrupt, time.Minute, "s@from.test", "450 later", "a@to.test"))[0]
	}
	gone, kept, later := set(), set(), set()
	other := st.fill(deferredMail(queue.Deferred, time.Minute, "s@from.test", "450 later", "a@to.test"))[0]
	st.kept = kept
	st.run()
	st.waitAttached(1)
	del := func(ids ...mail.QueueID) (reply proto.SelectReply, err error) {
		err = st.tool.Call(t.Context(), &proto.Select{IDs: ids, Verb: proto.VerbDelete, Where: selection.Corrupt().Encode()}, &reply)
		return reply, err
	}
	reply, err := del(gone, kept, other)
	if err != nil || !slices.Equal(reply.IDs, []mail.QueueID{gone}) || reply.Octets != st.site.Entries()[gone].Size {
		t.Errorf("%+v, %v", reply, err)
	}
	if want := string(kept) + ": it is not removed: it cannot be"; len(reply.Failed) != 1 || reply.Failed[0] != want {
		t.Errorf("%q, want %q", reply.Failed, want)
	}
	if st.queued(gone) != nil || st.queued(kept) == nil || st.queued(other) == nil {
		t.Error("something else was deleted")
	}
	st.mu.Lock()
	st.deaf = true
	st.mu.Unlock()
	var refused ipc.RemoteError
	if reply, err = del(later); !errors.As(err, &refused) || strings.Contains(refused.Error(), "no such") || len(reply.IDs) > 0 {
		t.Errorf("%+v, %v: nobody has said that it is deleted", reply, err)
	}
}
