package pipe

import (
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
	"posthaste/local/users"
)

type db struct{}

func (db) Lookup(name string) (*users.User, error) {
	switch name {
	case "vmail":
		if os.Getuid() != 0 {
			return &users.User{Name: name, UID: os.Getuid(), GID: os.Getgid()}, nil
		}
		return &users.User{Name: name, UID: 60001, GID: 60001}, nil
	case "root":
		return &users.User{Name: name}, nil
	case "mailowner":
		return &users.User{Name: name, UID: 60009, GID: 60009}, nil
	}
	return nil, nil
}
func (db) LookupID(int) (*users.User, error) { return nil, nil }
func (db) LookupGroup(name string) (int, bool, error) {
	gid, ok := map[string]int{"wheel": 0, "crowd": 60050, "mailowner": 60009}[name]
	return gid, ok, nil
}

func newAgent(t *testing.T, args ...string) (*Agent, error) {
	t.Helper()
	cfg, err := config.LoadString("myhostname = mx.test\nrecipient_delimiter = +\nmail_owner = mailowner\nqueue_directory = /\nlist_time_limit = 7s\nexport_environment = LC_ALL=C")
	if err != nil {
		t.Fatal(err)
	}
	l := maillog.New("postfix/pipe", maillog.NewWriter(new(strings.Builder), maillog.Format(0)))
	t.Cleanup(func() { l.Close() })
	return New(cfg, "list", args, db{}, l)
}

func deliver(t *testing.T, env mail.Envelope, args []string, to ...string) string {
	t.Helper()
	a, err := newAgent(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	env.ID, env.Arrival = mail.MakeQueueID(time.Unix(1e9, 0), 9), time.Now()
	for _, addr := range to {
		env.Recipients = append(env.Recipients, mail.Recipient{Address: addr, Original: "Orig@X"})
	}
	r := agent.NewTestRequest(env, "Next.Test", []byte("Subject: x\r\nDelivered-To: loop@x\r\n\r\nFrom a\r\n.b\r\n"), nil)
	a.Deliver(t.Context(), r)
	var out []string
	for _, o := range r.Outcomes() {
		out = append(out, fmt.Sprintf("%s %s %s", o.Action, o.Status, o.Reason))
	}
	return strings.Join(out, "; ")
}

// said runs a command that prints its arguments, one in brackets each.
func said(t *testing.T, env mail.Envelope, flags string, argv []string, to ...string) string {
	t.Helper()
	args := append([]string{"flags=" + flags, "user=vmail", "argv=/usr/bin/printf", "[%s]"}, argv...)
	got := deliver(t, env, args, to...)
	got, _, _ = strings.Cut(strings.TrimPrefix(got, "relayed 2.0.0 delivered via list service ("), ")")
	return got
}

func TestMacros(t *testing.T) {
	t.Parallel()
	env := mail.Envelope{Sender: "Some One@S.Test", Size: 123, EnvID: "e", Client: mail.Client{Name: "cn", Addr: "ca", Helo: "ch", Port: "cp", Proto: "ESMTP"},
		SASL: mail.SASL{Method: "m", Username: "u", Sender: "s"}}
	for _, tt := range []struct {
		flags, argv, want string
	}{
		{"", "${recipient}", "[A B+Ext@Dom.Test][c@d]"},
		{"q", "$recipient", `["A B+Ext"@Dom.Test][c@d]`},
		{"hu", "$(recipient)", "[a b+ext@dom.test][c@d]"},
		{"hqu", "${original_recipient}", "[orig@x][orig@x]"},
		{"", "-d ${user}-${extension}", "[-d][A B-Ext][c-]"},
		{"uh", "${mailbox}@${domain}", "[a b+ext@dom.test][c@d]"},
		{"", "${sender} ${nexthop} ${size} ${queue_id} ${envid}", "[Some One@S.Test][Next.Test][123][34KyT80000z9][e]"},
		{"hq", "${sender} ${nexthop}", `["Some One"@S.Test][next.test]`},
		{"", "${client_hostname} ${client_address} ${client_helo} ${client_port} ${client_protocol}", "[cn][ca][ch][cp][ESMTP]"},
		{"", "${sasl_method} ${sasl_username} ${sasl_sender} $$x", "[m][u][s][$x]"},
	} {
		got := said(t, env, tt.flags, strings.Fields(tt.argv), "A B+Ext@Dom.Test", "c@d")
		want := strings.ReplaceAll(tt.want, "34KyT80000z9", string(mail.MakeQueueID(time.Unix(1e9, 0), 9)))
		if got != want {
			t.Errorf("%s %s: %q, want %q", tt.flags, tt.argv, got, want)
		}
	}
	if got := said(t, mail.Envelope{}, "", []string{"${sender}"}, "a@b"); got != "[MAILER-DAEMON]" {
		t.Errorf("null sender: %q", got)
	}
	if got := deliver(t, mail.Envelope{}, []string{"user=vmail", "argv=true", "${nonesuch}"}, "a@b"); got != "delayed 4.3.5 mail system configuration error" {
		t.Errorf("unknown macro: %q", got)
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "Subject: x\nDelivered-To: loop@x\n\nFrom a\n.b\n"},
		{[]string{"flags=BDOR.>"}, "Return-Path: <s@t>\nX-Original-To: Orig@X\nDelivered-To: a@b\nSubject: x\nDelivered-To: loop@x\n\n>From a\n..b\n\n"},
		{[]string{`eol=\r\n`, "flags=BR"}, "Return-Path: <s@t>\r\nSubject: x\r\nDelivered-To: loop@x\r\n\r\nFrom a\r\n.b\r\n\r\n"},
		{[]string{`eol=\174`}, "Subject: x|Delivered-To: loop@x||From a|.b|"},
	} {
		dir, err := os.MkdirTemp("/tmp", "pipe")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		os.Chmod(dir, 0o777)
		got := deliver(t, mail.Envelope{Sender: "s@t"}, append(tt.args, "user=vmail", "directory="+dir, "argv=/bin/sh", "-c", "cat > out; pwd; env | sort | tr '\n' ' '"), "a@b")
		if want := "relayed 2.0.0 delivered via list service (" + dir + " LC_ALL=C PATH=/usr/bin:/bin PWD=" + dir + ")"; got != want {
			t.Errorf("%q: %q, want %q", tt.args, got, want)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "out")); err != nil || string(b) != tt.want {
			t.Errorf("%q: %q, %v", tt.args, b, err)
		}
	}
	got := deliver(t, mail.Envelope{}, []string{"flags=F", "null_sender=", "user=vmail", "argv=/usr/bin/head", "-1"}, "a@b")
	if !strings.HasPrefix(got, "relayed 2.0.0 delivered via list service (From   ") {
		t.Errorf("empty null sender: %q", got)
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	sh := func(line string, attributes ...string) []string {
		return append(attributes, "user=vmail", "argv=/bin/sh", "-c", line)
	}
	for _, tt := range []struct {
		args []string
		to   []string
		env  mail.Envelope
		want string
	}{
		{sh("exit 0"), []string{"a@b", "c@d"}, mail.Envelope{}, "relayed 2.0.0 delivered via list service; relayed 2.0.0 delivered via list service"},
		{sh("exit 0", "flags=X"), []string{"a@b"}, mail.Envelope{}, "delivered 2.0.0 delivered via list service"},
		{sh("echo no; exit 67"), []string{"a@b", "c@d"}, mail.Envelope{}, "failed 5.1.1 user unknown. Command output: no; failed 5.1.1 user unknown. Command output: no"},
		{sh("exit 75"), []string{"a@b"}, mail.Envelope{}, "delayed 4.3.0 temporary failure"},
		{sh("exit 9"), []string{"a@b"}, mail.Envelope{}, `failed 5.3.0 Command died with status 9: "/bin/sh"`},
		{sh("exit 0", "flags=D"), []string{"a@b", "c@d"}, mail.Envelope{}, "delayed 4.3.5 mail system configuration error; delayed 4.3.5 mail system configuration error"},
		{sh("exit 0", "flags=D"), []string{"LOOP@x"}, mail.Envelope{}, "failed 5.4.6 mail forwarding loop for LOOP@x"},
		{sh("exit 0", "size=99"), []string{"a@b"}, mail.Envelope{Size: 100}, "failed 5.2.3 message too large"},
		{sh("exit 1"), []string{"a@b"}, mail.Envelope{Trace: mail.TraceReport}, "deliverable 2.0.0 delivers to command: /bin/sh"},
	} {
		if got := deliver(t, tt.env, tt.args, tt.to...); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.args, got, tt.want)
		}
	}
}

func TestAttributes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want string }{
		{"argv=/bin/true", "expected user=NAME"}, {"user=vmail", "expected argv=COMMAND"}, {"user=vmail argv=", "expected argv=COMMAND"},
		{"user=who argv=x", "there is no user"}, {"user=root argv=x", "root's privileges"}, {"user=vmail:wheel argv=x", "root's privileges"},
		{"user=vmail:none argv=x", "there is no group"}, {"flags=Z user=vmail argv=x", "flags=Z"}, {"size=x user=vmail argv=x", "size=x"},
		{`eol=\q user=vmail argv=x`, "not an escape"}, {`eol=\ user=vmail argv=x`, "last backslash"}, {"what=x user=vmail argv=x", `attribute "what"`},
		{"what user=vmail argv=x", "expected name=value"},
	} {
		if _, err := newAgent(t, strings.Split(tt.args, " ")...); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "service list: pipe: ") {
			t.Errorf("%s: error %v, want %q", tt.args, err, tt.want)
		}
	}
	a, err := newAgent(t, "user=vmail:crowd", "chroot=/c", "argv=", "x", "flags=Z", "user=root")
	if err != nil || len(a.argv) != 3 || a.rights.GID != 60050 || a.chroot != "/c" || a.limit != 7*time.Second {
		t.Errorf("%+v, %v", a, err)
	}
	if os.Getuid() == 0 {
		for _, user := range []string{"mailowner", "vmail:mailowner"} {
			if _, err := newAgent(t, "user="+user, "argv=x"); err == nil || !strings.Contains(err.Error(), "mail system's privileges") {
				t.Errorf("%s: %v", user, err)
			}
		}
	}
}

func FuzzUnescape(f *testing.F) {
	f.Add(`\r\n\012\\`)
	f.Fuzz(func(t *testing.T, s string) { unescape(s) })
}
