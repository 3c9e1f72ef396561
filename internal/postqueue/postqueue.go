// Package postqueue is the postqueue(1) command, and mailq: what is in the
// queue, and try again now. Both are asked of the queue manager.
//
// # Parameters
//
// authorized_flush_users, authorized_mailq_users, queue_directory,
// queue_service_name.
//
// # Diagnostics
//
// Exit status 0; 64 wrong usage; 69 the mail system is down or refuses; 77 the
// user is not authorized; 78 wrong configuration.
package postqueue

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/table"
)

// Exit statuses of sysexits.h.
const (
	exitUsage       = 64
	exitUnavailable = 69
	exitNoPerm      = 77
	exitConfig      = 78
)

// page is how many messages are asked for at once.
const page = 500

// patience is how long the queue manager may take to answer.
const patience = time.Minute

const usage = "usage: %[1]s [-c config_dir] -f | -i queue_id | -j | -p | -s site"

// command is one run.
type command struct {
	name           string
	stdout, stderr io.Writer
	configDir      string
	verb           byte // f i j p s
	value          string
}

// Run carries out the command called name (postqueue, mailq) and returns its
// exit status.
func Run(name string, args []string, stdout, stderr io.Writer) int {
	c := &command{name: name, stdout: stdout, stderr: stderr}
	if name == "mailq" {
		c.verb = 'p'
	}
	if !c.parse(args) {
		fmt.Fprintf(stderr, usage+"\n", name)
		return exitUsage
	}
	cfg, err := config.Read(config.Dir(c.configDir))
	if err != nil {
		return c.fatal(exitConfig, "%v", err)
	}
	users := "authorized_mailq_users"
	if c.verb == 'f' || c.verb == 'i' || c.verb == 's' {
		users = "authorized_flush_users"
	}
	if ok, err := authorized(cfg, users); err != nil {
		return c.fatal(exitUnavailable, "%v", err)
	} else if !ok {
		return c.fatal(exitNoPerm, "User %s(%d) is not allowed to do that (%s)", userName(), os.Getuid(), users)
	}
	client := ipc.NewClient(filepath.Join(cfg.String("queue_directory"), "public", cfg.String("queue_service_name")), nil)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := connect(ctx, client)
	if err != nil {
		return c.fatal(exitUnavailable, "%s is unavailable: is the mail system running? (%v)", cfg.String("queue_service_name"), err)
	}
	switch c.verb {
	case 'p':
		return c.list(ctx, conn)
	case 'j':
		return c.json(ctx, conn)
	}
	return c.flush(ctx, conn)
}

// connect tries for a moment only: a tool should say soon that nobody is there.
func connect(ctx context.Context, client *ipc.Client) (*ipc.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return client.Conn(ctx)
}

func (c *command) fatal(status int, format string, args ...any) int {
	fmt.Fprintf(c.stderr, "%s: fatal: %s\n", c.name, fmt.Sprintf(format, args...))
	return status
}

// parse reads the options; it is false when they are wrong.
func (c *command) parse(args []string) bool {
	for i := 0; i < len(args); i++ {
		a := args[i]
		if len(a) < 2 || a[0] != '-' {
			return false
		}
		switch letter := a[1]; letter {
		case 'v':
		case 'f', 'j', 'p':
			if len(a) != 2 || c.verb != 0 && c.name == "postqueue" {
				return false
			}
			c.verb = letter
		case 'c', 'i', 's':
			value := a[2:]
			if value == "" {
				if i++; i == len(args) {
					return false
				}
				value = args[i]
			}
			if letter == 'c' {
				c.configDir = value
				continue
			}
			if c.verb != 0 {
				return false
			}
			c.verb, c.value = letter, value
		default:
			return false
		}
	}
	return c.verb != 0
}

// authorized says whether the calling user is in the list.
func authorized(cfg *config.Config, parameter string) (bool, error) {
	if os.Getuid() == 0 {
		return true, nil
	}
	l, err := table.NewList(parameter, cfg.List(parameter), table.ListOptions{Kind: table.Strings})
	if err != nil {
		return false, err
	}
	return l.Match(context.Background(), userName())
}

func userName() string {
	uid := strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(uid); err == nil {
		return u.Username
	}
	return "unknown"
}

func (c *command) flush(ctx context.Context, conn *ipc.Conn) int {
	q := &proto.Command{Verb: proto.VerbFlush}
	switch c.verb {
	case 'f':
		q.All = true
	case 'i':
		q.ID = mail.QueueID(c.value)
		if !q.ID.Valid() {
			return c.fatal(exitUsage, "Cannot flush mail queue - invalid queue ID: \"%s\"", c.value)
		}
	case 's':
		q.Site = strings.Trim(c.value, "[]")
		if q.Site == "" || strings.ContainsAny(q.Site, " \t/") {
			return c.fatal(exitUsage, "Cannot flush mail queue - invalid destination: \"%s\"", c.value)
		}
	}
	var reply proto.CommandReply
	if err := conn.Call(ctx, q, &reply); err != nil {
		return c.fatal(exitUnavailable, "Cannot flush mail queue: %v", err)
	}
	if reply.Denied != "" {
		return c.fatal(exitUnavailable, "Cannot flush mail queue: %s", reply.Denied)
	}
	return 0
}

// each calls f for every message in the queue.
func (c *command) each(ctx context.Context, conn *ipc.Conn, f func(*proto.Item)) error {
	for cursor := 0; ; {
		var reply proto.ListReply
		if err := conn.Call(ctx, &proto.List{Cursor: cursor, N: page}, &reply); err != nil {
			return err
		}
		for i := range reply.Items {
			f(&reply.Items[i])
		}
		if cursor = reply.Next; cursor == 0 {
			return nil
		}
	}
}
