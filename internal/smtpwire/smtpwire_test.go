package smtpwire

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
)

func TestParseMail(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args   string
		strict bool
		want   Mail
		reply  string // "" for none
	}{
		{args: "FROM:<a@b>", want: Mail{From: Path{"a@b", "a@b"}}},
		{args: "from:<>", want: Mail{}},
		{args: "FROM: <a@b>  ", want: Mail{From: Path{"a@b", "a@b"}}},
		{args: "FROM:a@b", want: Mail{From: Path{"a@b", "a@b"}}},
		{args: "FROM:a@b", strict: true, reply: "501 5.1.7 Bad sender address syntax"},
		{args: `FROM:<"a b"@c>`, want: Mail{From: Path{"a b@c", `"a b"@c`}}},
		{args: `FROM:<"a>b"@c> SIZE=1`, want: Mail{From: Path{"a>b@c", `"a>b"@c`}, Size: 1}},
		{args: `FROM:<"a\"b\\"@c>`, want: Mail{From: Path{`a"b\@c`, `"a\"b\\"@c`}}},
		{args: `FROM:<"a@b"@c>`, want: Mail{From: Path{"a@b@c", `"a@b"@c`}}},
		{args: "FROM:<@x,@y:a@b>", want: Mail{From: Path{"a@b", "a@b"}}},
		{args: "FROM:<a@[192.0.2.1]>", want: Mail{From: Path{"a@[192.0.2.1]", "a@[192.0.2.1]"}}},
		{args: "FROM:<a@[IPv6:2001:db8::1]>", want: Mail{From: Path{"a@[IPv6:2001:db8::1]", "a@[IPv6:2001:db8::1]"}}},
		{args: "FROM:<a>", want: Mail{From: Path{"a", "a"}}},
		{args: "FROM:<é@b>", want: Mail{From: Path{"é@b", "é@b"}}},
		{args: "", reply: "501 5.5.4 Syntax: MAIL FROM:<address>"},
		{args: "FROM", reply: "501 5.5.4 Syntax: MAIL FROM:<address>"},
		{args: "FROM:", reply: "501 5.5.4 Syntax: MAIL FROM:<address>"},
		{args: "FROM :<a@b>", reply: "501 5.5.4 Syntax: MAIL FROM:<address>"},
		{args: "TO:<a@b>", reply: "501 5.5.4 Syntax: MAIL FROM:<address>"},
		{args: "FROM:<a@b", reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:<a@b>x", reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:<a b@c>", reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:<a@b@c>", reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:<@b>", reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:<a@>", reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:<<a@b>>", want: Mail{From: Path{"a@b", "a@b"}}},
		{args: "FROM:<<a@b>>", strict: true, reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:<<<a@b>>>", reply: "501 5.1.7 Bad sender address syntax"},
		{args: `FROM:"A (B)" <a@b>`, reply: "555 5.5.4 Unsupported option: <a@b>"},
		{args: `FROM:"A (B)"<(c (d))a @ b> SIZE=1`, want: Mail{From: Path{"a@b", "a@b"}, Size: 1}},
		{args: `FROM:<""@b>`, want: Mail{From: Path{"@b", `""@b`}}},
		{args: `FROM:<a\ "b"@c>`, reply: "501 5.1.7 Bad sender address syntax"},
		{args: `FROM:<a\ \"."b"@c>`, want: Mail{From: Path{`a ".b@c`, `"a \".b"@c`}}},
		{args: "FROM:<@x,@y:a(c)@b>", want: Mail{From: Path{"a@b", "a@b"}}},
		{args: `FROM:<@x"y":a(c)@b>`, reply: "501 5.1.7 Bad sender address syntax"},
		{args: `FROM:a\ b@c SIZE=1`, want: Mail{From: Path{"a b@c", `"a b"@c`}, Size: 1}},
		{args: "FROM:<@x,@y:a@b>", strict: true, want: Mail{From: Path{"a@b", "a@b"}}},
		{args: `FROM:<@x"y":a@b>`, strict: true, reply: "501 5.1.7 Bad sender address syntax"},
		{args: `FROM:"a<b"<c@d>`, want: Mail{From: Path{"c@d", "c@d"}}},
		{args: `FROM:"a\"b"(c)@d`, want: Mail{From: Path{`a"b@d`, `"a\"b"@d`}}},
		{args: "FROM:a)b@c", reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:x<a@b", reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:a@x<b@c>", reply: "501 5.1.7 Bad sender address syntax"},
		{args: `FROM:"a\"<"<b@c>`, want: Mail{From: Path{"b@c", "b@c"}}},
		{args: "FROM:<@x:@b>", reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:<a@[x>", reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:<\xff@b>", reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM:<a\x01@b>", reply: "501 5.1.7 Bad sender address syntax"},
		{args: `FROM:<"a@b>`, reply: "501 5.1.7 Bad sender address syntax"},
		{args: "FROM: a@b c", reply: "555 5.5.4 Unsupported option: c"},
		{args: "FROM:<a@b> SIZE=1000000000000", want: Mail{From: Path{"a@b", "a@b"}, Size: 1000000000000}},
		{args: "FROM:<a@b> SIZE=10 size=20", want: Mail{From: Path{"a@b", "a@b"}, Size: 20}},
		{args: "FROM:<a@b> SIZE=xx", reply: "501 5.5.4 Bad message size syntax"},
		{args: "FROM:<a@b> SIZE=", reply: "501 5.5.4 Bad message size syntax"},
		{args: "FROM:<a@b> SIZE=-1", reply: "501 5.5.4 Bad message size syntax"},
		{args: "FROM:<a@b> SIZE", reply: "555 5.5.4 Unsupported option: SIZE"},
		{args: "FROM:<a@b> SIZE=99999999999999999999", reply: "552 5.3.4 Message size exceeds file system imposed limit"},
		{args: "FROM:<a@b> BODY=8bitmime", want: Mail{From: Path{"a@b", "a@b"}, Body: Body8BitMIME}},
		{args: "FROM:<a@b> BODY=7BIT", want: Mail{From: Path{"a@b", "a@b"}, Body: Body7Bit}},
		{args: "FROM:<a@b> BODY=BINARYMIME", reply: "555 5.5.4 Unsupported option: BODY=BINARYMIME"},
		{args: "FROM:<a@b> SMTPUTF8", want: Mail{From: Path{"a@b", "a@b"}, SMTPUTF8: true}},
		{args: "FROM:<a@b> SMTPUTF8=1", reply: "555 5.5.4 Unsupported option: SMTPUTF8=1"},
		{args: "FROM:<a@b> RET=hdrs ENVID=a+20b", want: Mail{From: Path{"a@b", "a@b"}, Ret: dsn.RetHeaders, EnvID: "a b"}},
		{args: "FROM:<a@b> RET=foo", reply: "501 5.5.4 Bad RET parameter syntax"},
		{args: "FROM:<a@b> RET=FULL RET=FULL", reply: "501 5.5.4 Bad RET parameter syntax"},
		{args: "FROM:<a@b> ENVID=+", reply: "501 5.5.4 Bad ENVID parameter syntax"},
		{args: "FROM:<a@b> ENVID=", reply: "501 5.5.4 Bad ENVID parameter syntax"},
		{args: "FROM:<a@b> ENVID=a ENVID=b", reply: "501 5.5.4 Bad ENVID parameter syntax"},
		{args: "FROM:<a@b> ENVID=" + strings.Repeat("x", 100), want: Mail{From: Path{"a@b", "a@b"}, EnvID: strings.Repeat("x", 100)}},
		{args: "FROM:<a@b> ENVID=+0a", reply: "501 5.5.4 Bad ENVID parameter syntax"},
		{args: "FROM:<a@b> ENVID=" + strings.Repeat("x", 101), reply: "501 5.5.4 Bad ENVID parameter syntax"},
		{args: "FROM:<a@b> AUTH=<>", want: Mail{From: Path{"a@b", "a@b"}, Auth: "<>"}},
		{args: "FROM:<a@b> AUTH=x+40y", want: Mail{From: Path{"a@b", "a@b"}, Auth: "x+40y"}},
		{args: "FROM:<a@b> AUTH=", reply: "501 5.5.4 Bad AUTH parameter syntax"},
		{args: "FROM:<a@b> XVERP=-=", want: Mail{From: Path{"a@b", "a@b"}, VERP: "-="}},
		{args: "FROM:<a@b> XVERP", want: Mail{From: Path{"a@b", "a@b"}, VERP: "default"}},
		{args: "FROM:<a@b> XVERP=-=+", reply: "555 5.5.4 Unsupported option: XVERP=-=+"},
		{args: "FROM:<a@b> REQUIRETLS", want: Mail{From: Path{"a@b", "a@b"}, RequireTLS: true}},
		{args: "FROM:<a@b> FOO=1", reply: "555 5.5.4 Unsupported option: FOO=1"},
	} {
		m, refusal := ParseMail(tc.args, ExtDSN|ExtSMTPUTF8|ExtVERP|ExtRequireTLS, tc.strict)
		got := ""
		if refusal != nil {
			got = refusal.String()
		}
		if got != tc.reply || refusal == nil && m != tc.want {
			t.Errorf("MAIL %q:\n got %+v, %q\nwant %+v, %q", tc.args, m, got, tc.want, tc.reply)
		}
		if about := strings.Contains(got, "address syntax"); IsAddressError(refusal) != about {
			t.Errorf("MAIL %q: %q is about the address: %v", tc.args, got, !about)
		}
	}
	for _, word := range []string{"RET=FULL", "ENVID=x", "SMTPUTF8", "XVERP", "REQUIRETLS"} {
		if _, r := ParseMail("FROM:<a@b> "+word, 0, false); r == nil || r.String() != "555 5.5.4 Unsupported option: "+word {
			t.Errorf("%s without its extension: %v", word, r)
		}
	}
}

func TestParseRcpt(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args  string
		want  Rcpt
		reply string
	}{
		{args: "TO:<a@b>", want: Rcpt{To: Path{"a@b", "a@b"}}},
		{args: "TO:<postmaster>", want: Rcpt{To: Path{"postmaster", "postmaster"}}},
		{args: `TO:<"post master"@x>`, want: Rcpt{To: Path{"post master@x", `"post master"@x`}}},
		{args: "TO:<a@b> NOTIFY=success,Delay ORCPT=rfc822;x+2By@z", want: Rcpt{To: Path{"a@b", "a@b"},
			Notify: dsn.NotifySuccess | dsn.NotifyDelay, ORCPT: "rfc822;x+y@z"}},
		{args: "TO:<a@b> ORCPT=utf-8;é@b", want: Rcpt{To: Path{"a@b", "a@b"}, ORCPT: "utf-8;é@b"}},
		{args: "TO:<>", reply: "501 5.1.3 Bad recipient address syntax"},
		{args: "TO:", reply: "501 5.5.4 Syntax: RCPT TO:<address>"},
		{args: "FROM:<a@b>", reply: "501 5.5.4 Syntax: RCPT TO:<address>"},
		{args: "TO:<a b c>", reply: "501 5.1.3 Bad recipient address syntax"},
		{args: "TO:<al<ice@b>", reply: "501 5.1.3 Bad recipient address syntax"},
		{args: "TO:<a@b> NOTIFY=foo", reply: "501 5.5.4 Error: Bad NOTIFY parameter syntax"},
		{args: "TO:<a@b> NOTIFY=NEVER,SUCCESS", reply: "501 5.5.4 Error: Bad NOTIFY parameter syntax"},
		{args: "TO:<a@b> NOTIFY=NEVER NOTIFY=NEVER", reply: "501 5.5.4 Error: Bad NOTIFY parameter syntax"},
		{args: "TO:<a@b> NOTIFY", reply: "555 5.5.4 Unsupported option: NOTIFY"},
		{args: "TO:<a@b> ORCPT=foo", reply: "501 5.5.4 Error: Bad ORCPT parameter syntax"},
		{args: "TO:<a@b> ORCPT=rfc822;+0d+0a", reply: "501 5.5.4 Error: Bad ORCPT parameter syntax"},
		{args: "TO:<a@b> FOO=1", reply: "555 5.5.4 Unsupported option: FOO=1"},
		{args: "TO:<a@b> FOO=a\x01\x7f", reply: "555 5.5.4 Unsupported option: FOO=a??"},
		{args: "TO:<a@b> ORCPT=rfc(822;x", reply: "501 5.5.4 Error: Bad ORCPT parameter syntax"},
		{args: "TO:<a@b> ORCPT=;x", reply: "501 5.5.4 Error: Bad ORCPT parameter syntax"},
		{args: "TO:<a@b> ORCPT=rfc822;", reply: "501 5.5.4 Error: Bad ORCPT parameter syntax"},
		{args: "TO:<a@b> ORCPT=r;" + strings.Repeat("x", 498), want: Rcpt{To: Path{"a@b", "a@b"}, ORCPT: "r;" + strings.Repeat("x", 498)}},
		{args: "TO:<a@b> ORCPT=r;" + strings.Repeat("x", 499), reply: "501 5.5.4 Error: Bad ORCPT parameter syntax"},
		{args: "TO:<a@b> FOO", reply: "555 5.5.4 Unsupported option: FOO"},
	} {
		r, refusal := ParseRcpt(tc.args, ExtDSN, false)
		got := ""
		if refusal != nil {
			got = refusal.String()
		}
		if got != tc.reply || refusal == nil && r != tc.want {
			t.Errorf("RCPT %q:\n got %+v, %q\nwant %+v, %q", tc.args, r, got, tc.want, tc.reply)
		}
		if about := strings.Contains(got, "address syntax"); IsAddressError(refusal) != about {
			t.Errorf("RCPT %q: %q is about the address: %v", tc.args, got, !about)
		}
	}
}

func TestParseCommand(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		line string
		want Command
	}{
		{"ehlo  x y ", Command{"EHLO", "x y", "ehlo  x y"}},
		{"QUIT", Command{"QUIT", "", "QUIT"}},
		{"", Command{}},
		{" \t", Command{}},
		{" noop", Command{"NOOP", "", " noop"}},
		{"mAiL\tFROM:<a@b>", Command{"MAIL", "FROM:<a@b>", "mAiL\tFROM:<a@b>"}},
	} {
		if got := ParseCommand(tc.line); got != tc.want {
			t.Errorf("%q: %+v, want %+v", tc.line, got, tc.want)
		}
	}
	for line, want := range map[string]bool{"Subject: x": true, "From:x": true, "RCPT TO:<a@b>": false, ": x": false, "": false} {
		if got := LooksLikeHeader(line); got != want {
			t.Errorf("LooksLikeHeader(%q) = %v", line, got)
		}
	}
}

func TestParseBDAT(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args     string
		size     int64
		last, ok bool
	}{
		{"0", 0, false, true}, {"100 LAST", 100, true, true}, {"7 last", 7, true, true}, {"90", 90, false, true}, {"999999999999999999", 999999999999999999, false, true}, {"1:", 0, false, false},
		{"1000000000000000000", 0, false, false}, {"1/", 0, false, false},
		{"", 0, false, false}, {"x", 0, false, false}, {"1 2", 0, false, false}, {"1 LAST 3", 0, false, false},
		{"-1", 0, false, false}, {"1000000000000000000000", 0, false, false},
	} {
		if size, last, ok := ParseBDAT(tc.args); ok != tc.ok || ok && (size != tc.size || last != tc.last) {
			t.Errorf("%q: %d %v %v", tc.args, size, last, ok)
		}
	}
}

func TestReplyForm(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		r    Reply
		want string
	}{
		{Reply{250, dsn.S(2, 1, 0), "Ok"}, "250 2.1.0 Ok\r\n"},
		{Reply{354, dsn.Status{}, "go"}, "354 go\r\n"},
		{Reply{550, dsn.S(5, 7, 1), "a\nb"}, "550-5.7.1 a\r\n550 5.7.1 b\r\n"},
		{Reply{550, dsn.Status{}, "a\rb\x00"}, "550 a?b?\r\n"},
		{Reply{250, dsn.Status{}, strings.Repeat("x", 600)}, "250 " + strings.Repeat("x", 506) + "\r\n"},
	} {
		if got := string(tc.r.Append(nil)); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.r, got, tc.want)
		}
	}
	if got := (&Reply{550, dsn.S(5, 7, 1), "a\nb"}).String(); got != "550 5.7.1 a b" {
		t.Errorf("String = %q", got)
	}
}

func TestParseReply(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Reply{
		"550 5.7.1 no way": {550, dsn.S(5, 7, 1), "no way"},
		"450 later":        {450, dsn.Status{}, "later"},
		"554":              {554, dsn.Status{}, ""},
	} {
		if got, ok := ParseReply(text); !ok || got != want {
			t.Errorf("%q: %+v %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "55", "5501 x", "350 x", "x50 y", "OK"} {
		if r, ok := ParseReply(text); ok {
			t.Errorf("%q: %+v", text, r)
		}
	}
}

func TestParser(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		lines []string
		want  Reply
		bad   bool
	}{
		{lines: []string{"250"}, want: Reply{Code: 250}},
		{lines: []string{"250 2.1.0 Ok"}, want: Reply{250, dsn.S(2, 1, 0), "Ok"}},
		{lines: []string{"550-5.7.1 a", "550 5.7.1 b"}, want: Reply{550, dsn.S(5, 7, 1), "a\nb"}},
		{lines: []string{"550-a", "550 5.7.1 b"}, want: Reply{550, dsn.Status{}, "a\n5.7.1 b"}},
		{lines: []string{"250 5.1.1 x"}, want: Reply{250, dsn.Status{}, "5.1.1 x"}},
		{lines: []string{"250-x", "251 y"}, bad: true},
		{lines: []string{"hello"}, bad: true},
		{lines: []string{"999 x"}, bad: true},
		{lines: []string{"25"}, bad: true},
		{lines: []string{"25x y"}, bad: true},
		{lines: []string{"2/0 y"}, bad: true},
		{lines: []string{"199 y"}, bad: true},
		{lines: []string{"599 y"}, want: Reply{Code: 599, Text: "y"}},
		{lines: []string{"600 y"}, bad: true},
		{lines: append(strings.Split(strings.Repeat("250-x ", MaxReplyLines), " ")[:MaxReplyLines], "250 x"), bad: true},
		{lines: []string{"250 " + strings.Repeat("x", MaxReplySize+1)}, bad: true},
	} {
		var p Parser
		var err error
		done := false
		for _, l := range tc.lines {
			if done, err = p.Line(l); err != nil {
				break
			}
		}
		if tc.bad {
			if err == nil {
				t.Errorf("%.40q: no error", tc.lines)
			}
			continue
		}
		if got := p.Reply(); err != nil || !done || got != tc.want {
			t.Errorf("%q: %+v %v %v", tc.lines, got, done, err)
		}
	}
}

// What a Reply prints, a Parser reads back.
func TestReplyRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := Reply{Code: rapid.SampledFrom([]int{220, 250, 354, 421, 550}).Draw(t, "code"),
			Text: strings.Join(rapid.SliceOfN(rapid.StringMatching(`[A-Za-z]{1,20}( [a-z]{0,20})?`), 1, 5).Draw(t, "text"), "\n")}
		if rapid.Bool().Draw(t, "status") && r.Code/100 != 3 {
			r.Status = dsn.S(uint8(r.Code/100), uint16(rapid.IntRange(0, 9).Draw(t, "s")), 1)
		}
		var p Parser
		for line := range strings.Lines(string(r.Append(nil))) {
			if _, err := p.Line(strings.TrimSuffix(line, "\r\n")); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.Reply(); got != r {
			t.Fatalf("%+v, want %+v", got, r)
		}
	})
}

func TestText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": "", "plain ~": "plain ~", "a\x01b\x7f\n": "a?b??", "\x1fé": "?é"} {
		if got := Printable(text); got != want {
			t.Errorf("Printable(%q) = %q", text, got)
		}
	}
	for text, want := range map[string]bool{"": true, "a\x7f": true, "\x80": false, "aé": false} {
		if IsASCII(text) != want {
			t.Errorf("IsASCII(%q) = %v", text, !want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"MAIL FROM:<a@b> SIZE=1", `RCPT TO:<"a\"b"@[1.2.3.4]> ORCPT=rfc822;x+40`, "BDAT 1 LAST", "250-2.1.0 x",
		"MAIL FROM:<@a,@b:c@d> RET=FULL ENVID=x", "", "MAIL FROM:\\", `RCPT TO:<"`, `MAIL FROM:"x"<<(c)a\ b."c" @ d>> SIZE=2`} {
		f.Add(s)
	}
	clean := func(t *testing.T, what, s string) {
		if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 127 }) {
			t.Errorf("%s holds what it must not: %q", what, s)
		}
	}
	f.Fuzz(func(t *testing.T, line string) {
		c := ParseCommand(line)
		if m, r := ParseMail(c.Args, ExtDSN|ExtSMTPUTF8|ExtVERP, false); r == nil {
			clean(t, "sender", m.From.Address)
			clean(t, "raw sender", m.From.Raw)
			// What is typed loosely means what it is written down as.
			if again, r := ParseMail("FROM:<"+m.From.Raw+">", 0, true); (r != nil || again.From.Address != m.From.Address) && !strings.HasPrefix(m.From.Address, "@") {
				t.Errorf("%q became %q, which is %q (%v)", line, m.From.Raw, again.From.Address, r)
			}
			clean(t, "ENVID", m.EnvID)
			clean(t, "AUTH", m.Auth)
			if m.Size < 0 {
				t.Errorf("size %d", m.Size)
			}
			if m.From.Address != "" && (strings.HasPrefix(m.From.Address, "@") && !strings.Contains(m.From.Raw, `"`) || strings.HasSuffix(m.From.Address, "@") && !strings.Contains(m.From.Raw, `"`)) {
				t.Errorf("%q is no address", m.From.Address)
			}
		} else if out := string(r.Append(nil)); strings.Count(out, "\r\n") != 1 || strings.ContainsAny(strings.TrimSuffix(out, "\r\n"), "\r\n") {
			t.Errorf("reply %q", out)
		}
		if r, refusal := ParseRcpt(c.Args, ExtDSN, false); refusal == nil {
			clean(t, "recipient", r.To.Address)
			clean(t, "ORCPT", r.ORCPT)
			if r.To.Address == "" {
				t.Error("null recipient")
			}
		}
		if n, _, ok := ParseBDAT(c.Args); ok && n < 0 {
			t.Errorf("BDAT %d", n)
		}
		var p Parser
		p.Line(line)
		ParseReply(line)
	})
}
