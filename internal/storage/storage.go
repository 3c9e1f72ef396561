// Package storage is what the queue is kept in, as its users see it: the interfaces between them and
// the engines. cleanup changes the queue through an [Engine]; the queue manager, the delivery agents and
// bounce read it through a [Reader], beside cleanup. What both speak of is in package queue.
//
// There are two engines. The log on the local disk, package spool, is part of every program. That in a
// PostgreSQL database, package pgspool, is in the program posthaste-pg alone, which gives it to its services
// as a [Kind]. A service does not choose: spool_type does, and master executes the program that has the
// engine.
package storage

import (
	"context"
	"fmt"
	"time"

	"posthaste/internal/config"
)

// The values of spool_type.
const (
	Log        = "log"
	PostgreSQL = "postgresql"
)

// Program is the file name of the program that has the services that touch the queue where spool_type is
// PostgreSQL.
const Program = "posthaste-pg"

// A Kind makes a Store of what main.cf says. It contacts nobody, and reads the files that main.cf
// names, so that a service can call it before it gives up its privileges. Errors are in the configuration.
type Kind func(cfg *config.Config) (Store, error)

// A Store is a queue that an engine keeps somewhere else than in queue_directory. Its methods may be
// called concurrently.
type Store interface {
	// Open opens the queue for this node, which it must own; only cleanup does. An error is
	// queue.ErrNotOurs while another node owns it, queue.ErrBroken while the storage cannot be reached;
	// any other is for a person to mend. It returns when ctx ends.
	Open(ctx context.Context, o Options) (Engine, error)
	// Reader returns a Reader, which connects when it is first used.
	Reader() Reader
	// Close ends connections that have been kept for the next Open.
	Close()
}

// Options are how cleanup wants its engine.
type Options struct {
	// TempDir is an existing directory for content on its way in, which nobody else can read. Nothing in it is needed
	// after a crash.
	TempDir     string
	InlineLimit int           // as Engine.InlineLimit returns it, in octets (spool_inline_limit)
	PostDelay   time.Duration // how long a posted batch may wait for others (spool_commit_delay)
	Warn        func(format string, args ...any)
	// Adopted is told that messages of another node have come into the queue while it was open, and what was
	// found out about them; nil: nobody is. The engine has them already. It may be so before Open returns e, and
	// Close waits for it.
	Adopted func(e Engine, r Recovery)
}

// Elsewhere says whether the queue is kept by another engine than the log on the local disk.
func Elsewhere(cfg *config.Config) bool { return cfg.String("spool_type") != Log }

// ExactDoubt says whether deliveries are recorded before they are made. Without that another node could
// not know, after a takeover, what may have been delivered: with an engine of several nodes it is so always.
func ExactDoubt(cfg *config.Config) bool {
	return Elsewhere(cfg) || cfg.Bool("spool_exact_doubt")
}

// Make makes the Store that main.cf wants, of the program's kind. A program that has none is not the one
// that master executes for spool_type, or was started by hand.
func Make(kind Kind, cfg *config.Config) (Store, error) {
	if kind == nil {
		return nil, fmt.Errorf("spool_type = %s: this service is in the program %s", cfg.String("spool_type"), Program)
	}
	return kind(cfg)
}
