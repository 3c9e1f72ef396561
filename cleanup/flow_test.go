package cleanup

import (
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// A token is used up by a message for the queue manager to take up, and by no
// other: what is held, deferred, refused, discarded or given up has it put back.
func TestTokenPutBack(t *testing.T) {
	t.Parallel()
	s, _ := newTestServer(t, "header_checks = inline:{ {Subject: hold=HOLD}, {Subject: reject=REJECT}, {Subject: discard=DISCARD} }\n", "")
	s.opt.Delay = time.Nanosecond
	tokens := 0
	s.opt.Token = func() bool { tokens--; return tokens >= 0 }
	s.opt.PutToken = func() { tokens++ }
	later := &queue.Change{Set: queue.SetQueue | queue.SetNextAttempt, Queue: queue.Deferred, NextAttempt: time.Unix(1000, 0)}
	for i, tc := range []struct {
		content string
		flags   proto.SubmitFlags
		before  int
		after   int
		state   *queue.Change
	}{
		{"Subject: plain\r\n\r\nbody\r\n", 0, 3, 2, nil},
		{"Subject: hold\r\n\r\nbody\r\n", 0, 3, 3, nil},
		{"Subject: reject\r\n\r\nbody\r\n", 0, 3, 3, nil},
		{"Subject: discard\r\n\r\nbody\r\n", 0, 3, 3, nil},
		{"Subject: plain\r\n\r\nbody\r\n", proto.SubmitNoReceive, 3, 3, nil},
		{"Subject: hold\r\n\r\nbody\r\n", 0, 0, -1, nil}, // there was none
		{"Subject: plain\r\n\r\nbody\r\n", 0, 3, 3, later},
		{"Subject: plain\r\n\r\nbody\r\n", 0, 3, 2, &queue.Change{Set: queue.SetWarned, Warned: true}},
		{"", 0, 3, 3, nil}, // given up
	} {
		tokens = tc.before
		in := begun(s, &proto.Submit{Flags: proto.SubmitFilter | tc.flags, State: tc.state, Envelope: mail.Envelope{ID: mail.MakeQueueID(time.Unix(1, 0), uint64(i)+1),
			Arrival: time.Unix(1, 0), Sender: "a@from.test", Recipients: []mail.Recipient{{Address: "b@to.test"}}}})
		if tc.content == "" {
			in.abort()
		} else {
			in.write([]byte(tc.content))
			in.commit()
		}
		if tokens != tc.after {
			t.Errorf("%d: %q: %d tokens of %d, want %d", i, tc.content, tokens, tc.before, tc.after)
		}
	}
}
