package whatif

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/overview"
	"posthaste/internal/queueclient"
)

// Beside notes that other nodes share the queue, and that their mail is not in the forecast, which is of this node's. It asks how
// many messages each of the others has. missing are those that are known to be down.
func (c *Copy) Beside(ctx context.Context, own string, others []*queueclient.Node, missing []string, now time.Time) {
	counts := make(map[string]int64) // by node
	_ = queueclient.EachNode(others, func(m queueclient.Caller) error {
		n, err := waitingAt(ctx, m, now)
		if node, ok := m.(*queueclient.Node); ok && err == nil {
			counts[node.Name] = n
		}
		return err
	})
	missing = slices.Clone(missing)
	var known []string
	for _, n := range others {
		count, ok := counts[n.Name]
		if !ok { // what is wrong is not this forecast's business
			missing = append(missing, n.Name)
			continue
		}
		known = append(known, fmt.Sprintf("%s on node %s", overview.Number(count), n.Name))
	}
	if len(known)+len(missing) == 0 {
		return // it has all of the queue
	}
	text := "This is the mail of node " + own + "."
	if len(known) > 0 {
		text += " Not in the forecast are messages of other nodes: " + strings.Join(known, ", ") + "."
	}
	if len(missing) > 0 {
		text += " It is not known how many these have: " + strings.Join(missing, ", ") + "."
	}
	c.LeftOut = append(c.LeftOut, text)
}

// waitingAt is how many messages a node has that are not on hold.
func waitingAt(ctx context.Context, m queueclient.Caller, now time.Time) (sum int64, err error) {
	s, err := history.Take(ctx, m, now)
	if err != nil {
		return 0, err
	}
	for _, q := range overview.Glance(s).Queues {
		if q.Queue != "hold" {
			sum += q.Messages
		}
	}
	return sum, nil
}
