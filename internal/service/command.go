package service

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"posthaste/internal/config"
)

// The descriptors that master passes.
const (
	FlowReadFD  = 3
	FlowWriteFD = 4
	StatusFD    = 5
	LockFD      = 6
	ListenFD    = 7 // and up
)

// The bytes that a service writes to its status socket.
const (
	StatusUsed     = 'U' // has begun to serve
	StatusReady    = 'R' // is prepared, and waits for StatusGo
	StatusRetired  = 'D' // has given up its sockets
	StatusReleased = 'L' // has given up what an exclusive service owns
	StatusTookOver = 'T' // does what its predecessor did
)

// StatusGo is what master writes there: the process may serve. Of an exclusive
// service that is when its predecessor has given up what both own.
const StatusGo = 'G'

// A CommandLine is what master tells a service on its command line. The
// options are Postfix's where it has them.
type CommandLine struct {
	Name         string // -n
	Type         string // -t
	Sockets      int    // -s: listening sockets, from ListenFD on
	MaxProc      int    // -p; 0 is no limit
	Unprivileged bool   // -u
	Chroot       bool   // -c
	Verbose      int    // -v
	Overrides    []config.Override
	Args         []string
}

// Settings are what the service has beside main.cf: its own settings, and what
// every process knows of itself.
func (c *CommandLine) Settings(process string, pid int) []config.Override {
	return append(slices.Clone(c.Overrides),
		config.Override{Name: "process_name", Value: process},
		config.Override{Name: "process_id", Value: strconv.Itoa(pid)},
		config.Override{Name: "service_name", Value: c.Name})
}

// Strings returns the arguments.
func (c *CommandLine) Strings() []string {
	args := []string{"-n", c.Name, "-t", c.Type, "-s", strconv.Itoa(c.Sockets), "-p", strconv.Itoa(c.MaxProc)}
	if c.Unprivileged {
		args = append(args, "-u")
	}
	if c.Chroot {
		args = append(args, "-c")
	}
	for range c.Verbose {
		args = append(args, "-v")
	}
	for _, o := range c.Overrides {
		args = append(args, "-o", o.String())
	}
	return append(args, c.Args...)
}

// ParseCommandLine reads the arguments of a service.
func ParseCommandLine(args []string) (*CommandLine, error) {
	c := &CommandLine{}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		flag := args[0]
		args = args[1:]
		switch flag {
		case "-u":
			c.Unprivileged = true
			continue
		case "-c":
			c.Chroot = true
			continue
		case "-v":
			c.Verbose++
			continue
		}
		if len(args) == 0 {
			return nil, fmt.Errorf("option %s: expected a value", flag)
		}
		if err := c.set(flag, args[0]); err != nil {
			return nil, err
		}
		args = args[1:]
	}
	c.Args = args
	if c.Name == "" || c.Type == "" {
		return nil, errors.New("a service is started by master, as \"posthaste start\" starts it; do not run it by hand")
	}
	return c, nil
}

func (c *CommandLine) set(flag, value string) (err error) {
	switch flag {
	case "-n":
		c.Name = value
	case "-t":
		c.Type = value
	case "-s":
		c.Sockets, err = parseCount(flag, value)
	case "-p":
		c.MaxProc, err = parseCount(flag, value)
	case "-o":
		var o config.Override
		if o, err = config.ParseOverride(value); err == nil {
			c.Overrides = append(c.Overrides, o)
		}
	default:
		err = fmt.Errorf("unknown option %s", flag)
	}
	return err
}

func parseCount(flag, value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > 1<<20 {
		return 0, fmt.Errorf("option %s %s: expected a number", flag, value)
	}
	return n, nil
}
