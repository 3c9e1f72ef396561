package qmgr

import (
	"context"
	"fmt"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
)

// ETRN by the thousand: sites take turns, one that waits is noted once, and
// past a bound they are refused.
func TestManyFlushes(t *testing.T) {
	t.Parallel()
	st := newStage(t, "fast_flush_domains = to.test\nparent_domain_matches_subdomains = fast_flush_domains\n")
	id := st.fill(faketest.Mail{Queue: queue.Deferred, Attempts: 1, Next: time.Now().Add(time.Hour), Content: "x\r\n",
		Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: "a@second.to.test"}}}})[0]
	smtp := st.agent("smtp", proto.Inventory{})
	gate := make(chan struct{})
	st.gate = gate // reading takes long
	st.run()
	st.waitAttached(1)
	conn, err := st.tool.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan error)
	ask := func(site string) {
		conn.Go(&proto.Command{Verb: proto.VerbFlush, Site: site}, func(_ []byte, err error) { answers <- err })
	}
	refused := 0
	wait := func(n int) {
		for range n {
			select {
			case err := <-answers:
				if _, ok := err.(ipc.RemoteError); ok {
					refused++
				} else if err != nil {
					t.Fatal(err)
				}
			case <-time.After(patience):
				t.Fatal("no answer")
			}
		}
	}
	ask("first.to.test")
	wait(1)
	for range 3 {
		ask("Second.to.test")
		for i := range maxFlushes - 1 {
			ask(fmt.Sprintf("s%d.to.test", i))
		}
		wait(maxFlushes)
	}
	if refused > 0 {
		t.Errorf("%d refused although they wait already, or there is room", refused)
	}
	ask("one-more.to.test")
	wait(1)
	if refused != 1 {
		t.Errorf("%d refused, want the one over the bound", refused)
	}
	st.mu.Lock()
	reading := st.reading
	st.mu.Unlock()
	if reading > 2 { // the one whose turn it is, and qshape's survey
		t.Errorf("%d read the queue at a time", reading)
	}
	close(gate)
	if o := smtp.next(); o.Envelope.ID != id {
		t.Errorf("ordered: %s", o.Envelope.ID)
	}
}
