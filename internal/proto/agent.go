package proto

import (
	"slices"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/queue"
)

// Deliver asks an agent to bring one message to some of its recipients, all
// with the same nexthop. The reply is a DeliverReply, when all are done.
type Deliver struct {
	Nexthop   mail.Nexthop
	Envelope  mail.Envelope // Recipients: those of this request, addresses as resolved
	Index     []int         // their indexes in the message's full envelope
	Ref       queue.Ref     // where the message lies
	Active    time.Time     // when the queue manager took it up: delay b begins
	CacheLoad bool          // look for a kept session first
	CacheKeep bool          // keep the session for the next request
	// Session names the session that this delivery is made over and leaves
	// open, as long as the queue manager lives, in a Deliver that takes it up
	// again and in a Dismiss; 0: none.
	Session uint64
	Keep    time.Duration // how long to keep it; 0: as the agent's own settings say
	// Passed says that another agent orders this, for a part of its own
	// delivery, and not the queue manager: what comes of it is that agent's to
	// judge, and is in no Inventory.
	Passed bool
	// Exact says that it is recorded with cleanup, by Hand, that the delivery is about to be
	// made before it is (spool_exact_doubt).
	Exact bool
	// Most is how many messages may be sent over one connection, this one included; 0: as
	// the agent's own settings say.
	Most int
	// Source names what connections come from, and Spec says what belongs to it, as
	// egress.Parse reads it; empty: as the agent's own settings say.
	Source, Spec string
	// Attempt is the number of the attempt, from 1 on, for events; 0: nobody is told of them.
	Attempt int
	// Advice is what the agent is to do otherwise than its settings say, as shaping.ParseAdvice
	// reads it; empty: nothing.
	Advice string
	// Provider is who is behind the destination, else the site, for those who count; empty: neither is known.
	Provider string
	stored   []byte // see Encoded
}

// Encoded says what Envelope.Append would append, where the sender has it, so that the envelope is not encoded again. It
// is the caller's, who does not write to it until m is sent; empty: the envelope is encoded.
func (m *Deliver) Encoded(envelope []byte) { m.stored = envelope }

// maxKeep bounds Deliver.Keep, so that it cannot overflow.
const maxKeep = 24 * time.Hour

// maxMost does the same for Deliver.Most.
const maxMost = 1_000_000

func (*Deliver) Kind() uint16 { return KindDeliver }

func (m *Deliver) Append(b []byte) []byte {
	b = pack.String(b, 'h', m.Nexthop)
	if len(m.stored) > 0 {
		b = pack.Bytes(b, 'e', m.stored)
	} else {
		b = pack.Nested(b, 'e', m.Envelope.Append)
	}
	b = mail.AppendRecipients(b, m.Envelope.Recipients)
	for _, i := range m.Index {
		b = pack.Uint(b, 'i', uint64(i)+1)
	}
	b = m.Ref.Append(b, 'r')
	b = mail.AppendTime(b, 'a', m.Active)
	b = pack.Bool(b, 'l', m.CacheLoad)
	b = pack.Bool(b, 'k', m.CacheKeep)
	b = pack.Uint(b, 's', m.Session)
	b = pack.Uint(b, 't', uint64(m.Keep))
	b = pack.Bool(b, 'p', m.Passed)
	b = pack.Bool(b, 'x', m.Exact)
	b = pack.Uint(b, 'm', uint64(m.Most))
	b = pack.String(pack.String(b, 'f', m.Source), 'g', m.Spec)
	return pack.String(pack.String(pack.Uint(b, 'n', uint64(m.Attempt)), 'v', m.Advice), 'o', m.Provider)
}

func (m *Deliver) Decode(b []byte) error {
	r := pack.NewReader(b)
	n := 0
	for c := r; c.Next(); {
		if c.Tag() == 'R' {
			n++
		}
	}
	m.Envelope.Recipients, m.Index = slices.Grow(m.Envelope.Recipients, n), slices.Grow(m.Index, n)
	for r.Next() {
		switch r.Tag() {
		case 'h':
			m.Nexthop = mail.Nexthop(r.String())
		case 'e':
			if err := m.Envelope.Decode(r.Bytes()); err != nil {
				return err
			}
		case 'R':
			var rcpt mail.Recipient
			if err := rcpt.Decode(r.Bytes()); err != nil {
				return err
			}
			m.Envelope.Recipients = append(m.Envelope.Recipients, rcpt)
		case 'i':
			m.Index = append(m.Index, int(r.Uint())-1)
		case 'r':
			if err := m.Ref.Decode(r.Bytes()); err != nil {
				return err
			}
		case 'a':
			m.Active = mail.ReadTime(&r)
		case 'l':
			m.CacheLoad = r.Bool()
		case 'k':
			m.CacheKeep = r.Bool()
		case 's':
			m.Session = r.Uint()
		case 't':
			m.Keep = time.Duration(min(r.Uint(), uint64(maxKeep)))
		case 'p':
			m.Passed = r.Bool()
		case 'x':
			m.Exact = r.Bool()
		case 'm':
			m.Most = int(min(r.Uint(), maxMost))
		case 'f':
			m.Source = r.String()
		case 'g':
			m.Spec = r.String()
		case 'n':
			m.Attempt = int(min(r.Uint(), maxMost))
		case 'v':
			m.Advice = r.String()
		case 'o':
			m.Provider = r.String()
		}
	}
	return r.Err()
}

// Dismiss tells an agent that nothing more will come for a session that it has
// kept: it is to be closed. There is no answer.
type Dismiss struct{ Session uint64 }

func (*Dismiss) Kind() uint16 { return KindDismiss }

func (m *Dismiss) Append(b []byte) []byte { return pack.Uint(b, 's', m.Session) }

func (m *Dismiss) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == 's' {
			m.Session = r.Uint()
		}
	}
	return r.Err()
}

// DeliverReply is what came of it.
type DeliverReply struct {
	Outcomes []mail.Outcome // one per recipient; Rcpt is the index in the full envelope
	// Site, when its Status is set, says that the destination as a whole does
	// not work: the scheduler counts it against the destination.
	SiteStatus dsn.Status
	SiteReason string
	// SitePartly says that it has delivered even so, to others in the same session:
	// it wants less, and is not dead.
	SitePartly bool
	Kept       bool // a session for this destination is kept open
	Opened     bool // a connection was opened, or that was tried: no kept session was enough
	// Security is that of the connection that was opened, in words: protocol, cipher, certificate and policy.
	Security string
	// Stopped says that the agent was told to stop, and so nobody has got the
	// message: it is as if it had not been tried.
	Stopped bool
	// Corrupt says that the message's content is damaged or gone: trying again
	// would not help.
	Corrupt bool
}

func (*DeliverReply) Kind() uint16 { return KindDeliverReply }

func (m *DeliverReply) Append(b []byte) []byte {
	for i := range m.Outcomes {
		b = m.Outcomes[i].Append(b, 'o')
	}
	b = pack.String(b, 's', m.SiteStatus.String())
	b = pack.String(b, 'r', m.SiteReason)
	b = pack.Bool(b, 'p', m.SitePartly)
	b = pack.Bool(b, 'k', m.Kept)
	b = pack.Bool(b, 'n', m.Opened)
	b = pack.String(b, 't', m.Security)
	b = pack.Bool(b, 'x', m.Stopped)
	return pack.Bool(b, 'c', m.Corrupt)
}

func (m *DeliverReply) Decode(b []byte) error {
	r := pack.NewTextReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'o':
			var o mail.Outcome
			if err := o.DecodeFrom(r.Nested()); err != nil {
				return err
			}
			m.Outcomes = append(m.Outcomes, o)
		case 's':
			st, err := dsn.ParseStatus(r.String())
			if err != nil {
				return err
			}
			m.SiteStatus = st
		case 'r':
			m.SiteReason = r.String()
		case 'p':
			m.SitePartly = r.Bool()
		case 'k':
			m.Kept = r.Bool()
		case 'n':
			m.Opened = r.Bool()
		case 't':
			m.Security = r.String()
		case 'x':
			m.Stopped = r.Bool()
		case 'c':
			m.Corrupt = r.Bool()
		}
	}
	return r.Err()
}

// Inventory is what an agent pushes to a queue manager that has sent it an
// Attach: the deliveries that a former queue manager ordered and that go
// on, or that ended without anybody to tell. Whatever is in it must not be
// ordered again; its outcome comes as a Finished when it is there. An agent
// that the queue manager may not know of (it retires, or mail goes another way
// now) sends it as a request to the queue manager's socket, and the outcomes
// as further ones: the answer, a RecordReply, says that they are durable.
type Inventory struct {
	Running  []Delivery
	Finished []Finished
}

// Detach tells an agent that the queue manager at the other end leaves: what comes
// of its orders is for its successor. The answer, a RecordReply, comes behind all
// outcomes that have been told here, and nothing comes behind it.
type Detach struct{ empty }

func (*Detach) Kind() uint16 { return KindDetach }

// Delivery names a batch of recipients of a message, and one attempt to deliver to them.
type Delivery struct {
	ID    mail.QueueID
	Index []int
	// Deliver.Active of the order: it tells the attempts to deliver a message apart. Zero: it
	// is not known.
	Active time.Time
}

// Finished is the outcome of a delivery that nobody waited for. Active is as in Delivery: an
// agent may tell of an earlier attempt while it makes another.
type Finished struct {
	ID     mail.QueueID
	Reply  DeliverReply
	Active time.Time
}

func (*Inventory) Kind() uint16 { return KindInventory }

func (m *Inventory) Append(b []byte) []byte {
	for _, d := range m.Running {
		b = pack.Nested(b, 'r', func(b []byte) []byte {
			b = pack.String(b, 'q', d.ID)
			for _, i := range d.Index {
				b = pack.Uint(b, 'i', uint64(i)+1)
			}
			return mail.AppendTime(b, 'a', d.Active)
		})
	}
	for i := range m.Finished {
		f := &m.Finished[i]
		b = pack.Nested(b, 'f', func(b []byte) []byte {
			b = pack.String(b, 'q', f.ID)
			b = mail.AppendTime(b, 'a', f.Active)
			return pack.Nested(b, 'r', f.Reply.Append)
		})
	}
	return b
}

func (m *Inventory) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		f := pack.NewReader(r.Bytes())
		switch r.Tag() {
		case 'r':
			var d Delivery
			for f.Next() {
				switch f.Tag() {
				case 'q':
					d.ID = mail.QueueID(f.String())
				case 'i':
					d.Index = append(d.Index, int(f.Uint())-1)
				case 'a':
					d.Active = mail.ReadTime(&f)
				}
			}
			m.Running = append(m.Running, d)
		case 'f':
			var fin Finished
			for f.Next() {
				switch f.Tag() {
				case 'q':
					fin.ID = mail.QueueID(f.String())
				case 'a':
					fin.Active = mail.ReadTime(&f)
				case 'r':
					if err := fin.Reply.Decode(f.Bytes()); err != nil {
						return err
					}
				}
			}
			m.Finished = append(m.Finished, fin)
		}
		if f.Err() != nil {
			return f.Err()
		}
	}
	return r.Err()
}
