package nodesim

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/storage"
)

// Counts are what happened in runs.
type Counts struct {
	Letters, Acknowledged, Refused, Deliveries, Repeated, Doubtful, Takeovers, Faults int
	Orders, Answered, Left, Again, Notes, Heard, Parts                                int
	Virtual                                                                           time.Duration
}

func (c *Counts) add(o *Counts) {
	c.Letters, c.Acknowledged, c.Refused, c.Deliveries = c.Letters+o.Letters, c.Acknowledged+o.Acknowledged, c.Refused+o.Refused, c.Deliveries+o.Deliveries
	c.Repeated, c.Doubtful, c.Takeovers, c.Faults = c.Repeated+o.Repeated, c.Doubtful+o.Doubtful, c.Takeovers+o.Takeovers, c.Faults+o.Faults
	c.Parts += o.Parts
	c.Left, c.Again = c.Left+o.Left, c.Again+o.Again
	c.Orders, c.Answered, c.Notes, c.Heard = c.Orders+o.Orders, c.Answered+o.Answered, c.Notes+o.Notes, c.Heard+o.Heard
	c.Virtual += o.Virtual
}

// books are what is known from outside: what clients were told, and what arrived.
type books struct {
	run *run

	mu      sync.Mutex
	rcpts   map[mail.QueueID]int    // of all messages, whatever became of them
	acked   map[mail.QueueID]string // the node that said that it is queued
	arrived map[delivery]int
	asks    map[delivery]int // how often one has asked for it
	silent  map[delivery]int // how often a node itself has named one as doubtful, whose agent was killed while nobody had the queue
	carried map[int]int      // how often an order was carried out
	answers map[int]bool     // of orders whose outcome somebody was told: whether that was that it is carried out
	left    map[int]bool     // orders that were left, or surely were not
	done    map[int]int      // how often one of those was carried out
	gone    map[int]bool     // that is forgotten
	number  map[string]int64 // the last of a shard, or of a node
	told    map[string]int   // by who hears whom: the last note
	errors  []string
	counts  Counts
}

// maxErrors bounds what is said of one run.
const maxErrors = 10

func (b *books) fail(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	b.run.note("FAILURE: %s", text)
	if len(b.errors) < maxErrors {
		b.errors = append(b.errors, fmt.Sprintf("after %v: %s", b.run.since().Round(time.Millisecond), text))
	}
}

func (b *books) count(f func(*Counts)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.counts)
}

func (b *books) submitted(id mail.QueueID, nrcpt int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rcpts[id] != 0 {
		b.errors = append(b.errors, fmt.Sprintf("the queue ID %s was given twice", id))
	}
	b.rcpts[id] = nrcpt
}

func (b *books) acknowledged(id mail.QueueID, node string) {
	b.run.note("%s: queued %s", node, id)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.acked[id] = node
	b.counts.Acknowledged++
}

func (b *books) delivered(d delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.Deliveries++
	if b.arrived[d]++; b.arrived[d] > 1 {
		b.counts.Repeated++
	}
}

// answered notes what was said of an order: that it was carried out, or that it was not and will not be, or neither.
func (b *books) answered(i int, done, none bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.Answered++
	if done || none {
		b.answers[i] = done
	}
}

// leftFor notes whether an order was left, when that is known.
func (b *books) leftFor(i int, is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left[i] = is
	if is {
		b.counts.Left++
	}
}

// beginsLeft notes that one begins to be carried out, carriedLeft that it has been, and forgotten that it will not be again.
func (b *books) beginsLeft(i int, o *storage.Order) {
	b.mu.Lock()
	whose := fmt.Sprint(o.Part)
	if o.Part == 0 {
		whose = o.Node
	}
	last, gone := b.number[whose], b.gone[i]
	b.number[whose] = max(o.Number, last)
	b.mu.Unlock()
	if gone {
		b.fail("order %d, which was left, is carried out again, when it was forgotten", i)
	}
	if o.Number < last {
		b.fail("order %d, which was left as number %d, is carried out after number %d", i, o.Number, last)
	}
}

func (b *books) carriedLeft(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done[i]++; b.done[i] > 1 {
		b.counts.Again++
	}
}

func (b *books) forgotten(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i >= 0 {
		b.gone[i] = true
	}
}

// waiting says whether orders were left that nobody has carried out.
func (b *books) waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, is := range b.left {
		if is && b.done[i] == 0 {
			return true
		}
	}
	return false
}

func (b *books) carriedOut(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.carried[i]++
	b.counts.Orders++
}

// heard notes what a node is told by others.
func (b *books) heard(n *node, notes [][]byte) {
	for _, note := range notes {
		var name string
		var said int
		if _, err := fmt.Sscanf(string(note), "%s %d", &name, &said); err != nil || name == n.name {
			b.fail("%s is told %q", n.name, note)
		}
		b.mu.Lock()
		b.told[n.name+" of "+name] = said
		b.counts.Notes++
		b.mu.Unlock()
	}
}

// quietTime is how long nothing must have gone wrong for nodes to hear each other.
const quietTime = 12 * time.Second

// unheard holds that nodes hear each other: those that have had the queue open for long, when nothing was wrong for as long. The
// caller holds mu.
func (b *books) unheard() (wrong []string) {
	var list []*node
	for _, n := range b.run.nodes {
		if p := n.current(); p != nil && p.openFor() > quietTime && !n.isOlder() {
			list = append(list, n)
		}
	}
	if b.run.wrongClock() || !b.run.quietFor(quietTime) {
		return nil
	}
	for _, n := range list {
		for _, other := range list {
			if n == other {
				continue
			}
			b.counts.Heard++
			other.mu.Lock()
			said := other.said
			other.mu.Unlock()
			if last := b.told[n.name+" of "+other.name]; last < said-3 {
				wrong = append(wrong, fmt.Sprintf("%s has heard note %d of %s, which has told %d", n.name, last, other.name, said))
			}
		}
	}
	return wrong
}

// orders holds that each order is carried out at most once, and as whoever wanted it was told. The caller holds mu.
func (b *books) orders() (wrong []string) {
	for i := range b.run.plan.orders {
		n := b.carried[i]
		done, sure := b.answers[i]
		switch {
		case n > 1:
			wrong = append(wrong, fmt.Sprintf("order %d was carried out %d times", i, n))
		case sure && done != (n == 1):
			wrong = append(wrong, fmt.Sprintf("order %d was carried out %d times, and it was said that it is: %v", i, n, done))
		}
		if left, sure := b.left[i]; sure && left != (b.done[i] > 0) {
			wrong = append(wrong, fmt.Sprintf("order %d was carried out by others %d times, and it was said that it is left for them: %v", i, b.done[i], left))
		}
	}
	return wrong
}

// asked notes that an agent wants to deliver.
func (b *books) asked(d delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asks[d]++
}

// leave holds the promise that a node without a good lease begins nothing: what it believes is held against what the
// database has.
func (b *books) leave(n *node, d delivery, shard uint32) {
	h := b.run.primary()
	if h == nil {
		return // nobody can take anything over
	}
	h.mu.Lock()
	owner, until, now := h.data["shard"][fmt.Sprint(shard)], h.data["lease"][fmt.Sprint(shard)], h.now()
	h.mu.Unlock()
	if (owner[1] != n.name || atoi(until[1]) <= now) && !b.run.wrongClock() {
		b.fail("%s has leave to deliver %s, and shard %d is %s's, for %v more", n.name, d.id, shard, strings.Trim(owner[1], null), time.Duration(atoi(until[1])-now)*time.Microsecond)
	}
}

// recorded holds the promise that a node records nothing in a shard that is not its own. It is called when a transaction
// becomes part of the log, with its host's mu held.
func (b *books) recorded(t *tx) {
	for _, c := range t.order {
		parts := strings.Split(c.table, "_")
		if parts[0] != "seg" || len(parts) != 3 {
			continue
		}
		sh := t.s.host.data["shard"][parts[1]]
		if sh[1] != t.s.node || sh[2] != t.claims[parts[1]] {
			b.fail("%s records something in shard %s with epoch %s, which is %s's with epoch %s", t.s.node, parts[1], t.claims[parts[1]], strings.Trim(sh[1], null), sh[2])
			return
		}
	}
}

// missing are the deliveries that were promised and have not been made.
func (b *books) missing() (list []delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.acked {
		for i := range b.rcpts[id] {
			if d := (delivery{id, i}); b.arrived[d] == 0 {
				list = append(list, d)
			}
		}
	}
	slices.SortFunc(list, func(a, b delivery) int { return strings.Compare(string(a.id), string(b.id)) })
	return list
}

// unspoken notes that a node has named deliveries as doubtful in its own list.
func (b *books) unspoken(id mail.QueueID, rcpts []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, i := range rcpts {
		b.silent[delivery{id, i}]++
	}
}

// check is the end of a run: the queue has had time enough to become empty.
func (b *books) check() {
	if list := b.missing(); len(list) > 0 {
		b.fail("%d deliveries of acknowledged mail have not been made, the first of %s, recipient %d", len(list), list[0].id, list[0].rcpt)
	}
	doubts := map[delivery]int{}
	if h := b.run.primary(); h != nil {
		h.mu.Lock()
		for _, r := range h.data["doubtful"] {
			doubts[delivery{mail.QueueID(r[0]), int(atoi(r[1]))}]++
		}
		h.mu.Unlock()
	}
	b.mu.Lock()
	wrong := b.orders()
	for d, n := range b.arrived {
		if n > 1+doubts[d]+b.silent[d] {
			wrong = append(wrong, fmt.Sprintf("%s, recipient %d, has arrived %d times, and is doubtful %d times", d.id, d.rcpt, n, doubts[d]+b.silent[d]))
		}
	}
	wrong = append(wrong, b.unheard()...)
	for d, n := range doubts {
		b.counts.Doubtful += n
		// Each takeover names it, until there is an outcome.
		if b.asks[d] == 0 {
			wrong = append(wrong, fmt.Sprintf("%s, recipient %d, is doubtful %d times, and no agent has ever wanted it", d.id, d.rcpt, n))
		}
	}
	b.mu.Unlock()
	sort.Strings(wrong)
	for _, w := range wrong {
		b.fail("%s", w)
	}
}
