// Postdrop puts mail into the maildrop directory. With postqueue it is one of the
// two programs of the mail system that run with a right that their caller does not have: here
// the set-gid group's right to make files there. It is run by sendmail, which gives it a
// message in the form of package maildrop on standard input.
//
//	postdrop [-rv] [-c config_dir]
//
// # Security
//
// Everybody may run it. The environment is not used but for MAIL_CONFIG (not by the Go
// runtime either: package scrub), and
// that, like -c, only names a directory that the default main.cf lists in
// alternate_config_directories, unless it is the super-user or runs without
// the set-gid right. Who may submit mail at all is authorized_submit_users, and
// which senders a user may use is local_login_sender_maps, which is asked for the
// login name, or for "uid:" and the number of a user who has none.
// The message is read with bounds and copied field by field; the submitter
// and the time are what the kernel says.
//
// # Diagnostics
//
// Exit status 0: the message is on stable storage. 65: what it was given is
// no message, or not one that is taken. 69: the message is too large. 75: it
// could not be stored; try again; or the user may not submit mail, or not with that
// sender, as with Postfix. 78: wrong configuration. Why is on standard error; why
// a sender is not taken is on standard output, for sendmail to say.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/maildrop"
	_ "posthaste/internal/scrub" // its entry is where this begins
	"posthaste/internal/table"
	"posthaste/internal/usage"
	"posthaste/internal/whoami"
)

// Exit statuses of sysexits.h.
const (
	exitUsage    = 64
	exitDataErr  = 65
	exitTooBig   = 69
	exitTempFail = 75
	exitConfig   = 78
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if usage.Asked(args) {
		fmt.Fprint(stdout, usage.Of("postdrop"))
		return 0
	}
	fatal := func(status int, format string, a ...any) int {
		fmt.Fprintf(stderr, "postdrop: fatal: %s\n", fmt.Sprintf(format, a...))
		return status
	}
	dir, ok := parse(args)
	if !ok {
		return fatal(exitUsage, "usage: postdrop [-c config_dir] [-rv]")
	}
	dir = config.Dir(dir)
	if err := config.Permitted(dir); err != nil {
		return fatal(exitConfig, "%v", err)
	}
	cfg, err := config.Read(dir)
	if err == nil {
		err = cfg.Check("authorized_submit_users", "queue_directory", "pickup_service_name", "message_size_limit",
			"local_login_sender_maps", "empty_address_local_login_sender_maps_lookup_key", "recipient_delimiter",
			"owner_request_special", "double_bounce_sender")
	}
	if err != nil {
		return fatal(exitConfig, "%v", err)
	}
	if ok, err := authorized(cfg); err != nil {
		return fatal(exitTempFail, "%v", err)
	} else if !ok {
		return fatal(exitTempFail, "User %s(%d) is not allowed to submit mail (authorized_submit_users)", whoami.Name(), os.Getuid())
	}
	queue := cfg.String("queue_directory")
	box := maildrop.Box{Dir: filepath.Join(queue, "maildrop"), Socket: filepath.Join(queue, "public", cfg.String("pickup_service_name"))}
	if cfg.String("local_login_sender_maps") != maildrop.EverySender {
		box.Sender = func(sender string) error {
			return mayUse(cfg, login(), sender, func(text string) { fmt.Fprintf(stderr, "postdrop: warning: %s\n", text) })
		}
	}
	err = box.Drop(stdin, os.Getuid(), time.Now(), cfg.Bytes("message_size_limit"))
	var refused refusal
	switch {
	case errors.As(err, &refused):
		fmt.Fprintln(stdout, refused)
		return exitTempFail
	case errors.Is(err, maildrop.ErrTooBig):
		return fatal(exitTooBig, "%v", err)
	case errors.Is(err, maildrop.ErrMalformed):
		return fatal(exitDataErr, "%v", err)
	case err != nil:
		return fatal(exitTempFail, "%v", err)
	}
	return 0
}

// parse reads -c dir; -r and -v are accepted.
func parse(args []string) (dir string, ok bool) {
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "-r" || args[i] == "-v":
		case args[i] == "-c" && i+1 < len(args):
			i++
			dir = args[i]
		default:
			return "", false
		}
	}
	return dir, true
}

// authorized says whether authorized_submit_users has the caller. root is one of
// them like any other, as with Postfix: with an empty list nobody submits mail.
func authorized(cfg *config.Config) (bool, error) {
	l, err := table.NewList("authorized_submit_users", cfg.List("authorized_submit_users"), table.ListOptions{Kind: table.Strings})
	if err != nil {
		return false, err
	}
	return l.Match(context.Background(), whoami.Name())
}
