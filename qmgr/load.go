// Loading: reading a batch of a message's recipients from the spool and finding out where
// each goes. Most of that waits for the disk or for trivial-rewrite, and so is done in
// tasks, several messages side by side. What a task needs is copied into a loading, and
// what it finds is taken over by the loop in learn.

package qmgr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
	"posthaste/qmgr/sched"
)

// A loading reads and resolves a batch of a message's recipients: what is to
// be done, with copies of what the loop owns, and what it gave. It belongs to
// the loop but for the time between begin and learn.
type loading struct {
	// What the loop asks for. It is written before the task begins and not changed by it.
	num  sched.MsgID
	id   mail.QueueID
	ref  queue.Ref
	in   inline
	done []byte
	// The part of the recipients that is read: from this number on, until limit of them
	// are pending. The scheduler bounds the recipients in memory, so a message with very
	// many takes several loads.
	from, limit int
	nrcpt       int
	first       bool // of the message's stay in the active queue
	fresh       bool // the message is new: see inTurn
	turn        bool // it has one, which ends in learn
	asks        bool // the resolver may be waited for
	quiet       bool // nothing is logged: see prepare
	// How often the rules had changed before it was prepared.
	rules uint64
	// the envelope, outcomes and recipients are here
	fetched bool

	// What the task finds, for the loop to take over when it has ended. Nobody else looks at
	// it before.
	env mail.Envelope
	// Recipients that are done are in it too, and are passed over by done: a number is a place
	// in the envelope.
	list []mail.Recipient // from number from on
	// Recipients whose recorded outcome is a failure. They are not delivered to once
	// more; their sender is to be told.
	verdicts map[int]bool
	// Recipients that have been tried, and deferred.
	tried    map[int]bool
	rcpts    []loadedRcpt
	outcomes []mail.Outcome // from earlier attempts
	// These three are for the sender's report. They are collected here because the outcomes of
	// earlier attempts are in the record that is being read.
	success   []mail.Outcome // of recipients who have it, and whose senders are to be told
	failed    []loadedRcpt   // recipients who have failed for good, which their sender is still to be told
	discarded []int          // recipients whose mail is thrown away on purpose
	// Recipients that are done, as the record says and this process did not know.
	told []int
	// next, foreseen and unread say how far the task has come. One that gives up in between
	// leaves the rest for the next load.
	next     int // index of the first recipient not looked at
	foreseen int // that of the first whom the resolver has not been asked about ahead
	unread   int // pending recipients from next on
	// The content or the envelope is damaged: the message goes to the corrupt queue, and none
	// of it is delivered.
	corrupt bool
	mute    error // the resolver has not answered in time: it is not asked again
	// unresolved says that it has been logged that addresses cannot be resolved.
	unresolved bool
	sender     senderKind // once mark has needed it
	// What holds for the tenant, once knowTenant has found out, and why that could not be found out.
	tenantKnown bool
	tenant      sched.TenantTerms
	tenantErr   error
	inVain      time.Duration // how long it has waited for tables of tenants that did not answer
	// Why the batch could not be read. Together with corrupt it decides between setting
	// the message aside and trying it again.
	err error

	// Storage for the event that tells the scheduler.
	batch []sched.Rcpt
}

// loadedRcpt is a recipient as the scheduler sees it and as the shell keeps it.
type loadedRcpt struct {
	sched.Rcpt
	rcpt rcpt
	away bool // it leaves this host for where trivial-rewrite says
}

// release gives a loading back. Nobody may look at it any more, nor at the event that was
// made of it.
func (s *Server) release(l *loading) {
	*l = loading{list: reuse.Emptied(l.list), rcpts: reuse.Emptied(l.rcpts), batch: reuse.Emptied(l.batch)}
	s.loadings.Put(l)
}

// maxPrepared is how many messages may come in one piece of news for them to be prepared. More of them are the queue
// as it was at a start: most of it waits for its turn, and what was found out is out of date then.
const maxPrepared = 64

// maxAhead is how many recipients there may be in what is prepared and not heard of yet. Strangers send as many messages
// as they like while the loop is busy, and what is found out of one takes ten times the memory of its envelope.
const maxAhead = 4096

// prepare begins to load a new message before the loop hears of it, on the goroutine that reads what cleanup pushes:
// the loop is one goroutine, and what others can do is not its work. It does what needs nobody to be waited for. The
// loop goes on from there, if the message is taken up at once; else it begins anew. nil: there is nothing to prepare.
func (s *Server) prepare(e *proto.Entry) *loading {
	_, num, err := e.ID.Parse()
	if err != nil || len(e.Envelope) == 0 || e.NRcpt > atOnceRcpts || e.Queue != queue.Incoming || s.aheadRcpts.Load() >= maxAhead {
		return nil
	}
	s.aheadRcpts.Add(int64(e.NRcpt)) // until hear
	l := s.loadings.Get()
	l.rules = s.rules.changes.Load() // before anything is found out
	l.num, l.id, l.in, l.nrcpt, l.limit = sched.MsgID(num), e.ID, inline{e.Envelope, e.Recipients}, e.NRcpt, e.NRcpt
	// The loop writes to the message's own, which may have the same memory.
	l.done = slices.Clone(e.Done)
	l.quiet = true // it may be done again
	s.fetch(l)
	s.placeAll(l)
	l.quiet = false
	return l
}

// prepared is what prepare has found out of m, if that is what e asks for, else an empty loading.
func (s *Server) prepared(m *message, e *sched.Effect) *loading {
	l := m.ready
	m.ready = nil
	// An operator who has ordered that mail goes elsewhere is not to see it go where it was to go before.
	now := l != nil && l.rules == s.rules.changes.Load()
	if now && e.First && e.From == 0 && e.Max >= l.nrcpt && slices.Equal(l.done, m.done) {
		return l
	}
	if l != nil {
		s.release(l)
	}
	return s.loadings.Get()
}

// dropReady forgets what was found out of messages that were not taken up at once. Until they are, rules and tables may
// have changed, and there may be very many of them.
func (s *Server) dropReady() {
	for i, m := range s.readied {
		if m.ready != nil {
			s.release(m.ready)
			m.ready = nil
		}
		s.readied[i] = nil
	}
	s.readied = reuse.Truncated(s.readied)
}

// load carries out EffectLoad: it reads up to e.Max pending recipients of m, starting
// with number e.From, finds out where they go, and tells the scheduler. When everything
// that needs is in memory, it is done at once, without a task: that is the common case of
// new mail to domains that were resolved before.
func (s *Server) load(m *message, e *sched.Effect) {
	s.work(m)
	if e.First || m.active == nil {
		m.active = &active{since: s.now}
		if e.Origin == sched.QueueIncoming {
			s.moved++
		}
	}
	m.active.warned, m.active.again, m.active.old = e.Warned, e.Attempts > 0, e.Origin != sched.QueueIncoming
	l := s.prepared(m, e)
	l.num, l.id, l.in, l.nrcpt = m.num, m.id, m.inline, int(m.nrcpt)
	l.from, l.limit, l.first, l.fresh = e.From, e.Max, e.First, e.Origin == sched.QueueIncoming
	if s.log.unsure(m.id) { // it is tried again at once: first it must be known who has been told of what
		turn := s.takeTurn(l)
		s.log.after(func() {
			l.ref, l.done = m.ref, slices.Clone(m.done)
			s.begin(l, turn)
		})
		return
	}
	l.ref, l.done = m.ref, slices.Clone(m.done)
	if s.atOnce(l) {
		s.queue = append(s.queue, input{load: l})
		return
	}
	s.begin(l, s.takeTurn(l))
}

// atOnceRcpts bounds how many recipients the loop looks at itself: it has
// others to see to.
const atOnceRcpts = 100

// atOnce does a load in the loop, when neither the spool nor the resolver needs to be
// waited for. New mail that came before and is still being looked at goes first. When it
// returns false, read does what is left.
func (s *Server) atOnce(l *loading) bool {
	if l.in.envelope == nil || l.nrcpt > atOnceRcpts || l.fresh && s.turns > 0 {
		return false
	}
	if !l.fetched {
		s.fetch(l)
	}
	return s.placeAll(l)
}

// begin has the rest of a load done in a task. inTurn delays its result until it is its
// turn.
func (s *Server) begin(l *loading, inTurn func(post func())) {
	s.tasks.Go(func() {
		s.read(l)
		inTurn(func() { s.postInput(input{load: l}) })
	})
}

// orderPatience bounds how long new mail waits for mail that came before it
// and whose destination takes long to find out.
const orderPatience = 2 * time.Second

// takeTurn gives a load of new mail its turn. Other mail needs none: its order is the
// scheduler's business.
func (s *Server) takeTurn(l *loading) func(post func()) {
	if !l.fresh {
		return func(post func()) { post() }
	}
	l.turn = true
	s.turns++
	return s.inTurn()
}

// inTurn keeps new mail in the order in which it came, although many messages are looked
// at side by side. The function that it returns calls its argument when those returned
// before have called theirs, or after orderPatience: one address that takes long to
// resolve must not hold up all mail behind it.
func (s *Server) inTurn() func(post func()) {
	before, done := s.newest, make(chan struct{})
	s.newest = done
	return func(post func()) {
		defer close(done)
		defer post()
		if before == nil {
			return
		}
		select {
		case <-before:
			return
		default:
		}
		late := time.NewTimer(orderPatience)
		defer late.Stop()
		select {
		case <-before:
		case <-late.C:
		case <-s.ctx.Done():
		}
	}
}

// read does what is left of a load. It runs in a task.
func (s *Server) read(l *loading) {
	l.asks = true
	if !l.fetched {
		s.fetch(l)
	}
	s.placeAll(l)
}

// placeAll finds out where the recipients go, from l.next on. It returns false when it
// has come to one for which the resolver would have to be waited for, and l must not
// wait.
func (s *Server) placeAll(l *loading) bool {
	if l.err != nil {
		return true
	}
	if !s.knowTenant(l) {
		return false
	}
	isDone := (&message{done: l.done}).isDone
	for ; l.next < l.from+len(l.list) && len(l.rcpts)+len(l.discarded)+len(l.failed) < l.limit; l.next++ {
		if l.asks && l.next >= l.foreseen {
			s.foresee(l, isDone)
		}
		switch i, to := l.next, &l.list[l.next-l.from]; {
		case isDone(i):
		// It has failed for good, and only the report is missing.
		case l.verdicts[i]:
			l.failed = append(l.failed, loadedRcpt{Rcpt: sched.Rcpt{Index: i}, rcpt: rcpt{Recipient: *to, resolved: to.Address}})
		case !s.place(l, i, to):
			return false
		}
	}
	// The scheduler counts what is left, to know whether to ask again.
	for i := l.next; i < l.nrcpt; i++ {
		if !isDone(i) {
			l.unread++
		}
	}
	slices.SortStableFunc(l.rcpts, compareRcpt)
	return true
}

// maxForeseen is how many recipients the resolver is asked about together: it
// and we then wake up once for all of them.
const maxForeseen = 64

// foresee has the resolver asked about the next recipients without waiting, so that its
// answers to all of them are on their way together.
func (s *Server) foresee(l *loading, isDone func(int) bool) {
	l.foreseen = min(l.next+maxForeseen, l.from+len(l.list))
	if l.mute != nil || l.env.Redirect != "" || l.env.Filter != "" || l.env.Pool != "" {
		return // few questions, or none
	}
	for i := l.next; i < l.foreseen; i++ {
		if !isDone(i) && !l.verdicts[i] {
			s.opt.Resolver.ForeseeResolve(s.ctx, l.env.Sender, l.list[i-l.from].Address)
		}
	}
}

// sortOut takes successes out of the recorded outcomes. These recipients have the
// message; it was recorded as an outcome because their sender is still to be told.
func (l *loading) sortOut() {
	m := message{done: l.done}
	l.outcomes = slices.DeleteFunc(l.outcomes, func(o mail.Outcome) bool {
		if o.Action == dsn.Deferred || o.Action == dsn.Failed {
			return false
		}
		l.success = append(l.success, o)
		m.setDone(o.Rcpt)
		return true
	})
	l.done = m.done
}

var errBadEnvelope = errors.New("envelope cannot be read")

// fetch gets the envelope, what came of earlier attempts, and the recipients from l.from
// on, as many as are needed or all.
func (s *Server) fetch(l *loading) {
	l.fetched, l.next = true, l.from
	if l.in.envelope != nil {
		l.err = l.decode()
	} else {
		l.err = s.open(l)
	}
	l.corrupt = errors.Is(l.err, queue.ErrCorrupt) || errors.Is(l.err, errBadEnvelope)
	l.sortOut()
	for i := range l.outcomes {
		switch o := &l.outcomes[i]; {
		case o.Action == dsn.Failed:
			if l.verdicts == nil {
				l.verdicts = make(map[int]bool)
			}
			l.verdicts[o.Rcpt] = true
		case !waited(o):
			if l.tried == nil {
				l.tried = make(map[int]bool)
			}
			l.tried[o.Rcpt] = true
		}
	}
}

// waited says whether what is recorded of a recipient is that it has waited for a limit, or by somebody's choice: it was not
// tried. A server may say the same words with the same status. What it says has that server's name, so that nobody is tried
// before the time because a stranger wants it.
func waited(o *mail.Outcome) bool {
	return o.Relay == "none" && o.DiagType == "" && (o.Status == statusPaused || o.Status == sched.StatusBeyond)
}

// decode is fetch for a message whose envelope came with its arrival.
func (l *loading) decode() (err error) {
	if err = l.env.Decode(l.in.envelope); err == nil {
		l.list, err = mail.DecodeRecipients(l.list, l.in.recipients, l.from, -1)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errBadEnvelope, err)
	}
	return nil
}

// open is fetch for a message in the spool. Only queue.ErrCorrupt means that the message
// is damaged; any other failure may pass, and the message is tried again.
func (s *Server) open(l *loading) error {
	st, err := s.opt.Open(s.ctx, l.ref, l.id)
	if err != nil {
		return err
	}
	if l.env, err = st.Envelope(); err != nil {
		return err
	}
	if l.outcomes, err = st.Outcomes(); err != nil {
		return err
	}
	// The bounce service may have recorded that a sender was told, and died before it
	// said so here.
	m := message{done: l.done}
	for i := range l.nrcpt {
		if !m.isDone(i) && !st.Pending(i) {
			m.setDone(i)
			l.told = append(l.told, i)
		}
	}
	l.done = m.done
	// Recipients that are done take no place: look further until there are
	// enough that are not.
	to, pending := l.from, 0
	isDone := m.isDone
	for to < l.nrcpt && pending < l.limit {
		if !isDone(to) {
			pending++
		}
		to++
	}
	l.list, err = st.Recipients(l.from, to)
	return err
}

// place finds out where recipient i goes, in Postfix's order: a REDIRECT replaces all
// recipients, a content filter takes the message instead of its destination, and only
// then the resolver is asked. It returns false when the resolver would have to be waited
// for.
func (s *Server) place(l *loading, i int, to *mail.Recipient) bool {
	r := loadedRcpt{Rcpt: sched.Rcpt{Index: i, Tried: l.tried[i]}, rcpt: rcpt{Recipient: *to, resolved: to.Address}}
	env := &l.env
	if env.Redirect != "" {
		if i > 0 { // only the first recipient counts, and gets the redirect address
			l.discarded = append(l.discarded, i)
			return true
		}
		r.rcpt.resolved = env.Redirect
		r.rcpt.Recipient.Address = env.Redirect
		if r.rcpt.Original == "" {
			r.rcpt.Original = to.Address
		}
	}
	set := &s.opt.Settings
	switch {
	case l.tenantErr != nil:
		r.Transport, r.Nexthop = sched.RetryTransport, "4.3.0 tenant lookup failure"
	case env.Redirect == "" && env.Filter != "" && !env.Trace.DontDeliver():
		transport, nexthop, _ := strings.Cut(env.Filter, ":")
		// default_filter_nexthop; without it the recipient's domain, as in Postfix.
		if nexthop == "" {
			nexthop = cmp.Or(set.FilterNexthop, rfc5322.Domain(to.Address), set.Myhostname)
		}
		r.Transport, r.Nexthop = mail.Transport(transport), mail.Nexthop(nexthop)
	case !s.resolve(l, &r):
		return false
	}
	if r.Transport == "" { // resolve said: discard
		l.discarded = append(l.discarded, i)
		return true
	}
	if !s.knowQuota(l, &r) {
		return false
	}
	s.giveBack(env, &r)
	r.Queue = set.queueName(r.Transport, r.Nexthop, r.rcpt.resolved)
	if r.Terms != nil || r.Pool != nil {
		s.terms.place(&r.Rcpt)
	}
	if d := rfc5322.Domain(r.rcpt.resolved); set.FlushDomain(d) {
		r.Site = strings.ToLower(d)
	}
	l.rcpts = append(l.rcpts, r)
	return true
}

// askResolver asks trivial-rewrite. Once that has not answered in time, it is not asked
// for the other recipients of this load: with a thousand recipients, a thousand time-outs
// would follow.
func (s *Server) askResolver(l *loading, addr string) (proto.ResolveReply, error) {
	if l.mute != nil {
		return proto.ResolveReply{}, l.mute
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.ResolveTime)
	defer cancel()
	ans, err := s.opt.Resolver.ResolveFrom(ctx, l.env.Sender, addr, l.env.Pool)
	if err != nil && ctx.Err() != nil {
		l.mute = fmt.Errorf("no answer within %v", s.opt.ResolveTime)
		err = l.mute
	}
	return ans, err
}

// resolve judges what trivial-rewrite says of a recipient, or has said before. Failures
// become deliveries to the retry or the error transport, with the texts of Postfix: so
// they are logged and recorded like any other. It returns false when the resolver would
// have to be asked, and l must not wait.
func (s *Server) resolve(l *loading, r *loadedRcpt) bool {
	ans, known := s.opt.Resolver.Known(r.rcpt.resolved)
	known = known && l.env.Pool == "" // else it depends on that, too
	var err error
	if !known {
		if !l.asks {
			return false
		}
		ans, err = s.askResolver(l, r.rcpt.resolved)
	}
	local, _, _ := strings.Cut(ans.Recipient, "@")
	switch {
	case err != nil || ans.Flags&proto.ResolveFail != 0:
		if err != nil && !l.unresolved && s.ctx.Err() == nil { // else it is us who stop
			l.unresolved = true
			s.opt.Log.Warning("%s: address resolver failure: %v", l.id, err)
		}
		r.Transport, r.Nexthop = sched.RetryTransport, "4.3.0 address resolver failure"
	case ans.Flags&proto.ResolveError != 0:
		r.Transport, r.Nexthop = sched.ErrorTransport, "5.1.3 bad address syntax"
	case ans.Recipient == "":
		r.Transport, r.Nexthop = sched.ErrorTransport, "5.1.3 null recipient address"
	case ans.Flags&proto.ResolveLocal != 0 && strings.EqualFold(local, s.opt.Settings.DoubleBounce):
		// A notice to the postmaster that cannot be delivered ends here.
		if l.quiet {
			return false
		}
		o := mail.Outcome{Rcpt: r.Index, Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Relay: "none",
			Reason: "undeliverable postmaster notification discarded"}
		s.logDelivery(l.id, r.rcpt.Recipient, &l.env, time.Now(), o)
		r.Transport = ""
	default:
		r.rcpt.resolved = ans.Recipient
		r.Transport, r.Nexthop = s.divert(ans.Flags, mail.Transport(ans.Transport), mail.Nexthop(ans.Nexthop), ans.Recipient)
		// Mail that an operator diverts is not under the limits of the destination that it would have.
		diverted := r.Transport != mail.Transport(ans.Transport) || r.Nexthop != mail.Nexthop(ans.Nexthop)
		r.away = !diverted && ans.Flags&(proto.ResolveDefault|proto.ResolveRelay) != 0
		if set := &s.opt.Settings; set.limits && !diverted {
			r.Terms = s.terms.of(&ans, set.batchLimit(r.Transport) != 1)
		}
		// It does not go from another address for that.
		if ans.Pool != "" {
			r.Pool = s.terms.pool(&ans, r.Terms, s.wholeSites(&ans), !diverted)
		}
		if ans.Flags&proto.ResolveDefault != 0 {
			return s.mark(l, r)
		}
	}
	return true
}

// compareRcpt is nqmgr's order: by transport, destination, domain, address. Recipients
// without a domain come last. Agents see recipients in this order, and the scheduler puts
// neighbours into one request.
func compareRcpt(a, b loadedRcpt) int {
	da, db := rfc5322.Domain(a.rcpt.resolved), rfc5322.Domain(b.rcpt.resolved)
	if (da == "") != (db == "") {
		if da == "" {
			da = "\xff"
		} else {
			db = "\xff"
		}
	}
	return cmp.Or(strings.Compare(string(a.Transport), string(b.Transport)), strings.Compare(a.Queue, b.Queue),
		strings.Compare(strings.ToLower(da), strings.ToLower(db)), strings.Compare(a.rcpt.resolved, b.rcpt.resolved))
}

// learn takes in what a load gave, in the loop, and makes ev, which is empty, the event that tells the
// scheduler; a load that came too late gives none, and no message. The event uses l's storage, so l is released only when it has been
// processed.
func (s *Server) learn(l *loading, ev *sched.Event) (m *message) {
	if l.turn {
		s.turns--
	}
	m = s.messages[l.num]
	if m == nil || m.active == nil {
		return nil
	}
	if l.err != nil {
		s.unreadable(m, l, ev)
		return m
	}
	a := m.active
	if l.first {
		a.env = l.env
		a.env.Recipients = nil
		// "(queue active)": once for each stay, as in Postfix.
		s.opt.Log.Log(maillog.QueueActive{ID: string(m.id), From: s.opt.Log.Address(a.env.Sender), Size: a.env.Size,
			NRcpt: int(m.nrcpt)})
		a.success = l.success
		for i := range l.success {
			m.setDone(l.success[i].Rcpt)
		}
	}
	for i := range l.outcomes {
		o := &l.outcomes[i]
		// The outcomes in memory are of this stay.
		if _, newer := a.outcomes[o.Rcpt]; !newer {
			a.noted(o)
		}
	}
	for _, list := range [...][]int{l.discarded, l.told} {
		for _, i := range list {
			m.setDone(i)
		}
	}
	s.log.done(m, l.discarded)
	s.setApart(l)
	a.add(l.rcpts, l.next)
	a.add(l.failed, l.next)
	for i := range l.rcpts {
		if s.rules.set != nil {
			l.rcpts[i].Pause = s.pauseFor(&l.rcpts[i].Rcpt, &a.env, l.rcpts[i].rcpt.resolved)
		}
		l.batch = append(l.batch, l.rcpts[i].Rcpt)
	}
	a.complete = a.complete || l.unread == 0
	ev.Kind, ev.ID, ev.Next, ev.Unread, ev.Failed = sched.EventLoaded, l.num, l.next, l.unread, len(l.failed) > 0
	ev.Single = (a.env.VERP != "" || a.env.List != "") && a.env.Sender != ""
	ev.Rcpts, ev.Starts = l.batch, a.env.SendAt
	return m
}

// unreadable is learn for a message that could not be read.
func (s *Server) unreadable(m *message, l *loading, ev *sched.Event) {
	*ev = sched.Event{Kind: sched.EventLoadFailed, ID: l.num, Corrupt: l.corrupt}
	if errors.Is(l.err, queueread.ErrGone) { // cleanup does not have it: there is nothing to do
		// Where nodes share the queue another one has it now. Elsewhere it was removed by another
		// way, for example by a tool that works on a queue at rest.
		if s.opt.Settings.Node != "" {
			s.opt.Log.Log(maillog.Elsewhere{ID: string(m.id)})
		} else {
			s.opt.Log.Warning("%s: %v", m.id, l.err)
		}
		s.vanish(m)
		s.then(*ev)
		ev.Kind = 0
		return
	}
	s.opt.Log.Warning("%s: message cannot be read from the queue: %v", m.id, l.err)
}

// add puts recipients that have been read into memory; all have numbers below n. The one
// recipient of most messages needs no allocation.
func (a *active) add(list []loadedRcpt, n int) {
	if len(list) == 0 {
		return
	}
	batch := a.only[:]
	if a.rcpts == nil {
		a.rcpts = a.slot[:0]
	}
	if len(list) > 1 || len(a.rcpts) > 0 {
		batch = make([]rcpt, len(list))
	}
	if more := n - len(a.rcpts); more > 0 {
		a.rcpts = append(a.rcpts, make([]*rcpt, more)...)
	}
	for i := range list {
		batch[i] = list[i].rcpt
		a.rcpts[list[i].Index] = &batch[i]
	}
}
