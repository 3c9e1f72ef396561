package spoolmove

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/statedir"
)

// journalName is the journal's file. It is there while a move is under way, or was interrupted.
const journalName = "migration"

// A Pair is a message on its way.
type Pair struct {
	From  mail.QueueID `json:"from"`  // its ID in the engine that had it
	To    mail.QueueID `json:"to"`    // and in the one that gets it
	Queue queue.Name   `json:"queue"` // where it stood, and is to stand
}

// A Journal has the messages of the step under way, on stable storage, in one directory. It is used by one goroutine.
type Journal struct {
	dir       *statedir.Dir
	direction string
}

// record is the file's text, as JSON.
type record struct {
	Direction string `json:"direction"` // such as "log to postgresql"
	Pairs     []Pair `json:"pairs"`
}

// OpenJournal opens the journal in a directory, for a move in a direction, such as "log to postgresql". An
// interrupted one in another direction is an error.
func OpenJournal(dir *statedir.Dir, direction string) (*Journal, error) {
	j := &Journal{dir, direction}
	r, err := j.read()
	if err == nil && r.Direction != direction && r.Direction != "" {
		err = fmt.Errorf("a move from %s has been interrupted: that must be ended first", r.Direction)
	}
	return j, err
}

func (j *Journal) read() (r record, err error) {
	text, err := j.dir.ReadFile(journalName)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", journalName, err)
	}
	return r, nil
}

// Load returns the messages of the step that was under way; none: there was none.
func (j *Journal) Load() ([]Pair, error) {
	r, err := j.read()
	return r.Pairs, err
}

// Save notes the messages of the next step, which are on stable storage when it returns.
func (j *Journal) Save(pairs []Pair) error {
	text, err := json.Marshal(record{j.direction, pairs})
	if err != nil {
		return err
	}
	return j.dir.ReplaceDurably(journalName, text)
}

// Clear says that the move has ended.
func (j *Journal) Clear() error {
	if err := j.dir.Remove(journalName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
