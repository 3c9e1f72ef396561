package agent

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/testwait"
)

// patience bounds waiting for what must happen.
const patience = testwait.Patience

// deliverer is a Deliverer that a test plays.
type deliverer func(context.Context, *Request)

func (d deliverer) Deliver(ctx context.Context, r *Request) { d(ctx, r) }

// serve runs an agent on a socket in dir until the test ends.
func serve(t *testing.T, dir, name string, o Options) *logLines {
	t.Helper()
	log := new(logLines)
	o.Log = maillog.New("postfix/"+name, log)
	o.Log.Observe(o.Events.Observe)
	if o.Content == nil {
		o.Content = func(context.Context, queue.Ref, mail.QueueID) (queueread.Content, error) {
			return nil, errors.New("no spool")
		}
	}
	o.Agent = func(t mail.Transport) ipc.Address { return ipc.Unix(filepath.Join(dir, string(t))) }
	l, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(o)
	ctx, cancel := context.WithCancel(context.Background())
	s.start(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.srv.Serve(ctx, l, 0) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		s.wg.Wait()
		s.close()
		o.Log.Close()
	})
	return log
}

// A manager is what the agent sees of a queue manager.
type manager struct {
	t           *testing.T
	conn        *ipc.Conn
	inventories chan proto.Inventory
}

func dial(t *testing.T, dir, name string) *manager {
	t.Helper()
	m := &manager{t: t, inventories: make(chan proto.Inventory, 10)}
	client := ipc.NewClient(ipc.Unix(filepath.Join(dir, name)), func(_ *ipc.Conn, r *ipc.Request) {
		var inv proto.Inventory
		if err := r.Decode(&inv); err != nil {
			t.Error(err)
		}
		m.inventories <- inv
	})
	t.Cleanup(client.Close)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := client.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m.conn = conn
	return m
}

// attach attaches and returns the inventory.
func (m *manager) attach() proto.Inventory {
	m.t.Helper()
	m.conn.Push(&proto.Attach{})
	return m.inventory()
}

func (m *manager) inventory() proto.Inventory {
	m.t.Helper()
	return await(m.t, "an inventory", m.inventories)
}

func await[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

type answer struct {
	reply proto.DeliverReply
	err   error
}

// order orders a delivery of message number n.
func (m *manager) order(n uint64, rcpts ...string) <-chan answer {
	return m.attempt(0, n, rcpts...)
}

// attempt is order, so long after the first attempt.
func (m *manager) attempt(after time.Duration, n uint64, rcpts ...string) <-chan answer {
	at := time.Unix(1700000000, 0)
	d := &proto.Deliver{Nexthop: "next", Envelope: mail.Envelope{ID: mail.MakeQueueID(at, n), Sender: "s@from.test", Arrival: at}, Active: at.Add(after)}
	for i, r := range rcpts {
		d.Envelope.Recipients = append(d.Envelope.Recipients, mail.Recipient{Address: r})
		d.Index = append(d.Index, 10+i)
	}
	ch := make(chan answer, 1)
	m.conn.Go(d, func(payload []byte, err error) {
		a := answer{err: err}
		if err == nil {
			a.err = a.reply.Decode(payload)
		}
		ch <- a
	})
	return ch
}

func outcomes(r *proto.DeliverReply) (words []string) {
	names := map[dsn.Action]string{dsn.Delivered: "sent", dsn.Deferred: "deferred", dsn.Failed: "failed", dsn.Relayed: "relayed"}
	for i, o := range r.Outcomes {
		if o.Rcpt != 10+i {
			words = append(words, "of another recipient")
		}
		words = append(words, names[o.Action]+" "+o.Status.String())
	}
	return words
}

// A damaged is content of which a part is read before the error comes, as with a long message.
type damaged struct {
	*strings.Reader
	err error
}

func (d damaged) Bytes() []byte { return nil }
func (d damaged) Len() int64    { return d.Reader.Size() }
func (d damaged) Close() error  { return nil }

func (d damaged) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if err == io.EOF {
		err = d.err
	}
	return n, err
}

func (d damaged) WriteTo(w io.Writer) (int64, error) {
	n, err := d.Reader.WriteTo(w)
	return n, cmp.Or(err, d.err)
}

func (damaged) Seek(int64, int) (int64, error) { return 0, nil }

// That a message is damaged, or gone from the disk, is reported besides, in whichever way it is
// found out; that it cannot be read for now is not.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	read := func(r *Request, copy func(io.Reader) error) error {
		c, err := r.Content()
		if err != nil {
			return err
		}
		return copy(c.Reader())
	}
	whole := func(r io.Reader) error { _, err := io.ReadAll(r); return err }
	ways := map[string]struct {
		part  string // what is read before the error; "-": it comes when the content is opened
		found func(*Request) error
	}{
		"at the open":  {"-", func(r *Request) error { return read(r, whole) }},
		"at the start": {"", func(r *Request) error { return read(r, whole) }},
		"when read":    {"some", func(r *Request) error { return read(r, whole) }},
		"when written": {"some", func(r *Request) error {
			return read(r, func(c io.Reader) error { _, err := io.Copy(io.Discard, c); return err })
		}},
		"when buffered": {"some", func(r *Request) error { return read(r, func(c io.Reader) error { return whole(bufio.NewReader(c)) }) }},
	}
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"damaged":         {fmt.Errorf("x: %w", queue.ErrCorrupt), true},
		"read error":      {fmt.Errorf("x: %w: %w", queue.ErrCorrupt, syscall.EIO), false},
		"cleanup is away": {errors.New("no spool"), false},
	} {
		for when, way := range ways {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				serve(t, dir, "smtp", Options{Deliverer: deliverer(func(_ context.Context, r *Request) {
					err := way.found(r)
					if !errors.Is(err, tt.err) {
						t.Errorf("the agent is told %v", err)
					}
					r.Defer(0, dsn.S(4, 3, 0), fmt.Sprint(err), Detail{})
				}), Content: func(context.Context, queue.Ref, mail.QueueID) (queueread.Content, error) {
					if way.part == "-" {
						return nil, tt.err
					}
					return damaged{strings.NewReader(way.part), tt.err}, nil
				}})
				m := dial(t, dir, "smtp")
				m.attach()
				a := await(t, "the answer", m.order(1, "a@to.test"))
				if a.err != nil || !slices.Equal(outcomes(&a.reply), []string{"deferred 4.3.0"}) || a.reply.Corrupt != tt.want {
					t.Errorf("%+v", a)
				}
			})
		}
	}
}

// What a deliverer says is reported and logged; whom it forgets, or leaves
// behind in a panic, is deferred, and the agent goes on.
func TestDeliver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := serve(t, dir, "smtp", Options{Deliverer: deliverer(func(_ context.Context, r *Request) {
		r.Sent(0, dsn.S(2, 0, 0), "250 ok", Detail{Relay: "h[1.2.3.4]:25", Action: dsn.Relayed})
		if r.Envelope.Sender == "" {
			return
		}
		if len(r.Envelope.Recipients) == 2 {
			panic("out of order")
		}
		r.Bounce(1, dsn.S(4, 1, 1), "never", Detail{})
		r.SiteFailure(dsn.S(4, 4, 1), "first")
		r.SiteFailure(dsn.S(4, 4, 2), "second")
		r.SessionKept()
	})})
	m := dial(t, dir, "smtp")
	if inv := m.attach(); len(inv.Running)+len(inv.Finished) != 0 {
		t.Errorf("inventory of an idle agent: %+v", inv)
	}
	a := await(t, "the answer", m.order(1, "a@to.test", "b@to.test", "c@to.test"))
	if a.err != nil {
		t.Fatal(a.err)
	}
	if got, want := outcomes(&a.reply), []string{"relayed 2.0.0", "failed 5.1.1", "deferred 4.3.0"}; !slices.Equal(got, want) {
		t.Errorf("reported %v, not %v", got, want)
	}
	if a.reply.SiteReason != "first" || !a.reply.Kept {
		t.Errorf("reported: %+v", a.reply)
	}
	a = await(t, "the answer", m.order(2, "a@to.test", "b@to.test"))
	if got, want := outcomes(&a.reply), []string{"relayed 2.0.0", "deferred 4.3.0"}; !slices.Equal(got, want) {
		t.Errorf("after a panic: reported %v, not %v", got, want)
	}
	for _, want := range []string{"to=<a@to.test>, relay=h[1.2.3.4]:25, ", "dsn=2.0.0, status=sent (250 ok)", "to=<b@to.test>, relay=none, ",
		"dsn=5.1.1, status=bounced (never)", "status=deferred (the delivery agent did not account for this recipient)", "out of order"} {
		testwait.Until(t, "the log has "+want, func() bool {
			log.mu.Lock()
			defer log.mu.Unlock()
			return strings.Contains(log.b.String(), want)
		})
	}
}

// Deliveries go on when the queue manager ends. The next one hears first
// which are under way, and which have ended meanwhile, once.
func TestInventory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	begun, goOn := make(chan string, 10), map[string]chan bool{"a@to.test": make(chan bool), "b@to.test": make(chan bool), "c@to.test": make(chan bool)}
	serve(t, dir, "smtp", Options{Deliverer: deliverer(func(_ context.Context, r *Request) {
		addr := r.Envelope.Recipients[0].Address
		begun <- addr
		<-goOn[addr]
		r.Sent(0, dsn.S(2, 0, 0), "250 ok", Detail{})
	})})
	first := dial(t, dir, "smtp")
	first.attach()
	var lost []<-chan answer
	for i, addr := range []string{"a@to.test", "b@to.test", "c@to.test"} {
		lost = append(lost, first.order(uint64(i+1), addr))
		await(t, "a delivery", begun)
	}
	goOn["a@to.test"] <- true
	if a := await(t, "the answer", lost[0]); a.err != nil || len(a.reply.Outcomes) != 1 {
		t.Errorf("%+v", a)
	}
	first.conn.Close()
	for _, ch := range lost[1:] {
		if a := await(t, "an end", ch); a.err == nil {
			t.Errorf("answered: %+v", a.reply)
		}
	}
	goOn["b@to.test"] <- true
	// It may be told as under way and then as finished, or as finished; of a,
	// nobody can know whether its record was made durable in time.
	second := dial(t, dir, "smtp")
	inv := second.attach()
	told := map[mail.QueueID]int{}
	for _, f := range inv.Finished {
		told[f.ID]++
	}
	id := func(n uint64) mail.QueueID { return mail.MakeQueueID(time.Unix(1700000000, 0), n) }
	running := func(n uint64) bool {
		return slices.ContainsFunc(inv.Running, func(d proto.Delivery) bool { return d.ID == id(n) && slices.Equal(d.Index, []int{10}) })
	}
	if !running(3) || told[id(1)] != 1 || running(2) == (told[id(2)] == 1) {
		t.Fatalf("inventory: %+v", inv)
	}
	goOn["c@to.test"] <- true
	for told[id(2)] == 0 || told[id(3)] == 0 {
		for _, f := range second.inventory().Finished {
			if told[f.ID]++; len(f.Reply.Outcomes) != 1 || f.Reply.Outcomes[0].Rcpt != 10 {
				t.Errorf("finished: %+v", f)
			}
		}
	}
	// Who attaches again over the same connection has heard all.
	if inv := second.attach(); len(inv.Running)+len(inv.Finished) != 0 {
		t.Errorf("told twice: %+v", inv)
	}
	for n := uint64(1); n <= 3; n++ {
		if told[id(n)] != 1 {
			t.Errorf("delivery %d was told %d times", n, told[id(n)])
		}
	}
}

// A queue manager that has given an order is gone when the second attempt is under way. Its successor is told of the
// end of the first one as such.
func TestInventoryOfTwoAttempts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	begun, goOn := make(chan bool, 1), make(chan bool)
	first := true
	serve(t, dir, "smtp", Options{Deliverer: deliverer(func(_ context.Context, r *Request) {
		if first {
			first = false
			r.Defer(0, dsn.S(4, 2, 0), "450 later", Detail{})
			return
		}
		begun <- true
		<-goOn
		r.Sent(0, dsn.S(2, 0, 0), "250 ok", Detail{})
	})})
	old := dial(t, dir, "smtp")
	old.attach()
	await(t, "the first answer", old.order(1, "a@to.test"))
	old.attempt(time.Minute, 1, "a@to.test")
	await(t, "the second attempt", begun)
	old.conn.Close()
	next := dial(t, dir, "smtp")
	inv := next.attach()
	begin := time.Unix(1700000000, 0)
	if len(inv.Running) != 1 || !inv.Running[0].Active.Equal(begin.Add(time.Minute)) || len(inv.Finished) != 1 || !inv.Finished[0].Active.Equal(begin) {
		t.Errorf("inventory: %+v", inv)
	}
	goOn <- true
	if inv = next.inventory(); len(inv.Finished) != 1 || !inv.Finished[0].Active.Equal(begin.Add(time.Minute)) {
		t.Errorf("at the end: %+v", inv)
	}
}

// No more deliveries run at once than master.cf says.
func TestLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	begun, goOn := make(chan string, 10), make(chan bool)
	serve(t, dir, "smtp", Options{Limit: 2, Deliverer: deliverer(func(_ context.Context, r *Request) {
		begun <- r.Envelope.Recipients[0].Address
		<-goOn
	})})
	m := dial(t, dir, "smtp")
	m.attach()
	var answers []<-chan answer
	for n := range uint64(3) {
		answers = append(answers, m.order(n+1, "a@to.test"))
	}
	await(t, "a delivery", begun)
	await(t, "a delivery", begun)
	if inv := m.attach(); len(inv.Running) != 3 || len(begun) != 0 { // the third has been accepted, and waits
		t.Errorf("%d deliveries are known, %d more have begun", len(inv.Running), len(begun))
	}
	goOn <- true
	await(t, "the third", begun)
	goOn <- true
	goOn <- true
	done := 0
	for _, ch := range answers { // they are reported to who attached last: the same connection, as answers
		done += len(await(t, "an answer", ch).reply.Outcomes)
	}
	if done != 3 {
		t.Errorf("%d of 3 have ended", done)
	}
}

// An order that another agent passes on has a place while it is carried out, and gives it back.
func TestLimitPassed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve(t, dir, "b", Options{Limit: 1, Deliverer: deliverer(func(_ context.Context, r *Request) {
		if r.Envelope.Recipients[0].Address == "panic@to.test" {
			panic("a test's")
		}
		r.Sent(0, dsn.S(2, 0, 0), "ok", Detail{})
	})})
	serve(t, dir, "a", Options{Deliverer: deliverer(func(_ context.Context, r *Request) { r.Pass(0, "b", "next") })})
	m := dial(t, dir, "a")
	m.attach()
	for i, to := range []string{"a@to.test", "panic@to.test", "b@to.test", "c@to.test"} {
		a := await(t, "an answer", m.order(uint64(i+1), to))
		if len(a.reply.Outcomes) != 1 || (a.reply.Outcomes[0].Action == dsn.Delivered) != (to != "panic@to.test") {
			t.Errorf("%s: %+v", to, a)
		}
	}
}

// A delivery that was cut off is one that has not been tried, unless somebody has got the message, or never will: then what it says of
// each recipient counts.
func TestStopped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		words   string // what is said of recipients: sent, later, never; or nothing
		stop    bool
		stopped bool
	}{
		{"later later", true, true},
		{"later later", false, false},
		{"", true, true},
		{"", false, false},
		{"sent later", true, false},
		{"later sent", true, false},
		{"sent sent", true, false},
		{"never later", true, false},
		{"later never", true, false},
	} {
		ctx, stop := context.WithCancel(t.Context())
		s := NewServer(Options{Deliverer: deliverer(func(ctx context.Context, r *Request) {
			if c.stop {
				stop()
				<-ctx.Done()
			}
			for i, word := range strings.Fields(c.words) {
				switch word {
				case "sent":
					r.Sent(i, dsn.S(2, 0, 0), "ok", Detail{})
				case "later":
					r.Defer(i, dsn.S(4, 4, 2), "cut off", Detail{})
				case "never":
					r.Bounce(i, dsn.S(5, 1, 1), "no", Detail{})
				}
			}
		})})
		run := newRunning(nil)
		run.order = proto.Deliver{Index: []int{0, 1}, Envelope: mail.Envelope{ID: "4jWn4F1YhnzSshsm4", Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}}}}
		if reply := s.deliver(ctx, run); reply.Stopped != c.stopped || len(reply.Outcomes) != 2 {
			t.Errorf("%q, ended %v: stopped %v", c.words, c.stop, reply.Stopped)
		}
		s.close()
		stop()
	}
}

// A recipient can be handed to another transport, whose word counts. Only who
// asked hears it: it may be a part of what is to be done for the recipient.
func TestPass(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve(t, dir, "local", Options{Deliverer: deliverer(func(_ context.Context, r *Request) {
		r.Pass(0, "lmtp", "there")
		r.Sent(1, dsn.S(2, 0, 0), "here", Detail{})
		r.Adopt(2, r.PassTo(2, mail.Recipient{Address: "else@to.test"}, "lmtp", "elsewhere"))
	})})
	begun, goOn := make(chan bool, 10), make(chan bool)
	serve(t, dir, "lmtp", Options{Deliverer: deliverer(func(ctx context.Context, r *Request) {
		begun <- true
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		if len(r.Envelope.Recipients) != 1 || r.Nexthop != "there" {
			r.Bounce(0, dsn.S(5, 1, 1), "no "+r.Envelope.Recipients[0].Address+" "+string(r.Nexthop)+" here", Detail{})
			return
		}
		r.Sent(0, dsn.S(2, 1, 5), "there", Detail{})
	})})
	m := dial(t, dir, "local")
	answer := m.order(1, "a@to.test", "b@to.test", "c@to.test")
	other := dial(t, dir, "lmtp")
	await(t, "a delivery", begun)
	if inv := other.attach(); len(inv.Running)+len(inv.Finished) != 0 {
		t.Errorf("the queue manager hears of a part of another agent's delivery: %+v", inv)
	}
	close(goOn)
	a := await(t, "the answer", answer)
	if inv := dial(t, dir, "lmtp").attach(); len(inv.Running)+len(inv.Finished) != 0 {
		t.Errorf("the queue manager hears of a part of another agent's delivery: %+v", inv)
	}
	if got, want := outcomes(&a.reply), []string{"sent 2.1.5", "sent 2.0.0", "failed 5.1.1"}; !slices.Equal(got, want) {
		t.Fatalf("reported %v, not %v (%v)", got, want, a.err)
	}
	if got := a.reply.Outcomes[2].Reason; got != "no else@to.test elsewhere here" {
		t.Errorf("reason: %s", got)
	}
}

// A sessionKeeper is a Deliverer that keeps sessions.
type sessionKeeper struct {
	deliverer
	dismissed chan uint64
}

func (k sessionKeeper) Dismiss(session uint64) { k.dismissed <- session }

// TestDismiss: the queue manager's word about sessions reaches who keeps some,
// and disturbs nobody who keeps none.
func TestDismiss(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := make(chan proto.Deliver, 1)
	deliver := deliverer(func(_ context.Context, r *Request) {
		seen <- proto.Deliver{Session: r.Session, Keep: r.Keep}
		r.Sent(0, dsn.S(2, 0, 0), "ok", Detail{})
	})
	keeper := sessionKeeper{deliver, make(chan uint64, 1)}
	serve(t, dir, "keeper", Options{Deliverer: keeper})
	serve(t, dir, "plain", Options{Deliverer: deliver})
	m := dial(t, dir, "keeper")
	m.attach()
	m.conn.Push(&proto.Dismiss{Session: 77})
	if n := await(t, "the dismissal", keeper.dismissed); n != 77 {
		t.Errorf("session %d was dismissed, want 77", n)
	}
	p := dial(t, dir, "plain")
	p.attach()
	p.conn.Push(&proto.Dismiss{Session: 77})
	d := &proto.Deliver{Nexthop: "next", Envelope: mail.Envelope{ID: mail.MakeQueueID(time.Unix(1700000000, 0), 1), Sender: "s@from.test",
		Recipients: []mail.Recipient{{Address: "a@b.test"}}}, Index: []int{0}, Session: 5, Keep: 3 * time.Second}
	p.conn.Go(d, func([]byte, error) {})
	if got := await(t, "a delivery", seen); got.Session != 5 || got.Keep != 3*time.Second {
		t.Errorf("the request has session %d, kept for %v", got.Session, got.Keep)
	}
}

// What a queue manager was told within the last moments of its life it may not have recorded: somebody is to be called, and hears of that, and
// not of what it was told long before.
func TestLost(t *testing.T) {
	t.Parallel()
	s := NewServer(Options{Log: maillog.New("postfix/smtp", new(logLines))})
	gone, other := new(ipc.Conn), new(ipc.Conn)
	now := time.Now()
	s.recent.add(now.Add(-time.Hour), gone, finished(1))
	s.recent.add(now, other, finished(2))
	s.recent.add(now, gone, finished(3))
	s.lost(gone)
	var list []proto.Finished
	for _, p := range s.recent.take() {
		list = append(list, p.list()...)
	}
	if !slices.Equal(ids(list), []mail.QueueID{finished(3).ID}) || len(s.news) != 1 {
		t.Errorf("to be told: %v, somebody is woken: %v", ids(list), len(s.news) == 1)
	}
}

// A queue manager that attaches takes over what goes on, whoever has heard of it by a call, and hears of what has ended within the last moments,
// but not of what ended long ago.
func TestAttached(t *testing.T) {
	t.Parallel()
	s := NewServer(Options{Log: maillog.New("postfix/smtp", new(logLines))})
	told := make(chan proto.Inventory, 2)
	near, far := net.Pipe()
	conn := ipc.NewConn(near, nil)
	var wg sync.WaitGroup
	wg.Go(ipc.NewConn(far, func(_ *ipc.Conn, r *ipc.Request) {
		var inv proto.Inventory
		if err := r.Decode(&inv); err != nil {
			t.Error(err)
		}
		told <- inv
	}).Wait)
	defer wg.Wait()
	defer conn.Close()
	run := newRunning(new(ipc.Conn))
	run.called = true
	run.order = proto.Deliver{Index: []int{3}, Envelope: mail.Envelope{ID: finished(1).ID, Recipients: make([]mail.Recipient, 1)}}
	s.running[run] = struct{}{}
	now := time.Now()
	s.recent.add(now.Add(-time.Hour), new(ipc.Conn), finished(2))
	s.recent.add(now, new(ipc.Conn), finished(3))
	s.attached(conn)
	if inv := await(t, "the inventory", told); len(inv.Running) != 1 || inv.Running[0].ID != finished(1).ID || !slices.Equal(ids(inv.Finished), []mail.QueueID{finished(3).ID}) {
		t.Errorf("told: %+v", inv)
	}
	s.report(run, nil, nil, &proto.DeliverReply{Outcomes: finished(1).Reply.Outcomes})
	if inv := await(t, "the end", told); len(inv.Running) != 0 || !slices.Equal(ids(inv.Finished), []mail.QueueID{finished(1).ID}) {
		t.Errorf("told at the end: %+v", inv)
	}
}

// A queue manager that leaves is told no more of what it has ordered. Another one that is there hears of its own orders as before.
func TestDetachOfOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	begun, goOn := make(chan bool, 2), make(chan bool)
	serve(t, dir, "smtp", Options{Deliverer: deliverer(func(_ context.Context, r *Request) {
		begun <- true
		<-goOn
		r.Sent(0, dsn.S(2, 0, 0), "250 ok", Detail{})
	})})
	leaves, stays := dial(t, dir, "smtp"), dial(t, dir, "smtp")
	leaves.attach()
	stays.attach()
	lost, answers := leaves.order(1, "a@to.test"), stays.order(2, "b@to.test")
	await(t, "a delivery", begun)
	await(t, "a delivery", begun)
	if err := leaves.conn.Call(t.Context(), &proto.Detach{}, nil); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if a := await(t, "the answer", answers); a.err != nil || !slices.Equal(outcomes(&a.reply), []string{"sent 2.0.0"}) {
		t.Errorf("%+v", a)
	}
	select {
	case a := <-lost:
		t.Errorf("who has left is told: %+v", a)
	default:
	}
}
