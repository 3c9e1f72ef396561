package acme

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"posthaste/internal/servercert"
)

// An authority is what the manager asks.
type authority interface {
	obtain(ctx context.Context, account, key crypto.Signer, replaces *x509.Certificate) (chain []byte, location string, err error)
	suggest(ctx context.Context, leaf *x509.Certificate) (suggestion, error)
	// explain and advise say what an error of obtain means.
	advise(err error) string
	// said is how long the authority wants to be left in peace, and how far our clock is ahead.
	said() (again time.Time, ahead time.Duration)
}

func (c *client) said() (again time.Time, ahead time.Duration) { return c.notes.said() }

// A logger is told what happens.
type logger interface {
	Info(format string, args ...any)
	Warning(format string, args ...any)
}

const (
	// lookAgain is how often it is looked whether somebody asks for a renewal.
	// A person waits: it is the look at one name of a file.
	lookAgain = time.Second
	// wholeLook is how often the files are read, and mendLook if they could not be.
	wholeLook, mendLook = time.Hour, time.Minute
	// askAgain is how often the authority is asked for a time of renewal, if it does not say, and
	// askLater when it could not be asked.
	askAgain, askLater = 6 * time.Hour, time.Hour
	// askSoonest and askLatest are the bounds of what it says.
	askSoonest, askLatest = 10 * time.Minute, 3 * 24 * time.Hour
	// apart is the least time between two attempts that somebody asks for.
	apart = 5 * time.Second
	// skewed is how wrong the clock may be.
	skewed = 5 * time.Minute
)

// A manager keeps a certificate: one goroutine, one attempt at a time.
type manager struct {
	set    *settings
	store  *servercert.Store
	ca     authority
	log    logger
	spread func() float64 // at random, from 0 to 1
	look   time.Duration  // lookAgain
	view   *view          // of the DNS

	state    *servercert.State
	unsaved  string    // the last complaint about the store
	lookNext time.Time // when to look at the next key's TLSA records
	waiting  string    // for what the next key waits, as it was said
}

// run keeps the certificate until ctx ends.
func (m *manager) run(ctx context.Context) {
	for ctx.Err() == nil {
		next := time.Now().Add(min(m.turn(ctx), wholeLook))
		for wait := time.Until(next); wait > 0 && ctx.Err() == nil; wait = time.Until(next) {
			select {
			case <-ctx.Done():
			case <-time.After(min(wait, m.look)):
			}
			if m.stirred() {
				break
			}
		}
	}
}

// asked says whether somebody asks for a renewal, and not too soon after the last attempt.
func (m *manager) asked() bool {
	return m.store.Requested() && time.Since(m.state.Attempt) >= apart
}

// stirred says whether somebody asks for a renewal, or has made a next key.
func (m *manager) stirred() bool { return m.asked() || m.lookNext.IsZero() && m.store.HasNext() }

// turn does what is to be done now, and returns how long there is nothing to do, unless somebody
// asks for something.
func (m *manager) turn(ctx context.Context) time.Duration {
	key, leaf, err := m.open()
	m.complain(err)
	if err != nil {
		return mendLook
	}
	now := time.Now()
	m.plan(ctx, leaf, now)
	if next := m.next(ctx, now); next != nil {
		m.attempt(ctx, next, leaf, "the next key may be used")
		return 0
	}
	at, why := due(now, leaf, key.Public(), m.set, m.state, m.asked())
	if wait := at.Sub(now); wait > 0 {
		if !m.lookNext.IsZero() {
			wait = min(wait, max(m.lookNext.Sub(now), time.Second))
		}
		return wait
	}
	m.attempt(ctx, key, leaf, why)
	return 0
}

// complain says once what is wrong with the files.
func (m *manager) complain(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != m.unsaved && text != "" {
		m.log.Warning("no certificate is requested: %s", text)
	}
	m.unsaved = text
}

// open reads the key and the present certificate. Where there is none, one that signs itself
// serves from now on.
func (m *manager) open() (key crypto.Signer, leaf *x509.Certificate, err error) {
	if m.state == nil {
		if m.state, err = m.store.State(); err != nil {
			m.log.Warning("what was known of earlier attempts is lost: %v", err)
		}
		m.state.Turn(m.set.directory, time.Now())
	}
	if key, err = m.store.Key(m.set.keyType); err != nil {
		return nil, nil, err
	}
	chain, err := m.store.Chain()
	if err == nil {
		return m.finish(key, chain[0])
	}
	if !errors.Is(err, fs.ErrNotExist) {
		m.log.Warning("the certificate is replaced: %v", err)
	}
	text, err := servercert.SelfSigned(key, m.set.names, time.Now())
	if err == nil {
		err = m.store.SaveSelfSigned(text)
	}
	return key, nil, err
}

// finish ends a change of the key that was interrupted: the servers have the next one already.
func (m *manager) finish(key crypto.Signer, leaf *x509.Certificate) (crypto.Signer, *x509.Certificate, error) {
	if servercert.SameKey(leaf.PublicKey, key.Public()) {
		return key, leaf, nil
	}
	next, err := m.store.NextKey()
	if errors.Is(err, fs.ErrNotExist) {
		return key, leaf, nil
	}
	if err != nil || !servercert.SameKey(leaf.PublicKey, next.Public()) {
		return key, leaf, err
	}
	return next, leaf, m.promote(key.Public())
}

// plan asks the authority when to renew, from time to time. Without an answer the last one counts.
func (m *manager) plan(ctx context.Context, leaf *x509.Certificate, now time.Time) {
	st := m.state
	if leaf == nil || servercert.IsSelfSigned(leaf) || st.Authority != m.set.directory || now.Before(st.Ask) {
		return
	}
	s, err := m.ca.suggest(ctx, leaf)
	if ctx.Err() != nil {
		return
	}
	if st.Ask = now.Add(askLater); err != nil {
		m.log.Info("the authority does not say when to renew the certificate: %v", explain(err))
	} else {
		st.Ask = now.Add(askAgain)
		if !s.again.IsZero() {
			st.Ask = now.Add(min(max(s.again.Sub(now), askSoonest), askLatest))
		}
		if !s.start.Equal(st.Start) || !s.end.Equal(st.End) {
			st.Start, st.End, st.Renew = s.start, s.end, time.Time{}
			if !s.start.IsZero() {
				st.Renew = choose(s.start, s.end, m.spread())
				m.log.Info("the certificate is to be renewed at %s: the authority suggests %s to %s%s", date(st.Renew), date(s.start), date(s.end), because(s.why))
			}
			m.save()
		}
	}
}

// because adds an explanation's address.
func because(url string) string {
	if url == "" {
		return ""
	}
	return ", see " + url
}

// save keeps the state. If that fails, attempts go on, with what is in memory.
func (m *manager) save() {
	if err := m.store.SaveState(m.state); err != nil {
		m.log.Warning("after a restart the authority may be asked too early: %v", err)
	}
}

// attempt requests a certificate. That an attempt has begun is on the disk before, so that one
// which is interrupted is not repeated at once.
func (m *manager) attempt(ctx context.Context, key crypto.Signer, leaf *x509.Certificate, why string) {
	st, now := m.state, time.Now()
	st.Attempt, st.Next = now, now.Add(interrupted)
	m.save()
	m.store.Answered()
	m.log.Info("%s is asked for a certificate for %s: %s", m.set.directory, strings.Join(m.set.names, " "), why)
	chain, err := m.obtain(ctx, key, leaf)
	if ctx.Err() != nil {
		return // the service ends
	}
	now = time.Now()
	st.Finished = now
	if err != nil {
		m.failed(err, leaf, now)
		return
	}
	st.Authority, st.Trouble = m.set.directory, servercert.Trouble{}
	st.Start, st.End, st.Renew, st.Ask = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	m.save()
	m.log.Info("the certificate for %s is by %s, and valid until %s", strings.Join(chain.DNSNames, " "), chain.Issuer, date(chain.NotAfter))
	m.watchClock(chain, now)
}

// obtain has a certificate made, and gives it to the servers.
func (m *manager) obtain(ctx context.Context, key crypto.Signer, leaf *x509.Certificate) (*x509.Certificate, error) {
	account, err := m.store.Account()
	if err != nil {
		return nil, err
	}
	replaces := leaf
	if leaf != nil && (servercert.IsSelfSigned(leaf) || m.state.Authority != m.set.directory) {
		replaces = nil
	}
	text, location, err := m.ca.obtain(ctx, account, key, replaces)
	if err != nil {
		return nil, err
	}
	m.state.Account = location
	if err := m.store.SaveChain(key, text); err != nil {
		return nil, err
	}
	chain, err := servercert.ParseCertificates(text)
	if err != nil {
		return nil, err
	}
	return chain[0], nil
}

// failed plans the next attempt.
func (m *manager) failed(err error, leaf *x509.Certificate, now time.Time) {
	st := m.state
	st.Failures++
	st.Problem = explain(err)
	again, ahead := m.ca.said()
	st.Next = later(now.Add(backOff(st.Failures, m.spread())), again)
	m.save()
	text := st.Problem
	if hint := m.ca.advise(err); hint != "" {
		text += " (" + hint + ")"
	}
	m.log.Warning("no certificate for %s: %s; next attempt at %s", strings.Join(m.set.names, " "), text, date(st.Next))
	if ahead > skewed || ahead < -skewed {
		m.log.Warning("%s", wrongClock(ahead))
	}
	if leaf == nil || servercert.IsSelfSigned(leaf) {
		m.log.Warning("a self-signed certificate serves meanwhile")
	} else if left := leaf.NotAfter.Sub(now); left <= 0 {
		m.log.Warning("the certificate expired on %s: mail programs and verifying senders do not deliver to us", date(leaf.NotAfter))
	} else if left < leaf.NotAfter.Sub(leaf.NotBefore)/6 {
		m.log.Warning("the certificate expires on %s", date(leaf.NotAfter))
	}
}

// watchClock warns of a clock by which the new certificate is not valid, or which the authority's
// contradicts. The certificate serves: clients have clocks of their own.
func (m *manager) watchClock(leaf *x509.Certificate, now time.Time) {
	_, ahead := m.ca.said()
	switch {
	case now.Before(leaf.NotBefore) || now.After(leaf.NotAfter):
		m.log.Warning("the certificate is valid from %s to %s, and it is %s by the clock of this machine: is it right?", date(leaf.NotBefore), date(leaf.NotAfter), date(now))
	case ahead > skewed || ahead < -skewed:
		m.log.Warning("%s", wrongClock(ahead))
	}
}

func wrongClock(ahead time.Duration) string {
	word := "fast"
	if ahead < 0 {
		ahead, word = -ahead, "slow"
	}
	return fmt.Sprintf("the clock of this machine is %v %s, by the authority's: renewals depend on it", ahead.Round(time.Second), word)
}

// date is a time as the log has it.
func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
