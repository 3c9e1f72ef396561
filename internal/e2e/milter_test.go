package e2e

import (
	"fmt"
	"net"
	"net/textproto"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/emersion/go-milter"
)

// filter is a mail filter made with another project's library.
type filter struct {
	milter.NoOpMilter
	mu     sync.Mutex
	events []string
}

func (f *filter) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, fmt.Sprintf(format, args...))
}

func (f *filter) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

func (f *filter) Connect(host, family string, port uint16, addr net.IP, m *milter.Modifier) (milter.Response, error) {
	f.note("connect %s %s j=%s daemon=%s", family, addr, m.Macros["j"], m.Macros["{daemon_name}"])
	return milter.RespContinue, nil
}

func (f *filter) Helo(name string, m *milter.Modifier) (milter.Response, error) {
	f.note("helo %s", name)
	return milter.RespContinue, nil
}

func (f *filter) MailFrom(from string, m *milter.Modifier) (milter.Response, error) {
	f.note("mail %s mailer=%s", from, m.Macros["{mail_mailer}"])
	if strings.HasPrefix(from, "refused") {
		return milter.NewResponseStr('y', "554 5.7.9 not from you"), nil
	}
	return milter.RespContinue, nil
}

func (f *filter) RcptTo(to string, m *milter.Modifier) (milter.Response, error) {
	again := slices.Contains(f.seen(), "rcpt "+to+" mailer="+m.Macros["{rcpt_mailer}"])
	f.note("rcpt %s mailer=%s", to, m.Macros["{rcpt_mailer}"])
	if strings.HasPrefix(to, "refused") || strings.HasPrefix(to, "once") && again {
		return milter.RespReject, nil
	}
	return milter.RespContinue, nil
}

func (f *filter) Header(name, value string, m *milter.Modifier) (milter.Response, error) {
	if name == "Received" || name == "Message-Id" {
		f.note("header %s", name)
	}
	if name == "Subject" {
		switch value {
		case "virus":
			return milter.NewResponseStr('y', "550 5.6.0 no viruses"), nil
		case "drop":
			return milter.RespDiscard, nil
		}
	}
	return milter.RespContinue, nil
}

func (f *filter) Body(m *milter.Modifier) (milter.Response, error) {
	f.note("eom i=%t", m.Macros["i"] != "")
	m.InsertHeader(0, "X-Filter", "seen")
	m.ChangeHeader(1, "Subject", "changed")
	m.AddHeader("X-Refused", "by milter_header_checks")
	switch m.Headers.Get("X-Do") {
	case "envelope":
		m.AddRecipient("added@to.test")
		m.DeleteRecipient("b@to.test")
		m.ChangeFrom("changed@from.test")
	case "body":
		m.ReplaceBody([]byte(".new body\nof two lines"))
	case "hold":
		m.Quarantine("looks bad")
	}
	return milter.RespAccept, nil
}

// newFilter runs a filter and returns its port.
func newFilter(t *testing.T) (*filter, int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := new(filter)
	srv := &milter.Server{NewMilter: func() milter.Milter { return f },
		Actions: milter.OptAddHeader | milter.OptChangeHeader | milter.OptChangeBody | milter.OptAddRcpt | milter.OptRemoveRcpt |
			milter.OptChangeFrom | milter.OptQuarantine}
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(l) })
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return f, l.Addr().(*net.TCPAddr).Port
}

// A filter is told of a recipient in a virtual alias domain, whose {rcpt_mailer} is
// "error" though it is as good as any: libmilter answers nothing after MAIL but RCPT.
func TestMilterVirtualAlias(t *testing.T) {
	t.Parallel()
	f, port := newFilter(t)
	s := newSystem(t, options{main: newSink(t, nil).relayhost() + fmt.Sprintf("smtpd_milters = inet:127.0.0.1:%d\n", port) +
		"virtual_alias_domains = alias.test\nvirtual_alias_maps = inline:{ {info@alias.test=x@to.test} }\n"})
	s.mustSend("a@from.test", []string{"info@alias.test"}, "Subject: x\n\nx\n")
	s.waitLog(`to=<x@to\.test>, orig_to=<info@alias\.test>, .*status=sent`)
	if events := f.seen(); !slices.Contains(events, "rcpt info@alias.test mailer=error") {
		t.Errorf("events %q", events)
	}
}

const milterMain = "milter_header_checks = inline:{ {X-Refused: by milter_header_checks=IGNORE} }\n"

// A filter sees SMTP sessions as they go, says no to what it does not like,
// and changes what is queued.
func TestMilter(t *testing.T) {
	t.Parallel()
	f, port := newFilter(t)
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + milterMain + fmt.Sprintf("smtpd_milters = inet:127.0.0.1:%d\n", port)})

	got := s.dialogue(t, "", "EHLO client.test", "MAIL FROM:<refused@from.test>", "MAIL FROM:<a@from.test>", "RCPT TO:<refused@to.test>",
		"RCPT TO:<b@to.test>", "RSET", "QUIT")
	want := []string{"554 5.7.9 not from you", "250 2.1.0 Ok", "550 5.7.1 Command rejected", "250 2.1.5 Ok", "250 2.0.0 Ok", "221 2.0.0 Bye"}
	if !slices.Equal(got[2:], want) {
		t.Errorf("replies %q, want %q", got[2:], want)
	}
	s.waitLog(`postfix/smtpd\[\d+\]: NOQUEUE: milter-reject: MAIL from \S+\[127\.0\.0\.1\]: 554 5\.7\.9 not from you; from=<refused@from\.test> proto=ESMTP helo=<client\.test>$`)
	s.waitLog(`postfix/smtpd\[\d+\]: NOQUEUE: milter-reject: RCPT from \S+\[127\.0\.0\.1\]: 550 5\.7\.1 Command rejected; from=<a@from\.test> to=<refused@to\.test> proto=ESMTP helo=<client\.test>$`)
	if ev := f.seen(); len(ev) == 0 || ev[0] != "connect tcp4 127.0.0.1 j=mta.test daemon=mta.test" || !slices.Contains(ev, "rcpt b@to.test mailer=smtp") {
		t.Errorf("the filter was told %q", ev)
	}

	err := s.send("a@from.test", []string{"b@to.test"}, "Subject: virus\n\nx\n")
	if err == nil || !strings.Contains(err.Error(), "550") || !strings.Contains(err.Error(), "5.6.0 no viruses") {
		t.Errorf("a virus: %v", err)
	}
	s.waitLog(`postfix/cleanup\[\d+\]: \w+: milter-reject: END-OF-MESSAGE from \S+\[127\.0\.0\.1\]: 5\.6\.0 no viruses; from=<a@from\.test> to=<b@to\.test> proto=ESMTP helo=<client\.test>$`)
	s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: drop\n\nx\n")
	s.waitLog(`postfix/cleanup\[\d+\]: \w+: milter-discard: END-OF-MESSAGE from .*: milter triggers DISCARD action; from=`)
	s.mustSend("a@from.test", []string{"b@to.test"}, "X-Do: hold\nSubject: h\n\nx\n")
	s.waitLog(`postfix/cleanup\[\d+\]: \w+: milter-hold: END-OF-MESSAGE from .*: milter triggers HOLD action; from=`)

	// What is kept in memory and what is kept in a file.
	long := strings.Repeat(strings.Repeat("x", 70)+"\n", 5000)
	for _, body := range []string{"short\n", long} {
		s.mustSend("a@from.test", []string{"b@to.test", "c@to.test"}, "Received: by them\nX-Do: envelope\nSubject: old\n\n"+body)
		s.mustSend("a@from.test", []string{"b@to.test"}, "X-Do: body\nSubject: old\n\n"+body)
	}
	s.waitLogN(`postfix/qmgr\[\d+\]: \w+: removed`, 4)
	seen := map[string]int{}
	for _, m := range next.received() {
		head, body, _ := strings.Cut(m.data, "\n\n")
		if !strings.HasPrefix(head, "X-Filter: seen\nReceived: ") || !strings.Contains(head, "\nSubject: changed") ||
			strings.Contains(head, "Subject: old") || strings.Contains(head, "X-Refused") {
			t.Errorf("header:\n%s", head)
		}
		if len(body) > 100 && body == long {
			body = "long"
		}
		slices.Sort(m.to)
		seen[fmt.Sprintf("%s %v %q", m.from, m.to, body)]++
	}
	for want, n := range map[string]int{`changed@from.test [added@to.test c@to.test] "short\n"`: 1, `changed@from.test [added@to.test c@to.test] "long"`: 1,
		`a@from.test [b@to.test] ".new body\nof two lines\n"`: 2} {
		if seen[want] != n {
			t.Errorf("%s arrived %d times, want %d; all: %v", want, seen[want], n, seen)
		}
	}
	if ev := f.seen(); slices.Index(ev, "header Received") < 0 {
		t.Errorf("the filter has not seen the Received: field that came: %q", ev)
	}
}

// Mail that does not come by SMTP is shown to its own filters. What they refuse
// goes back to its sender.
func TestMilterLocal(t *testing.T) {
	t.Parallel()
	f, port := newFilter(t)
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + milterMain + fmt.Sprintf("non_smtpd_milters = { inet:127.0.0.1:%d, default_action=accept }\n", port)})
	if out, status := s.tool([]byte("Subject: virus\n\nx\n"), "sendmail", "-f", "me@from.test", "b@to.test"); status != 0 {
		t.Fatal(out)
	}
	s.waitLog(`postfix/cleanup\[\d+\]: \w+: milter-reject: END-OF-MESSAGE from localhost\[127\.0\.0\.1\]: 5\.6\.0 no viruses; from=<me@from\.test> to=<b@to\.test>$`)
	s.waitLog(`status=bounced \(no viruses\)$`)
	if out, status := s.tool([]byte("Subject: fine\n\nx\n"), "sendmail", "-f", "me@from.test", "b@to.test"); status != 0 {
		t.Fatal(out)
	}
	s.waitLogN(`postfix/qmgr\[\d+\]: \w+: removed`, 3)
	// SMTP has its filters: none.
	s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: virus\n\nx\n")
	s.waitLogN(`postfix/qmgr\[\d+\]: \w+: removed`, 4)
	var kinds []string
	for _, m := range next.received() {
		kinds = append(kinds, fmt.Sprintf("from <%s> filtered %t", m.from, strings.HasPrefix(m.data, "X-Filter: seen\n")))
	}
	slices.Sort(kinds)
	want := []string{"from <> filtered false", "from <a@from.test> filtered false", "from <me@from.test> filtered true"}
	if !slices.Equal(kinds, want) {
		t.Errorf("arrived %q, want %q", kinds, want)
	}
	if ev := f.seen(); len(ev) < 3 || ev[0] != "connect tcp4 127.0.0.1 j=mta.test daemon=mta.test" || ev[1] != "helo localhost" || ev[2] != "mail me@from.test mailer=" ||
		!slices.Contains(ev, "header Message-Id") {
		t.Errorf("the filter was told %q", ev)
	}
}

// A filter that is away is treated as the administrator wants it, and mail
// goes on when it is back.
func TestMilterAway(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + "smtpd_milters = unix:{dir}/none\nsmtpd_milter_maps = inline:{127.0.0.2=DISABLE}\n"})
	err := s.send("a@from.test", []string{"b@to.test"}, "Subject: x\n\nx\n")
	if err == nil || !strings.Contains(err.Error(), "4.7.1 Service unavailable - try again later") {
		t.Errorf("sent: %v", err)
	}
	s.waitLog(`postfix/cleanup\[\d+\]: warning: connect to Milter service unix:\S+/none: no such file or directory$`)
	s.waitLog(`postfix/smtpd\[\d+\]: NOQUEUE: milter-reject: CONNECT from \S+\[127\.0\.0\.1\]: 451 4\.7\.1 Service unavailable - try again later; proto=SMTP$`)
	s.configure(next.relayhost()+"smtpd_milters = unix:{dir}/none\nsmtpd_milter_maps = inline:{127.0.0.1=DISABLE}\n", "")
	s.tool(nil, "reload")
	s.eventually("mail is taken", func() bool { return s.send("a@from.test", []string{"b@to.test"}, "Subject: x\n\nx\n") == nil })
}

// When cleanup, where sessions with filters live, is reloaded or dies, an SMTP
// session that is open goes on: the filters are told again what they need to
// know, and no message gets past them.
func TestMilterReload(t *testing.T) {
	t.Parallel()
	f, port := newFilter(t)
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + fmt.Sprintf("smtpd_milters = inet:127.0.0.1:%d\n", port)})
	reload := func() { s.mustTool("reload") }
	kill := func() {
		for _, pid := range s.processes("cleanup") {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	renew := func(how func()) {
		old := s.processes("cleanup")
		how()
		s.eventually("another cleanup serves", func() bool {
			now := s.processes("cleanup")
			return len(now) == 1 && !slices.Contains(old, now[0])
		})
	}
	c, err := textproto.Dial("tcp", s.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	step := func(line, want string) {
		t.Helper()
		if line != "" {
			c.PrintfLine("%s", line)
		}
		code, text, err := c.ReadResponse(0)
		if err != nil && code == 0 {
			t.Fatalf("%s: %v", line, err)
		}
		if fmt.Sprint(code) != want {
			t.Errorf("%s: %d %s, want %s", line, code, text, want)
		}
	}
	step("", "220")
	step("EHLO client.test", "250")
	for _, tt := range []struct {
		at  string
		how func()
	}{{"MAIL", kill}, {"Subject", reload}} {
		before := len(f.seen())
		for _, line := range []string{"MAIL FROM:<a@from.test>", "RCPT TO:<" + tt.at + "@to.test>", "DATA", "Subject: x\r\n\r\nx\r\n."} {
			if strings.HasPrefix(line, tt.at) {
				renew(tt.how)
			}
			step(line, map[bool]string{true: "354", false: "250"}[line == "DATA"])
		}
		var seen []string // since the last time that it was told of a client
		for _, e := range f.seen()[before:] {
			if e == connected {
				seen = nil
			}
			if !strings.HasPrefix(e, "header") {
				seen = append(seen, e)
			}
		}
		want := []string{connected, "helo client.test", "mail a@from.test mailer=smtp", "rcpt " + tt.at + "@to.test mailer=smtp", "eom i=true"}
		if !slices.Equal(seen, want) {
			t.Errorf("before %s: the filter was told %q, want %q", tt.at, seen, want)
		}
	}
	// What the filter has let pass once it may refuse the second time.
	step("MAIL FROM:<a@from.test>", "250")
	step("RCPT TO:<once@to.test>", "250")
	step("RCPT TO:<other@to.test>", "250")
	renew(kill)
	step("RCPT TO:<third@to.test>", "451")
	step("DATA", "451")
	step("RSET", "250")
	step("MAIL FROM:<a@from.test>", "250")
	step("RCPT TO:<refused@to.test>", "550")
	step("RCPT TO:<b@to.test>", "250")
	step("QUIT", "221")
	s.waitLogN(`postfix/qmgr\[\d+\]: \w+: removed`, 2)
	for _, m := range next.received() {
		if !strings.HasPrefix(m.data, "X-Filter: seen\n") {
			t.Errorf("it was not filtered:\n%s", m.data)
		}
	}
	if strings.Contains(s.log(), "no answer from cleanup") {
		t.Error("cleanup was given up")
	}
}

// connected is what a filter notes of a client.
const connected = "connect tcp4 127.0.0.1 j=mta.test daemon=mta.test"

// A recipient whom a filter adds does not get the link by which the only one before unsubscribes, and so neither does that
// one: the filter has made them one message.
func TestMilterUnsubscribe(t *testing.T) {
	t.Parallel()
	_, port := newFilter(t)
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true, main: next.relayhost() + fmt.Sprintf(`smtpd_milters = inet:127.0.0.1:%d
unsubscribe_url = https://u.test/u/
unsubscribe_secret_file = {dir}/unsubscribe
suppress_tenants = acme
tenant_maps = inline:{ {ann@from.test = acme} }
tenant_header_clients = 127.0.0.0/8
`, port), master: "suppress unix - - n - 1 suppressd\n"})
	s.write("unsubscribe", "a secret of this test\n")
	if err := os.Chmod(s.path("unsubscribe"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	for _, do := range []string{"nothing", "envelope"} {
		s.mustSend("ann@from.test", []string{"joe@to.test"}, "Subject: x\r\nX-Do: "+do+"\r\nX-Unsubscribe: letter\r\n\r\nx\r\n")
	}
	s.eventually("both have arrived", func() bool {
		n := 0
		for _, m := range next.received() {
			n += len(m.to)
		}
		return n == 3
	})
	for _, m := range next.received() {
		changed := strings.Contains(m.data, "X-Do: envelope")
		if strings.Contains(m.data, "List-Unsubscribe: <https://u.test/u/") == changed || strings.Contains(m.data, "List-Unsubscribe-Post") == changed {
			t.Errorf("to %q:\n%s", m.to, m.data)
		}
	}
	s.waitLog(`ignoring the X-Unsubscribe header: a milter has changed the recipients`)
}
