// Package postlock is the postlock(1) command: it locks a mailbox as local delivery does, and
// executes a command while it has it.
//
//	postlock [-v] [-c config_dir] [-l lock_style] file command ...
//
// The command is executed without a shell.
//
// # Security
//
// It has the rights of whoever calls it.
//
// # Parameters
//
// deliver_lock_attempts, deliver_lock_delay, mailbox_delivery_lock, stale_lock_time.
//
// # Diagnostics
//
// The exit status is the command's; 1 if it cannot be executed, or is killed; 75 if the
// mailbox cannot be locked, or the command line or main.cf is wrong.
package postlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/local/mailbox"
)

const usage = "usage: postlock [-c config_dir] [-l lock_style] [-v] file command..."

// exitTempFail is the status of everything that is not the command's; see sysexits(3).
const exitTempFail = 75

// Run carries out the command and returns its exit status.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fatal := func(status int, format string, args ...any) int {
		fmt.Fprintf(stderr, "postlock: fatal: %s\n", fmt.Sprintf(format, args...))
		return status
	}
	dir, style, verbose := "", "", false
	opts, rest, err := cli.Getopt(args, "c:l:v")
	if err != nil || len(rest) < 2 {
		return fatal(exitTempFail, "%s", usage)
	}
	for _, o := range opts {
		switch o.Letter {
		case 'c':
			dir = o.Value
		case 'l':
			style = o.Value
		case 'v':
			verbose = true
		}
	}
	cfg, err := config.ReadFor(config.Dir(dir), "mailbox_delivery_lock", "deliver_lock_attempts", "deliver_lock_delay", "stale_lock_time")
	if err != nil {
		return fatal(exitTempFail, "%v", err)
	}
	words := cfg.List("mailbox_delivery_lock")
	if style != "" {
		words = strings.FieldsFunc(style, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) })
	}
	locks, err := mailbox.ParseLocks(words)
	if err == nil && locks == 0 {
		err = errors.New("expected at least one of dotlock, fcntl or flock")
	}
	if err != nil {
		return fatal(exitTempFail, "mailbox_delivery_lock: %v", err)
	}
	store := mailbox.New(mailbox.Options{LockAttempts: cfg.Int("deliver_lock_attempts"), LockDelay: cfg.Duration("deliver_lock_delay"),
		StaleLock: cfg.Duration("stale_lock_time")})
	release, err := store.Hold(context.Background(), rest[0], locks)
	if err != nil {
		return fatal(exitTempFail, "lock %s: %v", rest[0], err)
	}
	defer release()
	if verbose {
		fmt.Fprintf(stderr, "postlock: %s is locked (%s)\n", rest[0], strings.Join(words, ", "))
	}
	cmd := exec.Command(rest[1], rest[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	var exit *exec.ExitError
	switch err := cmd.Run(); {
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	case err != nil:
		return fatal(1, "%s: %v", rest[1], err)
	}
	return 0
}
