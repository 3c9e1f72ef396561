package qmgr

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// keep answers that all are delivered and that the session is kept.
func (o *order) keep() {
	reply := &proto.DeliverReply{Kept: true}
	for _, i := range o.Index {
		reply.Outcomes = append(reply.Outcomes, mail.Outcome{Rcpt: i, Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Reason: "250 ok", Relay: "peer", When: time.Now()})
	}
	o.req.Reply(reply)
}

// TestSessionOfThread: the agent that asks for more gets its thread's next mail
// under the number of its session; another thread's has another.
func TestSessionOfThread(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_scheduler = thread\nsmtp_idle_agent_time = 1h\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "a@a.test")
	first := smtp.next()
	if first.Session == 0 || !first.CacheKeep || first.Keep != time.Hour {
		t.Errorf("session %d, keep %v for %v; want a number, and an hour", first.Session, first.CacheKeep, first.Keep)
	}
	st.arrive("s@from.test", "b@b.test")
	other := smtp.next()
	if other.Session == first.Session {
		t.Errorf("two deliveries at once have session %d", other.Session)
	}
	other.keep()
	st.arrive("s@from.test", "b@a.test")
	first.keep()
	again := smtp.next()
	if again.Session != first.Session || !again.CacheLoad {
		t.Errorf("the thread's next mail is for session %d, look for one: %v; want session %d", again.Session, again.CacheLoad, first.Session)
	}
	again.keep()
	select {
	case n := <-smtp.gone:
		t.Errorf("session %d was to be closed, with an hour to go", n)
	default:
	}
}

// TestSessionDismissed: an agent whose thread has no more mail for idle_agent_time
// is told to close its session.
func TestSessionDismissed(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_scheduler = thread\nsmtp_idle_agent_time = 20ms\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "a@a.test")
	o := smtp.next()
	o.keep()
	select {
	case n := <-smtp.gone:
		if n != o.Session || n == 0 {
			t.Errorf("session %d was to be closed, want %d", n, o.Session)
		}
	case <-time.After(patience):
		t.Error("nobody said that the session was to be closed")
	}
}

// TestSessionOfAgent: with the other schedulers it is for the agent to say how long
// it keeps a session (smtp_connection_cache_time_limit).
func TestSessionOfAgent(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_idle_agent_time = 1ms\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "a@a.test")
	o := smtp.next()
	o.keep()
	if o.Keep != 0 {
		t.Errorf("the session is to be kept for %v", o.Keep)
	}
	time.Sleep(20 * time.Millisecond) // idle_agent_time is over
	st.arrive("s@from.test", "b@b.test")
	last := smtp.next()
	last.keep()
	select {
	case n := <-smtp.gone:
		t.Errorf("session %d was to be closed", n)
	default:
	}
}

// An agent that is replaced may accept a connection just before it closes its socket, and says at
// once that it wants to go. What was to be ordered from it goes to its successor: no mail is
// deferred for that.
func TestAgentGoesAtOnce(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	var met atomic.Int32
	smtp := st.agentAs("smtp", proto.Inventory{}, &ipc.Server{OnConn: func(c *ipc.Conn) {
		if met.Add(1) <= 3 {
			c.GoAway()
		}
	}})
	st.run()
	st.waitAttached(1)
	id := st.arrive("s@from.test", "a@a.test")
	o := smtp.next()
	o.answer("ok")
	st.waitOp(id, "its removal", removed)
	if met.Load() != 4 {
		t.Errorf("%d connections, want 4", met.Load())
	}
	if strings.Contains(st.log.String(), "transport smtp") {
		t.Errorf("log:\n%s", st.log)
	}
}
