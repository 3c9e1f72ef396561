package console

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/apitoken"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/usage"
)

// An access is who may ask for a route, and the command that does the same.
type access struct {
	need    role
	command string // a page of the manual and a word of it; empty: there is nothing to do by command
}

// accesses are those of all routes. A route that is not here has nobody's leave.
var accesses = map[string]access{
	"GET /login": {nobody, ""}, "POST /login": {nobody, ""}, "POST /api/v1/session": {nobody, ""}, "GET /favicon.ico": {nobody, ""},
	"GET ASSETS/{name}": {nobody, ""}, "GET /api/v1/openapi.json": {nobody, ""},
	"GET /login/oidc": {nobody, ""}, "GET /login/oidc/return": {nobody, ""},
	"POST /logout": {look, ""}, "POST /api/v1/session/end": {look, ""},

	"GET /{$}": {look, "posthaste top"}, "GET /api/v1/now": {look, "posthaste top"}, "GET /live/{page}": {look, "posthaste top"}, "GET /api/v1/system": {look, "posthaste check"},
	"GET /queue": {look, "qshape"}, "GET /api/v1/shape": {look, "qshape"},
	"GET /messages": {look, "posthaste queue"}, "GET /api/v1/messages": {look, "posthaste queue"}, "GET /api/v1/messages/count": {look, "posthaste queue"},
	"GET /message/{id}": {look, "posthaste explain"}, "GET /api/v1/messages/{id}": {look, "posthaste explain"},
	"GET /destination": {look, "posthaste explain"}, "GET /destination/{name}": {look, "posthaste explain"}, "GET /api/v1/destinations/{name}": {look, "posthaste explain"},
	"GET /search": {look, "posthaste trace"}, "GET /api/v1/search": {look, "posthaste trace"},
	"GET /suspended": {look, "posthaste suspended"}, "GET /api/v1/suspensions": {look, "posthaste suspended"},
	"GET /api/v1/limits": {look, "posthaste limited"}, "GET /api/v1/diversions": {look, "posthaste diverted"},

	"GET /whatif": {look, "posthaste whatif"}, "GET /api/v1/whatif": {look, "posthaste whatif"},

	"POST /api/v1/messages": {operate, "posthaste queue"}, "POST /do/all": {operate, "posthaste queue"},
	"POST /api/v1/destinations/{name}/flush": {operate, "posthaste queue"}, "POST /do/flush": {operate, "posthaste queue"},
	"POST /api/v1/suspensions": {operate, "posthaste suspend"}, "POST /do/suspend": {operate, "posthaste suspend"},
	"POST /api/v1/suspensions/resume": {operate, "posthaste resume"}, "POST /do/resume": {operate, "posthaste resume"},
	"POST /api/v1/limits": {operate, "posthaste limit"}, "POST /do/limit": {operate, "posthaste limit"},
	"POST /api/v1/limits/lift": {operate, "posthaste unlimit"}, "POST /do/unlimit": {operate, "posthaste unlimit"},
	"POST /api/v1/diversions": {operate, "posthaste divert"}, "POST /do/divert": {operate, "posthaste divert"},
	"POST /api/v1/diversions/end": {operate, "posthaste undivert"}, "POST /do/undivert": {operate, "posthaste undivert"},
	"POST /api/v1/messages/{id}/hold": {operate, "postsuper"}, "POST /do/hold": {operate, "postsuper"},
	"POST /api/v1/messages/{id}/release": {operate, "postsuper"}, "POST /do/release": {operate, "postsuper"},
	"POST /api/v1/messages/{id}/retry": {operate, "postqueue"}, "POST /do/retry": {operate, "postqueue"},
	"POST /api/v1/messages/{id}/requeue": {operate, "postsuper"}, "POST /do/requeue": {operate, "postsuper"},
	"POST /api/v1/messages/{id}/return": {operate, "postsuper"}, "POST /do/return": {operate, "postsuper"},
	"POST /api/v1/messages/{id}/delete": {operate, "postsuper"}, "POST /do/delete": {operate, "postsuper"},

	"POST /api/v1/messages/{id}/content": {read, "postcat"}, "POST /do/content": {read, "postcat"},
}

// Every route says who may ask for it, and nobody else is served: without a login, with each role, and with each program's token.
// What a page or the API does, a command of the manual does.
func TestEveryRoute(t *testing.T) {
	t.Parallel()
	w, _ := vouchedFor(t, nil)
	w.count()
	store, err := apitoken.Open(t.TempDir(), w.console.now)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	w.console.programs = store
	seen := map[string]bool{}
	for _, r := range w.console.routes() {
		name := strings.Replace(r.pattern, w.console.assets, "ASSETS", 1)
		a, ok := accesses[name]
		if !ok || seen[name] {
			t.Errorf("%s: nobody has said who may ask for it", name)
			continue
		}
		seen[name] = true
		if r.need != a.need {
			t.Errorf("%s is for who may %s, not %s", name, r.need, a.need)
		}
		if word, own := strings.CutPrefix(a.command, "posthaste "); own && usage.Of(word) == "" {
			t.Errorf("%s: there is no %s", name, a.command)
		} else if _, err := os.Stat("../../docs/man/" + a.command + ".1"); a.command != "" && !own && err != nil {
			t.Error(err)
		}
		for _, who := range []person{{}, {user: "joe", role: look}, {user: "ann", role: operate}, {user: "eve", role: look, reads: true}, {user: "all", role: operate, reads: true}} {
			w.ask(store, r, who)
		}
	}
	for name := range accesses {
		if !seen[name] {
			t.Errorf("there is no %s", name)
		}
	}
}

// ask asks for a route as somebody, with a session of his own, and for the API also with a program's token of the same rights.
func (w *world) ask(store *apitoken.Store, r route, who person) {
	w.t.Helper()
	method, path, _ := strings.Cut(r.pattern, " ")
	path = strings.NewReplacer("{id}", queueID, "{name}", "slow.test", "{page}", "nosuch", "{$}", "").Replace(path)
	b := &browser{w: w}
	bearer := []string{""}
	form := url.Values{"id": {queueID}, "name": {"slow.test"}, "target": {"slow.test"}, "reason": {"x"}, "user": {"x"}}
	if who.role > nobody {
		token, s := w.console.sessions.begin(who)
		b.csrf, bearer = s.csrf, []string{token}
		form.Set("csrf", s.csrf)
		b.cookie = &http.Cookie{Name: "posthaste", Value: token}
	}
	if r.api {
		form = nil
		if who.role > nobody {
			name := fmt.Sprint("p", time.Now().UnixNano())
			roles := []string{who.role.String()}
			if who.reads {
				roles = append(roles, apitoken.Read)
			}
			program, err := store.Add(apitoken.Token{Name: name, Roles: roles})
			if err != nil {
				w.t.Fatal(err)
			}
			w.mu.Lock()
			w.now = w.now.Add(2 * time.Second) // the file is looked at again
			w.mu.Unlock()
			bearer = append(bearer, program)
			defer store.Remove(name)
		}
	}
	for _, token := range bearer {
		if r.api && token != "" {
			b.header = map[string]string{"Authorization": "Bearer " + token}
			b.cookie = nil
		}
		status, text, h := b.do(method, path, form)
		refused := status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusSeeOther && h.Get("Location") == "/login" && (path != "/logout" || who.role == nobody)
		if path == "/login" || path == apiPath+"/session" || path == returnPath {
			refused = status == http.StatusForbidden // that the password is wrong is no refusal
		}
		if permitted := who.may(r.need); permitted == refused {
			w.t.Errorf("%s as %q (%s): %d %s\n%.300s", r.pattern, who.user, who.rights(), status, h.Get("Location"), text)
		}
		if want := map[bool]int{true: http.StatusUnauthorized, false: http.StatusForbidden}[who.role == nobody]; refused && r.api && status != want {
			w.t.Errorf("%s as %q: %d, want %d", r.pattern, who.user, status, want)
		}
	}
}

// A role that is misspelt gives nobody anything, and what each word gives is as the manual says.
func TestGrant(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{"": "nobody", "look": "look", "operate": "operate", "read": "look read", "look,operate": "operate", "operate read\tlook": "operate read", "operate look": "operate"} {
		var p person
		if err := p.grant(words); err != nil || p.rights() != want {
			t.Errorf("%q: %s, %v", words, p.rights(), err)
		}
	}
	for _, words := range []string{"admin", "look root", "Operate", "look;operate", "nobody"} {
		var p person
		if err := p.grant(words); err == nil || p.may(operate) || p.may(read) {
			t.Errorf("%q: %s, %v", words, p.rights(), err)
		}
	}
}

// withMail is a world whose message has content.
func withMail(t *testing.T, content string) (w *world, id string) {
	t.Helper()
	w = newWorld(t)
	site := faketest.New(t, "")
	ids := site.Fill(faketest.Mail{Envelope: mail.Envelope{Arrival: w.now, Sender: "a@b.test", Recipients: []mail.Recipient{{Address: "c@d.test"}}}, Content: content, Queue: queue.Deferred})
	entries := site.Entries()
	site.Serve("cleanup", func(r *ipc.Request) {
		q := faketest.Decode[proto.Locate](t, r)
		e, ok := entries[q.ID]
		r.Reply(&proto.LocateReply{Entry: e, Found: ok})
	})
	cleanup := ipc.NewClient(ipc.Unix(filepath.Join(site.Queue, "public", "cleanup")), nil)
	t.Cleanup(func() { cleanup.Close() })
	rd := spool.NewReader(nil, filepath.Join(site.Queue, spool.Subdir))
	rd.UseContent(nil, "")
	t.Cleanup(func() { rd.Close() })
	w.console.contents.opener = queueread.Opener{Reader: queueread.Log(rd), Cleanup: cleanup}
	w.set(func() { w.item.ID = ids[0] })
	return w, string(ids[0])
}

// Who may read gets the message as it is, and a header is text on a page; each reading is in the log before, with who and why.
func TestContent(t *testing.T) {
	t.Parallel()
	text := "Subject: " + evil + "\r\nX: \xff\r\n\r\n<script>alert(1)</script>\r\n" + strings.Repeat("0123456789\r\n", 100000)
	w, id := withMail(t, text)
	eve := w.login("eve")
	if _, page, _ := eve.do("GET", "/message/"+id, nil); !strings.Contains(page, "/do/content") || strings.Contains(page, "/do/hold") {
		t.Errorf("the page of who may read:\n%s", page)
	}
	if _, page, _ := w.login("ann").do("GET", "/message/"+id, nil); strings.Contains(page, "/do/content") {
		t.Error("the page of who may not read has the form")
	}
	w.take()
	status, got, h := eve.do("POST", "/do/content", eve.form("id", id, "part", "all", "reason", "ticket 4711"))
	if status != 200 || got != text || h.Get("Content-Type") != "message/rfc822" || h.Get("Content-Disposition") != `attachment; filename="`+id+`.eml"` || !strings.HasSuffix(h.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%d %v, %d octets", status, h, len(got))
	}
	status, got, _ = eve.do("POST", "/do/content", eve.form("id", id, "part", "header", "reason", "ticket 4712"))
	if status != 200 || !strings.Contains(got, `X: \xff`) || strings.Contains(got, "<script>alert") || strings.Contains(got, "0123456789") || !strings.Contains(got, `&lt;script&gt;`) || !strings.Contains(got, `\u202e`) {
		t.Errorf("%d\n%s", status, got)
	}
	who := "user=eve client=127.0.0.1: "
	if events, _ := w.take(); !slices.Equal(events, []string{who + "read " + id + ": ticket 4711", who + "read-header " + id + ": ticket 4712"}) {
		t.Errorf("%q", events)
	}
	for _, reason := range []string{"", "  ", "a\nb", strings.Repeat("x", 5000)} {
		if status, got, _ := eve.do("POST", "/do/content", eve.form("id", id, "reason", reason)); status != 400 || strings.Contains(got, "0123456789") {
			t.Errorf("%q: %d", reason, status)
		}
	}
	if events, _ := w.take(); len(events) > 0 {
		t.Errorf("%q", events)
	}
	if status, _, _ := eve.do("POST", "/do/content", eve.form("id", "4jWmL10SyZz1SCBY", "reason", "x")); status != 404 {
		t.Errorf("a message that is not there: %d", status)
	}
	if events, _ := w.take(); len(events) != 2 || !strings.Contains(events[1], "read 4jWmL10SyZz1SCBY failed: ") {
		t.Errorf("%q", events)
	}
}

// So many read at a time as may, and each gives its place back; where the content is elsewhere it is said.
func TestReaders(t *testing.T) {
	t.Parallel()
	w, id := withMail(t, "A: b\r\n\r\nx\r\n")
	c := w.console.contents
	var open []io.Closer
	for range maxReaders {
		r, err := c.open(t.Context(), mail.QueueID(id))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, r)
	}
	if _, err := c.open(t.Context(), mail.QueueID(id)); err != errReaders || statusOf(err) != http.StatusTooManyRequests {
		t.Error(err)
	}
	open[0].Close()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 * maxReaders { // who fails gives it back as well
		if _, err := c.open(gone, mail.QueueID("4jWmL10SyZz1SCBY")); err == nil || err == errReaders {
			t.Error(err)
		}
	}
	if r, err := c.open(t.Context(), mail.QueueID(id)); err != nil {
		t.Error(err)
	} else {
		r.Close()
	}
	c.broken = errElsewhere
	if _, err := c.open(t.Context(), mail.QueueID(id)); err != errElsewhere {
		t.Error(err)
	}
}
