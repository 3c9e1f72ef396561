package proto

import "posthaste/internal/pack"

// Kinds of messages of the sendlimit service.
const (
	KindSpend      = 94
	KindSpendReply = 95
	KindUsage      = 96
	KindUsageReply = 97
)

// Spend counts recipients of an account, and asks whether it may have them. It is carried out as
// a whole or not at all, and must not be repeated when the answer was lost.
type Spend struct {
	Account string // the login name, in lower case
	Count   uint64 // recipients
	Client  string // whence, for the log: name[address]
}

func (*Spend) Kind() uint16 { return KindSpend }
func (m *Spend) Append(b []byte) []byte {
	b = pack.String(b, 'a', m.Account)
	b = pack.Uint(b, 'n', m.Count)
	return pack.String(b, 'c', m.Client)
}
func (m *Spend) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'a':
			m.Account = r.String()
		case 'n':
			m.Count = r.Uint()
		case 'c':
			m.Client = r.String()
		}
	}
	return r.Err()
}

// SpendReply says whether they were counted.
type SpendReply struct {
	Refused bool   // they were not: the account is locked, or a limit is exceeded
	Locked  bool   // until somebody unlocks it
	Limit   string // the limit that is exceeded, as in main.cf: 500/d
	Until   int64  // when that limit begins anew, in seconds since the epoch
}

func (*SpendReply) Kind() uint16 { return KindSpendReply }
func (m *SpendReply) Append(b []byte) []byte {
	b = pack.Bool(b, 'r', m.Refused)
	b = pack.Bool(b, 'k', m.Locked)
	b = pack.String(b, 'l', m.Limit)
	return pack.Int(b, 'u', m.Until)
}
func (m *SpendReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'r':
			m.Refused = r.Bool()
		case 'k':
			m.Locked = r.Bool()
		case 'l':
			m.Limit = r.String()
		case 'u':
			m.Until = r.Int()
		}
	}
	return r.Err()
}

// Usage asks what accounts have sent, or unlocks one.
type Usage struct {
	Account string // in lower case; empty: all that have sent something
	Unlock  bool   // forget what Account has sent, and that it is locked
}

func (*Usage) Kind() uint16 { return KindUsage }
func (m *Usage) Append(b []byte) []byte {
	return pack.Bool(pack.String(b, 'a', m.Account), 'u', m.Unlock)
}
func (m *Usage) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'a':
			m.Account = r.String()
		case 'u':
			m.Unlock = r.Bool()
		}
	}
	return r.Err()
}

// UsageReply is the answer: before an account was unlocked, if that was asked for.
type UsageReply struct {
	Accounts []AccountUsage // sorted by name; at most MaxUsage
	More     bool           // there are more
}

// MaxUsage is how many accounts a UsageReply has at most.
const MaxUsage = 10_000

// An AccountUsage is what one account has sent.
type AccountUsage struct {
	Account string
	Locked  bool
	Limits  []LimitUsage
}

// A LimitUsage is what counts towards a limit.
type LimitUsage struct {
	Limit string // 500/d
	Used  int64  // recipients, since the limit began anew
	Until int64  // when it begins anew, in seconds since the epoch
}

func (*UsageReply) Kind() uint16 { return KindUsageReply }
func (m *UsageReply) Append(b []byte) []byte {
	for i := range m.Accounts {
		a := &m.Accounts[i]
		b = pack.Nested(b, 'a', func(b []byte) []byte {
			b = pack.String(b, 'n', a.Account)
			b = pack.Bool(b, 'k', a.Locked)
			for _, l := range a.Limits {
				b = pack.Nested(b, 'l', func(b []byte) []byte {
					b = pack.String(b, 'l', l.Limit)
					b = pack.Int(b, 'c', l.Used)
					return pack.Int(b, 'u', l.Until)
				})
			}
			return b
		})
	}
	return pack.Bool(b, 'm', m.More)
}
func (m *UsageReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'a':
			a, err := decodeAccountUsage(r.Nested())
			if err != nil {
				return err
			}
			m.Accounts = append(m.Accounts, a)
		case 'm':
			m.More = r.Bool()
		}
	}
	return r.Err()
}

func decodeAccountUsage(r pack.Reader) (a AccountUsage, err error) {
	for r.Next() {
		switch r.Tag() {
		case 'n':
			a.Account = r.String()
		case 'k':
			a.Locked = r.Bool()
		case 'l':
			l, err := decodeLimitUsage(r.Nested())
			if err != nil {
				return a, err
			}
			a.Limits = append(a.Limits, l)
		}
	}
	return a, r.Err()
}

func decodeLimitUsage(r pack.Reader) (l LimitUsage, err error) {
	for r.Next() {
		switch r.Tag() {
		case 'l':
			l.Limit = r.String()
		case 'c':
			l.Used = r.Int()
		case 'u':
			l.Until = r.Int()
		}
	}
	return l, r.Err()
}
