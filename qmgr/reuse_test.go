package qmgr

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// The memory of orders, answers, loads and requests is used again: what one
// message has of texts and recipients never comes to be another's, however many
// there are at once and whoever ends first.
func TestNothingOfAnother(t *testing.T) {
	t.Parallel()
	st := newStage(t, "destination_recipient_limit = 10\ndestination_concurrency_limit = 50\ninitial_destination_concurrency = 50\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	const messages = 60
	want := make(map[mail.QueueID][]string)
	// Addresses of all lengths: Known knows some of them only.
	address := func(i, k int) string { return fmt.Sprintf("%sr%d-%d@to%d.test", strings.Repeat("x", i%7), i, k, i%3) }
	for i := range messages {
		var rcpts []string
		for k := range 1 + i%4*i%5 {
			rcpts = append(rcpts, address(i, k))
		}
		want[st.arrive(fmt.Sprintf("s%d@from.test", i), rcpts...)] = rcpts
	}
	seen := make(map[mail.QueueID]int)
	said := make(map[mail.QueueID][]string)
	answer := func(o *order) {
		id := o.Envelope.ID
		reply := &proto.DeliverReply{Outcomes: make([]mail.Outcome, len(o.Index))}
		for k, i := range o.Index {
			if o.Envelope.Recipients[k].Address != want[id][i] {
				t.Errorf("%s: recipient %d is %q, not %q", id, i, o.Envelope.Recipients[k].Address, want[id][i])
			}
			reply.Outcomes[k] = mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: dsn.S(4, 2, 0), When: time.Now(),
				Reason: "450 " + want[id][i], Relay: o.Envelope.Sender}
		}
		seen[id] += len(o.Index)
		o.req.Reply(reply)
	}
	for left := messages; left > 0; {
		// Some orders are held back, so that answers overtake one another.
		held := []order{smtp.next()}
		for len(held) < 5 && len(smtp.orders) > 0 {
			held = append(held, smtp.next())
		}
		slices.Reverse(held)
		for i := range held {
			answer(&held[i])
			if id := held[i].Envelope.ID; seen[id] == len(want[id]) {
				left--
			}
		}
	}
	for id, rcpts := range want {
		op := st.waitOp(id, "its deferral", inQueue(queue.Deferred))
		for _, o := range op.Outcomes {
			if o.Reason != "450 "+rcpts[o.Rcpt] || !strings.HasSuffix(o.Relay, "@from.test") {
				t.Errorf("%s: of recipient %d is recorded %+v", id, o.Rcpt, o)
			}
			said[id] = append(said[id], o.Reason[4:])
		}
		if !slices.Equal(said[id], rcpts) {
			t.Errorf("%s: outcomes of %q, not of %q", id, said[id], rcpts)
		}
	}
	st.quiet()
}

// A queue manager that hears late, or not at all, that changes are recorded
// tells the same ones again: memory is used again only of those that are.
func TestUnansweredChangesStay(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	conn := ipc.NewConn(ours, nil)
	read := make(chan struct{})
	go func() { // cleanup, which says nothing
		defer close(read)
		io.Copy(io.Discard, theirs)
	}()
	defer func() {
		conn.Close()
		conn.Wait()
		theirs.Close()
		<-read
	}()
	s := &Server{now: time.Now(), closed: true}
	r := newRecorder(s)
	r.conn = conn
	var sent []*request
	id := func(n, i int) mail.QueueID { return mail.MakeQueueID(time.Unix(1700000000, 0), uint64(100*n+i+1)) }
	for n := range 10 {
		for i := range 8 {
			r.update(&message{id: id(n, i)}, proto.Op{Change: queue.Change{Set: queue.SetAttempts, Attempts: n}})
		}
		r.flush(s.now.Add(flushDelay))
		sent = append(sent, r.unacked[len(r.unacked)-1])
		if n%2 == 1 {
			r.answered(sent[n], new(proto.RecordReply), nil)
		}
	}
	for n := 0; n < 10; n += 2 {
		for i, op := range sent[n].ops {
			if op.ID != id(n, i) || op.Attempts != n {
				t.Errorf("request %d, change %d: %+v", n, i, op)
			}
		}
		if len(sent[n].ops) != 8 {
			t.Errorf("request %d has %d changes", n, len(sent[n].ops))
		}
	}
}

// What is told of a new message stays what it is when the frame that it came in has been given back.
func TestNewsAfterItsFrame(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 100} { // recipients: the frame is kept, or not
		env := mail.Envelope{ID: "4k9XSc0000zzz", Arrival: time.Unix(1800000000, 0), Sender: "s@from.test", Tenant: "t"}
		for i := range n {
			env.Recipients = append(env.Recipients, mail.Recipient{Address: fmt.Sprintf("r%d@to.test", i)})
		}
		told := &proto.Entries{List: []proto.Entry{{Entry: queue.Entry{ID: env.ID, NRcpt: n, NPending: n, Tenant: env.Tenant},
			Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, env.Recipients)}}}
		want := told.Append(nil)
		frame := slices.Clone(want)
		if long := len(frame) > keptFrame; long != (n > 1) {
			t.Fatalf("%d octets", len(frame))
		}
		r := &ipc.Request{Kind: proto.KindEntries, Payload: frame}
		s := new(Server)
		s.fromCleanup(nil, r)
		if r.Payload == nil { // another message has it now
			copy(frame, strings.Repeat("x", len(frame)))
		}
		if got := s.inbox[0].news.batch.Append(nil); !slices.Equal(got, want) {
			t.Errorf("of a message with %d recipients is told\n%q, not\n%q", n, got, want)
		}
	}
}
