package console

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/table"
)

// A fakeProvider is an OpenID provider whose user has always logged in. A test changes what it says.
type fakeProvider struct {
	t      testing.TB
	server *httptest.Server
	key    *ecdsa.PrivateKey

	mu        sync.Mutex
	now       time.Time
	codes     map[string]url.Values          // what each code was asked for with; a code is good once
	exchanges int                            // how often one was shown
	claims    func(claims map[string]any)    // changes a token
	token     func(string) string            // changes it when it is signed
	head      func(head map[string]any)      // changes its header
	discovery func(says map[string]any)      // changes the description
	answer    func(v url.Values)             // changes what a browser brings back
	fault     func(http.ResponseWriter) bool // in place of the token's answer
}

const clientSecret = "hush"

func newFakeProvider(t testing.TB) *fakeProvider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeProvider{t: t, key: key, now: time.Now(), codes: map[string]url.Values{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		says := map[string]any{"issuer": f.server.URL, "authorization_endpoint": f.server.URL + "/authorize", "token_endpoint": f.server.URL + "/token",
			"jwks_uri": f.server.URL + "/keys", "end_session_endpoint": f.server.URL + "/logout", "id_token_signing_alg_values_supported": []string{"ES256", "none", "HS256"}}
		if f.discovery != nil {
			f.discovery(says)
		}
		f.write(w, says)
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		b64 := func(n *big.Int) string { return base64.RawURLEncoding.EncodeToString(n.FillBytes(make([]byte, 32))) }
		f.write(w, map[string]any{"keys": []any{map[string]any{"kty": "EC", "crv": "P-256", "use": "sig", "kid": "1", "alg": "ES256", "x": b64(key.X), "y": b64(key.Y)}}})
	})
	mux.HandleFunc("/authorize", f.authorize)
	mux.HandleFunc("/token", f.exchange)
	f.server = httptest.NewServer(mux)
	t.Cleanup(f.server.Close)
	return f
}

func (f *fakeProvider) write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// authorize sends a browser back with a code.
func (f *fakeProvider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.Get("response_type") != "code" || q.Get("client_id") != "console" || q.Get("code_challenge_method") != "S256" || len(q.Get("nonce")) < 40 || len(q.Get("state")) < 40 || !strings.Contains(q.Get("scope"), "openid") {
		f.t.Errorf("asked with %v", q)
	}
	code := random()
	f.codes[code] = q
	v := url.Values{"code": {code}, "state": {q.Get("state")}}
	if f.answer != nil {
		f.answer(v)
	}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+v.Encode(), http.StatusFound)
}

// exchange gives a token for a code, to who knows the secret and what the code was asked for with.
func (f *fakeProvider) exchange(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.exchanges++
	id, secret, _ := r.BasicAuth()
	asked := f.codes[r.FormValue("code")]
	delete(f.codes, r.FormValue("code"))
	sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	if f.fault != nil && f.fault(w) {
		return
	}
	if asked == nil || id != "console" || secret != clientSecret || base64.RawURLEncoding.EncodeToString(sum[:]) != asked.Get("code_challenge") || r.FormValue("redirect_uri") != asked.Get("redirect_uri") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error": "invalid_grant"}`)
		return
	}
	claims := map[string]any{"iss": f.server.URL, "aud": "console", "sub": "u1", "exp": f.now.Add(time.Hour).Unix(), "iat": f.now.Unix(), "nonce": asked.Get("nonce"),
		"email": "ann@x.test", "email_verified": true, "groups": []string{"staff", "mail operators", "postmasters"}}
	head := map[string]any{"alg": "ES256", "kid": "1", "typ": "JWT"}
	if f.claims != nil {
		f.claims(claims)
	}
	if f.head != nil {
		f.head(head)
	}
	token := f.sign(head, claims)
	if f.token != nil {
		token = f.token(token)
	}
	f.write(w, map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": token})
}

func (f *fakeProvider) sign(head, claims map[string]any) string {
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			f.t.Error(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	text := part(head) + "." + part(claims)
	sum := sha256.Sum256([]byte(text))
	switch head["alg"] {
	case "none":
		return text + "."
	case "HS256": // with what everybody knows
		point, err := f.key.PublicKey.Bytes()
		if err != nil {
			f.t.Error(err)
		}
		mac := hmac.New(crypto.SHA256.New, point)
		mac.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	r, s, err := ecdsa.Sign(rand.Reader, f.key, sum[:])
	if err != nil {
		f.t.Error(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

// vouchedFor is a world with a provider.
func vouchedFor(t *testing.T, change func(*providerOptions)) (*world, *fakeProvider) {
	t.Helper()
	w, f := newWorld(t), newFakeProvider(t)
	clock := w.console.now
	o := providerOptions{issuer: f.server.URL, id: "console", secret: clientSecret, base: w.server.URL, scopes: []string{"email"}, nameClaim: "sub",
		client: &http.Client{Transport: http.DefaultTransport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, now: clock}
	if change != nil {
		change(&o)
	}
	p, err := newProvider(o)
	if err != nil {
		t.Fatal(err)
	}
	w.console.people.provider = p
	w.console.people.roles = table.OpenMaps("console_role_maps", []string{"inline:{ {oidc/u1 = operate}, {oidc/ann@x.test = look}, {oidc-group/postmasters = read} }"}, table.Options{Warn: func(text string) { t.Error(text) }})
	w.server.Config.Handler = w.console.handler()
	return w, f
}

// jar goes through a login as a browser does, and returns the answer of the console to what the provider has sent back.
func (b *browser) through() (status int, text string, h http.Header, back string) {
	b.w.t.Helper()
	status, text, h = b.do("GET", "/login/oidc", nil)
	if status != http.StatusSeeOther {
		return status, text, h, ""
	}
	back = b.visit(h.Get("Location"))
	status, text, h = b.follow(back)
	return status, text, h, back
}

// visit is where the provider sends a browser.
func (b *browser) visit(address string) string {
	b.w.t.Helper()
	req, err := http.NewRequestWithContext(b.w.t.Context(), "GET", address, nil)
	if err != nil {
		b.w.t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.w.t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return strings.TrimPrefix(resp.Header.Get("Location"), b.w.server.URL)
}

// follow goes to a page with the cookies that there are, and keeps those of the session apart from the other.
func (b *browser) follow(path string) (status int, text string, h http.Header) {
	b.w.t.Helper()
	status, text, h = b.do("GET", path, nil)
	for _, line := range h.Values("Set-Cookie") {
		if c, err := http.ParseSetCookie(line); err == nil && c.Name == "posthaste" {
			b.cookie = c
		}
	}
	return status, text, h
}

// Whom the provider vouches for has the role that the table has for the name and the groups, and comes to the first page, and
// nowhere else. The session is a new one; logging out leads to where one logs out of the provider.
func TestProvider(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*providerOptions)
		rights string
		name   string
	}{
		{nil, "operate", "oidc/u1"},
		{func(o *providerOptions) { o.nameClaim = "email" }, "look", "oidc/ann@x.test"},
		{func(o *providerOptions) { o.nameClaim, o.groupClaim = "email", "groups" }, "look read", "oidc/ann@x.test"},
	} {
		w, _ := vouchedFor(t, c.change)
		b := &browser{w: w}
		status, text, h, _ := b.through()
		if status != http.StatusOK || !strings.Contains(text, `content="0; url=/"`) || h.Get("Referrer-Policy") != "no-referrer" || h.Get("Location") != "" {
			t.Fatalf("%d %v\n%s", status, h, text)
		}
		if cookie := b.cookie; cookie.SameSite != http.SameSiteStrictMode || !cookie.HttpOnly {
			t.Errorf("%v", cookie)
		}
		s, ok := w.console.sessions.find(b.cookie.Value)
		if !ok || s.user != c.name || s.rights() != c.rights {
			t.Errorf("%q %s, want %q %s", s.user, s.rights(), c.name, c.rights)
		}
		if events, _ := w.take(); len(events) != 1 || events[0] != "user="+c.name+" client=127.0.0.1: login" {
			t.Errorf("%q", events)
		}
		status, _, h = b.do("POST", "/logout", url.Values{"csrf": {s.csrf}})
		if status != http.StatusSeeOther || h.Get("Location") != "/login?left" {
			t.Errorf("%d %v", status, h)
		}
		_, text, _ = b.do("GET", "/login?left", nil)
		if !strings.Contains(text, "/logout?client_id=console&amp;post_logout_redirect_uri="+url.QueryEscape(w.server.URL+"/login")) {
			t.Errorf("%s", text)
		}
		if _, ok := w.console.sessions.find(b.cookie.Value); ok {
			t.Error("the session goes on")
		}
	}
}

// A provider, or who stands between it and the browser, gets nobody in with a token that is not the one of this login, and each
// failure is in the log and counts.
func TestHostileProvider(t *testing.T) {
	t.Parallel()
	claim := func(name string, v any) func(*fakeProvider) {
		return func(f *fakeProvider) { f.claims = func(c map[string]any) { c[name] = v } }
	}
	alg := func(name string) func(*fakeProvider) {
		return func(f *fakeProvider) { f.head = func(h map[string]any) { h["alg"] = name } }
	}
	answer := func(name, v string) func(*fakeProvider) {
		return func(f *fakeProvider) { f.answer = func(a url.Values) { a.Set(name, v) } }
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		do  func(*fakeProvider)
		say string
	}{
		"issuer":          {claim("iss", "https://evil.test"), "different provider"},
		"audience":        {claim("aud", "other"), "expected audience"},
		"party":           {claim("azp", "other"), "for another client"},
		"many audiences":  {claim("aud", []string{"console", "other"}), "for another client"},
		"expired":         {claim("exp", time.Now().Add(-time.Minute).Unix()), "expired"},
		"no expiry":       {claim("exp", 0), "expired"},
		"future":          {claim("iat", time.Now().Add(time.Hour).Unix()), "in the future"},
		"nonce":           {claim("nonce", "x"), "nonce"},
		"no nonce":        {claim("nonce", ""), "nonce"},
		"access token":    {claim("at_hash", "x"), "access token"},
		"no name":         {claim("sub", ""), "names nobody"},
		"name of two":     {claim("sub", "u1 operate"), "names nobody"},
		"line in name":    {claim("sub", "u1\nuser=ann"), "names nobody"},
		"no text":         {claim("sub", 7), "token"},
		"none":            {alg("none"), "malformed jwt"},
		"shared secret":   {alg("HS256"), "malformed jwt"},
		"other algorithm": {alg("RS256"), "verify signature"},
		"other key":       {func(f *fakeProvider) { f.key = other }, "verify signature"},
		"no signature":    {func(f *fakeProvider) { f.token = func(s string) string { return s[:strings.LastIndex(s, ".")+1] } }, "token"},
		"no token":        {func(f *fakeProvider) { f.token = func(string) string { return "" } }, "token"},
		"no role":         {claim("sub", "u2"), "no role for oidc/u2"},
		"state":           {answer("state", random()), "state"},
		"no code":         {answer("code", ""), "no code"},
		"another code":    {answer("code", "x"), "invalid_grant"},
		"mix-up":          {answer("iss", "https://evil.test"), "another provider"},
		"error":           {answer("error", "access_denied\nuser=ann"), `access_denied\nuser=ann`},
		"mix-up, silent": {func(f *fakeProvider) {
			f.discovery = func(says map[string]any) { says["authorization_response_iss_parameter_supported"] = true }
		}, "another provider"},
		"long answer": {func(f *fakeProvider) {
			f.fault = func(w http.ResponseWriter) bool {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"access_token": "%s"}`, strings.Repeat("x", 3*maxProviderAnswer))
				return true
			}
		}, "code"},
		"redirection": {func(f *fakeProvider) {
			f.fault = func(w http.ResponseWriter) bool {
				w.Header().Set("Location", "http://127.0.0.1:1/")
				w.WriteHeader(http.StatusTemporaryRedirect)
				return true
			}
		}, "code"},
	} {
		t.Run(name, func(t *testing.T) {
			w, f := vouchedFor(t, nil)
			c.do(f)
			b := &browser{w: w}
			status, text, _, _ := b.through()
			if status != http.StatusUnauthorized || !strings.Contains(text, "the login has failed") || strings.Contains(text, "evil.test") {
				t.Errorf("%d\n%s", status, text)
			}
			if b.cookie != nil && b.cookie.Name == "posthaste" {
				t.Error("there is a session")
			}
			events, _ := w.take()
			if len(events) != 1 || !strings.HasPrefix(events[0], "user=oidc client=127.0.0.1: login failed: ") || !strings.Contains(events[0], c.say) || strings.Contains(events[0], "\nuser=") {
				t.Errorf("%q, want %q", events, c.say)
			}
		})
	}
	for name, change := range map[string]func(map[string]any){
		"issuer":      func(says map[string]any) { says["issuer"] = "https://evil.test" },
		"clear keys":  func(says map[string]any) { says["jwks_uri"] = "http://evil.test/keys" },
		"clear token": func(says map[string]any) { says["token_endpoint"] = "http://evil.test/token" },
		"script":      func(says map[string]any) { says["authorization_endpoint"] = "javascript:alert(1)" },
	} {
		w, f := vouchedFor(t, nil)
		f.discovery = change
		status, text, h, _ := (&browser{w: w}).through()
		if status != http.StatusServiceUnavailable || h.Get("Location") != "" || strings.Contains(text, "evil.test") {
			t.Errorf("%s: %d %v", name, status, h)
		}
	}
}

// An answer is good once, for the browser that began the login, and for a while; it leads nowhere but to the first page. Failed
// ones delay others from there, and passwords as well.
func TestReplayedLogin(t *testing.T) {
	t.Parallel()
	w, f := vouchedFor(t, nil)
	b := &browser{w: w}
	_, _, h := b.do("GET", "/login/oidc", nil)
	kept := *b.cookie
	back := b.visit(h.Get("Location"))
	if !strings.HasPrefix(back, returnPath+"?") || kept.SameSite != http.SameSiteLaxMode || !kept.HttpOnly || strings.Contains(kept.Value, "State") {
		t.Fatalf("%s %v", back, kept)
	}
	other := &browser{w: w} // another browser: a forged login
	if status, _, _ := other.follow(back); status != http.StatusUnauthorized || f.exchanges != 0 {
		t.Errorf("another browser: %d, %d", status, f.exchanges)
	}
	tampered := kept
	tampered.Value = kept.Value[:len(kept.Value)-2] + "AA"
	other.cookie = &tampered
	if status, _, _ := other.follow(back); status != http.StatusUnauthorized || f.exchanges != 0 {
		t.Errorf("a changed cookie: %d, %d", status, f.exchanges)
	}
	b.cookie = &kept
	if status, _, h := b.follow(back + "&next=https://evil.test/&back=//evil.test"); status != http.StatusOK || h.Get("Location") != "" || b.cookie.Name != "posthaste" {
		t.Fatalf("%d %v", status, h)
	}
	again := &browser{w: w, cookie: &kept}
	if status, _, _ := again.follow(back); status != http.StatusUnauthorized || f.exchanges != 1 {
		t.Errorf("the same answer again: %d, %d exchanges", status, f.exchanges)
	}
	late := &browser{w: w}
	_, _, h = late.do("GET", "/login/oidc", nil)
	back = late.visit(h.Get("Location"))
	w.set(func() { w.now = w.now.Add(pendingTime + time.Second) })
	if status, _, _ := late.follow(back); status != http.StatusUnauthorized || f.exchanges != 1 {
		t.Errorf("too late: %d, %d exchanges", status, f.exchanges)
	}
	for range freeTries {
		(&browser{w: w}).follow(returnPath + "?state=x&code=y")
	}
	if status, _, h := (&browser{w: w}).follow(returnPath + "?state=x&code=y"); status != http.StatusTooManyRequests || h.Get("Retry-After") == "" {
		t.Errorf("too many: %d", status)
	}
	if status, _, _ := (&browser{w: w}).do("POST", "/login", url.Values{"user": {"ann"}, "password": {"secret of ann"}}); status != http.StatusTooManyRequests {
		t.Errorf("a password: %d", status)
	}
}

// What is remembered of logins has a bound, and a provider that does not answer is not asked by everybody.
func TestProviderBounds(t *testing.T) {
	t.Parallel()
	w, f := vouchedFor(t, nil)
	p := w.console.people.provider
	for range maxPending + 10 {
		address, cookie, err := p.begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.pendingOf(cookie, u.Query().Get("state")); err != nil {
			t.Fatal(err)
		}
	}
	if len(p.used) > maxPending || len(p.ordered) != len(p.used) {
		t.Errorf("%d and %d are remembered", len(p.used), len(p.ordered))
	}
	f.server.Close()
	if _, err := p.discover(t.Context()); err != nil {
		t.Error("what was known counts no longer")
	}
	w.set(func() { w.now = w.now.Add(knownTime) })
	if _, err := p.discover(t.Context()); err != nil {
		t.Error("what was known counts no longer when the provider is down")
	}
	w, f = vouchedFor(t, nil)
	f.server.Close()
	p = w.console.people.provider
	_, first := p.discover(t.Context())
	if _, second := p.discover(t.Context()); first == nil || second != first {
		t.Errorf("%v; %v", first, second)
	}
	for name, change := range map[string]func(*providerOptions){
		"console_oidc_issuer": func(o *providerOptions) { o.issuer = "http://evil.test" }, "console_url": func(o *providerOptions) { o.base = "" },
		"console_url ": func(o *providerOptions) { o.base = "https://x.test/?a=b" }, "console_oidc_client_id": func(o *providerOptions) { o.id = "" },
		"console_oidc_name_claim": func(o *providerOptions) { o.nameClaim = "" },
	} {
		o := p.providerOptions
		change(&o)
		if _, err := newProvider(o); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
