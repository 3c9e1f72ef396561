// Package cli is the ground that command-line tools stand on: options in getopt's manner,
// exit statuses of sysexits.h, and messages in Postfix's form.
package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Exit statuses of sysexits.h.
const (
	ExitUsage       = 64 // wrong command line
	ExitData        = 65 // input that is not what it should be
	ExitNoInput     = 66 // no such message or file
	ExitUnavailable = 69 // the mail system is down, or cannot do that
	ExitIO          = 74 // output failed
	ExitTemp        = 75 // try again: somebody else is at it
	ExitNoPerm      = 77 // not for this user
	ExitConfig      = 78 // main.cf
)

// A Tool is one run of a command.
type Tool struct {
	Name           string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Fatal says why the tool ends, and returns the exit status.
func (t *Tool) Fatal(status int, format string, args ...any) int {
	fmt.Fprintf(t.Stderr, "%s: fatal: %s\n", t.Name, fmt.Sprintf(format, args...))
	return status
}

// Warn says what is wrong where the tool goes on.
func (t *Tool) Warn(format string, args ...any) {
	fmt.Fprintf(t.Stderr, "%s: warning: %s\n", t.Name, fmt.Sprintf(format, args...))
}

// Fail is Fatal with the status that belongs to the error.
func (t *Tool) Fail(err error) int { return t.Fatal(Status(err), "%v", err) }

// A statusError is an error that knows its exit status.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// Errorf is an error that ends a tool with the given exit status.
func Errorf(status int, format string, args ...any) error {
	return &statusError{status, fmt.Errorf(format, args...)}
}

// Status is the exit status that belongs to an error: that of [Errorf], else
// ExitUnavailable.
func Status(err error) int {
	var s *statusError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &s):
		return s.status
	}
	return ExitUnavailable
}

// An Option is one option of a command line.
type Option struct {
	Letter byte
	Value  string
}

// Getopt takes options off args in the manner of getopt(3) with letters such
// as "c:v": a colon says that the option has a value, in the same or in the
// next word. The first word that is no option, or what follows "--", begins
// the rest.
func Getopt(args []string, letters string) (opts []Option, rest []string, err error) {
	for len(args) > 0 {
		word := args[0]
		if len(word) < 2 || word[0] != '-' {
			break
		}
		args = args[1:]
		if word == "--" {
			break
		}
		for i := 1; i < len(word); i++ {
			at := strings.IndexByte(letters, word[i])
			if at < 0 || word[i] == ':' {
				return nil, nil, fmt.Errorf("invalid option -- '%c'", word[i])
			}
			if at+1 == len(letters) || letters[at+1] != ':' {
				opts = append(opts, Option{Letter: word[i]})
				continue
			}
			value := word[i+1:]
			if value == "" {
				if len(args) == 0 {
					return nil, nil, fmt.Errorf("option requires an argument -- '%c'", word[i])
				}
				value, args = args[0], args[1:]
			}
			opts = append(opts, Option{word[i], value})
			break
		}
	}
	return opts, args, nil
}

// An ErrWriter passes writes on and remembers the first error, so that a full
// disk behind a redirection is not taken for success.
type ErrWriter struct {
	W   io.Writer
	Err error
}

func (e *ErrWriter) Write(p []byte) (int, error) {
	if e.Err != nil {
		return 0, e.Err
	}
	var n int
	n, e.Err = e.W.Write(p)
	return n, e.Err
}
