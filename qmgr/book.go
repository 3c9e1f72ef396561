// The book: what the shell keeps of each message that is in memory and not worked on. It
// is built for a million messages: fixed-size slips in chunks, without pointers for the
// garbage collector to follow.

package qmgr

import (
	"encoding/binary"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// A slip is what the shell keeps of a message that is not worked on: 56 octets
// without a pointer, so that a million of them cost the garbage collector
// nothing. With the number and the time its queue ID can be made again.
type slip struct {
	// The message's number; 0: the slip is free.
	num sched.MsgID
	// When it was queued, in microseconds. In a free slip: the next free one.
	created int64
	// Where the record lies, a queue.Ref taken apart.
	segno uint64

	file, offset, length uint32
	nrcpt                uint32

	// Bitmap of done recipients when there are at most 32 of them; otherwise it is in
	// book.more.
	done uint32
	// Domains of the sender and of all pending recipients. sender 0: neither is known
	// yet. domain 0 with a sender: there are several, or none, see book.more.
	sender nameID
	domain nameID // of all pending recipients; 0 with slipMore: see there
	flags  uint8
	spool  uint8 // of the queue.Ref, too
}

const (
	slipNull uint8 = 1 << iota // the null sender
	slipMore                   // there is something in book.more
	slipLost                   // its envelope could not be read: not asked for again
	slipOrig                   // a recipient's address was in another domain before aliases
)

// more is what does not go into a slip.
type more struct {
	done    []byte // with more than 32 recipients: bitmap
	domains string // of pending recipients, of several domains: varints, number and count in turn
}

// slipChunk is the number of slips that are allocated together. Chunks do not move.
const slipChunk = 4096

// A book keeps the messages that are not worked on. It belongs to the loop.
type book struct {
	chunks []*[slipChunk]slip
	free   int32 // chain of free slips through created
	// Slips ever given out. Slip 0 is none, so that 0 can mean "not there" in the index.
	used  int32
	index *sched.Index
	// Few messages need it.
	more map[sched.MsgID]more
	// Campaigns of messages that were read and have one, as TENANT/CAMPAIGN; nil: none has.
	campaigns map[sched.MsgID]nameID
	// Domains, counted by the slips that name them.
	names   names
	unknown int      // slips without domains that are worth reading
	sweeps  []*sweep // those under way
}

func newBook() *book {
	b := &book{used: 1, more: make(map[sched.MsgID]more), names: newNames()}
	b.index = sched.NewIndex(func(i int32) sched.MsgID { return b.at(i).num })
	return b
}

// at is slip i, which must exist.
func (b *book) at(i int32) *slip { return &b.chunks[i/slipChunk][i%slipChunk] }

// find is the slip of a message; nil when there is none. It is valid until drop.
func (b *book) find(num sched.MsgID) *slip {
	if i := b.index.Find(num); i != 0 {
		return b.at(i)
	}
	return nil
}

// add makes a slip for a message that has none. Its domains are not known: the survey
// reads them, or they are never needed.
func (b *book) add(num sched.MsgID, created time.Time, ref queue.Ref, nrcpt int, null bool, done []byte) *slip {
	i := b.free
	if i != 0 {
		b.free = int32(b.at(i).created)
	} else {
		i = b.used
		b.used++
		if int(i/slipChunk) >= len(b.chunks) {
			b.chunks = append(b.chunks, new([slipChunk]slip))
		}
	}
	p := b.at(i)
	*p = slip{num: num, created: created.UnixMicro(), nrcpt: uint32(nrcpt)}
	p.setRef(ref)
	if null {
		p.flags |= slipNull
	}
	b.setDone(p, done)
	b.index.Add(num, i)
	b.unknown++
	b.moved(num, i, false)
	return p
}

// drop forgets a message, which need not be in the book.
func (b *book) drop(num sched.MsgID) {
	i := b.index.Find(num)
	if i == 0 {
		return
	}
	p := b.at(i)
	b.moved(num, i, true)
	b.forgetDomains(p)
	if p.flags&slipLost == 0 {
		b.unknown--
	}
	delete(b.more, num)
	b.setCampaign(num, "")
	b.index.Remove(num)
	*p = slip{created: int64(b.free)}
	b.free = i
}

// forgetDomains gives up what is known of p's domains, since some of its recipients are
// done now. They are read again when somebody wants to know.
func (b *book) forgetDomains(p *slip) {
	if p.sender == 0 {
		return
	}
	b.names.drop(p.sender)
	b.names.drop(p.domain)
	if m := b.more[p.num]; m.domains != "" {
		m.each(func(id nameID, _ int) { b.names.drop(id) })
		m.domains = ""
		b.setMore(p, m)
	}
	p.sender, p.domain = 0, 0
	b.unknown++
}

// setDomains notes for whom a message is, so that it can be counted without reading it.
// domains has the number of pending recipients in each.
func (b *book) setDomains(p *slip, sender string, domains map[string]int) {
	b.forgetDomains(p)
	p.sender = b.names.use(domainOf(sender))
	if p.flags&slipLost == 0 {
		b.unknown--
	}
	p.flags &^= slipLost
	if len(domains) == 1 {
		for d := range domains {
			p.domain = b.names.use(d)
		}
		return
	}
	var list []byte
	for d, n := range domains {
		list = binary.AppendUvarint(list, uint64(b.names.use(d)))
		list = binary.AppendUvarint(list, uint64(n))
	}
	m := b.more[p.num]
	m.domains = string(list)
	b.setMore(p, m)
}

// setAliased notes, with a message's domains, whether a recipient's address was in another one before aliases.
func (b *book) setAliased(p *slip, aliased bool) {
	if p.flags &^= slipOrig; aliased {
		p.flags |= slipOrig
	}
}

// setCampaign notes of which campaign a message in the book is; "": of none. What a message is of does not change, and most
// are of none: those cost nothing.
func (b *book) setCampaign(num sched.MsgID, campaign string) {
	if id := b.campaigns[num]; id != 0 {
		b.names.drop(id)
		delete(b.campaigns, num)
	}
	if campaign == "" {
		return
	}
	if b.campaigns == nil {
		b.campaigns = make(map[sched.MsgID]nameID)
	}
	b.campaigns[num] = b.names.use(campaign)
}

// campaign is that of a message in the book, as far as it was read.
func (b *book) campaign(num sched.MsgID) string { return b.names.list[b.campaigns[num]].text }

// setLost notes that a message's envelope cannot be read, so that the survey does not try
// it again and again.
func (b *book) setLost(p *slip) {
	if p.sender == 0 && p.flags&slipLost == 0 {
		p.flags |= slipLost
		b.unknown--
	}
}

// setMore keeps m for p, or nothing when there is nothing in it.
func (b *book) setMore(p *slip, m more) {
	if m.done == nil && m.domains == "" {
		delete(b.more, p.num)
		p.flags &^= slipMore
		return
	}
	b.more[p.num] = m
	p.flags |= slipMore
}

// each calls f for every domain and its count.
func (m *more) each(f func(id nameID, n int)) {
	for list := []byte(m.domains); len(list) > 0; {
		id, n := binary.Uvarint(list)
		count, k := binary.Uvarint(list[n:])
		f(nameID(id), int(count))
		list = list[n+k:]
	}
}

// eachDomain calls f for every domain of p's pending recipients and their
// number; pending is the number of all.
func (b *book) eachDomain(p *slip, pending int, f func(id nameID, n int)) {
	if p.domain != 0 {
		f(p.domain, pending)
	} else if m, ok := b.more[p.num]; ok {
		m.each(f)
	}
}

// setDone keeps the bitmap of done recipients. A longer one is kept as it is: the caller
// must not change it afterwards.
func (b *book) setDone(p *slip, done []byte) {
	if p.nrcpt <= 32 {
		p.done = 0
		for i, v := range done[:min(len(done), 4)] {
			p.done |= uint32(v) << (8 * i)
		}
		return
	}
	m := b.more[p.num]
	m.done = done
	b.setMore(p, m)
}

// doneOf is the bitmap in the form of queue.Entry. It must not be changed.
func (b *book) doneOf(p *slip) []byte {
	if p.nrcpt > 32 {
		return b.more[p.num].done
	}
	if p.done == 0 {
		return nil
	}
	return binary.LittleEndian.AppendUint32(nil, p.done)[:(p.nrcpt+7)/8]
}

// id is the queue ID, which is made of the time of arrival and the number.
func (p *slip) id() mail.QueueID {
	return mail.MakeQueueID(time.UnixMicro(p.created), uint64(p.num))
}

func (p *slip) ref() queue.Ref {
	return queue.Ref{File: p.file, Spool: p.spool, Segno: p.segno, Offset: p.offset, Length: p.length}
}

func (p *slip) setRef(r queue.Ref) {
	p.file, p.spool, p.segno, p.offset, p.length = r.File, r.Spool, r.Segno, r.Offset, r.Length
}

// message is p as the loop works with it.
func (b *book) message(p *slip) *message {
	return &message{id: p.id(), num: p.num, ref: p.ref(), nrcpt: int32(p.nrcpt), null: p.flags&slipNull != 0, done: append([]byte(nil), b.doneOf(p)...)}
}
