package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/vfs/disktest"

	"posthaste/internal/testproc"
)

// What "make run" starts is a mail server that says what it is, takes mail
// over SMTP and by sendmail into a Maildir, and ends with Ctrl-C.
func TestTry(t *testing.T) {
	t.Parallel()
	s := startTry(t, tryDir(t), freePort(t))
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
	s.interrupt()
	if left := s.processes(); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
}

// startTry starts "posthaste try", with -p if port is not 0, and waits until it greets.
func startTry(t *testing.T, dir string, port int) *system {
	t.Helper()
	s := &system{t: t, dir: dir, port: port, done: make(chan struct{})}
	args := []string{"try", "-d", dir}
	if port != 0 {
		args = append(args, "-p", strconv.Itoa(port))
	}
	s.cmd = exec.Command(filepath.Join(binDir, "posthaste"), args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	unwatch := testproc.Watch(t, s.cmd, dir)
	go func() { s.cmd.Wait(); unwatch(); close(s.done) }()
	t.Cleanup(s.stop)
	s.eventually("it greets", func() bool {
		select {
		case <-s.done:
			t.Fatalf("it ended:\n%s", s.output())
		default:
		}
		return strings.Contains(s.output(), "Ctrl-C")
	})
	return s
}

// interrupt is Ctrl-C.
func (s *system) interrupt() {
	s.t.Helper()
	s.cmd.Process.Signal(os.Interrupt)
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Fatal("Ctrl-C does not stop it")
	}
}

// A second run keeps what is there, listens on the port that it is told, and says where
// it does; without one it listens, and says so, where it did before.
func TestTryAgain(t *testing.T) {
	t.Parallel()
	dir, first, second := tryDir(t), freePort(t), freePort(t)
	for _, run := range []struct{ asked, port int }{{first, first}, {second, second}, {0, second}} {
		s, addr := startTry(t, dir, run.asked), "127.0.0.1:"+strconv.Itoa(run.port)
		if said := s.output(); !strings.Contains(said, "  listens on   "+addr+", for this machine only\n") || !strings.Contains(said, "swaks --server "+addr+" ") {
			t.Errorf("-p %d: it says\n%s", run.asked, said)
		}
		c, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			t.Error(err)
		} else {
			c.Close()
		}
		s.interrupt()
	}
	main := filepath.Join(dir, "etc", "main.cf")
	text, err := os.ReadFile(main)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(main, append(text, "mail_spool_directory = "+dir+"/boxes\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	s := startTry(t, dir, 0)
	s.interrupt()
	if said := s.output(); !strings.Contains(said, "  mail lands   in "+dir+"/boxes/") || strings.Contains(said, "/new\n") {
		t.Errorf("another mailbox: it says\n%s", said)
	}
}

// Root's private mail system has no process of root's.
func TestTryAsRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT PROVED HERE: only root has privileges to give up")
	}
	dir := tryDir(t)
	s := startTry(t, dir, freePort(t))
	found := regexp.MustCompile(`it runs as the user (\S+)\n(?s:.*)\n  runs as      (\S+)\n`).FindStringSubmatch(s.output())
	if found == nil || found[1] != found[2] {
		t.Fatalf("it says\n%s", s.output())
	}
	u, err := user.Lookup(found[1])
	if err != nil || u.Uid == "0" {
		t.Fatalf("it runs as %s: %v", found[1], err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("\nUid:\t%[1]s\t%[1]s\t%[1]s\t%[1]s\n", u.Uid); !strings.Contains(string(status), want) || !strings.Contains(string(status), "\nGroups:\t"+u.Gid+" \n") {
		t.Errorf("its rights are not those of %s:\n%s", found[1], status)
	}
	s.interrupt()
	// What is root's, with something in it, is given to nobody.
	if err := os.Chown(dir, 0, 0); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(binDir, "posthaste"), "try", "-d", dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "belongs to root and is not empty") {
		t.Errorf("%v: %s", err, out)
	}
}

// A disk on which no queue can begin is an error at once.
func TestTryTinyDisk(t *testing.T) {
	t.Parallel()
	ram := tryDir(t)
	disktest.MountAt(t, ram, "-t", "tmpfs", "-o", "size=16m,mode=755", "tmpfs")
	out, err := exec.Command(filepath.Join(binDir, "posthaste"), "try", "-d", filepath.Join(ram, "run"), "-p", strconv.Itoa(freePort(t))).CombinedOutput()
	exit, ok := err.(*exec.ExitError)
	if !ok || exit.ExitCode() != 1 || !regexp.MustCompile(`fatal: the file system of .*/run/spool has \d+ bytes free, and a new queue begins with a segment of 67108864: `).Match(out) {
		t.Errorf("%v: %s", err, out)
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
