package plain

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/spooltool/faketest"
)

func sample() *Message {
	at := time.UnixMicro(1795251386000001)
	return &Message{Queue: "deferred", Next: at.Add(time.Hour), Attempts: 3, Warned: true, Expire: true,
		Done: map[int]bool{1: true},
		Outcomes: map[int]mail.Outcome{2: {Rcpt: 2, Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: "connect to \"x\"", Relay: "none",
			MTA: "mx.to.test", DiagType: "smtp", DiagText: "450 4.4.1 no\nreally", Owner: "owner-list@to.test", Passed: true, When: at,
			Parts: []mail.Part{{Address: "late@to.test", Action: dsn.Deferred, Status: dsn.S(4, 2, 2)},
				{Address: " m", Action: dsn.Failed, Status: dsn.S(5, 1, 1), Reason: "unknown", Relay: "local", MTA: "mx", DiagType: "x-unix", DiagText: "no\tsuch user",
					Owner: "o@to.test", More: 7, Told: true}}}},
		Envelope: mail.Envelope{ID: "4jWmK60qnzz1SDZl", Arrival: at, Sender: "s p\x00\xff@from.test", Size: 5305,
			Body: mail.Body8Bit | mail.BodyUTF8Addr, EnvID: " env ", MessageID: "<m@x>", Ret: dsn.RetHeaders,
			Client: mail.Client{Name: "c", Addr: "192.0.2.1", Port: "77", Helo: "h", Proto: "ESMTP"},
			SASL:   mail.SASL{Method: "PLAIN", Username: "u", Sender: "s"}, Reverse: "r", Trace: mail.TraceRecord | mail.TraceProbe,
			RewriteContext: "remote", LogIdent: "I", Filter: "smtp:x", Redirect: "q@x", VERP: "+=", Pool: "p", Tenant: "acme", Campaign: "spring", List: "n", RequireTLS: true, TLSOptional: true, Forwarded: true, SendAt: at.Add(time.Minute),
			Recipients: []mail.Recipient{{Address: "b@to.test"}, {Address: "done@to.test"},
				{Address: "café <x>@to.test", Original: "list@to.test", ORCPT: "rfc822;L", Notify: dsn.NotifySuccess | dsn.NotifyDelay}}}}
}

// Every field survives: one that is added to the envelope and forgotten in the
// tables fails here.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	want := sample()
	v := reflect.ValueOf(want.Envelope)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the sample has no %s", v.Type().Field(i).Name)
		}
	}
	for _, v := range []reflect.Value{reflect.ValueOf(want.Outcomes[2]), reflect.ValueOf(want.Outcomes[2].Parts[1])} {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("the sample's %s has no %s", v.Type().Name(), v.Type().Field(i).Name)
			}
		}
	}
	content := "Subject: x\r\n\r\n.dot\r\n\r\nlast\r\n"
	var b bytes.Buffer
	if err := Write(&b, want, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "message.txt")
	if os.Getenv("REWRITE") != "" {
		os.WriteFile(golden, b.Bytes(), 0o644)
	}
	if text, err := os.ReadFile(golden); err != nil || !bytes.Equal(text, b.Bytes()) {
		t.Errorf("%v\n%s", err, b.String())
	}
	got, c, err := Read(iotest.OneByteReader(&b))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	if p, err := io.ReadAll(c); err != nil || string(p) != content {
		t.Errorf("content %q, %v", p, err)
	}
}

// What is exported from a spool is what was put there.
func TestFromSpool(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	in := sample()
	large := strings.Repeat(strings.Repeat("x", 70)+"\r\n", 5000)
	ids := s.Fill(
		faketest.Mail{Envelope: in.Envelope, Content: "Subject: x\r\n\r\nx\r\n", Queue: queue.Deferred, Done: []int{1}, Attempts: 3,
			Next: in.Next, Outcomes: []mail.Outcome{in.Outcomes[2]}},
		faketest.Mail{Envelope: in.Envelope, Content: large, Queue: queue.Hold})
	rd := spool.NewReader(nil, filepath.Join(s.Queue, "spool"))
	defer rd.Close()
	for i, e := range []queue.Entry{s.Entries()[ids[0]], s.Entries()[ids[1]]} {
		m, c, err := FromSpool(rd, &e)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := Write(&b, m, c); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Damaged(), c.Close()); err != nil {
			t.Error(err)
		}
		got, content, err := Read(&b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%v\n got %+v\nwant %+v", err, got, m)
		}
		want := sample()
		want.Envelope.ID = ids[i]
		want.Warned, want.Expire = false, false
		if i == 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("\n got %+v\nwant %+v", got, want)
		}
		if p, err := io.ReadAll(content); err != nil || string(p) != []string{"Subject: x\r\n\r\nx\r\n", large}[i] {
			t.Errorf("content of %d octets, %v", len(p), err)
		}
	}
}

// Damage somewhere in a large message does not keep the rest from being read.
func TestDamagedContent(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	in := sample()
	large := strings.Repeat(strings.Repeat("x", 70)+"\r\n", 5000)
	id := s.Fill(faketest.Mail{Envelope: in.Envelope, Content: large})[0]
	path := filepath.Join(s.Queue, "spool", "big", string(id))
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[200000] = 'y'
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	rd := spool.NewReader(nil, filepath.Join(s.Queue, "spool"))
	defer rd.Close()
	e := s.Entries()[id]
	_, c, err := FromSpool(rd, &e)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := io.ReadAll(c)
	if want := large[:200000] + "y" + large[200001:]; err != nil || string(got) != want || !errors.Is(c.Damaged(), queue.ErrCorrupt) {
		t.Errorf("%d octets of %d, %v, %v", len(got), len(large), err, c.Damaged())
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"":                                                               ErrNotPlain.Error(),
		"From: x\n\n":                                                    ErrNotPlain.Error(),
		"Posthaste-Message: 2\n\n":                                       "version \"2\"",
		"Posthaste-Message: 1\nSender: <>\n":                             "line 3: unexpected EOF",
		"Posthaste-Message: 1\nSender: x\n\n":                            "line 2: Sender: expected an address in angle brackets",
		"Posthaste-Message: 1\nColour: x\n\n":                            "line 2: Colour: no such field",
		"Posthaste-Message: 1\nx\n\n":                                    "line 2: expected NAME: VALUE",
		"Posthaste-Message: 1\n State: done\n":                           "line 2: State: no recipient before it",
		"Posthaste-Message: 1\nArrival: noon\n\n":                        "expected a time",
		"Posthaste-Message: 1\nQueue-ID: ../x\n\n":                       "not a queue ID",
		"Posthaste-Message: 1\nRecipient: <x>\n Reason: y\n\n":           "no Outcome before it",
		"Posthaste-Message: 1\nRecipient: <x>\n Outcome: lost 4.0.0\n\n": "unknown action",
		"Posthaste-Message: 1\nRecipient: <x>\n Part: <y>\n\n":           "no Outcome before it",
		"Posthaste-Message: 1\nRecipient: <x>\n Outcome: failed 5.0.0\n  Told: yes\n\n":                 "Told: no Part before it",
		"Posthaste-Message: 1\nRecipient: <x>\n Outcome: failed 5.0.0\n Part: y\n\n":                    "expected an address in angle brackets",
		"Posthaste-Message: 1\nRecipient: <x>\n Outcome: failed 5.0.0\n Part: <y>\n  Notify: NEVER\n\n": "Notify: no such field",
		"Posthaste-Message: 1\nSender: \"<\\q>\"\n\n":                                                   "invalid syntax",
		"Posthaste-Message: 1\nX: " + strings.Repeat("x", maxLine) + "\n\n":                             "longer than",
	} {
		if _, _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60q: %v, want %q", text, err, says)
		}
	}
}

func TestProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		str := rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOf(rapid.Byte()).Draw(t, "s")) })
		want := &Message{Done: map[int]bool{}, Outcomes: map[int]mail.Outcome{}}
		want.Envelope.Sender, want.Envelope.EnvID = str.Draw(t, "sender"), str.Draw(t, "envid")
		for i := range rapid.IntRange(0, 3).Draw(t, "rcpts") {
			want.Envelope.Recipients = append(want.Envelope.Recipients, mail.Recipient{Address: str.Draw(t, "a"), ORCPT: str.Draw(t, "o")})
			if rapid.Bool().Draw(t, "failed") {
				want.Outcomes[i] = mail.Outcome{Rcpt: i, Action: dsn.Failed, Status: dsn.S(5, 0, 0), Reason: str.Draw(t, "r"), Owner: str.Draw(t, "owner")}
				for range rapid.IntRange(0, 2).Draw(t, "parts") {
					o := want.Outcomes[i]
					o.Parts = append(o.Parts, mail.Part{Address: str.Draw(t, "part"), Action: dsn.Failed, Status: dsn.S(5, 1, 1), Reason: str.Draw(t, "why"), Told: rapid.Bool().Draw(t, "told")})
					want.Outcomes[i] = o
				}
			} else if rapid.Bool().Draw(t, "done") {
				want.Done[i] = true
			}
		}
		var content strings.Builder
		for range rapid.IntRange(0, 5).Draw(t, "lines") {
			line := str.Draw(t, "line")
			content.WriteString(strings.NewReplacer("\r", "", "\n", "").Replace(line) + "\r\n")
		}
		var b bytes.Buffer
		if err := Write(&b, want, strings.NewReader(content.String())); err != nil {
			t.Fatal(err)
		}
		got, c, err := Read(&b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v\n got %+v\nwant %+v", err, got, want)
		}
		if p, err := io.ReadAll(c); err != nil || string(p) != content.String() {
			t.Fatalf("content %q want %q, %v", p, content.String(), err)
		}
	})
}

func TestLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 32<<10-1)
	for in, want := range map[string][2]string{
		"":                   {"", ""},
		"a\r\nb\nc":          {"a\nb\nc", "a\r\nb\r\nc\r\n"},
		"a\rb\r\r\n\r":       {"a\rb\r\n\r", "a\rb\r\r\n\r\r\n"},
		"\n":                 {"\n", "\r\n"},
		long + "\r\nz\r\n":   {long + "\nz\n", long + "\r\nz\r\n"},
		long + "\rz\r\n":     {long + "\rz\n", long + "\rz\r\n"},
		long + "xx\r\n":      {long + "xx\n", long + "xx\r\n"},
		long + "x\r\n\r\n":   {long + "x\n\n", long + "x\r\n\r\n"},
		long[1:] + "\r\r\nz": {long[1:] + "\r\nz", long[1:] + "\r\r\nz\r\n"},
	} {
		for _, wrap := range []func(io.Reader) io.Reader{func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.DataErrReader} {
			lf, err1 := io.ReadAll(LF(wrap(strings.NewReader(in))))
			crlf, err2 := io.ReadAll(CRLF(wrap(strings.NewReader(in))))
			if err := errors.Join(err1, err2); err != nil || string(lf) != want[0] || string(crlf) != want[1] {
				t.Errorf("%.20q (%d): LF %.20q CRLF %.20q, %v", in, len(in), lf, crlf, err)
			}
		}
	}
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	Write(&b, sample(), strings.NewReader("x\r\n"))
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, p []byte) {
		m, c, err := Read(bytes.NewReader(p))
		if err != nil {
			return
		}
		content, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := Write(&out, m, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		again, c2, err := Read(&out)
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%v\n got %+v\nwant %+v", err, again, m)
		}
		if p, _ := io.ReadAll(c2); !bytes.Equal(p, content) {
			t.Fatalf("content %q, was %q", p, content)
		}
	})
}
