package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/testusers"
)

// TestCommandsLikePostfix has both mail systems run the same commands, by local
// and by pipe, and compares what these did and what was reported of them.
func TestCommandsLikePostfix(t *testing.T) {
	t.Parallel()
	maildrop := need(t, "maildrop")
	maildirmake := need(t, "maildirmake.maildrop")
	home, err := os.MkdirTemp("", "phcommands")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	os.Chmod(home, 0o755)
	var done [2]string
	// One after the other: both deliver to the same user.
	for i, instance := range []func(testing.TB, options) *system{newPostfix, newSystem} {
		user := fmt.Sprintf("phdrop%d", i)
		box, uid := testusers.Home(t, home, user)
		run(t, maildirmake, box+"/Maildir")
		s := instance(t, options{unstarted: true, main: commandSettings, master: fmt.Sprintf(`maildrop unix - n n - - pipe flags=ODRhuX user=%s argv=%s -d ${user}
relayed unix - n n - - pipe flags=R user=%s argv=/usr/bin/tee -a %s/relayed
`, user, maildrop, user, box)})
		s.write("etc/aliases", strings.ReplaceAll(commandAliases, "{out}", s.path("out")))
		if err := os.Mkdir(s.path("out"), 0o777); err != nil {
			t.Fatal(err)
		}
		os.Chmod(s.path("out"), 0o777)
		if err := os.WriteFile(box+"/.mailfilter", []byte("logfile \""+box+"/log\"\nto \""+box+"/Maildir/\"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, "chown", "-R", fmt.Sprint(uid), box)
		s.start()
		done[i] = s.commands(user, box)
	}
	if done[0] != done[1] {
		t.Errorf("Postfix:\n%s\nours:\n%s", done[0], done[1])
	}
	for _, want := range []string{"big 100000\n", "SASL_USERNAME=ann\n", "CLIENT_ADDRESS=192.0.2.7\n", "Action: delivered\n", "Action: relayed\n", "Delivered-To: phdrop+ext@Drop.test\n"} {
		if !strings.Contains(done[1], want) {
			t.Errorf("there is no %q in\n%s", want, done[1])
		}
	}
}

const commandSettings = `alias_maps = texthash:{dir}/etc/aliases
mailbox_size_limit = 100000
message_size_limit = 50000
smtpd_authorized_xclient_hosts = 127.0.0.0/8
virtual_mailbox_domains = drop.test, relayed.test
transport_maps = inline:{drop.test=maildrop, relayed.test=relayed}
virtual_mailbox_maps = static:x
maildrop_destination_recipient_limit = 1
recipient_delimiter = +
`

// Nothing is written by two commands at once.
const commandAliases = `big "|head -c 300000 /dev/zero > {out}/big; echo status $? > {out}/big-status; exit 0"
direct "|/bin/dd if=/dev/zero of={out}/direct bs=150000 count=2 status=none"
client "|env | grep -E '^(CLIENT|SASL|SENDER|RECIPIENT|ORIGINAL)' | sort > {out}/env"
sender {out}/reports
`

// commands sends what has commands run, and returns all that came of it,
// without what differs from one time to the next.
func (s *system) commands(user, box string) string {
	s.t.Helper()
	send := func(rcpt string, greeting ...string) {
		s.t.Helper()
		t := s.t.(*testing.T)
		lines := append([]string{""}, greeting...)
		lines = append(lines, "EHLO client.test", "MAIL FROM:<sender@local.test> ENVID=id+2B1", "RCPT TO:"+rcpt, "DATA", "Subject: x\r\nMessage-ID: <x@far.test>\r\n\r\ntext\r\n.", "QUIT")
		r := s.dialogue(t, lines...)
		_, id, ok := strings.Cut(r[len(r)-2], " queued as ")
		if !ok {
			t.Fatalf("%s: %q", rcpt, r)
		}
		s.waitLog(id + ": removed")
		s.eventually("the queue is empty after "+rcpt, s.settled)
	}
	send("<big@local.test>")
	send("<direct@local.test> NOTIFY=NEVER")
	send("<client+x@local.test>", "EHLO proxy.test", "XCLIENT NAME=client.example ADDR=192.0.2.7 PROTO=ESMTP HELO=helo.example LOGIN=ann")
	send("<" + user + "+ext@Drop.test> NOTIFY=SUCCESS")
	send("<any@relayed.test> NOTIFY=SUCCESS")
	var out []string
	for _, name := range []string{"big", "direct"} {
		st, err := os.Stat(s.path("out", name))
		if err != nil {
			s.t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s %d\n", name, st.Size()))
	}
	for _, name := range []string{s.path("out/big-status"), s.path("out/env"), box + "/relayed"} {
		out = append(out, filepath.Base(name)+":\n"+readAll(s.t, name))
	}
	list, _ := filepath.Glob(box + "/Maildir/new/*")
	for _, name := range list {
		out = append(out, "maildrop:\n"+readAll(s.t, name))
	}
	actions := regexp.MustCompile(`(?m)^(Action|Status): .*\n`).FindAllString(readAll(s.t, s.path("out/reports")), -1)
	out = append(out, strings.Join(actions, ""))
	for _, m := range regexp.MustCompile(`(?m)to=<(\S+)>.*, relay=(local|maildrop|relayed), .*(dsn=.*)$`).FindAllStringSubmatch(s.log(), -1) {
		if !strings.HasPrefix(m[1], "sender@") {
			out = append(out, strings.Join(m[1:], " ")+"\n")
		}
	}
	text := strings.NewReplacer(s.dir, "DIR", user, "phdrop", box, "BOX", "File too large )", "File too large)").Replace(strings.Join(out, "\n"))
	lines := strings.Split(unlike.ReplaceAllString(text, "..."), "\n")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "\t") }), "\n")
}

// unlike is what differs from one time, and one mail system, to the next.
var unlike = regexp.MustCompile(`(?m)^(Received: .*|Date: .*)$`)
