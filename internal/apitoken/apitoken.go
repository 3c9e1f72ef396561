// Package apitoken keeps the tokens by which programs use the HTTP services of the mail system: the
// inject service takes mail from them, and the console answers them. A token is sent in the field
// "Authorization: Bearer TOKEN". "posthaste token" makes, lists and removes them.
//
// # The file
//
// Tokens are in the file "tokens" of api_token_directory, a JSON object a line. It has a SHA-256 hash
// of each token, which is as good as the token's 256 random bits are, and not the token itself. A
// change takes the place of the whole file, and is on stable storage when the command ends. Services
// look at the file at most once a second, and when it has changed they read it again: a token that was
// removed is good for a second more at most. A file that cannot be read is an error, and no token is
// good until that is mended.
//
// # Security
//
// The directory and the file are for mail_owner alone. Who can read the file cannot use a token of it.
// Tokens are found by their hash, so that the time of a comparison tells nothing of them. Numbers and
// sizes are bounded: 10,000 tokens, lines of 16 KB, 100 senders each.
package apitoken

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/statedir"
)

const (
	// fileName is the file with the tokens, and lockName what who changes it has locked.
	fileName, lockName = "tokens", "lock"
	// prefix begins each token, so that it is known for what it is where it does not belong.
	prefix = "pht_"
	// maxTokens, maxLine and maxSenders bound the file.
	maxTokens, maxLine, maxSenders = 10000, 16 << 10, 100
	// MaxName is the longest name of a token or a tenant, in octets.
	MaxName = 64
	// lookAgain is how long the file is taken to be as it was.
	lookAgain = time.Second
)

// The roles: what a token may be used for.
const (
	Inject  = "inject"  // hand in mail
	Look    = "look"    // see what the console shows
	Operate = "operate" // and change what the console can change
	Read    = "read"    // see what the console shows, and read what messages say
	// Suppress is to see and change the suppression list of the token's tenant.
	Suppress = "suppress"
)

// roles are all of them.
var roles = []string{Inject, Look, Operate, Read, Suppress}

var (
	// ErrUnknown says that a token is not, or no longer, one of ours.
	ErrUnknown = errors.New("the token is not known")
	// ErrExpired says that the time of a token is over.
	ErrExpired = errors.New("the token has expired")
)

// A Token is what is known of one.
type Token struct {
	Name    string    `json:"name"`
	Hash    string    `json:"hash"` // SHA-256 of the token, in hexadecimal
	Tenant  string    `json:"tenant,omitempty"`
	Roles   []string  `json:"roles"`
	Senders []string  `json:"senders,omitempty"` // see Permits
	Quota   int       `json:"quota,omitempty"`   // recipients a day; 0: any number
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
}

// May says whether the token has a role. Operate and Read include Look.
func (t *Token) May(role string) bool {
	return slices.Contains(t.Roles, role) || role == Look && (slices.Contains(t.Roles, Operate) || slices.Contains(t.Roles, Read))
}

// Permits says whether mail may be sent under an address, which is in internal form; "" is the null
// sender. Senders are addresses, domains, domains with a dot before them for all below, "<>" for the
// null sender, and "*" for all. Letter case does not count.
func (t *Token) Permits(address string) bool {
	domain := ""
	if at := strings.LastIndexByte(address, '@'); at >= 0 {
		domain = address[at+1:]
	}
	for _, s := range t.Senders {
		switch {
		case s == "*":
			return true
		case address == "":
			if s == "<>" {
				return true
			}
		case strings.Contains(s, "@"):
			if strings.EqualFold(s, address) {
				return true
			}
		case domain == "":
		case strings.HasPrefix(s, "."):
			if len(domain) > len(s) && strings.EqualFold(domain[len(domain)-len(s):], s) {
				return true
			}
		case strings.EqualFold(s, domain):
			return true
		}
	}
	return false
}

// check says what is wrong with a token's properties.
func (t *Token) check() error {
	switch {
	case !IsName(t.Name):
		return fmt.Errorf("%q is no name: it has 1 to %d letters, digits and . _ -", t.Name, MaxName)
	case t.Tenant != "" && !IsName(t.Tenant):
		return fmt.Errorf("%q is no tenant: it has 1 to %d letters, digits and . _ -", t.Tenant, MaxName)
	case len(t.Roles) == 0:
		return errors.New("a token needs a role")
	case len(t.Senders) > maxSenders:
		return fmt.Errorf("a token has at most %d senders", maxSenders)
	case t.Quota < 0:
		return errors.New("a quota is not negative")
	}
	for _, r := range t.Roles {
		if !slices.Contains(roles, r) {
			return fmt.Errorf("there is no role %q; the roles are %s", r, strings.Join(roles, ", "))
		}
	}
	if t.May(Inject) && len(t.Senders) == 0 {
		return errors.New("a token of the role inject needs a sender")
	}
	if t.May(Suppress) && t.Tenant == "" {
		return errors.New("a token of the role suppress needs a tenant, whose list it is")
	}
	for _, s := range t.Senders {
		if s == "" || len(s) > 320 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) ||
			strings.HasPrefix(s, "@") || strings.HasSuffix(s, "@") || s == "." {
			return fmt.Errorf("%q is no sender: it is an address, a domain, .domain for all below, <> or *", s)
		}
	}
	return nil
}

// IsName says whether a text can name a token or a tenant.
func IsName(s string) bool {
	return s != "" && len(s) <= MaxName && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	})
}

// A Store has the tokens of a mail system. Methods may be called concurrently, also by several
// processes.
type Store struct {
	dir *statedir.Dir
	now func() time.Time

	mu     sync.Mutex
	looked time.Time // when the file was looked at; zero: never
	seen   os.FileInfo
	known  map[[sha256.Size]byte]*Token
	err    error // why the file cannot be read
}

// Open opens the directory, and makes it if it is not there.
func Open(directory string, now func() time.Time) (*Store, error) {
	dir, err := statedir.Open(directory)
	if err != nil {
		return nil, fmt.Errorf("api_token_directory: %w", err)
	}
	return &Store{dir: dir, now: now}, nil
}

// Close closes the directory.
func (s *Store) Close() error { return s.dir.Close() }

// Find returns what is known of a token. The error is ErrUnknown, ErrExpired, or says why the file
// cannot be read. The Token must not be changed.
func (s *Store) Find(token string) (*Token, error) {
	if !strings.HasPrefix(token, prefix) || len(token) > 100 {
		return nil, ErrUnknown
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh(now)
	if s.err != nil {
		return nil, s.err
	}
	t := s.known[sha256.Sum256([]byte(token))]
	switch {
	case t == nil:
		return nil, ErrUnknown
	case !t.Expires.IsZero() && !now.Before(t.Expires):
		return nil, ErrExpired
	}
	return t, nil
}

// refresh reads the file again if it has changed.
func (s *Store) refresh(now time.Time) {
	if since := now.Sub(s.looked); !s.looked.IsZero() && since >= 0 && since < lookAgain {
		return
	}
	s.looked = now
	info, err := s.dir.Lstat(fileName)
	if errors.Is(err, fs.ErrNotExist) {
		s.known, s.seen, s.err = nil, nil, nil
		return
	}
	if err == nil && s.err == nil && s.seen != nil && os.SameFile(info, s.seen) && info.ModTime().Equal(s.seen.ModTime()) && info.Size() == s.seen.Size() {
		return
	}
	var list []Token
	if err == nil {
		list, err = s.read()
	}
	if s.err = err; err != nil {
		return
	}
	s.seen, s.known = info, make(map[[sha256.Size]byte]*Token, len(list))
	for i := range list {
		var key [sha256.Size]byte
		_, _ = hex.Decode(key[:], []byte(list[i].Hash)) // read has looked at it
		s.known[key] = &list[i]
	}
}

// read reads the file. A file that is not there has no tokens.
func (s *Store) read() ([]Token, error) {
	f, err := s.dir.Open(fileName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("api_token_directory: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTokens*maxLine))
	if err != nil {
		return nil, fmt.Errorf("api_token_directory: %w", err)
	}
	list, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("api_token_directory: the file %s, %w", fileName, err)
	}
	return list, nil
}

// parse reads the text of the file. An error says in which line it is.
func parse(text []byte) (list []Token, err error) {
	names := map[string]bool{}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		bad := func(what string) ([]Token, error) { return nil, fmt.Errorf("line %d: %s", number, what) }
		if len(line) > maxLine || len(list) == maxTokens {
			return bad("it is longer than a line, or one more, than this command writes")
		}
		var t Token
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&t); err != nil {
			return bad(err.Error())
		}
		if _, err := d.Token(); err != io.EOF {
			return bad("something stands behind the token")
		}
		if err := t.check(); err != nil {
			return bad(err.Error())
		}
		if h, err := hex.DecodeString(t.Hash); err != nil || len(h) != sha256.Size {
			return bad("the hash is not one of SHA-256")
		}
		if names[t.Name] {
			return bad(fmt.Sprintf("the name %s stands in two lines", t.Name))
		}
		names[t.Name] = true
		list = append(list, t)
	}
	return list, nil
}

// List returns all tokens, in the order in which they were made.
func (s *Store) List() ([]Token, error) { return s.read() }

// Add makes a token with the properties of t, but for Hash and Created, and returns it. It is durable
// then.
func (s *Store) Add(t Token) (token string, err error) {
	if err := t.check(); err != nil {
		return "", err
	}
	b := make([]byte, 32)
	rand.Read(b)
	token = prefix + base64.RawURLEncoding.EncodeToString(b)
	sum := sha256.Sum256([]byte(token))
	t.Hash, t.Created = hex.EncodeToString(sum[:]), s.now().UTC().Truncate(time.Second)
	return token, s.change(func(list []Token) ([]Token, error) {
		if slices.ContainsFunc(list, func(o Token) bool { return o.Name == t.Name }) {
			return nil, fmt.Errorf("there is a token %s: remove it first, or take another name", t.Name)
		}
		return append(list, t), nil
	})
}

// Remove withdraws the token of a name, durably.
func (s *Store) Remove(name string) error {
	return s.change(func(list []Token) ([]Token, error) {
		i := slices.IndexFunc(list, func(o Token) bool { return o.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no token %q", name)
		}
		return slices.Delete(list, i, i+1), nil
	})
}

// change writes the file anew, while nobody else does.
func (s *Store) change(do func([]Token) ([]Token, error)) error {
	lock, err := s.dir.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("api_token_directory: %w", err)
	}
	defer lock.Close() // which ends the lock
	for {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("api_token_directory: lock: %w", err)
	}
	list, err := s.read()
	if err == nil {
		list, err = do(list)
	}
	if err != nil {
		return err
	}
	if len(list) > maxTokens {
		return fmt.Errorf("there are %d tokens, the most that there may be", maxTokens)
	}
	var text []byte
	for i := range list {
		line, err := json.Marshal(&list[i])
		if err != nil {
			return err
		}
		if len(line) >= maxLine {
			return fmt.Errorf("the token %s takes %d octets, %d are the most", list[i].Name, len(line), maxLine)
		}
		text = append(append(text, line...), '\n')
	}
	if err := s.dir.ReplaceDurably(fileName, text); err != nil {
		return fmt.Errorf("api_token_directory: %w", err)
	}
	return nil
}

// Bearer returns the token of an Authorization field: "Bearer TOKEN", or Basic with the token as the
// password, for clients that know only that; name is the user's name then. ok is false where there is
// neither.
func Bearer(field string) (name, token string, ok bool) {
	scheme, rest, _ := strings.Cut(field, " ")
	rest = strings.Trim(rest, " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		return "", rest, rest != ""
	case strings.EqualFold(scheme, "Basic"):
		b, err := base64.StdEncoding.DecodeString(rest)
		if err != nil {
			return "", "", false
		}
		name, token, ok = strings.Cut(string(b), ":")
		return name, token, ok && token != ""
	}
	return "", "", false
}
