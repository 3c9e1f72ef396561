package bounce

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// drawOutcome is the outcome of recipient i, with parts of which some have
// been told. Its parts' addresses are names of their own.
func drawOutcome(t *rapid.T, i int) mail.Outcome {
	o := mail.Outcome{Rcpt: i, Action: rapid.SampledFrom([]dsn.Action{dsn.Failed, dsn.Deferred}).Draw(t, "action"), Status: dsn.S(5, 0, 0), Reason: "x"}
	for k := range rapid.IntRange(0, 5).Draw(t, "parts") {
		p := mail.Part{Address: fmt.Sprintf("p%d-%d@x.test", i, k), Action: dsn.Failed, Status: dsn.S(5, 1, 1), Reason: "no",
			Owner: rapid.SampledFrom([]string{"", "one@owner.test", "two@owner.test"}).Draw(t, "owner"), Told: rapid.IntRange(0, 3).Draw(t, "told") == 0}
		if o.Action == dsn.Deferred && rapid.Bool().Draw(t, "later") {
			p.Action, p.Owner, p.Told = dsn.Deferred, "", false
		}
		o.Parts = append(o.Parts, p)
	}
	if o.Action == dsn.Failed && len(o.Parts) > 0 && !o.Untold() { // then there is no request
		o.Parts[0].Told = false
	}
	return o
}

var finalRecipient = regexp.MustCompile(`Final-Recipient: rfc822; (\S+)`)

// TestPartsToldOnce: whatever fails while the notices are sent, and as often as
// the request is made again, in the end each part that is to be told has been,
// once; and who has failed altogether is done with, and nobody else.
func TestPartsToldOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		env := manyRecipients()
		env.VERP = rapid.SampledFrom([]string{"", "+="}).Draw(r, "verp")
		kind := rapid.SampledFrom([]proto.NoticeKind{proto.NoticeFailure, proto.NoticeExpired}).Draw(r, "kind")
		never := rapid.Bool().Draw(r, "never")
		env.Recipients = slices.Clone(env.Recipients)
		if never {
			env.Recipients[0].Notify = dsn.NotifyNever
		}
		outcomes := make([]mail.Outcome, rapid.IntRange(1, 4).Draw(r, "n"))
		want := map[string]int{}
		for i := range outcomes {
			o := drawOutcome(r, i)
			if kind == proto.NoticeExpired {
				o.Action = dsn.Deferred
			}
			outcomes[i] = o
			quiet := never && i == 0
			whole := !o.HasFailed()
			if kind == proto.NoticeFailure {
				whole = whole && o.Action == dsn.Failed
			} else {
				whole = !slices.ContainsFunc(o.Parts, func(p mail.Part) bool { return p.Action == dsn.Deferred })
			}
			if whole && !quiet {
				want[env.Recipients[i].Address] = 1
			}
			for _, p := range o.Parts {
				tell := !p.Told && (p.Action == dsn.Failed || kind == proto.NoticeExpired)
				if tell && (!quiet || p.Owner != "") {
					want[p.Address] = 1
				}
			}
		}
		c := &cleanup{}
		fails := rapid.SliceOfN(rapid.Bool(), 0, 12).Draw(r, "fails")
		c.fail = func(*proto.Submit) bool {
			if len(fails) == 0 {
				return false
			}
			f := fails[0]
			fails = fails[1:]
			return f
		}
		store := &fakeStore{env: env, content: testMessage, settled: c.settles}
		s, _ := newTestService(t, "", store, c)
		var reply proto.NotifyReply
		for tries := 0; ; tries++ {
			req := proto.Notify{Notice: kind, ID: env.ID}
			for _, o := range outcomes {
				o.Parts = slices.Clone(o.Parts)
				req.Outcomes = append(req.Outcomes, o)
			}
			var err error
			if reply, err = s.Notify(t.Context(), &req); err == nil {
				break
			}
			if tries > 20 {
				r.Fatalf("again and again: %v", err)
			}
		}
		got := map[string]int{}
		for i := range c.got {
			for _, m := range finalRecipient.FindAllStringSubmatch(string(c.got[i].Content), -1) {
				got[m[1]]++
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			r.Fatalf("told %v, not %v", got, want)
		}
		if !reply.Settled {
			return // the queue manager records it all
		}
		recorded := map[int]mail.Outcome{}
		list, _ := store.Outcomes()
		for _, o := range list {
			recorded[o.Rcpt] = o
		}
		for i, o := range outcomes {
			done := kind == proto.NoticeExpired || o.Action == dsn.Failed
			if store.Pending(i) == done {
				r.Fatalf("recipient %d is pending: %t; of %+v", i, !done, o)
			}
			if last, ok := recorded[i]; !done && o.Untold() && (!ok || last.Untold()) {
				r.Fatalf("recipient %d: recorded %+v, of %+v", i, last, o)
			}
		}
	})
}

// A notice of delay names the parts that are late, and a trace all.
func TestPartsOfOthers(t *testing.T) {
	t.Parallel()
	o := mail.Outcome{Rcpt: 1, Action: dsn.Deferred, Status: dsn.S(4, 0, 0), Reason: "x", Parts: []mail.Part{
		{Address: "gone@x.test", Action: dsn.Failed, Status: dsn.S(5, 1, 1), Reason: "no", Told: true},
		{Address: "late@x.test", Action: dsn.Deferred, Status: dsn.S(4, 2, 2), Reason: "full"},
		{Address: "there@x.test", Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Reason: "ok"}}}
	waiting := o
	waiting.Parts = o.Parts[:1]
	done := o
	done.Action = dsn.Delivered
	for _, tt := range []struct {
		kind proto.NoticeKind
		o    mail.Outcome
		want []string
	}{
		{proto.NoticeDelay, o, []string{"late@x.test"}},
		{proto.NoticeDelay, waiting, []string{"r1@x.test"}},
		{proto.NoticeExpired, waiting, []string{"r1@x.test"}},
		{proto.NoticeTrace, o, []string{"gone@x.test", "late@x.test", "there@x.test"}},
		{proto.NoticeSuccess, o, []string{"there@x.test"}},
		{proto.NoticeSuccess, done, []string{"there@x.test"}},
		{proto.NoticeSuccess, mail.Outcome{Rcpt: 1, Action: dsn.Expanded}, []string{"r1@x.test"}},
	} {
		env, c := manyRecipients(), &cleanup{}
		env.Recipients[1].Notify, env.Recipients[1].Original = dsn.NotifySuccess|dsn.NotifyDelay|dsn.NotifyFailure, "first@x.test"
		s, _ := newTestService(t, "", &fakeStore{env: env, content: testMessage}, c)
		if _, err := s.Notify(t.Context(), &proto.Notify{Notice: tt.kind, ID: env.ID, Outcomes: []mail.Outcome{tt.o}}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range c.got {
			for _, m := range finalRecipient.FindAllStringSubmatch(string(c.got[i].Content), -1) {
				got = append(got, m[1])
			}
			if o := parse(t, c.got[i].Content).Status[1]["Original-Recipient"]; o != "rfc822; first@x.test" {
				t.Errorf("kind %d: original recipient %q", tt.kind, o)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("kind %d: told of %q, not %q", tt.kind, got, tt.want)
		}
	}
}
