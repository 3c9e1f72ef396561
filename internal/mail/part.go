package mail

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"posthaste/internal/dsn"
	"posthaste/internal/pack"
	"posthaste/internal/rfc5322"
)

// A Part is what an attempt came to for one of the destinations that an
// alias, a list or a .forward file has made of a recipient.
type Part struct {
	Address  string // the member's; for a command or a file that of whose it is
	Action   dsn.Action
	Status   dsn.Status
	Reason   string // this and what follows is as in Outcome
	Relay    string
	MTA      string
	DiagType string
	DiagText string
	Owner    string
	// More is over 0 when this stands for so many destinations, for which one
	// outcome had no room.
	More int
	// Told says that whoever is to hear of it has: it is not reported again.
	Told bool
}

// Part is o as what came of one destination.
func (o *Outcome) Part(address string) Part {
	return Part{Address: address, Action: o.Action, Status: o.Status, Reason: o.Reason, Relay: o.Relay, MTA: o.MTA,
		DiagType: o.DiagType, DiagText: o.DiagText, Owner: o.Owner}
}

// Outcome is p as what came of a recipient, whose number and time are for who
// knows them to fill in.
func (p *Part) Outcome() Outcome {
	return Outcome{Action: p.Action, Status: p.Status, Reason: p.Reason, Relay: p.Relay, MTA: p.MTA,
		DiagType: p.DiagType, DiagText: p.DiagText, Owner: p.Owner}
}

const (
	// maxParts and maxPartsOctets bound the parts of an outcome, maxPartText
	// each of their texts, so that an outcome fits into any request and record,
	// whatever people write into their files.
	maxParts       = 50
	maxPartsOctets = 16 << 10
	maxPartText    = 2000
)

// BoundParts makes of list what one outcome may have: texts are cut, and what
// is over the bounds stands together, by action, as of the address whole. It
// changes list.
func BoundParts(list []Part, whole string) []Part {
	size := 0
	for i := range list {
		p := &list[i]
		for _, text := range []*string{&p.Address, &p.Reason, &p.Relay, &p.MTA, &p.DiagType, &p.DiagText, &p.Owner} {
			*text = cutText(*text)
		}
		if size += p.Octets(); i >= maxParts || size > maxPartsOctets {
			return append(list[:i:i], summaries(list[i:], whole)...)
		}
	}
	return list
}

// cutText cuts at the beginning of a character.
func cutText(s string) string {
	if len(s) <= maxPartText {
		return s
	}
	n := maxPartText
	for n > maxPartText-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// summaries is one part for each action in list.
func summaries(list []Part, whole string) (out []Part) {
	for i := range list {
		p := &list[i]
		k := slices.IndexFunc(out, func(s Part) bool { return s.Action == p.Action })
		if k < 0 {
			k = len(out)
			out = append(out, Part{Address: cutText(whole), Action: p.Action, Status: p.Status, Relay: cutText(p.Relay), Owner: cutText(p.Owner)})
			out[k].Reason = cutText(p.Reason)
		}
		s := &out[k]
		s.More += max(p.More, 1)
		if s.Owner != p.Owner {
			s.Owner = "" // no one list's: the sender hears of it
		}
	}
	for k := range out {
		out[k].Reason = cutText(fmt.Sprintf("%d more destinations, which the mail log names; the first: %s", out[k].More, out[k].Reason))
	}
	return out
}

// Octets is about what p takes in a request or record.
func (p *Part) Octets() int {
	return 40 + len(p.Address) + len(p.Reason) + len(p.Relay) + len(p.MTA) + len(p.DiagType) + len(p.DiagText) + len(p.Owner)
}

// IsGood says whether it tells of success: of a member, or of the expansion
// itself (RFC 3461 section 5.2.7).
func (p *Part) IsGood() bool {
	return p.Action == dsn.Delivered || p.Action == dsn.Relayed || p.Action == dsn.Expanded
}

// HasGood says whether a part tells of success, and that has been told or not.
func (o *Outcome) HasGood(told bool) bool {
	return slices.ContainsFunc(o.Parts, func(p Part) bool { return p.IsGood() && p.Told == told })
}

// HasFailed says whether a part has failed for good.
func (o *Outcome) HasFailed() bool {
	return slices.ContainsFunc(o.Parts, func(p Part) bool { return p.Action == dsn.Failed })
}

// Untold says whether a part has failed for good and nobody has been told.
func (o *Outcome) Untold() bool {
	return slices.ContainsFunc(o.Parts, func(p Part) bool { return p.Action == dsn.Failed && !p.Told })
}

// Tell notes that the parts that have failed for good have been told, or those
// that are good. Copies of o are not changed.
func (o *Outcome) Tell(good bool) {
	o.Parts = slices.Clone(o.Parts)
	for i := range o.Parts {
		p := &o.Parts[i]
		p.Told = p.Told || good && p.IsGood() || !good && p.Action == dsn.Failed
	}
}

// Why is the reason in words for people who look into the queue. Of a recipient
// that was expanded it names those that keep it there, together where one
// reason is that of several.
func (o *Outcome) Why() string {
	type group struct{ names, reason string }
	var list []group
	for i := range o.Parts {
		p := &o.Parts[i]
		if p.Action != o.Action || p.IsGood() {
			continue
		}
		name := rfc5322.Quote(p.Address)
		if p.More > 0 {
			name = "" // the reason says how many they are
		}
		k := slices.IndexFunc(list, func(g group) bool { return g.reason == p.Reason && g.names != "" && name != "" })
		if k >= 0 {
			list[k].names += ", " + name
		} else {
			list = append(list, group{name, p.Reason})
		}
	}
	if len(list) == 0 { // what keeps it has to do with no part of it
		return o.Reason
	}
	var b strings.Builder
	for i, g := range list {
		if i > 0 {
			b.WriteString("; ")
		}
		if g.names != "" {
			b.WriteString(g.names + ": ")
		}
		b.WriteString(g.reason)
	}
	return cutText(b.String())
}

// Follow takes over what is known from old, the same recipient's outcome
// before o. What fails as it did then, and was told, is not to be told again;
// address, action and status say that it is the same, and the reason which of
// several. While the recipient is to be tried again all that failed for good, or
// was told, is kept, too: the next attempt may come across it again, where this
// one did not get so far. The parts of o belong to o alone.
func (o *Outcome) Follow(old *Outcome) {
	if len(old.Parts) == 0 {
		return
	}
	heard, found := make([]bool, len(old.Parts)), make([]bool, len(o.Parts))
	for _, exact := range []bool{true, false} {
		for i := range o.Parts {
			p := &o.Parts[i]
			for k := range old.Parts {
				q := &old.Parts[k]
				if !found[i] && !heard[k] && p.Action == q.Action && p.Status == q.Status && p.Address == q.Address &&
					p.More == q.More && (!exact || p.Reason == q.Reason) {
					found[i], heard[k] = true, true
					p.Told = p.Told || q.Told
				}
			}
		}
	}
	if o.Action != dsn.Deferred {
		return
	}
	for k := range old.Parts {
		p := old.Parts[k]
		if heard[k] || p.Action != dsn.Failed && !p.Told || len(o.Parts) >= 2*maxParts {
			continue
		}
		if p.Told { // all that is still of use
			p = Part{Address: p.Address, Action: p.Action, Status: p.Status, Reason: p.Reason, More: p.More, Told: true}
		}
		o.Parts = append(o.Parts, p)
	}
}

// append appends p as one field.
func (p *Part) append(b []byte, tag byte) []byte {
	return pack.Nested(b, tag, func(b []byte) []byte {
		b = pack.Bytes(b, 'R', p.Address)
		o := p.Outcome()
		b = o.appendVerdict(b)
		b = pack.Int(b, '+', p.More)
		return pack.Bool(b, 'T', p.Told)
	})
}

func (p *Part) decode(r pack.Reader) error {
	var o Outcome
	var address string
	more, told := 0, false
	for r.Next() {
		switch r.Tag() {
		case 'R':
			address = r.String()
		case '+':
			more = int(r.Int())
		case 'T':
			told = r.Bool()
		default:
			o.readVerdict(&r)
		}
	}
	*p = o.Part(address)
	p.More, p.Told = more, told
	return r.Err()
}
