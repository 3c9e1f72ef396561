package script

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/submit"
	"posthaste/internal/table"
	"posthaste/internal/testproc"
	"posthaste/smtpd"
)

// patience bounds every wait of the runner. It is only ever used up by a
// dialogue that fails.
const patience = 10 * time.Second

// defaults are the parameters of a dialogue that sets none. The client's
// address is not in mynetworks.
const defaults = `compatibility_level = 3.6
myhostname = mx.example.test
mydomain = example.test
myorigin = $myhostname
mydestination = $myhostname, example.test
mynetworks = 127.0.0.0/8
inet_interfaces = 192.0.2.25
mail_name = Posthaste
local_recipient_maps = inline:{alice=x, bob=x}
relay_domains = relay.test
queue_directory = /
data_directory = $dir
queue_minfree = 0
alias_maps =
recipient_delimiter = +
smtpd_error_sleep_time = 0
smtpd_announce_limits = no
`

// Runner runs dialogues.
type Runner struct {
	// Update rewrites what the server says, the log and the queue in the file
	// to what they are.
	Update bool
}

// Run runs the dialogue in file.
func (r *Runner) Run(t *testing.T, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	ar := txtar.Parse(data)
	if !bytes.Contains(ar.Comment, []byte("RFC")) && !bytes.Contains(ar.Comment, []byte("Postfix")) {
		t.Error("the comment names neither a section of an RFC nor what Postfix does")
	}
	w := newWorld(t, ar)
	defer w.close()
	got := w.play(section(ar, "dialogue"))
	w.finish()
	r.compare(t, file, ar, map[string]string{"dialogue": got, "log": w.logText(), "queue": w.cleanup.text(), "filtered": w.filterText()})
}

func section(ar *txtar.Archive, name string) string {
	for _, f := range ar.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func (r *Runner) compare(t *testing.T, file string, ar *txtar.Archive, got map[string]string) {
	changed := false
	for _, name := range []string{"dialogue", "log", "queue", "filtered"} {
		i := slices.IndexFunc(ar.Files, func(f txtar.File) bool { return f.Name == name })
		switch {
		case i < 0 && name != "log" && got[name] == "":
			continue
		case i < 0 && r.Update:
			ar.Files = append(ar.Files, txtar.File{Name: name, Data: []byte(got[name])})
			changed = true
			continue
		case i < 0 && name == "log":
			continue // a dialogue need not care
		case i < 0:
			t.Errorf("unexpected %s:\n%s", name, got[name])
			continue
		}
		want := string(ar.Files[i].Data)
		if want == got[name] {
			continue
		}
		if r.Update {
			ar.Files[i].Data = []byte(got[name])
			changed = true
			continue
		}
		t.Errorf("%s is not as expected:\n%s", name, diff(want, got[name]))
	}
	if changed {
		if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// diff shows the first line that differs, with what is around it.
func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := 0; i < len(w) || i < len(g); i++ {
		wl, gl := "(nothing)", "(nothing)"
		if i < len(w) {
			wl = w[i]
		}
		if i < len(g) {
			gl = g[i]
		}
		if wl != gl {
			return fmt.Sprintf("line %d\n want %s\n  got %s\nall of it:\n%s", i+1, wl, gl, got)
		}
	}
	return "line ends differ"
}

// A world is everything around one server.
type world struct {
	t        testing.TB
	dir      string
	srv      *smtpd.Server
	cleanup  *fakeCleanup
	ipc      *ipc.Client
	submit   *submit.Client
	log      *maillog.Logger
	lines    *testproc.Output
	stop     context.CancelFunc
	serving  sync.WaitGroup
	sessions sync.WaitGroup
	sock     net.Listener
	policy   *fakePolicy
	filter   *fakeFilter
	conn     net.Conn
	others   []net.Conn // of this dialogue, which it no longer speaks on
	peer     string
	// dial, when not nil, makes connections to another server than srv.
	dial func(ahead []byte) net.Conn
}

func newWorld(t testing.TB, ar *txtar.Archive) *world {
	dir, err := os.MkdirTemp("", "script") // a short path: sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, lines: &testproc.Output{}, peer: "198.51.100.7"}
	main := "dir = " + dir + "\n" + defaults + w.layOut(ar)
	cfg, err := config.LoadString(main)
	if err != nil {
		t.Fatal(err)
	}
	zone, err := fakezone.Parse(section(ar, "zone"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	w.log = maillog.New("smtpd", maillog.NewWriter(w.lines, maillog.Classic))
	w.cleanup = newFakeCleanup()
	w.cleanup.milter = strings.Split(strings.TrimSpace(section(ar, "milter")), "\n")
	if w.sock, err = net.Listen("unix", filepath.Join(dir, "cleanup")); err != nil {
		t.Fatal(err)
	}
	is := &ipc.Server{Handler: w.cleanup.handle}
	w.serving.Go(func() { is.Serve(ctx, w.sock, time.Second) })
	w.ipc = ipc.NewClient(ipc.Unix(filepath.Join(dir, "cleanup")), nil)
	w.submit = submit.New(w.ipc)
	w.startFakes(ar)
	dns := zone.Resolver()
	router, err := newRouter(cfg)
	if err != nil {
		t.Fatal(err)
	}
	deps := smtpd.Deps{Config: cfg, Log: w.log, Service: "smtp", Submit: w.submit, Router: router,
		DNS: dns, Names: dns, Milters: w.ipc, MaxProc: 20000,
		Screen: strings.Contains(main, "postscreen_"), Flush: fakeFlusher{}, Verify: fakeProber{}, Tables: table.Options{Recheck: -1}}
	if strings.Contains(main, "account_recipient_limit") {
		deps.Spender = fakeSpender{}
	}
	if strings.Contains(main, "suppress_list_maps") || strings.Contains(main, "suppress_tenants") {
		deps.Suppress = fakeSuppressor{}
	}
	w.srv, err = smtpd.New(ctx, deps)
	if err != nil {
		w.close()
		t.Fatal(err)
	}
	return w
}

// layOut writes a dialogue's files, and returns its main.cf.
func (w *world) layOut(ar *txtar.Archive) string {
	main := ""
	for _, f := range ar.Files {
		switch f.Name {
		case "main.cf":
			main = string(f.Data)
		case "dialogue", "log", "queue", "zone", "policy", "filter", "filtered", "milter":
		default:
			if err := os.WriteFile(filepath.Join(w.dir, filepath.Base(f.Name)), f.Data, 0o600); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	if strings.Contains(main, "$dir/cert.pem") {
		writeCertificate(w.t, filepath.Join(w.dir, "cert.pem"))
	}
	return main
}

// startFakes starts the servers that a dialogue has rules for.
func (w *world) startFakes(ar *txtar.Archive) {
	var err error
	if rules := section(ar, "policy"); rules != "" {
		if w.policy, err = newFakePolicy(filepath.Join(w.dir, "policy"), rules); err != nil {
			w.t.Fatal(err)
		}
	}
	if rules := section(ar, "filter"); rules != "" {
		if w.filter, err = newFakeFilter(filepath.Join(w.dir, "filter"), rules); err != nil {
			w.t.Fatal(err)
		}
	}
}

// finish ends what the dialogue has left open, so that all has been logged.
func (w *world) finish() {
	if w.conn != nil {
		w.conn.Close()
		w.conn = nil
	}
	w.srv.Drain()
	w.waitSessions()
	if w.filter != nil {
		w.filter.close() // it has heard all
	}
	w.log.Flush()
}

func (w *world) close() {
	if w.conn != nil {
		w.conn.Close()
	}
	for _, c := range w.others {
		c.Close()
	}
	w.waitSessions()
	if w.srv != nil {
		w.srv.Close()
	}
	w.submit.Close()
	w.ipc.Close()
	w.stop()
	w.serving.Wait()
	if w.policy != nil {
		w.policy.close()
	}
	if w.filter != nil {
		w.filter.close()
	}
	w.log.Close()
	os.RemoveAll(w.dir)
}

func (w *world) waitSessions() { w.sessions.Wait() }

// endpoint is a connection that seems to come from elsewhere.
type endpoint struct {
	*net.TCPConn
	remote, local net.Addr
}

func (e endpoint) RemoteAddr() net.Addr { return e.remote }
func (e endpoint) LocalAddr() net.Addr  { return e.local }

// connect makes a connection over loopback. ahead, when not nil, is sent
// before the server sees it.
func (w *world) connect(ahead []byte) {
	if w.dial != nil {
		w.conn = w.dial(ahead)
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	if len(ahead) > 0 {
		c.Write(ahead)
	}
	s, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	if len(ahead) > 0 {
		waitReadable(s.(*net.TCPConn))
	}
	w.conn = c
	ip := net.ParseIP(w.peer)
	local := &net.TCPAddr{IP: net.ParseIP("192.0.2.25"), Port: 25}
	if ip.To4() == nil {
		local.IP = net.ParseIP("2001:db8::25")
	}
	e := endpoint{s.(*net.TCPConn), &net.TCPAddr{IP: ip, Port: 40000}, local}
	w.sessions.Go(func() { w.srv.ServeConn(context.Background(), e) })
}

var (
	queueID = regexp.MustCompile(`\b[0-9BCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz]{10}z[0-9BCDFGHJKLMNPQRSTVWXYZbcdfghjklmnpqrstvwxyz]+\b`)
	date    = regexp.MustCompile(`(Mon|Tue|Wed|Thu|Fri|Sat|Sun), [ 0-9]\d \w{3} \d{4} \d\d:\d\d:\d\d [-+]\d{4}( \(\w+\))?`)
	cipher  = regexp.MustCompile(`cipher \S+ \(\d+/\d+ bits\)`)
	prints  = regexp.MustCompile(`([0-9A-F]{2}:){31}[0-9A-F]{2}`)
	took    = regexp.MustCompile(` after [0-9.e-]+ `)
	logHead = regexp.MustCompile(`(?m)^.{15} \S+ (smtpd|postscreen)\[\d+\]: `)
)

// plain takes out what differs from run to run.
func (w *world) plain(s string) string {
	s = queueID.ReplaceAllString(s, "<ID>")
	s = date.ReplaceAllString(s, "<DATE>")
	s = cipher.ReplaceAllString(s, "cipher <CIPHER>")
	s = prints.ReplaceAllString(s, "<PRINT>")
	s = strings.ReplaceAll(s, w.dir, "$dir")
	s = strings.ReplaceAll(s, "pid."+strconv.Itoa(os.Getpid()), "<PID>")
	return s
}

// filterText is what the content filter was told.
func (w *world) filterText() string {
	if w.filter == nil {
		return ""
	}
	return w.plain(w.filter.text())
}

func (w *world) logText() string {
	return w.plain(took.ReplaceAllString(logHead.ReplaceAllStringFunc(w.lines.String(), func(head string) string {
		if strings.Contains(head, "postscreen") {
			return "postscreen: "
		}
		return ""
	}), " after <SECS> "))
}
