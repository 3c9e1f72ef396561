// TLS sessions that can be resumed, in memory and over the life of a process.

package smtp

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/tlspolicy"
)

// tlsSessions keeps what it takes to resume TLS sessions, for
// smtp_tls_session_cache_timeout. With smtp_tls_session_cache_database it
// outlives the process: what is there is read at the start, and what was
// learnt is added to it at the end. It implements tls.ClientSessionCache.
type tlsSessions struct {
	path string        // of the file; empty: none
	dir  *os.Root      // it is in; nil: it could not be opened
	life time.Duration // smtp_tls_session_cache_timeout

	mu    sync.Mutex            // guards known
	known map[string]tlsSession // by policy and by crypto/tls's key for the server
}

// tlsSession is one of them, and when it was learnt.
type tlsSession struct {
	state *tls.ClientSessionState
	when  time.Time
}

// policySessions are the sessions that one policy has set up. A session that is
// resumed shows the certificate of its beginning: a server that has got another
// since then, and has had the policy changed (TLSA records, fingerprints), must
// be asked for the new one.
type policySessions struct {
	*tlsSessions
	prefix string
}

// of gives the sessions of a policy. What does not ask for a certificate
// resumes any that did not. source keeps apart those that were set up from different sources,
// which may have shown different certificates.
func (c *tlsSessions) of(p *policy, source string) policySessions {
	if p.Level < tlspolicy.Fingerprint && len(p.tlsa) == 0 && source == "" {
		return policySessions{c, ""}
	}
	// The prefix is a digest of all that decides whether a certificate does. Two
	// policies with the same digest accept the same certificates.
	h := sha256.New()
	fmt.Fprintf(h, "%v %q %q %q %v", p.Level, p.names, p.Match, p.TrustFiles, p.system)
	if source != "" {
		fmt.Fprintf(h, " %q", source)
	}
	records := make([]string, len(p.tlsa))
	for i, r := range p.tlsa {
		records[i] = fmt.Sprint(r)
	}
	slices.Sort(records) // they come in any order
	fmt.Fprint(h, records)
	return policySessions{c, hex.EncodeToString(h.Sum(nil)[:16]) + " "}
}

// Get implements tls.ClientSessionCache.
func (c policySessions) Get(key string) (*tls.ClientSessionState, bool) {
	return c.tlsSessions.Get(c.prefix + key)
}

// Put implements tls.ClientSessionCache.
func (c policySessions) Put(key string, state *tls.ClientSessionState) {
	c.tlsSessions.Put(c.prefix+key, state)
}

// maxTLSSessions bounds what is kept; the oldest of a few is given up for a new one.
const maxTLSSessions = 2000

// newTLSSessions makes a cache. database is type:path, as Postfix has it; the type
// does not matter, since the file is our own: path with .json after it. title names
// the parameter in errors.
func newTLSSessions(title, database string, life time.Duration) (*tlsSessions, error) {
	c := &tlsSessions{life: life, known: make(map[string]tlsSession)}
	if database == "" {
		return c, nil
	}
	kind, path, ok := strings.Cut(database, ":")
	if !ok || kind == "" || !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%s = %s: expected type:/path", title, database)
	}
	c.path = path + ".json"
	return c, nil
}

// file is the name of the file in dir.
func (c *tlsSessions) file() string { return filepath.Base(c.path) }

// Get implements tls.ClientSessionCache. A session that is too old is forgotten.
func (c *tlsSessions) Get(key string) (*tls.ClientSessionState, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.known[key]
	// crypto/tls would offer it, and the server decide.
	// smtp_tls_session_cache_timeout may be shorter than what servers accept.
	if ok && time.Since(s.when) >= c.life {
		delete(c.known, key)
		return nil, false
	}
	return s.state, ok
}

// Put implements tls.ClientSessionCache. A nil state is one that the server did not
// take.
func (c *tlsSessions) Put(key string, state *tls.ClientSessionState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == nil {
		delete(c.known, key)
		return
	}
	if _, known := c.known[key]; !known && len(c.known) >= maxTLSSessions {
		c.evict()
	}
	c.known[key] = tlsSession{state, time.Now()}
}

// evict gives up the oldest of a few sessions: to find the oldest of all would take
// a look at each. Called with the lock held.
func (c *tlsSessions) evict() {
	oldest, seen := "", 0
	for key, s := range c.known {
		if seen == 0 || s.when.Before(c.known[oldest].when) {
			oldest = key
		}
		if seen++; seen == 8 {
			break
		}
	}
	delete(c.known, oldest)
}

// storedSession is a session in the file. With the keys that it holds others could
// read the traffic of sessions that resume it.
type storedSession struct {
	Key    string    `json:"key"`
	When   time.Time `json:"when"`
	Ticket []byte    `json:"ticket"`
	State  []byte    `json:"state"`
}

// load opens the directory, which may be out of sight later, and reads the
// file. Sessions that cannot be made sense of are passed over: they cost a full
// handshake.
func (c *tlsSessions) load() (err error) {
	if c.path == "" {
		return nil
	}
	if c.dir, err = os.OpenRoot(filepath.Dir(c.path)); err != nil {
		return err
	}
	list, err := c.read()
	if err != nil {
		return err
	}
	for _, s := range list {
		state, err := tls.ParseSessionState(s.State)
		if err != nil {
			continue
		}
		// crypto/tls has these two functions so that sessions can be stored; it
		// checks what it gets here as far as it can.
		resumption, err := tls.NewResumptionState(s.Ticket, state)
		if err == nil && len(c.known) < maxTLSSessions {
			c.known[s.Key] = tlsSession{resumption, s.When}
		}
	}
	return nil
}

// read gives what the file has that is young enough. A file that is not there is
// empty.
func (c *tlsSessions) read() ([]storedSession, error) {
	text, err := c.dir.ReadFile(c.file())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all, young []storedSession
	if json.Unmarshal(text, &all) != nil {
		return nil, nil // written by something else, or not whole: it is but a cache
	}
	for _, s := range all {
		if age := time.Since(s.When); age >= 0 && age < c.life {
			young = append(young, s)
		}
	}
	return young, nil
}

// save adds what is known to the file, which other processes add to as well: what
// they have written meanwhile stays, except for sessions with the same servers. Two
// that save at the same moment may lose each other's, which costs handshakes.
func (c *tlsSessions) save() error {
	if c.dir == nil {
		return nil
	}
	others, err := c.read()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []storedSession
	for key, s := range c.known {
		ticket, state, err := s.state.ResumptionState()
		if err != nil || state == nil || time.Since(s.when) >= c.life {
			continue
		}
		b, err := state.Bytes()
		if err != nil {
			return err
		}
		list = append(list, storedSession{key, s.when, ticket, b})
	}
	// What is known here is newer.
	for _, s := range others {
		if _, ours := c.known[s.Key]; !ours && len(list) < maxTLSSessions {
			list = append(list, s)
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return c.replace(text)
}

// replace writes a file that is there whole or not at all, for our eyes
// only: it has keys in it. It need not survive a power cut.
func (c *tlsSessions) replace(text []byte) error {
	// A name of its own for each process, so that two do not write into the same
	// file.
	name := c.file() + "." + rand.Text()
	err := c.dir.WriteFile(name, text, 0o600)
	if err == nil {
		err = c.dir.Rename(name, c.file())
	}
	if err != nil {
		_ = c.dir.Remove(name) // it may not even exist
	}
	return err
}
