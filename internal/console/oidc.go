package console

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
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

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

const (
	// providerTime bounds one question to the provider, and maxProviderAnswer the octets of what it says.
	providerTime, maxProviderAnswer = 15 * time.Second, 1 << 20
	// maxAsking bounds the logins that wait for the provider.
	maxAsking = 8
	// pendingTime is how long somebody may take to log in at the provider.
	pendingTime = 10 * time.Minute
	// maxPending bounds the logins that are remembered as used up.
	maxPending = 10000
	// knownTime is how long the provider's description of itself counts, and failedTime how long it is not asked after a failure.
	knownTime, failedTime = time.Hour, 10 * time.Second
	// maxGroups bounds the groups of a user that are looked at.
	maxGroups = 100
	// returnPath is where the provider sends browsers back to.
	returnPath = "/login/oidc/return"
)

// algorithms are those by which a token may be signed: with a key pair. A shared secret, or no signature, is none.
var algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA}

// errProvider is what somebody is told whom the provider's answer does not let in.
var errProvider = errors.New("the login has failed: the provider does not vouch for you, you may do nothing here, or it took too long. The log says which")

// An oidcProvider lets in the users of an OpenID provider, by authorization code with PKCE. Its methods may be called concurrently.
//
// What belongs to a login that is under way is in a cookie that nobody else can read or make, so that strangers who begin logins
// take no memory. Each is good once.
type oidcProvider struct {
	providerOptions
	asking chan struct{}
	seal   cipher.AEAD

	mu      sync.Mutex
	found   *discovery           // nil: not yet
	failed  error                // of the last try to find it
	tried   time.Time            // when that was
	used    map[string]time.Time // states of logins that have ended, until when they would be good
	ordered []string             // the same, the oldest first
}

// providerOptions are what is configured of a provider.
type providerOptions struct {
	issuer, id, secret string
	base               string // of the console, as browsers have it
	scopes             []string
	nameClaim          string // whose value names a user
	groupClaim         string // whose values name groups; empty: none
	client             *http.Client
	now                func() time.Time
}

// A discovery is what a provider says of itself.
type discovery struct {
	provider *oidc.Provider
	verifier *oidc.IDTokenVerifier
	endpoint oauth2.Endpoint
	logout   string // where a user logs out of the provider; empty: nowhere
	names    bool   // the answer says whose it is (RFC 9207)
}

// newProvider makes one. The client is bounded here, and must not follow redirections. An error says which parameter is wrong.
func newProvider(p providerOptions) (*oidcProvider, error) {
	for name, text := range map[string]string{"console_oidc_issuer": p.issuer, "console_url": p.base} {
		if err := secureURL(text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	switch {
	case p.id == "":
		return nil, errors.New("console_oidc_issuer needs console_oidc_client_id")
	case p.nameClaim == "":
		return nil, errors.New("console_oidc_name_claim is missing")
	case strings.ContainsAny(p.base, "?#"):
		return nil, fmt.Errorf("console_url = %s: expected https://host, or https://host:port", p.base)
	}
	p.base = strings.TrimSuffix(p.base, "/")
	if !slices.Contains(p.scopes, oidc.ScopeOpenID) {
		p.scopes = slices.Insert(slices.Clone(p.scopes), 0, oidc.ScopeOpenID)
	}
	key := make([]byte, 32)
	rand.Read(key)
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	client := *p.client
	client.Timeout, client.Transport = providerTime, boundedTransport{client.Transport}
	p.client = &client
	return &oidcProvider{providerOptions: p, asking: make(chan struct{}, maxAsking), seal: seal, used: make(map[string]time.Time)}, nil
}

// secureURL says what is wrong with an address to which secrets go: it is to be https, or of this host.
func secureURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return err
	}
	a, err := netip.ParseAddr(u.Hostname())
	here := u.Hostname() == "localhost" || err == nil && a.IsLoopback()
	if u.Host == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && (u.Scheme != "http" || !here) {
		return fmt.Errorf("%q: expected https://host..., or http to this host's own address", text)
	}
	return nil
}

// A boundedTransport has no answer be longer than maxProviderAnswer.
type boundedTransport struct{ of http.RoundTripper }

func (t boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.of.RoundTrip(r)
	if err == nil {
		resp.Body = bounded{io.LimitReader(resp.Body, maxProviderAnswer), resp.Body}
	}
	return resp, err
}

type bounded struct {
	io.Reader
	io.Closer
}

// ask makes room for one question to the provider; done gives it back.
func (p *oidcProvider) ask(ctx context.Context) (done func(), err error) {
	select {
	case p.asking <- struct{}{}:
		return func() { <-p.asking }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(providerTime):
		return nil, errors.New("too many logins wait for the provider")
	}
}

// discover finds out where the provider has what. It is asked again after a while; what was known counts when it does not answer.
func (p *oidcProvider) discover(ctx context.Context) (*discovery, error) {
	done, err := p.ask(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	age := now.Sub(p.tried)
	switch {
	case p.found != nil && age >= 0 && age < knownTime:
		return p.found, nil
	case p.failed != nil && age >= 0 && age < failedTime:
		return nil, p.failed
	}
	found, err := p.describe(ctx)
	p.tried = now
	if p.failed = err; err == nil {
		p.found = found
	} else if p.found != nil {
		p.failed = nil
	} else {
		return nil, err
	}
	return p.found, nil
}

// describe asks the provider about itself.
func (p *oidcProvider) describe(ctx context.Context) (*discovery, error) {
	of, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.issuer)
	if err != nil {
		return nil, err
	}
	var says struct {
		Keys    string   `json:"jwks_uri"`
		Logout  string   `json:"end_session_endpoint"`
		Methods []string `json:"token_endpoint_auth_methods_supported"`
		Names   bool     `json:"authorization_response_iss_parameter_supported"`
	}
	if err := of.Claims(&says); err != nil {
		return nil, err
	}
	d := &discovery{provider: of, endpoint: of.Endpoint(), names: says.Names}
	for _, text := range []string{d.endpoint.AuthURL, d.endpoint.TokenURL, says.Keys} {
		if err := secureURL(text); err != nil {
			return nil, fmt.Errorf("the provider's description: %w", err)
		}
	}
	if says.Logout != "" && secureURL(says.Logout) == nil {
		d.logout = says.Logout
	}
	d.endpoint.AuthStyle = oauth2.AuthStyleInHeader
	if p.secret == "" || len(says.Methods) > 0 && !slices.Contains(says.Methods, "client_secret_basic") {
		d.endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	d.verifier = of.VerifierContext(oidc.ClientContext(context.Background(), p.client), &oidc.Config{ClientID: p.id, SupportedSigningAlgs: algorithms, Now: p.now})
	return d, nil
}

func (p *oidcProvider) flow(d *discovery) *oauth2.Config {
	return &oauth2.Config{ClientID: p.id, ClientSecret: p.secret, Endpoint: d.endpoint, RedirectURL: p.base + returnPath, Scopes: p.scopes}
}

// A pending is a login that is under way, as it is in the cookie.
type pending struct {
	State, Nonce, Verifier string
	Until                  time.Time
}

// begin is where a browser goes to log in, and what its cookie has in it meanwhile.
func (p *oidcProvider) begin(ctx context.Context) (address, cookie string, err error) {
	d, err := p.discover(ctx)
	if err != nil {
		return "", "", err
	}
	login := pending{random(), random(), oauth2.GenerateVerifier(), p.now().Add(pendingTime)}
	text, err := json.Marshal(login)
	if err != nil {
		return "", "", err
	}
	return p.flow(d).AuthCodeURL(login.State, oidc.Nonce(login.Nonce), oauth2.S256ChallengeOption(login.Verifier)),
		base64.RawURLEncoding.EncodeToString(p.seal.Seal(nil, nil, text, nil)), nil
}

// pendingOf is the login that an answer belongs to, which is used up by that.
func (p *oidcProvider) pendingOf(cookie, state string) (login pending, err error) {
	text, err := base64.RawURLEncoding.DecodeString(cookie)
	if err == nil {
		text, err = p.seal.Open(nil, nil, text, nil)
	}
	if err == nil {
		err = json.Unmarshal(text, &login)
	}
	switch {
	case err != nil:
		return login, errors.New("oidc: the browser has begun no login here, or before the last reload")
	case subtle.ConstantTimeCompare([]byte(login.State), []byte(state)) != 1:
		return login, errors.New("oidc: the answer belongs to another login (state)")
	case p.now().After(login.Until):
		return login, errors.New("oidc: the login took too long")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, twice := p.used[login.State]; twice {
		return login, errors.New("oidc: the login was used before")
	}
	for len(p.ordered) > 0 && (len(p.ordered) >= maxPending || p.now().After(p.used[p.ordered[0]])) {
		delete(p.used, p.ordered[0])
		p.ordered = p.ordered[1:]
	}
	p.used[login.State] = login.Until
	p.ordered = append(p.ordered, login.State)
	return login, nil
}

// A vouched is what the provider says of a user.
type vouched struct {
	name   string
	groups []string
}

// finish says who has logged in, from the answer that a browser has brought.
func (p *oidcProvider) finish(ctx context.Context, cookie string, answer url.Values) (who vouched, err error) {
	login, err := p.pendingOf(cookie, answer.Get("state"))
	if err != nil {
		return who, err
	}
	d, err := p.discover(ctx)
	if err != nil {
		return who, err
	}
	iss := answer.Get("iss")
	switch {
	case iss != "" && iss != p.issuer, iss == "" && d.names:
		return who, fmt.Errorf("oidc: the answer is that of another provider: %.200q (iss)", iss)
	case answer.Get("error") != "":
		return who, fmt.Errorf("oidc: the provider says %.100q: %.200q", answer.Get("error"), answer.Get("error_description"))
	case answer.Get("code") == "" || len(answer.Get("code")) > 4096:
		return who, errors.New("oidc: the answer has no code")
	}
	done, err := p.ask(ctx)
	if err != nil {
		return who, err
	}
	defer done()
	ctx = oidc.ClientContext(ctx, p.client)
	tokens, err := p.flow(d).Exchange(ctx, answer.Get("code"), oauth2.VerifierOption(login.Verifier))
	if err != nil {
		return who, fmt.Errorf("oidc: the code: %w", err)
	}
	raw, _ := tokens.Extra("id_token").(string)
	token, err := d.verifier.Verify(ctx, raw)
	if err != nil {
		return who, fmt.Errorf("oidc: the token: %w", err)
	}
	if token.AccessTokenHash != "" {
		if err := token.VerifyAccessToken(tokens.AccessToken); err != nil {
			return who, fmt.Errorf("oidc: the token: %w", err)
		}
	}
	return p.claims(token, login.Nonce)
}

// claims reads who a token is about. Its signature, issuer, audience and expiry are good.
func (p *oidcProvider) claims(token *oidc.IDToken, nonce string) (who vouched, err error) {
	all := map[string]any{}
	if err := token.Claims(&all); err != nil {
		return who, err
	}
	party, _ := all["azp"].(string)
	switch {
	case subtle.ConstantTimeCompare([]byte(token.Nonce), []byte(nonce)) != 1:
		return who, errors.New("oidc: the token is that of another login (nonce)")
	case party != "" && party != p.id, len(token.Audience) > 1 && party == "":
		return who, fmt.Errorf("oidc: the token was made for another client, %.200q (azp)", party)
	case token.IssuedAt.After(p.now().Add(5 * time.Minute)):
		return who, errors.New("oidc: the token was made in the future")
	}
	who.name, _ = all[p.nameClaim].(string)
	if !plainName(who.name) {
		return who, fmt.Errorf("oidc: the token names nobody (%s)", p.nameClaim)
	}
	if verified, is := all["email_verified"].(bool); p.nameClaim == "email" && (!is || !verified) {
		return who, fmt.Errorf("oidc: the provider has not verified the address %s", who.name)
	}
	if p.groupClaim != "" {
		who.groups = texts(all[p.groupClaim])
	}
	return who, nil
}

// texts are the words of a claim that is a text or a list of texts; those that cannot name a group are left out.
func texts(claim any) (list []string) {
	values, ok := claim.([]any)
	if !ok {
		values = []any{claim}
	}
	for _, v := range values[:min(len(values), maxGroups)] {
		if text, ok := v.(string); ok && plainName(text) {
			list = append(list, text)
		}
	}
	return list
}

// logoutLink is where a user logs out of the provider, and comes back from; empty: that is not known.
func (p *oidcProvider) logoutLink() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found == nil || p.found.logout == "" {
		return ""
	}
	u, err := url.Parse(p.found.logout)
	if err != nil {
		return ""
	}
	v := u.Query()
	v.Set("client_id", p.id)
	v.Set("post_logout_redirect_uri", p.base+"/login")
	u.RawQuery = v.Encode()
	return u.String()
}

// name is the provider's, for a link.
func (p *oidcProvider) name() string {
	u, err := url.Parse(p.issuer)
	if err != nil {
		return p.issuer
	}
	return u.Host
}

// host is the name by which browsers call the console, as console_url has it; empty where there is no provider.
func (p *oidcProvider) host() string {
	if p == nil {
		return ""
	}
	u, err := url.Parse(p.base)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
