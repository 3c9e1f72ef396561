// Package spawn is the spawn(8) service. Like inetd, it runs a command for each
// client that connects, with the connection as the command's standard input,
// output and error. It is for policy servers and content filters that are not
// servers themselves.
//
//	policy unix - n n - 0 spawn user=policyd argv=/usr/bin/policyd-spf
//
// These attributes follow the program's name in master.cf:
//
//	user=NAME or user=NAME:GROUP
//	     the user and group of the command. Required. Neither root nor mail_owner.
//	argv=COMMAND...
//	     the command and its arguments, to the end of the line. It is run
//	     without a shell. Required.
//
// The maxproc column is the maximal number of simultaneous commands; further
// clients wait. When its client disconnects, or at its time limit, a command is
// killed with its process group. When the mail system stops, running commands are
// killed after the same time as other services.
//
// # Security
//
// The service runs as root (the unprivileged column of master.cf is n), so that it
// can change users. The command inherits no privileges, no descriptors, and only
// the environment variables in export_environment. The service is as safe as the
// command.
//
// # Parameters
//
// SERVICE_time_limit (command_time_limit), export_environment, mail_owner.
//
// # Diagnostics
//
// A command that cannot be run, is killed, or ends with a status other than 0 is
// a warning in the log.
package spawn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/service"
	"posthaste/local/command"
	"posthaste/local/users"
)

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "spawn", Rank: service.Helper, Run: func(ctx context.Context, env *service.Env) error {
		s, err := newServer(env.Config, env.Name, env.Args, new(users.System), env.Log)
		if err != nil {
			return err
		}
		return env.ServeConns(ctx, s.serve)
	}}
}

type server struct {
	command command.Command
	log     *maillog.Logger
}

// newServer reads what follows the program's name in master.cf.
func newServer(cfg *config.Config, name string, args []string, db users.Database, log *maillog.Logger) (*server, error) {
	user, argv, err := parse(args)
	if err != nil {
		return nil, fmt.Errorf("service %s: spawn: %w", name, err)
	}
	rights, err := users.Named(user, db, cfg.String("mail_owner"))
	if err != nil {
		return nil, fmt.Errorf("service %s: spawn: %w", name, err)
	}
	return &server{log: log, command: command.Command{Line: strings.Join(argv, " "), Args: argv, Rights: rights,
		Env: command.Environment(cfg.List("export_environment")), Limit: cfg.Prefix(name).Duration("time_limit")}}, nil
}

// parse reads the attributes.
func parse(args []string) (user string, argv []string, err error) {
	for i, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		switch {
		case ok && name == "user":
			user = value
			continue
		case ok && name == "argv":
			if argv = args[i+1:]; value != "" {
				argv = append([]string{value}, argv...)
			}
		default:
			return "", nil, fmt.Errorf("attribute %q is not known; there are user=NAME and argv=COMMAND", arg)
		}
		break
	}
	if user == "" {
		return "", nil, errors.New("expected user=NAME: the user as whom the command runs")
	}
	if len(argv) == 0 {
		return "", nil, errors.New("expected argv=COMMAND as the last attribute")
	}
	return user, argv, nil
}

// serve runs the command for one client.
func (s *server) serve(ctx context.Context, c net.Conn) {
	f, err := descriptor(c)
	if err != nil {
		s.log.Warning("%v", err)
		return
	}
	if err := s.command.Serve(ctx, f); err != nil {
		s.log.Warning("%v", err)
	}
}

// descriptor takes the connection out of the hands of Go: the command is to find
// a socket that waits when there is nothing to read.
func descriptor(c net.Conn) (*os.File, error) {
	defer c.Close()
	fc, ok := c.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("a connection of type %T cannot be handed to a command", c)
	}
	f, err := fc.File()
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { err = unix.SetNonblock(int(fd), false) }), err)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("hand a connection to a command: %w", err)
	}
	return f, nil
}
