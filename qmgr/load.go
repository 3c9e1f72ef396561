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
	"posthaste/internal/queueread"
	"posthaste/internal/rfc5322"
	"posthaste/internal/spool"
	"posthaste/qmgr/sched"
)

// loaded is what reading and resolving a batch of recipients gave.
type loaded struct {
	env       mail.Envelope
	rcpts     []loadedRcpt
	outcomes  []mail.Outcome // from earlier attempts
	success   []mail.Outcome // of recipients who have it, and whose senders are to be told
	failed    []loadedRcpt   // recipients who have failed for good, which their sender is still to be told
	discarded []int          // recipients whose mail is thrown away on purpose
	next      int            // index of the first recipient not looked at
	unread    int            // pending recipients from next on
	corrupt   bool
	// unresolved says that it has been logged that addresses cannot be resolved.
	unresolved bool
	err        error
}

type loadedRcpt struct {
	sched.Rcpt
	rcpt rcpt
}

// load reads up to e.Max pending recipients of m, starting with index e.From,
// finds out where they go, and tells the scheduler. The reading and asking is
// done beside the loop.
func (s *Server) load(m *message, e *sched.Effect) {
	s.work(m)
	first, limit := e.First, e.Max
	if first || m.active == nil {
		in := (*inline)(nil)
		if m.active != nil {
			in = m.active.inline
		}
		m.active = &active{since: s.now, inline: in, rcpts: make(map[int]*rcpt, min(limit, int(m.nrcpt))),
			outcomes: make(map[int]mail.Outcome)}
		if e.Origin == sched.QueueIncoming {
			s.moved++
		}
	}
	m.active.warned, m.active.again = e.Warned, e.Attempts > 0
	j := job{id: m.id, in: m.active.inline, from: e.From, limit: limit, nrcpt: int(m.nrcpt), settings: &s.opt.Settings}
	inTurn := func(post func()) { post() }
	if e.Origin == sched.QueueIncoming {
		inTurn = s.inTurn()
	}
	if s.log.unsure(m.id) { // it is tried again at once: first it must be known who has been told of what
		s.log.after(func() { s.begin(m, &j, first, inTurn) })
		return
	}
	s.begin(m, &j, first, inTurn)
}

// begin starts a load.
func (s *Server) begin(m *message, j *job, first bool, inTurn func(post func())) {
	j.ref, j.done = m.ref, slices.Clone(m.done)
	num := m.num
	s.tasks.Go(func() {
		l := s.read(j)
		inTurn(func() { s.post(func() { s.learn(num, l, first) }, sched.Event{}) })
	})
}

// orderPatience bounds how long new mail waits for mail that came before it
// and whose destination takes long to find out.
const orderPatience = 2 * time.Second

// inTurn keeps new mail in the order in which it came, although many messages
// are looked at at once: what it returns calls its argument when those that it
// returned before have called theirs.
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

// A job is one load, with copies of what the loop owns.
type job struct {
	id          mail.QueueID
	ref         spool.Ref
	in          *inline
	done        []byte
	from, limit int
	nrcpt       int
	settings    *Settings
}

// read does the work of a load. It runs beside the loop.
func (s *Server) read(j *job) *loaded {
	l := new(loaded)
	rcpts, err := s.fetch(j, l)
	if err != nil {
		l.err = err
		l.corrupt = errors.Is(err, spool.ErrCorrupt) || errors.Is(err, errBadEnvelope)
		return l
	}
	l.sortOut(j)
	isDone := (&message{done: j.done}).isDone
	ctx, giveUp := context.WithCancelCause(s.ctx)
	defer giveUp(nil)
	late := time.AfterFunc(s.opt.ResolveTime, func() { giveUp(fmt.Errorf("no answer within %v", s.opt.ResolveTime)) })
	defer late.Stop()
	failed := l.verdicts()
	i := j.from
	for ; i < j.from+len(rcpts) && len(l.rcpts)+len(l.discarded)+len(l.failed) < j.limit; i++ {
		switch to := rcpts[i-j.from]; {
		case isDone(i):
		case failed[i]:
			l.failed = append(l.failed, loadedRcpt{Rcpt: sched.Rcpt{Index: i}, rcpt: rcpt{Recipient: to, resolved: to.Address}})
		default:
			late.Reset(s.opt.ResolveTime)
			s.place(ctx, j, l, i, to)
		}
	}
	l.next = i
	for ; i < j.nrcpt; i++ {
		if !isDone(i) {
			l.unread++
		}
	}
	slices.SortStableFunc(l.rcpts, compareRcpt)
	return l
}

// sortOut takes successes out of the recorded outcomes: these recipients are
// not to get the message again.
func (l *loaded) sortOut(j *job) {
	m := message{done: j.done}
	l.outcomes = slices.DeleteFunc(l.outcomes, func(o mail.Outcome) bool {
		if o.Action == dsn.Deferred || o.Action == dsn.Failed {
			return false
		}
		l.success = append(l.success, o)
		m.setDone(o.Rcpt)
		return true
	})
	j.done = m.done
}

// verdicts are the recipients on whom the last word has been spoken: that is
// to be told, they are not delivered to once more.
func (l *loaded) verdicts() map[int]bool {
	var list map[int]bool
	for i := range l.outcomes {
		if l.outcomes[i].Action == dsn.Failed {
			if list == nil {
				list = make(map[int]bool)
			}
			list[l.outcomes[i].Rcpt] = true
		}
	}
	return list
}

var errBadEnvelope = errors.New("envelope cannot be read")

// fetch gives the stored recipients from j.from on: enough of them, or all.
func (s *Server) fetch(j *job, l *loaded) ([]mail.Recipient, error) {
	if j.in != nil {
		if err := l.env.Decode(j.in.envelope); err != nil {
			return nil, fmt.Errorf("%w: %w", errBadEnvelope, err)
		}
		list, err := mail.DecodeRecipients(j.in.recipients, j.from, -1)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errBadEnvelope, err)
		}
		return list, nil
	}
	st, err := s.opt.Open(s.ctx, j.ref, j.id)
	if err != nil {
		return nil, err
	}
	if l.env, err = st.Envelope(); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadEnvelope, err)
	}
	if l.outcomes, err = st.Outcomes(); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadEnvelope, err)
	}
	// Recipients that are done take no place: look further until there are
	// enough that are not.
	to, pending := j.from, 0
	isDone := (&message{done: j.done}).isDone
	for to < j.nrcpt && pending < j.limit {
		if !isDone(to) {
			pending++
		}
		to++
	}
	list, err := st.Recipients(j.from, to)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadEnvelope, err)
	}
	return list, nil
}

// place finds out where one recipient goes.
func (s *Server) place(ctx context.Context, j *job, l *loaded, i int, to mail.Recipient) {
	r := loadedRcpt{Rcpt: sched.Rcpt{Index: i}, rcpt: rcpt{Recipient: to, resolved: to.Address}}
	env := &l.env
	switch {
	case env.Redirect != "":
		if i > 0 { // only the first recipient counts, and gets the redirect address
			l.discarded = append(l.discarded, i)
			return
		}
		r.rcpt.resolved = env.Redirect
		r.rcpt.Recipient.Address = env.Redirect
		if r.rcpt.Original == "" {
			r.rcpt.Original = to.Address
		}
		s.resolve(ctx, j, l, &r)
	case env.Filter != "" && !env.Trace.DontDeliver():
		transport, nexthop, _ := strings.Cut(env.Filter, ":")
		if nexthop == "" {
			nexthop = cmp.Or(j.settings.FilterNexthop, rfc5322.Domain(to.Address), j.settings.Myhostname)
		}
		r.Transport, r.Nexthop = mail.Transport(transport), mail.Nexthop(nexthop)
	default:
		s.resolve(ctx, j, l, &r)
	}
	if r.Transport == "" { // resolve said: discard
		l.discarded = append(l.discarded, i)
		return
	}
	r.Queue = j.settings.queueName(r.Transport, r.Nexthop, r.rcpt.resolved)
	if d := rfc5322.Domain(r.rcpt.resolved); j.settings.FlushDomain(d) {
		r.Site = strings.ToLower(d)
	}
	l.rcpts = append(l.rcpts, r)
}

// resolve asks trivial-rewrite, and judges what it says.
func (s *Server) resolve(ctx context.Context, j *job, l *loaded, r *loadedRcpt) {
	ans, err := s.opt.Resolver.Resolve(ctx, l.env.Sender, r.rcpt.resolved)
	local, _, _ := strings.Cut(ans.Recipient, "@")
	switch {
	case err != nil || ans.Flags&proto.ResolveFail != 0:
		if err != nil && !l.unresolved && s.ctx.Err() == nil { // else it is us who stop
			l.unresolved = true
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			s.opt.Log.Warning("%s: address resolver failure: %v", j.id, err)
		}
		r.Transport, r.Nexthop = sched.RetryTransport, "4.3.0 address resolver failure"
	case ans.Flags&proto.ResolveError != 0:
		r.Transport, r.Nexthop = sched.ErrorTransport, "5.1.3 bad address syntax"
	case ans.Recipient == "":
		r.Transport, r.Nexthop = sched.ErrorTransport, "5.1.3 null recipient address"
	case ans.Flags&proto.ResolveLocal != 0 && strings.EqualFold(local, j.settings.DoubleBounce):
		// A notice to the postmaster that cannot be delivered ends here.
		o := mail.Outcome{Rcpt: r.Index, Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Relay: "none",
			Reason: "undeliverable postmaster notification discarded"}
		s.logDelivery(j.id, r.rcpt.Recipient, &l.env, time.Now(), o)
		r.Transport = ""
	default:
		r.Transport, r.Nexthop = mail.Transport(ans.Transport), mail.Nexthop(ans.Nexthop)
		r.rcpt.resolved = ans.Recipient
	}
}

// compareRcpt is nqmgr's order: by transport, queue, domain, address.
// Recipients without a domain come last.
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

// learn takes in what a load gave. It runs in the loop.
func (s *Server) learn(num sched.MsgID, l *loaded, first bool) {
	m := s.messages[num]
	if m == nil || m.active == nil {
		return
	}
	if errors.Is(l.err, queueread.ErrGone) { // cleanup does not have it: there is nothing to do
		s.opt.Log.Warning("%s: %v", m.id, l.err)
		s.then(sched.Event{Kind: sched.EventRemove, Scope: sched.ScopeMessage, ID: num})
		s.then(sched.Event{Kind: sched.EventLoadFailed, ID: num})
		return
	}
	if l.err != nil {
		s.opt.Log.Warning("%s: message cannot be read from the queue: %v", m.id, l.err)
		s.then(sched.Event{Kind: sched.EventLoadFailed, ID: num, Corrupt: l.corrupt})
		return
	}
	a := m.active
	if first {
		a.env = l.env
		a.env.Recipients = nil
		s.opt.Log.Log(maillog.QueueActive{ID: string(m.id), From: s.opt.Log.Address(a.env.Sender), Size: a.env.Size,
			NRcpt: int(m.nrcpt)})
	}
	if first {
		a.success = l.success
		for _, o := range l.success {
			m.setDone(o.Rcpt)
		}
	}
	for _, o := range l.outcomes {
		if _, newer := a.outcomes[o.Rcpt]; !newer {
			a.outcomes[o.Rcpt] = o
		}
	}
	for _, i := range l.discarded {
		m.setDone(i)
	}
	s.log.done(m, l.discarded)
	ev := sched.Event{Kind: sched.EventLoaded, ID: num, Next: l.next, Unread: l.unread, Failed: len(l.failed) > 0,
		Single: a.env.VERP != "" && a.env.Sender != "", Rcpts: make([]sched.Rcpt, len(l.rcpts))}
	for i := range l.rcpts {
		r := &l.rcpts[i]
		ev.Rcpts[i] = r.Rcpt
		a.rcpts[r.Index] = &r.rcpt
	}
	for i := range l.failed {
		a.rcpts[l.failed[i].Index] = &l.failed[i].rcpt
	}
	if l.unread == 0 {
		a.complete = true
		s.dropInline(m) // the recipients are in memory now
	}
	s.then(ev)
}
