package proto

import (
	"fmt"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/queue"
)

// Kinds. A number is never used again.
const (
	KindLease        = 1
	KindLeaseReply   = 2
	KindSubmit       = 3
	KindSubmitReply  = 4
	KindChunk        = 5
	KindChunkReply   = 6
	KindAbort        = 7
	KindAttach       = 8
	KindEntries      = 9
	KindRecord       = 10
	KindRecordReply  = 11
	KindLocate       = 12
	KindLocateReply  = 13
	KindDue          = 16
	KindDueReply     = 17
	KindPage         = 18
	KindPageReply    = 19
	KindDeliver      = 20
	KindDeliverReply = 21
	KindInventory    = 22
	KindDismiss      = 23
	KindDetach       = 24
	KindHand         = 25
	KindHands        = 26
	KindHandsReply   = 27
	KindShares       = 28
	KindSharesReply  = 29
	KindRewrite      = 30
	KindRewriteReply = 31
	KindResolve      = 32
	KindResolveReply = 33
	KindStale        = 34
	KindNotes        = 35
	KindNotesReply   = 36
	KindOwned        = 37
	KindOwnedReply   = 38
	KindNotify       = 40
	KindNotifyReply  = 41
	KindList         = 50
	KindListReply    = 51
	KindCommand      = 52
	KindCommandReply = 53
	KindExplain      = 54
	KindExplainReply = 55
	KindShape        = 56
	KindShapeReply   = 57
	KindSelect       = 58
	KindSelectReply  = 59
	KindMilter       = 70
	KindMilterReply  = 71
)

// empty is the byte form of messages without fields.
type empty struct{}

func (empty) Append(b []byte) []byte { return b }
func (empty) Decode([]byte) error    { return nil }

// Lease asks for message numbers. They are the asker's for good: a number
// that is not used is lost, there are enough.
type Lease struct{ N int }

func (*Lease) Kind() uint16             { return KindLease }
func (m *Lease) Append(b []byte) []byte { return pack.Int(b, 'n', m.N) }
func (m *Lease) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == 'n' {
			m.N = int(r.Int())
		}
	}
	return r.Err()
}

// LeaseReply gives N numbers from First on.
type LeaseReply struct {
	First uint64
	N     int
}

func (*LeaseReply) Kind() uint16 { return KindLeaseReply }
func (m *LeaseReply) Append(b []byte) []byte {
	return pack.Int(pack.Uint(b, 'f', m.First), 'n', m.N)
}
func (m *LeaseReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'f':
			m.First = r.Uint()
		case 'n':
			m.N = int(r.Int())
		}
	}
	return r.Err()
}

// SubmitFlags say what cleanup is to do with a message, by where it came from
// (Postfix's CLEANUP_FLAG_ constants).
type SubmitFlags uint32

const (
	SubmitFilter    SubmitFlags = 1 << iota // header and body checks apply
	SubmitMilter                            // milters apply
	SubmitBCC                               // automatic BCC recipients
	SubmitMap                               // canonical, masquerade and virtual alias mapping
	SubmitBounce                            // a bad message is returned to its sender, not refused to the submitter
	SubmitHold                              // goes to the hold queue
	SubmitDiscard                           // is accepted and thrown away
	SubmitNoReceive                         // does not consume a flow control token (mail that we make ourselves)
	SubmitAutoUTF8                          // whether the message needs SMTPUTF8 is found out from it
	SubmitRequeued                          // has been in a queue, and goes there again or on to others: who sent it was checked when it came
)

// Submit offers a message, or its first part. The envelope's ID has been made
// from a leased number. The message is whole when More is false; else the
// rest follows in Chunks on the same connection, each answered before the
// window of MaxUnanswered is passed, the last without More. The reply to the
// last part is a SubmitReply, and says that the message is on stable storage.
type Submit struct {
	Envelope mail.Envelope
	Flags    SubmitFlags
	BCC      []string // recipients added by access table actions: NOTIFY=NEVER
	Prepend  []string // header lines that access table actions put on top
	FullName string   // of the sender, for a From: field that has to be added
	More     bool
	// Listing says that the Chunks that follow have more recipients, up to and
	// with the first that says so no more; content comes after them.
	Listing bool
	Content []byte // CRLF lines, any part of them
	Milter  uint64 // the session with filters that the message belongs to; 0: not from SMTP, or none
	// Told is what they have been told up to here, should that session have
	// begun in a cleanup that has gone.
	Told MilterTold
	// Settles, when set, makes the message the notice about others: it and
	// the disposition of what it reports are recorded as one.
	Settles *Settle
	// State, when set, is how the message stood in the queue that it comes
	// from: what Set names, and the last outcomes of recipients, by their
	// indexes here. A hold that is asked for by Flags comes before its Queue.
	State *queue.Change
	// Was, when set, is what State's indexes are of: the recipients as they
	// were, when they have gone back to what they were before mapping.
	Was []mail.Recipient
	// Wait is how long the submitter waits for the message to be delivered before it must be on stable storage; 0: it
	// must be at once. Whether cleanup waits is for it to decide. Refuse says that a message of which all
	// recipients fail for good meanwhile is to be refused, and not returned to its sender.
	Wait   time.Duration
	Refuse bool
	// NoBCC are addresses that no automatic BCC recipient is made of: they have
	// the message, or are to have it.
	NoBCC []string
	// Known are answers of databases that the submitter had when it judged the recipients, the first
	// of them at Asked, in nanoseconds since 1970: cleanup would ask the same.
	Known []Answer
	Asked int64
}

// MaxUnanswered is how many Chunks a submitter may have under way: with
// ChunkSize it bounds what a message in flight costs cleanup in memory.
// ListSize bounds the recipients in one of them, in the same way.
const (
	MaxUnanswered = 4
	ChunkSize     = 64 << 10
	ListSize      = 256 << 10
)

// Settle says that nothing more is to be done for these recipients once the
// notice that carries it is durable.
type Settle struct {
	ID    mail.QueueID
	Rcpts []int
	// Outcomes take the place of those of recipients who are still pending: some
	// of their parts have been told.
	Outcomes []mail.Outcome
	// Warned marks the message as having had its delay warning, instead.
	Warned bool
}

func (*Submit) Kind() uint16 { return KindSubmit }

func (m *Submit) Append(b []byte) []byte {
	b = pack.Nested(b, 'e', m.Envelope.Append)
	b = mail.AppendRecipients(b, m.Envelope.Recipients)
	b = pack.Uint(b, 'f', m.Flags)
	for _, a := range m.BCC {
		b = pack.Bytes(b, 'b', a)
	}
	for _, h := range m.Prepend {
		b = pack.Bytes(b, 'p', h)
	}
	b = pack.String(b, 'F', m.FullName)
	b = pack.Uint(b, 'm', m.Milter)
	b = pack.String(b, 't', m.Told)
	b = pack.Bool(b, '+', m.More)
	b = pack.Bool(b, 'l', m.Listing)
	if m.Settles != nil {
		b = pack.Nested(b, 's', m.Settles.append)
	}
	if m.State != nil {
		b = pack.Nested(b, 'o', m.State.AppendFields)
	}
	for i := range m.Was {
		b = m.Was[i].Append(b, 'w')
	}
	for _, a := range m.NoBCC {
		b = pack.Bytes(b, 'n', a)
	}
	b = pack.Int(b, 'W', m.Wait)
	b = pack.Bool(b, 'r', m.Refuse)
	for i := range m.Known {
		b = pack.Nested(b, 'k', m.Known[i].append)
	}
	b = pack.Int(b, 'a', m.Asked)
	return pack.Bytes(b, 'c', m.Content)
}

func (m *Submit) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'e':
			if err := m.Envelope.Decode(r.Bytes()); err != nil {
				return err
			}
		case 'R':
			if err := addRecipient(&m.Envelope.Recipients, r.Bytes()); err != nil {
				return err
			}
		case 'f':
			m.Flags = SubmitFlags(r.Uint())
		case 'b':
			m.BCC = append(m.BCC, r.String())
		case 'p':
			m.Prepend = append(m.Prepend, r.String())
		case 'F':
			m.FullName = r.String()
		case 'm':
			m.Milter = r.Uint()
		case 't':
			m.Told = MilterTold(r.Bytes())
		case '+':
			m.More = r.Bool()
		case 'l':
			m.Listing = r.Bool()
		case 's':
			m.Settles = new(Settle)
			if err := m.Settles.decode(r.Bytes()); err != nil {
				return err
			}
		case 'o':
			m.State = new(queue.Change)
			if err := m.State.DecodeFields(r.Bytes()); err != nil {
				return err
			}
		case 'w':
			if err := addRecipient(&m.Was, r.Bytes()); err != nil {
				return err
			}
		case 'n':
			m.NoBCC = append(m.NoBCC, r.String())
		case 'W':
			m.Wait = time.Duration(r.Int())
		case 'r':
			m.Refuse = r.Bool()
		case 'k':
			if err := m.know(r.Bytes()); err != nil {
				return err
			}
		case 'a':
			m.Asked = r.Int()
		case 'c':
			m.Content = r.Bytes()
		}
	}
	return r.Err()
}

// addRecipient adds a recipient, as it travels, to a list.
func addRecipient(list *[]mail.Recipient, field []byte) error {
	var r mail.Recipient
	err := r.Decode(field)
	*list = append(*list, r)
	return err
}

// know adds an answer, as it travels, to Known.
func (m *Submit) know(field []byte) error {
	var a Answer
	err := a.decode(field)
	m.Known = append(m.Known, a)
	return err
}

func (s *Settle) append(b []byte) []byte {
	b = pack.String(b, 'q', s.ID)
	for _, i := range s.Rcpts {
		b = pack.Uint(b, 'r', uint64(i)+1)
	}
	for i := range s.Outcomes {
		b = s.Outcomes[i].Append(b, 'o')
	}
	return pack.Bool(b, 'w', s.Warned)
}

func (s *Settle) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			s.ID = mail.QueueID(r.String())
		case 'r':
			s.Rcpts = append(s.Rcpts, int(r.Uint())-1)
		case 'o':
			var o mail.Outcome
			if err := o.Decode(r.Bytes()); err != nil {
				return err
			}
			s.Outcomes = append(s.Outcomes, o)
		case 'w':
			s.Warned = r.Bool()
		}
	}
	return r.Err()
}

// What a node says whose part of a shared queue others have: to who submits mail, and to who wants queue IDs.
const (
	TextElsewhere = "Error: this server takes no mail now, other servers have its queue"
	FailElsewhere = "cleanup: other nodes have the queue"
)

// StatusElsewhere goes with TextElsewhere.
var StatusElsewhere = dsn.S(4, 3, 2)

// SubmitReply is the fate of a submission. Code 250: the message is on stable
// storage (or was discarded on purpose, or has been delivered while the submitter waited). Otherwise the submitter still has it.
type SubmitReply struct {
	Code   int // SMTP reply code: 250, 451, 452, 550, 552, 554
	Status dsn.Status
	Text   string // for the client, without code and status
	Cause  string // of an internal failure, for the submitter's log and not for the client: "not signed: ..."; else empty
	Silent bool   // the queue's disk does not answer, or other nodes have the queue: the next message would be refused as well
}

// Reason is the reply in one line, with its cause: for the log.
func (m *SubmitReply) Reason() string {
	text := fmt.Sprintf("%d %s %s", m.Code, m.Status, m.Text)
	if m.Cause != "" {
		text += " (" + m.Cause + ")"
	}
	return text
}

func (*SubmitReply) Kind() uint16 { return KindSubmitReply }
func (m *SubmitReply) Append(b []byte) []byte {
	b = pack.Int(b, 'c', m.Code)
	b = pack.String(b, 's', m.Status.String())
	b = pack.String(b, 't', m.Text)
	b = pack.String(b, 'l', m.Cause)
	return pack.Bool(b, 'q', m.Silent)
}
func (m *SubmitReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'c':
			m.Code = int(r.Int())
		case 's':
			st, err := dsn.ParseStatus(r.String())
			if err != nil {
				return err
			}
			m.Status = st
		case 't':
			m.Text = r.String()
		case 'l':
			m.Cause = r.String()
		case 'q':
			m.Silent = r.Bool()
		}
	}
	return r.Err()
}

// Chunk is more of the message with this ID: recipients, while a Submit or the
// Chunk before has said Listing, then content.
type Chunk struct {
	ID         mail.QueueID
	More       bool
	Listing    bool // the next one has recipients, too
	Recipients []mail.Recipient
	Data       []byte
}

func (*Chunk) Kind() uint16 { return KindChunk }
func (m *Chunk) Append(b []byte) []byte {
	b = pack.String(b, 'q', m.ID)
	b = pack.Bool(b, '+', m.More)
	b = pack.Bool(b, 'l', m.Listing)
	b = mail.AppendRecipients(b, m.Recipients)
	return pack.Bytes(b, 'd', m.Data)
}
func (m *Chunk) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			m.ID = mail.QueueID(r.String())
		case '+':
			m.More = r.Bool()
		case 'l':
			m.Listing = r.Bool()
		case 'R':
			var rcpt mail.Recipient
			if err := rcpt.Decode(r.Bytes()); err != nil {
				return err
			}
			m.Recipients = append(m.Recipients, rcpt)
		case 'd':
			m.Data = r.Bytes()
		}
	}
	return r.Err()
}

// ChunkReply says that a part has been taken; a part that comes after the
// message has failed gets a SubmitReply with the failure instead.
type ChunkReply struct{ empty }

func (*ChunkReply) Kind() uint16 { return KindChunkReply }

// Abort gives up a message that is not whole yet.
type Abort struct{ ID mail.QueueID }

func (*Abort) Kind() uint16             { return KindAbort }
func (m *Abort) Append(b []byte) []byte { return pack.String(b, 'q', m.ID) }
func (m *Abort) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == 'q' {
			m.ID = mail.QueueID(r.String())
		}
	}
	return r.Err()
}

// Attach makes the asking connection the queue manager's: what is in the incoming
// queue is pushed to it in Entries, the last of them marked Complete, and everything
// that is queued afterwards as it becomes durable. Other mail is asked for with Due and Page. A second Attach ends the
// first one's connection. Sent to an agent, it asks for the Inventory.
type Attach struct{ empty }

func (*Attach) Kind() uint16 { return KindAttach }

// An Entry is one message of the queue. Envelope and recipients come along
// when the message is new and small; else the queue manager reads them from
// the spool when it has room for them.
type Entry struct {
	queue.Entry
	Envelope   []byte // mail.Envelope's stored form, or empty
	Recipients []byte // stored form, or empty
	// Provisional says that the message is not on stable storage: its client waits. It becomes an ordinary one
	// with the next Entry of it, or it goes as if it had never been there.
	Provisional bool
}

// Entries is a batch of the queue's content.
type Entries struct {
	List     []Entry
	Complete bool // the queue as it was at Attach has been sent
	Known    bool // they answer Due
	// Gone are provisional messages that are not there any more: they were refused, or could not be kept.
	Gone []mail.QueueID
	// Deferred and Hold are, with Complete, how many messages there are that were not sent, and
	// the others when the first of these came.
	Deferred, Hold             int
	OldestDeferred, OldestHold time.Time
}

func (*Entries) Kind() uint16 { return KindEntries }
func (m *Entries) Append(b []byte) []byte {
	for i := range m.List {
		e := &m.List[i]
		b = pack.Nested(b, 'e', func(b []byte) []byte {
			b = e.Entry.Append(b, 's')
			b = pack.String(b, 'E', e.Envelope)
			b = pack.String(b, 'R', e.Recipients)
			return pack.Bool(b, 'p', e.Provisional)
		})
	}
	b = pack.Bool(b, '.', m.Complete)
	b = pack.Bool(b, 'k', m.Known)
	for _, id := range m.Gone {
		b = pack.String(b, 'g', id)
	}
	b = pack.Int(b, 'd', m.Deferred)
	b = pack.Int(b, 'h', m.Hold)
	b = mail.AppendTime(b, 'D', m.OldestDeferred)
	return mail.AppendTime(b, 'H', m.OldestHold)
}
func (m *Entries) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'e':
			var e Entry
			f := pack.NewReader(r.Bytes())
			for f.Next() {
				switch f.Tag() {
				case 's':
					if err := e.Entry.Decode(f.Bytes()); err != nil {
						return err
					}
				case 'E':
					e.Envelope = f.Bytes()
				case 'R':
					e.Recipients = f.Bytes()
				case 'p':
					e.Provisional = f.Bool()
				}
			}
			if f.Err() != nil {
				return f.Err()
			}
			m.List = append(m.List, e)
		case '.':
			m.Complete = r.Bool()
		case 'k':
			m.Known = r.Bool()
		case 'g':
			m.Gone = append(m.Gone, mail.QueueID(r.String()))
		case 'd':
			m.Deferred = int(r.Int())
		case 'h':
			m.Hold = int(r.Int())
		case 'D':
			m.OldestDeferred = mail.ReadTime(&r)
		case 'H':
			m.OldestHold = mail.ReadTime(&r)
		}
	}
	return r.Err()
}

// Op is one change that the queue manager has decided on.
type Op struct {
	ID mail.QueueID
	// Remove ends the message's life; all else is then ignored.
	Remove bool
	// Finished says, with Remove, that all is done, and not that an operator wants it.
	Finished bool
	// Handed are recipients that an agent has been given, and Nexthop where they go: with
	// them the Op has nothing else.
	Handed  []int
	Nexthop mail.Nexthop
	// Lost says of Handed that the agent has ended, and nobody will say what came of it: nothing
	// is recorded of the message but that it may arrive twice.
	Lost bool
	// Keep wants a provisional message on stable storage; of others it changes nothing. If all recipients are among
	// Outcomes as failed, the message may be refused instead, and is gone then.
	Keep bool
	// Change is what is recorded of the message anew, and the recipients that are done.
	queue.Change
}

// Record asks for changes to be made durable, all or none of each Op; the
// order is kept. Changes to messages that are gone are no error: the asker
// may be repeating what it did not hear the answer to.
type Record struct {
	Ops []Op
	// Urgent says that somebody waits for the answer: the changes are not kept
	// back until others can be written with them.
	Urgent bool
}

func (*Record) Kind() uint16 { return KindRecord }
func (m *Record) Append(b []byte) []byte {
	for i := range m.Ops {
		b = pack.Nested(b, 'o', m.Ops[i].append)
	}
	return pack.Bool(b, 'u', m.Urgent)
}
func (m *Record) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'o':
			var o Op
			if err := o.decode(r.Bytes()); err != nil {
				return err
			}
			m.Ops = append(m.Ops, o)
		case 'u':
			m.Urgent = r.Bool()
		}
	}
	return r.Err()
}

func (o *Op) append(b []byte) []byte {
	b = pack.String(b, 'q', o.ID)
	b = pack.Bool(b, 'x', o.Remove)
	b = pack.Bool(b, 'f', o.Finished)
	for _, i := range o.Handed {
		b = pack.Uint(b, 'h', uint64(i)+1)
	}
	b = pack.String(b, 'N', o.Nexthop)
	b = pack.Bool(b, 'l', o.Lost)
	b = pack.Bool(b, 'k', o.Keep)
	return o.AppendFields(b)
}

func (o *Op) decode(field []byte) error {
	r := pack.NewReader(field)
	for r.Next() {
		switch r.Tag() {
		case 'q':
			o.ID = mail.QueueID(r.String())
		case 'x':
			o.Remove = r.Bool()
		case 'f':
			o.Finished = r.Bool()
		case 'h':
			o.Handed = append(o.Handed, int(r.Uint())-1)
		case 'N':
			o.Nexthop = mail.Nexthop(r.String())
		case 'l':
			o.Lost = r.Bool()
		case 'k':
			o.Keep = r.Bool()
		default:
			o.ReadField(&r)
		}
	}
	return r.Err()
}

// RecordReply says that the changes are durable. Entries are the messages
// whose state was recorded anew and that are still there, as they stand now.
type RecordReply struct {
	Entries []queue.Entry
	Refused []Refusal // changes that were left out, whatever the reason
	// Gone are messages that were to stay, and that are not in the queue any more: all of
	// their recipients were settled by another way.
	Gone []mail.QueueID
}

// A Refusal says why a change of a message was not recorded.
type Refusal struct {
	ID     mail.QueueID
	Reason string
}

func (*RecordReply) Kind() uint16 { return KindRecordReply }
func (m *RecordReply) Append(b []byte) []byte {
	for i := range m.Entries {
		b = m.Entries[i].Append(b, 'e')
	}
	for _, f := range m.Refused {
		b = pack.String(b, 'q', f.ID)
		b = pack.String(b, 'r', f.Reason)
	}
	for _, id := range m.Gone {
		b = pack.String(b, 'g', id)
	}
	return b
}
func (m *RecordReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'e':
			var e queue.Entry
			if err := e.Decode(r.Bytes()); err != nil {
				return err
			}
			m.Entries = append(m.Entries, e)
		case 'q':
			m.Refused = append(m.Refused, Refusal{ID: mail.QueueID(r.String())})
		case 'r':
			if n := len(m.Refused); n > 0 {
				m.Refused[n-1].Reason = r.String()
			}
		case 'g':
			m.Gone = append(m.Gone, mail.QueueID(r.String()))
		}
	}
	return r.Err()
}

// Locate asks where a message lies now: a reader's reference may have been
// overtaken by the cleaner.
type Locate struct{ ID mail.QueueID }

func (*Locate) Kind() uint16             { return KindLocate }
func (m *Locate) Append(b []byte) []byte { return pack.String(b, 'q', m.ID) }
func (m *Locate) Decode(b []byte) error  { return (*Abort)(m).Decode(b) }

// LocateReply has the entry, or Found false when the message is gone.
type LocateReply struct {
	Found bool
	Entry queue.Entry
}

func (*LocateReply) Kind() uint16 { return KindLocateReply }
func (m *LocateReply) Append(b []byte) []byte {
	if !m.Found {
		return b
	}
	return m.Entry.Append(b, 'e')
}
func (m *LocateReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == 'e' {
			m.Found = true
			if err := m.Entry.Decode(r.Bytes()); err != nil {
				return err
			}
		}
	}
	return r.Err()
}
