package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/testwait"
)

// Every answer, to whomever and whatever it says, has a browser run and frame nothing, and keep nothing but the files of pages.
func TestEveryAnswer(t *testing.T) {
	t.Parallel()
	w, _ := vouchedFor(t, nil)
	w.count()
	for _, who := range []person{{}, {user: "joe", role: look}, {user: "all", role: operate, reads: true}} {
		for _, r := range w.console.routes() {
			method, path, _ := strings.Cut(r.pattern, " ")
			b, form := &browser{w: w}, url.Values{}
			if who.role > nobody {
				token, s := w.console.sessions.begin(who)
				b.cookie = &http.Cookie{Name: "posthaste", Value: token}
				form.Set("csrf", s.csrf)
			}
			_, _, h := b.do(method, strings.NewReplacer("{id}", queueID, "{name}", "style.css", "{page}", "nosuch", "{$}", "").Replace(path), form)
			if !strings.HasPrefix(h.Get("Content-Security-Policy"), policy) || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cross-Origin-Opener-Policy") != "same-origin" ||
				h.Get("Cache-Control") != "no-store" && !strings.HasPrefix(path, w.console.assets) {
				t.Errorf("%s as %q: %v", r.pattern, who.user, h)
			}
		}
	}
	if !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") || !strings.Contains(policy, "frame-ancestors 'none'") {
		t.Errorf("the policy is %s", policy)
	}
}

// No form of a page does anything without the secret of its own session, or for a page of another site; a cookie is not enough
// for anything of the API that changes something.
func TestForgedActs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token, s := w.console.sessions.begin(person{user: "all", role: operate, reads: true})
	_, other := w.console.sessions.begin(person{user: "all", role: operate, reads: true})
	values := func(csrf string) url.Values {
		return url.Values{"csrf": {csrf}, "id": {queueID}, "name": {"slow.test"}, "target": {"slow.test"}, "reason": {"x"}, "limit": {"2"}, "nexthop": {"a.test"}, "sender": {"a@b.test"}, "verb": {"hold"}, "count": {"2"}}
	}
	forms := 0
	for _, r := range w.console.routes() {
		method, path, _ := strings.Cut(r.pattern, " ")
		if method != "POST" || r.need == nobody || path == "/logout" {
			continue
		}
		path = strings.NewReplacer("{id}", queueID, "{name}", "slow.test").Replace(path)
		b := &browser{w: w, cookie: &http.Cookie{Name: "posthaste", Value: token}}
		if r.api {
			if status, _, _ := b.do(method, path, nil); status != http.StatusUnauthorized {
				t.Errorf("%s with a cookie: %d", path, status)
			}
			continue
		}
		forms++
		for _, csrf := range []string{"", "x", other.csrf, s.csrf + "x", token} {
			if status, _, _ := b.do(method, path, values(csrf)); status != http.StatusForbidden {
				t.Errorf("%s with the secret %q: %d", path, csrf, status)
			}
		}
		for _, header := range []map[string]string{{"Origin": "http://evil.test"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}} {
			b.header = header
			if status, _, _ := b.do(method, path, values(s.csrf)); status != http.StatusForbidden {
				t.Errorf("%s from another site, %v: %d", path, header, status)
			}
		}
	}
	if events, changes := w.take(); forms < 10 || len(changes) > 0 || len(events) > 0 {
		t.Errorf("%d forms; %v %q", forms, show(changes), events)
	}
}

// A session that an attacker has given a browser does not become that of who logs in, and a made-up one is none.
func TestFixation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	planted := []string{"x", random(), ""}
	mine, _ := w.console.sessions.begin(person{user: "mallory", role: look})
	for _, value := range append(planted, mine) {
		b := &browser{w: w, cookie: &http.Cookie{Name: "posthaste", Value: value}}
		if status, _, _ := b.do("POST", "/login", url.Values{"user": {"ann"}, "password": {"secret of ann"}}); status != http.StatusSeeOther {
			t.Fatal(status)
		}
		if b.cookie.Value == value || len(b.cookie.Value) < 40 {
			t.Errorf("%q stays", value)
		}
		if s, ok := w.console.sessions.find(value); ok && s.user != "mallory" {
			t.Errorf("%q is a session of %s", value, s.user)
		}
	}
}

// A message with many recipients, each with a long reply, is a page of bounded size where it is one of many.
func TestLongLists(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(func() {
		w.item.Recipients = nil
		for i := range 5000 {
			w.item.Recipients = append(w.item.Recipients, proto.ItemRcpt{Address: fmt.Sprintf("r%d@d.test", i), Orig: "all@d.test", Reason: strings.Repeat("x", 200)})
		}
	})
	b := w.login("ann")
	status, text, _ := b.do("GET", "/messages?queue=deferred", nil)
	if status != http.StatusOK || len(text) > 64<<10 || !strings.Contains(text, "5000 recipients in all") {
		t.Errorf("%d, %d octets", status, len(text))
	}
	long := "/messages?" + strings.Repeat("sender=x@y.test&", 500) // a header of bounded size
	if status, _, _ := b.do("GET", long+strings.Repeat("&", maxHeader), nil); status != http.StatusRequestHeaderFieldsTooLarge && status != http.StatusOK {
		t.Errorf("%d", status)
	}
}

// A reader who stops in the middle of a message is cut off, and the place is free for another.
func TestSlowDownload(t *testing.T) {
	t.Parallel()
	w, id := withMail(t, "A: b\r\n\r\n"+strings.Repeat("0123456789\r\n", 100000))
	body, err := w.console.contents.open(context.Background(), mail.QueueID(id))
	if err != nil {
		t.Fatal(err)
	}
	here, there := net.Pipe()
	defer there.Close()
	func() {
		defer func() {
			if r := recover(); r != http.ErrAbortHandler {
				t.Errorf("it ended with %v", r)
			}
		}()
		(&Content{id: id, body: body}).send(&stuck{conn: here})
	}()
	if n := len(w.console.contents.busy); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

// A client that sends its request a little at a time holds nobody up, and is given up.
func TestSlowRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := httptest.NewUnstartedServer(w.console.handler())
	slow.Config.ReadHeaderTimeout = 50 * time.Millisecond // the service has requestTime
	slow.Start()
	defer slow.Close()
	conn, err := net.Dial("tcp", slow.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: ")
	conn.SetReadDeadline(time.Now().Add(testwait.Patience))
	// Until the server closes, or resets the connection: what it has not read of the request may have come meanwhile.
	if _, err := io.ReadAll(conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}
