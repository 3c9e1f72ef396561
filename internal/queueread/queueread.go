// Package queueread opens queued messages in the processes that only read the
// spool: the queue manager, the delivery agents, bounce. A reference that the
// spool's cleaner has overtaken is looked up with cleanup, once.
package queueread

import (
	"context"
	"errors"
	"fmt"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// ErrGone says that the message is not in the queue any more.
var ErrGone = errors.New("the message is no longer in the queue")

// An Opener opens messages. Its methods may be called concurrently.
type Opener struct {
	Reader  Reader
	Cleanup *ipc.Client
}

// Open reads the record of message id, which was last seen at ref; zero:
// cleanup is to say. Errors to tell apart: ErrGone, queue.ErrCorrupt.
func (o *Opener) Open(ctx context.Context, ref queue.Ref, id mail.QueueID) (Stored, error) {
	if !ref.IsZero() {
		if st, err := o.Reader.Read(ref, id); !errors.Is(err, queue.ErrStale) {
			return st, err
		}
	}
	st, _, err := o.Current(ctx, id)
	return st, err
}

// tries is how often cleanup is asked where a message lies: the cleaner may be
// quicker than we are, but not for ever.
const tries = 3

// Current reads the present record of message id, with the entry that cleanup
// has of it, and knows all recipients that are done. Errors to tell apart: as of
// Open.
func (o *Opener) Current(ctx context.Context, id mail.QueueID) (st Stored, entry queue.Entry, err error) {
	for range tries {
		var at proto.LocateReply
		if err = o.Cleanup.CallAgain(ctx, &proto.Locate{ID: id}, &at); err != nil {
			return nil, entry, fmt.Errorf("ask cleanup where message %s lies: %w", id, err)
		}
		if !at.Found {
			return nil, entry, ErrGone
		}
		if st, err = o.Reader.Read(at.Entry.Ref, id); err == nil {
			st.Overlay(at.Entry.Done)
			return st, at.Entry, nil
		}
		if !errors.Is(err, queue.ErrStale) {
			break
		}
	}
	if errors.Is(err, queue.ErrStale) { // it is not where cleanup says
		err = fmt.Errorf("%w: %v", queue.ErrCorrupt, err)
	}
	return nil, entry, err
}

// Content opens the content of message id, which was last seen at ref; zero:
// cleanup is to say. Errors are those of Open and of ContentOf.
func (o *Opener) Content(ctx context.Context, ref queue.Ref, id mail.QueueID) (Content, error) {
	if !ref.IsZero() {
		if c, err := o.Reader.Content(ref, id); !errors.Is(err, queue.ErrStale) {
			return c, err
		}
	}
	st, _, err := o.Current(ctx, id)
	if err != nil {
		return nil, err
	}
	return ContentOf(ctx, o.Open, st, id)
}

// ContentOf opens the content of message id, of which st, opened by open, is the
// record. The cleaner may have moved the one since the other was read. Content
// that is not where cleanup says is damaged: queue.ErrCorrupt.
func ContentOf(ctx context.Context, open func(context.Context, queue.Ref, mail.QueueID) (Stored, error), st Stored, id mail.QueueID) (Content, error) {
	c, err := st.Content()
	for range tries {
		if !errors.Is(err, queue.ErrStale) {
			return c, err
		}
		if st, err = open(ctx, queue.Ref{}, id); err != nil {
			return nil, err
		}
		c, err = st.Content()
	}
	if errors.Is(err, queue.ErrStale) {
		err = fmt.Errorf("%w: %v", queue.ErrCorrupt, err)
	}
	return c, err
}
