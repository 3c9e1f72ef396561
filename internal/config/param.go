package config

import (
	"strings"
	"sync"
)

// A Type says how the text of a parameter is read.
type Type uint8

// The types of parameters. Every parameter can be read as a string; the
// other accessors insist on their type (and Int and Bytes take each other's).
const (
	String   Type = iota // text, after $name expansion
	Int                  // decimal integer
	Bytes                // a size: decimal integer with an optional k, m or g (powers of 1024)
	Bool                 // yes or no
	Duration             // decimal integer with an optional unit: s m h d w (or ms)
	List                 // items separated by comma or white space; { } groups stay whole
	Raw                  // text that the service that uses it expands itself
	Enum                 // one word of Param.Values
)

var typeNames = [...]string{"string", "int", "bytes", "bool", "duration", "list", "raw", "enum"}

// String returns the type's name as it is used in messages.
func (t Type) String() string { return typeNames[t] }

// Origin says where a parameter comes from.
type Origin uint8

// The origins of parameters.
const (
	Postfix Origin = iota // Postfix 3.7
	Newer                 // a later Postfix
	OldName               // a name that Postfix still honours but no longer lists
	Own                   // Posthaste's
)

// A Param declares one parameter of main.cf.
type Param struct {
	Name    string
	Type    Type
	Default string // may hold $name expressions; empty for a computed default
	Unit    byte   // Duration: unit of a number without one; 0 means s
	Values  string // Enum: the words, separated by |
	Min     int64  // Int, Bytes; Duration in seconds
	Max     int64  // the same; 0 means no upper bound
	Tier    int    // 1 everybody uses it, 2 many do, 3 few do
	Origin  Origin
	Doc     string

	Subsystem string // filled in from the table it stands in
}

// A Family is a set of parameters with one suffix: TRANSPORT_suffix for every
// transport of master.cf, with a default for transports that set none.
type Family struct {
	Suffix   string
	Fallback string // the parameter that holds the default
	Type     Type
	Min, Max int64
	Doc      string
}

// Families are the parameters that exist once for each transport.
func Families() []Family {
	return []Family{
		{"delivery_slot_cost", "default_delivery_slot_cost", Int, 0, 0, "slot cost"},
		{"delivery_slot_discount", "default_delivery_slot_discount", Int, 0, 100, "slot discount"},
		{"delivery_slot_loan", "default_delivery_slot_loan", Int, 0, 0, "slot loan"},
		{"destination_adaptive", "default_destination_adaptive", Bool, 0, 0, "window and pace follow what a destination answers"},
		{"destination_adaptive_delay_limit", "default_destination_adaptive_delay_limit", Duration, 1, 0, "the longest time between two deliveries that is learnt"},
		{"destination_adaptive_floor", "default_destination_adaptive_floor", Int, 1, 0, "the smallest window that is learnt"},
		{"destination_concurrency_failed_cohort_limit", "default_destination_concurrency_failed_cohort_limit", Int, 0, 0, "failed cohort limit"},
		{"destination_concurrency_limit", "default_destination_concurrency_limit", Int, 0, 0, "parallel deliveries per destination"},
		{"destination_concurrency_negative_feedback", "default_destination_concurrency_negative_feedback", String, 0, 0, "negative feedback"},
		{"destination_concurrency_positive_feedback", "default_destination_concurrency_positive_feedback", String, 0, 0, "positive feedback"},
		{"destination_rate_delay", "default_destination_rate_delay", Duration, 0, 0, "pause between deliveries per destination"},
		{"destination_recipient_limit", "default_destination_recipient_limit", Int, 0, 0, "recipients per delivery"},
		{"extra_recipient_limit", "default_extra_recipient_limit", Int, 0, 0, "extra in-memory recipients"},
		{"idle_agent_time", "default_idle_agent_time", Duration, 0, 0, "how long an agent keeps an idle session"},
		{"initial_destination_concurrency", "initial_destination_concurrency", Int, 1, 0, "initial window"},
		{"minimum_delivery_slots", "default_minimum_delivery_slots", Int, 0, 0, "minimum slots"},
		{"recipient_limit", "default_recipient_limit", Int, 0, 0, "in-memory recipients"},
		{"recipient_refill_delay", "default_recipient_refill_delay", Duration, 1, 0, "refill delay"},
		{"recipient_refill_limit", "default_recipient_refill_limit", Int, 1, 0, "refill batch"},
		{"scheduler", "default_scheduler", Enum, 0, 0, "order of deliveries"},
		{"slow_delivery_limit", "default_slow_delivery_limit", Int, 0, 0, "slow deliveries that take no place of the process limit"},
		{"slow_delivery_time", "default_slow_delivery_time", Duration, 1, 0, "when a delivery is slow"},
		{"thread_agents", "default_thread_agents", Int, 0, 0, "agents per destination with thread scheduling"},
		{"thread_order", "default_thread_order", Enum, 0, 0, "order of the mail for one destination with thread scheduling"},
		{"thread_quantum", "default_thread_quantum", Int, 0, 0, "deliveries in one turn of a destination with thread scheduling"},
		{"time_limit", "command_time_limit", Duration, 1, 0, "command time limit"},
		{"transport_rate_delay", "default_transport_rate_delay", Duration, 0, 0, "pause between all deliveries"},
	}
}

// standardTransports have their family parameters listed as ordinary ones.
// The time limit is for transports that run commands, and they have none.
var standardTransports = [...]string{"error", "lmtp", "local", "relay", "retry", "smtp", "virtual"}

// familyDefaults are the members that differ from their family's default.
var familyDefaults = map[string]string{
	"local_destination_concurrency_limit": "2",
	"local_destination_recipient_limit":   "1",
}

type registry struct {
	params   []Param // sorted as the tables are
	index    map[string]int
	families map[string]Family
}

// declared is the registry of every parameter, built on first use.
var declared = sync.OnceValue(func() *registry {
	tables := []struct {
		subsystem string
		params    []Param
	}{
		{"global", globalParams}, {"log", logParams}, {"master", masterParams}, {"anvil", anvilParams},
		{"scache", scacheParams}, {"qmqpd", qmqpdParams}, {"flush", flushParams}, {"postmulti", postmultiParams},
		{"sendmail", sendmailParams}, {"smtpd", smtpdParams}, {"smtp", smtpParams}, {"lmtp", lmtpParams},
		{"cleanup", cleanupParams}, {"trivial-rewrite", trivialRewriteParams}, {"milter", milterParams},
		{"spool", spoolParams}, {"local", localParams}, {"virtual", virtualParams}, {"qmgr", qmgrParams},
		{"bounce", bounceParams}, {"verify", verifyParams}, {"tls", tlsParams},
		{"postscreen", postscreenParams}, {"tlsproxy", tlsproxyParams},
	}
	r := &registry{
		params:   make([]Param, 0, 1100),
		index:    make(map[string]int, 1200),
		families: make(map[string]Family, 32),
	}
	add := func(p Param) {
		if _, dup := r.index[p.Name]; dup {
			panic("config: parameter " + p.Name + " is declared twice")
		}
		r.index[p.Name] = len(r.params)
		r.params = append(r.params, p)
	}
	for _, t := range tables {
		for _, p := range t.params {
			p.Subsystem = t.subsystem
			add(p)
		}
	}
	for _, f := range Families() {
		r.families[f.Suffix] = f
		for _, t := range standardTransports {
			if f.Suffix != "time_limit" {
				add(f.member(t, r.params[r.index[f.Fallback]]))
			}
		}
	}
	return r
})

// member returns the declaration of the family's parameter for one transport.
// fallback is the declaration of f.Fallback.
func (f Family) member(transport string, fallback Param) Param {
	p := Param{
		Name:      transport + "_" + f.Suffix,
		Type:      f.Type,
		Default:   "$" + f.Fallback,
		Values:    fallback.Values,
		Min:       f.Min,
		Max:       f.Max,
		Tier:      fallback.Tier,
		Origin:    fallback.Origin,
		Subsystem: fallback.Subsystem,
		Doc:       "Transport " + transport + ": " + f.Doc,
	}
	if d, ok := familyDefaults[p.Name]; ok {
		p.Default = d
	}
	return p
}

// Lookup returns the declaration of a parameter, including a member of a
// family for a transport that is not a standard one (slow_destination_rate_delay).
func Lookup(name string) (Param, bool) {
	r := declared()
	if i, ok := r.index[name]; ok {
		return r.params[i], true
	}
	return r.familyMember(name)
}

// familyMember declares name if it is TRANSPORT_suffix of a family. The
// longest suffix wins: x_destination_recipient_limit is not x_destination's
// recipient_limit.
func (r *registry) familyMember(name string) (Param, bool) {
	for i := 1; i < len(name); i++ {
		if name[i] != '_' {
			continue
		}
		if f, ok := r.families[name[i+1:]]; ok {
			return f.member(name[:i], r.params[r.index[f.Fallback]]), true
		}
	}
	return Param{}, false
}

// All returns the declaration of every parameter, in no useful order. The
// slice is the caller's.
func All() []Param { return append([]Param(nil), declared().params...) }

// values returns the words of an Enum.
func (p *Param) values() []string { return strings.Split(p.Values, "|") }
