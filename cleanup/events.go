// What other programs are told of messages that have come in (package event).

package cleanup

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"

	"posthaste/internal/event"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/rfc5322"
)

const (
	// maxAgain is how many messages are told of again after a crash, in all parts of
	// the queue together: many times as many as can have been on their way. Of one
	// part they are never fewer than twice what can have been.
	maxAgain = 20000
	// maxUntold is how many messages are in the queue at most whose clients were told
	// 250 before the journal has confirmed their events. It is far less than maxAgain:
	// whatever is killed, each of them is told of again.
	maxUntold = 1000
	// againBatch is how many are told of before the journal has confirmed them.
	againBatch = 1000
)

// A telling is a message that is about to be in the queue, or is there, and has not
// been announced.
type telling struct {
	told bool          // the journal has the first event of it, or it will have none; guarded by server.mu
	over chan struct{} // closed when it was announced, or never will be
}

// tells says that a message is about to be in the queue and to be announced. Of what
// has to be told of it is noted that a queue manager hears of it afterwards: it is the
// first event of the message, and one that attaches meanwhile would deliver it a second
// time when it is announced. The function that it returns says that it was announced,
// or never will be; it is called once.
func (s *server) tells(id mail.QueueID) (over func()) {
	entered := s.queueing.enter()
	if s.opt.Events == nil {
		return func() { s.queueing.leave(entered) }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.untold == nil {
		s.untold = make(map[mail.QueueID]*telling)
	}
	t := &telling{over: make(chan struct{})}
	s.untold[id] = t
	return func() {
		s.mu.Lock()
		if s.untold[id] == t {
			delete(s.untold, id)
		}
		s.mu.Unlock()
		close(t.over)
		s.queueing.leave(entered)
	}
}

// told says that the journal has the first event of a message, or that it will have
// none.
func (s *server) told(id mail.QueueID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.untold[id]; t != nil {
		t.told = true
	}
}

// isUntold says whether a message is between tells and told.
func (s *server) isUntold(id mail.QueueID) bool {
	if s.opt.Events == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.untold[id]
	return t != nil && !t.told
}

// unannounced are those of a page's messages that are not announced yet.
func (s *server) unannounced(page []queue.Placed) (list []*telling) {
	if s.opt.Events == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.untold) == 0 {
		return nil
	}
	for i := range page {
		if t := s.untold[page[i].ID]; t != nil {
			list = append(list, t)
		}
	}
	return list
}

// mayTellLater says whether the client of a message that is on stable storage gets its
// 250 before the journal has the event: it is on stable storage with the message, from
// which tellAgain makes it after a crash. This is the ordinary case. A message that is
// special, as it is on hold or has a past, or that comes with the end of another one,
// waits for the journal, and so does what comes while the journal is far behind.
func (in *incoming) mayTellLater(env *mail.Envelope, special bool) bool {
	s := in.s
	if special || in.q.Settles != nil || in.q.State != nil || env.Trace.DontDeliver() || !s.opt.Events.Wants(event.Received) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.untold) <= maxUntold
}

// announceLater tells of a message, and announces it when the journal has the event.
// entry is what the queue has of it, and size how much of what is stored is its
// envelope. over is what tells has given. Whoever retires waits for it.
func (in *incoming) announceLater(env *mail.Envelope, entry queue.Entry, size int, over func()) {
	s, id := in.s, env.ID
	var envelope, recipients []byte
	if len(in.stored) <= maxInlineEntry {
		stored := bytes.Clone(in.stored) // in is another message's by then
		envelope, recipients = stored[:size], stored[size:]
	}
	s.storing.Add(1)
	s.opt.Events.Tell(receivedEvent(env))
	s.opt.Events.Then(func() {
		// A queue manager that attaches between this and what follows hears of it
		// twice before it is told that this is all, and never not at all.
		s.told(id)
		s.announce(&proto.Entries{}, entry, envelope, recipients)
		over()
		s.storing.Add(-1)
	})
}

// tellReceived tells of a message that is on stable storage, and returns when the
// journal has the event. The message is announced, and its client gets its 250,
// afterwards. Nobody is told of a probe.
func (s *server) tellReceived(env *mail.Envelope) {
	if s.opt.Events == nil {
		return
	}
	if s.opt.Events.Wants(event.Received) && !env.Trace.DontDeliver() {
		s.opt.Events.Tell(receivedEvent(env))
		s.opt.Events.Wait(s.ctx)
	}
	s.told(env.ID)
}

// receivedEvent is the event of a message. All of it is in the envelope as it is
// stored, so that it is the same whenever it is made.
func receivedEvent(env *mail.Envelope) *event.Event {
	e := &event.Event{Kind: event.Received, Time: env.Arrival, QueueID: string(env.ID), MessageID: env.MessageID, EnvID: env.EnvID,
		Sender: rfc5322.Quote(env.Sender), FromMessage: true, Size: env.Size, Count: len(env.Recipients),
		ClientName: env.Client.Name, ClientAddr: env.Client.Addr, Helo: env.Client.Helo, Protocol: env.Client.Proto, SASLUser: env.SASL.Username,
		Tenant: env.Tenant, Campaign: env.Campaign}
	for i := range env.Recipients[:min(len(env.Recipients), event.MaxRecipients)] {
		e.Recipients = append(e.Recipients, rfc5322.Quote(env.Recipients[i].Address))
	}
	return e
}

// tellAgain tells of messages that came in when the service was killed, or power
// failed: they are in the queue, and whether the journal has their events is not known.
// Nothing has been tried of them, as the queue manager is told of a message after its
// event, and they are among the last that were written. r is what was found: the queue
// is not served yet, or another node's mail has come into it.
func tellAgain(ctx context.Context, events *event.Reporter, en engine, r *recovery, rd queueread.Reader) {
	if !events.Wants(event.Received) || !r.Unclean {
		return
	}
	var list []queue.Entry
	// What has been tried was told of: the queue manager hears of a message after its
	// event.
	for e := range en.Entries {
		// The queue manager waits for this: it is not done for parts that were given
		// back in order, nor for what was here before.
		if len(r.UncleanParts) > 0 && !slices.Contains(r.UncleanParts, int(e.Ref.File)) {
			continue
		}
		if e.Attempts == 0 && !e.Trace.DontDeliver() {
			list = append(list, e)
		}
	}
	list = lastWritten(list, len(r.UncleanParts) > 0)
	for i := range list {
		// What cannot be read is named when the message is to be delivered.
		if env, err := readEnvelope(rd, &list[i]); err == nil {
			events.Tell(receivedEvent(env))
		}
		if i%againBatch == againBatch-1 {
			events.Wait(ctx)
		}
	}
	events.Wait(ctx)
}

// lastWritten gives the messages that were written last: they are those that may have
// been on their way. They come first, as what a journal that does not answer has no
// room for is lost. What was written in different parts of the queue, which are shards
// if that is true, and else spools, has numbers that say nothing of each other.
func lastWritten(list []queue.Entry, shards bool) []queue.Entry {
	parts := make(map[uint32][]queue.Entry)
	for _, e := range list {
		part := uint32(e.Ref.Spool)
		if shards {
			part = e.Ref.File
		}
		parts[part] = append(parts[part], e)
	}
	for _, p := range parts {
		// Against the order of the log, which is that of the segments' use.
		slices.SortFunc(p, func(a, b queue.Entry) int {
			return cmp.Or(cmp.Compare(b.Ref.Segno, a.Ref.Segno), cmp.Compare(b.Ref.Offset, a.Ref.Offset))
		})
	}
	list = list[:0]
	order := slices.Sorted(maps.Keys(parts))
	for i := range max(maxAgain/max(len(parts), 1), 2*maxUntold) {
		for _, part := range order {
			if p := parts[part]; i < len(p) {
				list = append(list, p[i])
			}
		}
	}
	return list
}

// readEnvelope reads a message's envelope with its recipients.
func readEnvelope(rd queueread.Reader, e *queue.Entry) (*mail.Envelope, error) {
	st, err := rd.Read(e.Ref, e.ID)
	if err != nil {
		return nil, err
	}
	env, err := st.Envelope()
	if err != nil {
		return nil, err
	}
	env.Recipients, err = st.Recipients(0, -1)
	return &env, err
}
