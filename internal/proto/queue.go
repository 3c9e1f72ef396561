package proto

import (
	"cmp"
	"encoding/binary"
	"errors"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/queue"
)

// List asks the queue manager for a page of the queue: at most N messages from
// Cursor on. Cursor 0 starts. With ID only that message is listed.
type List struct {
	Cursor int
	N      int
	ID     mail.QueueID
	// Brief leaves recipients and sender out: sizes and times only, and where
	// the message lies, for who reads the rest without help.
	Brief bool
	// Part, when it is not 0, is another node's part of a queue that nodes share, which is listed as its records have
	// it: see Nodes.
	Part int
	// Aside, with Part, lists what was set aside as corrupt, and nothing else.
	Aside bool
}

func (*List) Kind() uint16 { return KindList }
func (m *List) Append(b []byte) []byte {
	b = pack.Int(b, 'c', m.Cursor)
	b = pack.Int(b, 'n', m.N)
	b = pack.String(b, 'q', m.ID)
	b = pack.Bool(b, 'b', m.Brief)
	return pack.Bool(pack.Int(b, 'p', m.Part), 'a', m.Aside)
}
func (m *List) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'c':
			m.Cursor = int(r.Int())
		case 'n':
			m.N = int(r.Int())
		case 'q':
			m.ID = mail.QueueID(r.String())
		case 'b':
			m.Brief = r.Bool()
		case 'p':
			m.Part = int(r.Int())
		case 'a':
			m.Aside = r.Bool()
		}
	}
	return r.Err()
}

// An Item is one message of a listing.
type Item struct {
	ID           mail.QueueID
	Queue        string // active, incoming, deferred, hold
	Arrival      time.Time
	Next         time.Time // deferred: due then
	Size         int64
	Attempts     int
	ForcedExpire bool
	Sender       string
	Client       string     // name of the client that the message came from; empty: it was submitted here
	ClientAddr   string     // its address
	SASLUser     string     // as whom it logged in; may be empty
	Tenant       string     // whose mail it is; may be empty
	Campaign     string     // of which mailing of the tenant; may be empty
	Recipients   []ItemRcpt // those with something left to do
	Ref          queue.Ref  // Brief: where the message lies
	Done         []byte     // Brief: bitmap of the recipients left out, as in queue.Entry
	// Node has the message, of those that share the queue; empty: the queue is not shared, or nobody has it. Down says that
	// this node does not say that it lives, or that nobody has it.
	Node string
	Down bool
}

// An ItemRcpt is one recipient of a listing, with the last reason why it has
// not been delivered, if there was an attempt.
type ItemRcpt struct {
	Address, Orig, Reason string
	Status                dsn.Status // of that attempt
	// Suspended is the target, of package selection, of the suspension for which it is not tried; empty: it is not
	// suspended, or that cannot be told without asking where its mail goes.
	Suspended string
	// Limited is the target of the limit that an operator has set for the destination that it goes to; empty: there
	// is none, or that cannot be told.
	Limited string
	// Diverted is the target of the diversion of its mail to another next hop; empty likewise.
	Diverted string
	Waits    string // what it waits for, where that is not Reason
}

// Why is what the recipient waits for: a suspension, or else what the last attempt came to.
func (r *ItemRcpt) Why() string { return cmp.Or(r.Waits, r.Reason) }

// Size is about how many octets the recipient has in a reply.
func (r *ItemRcpt) Size() int {
	return len(r.Address) + len(r.Orig) + len(r.Reason) + len(r.Suspended) + len(r.Limited) + len(r.Diverted) + len(r.Waits) + 16
}

// Describe fills in what the envelope says.
func (it *Item) Describe(env *mail.Envelope) {
	it.Sender, it.Arrival = env.Sender, env.Arrival
	if env.Client.Addr != "" {
		it.Client, it.ClientAddr = env.Client.Name, env.Client.Addr
	}
	it.SASLUser, it.Tenant, it.Campaign = env.SASL.Username, env.Tenant, env.Campaign
}

// ListReply is a page. Next is the cursor to go on with, 0 at the end.
type ListReply struct {
	Items []Item
	Next  int
}

func (*ListReply) Kind() uint16 { return KindListReply }
func (m *ListReply) Append(b []byte) []byte {
	for i := range m.Items {
		b = pack.Nested(b, 'i', m.Items[i].append)
	}
	return pack.Int(b, 'n', m.Next)
}
func (m *ListReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'i':
			var it Item
			if err := it.decode(r.Bytes()); err != nil {
				return err
			}
			m.Items = append(m.Items, it)
		case 'n':
			m.Next = int(r.Int())
		}
	}
	return r.Err()
}

func (it *Item) append(b []byte) []byte {
	b = pack.String(b, 'q', it.ID)
	b = pack.String(b, 'Q', it.Queue)
	b = mail.AppendTime(b, 'a', it.Arrival)
	b = mail.AppendTime(b, 'n', it.Next)
	b = pack.Int(b, 's', it.Size)
	b = pack.Int(b, 't', it.Attempts)
	b = pack.Bool(b, 'x', it.ForcedExpire)
	b = pack.Bytes(b, 'S', it.Sender)
	b = pack.String(b, 'c', it.Client)
	b = pack.String(b, 'A', it.ClientAddr)
	b = pack.String(b, 'u', it.SASLUser)
	b = pack.String(b, 'T', it.Tenant)
	b = pack.String(b, 'C', it.Campaign)
	for _, rc := range it.Recipients {
		b = pack.Nested(b, 'R', func(b []byte) []byte {
			b = pack.Bytes(b, 'R', rc.Address)
			b = pack.String(b, 'O', rc.Orig)
			b = pack.String(b, 'r', rc.Reason)
			b = pack.String(b, 'p', rc.Suspended)
			b = pack.String(b, 'l', rc.Limited)
			b = pack.String(b, 'd', rc.Diverted)
			b = pack.String(b, 'w', rc.Waits)
			if rc.Status.IsZero() {
				return b
			}
			return pack.String(b, 's', rc.Status.String())
		})
	}
	if !it.Ref.IsZero() {
		b = it.Ref.Append(b, 'l')
	}
	b = pack.String(b, 'N', it.Node)
	b = pack.Bool(b, 'D', it.Down)
	return pack.String(b, 'd', it.Done)
}

func (it *Item) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			it.ID = mail.QueueID(r.String())
		case 'Q':
			it.Queue = r.String()
		case 'a':
			it.Arrival = mail.ReadTime(&r)
		case 'n':
			it.Next = mail.ReadTime(&r)
		case 's':
			it.Size = r.Int()
		case 't':
			it.Attempts = int(r.Int())
		case 'x':
			it.ForcedExpire = r.Bool()
		case 'S':
			it.Sender = r.String()
		case 'c':
			it.Client = r.String()
		case 'A':
			it.ClientAddr = r.String()
		case 'u':
			it.SASLUser = r.String()
		case 'T':
			it.Tenant = r.String()
		case 'C':
			it.Campaign = r.String()
		case 'R':
			var rc ItemRcpt
			if err := rc.decode(r.Bytes()); err != nil {
				return err
			}
			it.Recipients = append(it.Recipients, rc)
		case 'l':
			if err := it.Ref.Decode(r.Bytes()); err != nil {
				return err
			}
		case 'N':
			it.Node = r.String()
		case 'D':
			it.Down = r.Bool()
		case 'd':
			it.Done = append([]byte(nil), r.Bytes()...)
		}
	}
	return r.Err()
}

// Verb is what a Command does to the queue.
type Verb uint8

const (
	VerbFlush   Verb = iota + 1 // try again now
	VerbHold                    // put on hold
	VerbRelease                 // release from hold
	VerbDelete                  // remove without a word to anybody
	VerbRequeue                 // through cleanup again, under a new ID
	VerbExpire                  // return to the sender at the next attempt
)

// Command is an operator's order. One of All, Queue, Site, ID says to what;
// Queue along with All or ID: only if it is there.
type Command struct {
	Verb  Verb
	All   bool
	Queue string
	Site  string
	ID    mail.QueueID
	Now   bool // VerbExpire: release from hold and return at once
}

func (*Command) Kind() uint16 { return KindCommand }
func (m *Command) Append(b []byte) []byte {
	b = pack.Uint(b, 'v', m.Verb)
	b = pack.Bool(b, 'a', m.All)
	b = pack.String(b, 'Q', m.Queue)
	b = pack.String(b, 's', m.Site)
	b = pack.String(b, 'q', m.ID)
	return pack.Bool(b, 'n', m.Now)
}
func (m *Command) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'v':
			m.Verb = Verb(r.Uint())
		case 'a':
			m.All = r.Bool()
		case 'Q':
			m.Queue = r.String()
		case 's':
			m.Site = r.String()
		case 'q':
			m.ID = mail.QueueID(r.String())
		case 'n':
			m.Now = r.Bool()
		}
	}
	return r.Err()
}

// CommandReply says which messages the command was carried out on.
type CommandReply struct {
	IDs    []mail.QueueID
	Denied string // why not, for the operator: not eligible, not permitted
	Unread        // what of the queue was not read yet
}

// Unread is what becomes of a request for mail that the node has taken over and not read yet, for the operator. Empty: there is none that is
// meant.
type Unread struct {
	Ordered string // what is carried out when it has been read
	Omitted string // why nothing is
}

func (m *Unread) append(b []byte) []byte {
	return pack.String(pack.String(b, 'O', m.Ordered), 'u', m.Omitted)
}

func (m *Unread) decode(r *pack.Reader) {
	switch r.Tag() {
	case 'O':
		m.Ordered = r.String()
	case 'u':
		m.Omitted = r.String()
	}
}

func (*CommandReply) Kind() uint16 { return KindCommandReply }
func (m *CommandReply) Append(b []byte) []byte {
	for _, id := range m.IDs {
		b = pack.String(b, 'q', id)
	}
	return m.Unread.append(pack.String(b, 'd', m.Denied))
}
func (m *CommandReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			m.IDs = append(m.IDs, mail.QueueID(r.String()))
		case 'd':
			m.Denied = r.String()
		default:
			m.Unread.decode(&r)
		}
	}
	return r.Err()
}

// Explain asks why a message has not gone yet, or, without an ID, how things are with a destination.
type Explain struct {
	ID          mail.QueueID
	Destination string // as package selection has it
	Course      bool   // how it has fared is asked for, too
}

func (*Explain) Kind() uint16 { return KindExplain }
func (m *Explain) Append(b []byte) []byte {
	return pack.Bool(pack.String(pack.String(b, 'q', m.ID), 'd', m.Destination), 'c', m.Course)
}
func (m *Explain) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			m.ID = mail.QueueID(r.String())
		case 'd':
			m.Destination = r.String()
		case 'c':
			m.Course = r.Bool()
		}
	}
	return r.Err()
}

// Shape asks how the mail in some queues is spread over domains and over
// time, from Cursor on; Cursor 0 starts. Recipients with something still to do
// are counted by their domains, or with Senders messages by their sender's.
type Shape struct {
	Cursor  int
	Queues  []string
	Senders bool
	// Split counts from all sides, and each queue for itself: rows say which they are of. Messages that wait for no
	// destination are not counted by next hop, nor those by tenant, campaign or source that have none.
	Split bool
	Edges []time.Time // latest first: a message that came at Edges[i] or before is in column i+1 or later
}

func (*Shape) Kind() uint16 { return KindShape }
func (m *Shape) Append(b []byte) []byte {
	b = pack.Int(b, 'c', m.Cursor)
	for _, q := range m.Queues {
		b = pack.Bytes(b, 'Q', q)
	}
	b = pack.Bool(b, 's', m.Senders)
	b = pack.Bool(b, 'p', m.Split)
	for _, t := range m.Edges {
		b = mail.AppendTime(b, 'e', t)
	}
	return b
}
func (m *Shape) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'c':
			m.Cursor = int(r.Int())
		case 'Q':
			m.Queues = append(m.Queues, r.String())
		case 's':
			m.Senders = r.Bool()
		case 'p':
			m.Split = r.Bool()
		case 'e':
			m.Edges = append(m.Edges, mail.ReadTime(&r))
		}
	}
	return r.Err()
}

// A ShapeRow is what was counted for one domain: what is behind an address's
// last @, or all of it, in lower case; "" for the null sender, "@" for an
// address that ends there.
type ShapeRow struct {
	Domain  string
	Counts  []int  // by column, one more than there are edges
	Queue   string // with Split
	Senders bool   // with Split: messages by the sender's domain
	Hops    bool   // with Split: messages by transport:nexthop, and Domain is that
	Tenants bool   // with Split: messages by their tenant, and Domain is that
	Sources bool   // with Split: messages by the egress source that they wait for, and Domain is that
	// Campaigns, with Split: messages by their campaign, and Domain is TENANT/CAMPAIGN. Of messages that have not been read it is not known.
	Campaigns bool
}

// ShapeReply is a part of the answer. Next is the cursor to go on with, 0 at
// the end. A domain may have several rows. Unread are messages, in one of the
// queues asked for, that the queue manager has not read itself: as in a brief
// listing.
type ShapeReply struct {
	Rows   []ShapeRow
	Unread []Item
	Totals Totals // with Split, in the last answer
	Next   int
}

func (*ShapeReply) Kind() uint16 { return KindShapeReply }
func (m *ShapeReply) Append(b []byte) []byte {
	for i := range m.Rows {
		b = pack.Nested(b, 'r', m.Rows[i].append)
	}
	for i := range m.Unread {
		b = pack.Nested(b, 'u', m.Unread[i].append)
	}
	if m.Totals != (Totals{}) {
		b = pack.Nested(b, 't', m.Totals.append)
	}
	return pack.Int(b, 'n', m.Next)
}
func (m *ShapeReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'r':
			var row ShapeRow
			if err := row.decode(r.Bytes()); err != nil {
				return err
			}
			m.Rows = append(m.Rows, row)
		case 'u':
			var it Item
			if err := it.decode(r.Bytes()); err != nil {
				return err
			}
			m.Unread = append(m.Unread, it)
		case 't':
			if err := m.Totals.decode(r.Bytes()); err != nil {
				return err
			}
		case 'n':
			m.Next = int(r.Int())
		}
	}
	return r.Err()
}

func (row *ShapeRow) append(b []byte) []byte {
	b = pack.Bytes(b, 'd', row.Domain)
	b = pack.String(b, 'q', row.Queue)
	b = pack.Bool(b, 's', row.Senders)
	b = pack.Bool(b, 'h', row.Hops)
	b = pack.Bool(b, 't', row.Tenants)
	b = pack.Bool(b, 'o', row.Sources)
	b = pack.Bool(b, 'g', row.Campaigns)
	return pack.Nested(b, 'c', func(b []byte) []byte {
		for _, n := range row.Counts {
			b = binary.AppendUvarint(b, uint64(n))
		}
		return b
	})
}

var errCounts = errors.New("proto: counts cannot be read")

func (row *ShapeRow) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 'd':
			row.Domain = r.String()
		case 'q':
			row.Queue = r.String()
		case 's':
			row.Senders = r.Bool()
		case 'h':
			row.Hops = r.Bool()
		case 't':
			row.Tenants = r.Bool()
		case 'o':
			row.Sources = r.Bool()
		case 'g':
			row.Campaigns = r.Bool()
		case 'c':
			for list := r.Bytes(); len(list) > 0; {
				v, n := binary.Uvarint(list)
				if n <= 0 {
					return errCounts
				}
				row.Counts = append(row.Counts, int(v))
				list = list[n:]
			}
		}
	}
	return r.Err()
}

func (rc *ItemRcpt) decode(field []byte) error {
	f := pack.NewReader(field)
	for f.Next() {
		switch f.Tag() {
		case 'R':
			rc.Address = f.String()
		case 'O':
			rc.Orig = f.String()
		case 'r':
			rc.Reason = f.String()
		case 'p':
			rc.Suspended = f.String()
		case 'l':
			rc.Limited = f.String()
		case 'd':
			rc.Diverted = f.String()
		case 'w':
			rc.Waits = f.String()
		case 's':
			rc.Status, _ = dsn.ParseStatus(f.String())
		}
	}
	return f.Err()
}
