// What nodes that share a queue tell each other of destinations that are dead, so that not each of them pays for a host that
// does not answer with a connection that times out. Once a second, cleanup takes a note of this queue manager's dead
// destinations to the others, and brings theirs ("Notes"). The scheduler decides what they are worth (qmgr/sched/hint.go):
// little, and for a short time. What this node has only heard it does not tell again, so that no word goes round in circles.
//
// Times are told as what is left of them: clocks of nodes differ. A note that is late, or that comes twice, does no harm: the
// time is cut to what a failure here would cost.
//
// Why a note of all that is dead, each second, and not a word for each death: a node that has just been started hears what
// the others know at once, a word that is lost is said again, and nobody has to be told that something has ended. A
// thousand dead destinations are some hundred octets each; with more than a note has room for, the rest is found out by each
// node for itself, as without notes.
//
// Why nothing is said of destinations that are alive: the first delivery finds that out at the price of one round trip.

package qmgr

import (
	"context"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/nodeshare"
	"posthaste/internal/pack"
	"posthaste/internal/proto"
	"posthaste/qmgr/sched"
)

const (
	// hintTopic is that of the notes.
	hintTopic = "qmgr.dead"
	// hintText bounds what is said of why a destination is dead, in octets, and hintName its names.
	hintText, hintName = 512, 512
	// maxHints bounds the destinations that are taken from one note.
	maxHints = 2000
)

// tellHints exchanges notes with other nodes until ctx ends. It is a goroutine of its own, since it waits for cleanup.
func (s *Server) tellHints(ctx context.Context) {
	t := time.NewTicker(nodeshare.NotePeriod)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		s.exchangeHints(ctx)
	}
}

// exchangeHints tells the others, and has the scheduler take in what they say. While the queue is away there is no answer, and
// nothing to deliver either.
func (s *Server) exchangeHints(ctx context.Context) {
	// The scheduler is the loop's. The note is made there, in a walk over the destinations, as that for shares is.
	ch := make(chan []byte, 1)
	s.post(func() { ch <- s.hintNote() }, sched.Event{})
	var note []byte
	select {
	case note = <-ch:
	case <-s.deaf:
		return
	case <-ctx.Done():
		return
	}
	// An answer that comes later than this is about a time when others may have found something else.
	calling, cancel := context.WithTimeout(ctx, nodeshare.NoteTime)
	defer cancel()
	var reply proto.NotesReply
	conn, err := s.cleanup.Conn(calling)
	if err == nil {
		err = conn.Call(calling, &proto.Notes{Topic: hintTopic, Note: note}, &reply)
	}
	if err != nil || len(reply.Notes) == 0 {
		return
	}
	s.post(func() {
		var list []sched.Hint
		for _, n := range reply.Notes {
			list = append(list, readHints(n, s.now)...)
		}
		if len(list) > 0 {
			s.then(sched.Event{Kind: sched.EventHints, Hints: list})
		}
	}, sched.Event{})
}

// hintNote is what this node has found dead itself, as far as a note has room. It is called in the loop.
func (s *Server) hintNote() (b []byte) {
	if s.leaving {
		return nil // the successor speaks for the node
	}
	b = pack.String(b, 'n', s.opt.Settings.Node)
	bare := len(b)
	s.sched.Dests(func(d sched.Dest) bool {
		// Names that are longer than any destination has a use for would leave no room for others.
		left := d.Until.Sub(s.now)
		if d.State != sched.DestDead || d.Hearsay || left <= 0 || len(d.Queue) > hintName || len(d.Nexthop) > hintName {
			return true
		}
		one := pack.Nested(nil, 'd', func(b []byte) []byte {
			b = pack.String(b, 't', d.Transport)
			b = pack.String(b, 'q', d.Queue)
			b = pack.String(b, 'h', d.Nexthop)
			b = pack.String(b, 's', d.Source)
			b = pack.String(b, 'c', d.Status.String())
			b = pack.String(b, 'r', d.Text[:min(len(d.Text), hintText)])
			return pack.Int(b, 'l', left.Milliseconds())
		})
		if len(b)+len(one) > nodeshare.NoteLimit {
			return false
		}
		b = append(b, one...)
		return true
	})
	if len(b) == bare {
		return nil // nothing to say
	}
	return b
}

// readHints is what a note of another node says. The database may have anything in it: what cannot be read is left out.
func readHints(note []byte, now time.Time) (list []sched.Hint) {
	from := ""
	r := pack.NewReader(note)
	for r.Next() && len(list) < maxHints {
		switch r.Tag() {
		case 'n':
			from = r.String()
			from = from[:min(len(from), hintName)]
		case 'd':
			if h, ok := readHint(r.Bytes(), now); ok {
				h.Text = cleanText(h.Text) + " (as node " + cleanText(from) + " has found)"
				list = append(list, h)
			}
		}
	}
	return list
}

// cleanText has nothing in it that ends a line, or is no text: it comes to the log, and into reports.
func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// readHint is one destination of a note. It is not ok when anything about it is more than another node would have said, so
// that what is taken in is bounded by what is told.
func readHint(b []byte, now time.Time) (h sched.Hint, ok bool) {
	r := pack.NewReader(b)
	for r.Next() {
		switch r.Tag() {
		case 't':
			h.Transport = mail.Transport(r.String())
		case 'q':
			h.Queue = r.String()
		case 'h':
			h.Nexthop = mail.Nexthop(r.String())
		case 's':
			h.Source = r.String()
		case 'c':
			h.Status, _ = dsn.ParseStatus(r.String())
		case 'r':
			h.Text = r.String()
		// More than any back-off is no time that makes sense, and must not overflow one.
		case 'l':
			h.Until = now.Add(time.Duration(min(max(r.Int(), 0), 1<<31)) * time.Millisecond)
		}
	}
	// A destination for which mail is refused for good is not dead: such a status is another one's mistake, or a forgery.
	ok = r.Err() == nil && h.Status.Class == 4 && h.Transport != "" && h.Queue != "" && len(h.Transport) <= hintName && len(h.Queue) <= hintName &&
		len(h.Nexthop) <= hintName && len(h.Source) <= hintName && len(h.Text) <= hintText
	return h, ok
}
