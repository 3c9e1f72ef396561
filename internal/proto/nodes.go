package proto

import "posthaste/internal/pack"

// Kinds of messages about the nodes that share a queue.
const (
	KindNodes        = 160
	KindNodesReply   = 161
	KindForward      = 162
	KindForwardReply = 163
	KindCarry        = 166
)

// Nodes asks the queue manager which nodes share the queue, and whose its parts are.
type Nodes struct{}

func (*Nodes) Kind() uint16           { return KindNodes }
func (*Nodes) Append(b []byte) []byte { return b }
func (*Nodes) Decode([]byte) error    { return nil }

// NodesReply is the answer. Without parts the queue is not shared.
type NodesReply struct {
	Parts []NodePart // in the order of the nodes' names, and then of their numbers
	Nodes []NodeInfo // in the order of their names; all that were seen in the last day
}

// A NodePart is a part of the queue.
type NodePart struct {
	ID   int
	Node string // whose it is; empty: nobody's
	Own  bool   // it is the node's that was asked
	Down bool   // the node does not say that it lives, or there is none
	// Unread: it is the node's that was asked, which has not read all of it since it took it over. List with the part has what it has not
	// read.
	Unread bool
}

// A NodeInfo is a node.
type NodeInfo struct {
	Name string
	Own  bool // it was asked
	Down bool // it does not say that it lives
}

func (*NodesReply) Kind() uint16 { return KindNodesReply }
func (m *NodesReply) Append(b []byte) []byte {
	for i := range m.Parts {
		p := &m.Parts[i]
		b = pack.Nested(b, 'p', func(b []byte) []byte {
			b = pack.Int(b, 'i', p.ID)
			b = pack.String(b, 'n', p.Node)
			b = pack.Bool(b, 'o', p.Own)
			return pack.Bool(pack.Bool(b, 'd', p.Down), 'u', p.Unread)
		})
	}
	for i := range m.Nodes {
		n := &m.Nodes[i]
		b = pack.Nested(b, 'n', func(b []byte) []byte {
			b = pack.String(b, 'n', n.Name)
			b = pack.Bool(b, 'o', n.Own)
			return pack.Bool(b, 'd', n.Down)
		})
	}
	return b
}
func (m *NodesReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		if r.Tag() != 'p' && r.Tag() != 'n' {
			continue
		}
		var p NodePart // a node's fields are among those of a part
		n := r.Nested()
		for n.Next() {
			switch n.Tag() {
			case 'i':
				p.ID = int(n.Int())
			case 'n':
				p.Node = n.String()
			case 'o':
				p.Own = n.Bool()
			case 'd':
				p.Down = n.Bool()
			case 'u':
				p.Unread = n.Bool()
			}
		}
		if err := n.Err(); err != nil {
			return err
		}
		switch r.Tag() {
		case 'p':
			m.Parts = append(m.Parts, p)
		case 'n':
			m.Nodes = append(m.Nodes, NodeInfo{Name: p.Node, Own: p.Own, Down: p.Down})
		}
	}
	return r.Err()
}

// Forward asks the queue manager to ask that of another node, and to answer as that one does. The other one carries it
// out as if it had been asked there.
type Forward struct {
	Node    string
	By      string // who wants it, for the logs of both
	Asked   uint16 // kind of the message; one of those that Forwards names
	Payload []byte // the message
	// Parts are those of the queue that the node had when it was looked up. They may be another node's by now.
	Parts []int
}

// Forwards says whether messages of that kind may be forwarded: those of tools about the queue, what the pages and
// numbers of all nodes are made of, and what has come back of mail of another node.
func Forwards(kind uint16) bool {
	switch kind {
	case KindCommand, KindSelect, KindExplain, KindOverride, KindShape, KindGather, KindStanding, KindReturnPath, KindSuppressTell:
		return true
	}
	return false
}

func (*Forward) Kind() uint16 { return KindForward }
func (m *Forward) Append(b []byte) []byte {
	b = pack.String(b, 'n', m.Node)
	b = pack.String(b, 'b', m.By)
	b = pack.Uint(b, 'k', m.Asked)
	for _, id := range m.Parts {
		b = pack.Int(b, 'i', id)
	}
	return pack.Bytes(b, 'p', m.Payload)
}
func (m *Forward) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'n':
			m.Node = r.String()
		case 'b':
			m.By = r.String()
		case 'k':
			m.Asked = uint16(r.Uint())
		case 'i':
			m.Parts = append(m.Parts, int(r.Int()))
		case 'p':
			m.Payload = append([]byte(nil), r.Bytes()...)
		}
	}
	return r.Err()
}

// ForwardReply is what the other node answered.
type ForwardReply struct {
	Payload []byte // the answer to the message
	Failed  string // why there is none; it says whether it may have been carried out
	// Ordered says that it has not been carried out, and will be: why, what, and when.
	Ordered string
}

func (*ForwardReply) Kind() uint16 { return KindForwardReply }
func (m *ForwardReply) Append(b []byte) []byte {
	return pack.String(pack.String(pack.Bytes(b, 'p', m.Payload), 'f', m.Failed), 'o', m.Ordered)
}
func (m *ForwardReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'p':
			m.Payload = append([]byte(nil), r.Bytes()...)
		case 'f':
			m.Failed = r.String()
		case 'o':
			m.Ordered = r.String()
		}
	}
	return r.Err()
}

// Carry has the queue manager carry out what was ordered while nobody answered for it. What is asked without it waits until orders
// that were given before are carried out; this is one of them.
type Carry struct {
	Asked   uint16 // kind of the message; one of those that Forwards names
	Payload []byte // the message
	// By, if it is not empty, says that it is no order, but asked by another node at this moment, and for whom: it waits like what
	// is asked here.
	By string
}

func (*Carry) Kind() uint16 { return KindCarry }
func (m *Carry) Append(b []byte) []byte {
	return pack.String(pack.Bytes(pack.Uint(b, 'k', m.Asked), 'p', m.Payload), 'b', m.By)
}
func (m *Carry) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'k':
			m.Asked = uint16(r.Uint())
		case 'p':
			m.Payload = append([]byte(nil), r.Bytes()...)
		case 'b':
			m.By = r.String()
		}
	}
	return r.Err()
}

// Owned asks cleanup which parts of the queue can be changed through it now.
type Owned struct{ empty }

func (*Owned) Kind() uint16 { return KindOwned }

// OwnedReply is the answer. It is empty where the queue has no parts.
type OwnedReply struct {
	Parts   []OwnedPart
	Reading []int // parts that are the node's, of which it has not read all yet
}

// An OwnedPart is a part, and the epoch in which it is the node's: with the same epoch in a later answer it was that all the while.
type OwnedPart struct {
	ID    int
	Epoch int64
}

func (*OwnedReply) Kind() uint16 { return KindOwnedReply }
func (m *OwnedReply) Append(b []byte) []byte {
	for _, p := range m.Parts {
		b = pack.Nested(b, 'p', func(b []byte) []byte { return pack.Int(pack.Int(b, 'i', p.ID), 'e', p.Epoch) })
	}
	for _, id := range m.Reading {
		b = pack.Int(b, 'r', id)
	}
	return b
}
func (m *OwnedReply) Decode(b []byte) error {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'p':
		case 'r':
			m.Reading = append(m.Reading, int(r.Int()))
			continue
		default:
			continue
		}
		var p OwnedPart
		n := r.Nested()
		for n.Next() {
			switch n.Tag() {
			case 'i':
				p.ID = int(n.Int())
			case 'e':
				p.Epoch = n.Int()
			}
		}
		if err := n.Err(); err != nil {
			return err
		}
		m.Parts = append(m.Parts, p)
	}
	return r.Err()
}
