package virtual

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/rights"
)

func newAgent(t *testing.T, settings string) (*Agent, string, *bytes.Buffer) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "virtual")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if rights.Switching() {
		os.Chown(dir, 60001, 60001)
	}
	cfg, err := config.LoadString("myhostname = mx.test\nrecipient_delimiter = +\nvirtual_uid_maps = static:60001\nvirtual_gid_maps = static:60001\n" +
		"virtual_mailbox_base = " + dir + "\nvirtual_mailbox_maps = inline:{ a@v.test=v/a/, b@v.test=v-b, b+x@v.test=v-bx, {@all.test=all/}, " +
		"up@v.test=../up, mid@v.test=x/../../y, dots@v.test=..dots }\n" + settings)
	if err != nil {
		t.Fatal(err)
	}
	log := new(bytes.Buffer)
	l := maillog.New("postfix/virtual", maillog.NewWriter(log, maillog.Format(0)))
	a, err := New(cfg, "virtual", l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); l.Close() })
	return a, dir, log
}

func deliver(t *testing.T, a *Agent, trace mail.Trace, to ...string) string {
	t.Helper()
	env := mail.Envelope{ID: mail.MakeQueueID(time.Now(), 9), Arrival: time.Now(), Sender: "s@far.test", Trace: trace}
	for _, addr := range to {
		env.Recipients = append(env.Recipients, mail.Recipient{Address: addr})
	}
	r := agent.NewTestRequest(env, "v.test", []byte("Subject: x\r\nDelivered-To: loop@v.test\r\n\r\nFrom x\r\n"), nil)
	a.Deliver(t.Context(), r)
	var out []string
	for _, o := range r.Outcomes() {
		out = append(out, fmt.Sprintf("%s %s %s", o.Action, o.Status, o.Reason))
	}
	return strings.Join(out, "; ")
}

func TestDeliver(t *testing.T) {
	t.Parallel()
	a, dir, _ := newAgent(t, "")
	for to, want := range map[string]string{
		"A@v.test": "delivered 2.0.0 delivered to maildir", "a+ext@v.test": "delivered 2.0.0 delivered to maildir",
		"b@v.test": "delivered 2.0.0 delivered to mailbox", "b+x@v.test": "delivered 2.0.0 delivered to mailbox",
		"any@all.test": "delivered 2.0.0 delivered to maildir", "who@v.test": `failed 5.1.1 unknown user: "who@v.test"`,
		"up@v.test": "delayed 4.3.5 mail system configuration error", "mid@v.test": "delayed 4.3.5 mail system configuration error",
		"dots@v.test": "delivered 2.0.0 delivered to mailbox",
	} {
		if got := deliver(t, a, 0, to); got != want {
			t.Errorf("%s: %q, want %q", to, got, want)
		}
	}
	names, _ := filepath.Glob(dir + "/v/a/new/*")
	if len(names) != 2 {
		t.Fatalf("messages %q", names)
	}
	b, _ := os.ReadFile(dir + "/v-bx")
	_, rest, _ := strings.Cut(string(b), "\n")
	if want := "Return-Path: <s@far.test>\nX-Original-To: b+x@v.test\nDelivered-To: b+x@v.test\nSubject: x\nDelivered-To: loop@v.test\n\n>From x\n\n"; rest != want {
		t.Errorf("mailbox %q", b)
	}
	if _, err := os.Stat(filepath.Dir(dir) + "/up"); err == nil {
		t.Error("written outside of virtual_mailbox_base")
	}
	if got := deliver(t, a, mail.TraceProbe, "a@v.test", "b@v.test", "c@v.test"); got !=
		`deliverable 2.0.0 delivers to maildir; deliverable 2.0.0 delivers to mailbox; undeliverable 5.1.1 unknown user: "c@v.test"` {
		t.Errorf("probe: %s", got)
	}
}

// TestLimit: a mailbox that would grow beyond virtual_mailbox_limit, and a
// message for a maildir that is larger, are returned.
func TestLimit(t *testing.T) {
	t.Parallel()
	a, dir, _ := newAgent(t, "message_size_limit = 100\nvirtual_mailbox_limit = 300\n") // a message is some 150 octets with what is added
	if got := deliver(t, a, 0, "b@v.test"); got != "delivered 2.0.0 delivered to mailbox" {
		t.Error(got)
	}
	before, _ := os.ReadFile(dir + "/v-b")
	if got, want := deliver(t, a, 0, "b@v.test"), "failed 5.2.2 delivery failed to mailbox "+dir+"/v-b: error writing message: File too large"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if after, _ := os.ReadFile(dir + "/v-b"); len(before) == 0 || !bytes.Equal(before, after) {
		t.Errorf("the mailbox was not left as it was: %q", after)
	}
	if got := deliver(t, a, 0, "a@v.test"); got != "delivered 2.0.0 delivered to maildir" {
		t.Error(got)
	}
	a, dir, _ = newAgent(t, "message_size_limit = 20\nvirtual_mailbox_limit = 20\n")
	if got, want := deliver(t, a, 0, "a@v.test"), "failed 5.2.2 maildir delivery failed: error writing message: File too large"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if names, _ := filepath.Glob(dir + "/v/a/*/*"); len(names) != 0 {
		t.Errorf("left over: %q", names)
	}
	a, _, _ = newAgent(t, "message_size_limit = 0\nvirtual_mailbox_limit = 0\n")
	if got := deliver(t, a, 0, "a@v.test"); got != "delivered 2.0.0 delivered to maildir" {
		t.Errorf("without a limit: %s", got)
	}
}

// TestReachable: what a service that gets mail cannot do without.
func TestReachable(t *testing.T) {
	t.Parallel()
	const maps = "virtual_mailbox_maps = static:x\n"
	for settings, want := range map[string]string{
		"virtual_mailbox_base = /m\nmessage_size_limit = 100\nvirtual_mailbox_limit = 99\n":  "virtual_mailbox_limit is smaller than message_size_limit",
		"virtual_mailbox_base = /m\nmessage_size_limit = 0\n":                                "virtual_mailbox_limit is smaller than message_size_limit",
		"virtual_mailbox_base = /m\nmessage_size_limit = 100\nvirtual_mailbox_limit = 100\n": "",
		"virtual_mailbox_base = /m\nvirtual_mailbox_limit = 0\n":                             "",
		maps: "virtual_mailbox_base is empty: expected the directory that mailboxes are in",
		maps + "virtual_transport = lmtp:unix:private/dovecot\nmessage_size_limit = 0\n": "",
		"virtual_mailbox_maps =\n": "",
	} {
		cfg, err := config.LoadString("myhostname = mx.test\n" + settings)
		if err != nil {
			t.Fatal(err)
		}
		a, err := New(cfg, "virtual", maillog.New("postfix/virtual", maillog.NewWriter(new(bytes.Buffer), maillog.Format(0))))
		if err == nil {
			a.Close()
		}
		if got := fmt.Sprint(err); got != want && (err != nil || want != "") {
			t.Errorf("%s: %v, want %q", settings, err, want)
		}
	}
	// Mail that reaches it all the same does not go to wherever a table says.
	a, dir, _ := newAgent(t, "virtual_mailbox_base =\nvirtual_transport = lmtp:x\n")
	if got := deliver(t, a, 0, "b@v.test"); got != "delayed 4.3.5 mail system configuration error" {
		t.Errorf("without a base: %s", got)
	}
	if names, _ := filepath.Glob(dir + "/*"); len(names) != 0 {
		t.Errorf("written: %q", names)
	}
}

func TestOwners(t *testing.T) {
	t.Parallel()
	for _, settings := range []string{"virtual_uid_maps = static:99", "virtual_uid_maps = static:joe", "virtual_uid_maps =", "virtual_gid_maps = static:0",
		"virtual_gid_maps = static:-1", "virtual_uid_maps = fail:x", "virtual_mailbox_maps = fail:x"} {
		a, dir, log := newAgent(t, settings)
		if got := deliver(t, a, 0, "b@v.test"); got != "delayed 4.3.5 mail system configuration error" {
			t.Errorf("%s: %s", settings, got)
		}
		a.log.Flush()
		if !strings.Contains(log.String(), "recipient b@v.test: ") {
			t.Errorf("%s: log %q", settings, log)
		}
		if names, _ := filepath.Glob(dir + "/*"); len(names) != 0 {
			t.Errorf("%s: written: %q", settings, names)
		}
	}
}
