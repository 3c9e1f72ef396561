package queueclient

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
	"posthaste/internal/storage"
	"posthaste/internal/whoami"
)

// A Caller is a queue manager that can be asked: an ipc.Conn to the one here, or another Node.
type Caller interface {
	Call(ctx context.Context, req, reply ipc.Message) error
}

// A Node is another node's queue manager, which is asked by way of the one here. It carries out commands, explanations
// and orders as if they were given there (proto.Forwards).
type Node struct {
	Name string // "": nobody has that part of the queue
	By   string // who asks, for the logs; "": the user whose process this is
	// Parts are those of the queue that it has, as far as is known: what is ordered of a node that is down is ordered of them, also when
	// another node has taken them over meanwhile.
	Parts []int
	here  *ipc.Conn
	down  bool        // of Parts.Others
	turn  *sync.Mutex // of EachNode: it is held by the one whose f runs, and not while that waits for an answer
}

// Elsewhere is a node of that name, by way of conn, which is asked in the name of by.
func Elsewhere(conn *ipc.Conn, name, by string) *Node { return &Node{Name: name, By: by, here: conn} }

// Call implements Caller. The error names the node. Its status is cli.ExitTemp if what was asked is written down, and will be
// carried out.
func (n *Node) Call(ctx context.Context, req, reply ipc.Message) error {
	name := "node " + n.Name
	if n.Name == "" {
		name = "no node" // of a part that nobody has for now: what is to be changed in it is ordered
	}
	by := n.By
	if by == "" {
		by = whoami.Name()
	}
	q := &proto.Forward{Node: n.Name, By: by, Asked: req.Kind(), Payload: req.Append(nil), Parts: n.Parts}
	if n.turn != nil {
		n.turn.Unlock()
		defer n.turn.Lock()
	}
	var r proto.ForwardReply
	if err := n.here.Call(ctx, q, &r); err != nil {
		return cli.Errorf(cli.ExitUnavailable, "%s: %w", name, err)
	}
	switch {
	case r.Failed != "":
		return cli.Errorf(cli.ExitUnavailable, "%s: %s", name, r.Failed)
	case r.Ordered != "":
		return cli.Errorf(cli.ExitTemp, "%s: %s", name, r.Ordered)
	}
	return reply.Decode(r.Payload)
}

// Owners are the other nodes that have parts of the queue. own says whether this one has some. All of a queue that is not
// shared is this node's.
func (q *Queue) Owners(ctx context.Context, conn *ipc.Conn) (own bool, others []*Node, err error) {
	parts, err := q.Parts(ctx, conn)
	return parts.Own(), parts.Others(conn, ""), err
}

// Others are all other nodes, of a queue that nodes share; also those that are down, for a day.
func (q *Queue) Others(ctx context.Context, conn *ipc.Conn) (others []*Node, err error) {
	if !storage.Elsewhere(q.Config) {
		return nil, nil
	}
	var reply proto.NodesReply
	if err := conn.Call(ctx, &proto.Nodes{}, &reply); err != nil {
		return nil, cli.Errorf(cli.ExitUnavailable, "which nodes there are is not known: %w", err)
	}
	for _, n := range reply.Nodes {
		if !n.Own {
			others = append(others, Elsewhere(conn, n.Name, ""))
		}
	}
	return others, nil
}

// OnAll has f ask each queue manager that has some of the queue, this one first, and goes on when one fails. The error has all that
// went wrong; its status is that of the first.
func (q *Queue) OnAll(ctx context.Context, conn *ipc.Conn, f func(Caller) error) error {
	own, others, err := q.Owners(ctx, conn)
	if err != nil {
		return err
	}
	var first error
	if own {
		first = f(conn)
	}
	return Join(first, EachNode(others, f))
}

// UnreadError is the error for what becomes of a request for mail that a node has not read yet; nil: there is none. Its status is
// cli.ExitTemp if all of it is carried out later.
func UnreadError(u *proto.Unread) (err error) {
	if u.Ordered != "" {
		err = cli.Errorf(cli.ExitTemp, "%s", u.Ordered)
	}
	if u.Omitted != "" {
		err = Join(err, cli.Errorf(cli.ExitUnavailable, "%s", u.Omitted))
	}
	return err
}

// EachNode calls f for each node, and goes on when one fails. A node that does not answer is waited for, and the others are asked
// meanwhile: while one call of f waits for an answer others run. No two of them run at the same time, so that f may use what it
// shares with itself without a lock, between two calls of its Caller.
func EachNode(nodes []*Node, f func(Caller) error) (err error) {
	var asking sync.WaitGroup
	var turn sync.Mutex
	failed := make([]error, len(nodes))
	for i := range nodes {
		n := *nodes[i]
		n.turn = &turn
		asking.Go(func() {
			turn.Lock()
			defer turn.Unlock()
			failed[i] = f(&n)
		})
	}
	asking.Wait()
	for _, e := range failed {
		err = Join(err, e)
	}
	return err
}

// Join is both errors as one line, with the exit status of the first that is more than an order (cli.ExitTemp).
func Join(a, b error) error {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	status := cli.Status(a)
	if status == cli.ExitTemp {
		status = cli.Status(b)
	}
	return cli.Errorf(status, "%w; %w", a, b)
}

// Parts are those of a queue that nodes share; none of another.
type Parts []proto.NodePart

// Own says whether this node has something of the queue: a node that stands by has nothing, and does not answer for that.
func (p Parts) Own() bool {
	return len(p) == 0 || slices.ContainsFunc(p, func(p proto.NodePart) bool { return p.Own })
}

// Others are the other nodes that have parts, with those, asked by way of conn in the name of by; also those that are down, and "" for whose
// parts are nobody's.
func (p Parts) Others(conn *ipc.Conn, by string) (list []*Node) {
	for i := range p {
		if p[i].Own {
			continue
		}
		k := slices.IndexFunc(list, func(n *Node) bool { return n.Name == p[i].Node })
		if k < 0 {
			k, list = len(list), append(list, &Node{Name: p[i].Node, By: by, here: conn, down: p[i].Down})
		}
		list[k].Parts = append(list[k].Parts, p[i].ID)
	}
	return list
}

// Other is a node, with the parts that it has, if it has any.
func (p Parts) Other(conn *ipc.Conn, name, by string) *Node {
	for _, n := range p.Others(conn, by) {
		if n.Name == name {
			return n
		}
	}
	return Elsewhere(conn, name, by)
}

// Living are those of Others that are alive, and missing the names of those that are down; "no node" stands for
// whose parts are nobody's.
func (p Parts) Living(conn *ipc.Conn, by string) (living []*Node, missing []string) {
	for _, n := range p.Others(conn, by) {
		switch {
		case n.Name == "":
			missing = append(missing, "no node")
		case n.down:
			missing = append(missing, n.Name)
		default:
			living = append(living, n)
		}
	}
	return living, missing
}

// Node is the name of this node of a queue that nodes share; empty for another queue.
func (q *Queue) Node() string {
	if !storage.Elsewhere(q.Config) {
		return ""
	}
	return q.Config.String("cluster_node_name")
}

// Parts says which parts the queue has, and whose they are. Where it is not shared nobody is asked.
func (q *Queue) Parts(ctx context.Context, conn *ipc.Conn) (Parts, error) {
	return PartsOf(ctx, q.Config, conn)
}

// PartsOf is Parts for a process that has no Queue.
func PartsOf(ctx context.Context, cfg *config.Config, conn *ipc.Conn) (Parts, error) {
	if !storage.Elsewhere(cfg) {
		return nil, nil
	}
	var reply proto.NodesReply
	if err := conn.Call(ctx, &proto.Nodes{}, &reply); err != nil {
		return nil, cli.Errorf(cli.ExitUnavailable, "which parts the queue has is not known: %w", err)
	}
	return reply.Parts, nil
}

// EachOfOthers is Each for the parts of other nodes, in the order of their names, also of those that are down. A message
// that goes from one node to another meanwhile may be left out, or come twice. A part that cannot be read is passed over: the error, which
// comes after all others, has its number and whose it is.
func (p Parts) EachOfOthers(ctx context.Context, conn *ipc.Conn, brief bool, f func(*proto.Item) bool) (err error) {
	for more := true; more && len(p) > 0; p = p[1:] {
		if p[0].Own {
			continue
		}
		failed := eachPage(ctx, conn, proto.List{N: page, Brief: brief, Part: p[0].ID}, func(it *proto.Item) bool {
			more = f(it)
			return more
		})
		if failed != nil {
			err = Join(err, cli.Errorf(cli.ExitUnavailable, "%s: %w", ownerOf(&p[0]), failed))
		}
		if ctx.Err() != nil {
			break // nor can the others
		}
	}
	return err
}

// EachUnread is Each for what this node has taken over of others and has not read yet, so that its own listing does not have it. It
// comes before that: what is read meanwhile comes twice, and is not left out.
func (p Parts) EachUnread(ctx context.Context, conn *ipc.Conn, brief bool, f func(*proto.Item) bool) error {
	for more := true; more && len(p) > 0; p = p[1:] {
		if !p[0].Unread {
			continue
		}
		err := eachPage(ctx, conn, proto.List{N: page, Brief: brief, Part: p[0].ID}, func(it *proto.Item) bool {
			more = f(it)
			return more
		})
		if err != nil {
			return cli.Errorf(cli.ExitUnavailable, "part %d of the queue, which has just been taken over: %w", p[0].ID, err)
		}
	}
	return nil
}

// EachAside calls f for the messages in all parts that were set aside as corrupt, and says which part it is. brief leaves out what
// is in their envelopes, which may be what is damaged. A part that cannot be read is passed over, as EachOfOthers does.
func (p Parts) EachAside(ctx context.Context, conn *ipc.Conn, brief bool, f func(*proto.NodePart, *proto.Item)) (err error) {
	for i := range p {
		failed := eachPage(ctx, conn, proto.List{N: page, Brief: brief, Part: p[i].ID, Aside: true}, func(it *proto.Item) bool {
			f(&p[i], it)
			return true
		})
		if failed != nil {
			err = Join(err, cli.Errorf(cli.ExitUnavailable, "%s: %w", ownerOf(&p[i]), failed))
		}
	}
	return err
}

// ownerOf names whose a part is.
func ownerOf(p *proto.NodePart) string {
	if p.Node == "" {
		return "nobody's"
	}
	return "node " + p.Node
}

// Find finds a message in the parts of other nodes, and in those that this one has not read yet, as a brief listing has it; nil: it is in
// none.
func (p Parts) Find(ctx context.Context, conn *ipc.Conn, id mail.QueueID) (*proto.Item, error) {
	for i := range p {
		if p[i].Own && !p[i].Unread {
			continue
		}
		var reply proto.ListReply
		if err := conn.Call(ctx, &proto.List{ID: id, N: 1, Brief: true, Part: p[i].ID}, &reply); err != nil {
			return nil, cli.Errorf(cli.ExitUnavailable, "ask the queue manager: %w", err)
		}
		if len(reply.Items) > 0 {
			return &reply.Items[0], nil
		}
	}
	return nil, nil
}

// EachOfAll is Each for the whole queue: what this node has, and then what others have.
func (q *Queue) EachOfAll(ctx context.Context, conn *ipc.Conn, f func(*proto.Item) bool) error {
	return EachOf(ctx, q.Config, conn, f)
}

// EachOf is EachOfAll for a process that has no Queue.
func EachOf(ctx context.Context, cfg *config.Config, conn *ipc.Conn, f func(*proto.Item) bool) error {
	return eachOfAll(ctx, cfg, conn, func(f func(*proto.Item) bool) error { return Each(ctx, conn, false, f) }, f, f)
}

// SelectedOfAll is Selected for the whole queue. Where mail of another node goes that one says, if it lives.
func (q *Queue) SelectedOfAll(ctx context.Context, conn *ipc.Conn, where *selection.Selection, warn func(string, ...any), f func(*proto.Item) bool) error {
	own := func(f func(*proto.Item) bool) error { return q.Selected(ctx, conn, where, warn, f) }
	if conn == nil {
		return own(f)
	}
	if !where.NeedsManager() {
		return eachOfAll(ctx, q.Config, conn, own, f, func(it *proto.Item) bool { return !Meant(where, it) || f(it) })
	}
	return q.OnAll(ctx, conn, func(m Caller) error {
		if m == Caller(conn) {
			return own(f)
		}
		return selected(ctx, m, where, f)
	})
}

// eachOfAll has own call f for what this node has, and then calls others for what others have. What this node has not read yet is
// as what others have, and comes first.
func eachOfAll(ctx context.Context, cfg *config.Config, conn *ipc.Conn, own func(func(*proto.Item) bool) error, f, others func(*proto.Item) bool) error {
	parts, err := PartsOf(ctx, cfg, conn)
	more := true
	once := func(it *proto.Item) bool {
		more = f(it)
		return more
	}
	if err == nil {
		err = parts.EachUnread(ctx, conn, false, func(it *proto.Item) bool {
			more = others(it)
			return more
		})
	}
	if err == nil && more && parts.Own() {
		err = own(once)
	}
	if err != nil || !more {
		return err
	}
	return parts.EachOfOthers(ctx, conn, false, others)
}
