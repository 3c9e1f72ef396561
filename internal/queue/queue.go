// Package queue is the vocabulary of the queue: what is said of a queued message by
// the processes that keep it (cleanup), schedule it (qmgr), deliver it and look at it, and by the
// storage engine that all of them stand on. It does no I/O, and knows no engine.
//
// A message stands in one of the queues that Postfix has, by [Name]. What the engine knows of it
// without reading it is its [Entry]; where its record lies is a [Ref], which the engine alone can
// read. What becomes of it is a [Change]. Deferred messages are asked for in the order in which
// they are due ([DueQuery], [Mark]), all of them in pages ([Placed]). Why the engine
// refuses is one of the errors of this package.
//
// # Stored form
//
// The types that travel between processes have the stored form of package pack. A
// tag's meaning never changes and a tag is never used again. A reader passes over tags that
// it does not know.
//
// # Engines
//
// Package spool is the engine that there is: a log on the local disk. What cleanup asks of an engine is
// the interface in cleanup/engine.go; what readers ask of it are those in package queueread.
package queue

import (
	"fmt"

	"posthaste/internal/pack"
)

// Name is the queue in which a message stands, in Postfix's words. The active queue is a
// matter of qmgr's memory: in the engine its messages are incoming or deferred.
type Name uint8

const (
	Incoming Name = iota
	Deferred
	Hold
	Corrupt // set aside: it could not be read, and an operator must look
	Names   // how many names there are; no queue has this one
)

// String is Postfix's name for q.
func (q Name) String() string {
	switch q {
	case Incoming:
		return "incoming"
	case Deferred:
		return "deferred"
	case Hold:
		return "hold"
	case Corrupt:
		return "corrupt"
	}
	return fmt.Sprintf("queue(%d)", uint8(q))
}

// Ref says where in the engine a record lies. Only the engine reads it; everybody else
// passes it on. It is good until the record moves, and the engine notices when that has
// happened ([ErrStale]). The fields are those of the log in package spool. Whether the
// content is in the log or in a file of its own is in the record.
type Ref struct {
	File   uint32 // number of the segment's file
	Spool  uint8  // which of several spools has it (package spools); 0: that in queue_directory
	Segno  uint64 // which use of that file: 1 for the log's first segment; 0: the Ref refers to nothing
	Offset uint32 // of the record's header, in octets
	Length uint32 // of the record in octets, header included, padding not
}

// IsZero says whether r refers to nothing.
func (r Ref) IsZero() bool { return r.Segno == 0 }

// Append appends r as one field.
func (r Ref) Append(b []byte, tag byte) []byte {
	return pack.Nested(b, tag, func(b []byte) []byte {
		b = pack.Uint(b, 'f', r.File)
		b = pack.Uint(b, 's', r.Segno)
		b = pack.Uint(b, 'o', r.Offset)
		b = pack.Uint(b, 'd', r.Spool)
		return pack.Uint(b, 'l', r.Length)
	})
}

// Decode reads what Append wrote, given the field's bytes.
func (r *Ref) Decode(field []byte) error {
	p := pack.NewReader(field)
	for p.Next() {
		switch p.Tag() {
		case 'f':
			r.File = uint32(p.Uint())
		case 's':
			r.Segno = p.Uint()
		case 'o':
			r.Offset = uint32(p.Uint())
		case 'd':
			r.Spool = uint8(p.Uint())
		case 'l':
			r.Length = uint32(p.Uint())
		}
	}
	return p.Err()
}
