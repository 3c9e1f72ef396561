package proto

import "posthaste/internal/pack"

// Rewrite asks for an address in standard form.
type Rewrite struct {
	Context string // "local" or "remote"
	Address string
}

func (*Rewrite) Kind() uint16 { return KindRewrite }
func (m *Rewrite) Append(b []byte) []byte {
	return pack.String(pack.String(b, 'c', m.Context), 'a', m.Address)
}
func (m *Rewrite) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'c':
			m.Context = r.String()
		case 'a':
			m.Address = r.String()
		}
	}
	return r.Err()
}

// RewriteReply is the address in standard form.
type RewriteReply struct{ Address string }

func (*RewriteReply) Kind() uint16             { return KindRewriteReply }
func (m *RewriteReply) Append(b []byte) []byte { return pack.String(b, 'a', m.Address) }
func (m *RewriteReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == 'a' {
			m.Address = r.String()
		}
	}
	return r.Err()
}

// Resolve asks where mail for an address goes.
type Resolve struct {
	Sender, Address string
	Verify          bool // use the address_verify_ parameters
	Limits          bool // say what is limited, too, and what it goes from; it may take a DNS lookup
	// The pool of sources that the envelope names; empty: none.
	Pool string
}

func (*Resolve) Kind() uint16 { return KindResolve }
func (m *Resolve) Append(b []byte) []byte {
	b = pack.String(pack.String(b, 's', m.Sender), 'a', m.Address)
	b = pack.Bool(b, 'v', m.Verify)
	return pack.String(pack.Bool(b, 'l', m.Limits), 'p', m.Pool)
}
func (m *Resolve) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 's':
			m.Sender = r.String()
		case 'a':
			m.Address = r.String()
		case 'v':
			m.Verify = r.Bool()
		case 'l':
			m.Limits = r.Bool()
		case 'p':
			m.Pool = r.String()
		}
	}
	return r.Err()
}

// ResolveFlags are the address class and what is special about the address.
type ResolveFlags uint16

const (
	ResolveLocal   ResolveFlags = 1 << iota // domain in mydestination or an own address
	ResolveAlias                            // virtual_alias_domains
	ResolveMailbox                          // virtual_mailbox_domains
	ResolveRelay                            // relay_domains
	ResolveDefault                          // none of the above
	ResolveRouted                           // something of @ ! % precedes the final domain
	ResolveError                            // bad address syntax
	ResolveFail                             // a table could not be asked: try later
)

// ResolveReply is where it goes.
type ResolveReply struct {
	Transport, Nexthop, Recipient string
	Flags                         ResolveFlags
	// Fixed says that the answer depends on nothing but the address's domain
	// class and files whose change would be announced by Stale: the asker may
	// keep it until then. FixedSender says the same of an answer that depends on the sender, too.
	// With Resolve.Pool either depends on that as well.
	Fixed, FixedSender bool

	// The rest answers Resolve.Limits. Site is the name of the set of mail hosts that the
	// next hop has, when destinations that share them are one; Alone says that this next hop
	// is a destination of its own even so. Provider is who is behind it. The limits of each,
	// and of the next hop itself, are as rate.ParseLimits reads them, without error. What is
	// empty does not exist.
	Site, Provider                        string
	Alone                                 bool
	OwnLimits, SiteLimits, ProviderLimits string
	// The pool of sources that mail goes from; empty: there is none. Its members are as
	// AppendMembers writes them, and in the same order in each answer.
	Pool, Members string
	// What the next hop is called where destinations are told apart, for limits of its own;
	// empty: it is no host.
	Hop string
	// What goes with the destination to its agent, as shaping.ParseAdvice reads it; empty: nothing.
	Advice string
}

// A PoolMember is a source from which mail may go.
type PoolMember struct {
	Source string
	Weight int
	Spec   string // as egress.Parse reads it, without error
	// Limits for what goes from this source alone, as those of ResolveReply.
	OwnLimits, SiteLimits, ProviderLimits string
	// The day of its warm-up, from 1, and how many recipients it may have in it at each
	// provider, else site, else domain; 0: it does not warm up. Wait says that what is over
	// waits, and goes from no other source.
	Day    int
	Warmup int64
	Wait   bool
	// What goes with the destination from this source, in the place of ResolveReply.Advice.
	Advice string
}

// AppendMembers gives the text of ResolveReply.Members.
func AppendMembers(b []byte, list []PoolMember) string {
	for i := range list {
		m := &list[i]
		b = pack.Nested(b, 'm', func(b []byte) []byte {
			b = pack.Int(pack.String(b, 'n', m.Source), 'w', m.Weight)
			b = pack.String(b, 's', m.Spec)
			b = pack.String(pack.String(pack.String(b, 'o', m.OwnLimits), 'l', m.SiteLimits), 'p', m.ProviderLimits)
			b = pack.Int(pack.Int(b, 'd', m.Day), 'c', int(m.Warmup))
			return pack.String(pack.Bool(b, 'x', m.Wait), 'v', m.Advice)
		})
	}
	return string(b)
}

// DecodeMembers is the inverse of AppendMembers.
func DecodeMembers(text string) (list []PoolMember, err error) {
	r := pack.NewReader([]byte(text))
	for r.Next() {
		if r.Tag() != 'm' {
			continue
		}
		var m PoolMember
		in := r.Nested()
		for in.Next() {
			switch in.Tag() {
			case 'n':
				m.Source = in.String()
			case 'w':
				m.Weight = int(in.Int())
			case 's':
				m.Spec = in.String()
			case 'o':
				m.OwnLimits = in.String()
			case 'l':
				m.SiteLimits = in.String()
			case 'p':
				m.ProviderLimits = in.String()
			case 'd':
				m.Day = int(in.Int())
			case 'c':
				m.Warmup = in.Int()
			case 'x':
				m.Wait = in.Bool()
			case 'v':
				m.Advice = in.String()
			}
		}
		if err := in.Err(); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, r.Err()
}

func (*ResolveReply) Kind() uint16 { return KindResolveReply }
func (m *ResolveReply) Append(b []byte) []byte {
	b = pack.String(b, 't', m.Transport)
	b = pack.String(b, 'n', m.Nexthop)
	b = pack.String(b, 'r', m.Recipient)
	b = pack.Uint(b, 'f', m.Flags)
	b = pack.Bool(pack.Bool(b, 'x', m.Fixed), 'y', m.FixedSender)
	b = pack.String(pack.String(b, 's', m.Site), 'p', m.Provider)
	b = pack.Bool(b, 'a', m.Alone)
	b = pack.String(pack.String(pack.String(b, 'o', m.OwnLimits), 'l', m.SiteLimits), 'm', m.ProviderLimits)
	b = pack.String(pack.String(pack.String(b, 'e', m.Pool), 'b', m.Members), 'h', m.Hop)
	return pack.String(b, 'v', m.Advice)
}
func (m *ResolveReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 't':
			m.Transport = r.String()
		case 'n':
			m.Nexthop = r.String()
		case 'r':
			m.Recipient = r.String()
		case 'f':
			m.Flags = ResolveFlags(r.Uint())
		case 'x':
			m.Fixed = r.Bool()
		case 'y':
			m.FixedSender = r.Bool()
		case 's':
			m.Site = r.String()
		case 'p':
			m.Provider = r.String()
		case 'a':
			m.Alone = r.Bool()
		case 'o':
			m.OwnLimits = r.String()
		case 'l':
			m.SiteLimits = r.String()
		case 'm':
			m.ProviderLimits = r.String()
		case 'e':
			m.Pool = r.String()
		case 'b':
			m.Members = r.String()
		case 'h':
			m.Hop = r.String()
		case 'v':
			m.Advice = r.String()
		}
	}
	return r.Err()
}

// Stale is pushed by trivial-rewrite when a table that it reads has changed:
// what was kept of its answers is void.
type Stale struct{ empty }

func (*Stale) Kind() uint16 { return KindStale }
