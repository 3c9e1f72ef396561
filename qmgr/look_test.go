package qmgr

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/selection"
	"posthaste/internal/spooltool/faketest"
	"posthaste/qmgr/sched"
)

// A sweep meets each message once, whatever is tried, comes and goes while it passes.
func TestSweep(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b, worked, all := newBook(), map[sched.MsgID]*message{}, map[sched.MsgID]bool{}
		number := rapid.Uint64Range(1, 40)
		come := func(num sched.MsgID) { b.add(num, time.UnixMicro(1e15), queue.Ref{File: 1}, 1, false, nil) }
		for i := range rapid.IntRange(0, 40).Draw(t, "messages at first") {
			all[sched.MsgID(i+1)] = true
			come(sched.MsgID(i + 1))
		}
		w := b.sweep()
		met := map[sched.MsgID]int{}
		meet := func(num sched.MsgID) { met[num]++ }
		there := maps.Clone(all) // all the time
		for more := true; more; {
			for range rapid.IntRange(0, 8).Draw(t, "changes") {
				num := sched.MsgID(number.Draw(t, "number"))
				switch {
				case !all[num]:
					all[num] = true
					come(num)
				case worked[num] != nil && rapid.Bool().Draw(t, "rests"):
					delete(worked, num)
					come(num)
				case worked[num] == nil && rapid.IntRange(0, 3).Draw(t, "stays") > 0:
					b.drop(num)
					worked[num] = &message{num: num}
				default:
					delete(worked, num)
					b.drop(num)
					delete(all, num)
					delete(there, num)
				}
			}
			more = w.step(int32(rapid.IntRange(1, 9).Draw(t, "slips")), func(p *slip) { meet(p.num) })
		}
		w.end(worked, meet)
		for num := range there {
			if met[num] != 1 {
				t.Fatalf("message %d was met %d times", num, met[num])
			}
		}
		for num := range all {
			if met[num] > 1 && there[num] {
				t.Fatalf("message %d was met %d times", num, met[num])
			}
		}
		if len(b.sweeps) != 0 || w.lost {
			t.Fatal("the sweep goes on")
		}
	})
}

// A listing finds the same messages in the same order whether it goes through the pages of the queue or looks in
// memory for those that it is about, however small its own pages are.
func TestLook(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	var mails []faketest.Mail
	for i := range 120 {
		m := deferredMail(queue.Deferred, time.Duration(i)*20*time.Minute, fmt.Sprintf("s%d@from%d.test", i%2, i%7), "450 no", fmt.Sprintf("r@d%d.test", i%9))
		switch {
		case i%20 == 3: // an alias in another domain
			m.Envelope.Recipients[0].Original = "old@alias.test"
		case i%20 == 4:
			m.Envelope.Recipients = append(m.Envelope.Recipients, mail.Recipient{Address: "x@d0.test"})
		case i%20 == 5:
			m.Queue = queue.Hold
		case i%20 == 6:
			m.Envelope.Tenant, m.Envelope.Campaign = "acme", "spring"
		case i%20 == 7:
			m.Envelope.Tenant = "acme"
		case i%20 == 8:
			m.Envelope.Sender = ""
		}
		mails = append(mails, m)
	}
	st.fill(mails...)
	st.queue.perPage = 10
	st.run()
	st.waitAttached(1)
	in := func(f func(*Server) bool) bool {
		ch := make(chan bool)
		st.srv.post(func() { ch <- f(st.srv) }, sched.Event{})
		return <-ch
	}
	// The survey has read all of them: until then nothing is left out by domains.
	st.until("all domains are known", func() bool { return in(func(s *Server) bool { return s.told && s.book.unknown == 0 }) })
	for _, words := range []string{"domain=d3.test", "domain=.test", "domain=d0.test", "domain=none.test", "sender=@from5.test", "sender=s1@from5.test", "sender=<>",
		"recipient=old@alias.test", "recipient=@alias.test", "recipient=r@d4.test", "recipient=r@d4.test sender=@from1.test", "queue=hold", "queue=hold domain=d7.test", "younger=400m", "older=2000m domain=d1.test",
		"tenant=acme", "campaign=acme/spring", "campaign=acme/autumn", "tenant=other", "tenant=acme domain=d8.test", "larger=1m", "waits-for=smtp:", "source=none", "reply=450 domain=d2.test", "sender=/s0/"} {
		list := func(after, most int) []mail.QueueID {
			in(func(s *Server) bool { s.looks = lookSizes{after, 7, 7}; return true })
			return st.selectedAs(&proto.Select{Items: true, Most: most}, words)
		}
		want := list(lookAfter, 0)
		if n, ok := map[string]int{"recipient=old@alias.test": 6, "recipient=@alias.test": 6, "queue=hold": 6, "sender=<>": 6, "campaign=acme/spring": 6, "tenant=acme": 12, "source=none": 0, "larger=1m": 0, "waits-for=smtp:": 0}[words]; ok && len(want) != n {
			t.Errorf("%s: %d messages are found, and there are %d", words, len(want), n)
		}
		slices.SortFunc(want, byID)
		for _, most := range []int{0, 1, 5} {
			got := list(1, most)
			// Mail on hold comes after the other, where that is looked for in memory.
			if slices.SortFunc(got, byID); !slices.Equal(got, want) {
				t.Errorf("%s, %d at a time: %d messages are found, not %d:\n%q\n%q", words, most, len(got), len(want), got, want)
			}
		}
	}
}

func byID(a, b mail.QueueID) int { return cmp.Compare(number(a), number(b)) }

// A listing that looks in memory describes few messages that it is not about: cleanup is asked for those alone.
func TestLookReadsLittle(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	var mails []faketest.Mail
	for i := range 200 {
		mails = append(mails, deferredMail(queue.Deferred, time.Hour, "s@from.test", "450 no", fmt.Sprintf("r@d%d.test", i/100)))
	}
	st.fill(mails...)
	st.queue.perPage = 10
	st.run()
	st.waitAttached(1)
	ch := make(chan bool)
	st.until("all domains are known", func() bool {
		st.srv.post(func() { st.srv.looks.after = 1; ch <- st.srv.told && st.srv.book.unknown == 0 }, sched.Event{})
		return <-ch
	})
	st.mu.Lock()
	st.queue.paged = 0
	st.mu.Unlock()
	var reply proto.SelectReply
	q := &proto.Select{Where: []string{"0", "domain=d1.test"}, Items: true, Most: 10}
	q.Where[0] = fmt.Sprint(time.Now().UnixMicro())
	// On a busy machine the time of a page is over before there are ten, and the next one begins with a page again.
	asked := 0
	for found := 0; found < 10; q.Cursor = reply.Next {
		asked++
		reply = proto.SelectReply{}
		if err := st.tool.Call(t.Context(), q, &reply); err != nil || found+len(reply.Items) > 10 || reply.Next == 0 {
			t.Fatalf("%d messages, next %d, %v", found+len(reply.Items), reply.Next, err)
		}
		found += len(reply.Items)
		q.Most = 10 - found
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.queue.paged > 100*asked { // one page, and those ten
		t.Errorf("cleanup was asked for %d messages in %d listings", st.queue.paged, asked)
	}
}

// A mailbox, and what another host has replied, are no words about where mail waits.
func TestWaitsAt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		words, transport, queue string
		want                    bool
	}{
		{"waits-for=b.test", "smtp", "b.test from one", true},
		{"waits-for=b.test", "lmtp", "joe@b.test", true},
		{"waits-for=b.test", "retry", "4.7.1 host mx.a.test said: 450 write to joe@b.test", false},
		{"waits-for=smtp:", "retry", "4.7.1 no", false},
		{"waits-for=retry:", "retry", "4.7.1 no", true},
		{"source=one", "smtp", "b.test from one", true},
		{"source=one", "retry", "4.7.1 host mx.a.test said: 450 too much mail from one", false},
		{"source=one", "error", "5.7.1 no mail from one", false},
		{"source=b.test", "lmtp", "a from joe@b.test", false},
	} {
		where := selection.New(time.Now())
		for _, w := range strings.Fields(c.words) {
			name, value, _ := strings.Cut(w, "=")
			if err := where.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
		if got := waitsAt(where, mail.Transport(c.transport), c.queue); got != c.want {
			t.Errorf("%s means %s:%s: %v", c.words, c.transport, c.queue, got)
		}
	}
	if got := sched.SourceOf("a from b@c.test"); got != "" {
		t.Errorf("a mailbox is from %q", got)
	}
	if got := sched.SourceOf("a from b@c.test from one"); got != "one" {
		t.Errorf("mail is from %q", got)
	}
}
