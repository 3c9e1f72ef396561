package simtest

import "posthaste/internal/config"

// limit is how many tokens of in_flow_delay a setting allows; 0: nobody makes any.
func (p *Plan) limit(setting int) int { return tokenLimit(p.configs[setting]["qmgr"]) }

func tokenLimit(cfg *config.Config) int {
	if cfg.Duration("in_flow_delay") == 0 {
		return 0
	}
	return cfg.Int("default_process_limit")
}

// tokens checks at a step that none was made: there are no more than the most that any setting has allowed since the
// pipe was made, and those that cleanup has put back of messages that did not come about, while there were as many as
// may be. The queue manager takes out what is too much, when it comes to that.
func (b *books) tokens() {
	n := b.site.flow.Level()
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.site.plan.limit(b.site.plan.Setting)
	for _, f := range b.faults {
		if f.Kind == reload {
			most = max(most, b.site.plan.limit(int(f.N)%len(b.site.plan.configs)))
		}
		if f.Kind == badTables {
			most = max(most, tokenLimit(b.site.plan.broken[f.N]["qmgr"]))
		}
	}
	if most += len(b.fates); n > most && !b.overfull {
		b.overfull = true
		b.fail("there are %d tokens of in_flow_delay, and at most %d may be there", n, most)
	}
}

// filled checks that none was lost: with an empty queue all are there.
func (b *books) filled() {
	b.site.mu.Lock()
	defer b.site.mu.Unlock()
	want := 0
	for _, e := range b.site.services {
		if e.name == "qmgr" && e.now != nil {
			want = tokenLimit(e.now.config)
		}
	}
	if n := b.site.flow.Level(); want > 0 && n != want && len(b.remaining) == 0 {
		b.fail("the queue is empty, and there are %d tokens of in_flow_delay, not %d", n, want)
	}
}
