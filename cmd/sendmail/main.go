// Sendmail is the program by which everything on a machine sends its mail:
// package sendmail as a program of its own, because it is started for each
// message and starts in a third of the time that the one with the whole mail system in it takes.
// What its options lead to besides sending (-bp, -bs, -bi, -bd, -q) it leaves to that one,
// posthaste, which is expected in the same directory.
//
//	sendmail [options] [recipient ...]
//
// # Security
//
// It runs as whoever calls it, and has no other rights.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"posthaste/internal/sendmail"
)

func main() {
	runtime.GOMAXPROCS(1) // one thing at a time: waking threads is most of what else it would do
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	c := &sendmail.Command{Name: "sendmail", Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	whole := func(string) int {
		err := execWhole(args)
		fmt.Fprintf(os.Stderr, "sendmail: fatal: %v\n", err)
		return sendmail.ExitUnavailable
	}
	c.Mailq, c.Newaliases, c.Daemon, c.Session = whole, whole, whole, whole
	c.Flush = func(dir string, _ []string) int { return whole(dir) }
	if len(args) > 0 && args[0] == "--help" {
		return whole("") // which has the text
	}
	return c.Run(args)
}

// execWhole executes the sendmail that has everything in it, with the same arguments.
func execWhole(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the posthaste program: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), "posthaste")
	return fmt.Errorf("execute %s: %w", path, syscall.Exec(path, append([]string{"posthaste", "sendmail"}, args...), os.Environ()))
}
