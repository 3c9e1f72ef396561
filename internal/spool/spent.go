package spool

import (
	"errors"
	"io/fs"
	"slices"
	"sync"

	"posthaste/internal/vfs"
)

// spentFiles are the content files of messages that are gone, kept to be written
// anew. They have their blocks on the disk and their pages in memory, so that
// nobody has to free the ones and find others: large mail takes a sixth less
// processor time. A spent file has a name that is no message's; whoever looks for
// the message finds nothing, and one that somebody still reads is not written to.
type spentFiles struct {
	mu    sync.Mutex
	limit int64       // bytes of all; 0: every file is removed
	files []spentFile // the last one is the next: it is in memory for sure
	bytes int64
}

type spentFile struct {
	name string
	size int64
}

// goneFile is the content file of a message that is gone.
type goneFile struct {
	id   string
	size int64
}

// spentSuffix makes the name of a spent file, from that of the message it was of.
const spentSuffix = ".spent"

func (s *spentFiles) add(f spentFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += f.size
	s.files = append(s.files, f)
}

// room says whether a file of that size may be added.
func (s *spentFiles) room(size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes+size <= s.limit
}

// take takes a file away, the last one added first.
func (s *spentFiles) take() (name string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.files) - 1
	if n < 0 {
		return "", false
	}
	f := s.files[n]
	s.files = slices.Delete(s.files, n, n+1)
	s.bytes -= f.size
	return f.name, true
}

// stop has no more files added.
func (s *spentFiles) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = 0
}

func (s *spentFiles) sum() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// spend ends the use of the content file of a message that is gone, durably: it
// is kept, or else removed. Only one goroutine calls it.
func (e *engine) spend(g goneFile) {
	name := e.content.name(g.id)
	if e.spent.room(g.size) {
		err := e.content.fs.Rename(name, name+spentSuffix)
		if err == nil {
			e.spent.add(spentFile{name + spentSuffix, g.size})
			return
		}
		e.warn("spool: files of large messages are not used again: %v", err)
		e.spent.stop()
	}
	if err := e.content.fs.Remove(name); err != nil {
		e.warn("spool: content of a delivered message: %v", err) // swept at the next start
	}
}

// reuse opens a spent file to be written anew, if there is one.
func (e *engine) reuse() (f vfs.File, name string) {
	for {
		name, ok := e.spent.take()
		if !ok {
			return nil, ""
		}
		f, err := e.content.fs.OpenIdle(name)
		if err == nil {
			return f, name
		}
		if !errors.Is(err, vfs.ErrInUse) { // by somebody who does not know that the message is gone
			e.warn("spool: a spent content file: %v", err)
		}
		e.removeSpent(name)
	}
}

// dropSpent removes all spent files, whose room somebody needs, and says whether
// there were any.
func (e *engine) dropSpent() bool {
	for dropped := false; ; dropped = true {
		name, ok := e.spent.take()
		if !ok {
			return dropped
		}
		e.removeSpent(name)
	}
}

func (e *engine) removeSpent(name string) {
	if err := e.content.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.warn("spool: a spent content file: %v", err)
	}
}

// giveUpSpent is dropSpent for the room of the log, where spent files take some of that.
func (e *engine) giveUpSpent() bool { return !e.content.away && e.dropSpent() }

// freeBytes is the free space of the log's file system, in dir; if that is less than need,
// the spent files are given up first.
func (e *engine) freeBytes(dir string, need int64) (int64, error) {
	n, err := e.fs.Free(dir)
	if err == nil && n < need && e.giveUpSpent() {
		return e.fs.Free(dir)
	}
	return n, err
}
