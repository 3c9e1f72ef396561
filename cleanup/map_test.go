package cleanup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// recipients runs a message without content through c.
func recipients(t *testing.T, c *Core, s *proto.Submit) ([]string, Result) {
	t.Helper()
	_, r := feed(c, s, "Message-Id: <a@b>\r\n\r\n", 0)
	var out []string
	for _, rc := range r.Envelope.Recipients {
		out = append(out, rc.Address)
	}
	return out, r
}

func TestMaps(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("first secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The longest age lets all days be good, of which the tests have one.
	srsConf := "srs_domain = fwd.test\nsrs_max_age = 1022d\nsrs_secret_file = " + file + "\n"
	for _, tc := range []struct {
		name, conf, rcpt, want string
	}{
		{"no map", "", "u@x.y", "u@x.y"},
		{"domain is added", "", "u", "u@example.org"},
		{"null recipient", "", "", "MAILER-DAEMON@example.org"},
		{"virtual", "virtual_alias_maps = inline:{u@x.y=a@b.c}", "u@x.y", "a@b.c"},
		{"virtual, letter case", "virtual_alias_maps = inline:{u@x.y=a@b.c}", "U@X.Y", "a@b.c"},
		{"virtual list", "virtual_alias_maps = inline:{{u@x.y=a, b@c.d, \"q r\"@e.f}}", "u@x.y", "a@example.org b@c.d q r@e.f"},
		{"virtual recursion", "virtual_alias_maps = inline:{{a@x.y=b@x.y,c@x.y} {b@x.y=d@x.y,e@x.y} {c@x.y=f@x.y}}", "a@x.y", "d@x.y f@x.y e@x.y"},
		{"to itself", "virtual_alias_maps = inline:{{u@x.y=u@x.y,v@x.y}}", "u@x.y", "u@x.y v@x.y"},
		{"domain key", "virtual_alias_maps = inline:{{@x.y=@z.w}}", "u+e@x.y", "u+e@z.w"},
		{"domain to one", "virtual_alias_maps = inline:{{@x.y=all@z.w}}", "u+e@x.y", "all@z.w"},
		{"extension goes along", "virtual_alias_maps = inline:{{u@x.y=a@b.c}}", "u+e@x.y", "a+e@b.c"},
		{"extension stays behind", "virtual_alias_maps = inline:{{u@x.y=a@b.c}}\npropagate_unmatched_extensions = canonical\n", "u+e@x.y", "a@b.c"},
		{"extension and new domain", "virtual_alias_maps = inline:{{u@x.y=@b.c}}", "u+e@x.y", "u+e@b.c"},
		{"local part alone", "virtual_alias_maps = inline:{{u=a@b.c}}", "u@example.org", "a@b.c"},
		{"local part of a strange domain", "virtual_alias_maps = inline:{{u=a@b.c}}", "u@x.y", "u@x.y"},
		{"quoted key", `virtual_alias_maps = inline:{{"u v"@x.y=a@b.c}}`, "u v@x.y", "a@b.c"},
		{"canonical", "canonical_maps = inline:{{u@x.y=a@b.c} {a@b.c=d@e.f}}", "u@x.y", "d@e.f"},
		{"recipient canonical first", "recipient_canonical_maps = inline:{{u@x.y=a@b.c}}\ncanonical_maps = inline:{{a@b.c=d@e.f}}", "u@x.y", "d@e.f"},
		{"canonical of another class", "canonical_maps = inline:{{u@x.y=a@b.c}}\ncanonical_classes = header_recipient\n", "u@x.y", "u@x.y"},
		{"canonical, then virtual", "canonical_maps = inline:{{u@x.y=a@b.c}}\nvirtual_alias_maps = inline:{{a@b.c=g@h.i}}", "u@x.y", "g@h.i"},
		{"masquerade is not for recipients", "masquerade_domains = x.y\n", "u@h.x.y", "u@h.x.y"},
		{"masquerade", "masquerade_domains = !a.x.y x.y\nmasquerade_classes = envelope_recipient\n", "u@h.x.y", "u@x.y"},
		{"masquerade, exempt", "masquerade_domains = !a.x.y x.y\nmasquerade_classes = envelope_recipient\n", "u@h.a.x.y", "u@h.a.x.y"},
		{"masquerade, exception", "masquerade_domains = x.y\nmasquerade_exceptions = root\nmasquerade_classes = envelope_recipient\n", "root@h.x.y", "root@h.x.y"},
		{"rewritten sender", srsConf, "SRS0=QsOT=JQ=sender.test=ann@fwd.test", "ann@sender.test"},
		{"rewritten sender, then maps", srsConf + "canonical_maps = inline:{ann@sender.test=an@sender.test}\nvirtual_alias_maps = inline:{an@sender.test=a@b.c}\n", "srs0+qsot=jq=sender.test=ann@fwd.test", "a@b.c"},
		{"not rewritten by us", srsConf, "SRS0=aaaa=JQ=sender.test=ann@fwd.test", "SRS0=aaaa=JQ=sender.test=ann@fwd.test"},
		{"rewritten sender, without srs_domain", "", "SRS0=QsOT=JQ=sender.test=ann@fwd.test", "SRS0=QsOT=JQ=sender.test=ann@fwd.test"},
		{"always_bcc", "always_bcc = arch\n", "u@x.y", "u@x.y arch@example.org"},
		{"recipient_bcc_maps has the key before aliasing", "recipient_bcc_maps = inline:{{u@x.y=w@x.y}}\nvirtual_alias_maps = inline:{{u@x.y=a@b.c} {w@x.y=ww@x.y}}", "u@x.y", "a@b.c ww@x.y"},
		{"sender_bcc_maps", "sender_bcc_maps = inline:{{@a.test=w@x.y}}", "u@x.y", "w@x.y u@x.y"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, r := recipients(t, newCore(t, tc.conf, nil), submission("remote", tc.rcpt))
			if r.Refused != nil {
				t.Fatal(r.Refused, r.Log)
			}
			if want := strings.ReplaceAll(tc.want, "q r@", "q_r@"); strings.ReplaceAll(strings.Join(got, " "), "q r@", "q_r@") != want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestFlagsOff(t *testing.T) {
	t.Parallel()
	c := newCore(t, "canonical_maps = static:x@y.z\nvirtual_alias_maps = static:v@y.z\nalways_bcc = arch\nheader_checks = static:REJECT\n", nil)
	s := submission("remote", "u@x.y")
	s.Flags = 0
	got, r := recipients(t, c, s)
	if r.Refused != nil || !reflect.DeepEqual(got, []string{"u@x.y"}) || r.Envelope.Sender != "s@a.test" {
		t.Errorf("%q %+v", got, r)
	}
}

func TestSender(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ conf, sender, want string }{
		{"", "", ""},
		{"", "joe", "joe@example.org"},
		{"", "mailer-daemon", ""},
		{"", "mailer-daemon@x.y", "mailer-daemon@x.y"},
		{"sender_canonical_maps = inline:{{joe=j@x.y}}\n", "joe", "j@x.y"},
		{"masquerade_domains = x.y\n", "joe@h.x.y", "joe@x.y"},
	} {
		s := submission("local", "u@x.y")
		s.Envelope.Sender = tc.sender
		if _, r := recipients(t, newCore(t, tc.conf, nil), s); r.Envelope.Sender != tc.want {
			t.Errorf("%q: got %q, want %q", tc.sender, r.Envelope.Sender, tc.want)
		}
	}
}

func TestDuplicates(t *testing.T) {
	t.Parallel()
	const alias = "virtual_alias_maps = inline:{{a@x.y=b@x.y}}\n"
	for _, tc := range []struct{ conf, want string }{
		// Reached by two original addresses, b gets two copies...
		{alias, "b@x.y b@x.y"},
		// ...unless nobody could tell them apart.
		{alias + "enable_original_recipient = no\n", "b@x.y"},
	} {
		got, _ := recipients(t, newCore(t, tc.conf, nil), submission("remote", "a@x.y", "b@x.y", "B@x.y", "b@x.y"))
		got = got[:len(got):len(got)]
		if tc.conf == alias {
			// B@x.y has another original address.
			tc.want = "b@x.y b@x.y"
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%s: got %q, want %q", tc.conf, s, tc.want)
		}
	}
	// Past the limit duplicates are not recognized.
	got, _ := recipients(t, newCore(t, "duplicate_filter_limit = 2\n", nil), submission("remote", "a@x.y", "b@x.y", "c@x.y", "a@x.y", "b@x.y", "c@x.y"))
	if s := strings.Join(got, " "); s != "a@x.y b@x.y c@x.y c@x.y" {
		t.Errorf("limit: %q", s)
	}
}

func TestAliasNotices(t *testing.T) {
	t.Parallel()
	c := newCore(t, "virtual_alias_maps = inline:{{a@x.y=b@x.y,c@x.y}}\n", nil)
	s := submission("remote", "a@x.y", "z@x.y")
	s.Envelope.Recipients[0].Notify = dsn.NotifySuccess
	s.Envelope.Recipients[1].Notify = dsn.NotifySuccess | dsn.NotifyFailure
	_, r := recipients(t, c, s)
	if len(r.Notices) != 1 || r.Notices[0].Outcome.Action != dsn.Expanded || r.Notices[0].Recipient.Address != "a@x.y" {
		t.Errorf("notices %+v", r.Notices)
	}
	want := []mail.Recipient{
		{Address: "b@x.y", Original: "a@x.y", ORCPT: "rfc822;a@x.y", Notify: dsn.NotifyNever},
		{Address: "c@x.y", Original: "a@x.y", ORCPT: "rfc822;a@x.y", Notify: dsn.NotifyNever},
		{Address: "z@x.y", ORCPT: "rfc822;z@x.y", Notify: dsn.NotifySuccess | dsn.NotifyFailure},
	}
	if !reflect.DeepEqual(r.Envelope.Recipients, want) {
		t.Errorf("recipients %+v", r.Envelope.Recipients)
	}
	s = submission("remote", "a@x.y")
	s.Envelope.Trace = mail.TraceProbe
	got, r := recipients(t, c, s)
	if len(got) != 0 || len(r.Notices) != 1 || r.Notices[0].Outcome.Action != dsn.Deliverable || r.Refused != nil {
		t.Errorf("probe: %q %+v", got, r)
	}
}

func TestAliasLimits(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprintf("u%d@x.y", i))
	}
	for _, tc := range []struct{ name, conf, log string }{
		{"expansion", "virtual_alias_expansion_limit = 10\nvirtual_alias_maps = inline:{{a@x.y=" + strings.Join(many, ",") + "}}\n",
			"unreasonable virtual_alias_maps map expansion size for a@x.y -- message not accepted, try again later"},
		{"recursion", "virtual_alias_recursion_limit = 5\nvirtual_alias_maps = pcre:{{/(.*)@x.y/ x$$1@x.y}}\n",
			"unreasonable virtual_alias_maps map nesting for a@x.y -- message not accepted, try again later"},
		{"length", "virtual_alias_address_length_limit = 10\nvirtual_alias_maps = static:abcdefghijk@x.y\n",
			"unreasonable virtual_alias_maps result abcdefghijk@x.y... -- message not accepted, try again later"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, r := recipients(t, newCore(t, tc.conf, nil), submission("remote", "a@x.y"))
			want := refusal{Code: 451, Status: dsn.S(4, 6, 0), Text: "Alias expansion error", Cause: strings.TrimSuffix(tc.log, " -- message not accepted, try again later")}
			if r.Refused == nil || *r.Refused != want {
				t.Errorf("got %+v", r.Refused)
			}
			if len(r.Log) == 0 || r.Log[0].String() != "4XyZ0000000000z1: "+tc.log || !r.Log[0].Warning {
				t.Errorf("log %+v", r.Log)
			}
		})
	}
}

func TestTableFailure(t *testing.T) {
	t.Parallel()
	for _, conf := range []string{"virtual_alias_maps = fail:x\n", "canonical_maps = fail:x\n", "recipient_bcc_maps = fail:x\n",
		"sender_bcc_maps = fail:x\n", "header_checks = fail:x\n", "virtual_alias_maps = hash:/nonexistent/table\n",
		"masquerade_domains = x.y\nmasquerade_exceptions = fail:x\n"} {
		s := submission("local", "a@h.x.y")
		s.Envelope.Sender = "s@h.x.y"
		_, r := recipients(t, newCore(t, conf, nil), s)
		if r.Refused == nil || r.Refused.Code != 451 {
			t.Errorf("%s: %+v", conf, r.Refused)
		}
	}
}

// A one-to-one map that never ends is left after so many steps, and the log says with what.
func TestCanonicalNesting(t *testing.T) {
	t.Parallel()
	c := newCore(t, "canonical_maps = pcre:{{/^(x*)a@x.y/ x$${1}a@x.y}}\n", nil)
	got, r := recipients(t, c, submission("remote", "a@x.y"))
	want := strings.Repeat("x", mapNesting) + "a@x.y"
	if r.Refused != nil || len(got) != 1 || got[0] != want {
		t.Errorf("recipients %q, refused: %v", got, r.Refused)
	}
	text := "4XyZ0000000000z1: unreasonable canonical_maps map nesting for a@x.y -- message accepted with " + want
	if len(r.Log) == 0 || r.Log[0].String() != text || !r.Log[0].Warning {
		t.Errorf("log %+v, want %s", r.Log, text)
	}
}

func TestUTF8(t *testing.T) {
	t.Parallel()
	c := newCore(t, "", nil)
	s := submission("remote", "\u00fc@x.y")
	_, r := recipients(t, c, s)
	if r.Envelope.Body&(mail.BodyUTF8Addr|mail.BodySMTPUTF8) != mail.BodyUTF8Addr {
		t.Errorf("flags %b", r.Envelope.Body)
	}
	s.Flags |= proto.SubmitAutoUTF8
	if _, r = recipients(t, c, s); r.Envelope.Body&mail.BodySMTPUTF8 == 0 || r.Envelope.Recipients[0].ORCPT != "utf-8;\u00fc@x.y" {
		t.Errorf("flags %b %+v", r.Envelope.Body, r.Envelope.Recipients)
	}
	_, r = feed(c, submission("remote", "a@b.c"), "Subject: \u00fc\r\n\r\n\u00fc\r\n", 1)
	if r.Envelope.Body != mail.BodyUTF8Hdr|mail.Body8Bit|mail.BodyGauged {
		t.Errorf("flags %b", r.Envelope.Body)
	}
}

func TestStandardNeedsNoService(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]bool{"": true, "a@b.c": true, "a": false, "a@b": false, "a@b.c.": false, "@a:b@c.d": false,
		"a@b@c.d": false, "a@[127.0.0.1]": true, "a@.b": false} {
		if got := isStandard(addr); got != want {
			t.Errorf("%q: %v", addr, got)
		}
	}
	// What is passed by must be what the service would not change.
	_ = context.Background()
}

// A recipient is not added a second time by the settings for automatic BCC.
func TestNoBCC(t *testing.T) {
	t.Parallel()
	c := newCore(t, "always_bcc = Log@bcc.test\nrecipient_bcc_maps = inline:{ {a@to.test=new@bcc.test}, {b@to.test=old@bcc.test} }\n", nil)
	s := submission("local", "a@to.test", "b@to.test")
	s.NoBCC = []string{"log@bcc.test", "old@bcc.test", "b@to.test"}
	got, _ := recipients(t, c, s)
	if want := "a@to.test new@bcc.test b@to.test"; strings.Join(got, " ") != want {
		t.Errorf("recipients %q, want %q", got, want)
	}
}
