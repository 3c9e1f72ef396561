package simtest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
)

// step counts what processes do to the world, and has the faults strike that are planned for it.
func (s *site) step(p *process, what string) {
	s.mu.Lock()
	s.steps++
	n := s.steps
	trace := s.plan.trace
	s.mu.Unlock()
	if s.outside != nil {
		return
	}
	s.books.tokens()
	if trace {
		s.note("step %d: %s %s", n, p.name(), what)
	}
	for i := range s.plan.Faults {
		if f := &s.plan.Faults[i]; f.Step == n && !s.isHealed() {
			s.strike(f)
		}
	}
}

// note writes a line of the simulation's own into the log.
func (s *site) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(&s.log, "{\"time\":%q,\"simtest\":%q}\n", time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"), fmt.Sprintf(format, args...))
}

// strike is a fault at a step.
func (s *site) strike(f *Fault) {
	s.note("%s", f)
	s.books.struck(f)
	if f.Kind == powerCut {
		if s.powered() {
			s.cut(f.For)
		}
		return
	}
	for _, e := range s.services {
		if e.spec.Process == f.On {
			s.kill(e, f.For)
		}
	}
}

// afterwards is a fault at a time.
func (s *site) afterwards(f *Fault) {
	time.Sleep(f.At)
	if s.isHealed() || !s.powered() {
		return
	}
	s.note("%s", f)
	s.books.struck(f)
	switch f.Kind {
	case reload:
		s.mu.Lock()
		s.setting = int(f.N) % len(s.plan.configs)
		s.mu.Unlock()
		s.reload()
	case badTables:
		s.fail(int(f.N) + 1)
		time.Sleep(f.For)
		s.fail(0)
	case restart:
		s.stop()
		s.closeSockets()
		s.flow.Put(-s.flow.Level()) // the next master makes a pipe of its own
		time.Sleep(f.For)
		s.boot()
	case badSyncs:
		s.setSick(true)
		time.Sleep(f.For)
		s.setSick(false)
	case fullDisk:
		const large = 1 << 40
		s.disk.SetLimit(large)
		free, _ := s.disk.Free(".")
		s.disk.SetLimit(large - free + f.N<<12)
		time.Sleep(f.For)
		s.disk.SetLimit(0)
	case suspend:
		s.suspend(proto.OverridePut, f.On)
		time.Sleep(f.For)
		s.suspend(proto.OverrideRemove, f.On)
	default:
		s.order(f.Kind, f.On)
	}
}

// fail has lookups fail from now on, with the settings of that number; 0: they do not any more.
func (s *site) fail(n int) {
	s.mu.Lock()
	s.failing = n
	s.mu.Unlock()
	s.reload()
}

// closeSockets is what clients see who wait for services when master ends.
func (s *site) closeSockets() {
	for _, e := range s.services {
		e.sock.clear()
	}
}

func (s *site) setSick(sick bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sick = sick
}

// heal ends all that is wrong.
func (s *site) heal() {
	s.mu.Lock()
	s.healed, s.sick = true, false
	s.mu.Unlock()
	for !s.powered() {
		time.Sleep(time.Minute)
	}
	if slices.ContainsFunc(s.plan.Faults, func(f Fault) bool { return f.Kind == badTables }) {
		for range 3 { // while one reload goes on there is no other
			s.fail(0)
			time.Sleep(10 * time.Second)
		}
	}
	s.disk.SetLimit(0)
	for _, d := range []string{"one.test", "two.test", "three.test"} {
		s.suspend(proto.OverrideRemove, d)
	}
	s.order(release, "")
	s.order(flush, "")
}

// manager calls f with a connection to the queue manager, as root's tools have it.
func (s *site) manager(f func(ctx context.Context, c *ipc.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cl := ipc.NewClient(ipc.Func("public/qmgr", func(ctx context.Context) (net.Conn, error) { return s.dial(ctx, nil, "public/qmgr", address("tool")) }), nil)
	defer cl.Close()
	c, err := cl.Conn(ctx)
	if err != nil {
		return err
	}
	return f(ctx, c)
}

// item is a message in the queue.
type item struct{ id, queue, sender string }

// queued lists the queue.
func (s *site) queued() (items []item, err error) {
	err = s.manager(func(ctx context.Context, c *ipc.Conn) error {
		return queueclient.Each(ctx, c, false, func(it *proto.Item) bool {
			items = append(items, item{string(it.ID), it.Queue, it.Sender})
			return true
		})
	})
	return items, err
}

var verbs = map[string]proto.Verb{flush: proto.VerbFlush, hold: proto.VerbHold, release: proto.VerbRelease, requeue: proto.VerbRequeue, remove: proto.VerbDelete}

// order carries out an operator's command, on the message of a token, or on all.
func (s *site) order(kind, token string) {
	if kind == flush {
		_ = s.manager(func(ctx context.Context, c *ipc.Conn) error {
			return c.Call(ctx, &proto.Command{Verb: proto.VerbFlush, All: true}, &proto.CommandReply{})
		})
		return
	}
	items, _ := s.queued()
	for _, it := range items {
		if it.sender == "" && token != "" || token != "" && s.books.tokenOf(it.id) != token {
			continue
		}
		verb := kind
		if kind == remove {
			s.books.mayBeDeleted(token)
		} else if kind == release && s.books.isDeleted(s.books.tokenOf(it.id)) {
			verb = remove // the mail system ended while it was being delivered
		}
		_ = s.manager(func(ctx context.Context, c *ipc.Conn) error {
			var reply proto.CommandReply
			err := c.Call(ctx, &proto.Command{Verb: verbs[verb], ID: mailID(it.id)}, &reply)
			if verb == remove && len(reply.IDs) > 0 {
				s.postsuper().Log(maillog.QueueAction{ID: it.id, Action: "removed"})
			}
			return err
		})
	}
}

// postsuper is the log of the tool that operators use.
func (s *site) postsuper() *maillog.Logger {
	return maillog.New("postfix/postsuper", maillog.NewWriter(&process{site: s, pid: 99}, maillog.JSON))
}

func (s *site) suspend(op proto.OverrideOp, domain string) {
	_ = s.manager(func(ctx context.Context, c *ipc.Conn) error {
		return c.Call(ctx, &proto.Override{Op: op, Entry: proto.OverrideEntry{Of: "suspension", Target: domain, By: "simtest", Since: time.Now()}}, nil)
	})
}
