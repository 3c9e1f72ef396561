package unsubscribe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/event"
	"posthaste/internal/optout"
	"posthaste/internal/proto"
)

// A world is the service, with a suppress service and a journal that note what happens to them, in order.
type world struct {
	*door
	mu      sync.Mutex
	journal []string // "event ...", "wait", "tell ..."
	list    map[string]string
	fails   error // of the suppress service
	time    time.Time
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.journal = append(w.journal, fmt.Sprintf(format, args...))
}

func (w *world) Ask(_ context.Context, q *proto.SuppressAsk) (proto.SuppressAnswer, error) {
	reason, ok := w.list[q.List+" "+q.Address]
	return proto.SuppressAnswer{Suppressed: ok, Entry: proto.Suppression{List: q.List, Address: q.Address, Reason: reason}}, w.fails
}

func (w *world) Tell(_ context.Context, q *proto.SuppressTell) (proto.SuppressTold, error) {
	w.note("tell %s %s %s %s %s", q.What, q.List, q.Address, q.Origin, q.Detail)
	if w.fails == nil && w.list[q.List+" "+q.Address] != "complaint" {
		w.list[q.List+" "+q.Address] = "unsubscribe"
	}
	return proto.SuppressTold{}, w.fails
}

type events struct{ *world }

func (e events) Tell(v *event.Event) {
	e.note("event %s %s %s %s/%s %s", v.Kind, v.QueueID, v.Recipient, v.Tenant, v.List, v.Campaign)
}
func (e events) Wait(context.Context) { e.note("wait") }

func newWorld(t testing.TB) *world {
	w := &world{list: map[string]string{}, time: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)}
	now := func() time.Time { return w.time }
	w.door = &door{links: &optout.Coder{Base: "https://unsubscribe.example.org/u/", Secrets: []string{"a secret of sixteen"}, MaxDays: 365}, suppress: w, events: events{w},
		warn: func(err error) { t.Logf("warning: %v", err) }, now: now, clients: newClients(2, 3, now)}
	return w
}

var letter = optout.Token{Day: optout.Day(time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)), QueueID: "4jWn4F1YhnzSshsm4", Recipient: "joe@example.net", Scope: "shop/letter", Tenant: "shop", Campaign: "spring"}

const good = "List-Unsubscribe=One-Click"

// ask has the service answer a request, from another machine.
func (w *world) ask(method, url, kind, body string) (status int, text string, h http.Header) {
	r := httptest.NewRequest(method, url, strings.NewReader(body))
	r.RemoteAddr = "198.51.100.7:4711"
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	rec := httptest.NewRecorder()
	w.handler().ServeHTTP(rec, r)
	return rec.Code, rec.Body.String(), rec.Header()
}

const urlencoded = "application/x-www-form-urlencoded"

// A POST takes the recipient off, durably in this order: the event, and the list. Once more it does nothing and says the
// same. A GET shows a page, and nothing comes of it.
func TestOneClick(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	link := w.links.Link(letter)
	for _, m := range []string{http.MethodGet, http.MethodHead} {
		status, text, _ := w.ask(m, link, "", "")
		if status != http.StatusOK || !strings.Contains(text, "Take j\u2026@example.net off this list?") || !strings.Contains(text, `<form method="post">`) {
			t.Errorf("%s: %d %s", m, status, text)
		}
	}
	if len(w.journal) > 0 || len(w.list) > 0 {
		t.Fatalf("who looks at a link has done something: %q", w.journal)
	}
	for range 3 {
		if status, text, h := w.ask(http.MethodPost, link, urlencoded, good); status != http.StatusOK || !strings.Contains(text, "You are unsubscribed") || h.Get("Set-Cookie")+h.Get("Location") != "" {
			t.Errorf("%d %s %v", status, text, h)
		}
	}
	want := "event unsubscribed 4jWn4F1YhnzSshsm4 joe@example.net shop/letter spring;wait;tell unsubscribed shop/letter joe@example.net 4jWn4F1YhnzSshsm4 spring"
	if got := strings.Join(w.journal, ";"); got != want {
		t.Errorf("%s\nexpected %s", got, want)
	}
	// A recipient who has complained and then unsubscribes has done both.
	w.list["shop/letter joe@example.net"] = "complaint"
	w.journal = nil
	if status, _, _ := w.ask(http.MethodPost, link, urlencoded, good); status != http.StatusOK || len(w.journal) != 3 {
		t.Errorf("%d %q", status, w.journal)
	}
	// That it is said again fills no journal, until it is news again.
	for want, list := range map[int]map[string]string{1: {"shop/letter joe@example.net": "complaint"}, 3: {}} {
		w.list, w.journal = list, nil
		if status, _, _ := w.ask(http.MethodPost, link, urlencoded, good); status != http.StatusOK || len(w.journal) != want {
			t.Errorf("%d %q, expected %d", status, w.journal, want)
		}
	}
	for i := range 2 * maxRepeated {
		other := letter
		other.QueueID = fmt.Sprint(i)
		w.repeated.add(&other)
	}
	if len(w.repeated.links) > maxRepeated {
		t.Errorf("%d links are remembered", len(w.repeated.links))
	}
}

// While the list cannot be asked but takes what is new, as one does that was damaged, a link is one event.
func TestDamagedList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.suppress = unasked{w}
	for range 3 {
		if status, text, _ := w.ask(http.MethodPost, w.links.Link(letter), urlencoded, good); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
	}
	if got := strings.Join(w.journal, ";"); strings.Count(got, "event") != 1 || strings.Count(got, "tell") != 3 {
		t.Error(got)
	}
}

// unasked is a list that cannot be asked.
type unasked struct{ *world }

func (unasked) Ask(context.Context, *proto.SuppressAsk) (a proto.SuppressAnswer, err error) {
	return a, errors.New("it is lost")
}

// A list that does not answer is waited for no longer than the connection lasts: who asks is told that it was not done.
func TestSilentList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.suppress = silent{w}
		began := time.Now()
		status, _, _ := w.ask(http.MethodPost, w.links.Link(letter), urlencoded, good)
		if took := time.Since(began); status != http.StatusServiceUnavailable || took >= 15*time.Second {
			t.Errorf("%d after %v", status, took)
		}
	})
}

// silent is a list that does not answer.
type silent struct{ *world }

func (silent) Tell(ctx context.Context, _ *proto.SuppressTell) (a proto.SuppressTold, err error) {
	<-ctx.Done()
	return a, ctx.Err()
}

// What is asked must be one click, in either form of a body, and nothing else is.
func TestBodies(t *testing.T) {
	t.Parallel()
	parts := func(fields ...string) (kind, body string) {
		var b strings.Builder
		m := multipart.NewWriter(&b)
		for _, f := range fields {
			name, value, _ := strings.Cut(f, "=")
			if err := m.WriteField(name, value); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		return m.FormDataContentType(), b.String()
	}
	inParts, oneClick := parts(good)
	_, otherParts := parts("List-Unsubscribe=Yes")
	for _, tt := range []struct {
		kind, body string
		status     int
	}{
		{urlencoded, good, 200},
		{urlencoded + "; charset=utf-8", good, 200},
		{urlencoded, good + "&x=y", 200},
		{inParts, oneClick, 200},
		{inParts, otherParts, 400},
		{urlencoded, "", 400},
		{"", good, 400},
		{"text/plain", good, 400},
		{urlencoded, "List-Unsubscribe=one-click", 400},
		{urlencoded, "list-unsubscribe=One-Click", 400},
		{urlencoded, good + "&" + good, 400},
		{urlencoded, strings.Repeat("x", maxBody) + "&" + good, 400},
		{urlencoded, good + "&x=" + strings.Repeat("x", maxBody), 400},
		{"multipart/form-data", good, 400},
		{"multipart/form-data; boundary=x", strings.Repeat("--x\r\n", 3000), 400},
	} {
		w := newWorld(t)
		status, _, _ := w.ask(http.MethodPost, w.links.Link(letter), tt.kind, tt.body)
		if status != tt.status || (len(w.list) > 0) != (status == 200) {
			t.Errorf("%s %.60q: %d, %v", tt.kind, tt.body, status, w.list)
		}
	}
}

// A link that counts for nothing has one answer, whatever is wrong with it, which tells nothing and changes nothing.
func TestStrangers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.clients = newClients(2, 1000, w.now)
	old, foreign := letter, *w.links
	old.Day -= 366
	foreign.Secrets = []string{"another secret, of strangers"}
	link := w.links.Link(letter)
	empty := letter
	empty.Scope = "a/b/c"
	var first string
	for _, url := range []string{w.links.Link(old), foreign.Link(letter), link[:len(link)-1], link + "A", link + "/", link + "?x=y", w.links.Base, "https://unsubscribe.example.org/", "https://unsubscribe.example.org/u",
		w.links.Link(empty), w.links.Base + "%00", w.links.Base + "../../etc/passwd", w.links.Base + strings.Repeat("A", 4000)} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			status, text, _ := w.ask(method, url, urlencoded, good)
			if first == "" {
				first = text
			}
			if status != http.StatusNotFound || text != first || strings.Contains(text, "<form") {
				t.Errorf("%s %.80s: %d %s", method, url, status, text)
			}
		}
	}
	if len(w.journal) > 0 || len(w.list) > 0 {
		t.Errorf("%q %v", w.journal, w.list)
	}
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodConnect, "X"} {
		if status, _, h := w.ask(method, link, urlencoded, good); status != http.StatusMethodNotAllowed || h.Get("Allow") == "" {
			t.Errorf("%s: %d", method, status)
		}
	}
}

// No page runs anything or is kept, whatever it says.
func TestHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nasty := letter
	nasty.Recipient = `<script>alert("x")</script>@example.net`
	for _, url := range []string{w.links.Link(letter), w.links.Link(nasty), w.links.Base + "x"} {
		_, text, h := w.ask(http.MethodGet, url, "", "")
		if strings.Contains(text, "script") || strings.Contains(text, "style=") {
			t.Error(text)
		}
		for name, want := range map[string]string{"Content-Security-Policy": "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "X-Robots-Tag": "noindex", "Content-Type": "text/html; charset=utf-8"} {
			if h.Get(name) != want {
				t.Errorf("%s: %s", name, h.Get(name))
			}
		}
	}
	for address, want := range map[string]string{"joe@x": "j\u2026@x", "\u00fcnal@x": "\u00fc\u2026@x", "@x": "this address", "x": "this address", "a@b@x": "a\u2026@x", "\xff@x": "\xff\u2026@x"} {
		if got := masked(address); got != want {
			t.Errorf("%q: %q", address, got)
		}
	}
}

// Nobody is told that it is done while the list does not have it.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fails = errors.New("it is not running")
	status, text, h := w.ask(http.MethodPost, w.links.Link(letter), urlencoded, good)
	if status != http.StatusServiceUnavailable || h.Get("Retry-After") == "" || strings.Contains(text, "You are") {
		t.Errorf("%d %s", status, text)
	}
	w.fails = nil
	if status, _, _ := w.ask(http.MethodPost, w.links.Link(letter), urlencoded, good); status != http.StatusOK || w.list["shop/letter joe@example.net"] != "unsubscribe" {
		t.Errorf("%d %v", status, w.list)
	}
}

// A client that asks with many links that count for nothing is not answered for a minute. Others are, and so is this host, and good
// links may be as many as they like.
func TestErrorLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	link, bad := w.links.Link(letter), w.links.Base+"x"
	for i, tt := range []struct {
		url    string
		after  time.Duration
		status int
	}{{link, 0, 200}, {bad, 0, 404}, {link, 0, 200}, {bad, 0, 404}, {bad, 0, 404}, {bad, 0, 429}, {link, 59 * time.Second, 429}, {link, time.Second, 200}, {bad, 0, 404}} {
		w.time = w.time.Add(tt.after)
		if status, _, h := w.ask(http.MethodPost, tt.url, urlencoded, good); status != tt.status || (h.Get("Retry-After") != "") != (status == 429) {
			t.Errorf("%d: %d, expected %d", i, status, tt.status)
		}
	}
	c := newClients(1, 1, w.now)
	for _, addr := range []string{"198.51.100.7:1", "[2001:db8::1]:1", "127.0.0.1:1", "[::1]:1", "@"} {
		c.failed(addr)
	}
	for addr, want := range map[string]bool{"198.51.100.7:2": true, "[::ffff:198.51.100.7]:2": true, "198.51.100.8:1": false, "[2001:db8::ff]:1": true, "[2001:db8:0:1::1]:1": false, "127.0.0.1:1": false, "[::1]:1": false, "@": false} {
		if got := c.refuses(addr); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
	for i := range 2 * maxClients {
		c.failed(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255))
	}
	if len(c.bad) > maxClients {
		t.Errorf("%d clients are remembered", len(c.bad))
	}
}

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	from string
}

func (a addressed) RemoteAddr() net.Addr {
	at, _ := net.ResolveTCPAddr("tcp", a.from)
	return at
}

// A client has so many connections and no more, until one of them ends.
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	c := newClients(2, 1, time.Now)
	release, entered := make(chan struct{}), make(chan string)
	var wg sync.WaitGroup
	give := c.bounded(func(ctx context.Context, handle func(context.Context, net.Conn)) error {
		connect := func(from string) net.Conn {
			near, far := net.Pipe()
			wg.Go(func() { handle(ctx, addressed{far, from}) })
			return near
		}
		refused := func(from string) {
			near := connect(from)
			closed := make(chan error, 1)
			wg.Go(func() {
				_, err := near.Read(make([]byte, 1))
				closed <- err
			})
			select {
			case err := <-closed:
				if err != io.EOF {
					t.Errorf("a third connection of %s: %v", from, err)
				}
			case <-entered:
				t.Errorf("a third connection of %s is served", from)
				near.Close()
				release <- struct{}{}
			}
		}
		for _, from := range []string{"198.51.100.7:1", "198.51.100.7:2", "198.51.100.8:1", "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"} {
			connect(from)
			<-entered
		}
		refused("198.51.100.7:3")
		release <- struct{}{}
		release <- struct{}{}
		for range 4 {
			release <- struct{}{}
		}
		wg.Wait()
		connect("198.51.100.7:4")
		<-entered
		release <- struct{}{}
		wg.Wait()
		return nil
	})
	err := give(t.Context(), func(_ context.Context, conn net.Conn) {
		entered <- conn.RemoteAddr().String()
		<-release
	})
	if err != nil || len(c.busy) > 0 {
		t.Errorf("%v, %v", err, c.busy)
	}
}

// Whatever is asked, there is an answer, and nobody is taken off by anything but a POST with a good link.
func FuzzRequests(f *testing.F) {
	w := newWorld(f)
	link := w.links.Link(letter)
	f.Add("GET", strings.TrimPrefix(link, "https://unsubscribe.example.org"), urlencoded, good)
	f.Add("POST", "/u/x", "multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--x--\r\n")
	f.Fuzz(func(t *testing.T, method, path, kind, body string) {
		r, err := http.NewRequest(method, "https://unsubscribe.example.org", strings.NewReader(body))
		if err != nil || r.Method == "" {
			return
		}
		w := newWorld(t)
		r.URL.Path = path
		r.Header.Set("Content-Type", kind)
		rec := httptest.NewRecorder()
		w.handler().ServeHTTP(rec, r)
		if rec.Code < 200 || len(w.list) > 0 != (rec.Code == 200 && method == "POST") {
			t.Errorf("%s %q: %d, %v", method, path, rec.Code, w.list)
		}
	})
}
