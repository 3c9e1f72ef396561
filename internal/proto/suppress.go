package proto

import "posthaste/internal/pack"

// Kinds of messages of the suppress service.
const (
	KindSuppressAsk       = 140
	KindSuppressAnswer    = 141
	KindSuppressTell      = 142
	KindSuppressTold      = 143
	KindReturnPath        = 144
	KindReturnPathReply   = 145
	KindSuppressChange    = 146
	KindSuppressChanged   = 147
	KindSuppressPage      = 148
	KindSuppressPageReply = 149
)

// A Suppression is an entry of the suppression list.
type Suppression struct {
	List    string // empty: the entry holds for all lists
	Address string // in lower case
	Reason  string // a word: bounce, complaint, ...
	Origin  string // who or what made it, for people: a queue ID, a user
	Detail  string // for people: the server's reply
	Time    int64  // when it was made, in seconds since the epoch
	Until   int64  // when it stops to hold; 0: it does not
}

func (e *Suppression) append(b []byte) []byte {
	b = pack.String(b, 'l', e.List)
	b = pack.String(b, 'a', e.Address)
	b = pack.String(b, 'r', e.Reason)
	b = pack.String(b, 'o', e.Origin)
	b = pack.String(b, 'd', e.Detail)
	b = pack.Int(b, 't', e.Time)
	return pack.Int(b, 'u', e.Until)
}

func (e *Suppression) decode(r pack.Reader) error {
	for r.Next() {
		switch r.Tag() {
		case 'l':
			e.List = r.String()
		case 'a':
			e.Address = r.String()
		case 'r':
			e.Reason = r.String()
		case 'o':
			e.Origin = r.String()
		case 'd':
			e.Detail = r.String()
		case 't':
			e.Time = r.Int()
		case 'u':
			e.Until = r.Int()
		}
	}
	return r.Err()
}

func decodeSuppression(r pack.Reader) (e Suppression, err error) {
	err = e.decode(r)
	return e, err
}

// SuppressAsk asks whether mail of a list may go to an address. With QueueID it is about to go, and the
// answer has the envelope sender that it is to leave with, if it is to have one of its own.
type SuppressAsk struct {
	List, Address string
	QueueID       string // empty: the mail is not in the queue yet
	Sender        string
	MessageID     string
	EnvID         string
	// Provider and Source are where it goes to and what it is sent from, as Deliver has them: what comes back of it
	// is counted by them.
	Provider, Source string
	Tenant, Campaign string // whose mail it is, and of which mailing
}

func (*SuppressAsk) Kind() uint16 { return KindSuppressAsk }
func (m *SuppressAsk) Append(b []byte) []byte {
	b = pack.String(b, 'l', m.List)
	b = pack.String(b, 'a', m.Address)
	b = pack.String(b, 'q', m.QueueID)
	b = pack.String(b, 's', m.Sender)
	b = pack.String(b, 'm', m.MessageID)
	b = pack.String(b, 'e', m.EnvID)
	b = pack.String(pack.String(b, 'p', m.Provider), 'f', m.Source)
	return pack.String(pack.String(b, 't', m.Tenant), 'c', m.Campaign)
}
func (m *SuppressAsk) Decode(b []byte) error {
	r := pack.NewTextReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'l':
			m.List = r.String()
		case 'a':
			m.Address = r.String()
		case 'q':
			m.QueueID = r.String()
		case 's':
			m.Sender = r.String()
		case 'm':
			m.MessageID = r.String()
		case 'e':
			m.EnvID = r.String()
		case 'p':
			m.Provider = r.String()
		case 'f':
			m.Source = r.String()
		case 't':
			m.Tenant = r.String()
		case 'c':
			m.Campaign = r.String()
		}
	}
	return r.Err()
}

// SuppressAnswer is the answer.
type SuppressAnswer struct {
	Suppressed bool
	Entry      Suppression // if it is
	Path       string      // the envelope sender; empty: as it is
}

func (*SuppressAnswer) Kind() uint16 { return KindSuppressAnswer }
func (m *SuppressAnswer) Append(b []byte) []byte {
	b = pack.Bool(b, 's', m.Suppressed)
	b = pack.String(b, 'p', m.Path)
	if m.Entry == (Suppression{}) {
		return b
	}
	return pack.Nested(b, 'e', m.Entry.append)
}
func (m *SuppressAnswer) Decode(b []byte) (err error) {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 's':
			m.Suppressed = r.Bool()
		case 'p':
			m.Path = r.String()
		case 'e':
			if m.Entry, err = decodeSuppression(r.Nested()); err != nil {
				return err
			}
		}
	}
	return r.Err()
}

// What SuppressTell tells of.
const (
	ToldBounce    = "bounce"    // a recipient will not get a message, for the reason that Class is
	ToldForwarded = "forwarded" // as bounce, but an address behind the recipient is meant: it counts as passing
	ToldExpired   = "expired"   // the same of one that has waited too long, for the reason that Class is
	ToldComplaint = "complaint"
	// ToldUnsubscribed: the recipient wants no more mail of List. Who tells has proof of it.
	ToldUnsubscribed = "unsubscribed"
)

// SuppressTell tells of what may have an address put on the list. The service decides. It may be repeated.
type SuppressTell struct {
	What          string
	List, Address string
	Class         string // by the rules of bounce_class_files
	Origin        string // queue ID of the message
	Detail        string // the server's reply
	// Token is the address that the message left with, if the news came back by that; of one token the same
	// is taken once.
	Token string
	// Provider and Source are those of the delivery, of news without a Token; empty: not known, or there is none.
	Provider, Source string
}

func (*SuppressTell) Kind() uint16 { return KindSuppressTell }
func (m *SuppressTell) Append(b []byte) []byte {
	b = pack.String(b, 'w', m.What)
	b = pack.String(b, 'l', m.List)
	b = pack.String(b, 'a', m.Address)
	b = pack.String(b, 'c', m.Class)
	b = pack.String(b, 'o', m.Origin)
	b = pack.String(b, 'd', m.Detail)
	b = pack.String(b, 'k', m.Token)
	return pack.String(pack.String(b, 'p', m.Provider), 'f', m.Source)
}
func (m *SuppressTell) Decode(b []byte) error {
	r := pack.NewTextReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'w':
			m.What = r.String()
		case 'l':
			m.List = r.String()
		case 'a':
			m.Address = r.String()
		case 'c':
			m.Class = r.String()
		case 'o':
			m.Origin = r.String()
		case 'd':
			m.Detail = r.String()
		case 'k':
			m.Token = r.String()
		case 'p':
			m.Provider = r.String()
		case 'f':
			m.Source = r.String()
		}
	}
	return r.Err()
}

// SuppressTold says what came of it.
type SuppressTold struct {
	Again bool   // that token has brought the same news before
	Added string // the reason of the new entry; empty: there is none
}

func (*SuppressTold) Kind() uint16 { return KindSuppressTold }
func (m *SuppressTold) Append(b []byte) []byte {
	return pack.String(pack.Bool(b, 'g', m.Again), 'a', m.Added)
}
func (m *SuppressTold) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'g':
			m.Again = r.Bool()
		case 'a':
			m.Added = r.String()
		}
	}
	return r.Err()
}

// ReturnPath asks for which message an address was made, as the envelope sender that it left with.
type ReturnPath struct {
	Address string
	// Recipients are addresses that a report names, some of which may be the recipient.
	Recipients []string
}

func (*ReturnPath) Kind() uint16 { return KindReturnPath }
func (m *ReturnPath) Append(b []byte) []byte {
	b = pack.String(b, 'a', m.Address)
	for _, r := range m.Recipients {
		b = pack.Bytes(b, 'r', r)
	}
	return b
}
func (m *ReturnPath) Decode(b []byte) error {
	r := pack.NewTextReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'a':
			m.Address = r.String()
		case 'r':
			m.Recipients = append(m.Recipients, r.String())
		}
	}
	return r.Err()
}

// ReturnPathReply is the answer. Without Problem the address is of this system. What else is known
// of the message may be less: List and what stands below it only with Recorded.
type ReturnPathReply struct {
	Problem   string // why the address counts for nothing
	QueueID   string
	Recipient string // empty: unknown
	Recorded  bool
	List      string
	Sender    string
	MessageID string
	EnvID     string
	// Whose mail it was, of which mailing, where it went to, and what it was sent from; each may be empty.
	Tenant, Campaign, Provider, Source string
	// Bounced and Complained say that the address has brought that news before.
	Bounced, Complained bool
}

func (*ReturnPathReply) Kind() uint16 { return KindReturnPathReply }
func (m *ReturnPathReply) Append(b []byte) []byte {
	b = pack.String(b, 'p', m.Problem)
	b = pack.String(b, 'q', m.QueueID)
	b = pack.String(b, 'r', m.Recipient)
	b = pack.Bool(b, 'k', m.Recorded)
	b = pack.String(b, 'l', m.List)
	b = pack.String(b, 's', m.Sender)
	b = pack.String(b, 'm', m.MessageID)
	b = pack.String(b, 'e', m.EnvID)
	b = pack.String(pack.String(b, 'T', m.Tenant), 'C', m.Campaign)
	b = pack.String(pack.String(b, 'P', m.Provider), 'S', m.Source)
	return pack.Bool(pack.Bool(b, 'b', m.Bounced), 'c', m.Complained)
}
func (m *ReturnPathReply) Decode(b []byte) error {
	r := pack.NewTextReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'p':
			m.Problem = r.String()
		case 'q':
			m.QueueID = r.String()
		case 'r':
			m.Recipient = r.String()
		case 'T':
			m.Tenant = r.String()
		case 'C':
			m.Campaign = r.String()
		case 'P':
			m.Provider = r.String()
		case 'S':
			m.Source = r.String()
		case 'b':
			m.Bounced = r.Bool()
		case 'c':
			m.Complained = r.Bool()
		case 'k':
			m.Recorded = r.Bool()
		case 'l':
			m.List = r.String()
		case 's':
			m.Sender = r.String()
		case 'm':
			m.MessageID = r.String()
		case 'e':
			m.EnvID = r.String()
		}
	}
	return r.Err()
}

// MaxSuppressions is how many entries one SuppressChange or SuppressPageReply has at most.
const MaxSuppressions = 2000

// What SuppressChange does.
const (
	SuppressAdd    = "add"    // an entry that is there is replaced
	SuppressOffer  = "offer"  // the same, but what a recipient has asked for stays, and ends no sooner
	SuppressRemove = "remove" // list and address count
	SuppressBegin  = "begin"  // the import of that name begins; one that was not ended is forgotten
	SuppressStage  = "stage"  // entries of the import, which do not count yet
	SuppressEnd    = "end"    // all of the import counts from now on, where there is no entry that counts more
)

// SuppressChange changes the list. It is durable when it is answered.
type SuppressChange struct {
	What    string
	Import  string // of Begin, Stage and End: names the import, so that two of them do not become one
	Entries []Suppression
	Part    bool // of End: it was for one list or one tenant, and a list that is lost stays so
}

func (*SuppressChange) Kind() uint16 { return KindSuppressChange }
func (m *SuppressChange) Append(b []byte) []byte {
	b = pack.String(b, 'w', m.What)
	b = pack.String(b, 'i', m.Import)
	for i := range m.Entries {
		b = pack.Nested(b, 'e', m.Entries[i].append)
	}
	return pack.Bool(b, 'p', m.Part)
}
func (m *SuppressChange) Decode(b []byte) error {
	r := pack.NewTextReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'w':
			m.What = r.String()
		case 'i':
			m.Import = r.String()
		case 'e':
			e, err := decodeSuppression(r.Nested())
			if err != nil {
				return err
			}
			m.Entries = append(m.Entries, e)
		case 'p':
			m.Part = r.Bool()
		}
	}
	return r.Err()
}

// SuppressChanged says how many entries were changed, removed or staged.
type SuppressChanged struct {
	Count uint64
	Full  bool // nothing was, as a tenant would have more entries than suppress_tenant_limit
	Lost  bool // of End: the import counts, and the list is still lost
}

func (*SuppressChanged) Kind() uint16 { return KindSuppressChanged }
func (m *SuppressChanged) Append(b []byte) []byte {
	return pack.Bool(pack.Bool(pack.Uint(b, 'n', m.Count), 'f', m.Full), 'l', m.Lost)
}
func (m *SuppressChanged) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'n':
			m.Count = r.Uint()
		case 'f':
			m.Full = r.Bool()
		case 'l':
			m.Lost = r.Bool()
		}
	}
	return r.Err()
}

// SuppressPage asks for entries, in the order of list and address.
type SuppressPage struct {
	List  string // of this one; with All, of each
	All   bool
	After string // Next of the page before; empty: from the beginning
	// Address has those of one address alone, on one page; List, All and After do not count then.
	Address string
	// Tenant has those of one tenant alone, whatever else is asked for.
	Tenant string
}

func (*SuppressPage) Kind() uint16 { return KindSuppressPage }
func (m *SuppressPage) Append(b []byte) []byte {
	b = pack.String(pack.Bool(pack.String(b, 'l', m.List), 'g', m.All), 'a', m.After)
	return pack.String(pack.String(b, 'd', m.Address), 't', m.Tenant)
}
func (m *SuppressPage) Decode(b []byte) error {
	r := pack.NewTextReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'l':
			m.List = r.String()
		case 'g':
			m.All = r.Bool()
		case 'a':
			m.After = r.String()
		case 'd':
			m.Address = r.String()
		case 't':
			m.Tenant = r.String()
		}
	}
	return r.Err()
}

// SuppressPageReply has a page; it is not the last one if Next is not empty.
type SuppressPageReply struct {
	Entries []Suppression
	Next    string
}

func (*SuppressPageReply) Kind() uint16 { return KindSuppressPageReply }
func (m *SuppressPageReply) Append(b []byte) []byte {
	for i := range m.Entries {
		b = pack.Nested(b, 'e', m.Entries[i].append)
	}
	return pack.String(b, 'n', m.Next)
}
func (m *SuppressPageReply) Decode(b []byte) error {
	r := pack.NewTextReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'e':
			e, err := decodeSuppression(r.Nested())
			if err != nil {
				return err
			}
			m.Entries = append(m.Entries, e)
		case 'n':
			m.Next = r.String()
		}
	}
	return r.Err()
}
