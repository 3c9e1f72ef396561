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
	tries     *tries
	live      *live
	day       *day
	log       func(maillog.Event)
	now       func() time.Time
	host      string   // $myhostname, on each page
	hosts     []string // names by which it may be called
	version   string
	templates map[string]*template.Template
	assets    string          // path of the files that pages need: it changes when they do
	stopping  <-chan struct{} // closed when live pages are to end
}

// handler makes the whole of it.
func (c *console) handler() http.Handler {
	c.templates = parseTemplates()
	mux := http.NewServeMux()
	ops := operations()
	spec := openAPI(ops, c.version)
	for i := range ops {
		o := &ops[i]
		mux.HandleFunc(o.method+" "+apiPath+o.path, c.serveAPI(o))
		if o.method == http.MethodPost && o.role > look {
			mux.HandleFunc("POST /do/"+o.name, c.serveForm(o))
		}
	}
	mux.HandleFunc("GET "+apiPath+"/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(spec)
	})
	for _, v := range views() {
		if v.make != nil {
			mux.HandleFunc("GET "+v.path, c.servePage(v))
		}
	}
	mux.HandleFunc("GET /destination", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/destination/"+url.PathEscape(strings.TrimSpace(r.URL.Query().Get("name"))), http.StatusSeeOther)
	})
	mux.HandleFunc("GET /favicon.ico", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }) // browsers ask for it
	mux.HandleFunc("GET /live/{page}", c.servePart)
	mux.HandleFunc("GET /login", func(w http.ResponseWriter, r *http.Request) { c.loginPage(w, http.StatusOK, "") })
	mux.HandleFunc("POST /login", c.serveLogin)
	mux.HandleFunc("POST /logout", c.serveLogout)
	c.serveAssets(mux)
	return guard(c.hosts, mux)
}

// serveAssets serves the files that pages need under a path that their content makes, so that no
// browser has old ones.
func (c *console) serveAssets(mux *http.ServeMux) {
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
	mux.HandleFunc("GET "+c.assets+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		kind := files[r.PathValue("name")]
		b, err := web.ReadFile(path.Join("web", r.PathValue("name")))
		if kind == "" || err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	})
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
		if s.role < look {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
		p := &page{Host: c.host, Assets: c.assets, Path: r.URL.RequestURI(), Session: &s, Note: c.sessions.takeNote(&s)}
		q := &query{ctx: r.Context(), session: s, client: clientOf(r), values: r.URL.Query()}
		title, body, err := v.make(c, q, r)
		p.Title, p.Body = title, body
		if err != nil {
			p.Failure = err.Error()
			c.render(w, statusOf(err), "failure", p)
			return
		}
		c.render(w, http.StatusOK, v.template, p)
	}
}

// servePart sends the part of a page that changes, each time that it does.
func (c *console) servePart(w http.ResponseWriter, r *http.Request) {
	s := c.sessionOf(r)
	if s.role < look {
		http.Error(w, errSession.Error(), http.StatusUnauthorized)
		return
	}
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
		if s.role < look {
			http.Redirect(w, r, "/login", http.StatusSeeOther)
			return
		}
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
		c.sessions.leave(&s, result.(*Done).Done)
		http.Redirect(w, r, back, http.StatusSeeOther)
	}
}

func (c *console) loginPage(w http.ResponseWriter, status int, failure string) {
	c.render(w, status, "login", &page{Title: "Log in", Host: c.host, Assets: c.assets, Path: "/", Failure: failure})
}

func (c *console) serveLogin(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, "the form cannot be read", http.StatusBadRequest)
		return
	}
	token, _, err := c.login(r.Context(), clientOf(r), r.PostForm.Get("user"), r.PostForm.Get("password"))
	if err != nil {
		var wait *waitError
		if errors.As(err, &wait) {
			w.Header().Set("Retry-After", fmt.Sprint(int(wait.wait/time.Second)+1))
		}
		c.loginPage(w, statusOf(err), err.Error())
		return
	}
	c.setCookie(w, r, token, int(wholeTime/time.Second))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func (c *console) serveLogout(w http.ResponseWriter, r *http.Request) {
	s := c.sessionOf(r)
	if s.role < look {
		http.Redirect(w, r, "/login", http.StatusSeeOther)
		return
	}
	if err := r.ParseForm(); err != nil || !s.owns(r.PostForm.Get("csrf")) {
		http.Error(w, "the form is not of this session", http.StatusForbidden)
		return
	}
	c.sessions.end(&s)
	c.setCookie(w, r, "", -1)
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}
