package qmgr

import (
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// When what is not read yet cannot be looked at, who asks is told so, unless all of it has been read meanwhile: that it is not being read here
// any more may also mean that another node has it.
func TestUnreadMoved(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	f := &fakeCluster{third: "a"}
	here := st.fill(deferredMail(queue.Deferred, time.Minute, "s@from.test", "450 later", "a@to.test"))
	created, number, _ := here[0].Parse()
	st.viewer, st.unread, st.steady = f, []int{3}, true
	f.moves = func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.unread = nil
	}
	st.run()
	st.waitAttached(1)
	var reply proto.CommandReply
	err := st.tool.Call(t.Context(), &proto.Command{Verb: proto.VerbHold, ID: mail.MakeQueueID(created, number+1000)}, &reply)
	if err != nil || !strings.Contains(reply.Omitted, "the database does not answer") {
		t.Errorf("%+v, %v", reply, err)
	}
}

// While cleanup does not say which parts are this node's, mail is flushed all the same.
func TestFlushUnsure(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.viewer, st.patience, st.ownedMute = &fakeCluster{third: "a"}, 50*time.Millisecond, true
	st.run()
	st.waitAttached(1)
	var reply proto.CommandReply
	if err := st.tool.Call(t.Context(), &proto.Command{Verb: proto.VerbFlush, All: true}, &reply); err != nil || !strings.Contains(reply.Omitted, "is not known, and nothing is ordered") {
		t.Errorf("%+v, %v", reply, err)
	}
}
