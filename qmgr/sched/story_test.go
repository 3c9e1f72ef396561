package sched

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"posthaste/internal/adaptive"
	"posthaste/internal/dsn"
	"posthaste/internal/feedback"
	"posthaste/internal/mail"
	"posthaste/internal/rate"
)

var rewrite = flag.Bool("rewrite", false, "write what the scheduler does into the story files")

// A story is a file of commands, each followed by a line of dashes and what
// came of it. Commands:
//
//	config qmgr|TRANSPORT name=value...   before anything else; weights TENANT=N...
//	arrive ID to=TRANSPORT:DESTINATION[*COUNT],... [flags=null,verp,trace] [tenant=NAME]
//	tick DURATION                         let time pass, in one step
//	run DURATION                          let time pass, waking when the scheduler asks for it
//	done ENTRY|all [bounced|deferred|unreachable|enough|over] [hungry] [fewer|slower|later], what the reply asks
//	terms DESTINATION,... [own|site|provider:NAME concurrency=N connections=RATE ...]... [reuse=N], from now on
//	quota TENANT DESTINATION,... [own|site|provider:NAME concurrency=N ...]... of the tenant there, from now on
//	allow TENANT [concurrency=N messages=RATE ...] of the tenant wherever its mail goes, from now on
//	source NAME [own|site|provider:NAME concurrency=N ... warmup=N]... [wait] what holds for it
//	stop|restart SOURCE                   suspend a source, or end that
//	pool DESTINATION,... NAME=WEIGHT...   the sources of their mail, under the terms as they are
//	rollup NEXTHOP,... DESTINATION / limits
//	serve [COUNT]                         end the oldest delivery again and again; print whose turn it was
//	lost ENTRY / down TRANSPORT [ENTRY...]
//	load ID / answer ID yes|no            with "config world manual=1"
//	pause N DESTINATION [flush] [odd] [DURATION], odd: of recipients with odd numbers only / resume N
//	flush all|site NAME|ID, hold|release|remove|requeue|corrupt|expire|expirenow ID|all
//	state / dests / explain ID
func TestStories(t *testing.T) {
	t.Parallel()
	files, _ := filepath.Glob("testdata/story/*.txt")
	if len(files) == 0 {
		t.Fatal("no stories in testdata/story")
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := (&story{t: t}).run(string(data))
			if *rewrite {
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(data) {
				t.Errorf("%s: not what happened; go test -rewrite and look at the difference:\n%s", f, firstDifference(string(data), got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d:\n- %s\n+ %s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines wanted, %d got", len(w), len(g))
}

type story struct {
	t   *testing.T
	w   *world
	cfg Config
	per map[string]map[string]string
	out bytes.Buffer
	say bool

	sources map[string]Member
}

const dashes = "----"

// run carries out every command of a story and returns the story as it
// should be.
func (st *story) run(text string) string {
	st.cfg = DefaultConfig()
	st.cfg.QueueRunDelay = 0
	st.per = map[string]map[string]string{}
	st.say = true
	var result strings.Builder
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if line == "" || strings.HasPrefix(line, "#") {
			if i < len(lines)-1 {
				result.WriteString(line + "\n")
			}
			continue
		}
		result.WriteString(line + "\n")
		words := strings.Fields(line)
		if words[0] == "config" {
			st.config(words[1], words[2:])
			continue
		}
		if i+1 < len(lines) && lines[i+1] == dashes {
			for i++; i+1 < len(lines) && lines[i+1] != ""; i++ {
			}
		}
		st.begin()
		st.out.Reset()
		st.command(words[0], words[1:])
		result.WriteString(dashes + "\n" + st.out.String())
	}
	return result.String()
}

// config notes settings.
func (st *story) config(who string, settings []string) {
	if st.w != nil {
		st.t.Fatal("config after the story began")
	}
	if st.per[who] == nil {
		st.per[who] = map[string]string{}
	}
	for _, s := range settings {
		k, v, _ := strings.Cut(s, "=")
		st.per[who][k] = v
	}
}

func num(t *testing.T, v string) int {
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func dur(t *testing.T, v string) time.Duration {
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// begin makes the world at the first command.
func (st *story) begin() {
	if st.w != nil {
		return
	}
	for k, v := range st.per["qmgr"] {
		switch k {
		case "active_limit":
			st.cfg.ActiveLimit = num(st.t, v)
		case "deferred_limit":
			st.cfg.DeferredLimit = num(st.t, v)
		case "recipient_limit":
			st.cfg.RecipientLimit = num(st.t, v)
		case "recipient_minimum":
			st.cfg.RecipientMinimum = num(st.t, v)
		case "lifetime":
			st.cfg.MaximalLifetime = dur(st.t, v)
		case "bounce_lifetime":
			st.cfg.BounceLifetime = dur(st.t, v)
		case "delay_warning":
			st.cfg.DelayWarning = dur(st.t, v)
		case "defer_transports":
			st.cfg.DeferTransports = strings.Split(v, ",")
		case "shared_active":
			st.cfg.SharedActiveLimit = num(st.t, v)
		case "debug":
			st.cfg.FeedbackDebug = true
		default:
			st.t.Fatalf("config qmgr: %s?", k)
		}
	}
	st.cfg.Transport = func(name mail.Transport, c TransportConfig) TransportConfig {
		settings := st.per[string(name)]
		for k, v := range settings {
			st.set(&c, k, v)
		}
		return c
	}
	if weights := st.per["weights"]; weights != nil {
		st.cfg.TenantWeight = func(name string) int { return num(st.t, cmp.Or(weights[name], "1")) }
	}
	st.w = newWorld(st.t, st.cfg) // what happens before the first command is not told
	st.w.on = st.effect
	st.w.manual = st.per["world"]["manual"] != ""
	if b := st.per["world"]["batch"]; b != "" {
		st.w.batch = num(st.t, b)
	}
}

func (st *story) set(c *TransportConfig, k, v string) {
	t := st.t
	ints := map[string]*int{"processes": &c.ProcessLimit, "window": &c.ConcurrencyLimit, "initial": &c.InitialConcurrency,
		"cohorts": &c.FailedCohortLimit, "batch": &c.BatchLimit, "cost": &c.SlotCost, "loan": &c.SlotLoan,
		"discount": &c.SlotDiscount, "minimum": &c.MinimumSlots, "rcpts": &c.RecipientLimit,
		"extra": &c.ExtraRecipientLimit, "refill": &c.RefillLimit, "agents": &c.AgentsPerThread, "quantum": &c.ThreadQuantum, "slow": &c.SlowLimit, "floor": &c.AdaptiveFloor}
	durs := map[string]*time.Duration{"rate": &c.DestinationRateDelay, "trate": &c.TransportRateDelay, "idle": &c.IdleMax, "slow-after": &c.SlowTime, "slowest": &c.AdaptiveDelay}
	feeds := map[string]*feedback.Feedback{"positive": &c.PositiveFeedback, "negative": &c.NegativeFeedback}
	switch {
	case ints[k] != nil:
		*ints[k] = num(t, v)
	case durs[k] != nil:
		*durs[k] = dur(t, v)
	case feeds[k] != nil:
		f, err := feedback.Parse(v)
		if err != nil {
			t.Fatal(err)
		}
		*feeds[k] = f
	case k == "adaptive":
		c.Adaptive = v == "yes"
	case k == "scheduler":
		c.Mode = map[string]Mode{"preemptive": Preemptive, "fifo": FIFO, "thread": Thread}[v]
	case k == "order":
		c.Order = map[string]Order{"age": Age, "random": Random}[v]
	default:
		t.Fatalf("config: %s?", k)
	}
}

// command carries out one command.
func (st *story) command(verb string, args []string) {
	w, t := st.w, st.t
	kinds := map[string]EventKind{"hold": EventHold, "release": EventRelease, "remove": EventRemove,
		"requeue": EventRequeue, "corrupt": EventCorrupt, "expire": EventExpire, "expirenow": EventExpire}
	switch verb {
	case "arrive":
		st.arrive(args)
	case "tick":
		w.tick(dur(t, args[0]))
	case "run":
		for end := w.now.Add(dur(t, args[0])); w.now.Before(end); {
			if at := w.s.Wake(); at.IsZero() || at.After(end) {
				w.now = end
				break
			}
			w.sleep()
		}
	case "done":
		st.done(args)
		w.onPass()
	case "serve":
		st.serve(args)
	case "lost":
		w.lose(EntryID(st.entry(args[0])))
	case "down":
		ev := Event{Kind: EventAgentDown, Transport: mail.Transport(args[0])}
		for _, a := range args[1:] {
			ev.Entries = append(ev.Entries, st.entry(a))
			w.take(st.entry(a))
		}
		w.step(ev)
	case "load", "answer":
		st.reply(verb, args)
	case "pause":
		st.pause(args)
	case "limit":
		w.limits[args[0]] = testLimit{num(t, args[1]), len(args) > 2 && args[2] == "raise"}
		w.setLimits()
	case "unlimit":
		delete(w.limits, args[0])
		w.setLimits()
	case "terms":
		st.terms(args)
	case "source":
		st.source(args)
	case "pool":
		st.pool(args)
	case "stop":
		w.stopped[args[0]] = PauseID(1000 + len(w.stopped))
		w.setPauses()
	case "restart":
		delete(w.stopped, args[0])
		w.setPauses()
	case "rollup":
		for _, hop := range strings.Split(args[0], ",") {
			w.site[hop] = args[1]
		}
	case "quota":
		st.quota(args)
	case "allow":
		st.allow(args)
	case "limits":
		st.limits()
	case "resume":
		delete(w.pauses, PauseID(num(t, args[0])))
		w.setPauses()
	case "flush":
		ev := Event{Kind: EventFlush, Scope: ScopeAll}
		if args[0] == "site" {
			ev.Scope, ev.Site = ScopeSite, args[1]
		} else if args[0] != "all" {
			ev.Scope, ev.ID = ScopeMessage, MsgID(num(t, args[0]))
		}
		w.command(ev)
		w.onPass()
	case "state":
		st.state()
	case "dests":
		w.s.Dests(func(d Dest) bool {
			fmt.Fprintf(&st.out, "%s/%s window %d limit %d busy %d todo %d waiting %d%s%s\n", d.Transport, d.Queue, d.Window, d.Limit, d.Busy, d.Todo, d.Waiting,
				[]string{"", " dead", " suspended"}[d.State], st.learnt(d.Learnt))
			return true
		})
	case "explain":
		for _, r := range w.s.Explain(MsgID(num(t, args[0]))) {
			fmt.Fprintf(&st.out, "%s\n", st.reason(r))
		}
	default:
		k, ok := kinds[verb]
		if !ok {
			t.Fatalf("%s?", verb)
		}
		ev := Event{Kind: k, Scope: ScopeAll, Now: verb == "expirenow"}
		if args[0] != "all" {
			ev.Scope, ev.ID = ScopeMessage, MsgID(num(t, args[0]))
		}
		w.command(ev)
	}
}

// learnt says what a destination's answers have taught.
func (st *story) learnt(l *Learnt) (text string) {
	if l == nil || l.Why == adaptive.Nothing && l.Bad == 0 && l.Pace.IsZero() {
		return ""
	}
	text = fmt.Sprintf(" learnt: %v (%s)", l.Why, l.Text)
	if l.Bad > 0 {
		text += fmt.Sprintf(" below %d", l.Bad)
	}
	if !l.Pace.IsZero() {
		text += fmt.Sprintf(" pace %v", l.Pace)
	}
	if !l.Rests.IsZero() {
		text += fmt.Sprintf(" rests until +%v", l.Rests.Sub(epoch))
	}
	return text
}

// terms has shared limits hold for destinations.
func (st *story) terms(args []string) {
	terms := &Terms{}
	st.shares(&terms.Shares, terms, args[1:])
	var news []Event
	for _, name := range strings.Split(args[0], ",") {
		st.w.terms[name] = terms
		for _, t := range st.w.s.transports {
			if t.name != RetryTransport {
				news = append(news, Event{Kind: EventTerms, Transport: t.name, Site: name, Terms: terms})
			}
		}
		for _, site := range st.w.site {
			terms.Rollup = terms.Rollup || site == name
		}
	}
	st.w.step(news...)
}

// quota has limits hold for a tenant's mail for destinations.
func (st *story) quota(args []string) {
	quota := &Quota{}
	st.shares(&quota.Shares, &Terms{}, args[2:])
	if st.w.quotas == nil {
		st.w.quotas = map[string]*Quota{}
	}
	for _, name := range strings.Split(args[1], ",") {
		st.w.quotas[args[0]+" at "+name] = quota
		for _, t := range slices.Clone(st.w.s.transports) {
			st.w.step(Event{Kind: EventQuota, Tenant: args[0], Transport: t.name, Site: name, Quota: quota})
		}
	}
}

// allow has limits hold for a tenant's mail, wherever it goes.
func (st *story) allow(args []string) {
	var shares [levels]Share
	st.shares(&shares, &Terms{}, args[1:])
	if st.w.whose == nil {
		st.w.whose = map[string]TenantTerms{}
	}
	terms := TenantTerms{Limits: shares[0].Limits}
	st.w.whose[args[0]] = terms
	st.w.step(Event{Kind: EventTenant, Tenant: args[0], TenantTerms: terms})
}

// shares reads limits.
func (st *story) shares(to *[levels]Share, terms *Terms, args []string) {
	level := Level(0)
	for _, a := range args {
		if where, name, ok := strings.Cut(a, ":"); ok {
			level = Level(slices.Index([]string{"own", "site", "provider"}, where))
			to[level].Name = name
			continue
		}
		l := &to[level].Limits
		k, v, _ := strings.Cut(a, "=")
		rates := map[string]*rate.Rate{"connections": &l.Connections, "messages": &l.Messages, "recipients": &l.Recipients}
		switch {
		case rates[k] != nil:
			var err error
			if *rates[k], err = rate.Parse(v); err != nil {
				st.t.Fatal(err)
			}
		case k == "concurrency":
			l.Concurrency = num(st.t, v)
		case k == "warmup":
			l.Warmup = rate.Rate{N: int64(num(st.t, v)), Per: rate.Day}
		case k == "reuse":
			terms.Reuse = num(st.t, v)
		default:
			st.t.Fatalf("terms: %s?", a)
		}
	}
}

// source says what holds for mail that goes from one.
func (st *story) source(args []string) {
	mb := Member{Source: args[0], Terms: &Terms{Source: args[0]}}
	if args[len(args)-1] == "wait" {
		mb.Wait, args = true, args[:len(args)-1]
	}
	st.shares(&mb.Terms.From, mb.Terms, args[1:])
	if st.sources == nil {
		st.sources = map[string]Member{}
	}
	st.sources[args[0]] = mb
}

// pool has mail for destinations go from sources.
func (st *story) pool(args []string) {
	for _, dest := range strings.Split(args[0], ",") {
		pool := &Pool{Name: "pool"}
		for _, a := range args[1:] {
			name, weight, _ := strings.Cut(a, "=")
			mb := Member{Source: name, Terms: &Terms{Source: name}}
			if known, ok := st.sources[name]; ok {
				mb.Wait = known.Wait
				*mb.Terms = *known.Terms
			}
			mb.Weight = num(st.t, weight)
			if terms := st.w.terms[dest]; terms != nil {
				mb.Terms.Shares, mb.Terms.Rollup, mb.Terms.Reuse = terms.Shares, terms.Rollup, terms.Reuse
			}
			pool.Members = append(pool.Members, mb)
		}
		st.w.pools[dest] = pool
	}
}

// limits prints the shared limits.
func (st *story) limits() {
	var list []SharedLimit
	for _, n := range st.w.s.shares {
		list = append(list, n.view(st.w.s))
	}
	slices.SortFunc(list, func(a, b SharedLimit) int {
		return cmp.Or(cmp.Compare(b.Level, a.Level), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Source, b.Source))
	})
	for _, l := range list {
		name := l.Name
		if l.Source != "" {
			name = SourceQueue(name, l.Source)
		}
		fmt.Fprintf(&st.out, "%s %s: busy %d waiting %d backlog %d", l.Level, name, l.Busy, l.Waiting, l.Backlog)
		if l.Parked > 0 {
			fmt.Fprintf(&st.out, " parked %d", l.Parked)
		}
		if l.Connections+l.Messages+l.Recipients > 0 {
			fmt.Fprintf(&st.out, " today %d/%d/%d", l.Connections, l.Messages, l.Recipients)
		}
		if l.Limits.Warmup.N > 0 {
			fmt.Fprintf(&st.out, " warm-up %d/%d", l.Warmup, l.Limits.Warmup.N)
		}
		if l.Shut {
			st.out.WriteString(" shut")
		}
		if !l.Until.IsZero() {
			st.out.WriteString(" until " + st.clock(l.Until))
		}
		st.out.WriteByte('\n')
	}
}

// pause has mail for a destination wait.
func (st *story) pause(args []string) {
	p := testPause{queue: args[1]}
	p.ID, p.Status, p.Reason = PauseID(num(st.t, args[0])), dsn.S(4, 3, 2), "suspended"
	for _, a := range args[2:] {
		switch a {
		case "flush":
			p.Flush = true
		case "odd":
			p.odd = true
		default:
			p.Until = st.w.now.Add(dur(st.t, a))
		}
	}
	st.w.pauses[p.ID] = p
	st.w.setPauses()
}

func (st *story) arrive(args []string) {
	var rcpts []Rcpt
	var flags Flags
	st.w.tenant = nil
	for _, a := range args[1:] {
		k, v, _ := strings.Cut(a, "=")
		for _, x := range strings.Split(v, ",") {
			if k == "tenant" {
				st.w.tenant = func(MsgID) string { return v }
				continue
			}
			if k == "flags" {
				flags |= map[string]Flags{"null": FlagNullSender, "verp": FlagSingleRcpt, "trace": FlagTrace}[x]
				continue
			}
			x, count, _ := strings.Cut(x, "*")
			transport, dest, _ := strings.Cut(x, ":")
			n := 1
			if count != "" {
				n = num(st.t, count)
			}
			for range n {
				r := rcpt(transport, dest)
				r.Site = dest
				rcpts = append(rcpts, r)
			}
		}
	}
	st.w.arrive(MsgID(num(st.t, args[0])), flags, rcpts...)
}

// entry finds a busy entry by its count, as it is printed.
func (st *story) entry(name string) EntryID {
	n := uint64(num(st.t, strings.TrimPrefix(name, "e")))
	for id := range st.w.busy {
		if uint64(id)>>entryBits == n {
			return id
		}
	}
	st.t.Fatalf("%s is not busy", name)
	return 0
}

func (st *story) done(args []string) {
	o, hungry := sent, false
	st.w.asked = nil
	for _, a := range args[1:] {
		if ask, ok := map[string]adaptive.Ask{"fewer": adaptive.Fewer, "slower": adaptive.Slower, "later": adaptive.Later}[a]; ok {
			st.w.asked = func(r *Result) { r.Ask, r.Said = ask, "421 "+a }
			continue
		}
		switch a {
		case "bounced":
			o = bounced
		case "deferred":
			o = deferred
		case "unreachable":
			o = unreachable
		case "enough":
			o = enough
		case "over":
			o = over
		case "hungry":
			hungry = true
		}
	}
	if args[0] != "all" {
		st.w.done(st.entry(args[0]), o, hungry)
		return
	}
	for _, id := range slices.Clone(st.w.order) {
		st.w.done(id, o, hungry)
	}
}

// serve ends deliveries, oldest first, and prints the messages in the order
// in which the deliveries had been handed out.
func (st *story) serve(args []string) {
	n := -1
	if len(args) > 0 {
		n = num(st.t, args[0])
	}
	st.say = false
	for ; n != 0 && len(st.w.order) > 0; n-- {
		fmt.Fprintf(&st.out, "%d", st.w.busy[st.w.order[0]].ID)
		st.w.done(st.w.order[0], sent, false)
	}
	st.out.WriteByte('\n')
	st.say = true
}

// reply answers a load or a notice that waits for the test.
func (st *story) reply(verb string, args []string) {
	id := MsgID(num(st.t, args[0]))
	list := &st.w.loads
	if verb == "answer" {
		list = &st.w.asks
	}
	for i, e := range *list {
		if e.ID == id {
			*list = slices.Delete(*list, i, i+1)
			if verb == "load" {
				st.w.step(st.w.load(e))
			} else {
				st.w.step(st.w.answer(e, args[1] == "yes"))
			}
			return
		}
	}
	st.t.Fatalf("%s %d: nobody asked", verb, id)
}

func (st *story) clock(at time.Time) string { return "+" + at.Sub(epoch).String() }

// effect prints one effect.
func (st *story) effect(e Effect) {
	if !st.say {
		return
	}
	o := &st.out
	switch e.Kind {
	case EffectLoad:
		fmt.Fprintf(o, "load %d from %d max %d", e.ID, e.From, e.Max)
	case EffectDeliver:
		fmt.Fprintf(o, "deliver e%d: %d %v to %s:%s", e.Entry>>entryBits, e.ID, e.Rcpts, e.Transport, e.Nexthop)
		if e.Reuse {
			fmt.Fprintf(o, " session of a%d", e.Agent)
		} else {
			fmt.Fprintf(o, " by a%d", e.Agent)
		}
		if e.Source != "" {
			fmt.Fprintf(o, " from %s", e.Source)
		}
		if e.Most > 0 {
			fmt.Fprintf(o, " most %d", e.Most)
		}
		o.WriteString([]string{"", " cache=load", " cache=store", " cache=load,store"}[e.Cache])
	case EffectDismiss:
		fmt.Fprintf(o, "dismiss a%d", e.Agent)
	case EffectDeferRcpts:
		fmt.Fprintf(o, "defer recipients %d %v: %s %s", e.ID, e.Rcpts, e.Status, e.Reason)
	case EffectNotify:
		fmt.Fprintf(o, "notify %d %s", e.ID, []string{"", "failure", "delay", "expired", "trace"}[e.Notice])
	case EffectDefer:
		fmt.Fprintf(o, "defer %d until %s, attempts %d", e.ID, st.clock(e.Next), e.Attempts)
	case EffectRelease:
		fmt.Fprintf(o, "release %d", e.ID)
	case EffectFetch:
		fmt.Fprintf(o, "fetch %d behind %s %d", e.Fetch.Max, st.clock(e.Fetch.After.Next), e.Fetch.After.ID)
		if e.Fetch.After.ID == 0 {
			o.Truncate(bytes.LastIndexByte(o.Bytes(), 'b'))
			o.WriteString("from the beginning")
		}
	case EffectNote:
		st.note(e.Note)
	default:
		fmt.Fprintf(o, "%s %d", map[EffectKind]string{EffectFinish: "finish", EffectHold: "hold", EffectRemove: "remove",
			EffectRequeue: "requeue", EffectCorrupt: "corrupt", EffectExpire: "expire",
			EffectLeave: "leave", EffectForget: "forget", EffectRecall: "recall", EffectPass: "pass"}[e.Kind], e.ID)
	}
	o.WriteByte('\n')
}

func (st *story) note(n *Note) {
	o := &st.out
	switch n.Kind {
	case NoteExpired:
		fmt.Fprintf(o, "note %d expired", n.ID)
	case NoteForceExpired:
		fmt.Fprintf(o, "note %d force-expired", n.ID)
	case NoteClog:
		fmt.Fprintf(o, "note %s/%s uses %d of %d", n.Transport, n.Queue, n.Count, n.Total)
	case NoteFeedback:
		fmt.Fprintf(o, "note %s window %d success %.3g failure %.3g cohorts %.3g", n.Queue, n.Window, n.Success, n.Failure, n.FailCohorts)
	case NoteDead:
		fmt.Fprintf(o, "note %s/%s dead until %s: %s %s", n.Transport, n.Queue, st.clock(n.Until), n.Status, n.Reason)
	case NoteAlive:
		fmt.Fprintf(o, "note %s/%s alive, %d wait", n.Transport, n.Queue, n.Count)
	case NoteTransportDown:
		fmt.Fprintf(o, "note %s down until %s: %s %s", n.Transport, st.clock(n.Until), n.Status, n.Reason)
	case NoteBadCount:
		fmt.Fprintf(o, "note %d count %d", n.ID, n.Count)
	}
}

func (st *story) state() {
	s := st.w.s
	stats := s.Stats()
	fmt.Fprintf(&st.out, "incoming %d active %d deferred %d hold %d rcpts %d busy %d\n", stats.Incoming, stats.Active, stats.Deferred, stats.Hold, stats.Rcpts, stats.Busy)
	for _, t := range s.transports {
		if t.first == nil && t.others == nil {
			continue
		}
		fmt.Fprintf(&st.out, "%s pool %d:", t.name, t.rcptUnused)
		for l := range t.lanes {
			if t.others != nil {
				fmt.Fprintf(&st.out, " %s (weight %d):", s.tenants[l.tenant].name, l.weight)
			}
			for j := l.first; j != nil; j = j.nxt {
				fmt.Fprintf(&st.out, " %d(%d/%d", j.msg.id, j.selected, j.read)
				if j.level > 0 || j.firstChild != nil || j.slotsAvail != j.selected {
					fmt.Fprintf(&st.out, " level %d slots %d", j.level, j.slotsAvail)
				}
				st.out.WriteByte(')')
			}
		}
		st.out.WriteByte('\n')
	}
}

func (st *story) reason(r Reason) string {
	names := []string{"none", "delivery", "window", "process", "job", "preempted", "rate", "transport rate", "read", "active", "retry", "site", "hold", "notice", "command", "pause", "shared", "beyond", "tenant", "node"}
	text := fmt.Sprintf("%d rcpts: %s", r.Count, names[r.Wait])
	if r.Queue != "" {
		text += fmt.Sprintf(" at %s/%s", r.Transport, r.Queue)
	}
	if !r.Since.IsZero() {
		text += " since " + st.clock(r.Since)
	}
	if !r.Until.IsZero() {
		text += " until " + st.clock(r.Until)
	}
	if r.Limit > 0 {
		text += fmt.Sprintf(" limit %d", r.Limit)
	}
	if r.Gate != "" {
		text += " of " + r.Gate
	}
	if r.By != 0 {
		text += fmt.Sprintf(" by %d", r.By)
	}
	if r.Text != "" {
		text += fmt.Sprintf(" (%s %s)", r.Status, r.Text)
	}
	return text
}
