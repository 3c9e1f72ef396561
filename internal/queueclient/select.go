package queueclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/selection"
)

// SelectionUsage says which conditions there are, for usage texts.
const SelectionUsage = "[--sender=ADDRESS] [--recipient=ADDRESS] [--domain=DOMAIN] [--nexthop=NEXTHOP] [--transport=NAME] [--destination=DESTINATION] [--reply=TEXT] " +
	"[--older=TIME] [--younger=TIME] [--larger=SIZE] [--smaller=SIZE] [--queue=NAME] [--all-recipients] [--dry-run]"

// TakeSelection takes the long options off a command line: conditions of
// package selection, and --dry-run. Values are in the same word, behind "=", or
// in the next. What stands behind "--" is left alone.
func TakeSelection(args []string, now time.Time) (where *selection.Selection, dry bool, rest []string, err error) {
	where = selection.New(now)
	for i := 0; i < len(args); i++ {
		word, long := strings.CutPrefix(args[i], "--")
		switch {
		case !long:
			rest = append(rest, args[i])
			continue
		case word == "":
			return where, dry, append(rest, args[i:]...), nil
		case word == "dry-run":
			dry = true
			continue
		}
		name, value, given := strings.Cut(word, "=")
		known, wants := selection.Known(name)
		switch {
		case !known:
			return where, dry, nil, cli.Errorf(cli.ExitUsage, "unknown option --%s; use %s", name, SelectionUsage)
		case !wants && given:
			return where, dry, nil, cli.Errorf(cli.ExitUsage, "--%s has no value", name)
		case wants && !given:
			if i++; i == len(args) {
				return where, dry, nil, cli.Errorf(cli.ExitUsage, "--%s: there is no value", name)
			}
			value = args[i]
		}
		if err := where.Set(name, value); err != nil {
			return where, dry, nil, cli.Errorf(cli.ExitUsage, "%w", err)
		}
	}
	return where, dry, rest, nil
}

// Messages is a number of messages in words.
func Messages(n int) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}

// errMissed has the exit status of an order, and is none.
var errMissed = errors.New("changed again and again while they were looked at, and were left alone: try again")

// Later says that nothing has failed: what was not done is ordered, and so is what is asked for next.
func Later(err error) bool {
	return err == nil || cli.Status(err) == cli.ExitTemp && !errors.Is(err, errMissed)
}

// Select has q carried out on the whole queue, or on q's IDs, and calls f with
// what came of each page. What is kept in memory does not depend on the length
// of the queue. The error of a page that was not carried out in full comes
// after f has seen that page, and that of mail which could not be looked at
// yet comes after all of them.
func Select(ctx context.Context, conn Caller, q *proto.Select, f func(*proto.SelectReply) error) error {
	missed := 0
	var unread error
	for first := true; first || q.Cursor != 0; first = false {
		var reply proto.SelectReply
		if err := conn.Call(ctx, q, &reply); err != nil {
			return cli.Errorf(cli.Status(err), "ask the queue manager: %w", err)
		}
		if reply.Refused != "" {
			return cli.Errorf(cli.ExitUnavailable, "%s", reply.Refused)
		}
		if err := f(&reply); err != nil {
			return err
		}
		if len(reply.Failed) > 0 {
			return cli.Errorf(cli.ExitUnavailable, "%s", strings.Join(reply.Failed, "; "))
		}
		missed += reply.Missed
		unread = Join(unread, UnreadError(&reply.Unread))
		q.Cursor = reply.Next
	}
	if missed > 0 {
		return Join(cli.Errorf(cli.ExitTemp, "%s %w", Messages(missed), errMissed), unread)
	}
	return unread
}

// Selected calls f for each message that is meant, until f returns false. conn
// is nil while the mail system is down: the spool is read then, and where mail
// goes cannot be told.
func (q *Queue) Selected(ctx context.Context, conn *ipc.Conn, where *selection.Selection, warn func(string, ...any), f func(*proto.Item) bool) error {
	more := true
	corrupt := func(it *proto.Item) bool {
		if it.Queue == queue.Corrupt.String() && Meant(where, it) {
			more = f(it)
		}
		return more
	}
	if where.NamesQueue(queue.Corrupt.String()) && conn != nil {
		if where.NeedsManager() {
			return errRoute
		}
		if err := q.Items(warn, corrupt); err != nil || !more {
			return err
		}
	}
	if conn != nil {
		return selected(ctx, conn, where, f)
	}
	if where.NeedsManager() {
		return errRoute
	}
	if err := q.Readable(); err != nil {
		return cli.Errorf(cli.ExitUnavailable, "Queue report unavailable - mail system is down (%w)", err)
	}
	return q.Items(warn, func(it *proto.Item) bool {
		if Meant(where, it) {
			return f(it)
		}
		return true
	})
}

// selected calls f for each message that a queue manager finds to be meant, until f returns false.
func selected(ctx context.Context, manager Caller, where *selection.Selection, f func(*proto.Item) bool) error {
	err := Select(ctx, manager, &proto.Select{Where: where.Encode(), Items: true}, func(r *proto.SelectReply) error {
		for i := range r.Items {
			if !f(&r.Items[i]) {
				return errEnough
			}
		}
		return nil
	})
	if err == errEnough {
		return nil
	}
	return err
}

var (
	errEnough = fmt.Errorf("enough")
	errRoute  = cli.Errorf(cli.ExitUnavailable, "--nexthop, --transport, --destination, --waits-for and --source need the running mail system: only that knows where mail goes")
)

// Meant says whether a message in the spool is meant. Conditions on where mail
// goes are not fulfilled; mail that was set aside is meant only when its queue is named.
func Meant(where *selection.Selection, it *proto.Item) bool {
	if it.Queue == queue.Corrupt.String() && !where.NamesQueue(it.Queue) {
		return false
	}
	created, _, err := it.ID.Parse()
	if err != nil {
		created = it.Arrival
	}
	if !where.Message(&selection.Message{Queue: it.Queue, Created: created, Size: it.Size}) || !where.Sender(it.Sender) || !where.Group(it.Tenant, it.Campaign) {
		return false
	}
	list := make([]selection.Recipient, len(it.Recipients))
	for i, r := range it.Recipients {
		list[i] = selection.Recipient{Address: r.Address, Original: r.Orig, Reply: r.Reason}
	}
	return where.Recipients(list)
}

// ParseMoment reads a time on a command line: 2026-11-24T08:00 and the like, in the local time zone unless it
// says another one. clock says that it was only the time of a day, 08:00: it is that of today.
func ParseMoment(value string, now time.Time) (t time.Time, clock bool, err error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, value, time.Local); err == nil {
			return t, false, nil
		}
	}
	if t, err = time.ParseInLocation("15:04", value, time.Local); err != nil {
		return t, false, fmt.Errorf("%q is not a time such as 2026-11-24T08:00 or 08:00", value)
	}
	local := now.Local()
	return time.Date(local.Year(), local.Month(), local.Day(), t.Hour(), t.Minute(), 0, 0, time.Local), true, nil
}
