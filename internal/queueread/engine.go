package queueread

import (
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/storage"
)

// What is read is told in the words of package storage, where the contracts are.
type (
	Reader  = storage.Reader
	Stored  = storage.Stored
	Content = storage.Content
)

// Log is a Reader of the log on the local disk.
func Log(rd *spool.Reader) Reader { return logReader{rd} }

type logReader struct{ *spool.Reader }

// A logStored is a pointer alone, so that it takes no memory as a Stored.
type logStored struct{ *spool.Stored }

func (r logReader) Read(ref queue.Ref, id mail.QueueID) (Stored, error) {
	st, err := r.Reader.Read(ref, id)
	if err != nil {
		return nil, err
	}
	return logStored{st}, nil
}

func (r logReader) Content(ref queue.Ref, id mail.QueueID) (Content, error) {
	return opened(r.Reader.Content(ref, id))
}

func (st logStored) Content() (Content, error) { return opened(st.Stored.Content()) }

func opened(c *spool.Content, err error) (Content, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}
