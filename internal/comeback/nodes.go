package comeback

import (
	"context"
	"fmt"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
)

// Of nodes that share a queue each records what it has delivered itself, and what comes back goes to any of them. A return path is proven on all of them, since their
// secrets are the same: which node has the record is asked, by way of the queue managers.

// absence is how long a report waits for a node that does not answer, and may have the record. After that it counts as one without.
const absence = 24 * time.Hour

// A nodeSuppressor is the suppress service of another node.
type nodeSuppressor struct{ queueclient.Caller }

// ReturnPath implements suppressor.
func (n nodeSuppressor) ReturnPath(ctx context.Context, q *proto.ReturnPath) (reply proto.ReturnPathReply, err error) {
	err = n.Call(ctx, q, &reply)
	return reply, err
}

// Tell implements suppressor.
func (n nodeSuppressor) Tell(ctx context.Context, q *proto.SuppressTell) (reply proto.SuppressTold, err error) {
	err = n.Call(ctx, q, &reply)
	return reply, err
}

// othersBy makes the function that finds the suppress services of the other nodes by way of this node's queue manager.
func othersBy(manager *ipc.Client, q *queueclient.Queue) func(ctx context.Context) ([]suppressor, error) {
	return func(ctx context.Context) (list []suppressor, err error) {
		conn, err := manager.Conn(ctx)
		if err != nil {
			return nil, fmt.Errorf("which nodes there are is not known: %w", err)
		}
		nodes, err := q.Others(ctx, conn)
		for _, n := range nodes {
			n.By = Name
			list = append(list, nodeSuppressor{n})
		}
		return list, err
	}
}

// ask asks for which message an address was made: the service here, and if that has no record the other nodes. old says that the
// report has waited long enough for those that do not answer.
func (a *Agent) ask(ctx context.Context, q *proto.ReturnPath, old bool) (of origin, err error) {
	of.at = a.suppress
	of.ReturnPathReply, err = a.suppress.ReturnPath(ctx, q)
	if err != nil || of.Problem != "" || of.Recorded || a.others == nil {
		return of, err
	}
	nodes, failed := a.others(ctx)
	for _, n := range nodes {
		reply, err := n.ReturnPath(ctx, q)
		switch {
		case err != nil:
			failed = err
		case reply.Recorded:
			return origin{reply, n}, nil
		}
	}
	if failed != nil && !old {
		return of, fmt.Errorf("whether another node has the record is not known: %w", failed)
	}
	return of, nil
}
