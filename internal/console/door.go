package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/overview"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/selection"
	"posthaste/internal/track"
)

const (
	// askTime bounds how long the queue manager may take to answer a question of a page.
	askTime = 20 * time.Second
	// searchTime bounds how long a search of the log may take.
	searchTime = 30 * time.Second
	// listTime is how long a list looks for messages that fulfil its conditions before it shows what it has found. In a
	// queue of a million there may be few, anywhere. The first page of a list is there sooner, and the browser goes on.
	listTime, firstTime = time.Second, 30 * time.Millisecond
	// pageItems is how many messages a list has before it goes on with a next page.
	pageItems = 100
	// maxFound is how many things a search of the log finds.
	maxFound = 50
)

var (
	// errDown says that the queue manager does not answer.
	errDown = errors.New("the queue manager does not answer: the mail system is down, or is being started")
	// errNoMessage says that a message is not in the queue.
	errNoMessage = errors.New("the message is not in the queue")
	// errLog says that there is no answer from the log.
	errLog = errors.New("the log cannot be searched")
	// errNoSuspension says that there is nothing to resume.
	errNoSuspension = errors.New("it is not suspended under that name")
	// errNoLimit says that there is nothing to lift.
	errNoLimit = errors.New("it has no limit under that name")
	// errNoDiversion says that there is nothing to end.
	errNoDiversion = errors.New("it is not diverted under that name")
)

// A mta is the way to the mail system: what the pages and the API ask, and what they have done.
// It has no state but connections, and its methods may be called concurrently. It can do what the
// tools can, and nothing else: it asks the queue manager and reads the log.
type mta struct {
	manager *ipc.Client
	node    string // name of this one, where nodes share the queue; else empty
	history string // directory of the samples
	// logs says where the log is, as a search wants it; its Now is set by who searches.
	logs func() (track.Options, error)
	// patience takes the place of firstTime, for tests on a machine that is busy; zero: it does not.
	patience atomic.Int64
}

// call asks the queue manager. During a reload the question goes to the one that there is then.
func (m *mta) call(ctx context.Context, q, reply ipc.Message) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	conn, err := m.manager.Conn(ctx)
	if err == nil {
		err = conn.Call(ctx, q, reply)
	}
	if err != nil && ctx.Err() != nil {
		return errDown
	}
	return err
}

// list is the messages that fulfil conditions, from a place in the queue on: about pageItems of
// them, or those that were found in listTime, or firstTime at the beginning. What this node has comes first.
func (m *mta) list(ctx context.Context, where *selection.Selection, cursor int) (*listing, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r, err := m.reach(ctx)
	if err != nil {
		return nil, err
	}
	out, patience := new(listing), listTime
	if cursor == 0 {
		patience = cmp.Or(time.Duration(m.patience.Load()), firstTime)
	}
	for begin := time.Now(); ; {
		if r.own == nil || m.node != "" && cursor>>partShift > 0 {
			cursor = m.elsewhere(ctx, r, where, cursor, out)
		} else {
			var reply proto.SelectReply
			if err := m.call(ctx, &proto.Select{Cursor: cursor, Where: where.Encode(), Items: true, Most: pageItems}, &reply); err != nil {
				return nil, err
			}
			if reply.Refused != "" {
				return nil, errors.New(reply.Refused)
			}
			out.items = append(out.items, reply.Items...)
			if cursor = reply.Next; cursor == 0 && nextPart(r.parts, 1) != nil {
				cursor = 1 << partShift
			}
		}
		if cursor == 0 || len(out.items) >= pageItems || time.Since(begin) > patience {
			out.next = cursor
			return out, nil
		}
	}
}

// item is one message of the queue. The error is errNoMessage if there is none.
func (m *mta) item(ctx context.Context, id mail.QueueID) (*proto.Item, error) {
	r, err := m.reach(ctx)
	if err != nil {
		return nil, err
	}
	var reply proto.ListReply
	if r.own != nil {
		if err := m.call(ctx, &proto.List{N: 1, ID: id}, &reply); err != nil {
			return nil, err
		}
	}
	if len(reply.Items) == 1 {
		return &reply.Items[0], nil
	}
	it, err := m.find(ctx, r, id)
	if it == nil && err == nil {
		err = errNoMessage
	}
	return it, err
}

// explain says why a message is in the queue, in lines of text, the first of which is about the
// whole.
func (m *mta) explain(ctx context.Context, it *proto.Item) ([]string, error) {
	holder, err := m.holder(ctx, it)
	if err != nil && it.Down {
		return []string{err.Error()}, nil
	}
	if err != nil {
		return nil, err
	}
	var reply proto.ExplainReply
	err = holder.Call(ctx, &proto.Explain{ID: it.ID}, &reply)
	if err == nil && len(reply.Lines) == 0 {
		err = errNoMessage
	}
	return reply.Lines, err
}

// destination says how things are with a destination, on each node that is alive.
func (m *mta) destination(ctx context.Context, name string) (*Destination, error) {
	if _, err := selection.ParseDestination(name); err != nil {
		return nil, wrong("%v", err)
	}
	r, err := m.reach(ctx)
	if err != nil {
		return nil, err
	}
	d := &Destination{Name: name, Explanation: []string{}, Destinations: []overview.Destination{}}
	add := func(c queueclient.Caller, node string) error {
		reply := new(proto.ExplainReply)
		if err := c.Call(ctx, &proto.Explain{Destination: name, Course: true}, reply); err != nil {
			return err
		}
		if node != "" {
			d.Explanation = append(d.Explanation, "On node "+node+":")
		}
		d.Explanation = append(d.Explanation, reply.Lines...)
		for _, to := range overview.Destinations(reply) {
			to.Node = node
			d.Destinations = append(d.Destinations, to)
		}
		return nil
	}
	if r.own != nil {
		if err := add(r.own, r.name); err != nil {
			return nil, err
		}
	}
	err = queueclient.EachNode(r.owners, func(c queueclient.Caller) error { return add(c, c.(*queueclient.Node).Name) })
	if err != nil {
		d.Explanation = append(d.Explanation, err.Error())
	}
	for _, name := range r.missing {
		d.Explanation = append(d.Explanation, name+": it is down")
	}
	return d, nil
}

// verbs are what can be done to a message, by the word that the API has for it.
var verbs = map[string]proto.Verb{"hold": proto.VerbHold, "release": proto.VerbRelease, "retry": proto.VerbFlush,
	"requeue": proto.VerbRequeue, "return": proto.VerbExpire, "delete": proto.VerbDelete}

// act does something to a message. It is durable when it returns, a retry aside. The error is
// errNoMessage if the message is not there, or not so that it could be done: one on hold cannot
// be put on hold. With the status cli.ExitTemp it is ordered, and will be carried out.
func (m *mta) act(ctx context.Context, word string, id mail.QueueID) error {
	q := &proto.Command{Verb: verbs[word], ID: id}
	holder, it := queueclient.Caller(ownManager{m}), new(proto.Item)
	if m.node != "" || q.Verb == proto.VerbExpire {
		var err error
		if it, err = m.item(ctx, id); err != nil {
			return err
		}
		// What a node has that is down is ordered: whoever has it next carries it out.
		if holder, err = m.holder(ctx, it); it.Down {
			holder, err = m.ordering(ctx, it.Node)
		}
		if err != nil {
			return err
		}
	}
	if q.Verb == proto.VerbExpire {
		if q.Now = it.Queue != "hold"; !q.Now { // as postsuper -f: it is returned when it is released
			err := carryOut(ctx, holder, q)
			if !queueclient.Later(err) {
				if !it.ForcedExpire {
					return err
				}
				err = nil
			}
			return queueclient.Join(err, carryOut(ctx, holder, &proto.Command{Verb: proto.VerbRelease, ID: id}))
		}
	}
	return carryOut(ctx, holder, q)
}

func carryOut(ctx context.Context, holder queueclient.Caller, q *proto.Command) error {
	var reply proto.CommandReply
	if err := holder.Call(ctx, q, &reply); err != nil {
		return err
	}
	if err := queueclient.UnreadError(&reply.Unread); err != nil {
		return err
	}
	if reply.Denied != "" || q.Verb != proto.VerbFlush && len(reply.IDs) == 0 {
		return errNoMessage
	}
	return nil
}

// count is how many messages fulfil conditions, and how many octets they have, but for those of nodes that are down.
func (m *mta) count(ctx context.Context, where *selection.Selection) (c Counted, err error) {
	r, err := m.reach(ctx)
	if err != nil {
		return c, err
	}
	c.Missing = r.missing
	err = r.each(func(to queueclient.Caller) error {
		return each(ctx, to, proto.Select{Where: where.Encode()}, func(r *proto.SelectReply) error {
			c.Messages += len(r.IDs)
			c.Octets += r.Octets
			return nil
		})
	})
	return c, err
}

// each has q carried out on all that a queue manager has, page by page.
func each(ctx context.Context, to queueclient.Caller, q proto.Select, f func(*proto.SelectReply) error) error {
	var unread error
	for {
		var reply proto.SelectReply
		if err := to.Call(ctx, &q, &reply); err != nil {
			return err
		}
		if reply.Refused != "" {
			return errors.New(reply.Refused)
		}
		if err := f(&reply); err != nil {
			return err
		}
		if len(reply.Failed) > 0 {
			return errors.New(strings.Join(reply.Failed, "; "))
		}
		unread = queueclient.Join(unread, queueclient.UnreadError(&reply.Unread))
		if q.Cursor = reply.Next; q.Cursor == 0 {
			return unread
		}
	}
}

// actAll does something to all messages that fulfil conditions, if there are as many as are
// expected, and says how many it was done to. A message is changed only if it fulfils them at
// that moment. After an error some may have been changed.
// missing are nodes that are down: what they have is left alone.
func (m *mta) actAll(ctx context.Context, word string, where *selection.Selection, expected int) (done int, missing []string, err error) {
	now, err := m.count(ctx, where)
	if err != nil {
		return 0, nil, err
	}
	if now.Messages != expected {
		return 0, nil, wrong("%d messages fulfil the conditions by now, and not %d: nothing is done", now.Messages, expected)
	}
	r, err := m.reach(ctx)
	if err != nil {
		return 0, nil, err
	}
	verb := verbs[word]
	err = r.each(func(to queueclient.Caller) error {
		n, err := actOn(ctx, to, verb, where)
		done += n
		return err
	})
	return done, r.missing, err
}

// actOn is actAll for what one queue manager has.
func actOn(ctx context.Context, to queueclient.Caller, verb proto.Verb, where *selection.Selection) (done int, err error) {
	var ordered error // what is released later keeps nobody from the next page
	err = each(ctx, to, proto.Select{Where: where.Encode(), Verb: verb, Now: verb == proto.VerbExpire}, func(r *proto.SelectReply) error {
		done += len(r.IDs)
		if verb != proto.VerbExpire {
			return nil
		}
		for ids := range slices.Chunk(r.IDs, proto.SelectIDs) { // what is on hold is returned when it is released
			err := each(ctx, to, proto.Select{IDs: ids, Verb: proto.VerbRelease}, func(*proto.SelectReply) error { return nil })
			if !queueclient.Later(err) {
				return err
			}
			ordered = queueclient.Join(ordered, err)
		}
		return nil
	})
	return done, queueclient.Join(err, ordered)
}

// flush has the mail for a destination tried now, and says how many messages that is. What is
// suspended stays so.
func (m *mta) flush(ctx context.Context, destination string) (n int, missing []string, err error) {
	where := selection.New(time.Now())
	if err := where.Set("destination", destination); err != nil {
		return 0, nil, wrong("%v", err)
	}
	r, err := m.reach(ctx)
	if err != nil {
		return 0, nil, err
	}
	err = r.each(func(to queueclient.Caller) error {
		return each(ctx, to, proto.Select{Where: where.Encode(), Verb: proto.VerbFlush}, func(r *proto.SelectReply) error {
			n += len(r.IDs)
			return nil
		})
	})
	return n, r.missing, err
}

// orders are those in force.
func (m *mta) orders(ctx context.Context) (overview.Orders, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	conn, err := m.manager.Conn(ctx)
	if err != nil {
		return overview.NoOrders(), errDown
	}
	return overview.Overrides(ctx, conn)
}

// suspend has some mail wait, until a time or, if that is zero, until it is resumed. It is
// durable when it returns.
func (m *mta) suspend(ctx context.Context, target, by, reason string, until time.Time) error {
	t, err := selection.ParseTarget(target)
	switch {
	case err != nil:
		return wrong("%v", err)
	case !until.IsZero() && !until.After(time.Now()):
		return wrong("the end of the suspension lies in the past")
	}
	if err := validReason(reason); err != nil {
		return err
	}
	_, err = m.override(ctx, &proto.Override{Op: proto.OverridePut, Entry: proto.OverrideEntry{Of: string(override.Suspension), Target: t.String(),
		By: by, Reason: reason, Until: until}})
	return err
}

// validReason says what is wrong with a reason.
func validReason(reason string) error {
	if len(reason) > override.MaxReason || !utf8.ValidString(reason) || strings.ContainsAny(reason, "\r\n\x00") {
		return wrong("a reason is a line of at most %d octets", override.MaxReason)
	}
	return nil
}

// limit has a destination get no more deliveries at once than so many, until a time or, if that
// is zero, until it is lifted. With raises it counts even where main.cf allows less. It is durable
// when it returns.
func (m *mta) limit(ctx context.Context, e *proto.OverrideEntry) error {
	t, err := selection.ParseTarget(e.Target)
	switch {
	case err != nil:
		return wrong("%v", err)
	case e.Most < 1 || e.Most > override.MaxMost:
		return wrong("a limit is a number from 1 to %d; to have no delivery at all, suspend the destination", override.MaxMost)
	case !e.Until.IsZero() && !e.Until.After(time.Now()):
		return wrong("the end of the limit lies in the past")
	}
	if err := validReason(e.Reason); err != nil {
		return err
	}
	e.Of, e.Target = string(override.Limit), t.String()
	reply, err := m.order(ctx, &proto.Override{Op: proto.OverridePut, Entry: *e})
	if err != nil {
		return err
	}
	// What would have no effect is the user's fault, and the queue manager says how to put it right.
	if reply.Refused != "" && len(reply.Uses) > 0 {
		return wrong("%s", reply.Refused)
	}
	return refusal(reply)
}

// end takes an order of a kind back. missing is the error if there is none.
func (m *mta) end(ctx context.Context, kind override.Kind, target, by string, missing error) error {
	t, err := selection.ParseTarget(target)
	if err != nil {
		return wrong("%v", err)
	}
	reply, err := m.override(ctx, &proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Of: string(kind), Target: t.String(), By: by}})
	if err == nil && !reply.Found {
		err = missing
	}
	return err
}

// divert has mail go by another next hop, until a time or, if that is zero, until it is ended. It
// is durable when it returns.
func (m *mta) divert(ctx context.Context, e *proto.OverrideEntry) error {
	t, err := selection.ParseTarget(e.Target)
	if err != nil {
		return wrong("%v", err)
	}
	to, err := selection.ParseNexthop(e.Nexthop)
	switch {
	case err != nil:
		return wrong("%v", err)
	case t.IsSender() || t.IsGroup() || t.Source() != "":
		return wrong("a diversion is of destinations")
	case t.IsDestination() && t.String() == to.String():
		return wrong("%s would be diverted to itself", t.Name())
	case !e.Until.IsZero() && !e.Until.After(time.Now()):
		return wrong("the end of the diversion lies in the past")
	}
	if err := validReason(e.Reason); err != nil {
		return err
	}
	e.Of, e.Target, e.Nexthop = string(override.Diversion), t.String(), to.String()
	_, err = m.override(ctx, &proto.Override{Op: proto.OverridePut, Entry: *e})
	return err
}

func refusal(reply *proto.OverrideReply) error {
	if reply.Refused != "" {
		return errors.New(reply.Refused)
	}
	return nil
}

func (m *mta) override(ctx context.Context, q *proto.Override) (*proto.OverrideReply, error) {
	reply, err := m.order(ctx, q)
	if err != nil {
		return nil, err
	}
	return reply, refusal(reply)
}

// trace searches the log. more says that there is more than maxFound, or that there was no time
// for all.
func (m *mta) trace(ctx context.Context, q track.Query) (found []track.Found, more bool, err error) {
	o, err := m.logs()
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	if err := q.Valid(); err != nil {
		return nil, false, wrong("%v", err)
	}
	o.Now = time.Now()
	o.Warn = func(string, ...any) {} // what is missing is missing on the page: the tool says more
	err = track.Search(ctx, o, q, func(f track.Found) bool {
		if len(found) == maxFound {
			more = true
			return false
		}
		found = append(found, f)
		return true
	})
	if ctx.Err() != nil {
		return found, true, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, false, fmt.Errorf("%w: %w; the service runs as mail_owner: see maillog_file_permissions, or add that user to the log's group", errLog, err)
	}
	if err != nil {
		return nil, false, fmt.Errorf("%w: %w", errLog, err)
	}
	return found, more, nil
}

// A wrongError is a fault of who asks.
type wrongError struct{ text string }

func (e *wrongError) Error() string { return e.text }

func wrong(format string, args ...any) error { return &wrongError{fmt.Sprintf(format, args...)} }
