package proto

import "posthaste/internal/pack"

// Kinds of the verify service's messages.
const (
	KindProbe      = 60
	KindProbeReply = 61
	KindProbed     = 62
)

// ProbeStatus is what is known of an address.
type ProbeStatus uint8

const (
	ProbeOK     ProbeStatus = iota // mail to it would be delivered
	ProbeDefer                     // the last probe found out nothing, for a reason that may pass
	ProbeBounce                    // mail to it would be returned
	ProbeTodo                      // nothing is known yet; a probe is under way
)

// Probe asks the verify service whether mail to an address in standard form
// would be delivered. The answer comes at once, from what is known.
type Probe struct{ Address string }

func (*Probe) Kind() uint16             { return KindProbe }
func (m *Probe) Append(b []byte) []byte { return pack.String(b, 'a', m.Address) }
func (m *Probe) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() == 'a' {
			m.Address = r.String()
		}
	}
	return r.Err()
}

// ProbeReply is what is known.
type ProbeReply struct {
	Status ProbeStatus
	Text   string // the last server's words, or ours
}

func (*ProbeReply) Kind() uint16 { return KindProbeReply }
func (m *ProbeReply) Append(b []byte) []byte {
	return pack.String(pack.Uint(b, 's', m.Status), 't', m.Text)
}
func (m *ProbeReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 's':
			m.Status = ProbeStatus(r.Uint())
		case 't':
			m.Text = r.String()
		}
	}
	return r.Err()
}

// Probed tells the verify service what a probe came to. It is pushed by the
// queue manager, and by cleanup for an address that is an alias.
type Probed struct {
	Address string
	Status  ProbeStatus
	Text    string
}

func (*Probed) Kind() uint16 { return KindProbed }
func (m *Probed) Append(b []byte) []byte {
	b = pack.String(b, 'a', m.Address)
	b = pack.Uint(b, 's', m.Status)
	return pack.String(b, 't', m.Text)
}
func (m *Probed) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'a':
			m.Address = r.String()
		case 's':
			m.Status = ProbeStatus(r.Uint())
		case 't':
			m.Text = r.String()
		}
	}
	return r.Err()
}
