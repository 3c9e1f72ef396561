package simulate

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/feedback"
	"posthaste/internal/mail"
	"posthaste/internal/rate"
	"posthaste/internal/simnet"
	"posthaste/qmgr/sched"
)

// workload is what Run reads.
type workload struct {
	title      string
	cfg        sched.Config
	transports map[mail.Transport]*agentKind
	servers    map[string]serverKind
	sends      []send
	tenants    map[string]sched.TenantTerms
	end        time.Duration // 0: the end of the first pass
}

// agentKind is a transport's settings, the scheduler's and the agents' own.
type agentKind struct {
	sched.TransportConfig
	cache bool
	reuse time.Duration
}

// send is a stream of messages.
type send struct {
	class  string
	at     time.Duration
	every  time.Duration
	count  int
	rcpts  int
	spread int
	to     []target
	// The sources of its pool, and whose mail it is; empty: there are none, and nobody's.
	sources []source
	tenant  string
}

// source is one of a pool.
type source struct {
	name   string
	weight int
	day    int64 // recipients of each destination in a day; 0: any number
}

type target struct {
	transport mail.Transport
	server    string
}

// serverKind describes a server.
type serverKind struct {
	processes    int
	queue        int
	setup        time.Duration
	perRecipient time.Duration
	jitter       float64
	full         string
	retry        []time.Duration
	timeout      time.Duration
	greeting     time.Duration
	clientLimit  int
	members, bad int
	inTurn       bool
	silent       bool            // it answers nothing
	provider     *simnet.Profile // it answers as this one does; nil: as the rest says
	limits       sched.Limits    // of destinations at it
	common       [2]sched.Share  // of its provider and of its site, with others of these
	deferShare   float64
	bounceShare  float64
}

const maxLine = 1 << 16

// read parses a workload. Errors say which line and what was expected.
func read(r io.Reader) (*workload, error) {
	w := &workload{cfg: sched.DefaultConfig(), transports: map[mail.Transport]*agentKind{}, servers: map[string]serverKind{}, tenants: map[string]sched.TenantTerms{}}
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	for n := 1; sc.Scan(); n++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := w.statement(words[0], words[1:], line); err != nil {
			return nil, fmt.Errorf("workload line %d: %w", n, err)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	for _, s := range w.sends {
		for _, t := range s.to {
			if _, ok := w.servers[t.server]; !ok {
				return nil, fmt.Errorf("workload: mail is sent to server %q, which is not described", t.server)
			}
		}
	}
	if len(w.sends) == 0 {
		return nil, fmt.Errorf("workload: no mail: there is no send statement")
	}
	return w, nil
}

func (w *workload) statement(verb string, args []string, line string) error {
	switch verb {
	case "title":
		w.title = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "title"))
		return nil
	case "seed":
		if len(args) != 1 {
			return fmt.Errorf("seed takes a number")
		}
		n, err := strconv.ParseUint(args[0], 10, 64)
		w.cfg.Seed = n
		return err
	case "qmgr":
		return w.settings(args, w.qmgrSetting)
	case "transport":
		if len(args) == 0 {
			return fmt.Errorf("transport takes a name and settings")
		}
		k := &agentKind{TransportConfig: w.cfg.DefaultTransports, reuse: 300 * time.Second}
		w.transports[mail.Transport(args[0])] = k
		return w.settings(args[1:], k.setting)
	case "server":
		if len(args) == 0 {
			return fmt.Errorf("server takes a name and settings")
		}
		k := serverKind{full: "syn", timeout: 30 * time.Second, greeting: 300 * time.Second}
		err := w.settings(args[1:], k.setting)
		w.servers[args[0]] = k
		return err
	case "tenant":
		return w.setTenant(args)
	case "send":
		s := send{class: "mail", count: 1, rcpts: 1, spread: 1}
		err := w.settings(args, s.setting)
		if err == nil && len(s.to) == 0 {
			err = fmt.Errorf("send: to=TRANSPORT:SERVER is missing")
		}
		w.sends = append(w.sends, s)
		return err
	case "end":
		if len(args) == 1 && args[0] == "first-pass" {
			w.end = 0
			return nil
		}
		return w.settings(args, func(k, v string) error {
			if k != "at" {
				return errUnknown
			}
			return setDuration(&w.end, v)
		})
	}
	return fmt.Errorf("%q is not a statement: title, seed, qmgr, transport, server, tenant, send, end", verb)
}

var errUnknown = fmt.Errorf("there is no such setting")

// settings applies name=value words.
func (w *workload) settings(args []string, set func(k, v string) error) error {
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if !ok {
			return fmt.Errorf("%q is not name=value", a)
		}
		if err := set(k, v); err != nil {
			return fmt.Errorf("%s=%s: %w", k, v, err)
		}
	}
	return nil
}

func setInt(p *int, v string) error {
	n, err := strconv.Atoi(v)
	if err == nil && (n < 0 || n > 1e9) {
		err = fmt.Errorf("not within 0 and 1000000000")
	}
	*p = n
	return err
}

// maxDuration bounds times, so that sums of them cannot overflow.
const maxDuration = 10 * 365 * 24 * time.Hour

func setDuration(p *time.Duration, v string) error {
	if n, err := strconv.Atoi(v); err == nil {
		v = strconv.Itoa(n) + "s"
	}
	d, err := time.ParseDuration(v)
	if err == nil && (d < 0 || d > maxDuration) {
		err = fmt.Errorf("not within 0 and ten years")
	}
	*p = d
	return err
}

func setShare(p *float64, v string) error {
	f, err := strconv.ParseFloat(strings.TrimSuffix(v, "%"), 64)
	if strings.HasSuffix(v, "%") {
		f /= 100
	}
	if err == nil && !(f >= 0 && f <= 1) {
		err = fmt.Errorf("not a share from 0 to 100%%")
	}
	*p = f
	return err
}

func (w *workload) qmgrSetting(k, v string) error {
	c := &w.cfg
	switch k {
	case "qmgr_message_active_limit":
		return setInt(&c.ActiveLimit, v)
	case "qmgr_message_recipient_limit":
		return setInt(&c.RecipientLimit, v)
	case "qmgr_message_recipient_minimum":
		return setInt(&c.RecipientMinimum, v)
	case "minimal_backoff_time":
		return setDuration(&c.MinimalBackoff, v)
	case "maximal_backoff_time":
		return setDuration(&c.MaximalBackoff, v)
	case "queue_run_delay":
		return setDuration(&c.QueueRunDelay, v)
	case "maximal_queue_lifetime":
		return setDuration(&c.MaximalLifetime, v)
	case "transport_retry_time":
		return setDuration(&c.TransportRetry, v)
	}
	return errUnknown
}

func setFeedback(p *feedback.Feedback, v string) (err error) {
	*p, err = feedback.Parse(v)
	return err
}

// numbers are the settings of a transport that are whole numbers, and spans those that are times.
func (k *agentKind) numbers() (numbers map[string]*int, spans map[string]*time.Duration) {
	c := &k.TransportConfig
	numbers = map[string]*int{
		"process_limit":                               &c.ProcessLimit,
		"destination_concurrency_limit":               &c.ConcurrencyLimit,
		"initial_destination_concurrency":             &c.InitialConcurrency,
		"destination_concurrency_failed_cohort_limit": &c.FailedCohortLimit,
		"destination_recipient_limit":                 &c.BatchLimit,
		"delivery_slot_cost":                          &c.SlotCost,
		"delivery_slot_loan":                          &c.SlotLoan,
		"delivery_slot_discount":                      &c.SlotDiscount,
		"minimum_delivery_slots":                      &c.MinimumSlots,
		"recipient_limit":                             &c.RecipientLimit,
		"extra_recipient_limit":                       &c.ExtraRecipientLimit,
		"recipient_refill_limit":                      &c.RefillLimit,
		"thread_agents":                               &c.AgentsPerThread,
		"thread_quantum":                              &c.ThreadQuantum,
		"slow_delivery_limit":                         &c.SlowLimit,
		"destination_adaptive_floor":                  &c.AdaptiveFloor,
	}
	spans = map[string]*time.Duration{
		"destination_rate_delay":           &c.DestinationRateDelay,
		"transport_rate_delay":             &c.TransportRateDelay,
		"recipient_refill_delay":           &c.RefillDelay,
		"idle_agent_time":                  &c.IdleMax,
		"slow_delivery_time":               &c.SlowTime,
		"destination_adaptive_delay_limit": &c.AdaptiveDelay,
		"reuse":                            &k.reuse,
	}
	return numbers, spans
}

func (k *agentKind) setting(name, v string) error {
	c := &k.TransportConfig
	ints, times := k.numbers()
	switch {
	case ints[name] != nil:
		return setInt(ints[name], v)
	case times[name] != nil:
		return setDuration(times[name], v)
	}
	ok := true
	switch name {
	case "destination_concurrency_positive_feedback":
		return setFeedback(&c.PositiveFeedback, v)
	case "destination_concurrency_negative_feedback":
		return setFeedback(&c.NegativeFeedback, v)
	case "feedback":
		c.PlainFeedback = v == "plain"
		ok = c.PlainFeedback || v == "rounded"
	case "destination_adaptive":
		c.Adaptive = v == "yes"
		ok = c.Adaptive || v == "no"
	case "cache":
		k.cache = v == "yes"
		ok = k.cache || v == "no"
	case "scheduler":
		c.Mode, ok = map[string]sched.Mode{"preemptive": sched.Preemptive, "fifo": sched.FIFO, "thread": sched.Thread}[v]
	case "thread_order":
		c.Order, ok = map[string]sched.Order{"age": sched.Age, "random": sched.Random}[v]
	default:
		return errUnknown
	}
	if !ok {
		return fmt.Errorf("there is no such choice")
	}
	return nil
}

func (k *serverKind) setting(name, v string) error {
	switch name {
	case "processes":
		return setInt(&k.processes, v)
	case "queue":
		return setInt(&k.queue, v)
	case "client_limit":
		return setInt(&k.clientLimit, v)
	case "members":
		return setInt(&k.members, v)
	case "bad":
		return setInt(&k.bad, v)
	case "setup":
		return setDuration(&k.setup, v)
	case "per_recipient":
		return setDuration(&k.perRecipient, v)
	case "greeting":
		return setDuration(&k.greeting, v)
	case "timeout":
		return setDuration(&k.timeout, v)
	case "jitter":
		return setShare(&k.jitter, v)
	case "defer":
		return setShare(&k.deferShare, v)
	case "bounce":
		return setShare(&k.bounceShare, v)
	case "retry":
		for _, x := range strings.Split(v, ",") {
			var d time.Duration
			if err := setDuration(&d, x); err != nil {
				return err
			}
			k.retry = append(k.retry, d)
		}
		return nil
	case "silent":
		if v != "yes" && v != "no" {
			return fmt.Errorf("silent=%s: yes or no", v)
		}
		k.silent = v == "yes"
		return nil
	case "provider":
		return k.setProvider(v)
	case "balance":
		if v != "random" && v != "turns" {
			return fmt.Errorf("random or turns")
		}
		k.inTurn = v == "turns"
		return nil
	case "full":
		if v != "syn" && v != "greeting" {
			return fmt.Errorf("syn or greeting")
		}
		k.full = v
		return nil
	}
	return k.setLimits(name, v)
}

// setShared reads the name of limits that servers have in common, and the limits.
func setShared(sh *sched.Share, text string) error {
	name, limits, ok := strings.Cut(text, ":")
	if sh.Name = name; !ok || name == "" {
		return fmt.Errorf("%q is not NAME:LIMITS", text)
	}
	return parseLimits(&sh.Limits, limits)
}

// parseLimits reads limits as tables have them.
func parseLimits(to *sched.Limits, text string) error {
	l, err := rate.ParseLimits(text)
	if err != nil {
		return err
	}
	*to = sched.Limits{Concurrency: l.Concurrency, Connections: l.Connections, Messages: l.Messages, Recipients: l.Recipients}
	return nil
}

// setProvider has a server answer as a provider does.
func (k *serverKind) setProvider(name string) error {
	all := simnet.Profiles()
	p, ok := all[name]
	if !ok {
		return fmt.Errorf("there is no such provider: %s", strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	}
	k.provider, k.silent = &p, p.Kind == simnet.Dead
	return nil
}

func (s *send) setting(name, v string) error {
	switch name {
	case "class":
		s.class = v
		return nil
	case "at":
		return setDuration(&s.at, v)
	case "every":
		return setDuration(&s.every, v)
	case "count":
		return setInt(&s.count, v)
	case "rcpts":
		return setInt(&s.rcpts, v)
	case "spread":
		if err := setInt(&s.spread, v); err != nil || s.spread < 1 {
			return fmt.Errorf("a number of destinations, at least 1")
		}
		return nil
	case "tenant":
		s.tenant = v
		return nil
	case "sources":
		return s.setSources(v)
	case "to":
		for _, x := range strings.Split(v, ",") {
			transport, server, ok := strings.Cut(x, ":")
			if !ok || transport == "" || server == "" {
				return fmt.Errorf("%q is not TRANSPORT:SERVER", x)
			}
			s.to = append(s.to, target{mail.Transport(transport), server})
		}
		return nil
	}
	return errUnknown
}

// setTenant reads what holds for a tenant.
func (w *workload) setTenant(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("tenant takes a name and settings")
	}
	var t sched.TenantTerms
	err := w.settings(args[1:], func(k, v string) error {
		switch k {
		case "limits":
			return parseLimits(&t.Limits, v)
		case "weight":
			return setInt(&t.Weight, v)
		}
		return errUnknown
	})
	w.tenants[args[0]] = t
	return err
}

// setLimits reads the limits of a server's destinations: their own, and those that they have in common with others.
func (k *serverKind) setLimits(name, v string) error {
	switch name {
	case "limits":
		return parseLimits(&k.limits, v)
	case "provider_limits":
		return setShared(&k.common[0], v)
	case "site_limits":
		return setShared(&k.common[1], v)
	}
	return errUnknown
}

// setSources reads a pool: NAME*WEIGHT, with /NUMBER behind it for one that takes so many recipients in a day.
func (s *send) setSources(text string) error {
	for _, x := range strings.Split(text, ",") {
		name, rest, ok := strings.Cut(x, "*")
		weight, day, warms := strings.Cut(rest, "/")
		src := source{name: name}
		err := setInt(&src.weight, weight)
		if err == nil && warms {
			src.day, err = strconv.ParseInt(day, 10, 32)
		}
		if err != nil || !ok || name == "" {
			return fmt.Errorf("%q is not NAME*WEIGHT or NAME*WEIGHT/NUMBER", x)
		}
		s.sources = append(s.sources, src)
	}
	return nil
}
