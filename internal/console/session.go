package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"slices"
	"sync"
	"time"

	"posthaste/internal/sasl"
	"posthaste/internal/table"
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
	// maxPassword bounds what is taken for one, in octets.
	maxPassword = 1024
)

// A role is what somebody may do. Each includes the ones before it.
type role uint8

const (
	nobody  role = iota // has not logged in
	look                // pages, and everything that changes nothing
	operate             // suspend, hold, delete ...
)

// A session is one login.
type session struct {
	user    string
	role    role
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
func (s *sessions) begin(user string, r role) (token string, made session) {
	now := s.now()
	token = random()
	n := &session{user: user, role: r, csrf: random(), begun: now, used: now, key: sha256.Sum256([]byte(token))}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	own := 0
	for _, o := range s.all {
		if o.user == user {
			own++
		}
	}
	if own >= userSessions {
		s.dropOldest(func(o *session) bool { return o.user == user })
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

// people say who may log in, and what they may do. Methods may be called concurrently.
type people struct {
	backend   sasl.Backend // nil: there are no tables of users
	operators *table.List
}

var (
	errLogin   = errors.New("the name or the password is wrong")
	errNoUsers = errors.New("nobody can log in: console_user_maps names no table of users")
)

// login verifies a password, and returns the user's name in its only form. errLogin says that it
// is wrong, or that there is no such user.
func (p *people) login(ctx context.Context, user, password string) (name string, r role, err error) {
	if p.backend == nil {
		return "", nobody, errNoUsers
	}
	if user == "" || password == "" || len(user) > 255 || len(password) > maxPassword || slices.Contains([]byte(user+password), 0) {
		return "", nobody, errLogin
	}
	x, err := p.backend.Start(ctx, "PLAIN", sasl.Client{Service: "console"})
	if err != nil {
		return "", nobody, err
	}
	defer x.Close()
	_, done, err := x.Next(ctx, []byte("\x00"+user+"\x00"+password))
	var failure *sasl.Failure
	if errors.As(err, &failure) || err == nil && !done {
		return "", nobody, errLogin
	}
	if err != nil {
		return "", nobody, err
	}
	operator, err := p.operators.Match(ctx, x.Username())
	if err != nil {
		return "", nobody, err
	}
	if operator {
		return x.Username(), operate, nil
	}
	return x.Username(), look, nil
}
