package e2e

import (
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
)

// logService is a log service at devlog that appends what it gets to the file
// that waitLog reads, a line for each datagram, as line has it. The order is
// that in which things happened, however slow the machine is: each process
// goes on when its line is here.
func logService(t *testing.T, s *system, line func(datagram string) string) {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.path("devlog"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.path("devlog"), 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(s.path("mail.log"))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		c.Close()
		<-ended
		f.Close()
	})
	go func() {
		defer close(ended)
		b := make([]byte, 64<<10)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			if _, err := f.WriteString(line(string(b[:n])) + "\n"); err != nil {
				t.Error(err)
			}
		}
	}()
}

// Without a log file lines go to the system's log service, from a server in a
// root of its own too; there they are in order, and a message can be followed.
func TestLogSyslog(t *testing.T) {
	t.Parallel()
	chroot := "n"
	if os.Getuid() == 0 {
		chroot = "y"
	}
	for _, tt := range []struct {
		name, main string
		line       string // of the message
	}{
		{"rfc3164", "", `(?m)^<22>[A-Z][a-z]{2} [ \d]\d [\d:]{8} postfix/(\w+)\[\d+\]: {id}: {text}$`},
		{"rfc5424", "syslog_protocol = rfc5424\n", `(?m)^<22>1 \S+ \S+ postfix/(\w+) \d+ - - {id}: {text}$`},
		{"journal", "syslog_protocol = journal\n", `(?m)^.*SYSLOG_IDENTIFIER=postfix/(\w+) \| .*MAIL_QUEUE_ID={id} \| .*MESSAGE={id}: {text}(?: \| .*)?$`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, options{unstarted: true})
			logService(t, s, func(d string) string { return strings.ReplaceAll(strings.TrimSuffix(d, "\n"), "\n", " | ") })
			next := newSink(t, nil)
			s.configure("maillog_file =\nsyslog_socket = {dir}/devlog\n"+tt.main+next.relayhost(), "127.0.0.1:{port} inet n - "+chroot+" - - smtpd\n")
			s.start()
			s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: x\nMessage-Id: <1@from.test>\n\nx\n")
			id := s.queueID(`(\w{10,}): from=<a@from\.test>`)
			s.waitLog(id + `: removed`)
			pattern := strings.NewReplacer("{id}", id, "{text}", `((?:client=|message-id=|from=|to=|removed).*?)`).Replace(tt.line)
			var got []string
			for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(s.log(), -1) {
				what, _, _ := strings.Cut(m[2], "=")
				got = append(got, m[1]+" "+what)
			}
			want := "smtpd client, cleanup message-id, qmgr from, smtp to, qmgr removed"
			if strings.Join(got, ", ") != want {
				t.Errorf("the lines of %s by %s: %q, want %s", id, pattern, got, want)
			}
		})
	}
}
