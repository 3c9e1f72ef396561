package track

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/logread"
)

const (
	firstSeeds  = 4     // queue IDs after which the first group of messages is looked up: somebody waits for it
	moreSeeds   = 2     // by what a later group is larger than the one before: who wants a hundred does not pay for four hundred
	maxSeeds    = 1024  // and the largest ones
	maxFollowed = 50000 // queue IDs that are looked up for one group
	firstBlocks = 2     // blocks that are gone through at first, and of which there are twice as many each time
	maxBlocks   = 96    // and at most: the messages that they have are looked up while they are in memory
)

// A run is one search.
type run struct {
	Options
	now         time.Time
	plan        *plan
	yield       func(Found) bool
	store       *store
	sources     []*source
	done, total int64
	inMemory    int // entries

	parsers []*logread.Reader // of each source
	cache   cache
	readers []*reader
	event   event

	keys       atomic.Int64 // that were looked for
	gates      atomic.Int64 // octets of those that were read
	zoneTold   bool         // that the index is of another time zone
	collecting sync.Mutex   // of a book
}

func newRun(o Options) *run {
	if o.sizes == (sizes{}) {
		o.sizes = usualSizes
	}
	return &run{Options: o, now: o.Now}
}

func (x *run) close() {
	for _, s := range x.sources {
		s.close()
	}
	x.store.close()
}

// open opens the index and the logs. readonly is why nothing can be written to the index.
func (x *run) open() (readonly, err error) {
	if x.Index != "" {
		x.store, readonly = openStore(x.Index, formatOf(x.sizes), x.IndexLimit, x.Warn)
	}
	if err := x.openSources(x.Logs); err != nil {
		return readonly, err
	}
	x.parsers = newParsers(x.sources)
	x.total = x.missing()
	return readonly, nil
}

func (x *run) buildAll(ctx context.Context) (b Built, err error) {
	readonly, err := x.open()
	if err = errors.Join(readonly, err); err != nil {
		return b, err
	}
	for _, s := range slices.Backward(x.sources) { // the newest is worth most
		if err := x.cover(ctx, s); err != nil {
			return b, err
		}
		x.inMemory = 0
		for _, seg := range s.segments {
			b.Text += seg.end() - seg.start
			if seg.entries != nil && s.ident == 0 {
				seg.entries = nil // too short a log to be kept apart
			}
		}
	}
	x.prune()
	b.Added, b.Size, b.Refused = x.done, x.store.used, x.store.refused
	return b, nil
}

// search is a search with the index, if there is or can be one, and else without.
func (x *run) search(ctx context.Context) error {
	if x.Index == "" || slices.Contains(x.Logs, "-") {
		return x.stream(ctx)
	}
	readonly, err := x.open()
	if err != nil {
		return err
	}
	if readonly != nil && x.total > 64*int64(x.sizes.memory) {
		return x.allOfIt(ctx, readonly)
	}
	for _, s := range slices.Backward(x.sources) {
		if err = x.cover(ctx, s); err != nil {
			break
		}
	}
	if errors.Is(err, errTooLarge) {
		return x.allOfIt(ctx, cmp.Or(readonly, err))
	}
	if err != nil {
		return err
	}
	x.prune()
	x.store.unlock()
	return x.indexed(ctx)
}

// allOfIt searches without the index, and says why: somebody waits for minutes, though there may be an index.
func (x *run) allOfIt(ctx context.Context, why error) error {
	x.store.unlock()
	x.Warn("all of the log is read, which takes longer: %v", why)
	return x.streamFiles(ctx)
}

// prune removes from the index what is about logs that were removed.
func (x *run) prune() {
	names, oldest := map[string]bool{}, int64(0)
	for _, s := range x.sources {
		if names[hashName(s.ident)], names[hashName(s.raw)] = true, true; s.begin != 0 && (oldest == 0 || s.begin < oldest) {
			oldest = s.begin
		}
	}
	if !x.Others && oldest != 0 {
		x.store.prune(names, time.UnixMicro(oldest))
	}
}

// A group is the messages that some blocks have, as far as they fulfil the condition that the search goes by.
type group struct {
	begin, end int64 // positions between which these blocks are
	blocks     int
	seeds      map[string]bool
	found      []seen // lines that are of no message
}

// seen is something to report, by where it was found.
type seen struct {
	pos   int64
	found Found
}

// indexed searches with the index.
func (x *run) indexed(ctx context.Context) error {
	bit, hunted := x.driver()
	g, most, count := newGroup(-1), firstSeeds, firstBlocks
	for tasks := hunted.tasks(); len(tasks) > 0; {
		some := tasks[:min(count, len(tasks))]
		tasks, count = tasks[len(some):], min(2*count, maxBlocks)
		matches := make([][]match, len(some))
		err := x.each(ctx, hunted, some, func(r *reader, n int, b block, pick picker) {
			b.lines(pick, some[n].source.number, r.parsers[some[n].source.number], &r.event, func(at place) {
				matches[n] = x.matched(matches[n], &r.event, at, bit)
			})
		})
		if err != nil {
			return err
		}
		for n := range some {
			g.add(matches[n])
			enough := len(g.seeds)+len(g.found) >= most
			if !enough && g.blocks < maxBlocks {
				continue
			}
			g.end = some[n].end()
			if err := x.report(ctx, g, bit); err != nil {
				return unlessEnough(err)
			}
			if g = newGroup(g.end); enough {
				most = min(moreSeeds*most, maxSeeds)
			}
		}
	}
	g.end = 1<<63 - 1
	return unlessEnough(x.report(ctx, g, bit))
}

// A match is a line that fulfils the condition that the search goes by: of a message, or of none.
type match struct {
	id   string
	seen seen
}

// matched adds a line to a list, if it is one.
func (x *run) matched(list []match, e *event, at place, bit uint64) []match {
	got := x.plan.match(e)
	switch {
	case got&bit == 0:
	case len(e.id) > 0:
		if n := len(list); n == 0 || list[n-1].id != string(e.id) {
			list = append(list, match{id: string(e.id)})
		}
	case got == x.plan.all:
		list = append(list, match{seen: seen{at.pos, Found{Refusal: x.refusal(e, at)}}})
	}
	return list
}

// add adds what a block has.
func (g *group) add(list []match) {
	g.blocks++
	for _, m := range list {
		if m.id != "" {
			g.seeds[m.id] = true
		} else {
			g.found = append(g.found, m.seen)
		}
	}
}

func newGroup(begin int64) *group { return &group{begin: begin, seeds: map[string]bool{}} }

// errEnough says that the caller has seen enough.
var errEnough = errors.New("enough")

func unlessEnough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// report looks up what is connected with the messages of a group, and reports those that are found in it first.
func (x *run) report(ctx context.Context, g *group, bit uint64) error {
	b, err := x.gather(ctx, g.seeds, bit)
	if err != nil {
		return err
	}
	list := g.found
	reported := map[*entry]bool{}
	for _, e := range b.entries {
		if e.drive < 0 || reported[e] {
			continue
		}
		family := b.family(e)
		for _, m := range family {
			reported[m] = true
		}
		got, drive := matched(family)
		if got == x.plan.all && drive >= g.begin && drive < g.end {
			list = append(list, seen{drive, Found{Messages: x.messages(b, family)}})
		}
	}
	slices.SortFunc(list, func(a, b seen) int { return cmp.Compare(a.pos, b.pos) })
	for _, s := range list {
		if !x.yield(s.found) {
			return errEnough
		}
	}
	return nil
}

// gather reads all lines of some messages, and of those that are connected with them.
func (x *run) gather(ctx context.Context, seeds map[string]bool, bit uint64) (*book, error) {
	b := newBook(bit)
	known, mids := map[string]bool{}, map[string]bool{}
	ids, names := seeds, map[string]bool{}
	for len(ids)+len(names) > 0 {
		if len(known)+len(ids) > maxFollowed {
			x.Warn("more than %d messages are connected: not all are shown", maxFollowed)
			break
		}
		h := new(hunt)
		for id := range ids {
			known[id] = true
			h.wishes = append(h.wishes, newWish(keyID, []byte(id), false))
		}
		for mid := range names {
			mids[mid] = true
			h.wishes = append(h.wishes, newWish(keyMessageID, []byte(mid), false))
		}
		x.lookup(h, false)
		next := map[string]bool{}
		tasks := h.tasks()
		err := x.each(ctx, h, tasks, func(r *reader, n int, bl block, pick picker) {
			number := tasks[n].source.number
			bl.lines(pick, number, r.parsers[number], &r.event, func(at place) { x.collect(b, &r.event, at, ids, names, next) })
		})
		if err != nil {
			return nil, err
		}
		ids, names = map[string]bool{}, b.wanted(mids)
		for id := range next {
			if !known[id] {
				ids[id] = true
			}
		}
	}
	return b, nil
}

// collect puts a line into the book if it is of one of the messages, or names one. What it names is looked up next. It may be called
// concurrently, with one book.
func (x *run) collect(b *book, e *event, at place, ids, names, next map[string]bool) {
	if len(e.id) == 0 || !ids[string(e.id)] && !ids[string(e.other)] && (len(e.mid) == 0 || !names[string(e.mid)]) {
		return
	}
	got := x.plan.match(e)
	x.collecting.Lock()
	defer x.collecting.Unlock()
	b.add(e, at, got)
	next[string(e.id)] = true
	if len(e.other) > 0 {
		next[string(e.other)] = true
	}
}

// wanted are the Message-IDs by which more of what is in the book may be found, without those that were looked up.
func (b *book) wanted(known map[string]bool) map[string]bool {
	list := map[string]bool{}
	for _, e := range b.entries {
		if e.mid != "" && (e.local || e.handed) && !known[e.mid] {
			list[e.mid] = true
		}
	}
	return list
}

// refusal is a line that is of no message.
func (x *run) refusal(e *event, at place) *Refusal {
	r := &Refusal{Step: x.step(e, record{at, e.line.Time, string(e.line.Raw)})}
	v := &e.verdict
	r.Action, r.Stage, r.Reply = string(v.Action), string(v.Stage), string(v.Text)
	if e.kind == session {
		r.Action = "session"
	}
	r.Client, r.Address, r.Helo, r.User = string(e.client.Name), string(e.client.Addr), string(e.helo), string(e.user)
	if e.hasFrom {
		from := string(e.from)
		r.From = &from
	}
	r.To = string(e.to)
	return r
}

// fileOf is the name of the log that a position is in.
func (x *run) fileOf(pos int64) string {
	if n := int(pos >> fileShift); n < len(x.sources) {
		return x.sources[n].name
	}
	return fmt.Sprint("file ", pos>>fileShift)
}
