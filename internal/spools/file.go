package spools

import (
	"errors"
	"fmt"
	"io"
	"time"

	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/storage"
)

// A file is content in a file of one part's engine.
type file struct {
	storage.ContentFile
	p  *part
	en storage.Engine
	// moves is how often it has gone on elsewhere. Each part is tried once: with much content a first one no longer counts as full
	// when the last one turns out to be.
	moves int
}

// NewFile implements storage.Engine: in the part that large content is to go to, or the next one that takes it.
func (s *Set) NewFile() (storage.ContentFile, error) {
	var room [maxNumber + 2]*part
	err := fmt.Errorf("%w: no spool can be written now", queue.ErrUnstored)
	// Files have no number yet, and go round by themselves.
	for _, p := range s.choose(room[:0], s.files.Add(1), true) {
		st := p.present()
		var f storage.ContentFile
		if f, err = st.en.NewFile(); err == nil {
			return &file{ContentFile: f, p: p, en: st.en}, nil
		}
		p.elsewhere(err) // the others are asked in any case: nothing has been written
	}
	return nil, err
}

// Write implements storage.ContentFile. When there is no room here for all of a message, it goes on elsewhere.
func (f *file) Write(b []byte) (int, error) {
	n, err := f.ContentFile.Write(b)
	for err != nil {
		f.p.elsewhere(err) // large messages to come begin elsewhere
		// Only a spool says that what it took can be read after that.
		if _, ok := f.ContentFile.(*spool.File); !ok || !errors.Is(err, queue.ErrFull) {
			return n, err
		}
		next := f.other()
		if next == nil {
			return n, err
		}
		if _, cerr := io.Copy(next, io.NewSectionReader(f, 0, f.Size())); cerr != nil {
			next.Abort()
			return n, err
		}
		f.Abort()
		*f = *next
		var k int
		k, err = f.ContentFile.Write(b[n:])
		n += k
	}
	return n, nil
}

// other begins a file in another part that is not full; nil: there is none.
func (f *file) other() *file {
	var room [maxNumber + 2]*part
	if f.moves+1 >= len(f.p.set.parts) {
		return nil
	}
	now := time.Now().UnixNano()
	for _, p := range f.p.set.choose(room[:0], f.p.set.files.Load(), false) {
		if p == f.p || p.full.Load() > now {
			continue
		}
		st := p.present()
		if n, err := st.en.NewFile(); err == nil {
			return &file{n, p, st.en, f.moves + 1}
		}
	}
	return nil
}

// current says whether the engine that has the file is still there.
func (f *file) current() bool {
	st := f.p.present()
	return st.up && st.en == f.en
}

// in is the file in the engine of a share: itself, or a copy, when a message goes where another one is.
func (f *file) in(sh *share) (storage.ContentFile, error) {
	if sh.p == f.p && sh.st.en == f.en {
		return f.ContentFile, nil
	}
	n, err := sh.st.en.NewFile()
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(n, io.NewSectionReader(f, 0, f.Size())); err != nil {
		n.Abort()
		return nil, fmt.Errorf("%w: copy of content: %w", queue.ErrUnstored, err)
	}
	f.Abort()
	f.ContentFile, f.p, f.en = n, sh.p, sh.st.en
	return n, nil
}
