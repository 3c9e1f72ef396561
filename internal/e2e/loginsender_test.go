package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestLocalLoginSenders: sendmail takes and refuses the same senders as
// Postfix's does, and says the same of those that it refuses; also of root, who
// could write into the maildrop directory himself.
func TestLocalLoginSenders(t *testing.T) {
	t.Parallel()
	o := options{main: "defer_transports = smtp\nrecipient_delimiter = +\n" +
		"local_login_sender_maps = inline:{{root = root, me@from.test, \"a b\"@from.test, @dom.test, none}}\n" +
		"empty_address_local_login_sender_maps_lookup_key = none\n"}
	theirs, ours := newPostfix(t, o), newSystem(t, o)
	commands := map[*system]func(args ...string) *exec.Cmd{
		theirs: func(args ...string) *exec.Cmd {
			return theirs.original.Command(context.Background(), "sendmail", args...)
		},
		ours: func(args ...string) *exec.Cmd {
			return exec.Command(filepath.Join(binDir, "sendmail"), append([]string{"-C", ours.path("etc")}, args...)...)
		},
	}
	taken := 0
	for _, from := range []string{"-", "me@from.test", "ME+x@From.Test", "you@from.test", `"a b"@from.test`, `"a c"@from.test`,
		"x@dom.test", "x@sub.dom.test", "<>", "none", "*"} {
		args := []string{"-oi", "-f", from, "to@to.test"}
		if from == "-" { // the login name
			args = []string{"-oi", "to@to.test"}
		}
		var said [2]string
		var status [2]int
		for i, s := range []*system{theirs, ours} {
			cmd := commands[s](args...)
			cmd.Stdin = strings.NewReader("Subject: x\n\n" + strings.Repeat("a line of some length\n", 10000))
			out, err := cmd.CombinedOutput()
			if err != nil && cmd.ProcessState == nil {
				t.Fatal(err)
			}
			said[i], status[i] = string(out), cmd.ProcessState.ExitCode()
		}
		if said[0] != said[1] || status[0] != status[1] {
			t.Errorf("sendmail -f %s:\nPostfix, exit status %d: %s\nours, exit status %d: %s", from, status[0], said[0], status[1], said[1])
		}
		if status[1] == 0 {
			taken++
		}
	}
	if taken != 6 {
		t.Errorf("%d senders were taken, want 6", taken)
	}
	ours.waitLogN("status=deferred", taken)
}
