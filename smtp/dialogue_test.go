package smtp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/tlsrpt"
)

var update = flag.Bool("update", false, "write what happened into the dialogue files")

// TestDialogues runs the files testdata/*.txt. Each is a little world:
//
//	-- config --             main.cf; "program = lmtp" makes it lmtp
//	-- args --               the service's arguments in master.cf
//	-- zone --               the DNS, see package fakezone
//	-- verbose --            master.cf has -v
//	-- message --            a delivery request; several are delivered one after the other
//	-- server ADDR:PORT --   a server for one connection; several of the same address are for one each
//	-- refuse ADDR:PORT --   connections are refused; any other address: no route
//	-- short ADDR:PORT --    there are too many open files
//	-- silent ADDR:PORT --   connections time out
//	-- sts DOMAIN --         an MTA-STS policy that is known, in JSON, in directory %STS%
//	-- want --               what was logged and reported
//
// A server's lines are C: (a line that must come), S: (a reply line), and the
// words of serve. Time is the bubble's: five minutes of silence take none.
func TestDialogues(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no dialogues", err)
	}
	// Package net makes a channel at its first such lookup and keeps it: a
	// bubble's channel would be of no use to the others.
	_, _ = net.LookupPort("tcp", "no-such-service")
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) { runDialogue(t, file, ar) })
		})
	}
}

// world is what a dialogue file sets up.
type world struct {
	t       *testing.T
	mu      sync.Mutex
	servers map[string][]string
	fate    map[string]error
	wg      sync.WaitGroup
}

func (w *world) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if scripts := w.servers[addr]; len(scripts) > 0 {
		w.servers[addr] = scripts[1:]
		ours, theirs := net.Pipe()
		w.wg.Go(func() { newScripted(w.t, addr, theirs).serve(scripts[0]) })
		return ours, nil
	}
	if err, ok := w.fate[addr]; ok {
		if err == nil {
			<-time.After(30 * time.Second)
			err = context.DeadlineExceeded
		}
		return nil, err
	}
	if strings.HasPrefix(addr, "/") {
		return nil, syscall.ENOENT
	}
	return nil, syscall.EHOSTUNREACH
}

// lines is a log sink that keeps lines.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (*lines) Format() maillog.Format { return maillog.Plain }
func (*lines) Close() error           { return nil }
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func runDialogue(t *testing.T, file string, ar *txtar.Archive) {
	w := &world{t: t, servers: make(map[string][]string), fate: make(map[string]error)}
	main, zone := "myhostname = me.test\ninet_interfaces = 192.0.2.200, 127.0.0.1\ninet_protocols = all\nsmtp_randomize_addresses = no\n", ""
	var messages []string
	want := -1
	lmtp := false
	sts := t.TempDir()
	var args []string
	verbose := 0
	for i, f := range ar.Files {
		word, addr, _ := strings.Cut(f.Name, " ")
		switch word {
		case "config":
			text := strings.ReplaceAll(testCA().fill(t, string(f.Data)), "%STS%", sts)
			text, lmtp = strings.CutPrefix(text, "program = lmtp\n")
			main += text
		case "args":
			args = strings.Fields(string(f.Data))
		case "verbose":
			verbose = 1
		case "zone":
			zone = testCA().fill(t, string(f.Data))
		case "message":
			messages = append(messages, string(f.Data))
		case "server":
			w.servers[addr] = append(w.servers[addr], string(f.Data))
		case "refuse":
			w.fate[addr] = syscall.ECONNREFUSED
		case "short":
			w.fate[addr] = syscall.EMFILE
		case "silent":
			w.fate[addr] = nil
		case "sts":
			if err := os.WriteFile(filepath.Join(sts, addr+".json"), f.Data, 0o600); err != nil {
				t.Fatal(err)
			}
		case "want":
			want = i
		default:
			t.Fatalf("section %q", f.Name)
		}
	}
	cfg, err := config.LoadString(main)
	if err != nil {
		t.Fatal(err)
	}
	sink := new(lines)
	log := maillog.New("log", sink)
	z := fakezone.Must(zone)
	var a *Agent
	opt := resolver.Options{Exchanger: z, DNSSEC: true, Hosts: os.DevNull}
	if len(cfg.List("smtp_dns_reply_filter")) > 0 {
		opt.Filter = func(record string) bool { return a.keepRecord(record) }
	}
	dns := resolver.New(opt)
	a, err = newAgent(deps{Config: cfg, Log: log, Resolver: dns, LMTP: lmtp, Args: args, Dial: w.dial, Verbose: verbose})
	if err != nil {
		t.Fatal(err)
	}
	if a.reports != nil {
		a.reports.record = func(_ time.Time, p tlsrpt.Policy, f *tlsrpt.Failure) {
			log.Flush()
			for i, text := range p.Strings {
				if len(text) > 32 && p.Type == tlsrpt.PolicyTLSA {
					p.Strings[i] = text[:6] + "..." // another key each time
				}
			}
			fmt.Fprintf(sink, "tls: %s %s %q: ", p.Domain, p.Type, p.Strings)
			if f == nil {
				fmt.Fprintln(sink, "success")
			} else {
				fmt.Fprintf(sink, "%+v\n", *f)
			}
		}
	}
	for i, text := range messages {
		deliverText(t, a, cfg, log, sink, i, text)
	}
	a.Close()
	dns.Close()
	w.wg.Wait()
	for addr, left := range w.servers {
		if len(left) > 0 {
			t.Errorf("%d connections to %s were not made", len(left), addr)
		}
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	got := sink.b.String()
	if want < 0 {
		ar.Files = append(ar.Files, txtar.File{Name: "want"})
		want = len(ar.Files) - 1
	}
	if *update {
		ar.Files[want].Data = []byte(got)
		if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != string(ar.Files[want].Data) {
		t.Errorf("got:\n%s\nwant:\n%s", got, ar.Files[want].Data)
	}
}

// deliverText delivers what a message section says.
func deliverText(t *testing.T, a *Agent, cfg *config.Config, log *maillog.Logger, sink *lines, n int, text string) {
	head, body, ok := strings.Cut(text, "\n\n")
	if !ok {
		body = "Subject: test\n\nHello.\n"
	}
	content := []byte(strings.ReplaceAll(body, "\n", "\r\n"))
	env := mail.Envelope{ID: mail.QueueID(fmt.Sprintf("Q%d", n+1)), Arrival: time.Now(), Sender: "from@here.test", Size: int64(len(body))}
	nexthop := mail.Nexthop("dest.test")
	leaves, advice, missing := "", "", false
	load, keep, big := false, false, false
	unread := int64(0)
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "from":
			env.Sender = strings.ReplaceAll(value, "<>", "")
		case "leaves":
			leaves = value
		case "to":
			env.Recipients = append(env.Recipients, parseRcpt(t, value))
		case "nexthop":
			nexthop = mail.Nexthop(value)
		case "body":
			env.Body |= map[string]mail.Body{"8bit": mail.Body8Bit, "utf8hdr": mail.BodyUTF8Hdr, "dots": mail.BodyDots,
				"plain": mail.BodyGauged, "long": mail.BodyLong, "smtputf8": mail.BodySMTPUTF8, "utf8addr": mail.BodyUTF8Addr}[value]
		case "envid":
			env.EnvID = value
		case "ret":
			env.Ret, _ = dsn.ParseRet(value)
		case "age":
			d, _ := time.ParseDuration(value)
			env.Arrival = time.Now().Add(-d)
		case "trace":
			env.Trace = mail.TraceProbe
		case "client":
			f := strings.Fields(value)
			env.Client = mail.Client{Name: f[0], Addr: f[1], Port: f[2], Helo: f[3], Proto: f[4]}
		case "load":
			load = true
		case "keep":
			keep = true
		case "file":
			big = true
		case "lines": // the content ends with so many lines more, of 50 octets each
			n, _ := strconv.Atoi(value)
			content = append(content, strings.Repeat(strings.Repeat("x", 48)+"\r\n", n)...)
		case "ident": // the queue ID where it was first queued
			env.LogIdent = value
		case "advice":
			advice = value
		case "missing": // there is no content
			missing = true
		case "open": // the content has no last line end
			content = bytes.TrimSuffix(content, []byte("\r\n"))
		case "unread": // the content can be read this far
			unread, _ = strconv.ParseInt(value, 10, 64)
			big = true
		case "local":
			env.RewriteContext = "local"
		case "requiretls":
			env.RequireTLS = true
		case "tlsoptional":
			env.TLSOptional = true
		case "wait":
			d, _ := time.ParseDuration(value)
			time.Sleep(d)
		case "":
		default:
			t.Fatalf("message: %q", line)
		}
	}
	if len(env.Recipients) == 0 {
		env.Recipients = []mail.Recipient{{Address: "to@dest.test"}}
	}
	r := agent.NewTestRequest(env, nexthop, content, log)
	if leaves != "" {
		r.LeaveAs(leaves)
	}
	program := "smtp"
	if a.set.lmtp {
		program = "lmtp"
	}
	r.Configure(cfg, program)
	r.CacheLoad, r.CacheKeep = load, keep
	a.deliver(context.Background(), observed{r, t, sink, big, missing, unread}, order{env: r.Envelope, nexthop: nexthop, cacheKeep: keep, advice: advice})
	synctest.Wait()
	log.Flush()
	switch status, reason := r.Site(); {
	case status.IsZero():
	case r.Busy():
		fmt.Fprintf(&sink.b, "site busy: %s %s\n", status, reason)
	default:
		fmt.Fprintf(&sink.b, "site failure: %s %s\n", status, reason)
	}
	if r.Kept() {
		fmt.Fprintf(&sink.b, "session kept\n")
	}
	for _, o := range r.Outcomes() {
		if r.Opened() && o.MTA != "" && (o.Action == dsn.Delivered || o.Action == dsn.Relayed) && r.Security() == "" {
			t.Error("nothing is said of how the connection is secured")
		}
		if o.DiagText != "" || o.Action == dsn.Relayed {
			fmt.Fprintf(&sink.b, "notice: %s; %s; %s; %s\n", o.Action, o.MTA, o.DiagType, o.DiagText)
		}
	}
}

// observed is a request whose content may be other than in memory, and that
// takes note of what is passed to other transports.
type observed struct {
	*agent.Request
	t      *testing.T
	sink   *lines
	big    bool
	gone   bool  // there is none
	unread int64 // how much of the content can be read; 0: all of it
}

// diskContent is content in a file, which may have become unreadable.
type diskContent struct {
	agent.Content
	unread int64
}

func (r observed) Content() (agent.Content, error) {
	if r.gone {
		return nil, errors.New("the message is gone")
	}
	c, err := r.Request.Content()
	if !r.big {
		return c, err
	}
	return diskContent{c, r.unread}, err
}
func (diskContent) Bytes() []byte { return nil }
func (c diskContent) Reader() io.Reader {
	if c.unread == 0 {
		return c.Content.Reader()
	}
	return io.MultiReader(io.LimitReader(c.Content.Reader(), c.unread), iotest.ErrReader(errors.New("the disk is broken")))
}

// Sent compares what the log is told of TLS with what the session was.
func (r observed) Sent(i int, status dsn.Status, text string, d agent.Detail) {
	if s := r.Security(); s != "" && strings.HasPrefix(s, "no TLS") == (d.TLS != "") {
		r.t.Errorf("the session has %q, and the log has %q", s, d.TLS)
	}
	r.Request.Sent(i, status, text, d)
}

func (r observed) Pass(i int, transport mail.Transport, nexthop mail.Nexthop) {
	fmt.Fprintf(r.sink, "passed: %s to %s, nexthop %s\n", r.Envelope.Recipients[i].Address, transport, nexthop)
	r.Adopt(i, mail.Outcome{Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Reason: "passed", When: time.Now()})
}

func parseRcpt(t *testing.T, text string) mail.Recipient {
	f := strings.Fields(text)
	r := mail.Recipient{Address: strings.ReplaceAll(f[0], "%20", " ")}
	for _, p := range f[1:] {
		key, value, _ := strings.Cut(p, "=")
		switch key {
		case "notify":
			n, err := dsn.ParseNotify(value)
			if err != nil {
				t.Fatal(err)
			}
			r.Notify = n
		case "orcpt":
			r.ORCPT = value
		case "orig":
			r.Original = value
		}
	}
	return r
}

// scripted is a server that follows a script.
type scripted struct {
	t    *testing.T
	addr string
	conn net.Conn
	raw  net.Conn    // conn, or what is under its TLS
	come chan []byte // what has been read; closed at the end
	rest []byte
	goOn <-chan struct{} // what wait waits for
	over chan struct{}   // closed when the script has ended
}

func newScripted(t *testing.T, addr string, conn net.Conn) *scripted {
	return &scripted{t: t, addr: addr, conn: conn, raw: conn, come: make(chan []byte, 10000), over: make(chan struct{})}
}

// serve follows a script:
//
//	S: text     send a line
//	s: text     send text, with Go's escapes and without a line end
//	d: text     send a line one octet at a time
//	C: text     a line must come, and be this
//	C+ N text   N lines must come, and each be this
//	C* text     lines must come until this one
//	any         a line must come, whichever it is
//	C#          the client must close
//	gone        the client must close, and end neither message nor session before
//	hang        read nothing, send nothing, until the client closes
//	sleep 10s   let time pass
//	quiet 10s   let time pass, in which the client must send nothing
//	flood N x   send a line N times
//	tls NAME    switch to TLS with a certificate of testCA; see startTLS
//	shut        say no more, over a socket, and go on reading
//	wait        until the test says that it may go on
//	reads N     wherever it stands: of the client's octets no more than N are ever read
//	close       close the connection; so does the end
func (s *scripted) serve(script string) {
	var pump sync.WaitGroup
	come := s.come
	from := io.Reader(s.raw)
	if _, after, ok := strings.Cut("\n"+script, "\nreads "); ok {
		number, _, _ := strings.Cut(after, "\n")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			s.t.Error(err)
		}
		from = io.MultiReader(io.LimitReader(from, n), endsWith(s.over))
	}
	pump.Go(func() { pumpInto(from, come) })
	defer pump.Wait()
	defer s.raw.Close()
	defer close(s.over)
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		word, text, _ := strings.Cut(line, " ")
		ok := true
		switch word {
		case "S:":
			ok = s.send(text + "\r\n")
		case "s:":
			raw, err := strconv.Unquote(`"` + text + `"`)
			if err != nil {
				s.t.Errorf("%s: %v", line, err)
			}
			ok = s.send(raw)
		case "d:":
			for _, c := range []byte(text + "\r\n") {
				ok = ok && s.send(string(c))
			}
		case "C:":
			if got, err := s.line(); err != nil || got != text {
				s.t.Errorf("%s: client said %q (%v), want %q", s.addr, got, err, text)
				return
			}
		case "C+":
			count, what, _ := strings.Cut(text, " ")
			n, err := strconv.Atoi(count)
			if err != nil {
				s.t.Error(err)
			}
			for i := range n {
				if got, err := s.line(); err != nil || got != what {
					s.t.Errorf("%s: client said %q (%v) as line %d, want %q", s.addr, clip([]byte(got), 200), err, i+1, what)
					return
				}
			}
		case "C*":
			for {
				got, err := s.line()
				if err != nil {
					s.t.Errorf("%s: client is gone, want %q", s.addr, text)
					return
				}
				if got == text {
					break
				}
			}
		case "any": // it has a nonce, say
			if _, err := s.line(); err != nil {
				s.t.Errorf("%s: client is gone, want a line", s.addr)
				return
			}
		case "C#":
			if got, err := s.line(); err == nil {
				s.t.Errorf("%s: client said %q, was to close", s.addr, got)
			}
			return
		case "gone": // all that comes is no end of a message, and the client closes
			for {
				if got, err := s.line(); err != nil {
					return
				} else if got == "." || got == "QUIT" || got == "RSET" {
					s.t.Errorf("%s: client said %q, was to close", s.addr, got)
				}
			}
		case "hang":
			for range s.come {
			}
			return
		case "sleep":
			d, err := time.ParseDuration(text)
			if err != nil {
				s.t.Error(err)
			}
			time.Sleep(d)
		case "quiet":
			d, err := time.ParseDuration(text)
			if err != nil {
				s.t.Error(err)
			}
			time.Sleep(d)
			if len(s.rest) > 0 || len(s.come) > 0 {
				s.t.Errorf("%s: client did not wait", s.addr)
				return
			}
		case "flood":
			count, what, _ := strings.Cut(text, " ")
			n, _ := strconv.Atoi(count)
			for range n {
				if ok = s.send(what + "\r\n"); !ok {
					return
				}
			}
		case "tls":
			ok = s.startTLS(&pump, text)
		case "wait":
			<-s.goOn
		case "shut":
			if c, secure := s.conn.(*tls.Conn); secure {
				ok = c.CloseWrite() == nil
			}
			ok = ok && s.raw.(interface{ CloseWrite() error }).CloseWrite() == nil
		case "close":
			return
		case "", "reads":
		default:
			s.t.Errorf("script: %q", line)
		}
		if !ok {
			return
		}
	}
}

// endsWith is a reader that has nothing, and ends when the channel is closed.
type endsWith <-chan struct{}

func (u endsWith) Read([]byte) (int, error) {
	<-u
	return 0, io.EOF
}

// pumpInto reads from a connection so that its peer never waits to be read.
func pumpInto(conn io.Reader, come chan []byte) {
	defer close(come)
	for {
		b := make([]byte, 65536)
		n, err := conn.Read(b)
		if n > 0 {
			come <- b[:n]
		}
		if err != nil {
			return
		}
	}
}

func (s *scripted) send(text string) bool {
	_, err := s.conn.Write([]byte(text))
	return err == nil
}

var errGone = errors.New("closed")

func (s *scripted) line() (string, error) {
	for {
		if i := bytes.IndexByte(s.rest, '\n'); i >= 0 {
			l := string(s.rest[:i+1])
			s.rest = s.rest[i+1:]
			if !strings.HasSuffix(l, "\r\n") {
				return "", fmt.Errorf("bare LF: %q", l)
			}
			return strings.TrimSuffix(l, "\r\n"), nil
		}
		b, ok := <-s.come
		if !ok {
			return string(s.rest), errGone
		}
		s.rest = slices.Concat(s.rest, b)
	}
}
