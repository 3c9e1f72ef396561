// The engine that keeps the queue, in this service's words. It is one of two: the log on the local disk
// (logengine.go), or that of the program, for another spool_type (store.go).

package cleanup

import "posthaste/internal/storage"

// The interfaces and types are those of package storage, where their contracts are. What this service relies on
// most: a batch is durable as a whole or not at all, a refused one has no effect, and after queue.ErrBroken
// nobody knows until the engine has been opened again.
type (
	engine      = storage.Engine
	batch       = storage.Batch
	addition    = storage.Addition
	contentFile = storage.ContentFile
	recovery    = storage.Recovery
)
