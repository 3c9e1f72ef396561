package sasl

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/smallfile"
)

const (
	maxAnswer      = 64 << 10 // octets of an endpoint's answer
	maxToken       = 12 << 10 // octets of a token
	maxAsking      = 8        // questions to an endpoint at a time
	maxRemembered  = 10_000   // tokens whose answer is remembered, good ones, and as many others
	maxCredentials = 4 << 10
)

// A TokenEndpoint asks an authorization server about tokens: by introspection (RFC 7662), or by
// its UserInfo endpoint (OpenID Connect Core section 5.3). It is a TokenVerifier.
//
// Answers are remembered for a while, those about tokens that are not good as well, by the hash of
// the token. So many questions are asked at a time as maxAsking; who has to wait for longer than
// an answer may take gets a temporary error.
type TokenEndpoint struct {
	o          EndpointOptions
	id, secret string // by which the endpoint knows us; empty: it need not
	asking     chan struct{}

	mu sync.Mutex
	// known are answers that hold, perhaps: about tokens that are good, and about others, so that who tries
	// many tokens has none of the good ones forgotten.
	known [2]map[[sha256.Size]byte]answer
}

// An answer is what an endpoint has said of a token.
type answer struct {
	user   string // empty: the token is not good, for the reason
	reason string
	until  time.Time
}

// EndpointOptions say which endpoint is asked, and which of its answers are good.
type EndpointOptions struct {
	URL      string // https, or http to this host
	Userinfo bool   // it is a UserInfo endpoint, else one for introspection
	// TokenOptions are as with signed tokens, except that only Claim must be given: an Issuer
	// must be that of an answer which names one. A UserInfo endpoint does not say for whom a
	// token is, so that the tokens of all applications of the server are good.
	TokenOptions
	Scope       string // one that a token must have; empty: any
	Credentials string // file with id:secret
	Timeout     time.Duration
	CacheTime   time.Duration // 0: nothing is remembered
	Client      *http.Client
}

// NewTokenEndpoint reads the credentials, and says what is wrong with the options.
func NewTokenEndpoint(o EndpointOptions) (*TokenEndpoint, error) {
	e := &TokenEndpoint{o: o, asking: make(chan struct{}, maxAsking), known: [2]map[[sha256.Size]byte]answer{{}, {}}}
	u, err := url.Parse(o.URL)
	switch {
	case err != nil:
		return nil, err
	case u.Host == "" || u.User != nil || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())):
		return nil, fmt.Errorf("%s: expected https://host/..., or http to this host's own address", o.URL)
	case o.Claim == "":
		return nil, errors.New("the claim with the user's name is missing")
	case o.Userinfo && (o.Scope != "" || o.Audience != ""):
		return nil, errors.New("a UserInfo endpoint tells neither the scope nor the audience of a token")
	case !o.Userinfo && o.Scope == "" && o.Audience == "":
		return nil, errors.New("an audience or a scope is needed: without it tokens for other services would do")
	case !o.Userinfo && o.Credentials == "":
		return nil, errors.New("an introspection endpoint wants credentials (RFC 7662 section 2.1)")
	}
	if o.Credentials != "" {
		text, err := smallfile.Read(o.Credentials, maxCredentials)
		if err != nil {
			return nil, err
		}
		line, _, _ := strings.Cut(string(text), "\n")
		var ok bool
		if e.id, e.secret, ok = strings.Cut(strings.TrimSpace(line), ":"); !ok || e.id == "" || e.secret == "" {
			return nil, fmt.Errorf("%s: expected id:secret", o.Credentials)
		}
	}
	return e, nil
}

// loopback says whether a host is this one, by its address.
func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// Verify implements TokenVerifier.
func (e *TokenEndpoint) Verify(ctx context.Context, token string, now time.Time) (user string, err error) {
	if len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) { // RFC 6750 section 2.1
		return "", &Failure{"token: it is malformed"}
	}
	key := sha256.Sum256([]byte(token))
	a, ok := e.recall(key, now)
	if !ok {
		if a, err = e.ask(ctx, token, now); err != nil {
			return "", fmt.Errorf("token endpoint: %w", err)
		}
		e.remember(key, a, now)
	}
	if a.user == "" {
		return "", &Failure{"token: " + a.reason}
	}
	return a.user, nil
}

// recall is a remembered answer.
func (e *TokenEndpoint) recall(key [sha256.Size]byte, now time.Time) (answer, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range e.known {
		if a, ok := known[key]; ok && now.Before(a.until) {
			return a, true
		}
	}
	return answer{}, false
}

// remember keeps an answer for the time that it says. When there are too many of its kind, any other of them goes.
func (e *TokenEndpoint) remember(key [sha256.Size]byte, a answer, now time.Time) {
	if !now.Before(a.until) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	known, other := e.known[0], e.known[1]
	if a.user == "" {
		known, other = other, known
	}
	delete(other, key)
	if _, again := known[key]; !again && len(known) >= maxRemembered {
		for old := range known {
			delete(known, old)
			break
		}
	}
	known[key] = a
}

// ask asks the endpoint. An error says that it gave no answer that means anything.
func (e *TokenEndpoint) ask(ctx context.Context, token string, now time.Time) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, e.o.Timeout)
	defer cancel()
	select {
	case e.asking <- struct{}{}:
		defer func() { <-e.asking }()
	case <-ctx.Done():
		return answer{}, fmt.Errorf("too many questions at once: %w", ctx.Err())
	}
	req, err := e.request(ctx, token)
	if err != nil {
		return answer{}, err
	}
	resp, err := e.o.Client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	bad := func(reason string) (answer, error) { return answer{reason: reason, until: now.Add(e.o.CacheTime)}, nil }
	switch {
	case e.o.Userinfo && resp.StatusCode == http.StatusUnauthorized: // RFC 6750 section 3.1
		return bad("the server does not know it, or it has expired")
	case resp.StatusCode != http.StatusOK:
		return answer{}, fmt.Errorf("status %d", resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = fmt.Errorf("its answer is longer than %d octets", maxAnswer)
	}
	if err != nil {
		return answer{}, err
	}
	return e.judge(text, now)
}

// request is the question.
func (e *TokenEndpoint) request(ctx context.Context, token string) (*http.Request, error) {
	if e.o.Userinfo {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.o.URL, nil)
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("Accept", "application/json")
		}
		return req, err
	}
	form := url.Values{"token": {token}, "token_type_hint": {"access_token"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.o.URL, strings.NewReader(form.Encode()))
	if err == nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Accept", "application/json")
		req.SetBasicAuth(url.QueryEscape(e.id), url.QueryEscape(e.secret)) // RFC 6749 section 2.3.1
	}
	return req, err
}

// judge reads an answer.
func (e *TokenEndpoint) judge(text []byte, now time.Time) (answer, error) {
	var c struct {
		claims
		Active bool
		Scope  string
	}
	var all map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(text, &c), json.Unmarshal(text, &all)); err != nil {
		return answer{}, fmt.Errorf("its answer is malformed: %w", err)
	}
	a := answer{until: now.Add(e.o.CacheTime)}
	if a.reason = e.refuse(&c.claims, now); a.reason != "" {
		return a, nil
	}
	switch {
	case !e.o.Userinfo && !c.Active:
		a.reason = "it is not active"
	case !e.o.Userinfo && e.o.Scope != "" && !slices.Contains(strings.Fields(c.Scope), e.o.Scope):
		a.reason = "it has another scope"
	case !e.o.Userinfo && e.o.Audience != "" && !slices.Contains(c.Aud, e.o.Audience):
		a.reason = "it is for another audience"
	default:
		var err error
		if a.user, err = userOf(all, e.o.Claim); err != nil {
			a.user, a.reason = "", err.Error()
		}
	}
	if c.Exp != nil && a.user != "" {
		if end := time.Unix(int64(min(*c.Exp, 1<<40)), 0); end.Before(a.until) {
			a.until = end
		}
	}
	return a, nil
}

// refuse says what is wrong with claims that both kinds of endpoints may name.
func (e *TokenEndpoint) refuse(c *claims, now time.Time) string {
	at := float64(now.Unix())
	switch {
	case e.o.Issuer != "" && c.Iss != "" && c.Iss != e.o.Issuer:
		return "another issuer"
	case c.Exp != nil && *c.Exp <= at:
		return "it has expired"
	case c.Nbf != nil && *c.Nbf-tokenLeeway.Seconds() > at:
		return "it is not valid yet"
	case e.o.Claim == "email" && c.EmailVerified != nil && !*c.EmailVerified:
		return "its address is not verified"
	}
	return ""
}

// userOf is the user's name in claims.
func userOf(all map[string]json.RawMessage, claim string) (user string, err error) {
	if json.Unmarshal(all[claim], &user) != nil || user == "" {
		return "", fmt.Errorf("no claim %s", claim)
	}
	if strings.ContainsFunc(user, func(r rune) bool { return r < ' ' || r == 127 }) {
		return "", fmt.Errorf("claim %s has control characters", claim)
	}
	return user, nil
}
