package logread

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/rfc5322"
)

var now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.Local)

// all reads everything.
func all(t testing.TB, r io.Reader) (lines []Line) {
	t.Helper()
	lr := NewReader(r, now)
	for {
		l, err := lr.Next()
		if err == io.EOF {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		c := *l
		for _, p := range []*[]byte{&c.Raw, &c.Tag, &c.Instance, &c.Program, &c.Process, &c.Level, &c.ID, &c.Text} {
			*p = bytes.Clone(*p)
		}
		lines = append(lines, c)
	}
}

// The parts of a line are the same in every form.
func TestForms(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 17, 56, 1, 0, time.Local)
	zone := at.Format("-07:00")
	for _, line := range []string{
		"Nov 20 17:56:01 mx postfix/submission/smtpd[1357]: warning: 076AF9D46E1: say \"x\" \\ y",
		"2026-11-20T17:56:01.000000" + zone + " mx postfix/submission/smtpd[1357]: warning: 076AF9D46E1: say \"x\" \\ y",
		"2026-11-20T17:56:01" + strings.Replace(zone, ":", "", 1) + " mx postfix/submission/smtpd[1357]: warning: 076AF9D46E1: say \"x\" \\ y",
		`{"time":"2026-11-20T17:56:01.000000` + zone + `","host":"mx","delays":[1,{"a":"]"},2],"process":"postfix/submission/smtpd","pid":1357,"level":"warning","queue_id":"076AF9D46E1","text":"warning: 076AF9D46E1: say \"x\" \\ y"}`,
		`Nov 20 17:56:09 mx postfix/x[1]: {"time":"2026-11-20T17:56:01.000000` + zone + `","process":"postfix/submission/smtpd","pid":1357,"text":"warning: 076AF9D46E1: say \u0022x\" \\ y"}`,
	} {
		for name, r := range map[string]io.Reader{"whole": strings.NewReader(line + "\n"), "without end": strings.NewReader(line), "by octets": iotest.OneByteReader(strings.NewReader("\n" + line + "\n"))} {
			got := all(t, r)
			if len(got) != 1 {
				t.Errorf("%s: %d lines of %s", name, len(got), line)
				continue
			}
			l := got[0]
			if l.Time != at.UnixMicro() || string(l.Tag) != "postfix/submission/smtpd" || string(l.Instance) != "postfix" || string(l.Program) != "smtpd" ||
				string(l.Process) != "1357" || string(l.Level) != "warning" || string(l.ID) != "076AF9D46E1" || string(l.Text) != `say "x" \ y` {
				t.Errorf("%s: %s is %+v", name, line, l)
			}
		}
	}
}

// What is no line of a mail system is passed over, and does not end the reading.
func TestPassedOver(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"", "x", "Nov 20 17:56:01 mx cron[7]: job", "Nov 20 17:56:01 mx postfix/smtpd: no process", "postfix/smtpd[x]: y", "/smtpd[1]: y",
		"{", `{"time":"x"}`, `{"text":"no tag"}`, `{"text":"a","process":"postfix/x"`[:20], strings.Repeat("x", maxLine+1), strings.Repeat("postfix/x[1]: ", maxLine/10)} {
		got := all(t, strings.NewReader(line+"\npostfix/qmgr[1]: 4aAAAA1z: removed\n"))
		if len(got) != 1 || string(got[0].ID) != "4aAAAA1z" || string(got[0].Text) != "removed" || got[0].Time != 0 {
			t.Errorf("behind %.40q: %v", line, got)
		}
	}
}

// A line without a year is of the last year in which it is not to come.
func TestYears(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ stamp, now, want string }{
		{"Nov 24 11:59:59", "2026-11-24 12:00", "2026-11-24 11:59:59"},
		{"Nov 25 11:00:00", "2026-11-24 12:00", "2026-11-25 11:00:00"}, // a clock may be wrong
		{"Nov 26 11:00:00", "2026-11-24 12:00", "2025-11-26 11:00:00"},
		{"Dec 31 23:59:59", "2027-01-01 00:00", "2026-12-31 23:59:59"},
		{"Jan  1 00:00:00", "2026-12-31 23:59", "2027-01-01 00:00:00"},
		{"Feb 29 00:00:00", "2026-11-24 12:00", "2024-02-29 00:00:00"},
	} {
		at, err := time.ParseInLocation("2006-01-02 15:04", c.now, time.Local)
		if err != nil {
			t.Fatal(err)
		}
		l, err := NewReader(strings.NewReader(c.stamp+" mx postfix/qmgr[1]: x\n"), at).Next()
		if err != nil {
			t.Fatal(err)
		}
		if got := time.UnixMicro(l.Time).Format(time.DateTime); got != c.want {
			t.Errorf("%s is %s at %s, want %s", c.stamp, got, c.now, c.want)
		}
	}
}

// Whatever addresses and reasons are, the line of a delivery reads back: no stranger makes it say something else.
func TestDelivery(t *testing.T) {
	t.Parallel()
	hostile := []string{`x>, relay=none, delay=0, delays=0/0/0/0, dsn=2.0.0, status=sent (ok)`, `a"b`, `a\`, `>`, ` `, `", status=sent (`, `plain`, `a>b"c\d`}
	rapid.Check(t, func(t *rapid.T) {
		addr := rapid.Custom(func(t *rapid.T) string {
			return rfc5322.Quote(rapid.OneOf(rapid.SampledFrom(hostile), rapid.StringMatching(`[a-z>"\\ ,=()]{1,8}`)).Draw(t, "local") + "@b.test")
		})
		e := maillog.Delivery{ID: "4aAAAA1z", To: addr.Draw(t, "to"), Relay: "mx.b.test[192.0.2.1]:25", Status: rapid.SampledFrom([]string{"sent", "deferred", "bounced"}).Draw(t, "status"),
			DSN: dsn.S(2, 0, 0), Text: rapid.SampledFrom([]string{"250 ok", "x) status=bounced (y", "", "forwarded as 4bBBBB2z"}).Draw(t, "text")}
		if rapid.Bool().Draw(t, "alias") {
			e.OrigTo = addr.Draw(t, "orig")
		}
		var l Line
		l.cut(e.Append(nil))
		d, ok := l.Delivery()
		want := e.OrigTo
		if strings.EqualFold(e.OrigTo, e.To) {
			want = ""
		}
		if !ok || string(l.ID) != e.ID || string(d.To) != e.To || string(d.OrigTo) != want || string(d.Status) != e.Status || string(d.Reason) != e.Text {
			t.Fatalf("%s\nis %q, %q", e.Append(nil), l.ID, d)
		}
		if id, ok := d.Forwarded(); ok != (e.Text == "forwarded as 4bBBBB2z") || ok && string(id) != "4bBBBB2z" {
			t.Fatalf("forwarded as %q, %v", id, ok)
		}
	})
}

// The other events that say something of a message read back.
func TestEvents(t *testing.T) {
	t.Parallel()
	cut := func(e maillog.Event) *Line {
		l := new(Line)
		l.cut(e.Append(nil))
		return l
	}
	from := rfc5322.Quote(`x>, size=1, nrcpt=9 (queue active)@a.test`)
	for _, c := range []struct {
		from string
	}{{""}, {"s@a.test"}, {from}} {
		a, ok := cut(maillog.QueueActive{ID: "4aAAAA1z", From: c.from, Size: 5, NRcpt: 3}).Active()
		if a.NRcpt != 3 || a.Size != 5 || string(a.From) != c.from || !ok {
			t.Errorf("from=<%s>: %+v, %v", c.from, a, ok)
		}
		for _, forced := range []bool{false, true} {
			l := cut(maillog.Expired{ID: "4aAAAA1z", From: c.from, Forced: forced})
			if got, ok := l.Expired(); got != forced || !ok {
				t.Errorf("%s: %v, %v", l.Text, got, ok)
			}
			if _, ok := l.Active(); ok {
				t.Errorf("%s: active", l.Text)
			}
		}
	}
	for _, kind := range []maillog.Notice{maillog.SenderBounce, maillog.SenderDelay, maillog.SenderStatus, maillog.PostmasterBounce, maillog.PostmasterDelay} {
		if id, ok := cut(maillog.BounceNotice{ID: "4aAAAA1z", Kind: kind, NewID: "4bBBBB2z"}).Notice(); string(id) != "4bBBBB2z" || !ok {
			t.Errorf("%s: %q, %v", kind, id, ok)
		}
	}
	if !cut(maillog.Elsewhere{ID: "4aAAAA1z"}).Elsewhere() || cut(maillog.Removed{ID: "4aAAAA1z"}).Elsewhere() {
		t.Error("what another node has is not told from what is removed")
	}
	for text, want := range map[string]string{"requeued as 4bBBBB2z": "4bBBBB2z", "requeued": "", "requeued as x": "-", "removed": "-"} {
		id, ok := (&Line{Text: []byte(text)}).Requeued()
		if got := string(id); ok != (want != "-") || ok && got != want {
			t.Errorf("%s: %q, %v", text, got, ok)
		}
	}
}

func TestPeers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"connect from h.test[192.0.2.1]:4711":                      "h.test[192.0.2.1]",
		"client=unknown[2001:db8::1], orig_client=far.test[::1]":   "unknown[2001:db8::1] far.test[::1]",
		"relay=a[192.0.2.1]:25 (host b[192.0.2.2] said: [] [x] [1": "a[192.0.2.1] b[192.0.2.2]",
		"": "", "[192.0.2.1]": "", "a[]": "", "x[1][2]": "x[1]",
	} {
		var got []string
		for p := range Peers([]byte(text)) {
			got = append(got, string(p))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, packed bool) string {
		var b bytes.Buffer
		if packed {
			z := gzip.NewWriter(&b)
			io.WriteString(z, text)
			z.Close()
		} else {
			b.WriteString(text)
		}
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	line := func(minute int) string {
		return fmt.Sprintf("Nov 23 10:%02d:00 mx postfix/qmgr[1]: 4aAAAA1z: removed\n", minute)
	}
	write("log", line(30), false)
	old := write("log.20261123-101500.gz", line(10), true)
	write("log.20261123-102500", line(20), false)
	write("log.20261123-102500.gz", line(20), true) // the compressor is not through
	write("logger", line(1), false)
	write("log-20261122", line(5), false) // logrotate's dateext
	write("log-20261122.zst", "\x28\xb5\x2f\xfd", false)
	write("log-old", line(2), false)
	names, err := Rotated(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	if names, err = InOrder(names, now); err != nil {
		t.Fatal(err)
	}
	var bases []string
	for _, n := range names {
		bases = append(bases, filepath.Base(n))
	}
	if want := []string{"log-20261122", "log.20261123-101500.gz", "log.20261123-102500", "log"}; !slices.Equal(bases, want) {
		t.Errorf("%q, want %q", bases, want)
	}
	f, err := Open(old, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := all(t, f); len(got) != 1 {
		t.Errorf("%d lines of a compressed file", len(got))
	}
	for name, text := range map[string]string{"none": "no such file", write("bad.gz", "\x1f\x8bxx", false): "gzip"} {
		if _, err := Open(name, nil); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %s", name, err, text)
		}
	}
}

// Characters in JSON are read in all forms in which they may be written.
func TestJSONString(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`"a\u00e9b"x`: "a\u00e9b", `"\ud83d\ude00!"`: "\U0001F600!", `"\ud83d"`: "\ufffd", `"\ud83dx"`: "\ufffdx",
		`"\ud83d\u0041"`: "\ufffdA", `"\ude00"`: "\ufffd", `"\"\\\/\n"`: `"\/?`,
	} {
		if got, _, ok := jsonString([]byte(in), nil); !ok || string(got) != want {
			t.Errorf("%s: %q, %t, want %q", in, got, ok, want)
		}
	}
	for _, in := range []string{"", "x", `"`, `"a`, `"\`, `"\u12`, `"\u1234`} {
		if got, _, ok := jsonString([]byte(in), nil); ok {
			t.Errorf("%s: %q", in, got)
		}
	}
}

// FuzzReader: nothing that a log has makes it fail, or gives parts that are not of the line.
func FuzzReader(f *testing.F) {
	f.Add([]byte("Nov 20 17:56:01 mx postfix/smtpd[1357]: 076AF9D46E1: to=<\"x>\"@y>, orig_to=<z>, relay=none, status=sent (forwarded as 4aAAAA1z)\n"))
	f.Add([]byte(`{"time":"2026-11-20T17:56:01.123456+01:00","process":"postfix/smtp","pid":1,"x":[{}],"text":"a\\\u00e9\""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, l := range all(t, bytes.NewReader(b)) {
			if len(l.Instance) == 0 || len(l.Program) == 0 || len(l.ID)+len(l.Text) > len(l.Raw) {
				t.Fatalf("%+v", l)
			}
			l.Delivery()
			l.Active()
			l.Expired()
			l.Notice()
			l.Requeued()
			l.Client()
			l.Pickup()
			l.MessageID()
			l.Verdict()
			for p := range Peers(l.Text) {
				if !bytes.Contains(l.Text, p) {
					t.Fatalf("%q", p)
				}
			}
		}
	})
}

// A line that names neither its year nor its time zone has those of the Reader, and says so; others have their own.
func TestGuessed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 25, 0, 0, 0, 0, time.FixedZone("there", 7*3600))
	for _, c := range []struct {
		line    string
		want    time.Time
		guessed bool
	}{
		{"Nov 24 10:00:00 mx postfix/qmgr[1]: 4aAAAA1z: removed", time.Date(2026, 11, 24, 3, 0, 0, 0, time.UTC), true},
		{"Nov 27 10:00:00 mx postfix/qmgr[1]: 4aAAAA1z: removed", time.Date(2025, 11, 27, 3, 0, 0, 0, time.UTC), true},
		{"2026-11-24T10:00:00Z mx postfix/qmgr[1]: 4aAAAA1z: removed", time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC), false},
		{`Nov 24 10:00:00 mx postfix/qmgr[1]: {"time":"2026-11-24T10:00:00Z","process":"postfix/qmgr","text":"4aAAAA1z: removed"}`, time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC), false},
	} {
		p := NewParser(now)
		for range 2 { // the second time it is one that is known
			l, ok := p.Parse([]byte(c.line))
			if !ok || l.Time != c.want.UnixMicro() || l.Guessed != c.guessed {
				t.Errorf("%s: %v, %v, guessed %t", c.line, ok, time.UnixMicro(l.Time).UTC(), l.Guessed)
			}
		}
	}
}

// Each form of a line says which host it is of. A line without a host has the time in its place.
func TestHost(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"Nov 20 17:56:01 mx postfix/smtpd[1357]: x":                                                       "mx",
		"2026-11-20T17:56:01.123456+01:00 mx.test postfix/smtpd[1]: x":                                    "mx.test",
		`{"time":"2026-11-20T17:56:01.1+01:00","host":"mx","process":"postfix/smtpd","pid":1,"text":"x"}`: "mx",
		"Nov 20 17:56:01 postfix/smtpd[1357]: x":                                                          "",
		"postfix/smtpd[1357]: x":                                                                          "",
	} {
		if l, ok := NewParser(time.Now()).Parse([]byte(line)); !ok || string(l.Host) != want {
			t.Errorf("%s: %q, %v", line, l.Host, ok)
		}
	}
}
