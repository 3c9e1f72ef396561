package qmgr

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/feedback"
	"posthaste/internal/mail"
	"posthaste/internal/table"
	"posthaste/qmgr/sched"
)

// settingsOf reads main.cf's text, and master.cf's services. Warnings of a
// transport's parameters come when that is asked for.
func settingsOf(t *testing.T, main string, services ...config.Service) (s Settings, warnings *[]string) {
	t.Helper()
	cfg, err := config.LoadString(main)
	if err != nil {
		t.Fatalf("%q: %v", main, err)
	}
	warnings = new([]string)
	s, err = Load(cfg, services, table.Options{}, func(format string, args ...any) { *warnings = append(*warnings, fmt.Sprintf(format, args...)) })
	if err != nil {
		t.Fatalf("%q: %v", main, err)
	}
	return s, warnings
}

// of is one transport's part of the settings.
func of(s *Settings, transport string) sched.TransportConfig {
	return s.Sched.Transport(mail.Transport(transport), s.Sched.DefaultTransports)
}

// common says for each field of sched.Config by what text of main.cf it is set, and
// to what. The defaults are Postfix's.
var common = []struct {
	name  string
	field string
	value any            // the default
	forms map[string]any // what main.cf says after "NAME = ", and what that is
	bad   []string       // what is refused
}{
	{name: "qmgr_message_active_limit", field: "ActiveLimit", value: 20000, forms: map[string]any{"1": 1, "500": 500}, bad: []string{"0", "-1", "1k", "x", ""}},
	{name: "qmgr_message_recipient_limit", field: "RecipientLimit", value: 20000, forms: map[string]any{"30000": 30000, "7": 20000}, bad: []string{"0", "2e4"}},
	{name: "qmgr_message_recipient_minimum", field: "RecipientMinimum", value: 10, forms: map[string]any{"1": 1, "77": 77}, bad: []string{"0"}},
	{name: "minimal_backoff_time", field: "MinimalBackoff", value: 300 * time.Second,
		forms: map[string]any{"10": 10 * time.Second, "7m": 7 * time.Minute, "2h": 2 * time.Hour, "1S": time.Second}, bad: []string{"0", "0s", "-5", "1y", "1.5m", "s"}},
	{name: "maximal_backoff_time", field: "MaximalBackoff", value: 4000 * time.Second, forms: map[string]any{"1d": 24 * time.Hour, "5000": 5000 * time.Second}, bad: []string{"0"}},
	{name: "queue_run_delay", field: "QueueRunDelay", value: 300 * time.Second, forms: map[string]any{"9m": 9 * time.Minute}, bad: []string{"0"}},
	{name: "maximal_queue_lifetime", field: "MaximalLifetime", value: 120 * time.Hour,
		forms: map[string]any{"7": 168 * time.Hour, "1w": 168 * time.Hour, "3600s": time.Hour, "0": time.Duration(0)}, bad: []string{"8640001s", "101d"}},
	{name: "bounce_queue_lifetime", field: "BounceLifetime", value: 120 * time.Hour,
		forms: map[string]any{"2": 48 * time.Hour, "1h": time.Hour, "0": time.Duration(0), "90d": 120 * time.Hour}, bad: []string{"-1", "8640001s"}},
	{name: "delay_warning_time", field: "DelayWarning", value: time.Duration(0), forms: map[string]any{"4": 4 * time.Hour, "30m": 30 * time.Minute}, bad: []string{"-4"}},
	{name: "transport_retry_time", field: "TransportRetry", value: 60 * time.Second, forms: map[string]any{"11": 11 * time.Second}, bad: []string{"0"}},
	{name: "qmgr_clog_warn_time", field: "ClogWarn", value: 300 * time.Second, forms: map[string]any{"0": time.Duration(0), "1h": time.Hour}, bad: []string{"-1"}},
	{name: "shared_limit_active_limit", field: "SharedActiveLimit", value: 1000, forms: map[string]any{"0": 0, "20": 20}, bad: []string{"-1", "many"}},
	{name: "destination_concurrency_feedback_debug", field: "FeedbackDebug", value: false, forms: map[string]any{"yes": true, "no": false}, bad: []string{"1", "maybe"}},
	{name: "defer_transports", field: "DeferTransports", value: []string(nil), forms: map[string]any{"uucp": []string{"uucp"}, "uucp, fax hold": []string{"uucp", "fax", "hold"}}},
}

// TestCommonSettings: every form of each parameter of the scheduler reaches its
// field, and nothing but its field.
func TestCommonSettings(t *testing.T) {
	t.Parallel()
	base, _ := settingsOf(t, "")
	fields := reflect.TypeFor[sched.Config]()
	untold := map[string]bool{"DefaultTransports": true, "Transport": true, "Seed": true, "DeferredLimit": true, "TenantWeight": true} // TestTenantWeights has that
	for i := range common {
		c := &common[i]
		untold[c.field] = true
		if got := reflect.ValueOf(base.Sched).FieldByName(c.field).Interface(); !reflect.DeepEqual(got, c.value) {
			t.Errorf("default of %s: %v, want %v", c.name, got, c.value)
		}
		for text, want := range c.forms {
			main := c.name + " = " + text + "\n"
			s, warnings := settingsOf(t, main)
			if len(*warnings) > 0 {
				t.Errorf("%q: %q", main, *warnings)
			}
			for f := range fields.NumField() {
				name := fields.Field(f).Name
				if name == "Transport" || name == "Seed" {
					continue
				}
				got, expect := reflect.ValueOf(s.Sched).Field(f).Interface(), reflect.ValueOf(base.Sched).Field(f).Interface()
				if name == c.field {
					expect = want
				} else if follows(c.name, name) {
					continue
				}
				if !reflect.DeepEqual(got, expect) {
					t.Errorf("%q: %s is %v, want %v", main, name, got, expect)
				}
			}
		}
		for _, text := range c.bad {
			if _, err := config.LoadString(c.name + " = " + text + "\n"); err == nil {
				t.Errorf("%s = %q was taken", c.name, text)
			}
		}
	}
	for f := range fields.NumField() {
		if name := fields.Field(f).Name; !untold[name] {
			t.Errorf("nothing is known of field %s", name)
		}
	}
}

// follows says whether a field depends on another's parameter: Postfix raises or
// lowers these with a warning, see TestDependentSettings. How much deferred mail is in memory has no parameter
// of its own.
func follows(parameter, field string) bool {
	return parameter == "maximal_queue_lifetime" && field == "BounceLifetime" || parameter == "qmgr_message_active_limit" && field == "DeferredLimit"
}

// TestFlowLimit: there are as many tokens at most as a service may have clients.
func TestFlowLimit(t *testing.T) {
	t.Parallel()
	for main, want := range map[string]int{"": 100, "default_process_limit = 7\n": 7, "qmgr_message_active_limit = 3\n": 100} {
		if s, _ := settingsOf(t, main); s.FlowLimit != want {
			t.Errorf("%q: %d tokens, want %d", main, s.FlowLimit, want)
		}
	}
}

// TestDependentSettings: limits that contradict each other.
func TestDependentSettings(t *testing.T) {
	t.Parallel()
	s, _ := settingsOf(t, "qmgr_message_active_limit = 30000\nqmgr_message_recipient_limit = 100\n")
	if s.Sched.RecipientLimit != 30000 {
		t.Errorf("the limit of recipients is %d with 30000 active messages", s.Sched.RecipientLimit)
	}
	s, _ = settingsOf(t, "maximal_queue_lifetime = 1d\nbounce_queue_lifetime = 3d\n")
	if s.Sched.BounceLifetime != 24*time.Hour {
		t.Errorf("bounces live for %v in a queue where mail lives for a day", s.Sched.BounceLifetime)
	}
	s, _ = settingsOf(t, "maximal_queue_lifetime = 4d\nbounce_queue_lifetime = 2d\n")
	if s.Sched.BounceLifetime != 48*time.Hour || s.Sched.MaximalLifetime != 96*time.Hour {
		t.Errorf("lifetimes are %v and %v", s.Sched.MaximalLifetime, s.Sched.BounceLifetime)
	}
}

// A transportForm says for a field of sched.TransportConfig by which parameters
// it is set.
type transportForm struct {
	suffix   string // of TRANSPORT_suffix
	fallback string // the parameter for all transports
	field    string
	value    any            // the default
	forms    map[string]any // texts, and what they are
	bad      []string
}

var transportForms = []transportForm{
	{"destination_concurrency_limit", "default_destination_concurrency_limit", "ConcurrencyLimit", 20, map[string]any{"0": 0, "33": 33}, []string{"-1", "x"}},
	{"initial_destination_concurrency", "initial_destination_concurrency", "InitialConcurrency", 5, map[string]any{"1": 1, "9": 9}, []string{"0"}},
	{"destination_concurrency_positive_feedback", "default_destination_concurrency_positive_feedback", "PositiveFeedback", feedback.Feedback{Base: 1}, feedbackForms, nil},
	{"destination_concurrency_negative_feedback", "default_destination_concurrency_negative_feedback", "NegativeFeedback", feedback.Feedback{Base: 1}, feedbackForms, nil},
	{"destination_concurrency_failed_cohort_limit", "default_destination_concurrency_failed_cohort_limit", "FailedCohortLimit", 1, map[string]any{"0": 0, "10": 10}, []string{"-1"}},
	{"destination_recipient_limit", "default_destination_recipient_limit", "BatchLimit", 50, map[string]any{"0": 0, "1": 1, "500": 500}, []string{"-1"}},
	{"destination_rate_delay", "default_destination_rate_delay", "DestinationRateDelay", time.Duration(0), map[string]any{"1s": time.Second, "5": 5 * time.Second, "2m": 2 * time.Minute}, []string{"-1s", "1z"}},
	{"transport_rate_delay", "default_transport_rate_delay", "TransportRateDelay", time.Duration(0), map[string]any{"1s": time.Second, "7": 7 * time.Second, "1h": time.Hour}, []string{"-1"}},
	{"delivery_slot_cost", "default_delivery_slot_cost", "SlotCost", 5, map[string]any{"0": 0, "2": 2}, []string{"-1"}},
	{"delivery_slot_loan", "default_delivery_slot_loan", "SlotLoan", 3, map[string]any{"0": 0, "8": 8}, []string{"-1"}},
	{"delivery_slot_discount", "default_delivery_slot_discount", "SlotDiscount", 50, map[string]any{"0": 0, "100": 100}, []string{"-1", "101"}},
	{"minimum_delivery_slots", "default_minimum_delivery_slots", "MinimumSlots", 3, map[string]any{"0": 0, "4": 4}, []string{"-1"}},
	{"recipient_limit", "default_recipient_limit", "RecipientLimit", 20000, map[string]any{"1": 1, "100": 100}, []string{"-1"}},
	{"extra_recipient_limit", "default_extra_recipient_limit", "ExtraRecipientLimit", 1000, map[string]any{"0": 0, "12": 12}, []string{"-1"}},
	{"recipient_refill_limit", "default_recipient_refill_limit", "RefillLimit", 100, map[string]any{"1": 1, "13": 13}, []string{"0"}},
	{"recipient_refill_delay", "default_recipient_refill_delay", "RefillDelay", 5 * time.Second, map[string]any{"1": time.Second, "2m": 2 * time.Minute}, []string{"0"}},
	{"slow_delivery_limit", "default_slow_delivery_limit", "SlowLimit", 0, map[string]any{"1": 1, "1000": 1000}, []string{"-1"}},
	{"slow_delivery_time", "default_slow_delivery_time", "SlowTime", time.Second, map[string]any{"2": 2 * time.Second, "1m": time.Minute}, []string{"0"}},
	{"destination_adaptive", "default_destination_adaptive", "Adaptive", false, map[string]any{"yes": true, "no": false}, []string{"perhaps"}},
	{"destination_adaptive_floor", "default_destination_adaptive_floor", "AdaptiveFloor", 1, map[string]any{"1": 1, "4": 4}, []string{"0"}},
	{"destination_adaptive_delay_limit", "default_destination_adaptive_delay_limit", "AdaptiveDelay", time.Minute, map[string]any{"10s": 10 * time.Second, "5m": 5 * time.Minute}, []string{"0"}},
	{"scheduler", "default_scheduler", "Mode", sched.Preemptive, map[string]any{"fifo": sched.FIFO, "thread": sched.Thread, "preemptive": sched.Preemptive, "Thread": sched.Thread}, []string{"lifo", ""}},
	{"thread_order", "default_thread_order", "Order", sched.Age, map[string]any{"age": sched.Age, "random": sched.Random}, []string{"size"}},
	{"thread_agents", "default_thread_agents", "AgentsPerThread", 1, map[string]any{"0": 0, "3": 3}, []string{"-1"}},
	{"thread_quantum", "default_thread_quantum", "ThreadQuantum", 10, map[string]any{"0": 0, "1": 1, "25": 25}, []string{"-1"}},
	{"idle_agent_time", "default_idle_agent_time", "IdleMax", 5 * time.Second, map[string]any{"0": time.Duration(0), "1m": time.Minute}, []string{"-1"}},
}

// feedbackForms are forms that Postfix takes; internal/feedback has all of them.
var feedbackForms = map[string]any{
	"1": feedback.Feedback{Base: 1}, "0": feedback.Feedback{}, "0.25": feedback.Feedback{Base: 0.25},
	"1/4": feedback.Feedback{Base: 0.25}, "1/8": feedback.Feedback{Base: 0.125}, "1 / 8": feedback.Feedback{Base: 0.125},
	"1/concurrency": feedback.Feedback{Base: 1, Law: feedback.Inverse}, "0.5 / concurrency": feedback.Feedback{Base: 0.5, Law: feedback.Inverse},
	"1/sqrt_concurrency": feedback.Feedback{Base: 1, Law: feedback.Root},
}

// local's own defaults, and Postfix's.
var localDefaults = map[string]any{"ConcurrencyLimit": 2, "BatchLimit": 1}

// TestTransportSettings: each parameter of a transport, in every form, set for
// all transports or for one, reaches its field there, and no other field or
// transport.
func TestTransportSettings(t *testing.T) {
	t.Parallel()
	fields := reflect.TypeFor[sched.TransportConfig]()
	known := []string{"ProcessLimit", "PlainFeedback"} // see the tests that follow; PlainFeedback is not main.cf's
	transports := []string{"smtp", "slow", "local", "retry"}
	base := map[string]sched.TransportConfig{}
	s, _ := settingsOf(t, "")
	for _, name := range transports {
		base[name] = of(&s, name)
	}
	expect := func(main, only string, f *transportForm, want any) {
		s, warnings := settingsOf(t, main)
		for _, name := range transports {
			got, old := reflect.ValueOf(of(&s, name)), reflect.ValueOf(base[name])
			for i := range fields.NumField() {
				field := fields.Field(i).Name
				value := old.Field(i).Interface()
				_, own := localDefaults[field]
				if field == f.field && (only == name || only == "" && !(name == "local" && own)) {
					value = want
				}
				if !reflect.DeepEqual(got.Field(i).Interface(), value) {
					t.Errorf("%q: %s of transport %s is %v, want %v", main, field, name, got.Field(i).Interface(), value)
				}
			}
		}
		if len(*warnings) > 0 {
			t.Errorf("%q: %q", main, *warnings)
		}
	}
	for i := range transportForms {
		f := &transportForms[i]
		known = append(known, f.field)
		for _, name := range transports {
			want := f.value
			if v, ok := localDefaults[f.field]; ok && name == "local" {
				want = v
			}
			if got := reflect.ValueOf(base[name]).FieldByName(f.field).Interface(); got != want {
				t.Errorf("default of %s_%s: %v, want %v", name, f.suffix, got, want)
			}
		}
		for text, want := range f.forms {
			expect(f.fallback+" = "+text+"\n", "", f, want)
			for _, name := range transports {
				expect(name+"_"+f.suffix+" = "+text+"\n", name, f, want)
			}
			expect("slow_"+f.suffix+" = $mine\nmine = "+text+"\n", "slow", f, want)
		}
		for _, text := range f.bad {
			for _, name := range []string{f.fallback, "smtp_" + f.suffix, "slow_" + f.suffix} {
				if _, err := config.LoadString(name + " = " + text + "\n"); err == nil {
					t.Errorf("%s = %q was taken", name, text)
				}
			}
		}
	}
	for i := range fields.NumField() {
		if name := fields.Field(i).Name; !slices.Contains(known, name) {
			t.Errorf("nothing is known of field %s", name)
		}
	}
}

// TestProcessLimit: master.cf says how many deliveries of a transport may be under
// way.
func TestProcessLimit(t *testing.T) {
	t.Parallel()
	s, _ := settingsOf(t, "", config.Service{Name: "smtp", MaxProc: 7}, config.Service{Name: "slow", MaxProc: 0})
	for name, want := range map[string]int{"smtp": 7, "slow": 0, "elsewhere": 100} {
		if got := of(&s, name).ProcessLimit; got != want {
			t.Errorf("process limit of %s: %d, want %d", name, got, want)
		}
	}
}

// TestQueueOnlySetting: the list of destinations is for every transport.
func TestQueueOnlySetting(t *testing.T) {
	t.Parallel()
	s, _ := settingsOf(t, "queue_only_destinations = a.example, [b.example]:26\n")
	var got []string
	for _, d := range s.queueOnly {
		got = append(got, d.String())
	}
	if !slices.Equal(got, []string{"a.example", "[b.example]:26"}) {
		t.Errorf("%q", got)
	}
}

// TestBadFeedback: what cannot be read as feedback is warned of, and 1 is used, as
// Postfix does; the mail system starts.
func TestBadFeedback(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"1/n": 1, "2": 1, "-1": 1, "1/0": 1, "0.5x": 0.5} {
		s, warnings := settingsOf(t, "smtp_destination_concurrency_negative_feedback = "+text+"\n")
		if got := of(&s, "smtp").NegativeFeedback; got != (feedback.Feedback{Base: want}) {
			t.Errorf("%q: %+v, want %g", text, got, want)
		}
		if w := *warnings; len(w) != 1 || !strings.HasPrefix(w[0], fmt.Sprintf("smtp_destination_concurrency_negative_feedback: %q: ", text)) ||
			!strings.HasSuffix(w[0], fmt.Sprintf("; %g is used", want)) {
			t.Errorf("%q: warnings are %q", text, w)
		}
	}
	cfg, err := config.LoadString("default_destination_concurrency_positive_feedback = $one/n\none = 1\n")
	if err != nil {
		t.Fatal(err)
	}
	if w := cfg.Warnings(); len(w) != 1 || !strings.HasPrefix(w[0], `main.cf:1: parameter default_destination_concurrency_positive_feedback: "1/n": expected a number`) ||
		!strings.HasSuffix(w[0], "; 1 is used") {
		t.Errorf("warnings are %q", w)
	}
}
