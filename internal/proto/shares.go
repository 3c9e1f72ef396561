package proto

import (
	"posthaste/internal/nodeshare"
	"posthaste/internal/pack"
)

// Shares has cleanup exchange the queue manager's shares of limits with those of other nodes, as package nodeshare
// says: cleanup alone writes to the database that the nodes share. Node and Turn of the request are cleanup's to say.
type Shares struct {
	Alone  bool
	Claims []nodeshare.Claim // SharesLimit at most
	More   bool              // as in nodeshare.Request. A cleanup that does not know it forgets what is left out
	Fresh  bool              // likewise
}

// SharesLimit bounds the claims of one exchange.
const SharesLimit = 10000

func (*Shares) Kind() uint16 { return KindShares }

func (m *Shares) Append(b []byte) []byte {
	b = pack.Bool(b, 'a', m.Alone)
	b = pack.Bool(b, 'm', m.More)
	b = pack.Bool(b, 'f', m.Fresh)
	for i := range m.Claims {
		c := &m.Claims[i]
		b = pack.Nested(b, 'c', func(b []byte) []byte {
			b = pack.String(b, 'k', c.Key)
			b = pack.Int(b, 'l', c.Limit)
			b = pack.Int(b, 'h', c.Hold)
			return pack.Int(b, 'd', c.Demand)
		})
	}
	return b
}

func (m *Shares) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'a':
			m.Alone = r.Bool()
		case 'm':
			m.More = r.Bool()
		case 'f':
			m.Fresh = r.Bool()
		case 'c':
			var c nodeshare.Claim
			n := r.Nested()
			for n.Next() {
				switch n.Tag() {
				case 'k':
					c.Key = n.String()
				case 'l':
					c.Limit = int(n.Int())
				case 'h':
					c.Hold = int(n.Int())
				case 'd':
					c.Demand = int(n.Int())
				}
			}
			if err := n.Err(); err != nil {
				return err
			}
			m.Claims = append(m.Claims, c)
		}
	}
	return r.Err()
}

// SharesReply is what the queue manager may use.
type SharesReply struct {
	Alone  bool
	Grants []nodeshare.Grant
}

func (*SharesReply) Kind() uint16 { return KindSharesReply }

func (m *SharesReply) Append(b []byte) []byte {
	b = pack.Bool(b, 'a', m.Alone)
	for i := range m.Grants {
		g := &m.Grants[i]
		b = pack.Nested(b, 'g', func(b []byte) []byte {
			b = pack.String(b, 'k', g.Key)
			b = pack.Int(b, 's', g.Share)
			b = pack.Int(b, 't', g.Target)
			return pack.Int(b, 'f', g.Former)
		})
	}
	return b
}

func (m *SharesReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'a':
			m.Alone = r.Bool()
		case 'g':
			var g nodeshare.Grant
			n := r.Nested()
			for n.Next() {
				switch n.Tag() {
				case 'k':
					g.Key = n.String()
				case 's':
					g.Share = int(n.Int())
				case 't':
					g.Target = int(n.Int())
				case 'f':
					g.Former = int(n.Int())
				}
			}
			if err := n.Err(); err != nil {
				return err
			}
			m.Grants = append(m.Grants, g)
		}
	}
	return r.Err()
}
