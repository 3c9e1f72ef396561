package qmgr

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/srs"
	"posthaste/internal/table"
)

// srsMain is a main.cf with SRS, and with more.
func srsMain(t *testing.T, more string) string {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("first secret\nsecond secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return "srs_domain = fwd.test\nsrs_secret_file = " + file + "\n" + more
}

// testSRS takes apart what srsMain makes.
var testSRS = &srs.Rewriter{Domain: "fwd.test", Secrets: []string{"first secret"}, Separator: '=', HashLength: 4, HashMinimum: 4, MaxDays: 1}

// The sender is rewritten where mail that was for an address here leaves for another site, and
// nowhere else. here.test is a domain of this system, all others are foreign.
func TestRewrittenSenders(t *testing.T) {
	t.Parallel()
	outside := mail.Client{Addr: "192.0.2.7", Name: "unknown", Proto: "ESMTP"}
	const aliased, direct = "box@here.test", ""
	for _, c := range []struct {
		name, main, sender, original, to string
		client                           mail.Client
		rewritten                        bool
	}{
		{"forwarded", "", "ann@sender.test", aliased, "joe@far.test", outside, true},
		{"forwarded, submitted here", "", "ann@sender.test", aliased, "joe@far.test", mail.Client{}, true},
		{"to us", "", "ann@sender.test", aliased, "joe@here.test", outside, false},
		{"ours", "", "ann@here.test", aliased, "joe@far.test", outside, false},
		{"rewritten by us already", "", "SRS0=QsOT=JQ=sender.test=ann@fwd.test", aliased, "joe@far.test", outside, false},
		{"rewritten elsewhere", "", "SRS0=QsOT=JQ=sender.test=ann@first.test", aliased, "joe@far.test", outside, true},
		{"null sender", "", "", aliased, "joe@far.test", outside, false},
		{"sender without domain", "", "ann", aliased, "joe@far.test", outside, false},
		{"excluded", "srs_exclude_domains = other.test, sender.test\n", "ann@Sender.test", aliased, "joe@far.test", outside, false},
		{"excluded with what is below", "srs_exclude_domains = .sender.test\n", "ann@x.sender.test", aliased, "joe@far.test", outside, false},
		{"another is excluded", "srs_exclude_domains = other.test\n", "ann@sender.test", aliased, "joe@far.test", outside, true},
		{"relayed", "", "ann@sender.test", direct, "joe@far.test", outside, false},
		{"relayed, of that class", "srs_classes = relayed\n", "ann@sender.test", direct, "joe@far.test", outside, true},
		{"forwarded, not of that class", "srs_classes = relayed local\n", "ann@sender.test", aliased, "joe@far.test", outside, false},
		{"local", "", "ann@sender.test", direct, "joe@far.test", mail.Client{}, false},
		{"local, of that class", "srs_classes = forwarded local\n", "ann@sender.test", direct, "joe@far.test", mail.Client{}, true},
		{"relayed, not local", "srs_classes = forwarded local\n", "ann@sender.test", direct, "joe@far.test", outside, false},
		{"in another case only", "", "ann@sender.test", "Joe@Far.test", "joe@far.test", outside, false},
		{"completed only", "", "ann@sender.test", "joe", "joe@far.test", outside, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, srsMain(t, c.main))
			st.ours = "here.test"
			id := st.fill(faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: c.sender, Size: 3, Client: c.client,
				Recipients: []mail.Recipient{{Address: c.to, Original: c.original}}}})[0]
			smtp := st.agent("smtp", proto.Inventory{})
			st.run()
			o := smtp.next()
			back, err := testSRS.Reverse(o.Envelope.Sender, time.Now())
			switch {
			case !c.rewritten && o.Envelope.Sender != c.sender:
				t.Errorf("the sender is %s", o.Envelope.Sender)
			case c.rewritten && (err != nil || back != c.sender):
				t.Errorf("the sender is %s, which leads to %s, %v", o.Envelope.Sender, back, err)
			}
			// A report is for who has sent it: it goes there directly.
			if o.answer("fail"); c.sender != "" {
				st.until("the notice", func() bool { return len(st.notices) == 1 })
			}
			st.waitOp(id, "its removal", removed)
			st.quiet()
		})
	}
}

// One message for a recipient here and one outside: each gets it with the sender that is right
// for it. With VERP, the sender that is rewritten is the one with the recipient.
func TestRewrittenPerRecipient(t *testing.T) {
	t.Parallel()
	for _, verp := range []string{"", "+="} {
		st := newStage(t, srsMain(t, ""))
		st.ours, st.routes["here.test"] = "here.test", "local:here.test"
		id := st.fill(faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "ann@sender.test", Size: 3, VERP: verp,
			Recipients: []mail.Recipient{{Address: "box@here.test"}, {Address: "joe@far.test", Original: "box@here.test"}}}})[0]
		smtp, local := st.agent("smtp", proto.Inventory{}), st.agent("local", proto.Inventory{})
		st.run()
		in, out := local.next(), smtp.next()
		want := "ann@sender.test"
		if verp != "" {
			want = "ann+box=here.test@sender.test"
		}
		if in.Envelope.Sender != want {
			t.Errorf("VERP %q: the sender inside is %s, not %s", verp, in.Envelope.Sender, want)
		}
		if back, err := testSRS.Reverse(out.Envelope.Sender, time.Now()); err != nil || back != want {
			t.Errorf("VERP %q: the sender outside is %s, which leads to %s, %v; not to %s", verp, out.Envelope.Sender, back, err, want)
		}
		in.answer("ok")
		out.answer("ok")
		st.waitOp(id, "its removal", removed)
		st.quiet()
	}
}

// What was led on from a domain of srs_forward_domains has a sender of that domain, unless the same delivery is for others, too.
func TestRewrittenOfDomain(t *testing.T) {
	t.Parallel()
	from := func(original string) mail.Recipient {
		return mail.Recipient{Address: strings.ToLower(original) + ".far.test", Original: original}
	}
	for _, c := range []struct {
		name string
		to   []mail.Recipient
		want string
	}{
		{"its own", []mail.Recipient{from("info@One.test")}, "one.test"},
		{"of two recipients", []mail.Recipient{from("info@one.test"), from("sales@one.test")}, "one.test"},
		{"another one's", []mail.Recipient{from("info@two.test")}, "two.test"},
		{"of none of them", []mail.Recipient{from("info@here.test")}, "fwd.test"},
		{"of two domains", []mail.Recipient{from("info@one.test"), from("info@two.test")}, "fwd.test"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, srsMain(t, "srs_forward_domains = one.test, Two.test\n"))
			st.ours = "here.test"
			for _, r := range c.to {
				st.routes[rfc5322.Domain(r.Address)] = "smtp:hop.test"
			}
			st.fill(faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "ann@sender.test", Size: 3,
				Client: mail.Client{Addr: "192.0.2.1"}, Recipients: c.to}})
			smtp := st.agent("smtp", proto.Inventory{})
			st.run()
			o := smtp.next()
			if len(o.Envelope.Recipients) != len(c.to) || rfc5322.Domain(o.Envelope.Sender) != c.want {
				t.Errorf("the sender is %s for %d recipients", o.Envelope.Sender, len(o.Envelope.Recipients))
			}
			r := *testSRS
			r.Domains = []string{"one.test", "two.test"}
			if back, err := r.Reverse(o.Envelope.Sender, time.Now()); err != nil || back != "ann@sender.test" {
				t.Errorf("it leads to %s, %v", back, err)
			}
			o.answer("ok")
		})
	}
}

// While nobody can say whose the sender is, the mail waits.
func TestRewrittenUnknown(t *testing.T) {
	t.Parallel()
	for _, main := range []string{"", "srs_exclude_domains = fail:now\n"} {
		st := newStage(t, srsMain(t, main))
		if main == "" {
			st.routes["sender.test"] = "fails:"
		}
		st.fill(faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "ann@sender.test", Size: 3,
			Recipients: []mail.Recipient{{Address: "joe@far.test", Original: "box@here.test"}}}})
		retry := st.agent("retry", proto.Inventory{})
		st.run()
		o := retry.next()
		if o.Nexthop != "4.3.0 address resolver failure" {
			t.Errorf("deferred for %s", o.Nexthop)
		}
		o.answer("defer")
		st.until("it is deferred", func() bool {
			st.mu.Unlock()
			defer st.mu.Lock()
			rows, _ := st.shape(false, "deferred")
			return slices.Equal(rows, []string{"far.test: 1"})
		})
		st.quiet()
	}
}

func TestRewritingSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ main, want string }{
		{srsMain(t, ""), ""},
		{"srs_domain =\nsrs_secret_file = /nowhere\n", ""},
		{srsMain(t, "srs_classes = forwarded, remote\n"), "srs_classes: remote: expected forwarded, local or relayed"},
		{srsMain(t, "srs_hash_minimum = 5\n"), "srs_hash_minimum: 5 is more than srs_hash_length, which is 4"},
		{srsMain(t, "srs_domain = nodot\n"), `srs_domain: "nodot" is not a domain`},
		{srsMain(t, "srs_secret_file = /nowhere\n"), "srs_secret_file: open /nowhere: no such file or directory"},
		{srsMain(t, "srs_secret_file = /dev/null\n"), "srs_secret_file: /dev/null: there is no secret in it"},
	} {
		cfg, err := config.LoadString(c.main)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Load(cfg, nil, table.Options{}, t.Logf)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %s", c.main, err, c.want)
		}
	}
}
