package whatif

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/overview"
	"posthaste/internal/queueclient"
)

// Beside notes that other nodes share the queue, and that their mail is not in the forecast, which is of this node's. It asks how
// many messages each of the others has. missing are those that are known to be down.
func (c *Copy) Beside(ctx context.Context, own string, others []*queueclient.Node, missing []string, now time.Time) {
	counts := make([]int64, len(others))
	var asking sync.WaitGroup
	for i, n := range others {
		asking.Go(func() { counts[i] = queuedOn(ctx, n, now) })
	}
	asking.Wait()
	missing = slices.Clone(missing)
	var known []string
	for i, n := range others {
		if counts[i] < 0 {
			missing = append(missing, n.Name)
			continue
		}
		known = append(known, fmt.Sprintf("%s on node %s", overview.Number(counts[i]), n.Name))
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

// queuedOn is how many messages a node has that are not on hold; -1: it does not say.
func queuedOn(ctx context.Context, n *queueclient.Node, now time.Time) (sum int64) {
	s, err := history.Take(ctx, n, now)
	if err != nil {
		return -1
	}
	for _, q := range overview.Glance(s).Queues {
		if q.Queue != "hold" {
			sum += q.Messages
		}
	}
	return sum
}
