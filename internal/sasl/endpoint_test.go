package sasl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/table"
	"posthaste/internal/webclient"
)

// A provider is an authorization server that answers as it is told.
type provider struct {
	*httptest.Server
	asked  atomic.Int32
	answer atomic.Pointer[func(w http.ResponseWriter, r *http.Request)]
}

func newProvider(t *testing.T) *provider {
	p := new(provider)
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked.Add(1)
		(*p.answer.Load())(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) says(status int, text string) {
	f := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}
	p.answer.Store(&f)
}

// endpoint asks it. change may change the options.
func (p *provider) endpoint(t *testing.T, change func(o *EndpointOptions)) *TokenEndpoint {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("posthaste:s3:cret&\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(p.Certificate())
	o := EndpointOptions{URL: p.URL + "/introspect", TokenOptions: TokenOptions{Audience: "mail", Claim: "email"}, Credentials: secret, Timeout: 10 * time.Second, CacheTime: time.Minute,
		Client: webclient.New(webclient.Options{Roots: roots, Allowed: func(context.Context, netip.Addr) (bool, error) { return true, nil }})}
	change(&o)
	e, err := NewTokenEndpoint(o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// What an endpoint says of a token, and what comes of it.
func TestEndpoint(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	now := time.Unix(1_800_000_000, 0)
	introspect := func(*EndpointOptions) {}
	scope := func(o *EndpointOptions) {
		o.Audience, o.Scope, o.Issuer, o.Claim = "", "smtp", "https://login.test", "sub"
	}
	userinfo := func(o *EndpointOptions) {
		o.Userinfo, o.Audience, o.Credentials, o.URL = true, "", "", p.URL+"/userinfo"
	}
	for _, tt := range []struct {
		kind    func(*EndpointOptions)
		status  int
		text    string
		want    string // the user, or part of what is wrong
		failure bool   // the client's
	}{
		{introspect, 200, `{"active":true,"aud":"mail","email":"ann@example.org","exp":1800000100}`, "ann@example.org", false},
		{introspect, 200, `{"active":true,"aud":["x","mail"],"email":"ann@example.org","email_verified":true}`, "ann@example.org", false},
		{introspect, 200, `{"active":false}`, "it is not active", true},
		{introspect, 200, `{"aud":"mail","email":"ann@example.org"}`, "it is not active", true},
		{introspect, 200, `{"active":true,"aud":"other","email":"ann@example.org"}`, "another audience", true},
		{introspect, 200, `{"active":true,"email":"ann@example.org"}`, "another audience", true},
		{introspect, 200, `{"active":true,"aud":"mail","email":"ann@example.org","exp":1800000000}`, "it has expired", true},
		{introspect, 200, `{"active":true,"aud":"mail","email":"ann@example.org","nbf":1800000061}`, "not valid yet", true},
		{introspect, 200, `{"active":true,"aud":"mail","email":"ann@example.org","email_verified":false}`, "not verified", true},
		{introspect, 200, `{"active":true,"aud":"mail"}`, "no claim email", true},
		{introspect, 200, `{"active":true,"aud":"mail","email":"a\u0000b"}`, "control characters", true},
		{introspect, 200, `{"active":"yes"}`, "malformed", false},
		{introspect, 200, `[]`, "malformed", false},
		{introspect, 200, strings.Repeat(" ", maxAnswer) + `{}`, "longer than", false},
		{introspect, 401, `{"active":true,"aud":"mail","email":"ann@example.org"}`, "status 401", false},
		{introspect, 302, "", "status 302", false},
		{introspect, 500, "", "status 500", false},
		{scope, 200, `{"active":true,"scope":"openid smtp","sub":"ann","iss":"https://login.test"}`, "ann", false},
		{scope, 200, `{"active":true,"scope":"openid smtps","sub":"ann"}`, "another scope", true},
		{scope, 200, `{"active":true,"scope":"smtp","sub":"ann","iss":"https://evil.test"}`, "another issuer", true},
		{userinfo, 200, `{"sub":"1","email":"ann@example.org","email_verified":true}`, "ann@example.org", false},
		{userinfo, 401, ``, "does not know it", true},
		{userinfo, 403, ``, "status 403", false},
		{userinfo, 200, `{"sub":"1"}`, "no claim email", true},
	} {
		p.says(tt.status, tt.text)
		user, err := p.endpoint(t, tt.kind).Verify(t.Context(), "token", now)
		var f *Failure
		if err == nil && user != tt.want || err != nil && (!strings.Contains(err.Error(), tt.want) || errors.As(err, &f) != tt.failure) {
			t.Errorf("%d %.80s: %q %v, expected %q", tt.status, tt.text, user, err, tt.want)
		}
	}
}

// The question has the form of RFC 7662 section 2.1, or of RFC 6750 section 2.1.
func TestEndpointRequest(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	var got atomic.Value
	f := func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		got.Store(r.Method + " " + r.URL.Path + " " + r.Header.Get("Authorization") + " " + r.PostForm.Encode())
		fmt.Fprint(w, `{"active":true,"aud":"mail","email":"ann@example.org"}`)
	}
	p.answer.Store(&f)
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("posthaste:s3%3Acret%26"))
	for _, tt := range []struct {
		kind func(*EndpointOptions)
		want string
	}{
		{func(*EndpointOptions) {}, "POST /introspect " + basic + " token=a.b%2Fc&token_type_hint=access_token"},
		{func(o *EndpointOptions) { o.Userinfo, o.Audience, o.Credentials = true, "", "" }, "GET /introspect Bearer a.b/c "},
	} {
		if user, err := p.endpoint(t, tt.kind).Verify(t.Context(), "a.b/c", time.Now()); err != nil || user != "ann@example.org" || got.Load() != tt.want {
			t.Errorf("%s %v: %q, expected %q", user, err, got.Load(), tt.want)
		}
	}
}

// Answers are remembered for as long as they hold, and no error is. What cannot be a token is not
// sent to anybody.
func TestEndpointCache(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	e := p.endpoint(t, func(*EndpointOptions) {})
	now := time.Unix(1_800_000_000, 0)
	asked := int32(0)
	verify := func(token string, after time.Duration, asks bool, want string) {
		t.Helper()
		user, err := e.Verify(t.Context(), token, now.Add(after))
		if asks {
			asked++
		}
		if user != want || (err == nil) != (want != "") || p.asked.Load() != asked {
			t.Errorf("%s after %v: %q %v, asked %d times, expected %d", token, after, user, err, p.asked.Load(), asked)
		}
	}
	p.says(200, `{"active":true,"aud":"mail","email":"ann@example.org","exp":1800000030}`)
	verify("a", 0, true, "ann@example.org")
	verify("a", 29*time.Second, false, "ann@example.org")
	p.says(200, `{"active":false}`)
	verify("a", 30*time.Second, true, "")
	verify("a", 60*time.Second, false, "")
	p.says(200, `{"active":true,"aud":"mail","email":"ann@example.org"}`)
	verify("a", 89*time.Second, false, "")
	verify("a", 90*time.Second, true, "ann@example.org")
	p.says(500, "")
	verify("b", 0, true, "")
	verify("b", 0, true, "")
	verify("a b", 0, false, "")
	verify("a\x00", 0, false, "")
	verify(strings.Repeat("x", maxToken+1), 0, false, "")
	good := [32]byte{0, 0, 2}
	e.remember(good, answer{user: "ann@example.org", until: now.Add(time.Hour)}, now)
	for i := range maxRemembered + 5 {
		e.remember([32]byte{byte(i), byte(i >> 8), 1}, answer{reason: "no", until: now.Add(time.Hour)}, now)
	}
	if n := len(e.known[1]); n != maxRemembered {
		t.Errorf("%d refusals are remembered", n)
	}
	if a, ok := e.recall(good, now); !ok || a.user != "ann@example.org" {
		t.Errorf("who tries many tokens has the good ones forgotten: %v", a)
	}
}

// An endpoint that is down, slow, or another one leaves the client with a temporary error.
func TestEndpointFaults(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	p.says(200, `{"active":true,"aud":"mail","email":"ann@example.org"}`)
	temporary := func(what string, e *TokenEndpoint) {
		t.Helper()
		var f *Failure
		if user, err := e.Verify(t.Context(), "x", time.Now()); err == nil || errors.As(err, &f) {
			t.Errorf("%s: %q %v", what, user, err)
		}
	}
	temporary("an unknown authority", p.endpoint(t, func(o *EndpointOptions) {
		o.Client = webclient.New(webclient.Options{Roots: x509.NewCertPool(), Allowed: func(context.Context, netip.Addr) (bool, error) { return true, nil }})
	}))
	busy := p.endpoint(t, func(o *EndpointOptions) { o.Timeout = time.Millisecond })
	for range maxAsking {
		busy.asking <- struct{}{}
	}
	temporary("too many questions", busy)
	stuck := make(chan struct{})
	f := func(http.ResponseWriter, *http.Request) { <-stuck }
	p.answer.Store(&f)
	temporary("a slow server", p.endpoint(t, func(o *EndpointOptions) { o.Timeout = time.Millisecond }))
	close(stuck)
	for _, tt := range []struct {
		change func(o *EndpointOptions)
		want   string
	}{
		{func(o *EndpointOptions) { o.URL = "http://login.test/x" }, "expected https"}, {func(o *EndpointOptions) { o.URL = "https://u:p@login.test/x" }, "expected https"},
		{func(o *EndpointOptions) { o.URL = "login.test" }, "expected https"}, {func(o *EndpointOptions) { o.Audience = "" }, "audience or a scope"}, {func(o *EndpointOptions) { o.Claim = "" }, "claim"},
		{func(o *EndpointOptions) { o.Credentials = "" }, "credentials"}, {func(o *EndpointOptions) { o.Userinfo = true }, "neither the scope"}, {func(o *EndpointOptions) { o.Credentials = "/none" }, "/none"},
	} {
		o := EndpointOptions{URL: "https://login.test/x", TokenOptions: TokenOptions{Audience: "mail", Claim: "email"}, Credentials: "/dev/null"}
		tt.change(&o)
		if _, err := NewTokenEndpoint(o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, expected %q", o, err, tt.want)
		}
	}
	if _, err := NewTokenEndpoint(EndpointOptions{URL: "http://127.0.0.1:8080/x", Userinfo: true, TokenOptions: TokenOptions{Claim: "sub"}}); err != nil {
		t.Error(err)
	}
}

// Both mechanisms, with accounts: who has a good token needs no password, but may not be disabled;
// while the endpoint is down a client hears of a temporary error.
func TestEndpointLogin(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	a := NewAccounts(AccountOptions{Maps: table.OpenMaps("account_maps", []string{"inline:{ {gone@example.org=disabled} }"}, table.Options{}), Tokens: p.endpoint(t, func(o *EndpointOptions) { o.CacheTime = 0 }), Now: time.Now})
	defer a.Close()
	secure := Client{TLS: &tls.ConnectionState{}, RemoteAddr: "192.0.2.1"}
	for _, tt := range []struct{ mechanism, claims, user, response, want string }{
		{"OAUTHBEARER", `"ann@example.org"`, "ann@example.org", "n,,\x01auth=Bearer x\x01\x01", "let in"},
		{"OAUTHBEARER", `"ann@example.org"`, "ann@example.org", "n,a=ann@example.org,\x01host=mx\x01port=587\x01auth=Bearer x\x01\x01", "let in"},
		{"OAUTHBEARER", `"ann@example.org"`, "ann@example.org", "n,a=joe@example.org,\x01auth=Bearer x\x01\x01", "another user"},
		{"XOAUTH2", `"ann@example.org"`, "ann@example.org", "user=ann@example.org\x01auth=Bearer x\x01\x01", "let in"},
		{"XOAUTH2", `"gone@example.org"`, "gone@example.org", "user=gone@example.org\x01auth=Bearer x\x01\x01", "disabled"},
		{"XOAUTH2", `7`, "ann@example.org", "user=ann@example.org\x01auth=Bearer x\x01\x01", "no claim"},
		{"XOAUTH2", `down`, "ann@example.org", "user=ann@example.org\x01auth=Bearer x\x01\x01", "temporary"},
	} {
		p.says(200, `{"active":true,"aud":"mail","email":`+tt.claims+`}`)
		x, err := a.Start(t.Context(), tt.mechanism, secure)
		if err != nil {
			t.Fatal(err)
		}
		_, done, err := x.Next(t.Context(), []byte(tt.response))
		if err == nil && !done {
			_, _, err = x.Next(t.Context(), []byte("\x01"))
		}
		var f *Failure
		got := "let in"
		switch {
		case errors.As(err, &f):
			got = f.Reason
		case err != nil:
			got = "temporary"
		}
		if !strings.Contains(got, tt.want) || x.Username() != tt.user {
			t.Errorf("%s %s: %s %q", tt.mechanism, tt.claims, got, x.Username())
		}
	}
	if _, err := a.Start(t.Context(), "XOAUTH2", Client{}); !errors.Is(err, ErrMechanism) {
		t.Errorf("without TLS: %v", err)
	}
}

func FuzzEndpointAnswer(f *testing.F) {
	f.Add([]byte(`{"active":true,"aud":["mail"],"email":"a@b","exp":1e300}`))
	f.Add([]byte(`{"active":true,"aud":"mail","email":"a@b","exp":-1,"nbf":null}`))
	e := &TokenEndpoint{o: EndpointOptions{TokenOptions: TokenOptions{Audience: "mail", Claim: "email"}, CacheTime: time.Minute}}
	f.Fuzz(func(t *testing.T, text []byte) {
		now := time.Unix(1_800_000_000, 0)
		a, err := e.judge(text, now)
		if err == nil && (a.user == "") == (a.reason == "") || a.until.After(now.Add(time.Minute)) {
			t.Errorf("%q: %+v %v", text, a, err)
		}
	})
}
