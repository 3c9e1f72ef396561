package cleanup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/table"
	"posthaste/internal/testwait"
)

// A message whose lines are all slow for some pattern costs what one message may
// cost. It is deferred, with a log line that names table and line; the next has
// a budget of its own.
func TestPatternBudget(t *testing.T) {
	t.Parallel()
	checks := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(checks, []byte("/^(?!zz)(a|aa)+$/ REJECT\n/^(?!x)never/ REJECT\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, log := newTestServer(t, "", "")
	s.opt.Core = newCore(t, "body_checks = pcre:"+checks+"\n", nil)
	submit := func(line string, times int, budget time.Duration) (*proto.SubmitReply, time.Duration) {
		in := begun(s, &proto.Submit{Flags: proto.SubmitFilter | proto.SubmitNoReceive, Envelope: mail.Envelope{ID: mail.MakeQueueID(time.Unix(1, 0), 1),
			Sender: "s@from.test", RewriteContext: "remote", Recipients: []mail.Recipient{{Address: "r@here.test"}}}})
		in.ctx, in.budget = table.NewBudget(t.Context(), budget)
		start := time.Now()
		in.write([]byte("Subject: x\r\n\r\n"))
		for range times {
			in.write([]byte(strings.Repeat(line+"\r\n", 100)))
		}
		verdict, _ := in.commit()
		return verdict, time.Since(start)
	}
	// None of the lines comes near the time limit of a match, unless the machine does something else for all of that;
	// all of them would need many times what the message has.
	testwait.For(t, func() string {
		reply, took := submit(strings.Repeat("a", 16)+"!", 1000, 50*time.Millisecond)
		if reply.Code != 451 {
			t.Errorf("answered %+v after %v", reply, took)
		}
		if want := ", line 1: the patterns together have taken 50ms"; !strings.Contains(log.String(), checks+want) {
			return "log: " + log.String() + "\nwant " + want
		}
		return ""
	})
	if !strings.Contains(log.String(), ": body_checks map lookup problem -- message not accepted, try again later: ") {
		t.Errorf("log: %s", log.String())
	}
	if reply, _ := submit("harmless", 1, time.Hour); reply.Code != 250 {
		t.Errorf("the next one: %+v", reply)
	}
}
