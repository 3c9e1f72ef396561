package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"posthaste/internal/testproc"
	"posthaste/internal/testwait"
)

// A watched is a "posthaste watch" that runs.
type watched struct {
	out testproc.Output
	end func() error
}

// watch starts "posthaste watch" with arguments.
func (s *system) watch(args ...string) *watched {
	s.t.Helper()
	w := new(watched)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, "posthaste"), append([]string{"-c", s.path("etc"), "watch"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.Stdout, cmd.Stderr = &w.out, &w.out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(testproc.Watch(s.t, cmd, ""))
	w.end = func() error {
		cancel()
		cmd.Wait()
		return exitError(cmd)
	}
	s.t.Cleanup(func() { _ = w.end() })
	return w
}

// exitError is why a command that has ended did not end well.
func exitError(cmd *exec.Cmd) error {
	if cmd.ProcessState.Success() {
		return nil
	}
	return &exec.ExitError{ProcessState: cmd.ProcessState}
}

// says waits until the command has printed what the pattern matches.
func (w *watched) says(t *testing.T, pattern string) {
	t.Helper()
	re := regexp.MustCompile(pattern)
	testwait.Until(t, "posthaste watch prints "+pattern+"; it has printed\n"+w.out.String(), func() bool { return re.MatchString(w.out.String()) })
}

// TestWatch follows the dialogues with a client and with a destination through the real
// processes, through a reload, which replaces them, and without a trace in the log.
func TestWatch(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + "debug_peer_level = 2\n"})
	client := s.watch("client", "127.0.0.0/8")
	other := s.watch("client", "192.0.2.1")
	destination := s.watch("destination", "[127.0.0.1]")
	const content = "Subject: private\n\nvery private\n"
	for range 2 {
		s.mustSend("a@from.test", []string{"b@to.test"}, content) // which starts the processes
		client.says(t, `following client 127\.0\.0\.0/8 in postfix/smtpd\[\d+\]`)
		destination.says(t, `following destination \[127\.0\.0\.1\] in postfix/smtp\[\d+\]`)
		s.mustSend("seen@from.test", []string{"b@to.test"}, content)
		client.says(t, `\d\d:\d\d:\d\d\.\d{3} postfix/smtpd\[\d+\] < \S+\[127\.0\.0\.1\]: MAIL FROM:<seen@from\.test>`)
		client.says(t, `postfix/smtpd\[\d+\] > \S+\[127\.0\.0\.1\]: 250 2\.0\.0 Ok: queued as`)
		destination.says(t, `postfix/smtp\[\d+\] > 127\.0\.0\.1\[127\.0\.0\.1\]:\d+: MAIL FROM:<seen@from\.test>`)
		destination.says(t, `postfix/smtp\[\d+\] < 127\.0\.0\.1\[127\.0\.0\.1\]:\d+: 250 2\.0\.0 Ok: sunk`)
		if _, status := s.tool(nil, "reload"); status != 0 {
			t.Fatal("reload: exit status", status)
		}
		s.waitLog(`reload -- version`)
	}
	testwait.Until(t, "several processes have been followed", func() bool { return strings.Count(client.out.String(), "following") > 1 })
	for name, w := range map[string]*watched{"client": client, "other": other, "destination": destination} {
		if err := w.end(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if text := w.out.String(); strings.Contains(text, "private") {
			t.Errorf("%s: content of messages:\n%s", name, text)
		}
	}
	if text := other.out.String(); strings.Contains(text, "MAIL FROM") {
		t.Errorf("the dialogue with another client:\n%s", text)
	}
	if log := s.log(); strings.Contains(log, "MAIL FROM:") {
		t.Error("the dialogue is in the log")
	}
	if out, status := s.tool(nil, "watch", "client", "hash:/etc/passwd"); status != 1 || !strings.Contains(out, "expected one name") {
		t.Errorf("a table: %d %s", status, out)
	}
}

// TestVerbose: -v in master.cf has a service log its dialogues, and no other.
func TestVerbose(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost(), master: "smtp unix - - n - - smtp -v\nrelay unix - - n - - smtp -v -v\n"})
	s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: private\n\nvery private\n")
	s.waitLog(`postfix/smtp\[\d+\]: > 127\.0\.0\.1\[127\.0\.0\.1\]:\d+: MAIL FROM:<a@from\.test>`)
	s.waitLog(`postfix/smtp\[\d+\]: < 127\.0\.0\.1\[127\.0\.0\.1\]:\d+: 250 2\.0\.0 Ok: sunk`)
	if log := s.log(); strings.Contains(log, "private") || regexp.MustCompile(`smtpd\[\d+\]: [<>] `).MatchString(log) {
		t.Error("the log has content, or dialogues of smtpd")
	}
}
