// Package queuelog is the log on the local disk in the words of package storage: it only translates between
// them and those of package spool. What is promised is promised there. cleanup stands on it, and what moves a queue
// from one engine to another; package queueread has its counterpart for readers.
package queuelog

import (
	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/storage"
)

// An Engine is the part of storage.Engine that the Spool's own methods are not. Its methods may be called concurrently.
type Engine struct{ *spool.Spool }

// A batch implements storage.Batch.
type batch struct{ spool.Batch }

// Add implements storage.Batch. Every ContentFile of this engine is a *spool.File.
func (b *batch) Add(m storage.Addition) int {
	file, _ := m.File.(*spool.File) // nil: the content is in memory
	return b.Batch.Add(spool.Message{ID: m.ID, Envelope: m.Envelope, Recipients: m.Recipients, NRcpt: m.NRcpt, Queue: m.Queue,
		NextAttempt: m.NextAttempt, Content: m.Content, File: file})
}

// NewBatch implements storage.Engine.
func (e Engine) NewBatch() storage.Batch { return new(batch) }

// Stash implements storage.Stasher.
func (e Engine) Stash(m storage.Addition) (queue.Entry, error) {
	return e.Spool.Stash(spool.Message{ID: m.ID, Envelope: m.Envelope, Recipients: m.Recipients, NRcpt: m.NRcpt, Queue: m.Queue,
		NextAttempt: m.NextAttempt, Content: m.Content})
}

// NewFile implements storage.Engine. It must not return a nil *spool.File in a non-nil ContentFile.
func (e Engine) NewFile() (storage.ContentFile, error) {
	f, err := e.Spool.NewFile()
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Commit implements storage.Engine.
func (e Engine) Commit(b storage.Batch) error { return e.Spool.Commit(&b.(*batch).Batch) }

// Post implements storage.Engine.
func (e Engine) Post(b storage.Batch, done func(error)) { e.Spool.Post(&b.(*batch).Batch, done) }
