package spools

import (
	"errors"
	"fmt"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// A reader reads from the spool that a Ref names.
type reader [maxNumber + 1]storage.Reader

// NewReader is a Reader of a set: parts has that of each spool, by its number.
func NewReader(parts map[uint8]storage.Reader) storage.Reader {
	var r reader
	for n, p := range parts {
		r[n] = p
	}
	return &r
}

// of is the reader of a spool. The error is queue.ErrUnread for one that this process does not know.
func (r *reader) of(ref queue.Ref) (storage.Reader, error) {
	if int(ref.Spool) >= len(r) || r[ref.Spool] == nil {
		return nil, fmt.Errorf("%w: spool %d is not among those of spool_directories", queue.ErrUnread, ref.Spool)
	}
	return r[ref.Spool], nil
}

// Read implements storage.Reader.
func (r *reader) Read(ref queue.Ref, id mail.QueueID) (storage.Stored, error) {
	p, err := r.of(ref)
	if err != nil {
		return nil, err
	}
	st, err := p.Read(ref, id)
	if err != nil || ref.Spool == 0 {
		return st, err
	}
	return stored{st, ref.Spool}, nil
}

// Content implements storage.Reader.
func (r *reader) Content(ref queue.Ref, id mail.QueueID) (storage.Content, error) {
	p, err := r.of(ref)
	if err != nil {
		return nil, err
	}
	return p.Content(ref, id)
}

// Close implements storage.Reader.
func (r *reader) Close() error {
	var errs []error
	for _, p := range r {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}

// A stored is a record in a spool other than that in queue_directory.
type stored struct {
	storage.Stored
	spool uint8
}

// State implements storage.Stored.
func (s stored) State() queue.Entry {
	e := s.Stored.State()
	e.Ref.Spool = s.spool
	return e
}
