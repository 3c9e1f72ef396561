package qshape

import (
	"context"
	"errors"
	"slices"

	"posthaste/internal/cli"
	"posthaste/internal/history"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
)

// What --by takes: messages are counted by their tenant, or by the egress source that they wait for.
const (
	byTenant = "tenant"
	bySource = "source"
	// byCampaign is read from envelopes, as domains are, where the queue manager has not read them.
	byCampaign = "campaign"
)

// setBy sets what is counted in place of domains.
func (c *command) setBy(value string) error {
	if value != byTenant && value != bySource && value != byCampaign {
		return cli.Errorf(cli.ExitUsage, "--by: expected tenant, campaign or source, found %q", value)
	}
	c.shape.campaigns = value == byCampaign
	c.by = value
	return nil
}

// checkBy says why that cannot be counted as the other options say.
func (c *command) checkBy() error {
	if c.by == "" {
		return nil
	}
	if c.shape.senders || c.shape.parents {
		return cli.Errorf(cli.ExitUsage, "--by: -s and -p are about domains, and cannot be used")
	}
	for _, q := range c.queues {
		if !slices.Contains(history.Queues, q) {
			return cli.Errorf(cli.ExitUsage, "--by: only messages in %v are counted, and not those in %s", history.Queues, q)
		}
	}
	return nil
}

// means says whether a table is what is asked for.
func (c *command) means(t *history.Table) bool {
	switch c.by {
	case byTenant:
		return t.Tenants
	case bySource:
		return t.Sources
	case byCampaign:
		return t.Campaigns
	}
	return t.Senders && c.shape.senders || t.Domains() && !c.shape.senders
}

// collectBy counts messages by tenant or source. The queue manager knows both; when it is down the
// tenants are in the queue, and nobody knows the sources.
func (c *command) collectBy(ctx context.Context, q *queueclient.Queue) error {
	conn, err := q.Manager(ctx)
	if errors.Is(err, queueclient.ErrDown) && c.by == byTenant {
		return q.View(c.Warn, func(e queue.Entry) bool {
			if e.Tenant != "" && slices.Contains(c.queues, e.Queue.String()) {
				created, _, _ := e.ID.Parse()
				counts := make([]int, c.shape.buckets)
				counts[c.shape.bucket(c.shape.now.Sub(created))-1] = 1
				c.shape.addCounts(e.Tenant, counts)
			}
			return true
		})
	}
	if err != nil {
		return err
	}
	ask := &proto.Shape{Queues: c.queues, Split: true, Edges: c.shape.edges()}
	for {
		var reply proto.ShapeReply
		if err := conn.Call(ctx, ask, &reply); err != nil {
			return cli.Errorf(cli.ExitUnavailable, "ask the queue manager: %w", err)
		}
		for i := range reply.Rows {
			if r := &reply.Rows[i]; r.Tenants && c.by == byTenant || r.Sources && c.by == bySource {
				c.shape.addCounts(r.Domain, r.Counts)
			}
		}
		if ask.Cursor = reply.Next; ask.Cursor == 0 {
			return nil
		}
	}
}
