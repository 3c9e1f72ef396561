package audit

import (
	"bytes"
	"slices"

	"posthaste/internal/logread"
	"posthaste/internal/reuse"
)

// A session is what one client does at a time in one process: its connections cannot be told apart while they
// overlap.
type session struct {
	client   string
	process  string // as process names it
	open     int    // connections
	exact    bool   // all of it is in the log, and it says how many messages were accepted
	data     int    // so many
	accepted int    // messages that are known to be
	discards bool   // the next message is to be discarded
	over     bool   // no connection is open, and none will belong to it
	ids      []*message
}

// drop forgets a candidate.
func (s *session) drop(m *message) {
	if i := slices.Index(s.ids, m); i >= 0 {
		s.ids = slices.Delete(s.ids, i, i+1)
	}
}

// smtpd takes a line of the SMTP server.
func (a *account) smtpd(l *logread.Line, at int64) {
	switch text := l.Text; {
	case len(l.ID) > 0 && bytes.HasPrefix(text, []byte("client=")):
		m := a.message(l.ID, at)
		m.origin = client
		s := a.session(l)
		m.marked, s.discards = m.marked || s.discards, false
		if m.at != 0 { // other processes have been faster to log
			s.accepted++
			return
		}
		m.session, s.ids = s, append(s.ids, m)
	case len(l.ID) > 0:
		m := a.message(l.ID, at)
		m.marked = m.marked || discards(text)
	case bytes.HasPrefix(text, []byte("connect from ")):
		s := a.session(l)
		s.exact = s.exact || s.open == 0 && len(s.ids) == 0 && s.data == 0
		s.open++
	case bytes.HasPrefix(text, []byte("client=")): // a proxy filter has the message, and we do not
		a.session(l).exact = false
	case discards(text):
		a.session(l).discards = true
	case bytes.HasPrefix(text, []byte("disconnect from ")):
		a.disconnect(l, at)
	case bytes.HasPrefix(text, []byte("statistics: ")) && bytes.Contains(text, []byte(" for (stdin:")):
		a.standalone(l)
	}
}

// discards says whether a line says that a message is to be discarded.
func discards(text []byte) bool {
	return bytes.HasPrefix(text, []byte("discard: ")) || bytes.HasPrefix(text, []byte("milter-discard: "))
}

// session is the session that a line belongs to.
func (a *account) session(l *logread.Line) *session {
	peer := logread.Peer(l.Text)
	a.key = append(append(append(append(append(append(append(reuse.Truncated(a.key), a.node...), ' '), l.Tag...), '['), l.Process...), ' '), peer...)
	s := a.sessions[string(a.key)]
	if s == nil {
		s = &session{client: string(peer), process: a.process(l)}
		a.sessions[string(a.key)] = s
	}
	return s
}

// process names the process of a line: other nodes may have processes with the same number.
func (a *account) process(l *logread.Line) string {
	return a.node + " " + string(l.Tag) + "[" + string(l.Process)
}

// disconnect is the end of a connection. With the last one it is settled which messages were accepted,
// as far as that is known yet.
func (a *account) disconnect(l *logread.Line, at int64) {
	s := a.session(l)
	s.open--
	s.data += succeeded(l.Text, " data=")
	if bytes.Contains(l.Text, []byte(" bdat=")) {
		s.exact = false // it counts parts
	}
	if s.open > 0 {
		return
	}
	delete(a.sessions, string(a.key))
	s.over = true
	for _, m := range slices.Clone(s.ids) {
		a.discard(m, at)
	}
	if len(s.ids) == 0 && (!s.exact || s.accepted >= s.data) {
		return
	}
	a.ended = append(a.ended, ending{at, s})
}

// discard closes a message that is to be discarded, if its session is over and it was accepted.
func (a *account) discard(m *message, at int64) {
	if s := m.session; m.marked && s != nil && s.over && (!s.exact || s.accepted < s.data) {
		m.accept(at)
		a.close(m, at, discarded)
	}
}

// standalone: the process was one of "sendmail -bs", whose mail pickup takes, under other queue IDs.
func (a *account) standalone(l *logread.Line) {
	process := a.process(l)
	a.ended = slices.DeleteFunc(a.ended, func(e ending) bool {
		if e.s.process != process {
			return false
		}
		a.refuse(e.s)
		return true
	})
}

// succeeded is how often a command was used with success: " data=2" or " data=1/2".
func succeeded(text []byte, command string) (n int) {
	_, p, _ := bytes.Cut(text, []byte(command))
	for _, c := range p {
		if c < '0' || c > '9' || n > 1<<30 {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// candidateTime is how long it may take, by the log, until it says that a message was accepted, when its session does not
// tell. What is held after that has its beginning forgotten.
const candidateTime = 600e6

// An ending is a session that has ended, and that may have messages of which it is not known
// whether they were accepted.
type ending struct {
	at int64
	s  *session
}

// settle forgets messages that were not accepted.
func (a *account) settle(now int64) {
	n := 0
	for ; n < len(a.ended); n++ {
		e := a.ended[n]
		if now < e.at+candidateTime {
			break
		}
		if e.s.exact && e.s.accepted < e.s.data { // one of them may be lost, or be held
			a.short = append(a.short, e.s)
			continue
		}
		a.refuse(e.s)
	}
	a.ended = append(a.ended[:0], a.ended[n:]...)
	if len(a.short) > 2*a.shorts+64 { // of some of them more is known by now
		a.short = slices.DeleteFunc(a.short, func(s *session) bool {
			if s.accepted < s.data {
				return false
			}
			a.refuse(s)
			return true
		})
		a.shorts = len(a.short)
	}
}

// refuse forgets a session's messages that were not accepted.
func (a *account) refuse(s *session) {
	for _, m := range s.ids {
		if m.at == 0 {
			delete(a.messages, m.id)
		}
	}
	s.ids = nil
}
