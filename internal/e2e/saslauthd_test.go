package e2e

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"posthaste/internal/testproc"
)

// newPasswordServer is an IMAP server that says whose passwords are right, and no more: saslauthd
// can be told to ask one.
func newPasswordServer(t *testing.T, login string) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				fmt.Fprint(c, "* OK ready\r\n")
				in := bufio.NewScanner(c)
				for in.Scan() {
					tag, command, _ := strings.Cut(in.Text(), " ")
					switch {
					case command == "LOGIN "+login:
						fmt.Fprintf(c, "%s OK\r\n", tag)
					case strings.HasPrefix(command, "LOGOUT"):
						fmt.Fprintf(c, "* BYE\r\n%s OK\r\n", tag)
						return
					case strings.HasPrefix(command, "CAPABILITY"):
						fmt.Fprintf(c, "* CAPABILITY IMAP4rev1\r\n%s OK\r\n", tag)
					default:
						fmt.Fprintf(c, "%s NO\r\n", tag)
					}
				}
			})
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

// TestSaslauthd lets users in by the real saslauthd.
func TestSaslauthd(t *testing.T) {
	t.Parallel()
	saslauthd := need(t, "saslauthd")
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: saslauthd's socket has a path that only root can give it")
	}
	port := newPasswordServer(t, `"joe@example.test" "secret"`)
	s := newSystem(t, options{unstarted: true})
	if err := os.MkdirAll(s.path("saslauthd"), 0o755); err != nil {
		t.Fatal(err)
	}
	var out testproc.Output
	cmd := exec.Command(saslauthd, "-d", "-r", "-a", "rimap", "-O", fmt.Sprintf("127.0.0.1/%d", port), "-m", s.path("saslauthd"), "-n", "1")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it ends its whole process group
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(testproc.Watch(t, cmd, ""))
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
		if t.Failed() {
			t.Logf("saslauthd: %s", out.String())
		}
	})
	s.eventually("saslauthd listens", func() bool {
		_, err := os.Stat(s.path("saslauthd/mux"))
		return err == nil
	})
	if err := os.Mkdir(s.path("etc/sasl"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.write("etc/sasl/smtpd.conf", "pwcheck_method: saslauthd\nmech_list: PLAIN LOGIN\nsaslauthd_path: "+s.path("saslauthd/mux")+"\n")
	s.configure("smtpd_sasl_auth_enable = yes\nsmtpd_sasl_type = cyrus\nsmtpd_sasl_local_domain = example.test\nsmtpd_error_sleep_time = 0\n", "")
	s.start()
	b64 := base64.StdEncoding.EncodeToString
	for _, login := range []struct {
		lines []string
		want  string
	}{
		{[]string{"AUTH PLAIN " + b64([]byte("\x00joe\x00secret"))}, "235 2.7.0"},
		{[]string{"AUTH LOGIN", b64([]byte("joe@example.test")), b64([]byte("secret"))}, "235 2.7.0"},
		{[]string{"AUTH PLAIN " + b64([]byte("\x00joe\x00wrong"))}, "535 5.7.8"},
		{[]string{"AUTH PLAIN " + b64([]byte("\x00joe@other.test\x00secret"))}, "535 5.7.8"},
		{[]string{"AUTH CRAM-MD5"}, "535 5.7.8"},
	} {
		replies := s.dialogue(t, append(append([]string{"", "EHLO client.test"}, login.lines...), "MAIL FROM:<a@from.test>")...)
		if got := replies[len(replies)-2]; !strings.HasPrefix(got, login.want) {
			t.Errorf("%q: %q", login.lines, replies)
		}
	}
	s.waitLog(`SASL PLAIN authentication failed: .*sasl_username=joe@example\.test`)
}
