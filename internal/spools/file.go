package spools

import (
	"fmt"
	"io"

	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// A file is content in a file of one part's engine.
type file struct {
	storage.ContentFile
	p  *part
	en storage.Engine
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
			return &file{f, p, st.en}, nil
		}
		p.elsewhere(err) // the others are asked in any case: nothing has been written
	}
	return nil, err
}

// Write implements storage.ContentFile. Large messages to come go elsewhere for a while when there is no room here.
func (f *file) Write(b []byte) (int, error) {
	n, err := f.ContentFile.Write(b)
	if err != nil {
		f.p.elsewhere(err)
	}
	return n, err
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
