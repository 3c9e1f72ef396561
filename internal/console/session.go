package console

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"sync"
	"time"
)

const (
	// idleTime is how long a session lasts when nothing is asked in it, and wholeTime how long it
	// lasts at most.
	idleTime  = time.Hour
	wholeTime = 12 * time.Hour
	// maxSessions bounds all sessions, and userSessions those of one user: the one that was used
	// least recently ends.
	maxSessions, userSessions = 1000, 20
	// freeTries is how many passwords may be wrong before the next one has to wait, firstWait how
	// long, and longWait the longest wait: each failure doubles it. A try that is older than
	// longWait is forgotten.
	freeTries = 5
	firstWait = time.Second
	longWait  = 15 * time.Minute
	// maxTries bounds for how many addresses and users failures are remembered.
	maxTries = 10000
)

// A session is one login.
type session struct {
	person
	csrf    string // what a form of the session must have in it
	begun   time.Time
	used    time.Time
	key     [sha256.Size]byte
	note    string // what the next page says first: what came of an act
	streams int    // of live pages
}

// sessions are those of all users. They are in memory only: a restart ends them. Methods may be
// called concurrently.
type sessions struct {
	now func() time.Time

	mu  sync.Mutex
	all map[[sha256.Size]byte]*session
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, all: make(map[[sha256.Size]byte]*session)}
}

// random is a text that cannot be guessed.
func random() string {
	b := make([]byte, 32)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}

// begin makes a session, and the token that names it. Only its hash is kept.
func (s *sessions) begin(who person) (token string, made session) {
	now := s.now()
	token = random()
	n := &session{person: who, csrf: random(), begun: now, used: now, key: sha256.Sum256([]byte(token))}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	own := 0
	for _, o := range s.all {
		if o.user == who.user {
			own++
		}
	}
	if own >= userSessions {
		s.dropOldest(func(o *session) bool { return o.user == who.user })
	} else if len(s.all) >= maxSessions {
		s.dropOldest(func(*session) bool { return true })
	}
	s.all[n.key] = n
	return token, *n
}

func (s *sessions) expire(now time.Time) {
	for k, o := range s.all {
		if now.Sub(o.used) > idleTime || now.Sub(o.begun) > wholeTime {
			delete(s.all, k)
		}
	}
}

func (s *sessions) dropOldest(of func(*session) bool) {
	var oldest *session
	for _, o := range s.all {
		if of(o) && (oldest == nil || o.used.Before(oldest.used)) {
			oldest = o
		}
	}
	if oldest != nil {
		delete(s.all, oldest.key)
	}
}

// find is the session of a token, as a copy; ok is false when there is none, or it is over.
func (s *sessions) find(token string) (found session, ok bool) {
	if token == "" || len(token) > 100 {
		return session{}, false
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.all[sha256.Sum256([]byte(token))]
	if o == nil || now.Sub(o.used) > idleTime || now.Sub(o.begun) > wholeTime {
		return session{}, false
	}
	o.used = now
	return *o, true
}

// alive says whether a session has not ended.
func (s *sessions) alive(o *session) bool {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.all[o.key]
	return kept != nil && now.Sub(kept.begun) <= wholeTime && (kept.streams > 0 || now.Sub(kept.used) <= idleTime)
}

// end ends a session.
func (s *sessions) end(o *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, o.key)
}

// leave leaves a note for the session's next page.
func (s *sessions) leave(o *session, note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept := s.all[o.key]; kept != nil {
		kept.note = note
	}
}

// takeNote returns the note of a session, and forgets it.
func (s *sessions) takeNote(o *session) (note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept := s.all[o.key]; kept != nil {
		note, kept.note = kept.note, ""
	}
	return note
}

// stream counts a live page of a session, if there is room for one more; done ends that.
func (s *sessions) stream(o *session) (done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, total := s.all[o.key], 0
	for _, o := range s.all {
		total += o.streams
	}
	if kept == nil || kept.streams >= sessionStreams || total >= maxStreams {
		return nil, false
	}
	kept.streams++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		kept.streams--
	}, true
}

// owns says whether a form has the session's secret in it.
func (o *session) owns(csrf string) bool {
	return o.csrf != "" && subtle.ConstantTimeCompare([]byte(o.csrf), []byte(csrf)) == 1
}

// tries remember failed logins by address and by user. Methods may be called concurrently.
type tries struct {
	now func() time.Time

	mu  sync.Mutex
	all map[string]*failures
}

type failures struct {
	n     int
	until time.Time // no try before
	last  time.Time
}

func newTries(now func() time.Time) *tries { return &tries{now: now, all: make(map[string]*failures)} }

// wait is how long the keys have to wait before a password of theirs is looked at. A try is
// counted as failed until it is forgiven.
func (t *tries) wait(keys ...string) time.Duration {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := time.Duration(0)
	for _, k := range keys {
		if f := t.all[k]; f != nil && f.until.After(now) {
			wait = max(wait, f.until.Sub(now))
		}
	}
	if wait > 0 {
		return wait
	}
	for _, k := range keys {
		f := t.all[k]
		if f == nil || now.Sub(f.last) > longWait {
			t.room(now)
			f = new(failures)
			t.all[k] = f
		}
		f.last = now
		if f.n++; f.n >= freeTries {
			f.until = now.Add(min(longWait, firstWait<<min(f.n-freeTries, 20)))
		}
	}
	return 0
}

// room forgets who has not tried for a while, or else anybody.
func (t *tries) room(now time.Time) {
	if len(t.all) < maxTries {
		return
	}
	for k, f := range t.all {
		if now.Sub(f.last) > longWait {
			delete(t.all, k)
		}
	}
	for k := range t.all {
		if len(t.all) < maxTries {
			return
		}
		delete(t.all, k)
	}
}

// forgive forgets the failures of who has logged in.
func (t *tries) forgive(keys ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range keys {
		delete(t.all, k)
	}
}
