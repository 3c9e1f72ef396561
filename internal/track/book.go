package track

import (
	"bytes"
	"cmp"
	"container/list"
	"slices"

	"posthaste/internal/logread"
)

// A record is a line of a message.
type record struct {
	place
	at  int64 // microseconds since 1970; 0: it has no time that can be read
	raw string
}

// A link is that one message came of another.
type link struct {
	how         relation
	parent, new string // queue IDs
	near        bool   // queuedAs: the next hop is on this machine
}

// An entry is what is known of one queue ID.
type entry struct {
	id       string
	records  []record
	mid      string
	midAt    int64  // position of the line that has it
	resent   bool   // it is that of Resent-Message-ID:
	matched  uint64 // what its lines fulfil of the query
	drive    int64  // the first position at which they fulfil the condition that the search goes by; -1: nowhere
	last     int64  // time of the last line
	local    bool   // it was brought in by a program of this machine
	handed   bool   // it was handed to a program of this machine, or to a server on it
	ended    bool   // it has left the queue
	requeued bool   // it was queued again
	printed  bool
	size     int
	element  *list.Element // where it is in the book's order of use
}

func (e *entry) first() int64 { return e.records[0].pos }

// maxSame bounds how many messages of one Message-ID are looked at for one that a program has brought back.
const maxSame = 64

// A book has messages, with their lines, and knows how they are connected.
type book struct {
	entries map[string]*entry
	links   map[string][]link   // by either queue ID
	mids    map[string][]string // queue IDs by Message-ID
	driver  uint64
	size    int
	order   *list.List // of entries, the one that was used last at the front
}

func newBook(driver uint64) *book {
	return &book{entries: map[string]*entry{}, links: map[string][]link{}, mids: map[string][]string{}, driver: driver, order: list.New()}
}

// overhead is what an entry, a line or a link takes beside its text, in octets, about.
const overhead = 160

// add takes a line of a message.
func (b *book) add(ev *event, at place, bits uint64) *entry {
	e := b.entries[string(ev.id)]
	if e == nil {
		e = &entry{id: string(ev.id), drive: -1}
		e.element = b.order.PushFront(e)
		b.entries[e.id] = e
		b.grow(e, 2*overhead)
	} else {
		b.order.MoveToFront(e.element)
	}
	r := record{at, ev.line.Time, string(ev.line.Raw)}
	i := len(e.records)
	for i > 0 && e.records[i-1].pos >= at.pos {
		i--
	}
	if i < len(e.records) && e.records[i].pos == at.pos {
		return e // it is there already
	}
	e.records = slices.Insert(e.records, i, r)
	b.grow(e, overhead+len(r.raw))
	e.last = max(e.last, r.at)
	e.matched |= bits
	if bits&b.driver != 0 && (e.drive < 0 || at.pos < e.drive) {
		e.drive = at.pos
	}
	b.state(e, ev, at.pos)
	return e
}

func (b *book) grow(e *entry, n int) {
	e.size += n
	b.size += n
}

// state takes from a line what connects a message with others, and whether it has ended.
func (b *book) state(e *entry, ev *event, pos int64) {
	switch ev.kind {
	case messageID:
		if e.takes(ev.resent, pos) {
			e.midAt, e.resent = pos, ev.resent
			b.identify(e, string(ev.mid))
		}
	case arrival:
		e.local = e.local || nearby(ev.client)
	case pickup:
		e.local = true
	case delivery:
		switch string(ev.line.Program) {
		case "pipe", "local", "virtual":
			e.handed = e.handed || string(ev.delivery.Status) == "sent" && ev.how != forward
		default:
			e.handed = e.handed || string(ev.delivery.Status) == "sent" && ev.near && ev.how != queuedAs
		}
	case removed:
		e.ended = true
	case requeued:
		e.ended, e.requeued = true, true
	case verdict:
		e.ended = e.ended || ends(ev.verdict)
	}
	if len(ev.other) == 0 || string(ev.other) == e.id {
		return
	}
	l := link{ev.how, e.id, string(ev.other), ev.near}
	if ev.otherIsOrigin {
		l.parent, l.new = l.new, l.parent
	}
	if slices.Contains(b.links[l.parent], l) {
		return
	}
	b.links[l.parent] = append(b.links[l.parent], l)
	b.links[l.new] = append(b.links[l.new], l)
	b.grow(e, 2*overhead)
}

// ends says whether a verdict is the last word on a message: it was refused or thrown away when all of it was there.
func ends(v logread.Verdict) bool {
	if string(v.Stage) != "END-OF-MESSAGE" && bytes.IndexByte(v.Stage, ' ') < 0 { // "header LINE"
		return false
	}
	switch string(v.Action) {
	case "reject", "milter-reject", "discard", "milter-discard":
		return true
	}
	return false
}

// takes says whether the Message-ID of a line counts: the first one of the log that is not of Resent-Message-ID:, or else the first.
// A message has one; what a stranger gets into the log later must not take away what was connected by it. With the index, lines
// come in another order than they stand in the log.
func (e *entry) takes(resent bool, pos int64) bool {
	if e.mid == "" || resent != e.resent {
		return e.mid == "" || e.resent
	}
	return pos < e.midAt
}

// identify notes the Message-ID of a message.
func (b *book) identify(e *entry, mid string) {
	if e.mid == mid {
		return
	}
	b.unidentify(e)
	e.mid = mid
	if list := b.mids[mid]; len(list) <= maxSame {
		b.mids[mid] = append(list, e.id)
		b.grow(e, overhead)
	}
}

func (b *book) unidentify(e *entry) {
	if e.mid == "" {
		return
	}
	if b.mids[e.mid] = slices.DeleteFunc(b.mids[e.mid], func(id string) bool { return id == e.id }); len(b.mids[e.mid]) == 0 {
		delete(b.mids, e.mid)
	}
}

// forget drops a message.
func (b *book) forget(e *entry) {
	b.unidentify(e)
	for _, l := range b.links[e.id] {
		other := l.parent
		if other == e.id {
			other = l.new
		}
		if b.entries[other] == nil {
			delete(b.links, other)
		}
	}
	delete(b.links, e.id)
	delete(b.entries, e.id)
	b.order.Remove(e.element)
	b.size -= e.size
}

// holds says whether two messages that a link names are really connected. What a next hop says, or who may name the client
// of a message, counts only where the Message-ID does not tell them apart.
func (b *book) holds(l link) bool {
	p, n := b.entries[l.parent], b.entries[l.new]
	if p == nil || n == nil {
		return false
	}
	switch l.how {
	case filter:
		return p.mid == "" || n.mid == "" || p.mid == n.mid
	case queuedAs:
		return l.near || p.mid != "" && p.mid == n.mid
	}
	return true
}

// came is what a message came of, as far as the book has it: the message, and how. nil: it came from outside.
func (b *book) came(e *entry) (parent *entry, how relation) {
	for _, l := range b.links[e.id] {
		if l.new != e.id || !b.holds(l) {
			continue
		}
		if p := b.entries[l.parent]; parent == nil || l.how < how || l.how == how && p.first() < parent.first() {
			parent, how = p, l.how
		}
	}
	if parent != nil {
		return parent, how
	}
	same := b.mids[e.mid]
	if e.mid == "" || !e.local || len(same) > maxSame {
		return nil, 0
	}
	for _, id := range same { // the last one that was handed on before this one came
		p := b.entries[id]
		if p != e && p.handed && p.first() < e.first() && (parent == nil || p.first() > parent.first()) {
			parent = p
		}
	}
	if parent == nil {
		return nil, 0
	}
	return parent, again
}

// family is a message with all that it came of and that came of it, in the order of their first lines.
func (b *book) family(e *entry) []*entry {
	seen := map[*entry]bool{e: true}
	list := []*entry{e}
	for i := 0; i < len(list); i++ {
		m := list[i]
		visit := func(o *entry) {
			if o != nil && !seen[o] {
				seen[o] = true
				list = append(list, o)
			}
		}
		for _, l := range b.links[m.id] {
			if b.holds(l) {
				visit(b.entries[l.parent])
				visit(b.entries[l.new])
			}
		}
		if m.mid == "" || len(b.mids[m.mid]) > maxSame {
			continue
		}
		if p, _ := b.came(m); p != nil {
			visit(p)
		}
		for _, id := range b.mids[m.mid] {
			o := b.entries[id]
			if p, how := b.came(o); p == m && how == again {
				visit(o)
			}
		}
	}
	slices.SortFunc(list, func(a, b *entry) int { return cmp.Compare(a.first(), b.first()) })
	return list
}

// alone says that a message is surely connected with no other that the book has.
func (b *book) alone(e *entry) bool {
	if len(b.mids[e.mid]) > 1 {
		return false
	}
	for _, l := range b.links[e.id] {
		if other := l.parent; other != e.id && b.entries[other] != nil || l.new != e.id && b.entries[l.new] != nil {
			return false
		}
	}
	return true
}

// matched is what the messages of a family fulfil of a query, and where they first fulfil the condition that the search
// goes by; -1: nowhere.
func matched(family []*entry) (bits uint64, drive int64) {
	drive = -1
	for _, e := range family {
		bits |= e.matched
		if e.drive >= 0 && (drive < 0 || e.drive < drive) {
			drive = e.drive
		}
	}
	return bits, drive
}
