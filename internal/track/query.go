package track

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A Field is what a condition is about.
type Field uint8

// The fields of conditions.
const (
	Anything Field = iota // whatever the value looks like: any of those below but Reply and Text
	ID
	MessageID
	From
	To
	Client // name, address, network, or what it called itself; also before a filter
	Relay  // name or address of the next hop
	User   // as whom the client logged in
	Reply  // a part of a reply or a reason, of either side
	Text   // a part of any line
)

// A Condition is one thing that must be true of a message, or of another that it is connected with: one that it came
// of, or that came of it. The case of ASCII letters does not matter, but in queue IDs.
//
// From, To and Anything take an address, or @DOMAIN. From <> is the null sender.
type Condition struct {
	Field Field
	Value string
}

// A Query says what is looked for: what fulfils all conditions. There must be a condition or a time.
type Query struct {
	Conditions []Condition
	// Since and Until bound the time of the lines that are compared. A message is shown as a whole. The zero
	// time is no bound.
	Since, Until time.Time
}

// maxConditions bounds a query: a word has a bit for each.
const maxConditions = 32

// A key is one that a line has, by which it fulfils a condition.
type key struct {
	class class
	value []byte
}

// A matcher is a condition, ready to be compared.
type matcher struct {
	keys   []key        // one of these; if there is none, what follows
	net    netip.Prefix // or a client in this network
	part   []byte       // or this in a reply, in lower case
	whole  bool         // not only in a reply
	rough  string       // what stands in each line that fulfils it, in lower case; empty: that is not known
	tokens []token      // what each block has that has such a line; nil: that is not known
	wishes []wish       // of keys
	fold   bool         // their texts are in lower case
}

// A plan is a query, ready to be compared.
type plan struct {
	matchers     []matcher
	since, until int64 // microseconds since 1970
	timed        bool
	all          uint64 // the bits of a match: 1 for the time, and one for each matcher
}

// Valid says what is wrong with a query.
func (q Query) Valid() error {
	_, err := q.plan()
	return err
}

func (q Query) plan() (*plan, error) {
	p := &plan{until: 1<<63 - 1, since: -1 << 63, timed: !q.Since.IsZero() || !q.Until.IsZero(), all: 1}
	if !q.Since.IsZero() {
		p.since = q.Since.UnixMicro()
	}
	if !q.Until.IsZero() {
		p.until = q.Until.UnixMicro()
	}
	if len(q.Conditions) == 0 && !p.timed {
		return nil, fmt.Errorf("nothing to look for")
	}
	if len(q.Conditions) > maxConditions {
		return nil, fmt.Errorf("%d conditions are more than %d", len(q.Conditions), maxConditions)
	}
	for i, c := range q.Conditions {
		m, err := c.matcher()
		if err != nil {
			return nil, err
		}
		p.matchers = append(p.matchers, m)
		p.all |= 2 << i
	}
	return p, nil
}

func (c Condition) matcher() (m matcher, err error) {
	if c.Value == "" {
		return m, fmt.Errorf("an empty pattern would match everything")
	}
	if c.Field == Reply || c.Field == Text {
		m.part, m.whole = lower(nil, []byte(c.Value)), c.Field == Text
		if literal(m.part) {
			m.rough = string(m.part)
		}
		m.tokens = textTokens(m.part)
		return m, nil
	}
	classes := c.classes()
	m.fold = slices.ContainsFunc(classes, func(c class) bool { return c != keyID })
	for _, class := range classes {
		value := c.Value
		switch class {
		case keyID:
		case keyMessageID:
			value = string(bare([]byte(value)))
		case keyFrom, keyTo:
			value = strings.TrimSuffix(strings.TrimPrefix(value, "<"), ">")
		case keyFromDomain, keyToDomain:
			value = strings.TrimPrefix(value, "@")
		case keyClient, keyRelay:
			value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
			if a, err := netip.ParseAddr(value); err == nil {
				value = a.String()
			} else if p, err := netip.ParsePrefix(value); err == nil {
				m.net = p.Masked()
				continue
			}
		}
		if class != keyID {
			value = string(lower(nil, []byte(value))) // of other letters than ASCII's the case matters: as they stand in a line
		}
		m.keys = append(m.keys, key{class, []byte(value)})
		m.wishes = append(m.wishes, newWish(class, []byte(value), m.fold))
	}
	if m.net.IsValid() {
		m.keys, m.wishes, m.tokens = nil, nil, netTokens(m.net)
	}
	return m, nil
}

// classes are those that a condition's value may be a key of.
func (c Condition) classes() []class {
	domain := strings.HasPrefix(c.Value, "@")
	switch c.Field {
	case ID:
		return []class{keyID}
	case MessageID:
		return []class{keyMessageID}
	case From:
		if domain {
			return []class{keyFromDomain}
		}
		return []class{keyFrom}
	case To:
		if domain {
			return []class{keyToDomain}
		}
		return []class{keyTo}
	case Client:
		return []class{keyClient}
	case Relay:
		return []class{keyRelay}
	case User:
		return []class{keyUser}
	}
	host := strings.TrimSuffix(strings.TrimPrefix(c.Value, "["), "]")
	_, notAddr := netip.ParseAddr(host)
	_, notNet := netip.ParsePrefix(host)
	switch {
	case domain:
		return []class{keyFromDomain, keyToDomain}
	case c.Value == "<>":
		return []class{keyFrom}
	case notNet == nil:
		return []class{keyClient}
	case notAddr == nil:
		return []class{keyClient, keyRelay}
	case strings.Contains(c.Value, "@"):
		return []class{keyFrom, keyTo, keyMessageID, keyUser}
	}
	return []class{keyID, keyFrom, keyTo, keyMessageID, keyFromDomain, keyToDomain, keyClient, keyRelay, keyUser}
}

// match says which conditions a line fulfils. None if it is not of the time that is asked for.
func (p *plan) match(e *event) uint64 {
	if at := e.line.Time; p.timed && (at == 0 || at < p.since || at >= p.until) {
		return 0
	}
	bits := uint64(1)
	for i := range p.matchers {
		if p.matchers[i].match(e) {
			bits |= 2 << i
		}
	}
	return bits
}

func (m *matcher) match(e *event) bool {
	switch {
	case m.part != nil:
		return m.matchText(e)
	case m.net.IsValid():
		return m.inNet(e.client.Addr) || m.inNet(e.orig.Addr)
	}
	found := false
	e.keys(func(c class, k []byte) {
		if found {
			return
		}
		for i := range m.keys {
			if want := &m.keys[i]; want.class == c && len(want.value) == len(k) && same(want.value, k, c) {
				found = true
				return
			}
		}
	})
	return found
}

// same says whether k is the key want, which is in lower case if that does not matter.
func same(want, k []byte, c class) bool {
	for i, b := range k {
		if b >= 'A' && b <= 'Z' && c != keyID {
			b |= 0x20
		}
		if b != want[i] {
			return false
		}
	}
	return true
}

func (m *matcher) inNet(addr []byte) bool {
	if len(addr) == 0 {
		return false
	}
	a, err := netip.ParseAddr(string(addr))
	return err == nil && m.net.Contains(a.Unmap())
}

// meets says whether a segment may have lines of the time that is asked for, and reaches whether a block of it may.
func (p *plan) meets(s *segment) bool {
	least, most := s.times()
	return !p.timed || s.undated || least != 0 && most >= p.since && least < p.until
}

func (p *plan) reaches(s *segment, b *span) bool {
	return !p.timed || s.undated || b.min != 0 && b.max >= p.since && b.min < p.until
}

// matchText looks for a part of a line, or of a reply: of a delivery, of a verdict, or of a line without a form of its own.
func (m *matcher) matchText(e *event) bool {
	text := e.line.Text
	switch {
	case m.whole || e.kind == note || e.kind == session:
	case e.kind == delivery:
		text = e.delivery.Reason
	case e.kind == verdict:
		text = e.verdict.Text
	default:
		return false
	}
	return len(text) >= len(m.part) && bytes.Contains(lower(nil, text), m.part)
}
