package table

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// A Kind of match list says what an element that is not a table matches.
type Kind uint8

const (
	Strings   Kind = iota // itself
	Domains               // itself, and subdomains: of "domain" with Parent, of ".domain" without
	Addresses             // an IP address or network
	Clients               // a host name as with Domains, or an address as with Addresses
)

// A List is a match list, such as mydestination, relay_domains or mynetworks:
// elements in order, the first match decides. An element is a pattern, a table
// type:name in which a key that is found matches, or /file/name, which stands
// for the elements in the file. "!" before an element makes a match mean no.
// Letter case does not count. The zero List, like a nil one, matches nothing.
//
// Match may be called concurrently.
type List struct {
	title  string
	kind   Kind
	parent bool
	items  []listItem
	opt    Options

	// words is all of items when they are plain words in a long list: the
	// first item that matches decides, so a set will do only if nothing is
	// negated.
	words map[string]struct{}
}

type listItem struct {
	not    bool
	text   string // in lower case
	prefix netip.Prefix
	maps   *Maps
	err    error // of a file that could not be read: matching it fails
}

// ListOptions says how a List is made.
type ListOptions struct {
	Kind   Kind
	Parent bool // a domain matches its subdomains too (parent_domain_matches_subdomains)
	Table  Options
}

// NewList makes a List of elements, with title, the parameter's name, for
// errors. An element that can never match what it was meant to, such as a
// network with host bits set, is an error; a file that cannot be read makes
// matching fail when it comes to it.
func NewList(title string, elements []string, o ListOptions) (*List, error) {
	l := &List{title: title, kind: o.Kind, parent: o.Parent, opt: o.Table}
	var errs []error
	for _, e := range elements {
		if err := l.add(e, false, 0); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", title, err))
		}
	}
	l.index()
	return l, errors.Join(errs...)
}

const maxListNesting = 10 // of files that name files

func (l *List) add(element string, not bool, depth int) error {
	for element != "" && element[0] == '!' {
		not = !not
		element = strings.TrimSpace(element[1:])
	}
	switch {
	case element == "":
		return errors.New("no pattern after \"!\"")
	case element[0] == '/':
		return l.addFile(element, not, depth)
	case IsSpec(element):
		l.items = append(l.items, listItem{not: not, maps: OpenMaps(l.title, []string{element}, l.opt)})
		return nil
	}
	it := listItem{not: not, text: Fold(element)}
	if l.kind == Addresses || l.kind == Clients {
		var err error
		if it.prefix, err = parseNetwork(it.text); err != nil {
			return err
		}
		if l.kind == Addresses && !it.prefix.IsValid() {
			return fmt.Errorf("%q: expected an address or a network such as 192.168.0.0/16 or [2001:db8::]/32", element)
		}
	}
	l.items = append(l.items, it)
	return nil
}

func (l *List) addFile(name string, not bool, depth int) error {
	if depth == maxListNesting {
		return fmt.Errorf("%s: files name files more than %d deep", name, maxListNesting)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		l.opt.warn("%s: %v", l.title, err)
		l.items = append(l.items, listItem{not: not, err: err})
		return nil
	}
	var errs []error
	err = EachLine(string(text), func(n int, line string) error {
		for _, e := range SplitList(line) {
			if err := l.add(e, not, depth+1); err != nil {
				errs = append(errs, fmt.Errorf("%s:%d: %w", name, n, err))
			}
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// index makes the set of words of a list that has nothing else in it.
func (l *List) index() {
	if l.kind != Strings && l.kind != Domains || len(l.items) < 8 {
		return
	}
	words := make(map[string]struct{}, len(l.items))
	for _, it := range l.items {
		if it.not || it.maps != nil || it.err != nil {
			return
		}
		words[it.text] = struct{}{}
	}
	l.words = words
}

// Empty says that the list has no elements.
func (l *List) Empty() bool { return l == nil || len(l.items) == 0 }

// Match says whether s matches. In a list of Clients s is an IP address if it
// reads as one and a host name otherwise; see MatchClient.
func (l *List) Match(ctx context.Context, s string) (bool, error) {
	if l.Empty() || s == "" {
		return false, nil
	}
	s = Fold(s)
	trace := TraceOf(ctx)
	if l.words != nil && trace == nil {
		return l.matchWords(s), nil
	}
	var addr netip.Addr
	if l.kind == Addresses || l.kind == Clients {
		addr, _ = netip.ParseAddr(s)
	}
	for i := range l.items {
		ok, err := l.items[i].try(ctx, l, s, addr.Unmap(), trace)
		if err != nil {
			return false, err
		}
		if ok {
			return !l.items[i].not, nil
		}
	}
	if trace != nil {
		trace.unmatched(s)
	}
	return false, nil
}

// MatchClient says whether a client matches by its name or by its address:
// each element is tried with both before the next one is.
func (l *List) MatchClient(ctx context.Context, name, address string) (bool, error) {
	if l.Empty() {
		return false, nil
	}
	name, address = Fold(name), Fold(address)
	addr, _ := netip.ParseAddr(address)
	addr = addr.Unmap()
	trace := TraceOf(ctx)
	for i := range l.items {
		it := &l.items[i]
		ok := false
		var err error
		if l.kind != Addresses && name != "" {
			ok, err = it.try(ctx, l, name, netip.Addr{}, trace)
		}
		if !ok && err == nil {
			ok, err = it.try(ctx, l, address, addr, trace)
		}
		if err != nil {
			return false, err
		}
		if ok {
			return !it.not, nil
		}
	}
	if trace != nil {
		trace.unmatched(name, address)
	}
	return false, nil
}

// try is match, of which trace is told unless it is nil.
func (it *listItem) try(ctx context.Context, l *List, s string, addr netip.Addr, trace Trace) (bool, error) {
	if trace != nil {
		trace.compare(l, it, s, addr)
	}
	return it.match(ctx, l, s, addr)
}

func (l *List) matchWords(s string) bool {
	if l.kind == Strings {
		_, ok := l.words[s]
		return ok
	}
	for name := range Parents(s, !l.parent) {
		if _, ok := l.words[name]; ok {
			return true
		}
	}
	return false
}

// match says whether one element matches s, in lower case; addr is s as an
// address if it is one.
func (it *listItem) match(ctx context.Context, l *List, s string, addr netip.Addr) (bool, error) {
	switch {
	case it.err != nil:
		return false, fmt.Errorf("%s: %w", l.title, it.err)
	case it.maps != nil:
		if l.kind == Strings || addr.IsValid() {
			_, found, err := it.maps.lookupAny(ctx, s, false)
			return found, err
		}
		if l.kind == Addresses {
			return false, nil
		}
		partial := false
		for name := range Parents(s, !l.parent) {
			if _, found, err := it.maps.lookupAny(ctx, name, partial); found || err != nil {
				return found, err
			}
			partial = true
		}
		return false, nil
	case addr.IsValid() && it.prefix.IsValid():
		return it.prefix.Contains(addr), nil
	case it.text == s:
		return true, nil
	case l.kind == Strings || addr.IsValid():
		return false, nil
	}
	return matchParent(s, it.text, l.parent), nil
}

func matchParent(name, pattern string, parent bool) bool {
	if parent {
		n := len(name) - len(pattern)
		return n > 0 && name[n-1] == '.' && name[n:] == pattern
	}
	return pattern[0] == '.' && len(name) > len(pattern) && strings.HasSuffix(name, pattern)
}

// lookupAny is Lookup for a table in a match list, where only the key matters
// and an empty value is as good as any.
func (m *Maps) lookupAny(ctx context.Context, key string, partial bool) (string, bool, error) {
	value, found, err := m.Lookup(ctx, key, partial)
	if errors.Is(err, errEmptyValue) {
		return "", true, nil
	}
	return value, found, err
}

// parseNetwork reads an address or a network, with or without brackets. What
// is neither, a host name for example, gives the zero Prefix and no error.
func parseNetwork(s string) (netip.Prefix, error) {
	text := s
	addr, mask, hasMask := s, "", false
	if strings.HasPrefix(s, "[") {
		i := strings.IndexByte(s, ']')
		if i < 0 {
			return netip.Prefix{}, fmt.Errorf("%q: no \"]\" after \"[\"", text)
		}
		addr, mask = s[1:i], s[i+1:]
		if hasMask = strings.HasPrefix(mask, "/"); !hasMask && mask != "" {
			return netip.Prefix{}, fmt.Errorf("%q: text after \"]\"", text)
		}
		mask = strings.TrimPrefix(mask, "/")
	} else {
		addr, mask, hasMask = strings.Cut(s, "/")
	}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		if hasMask {
			return netip.Prefix{}, fmt.Errorf("%q: malformed network address", text)
		}
		return netip.Prefix{}, nil
	}
	if !hasMask {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(a.String() + "/" + mask)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q: the length after \"/\" is not a number from 0 to %d", text, a.BitLen())
	}
	if p.Masked() != p {
		return netip.Prefix{}, fmt.Errorf("%q: non-null host address bits, perhaps you should use %q instead", text, p.Masked())
	}
	return p, nil
}

func isIPv6(s string) bool {
	if strings.Count(s, ":") < 2 {
		return false
	}
	addr, _, _ := strings.Cut(s, "/")
	_, err := netip.ParseAddr(addr)
	return err == nil
}

// SplitList cuts text at commas and white space outside braces, which stay.
func SplitList(text string) []string {
	var out []string
	depth, start := 0, -1
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '{':
			depth++
		case c == '}' && depth > 0:
			depth--
		case depth == 0 && strings.IndexByte(", \t\r\n", c) >= 0:
			if start >= 0 {
				out = append(out, text[start:i])
				start = -1
			}
			continue
		}
		if start < 0 {
			start = i
		}
	}
	if start >= 0 {
		out = append(out, text[start:])
	}
	return out
}
