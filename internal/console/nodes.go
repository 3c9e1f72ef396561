package console

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/overview"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/selection"
	"posthaste/internal/storage"
)

// The queue beyond this node, where nodes share one. What others have is counted by their queue managers, and listed from its
// records, so that the mail of a node that is down is in the lists. Acts go to the node that has the mail, and orders to all,
// as those of the tools do; in the logs of the others it says that the console has asked.

// inLogs is who asks other nodes, for their logs. Which user it was is in the log of this one.
const inLogs = "the console"

// errNodes says that another node was not reached; what follows says which.
var errNodes = errors.New("not all nodes were reached")

// unreached is an error about other nodes; nil for none.
func unreached(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errNodes, err)
}

// partShift is where in the cursor of a list the number of a part is. What is below it is the place in the part, a message number:
// they are counted from 1, and a cursor has room for 17 million million of them.
const partShift = 44

// A reach is the nodes as they are now.
type reach struct {
	own     queueclient.Caller  // nil: this node has no part of the queue
	name    string              // this node's; "": the queue is not shared
	parts   queueclient.Parts   // of all nodes
	owners  []*queueclient.Node // others that have parts, and are alive
	missing []string            // those that have some and are down; "no node" for parts that are nobody's
	all     []proto.NodeInfo    // all nodes
	conn    *ipc.Conn           // by which others are asked
}

// An ownManager is the queue manager of this node, as a Caller.
type ownManager struct{ m *mta }

func (o ownManager) Call(ctx context.Context, req, reply ipc.Message) error {
	return o.m.call(ctx, req, reply)
}

// reach says which nodes there are. Where the queue is not shared nobody is asked.
func (m *mta) reach(ctx context.Context) (*reach, error) {
	r := &reach{own: ownManager{m}}
	if m.node == "" {
		return r, nil
	}
	var reply proto.NodesReply
	if err := m.call(ctx, &proto.Nodes{}, &reply); err != nil {
		return nil, err
	}
	var err error
	if r.conn, err = m.manager.Conn(ctx); err != nil {
		return nil, errDown
	}
	r.name, r.parts, r.all = m.node, reply.Parts, reply.Nodes
	if !r.parts.Own() {
		r.own = nil
	}
	r.owners, r.missing = r.parts.Living(r.conn, inLogs)
	return r, nil
}

// nodeName is the name of this node, where nodes share the queue; else it is empty.
func nodeName(cfg *config.Config) string {
	if !storage.Elsewhere(cfg) {
		return ""
	}
	return cfg.String("cluster_node_name")
}

// node is another node, with the parts that it has: what is ordered of it is ordered of them, whoever has them then.
func (r *reach) node(name string) *queueclient.Node { return r.parts.Other(r.conn, name, inLogs) }

// each calls f for each queue manager that has some of the queue and is alive, and goes on when one fails.
func (r *reach) each(f func(queueclient.Caller) error) error {
	var err error
	if r.own != nil {
		err = f(r.own)
	}
	if failed := unreached(queueclient.EachNode(r.owners, f)); err == nil {
		err = failed
	}
	return err
}

// managers are those that count the queue.
func (r *reach) managers() (list []overview.Manager) {
	if r.own != nil {
		list = append(list, overview.Manager{Node: r.name, Manager: r.own})
	}
	for _, n := range r.owners {
		list = append(list, overview.Manager{Node: n.Name, Manager: n})
	}
	return list
}

// see counts the queue of all nodes.
func (m *mta) see(ctx context.Context, now time.Time) (*overview.Seen, error) {
	r, err := m.reach(ctx)
	if err != nil {
		return nil, err
	}
	list := r.managers()
	if len(list) == 0 {
		return nil, unreached(errors.New("all that have something of the queue are down"))
	}
	seen, err := overview.SeeAll(ctx, list, now)
	if err == nil {
		seen.Now.Missing = append(seen.Now.Missing, r.missing...)
	}
	return seen, err
}

// A listing is a page of a list.
type listing struct {
	items  []proto.Item
	next   int      // where the list goes on; 0: at the end
	unread []string // what was left out, and why
}

// elsewhere goes on with a list in the part at the cursor, or in the next one: the parts of other nodes, by their numbers. A
// part that has become this node's meanwhile is passed over. One page is read in each call, so that the caller can look at the time.
func (m *mta) elsewhere(ctx context.Context, r *reach, where *selection.Selection, cursor int, out *listing) (next int) {
	part, at := cursor>>partShift, cursor&(1<<partShift-1)
	p := nextPart(r.parts, part)
	if p == nil {
		return 0
	}
	if p.ID != part {
		at = 0
	}
	behind := 0
	if nextPart(r.parts, p.ID+1) != nil {
		behind = (p.ID + 1) << partShift
	}
	var err error
	if where.NeedsManager() {
		// Where mail goes only a queue manager knows. It answers for all parts of its node: those that follow have been looked at.
		for i := range r.parts {
			if q := &r.parts[i]; q.Node == p.Node && q.ID < p.ID {
				return behind
			}
		}
		at, err = m.selected(ctx, r, p, where, at, out)
	} else {
		var reply proto.ListReply
		err = m.call(ctx, &proto.List{N: pageItems, Cursor: at, Part: p.ID}, &reply)
		for i := range reply.Items {
			if queueclient.Meant(where, &reply.Items[i]) {
				out.items = append(out.items, reply.Items[i])
			}
		}
		at = reply.Next
	}
	if err != nil {
		out.unread = append(out.unread, fmt.Sprintf("%s: %v", ownerName(p), err))
		return behind
	}
	if at <= 0 || at >= 1<<partShift {
		return behind
	}
	return p.ID<<partShift | at
}

// selected asks the node of a part for what is meant of its mail.
func (m *mta) selected(ctx context.Context, r *reach, p *proto.NodePart, where *selection.Selection, at int, out *listing) (next int, err error) {
	if p.Down {
		return 0, errors.New("it is down, and where its mail goes is not known")
	}
	var reply proto.SelectReply
	if err := r.node(p.Node).Call(ctx, &proto.Select{Cursor: at, Where: where.Encode(), Items: true, Most: pageItems}, &reply); err != nil {
		return 0, err
	}
	if reply.Refused != "" {
		return 0, errors.New(reply.Refused)
	}
	for i := range reply.Items {
		reply.Items[i].Node = p.Node
	}
	out.items = append(out.items, reply.Items...)
	return reply.Next, nil
}

// nextPart is the part of another node with the smallest number from part on; nil: there is none.
func nextPart(parts queueclient.Parts, part int) (next *proto.NodePart) {
	for i := range parts {
		if p := &parts[i]; !p.Own && p.ID >= part && (next == nil || p.ID < next.ID) {
			next = p
		}
	}
	return next
}

func ownerName(p *proto.NodePart) string {
	if p.Node == "" {
		return "no node"
	}
	return "node " + p.Node
}

// find finds a message that this node does not have, or has taken over and not read yet: nil if no node has it.
func (m *mta) find(ctx context.Context, r *reach, id mail.QueueID) (*proto.Item, error) {
	var failed error
	for i := range r.parts {
		if r.parts[i].Own && !r.parts[i].Unread {
			continue
		}
		var reply proto.ListReply
		if err := m.call(ctx, &proto.List{N: 1, ID: id, Part: r.parts[i].ID}, &reply); err != nil {
			failed = unreached(fmt.Errorf("%s: %w", ownerName(&r.parts[i]), err))
			continue
		}
		if len(reply.Items) > 0 {
			return &reply.Items[0], nil
		}
	}
	return nil, failed
}

// holder is the queue manager that has a message. The error is errNoMessage if there is none.
func (m *mta) holder(ctx context.Context, it *proto.Item) (queueclient.Caller, error) {
	if it.Node == "" && !it.Down || it.Node == m.node && m.node != "" {
		return ownManager{m}, nil
	}
	if it.Down { // what only asks is not ordered
		name := ownerName(&proto.NodePart{Node: it.Node})
		return nil, unreached(fmt.Errorf("%s has the message, and is down: it is left alone until another node has taken it over", name))
	}
	return m.ordering(ctx, it.Node)
}

// ordering is another node, which may be down: what it is asked to change is ordered then.
func (m *mta) ordering(ctx context.Context, node string) (queueclient.Caller, error) {
	r, err := m.reach(ctx)
	if err != nil {
		return nil, err
	}
	return r.node(node), nil
}

// order has what an operator orders for now hold on all nodes, this one first. What another one was not told is an error, and
// holds on the others all the same.
func (m *mta) order(ctx context.Context, q *proto.Override) (*proto.OverrideReply, error) {
	all := new(proto.OverrideReply)
	if err := m.call(ctx, q, all); err != nil || all.Refused != "" || m.node == "" {
		return all, err
	}
	r, err := m.reach(ctx)
	if err != nil {
		return all, err
	}
	var nodes []*queueclient.Node
	for _, n := range r.all {
		if !n.Own {
			nodes = append(nodes, r.node(n.Name))
		}
	}
	err = queueclient.EachNode(nodes, func(c queueclient.Caller) error {
		var reply proto.OverrideReply
		err := c.Call(ctx, q, &reply)
		all.Found = all.Found || reply.Found
		if err == nil && reply.Refused != "" {
			err = errors.New(reply.Refused)
		}
		return err
	})
	if err != nil {
		err = unreached(fmt.Errorf("it holds on the others; %w", err))
	}
	return all, err
}

// leftOut is what is said of nodes that were not asked, as part of a sentence; empty: all were.
func leftOut(missing []string) string {
	switch len(missing) {
	case 0:
		return ""
	case 1:
		return "; what " + missing[0] + " has, which is down, was left alone"
	}
	return "; what " + strings.Join(missing, ", ") + " have, which are down, was left alone"
}
