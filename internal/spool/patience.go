package spool

import (
	"fmt"
	"io"
	"sync"
	"time"

	"posthaste/internal/vfs"
)

// UnreadableError says that a start was refused because the disk did not give
// what is there. What cannot be read may be mail: it is neither passed over nor
// written over.
type UnreadableError struct {
	Name string // of the file
	Off  int64  // where, in bytes
	Err  error  // what the system says
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("%s at %d: %v, also when tried again. Nothing has been changed. Look after the disk and start again; "+
		"if these octets are gone for good, copy the file without them (ddrescue) and put the copy in its place, "+
		`or get the mail out with "posthaste spool salvage TARGET", move the spool directory away, start, and "posthaste spool import TARGET"`, e.Name, e.Off, e.Err)
}

func (e *UnreadableError) Unwrap() error { return e.Err }

// pauses are those between reads that fail, at a start or for an update. There are no
// more of them in one start, however much cannot be read.
var pauses = [...]time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}

// patience reads again what the disk does not give, and remembers what it never
// gave. It may be used concurrently.
type patience struct {
	sleep  func(time.Duration)
	goOn   bool // what could not be read does not keep the rest from being read
	mu     sync.Mutex
	taken  int // pauses
	failed *UnreadableError
}

// patientFile is a file of which a start reads.
type patientFile struct {
	vfs.File
	name string
	p    *patience
}

func (p *patience) file(f vfs.File, name string) vfs.File {
	return &patientFile{File: f, name: name, p: p}
}

// ReadAt reads p, again if need be. After the first failure for good it gives
// nothing more, unless goOn: the start is going to be refused.
func (f *patientFile) ReadAt(p []byte, off int64) (int, error) {
	for {
		if err := f.p.err(); err != nil && !f.p.goOn {
			return 0, err
		}
		n, err := f.File.ReadAt(p, off)
		if err == nil || err == io.EOF {
			return n, err
		}
		if !f.p.pause() {
			return n, f.p.giveUp(&UnreadableError{Name: f.name, Off: f.where(p, off), Err: err})
		}
	}
}

// where finds the first block that cannot be read.
func (f *patientFile) where(p []byte, off int64) int64 {
	for at := off; at < off+int64(len(p)); {
		n := min(blockSize-at%blockSize, off+int64(len(p))-at)
		if _, err := f.File.ReadAt(p[:n], at); err != nil && err != io.EOF {
			return at
		}
		at += n
	}
	return off
}

// pause waits, and is false when that has been done often enough.
func (p *patience) pause() bool {
	p.mu.Lock()
	n := p.taken
	p.taken++
	p.mu.Unlock()
	if n >= len(pauses) {
		return false
	}
	p.sleep(pauses[n])
	return true
}

func (p *patience) giveUp(err *UnreadableError) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = err
	}
	return p.failed
}

func (p *patience) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		return nil
	}
	return p.failed
}
