package unsubscribe

import (
	"bytes"
	"context"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"posthaste/internal/event"
	"posthaste/internal/optout"
	"posthaste/internal/proto"
	"posthaste/internal/suppress/suppressclient"
)

const (
	// maxBody bounds what is read of a request's body, in octets.
	maxBody = 8 << 10
	// answerTime bounds what is done for a request, so that the answer that it was not done comes before the connection is closed.
	answerTime = 12 * time.Second
	// retryAfter is when who was answered 503 may ask again, in seconds.
	retryAfter = "60"
)

// The one field of a request, and its value (RFC 8058 section 3.1).
const field, oneClick = "List-Unsubscribe", "One-Click"

// A suppressor has the suppression list: the suppress service. It may be called concurrently.
type suppressor interface {
	Ask(ctx context.Context, q *proto.SuppressAsk) (proto.SuppressAnswer, error)
	Tell(ctx context.Context, q *proto.SuppressTell) (proto.SuppressTold, error)
}

// A teller tells others of events. Wait returns when those that were told are durable.
type teller interface {
	Tell(e *event.Event)
	Wait(ctx context.Context)
}

// A door answers requests. It may be called concurrently.
type door struct {
	links    *optout.Coder
	suppress suppressor
	events   teller
	clients  *clients
	repeated repeated
	warn     func(error)
	now      func() time.Time
}

// A page is an answer. It has no word that a client has sent.
type page struct {
	Title, Text string
	Button      bool
}

var (
	ask     = page{Title: "Unsubscribe", Button: true}
	done    = page{Title: "You are unsubscribed", Text: "No more mail of this list is sent to this address. Messages that are on their way may still arrive."}
	unknown = page{Title: "This link does not work", Text: "It is incomplete, or too old. Use the link of a newer message."}
	form    = page{Title: "This request is not understood", Text: "It does not say that it is to unsubscribe."}
	later   = page{Title: "Not possible at the moment", Text: "Nothing has been changed. Try again in a few minutes."}
	often   = page{Title: "Too many requests", Text: "Try again in a minute."}
	method  = page{Title: "This method is not for links"}
)

var pages = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{{.Title}}</title>
</head>
<body>
<main>
<h1>{{.Title}}</h1>
{{- if .Text}}
<p>{{.Text}}</p>
{{- end}}
{{- if .Button}}
<form method="post">
<input type="hidden" name="List-Unsubscribe" value="One-Click">
<button type="submit">Unsubscribe</button>
</form>
{{- end}}
</main>
</body>
</html>
`))

// handler answers requests. It may be called concurrently.
func (d *door) handler() http.Handler {
	base, _ := url.Parse(d.links.Base) // which was looked at when it was read
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		// Nothing on a page is loaded, run or framed, and its address, which is the proof, is told to nobody.
		h.Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Robots-Tag", "noindex")
		if d.clients.refuses(r.RemoteAddr) {
			h.Set("Retry-After", retryAfter)
			answer(w, http.StatusTooManyRequests, &often)
			return
		}
		token, ok := strings.CutPrefix(r.URL.Path, base.Path)
		if !ok || r.URL.RawQuery != "" {
			token = ""
		}
		d.serve(w, r, token)
	})
}

// serve answers a request for a token, which may be any text.
func (d *door) serve(w http.ResponseWriter, r *http.Request, token string) {
	get, post := r.Method == http.MethodGet || r.Method == http.MethodHead, r.Method == http.MethodPost
	if !get && !post {
		w.Header().Set("Allow", "GET, HEAD, POST")
		answer(w, http.StatusMethodNotAllowed, &method)
		return
	}
	t, err := d.links.Parse(token, d.now())
	switch {
	case err != nil || !suppressclient.ValidScope(t.Scope):
		// Too old and forged are one answer: which of them it is, is nobody's business.
		d.clients.failed(r.RemoteAddr)
		answer(w, http.StatusNotFound, &unknown)
	case get:
		p := ask
		p.Text = "Take " + masked(t.Recipient) + " off this list?"
		answer(w, http.StatusOK, &p)
	case !asked(w, r):
		answer(w, http.StatusBadRequest, &form)
	default:
		ctx, cancel := context.WithTimeout(r.Context(), answerTime)
		defer cancel()
		if err := d.unsubscribe(ctx, &t); err != nil {
			// A client that has gone away is no trouble of ours.
			if !errors.Is(err, context.Canceled) {
				d.warn(err)
			}
			w.Header().Set("Retry-After", retryAfter)
			answer(w, http.StatusServiceUnavailable, &later)
			return
		}
		answer(w, http.StatusOK, &done)
	}
}

// asked says whether the body of a request is that of one click.
func asked(w http.ResponseWriter, r *http.Request) bool {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	// All of it has room in memory, and no file is made.
	if err := r.ParseMultipartForm(maxBody); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		return false
	}
	values := r.PostForm[field]
	return len(values) == 1 && values[0] == oneClick
}

// unsubscribe puts a recipient on the list. The journal of events has it first, so that it has what the
// suppress service remembers; both are durable when it returns without an error. What is known already is no news.
func (d *door) unsubscribe(ctx context.Context, t *optout.Token) error {
	known, err := d.suppress.Ask(ctx, &proto.SuppressAsk{List: t.Scope, Address: t.Recipient})
	e := &known.Entry
	here := err == nil && known.Suppressed && e.List == t.Scope
	if here && e.Reason == suppressclient.Unsubscribed && e.Until == 0 {
		return nil
	}
	// If the list cannot be asked it may still take what is new, as one does that was damaged.
	forgetful := here || err != nil
	if !forgetful || !d.repeated.has(t) {
		_, list := suppressclient.Parts(t.Scope)
		d.events.Tell(&event.Event{Kind: event.Unsubscribed, Time: d.now(), QueueID: t.QueueID, Recipient: t.Recipient, Tenant: t.Tenant, Campaign: t.Campaign, List: list})
		d.events.Wait(ctx)
	}
	_, err = d.suppress.Tell(ctx, &proto.SuppressTell{What: proto.ToldUnsubscribed, List: t.Scope, Address: t.Recipient, Origin: t.QueueID, Detail: t.Campaign})
	if err == nil && forgetful {
		d.repeated.add(t)
	}
	return err
}

// maxRepeated bounds how many links are remembered. With more of them all are forgotten.
const maxRepeated = 10000

// repeated are the links that were followed while the list could not show it: since it has a complaint of the recipient, which
// counts more, or cannot be asked. Each time would be news, and who has one link could fill the journal, at whose bound
// the events of others are lost. The zero value has none. Methods may be called concurrently.
type repeated struct {
	mu    sync.Mutex
	links map[string]bool
}

func linkKey(t *optout.Token) string { return t.QueueID + "\x00" + t.Scope + "\x00" + t.Recipient }

func (r *repeated) has(t *optout.Token) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.links[linkKey(t)]
}

func (r *repeated) add(t *optout.Token) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.links == nil || len(r.links) >= maxRepeated {
		r.links = make(map[string]bool)
	}
	r.links[linkKey(t)] = true
}

// masked is an address as a page shows it: its owner knows it again, and others, to whom the message was passed on, learn
// little.
func masked(address string) string {
	at := strings.LastIndexByte(address, '@')
	if at < 1 {
		return "this address"
	}
	_, n := utf8.DecodeRuneInString(address)
	return address[:n] + "\u2026" + address[at:]
}

// answer writes a page.
func answer(w http.ResponseWriter, status int, p *page) {
	var b bytes.Buffer
	if err := pages.Execute(&b, p); err != nil {
		panic(err) // a page has texts, and writing them to memory does not fail
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // a client that is gone does not get it
}
