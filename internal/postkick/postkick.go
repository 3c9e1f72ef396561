// Package postkick is the postkick command: it wakes a service of the mail system up.
//
//	postkick [-c config_dir] [-v] class service request
//
// Class is public or private, the directory of the service's socket below queue_directory;
// the request is letters, of which each means something to the service: W is a
// wake-up by the clock, to pickup and qmgr; qmgr takes D, I, A and F as flush sends them. The command waits
// until the service has them, not until it has done anything.
//
// # Security
//
// Who may wake a service up is who may reach its socket: anybody none, the group
// setgid_group what is public, root and mail_owner all.
//
// # Parameters
//
// queue_directory, trigger_timeout.
//
// # Diagnostics
//
// Exit status 0; 1 when the service cannot be reached or the command line is wrong, with
// the reason on standard error.
package postkick

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/service"
)

const usage = "usage: postkick [-c config_dir] [-v] class service request"

// Run carries out postkick and returns its exit status.
func Run(args []string, stderr io.Writer) int {
	fatal := func(format string, args ...any) int {
		fmt.Fprintf(stderr, "postkick: fatal: "+format+"\n", args...)
		return 1
	}
	dir := ""
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "-" {
		switch {
		case args[0] == "-c" && len(args) > 1:
			dir, args = args[1], args[1:]
		case strings.Trim(args[0], "v") == "-": // nothing more can be said
		default:
			return fatal("unknown option %s; %s", args[0], usage)
		}
		args = args[1:]
	}
	if len(args) != 3 {
		return fatal("%s", usage)
	}
	class, name, request := args[0], args[1], args[2]
	if class != "public" && class != "private" || name == "" || strings.Contains(name, "/") || request == "" {
		return fatal("%s/%s: expected the class public or private, a service's name and letters; %s", class, name, usage)
	}
	cfg, err := config.ReadFor(config.Dir(dir), "queue_directory", "trigger_timeout")
	if err != nil {
		return fatal("%v", err)
	}
	path := filepath.Join(cfg.String("queue_directory"), class, name)
	if err := service.Trigger(path, request, cfg.Duration("trigger_timeout")); err != nil {
		return fatal("Cannot contact class %s service %s - perhaps the mail system is down: %v", class, name, err)
	}
	return 0
}
