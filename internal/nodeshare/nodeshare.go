// Package nodeshare divides limits among nodes: of a destination that may have 20 deliveries at a time, each of several
// machines that share a queue gets a share, which follows what it has to do, and all shares together are never more than
// the limit.
//
// It is a pure core: [Exchange] is one step of a node, made in a transaction over a table that all nodes share, which
// is locked meanwhile; a [Holder] is what the node does with the answer. Package pgspool has the table, and the queue
// manager the Holder.
//
// # Why the sum holds
//
// A row of the table says how much a node may use of a limit, and a node never uses more than its row says. It gets more
// only in an exchange, and only what the rows of the others leave. It is asked to use less when others want a
// share: it begins no delivery beyond that at once, and gives the rest back in a later exchange, when deliveries
// beyond it have ended. So what a row says is given back by its node alone.
//
// The rows of a node that is gone count until its lease has run out by the table's clock. The node stops earlier: its
// own lease is counted by its monotonic clock from before the exchange, less a margin. What it has under way then may
// go on for as long as it lasts: beside it others may already use the limit. When the node comes back its row says so,
// and until that has ended nobody begins anything beyond the limit.
//
// A node that is alone uses limits as they are, without rows. It stays alone, in the table, until it has heard of
// another node and has said so in its next exchange; until then the other one gets nothing.
//
// A limit whose key has the [DayPrefix] counts what was used for the rest of a day. Its rows outlive their node: what that had
// got may have been used. So a node that is alone has rows for it, too, and the rows of nodes that are gone are passed to
// Exchange until the day is over.
//
// A process that takes the place of one that was killed does not know how much of that was used. It takes all of it for used
// ([Holder.Fresh]): so a day's limit holds, and what is lost is what the node had got in advance.
package nodeshare

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strings"
	"time"
)

const (
	// Lease is how long the rows of a node count after its last exchange, by the table's clock, and Margin how much
	// earlier it stops to use them, by its own.
	Lease  = 5 * time.Second
	Margin = time.Second
	// TurnTime is how long a share that cannot be divided any further stays with one node.
	TurnTime = 5 * time.Second
	// DayPrefix begins the keys of limits that count until a day is over. The day's number since the epoch follows, and a space.
	DayPrefix = "day "
)

// Version is what a program says of itself with each exchange: 1: it shares the limits that destinations have in common.
// Programs before that say nothing.
const Version = 1

// IsCommon says whether a limit is one that several destinations have in common, or a tenant's: not all versions share those. No
// destination has a space in its name.
func IsCommon(key string) bool { return strings.Contains(key, " ") }

// beside is what is left of a limit beside nodes of an old version, which use such limits as if they were alone: each counts as if it
// had an equal part. Something is left in any case, since mail has to go.
func beside(limit int, key string, nodes []Node) int {
	old := 0
	for _, n := range nodes {
		if n.Old {
			old++
		}
	}
	if old == 0 || !IsCommon(key) {
		return limit
	}
	return max(limit*(len(nodes)+1-old)/(len(nodes)+1), 1)
}

// IsDay says whether a limit counts until the end of a day.
func IsDay(key string) bool { return strings.HasPrefix(key, DayPrefix) }

// A Claim is what a node says of one limit in an exchange.
type Claim struct {
	Key    string // what is limited
	Limit  int    // at least 1
	Hold   int    // what it uses, or may begin to use at this moment
	Demand int    // what it could use: 0: nothing
}

// A Row is what the table has of a node and a limit.
type Row struct {
	Node, Key     string
	Share, Demand int
}

// A Node is what the table has of a node whose lease is good.
type Node struct {
	Name  string
	Alone bool // it may use limits without rows
	Old   bool // it is of a version that shares the limits of destinations only
}

// A Request is what a node brings to an exchange.
type Request struct {
	Node   string
	Alone  bool // it believes that it is
	Claims []Claim
	// More: claims of limits of a day, of which something has been used and nothing is wanted, are left out. The node's rows
	// of days that it does not claim stay as they are.
	More bool
	// Fresh: what this node's former process has used of limits of days is not known for certain. Its rows of days that are not claimed
	// stay as they are, and of those that are claimed the grants say what they were.
	Fresh bool
	// Old names the nodes of an old version, in their order: whoever carries out the exchange says it.
	Old []string
	// Turn changes each TurnTime by the table's clock.
	Turn int64
}

// A Grant is what a node may use of a limit.
type Grant struct {
	Key   string
	Share int // of the table's row: no more than that
	// Target is what is its due: it is to use no more than that, and to give the rest back.
	Target int
	// Former is what the node's own row of a day was before, if the request was Fresh.
	Former int
}

// A Reply is the answer to a Request.
type Reply struct {
	Alone  bool    // there is no other node: limits hold as they are
	Grants []Grant // one for each Claim, in its order
}

// Exchange answers a request. nodes are the others whose leases are good, or that have parts of the queue and are of an old version, and rows all of theirs for the keys of the
// claims, those of others that are gone for the keys of days, and the node's own of days if the request is Fresh. It is to be carried out while nobody else has an exchange. The node's own rows become what the grants
// say, and no others but with More. Its lease is renewed, and the table has of it that it is alone if the request says so or the
// reply.
func Exchange(q *Request, nodes []Node, rows []Row) Reply {
	r := Reply{Alone: len(nodes) == 0, Grants: make([]Grant, 0, len(q.Claims))}
	alone := slices.ContainsFunc(nodes, func(n Node) bool { return n.Alone })
	alive := map[string]bool{}
	for _, n := range nodes {
		alive[n.Name] = true
	}
	of := map[string][]Row{}
	for _, row := range rows {
		of[row.Key] = append(of[row.Key], row)
	}
	for i := range q.Claims {
		c := &q.Claims[i]
		g, limit := Grant{Key: c.Key}, beside(c.Limit, c.Key, nodes)
		taken, gone, demands := 0, 0, []Row{{Node: q.Node, Key: c.Key, Demand: c.Demand}}
		for _, row := range of[c.Key] {
			if row.Node == q.Node {
				g.Former = row.Share
				continue
			}
			taken += row.Share
			if !alive[row.Node] {
				gone += row.Share // it has used that, and wants no more
				continue
			}
			demands = append(demands, row)
		}
		g.Target = Divide(max(limit-gone, 0), demands, q.Turn)[q.Node]
		if IsDay(c.Key) {
			g.Target = min(g.Target, c.Demand) // what a node has got is lost with it, and nobody gets that in advance
		}
		room := limit - taken
		if alone && !IsDay(c.Key) {
			room = 0 // that node has no rows yet, and may use all of it
		}
		// What it holds it holds: others were refused it. Where they were not, since its lease was over, it is to begin
		// nothing in the place of what ends: that place is theirs.
		g.Target = min(g.Target, max(room, 0))
		g.Share = max(g.Target, c.Hold, g.Former)
		r.Grants = append(r.Grants, g)
	}
	return r
}

// Divide divides a limit among the nodes that have a demand, and what is left over among the same. No node gets less
// than another that has no larger demand, but for what cannot be divided: that goes round among them with the turn.
func Divide(limit int, demands []Row, turn int64) map[string]int {
	var list []Row
	for _, d := range demands {
		if d.Demand > 0 {
			list = append(list, d)
		}
	}
	out := map[string]int{}
	if len(list) == 0 {
		return out
	}
	slices.SortFunc(list, func(a, b Row) int { return cmp.Or(cmp.Compare(a.Demand, b.Demand), cmp.Compare(a.Node, b.Node)) })
	left := limit
	// Those with the smallest demands first: what they leave is for the others. When the rest is too little for
	// all who remain, they divide it; when nobody remains, all divide what is left over.
	i := 0
	for ; i < len(list) && list[i].Demand <= left/(len(list)-i); i++ {
		out[list[i].Node] = list[i].Demand
		left -= list[i].Demand
	}
	among := list[i:]
	if len(among) == 0 {
		among = list
	}
	slices.SortFunc(among, func(a, b Row) int { return cmp.Compare(a.Node, b.Node) })
	h := fnv.New32a()
	h.Write([]byte(among[0].Key)) // never fails
	first := int((uint64(turn) + uint64(h.Sum32())) % uint64(len(among)))
	each, rest := left/len(among), left%len(among)
	for i := range among {
		d := &among[(first+i)%len(among)]
		out[d.Node] += each
		if i < rest {
			out[d.Node]++
		}
	}
	return out
}
