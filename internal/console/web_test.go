package console

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/history"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/overview"
	"posthaste/internal/pace"
	"posthaste/internal/proto"
	"posthaste/internal/sasl"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/standing"
	"posthaste/internal/statedir"
	"posthaste/internal/table"
	"posthaste/internal/testwait"
	"posthaste/internal/track"
	"posthaste/internal/whatif"
)

const (
	queueID = "4jWmL10SyZz1SCBX"
	// evil is what strangers write.
	evil = `"><script>alert(1)</script><img src=x onerror=alert(2)>` + "\u202e\x1b[2J"
)

// A world is a console before a queue manager that answers what a test says.
type world struct {
	t       testing.TB
	console *console
	server  *httptest.Server
	now     time.Time

	mu       sync.Mutex
	asked    []ipc.Message
	events   []string
	item     proto.Item
	lines    []string
	entries  []proto.OverrideEntry
	refused  string
	commands bool  // of a message are carried out
	counted  int64 // how often the queue was
	changes  bool  // what is done has an effect on what is answered
	domain   string
	// What is said of a destination; without it lines.
	destination []string
	dests       []proto.DestInfo
	oldest      time.Time // of its mail
	// These two, when set, answer in place of all that.
	explain func(destination string) *proto.ExplainReply
	rows    []proto.ShapeRow
	taken   *standing.Book // by providers; nil: as a stranger might have it
	// backlog answers for forecasts; nil: with that of a destination of the world's.
	backlog func(*ipc.Request)
	// nodes answers about other nodes, and says whether it has; nil: the queue is not shared.
	nodes func(*ipc.Request) bool
}

func newWorld(t testing.TB) *world {
	t.Helper()
	site := faketest.New(t, "")
	w := &world{t: t, now: time.Now(), commands: true, domain: evil, lines: []string{queueID + ": deferred queue since ...", "  waits for " + evil}}
	w.item = proto.Item{ID: queueID, Queue: "deferred", Arrival: w.now.Add(-time.Hour), Next: w.now.Add(time.Hour), Size: 1234, Attempts: 3, Sender: evil + "@from.test", Client: evil, ClientAddr: "192.0.2.1",
		SASLUser: evil, Tenant: evil, Campaign: evil, Recipients: []proto.ItemRcpt{{Address: "x@" + evil, Orig: evil, Reason: "host said: 450 " + evil}}}
	w.entries = []proto.OverrideEntry{{Of: "suspension", Target: "slow.test", By: evil, Reason: evil, Since: w.now}, {Of: "limit", Target: "slow.test", Most: 2, By: evil, Reason: evil, Since: w.now},
		{Of: "diversion", Target: "slow.test", Nexthop: evil, By: evil, Reason: evil, Since: w.now}}
	w.dests = []proto.DestInfo{{Transport: evil, Nexthop: evil, State: "dead", Why: evil, Until: w.now, Span: 15 * time.Minute, Sessions: 2, Others: 1,
		Replies: []proto.ReplyGroup{{Sessions: 1, Code: 450, Status: evil, Text: evil, Example: evil, Last: w.now}},
		Course:  courseOf(w.now, 9, 1), Securities: []proto.Security{{Text: evil, Connections: 1, Last: w.now}}}}
	site.Serve("qmgr", w.manager)
	manager := ipc.NewClient(ipc.Unix(filepath.Join(site.Queue, "public", "qmgr")), nil)
	t.Cleanup(func() { manager.Close() })
	dir := t.TempDir()
	log := filepath.Join(dir, "mail.log")
	text := fmt.Sprintf("Nov 24 10:00:01 mta postfix/cleanup[7]: %[1]s: message-id=<%[2]s>\nNov 24 10:00:01 mta postfix/qmgr[8]: %[1]s: from=<%[2]s>, size=1234, nrcpt=1 (queue active)\n"+
		"Nov 24 10:00:02 mta postfix/smtp[9]: %[1]s: to=<x@%[2]s>, relay=%[2]s, delay=1, delays=0/0/1/0, dsn=4.0.0, status=deferred (host said: 450 %[2]s)\n", queueID, evil)
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	users := ""
	for _, name := range []string{"ann", "joe", "eve"} {
		var out bytes.Buffer
		if sasl.Passwd([]string{name}, strings.NewReader("secret of "+name+"\n"), &out, io.Discard) != 0 {
			t.Fatal("no secret")
		}
		user, secret, _ := strings.Cut(strings.TrimSpace(out.String()), " ")
		users += fmt.Sprintf("{ %s = %s }, ", user, secret)
	}
	operators, err := table.NewList("console_operators", []string{"ann"}, table.ListOptions{Kind: table.Strings})
	if err != nil {
		t.Fatal(err)
	}
	maps := table.OpenMaps("console_user_maps", []string{"inline:{ " + strings.TrimSuffix(users, ", ") + " }"}, table.Options{Warn: func(text string) { t.Error(text) }})
	roles := table.OpenMaps("console_role_maps", []string{"inline:{ {eve = read} }"}, table.Options{Warn: func(text string) { t.Error(text) }})
	clock := func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.now }
	stopping := make(chan struct{})
	cfg, err := config.LoadString("compatibility_level = 3.6\nqueue_directory = " + site.Queue + "\ndata_directory = " + dir + "\nmaillog_file = " + log + "\nmaillog_file_prefixes = /\n")
	if err != nil {
		t.Fatal(err)
	}
	look := &machine{cfg: cfg, advice: Advice{At: w.now, Mistakes: []string{"main.cf:1: " + evil}, Unwise: []string{evil}, Differences: []string{evil}}}
	w.console = &console{machine: look, mta: &mta{manager: manager, history: filepath.Join(dir, "history"), logs: func() (track.Options, error) { return track.Options{Logs: []string{log}}, nil }},
		forecasts: &forecasts{settings: whatif.NewSettings(cfg, "smtp unix - - n - - smtp\n"), busy: make(map[string]bool)},
		contents:  &contents{busy: make(chan struct{}, maxReaders)}, people: &people{own: sasl.NewUsers(maps, "", nil, nil), operators: operators, roles: roles}, sessions: newSessions(clock), tries: newTries(clock), live: newLive(), day: new(day),
		log: w.event, warn: func(string, ...any) {}, now: clock, host: "mta.test", hosts: []string{"mta.test"}, version: "0.1", stopping: stopping}
	w.console.mta.patience.Store(int64(testwait.Patience)) // a page has all that there is, on a busy machine too
	w.server = httptest.NewServer(w.console.handler())
	t.Cleanup(w.server.Close)
	t.Cleanup(func() { close(stopping) })
	return w
}

func (w *world) event(e maillog.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, string(e.Append(nil)))
}

// set changes what the queue manager answers.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// take is what was logged, and what the queue manager was asked that changes something, since the
// last call.
func (w *world) take() (events []string, changes []ipc.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	events, changes = w.events, w.asked
	w.events, w.asked = nil, nil
	return events, changes
}

// manager answers as the queue manager.
func (w *world) manager(r *ipc.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes != nil && w.nodes(r) {
		return
	}
	switch r.Kind {
	case proto.KindList:
		reply := new(proto.ListReply)
		if q := faketest.Decode[proto.List](w.t, r); q.ID == w.item.ID {
			reply.Items = []proto.Item{w.item}
		}
		r.Reply(reply)
	case proto.KindSelect:
		q := faketest.Decode[proto.Select](w.t, r)
		if q.Verb != 0 {
			w.asked = append(w.asked, &q)
		}
		r.Reply(&proto.SelectReply{IDs: []mail.QueueID{w.item.ID}, Items: []proto.Item{w.item}, Refused: w.refused, Next: max(0, 2-2*q.Cursor)})
	case proto.KindExplain:
		q := faketest.Decode[proto.Explain](w.t, r)
		if q.Destination != "" && w.explain != nil {
			r.Reply(w.explain(q.Destination))
			return
		}
		if q.Destination != "" && w.destination != nil {
			r.Reply(&proto.ExplainReply{Lines: w.destination, Dests: w.dests, Oldest: w.oldest})
			return
		} else if q.Destination != "" {
			r.Reply(&proto.ExplainReply{Lines: w.lines, Dests: w.dests})
			return
		}
		r.Reply(&proto.ExplainReply{Lines: w.lines})
	case proto.KindCommand:
		q := faketest.Decode[proto.Command](w.t, r)
		w.asked = append(w.asked, &q)
		reply := new(proto.CommandReply)
		if w.commands {
			reply.IDs = []mail.QueueID{q.ID}
		}
		if w.changes {
			w.item.Queue = cmp.Or(map[proto.Verb]string{proto.VerbHold: "hold", proto.VerbRelease: "deferred"}[q.Verb], w.item.Queue)
		}
		r.Reply(reply)
	case proto.KindOverride:
		q := faketest.Decode[proto.Override](w.t, r)
		if q.Op != proto.OverrideList {
			w.asked = append(w.asked, &q)
		}
		if w.changes && q.Op == proto.OverridePut {
			w.entries = append(w.entries, q.Entry)
		}
		if w.changes && q.Op == proto.OverrideRemove {
			w.entries = slices.DeleteFunc(w.entries, func(e proto.OverrideEntry) bool { return e.Of == q.Entry.Of && e.Target == q.Entry.Target })
		}
		r.Reply(&proto.OverrideReply{Entries: w.entries, Waiting: make([]int, len(w.entries)), Uses: make([]proto.OverrideUse, len(w.entries)), Found: q.Entry.Target == "slow.test", Refused: w.refused})
	case proto.KindStanding:
		r.Reply(w.standing())
	case proto.KindBacklog:
		if w.backlog != nil {
			w.backlog(r)
			return
		}
		r.Reply(w.waits())
	case proto.KindShape:
		rows := []proto.ShapeRow{{Domain: w.domain, Queue: "deferred", Counts: []int{1, 0, 4310}}, {Domain: w.domain, Queue: "deferred", Senders: true, Counts: []int{7}}}
		if w.changes { // numbers of every size
			rows = append(rows, proto.ShapeRow{Domain: "all.test", Queue: "hold", Counts: []int{0, 1, 2, 8, 32, 128, 512, 2048, 8192, 32768}}, proto.ShapeRow{Domain: "all.test", Queue: "hold", Senders: true, Counts: []int{131072}})
		}
		rows = append(rows, proto.ShapeRow{Domain: "smtp:" + w.domain, Queue: "deferred", Hops: true, Counts: []int{0, 3, 2}}, proto.ShapeRow{Domain: "smtp:[hub.test]:25", Queue: "deferred", Hops: true, Counts: []int{1}},
			proto.ShapeRow{Domain: "acme", Queue: "deferred", Tenants: true, Counts: []int{0, 12}}, proto.ShapeRow{Domain: w.domain + "/t", Queue: "deferred", Tenants: true, Counts: []int{9}}, proto.ShapeRow{Domain: "acme/spring", Queue: "deferred", Campaigns: true, Counts: []int{0, 11}}, proto.ShapeRow{Domain: w.domain + "/c", Queue: "deferred", Campaigns: true, Counts: []int{10}}, proto.ShapeRow{Domain: w.domain, Queue: "deferred", Sources: true, Counts: []int{13}})
		if w.rows != nil {
			rows = w.rows
		}
		w.counted++
		r.Reply(&proto.ShapeReply{Rows: rows, Totals: proto.Totals{Since: w.now.Add(-time.Hour), In: w.counted * 1e6, Sent: w.counted * 2e6, Deferred: w.counted * 3e6, Bounced: w.counted * 4e6}})
	}
}

// standing is how providers take mail, and what comes back.
func (w *world) standing() *proto.StandingReply {
	if w.taken != nil {
		return &proto.StandingReply{Book: w.taken.Encode()}
	}
	book := new(standing.Book)
	for k, n := range []int{400, 3, 2, 1, 1} {
		for range n {
			book.Count(w.now, w.domain, w.domain, standing.Kind(k))
		}
	}
	return &proto.StandingReply{Book: book.Encode(), Problem: "what came back is not known: " + w.domain}
}

// waits is what forecasts are told: a destination takes a second for each message, and nothing is known of another.
func (w *world) waits() *proto.BacklogReply {
	b := new(pace.Behaviour)
	for range 100 {
		b.Add(w.now, pace.Delivery{Took: time.Second, Busy: 20, Rcpts: 1})
	}
	row := proto.BacklogRow{Transport: "smtp", Queue: w.domain, Tenant: w.domain, Count: 1000, Rcpts: 1, Created: w.now}
	other := row
	other.Queue, other.Tenant, other.Count = "other.test", "", 10
	return &proto.BacklogReply{Hold: 3, Dests: []proto.BacklogDest{{Transport: "smtp", Queue: w.domain, Nexthop: w.domain, Learnt: true, Behaviour: b.Append(nil)}, {Transport: "smtp", Queue: "other.test", Nexthop: "other.test", Untold: true}},
		Rows: []proto.BacklogRow{row, other}, Tenants: []proto.BacklogTenant{{Name: w.domain, Untold: true}}}
}

// sampled has samples of the last minutes kept, with more and more mail for a.test.
func (w *world) sampled() {
	w.t.Helper()
	dir, err := statedir.Open(w.console.mta.history)
	if err != nil {
		w.t.Fatal(err)
	}
	store, err := history.OpenWriter(dir, history.Limits{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer store.Close()
	for i := range 10 {
		s := &history.Sample{At: w.now.Add(time.Duration(i-10) * time.Minute), Totals: proto.Totals{Since: w.now.Add(-time.Hour), In: int64(60 * i), Sent: int64(120 * i)}, Tables: []history.Table{{Queue: "deferred", Others: history.Counts{1000}, Names: 1,
			Rows: []history.Row{{Domain: "a.test", Counts: history.Counts{int64(i)}}}}, {Queue: "hold", Rows: []history.Row{{Domain: "a.test", Counts: history.Counts{5}}}}}}
		if err := store.Append(s); err != nil {
			w.t.Fatal(err)
		}
	}
	w.console.day.load(w.console.mta.history, w.now)
}

// count has the queue counted, as for somebody who looks.
func (w *world) count() { w.countIn(0) }

// countIn is count for somebody who looks after a time: there are rates where that is long enough.
func (w *world) countIn(d time.Duration) {
	k := &keeper{mta: w.console.mta, live: w.console.live, day: w.console.day}
	k.see(w.t.Context(), func() time.Time { return time.Now().Add(d) })
}

// A browser has cookies, and goes to no other page by itself.
type browser struct {
	w      *world
	cookie *http.Cookie
	csrf   string
	header map[string]string
}

// do sends a request. A body that is not nil is that of a form.
func (b *browser) do(method, path string, form url.Values) (status int, text string, h http.Header) {
	b.w.t.Helper()
	req, err := http.NewRequestWithContext(b.w.t.Context(), method, b.w.server.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.w.t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return b.send(req)
}

func (b *browser) send(req *http.Request) (status int, text string, h http.Header) {
	b.w.t.Helper()
	if b.cookie != nil {
		req.AddCookie(b.cookie)
	}
	for name, v := range b.header {
		if req.Header.Set(name, v); name == "Host" {
			req.Host = v
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.w.t.Fatal(err)
	}
	for _, c := range resp.Cookies() {
		b.cookie = c
	}
	return resp.StatusCode, string(body), resp.Header
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// login is a browser as whose user somebody has logged in.
func (w *world) login(user string) *browser {
	w.t.Helper()
	b := &browser{w: w}
	if status, text, h := b.do("POST", "/login", url.Values{"user": {user}, "password": {"secret of " + user}}); status != http.StatusSeeOther || h.Get("Location") != "/" {
		w.t.Fatalf("login: %d\n%s", status, text)
	}
	if c := b.cookie; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" {
		w.t.Errorf("cookie: %v", c)
	}
	_, text, _ := b.do("GET", "/", nil)
	m := csrfField.FindStringSubmatch(text)
	if m == nil {
		w.t.Fatalf("no form:\n%s", text)
	}
	b.csrf = m[1]
	w.take()
	return b
}

// form has what every form has in it.
func (b *browser) form(pairs ...string) url.Values {
	v := url.Values{"csrf": {b.csrf}, "back": {"/suspended"}}
	for i := 0; i+1 < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return v
}

var pages = []string{"/", "/queue", "/queue?side=nexthop", "/queue?side=transport", "/queue?side=tenant", "/queue?side=campaign", "/queue?side=source", "/queue?side=sender&queue=deferred&queue=hold", "/messages", "/messages?queue=deferred&sender=%3C%3E&cursor=0", "/messages?counted=yes&sender=" + url.QueryEscape(evil), "/message/" + queueID,
	"/destination/slow.test", "/destination/" + url.PathEscape(`"><script>alert(1)</script>.test`), "/search", "/search?q=" + url.QueryEscape(queueID), "/search?q=x%40" + url.QueryEscape(evil), "/search?reply=450",
	"/suspended", "/whatif", "/whatif?ask=yes", "/whatif?o=smtp_destination_concurrency_limit%3D50", "/whatif?o=" + url.QueryEscape(evil+"="+evil), "/nosuch", "/message/nosuch", "/queue?side=" + url.QueryEscape(evil), "/destination/a%20b"}

// What strangers have written is text on every page, and what would not be seen is made visible.
// Pages run no code, and are kept nowhere.
func TestHostileData(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.login("ann")
	w.count()
	for _, p := range pages {
		status, text, h := b.do("GET", p, nil)
		low := strings.ToLower(text)
		code := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(low, "") // tags without their values
		if strings.Contains(low, "<script>") || strings.Contains(low, "<img") || strings.ContainsAny(code, "\x1b\u202e") || regexp.MustCompile(`<[^>]* (on\w+|style)=`).MatchString(code) {
			t.Errorf("%s: %d\n%s", p, status, text)
		}
		if csp := h.Get("Content-Security-Policy"); csp != policy || h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", p, h)
		}
	}
	for p, want := range map[string]string{"/": "4,311 recipients wait, the oldest for over 10 min", "/queue": `class="n h7"`, "/message/" + queueID: `\u202e\u001b[2J`,
		"/search?q=" + queueID: "status", "/suspended": "slow.test", "/destination/slow.test": "Resume", "/queue?side=sender": `&amp;queue=deferred">7</a></td>`,
		"/queue?side=nexthop": `queue=incoming&amp;queue=active&amp;queue=deferred&amp;waits-for=smtp%3A%5Bhub.test%5D%3A25&amp;younger=5m"`, "/queue?side=transport": `<th scope="row">smtp</th><td class="n"><a href="/messages?queue=incoming&amp;queue=active&amp;queue=deferred&amp;waits-for=smtp%3A">6</a></td>`,
		"/queue?side=tenant":   `older=5m&amp;queue=incoming&amp;queue=active&amp;queue=deferred&amp;tenant=acme&amp;younger=10m"`,
		"/queue?side=campaign": `href="/messages?campaign=acme%2Fspring&amp;older=5m&amp;queue=incoming&amp;queue=active&amp;queue=deferred&amp;younger=10m"`, "/queue?side=source": `">13</a></td><td class="n h2"><a href="/messages?queue=incoming&amp;queue=active&amp;queue=deferred&amp;source=`} {
		if status, text, _ := b.do("GET", p, nil); status != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d, there is no %q\n%s", p, status, want, text)
		}
	}
	if status, _, _ := b.do("GET", "/message/4jWmL10SyZz1SCBY", nil); status != 404 {
		t.Errorf("a message that is not there: %d", status)
	}
}

// Nobody sees anything without a login, and who may look changes nothing.
func TestRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stranger, joe := &browser{w: w}, w.login("joe")
	for _, p := range pages {
		status, text, h := stranger.do("GET", p, nil)
		if p == "/nosuch" {
			continue
		}
		if status != http.StatusSeeOther || h.Get("Location") != "/login" || strings.Contains(text, queueID) {
			t.Errorf("%s: %d %q", p, status, text)
		}
	}
	if status, _, _ := stranger.do("GET", "/live/now", nil); status != http.StatusUnauthorized {
		t.Errorf("live: %d", status)
	}
	for _, o := range operations() {
		path := apiPath + strings.NewReplacer("{id}", queueID, "{name}", "slow.test").Replace(o.path)
		if status, text, _ := stranger.do(o.method, path, nil); status != http.StatusUnauthorized && o.role > nobody {
			t.Errorf("%s %s: %d %s", o.method, path, status, text)
		}
		if o.method == "GET" {
			if status, text, h := joe.do("GET", path+map[bool]string{true: "?q=x"}[o.name == "search"], nil); status != 200 && o.name != "shape" || !strings.HasPrefix(h.Get("Content-Type"), "application/") {
				t.Errorf("joe looks at %s: %d %s", path, status, text)
			}
			continue
		}
		// A cookie is not enough for what changes something.
		if status, _, _ := joe.do(o.method, path, nil); status != http.StatusUnauthorized && o.role > nobody {
			t.Errorf("%s with a cookie: %d", path, status)
		}
		if o.role < operate {
			continue
		}
		if status, text, _ := joe.do("POST", "/do/"+o.name, joe.form("id", queueID, "name", "slow.test", "target", "slow.test")); status != http.StatusForbidden {
			t.Errorf("joe does %s: %d %s", o.name, status, text)
		}
	}
	if _, text, _ := joe.do("GET", "/message/"+queueID, nil); strings.Contains(text, "/do/") {
		t.Error("there are buttons for who may only look")
	}
	if events, changes := w.take(); len(changes) > 0 || len(events) > 0 {
		t.Errorf("%v %q", changes, events)
	}
}

// What the buttons do reaches the queue manager, with who it was in the log before; what fails is
// said, and in the log as well.
func TestActs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.login("ann")
	act := func(name string, status int, want []ipc.Message, events []string, pairs ...string) {
		t.Helper()
		got, text, h := b.do("POST", "/do/"+name, b.form(pairs...))
		if got != status || status == http.StatusSeeOther && h.Get("Location") != "/suspended" {
			t.Errorf("%s: %d\n%s", name, got, text)
		}
		logged, changes := w.take()
		for i := range changes {
			if s, ok := changes[i].(*proto.Select); ok && len(s.Where) > 0 {
				s.Where[0] = "" // the time
			}
		}
		if fmt.Sprintf("%+v", show(changes)) != fmt.Sprintf("%+v", show(want)) || fmt.Sprint(logged) != fmt.Sprint(events) {
			t.Errorf("%s: %+v, want %+v\n%q, want %q", name, show(changes), show(want), logged, events)
		}
	}
	who := "user=ann client=127.0.0.1: "
	for name, verb := range verbs {
		act(name, http.StatusSeeOther, []ipc.Message{&proto.Command{Verb: verb, ID: queueID, Now: name == "return"}}, []string{who + name + " " + queueID}, "id", queueID)
	}
	w.set(func() { w.item.Queue = "hold" })
	act("return", http.StatusSeeOther, []ipc.Message{&proto.Command{Verb: proto.VerbExpire, ID: queueID}, &proto.Command{Verb: proto.VerbRelease, ID: queueID}},
		[]string{who + "return " + queueID}, "id", queueID)
	act("suspend", http.StatusSeeOther, []ipc.Message{&proto.Override{Op: proto.OverridePut, Entry: proto.OverrideEntry{Of: "suspension", Target: "fast.test", By: "ann (console)", Reason: "ticket"}}},
		[]string{who + "suspend Fast.test: ticket"}, "target", "Fast.test", "reason", "ticket")
	act("resume", http.StatusSeeOther, []ipc.Message{&proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Of: "suspension", Target: "slow.test", By: "ann (console)"}}},
		[]string{who + "resume slow.test"}, "target", "slow.test")
	act("resume", http.StatusNotFound, []ipc.Message{&proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Of: "suspension", Target: "other.test", By: "ann (console)"}}},
		[]string{who + "resume other.test", who + "resume other.test failed: it is not suspended under that name"}, "target", "other.test")
	act("limit", http.StatusSeeOther, []ipc.Message{&proto.Override{Op: proto.OverridePut, Entry: proto.OverrideEntry{Of: "limit", Target: "fast.test", Most: 3, Raises: true, By: "ann (console)", Reason: "ticket"}}},
		[]string{who + "limit Fast.test to 3: ticket"}, "target", "Fast.test", "limit", "3", "reason", "ticket", "raise", "yes")
	act("unlimit", http.StatusSeeOther, []ipc.Message{&proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Of: "limit", Target: "slow.test", By: "ann (console)"}}},
		[]string{who + "unlimit slow.test"}, "target", "slow.test")
	act("unlimit", http.StatusNotFound, []ipc.Message{&proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Of: "limit", Target: "other.test", By: "ann (console)"}}},
		[]string{who + "unlimit other.test", who + "unlimit other.test failed: it has no limit under that name"}, "target", "other.test")
	act("divert", http.StatusSeeOther, []ipc.Message{&proto.Override{Op: proto.OverridePut, Entry: proto.OverrideEntry{Of: "diversion", Target: "fast.test", Nexthop: "smtp:[hub.test]", By: "ann (console)", Reason: "ticket"}}},
		[]string{who + "divert Fast.test to smtp:[Hub.test]: ticket"}, "target", "Fast.test", "nexthop", "smtp:[Hub.test]", "reason", "ticket")
	act("undivert", http.StatusSeeOther, []ipc.Message{&proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Of: "diversion", Target: "slow.test", By: "ann (console)"}}},
		[]string{who + "undivert slow.test"}, "target", "slow.test")
	act("undivert", http.StatusNotFound, []ipc.Message{&proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Of: "diversion", Target: "other.test", By: "ann (console)"}}},
		[]string{who + "undivert other.test", who + "undivert other.test failed: it is not diverted under that name"}, "target", "other.test")
	act("divert", http.StatusBadRequest, nil, []string{who + "divert slow.test to *", who + "divert slow.test to * failed: \"*\" is not a next hop: give a domain, [host]:port, transport: or transport:nexthop"}, "target", "slow.test", "nexthop", "*")
	act("limit", http.StatusBadRequest, nil, []string{who + "limit slow.test to 0", who + "limit slow.test to 0 failed: a limit is a number from 1 to 100000; to have no delivery at all, suspend the destination"}, "target", "slow.test", "limit", "0")
	sel := &proto.Select{Where: []string{"", "destination=slow.test"}, Verb: proto.VerbFlush}
	again := &proto.Select{Where: []string{"", "destination=slow.test"}, Verb: proto.VerbFlush, Cursor: 2}
	act("flush", http.StatusSeeOther, []ipc.Message{sel, again}, []string{who + "flush slow.test"}, "name", "slow.test")
	w.set(func() { w.commands = false })
	act("delete", http.StatusNotFound, []ipc.Message{&proto.Command{Verb: proto.VerbDelete, ID: queueID}},
		[]string{who + "delete " + queueID, who + "delete " + queueID + " failed: " + errNoMessage.Error()}, "id", queueID)
	for _, bad := range [][]string{{"hold"}, {"hold", "id", "a b"}, {"hold", "id", queueID, "more", "x"}, {"suspend", "target", "a.test", "for", "soon"},
		{"limit", "target", "a.test"}, {"limit", "target", "a.test", "limit", "two"}, {"limit", "target", "a.test", "limit", "2", "for", "soon"}, {"limit", "target", "a.test", "limit", "2", "raise", "perhaps"}} {
		act(bad[0], http.StatusBadRequest, nil, nil, bad[1:]...)
	}
	act("suspend", http.StatusBadRequest, nil, []string{who + "suspend a b", who + "suspend a b failed: destination \"a b\" has blanks or control characters"}, "target", "a b")
	w.take()
	where := func(verb proto.Verb) []ipc.Message {
		q := proto.Select{Where: []string{"", "sender=@from.test", "queue=hold"}, Verb: verb, Now: verb == proto.VerbExpire}
		again := q
		again.Cursor = 2
		if verb == proto.VerbExpire {
			release := &proto.Select{IDs: []mail.QueueID{queueID}, Verb: proto.VerbRelease}
			other := *release
			other.Cursor = 2
			return []ipc.Message{&q, release, &other, &again, release, &other}
		}
		return []ipc.Message{&q, &again}
	}
	conditions := []string{"sender", "@from.test", "queue", "hold"}
	for word, verb := range verbs {
		act("all", http.StatusSeeOther, where(verb), []string{who + word + " sender=@from.test queue=hold: 2 messages"}, append(conditions, "verb", word, "count", "2")...)
	}
	act("all", http.StatusBadRequest, nil, []string{who + "delete sender=@from.test queue=hold: 3 messages",
		who + "delete sender=@from.test queue=hold failed: 2 messages fulfil the conditions by now, and not 3: nothing is done"}, append(conditions, "verb", "delete", "count", "3")...)
	for _, bad := range [][]string{{"verb", "delete", "count", "2"}, append(conditions, "verb", "eat", "count", "2"), append(conditions, "verb", "delete", "count", "0"), append(conditions, "verb", "delete"),
		{"sender", "", "verb", "delete", "count", "2"}, {"older", "soon", "verb", "delete", "count", "2"}, {"all-recipients", "yes", "verb", "delete", "count", "2"}} {
		act("all", http.StatusBadRequest, nil, nil, bad...)
	}
	// What is done is done to what was counted, whenever that was; nobody counts in the future.
	counted := w.console.now().Add(-time.Hour)
	b.do("POST", "/do/all", b.form(append(conditions, "verb", "hold", "count", "2", "at", counted.Format(time.RFC3339Nano))...))
	if _, changes := w.take(); len(changes) == 0 || changes[0].(*proto.Select).Where[0] != fmt.Sprint(counted.UnixMicro()) {
		t.Errorf("counted at %d, done %+v", counted.UnixMicro(), show(changes))
	}
	for _, at := range []string{"yesterday", w.console.now().Add(time.Hour).Format(time.RFC3339Nano)} {
		act("all", http.StatusBadRequest, nil, nil, append(conditions, "verb", "hold", "count", "2", "at", at)...)
	}
	if _, text, _ := b.do("GET", "/messages?sender=%40from.test&counted=yes", nil); !strings.Contains(text, `name="at" value="`) || !strings.Contains(text, `name="count" value="2"`) || !strings.Contains(text, "Delete all") {
		t.Errorf("the page does not count:\n%s", text)
	}
	if _, text, _ := w.login("joe").do("GET", "/messages?sender=%40from.test&counted=yes", nil); strings.Contains(text, "/do/") {
		t.Error("there are buttons for who may only look")
	}
	w.set(func() { w.commands = true })
	b.do("POST", "/do/hold", b.form("id", queueID))
	if _, text, _ := b.do("GET", "/suspended", nil); !strings.Contains(text, `role="status"`) {
		t.Error("the page does not say what was done")
	}
	if _, text, _ := b.do("GET", "/suspended", nil); strings.Contains(text, `role="status"`) {
		t.Error("the page says it again")
	}
}

func show(list []ipc.Message) (out []string) {
	for _, m := range list {
		out = append(out, fmt.Sprintf("%T %+v", m, m))
	}
	return out
}

// Another site's page cannot have a browser do anything, whatever its cookies.
func TestForged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.login("ann")
	for _, header := range []map[string]string{{"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "null"}} {
		b.header = header
		if status, _, _ := b.do("POST", "/do/hold", b.form("id", queueID)); status != http.StatusForbidden {
			t.Errorf("%v: %d", header, status)
		}
	}
	b.header = map[string]string{"Host": "evil.test"} // whose name has been given our address
	for _, p := range []string{"/", "/login", "/api/v1/now"} {
		if status, _, _ := b.do("GET", p, nil); status != http.StatusMisdirectedRequest {
			t.Errorf("another host's name, %s: %d", p, status)
		}
	}
	b.header = nil
	for _, csrf := range []string{"", "x", w.login("ann").csrf} {
		v := b.form("id", queueID)
		v.Set("csrf", csrf)
		if status, _, _ := b.do("POST", "/do/hold", v); status != http.StatusForbidden {
			t.Errorf("csrf %q: %d", csrf, status)
		}
		if status, _, _ := b.do("POST", "/logout", url.Values{"csrf": {csrf}}); status != http.StatusForbidden {
			t.Errorf("logout with csrf %q: %d", csrf, status)
		}
	}
	if status, _, _ := b.do("POST", "/do/hold", b.form("id", strings.Repeat("x", maxBody))); status != http.StatusBadRequest {
		t.Errorf("a body that is too long: %d", status)
	}
	for _, back := range []string{"//evil.test/", "https://evil.test/", "/\\evil.test", ""} {
		v := b.form("id", queueID)
		v.Set("back", back)
		if status, _, h := b.do("POST", "/do/hold", v); status != http.StatusSeeOther || h.Get("Location") != "/" {
			t.Errorf("back to %q: %d %q", back, status, h.Get("Location"))
		}
		w.take()
	}
	// A GET changes nothing.
	for _, o := range operations() {
		if o.method == "POST" {
			b.do("GET", "/do/"+o.name+"?id="+queueID, nil)
			b.do("GET", apiPath+strings.NewReplacer("{id}", queueID, "{name}", "slow.test").Replace(o.path), nil)
		}
	}
	if _, changes := w.take(); len(changes) > 0 {
		t.Errorf("%v", show(changes))
	}
}

// Wrong passwords wait longer and longer, by address; a session ends by itself, and by logging out.
func TestLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := &browser{w: w}
	try := func(user, password string) int {
		status, _, _ := b.do("POST", "/login", url.Values{"user": {user}, "password": {password}})
		return status
	}
	for i, c := range []struct{ user, password string }{{"ann", "wrong"}, {"no such: login=", "secret of ann"}, {"ann", ""}, {"ann\x00", "x"}, {"ann", strings.Repeat("x", maxPassword+1)}} {
		if status := try(c.user, c.password); status != http.StatusUnauthorized {
			t.Errorf("%d: %d", i, status)
		}
	}
	if status := try("ann", "secret of ann"); status != http.StatusTooManyRequests {
		t.Errorf("after %d failures: %d", freeTries, status)
	}
	events, _ := w.take()
	if len(events) != 5 || events[1] != "user=no?such??login? client=127.0.0.1: login failed: the name or the password is wrong" {
		t.Errorf("%q", events)
	}
	later := func(d time.Duration) { w.mu.Lock(); w.now = w.now.Add(d); w.mu.Unlock() }
	later(firstWait)
	if status := try("ann", "wrong"); status != http.StatusUnauthorized {
		t.Errorf("after the wait: %d", status)
	}
	later(firstWait)
	if status := try("ann", "secret of ann"); status != http.StatusTooManyRequests {
		t.Errorf("the second wait is not longer: %d", status)
	}
	later(longWait)
	b = w.login("ann")
	first := b.cookie
	alive := func() bool { status, _, _ := b.do("GET", "/", nil); return status == 200 }
	later(idleTime)
	if !alive() {
		t.Error("the session has ended too early")
	}
	later(idleTime + time.Second)
	if alive() {
		t.Error("the session goes on although nobody used it")
	}
	b = w.login("ann")
	if b.cookie.Value == first.Value {
		t.Error("the same token again")
	}
	for range 13 {
		later(55 * time.Minute)
		b.do("GET", "/", nil)
	}
	if later(10 * time.Minute); alive() {
		t.Error("the session goes on for ever")
	}
	b = w.login("ann")
	kept := *b.cookie
	if status, _, h := b.do("POST", "/logout", url.Values{"csrf": {b.csrf}}); status != http.StatusSeeOther || h.Get("Location") != "/login" {
		t.Errorf("log out: %d", status)
	}
	if b.cookie = &kept; alive() {
		t.Error("the session goes on after logging out")
	}
}

// Of many sessions the one that was used least recently ends.
func TestSessions(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := newSessions(func() time.Time { now = now.Add(time.Millisecond); return now })
	var tokens []string
	for range userSessions + 1 {
		token, _ := s.begin(person{user: "ann", role: look})
		tokens = append(tokens, token)
		s.find(tokens[0])
	}
	_, first := s.find(tokens[0])
	_, second := s.find(tokens[1])
	if !first || second || len(s.all) != userSessions {
		t.Errorf("%v %v %d", first, second, len(s.all))
	}
	for i := range maxSessions + 5 {
		s.begin(person{user: fmt.Sprint(i), role: look})
	}
	if len(s.all) > maxSessions {
		t.Errorf("%d sessions", len(s.all))
	}
	tr := newTries(func() time.Time { return now })
	for i := range maxTries + 5 {
		tr.wait(fmt.Sprint(i))
	}
	if len(tr.all) > maxTries {
		t.Errorf("%d remembered", len(tr.all))
	}
}

// A token from POST /session is good for everything that its user may do, until it is given back.
func TestAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.count()
	b := &browser{w: w}
	call := func(method, path, body string, into any) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, w.server.URL+apiPath+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		status, text, _ := b.send(req)
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Errorf("%s: %v\n%s", path, err, text)
		}
		return status
	}
	var token Token
	if status := call("POST", "/session", `{"user": "ann", "password": "secret of ann"}`, &token); status != 200 || token.Role != "operate" || token.Token == "" {
		t.Fatalf("%d %+v", status, token)
	}
	b.header = map[string]string{"Authorization": "Bearer " + token.Token}
	var s overview.Shape
	if status := call("GET", "/shape?queue=deferred", "", &s); status != 200 || s.Total.Total != 4311 || len(s.Rows) != 1 || s.Rows[0].Domain != strings.ToValidUTF8(evil, "") || s.Rows[0].Counts[2] != 4310 {
		t.Errorf("%d %+v", status, s)
	}
	var list Messages
	if status := call("GET", "/messages?sender=%3C%3E", "", &list); status != 200 || len(list.Messages) != 2 || list.Messages[0].ID != queueID {
		t.Errorf("%d %+v", status, list)
	}
	var done Done
	if status := call("POST", "/messages/"+queueID+"/hold", "", &done); status != 200 || !strings.Contains(done.Done, queueID) {
		t.Errorf("%d %+v", status, done)
	}
	var problem struct {
		Status        int
		Title, Detail string
	}
	for path, want := range map[string]int{"/messages/nosuch": 404, "/messages/a%20b": 400, "/messages/4jWmL10SyZz1SCBY": 404, "/shape?side=x": 400, "/shape?rows=0": 400, "/shape?at=2026-01-01": 404, "/shape?x=y": 400, "/messages?older=soon": 400,
		"/messages?cursor=x": 400, "/destinations/a%20b": 400, "/search": 400, "/shape?%zz": 400} {
		if status := call("GET", path, "", &problem); status != want || problem.Status != want || problem.Detail == "" {
			t.Errorf("%s: %d %+v", path, status, problem)
		}
	}
	for _, body := range []string{`{"target": 7}`, `{"target": ["a.test", 7]}`, `[`, `{"reason": "x"}`, strings.Repeat(" ", maxBody+1)} {
		if status := call("POST", "/suspensions", body, &problem); status < 400 || status == 500 {
			t.Errorf("%.20s: %d", body, status)
		}
	}
	w.set(func() { w.refused = "with --raise it counts" })
	if status := call("POST", "/limits", `{"target": "a.test", "limit": "50"}`, &problem); status != 400 || problem.Detail != "with --raise it counts" {
		t.Errorf("%d %+v", status, problem)
	}
	w.set(func() { w.refused = "no room" })
	if status := call("POST", "/suspensions", `{"target": "a.test"}`, &problem); status != 500 || problem.Detail != "no room" {
		t.Errorf("%d %+v", status, problem)
	}
	select {
	case <-w.console.live.look: // of an earlier call
	default:
	}
	if status := call("GET", "/now", "", &overview.Now{}); status != 200 || len(w.console.live.look) != 1 {
		t.Errorf("%d: who asks the API is not somebody who looks", status)
	}
	if status := call("POST", "/session/end", "", &done); status != 200 {
		t.Errorf("%d", status)
	}
	if status := call("GET", "/now", "", &problem); status != 401 {
		t.Errorf("the token is good still: %d", status)
	}
}

// A log that cannot be read is said to be so, and the queue is shown.
func TestNoLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for text, logs := range map[string]func() (track.Options, error){
		"permission denied; the service runs as mail_owner": func() (track.Options, error) {
			return track.Options{}, fmt.Errorf("%w: permission denied; the service runs as mail_owner", errLog)
		},
		"the log cannot be searched: open /nonexistent": func() (track.Options, error) { return track.Options{Logs: []string{"/nonexistent"}}, nil },
	} {
		w.console.mta.logs = logs
		b := w.login("ann")
		for _, p := range []string{"/message/" + queueID, "/search?q=" + queueID[:4] + "%40x.test"} {
			if status, page, _ := b.do("GET", p, nil); status != 200 || !strings.Contains(page, text) || !strings.Contains(page, "deferred") {
				t.Errorf("%s: %d\n%s", p, status, page)
			}
		}
		if status, _, _ := b.do("GET", apiPath+"/search?q=x", nil); status != http.StatusServiceUnavailable {
			t.Errorf("%d", status)
		}
	}
}

// The description of the API has every operation, and what each answers is in it.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, text, _ := (&browser{w: w}).do("GET", apiPath+"/openapi.json", nil)
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]struct{ OperationID string }
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil || doc.OpenAPI != "3.1.0" {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, o := range operations() {
		if doc.Paths[o.path][strings.ToLower(o.method)].OperationID != o.name {
			t.Errorf("%s %s is not there", o.method, o.path)
		}
	}
	for name, field := range map[string]string{"Explained": "queue_id", "ShapeRow": "counts", "LogAttempt": "reply", "LogMessage": "children", "Message": "attempts", "Problem": "detail", "Suspension": "until", "Limit": "under_way", "Diversion": "nexthop", "Now": "diversions", "Destination": "replies"} {
		if doc.Components.Schemas[name].Properties[field] == nil {
			t.Errorf("%s has no %s", name, field)
		}
	}
	for _, m := range regexp.MustCompile(`"#/components/schemas/(\w+)"`).FindAllStringSubmatch(text, -1) {
		if doc.Components.Schemas[m[1]].Properties == nil {
			t.Errorf("%s is not described", m[1])
		}
	}
}

// A live page is sent what is new, escaped; logging out ends it.
func TestLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.login("ann")
	w.count()
	req, err := http.NewRequestWithContext(t.Context(), "GET", w.server.URL+"/live/queue?queue=deferred", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.AddCookie(b.cookie)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	next := func() (text string) {
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return "end"
			}
			if line == "\n" {
				return text
			}
			text += line
		}
	}
	if text := next(); !strings.Contains(text, "data: ") || !strings.Contains(text, "4,310") || strings.Contains(text, "<script>") || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%v\n%s", resp.Header, text)
	}
	s := &history.Sample{At: time.Now(), Tables: []history.Table{{Queue: "deferred", Rows: []history.Row{{Domain: "new.test", Counts: history.Counts{77}}}}}}
	w.console.live.publish(s, overview.Glance(s))
	if text := next(); !strings.Contains(text, "new.test") {
		t.Errorf("%s", text)
	}
	if list := w.console.live.view().Providers; len(list) != 1 {
		t.Errorf("a count of the queue alone says of providers: %+v", list)
	}
	b.do("POST", "/logout", url.Values{"csrf": {b.csrf}})
	w.console.live.publish(s, overview.Glance(s))
	if text := next(); text != "end" {
		t.Errorf("it goes on: %s", text)
	}
}

// The chart has the samples that there are, few or many, and says in words what it shows.
func TestChart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sampled()
	if list := w.console.day.waiting(); len(list) < 9 || list[len(list)-1].N != 1009 {
		t.Errorf("%v", list)
	}
	list := w.console.day.waitingFor("A.test")
	if len(list) < 9 || list[8].N != 8 {
		t.Errorf("%v", list)
	}
	if text := string(chart(list, `<Waiting>`)); strings.Count(text, ",") < 9 || !strings.Contains(text, `aria-label="&lt;Waiting&gt; from `) || strings.Contains(text, "style=") {
		t.Errorf("%s", text)
	}
	if flow := w.console.day.flow(); len(flow) != 4 || len(flow[0].Points) < 8 || flow[0].Points[3].N != 60 || flow[1].Points[3].N != 120 || flow[2].Points[3].N != 0 {
		t.Errorf("%+v", flow)
	}
	if chart(list[:1], "x") != "" || len(w.console.day.waitingFor("nosuch.test")) != 0 {
		t.Error("a line of nothing")
	}
	w.count()
	if _, text, _ := w.login("ann").do("GET", "/", nil); strings.Count(text, "<polyline") != 5 || !strings.Contains(text, "Messages in, by the minute from ") {
		t.Errorf("the first page has no chart:\n%s", text)
	}
}

// A browser that does not read is given up, and so many live pages of a session as there may be
// are not exceeded.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.login("ann")
	s, ok := w.console.sessions.find(b.cookie.Value)
	if !ok {
		t.Fatal("no session")
	}
	here, there := net.Pipe()
	defer there.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.console.serveLive(&stuck{conn: here}, httptest.NewRequestWithContext(t.Context(), "GET", "/live/now", nil), &s, func(b *bytes.Buffer) error { b.WriteString("x"); return nil })
	}()
	<-ended // by the deadline for writing, which stuck makes short
	var done []func()
	for range sessionStreams {
		end, ok := w.console.sessions.stream(&s)
		if !ok {
			t.Fatal("a place was not given back")
		}
		done = append(done, end)
	}
	if status, _, _ := b.do("GET", "/live/now", nil); status != http.StatusTooManyRequests {
		t.Errorf("one too many: %d", status)
	}
	done[0]()
	if end, ok := w.console.sessions.stream(&s); !ok {
		t.Error("there is no place again")
	} else {
		end()
	}
}

// stuck is an answer that nobody reads.
type stuck struct {
	conn net.Conn
	h    http.Header
}

func (s *stuck) Header() http.Header {
	if s.h == nil {
		s.h = http.Header{}
	}
	return s.h
}
func (s *stuck) WriteHeader(int)                   {}
func (s *stuck) Write(b []byte) (int, error)       { return s.conn.Write(b) }
func (s *stuck) Flush()                            {}
func (s *stuck) SetReadDeadline(t time.Time) error { return s.conn.SetReadDeadline(t) }
func (s *stuck) SetWriteDeadline(t time.Time) error {
	if d := time.Until(t); d <= 0 || d > sendTime {
		return fmt.Errorf("%v is no bound", d)
	}
	return s.conn.SetWriteDeadline(time.Now())
}

// BenchmarkFirstPage is the first page with a deep queue and a whole day of full samples behind it. It never waits for
// the queue to be counted.
func BenchmarkFirstPage(b *testing.B) {
	w := newWorld(b)
	w.sampledDay()
	w.throttle()
	l := w.login("ann")
	for b.Loop() {
		if status, _, _ := l.do("GET", "/", nil); status != http.StatusOK {
			b.Fatal(status)
		}
	}
}

// sampledDay has full samples of a million messages kept, one a minute for a day.
func (w *world) sampledDay() {
	w.t.Helper()
	dir, err := statedir.Open(w.console.mta.history)
	if err != nil {
		w.t.Fatal(err)
	}
	store, err := history.OpenWriter(dir, history.Limits{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer store.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	tables := []history.Table{}
	for _, queue := range history.Queues {
		for _, senders := range []bool{false, true} {
			t := history.Table{Queue: queue, Senders: senders, Others: history.Counts{1000, 1000}, Names: 20000}
			for i := range history.MaxRows {
				t.Rows = append(t.Rows, history.Row{Domain: fmt.Sprintf("domain%03d.example", i), Counts: history.Counts{rng.Int64N(1000), rng.Int64N(1000), rng.Int64N(1000), rng.Int64N(1000)}})
			}
			tables = append(tables, t)
		}
	}
	for i := range 24 * 60 {
		for range 120 { // a tenth of all rows changes
			t := &tables[rng.IntN(len(tables))]
			t.Rows[rng.IntN(len(t.Rows))].Counts[rng.IntN(4)] = rng.Int64N(1000)
		}
		s := &history.Sample{At: w.now.Add(time.Duration(i-24*60) * time.Minute), Tables: tables, Totals: proto.Totals{Since: w.now.Add(-48 * time.Hour), In: int64(1000 * i), Sent: int64(900 * i)}}
		if err := store.Append(s); err != nil {
			w.t.Fatal(err)
		}
	}
	w.console.day.load(w.console.mta.history, w.now)
}
