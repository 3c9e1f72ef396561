package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"posthaste/internal/testservers"
)

// mustTool runs a tool that must succeed.
func (s *system) mustTool(args ...string) string {
	s.t.Helper()
	out, status := s.tool(nil, args...)
	if status != 0 {
		s.t.Fatalf("%s: exit status %d\n%s", strings.Join(args, " "), status, out)
	}
	return out
}

// expect runs a tool and compares what it says.
func (s *system) expect(want string, args ...string) {
	s.t.Helper()
	if got := s.mustTool(args...); got != want {
		s.t.Errorf("%s:\n got %q\nwant %q", strings.Join(args, " "), got, want)
	}
}

// deferred sends messages to a destination that is down and waits until they
// lie in the deferred queue. It returns their IDs.
func (s *system) deferred(subjects ...string) (ids []string) {
	s.t.Helper()
	for i, subject := range subjects {
		s.mustSend("a@from.test", []string{"b@to.test", "c@to.test"}, "Subject: "+subject+"\n\nbody of "+subject+"\n.dot\n")
		lines := s.waitLogN(`postfix/smtpd\[\d+\]: \w+: client=`, i+1)
		ids = append(ids, regexp.MustCompile(`: (\w+): client=`).FindStringSubmatch(lines[i])[1])
	}
	s.eventually("all messages are deferred", func() bool {
		return strings.Count(s.mustTool("postqueue", "-j"), `"queue_name": "deferred"`) == len(subjects)
	})
	return ids
}

// Every queue tool, against the running mail system and then against the
// spool of the stopped one.
func TestQueueTools(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	s := newSystem(t, options{main: fmt.Sprintf("relayhost = [127.0.0.1]:%d\n", port)})
	ids := s.deferred("one", "two", "three", "four")
	one, two, three, four := ids[0], ids[1], ids[2], ids[3]

	cat := s.mustTool("postcat", "-q", one)
	for _, want := range []string{"*** ENVELOPE RECORDS deferred/" + one + " ***\nmessage_size: ", "\nsender: a@from.test\n", "\nrecipient: b@to.test\n",
		"\nnamed_attribute: client_address=127.0.0.1\n", "\nSubject: one\n", "\nbody of one\n.dot\n*** HEADER EXTRACTED "} {
		if !strings.Contains(cat, want) {
			t.Errorf("postcat lacks %q:\n%s", want, cat)
		}
	}
	if out := s.mustTool("qshape", "deferred"); !strings.Contains(out, "  TOTAL  8  8  0") || !strings.Contains(out, "to.test  8  8  0") {
		t.Errorf("qshape:\n%s", out)
	}
	if out := s.mustTool("explain", one); !strings.Contains(out, one+": deferred queue") || !strings.Contains(out, "next attempt at") {
		t.Errorf("explain:\n%s", out)
	}

	s.expect("postsuper: "+one+": placed on hold\npostsuper: Placed on hold: 1 message\n", "postsuper", "-h", one)
	if out := s.mustTool("mailq"); !strings.Contains(out, one+"! ") || !strings.HasSuffix(out, " Requests.\n") {
		t.Errorf("mailq:\n%s", out)
	}
	s.expect("postsuper: Placed on hold: 3 messages\n", "postsuper", "-h", "ALL", "deferred")
	s.expect("postsuper: Released from hold: 4 messages\n", "postsuper", "-H", "ALL")
	s.expect("postsuper: "+two+": removed\npostsuper: Deleted: 1 message\n", "postsuper", "-d", two, "-d", "NOSUCH1")
	s.waitLog(`postfix/postsuper\[\d+\]: ` + two + `: removed$`)
	s.waitLog(`postfix/postsuper\[\d+\]: Deleted: 1 message$`)
	s.expect("postsuper: "+three+": requeued\npostsuper: Requeued: 1 message\n", "postsuper", "-r", three)
	s.eventually("the requeued message has a new ID", func() bool {
		out := s.mustTool("postqueue", "-j")
		return !strings.Contains(out, three) && strings.Count(out, "\n") == 3
	})
	s.expect("postsuper: "+four+": expired\npostsuper: Force-expired: 1 message\npostsuper: Released from hold: 0 messages\n", "postsuper", "-f", four)
	s.waitLog(four + `: from=<a@from\.test>, status=force-expired, returned to sender$`)

	s.expect("postsuper: "+one+": placed on hold\npostsuper: Placed on hold: 1 message\n", "postsuper", "-h", one)
	s.expect("postsuper: "+one+": expired\npostsuper: "+one+": released from hold\npostsuper: Force-expired: 1 message\npostsuper: Released from hold: 1 message\n",
		"postsuper", "-f", one)
	s.waitLog(one + `: from=<a@from\.test>, status=force-expired, returned to sender$`)
	s.waitLogN(`: removed$`, 3)
	s.stop()
	s.whileDown()
	s.start()
	if out := s.mustTool("mailq"); !strings.Contains(out, "! ") {
		t.Errorf("what was put on hold while it was down:\n%s", out)
	}
	next := newSinkAt(t, fmt.Sprintf("127.0.0.1:%d", port), nil)
	s.mustTool("postsuper", "-H", "ALL")
	s.mustTool("postqueue", "-f")
	s.eventually("the queue is empty", func() bool { return s.mustTool("mailq") == "Mail queue is empty\n" })
	found := false
	for _, m := range next.received() {
		found = found || strings.HasSuffix(m.data, "\n\nbody of three\n.dot\n")
	}
	if !found {
		t.Errorf("the requeued message has not arrived: %+v", next.received())
	}
}

// whileDown uses the tools on the spool of a mail system that is stopped. The
// requeued message and two notices are in it.
func (s *system) whileDown() {
	s.t.Helper()
	list, status := s.tool(nil, "postqueue", "-j")
	if n := strings.Count(list, `"queue_id"`); n != 3 || status != 0 || !strings.Contains(list, "warning: Mail system is down -- accessing queue directly") {
		s.t.Fatalf("postqueue -j: exit status %d\n%s", status, list)
	}
	id := regexp.MustCompile(`"queue_id": "(\w+)"[^\n]*"sender": "a@from.test"`).FindStringSubmatch(list)[1]
	if out := s.mustTool("postcat", "-bq", id); !strings.HasSuffix(out, "\nbody of three\n.dot\n") {
		s.t.Errorf("postcat:\n%s", out)
	}
	if out := s.mustTool("qshape", "deferred", "incoming"); !strings.Contains(out, "to.test  2  2  0") {
		s.t.Errorf("qshape:\n%s", out)
	}
	if out := s.mustTool("spool", "check"); !strings.HasPrefix(out, "3 messages, 4 recipients pending; ") || !strings.HasSuffix(out, "\nconsistent\n") {
		s.t.Errorf("spool check:\n%s", out)
	}
	if out := s.mustTool("spool", "dump"); !strings.Contains(out, id) {
		s.t.Errorf("spool dump lacks %s:\n%s", id, out)
	}
	if out, status := s.tool(nil, "postqueue", "-f"); status != 69 || !strings.Contains(out, "mail system is down") {
		s.t.Errorf("postqueue -f: exit status %d, %s", status, out)
	}
	if out, status := s.tool(nil, "postsuper", "-r", id); status != 69 {
		s.t.Errorf("postsuper -r: exit status %d, %s", status, out)
	}
	s.expect("postsuper: "+id+": placed on hold\npostsuper: Placed on hold: 1 message\n", "postsuper", "-h", id)
	if !strings.Contains(s.log(), "]: "+id+": placed on hold\n") {
		s.t.Error("it is not logged")
	}
	// What a tool of root's writes must be the mail system's to write.
	want, err := os.Stat(s.path("spool", "spool"))
	if err != nil {
		s.t.Fatal(err)
	}
	err = filepath.WalkDir(s.path("spool", "spool"), func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err == nil && st.Sys().(*syscall.Stat_t).Uid != want.Sys().(*syscall.Stat_t).Uid {
			s.t.Errorf("%s belongs to user %d", name, st.Sys().(*syscall.Stat_t).Uid)
		}
		return err
	})
	if err != nil {
		s.t.Error(err)
	}
}

// A queue goes into files and into another mail system, which delivers it as
// if it had been there from the start.
func TestMoveQueue(t *testing.T) {
	t.Parallel()
	from := newSystem(t, options{main: fmt.Sprintf("relayhost = [127.0.0.1]:%d\n", freePort(t))})
	ids := from.deferred("one", "two")
	from.mustTool("postsuper", "-h", ids[1])
	dir := filepath.Join(t.TempDir(), "queue")
	from.expect("2 messages exported to "+dir+"\n", "spool", "export", "-a", dir)
	from.expect("postsuper: Deleted: 2 messages\n", "postsuper", "-d", "ALL")

	next := newSink(t, nil)
	to := newSystem(t, options{main: next.relayhost()})
	to.expect("2 messages imported, 0 have nothing left to do, 0 files are not sound messages, 0 were refused\n", "spool", "import", "-r", dir)
	to.mustTool("postqueue", "-f") // it keeps the time of its next attempt
	to.waitLogN(`: removed$`, 1)
	if out := to.mustTool("mailq"); !strings.Contains(out, "! ") || !strings.HasSuffix(out, " in 1 Request.\n") {
		t.Errorf("what was on hold:\n%s", out)
	}
	to.mustTool("postsuper", "-H", "ALL")
	to.mustTool("postqueue", "-f")
	to.waitLogN(`: removed$`, 2)
	got := next.received()
	if len(got) != 2 {
		t.Fatalf("%d messages arrived", len(got))
	}
	for i, m := range got {
		subject := []string{"one", "two"}[i]
		if m.from != "a@from.test" || fmt.Sprint(m.to) != "[b@to.test c@to.test]" || !strings.HasSuffix(m.data, "\n\nbody of "+subject+"\n.dot\n") ||
			strings.Count(m.data, "\nMessage-Id: ") > 1 || strings.Count("\n"+m.data, "\nReceived: ") != 1 {
			t.Errorf("%q -> %q\n%s", m.from, m.to, m.data)
		}
	}
}

// A site moves from Postfix with its queue: mail that Postfix has delivered to
// some of its recipients is delivered to the others, unchanged.
func TestMoveFromPostfix(t *testing.T) {
	t.Parallel()
	later := func(line string) string {
		if strings.HasPrefix(line, "RCPT TO:<later") {
			return "450 4.2.0 not now"
		}
		return ""
	}
	first := newSink(t, later)
	old := newPostfix(t, options{main: first.relayhost() + "myhostname = old.test\nmydestination =\n"})
	content := "From: a@from.test\nSubject: moving\nMessage-Id: <m@from.test>\nDate: Sat, 21 Nov 2026 08:00:00 +0000\n\n.dot\n" +
		strings.Repeat("x", 900) + "\nlast\n"
	old.mustSend("a@from.test", []string{"now@to.test", "later@to.test", "later2@to.test"}, content)
	old.mustSend("", []string{"later@to.test"}, "Subject: null sender\n\n"+strings.Repeat("line\n", 40000))
	old.eventually("Postfix has deferred its mail", func() bool {
		list, _ := filepath.Glob(old.path("spool", "deferred", "*", "*"))
		return len(list) == 2
	})
	old.stop()

	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost()})
	out := s.mustTool("spool", "import", "-rv", old.path("spool"))
	if !strings.Contains(out, "2 messages imported, 0 have nothing left to do, 0 files are not sound messages, 0 were refused\n") {
		t.Fatalf("import:\n%s", out)
	}
	s.mustTool("postqueue", "-f")
	s.waitLogN(`: removed$`, 2)
	got := next.received()
	if len(got) != 2 {
		t.Fatalf("%d messages arrived", len(got))
	}
	for _, m := range got {
		switch m.from {
		case "a@from.test":
			slices.Sort(m.to)
			if fmt.Sprint(m.to) != "[later2@to.test later@to.test]" || !strings.HasSuffix(m.data, content) || strings.Count("\n"+m.data, "\nReceived: ") != 1 {
				t.Errorf("to %q\n%s", m.to, m.data)
			}
		case "":
			if fmt.Sprint(m.to) != "[later@to.test]" || !strings.HasSuffix(m.data, "\n\n"+strings.Repeat("line\n", 40000)) {
				t.Errorf("to %q, %d octets", m.to, len(m.data))
			}
		}
	}
	if out := s.mustTool("spool", "import", old.path("spool")); !strings.HasPrefix(out, "0 messages imported, 0 have") {
		t.Errorf("a second import:\n%s", out)
	}
}

// TestPostconfBuild: postconf knows what the program is made of.
func TestPostconfBuild(t *testing.T) {
	t.Parallel()
	s := newSystem(t, options{unstarted: true})
	for _, c := range []struct{ flag, want string }{
		{"-a", "(?m)^dovecot$"}, {"-m", "(?s)\nhash\n.*\nmysql\n.*pcre\n"}, {"-l", "(?m)^fcntl$"},
		{"-b", `(?s)^expanded_failure_text = <<EOF\n.*at host mta\.test\..*\nEOF\n`}, {"-t", `(?s)^failure_template = <<EOF\nCharset: .*\$myhostname.*\nEOF\n`},
	} {
		out, status := s.tool(nil, "postconf", c.flag)
		if status != 0 || !regexp.MustCompile(c.want).MatchString(out) {
			t.Errorf("postconf %s: status %d: %s", c.flag, status, out)
		}
	}
}

// TestCheck: what keeps a service from starting, or will not do what it says, is
// found before the mail system starts.
func TestCheck(t *testing.T) {
	t.Parallel()
	cert, _ := testservers.Certificate(t)
	_, key := testservers.Certificate(t) // another one's
	files := strings.NewReplacer("CERT", cert, "KEY", key)
	for _, c := range []struct {
		setting, want string
		status        int
	}{
		{"", "", 0},
		{"mynetworks = 127.0.0.1/33", `fatal: .*/master\.cf:1: service 127\.0\.0\.1:\d+/inet: .*"127\.0\.0\.1/33": the length after "/" is not a number from 0 to 32`, 1},
		{"smtpd_sasl_auth_enable = yes\nsmtpd_sasl_type = sesame", `fatal: .*/master\.cf:1: service .*: smtpd_sasl_type = sesame: expected accounts, dovecot`, 1},
		{"smtpd_sasl_auth_enable = yes\nsmtpd_sasl_type = cyrus\ncyrus_sasl_config_path = /nonexistent", `fatal: .*/master\.cf:1: service .*: smtpd_sasl_path: there is no smtpd\.conf in /nonexistent; .*: expected pwcheck_method: saslauthd`, 1},
		{"smtpd_milters = inet:foo", `fatal: .*smtpd_milters: milter "inet:foo": expected inet:host:port`, 1},
		{"smtpd_tls_security_level = may\nsmtpd_tls_chain_files = /nonexistent/pem", `: fatal: .*/main\.cf:\d+: smtpd_tls_chain_files: TLS is disabled: .*/nonexistent/pem: no such file`, 1},
		{"smtpd_tls_security_level = may\nsmtpd_tls_cert_file = CERT\nsmtpd_tls_key_file = KEY", `: fatal: .*/main\.cf:\d+: smtpd_tls_cert_file: TLS is disabled: .*: tls: private key does not match public key`, 1},
		{"smtpd_sender_restrictions = check_sender_access static:REJCT", `: fatal: .*/main\.cf:\d+: smtpd_sender_restrictions: REJCT is neither an action, .*did you mean REJECT\?`, 1},
		{"header_checks = static:PERMITT", `: warning: .*/main\.cf:\d+: header_checks: PERMITT is no action of header_checks`, 0},
		{"smtpd_recipient_restrictions = permit_mynetwrks, reject", `: fatal: .*/main\.cf:\d+: smtpd_recipient_restrictions: unknown smtpd restriction: "permit_mynetwrks"; did you mean permit_mynetworks\?`, 1},
		{"header_checks = regexp:/nonexistent/checks", `: fatal: .*/main\.cf:\d+: header_checks: table regexp:/nonexistent/checks: .*no such file`, 1},
		{"smtp_tls_policy_maps = hash:/nonexistent/policy", `: fatal: .*/main\.cf:\d+: smtp_tls_policy_maps: table hash:/nonexistent/policy: .*build it with "postmap hash:/nonexistent/policy"`, 1},
		{"transport_maps = regexpp:/x", `: fatal: .*/main\.cf:\d+: transport_maps: table regexpp:/x: unknown type "regexpp"`, 1},
		{"alias_maps = tcp:127.0.0.1:9", `: fatal: .*/main\.cf:\d+: alias_maps: table tcp:127.0.0.1:9: tcp is not allowed for security-sensitive data`, 1},
		{"smtp_tls_cert_file = /nonexistent/pem", `: fatal: .*/master\.cf:\d+: service smtp/unix: smtp_tls_cert_file, .*no such file or directory \(smtp_tls_cert_file is set at .*/main\.cf:\d+\)`, 1},
		{"relayhost = [mail.example.org", `: fatal: .*/main\.cf:\d+: relayhost: \[mail\.example\.org: a bracket is missing`, 1},
		{"transport_maps = inline:{example.com=stmp:}", `: fatal: .*/main\.cf:\d+: transport_maps: stmp:: master\.cf has no service stmp/unix.*; did you mean smtp\?`, 1},
		{"smtpd_recipient_restriction = reject", `: warning: .*/main\.cf:\d+: unknown parameter smtpd_recipient_restriction=reject: nothing reads it; did you mean smtpd_recipient_restrictions\?`, 0},
		{"smtpd_banner = $myhostnam ESMTP", `: warning: .*/main\.cf:\d+: smtpd_banner: \$myhostnam is not set anywhere, and stands for nothing; did you mean \$myhostname\?`, 0},
	} {
		t.Run(c.setting, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, options{unstarted: true, main: "maillog_file =\nmyorigin = local.test\n" + files.Replace(c.setting) + "\n"})
			out, status := s.tool(nil, "check")
			var complaints []string
			for line := range strings.Lines(out) {
				if !strings.Contains(line, "set-permissions") && !strings.Contains(line, "overriding earlier entry") && !strings.Contains(line, "nothing is logged") {
					complaints = append(complaints, line)
				}
			}
			if status != c.status || c.want == "" && complaints != nil || !regexp.MustCompile(c.want).MatchString(out) {
				t.Errorf("exit status %d\n%s", status, out)
			}
		})
	}
}

// TestCheckSubstitution: rules that would put a stranger's words where they are
// not allowed are found.
func TestCheckSubstitution(t *testing.T) {
	t.Parallel()
	names := []string{"alias_maps", "mailbox_command_maps", "mailbox_transport_maps", "fallback_transport_maps", "virtual_mailbox_maps",
		"virtual_uid_maps", "virtual_gid_maps", "transport_maps", "sender_dependent_relayhost_maps", "sender_dependent_default_transport_maps",
		"address_verify_transport_maps", "address_verify_sender_dependent_relayhost_maps", "address_verify_sender_dependent_default_transport_maps"}
	var main strings.Builder
	for _, name := range append(names, "virtual_alias_maps") { // the last may
		fmt.Fprintf(&main, "%s = pcre:{{/(%s)/ $$1}}\n", name, name)
	}
	out, status := newSystem(t, options{unstarted: true, main: "maillog_file =\nvirtual_mailbox_base = /srv/mail\n" + main.String()}).tool(nil, "check")
	for _, name := range names {
		if want := ": warning: pcre:{{/(" + name + ")/ $1}}, line 1: regular expression substitution is not allowed in this table"; !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if n := strings.Count(out, "substitution is not allowed"); n != len(names) || status != 0 {
		t.Errorf("%d complaints, not %d; status %d:\n%s", n, len(names), status, out)
	}
}
