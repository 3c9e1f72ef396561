package spooltool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/doubtful"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
	"posthaste/internal/spool"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// doubtful lists the messages that may have arrived twice.
func (c *command) doubtful(ctx context.Context, flags options, args []string) error {
	if len(args) > 0 {
		return c.wrongUsage()
	}
	if err := c.there(); err != nil {
		return err
	}
	now := time.Now()
	list, err := doubtful.Load(vfs.OS{}, c.queue.Spool())
	if err != nil {
		return err
	}
	more := 0
	if _, err := c.queue.Manager(ctx); errors.Is(err, queueclient.ErrDown) && !storage.Elsewhere(c.queue.Config) {
		if more, err = c.undecided(&list); err != nil {
			return err
		}
	}
	for i := range list {
		if err := c.showDoubt(&list[i], flags.has('j')); err != nil {
			return err
		}
	}
	if more > 0 {
		c.Warn("%d more messages are in doubt", more)
	}
	if !flags.has('s') || c.out.Err != nil {
		return nil
	}
	if err := c.queue.BecomeOwner(); err != nil {
		return err
	}
	if err := doubtful.SetSeen(vfs.OS{}, c.queue.Spool(), now); err != nil {
		return cli.Errorf(cli.ExitIO, "%w", err)
	}
	return nil
}

// undecided adds to list what the next start of the mail system, which is down, will find to be in doubt.
func (c *command) undecided(list *doubtful.List) (more int, err error) {
	plan, err := c.queue.Plan()
	if err != nil {
		return 0, err
	}
	var doubts []queue.Doubt
	for i := range plan.Places {
		pl := &plan.Places[i]
		if pl.Fresh {
			continue
		}
		found, beyond, err := spool.InDoubt(cmp.Or[vfs.FS](pl.FS, vfs.OS{}), pl.Dir)
		if err != nil {
			return more, err
		}
		doubts, more = append(doubts, found...), more+beyond
	}
	if len(doubts) == 0 {
		return more, nil
	}
	why := map[queue.DoubtKind]string{queue.DoubtHanded: doubtful.InHand, queue.DoubtTrace: doubtful.Trace, queue.DoubtNew: doubtful.New}
	of := map[mail.QueueID][]queue.Doubt{}
	for _, d := range doubts {
		of[d.ID] = append(of[d.ID], d)
	}
	logs, err := c.queue.Logs()
	if err != nil {
		return 0, err
	}
	defer logs.Close()
	now := time.Now()
	err = c.queue.View(c.Warn, func(en queue.Entry) bool {
		for _, d := range of[en.ID] {
			e := doubtful.Entry{ID: en.ID, Nexthop: d.Nexthop, Why: why[d.Kind], Found: now, State: doubtful.Queued}
			if !d.At.IsZero() {
				e.Began = &d.At
			}
			c.addDoubt(list, logs.Of(&en), &en, d.Rcpts, e)
		}
		return true
	})
	return more, err
}

// addDoubt adds an entry for each of rcpts, empty being all that are pending, as cleanup does.
func (c *command) addDoubt(list *doubtful.List, rd *spool.Reader, en *queue.Entry, rcpts []int, e doubtful.Entry) {
	st, err := rd.Read(en.Ref, en.ID)
	if err != nil {
		c.Warn("%v", err)
		return
	}
	st.Overlay(en.Done)
	env, err := st.Envelope()
	if err != nil {
		c.Warn("%v", err)
		return
	}
	all, err := st.Recipients(0, -1)
	if err != nil {
		c.Warn("%v", err)
		return
	}
	if len(rcpts) == 0 {
		for i := range all {
			if st.Pending(i) {
				rcpts = append(rcpts, i)
			}
		}
	}
	e.Sender = env.Sender
	for k, i := range rcpts[:min(len(rcpts), doubtful.MaxRcpts)] {
		e.Rcpt, e.Recipient, e.More = i, "", 0
		if i < len(all) {
			e.Recipient = all[i].Address
		}
		if k == doubtful.MaxRcpts-1 {
			e.More = len(rcpts) - doubtful.MaxRcpts
		}
		list.Add(e)
	}
}

// whyText is what the list says of why something is in doubt.
var whyText = map[string]string{
	doubtful.InHand:     "it was being delivered when the mail system ended",
	doubtful.Trace:      "a record that is torn says that it was delivered",
	doubtful.New:        "new mail, which may have been delivered when the mail system ended",
	doubtful.Agent:      "the delivery agent ended in the middle of the delivery",
	doubtful.Withdrawn:  "it may have been delivered, and its client was not told 250, as far as is known, and may have sent it again",
	doubtful.Lost:       "records of the queue are lost, and one may have said that it was delivered",
	doubtful.Unanswered: "its client may not have been told that it was queued, and may have sent it again",
}

// stateText is what has become of it.
var stateText = map[string]string{
	doubtful.Queued: "in the queue", doubtful.Delivered: "delivered again", doubtful.Returned: "returned to its sender", doubtful.Removed: "removed", doubtful.Left: "not in the queue",
	doubtful.Away: "not in this node's part of the queue any more",
}

func (c *command) showDoubt(e *doubtful.Entry, asJSON bool) error {
	if asJSON {
		b, err := json.Marshal(e)
		if err == nil {
			fmt.Fprintf(c.out, "%s\n", b)
		}
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s from <%s>", e.ID, e.Sender)
	if e.Recipient != "" {
		fmt.Fprintf(&b, " to <%s>", e.Recipient)
	}
	if e.More > 0 {
		fmt.Fprintf(&b, " and %d more", e.More)
	}
	if e.Nexthop != "" {
		fmt.Fprintf(&b, " by way of %s", e.Nexthop)
	}
	fmt.Fprintf(&b, ": %s", whyText[e.Why])
	if e.Began != nil {
		fmt.Fprintf(&b, "; begun %s", e.Began.Local().Format(time.DateTime))
	}
	fmt.Fprintf(&b, "; found %s; ", e.Found.Local().Format(time.DateTime))
	state := stateText[e.State]
	switch {
	case e.State != doubtful.Delivered:
	case e.Why == doubtful.Unanswered:
		state = "delivered"
	case e.Exact && !e.Again: // what came of it was heard in the end
		state = "delivered, and not sent again"
	}
	b.WriteString(state)
	if e.Ended != nil {
		fmt.Fprintf(&b, " %s", e.Ended.Local().Format(time.DateTime))
	}
	fmt.Fprintln(c.out, b.String())
	return nil
}
