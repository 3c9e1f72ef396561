package queuetool

import (
	"strings"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
)

// What is ordered reaches the queue manager as it was meant; one that does not
// own the overrides yet is asked again.
func TestSuspend(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	var asked []proto.Override
	var kept []proto.OverrideEntry
	s.Serve("qmgr", func(r *ipc.Request) {
		q := faketest.Decode[proto.Override](t, r)
		asked = append(asked, q)
		reply := &proto.OverrideReply{}
		switch {
		case len(asked) == 1:
			reply.Refused = override.ErrNotOwner.Error()
		case q.Op == proto.OverridePut && q.Entry.Target == "full.test":
			reply.Refused = override.ErrFull.Error()
		case q.Op == proto.OverridePut:
			kept = append(kept, q.Entry)
		case q.Op == proto.OverrideRemove:
			reply.Found = q.Entry.Target == kept[0].Target
		case q.Op == proto.OverrideList:
			reply.Entries, reply.Waiting = kept, make([]int, len(kept))
		}
		r.Reply(reply)
	})
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"suspend", "Example.COM", "--reason", "they asked\x1b us", "--for=2h"}, 0, "posthaste queue: example.com is suspended until "},
		{[]string{"suspend", "--until", "2999-01-02T03:04", "Slow:[Hub.test]:25"}, 0, "Slow:[hub.test]:25 is suspended until 2999-01-02 03:04:00\n"},
		{[]string{"suspend", "full.test"}, 69, "there are 10000 overrides already"},
		{[]string{"suspended"}, 0, "example.com: suspended by "},
		{[]string{"suspended", "-j"}, 0, `"reason": "they asked\u001B us", "waiting": 0}`},
		{[]string{"resume", "EXAMPLE.com"}, 0, "example.com is resumed\n"},
		{[]string{"resume", "other.test"}, 66, "other.test is not suspended"},
		{[]string{"suspend"}, 64, "suspend what?"},
		{[]string{"suspend", "a b"}, 64, "blanks"},
		{[]string{"suspend", "a.test", "b.test"}, 64, "is not understood; usage"},
		{[]string{"suspend", "a.test", "--for", "2h", "--until", "12:00"}, 64, "one end is enough"},
		{[]string{"suspend", "a.test", "--for", "soon"}, 64, "not a time"},
		{[]string{"suspend", "a.test", "--until", "2001-01-01"}, 64, "in the past"},
		{[]string{"suspend", "a.test", "--reason"}, 64, "no value"},
		{[]string{"resume", "a.test", "--for", "2h"}, 64, "not understood"},
		{[]string{"suspended", "a.test"}, 64, "not understood"},
	} {
		out, errs, status := run(s, c.args...)
		text := strings.ReplaceAll(out+errs, "%[1]s", "posthaste queue")
		if status != c.status || !strings.Contains(text, c.says) || strings.ContainsAny(out+errs, "\x1b") {
			t.Errorf("%q: exit status %d, %q", c.args, status, out+errs)
		}
	}
	if len(kept) != 2 || kept[0].Reason != "they asked\x1b us" || kept[0].Target != "example.com" || kept[0].By == "" ||
		time.Until(kept[0].Until) < time.Hour || kept[1].Until.Local().Format(time.DateTime) != "2999-01-02 03:04:00" || kept[1].Target != "Slow:[hub.test]:25" {
		t.Errorf("kept: %+v", kept)
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
