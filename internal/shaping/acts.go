package shaping

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
)

// call asks the queue manager.
func (t *tool) call(q *proto.Override) (*proto.OverrideReply, error) {
	queue, err := queueclient.Open(t.dir)
	if err != nil {
		return nil, err
	}
	defer queue.Close()
	conn, err := queue.Manager(context.Background())
	if err != nil {
		return nil, cli.Errorf(cli.Status(err), "only the running queue manager knows: %w", err)
	}
	reply := new(proto.OverrideReply)
	if err := conn.Call(context.Background(), q, reply); err != nil {
		return nil, err
	}
	if reply.Refused != "" {
		return nil, cli.Errorf(cli.ExitUnavailable, "%s", reply.Refused)
	}
	return reply, nil
}

// acts prints what rules of automation have done that holds now, and what they may not do again.
func (t *tool) acts() error {
	reply, err := t.call(&proto.Override{Op: proto.OverrideList})
	if err != nil {
		return err
	}
	for i := range reply.Entries {
		e := &reply.Entries[i]
		until := e.Until.Local().Format(time.DateTime)
		switch {
		case e.Of == string(override.Waiver):
			fmt.Fprintf(t.Stdout, "%s: no %s by rules until %s: taken back by %s\n", e.Target, e.Name, until, e.By)
		case e.By != "automation":
		case e.Of == string(override.Setting):
			fmt.Fprintf(t.Stdout, "%s: %s is %s until %s: %s\n", e.Target, e.Name, e.Value, until, e.Reason)
		case e.Of == string(override.Suspension):
			fmt.Fprintf(t.Stdout, "%s: suspended until %s: %s\n", e.Target, until, e.Reason)
		case e.Of == string(override.Return):
			fmt.Fprintf(t.Stdout, "%s: returned until %s: %s\n", e.Target, until, e.Reason)
		}
	}
	return nil
}

// lift takes back what rules have set, suspended or returned at a target.
func (t *tool) lift() error {
	found := false
	for _, kind := range []override.Kind{override.Setting, override.Suspension, override.Return} {
		reply, err := t.call(&proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Of: string(kind), Target: t.rest[0], By: who()}})
		if err != nil {
			return err
		}
		found = found || reply.Found
	}
	if !found {
		return cli.Errorf(cli.ExitNoInput, "nothing has been set, suspended or returned at %s", t.rest[0])
	}
	fmt.Fprintf(t.Stdout, "%s is as the files say\n", t.rest[0])
	return nil
}

// allow has rules act again at a target where something was taken back.
func (t *tool) allow() error {
	reply, err := t.call(&proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Of: string(override.Waiver), Target: t.rest[0], By: who()}})
	if err != nil {
		return err
	}
	if !reply.Found {
		return cli.Errorf(cli.ExitNoInput, "nothing has been taken back at %s", t.rest[0])
	}
	fmt.Fprintf(t.Stdout, "rules may act again at %s\n", t.rest[0])
	return nil
}

// who is the user who takes something back, for the log.
func who() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return fmt.Sprint("uid ", os.Getuid())
}
