package track

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"posthaste/internal/logread"
)

const (
	maxInMemory = 16 << 20 // entries of segments that are not stored: 64 MiB, the index of about 1 GB
	firstSeeds  = 4        // queue IDs after which the first group of messages is looked up: somebody waits for it
	moreSeeds   = 2        // by what a later group is larger than the one before: who wants a hundred does not pay for four hundred
	maxSeeds    = 1024     // and the largest ones
	maxFollowed = 50000    // queue IDs that are looked up for one group
	cacheSize   = 128      // blocks
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
	cache   map[int64][]byte
	cached  []int64 // the blocks in the cache, the oldest first
	bucket  []byte  // room for one of the index
	scanner scanner
	event   event
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
		x.store, readonly = openStore(x.Index, x.IndexLimit, x.Warn)
	}
	if err := x.openSources(x.Logs); err != nil {
		return readonly, err
	}
	for _, s := range x.sources {
		x.parsers = append(x.parsers, logread.NewParser(s.now))
	}
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
	if readonly != nil && x.total > 64*maxInMemory {
		return x.streamFiles(ctx)
	}
	for _, s := range slices.Backward(x.sources) {
		if err = x.cover(ctx, s); err != nil {
			break
		}
	}
	if errors.Is(err, errTooLarge) {
		return x.streamFiles(ctx)
	}
	if err != nil {
		return err
	}
	return x.indexed(ctx)
}

// A hit is a block of a segment that may have a wish, by its number; allLines: any of its lines may be wanted.
type hit struct{ block, wish int32 }

const allLines = -1

// A spot is a segment with hits in it, in the order of the blocks.
type spot struct {
	source *source
	seg    *segment
	hits   []hit
}

// blocks is how many blocks have hits.
func (p *spot) blocks() (n int) {
	for i := range p.hits {
		if i == 0 || p.hits[i].block != p.hits[i-1].block {
			n++
		}
	}
	return n
}

// A hunt is what blocks are gone through for: wishes, in the order of their fingerprints, and the blocks that may have them.
type hunt struct {
	wishes []wish
	fold   bool // their texts are in lower case
	spots  []spot
}

// each calls f for the blocks of a hunt, in order, with what picks the lines that may be wanted.
func (x *run) each(h *hunt, f func(s *source, b block, pick picker) error) error {
	var wishes []*wish
	some := func(text []byte, f func(begin, end int)) { x.scanner.lines(text, wishes, h.fold, f) }
	for _, p := range h.spots {
		for i := 0; i < len(p.hits); {
			n, pick := int(p.hits[i].block), picker(some)
			wishes = wishes[:0]
			for ; i < len(p.hits) && int(p.hits[i].block) == n; i++ {
				if p.hits[i].wish == allLines {
					pick = everyLine
				} else {
					wishes = append(wishes, &h.wishes[p.hits[i].wish])
				}
			}
			b, err := x.block(p.source, p.seg, n)
			if err != nil {
				return err
			}
			if err := f(p.source, b, pick); err != nil {
				return err
			}
		}
	}
	return nil
}

// block reads a block. Those that were read last are kept; its text is good until as many others were read.
func (x *run) block(s *source, seg *segment, n int) (block, error) {
	off, line, size := seg.blockAt(n)
	at := position(s.number, off)
	if text, ok := x.cache[at]; ok {
		return block{off, line, text}, nil
	}
	var room []byte
	if len(x.cached) >= cacheSize {
		oldest := x.cached[0]
		room, x.cached = x.cache[oldest], x.cached[1:]
		delete(x.cache, oldest)
	}
	text, err := s.read(off, size, room)
	if err != nil {
		return block{}, err
	}
	if x.cache == nil {
		x.cache = map[int64][]byte{}
	}
	x.cache[at], x.cached = text, append(x.cached, at)
	return block{off, line, text}, nil
}

// lookup finds the blocks that may have one of the wishes. span: of the time that is asked for only.
func (x *run) lookup(h *hunt, span bool) error {
	slices.SortFunc(h.wishes, func(a, b wish) int { return cmp.Compare(a.print, b.print) })
	for _, s := range x.sources {
		for _, seg := range s.segments {
			hits, err := x.lookupIn(seg, h.wishes)
			if err != nil {
				return err
			}
			h.add(x, s, seg, hits, span)
		}
	}
	return nil
}

// add adds the hits of a segment.
func (h *hunt) add(x *run, s *source, seg *segment, hits []hit, span bool) {
	if span && x.plan.timed {
		hits = slices.DeleteFunc(hits, func(t hit) bool {
			b := &seg.blocks[t.block]
			return b.min == 0 || b.max < x.plan.since || b.min >= x.plan.until
		})
	}
	if len(hits) > 0 {
		slices.SortFunc(hits, func(a, b hit) int { return cmp.Or(cmp.Compare(a.block, b.block), cmp.Compare(a.wish, b.wish)) })
		h.spots = append(h.spots, spot{s, seg, hits})
	}
}

// all are hits in all blocks of a segment, each like this one.
func (s *segment) all(h hit) (hits []hit) {
	for n := range s.blocks {
		h.block = int32(n)
		hits = append(hits, h)
	}
	return hits
}

// lookupIn looks into one segment. One whose file cannot be read any more may have everything in every block.
func (x *run) lookupIn(seg *segment, wishes []wish) ([]hit, error) {
	if seg.entries != nil {
		return seg.lookup(wishes, nil, nil)
	}
	f, err := x.store.file(seg.name)
	if err == nil {
		var hits []hit
		hits, err = seg.lookup(wishes, f, &x.bucket)
		f.Close()
		if err == nil {
			return hits, nil
		}
	}
	if !errors.Is(err, os.ErrNotExist) {
		x.store.drop(seg.name, err)
	}
	return seg.all(hit{wish: allLines}), nil
}

// driver chooses the condition that occurs in the fewest blocks, and returns its bit and these.
func (x *run) driver() (bit uint64, best *hunt, err error) {
	least := 0
	for i := range x.plan.matchers {
		m := &x.plan.matchers[i]
		if m.wishes == nil {
			continue
		}
		h := &hunt{wishes: slices.Clone(m.wishes), fold: m.fold}
		if err := x.lookup(h, true); err != nil {
			return 0, nil, err
		}
		n := 0
		for i := range h.spots {
			n += h.spots[i].blocks()
		}
		if best == nil || n < least {
			least, bit, best = n, 2<<i, h
		}
	}
	if best != nil {
		return bit, best, nil
	}
	bit, best = x.passage()
	return bit, best, nil
}

// passage is for what the index does not know: all that lies in the time is gone through. Of a part of a reply only the lines that
// have it are taken apart.
func (x *run) passage() (bit uint64, h *hunt) {
	bit, h = 1, new(hunt)
	every := hit{wish: allLines}
	for i := range x.plan.matchers {
		if text := x.plan.matchers[i].rough; text != "" {
			bit, every.wish = 2<<i, 0
			h.wishes, h.fold = []wish{{text: string(lower(nil, []byte(text)))}}, true
			break
		}
		bit = 2
	}
	for _, s := range x.sources {
		for _, seg := range s.segments {
			h.add(x, s, seg, seg.all(every), true)
		}
	}
	return bit, h
}

// A group is the messages that some blocks have, as far as they fulfil the condition that the search goes by.
type group struct {
	begin, end int64 // positions between which these blocks are
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
	bit, hunted, err := x.driver()
	if err != nil {
		return err
	}
	g, most := newGroup(-1), firstSeeds
	err = x.each(hunted, func(s *source, b block, pick picker) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		b.lines(pick, s.number, x.parsers[s.number], &x.event, func(at place) {
			match := x.plan.match(&x.event)
			switch {
			case match&bit == 0:
			case len(x.event.id) > 0:
				g.seeds[string(x.event.id)] = true
			case match == x.plan.all:
				g.found = append(g.found, seen{at.pos, Found{Refusal: x.refusal(&x.event, at)}})
			}
		})
		// The report comes last: it reads other blocks, and they may take the room of this one.
		if len(g.seeds)+len(g.found) >= most {
			g.end = position(s.number, b.off+int64(len(b.text)))
			if err := x.report(ctx, g, bit); err != nil {
				return err
			}
			g, most = newGroup(g.end), min(moreSeeds*most, maxSeeds)
		}
		return nil
	})
	if err == nil {
		g.end = 1<<63 - 1
		err = x.report(ctx, g, bit)
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func newGroup(begin int64) *group { return &group{begin: begin, seeds: map[string]bool{}} }

// errEnough says that the caller has seen enough.
var errEnough = errors.New("enough")

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
		if err := x.lookup(h, false); err != nil {
			return nil, err
		}
		next := map[string]bool{}
		err := x.each(h, func(s *source, bl block, pick picker) error {
			bl.lines(pick, s.number, x.parsers[s.number], &x.event, func(at place) { x.collect(b, at, ids, names, next) })
			return ctx.Err()
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

// collect puts a line into the book if it is of one of the messages, or names one. What it names is looked up next.
func (x *run) collect(b *book, at place, ids, names, next map[string]bool) {
	e := &x.event
	if len(e.id) == 0 || !ids[string(e.id)] && !ids[string(e.other)] && (len(e.mid) == 0 || !names[string(e.mid)]) {
		return
	}
	b.add(e, at, x.plan.match(e))
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
