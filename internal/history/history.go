// Package history stores how the mail in the queue was distributed over domains and age. It takes
// a sample every minute and keeps it for 30 days, so that "posthaste qshape --at TIME" and the
// console can show the queue as it was at an earlier time.
//
// A Sample has the numbers that qshape prints: for each queue, the messages of each age by the
// recipients' domains and by the senders' domains. It has the same by the destinations that messages
// wait for, which new mail, mail on hold and deferred mail that is not in the queue manager's memory do
// not have, and by tenants and egress sources where there are some. It also has how much has come in and gone out
// since the start of the queue manager, from which [RatesBetween] makes rates. It comes from the queue manager, which counts
// in one pass over its memory (Take). One process appends samples (Writer). Any process that may
// read the files can read them at the same time (At, Between).
//
// # The files
//
// There is a file for each hour of UTC, named 2026112407.shape, and the file lock. A file begins
// with a line that says its version. Then come records: four octets of length, four of checksum
// (CRC-32C), both in little-endian order, and a sample, compressed by DEFLATE with the sample
// before it in the file as the dictionary. Samples resemble each other: one takes some hundred
// octets if little changes, and 23 kB if all tables are full and a tenth of all numbers change
// (BenchmarkDay); the tables of next hops, where they are full, come on top of that. To read a sample, the file of its hour is read from the beginning.
//
// # Bounds
//
// A sample has the MaxRows domains of each table with the most mail; the others are summed up.
// Before a new hour's file is begun, files older than Limits.Age are removed, and then the oldest
// files until all together are smaller than Limits.Octets. Within these bounds every sample is
// kept; none is thinned out. A sample larger than a megabyte is not stored.
//
// # What is promised
//
// Mail does not depend on the history. Each record is written with one system call and is not
// synced: after a power cut the last records may be missing. A reader stops at the first
// incomplete record, which may be one that is being written. The writer truncates a file there
// when it opens it. All files may be removed at any time.
//
// # Security
//
// The names of domains come from strangers: whoever shows them must make control characters
// visible. Lengths are checked against bounds before they are used. Only the mail system's user
// can read the files.
package history

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

const (
	// Buckets is how many columns of age a row has. The first is up to Tick, each other one up to
	// twice the one before; the last has no end. They are those of qshape without options.
	Buckets = 10
	// Tick is the age limit of the first column.
	Tick = 5 * time.Minute
	// MaxRows is how many domains of a table have a row of their own.
	MaxRows = 150
	// maxName bounds the octets of a name; a longer one is counted with the rest.
	maxName = 255
	// maxSample bounds the octets of a sample before it is compressed, and of its record.
	maxSample = 1 << 20
)

// Queues are those that are sampled, in the order of the tables.
var Queues = []string{"incoming", "active", "deferred", "hold"}

// Unread is the name of the row that has the messages whose envelopes the queue manager has not
// read since its start. They are counted, not their recipients.
const Unread = "(not read yet)"

// Counts are by age, the youngest first.
type Counts [Buckets]int64

// Sum is the sum of all columns.
func (c *Counts) Sum() (n int64) {
	for _, v := range c {
		n += v
	}
	return n
}

// Add adds what another row has.
func (c *Counts) Add(o *Counts) {
	for i, v := range o {
		c[i] += v
	}
}

// A Row is one domain, as the queue manager has it: in lower case, "" for the null sender, "@"
// for an address that ends there.
type Row struct {
	Domain string
	Counts Counts
}

// Domains says whether t is of recipients, by their domains.
func (t *Table) Domains() bool { return t.side() == byRecipient }

// A Table is one queue, from one side.
type Table struct {
	Queue   string
	Senders bool // messages by the sender's domain, not recipients by theirs
	Hops    bool // messages by the destination that they wait for, transport:nexthop; then not Senders
	Tenants bool // messages by their tenant, those that have one; then neither of the above
	Sources bool // messages by the egress source that they wait for, likewise
	// Campaigns: messages by their campaign, TENANT/CAMPAIGN, likewise. Where messages have tenants those are among them that the queue
	// manager has not read (Unread): of what campaign they are it does not know.
	Campaigns bool
	Rows      []Row
	Others    Counts // of the domains without a row
	Names     int    // how many those are
}

// A Sample is the queue at one moment.
type Sample struct {
	At     time.Time
	Tables []Table
	// What has come in and gone out since the start of the queue manager; without a Since it is not
	// known.
	Totals proto.Totals
}

// Rates are what came in and went out in a time, by the minute.
type Rates struct {
	In       float64 `json:"in" doc:"Messages that came into the queue"`
	Sent     float64 `json:"sent" doc:"Recipients that got their message"`
	Deferred float64 `json:"deferred" doc:"Attempts for a recipient that are to be repeated"`
	Bounced  float64 `json:"bounced" doc:"Recipients whose delivery failed for good"`
}

// RateTime is the least time that rates are of. What comes and goes within a moment says nothing: one message in a hundredth of a
// second would be six thousand by the minute.
const RateTime = 5 * time.Second

// RatesBetween are those between two samples, the earlier one first. ok is false where they are not
// known, or there is less than RateTime between them. A queue manager that was started in between counts since its start.
func RatesBetween(a, b *Sample) (r Rates, ok bool) {
	from, to := a.Totals, b.Totals
	begin := a.At
	if to.Since.After(a.At) {
		from, begin = proto.Totals{Since: to.Since}, to.Since
	}
	d := b.At.Sub(begin).Seconds()
	if from.Since.IsZero() || to.Since.IsZero() || d < RateTime.Seconds() {
		return r, false
	}
	rate := func(from, to int64) float64 { return float64(60*max(to-from, 0)) / d }
	return Rates{rate(from.In, to.In), rate(from.Sent, to.Sent), rate(from.Deferred, to.Deferred), rate(from.Bounced, to.Bounced)}, true
}

// Edges are the times at which one column begins and another ends, latest first.
func Edges(now time.Time) []time.Time {
	list := make([]time.Time, Buckets-1)
	for i := range list {
		list[i] = now.Add(-Tick << i)
	}
	return list
}

// Bucket is the column of an age, from 0.
func Bucket(age time.Duration) int {
	return min(bits.Len64(uint64(max(age, 0)/Tick)), Buckets-1)
}

// A Manager is a queue manager that can be asked: an ipc.Conn to one, or a way to that of another node.
type Manager interface {
	Call(ctx context.Context, req, reply ipc.Message) error
}

// Merge is what several nodes have of one queue that they share, each a part, as one sample. It has no totals: those of one
// node are from another time on than those of the next. There is at least one; At is that of the first.
func Merge(list []*Sample) *Sample {
	if len(list) == 1 {
		return list[0]
	}
	c := newCount(list[0].At)
	rest := make(map[tableKey]*Table)
	for _, s := range list {
		for i := range s.Tables {
			t := &s.Tables[i]
			k := tableKey{t.Queue, t.side()}
			if rest[k] == nil {
				rest[k] = new(Table)
			}
			rest[k].Others.Add(&t.Others)
			rest[k].Names += t.Names
			for j := range t.Rows {
				for age, n := range t.Rows[j].Counts {
					c.add(k, t.Rows[j].Domain, age, n)
				}
			}
		}
	}
	out := c.sample()
	for i := range out.Tables {
		t := &out.Tables[i]
		r := rest[tableKey{t.Queue, t.side()}]
		t.Others.Add(&r.Others)
		t.Names += r.Names
	}
	return out
}

// Take asks a queue manager for a sample. The queue is gone through once, in its memory.
func Take(ctx context.Context, conn Manager, now time.Time) (*Sample, error) {
	c := newCount(now)
	q := &proto.Shape{Queues: Queues, Split: true, Edges: Edges(now)}
	for {
		var reply proto.ShapeReply
		if err := conn.Call(ctx, q, &reply); err != nil {
			return nil, fmt.Errorf("ask the queue manager: %w", err)
		}
		for i := range reply.Rows {
			c.row(&reply.Rows[i])
		}
		for i := range reply.Unread {
			it := &reply.Unread[i]
			for _, side := range []byte{byRecipient, bySender} {
				c.add(tableKey{it.Queue, side}, Unread, Bucket(now.Sub(it.Arrival)), 1)
			}
		}
		if q.Cursor = reply.Next; q.Cursor == 0 {
			s := c.sample()
			s.Totals = reply.Totals
			return s, nil
		}
	}
}

// A tableKey names a table.
type tableKey struct {
	queue string
	side  byte
}

// The sides of a table, as they are stored.
const (
	byRecipient byte = iota
	bySender
	byHop
	byTenant
	bySource
	byCampaign
	sides
)

// side is that of a table.
func (t *Table) side() byte { return sideOf(t.Senders, t.Hops, t.Tenants, t.Sources, t.Campaigns) }

func sideOf(senders, hops, tenants, sources, campaigns bool) byte {
	switch {
	case campaigns:
		return byCampaign
	case sources:
		return bySource
	case tenants:
		return byTenant
	case hops:
		return byHop
	case senders:
		return bySender
	}
	return byRecipient
}

// tableOf is an empty table of a side.
func tableOf(queue string, side byte) Table {
	return Table{Queue: queue, Senders: side == bySender, Hops: side == byHop, Tenants: side == byTenant, Sources: side == bySource, Campaigns: side == byCampaign}
}

// A count is a sample under construction.
type count struct {
	now    time.Time
	tables map[tableKey]map[string]*Counts
}

func newCount(now time.Time) *count { return &count{now, make(map[tableKey]map[string]*Counts)} }

func (c *count) add(k tableKey, name string, bucket int, n int64) {
	t := c.tables[k]
	if t == nil {
		t = make(map[string]*Counts)
		c.tables[k] = t
	}
	r := t[name]
	if r == nil {
		r = new(Counts)
		t[name] = r
	}
	r[bucket] += n
}

func (c *count) row(r *proto.ShapeRow) {
	for i, n := range r.Counts[:min(len(r.Counts), Buckets)] {
		if n > 0 {
			c.add(tableKey{r.Queue, sideOf(r.Senders, r.Hops, r.Tenants, r.Sources, r.Campaigns)}, r.Domain, i, int64(n))
		}
	}
}

// sample has the largest rows of each table, by name.
func (c *count) sample() *Sample {
	s := &Sample{At: c.now}
	for _, queue := range Queues {
		// Their tenants are known, and campaigns are tenants'.
		if unread := c.tables[tableKey{queue, byRecipient}][Unread]; unread != nil && len(c.tables[tableKey{queue, byTenant}]) > 0 {
			for bucket, n := range unread {
				if n > 0 {
					c.add(tableKey{queue, byCampaign}, Unread, bucket, n)
				}
			}
		}
		for side := byRecipient; side < sides; side++ {
			if rows := c.tables[tableKey{queue, side}]; len(rows) > 0 {
				s.Tables = append(s.Tables, table(queue, side, rows))
			}
		}
	}
	return s
}

func table(queue string, side byte, rows map[string]*Counts) Table {
	t := tableOf(queue, side)
	for name, counts := range rows {
		if len(name) > maxName {
			t.Others.Add(counts)
			t.Names++
			continue
		}
		t.Rows = append(t.Rows, Row{name, *counts})
	}
	// What is not read yet has a row whatever it has.
	slices.SortFunc(t.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(btoi(b.Domain == Unread), btoi(a.Domain == Unread)), cmp.Compare(b.Counts.Sum(), a.Counts.Sum()), cmp.Compare(a.Domain, b.Domain))
	})
	for _, r := range t.Rows[min(len(t.Rows), MaxRows):] {
		t.Others.Add(&r.Counts)
		t.Names++
	}
	t.Rows = t.Rows[:min(len(t.Rows), MaxRows)]
	slices.SortFunc(t.Rows, func(a, b Row) int { return cmp.Compare(a.Domain, b.Domain) })
	return t
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// append encodes a sample.
func (s *Sample) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(s.At.UnixMicro()))
	b = binary.AppendUvarint(b, uint64(len(s.Tables)))
	for i := range s.Tables {
		t := &s.Tables[i]
		b = binary.AppendUvarint(b, uint64(len(t.Queue)))
		b = append(b, t.Queue...)
		b = append(b, t.side())
		b = binary.AppendUvarint(b, uint64(t.Names))
		b = t.Others.append(b)
		b = binary.AppendUvarint(b, uint64(len(t.Rows)))
		for j := range t.Rows {
			b = binary.AppendUvarint(b, uint64(len(t.Rows[j].Domain)))
			b = append(b, t.Rows[j].Domain...)
			b = t.Rows[j].Counts.append(b)
		}
	}
	if s.Totals.Since.IsZero() { // as in the samples of before there were totals
		return b
	}
	for _, n := range [...]int64{s.Totals.Since.UnixMicro(), s.Totals.In, s.Totals.Sent, s.Totals.Deferred, s.Totals.Bounced} {
		b = binary.AppendUvarint(b, uint64(max(n, 0)))
	}
	return b
}

// append encodes a row: a bit for each column that has something, then those.
func (c *Counts) append(b []byte) []byte {
	mask := uint64(0)
	for i, n := range c {
		if n != 0 {
			mask |= 1 << i
		}
	}
	b = binary.AppendUvarint(b, mask)
	for _, n := range c {
		if n != 0 {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return b
}

var errSample = errors.New("a sample cannot be read")

// A decoder reads a sample. After a fault it returns zeros.
type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) number(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit {
		d.failed, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) text() string {
	n := int(d.number(maxName))
	if n > len(d.b) {
		d.failed, d.b = true, nil
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *decoder) counts() (c Counts) {
	mask := d.number(1<<Buckets - 1)
	for i := range c {
		if mask&(1<<i) != 0 {
			c[i] = int64(d.number(1 << 50))
		}
	}
	return c
}

func decode(b []byte) (*Sample, error) {
	d := &decoder{b: b}
	s := &Sample{At: time.UnixMicro(int64(d.number(1 << 60)))}
	for n := d.number(uint64(int(sides) * len(Queues))); n > 0 && !d.failed; n-- {
		queue := d.text()
		t := tableOf(queue, byte(d.number(uint64(sides-1))))
		t.Names, t.Others = int(d.number(1<<50)), d.counts()
		for rows := d.number(MaxRows); rows > 0 && !d.failed; rows-- {
			t.Rows = append(t.Rows, Row{d.text(), d.counts()})
		}
		s.Tables = append(s.Tables, t)
	}
	if len(d.b) > 0 {
		t := &s.Totals
		t.Since = time.UnixMicro(int64(d.number(1 << 60)))
		for _, n := range [...]*int64{&t.In, &t.Sent, &t.Deferred, &t.Bounced} {
			*n = int64(d.number(1 << 60))
		}
	}
	if d.failed || len(d.b) > 0 {
		return nil, errSample
	}
	return s, nil
}
