package pickup

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/submit"
)

// What is offered is taken when cleanup has it, and from whom it says it is from.
func TestOffered(t *testing.T) {
	t.Parallel()
	const owner, stranger = 70001, 70002
	for _, c := range []struct {
		name      string
		code      int // cleanup's answer; 0: it is not asked
		uid, says int
		slow      bool
		stop      bool // the service is told to stop while cleanup has the message
		cut       int  // so many octets are missing
		taken     bool
	}{
		{name: "taken", code: 250, uid: stranger, says: stranger, taken: true},
		{name: "taken from root", code: 250, uid: 0, says: stranger, taken: true},
		{name: "taken at the stop", code: 250, uid: stranger, says: stranger, stop: true, taken: true},
		{name: "not now", code: 452, uid: stranger, says: stranger},
		{name: "refused", code: 552, uid: stranger, says: stranger},
		{name: "a lie", uid: stranger, says: 0},
		{name: "nobody known", uid: -1, says: stranger},
		{name: "slow", uid: stranger, says: stranger, slow: true},
		{name: "broken off", uid: stranger, says: stranger, cut: 1},
		{name: "broken off early", uid: stranger, says: stranger, cut: 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := make(chan *ipc.Request, 1)
			submitter := submit.New(serveCleanup(t, filepath.Join(t.TempDir(), "cleanup"), got))
			defer submitter.Close()
			p := New(Options{Submit: submitter, Log: maillog.New("pickup", maillog.NewWriter(os.Stderr, maillog.Plain)), Owner: owner, Slow: c.slow})
			var message strings.Builder
			h := &maildrop.Header{Time: time.Now(), UID: c.says, Sender: "a@from.test", Filter: "smtp:evil.test",
				Recipients: []mail.Recipient{{Address: "b@to.test"}}}
			if err := maildrop.Write(&message, h, strings.NewReader("Subject: x\n\nx\n")); err != nil {
				t.Fatal(err)
			}
			theirs, ours := net.Pipe()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { p.offered(ctx, ours, c.uid); ours.Close() }()
			go func() {
				io.WriteString(theirs, message.String()[:message.Len()-c.cut])
				if c.cut > 0 {
					theirs.Close()
				}
			}()
			if c.code != 0 {
				r := <-got
				var q proto.Submit
				if err := r.Decode(&q); err != nil {
					t.Fatal(err)
				}
				if filter := q.Envelope.Filter; (filter == "") != (c.uid == stranger) {
					t.Errorf("user %d's filter: %q", c.uid, filter)
				}
				if c.stop {
					cancel()
				}
				r.Reply(&proto.SubmitReply{Code: c.code, Status: dsn.S(uint8(c.code/100), 0, 0), Text: "x"})
			}
			if answer, _ := io.ReadAll(theirs); string(answer) != map[bool]string{true: "Q"}[c.taken] {
				t.Errorf("the answer is %q", answer)
			}
		})
	}
}

// Whoever has not heard that a message is queued makes a file of it. Where it may be in the queue all the same, the log
// names it.
func TestOfferInDoubt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, says string
		impatient  bool // who offers it goes away, and then it is queued; else cleanup goes away
	}{
		{"nobody waits", ": in doubt: it is in the queue, and the sendmail program has not waited to hear that: it may be queued twice", true},
		{"cleanup is lost", ": connection to cleanup lost: not known whether the message is queued", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := make(chan *ipc.Request, 1)
			cleanup := serveCleanup(t, filepath.Join(t.TempDir(), "cleanup"), got)
			submitter := submit.New(cleanup)
			defer submitter.Close()
			var log strings.Builder
			logger := maillog.New("pickup", maillog.NewWriter(&log, maillog.Plain))
			p := New(Options{Submit: submitter, Log: logger, Owner: -1})
			var message strings.Builder
			h := &maildrop.Header{Time: time.Now(), UID: 70002, Sender: "a@from.test", Recipients: []mail.Recipient{{Address: "b@to.test"}}}
			if err := maildrop.Write(&message, h, strings.NewReader("Subject: x\n\nx\n")); err != nil {
				t.Fatal(err)
			}
			theirs, ours := net.Pipe()
			done := make(chan struct{})
			go func() { defer close(done); p.offered(t.Context(), ours, 70002); ours.Close() }()
			go io.WriteString(theirs, message.String())
			r := <-got
			var q proto.Submit
			if err := r.Decode(&q); err != nil {
				t.Fatal(err)
			}
			if c.impatient {
				theirs.Close()
				r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"})
			} else {
				cleanup.Close()
			}
			<-done
			logger.Close()
			if !strings.Contains(log.String(), "warning: "+string(q.Envelope.ID)+c.says) {
				t.Errorf("%s", log.String())
			}
		})
	}
}
