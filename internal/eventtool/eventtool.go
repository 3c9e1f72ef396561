// Package eventtool is the command posthaste events: it shows how far the sinks of events are, and has events
// sent once more (package events).
//
// # Security
//
// It is for root and the mail owner: the socket of the events service, and its directory, are theirs.
package eventtool

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/event"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/statedir"
)

const usage = `usage: posthaste events status [-j] [-c config_directory]
       posthaste events replay [-c config_directory] [-f number] sink
       posthaste events retry [-c config_directory] sink
       posthaste events dead [-c config_directory] [sink]
       posthaste events resend [-c config_directory] sink`

const (
	// askTime bounds the wait for the service, and resendTime that for what it sends again.
	askTime    = 10 * time.Second
	resendTime = 11 * time.Minute
	// maxLine bounds a line of dead letters.
	maxLine = 4 * proto.MaxEvent
)

// A command is one run of it.
type command struct {
	*cli.Tool
	cfg  *config.Config
	json bool
	from uint64
	args []string
}

// Run runs posthaste events, and returns its exit status.
func Run(name string, args []string, stdout, stderr io.Writer) int {
	c := &command{Tool: &cli.Tool{Name: name, Stdout: stdout, Stderr: stderr}, from: 1}
	return c.Run(map[string]cli.Verb{
		"status": {Letters: "c:j", Do: c.status},
		"replay": {Letters: "c:f:", Min: 1, Max: 1, Do: func() error { return c.order(proto.EventReplay) }},
		"retry":  {Letters: "c:", Min: 1, Max: 1, Do: func() error { return c.order(proto.EventRetry) }},
		"dead":   {Letters: "c:", Max: 1, Do: c.dead},
		"resend": {Letters: "c:", Min: 1, Max: 1, Do: func() error { return c.order(proto.EventResend) }},
	}, usage, args, c.begin)
}

// begin takes in the options and arguments, and reads main.cf.
func (c *command) begin(opts []cli.Option, rest []string) (err error) {
	c.args = rest
	dir, err := c.options(opts)
	if err != nil {
		return cli.Errorf(cli.ExitUsage, "%v", err)
	}
	if c.cfg, err = config.Load(config.Dir(dir)); err != nil {
		return cli.Errorf(cli.ExitConfig, "%v", err)
	}
	return nil
}

// options reads them. dir is the configuration's directory.
func (c *command) options(opts []cli.Option) (dir string, err error) {
	for _, o := range opts {
		switch o.Letter {
		case 'c':
			dir = o.Value
		case 'f':
			if c.from, err = strconv.ParseUint(o.Value, 10, 64); err != nil || c.from == 0 {
				return "", fmt.Errorf("-f: %q is no number of an event", o.Value)
			}
		case 'j':
			c.json = true
		}
	}
	return dir, nil
}

// sinks are those of main.cf.
func (c *command) sinks() ([]event.Sink, error) {
	list, err := event.Sinks(c.cfg)
	if err != nil {
		return nil, cli.Errorf(cli.ExitConfig, "%v", err)
	}
	if len(list) == 0 {
		return nil, cli.Errorf(cli.ExitUnavailable, "events are off: event_sinks is empty")
	}
	if len(c.args) > 0 && !slices.ContainsFunc(list, func(s event.Sink) bool { return s.Name == c.args[0] }) {
		return nil, cli.Errorf(cli.ExitNoInput, "event_sinks has no sink of the name %s", c.args[0])
	}
	return list, nil
}

// ask asks the service.
func (c *command) ask(limit time.Duration, q, reply ipc.Message) error {
	path := filepath.Join(c.cfg.String("queue_directory"), "private", c.cfg.String("event_service_name"))
	// Where nobody listens now there is nothing to wait for.
	nc, err := ipc.Unix(path).Dial(context.Background())
	if err == nil {
		conn := ipc.NewConn(nc, nil)
		err = conn.CallWithin(context.Background(), limit, q, reply)
		conn.Close()
		conn.Wait()
	}
	var refused ipc.RemoteError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return cli.Errorf(cli.ExitUnavailable, "%s", string(refused))
	case errors.Is(err, fs.ErrPermission):
		return cli.Errorf(cli.ExitNoPerm, "the events service cannot be asked: %v", err)
	}
	return cli.Errorf(cli.ExitUnavailable, "the events service cannot be asked (is the mail system up, and has master.cf the service %s?): %v",
		c.cfg.String("event_service_name"), err)
}

// A State is what status -j prints.
type State struct {
	Oldest  uint64      `json:"oldest"` // number of the oldest event that is kept
	Next    uint64      `json:"next"`   // number of the next event that comes
	Octets  int64       `json:"octets"`
	Refused uint64      `json:"refused"`
	Sinks   []SinkState `json:"sinks"`
}

// A SinkState is that of one sink.
type SinkState struct {
	Name     string    `json:"name"`
	Target   string    `json:"target"`
	Position uint64    `json:"position"`
	Lag      uint64    `json:"lag"`
	Sent     uint64    `json:"sent"`
	Dead     uint64    `json:"dead"`
	Lost     uint64    `json:"lost"`
	Error    string    `json:"error,omitempty"`
	Failing  time.Time `json:"failing_since,omitzero"`
	Next     time.Time `json:"next_attempt,omitzero"`
}

// status says how far the sinks are.
func (c *command) status() error {
	if _, err := c.sinks(); err != nil {
		return err
	}
	var reply proto.EventStatusReply
	if err := c.ask(askTime, &proto.EventStatus{}, &reply); err != nil {
		return err
	}
	st := State{Oldest: reply.Oldest, Next: reply.Next, Octets: reply.Octets, Refused: reply.Refused}
	for _, s := range reply.Sinks {
		st.Sinks = append(st.Sinks, SinkState{Name: s.Name, Target: s.Target, Position: s.Position, Lag: reply.Next - min(s.Position, reply.Next),
			Sent: s.Sent, Dead: s.Dead, Lost: s.Lost, Error: s.Error, Failing: s.Failing, Next: s.Next})
	}
	if c.json {
		b, err := json.Marshal(&st)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.Stdout, "%s\n", b)
		return nil
	}
	st.print(c.Stdout)
	return nil
}

// print prints it in words.
func (st *State) print(w io.Writer) {
	if st.Oldest == st.Next {
		fmt.Fprintf(w, "journal: no events; the next one is number %d\n", st.Next)
	} else {
		fmt.Fprintf(w, "journal: events %d to %d, %d MB\n", st.Oldest, st.Next-1, st.Octets>>20)
	}
	if st.Refused > 0 {
		fmt.Fprintf(w, "journal: %d events refused: the disk was full\n", st.Refused)
	}
	for i := range st.Sinks {
		s := &st.Sinks[i]
		fmt.Fprintf(w, "%s: %s\n", s.Name, s.Target)
		if s.Lag == 0 {
			fmt.Fprintf(w, "    has all events\n")
		} else {
			fmt.Fprintf(w, "    %d events behind: the next one is number %d\n", s.Lag, s.Position)
		}
		if s.Dead > 0 {
			fmt.Fprintf(w, "    %d dead letters\n", s.Dead)
		}
		if s.Lost > 0 {
			fmt.Fprintf(w, "    %d events lost: the journal was full\n", s.Lost)
		}
		if s.Error != "" {
			fmt.Fprintf(w, "    failing since %s: %s\n", s.Failing.Local().Format(time.DateTime), s.Error)
		}
		if !s.Next.IsZero() {
			fmt.Fprintf(w, "    next attempt at %s\n", s.Next.Local().Format(time.DateTime))
		}
	}
}

// order has the service do something for a sink.
func (c *command) order(verb proto.EventVerb) error {
	if _, err := c.sinks(); err != nil {
		return err
	}
	limit := askTime
	if verb == proto.EventResend {
		limit = resendTime
	}
	var reply proto.EventOrderReply
	if err := c.ask(limit, &proto.EventOrder{Verb: verb, Sink: c.args[0], From: c.from}, &reply); err != nil {
		return err
	}
	switch verb {
	case proto.EventReplay:
		fmt.Fprintf(c.Stdout, "%s: %d events are sent once more\n", c.args[0], reply.N)
	case proto.EventResend:
		fmt.Fprintf(c.Stdout, "%s: %d dead letters sent\n", c.args[0], reply.N)
	}
	return nil
}

// dead prints dead letters, as they are in the files.
func (c *command) dead() error {
	sinks, err := c.sinks()
	if err != nil {
		return err
	}
	err = c.deadOf(sinks)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return cli.Errorf(cli.ExitNoPerm, "%v", err)
	case errors.Is(err, fs.ErrNotExist):
		return nil // there has not been any event yet
	}
	return err
}

// deadOf prints those of the sinks that are asked for. The directory is the mail owner's, and root reads there
// with the mail owner's rights.
func (c *command) deadOf(sinks []event.Sink) error {
	path := c.cfg.String("event_directory")
	if _, err := os.Stat(path); err != nil {
		return err // else it would be made
	}
	dir, err := statedir.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	for i := range sinks {
		if len(c.args) > 0 && sinks[i].Name != c.args[0] {
			continue
		}
		if err := c.copyLines(dir, "dead."+sinks[i].Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// copyLines prints the whole lines of a file.
func (c *command) copyLines(dir *statedir.Dir, name string) error {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // nor is a pipe waited for
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s: expected a regular file", f.Name()))
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		fmt.Fprintf(c.Stdout, "%s\n", lines.Bytes())
	}
	return lines.Err()
}
