package console

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"posthaste/internal/apitoken"
	"posthaste/internal/maillog"
)

// A console answers requests. Its methods may be called concurrently.
type console struct {
	mta       *mta
	machine   *machine
	people    *people
	sessions  *sessions
	programs  *apitoken.Store // tokens of programs; nil in tests
	contents  *contents
	forecasts *forecasts
	tries     *tries
	live      *live
	day       *day
	log       func(maillog.Event)
	warn      func(format string, args ...any)
	now       func() time.Time
	host      string   // $myhostname, on each page
	hosts     []string // names by which it may be called
	version   string
	templates map[string]*template.Template
	assets    string          // path of the files that pages need: it changes when they do
	stopping  <-chan struct{} // closed when live pages are to end
}

// A route is one thing that a request can be for. Whoever adds one says who may ask for it.
type route struct {
	pattern string // as http.ServeMux has it
	need    role   // nobody: no login is needed
	handle  http.HandlerFunc
	// api says that a token is asked for, and that the operation itself says who may: the same function serves a page.
	api bool
}

// routes are all that there is to ask for.
func (c *console) routes() (list []route) {
	ops := operations()
	spec := openAPI(ops, c.version)
	for i := range ops {
		o := &ops[i]
		list = append(list, route{o.method + " " + apiPath + o.path, o.role, c.serveAPI(o), true})
		if o.method == http.MethodPost && o.role > look {
			list = append(list, route{"POST /do/" + o.name, o.role, c.serveForm(o), false})
		}
	}
	for _, v := range views() {
		if v.make != nil {
			list = append(list, route{"GET " + v.path, look, c.servePage(v), false})
		}
	}
	return append(append(list, c.providerRoutes()...),
		route{"GET /destination", look, goDestination, false}, // the form in the head of each page
		route{"GET /live/{page}", look, c.servePart, false},
		route{"POST /logout", look, c.serveLogout, false},
		route{"GET /login", nobody, func(w http.ResponseWriter, r *http.Request) {
			c.loginForm(w, http.StatusOK, "", r.URL.Query().Has("left"))
		}, false},
		route{"POST /login", nobody, c.serveLogin, false},
		route{"GET " + apiPath + "/openapi.json", nobody, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(spec)
		}, true},
		route{"GET /favicon.ico", nobody, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, false}, // browsers ask for it
		c.assetRoute())
}

func goDestination(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, "/destination/"+url.PathEscape(strings.TrimSpace(r.URL.Query().Get("name"))), http.StatusSeeOther)
}

// handler makes the whole of it. What needs a role is looked at here, before a request is looked at any further, and once more
// by what carries an operation out.
func (c *console) handler() http.Handler {
	c.templates = parseTemplates()
	mux := http.NewServeMux()
	for _, r := range c.routes() {
		mux.HandleFunc(r.pattern, c.permit(r))
	}
	return guard(c.hosts, mux)
}

// permit keeps out who may not have what a route is for.
func (c *console) permit(of route) http.HandlerFunc {
	if of.api || of.need == nobody {
		return of.handle
	}
	return func(w http.ResponseWriter, r *http.Request) {
		s := c.sessionOf(r)
		switch err := s.refused(of.need); {
		case err == nil:
			of.handle(w, r)
		case errors.Is(err, errSession) && strings.HasPrefix(of.pattern, "GET /live/"):
			http.Error(w, err.Error(), http.StatusUnauthorized) // it is a script that asks
		case errors.Is(err, errSession):
			http.Redirect(w, r, "/login", http.StatusSeeOther)
		default:
			c.render(w, statusOf(err), "failure", &page{Title: "Not permitted", Host: c.host, Assets: c.assets, Path: "/", Session: &s, Failure: err.Error()})
		}
	}
}

// assetRoute serves the files that pages need under a path that their content makes, so that no
// browser has old ones.
func (c *console) assetRoute() route {
	files := map[string]string{"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8"}
	sum := sha256.New()
	for _, name := range []string{"style.css", "live.js"} {
		b, err := web.ReadFile("web/" + name)
		if err != nil {
			panic(err) // it is part of the program
		}
		sum.Write(b)
	}
	c.assets = "/assets/" + hex.EncodeToString(sum.Sum(nil))[:16]
	return route{"GET " + c.assets + "/{name}", nobody, func(w http.ResponseWriter, r *http.Request) {
		kind := files[r.PathValue("name")]
		b, err := web.ReadFile(path.Join("web", r.PathValue("name")))
		if kind == "" || err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}, false}
}

// cookieName names the session's cookie. Under TLS a browser takes it from this host only.
func cookieName(r *http.Request) string {
	if r.TLS != nil {
		return "__Host-posthaste"
	}
	return "posthaste"
}

// sessionOf is the session of a request; one of nobody if there is none.
func (c *console) sessionOf(r *http.Request) session {
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return session{}
	}
	s, _ := c.sessions.find(cookie.Value)
	return s
}

func (c *console) setCookie(w http.ResponseWriter, r *http.Request, token string, age int) {
	http.SetCookie(w, &http.Cookie{Name: cookieName(r), Value: token, Path: "/", MaxAge: age, Secure: r.TLS != nil, HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

// servePage answers with a page, or sends whoever has not logged in to do so.
func (c *console) servePage(v view) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s := c.sessionOf(r)
		p := &page{Host: c.host, Assets: c.assets, Path: r.URL.RequestURI(), Session: &s, Note: c.sessions.takeNote(&s)}
		q := &query{ctx: r.Context(), session: s, client: clientOf(r), values: r.URL.Query()}
		title, body, err := v.make(c, q, r)
		p.Title, p.Body = title, body
		if err != nil {
			p.Failure = err.Error()
			tellWait(w, err)
			name := v.template
			if body == nil {
				name = "failure"
			}
			c.render(w, statusOf(err), name, p)
			return
		}
		c.render(w, http.StatusOK, v.template, p)
	}
}

// servePart sends the part of a page that changes, each time that it does.
func (c *console) servePart(w http.ResponseWriter, r *http.Request) {
	s := c.sessionOf(r)
	switch r.PathValue("page") {
	case "now":
		c.serveLive(w, r, &s, func(b *bytes.Buffer) error {
			return c.fragment("now", nowPart{c.live.view(), c.machine.look(c.now())})(b)
		})
	case "queue":
		values := r.URL.Query()
		c.serveLive(w, r, &s, func(b *bytes.Buffer) error {
			table, err := c.opShape(&query{ctx: r.Context(), session: s, values: values})
			if errors.Is(err, errDown) {
				return nil
			}
			if err != nil {
				return err
			}
			return c.fragment("queue", table)(b)
		})
	default:
		http.NotFound(w, r)
	}
}

// serveForm does what the form of a page is for, and goes back to the page.
func (c *console) serveForm(o *operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s := c.sessionOf(r)
		if err := r.ParseForm(); err != nil {
			http.Error(w, "the form cannot be read", http.StatusBadRequest)
			return
		}
		if !s.owns(r.PostForm.Get("csrf")) {
			http.Error(w, "the form is not of this session: go back, load the page again", http.StatusForbidden)
			return
		}
		back := r.PostForm.Get("back")
		if !strings.HasPrefix(back, "/") || strings.HasPrefix(back, "//") || strings.ContainsAny(back, "\\\r\n\t") {
			back = "/"
		}
		q := &query{ctx: r.Context(), session: s, client: clientOf(r), values: r.PostForm}
		for _, name := range []string{"csrf", "back"} {
			delete(q.values, name)
		}
		result, err := c.call(o, q)
		if err != nil {
			c.render(w, statusOf(err), "failure", &page{Title: o.summary, Host: c.host, Assets: c.assets, Path: back, Session: &s, Failure: err.Error()})
			return
		}
		if m, ok := result.(*Content); ok {
			c.serveContent(w, &page{Host: c.host, Assets: c.assets, Path: back, Session: &s}, m)
			return
		}
		c.sessions.leave(&s, result.(*Done).Done)
		http.Redirect(w, r, back, http.StatusSeeOther)
	}
}

// A loginBody is the page on which one logs in.
type loginBody struct {
	Password bool
	Provider string // empty: there is none
	Logout   string // where who has logged out here logs out of the provider
}

func (c *console) loginPage(w http.ResponseWriter, status int, failure string) {
	c.loginForm(w, status, failure, false)
}

// loginForm sends the page on which one logs in. left says that somebody has logged out.
func (c *console) loginForm(w http.ResponseWriter, status int, failure string, left bool) {
	b := loginBody{Password: c.people.own != nil || c.people.others != nil || c.people.provider == nil}
	if c.people.provider != nil {
		b.Provider = c.people.provider.name()
		if left {
			b.Logout = c.people.provider.logoutLink()
		}
	}
	c.render(w, status, "login", &page{Title: "Log in", Host: c.host, Assets: c.assets, Path: "/", Failure: failure, Body: b})
}

// tellWait says when to try again what was too much now.
func tellWait(w http.ResponseWriter, err error) {
	var wait *waitError
	switch {
	case errors.As(err, &wait):
		w.Header().Set("Retry-After", fmt.Sprint(int(wait.wait/time.Second)+1))
	case errors.Is(err, errForecast), errors.Is(err, errForecasts):
		w.Header().Set("Retry-After", fmt.Sprint(int(forecastWait/time.Second)))
	}
}

// failedLogin says why somebody is not let in, and when to try again.
func (c *console) failedLogin(w http.ResponseWriter, err error) {
	tellWait(w, err)
	c.loginPage(w, statusOf(err), err.Error())
}

func (c *console) serveLogin(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, "the form cannot be read", http.StatusBadRequest)
		return
	}
	token, _, err := c.login(r.Context(), loginFrom(r), r.PostForm.Get("user"), r.PostForm.Get("password"))
	if err != nil {
		c.failedLogin(w, err)
		return
	}
	c.setCookie(w, r, token, int(wholeTime/time.Second))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func (c *console) serveLogout(w http.ResponseWriter, r *http.Request) {
	s := c.sessionOf(r)
	if err := r.ParseForm(); err != nil || !s.owns(r.PostForm.Get("csrf")) {
		http.Error(w, "the form is not of this session", http.StatusForbidden)
		return
	}
	c.sessions.end(&s)
	c.setCookie(w, r, "", -1)
	if s.provider {
		http.Redirect(w, r, "/login?left", http.StatusSeeOther)
		return
	}
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}
