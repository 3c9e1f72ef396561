package inject

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/apitoken"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/statedir"
	"posthaste/internal/submit"
	"posthaste/internal/table"
)

// A got is a message that the world's cleanup has taken.
type got struct {
	proto.Submit
	text string
}

// A world is the service with a cleanup and a queue manager that do as a test says.
type world struct {
	t      testing.TB
	dir    string
	server *server
	web    *httptest.Server
	token  string // of app, which may send as from.test
	log    *bytes.Buffer

	mu       sync.Mutex
	now      time.Time
	open     map[mail.QueueID]*got
	queue    map[mail.QueueID]*got
	all      []*got // all that were ever queued
	released []mail.QueueID
	next     uint64
	// verdict says what comes of a message; nil: it is queued.
	verdict func(*got) *proto.SubmitReply
	// lost has the connection break when a message is queued, before the answer.
	lost func(*got) bool
	// leave closes what newDoor has opened.
	leave func()
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// newWorld makes one with a token app, for senders of from.test.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), now: time.Now(), open: map[mail.QueueID]*got{}, queue: map[mail.QueueID]*got{}, next: 1, log: new(bytes.Buffer)}
	serve(t, filepath.Join(w.dir, "cleanup"), w.cleanup)
	serve(t, filepath.Join(w.dir, "qmgr"), w.manager)
	store, err := apitoken.Open(filepath.Join(w.dir, "tokens"), w.clock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	clients, err := table.NewList("inject_clients", []string{"127.0.0.1"}, table.ListOptions{Kind: table.Clients})
	if err != nil {
		t.Fatal(err)
	}
	w.server = &server{tokens: store, clients: clients, log: maillog.New("posthaste/inject", maillog.NewWriter(&locked{w: w}, maillog.Plain)), now: w.clock, memory: newBudget(8 << 20),
		limits: limits{recipients: 100, attachments: 10, batch: 50, message: 1 << 20, item: 2 << 20, schedule: time.Hour}, utf8: true, version: "0.1"}
	w.newDoor()
	w.web = httptest.NewUnstartedServer(w.server.handler())
	w.web.Config.MaxHeaderBytes = maxHeader
	w.web.Start()
	t.Cleanup(w.web.Close)
	w.token = w.newToken(apitoken.Token{Name: "app", Tenant: "acme", Roles: []string{apitoken.Inject}, Senders: []string{"from.test"}})
	t.Cleanup(func() { w.leave() })
	return w
}

// locked is the log, in memory.
type locked struct{ w *world }

func (l *locked) Write(b []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.log.Write(b)
}

func serve(t testing.TB, path string, handle func(*ipc.Conn, *ipc.Request)) {
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	srv := &ipc.Server{Handler: handle}
	go func() { defer close(ended); _ = srv.Serve(ctx, l, time.Second) }()
	t.Cleanup(func() { cancel(); <-ended })
}

// newDoor opens the files of the service, as a process does that begins.
func (w *world) newDoor() {
	dir, err := statedir.Open(filepath.Join(w.dir, "inject"))
	if err != nil {
		w.t.Fatal(err)
	}
	keys, err := openJournal(dir, w.clock, 24*time.Hour, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	counts, err := openQuota(dir, w.clock)
	if err != nil {
		w.t.Fatal(err)
	}
	cleanup, manager := ipc.NewClient(ipc.Unix(filepath.Join(w.dir, "cleanup")), nil), ipc.NewClient(ipc.Unix(filepath.Join(w.dir, "qmgr")), nil)
	submitter := submit.New(cleanup)
	out := newReleaser(manager, w.server.log)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { out.run(ctx) })
	w.server.door = &door{submit: submitter, cleanup: cleanup, log: w.server.log, journal: keys, quota: counts, release: out.add, patience: releaseTime, now: w.clock,
		slots: make(chan struct{}, 100), flags: proto.SubmitFilter, hostname: "mta.test", mailName: "Posthaste"}
	out.add(keys.recent(w.clock().Add(-releaseTime)))
	w.leave = func() {
		cancel()
		wg.Wait()
		keys.close()
		submitter.Close()
		cleanup.Close()
		manager.Close()
		dir.Close()
	}
}

// restart is the end of the process, and the beginning of the next. killed says that it did not save
// its counts.
func (w *world) restart(killed bool) {
	if !killed {
		if err := w.server.door.quota.save(); err != nil {
			w.t.Error(err)
		}
	}
	w.leave()
	w.newDoor()
}

// newToken makes a token.
func (w *world) newToken(t apitoken.Token) string {
	token, err := w.server.tokens.Add(t)
	if err != nil {
		w.t.Fatal(err)
	}
	w.pass(2 * time.Second)
	return token
}

// pass has time pass.
func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// set changes what the world does.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// mails are all messages that were queued.
func (w *world) mails() []*got {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*got(nil), w.all...)
}

func (w *world) logged() string {
	w.server.log.Flush()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func (w *world) cleanup(c *ipc.Conn, r *ipc.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r.Kind {
	case proto.KindLease:
		r.Reply(&proto.LeaseReply{First: w.next, N: 1000})
		w.next += 1000
	case proto.KindLocate:
		var m proto.Locate
		if err := r.Decode(&m); err != nil {
			w.t.Error(err)
		}
		r.Reply(&proto.LocateReply{Found: w.queue[m.ID] != nil})
	case proto.KindSubmit:
		g := new(got)
		if err := r.Decode(&g.Submit); err != nil {
			w.t.Error(err)
		}
		g.text = string(g.Content)
		g.Envelope.Recipients = append([]mail.Recipient(nil), g.Envelope.Recipients...)
		w.open[g.Envelope.ID] = g
		w.end(c, r, g, g.More)
	case proto.KindChunk:
		var m proto.Chunk
		if err := r.Decode(&m); err != nil {
			w.t.Error(err)
		}
		if g := w.open[m.ID]; g != nil {
			g.text += string(m.Data)
			w.end(c, r, g, m.More)
		}
	case proto.KindAbort:
	default:
		r.Fail("unexpected %d", r.Kind)
	}
}

// end answers a part of a message.
func (w *world) end(c *ipc.Conn, r *ipc.Request, g *got, more bool) {
	if more {
		r.Reply(&proto.ChunkReply{})
		return
	}
	delete(w.open, g.Envelope.ID)
	reply := &proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"}
	if w.queue[g.Envelope.ID] != nil {
		w.t.Errorf("%s was submitted twice", g.Envelope.ID)
	}
	if w.verdict != nil {
		reply = w.verdict(g)
	}
	if reply.Code == 250 {
		w.queue[g.Envelope.ID] = g
		w.all = append(w.all, g)
	}
	if w.lost != nil && w.lost(g) {
		c.Close()
		return
	}
	r.Reply(reply)
}

func (w *world) manager(_ *ipc.Conn, r *ipc.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var m proto.Select
	if err := r.Decode(&m); err != nil || m.Verb != proto.VerbFlush {
		w.t.Errorf("%v %+v", err, m)
	}
	w.released = append(w.released, m.IDs...)
	r.Reply(&proto.SelectReply{IDs: m.IDs})
}

// post makes a request, and returns the answer.
func (w *world) post(path, kind, body string, header ...string) (status int, text string, h http.Header) {
	w.t.Helper()
	req, err := http.NewRequest("POST", w.web.URL+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Authorization", "Bearer "+w.token)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// send posts JSON to /v1/messages, and reads the result.
func (w *world) send(body string, header ...string) (int, *Result, string) {
	w.t.Helper()
	status, text, _ := w.post("/v1/messages", "application/json", body, header...)
	r := new(Result)
	if err := json.Unmarshal([]byte(text), r); err != nil {
		w.t.Fatalf("%v: %s", err, text)
	}
	return status, r, text
}

const hello = `{"from": "ann@from.test", "to": ["joe@to.test"], "subject": "Hello", "text": "world"}`
