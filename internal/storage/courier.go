package storage

import (
	"context"
	"errors"
	"time"
)

// A Courier is a Reader of a queue that several nodes share, through which they ask each other for something. Its
// methods may be called concurrently.
type Courier interface {
	// Nodes says which nodes there are, of those that were seen in the last day.
	Nodes() ([]Member, error)
	// Ask has another node carry out c, and returns what it answers. It waits for the node to take it, CallTime, or SlowTime
	// while the node says that it lives, and then, while it lives, AnswerTime for the answer. An error is an ErrNotCarriedOut if nothing was done, and nothing will be; else nobody knows.
	Ask(ctx context.Context, node string, c Call) ([]byte, error)
	// Attend has f carry out what other nodes ask of this one, each at most once, but for ErrAgain, several at a time, until ctx ends. f is
	// called by a goroutine of its own. warn is told why nothing can be heard, once each time.
	Attend(ctx context.Context, f func(context.Context, Call) ([]byte, error), warn func(format string, args ...any))
}

// A Member is a node of those that share a queue.
type Member struct {
	Name  string
	Own   bool // it is this one
	Alive bool // it has said so, in the time that it has for that
}

// A Call is what a node asks another one for.
type Call struct {
	From    string // the node; Ask says it
	By      string // who wants it, for people; CallBy octets at most
	Kind    uint16 // of a message of package proto
	Payload []byte // the message; CallSize octets at most
}

const (
	// CallBy, CallSize and AnswerSize bound what goes from node to node, in octets.
	CallBy     = 1000
	CallSize   = 256 << 10
	AnswerSize = 12 << 20
	// CallTime is how long a node may take to begin with what it is asked, SlowTime how long one that says that it lives:
	// it may be busy, or of a version that does not listen. AnswerTime is how long it may take to answer.
	CallTime   = 3 * time.Second
	SlowTime   = 20 * time.Second
	AnswerTime = time.Minute
)

// ErrAgain is what Attend's f returns when this process ends and has no answer: the process that follows is to carry the call out, once
// more if need be. Whoever has asked waits for that.
var ErrAgain = errors.New("another process is to carry it out")

// ErrNotCarriedOut says that the other node has not done, and will not do, what it was asked for. Its text says why.
type ErrNotCarriedOut string

func (e ErrNotCarriedOut) Error() string { return string(e) }
