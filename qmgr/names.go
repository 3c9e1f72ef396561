// Domains as numbers, for the book: with a million messages, a string for each would be
// most of the memory.

package qmgr

import "strings"

// nameID stands for a domain. 0 is none.
type nameID uint32

// names gives domains numbers, for as long as messages use them, so that a
// million messages to a few thousand domains keep four octets each. What
// uses a number counts as one use of it.
type names struct {
	// A number is free when its count of uses is 0, and is then given to another domain.
	ids  map[string]nameID
	list []name // by nameID; the first is none
	free []nameID
	// It changes whenever a number begins to stand for a name.
	version uint64
}

type name struct {
	text string
	uses uint32
}

func newNames() names { return names{ids: make(map[string]nameID), list: make([]name, 1)} }

// use counts one more use of a domain and returns its number. The text is copied: it is
// mostly part of a frame that should not be kept for it.
func (n *names) use(text string) nameID {
	id := n.ids[text]
	if id == 0 {
		text = strings.Clone(text)
		if f := len(n.free); f > 0 {
			id = n.free[f-1]
			n.free = n.free[:f-1]
		} else {
			id = nameID(len(n.list))
			n.list = append(n.list, name{})
		}
		n.list[id].text = text
		n.ids[text] = id
		n.version++
	}
	n.list[id].uses++
	return id
}

// drop ends one use.
func (n *names) drop(id nameID) {
	if id == 0 {
		return
	}
	e := &n.list[id]
	if e.uses--; e.uses == 0 {
		delete(n.ids, e.text)
		*e = name{}
		n.free = append(n.free, id)
	}
}

// domainOf is what an address is counted under, as in proto.ShapeRow: what follows the
// last @, in lower case, or the whole address when it has none. "" is the null sender,
// "@" an address that ends in @.
func domainOf(addr string) string {
	if strings.HasSuffix(addr, "@") {
		return "@"
	}
	return strings.ToLower(addr[strings.LastIndexByte(addr, '@')+1:])
}
