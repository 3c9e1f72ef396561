package queuetool

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
)

// steer runs suspend, resume or suspended on a site.
func steer(s *faketest.Site, verb string, args ...string) (out, errs string, status int) {
	var o, e bytes.Buffer
	status = Suspend(verb, append([]string{"-c", s.Config}, args...), &o, &e)
	return o.String(), e.String(), status
}

// A keeper plays the queue manager: it keeps what it is told.
type keeper struct {
	t        *testing.T
	mu       sync.Mutex
	asked    int
	kept     []proto.OverrideEntry
	selected [][]string // what was asked for of the queue
}

func (k *keeper) handle(r *ipc.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.Kind == proto.KindSelect {
		q := faketest.Decode[proto.Select](k.t, r)
		k.selected = append(k.selected, append(q.Where[1:], fmt.Sprint(q.Verb, q.Items)))
		reply := &proto.SelectReply{IDs: []mail.QueueID{"4jWmL10SyZz1SCBX"}, Octets: 300}
		if q.Cursor == 0 {
			reply.Next = 7
		}
		r.Reply(reply)
		return
	}
	q := faketest.Decode[proto.Override](k.t, r)
	k.asked++
	reply := &proto.OverrideReply{}
	same := func(e proto.OverrideEntry) bool { return e.Target == q.Entry.Target && e.Of == q.Entry.Of }
	switch {
	case k.asked == 1:
		reply.Refused = override.ErrNotOwner.Error()
	case q.Op == proto.OverridePut && q.Entry.Target == "full.test":
		reply.Refused = override.ErrFull.Error()
	case q.Op == proto.OverridePut && q.Dry:
		reply.Uses = []proto.OverrideUse{{Destinations: 2, Busy: 20, Todo: 300}}
	case q.Op == proto.OverridePut:
		reply.Uses = []proto.OverrideUse{{Destinations: 1, Busy: 20, Todo: 300}}
		k.kept = append(k.kept, q.Entry)
	case q.Op == proto.OverrideRemove:
		reply.Found = slices.ContainsFunc(k.kept, same)
	case q.Op == proto.OverrideList:
		reply.Entries, reply.Waiting = k.kept, make([]int, len(k.kept))
		reply.Uses = make([]proto.OverrideUse, len(k.kept))
	}
	r.Reply(reply)
}

// What is ordered reaches the queue manager as it was meant; one that does not
// own the overrides yet is asked again.
func TestSuspend(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	k := &keeper{t: t}
	s.Serve("qmgr", k.handle)
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"suspend", "Example.COM", "--reason", "they asked\x1b us", "--for=2h"}, 0, "posthaste suspend: example.com is suspended until "},
		{[]string{"suspend", "--until", "2999-01-02T03:04", "Slow:[Hub.test]:25"}, 0, "Slow:[hub.test]:25 is suspended until 2999-01-02 03:04:00\n"},
		{[]string{"suspend", "--sender=News@A.test", "-j"}, 0, `{"target": "sender=news@a.test", "by": "`},
		{[]string{"suspend", "--sender-domain", "A.test"}, 0, "mail from @a.test is suspended\n"},
		{[]string{"suspend", "--sender-domain", ".A.test"}, 0, "mail from @.a.test is suspended\n"},
		{[]string{"suspend", "--domain", "b.test"}, 0, "domain b.test is suspended\n"},
		{[]string{"suspend", "--nexthop=[B.test]"}, 0, "next hop [b.test] is suspended\n"},
		{[]string{"suspend", "--transport=slow"}, 0, "slow: is suspended\n"},
		{[]string{"suspend", "--destination", ".b.test"}, 0, ".b.test is suspended\n"},
		{[]string{"suspend", "full.test"}, 69, "there are 10000 overrides already"},
		{[]string{"suspended"}, 0, "example.com: suspended by "},
		{[]string{"suspended"}, 0, "\nmail from news@a.test: suspended by "},
		{[]string{"suspended", "-j"}, 0, `"reason": "they asked\u001B us", "waiting": 0}`},
		{[]string{"resume", "EXAMPLE.com"}, 0, "posthaste resume: example.com is resumed\n"},
		{[]string{"resume", "sender=news@a.test"}, 0, "mail from news@a.test is resumed\n"},
		{[]string{"resume", "--sender-domain=a.test", "-j"}, 0, `{"target": "sender=@a.test", "resumed": true, "by": "`},
		{[]string{"resume", "other.test"}, 66, "other.test is not suspended"},
		{[]string{"resume", "--domain=example.com"}, 66, "domain example.com is not suspended"},
		{[]string{"suspend"}, 64, "suspend what?"},
		{[]string{"suspend", "a b"}, 64, "blanks"},
		{[]string{"suspend", "a.test", "b.test"}, 64, "is not understood; usage: posthaste suspend TARGET"},
		{[]string{"suspend", "a.test", "--domain=b.test"}, 64, "one target at a time"},
		{[]string{"suspend", "--domain=b.test", "a.test"}, 64, "not understood"},
		{[]string{"suspend", "--domain=[b.test]"}, 64, "--domain: \"[b.test]\" is not a domain"},
		{[]string{"suspend", "--sender=a.test"}, 64, "is not a sender"},
		{[]string{"suspend", "--transport=[a]"}, 64, "is not the name of a transport"},
		{[]string{"suspend", "a.test", "--for", "2h", "--until", "12:00"}, 64, "one end is enough"},
		{[]string{"suspend", "a.test", "--for", "soon"}, 64, "not a time"},
		{[]string{"suspend", "a.test", "--until", "2001-01-01"}, 64, "in the past"},
		{[]string{"suspend", "a.test", "--reason"}, 64, "no value"},
		{[]string{"suspend", "a.test", "--reason=\xff"}, 64, "no UTF-8"},
		{[]string{"suspend", "a.test", "--reason=" + strings.Repeat("x", override.MaxReason+1)}, 64, "more than 1000 octets"},
		{[]string{"resume", "a.test", "--for", "2h"}, 64, "not understood"},
		{[]string{"resume", "a.test", "-n"}, 64, "not understood"},
		{[]string{"suspended", "a.test"}, 64, "not understood"},
	} {
		out, errs, status := steer(s, c.args[0], c.args[1:]...)
		if status != c.status || !strings.Contains(out+errs, c.says) || strings.ContainsAny(out+errs, "\x1b") {
			t.Errorf("%q: exit status %d, %q", c.args, status, out+errs)
		}
	}
	var targets []string
	for _, e := range k.kept {
		targets = append(targets, e.Target)
	}
	if got, want := strings.Join(targets, " "), "example.com Slow:[hub.test]:25 sender=news@a.test sender=@a.test sender=@.a.test domain=b.test nexthop=[b.test] slow: .b.test"; got != want {
		t.Errorf("kept: %s", got)
	}
	if len(k.kept) < 2 || k.kept[0].Reason != "they asked\x1b us" || k.kept[0].By == "" || time.Until(k.kept[0].Until) < time.Hour ||
		k.kept[1].Until.Local().Format(time.DateTime) != "2999-01-02 03:04:00" {
		t.Errorf("kept: %+v", k.kept)
	}
	if out, errs, status := run(s, "suspend", "c.test"); status != 0 || errs != "posthaste queue: c.test is suspended\n" {
		t.Errorf("as a command of posthaste queue: exit status %d, %q", status, out+errs)
	}
}

// What is ordered of limits reaches the queue manager as it was meant, and what it says is told.
func TestLimit(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	k := &keeper{t: t}
	s.Serve("qmgr", k.handle)
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"limit", "Example.COM", "2", "--reason", "they answer\x1b 421", "--until=2999-01-02T03:04"}, 0,
			"posthaste limit: example.com is limited to 2 at a time until 2999-01-02 03:04:00; 20 deliveries are under way, 300 wait\n"},
		{[]string{"limit", "smtp:[Hub.test]:25", "50", "--raise", "-j"}, 0, `{"target": "smtp:[hub.test]:25", "limit": 50, "raises": true, "by": "`},
		{[]string{"limit", "--transport=slow", "5"}, 0, "slow: is limited to 5 at a time; "},
		{[]string{"limit", "--nexthop=B.test", "5"}, 0, "b.test is limited to 5 at a time; "},
		{[]string{"limit", "c.test", "5", "-n"}, 0, "dry run, nothing is changed: c.test would be limited to 5 at a time; 2 destinations, each for itself; 20 deliveries are under way, 300 wait\n"},
		{[]string{"limit", "c.test", "5", "-n", "-j"}, 0, `"reason": "", "destinations": 2, "under_way": 20, "waiting": 300, "dry_run": true}`},
		{[]string{"limit", "full.test", "1"}, 69, "there are 10000 overrides already"},
		{[]string{"limited"}, 0, "example.com: limited to 2 at a time by "},
		{[]string{"limited"}, 0, " until 2999-01-02 03:04:00; no mail goes there now: they answer? 421\n"},
		{[]string{"limited"}, 0, "smtp:[hub.test]:25: limited to 50 at a time, whatever main.cf allows, by "},
		{[]string{"limited", "-j"}, 0, `"reason": "they answer\u001B 421", "destinations": 0, "under_way": 0, "waiting": 0}`},
		{[]string{"unlimit", "EXAMPLE.com"}, 0, "posthaste unlimit: the limit of example.com is lifted\n"},
		{[]string{"unlimit", "--nexthop=b.test", "-j"}, 0, `{"target": "b.test", "lifted": true, "by": "`},
		{[]string{"unlimit", "other.test"}, 66, "other.test has no limit"},
		{[]string{"resume", "example.com"}, 66, "example.com is not suspended"},
		{[]string{"limit"}, 64, "limit what?"},
		{[]string{"unlimit"}, 64, "unlimit what?"},
		{[]string{"limit", "a.test"}, 64, "limit a.test to how many deliveries at a time?"},
		{[]string{"limit", "a.test", "0"}, 64, "a limit of 0 would be a suspension"},
		{[]string{"limit", "a.test", "-3"}, 64, "is not a number"},
		{[]string{"limit", "a.test", "many"}, 64, `"many" is not a number from 1 to 100000`},
		{[]string{"limit", "a.test", "100001"}, 64, "is not a number"},
		{[]string{"limit", "a.test", "1", "2"}, 64, "is not understood; usage: posthaste limit DESTINATION"},
		{[]string{"limit", "domain=a.test", "1"}, 64, "a limit is of next hops, and domain a.test is none"},
		{[]string{"limit", "sender=a@a.test", "1"}, 64, "a limit is of next hops, and mail from a@a.test is none"},
		{[]string{"limit", "--domain=a.test", "1"}, 64, "is not understood"},
		{[]string{"limit", "--sender=a@a.test", "1"}, 64, "is not understood"},
		{[]string{"unlimit", "a.test", "1"}, 64, "is not understood"},
		{[]string{"unlimit", "a.test", "--raise"}, 64, "is not understood"},
		{[]string{"suspend", "a.test", "--raise"}, 64, "is not understood"},
		{[]string{"limited", "a.test"}, 64, "is not understood"},
	} {
		out, errs, status := steer(s, c.args[0], c.args[1:]...)
		if status != c.status || !strings.Contains(out+errs, c.says) || strings.ContainsAny(out+errs, "\x1b") {
			t.Errorf("%q: exit status %d, %q", c.args, status, out+errs)
		}
	}
	var kept []string
	for _, e := range k.kept {
		kept = append(kept, fmt.Sprint(e.Of, " ", e.Target, " ", e.Most, " ", e.Raises))
	}
	if got, want := strings.Join(kept, ", "), "limit example.com 2 false, limit smtp:[hub.test]:25 50 true, limit slow: 5 false, limit b.test 5 false"; got != want {
		t.Errorf("kept: %s", got)
	}
	if out, errs, status := run(s, "limit", "d.test", "3"); status != 0 || !strings.HasPrefix(errs, "posthaste queue: d.test is limited to 3") {
		t.Errorf("as a command of posthaste queue: exit status %d, %q", status, out+errs)
	}
}

// What is ordered of diversions reaches the queue manager as it was meant.
func TestDivert(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	k := &keeper{t: t}
	s.Serve("qmgr", k.handle)
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"divert", "[Relay1.test]", "[Relay2.test]:587", "--reason", "it is\x1b down", "--until=2999-01-02T03:04"}, 0,
			"posthaste divert: [relay1.test] is diverted to [relay2.test]:587 until 2999-01-02 03:04:00\nposthaste divert: 2 messages in the queue: those that are deferred go at their next attempt, or now with: posthaste queue flush '--nexthop=[relay2.test]:587'\n"},
		{[]string{"divert", "Example.com", "smtp:"}, 0, "or now with: posthaste queue flush --domain=example.com\n"},
		{[]string{"divert", "--domain=b.test", "smtp:[x.test]", "-j"}, 0, `{"target": "domain=b.test", "nexthop": "smtp:[x.test]", "by": "`},
		{[]string{"divert", "--transport=slow", "c.test"}, 0, "posthaste queue flush --nexthop=c.test\n"},
		{[]string{"divert", "*", "[hub.test]"}, 0, "posthaste queue flush ALL\n"},
		{[]string{"divert", "d.test", "[hub.test]", "-n"}, 0, "dry run, nothing is changed: d.test would be diverted to [hub.test]: 2 messages, 600 octets\n"},
		{[]string{"divert", "d.test", "[hub.test]", "-n", "-j"}, 0, `"reason": "", "dry_run": true, "messages": 2, "octets": 600}`},
		{[]string{"diverted"}, 0, "[relay1.test]: diverted to [relay2.test]:587 by "},
		{[]string{"diverted"}, 0, " until 2999-01-02 03:04:00: it is? down\ndomain"[:36]},
		{[]string{"diverted", "-j"}, 0, `"reason": "it is\u001B down"}`},
		{[]string{"undivert", "[RELAY1.test]"}, 0, "posthaste undivert: [relay1.test] is no longer diverted\n"},
		{[]string{"undivert", "--domain=b.test", "-j"}, 0, `{"target": "domain=b.test", "ended": true, "by": "`},
		{[]string{"undivert", "other.test"}, 66, "other.test is not diverted"},
		{[]string{"divert"}, 64, "divert what?"},
		{[]string{"divert", "a.test"}, 64, "divert a.test to which next hop?"},
		{[]string{"divert", "a.test", "*"}, 64, "is not a next hop"},
		{[]string{"divert", "a.test", ".b.test"}, 64, "is not a next hop"},
		{[]string{"divert", "a.test", "b.test", "c.test"}, 64, "is not understood; usage: posthaste divert TARGET NEXTHOP"},
		{[]string{"divert", "sender=a@b.test", "c.test"}, 64, "a diversion is of destinations, and mail from a@b.test is none"},
		{[]string{"divert", "--sender=a@b.test", "c.test"}, 64, "is not understood"},
		{[]string{"divert", "a.test", "b.test", "--raise"}, 64, "is not understood"},
		{[]string{"diverted", "a.test"}, 64, "is not understood"},
	} {
		out, errs, status := steer(s, c.args[0], c.args[1:]...)
		if status != c.status || !strings.Contains(out+errs, c.says) || strings.ContainsAny(out+errs, "\x1b") {
			t.Errorf("%q: exit status %d, %q, want %q", c.args, status, out+errs, c.says)
		}
	}
	var kept []string
	for _, e := range k.kept {
		kept = append(kept, fmt.Sprint(e.Of, " ", e.Target, " ", e.Nexthop))
	}
	if got, want := strings.Join(kept, ", "), "diversion [relay1.test] [relay2.test]:587, diversion example.com smtp:, diversion domain=b.test smtp:[x.test], diversion slow: c.test, diversion * [hub.test]"; got != want {
		t.Errorf("kept: %s", got)
	}
}

// What is ordered of mail that is returned reaches the queue manager as it was meant.
func TestBounce(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	k := &keeper{t: t}
	s.Serve("qmgr", k.handle)
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"bounce", "--campaign=news/spring", "--reason", "wrong\x1b prices", "--until=2999-01-02T03:04"}, 0,
			"posthaste bounce: mail of campaign news/spring is returned until 2999-01-02 03:04:00\nposthaste bounce: 2 messages in the queue: those that are deferred are returned at their next attempt, or now with: posthaste queue flush --campaign=news/spring\n"},
		{[]string{"bounce", "Example.com", "--for", "30m"}, 0, "posthaste bounce: mail to example.com is returned until "},
		{[]string{"bounce", "--tenant=news->B.test", "--for", "30m"}, 0, "posthaste queue flush --tenant=news --domain=b.test\n"},
		{[]string{"bounce", "--sender-domain=a.test", "--for", "1d", "-j"}, 0, `{"target": "sender=@a.test", "by": "`},
		{[]string{"bounce", "--domain=.c.test", "--for=2h"}, 0, "mail to .c.test is returned until "},
		{[]string{"bounce", "d.test", "--for=2h", "-n"}, 0, "dry run, nothing is changed: mail to d.test would be returned until "},
		{[]string{"bounce", "d.test", "--for=2h", "-n"}, 0, ": 2 messages, 600 octets\n"},
		{[]string{"bounce", "d.test", "--for=2h", "-n", "-j"}, 0, `"reason": "", "dry_run": true, "messages": 2, "octets": 600}`},
		{[]string{"bounced"}, 0, "campaign news/spring: returned by "},
		{[]string{"bounced"}, 0, " until 2999-01-02 03:04:00: wrong? prices\n"},
		{[]string{"bounced", "-j"}, 0, `"reason": "wrong\u001B prices"}`},
		{[]string{"unbounce", "EXAMPLE.com"}, 0, "posthaste unbounce: domain example.com is no longer returned\n"},
		{[]string{"unbounce", "campaign=news/spring", "-j"}, 0, `{"target": "campaign=news/spring", "ended": true, "by": "`},
		{[]string{"unbounce", "other.test"}, 66, "domain other.test is not returned under that name"},
		{[]string{"bounce"}, 64, "bounce which mail?"},
		{[]string{"bounce", "a.test"}, 64, "bounce domain a.test until when?"},
		{[]string{"bounce", "[a.test]", "--for=2h"}, 64, "is not a domain"},
		{[]string{"bounce", "--source=mta1", "--for=2h"}, 64, "is not understood; usage: posthaste bounce TARGET --for TIME"},
		{[]string{"bounce", "a.test", "--for=soon"}, 64, "not a time"},
		{[]string{"unbounce"}, 64, "unbounce which mail?"},
		{[]string{"unbounce", "a.test", "-n"}, 64, "is not understood"},
		{[]string{"bounced", "a.test"}, 64, "is not understood"},
	} {
		out, errs, status := steer(s, c.args[0], c.args[1:]...)
		if status != c.status || !strings.Contains(out+errs, c.says) || strings.ContainsAny(out+errs, "\x1b") {
			t.Errorf("%q: exit status %d, %q, want %q", c.args, status, out+errs, c.says)
		}
	}
	var kept []string
	for _, e := range k.kept {
		kept = append(kept, fmt.Sprint(e.Of, " ", e.Target))
	}
	if got, want := strings.Join(kept, ", "), "return campaign=news/spring, return domain=example.com, return tenant=news->b.test, return sender=@a.test, return domain=.c.test"; got != want {
		t.Errorf("kept: %s", got)
	}
	if last := k.selected[len(k.selected)-1]; last[0] != "domain=d.test" {
		t.Errorf("counted: %q", last)
	}
}

// A dry run counts what would wait, page by page, of mail that may be tried, and changes nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	k := &keeper{t: t}
	s.Serve("qmgr", k.handle)
	out, errs, status := steer(s, "suspend", "-n", "Example.com", "--for=2h")
	if status != 0 || out != "" || errs != "posthaste suspend: dry run, nothing is changed: example.com would suspend 2 messages, 600 octets\n" {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	if out, errs, status = steer(s, "suspend", "--sender=<>", "--dry-run", "-j"); status != 0 || out != `{"target": "sender=<>", "dry_run": true, "messages": 2, "octets": 600}`+"\n" || errs != "" {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	rest := []string{"queue=incoming", "queue=active", "queue=deferred", "0 false"}
	want := [][]string{append([]string{"destination=example.com"}, rest...), append([]string{"sender=<>"}, rest...)}
	if len(k.selected) != 4 || !slices.Equal(k.selected[1], want[0]) || !slices.Equal(k.selected[3], want[1]) || k.asked != 0 {
		t.Errorf("asked for: %q, and %d orders", k.selected, k.asked)
	}
}

// Who may not is told so, with the exit status that says it, and nobody is asked.
func TestNotPermitted(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	k := &keeper{t: t}
	s.Serve("qmgr", k.handle)
	const suspend, limit = "suspend or resume mail", "limit deliveries"
	for _, args := range [][]string{{"suspend", "a.test", suspend}, {"suspend", "-n", "a.test", suspend}, {"resume", "a.test", suspend}, {"suspended", suspend},
		{"limit", "a.test", "1", limit}, {"unlimit", "a.test", limit}, {"limited", limit}, {"divert", "a.test", "b.test", "divert mail"}, {"undivert", "a.test", "divert mail"}, {"diverted", "divert mail"},
		{"bounce", "a.test", "--for=2h", "return mail"}, {"unbounce", "a.test", "return mail"}, {"bounced", "return mail"}} {
		var o, e bytes.Buffer
		c := &command{Tool: cli.Tool{Name: "posthaste " + args[0], Stdout: &o, Stderr: &e}, permitted: func() bool { return false }}
		status := c.overrides(args[0], append([]string{"-c", s.Config}, args[1:len(args)-1]...), time.Now())
		if status != cli.ExitNoPerm || !strings.Contains(e.String(), "is not allowed to "+args[len(args)-1]+": that is for root and ") || o.Len() > 0 {
			t.Errorf("%q: exit status %d, %q", args, status, e.String())
		}
	}
	if k.asked+len(k.selected) > 0 {
		t.Error("the queue manager was asked")
	}
	down := faketest.New(t, "")
	if _, errs, status := steer(down, "suspend", "a.test"); status != cli.ExitUnavailable || !strings.Contains(errs, "start it first") {
		t.Errorf("down: exit status %d, %q", status, errs)
	}
}

// An hour of the day is the next one that comes.
func TestUntil(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.Local)
	for value, want := range map[string]string{"13:00": "2026-11-23 13:00:00", "12:00": "2026-11-24 12:00:00", "08:30": "2026-11-24 08:30:00",
		"2026-11-25": "2026-11-25 00:00:00"} {
		o := new(order)
		if err := o.until("--until", value, now); err != nil || o.entry.Until.Format(time.DateTime) != want {
			t.Errorf("%s: %v, %v", value, o.entry.Until, err)
		}
	}
}
