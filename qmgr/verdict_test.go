package qmgr

import (
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
)

// verdict is a message that was tried before: so many of its recipients have
// failed for good, and their sender could not be told; the others are deferred.
func verdict(failed, deferred int) faketest.Mail {
	m := many(failed+deferred, "to.test")
	m.Queue, m.Attempts, m.Next = queue.Deferred, 1, time.Now()
	for i := range m.Envelope.Recipients {
		o := mail.Outcome{Rcpt: i, Action: dsn.Failed, Status: dsn.S(5, 1, 1), Reason: "550 never", Relay: "peer", When: time.Now()}
		if i >= failed {
			o.Action, o.Status, o.Reason = dsn.Deferred, dsn.S(4, 2, 0), "450 later"
		}
		m.Outcomes = append(m.Outcomes, o)
	}
	return m
}

// Who has failed for good, and whose sender could not be told, is not delivered
// to again: the sender is told now.
func TestVerdictStands(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		mail   faketest.Mail
		unsent int   // so many notices fail
		order  []int // what is ordered
		told   []int
		gone   bool
	}{
		"and others are tried":     {verdict(2, 1), 0, []int{2}, []int{0, 1}, true},
		"there are no others":      {verdict(1, 0), 0, nil, []int{0}, true},
		"in batches":               {verdict(25, 3), 0, []int{25, 26, 27}, span(0, 25), true},
		"and the notice fails":     {verdict(1, 0), 1, nil, []int{0}, false},
		"withdrawn by an operator": {func() faketest.Mail { m := verdict(1, 0); m.Expire = true; return m }(), 0, nil, []int{0}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "qmgr_message_recipient_minimum = 10\nsmtp_recipient_limit = 10\nsmtp_destination_recipient_limit = 50\n")
			st.unsent = tt.unsent
			id := st.fill(tt.mail)[0]
			smtp := st.agent("smtp", proto.Inventory{})
			st.run()
			var ordered []int
			for len(ordered) < len(tt.order) {
				o := smtp.next()
				ordered = append(ordered, o.Index...)
				o.answer(slices.Repeat([]string{"ok"}, len(o.Index))...)
			}
			if slices.Sort(ordered); !slices.Equal(ordered, tt.order) {
				t.Errorf("ordered %v, want %v", ordered, tt.order)
			}
			if tt.gone {
				st.waitOp(id, "that it is gone", removed)
			} else {
				op := st.waitOp(id, "that it is deferred", inQueue(queue.Deferred))
				if len(op.Outcomes) != 1 || op.Outcomes[0].Reason != "550 never" || op.Outcomes[0].Action != dsn.Failed {
					t.Errorf("recorded: %+v", op.Outcomes)
				}
			}
			st.mu.Lock()
			var told []int
			for _, n := range st.notices {
				for _, o := range n.Outcomes {
					if n.Notice != proto.NoticeFailure || o.Reason != "550 never" {
						t.Errorf("notice %v of %+v", n.Notice, o)
					}
					told = append(told, o.Rcpt)
				}
			}
			st.mu.Unlock()
			if slices.Sort(told); !slices.Equal(told, tt.told) {
				t.Errorf("told of %v, want %v", told, tt.told)
			}
			if strings.Contains(st.log.String(), "status=") && len(tt.order) > 0 {
				t.Errorf("logged again:\n%s", st.log)
			}
			st.quiet()
		})
	}
}
