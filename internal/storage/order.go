package storage

import (
	"context"
	"time"
)

// An Orderer is a Courier that keeps orders for nodes that do not answer. Its methods may be called concurrently.
type Orderer interface {
	// Leave writes orders, all of them or none, durably. Each is carried out by the node that it is for, when it is back, or by
	// whoever has the part then. Either all are open or none; there is at least one. An error is an ErrNotCarriedOut if nothing is written; else nobody knows.
	Leave(ctx context.Context, list []Order) error
	// Carry calls f for the orders for this node, and for the parts that parts names, one after another in the order in which they
	// were given. When f returns nil the order is forgotten, durably; with an error Carry ends, and the order stays. Nobody
	// else carries out an order meanwhile; but if the database ends the session before it is forgotten, it is carried out once more, before
	// any later one. parts is called only if there are orders at all, and its error ends Carry.
	Carry(ctx context.Context, parts func() ([]int, error), f func(context.Context, *Order) error) error
	// Waits says whether there are orders for a part.
	Waits(ctx context.Context, part int) (bool, error)
}

// An Order is a Call that is not carried out now.
type Order struct {
	Call
	Node string // that does not answer; "": none had the part
	Part int    // of the queue: whoever has it carries the order out; 0: the node alone does
	What string // for people
	Open bool   // anybody may give such an order: few are kept, and each once
	// Until is when the order is forgotten, whatever became of it; zero: after OrderTime.
	Until time.Time
	// Number and Given say which one it is, and when it was given, by the database's clock. Carry says it.
	Number int64
	Given  time.Time
}

const (
	// OrderTime is how long an order is kept that nobody can carry out.
	OrderTime = 30 * 24 * time.Hour
	// MaxOrders bounds the orders of one node that are kept, and MaxOpenOrders those that anybody may give.
	MaxOrders     = 1000
	MaxOpenOrders = 100
	// OrderPatience bounds one call of Carry's f.
	OrderPatience = 15 * time.Second
)

// An Owner is an Engine of several nodes.
type Owner interface {
	// Owned are the parts of the queue that can be changed through the engine now. One that has the same epoch later has been the
	// engine's all the while.
	Owned() []Ownership
	// Reading are the parts, ascending, that are the node's and of which it has not read all yet: of their mail the engine has some or
	// none. A Viewer sees all of it.
	Reading() []int
}

// An Ownership is a part of the queue, and the epoch in which it is the engine's.
type Ownership struct {
	Part  int
	Epoch int64
}
