package qmgr

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/event"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/nodeshare"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/statedir"
	"posthaste/internal/submit"
	"posthaste/internal/table"
	"posthaste/internal/testwait"
	"posthaste/qmgr/sched"
)

// patience bounds waiting for what must happen.
const patience = testwait.Patience

// A stage is a running queue manager among peers that a test plays.
type stage struct {
	t    testing.TB
	main string
	dir  string
	site *faketest.Site
	srv  *Server
	log  *lockedLog

	pools func(named string, ans *proto.ResolveReply) // what mail goes from; nil: it has no pools

	mu       sync.Mutex
	cleanup  *ipc.Conn         // where the queue manager is attached
	entries  []proto.Entry     // what is pushed to who attaches
	queue    fakeQueue         // what is in the queue
	exact    bool              // of entries only what is in the incoming queue is pushed, as cleanup does
	ops      []proto.Op        // recorded, in order
	contra   mail.QueueID      // cleanup refuses changes of this message, but for its removal
	kept     mail.QueueID      // cleanup refuses every change of this one
	vanished mail.QueueID      // cleanup does not have this message any more
	shared   bool              // other nodes deliver to the same destinations
	grants   []nodeshare.Grant // what this node has of their limits
	claimed  []proto.Shares    // what it was asked for
	notes    [][]byte          // what this node has told the others
	heard    [][]byte          // what they tell it, once there is something
	node     string            // what this node is called among those that share the queue; empty: it is not shared
	deaf     bool              // cleanup does not answer Record
	noted    int               // notes for other nodes, which it does not answer
	unheard  int               // Records that were not answered
	askedFor int               // questions what is in hand
	located  map[mail.QueueID]bool
	locates  int // questions whether a message is there
	taken    []proto.Submit
	refuse   bool // cleanup does not take submissions
	notices  []proto.Notify
	unsent   int                                  // so many notices fail
	routes   map[string]string                    // domain to transport:nexthop, broken:, nobody: or fails:
	ours     string                               // a domain of this system; all others are outside
	shares   map[string]func(*proto.ResolveReply) // by domain: what is limited
	agents   map[mail.Transport]*fakeAgent
	number   uint64
	attached int
	tool     *ipc.Client
	retire   func()          // tells the queue manager to end
	drain    time.Duration   // how long it may take then
	stream   func(*ipc.Conn) // what is pushed to the queue manager, instead of entries
	patience time.Duration   // of tools with a silent cleanup
	tookOver func()          // Options.TookOver
	// dueStream answers Due, instead of queue.
	dueStream func(*ipc.Conn, *ipc.Request, proto.Due)
	// resolveTime is how long the resolver may take.
	resolveTime time.Duration
	// unreadable says that messages cannot be opened, for no fault of theirs.
	unreadable bool
	asked      atomic.Int32              // how often the resolver was asked
	mute       bool                      // the resolver does not answer
	foreseen   []string                  // senders and recipients that it was asked about ahead
	urgent     []int                     // how many changes came in each request that was urgent
	gate       <-chan struct{}           // when set, messages are opened when it is closed
	reading    int                       // how many wait for that
	flow       func(moved, incoming int) // what is told of the incoming queue
	// deliveryTime is how long agents may take; 0: what main.cf says.
	deliveryTime time.Duration
	overrides    *override.Store // nil: none
	viewer       *fakeCluster    // nil: the queue is not shared
	metrics      ipc.Address     // the service that publishes metrics; nil: there is none
	epoch        int64           // in which part 1 of it is this node's
	unread       []int           // parts that are this node's, and have not been read yet
	steady       bool            // it stays the same from question to question
	state        *statedir.Dir   // where a handover may lie; nil: none
	inHand       [][]proto.Hand  // what is in hand when cleanup is asked, each time; the last is said ever after
	handsLater   chan struct{}   // closed when questions after the first one may be answered; nil: at once
	ownedMute    bool            // cleanup does not say which parts are this node's
	callTime     time.Duration   // how long agents have to call; 0: agentPatience
	events       *event.Reporter // nil: nobody is told of events
	suppress     ipc.Address     // Options.Suppress
	// deferredLimit is how many deferred messages are in memory; 0: what main.cf says.
	deferredLimit int
	said          []saying // what the agents have answered
	failed        []int    // which of notices failed
}

// lockedLog gathers log lines.
type lockedLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A fakeAgent is a transport whose deliveries the test carries out.
type fakeAgent struct {
	st     *stage
	orders chan order
	gone   chan uint64 // sessions that it was told to close
	inv    proto.Inventory
	stop   context.CancelFunc
	mu     sync.Mutex
	conn   *ipc.Conn
}

type order struct {
	proto.Deliver
	req *ipc.Request
	st  *stage
}

// answer reports outcomes: ok, defer, fail, by the position of the recipient.
func (o *order) answer(words ...string) {
	reply := &proto.DeliverReply{Opened: !slices.Contains(words, "reused")}
	if slices.Contains(words, "secured") {
		reply.Security = "TLS 1.3, policy dane"
	}
	for i, w := range words[:min(len(words), len(o.Index))] {
		out := mail.Outcome{Rcpt: o.Index[i], Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Reason: "250 ok", Relay: "peer", When: time.Now()}
		switch w {
		case "defer":
			out.Action, out.Status, out.Reason = dsn.Deferred, dsn.S(4, 2, 0), "450 later"
		case "site": // the destination does not take part
			out.Action, out.Status, out.Reason = dsn.Deferred, dsn.S(4, 4, 1), "connect to peer: Connection refused"
			reply.SiteStatus, reply.SiteReason = out.Status, out.Reason
		case "refused": // it answers, and does not take part
			out.Action, out.Status, out.Reason = dsn.Deferred, dsn.S(4, 7, 1), "host peer refused to talk to me: 554 5.7.1 blocked"
			reply.SiteStatus, reply.SiteReason = out.Status, out.Reason
		case "slower": // it wants less, in words that are not harmless
			out.Action, out.Status, out.DiagType, out.DiagText = dsn.Deferred, dsn.S(4, 7, 28), "smtp", "421 4.7.28 unusual rate\x1b[2J of mail"
			out.Reason = "host peer said: " + out.DiagText
		case "fail":
			out.Action, out.Status, out.Reason = dsn.Failed, dsn.S(5, 1, 1), "550 never"
		case "refuse": // the host has said so
			out.Action, out.Status, out.DiagType, out.DiagText = dsn.Failed, dsn.S(5, 1, 1), "smtp", "550 5.1.1 never"
			out.Reason = "host peer said: " + out.DiagText
		}
		reply.Outcomes = append(reply.Outcomes, out)
	}
	o.st.note(o, reply.Outcomes)
	o.req.Reply(reply)
}

// newStage sets the stage; run opens it. main is added to main.cf.
func newStage(t testing.TB, main string) *stage {
	st := &stage{t: t, main: main, site: faketest.New(t, main), log: new(lockedLog), located: map[mail.QueueID]bool{}, routes: map[string]string{},
		agents: map[mail.Transport]*fakeAgent{}, number: 1000, drain: time.Second}
	st.dir = filepath.Join(st.site.Queue, "private")
	if err := os.MkdirAll(st.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	st.serve("cleanup", st.cleanupHandler)
	st.serve("bounce", func(_ *ipc.Conn, r *ipc.Request) {
		n := faketest.Decode[proto.Notify](t, r)
		st.mu.Lock()
		st.notices = append(st.notices, n)
		fail := st.unsent > 0
		if fail {
			st.unsent--
			st.failed = append(st.failed, len(st.notices)-1)
		}
		st.mu.Unlock()
		if fail {
			r.Fail("cleanup refused the notice")
			return
		}
		r.Reply(&proto.NotifyReply{})
	})
	return st
}

// serve plays a service until the test ends or the function it returns is called.
func (st *stage) serve(name string, h ipc.Handler) context.CancelFunc {
	st.t.Helper()
	return st.serveAs(name, &ipc.Server{Handler: h})
}

func (st *stage) serveAs(name string, srv *ipc.Server) context.CancelFunc {
	st.t.Helper()
	l, err := net.Listen("unix", filepath.Join(st.dir, name))
	if err != nil {
		st.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(ctx, l, 0) })
	stop := func() { cancel(); wg.Wait() }
	st.t.Cleanup(stop)
	return stop
}

// opener is open, unless messages are unreadable.
func (st *stage) opener(open openFunc) openFunc {
	return func(ctx context.Context, ref queue.Ref, id mail.QueueID) (queueread.Stored, error) {
		if st.unreadable {
			return nil, syscall.EMFILE
		}
		if st.gate != nil {
			st.mu.Lock()
			st.reading++
			st.mu.Unlock()
			select {
			case <-st.gate:
			case <-ctx.Done():
			}
			st.mu.Lock()
			st.reading--
			st.mu.Unlock()
		}
		return open(ctx, ref, id)
	}
}

type openFunc = func(context.Context, queue.Ref, mail.QueueID) (queueread.Stored, error)

// run starts the queue manager. It ends with the test.
func (st *stage) run() {
	st.t.Helper()
	cfg, err := config.LoadString(st.main)
	if err != nil {
		st.t.Fatal(err)
	}
	settings, err := Load(cfg, nil, table.Options{}, st.t.Logf)
	if err != nil {
		st.t.Fatal(err)
	}
	settings.Sched.QueueRunDelay = 0
	settings.Node, settings.Nodes = st.node, st.shared
	if st.deliveryTime > 0 {
		settings.DeliveryTime = st.deliveryTime
	}
	cleanup := ipc.NewClient(ipc.Unix(st.path("cleanup")), nil)
	submitter := submit.New(cleanup)
	reader := queueread.Log(spool.NewReader(nil, filepath.Join(st.site.Queue, "spool")))
	opener := queueread.Opener{Reader: reader, Cleanup: cleanup}
	var whole viewer
	if st.viewer != nil {
		st.viewer.Reader = reader
		whole = st.viewer
	}
	st.srv = New(Options{Viewer: whole, Self: ipc.Unix(st.path("qmgr")), Metrics: st.metrics, Settings: settings, Resolver: st, Open: st.opener(opener.Open), Overrides: st.overrides, Submit: submitter, Log: maillog.New("postfix/qmgr", maillog.NewWriter(st.log, maillog.Classic)),
		Patience: st.patience, ResolveTime: st.resolveTime, Cleanup: ipc.Unix(st.path("cleanup")), Bounce: ipc.Unix(st.path("bounce")), Verify: ipc.Unix(st.path("verify")),
		Agent: func(t mail.Transport) ipc.Address { return ipc.Unix(st.path(string(t))) }, Flow: st.flow, State: st.state, TookOver: st.tookOver, Events: st.events, Suppress: st.suppress})
	st.srv.opt.Log.Observe(st.events.Observe)
	for _, e := range st.entries {
		st.queue.add(e.Entry)
	}
	if st.callTime > 0 {
		st.srv.callTime = st.callTime
	}
	if st.deferredLimit > 0 {
		st.srv.sched = sched.New(func() sched.Config {
			c := settings.Sched
			c.DeferredLimit = st.deferredLimit
			return c
		}())
	}
	ctx, cancel := context.WithCancel(context.Background())
	st.retire = cancel
	done := make(chan error, 1)
	go func() { done <- st.srv.Run(ctx, st.drain) }()
	stopTools := st.serveAs("qmgr", st.srv.IPC())
	st.tool = ipc.NewClient(ipc.Unix(st.path("qmgr")), nil)
	st.t.Cleanup(func() {
		st.tool.Close()
		stopTools()
		cancel()
		if err := <-done; err != nil {
			st.t.Error(err)
		}
		submitter.Close()
		cleanup.Close()
		reader.Close()
	})
}

func (st *stage) path(name string) string { return filepath.Join(st.dir, name) }

// Resolve makes the stage a Resolver.
func (st *stage) Resolve(ctx context.Context, _, addr string) (proto.ResolveReply, error) {
	st.asked.Add(1)
	if st.mute {
		<-ctx.Done()
		return proto.ResolveReply{}, ctx.Err()
	}
	return st.route(addr), nil
}

// ResolveFrom does the same for mail with a pool.
func (st *stage) ResolveFrom(ctx context.Context, sender, addr, pool string) (proto.ResolveReply, error) {
	ans, err := st.Resolve(ctx, sender, addr)
	if st.pools != nil {
		st.pools(pool, &ans)
	}
	return ans, err
}

// Known makes half of all addresses known beforehand.
func (st *stage) Known(addr string) (reply proto.ResolveReply, ok bool) {
	if st.mute || len(addr)%2 == 0 {
		return reply, false
	}
	return st.route(addr), true
}

// ForeseeResolve remembers what is asked about ahead.
func (st *stage) ForeseeResolve(_ context.Context, sender, addr string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.foreseen = append(st.foreseen, sender+" "+addr)
}

func (st *stage) route(addr string) proto.ResolveReply {
	_, domain, _ := strings.Cut(addr, "@")
	st.mu.Lock()
	defer st.mu.Unlock()
	transport, nexthop, ok := strings.Cut(st.routes[domain], ":")
	switch transport {
	case "broken": // no address
		return proto.ResolveReply{Flags: proto.ResolveError, Recipient: addr}
	case "nobody": // an address that stands for none
		return proto.ResolveReply{Transport: "local", Nexthop: domain}
	}
	if transport == "fails" {
		return proto.ResolveReply{Flags: proto.ResolveFail}
	}
	if !ok {
		transport, nexthop = "smtp", domain
	}
	class := proto.ResolveDefault
	if domain == st.ours {
		class = proto.ResolveMailbox
	}
	reply := proto.ResolveReply{Transport: transport, Nexthop: nexthop, Recipient: addr, Flags: class}
	if share := st.shares[strings.ToLower(domain)]; share != nil {
		share(&reply)
	}
	return reply
}

func (st *stage) cleanupHandler(c *ipc.Conn, r *ipc.Request) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch r.Kind {
	case proto.KindAttach:
		st.cleanup = c
		st.attached++
		if st.stream != nil {
			go st.stream(c)
			return
		}
		c.Push(st.pushed())
		r.Reply(&proto.RecordReply{})
	case proto.KindOwned:
		if st.ownedMute {
			return
		}
		reply := &proto.OwnedReply{Parts: []proto.OwnedPart{{ID: 1, Epoch: st.epoch}}, Reading: st.unread}
		if st.epoch++; st.steady {
			st.epoch--
		}
		r.Reply(reply)
	case proto.KindHands:
		reply := new(proto.HandsReply)
		if len(st.inHand) > 0 {
			reply.List = st.inHand[0]
			st.inHand = st.inHand[min(1, len(st.inHand)-1):]
		}
		st.askedFor++
		if later := st.handsLater; later != nil && st.askedFor > 1 {
			go func() {
				<-later
				r.Reply(reply)
			}()
			return
		}
		r.Reply(reply)
	case proto.KindRecord:
		q := faketest.Decode[proto.Record](st.t, r)
		if q.Urgent {
			st.urgent = append(st.urgent, len(q.Ops))
		}
		if st.deaf {
			st.unheard++
			return
		}
		reply := new(proto.RecordReply)
		for _, op := range q.Ops {
			if op.ID == st.contra && !op.Remove || op.ID == st.kept {
				reply.Refused = append(reply.Refused, proto.Refusal{ID: op.ID, Reason: "it cannot be"})
			} else {
				st.ops = append(st.ops, op)
				st.queue.change(&op)
			}
			if op.ID == st.vanished && !op.Remove {
				reply.Gone = append(reply.Gone, op.ID)
			}
		}
		r.Reply(reply)
	case proto.KindShares:
		st.claimed = append(st.claimed, faketest.Decode[proto.Shares](st.t, r))
		r.Reply(&proto.SharesReply{Grants: st.grants})
	case proto.KindNotes:
		st.noted++
		q := faketest.Decode[proto.Notes](st.t, r)
		if st.notes = append(st.notes, q.Note); len(st.heard) > 0 {
			if q.Topic != hintTopic {
				st.t.Errorf("a note about %q", q.Topic)
			}
			r.Reply(&proto.NotesReply{Notes: st.heard})
		}
	case proto.KindLease:
		st.number += 10
		r.Reply(&proto.LeaseReply{First: st.number, N: 10})
	case proto.KindSubmit:
		q := faketest.Decode[proto.Submit](st.t, r)
		st.taken = append(st.taken, q)
		reply := &proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"}
		if st.refuse {
			reply = &proto.SubmitReply{Code: 451, Status: dsn.S(4, 3, 0), Text: "not now"}
		}
		r.Reply(reply)
	case proto.KindLocate:
		q := faketest.Decode[proto.Locate](st.t, r)
		st.locates++
		reply := &proto.LocateReply{Found: st.located[q.ID]}
		if reply.Found {
			for id, e := range st.site.Entries() {
				if id == q.ID {
					reply.Entry = e
				}
			}
		}
		r.Reply(reply)
	case proto.KindDue:
		q := faketest.Decode[proto.Due](st.t, r)
		if st.dueStream != nil {
			go st.dueStream(c, r, q)
			return
		}
		st.queue.due(c, r, q)
	case proto.KindPage:
		r.Reply(st.queue.page(faketest.Decode[proto.Page](st.t, r)))
	default:
		r.Fail("unexpected request %d", r.Kind)
	}
}

// agent plays a transport.
func (st *stage) agent(name mail.Transport, inv proto.Inventory) *fakeAgent {
	return st.agentAs(name, inv, new(ipc.Server))
}

// agentAs is agent with what the test wants of the server.
func (st *stage) agentAs(name mail.Transport, inv proto.Inventory, srv *ipc.Server) *fakeAgent {
	a := &fakeAgent{st: st, orders: make(chan order, 100), gone: make(chan uint64, 100), inv: inv}
	srv.Handler = func(c *ipc.Conn, r *ipc.Request) {
		switch r.Kind {
		case proto.KindAttach:
			a.mu.Lock()
			a.conn = c
			a.mu.Unlock()
			c.Push(&a.inv)
		case proto.KindDeliver:
			o := order{faketest.Decode[proto.Deliver](st.t, r), r, st}
			st.examine(&o)
			a.orders <- o
		case proto.KindDismiss:
			a.gone <- faketest.Decode[proto.Dismiss](st.t, r).Session
		}
	}
	a.stop = st.serveAs(string(name), srv)
	return a
}

// next is the next order.
func (a *fakeAgent) next() order {
	a.st.t.Helper()
	select {
	case o := <-a.orders:
		return o
	case <-time.After(patience):
		a.st.t.Fatal("no delivery is ordered")
		panic("unreachable")
	}
}

// arrive has cleanup announce a new message, and returns its ID.
func (st *stage) arrive(sender string, rcpts ...string) mail.QueueID {
	return st.arriveOf("", sender, rcpts...)
}

// arriveOf is arrive for mail of a tenant.
func (st *stage) arriveOf(tenant, sender string, rcpts ...string) mail.QueueID {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.number++
	env := mail.Envelope{Arrival: time.Now(), Sender: sender, Size: 100, Tenant: tenant}
	env.ID = mail.MakeQueueID(env.Arrival, st.number)
	for _, r := range rcpts {
		env.Recipients = append(env.Recipients, mail.Recipient{Address: r})
	}
	e := proto.Entry{Entry: queue.Entry{ID: env.ID, Ref: queue.Ref{Segno: 1, Length: 100}, Size: 100, NRcpt: len(rcpts), NPending: len(rcpts),
		Null: sender == "", Tenant: tenant}, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, env.Recipients)}
	st.queue.add(e.Entry)
	st.cleanup.Push(&proto.Entries{List: []proto.Entry{e}})
	return env.ID
}

// waitAttached waits until the queue manager has attached n times.
func (st *stage) waitAttached(n int) {
	st.t.Helper()
	st.until("the queue manager attaches", func() bool { return st.attached >= n })
}

// until waits for f, which is called with the stage locked.
func (st *stage) until(what string, f func() bool) {
	st.t.Helper()
	testwait.For(st.t, func() string {
		st.mu.Lock()
		defer st.mu.Unlock()
		if f() {
			return ""
		}
		return fmt.Sprintf("%s\nrecorded: %+v\nlog:\n%s", what, st.ops, st.log)
	})
}

// waitOp waits until something is recorded of a message that f is content with.
func (st *stage) waitOp(id mail.QueueID, what string, f func(*proto.Op) bool) proto.Op {
	st.t.Helper()
	var found proto.Op
	st.until(fmt.Sprintf("%s: %s is recorded", id, what), func() bool {
		i := slices.IndexFunc(st.ops, func(op proto.Op) bool { return op.ID == id && f(&op) })
		if i >= 0 {
			found = st.ops[i]
		}
		return i >= 0
	})
	return found
}

func removed(op *proto.Op) bool { return op.Remove }

// forgotten waits until the queue manager has nothing of a message in memory.
func (st *stage) forgotten(id mail.QueueID) {
	st.t.Helper()
	st.until(string(id)+" is forgotten", func() bool {
		known := make(chan bool)
		st.srv.post(func() {
			_, ok := st.srv.sched.Lookup(msgID(id))
			known <- ok || st.srv.knows(msgID(id))
		}, sched.Event{})
		return !<-known
	})
}

func inQueue(q queue.Name) func(*proto.Op) bool {
	return func(op *proto.Op) bool { return op.Set&queue.SetQueue != 0 && op.Queue == q }
}

// command gives an operator's order and returns the IDs that it was carried
// out on.
func (st *stage) command(q proto.Command) []mail.QueueID {
	st.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var reply proto.CommandReply
	if err := st.tool.Call(ctx, &q, &reply); err != nil {
		st.t.Fatal(err)
	}
	if reply.Denied != "" {
		st.t.Fatal(reply.Denied)
	}
	return reply.IDs
}

// explain is what the queue manager says of a message.
func (st *stage) explain(id mail.QueueID) string {
	st.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var reply proto.ExplainReply
	if err := st.tool.Call(ctx, &proto.Explain{ID: id}, &reply); err != nil {
		st.t.Fatal(err)
	}
	return strings.Join(reply.Lines, "\n")
}

// waitExplain waits until it says that.
func (st *stage) waitExplain(id mail.QueueID, pattern string) {
	st.t.Helper()
	re := regexp.MustCompile(pattern)
	testwait.For(st.t, func() string {
		if last := st.explain(id); !re.MatchString(last) {
			return fmt.Sprintf("explain does not say %q:\n%s", pattern, last)
		}
		return ""
	})
}

// shape counts the mail in some queues, "domain: recipients" in order, and the
// number of messages that are left to the asker.
func (st *stage) shape(senders bool, queues ...string) (rows []string, unread int) {
	st.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	counts := map[string]int{}
	q := proto.Shape{Queues: queues, Senders: senders, Edges: []time.Time{time.Now().Add(-time.Hour)}}
	for {
		var reply proto.ShapeReply
		if err := st.tool.Call(ctx, &q, &reply); err != nil {
			st.t.Fatal(err)
		}
		unread += len(reply.Unread)
		for _, r := range reply.Rows {
			counts[r.Domain] += r.Counts[0] + r.Counts[1]
		}
		if q.Cursor = reply.Next; q.Cursor == 0 {
			break
		}
	}
	for d, n := range counts {
		rows = append(rows, fmt.Sprintf("%s: %d", d, n))
	}
	slices.Sort(rows)
	return rows, unread
}

// fill puts mail into the spool, for the queue manager to find at its start.
func (st *stage) fill(mails ...faketest.Mail) []mail.QueueID {
	ids := st.site.Fill(mails...)
	all := st.site.Entries()
	for _, id := range ids {
		st.entries = append(st.entries, proto.Entry{Entry: all[id]})
		st.located[id] = true
	}
	return ids
}

// split counts all mail with Split, "queue sender|recipient domain: number" in order.
func (st *stage) split() (rows []string) {
	st.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	counts := map[string]int{}
	q := proto.Shape{Queues: []string{"incoming", "active", "deferred", "hold"}, Split: true, Edges: []time.Time{time.Now().Add(-time.Hour)}}
	for {
		var reply proto.ShapeReply
		if err := st.tool.Call(ctx, &q, &reply); err != nil {
			st.t.Fatal(err)
		}
		for _, r := range reply.Rows {
			side := map[bool]string{true: "sender", false: "recipient"}[r.Senders]
			switch {
			case r.Hops:
				side = "hop"
			case r.Tenants:
				side = "tenant"
			case r.Sources:
				side = "source"
			case r.Campaigns:
				side = "campaign"
			}
			counts[fmt.Sprintf("%s %s %s", r.Queue, side, r.Domain)] += r.Counts[0] + r.Counts[1]
		}
		for i := range reply.Unread {
			counts[reply.Unread[i].Queue+" unread"]++
		}
		if q.Cursor = reply.Next; q.Cursor == 0 {
			break
		}
	}
	for d, n := range counts {
		rows = append(rows, fmt.Sprintf("%s: %d", d, n))
	}
	slices.Sort(rows)
	return rows
}
