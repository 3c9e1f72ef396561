package qmgr

import (
	"errors"
	"testing"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

// A request that cannot be read, or is none of the queue manager's, is answered with an error: whoever asks does not wait for ever.
func TestEveryRequestIsAnswered(t *testing.T) {
	t.Parallel()
	for name, viewer := range map[string]*fakeCluster{"alone": nil, "cluster": new(fakeCluster)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "")
			st.viewer = viewer
			st.run()
			st.waitAttached(1)
			// Those without a body cannot be damaged.
			whole := map[uint16]bool{proto.KindSources: true, proto.KindNodes: true, proto.KindStanding: true}
			for kind := range uint16(256) {
				answer := &rawMessage{}
				err := st.tool.Call(t.Context(), &rawMessage{kind: kind, octets: []byte{0xff}}, answer)
				var refused ipc.RemoteError
				if (err == nil) != whole[kind] || err != nil && !errors.As(err, &refused) {
					t.Errorf("request %d: %v", kind, err)
				}
			}
			// Words that the tool of another version may know.
			for _, m := range []ipc.Message{&proto.Command{Verb: 99, ID: "4k9XSc0000zzz"}, &proto.Command{ID: "4k9XSc0000zzz"}, &proto.Select{Verb: 99}, &proto.Select{Where: []string{"x"}},
				&proto.Carry{Asked: proto.KindList}, &proto.Carry{Asked: proto.KindSelect, Payload: new(proto.Select).Append(nil)}, &proto.Forward{Node: "b", Asked: proto.KindInventory}} {
				err := st.tool.Call(t.Context(), m, &rawMessage{})
				var refused ipc.RemoteError
				if !errors.As(err, &refused) {
					t.Errorf("%+v: %v", m, err)
				}
			}
		})
	}
}
