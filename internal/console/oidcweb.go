package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"posthaste/internal/resolver"
	"posthaste/internal/sasl/saslconf"
	"posthaste/internal/service"
	"posthaste/internal/smallfile"
	"posthaste/internal/webclient"
)

// maxSecret bounds the octets of console_oidc_client_secret_file.
const maxSecret = 4096

// openProvider reads the parameters of the provider, while there are the rights of root. It is nil where there is none.
func openProvider(env *service.Env) (*oidcProvider, error) {
	cfg := env.Config
	issuer := cfg.String("console_oidc_issuer")
	if issuer == "" {
		return nil, nil
	}
	options, err := env.Resolver()
	if err != nil {
		return nil, err
	}
	roots, err := saslconf.Roots(cfg.String("console_oidc_CAfile"))
	if err != nil {
		return nil, fmt.Errorf("console_oidc_CAfile: %w", err)
	}
	secret := ""
	if file := cfg.String("console_oidc_client_secret_file"); file != "" {
		text, err := smallfile.Read(file, maxSecret)
		if err != nil {
			return nil, fmt.Errorf("console_oidc_client_secret_file: %w", err)
		}
		if secret = strings.TrimSpace(string(text)); secret == "" {
			return nil, fmt.Errorf("console_oidc_client_secret_file: %s is empty", file)
		}
	}
	// The administrator names the provider: it may be in a network of our own.
	anywhere := func(context.Context, netip.Addr) (bool, error) { return true, nil }
	return newProvider(providerOptions{issuer: issuer, id: cfg.String("console_oidc_client_id"), secret: secret, base: cfg.String("console_url"),
		scopes: cfg.List("console_oidc_scopes"), nameClaim: cfg.String("console_oidc_name_claim"), groupClaim: cfg.String("console_oidc_group_claim"),
		client: webclient.New(webclient.Options{Resolver: resolver.New(options), Allowed: anywhere, Roots: roots}), now: time.Now})
}

// providerRoutes are those of a login by the provider; none where there is none.
func (c *console) providerRoutes() []route {
	if c.people.provider == nil {
		return nil
	}
	return []route{{"GET /login/oidc", nobody, c.serveProvider, false}, {"GET " + returnPath, nobody, c.serveReturn, false}}
}

// pendingCookie names the cookie of a login that is under way. It is sent when the provider's page leads back here, unlike that
// of a session.
func pendingCookie(r *http.Request) string { return cookieName(r) + "-oidc" }

func setPending(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{Name: pendingCookie(r), Value: value, Path: "/", MaxAge: age, Secure: r.TLS != nil, HttpOnly: true, SameSite: http.SameSiteLaxMode})
}

// serveProvider sends a browser to the provider.
func (c *console) serveProvider(w http.ResponseWriter, r *http.Request) {
	address, cookie, err := c.people.provider.begin(r.Context())
	if err != nil {
		c.warn("console_oidc_issuer: %v", err)
		c.loginPage(w, http.StatusServiceUnavailable, "the provider does not answer as it should: the log says why")
		return
	}
	setPending(w, r, cookie, int(pendingTime/time.Second))
	http.Redirect(w, r, address, http.StatusSeeOther)
}

// serveReturn lets in whom the provider vouches for. The session's cookie is not sent by a browser that another site has sent
// here: the answer is a page of ours, which leads to the first one.
func (c *console) serveReturn(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Referrer-Policy", "no-referrer") // the address has a code in it
	cookie := ""
	if kept, err := r.Cookie(pendingCookie(r)); err == nil {
		cookie = kept.Value
	}
	setPending(w, r, "", -1)
	token, _, err := c.admit(r.Context(), loginFrom(r), "", func() (who person, err error) {
		of, err := c.people.provider.finish(r.Context(), cookie, r.URL.Query())
		if err != nil {
			return who, err
		}
		who.user, who.provider = providerPrefix+of.name, true
		keys := []string{who.user}
		for _, g := range of.groups {
			keys = append(keys, groupPrefix+g)
		}
		return who, c.people.assign(r.Context(), &who, keys...)
	})
	var wait *waitError
	switch {
	case errors.As(err, &wait):
		c.failedLogin(w, err)
	case err != nil:
		c.failedLogin(w, errProvider)
	default:
		c.setCookie(w, r, token, int(wholeTime/time.Second))
		c.render(w, http.StatusOK, "welcome", &page{Title: "Logged in", Host: c.host, Assets: c.assets, Path: "/"})
	}
}
