package postcat

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/spooltool/plain"
)

func run(s *faketest.Site, stdin string, args ...string) (out, errs string, status int) {
	var o, e bytes.Buffer
	if s != nil {
		args = append([]string{"-c", s.Config}, args...)
	}
	status = Run("postcat", args, nil, strings.NewReader(stdin), &o, &e)
	return o.String(), e.String(), status
}

var arrival = time.Date(2026, 11, 21, 8, 56, 26, 0, time.Local)

func sample() faketest.Mail {
	return faketest.Mail{Queue: queue.Deferred, Done: []int{1}, Attempts: 2, Next: arrival.Add(time.Hour),
		Content: "Subject: x\r\n\tfolded\r\n\r\nbody\r\n\r\n.last\r\n",
		Envelope: mail.Envelope{Arrival: arrival, Sender: "s p\x1b@from.test", Size: 99, Body: mail.Body8Bit, EnvID: "abc", Ret: dsn.RetHeaders,
			Client: mail.Client{Name: "c.test", Addr: "192.0.2.1", Port: "77", Helo: "h", Proto: "ESMTP"}, RewriteContext: "remote",
			Recipients: []mail.Recipient{{Address: "d1@to.test", ORCPT: "rfc822;orig@to.test", Notify: dsn.NotifySuccess | dsn.NotifyFailure},
				{Address: "done@to.test"}, {Address: "one@x.test", Original: "al@v.test"}}},
		Outcomes: []mail.Outcome{{Rcpt: 2, Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: "no route", When: arrival}}}
}

const golden = `*** ENVELOPE RECORDS QUEUE/ID ***
message_size:              99           PLACE               3               0              99               0
message_arrival_time: Sat Nov 21 08:56:26 2026
create_time: Sat Nov 21 08:56:26 2026
named_attribute: log_ident=ID
named_attribute: rewrite_context=remote
named_attribute: envelope_id=abc
named_attribute: ret_flags=2
sender: s p?@from.test
named_attribute: encoding=8bit
named_attribute: client_name=c.test
named_attribute: client_address=192.0.2.1
named_attribute: client_port=77
named_attribute: helo_name=h
named_attribute: protocol_name=ESMTP
named_attribute: notify_flags=6
named_attribute: dsn_orig_rcpt=rfc822;orig@to.test
original_recipient: d1@to.test
recipient: d1@to.test
original_recipient: done@to.test
done_recipient: done@to.test
original_recipient: al@v.test
recipient: one@x.test
*** MESSAGE CONTENTS QUEUE/ID ***
Subject: x
	folded

body

.last
*** HEADER EXTRACTED QUEUE/ID ***
named_attribute: encoding=8bit
*** MESSAGE FILE END QUEUE/ID ***
`

var place = regexp.MustCompile(`(message_size: +\d+ )[ \d]{15}`)

func TestQueued(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	id := s.Fill(sample())[0]
	check := func(queue string) {
		t.Helper()
		want := strings.NewReplacer("QUEUE", queue, "ID", string(id)).Replace(golden)
		out, errs, status := run(s, "", "-q", string(id))
		if got := place.ReplaceAllString(out, "${1}          PLACE"); got != want || errs != "" || status != 0 {
			t.Errorf("exit status %d, %q\n%s", status, errs, got)
		}
	}
	check("deferred") // the mail system is down
	entry := s.Entries()[id]
	s.Serve("cleanup", func(r *ipc.Request) {
		q := faketest.Decode[proto.Locate](t, r)
		r.Reply(&proto.LocateReply{Found: q.ID == id, Entry: entry})
	})
	check("deferred")
	s.Serve("qmgr", func(r *ipc.Request) {
		q := faketest.Decode[proto.List](t, r)
		r.Reply(&proto.ListReply{Items: []proto.Item{{ID: q.ID, Queue: "active"}}})
	})
	check("active")
	if _, errs, status := run(s, "", "-q", "4jWmK60rlcz1SCpW"); errs != "postcat: fatal: open queue file 4jWmK60rlcz1SCpW: No such file or directory\n" || status != 66 {
		t.Errorf("exit status %d, %q", status, errs)
	}
	if _, errs, status := run(s, "", "-q", "a/b"); errs != "postcat: fatal: bad mail queue ID: a/b\n" || status != 64 {
		t.Errorf("exit status %d, %q", status, errs)
	}
}

func TestParts(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	id := string(s.Fill(sample())[0])
	for flags, want := range map[string]string{
		"-h":   "Subject: x\n\tfolded\n",
		"-b":   "\nbody\n\n.last\n",
		"-bh":  "Subject: x\n\tfolded\n\nbody\n\n.last\n",
		"-bhd": " 78 Subject: x\n 78 \tfolded\n 78 \n 78 body\n 78 \n 78 .last\n",
		"-bo":  "       19 \n       20 body\n       25 \n       26 .last\n",
		"-hf":  "deferred/" + id + ": Subject: x\ndeferred/" + id + ": \tfolded\n",
	} {
		if out, errs, status := run(s, "", flags, "-q", id); out != want || errs != "" || status != 0 {
			t.Errorf("%s: exit status %d, %q\n%s", flags, status, errs, out)
		}
	}
	if out, _, _ := run(s, "", "-b", "-s", "25", "-q", id); out != "\n.last\n" {
		t.Errorf("-s: %q", out)
	}
	out, _, _ := run(s, "", "-veq", id)
	for _, want := range []string{"named_attribute: last_outcome=Sat Nov 21 08:56:26 2026 delayed 4.4.1 (no route)\n", "=delivery_attempts=2\n"[1:],
		"named_attribute: next_attempt=Sat Nov 21 09:56:26 2026\n", "*** MESSAGE CONTENTS deferred/" + id + " ***\n*** HEADER EXTRACTED"} {
		if !strings.Contains(out, want) {
			t.Errorf("-ve lacks %q:\n%s", want, out)
		}
	}
}

// Content whose checksum is wrong is shown all the same, and said to be damaged.
func TestDamaged(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	id := s.Fill(sample())[0]
	files, err := filepath.Glob(filepath.Join(s.Queue, "spool", "seg", "*"))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(data, []byte("body\r\n")); i > 0 {
			found = true
			data[i] = 'B'
			if err := os.WriteFile(name, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	out, errs, status := run(s, "", "-b", "-q", string(id))
	if !found || out != "\nBody\n\n.last\n" || !strings.Contains(errs, "damaged") || status != 0 {
		t.Errorf("exit status %d, %q, %q", status, errs, out)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := sample()
	m.Envelope.ID = mail.MakeQueueID(arrival, 7)
	var exported, dropped bytes.Buffer
	if err := plain.Write(&exported, &plain.Message{Envelope: m.Envelope, Done: map[int]bool{1: true}}, strings.NewReader(m.Content)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x.txt")
	if err := os.WriteFile(path, exported.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer("QUEUE/ID", path, "ID", string(m.Envelope.ID), "          PLACE", "              0").Replace(golden)
	if out, errs, status := run(nil, "", path); out != want || errs != "" || status != 0 {
		t.Errorf("exported: exit status %d, %q\n%s", status, errs, out)
	}
	h := &maildrop.Header{Time: arrival, Sender: "me", Recipients: []mail.Recipient{{Address: "you"}}}
	if err := maildrop.Write(&dropped, h, strings.NewReader("Subject: y\n\nz\n")); err != nil {
		t.Fatal(err)
	}
	out, errs, status := run(nil, dropped.String())
	if !strings.Contains(out, "sender: me\n") || !strings.Contains(out, "recipient: you\n") || !strings.Contains(out, "\nSubject: y\n\nz\n***") || status != 0 {
		t.Errorf("maildrop: exit status %d, %q\n%s", status, errs, out)
	}
	out, errs, status = run(nil, "", "../spooltool/pffile/testdata/queued-3.7.11")
	for _, want := range []string{"sender: s p@from.test\n", "recipient: d 2@to.test\n", "named_attribute: notify_flags=6\n", "\nSubject: é\n", "\nlast\n***"} {
		if !strings.Contains(out, want) {
			t.Errorf("Postfix: exit status %d, %q lacks %q\n%.2000s", status, errs, want, out)
		}
	}
	if _, errs, status := run(nil, "root:x:0:0\n"); status != 65 || !strings.Contains(errs, "stdin: input is not a valid queue file") {
		t.Errorf("exit status %d, %q", status, errs)
	}
	if _, errs, status := run(nil, "", "/nonexistent"); status != 66 || errs != "postcat: fatal: open /nonexistent: no such file or directory\n" {
		t.Errorf("exit status %d, %q", status, errs)
	}
	if _, errs, status := run(nil, "", "-x"); status != 64 || !strings.Contains(errs, "postcat: invalid option -- 'x'\npostcat: fatal: usage: postcat [-b (body text)]") {
		t.Errorf("exit status %d, %q", status, errs)
	}
}

// Root's command shows nothing that a link of the mail system's user leads to, and what lies in maildrop
// as before.
func TestPlantedMaildrop(t *testing.T) {
	t.Parallel()
	var dropped bytes.Buffer
	h := &maildrop.Header{Time: arrival, Sender: "me", Recipients: []mail.Recipient{{Address: "you"}}}
	if err := maildrop.Write(&dropped, h, strings.NewReader("Subject: y\n\nz\n")); err != nil {
		t.Fatal(err)
	}
	s := faketest.New(t, "")
	const name = "4jWmK60rlcz1SCpW"
	path := filepath.Join(s.Queue, "maildrop", name)
	if err := os.WriteFile(path, dropped.Bytes(), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, errs, status := run(s, "", path); status != 0 || !strings.Contains(out, "sender: me\n") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	secret := s.PlantMaildrop(name, dropped.String())
	if out, errs, status := run(s, "", path); status != 66 || out != "" || !strings.Contains(errs, "permission denied, with the rights of user 60071") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	if out, errs, status := run(s, "", secret); status != 0 || !strings.Contains(out, "sender: me\n") { // by its own name
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
}
