package qmgr

import "strings"

// nameID stands for a domain. 0 is none.
type nameID uint32

// names gives domains numbers, for as long as messages use them, so that a
// million messages to a few thousand domains keep four octets each. What
// uses a number counts as one use of it.
type names struct {
	ids  map[string]nameID
	list []name // by nameID; the first is none
	free []nameID
}

type name struct {
	text string
	uses uint32
}

func newNames() names { return names{ids: make(map[string]nameID), list: make([]name, 1)} }

// use gives the number of a domain to one more user.
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
	}
	n.list[id].uses++
	return id
}

// drop is the end of one use.
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

// domainOf is what an address is counted for, as proto.ShapeRow has it: what
// is behind the last @, all of an address without one; "" is the null sender
// and "@" an address that ends there.
func domainOf(addr string) string {
	if strings.HasSuffix(addr, "@") {
		return "@"
	}
	return strings.ToLower(addr[strings.LastIndexByte(addr, '@')+1:])
}
