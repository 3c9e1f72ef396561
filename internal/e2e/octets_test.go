package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// bdat submits a message in two chunks, RFC 3030.
func (s *system) bdat(from, to, text string) {
	s.t.Helper()
	c, err := net.Dial("tcp", s.addr())
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	text = strings.ReplaceAll(text, "\n", "\r\n")
	half := len(text) / 2
	c.SetDeadline(time.Now().Add(patience))
	r := textproto.NewReader(bufio.NewReader(c))
	for _, say := range []string{"", "EHLO c.test\r\n", fmt.Sprintf("MAIL FROM:<%s>\r\n", from), fmt.Sprintf("RCPT TO:<%s>\r\n", to),
		fmt.Sprintf("BDAT %d\r\n%s", half, text[:half]), fmt.Sprintf("BDAT %d LAST\r\n%s", len(text)-half, text[half:])} {
		io.WriteString(c, say)
		if _, _, err := r.ReadResponse(2); err != nil {
			s.t.Fatalf("%.40q: %v", say, err)
		}
	}
}

// unbroken is a message with the lines put together that were broken at the
// limit of RFC 5321.
func unbroken(text string) string {
	var out []string
	full := false
	for line := range strings.SplitSeq(text, "\n") {
		wasFull := full
		full = len(line) == 998
		if wasFull && strings.HasPrefix(line, " ") {
			out[len(out)-1] += line[1:]
			continue
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// What the next hop has is what is in the spool, octet for octet, also where
// fields of the header begin with dots or are longer than a line may be: for mail
// by DATA, BDAT and sendmail, returned and requeued, by SMTP and LMTP.
func TestOctets(t *testing.T) {
	t.Parallel()
	var open atomic.Bool
	next := newSink(t, func(line string) string {
		if !open.Load() && strings.HasPrefix(line, "RCPT") {
			return "450 4.3.2 later"
		}
		return ""
	})
	s := newSystem(t, options{unstarted: true, main: fmt.Sprintf("transport_maps = inline:{ {smtp.test=smtp:[127.0.0.1]:%d}, "+
		"{lmtp.test=lmtp:inet:127.0.0.1:%[1]d}, {gone.test=error:5.1.1 nobody} }\nsmtp_line_length_limit = 0\n"+
		"always_add_missing_headers = yes\n", next.port())})
	s.operate("", "check") // makes directories
	long := strings.Repeat("x", 3000)
	message := func(what string) string {
		return "Received: from x by y; z\n..Authentication-Results: x; dkim=pass\nFrom: <a@from.test>\n.Long: " + long + ".\nSubject: " + what + "\n\n.\n..two\n" + what + "\n."
	}
	s.start()
	n := 0
	for _, domain := range []string{"smtp.test", "lmtp.test"} {
		s.mustSend("a@from.test", []string{"data@" + domain}, message("data")+"\n")
		s.bdat("a@from.test", "bdat@"+domain, message("bdat")+"\n")
		s.operate(message("drop")+"\n", "sendmail", "-i", "-f", "a@from.test", "drop@"+domain)
		s.operate(message("bounce")+"\n", "sendmail", "-i", "-f", "back@"+domain, "lost@gone.test")
		n += 4
	}
	queued := regexp.MustCompile(`"queue_name": "deferred", "queue_id": "(\w+)"`)
	deferred := func() (ids []string) {
		for _, m := range queued.FindAllStringSubmatch(s.mustTool("postqueue", "-j"), -1) {
			ids = append(ids, m[1])
		}
		return ids
	}
	s.eventually("all is deferred", func() bool { return len(deferred()) == n })
	s.mustTool("postsuper", "-r", deferred()[0], "-r", deferred()[n-1])
	s.eventually("all is deferred again", func() bool { return len(deferred()) == n })
	var want, got []string
	for _, id := range deferred() {
		want = append(want, s.mustTool("postcat", "-bhq", id))
	}
	open.Store(true)
	s.mustTool("postqueue", "-f")
	s.eventually("all has arrived", func() bool { return len(next.received()) == n })
	for _, m := range next.received() {
		text := m.data
		if strings.Contains(m.to[0], "lmtp.test") {
			for line := range strings.SplitSeq(text, "\n") {
				if len(line) > 998 {
					t.Errorf("to %s: a line of %d octets", m.to, len(line))
				}
			}
			text = unbroken(text)
		}
		got = append(got, text)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the next hop has\n%s\nin the queue was\n%s", strings.Join(got, "\n----\n"), strings.Join(want, "\n----\n"))
	}
	if all := strings.Join(got, "\n"); strings.Count(all, "\n..Authentication-Results:") != n || strings.Count(all, "\n.Long: "+long+".\n") != n {
		t.Errorf("the fields are not what they were:\n%s", all)
	}
	if left, _ := os.ReadDir(s.path("spool", "maildrop")); len(left) > 0 {
		t.Errorf("%d files are left in maildrop", len(left))
	}
}
