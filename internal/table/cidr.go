package table

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// cidrTable is cidr: networks in order, the first that holds the address wins.
type cidrTable struct {
	file *watched[*networks] // nil for a table in braces
	text *networks
}

// networks is a table's rules. Rules that are plain networks are found by
// prefix in one map per prefix length; the first in the order of the text
// wins, so that a table of any size costs one look per length in use. Rules
// in if blocks and negated ones, which are few, are tried one after the other.
type networks struct {
	rules  []networkRule
	bits   []int // prefix lengths in use, for both families
	exact  map[netip.Prefix]int
	linear []int // indices of rules that need conditions looked at
}

type networkRule struct {
	prefix netip.Prefix
	not    bool
	value  string
	conds  []networkCond
	bad    error // set when the rule cannot be read and lookups must not pass it
}

type networkCond struct {
	prefix netip.Prefix
	not    bool
}

func openCIDR(name string, o Options) (Table, error) {
	if strings.HasPrefix(name, "{") {
		text, err := bracedLines(name)
		if err != nil {
			return nil, err
		}
		return &cidrTable{text: parseNetworks("cidr:"+name, text, o)}, nil
	}
	file, err := newWatched(name, o, func(path string) (*networks, error) {
		text, err := readText(path)
		if err != nil {
			return nil, err
		}
		return parseNetworks(path, text, o), nil
	})
	if err != nil {
		return nil, err
	}
	return &cidrTable{file: file}, nil
}

// bracedLines turns { {line}, {line} } into the text of a file.
func bracedLines(name string) (string, error) {
	items, err := Braced(name)
	return strings.Join(items, "\n"), err
}

func parseNetworks(name, text string, o Options) *networks {
	n := &networks{exact: make(map[netip.Prefix]int)}
	var conds []networkCond
	// bad passes over a line, or makes it one that lookups stop at.
	bad := func(line int, err error, result string) {
		err = fmt.Errorf("%s, line %d: %w", name, line, err)
		if !o.stops(result) {
			o.warn("%v; line ignored", err)
			return
		}
		o.warn("%v; lookups that come to this rule fail", err)
		n.add(networkRule{bad: err, conds: conds})
	}
	_ = EachLine(text, func(num int, line string) error {
		word, rest := cutField(line)
		switch strings.ToLower(word) {
		case "endif":
			if len(conds) == 0 {
				o.warn("%s, line %d: endif without if; line ignored", name, num)
				return nil
			}
			conds = conds[:len(conds)-1]
			return nil
		case "if":
			c, tail, err := parseCond(rest)
			if err == nil && tail != "" {
				o.warn("%s, line %d: text after the network of if is ignored", name, num)
			}
			if err != nil {
				bad(num, err, "")
				// What stands inside must not be taken as unconditional.
				c = networkCond{}
			}
			conds = append(conds[:len(conds):len(conds)], c)
			return nil
		}
		c, result, err := parseCond(line)
		if err == nil && result == "" {
			err = fmt.Errorf("expected network/length, white space, result")
		}
		if err != nil {
			bad(num, err, result)
			return nil
		}
		n.add(networkRule{prefix: c.prefix, not: c.not, value: result, conds: conds})
		return nil
	})
	if len(conds) > 0 {
		o.warn("%s: if without endif", name)
	}
	return n
}

// add appends a rule, and has it found.
func (n *networks) add(r networkRule) {
	n.rules = append(n.rules, r)
	i := len(n.rules) - 1
	if r.bad != nil || r.not || len(r.conds) > 0 {
		n.linear = append(n.linear, i)
		return
	}
	if _, dup := n.exact[r.prefix]; !dup {
		n.exact[r.prefix] = i
	}
	if b := r.prefix.Bits(); !slices.Contains(n.bits, b) {
		n.bits = append(n.bits, b)
	}
}

// parseCond reads a network with any number of "!" before it, between which
// there may be white space, and returns what follows.
func parseCond(text string) (c networkCond, rest string, err error) {
	for strings.HasPrefix(text, "!") {
		c.not = !c.not
		text = strings.TrimLeft(text[1:], " \t")
	}
	word, rest := cutField(text)
	c.prefix, err = parseNetwork(word)
	if err == nil && !c.prefix.IsValid() {
		err = fmt.Errorf("%q: expected an address or network/length", word)
	}
	return c, rest, err
}

// cutField cuts line at its first white space.
func cutField(line string) (word, rest string) {
	if i := strings.IndexAny(line, " \t"); i >= 0 {
		return line[:i], strings.TrimSpace(line[i:])
	}
	return line, ""
}

// holds says whether a meets the condition. One about IPv4 says nothing of IPv6
// addresses, with "!" as little as without.
func (c networkCond) holds(a netip.Addr) bool {
	return c.prefix.Addr().Is4() == a.Is4() && c.prefix.Contains(a) != c.not
}

// find returns the result of the first rule that holds a. It fails at a rule
// that must not be passed.
func (n *networks) find(a netip.Addr) (string, bool, error) {
	best := len(n.rules)
	for _, b := range n.bits {
		if b > a.BitLen() {
			continue
		}
		p, _ := a.Prefix(b)
		if i, ok := n.exact[p]; ok && i < best {
			best = i
		}
	}
linear:
	for _, i := range n.linear {
		if i >= best {
			break
		}
		r := &n.rules[i]
		if r.bad == nil && !(networkCond{r.prefix, r.not}).holds(a) {
			continue
		}
		for _, c := range r.conds {
			if !c.prefix.IsValid() || !c.holds(a) {
				continue linear
			}
		}
		best = i
		break
	}
	if best == len(n.rules) {
		return "", false, nil
	}
	r := &n.rules[best]
	return r.value, r.bad == nil, r.bad
}

func (t *cidrTable) Lookup(_ context.Context, key string) (string, bool, error) {
	a, err := netip.ParseAddr(key)
	if err != nil {
		return "", false, nil // a host name is in no network
	}
	n := t.text
	if t.file != nil {
		if n, err = t.file.get(); err != nil {
			return "", false, err
		}
	}
	return n.find(a.Unmap())
}

func (t *cidrTable) Pattern() bool { return true }
func (t *cidrTable) Close() error  { return nil }

// Owner implements Owned.
func (t *cidrTable) Owner() (int, bool) {
	if t.file == nil {
		return 0, true
	}
	return t.file.owner()
}
