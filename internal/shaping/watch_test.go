package shaping

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestWatcher(t *testing.T) {
	t.Parallel()
	rules, _ := load(t, `[['default'.automation]]
regex = '^421 4\.7\.'
trigger = {Threshold="3/min"}
action = "Suspend"
duration = "1h"
[['default'.automation]]
regex = ['never', '^(?!.*KumoMTA internal).*RL000010']
action = {SetConfig={name="max_message_rate", value="1/min"}}
duration = "90s"
[['x.test'.automation]]
regex = 'connect to'
match_internal = true
action = "Suspend"
duration = "5s"
`)
	start := time.Unix(1e9, 0)
	var w Watcher
	for _, step := range []struct {
		name string
		w    *Watcher
		at   int // seconds
		r    Report
		want string // lines of rules, with counts and the end in seconds
	}{
		{"none matches", &w, 0, Report{Text: "250 2.0.0 ok"}, ""},
		{"one", &w, 0, Report{Text: "421 4.7.0 slow"}, ""},
		{"two", &w, 30, Report{Text: "421 4.7.0 slow"}, ""},
		{"elsewhere", &w, 31, Report{Unit: "other", Text: "421 4.7.0 slow"}, ""},
		{"from another source", &w, 31, Report{Source: "s", Text: "421 4.7.0 slow"}, ""},
		{"the first is too long ago", &w, 60, Report{Text: "421 4.7.0 slow"}, ""},
		{"three", &w, 61, Report{Text: "421 4.7.0 slow"}, "1 3 3661"},
		{"a further one", &w, 62, Report{Text: "421 4.7.0 slow"}, "1 3 3662"},
		{"later", &w, 130, Report{Text: "421 4.7.0 slow"}, ""},
		{"looking ahead", &w, 0, Report{Text: "421 RL000010"}, "6 1 90"},
		{"and not", &w, 0, Report{Text: "421 KumoMTA internal RL000010"}, ""},
		{"internal", &w, 0, Report{Text: "450 4.4.1 connect to x: refused", Internal: true, Sections: []string{"default", "domain x.test"}}, "10 1 5"},
		{"no section", &w, 0, Report{Text: "421 RL000010", Sections: []string{"domain y.test"}}, ""},
		{"no rules", new(Watcher), 0, Report{Text: "421 RL000010"}, ""},
	} {
		if step.w == &w {
			w.Rules = rules
		}
		r := step.r
		if r.At = start.Add(time.Duration(step.at) * time.Second); r.Sections == nil {
			r.Sections = []string{"default"}
		}
		var got []string
		for _, a := range step.w.See(&r, nil) {
			got = append(got, fmt.Sprint(a.Rule.At.Line, " ", a.Count, " ", a.Until.Sub(start).Seconds()))
		}
		if s := strings.Join(got, ", "); s != step.want {
			t.Errorf("%s: %q, want %q", step.name, s, step.want)
		}
	}
}

// TestManualRules has the rules that KumoMTA's manual explains automation with do what it says of them.
func TestManualRules(t *testing.T) {
	t.Parallel()
	rules, warnings := load(t, `[["gmail.com".automation]]
regex = "This message does not have authentication information"
action = "SuspendTenant"
duration = "3 hours"
[[provider."yahoo".automation]]
regex = "\\[TS04\\]"
action = "Suspend"
duration = "2 hours"
[["comcast.net".automation]]
regex = "RL0000"
action = {SetConfig={name="max_connection_rate", value="10000/h"}}
trigger = {Threshold="2/hr"}
duration = "2 hours"
[[provider."outlook".automation]]
regex = "temporarily rate limited due to IP reputation"
action = "Suspend"
duration = "1 hour"
`)
	if len(warnings) > 0 {
		t.Errorf("%v", warnings)
	}
	start := time.Unix(1e9, 0)
	w := Watcher{Rules: rules}
	for _, step := range []struct {
		minute        int
		section, text string
		want          string
	}{
		{0, "domain gmail.com", "550 5.7.26 This message does not have authentication information or fails to pass authentication checks", "SuspendTenant for 3h0m0s"},
		{0, "domain other.test", "550 5.7.26 This message does not have authentication information", ""},
		{0, "provider yahoo", "421 4.7.0 [TS04] Messages from 192.0.2.1 temporarily deferred", "Suspend for 2h0m0s"},
		{0, "provider yahoo", "421 4.7.0 TS04", ""},
		{0, "domain comcast.net", "421 4.7.0 RL000001 too many", ""},
		{61, "domain comcast.net", "421 4.7.0 RL000001 too many", ""},
		{70, "domain comcast.net", "421 4.7.0 RL000001 too many", "SetConfig max_connection_rate = 10000/h for 2h0m0s"},
		{0, "provider outlook", "451 4.7.650 The mail server [192.0.2.1] has been temporarily rate limited due to IP reputation", "Suspend for 1h0m0s"},
	} {
		at := start.Add(time.Duration(step.minute) * time.Minute)
		var got []string
		for _, a := range w.See(&Report{At: at, Unit: "u", Text: step.text, Sections: []string{step.section}}, nil) {
			for i := range a.Rule.Actions {
				got = append(got, fmt.Sprint(a.Rule.Actions[i].String(), " for ", a.Until.Sub(at)))
			}
		}
		if s := strings.Join(got, ", "); s != step.want {
			t.Errorf("%s: %q, want %q", step.text, s, step.want)
		}
	}
}

// TestHostile has replies that make an expression go back for ever.
func TestHostile(t *testing.T) {
	t.Parallel()
	rules, _ := load(t, "[['default'.automation]]\nregex = '^(?=x)(a|aa)+$|(?=a)(a+)+b'\naction = 'Suspend'\nduration = 60\n[['default'.automation]]\nregex = 'end'\naction = 'Suspend'\nduration = 60\n")
	said := 0
	w := Watcher{Rules: rules, Late: func(*Rule) { said++ }}
	text := strings.Repeat("a", 2*MaxText) + "end"
	for range 3 {
		if acts := w.See(&Report{Text: text, Sections: []string{"default"}}, nil); len(acts) != 0 {
			t.Errorf("%v", acts)
		}
	}
	if said != 1 {
		t.Errorf("said %d times", said)
	}
	// It is not tried at that destination for a while, and elsewhere it is.
	reply := func(unit, text string, at time.Duration) int {
		return len(w.See(&Report{At: time.Time{}.Add(at), Unit: unit, Text: text, Sections: []string{"default"}}, nil))
	}
	if a, b, c, d := reply("", "aaab", time.Second), reply("other", "aaab", time.Second), reply("", "aaab end", time.Second), reply("", "aaab", restTime); a != 0 || b != 1 || c != 1 || d != 1 {
		t.Errorf("acts: %d, elsewhere %d, of another kind %d, later %d", a, b, c, d)
	}
}

// TestMatchTime has an expression end within the time of all of them: where the engine looks at the clock ten times a
// second none does, however often it is tried.
func TestMatchTime(t *testing.T) {
	t.Parallel()
	p, err := compile(`(?=a)(a+)+b`)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		l := look{text: strings.Repeat("a", MaxText), left: budget}
		if _, late := l.match(p); !late {
			t.Fatal("it takes no long time")
		}
		if l.left > 0 {
			return
		}
	}
	t.Errorf("an expression takes more than %v", budget)
}

// TestTimes has many replies at destinations that are known: what is remembered of them is bounded, too.
func TestTimes(t *testing.T) {
	t.Parallel()
	rules, _ := load(t, "[['default'.automation]]\nregex = 'x'\ntrigger={Threshold='10000/h'}\naction = 'Suspend'\nduration = 60\n")
	w := Watcher{Rules: rules}
	for i := range maxTimes + maxTimes/4 {
		w.See(&Report{At: time.Unix(0, int64(i)), Unit: fmt.Sprint(i % 100), Text: "x", Sections: []string{"default"}}, nil)
		if w.times > maxTimes {
			t.Fatal("there are too many")
		}
	}
}

// TestRoom has more destinations than are remembered.
func TestRoom(t *testing.T) {
	t.Parallel()
	rules, _ := load(t, "[['default'.automation]]\nregex = 'x'\ntrigger={Threshold='2/h'}\naction = 'Suspend'\nduration = 60\n")
	w := Watcher{Rules: rules}
	for i := range 3 * maxCounters {
		w.See(&Report{At: time.Unix(int64(i), 0), Unit: fmt.Sprint(i), Text: "x", Sections: []string{"default"}}, nil)
		if len(w.count) > maxCounters {
			t.Fatal("there are too many")
		}
	}
	if acts := w.See(&Report{At: time.Unix(3*maxCounters, 0), Unit: fmt.Sprint(3*maxCounters - 1), Text: "x", Sections: []string{"default"}}, nil); len(acts) != 1 {
		t.Error("the latest has been forgotten")
	}
	times := 0
	for _, c := range w.count {
		times += len(c.times)
	}
	if times != w.times {
		t.Errorf("%d times, counted %d", times, w.times)
	}
}
