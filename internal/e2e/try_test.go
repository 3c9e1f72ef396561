package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What "make run" starts is a mail server that says what it is, takes mail
// over SMTP and by sendmail into a Maildir, and ends with Ctrl-C.
func TestTry(t *testing.T) {
	t.Parallel()
	s := &system{t: t, dir: tryDir(t), port: freePort(t)}
	s.cmd = exec.Command(filepath.Join(binDir, "posthaste"), "try", "-d", s.dir, "-p", strconv.Itoa(s.port))
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.launch()
	s.eventually("it greets", func() bool { return strings.Contains(s.output(), "Ctrl-C") })
	out := s.output()
	for _, want := range []string{"127.0.0.1:" + strconv.Itoa(s.port), "mail lands", "sendmail", "swaks", "mailq", "Ctrl-C"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	to := "postmaster@localhost" // an alias of the one who has the mailbox
	s.mustSend("a@from.test", []string{to}, "Subject: over SMTP\n\nx\n")
	if out, status := s.tool([]byte("Subject: by sendmail\nTo: "+to+"\n\nx\n"), "sendmail", "-t"); status != 0 {
		t.Errorf("sendmail: %d %s", status, out)
	}
	smtp := "EHLO c.test\r\nMAIL FROM:<a@from.test>\r\nRCPT TO:<" + to + ">\r\nDATA\r\nSubject: on standard input\r\n\r\nx\r\n.\r\nQUIT\r\n"
	if out, status := s.tool([]byte(smtp), "sendmail", "-bs"); status != 0 || !strings.Contains(out, "250 2.0.0 Ok: queued as ") {
		t.Errorf("sendmail -bs: %d %s", status, out)
	}
	s.waitLogN(`relay=local, .*status=sent \(delivered to maildir\)`, 3)
	files, _ := filepath.Glob(filepath.Join(s.dir, "mail", "*", "new", "*"))
	var all bytes.Buffer
	for _, f := range files {
		b, _ := os.ReadFile(f)
		all.Write(b)
	}
	for _, want := range []string{"Subject: over SMTP\n", "Subject: by sendmail\n", "Subject: on standard input\n"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("no message with %q among %v", want, files)
		}
	}
	s.cmd.Process.Signal(os.Interrupt)
	select {
	case <-s.done:
	case <-time.After(patience):
		t.Fatal("Ctrl-C does not stop it")
	}
	if left := s.processes(); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
}

// tryDir is a directory that other users may enter, as root needs.
func tryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "phtry")
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o755)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
