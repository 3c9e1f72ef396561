package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rights"
	"posthaste/internal/submit"
	"posthaste/local/users"
)

// site is a mail system's surroundings for one test.
type site struct {
	t     *testing.T
	dir   string // everything is below
	users map[string]*users.User
	agent *Agent
	log   bytes.Buffer
	logmu sync.Mutex
	sink  *maillog.Logger

	mu     sync.Mutex
	next   uint64
	queued []proto.Submit // what was submitted
	refuse bool
	passed []string // what was given to other transports
	// foreseen are senders and recipients that trivial-rewrite was asked about ahead.
	foreseen []string
	other    func(to string) (dsn.Action, dsn.Status)
}

func (s *site) Write(p []byte) (int, error) { // the log
	s.logmu.Lock()
	defer s.logmu.Unlock()
	return s.log.Write(p)
}

func (s *site) logged() string {
	s.sink.Flush()
	s.logmu.Lock()
	defer s.logmu.Unlock()
	return s.log.String()
}

func (s *site) Lookup(name string) (*users.User, error) {
	if name == "lookuperror" {
		return nil, fmt.Errorf("the directory is down")
	}
	return s.users[name], nil
}

func (s *site) LookupID(uid int) (*users.User, error) {
	for _, u := range s.users {
		if u.UID == uid {
			return u, nil
		}
	}
	return nil, nil
}

func (s *site) LookupGroup(string) (int, bool, error) { return 0, false, nil }

// Rewrite and Resolve: example.org is local, all else goes by smtp.
func (s *site) Rewrite(_ context.Context, _, addr string) (string, error) {
	if !strings.Contains(addr, "@") {
		addr += "@example.org"
	}
	return addr, nil
}

func (s *site) Resolve(_ context.Context, _, addr string) (proto.ResolveReply, error) {
	r := proto.ResolveReply{Transport: "smtp", Nexthop: "x", Recipient: addr}
	switch {
	case strings.HasSuffix(addr, "@example.org"):
		r.Transport = "local"
	case strings.HasSuffix(addr, "@fail.test"):
		r.Flags = proto.ResolveFail
	case strings.HasSuffix(addr, "@error.test"):
		r.Flags = proto.ResolveError
	}
	return r, nil
}

func (s *site) Foresee(_ context.Context, sender, addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.foreseen = append(s.foreseen, sender+" "+addr)
}

func (s *site) handle(_ *ipc.Conn, r *ipc.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Kind {
	case proto.KindLease:
		r.Reply(&proto.LeaseReply{First: s.next + 1, N: 1000})
		s.next += 1000
	case proto.KindSubmit:
		var m proto.Submit
		if err := r.Decode(&m); err != nil {
			r.Fail("%v", err)
			return
		}
		m.Content = bytes.Clone(m.Content)
		if s.refuse {
			r.Reply(&proto.SubmitReply{Code: 452, Status: dsn.S(4, 3, 1), Text: "full"})
			return
		}
		s.queued = append(s.queued, m)
		r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0)})
	}
}

// newSite makes a site with users joe and ann (and nobody), aliases, and more
// settings. %DIR% in these stands for the directory.
func newSite(t *testing.T, aliases, settings string) *site {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "local")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &site{t: t, dir: dir, users: map[string]*users.User{}}
	os.Chmod(dir, 0o755)
	for i, name := range []string{"joe", "ann", "nobody"} {
		u := &users.User{Name: name, UID: os.Getuid(), GID: os.Getgid(), Home: filepath.Join(dir, "home", name), Shell: "/bin/bash"}
		if rights.Switching() {
			u.UID, u.GID = 60001+i, 60001+i
		}
		s.users[name] = u
		s.mkdir(u.Home, u)
	}
	s.users["root"] = &users.User{Name: "root", Home: filepath.Join(dir, "home", "root")}
	s.mkdir(s.path("spool"), nil)
	os.Chmod(s.path("spool"), 0o1777)
	s.write("aliases", strings.ReplaceAll(aliases, "%DIR%", dir), nil)
	main := "myhostname = mx.example.org\nmyorigin = example.org\nmail_name = Posthaste\nrecipient_delimiter = +\n" +
		"queue_directory = " + dir + "\nmail_spool_directory = " + s.path("spool") + "\nalias_maps = texthash:" + s.path("aliases") +
		"\ndeliver_lock_attempts = 2\ndeliver_lock_delay = 0\n" + strings.ReplaceAll(settings, "%DIR%", dir)
	cfg, err := config.LoadString(main)
	if err != nil {
		t.Fatal(err)
	}
	s.sink = maillog.New("postfix/local", maillog.NewWriter(s, maillog.Format(0)))
	s.agent, err = newAgent(options{Config: cfg, Service: "local", Users: s, Rewriter: s, Submit: s.client(), Log: s.sink,
		Environ: func(name string) (string, bool) { return "the-" + name, name == "TZ" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.agent.Close(); s.sink.Close() })
	return s
}

// again makes the agent anew, as for a new process.
func (s *site) again() {
	s.t.Helper()
	a, err := newAgent(s.agent.options)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { a.Close() })
	s.agent = a
}

func (s *site) client() *submit.Client {
	path := s.path("cleanup")
	l, err := net.Listen("unix", path)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	server := &ipc.Server{Handler: s.handle}
	go func() { defer close(done); server.Serve(ctx, l, time.Second) }()
	ic := ipc.NewClient(ipc.Unix(path), nil)
	sc := submit.New(ic)
	s.t.Cleanup(func() { sc.Close(); ic.Close(); cancel(); <-done })
	return sc
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) own(path string, u *users.User) {
	if u != nil && rights.Switching() {
		if err := os.Lchown(path, u.UID, u.GID); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *site) mkdir(path string, u *users.User) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		s.t.Fatal(err)
	}
	s.own(path, u)
}

// write makes a file below the directory that belongs to u.
func (s *site) write(name, content string, u *users.User) string {
	s.t.Helper()
	path := s.path(name)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(content, "%DIR%", s.dir)), 0o644); err != nil {
		s.t.Fatal(err)
	}
	os.Chmod(path, 0o644)
	s.own(path, u)
	return path
}

func (s *site) forward(user, content string) {
	s.t.Helper()
	s.write("home/"+user+"/.forward", content, s.users[user])
}

func (s *site) read(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(s.path(name))
	if err != nil {
		s.t.Errorf("%v", err)
	}
	return strings.ReplaceAll(string(b), s.dir, "%DIR%")
}

const message = "Received: x\r\nSubject: hello\r\n\r\nFrom me\r\nbye\r\n"

// deliver delivers the message to addresses and returns what came of each, as
// "sent 2.0.0 text", with the test's directory as %DIR%.
func (s *site) deliver(to ...string) []string { return s.deliverEnv(mail.Envelope{}, message, to...) }

func (s *site) deliverEnv(env mail.Envelope, content string, to ...string) []string {
	s.t.Helper()
	env.ID, env.Sender, env.Arrival = mail.MakeQueueID(time.Now(), 7), "sender@far.test", time.Now()
	for _, a := range to {
		env.Recipients = append(env.Recipients, mail.Recipient{Address: a})
	}
	r := agent.NewTestRequest(env, "example.org", []byte(content), s.sink)
	r.PassBy(s.pass)
	s.agent.Deliver(s.t.Context(), r)
	var out []string
	for _, o := range r.Outcomes() {
		text := strings.ReplaceAll(o.Reason, s.dir, "%DIR%")
		for _, q := range s.queued {
			text = strings.ReplaceAll(text, string(q.Envelope.ID), "NEWID")
		}
		out = append(out, fmt.Sprintf("%s %s %s", o.Action, o.Status, text))
	}
	return out
}

// pass plays the other transports.
func (s *site) pass(_ int, to mail.Recipient, transport mail.Transport, nexthop mail.Nexthop) (mail.Outcome, error) {
	s.passed = append(s.passed, fmt.Sprintf("%s by %s:%s", to.Address, transport, nexthop))
	if s.other == nil {
		return mail.Outcome{Action: dsn.Relayed, Status: dsn.S(2, 1, 5), Reason: "taken", Relay: "there"}, nil
	}
	action, status := s.other(to.Address)
	if action == 0 {
		return mail.Outcome{}, errors.New("mail transport unavailable")
	}
	return mail.Outcome{Action: action, Status: status, Reason: "no", Relay: "there", MTA: "lmtp.test"}, nil
}

func (s *site) expect(got []string, want ...string) {
	s.t.Helper()
	if !slices.Equal(got, want) {
		s.t.Errorf("outcome %q, want %q\nlog: %s", got, want, s.logged())
	}
}

// boxed is the mailbox in the spool without the lines that have a date.
func (s *site) boxed(name string) string {
	s.t.Helper()
	var out []string
	for _, line := range strings.Split(s.read(name), "\n") {
		if strings.HasPrefix(line, "From sender@far.test  ") {
			line = "From sender@far.test  DATE"
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

const stored = "Return-Path: <sender@far.test>\nX-Original-To: %s\nDelivered-To: %s\nReceived: x\nSubject: hello\n\n"

func TestMailbox(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "")
	s.expect(s.deliver("Joe@example.org"), "delivered 2.0.0 delivered to mailbox")
	s.expect(s.deliver("joe+list@example.org"), "delivered 2.0.0 delivered to mailbox")
	want := "From sender@far.test  DATE\n" + fmt.Sprintf(stored, "Joe@example.org", "Joe@example.org") + ">From me\nbye\n\n"
	want += "From sender@far.test  DATE\n" + fmt.Sprintf(stored, "joe+list@example.org", "joe+list@example.org") + ">From me\nbye\n\n"
	if got := s.boxed("spool/joe"); got != want {
		t.Errorf("mailbox:\n%s\nwant:\n%s", got, want)
	}
	s.expect(s.deliver("who@example.org", "ann@example.org"), `failed 5.1.1 unknown user: "who"`, "delivered 2.0.0 delivered to mailbox")
	s.expect(s.deliver("+x@example.org"), `failed 5.1.1 unknown user: "+x"`)
	s.expect(s.deliver("@example.org"), `failed 5.1.3 null username in "@example.org"`)
	s.expect(s.deliver("lookuperror@example.org"), "delayed 4.0.0 user lookup error")
	s.expect(s.deliver("postmaster@example.org"), "delivered 2.0.0 discarded")
	s.expect(s.deliver("root@example.org"), "delivered 2.0.0 delivered to mailbox")
	if !strings.Contains(s.logged(), "to=<who@example.org>, relay=local,") {
		t.Errorf("log %s", s.logged())
	}
}

func TestHomeMailbox(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "home_mailbox = Maildir/")
	s.expect(s.deliver("joe@example.org"), "delivered 2.0.0 delivered to maildir")
	names, _ := filepath.Glob(s.path("home/joe/Maildir/new/*"))
	if len(names) != 1 {
		t.Fatalf("messages %q", names)
	}
	b, _ := os.ReadFile(names[0])
	if want := fmt.Sprintf(stored, "joe@example.org", "joe@example.org") + "From me\nbye\n"; string(b) != want {
		t.Errorf("%s", b)
	}
	s = newSite(t, "", "home_mailbox = Mailbox\nprepend_delivered_header = forward\nenable_original_recipient = no")
	s.expect(s.deliver("joe@example.org"), "delivered 2.0.0 delivered to mailbox")
	if got := s.boxed("home/joe/Mailbox"); strings.Contains(got, "Delivered-To") || strings.Contains(got, "X-Original-To") {
		t.Errorf("%s", got)
	}
	s = newSite(t, "", "mail_spool_directory = %DIR%/spool/")
	s.expect(s.deliver("joe@example.org"), "delivered 2.0.0 delivered to maildir")
	if names, _ := filepath.Glob(s.path("spool/joe/new/*")); len(names) != 1 {
		t.Errorf("messages %q", names)
	}
}

func TestAliases(t *testing.T) {
	t.Parallel()
	s := newSite(t, `
one		joe
two		joe, "Ann" <ann@example.org>
self		self
joe		joe, \ann
loop		pool
pool		loop
far		a@far.test, b@far.test
empty		(nothing)
nofile		/%DIR%/none/x
tofile		%DIR%/file
null		/dev/null
cmd		"|cat > %DIR%/home/nobody/out"
tilde		~/x
tilduser	~joe/x
bad		x@error.test
temp		x@fail.test
mixed		ann, who
ext+a		ann
ext		joe
`, "")
	s.write("file", "", s.users["nobody"])
	s.expect(s.deliver("one@example.org"), "delivered 2.0.0 delivered to mailbox")
	s.expect(s.deliver("two@example.org"), "delivered 2.0.0 delivered to mailbox")
	s.expect(s.deliver("self@example.org"), `failed 5.1.1 unknown user: "self"`)
	s.expect(s.deliver("loop@example.org"), "failed 5.4.6 alias database loop for pool")
	s.expect(s.deliver("empty@example.org"), "delayed 4.3.0 alias database unavailable")
	s.expect(s.deliver("null@example.org"), "delivered 2.0.0 delivered to file: /dev/null")
	s.expect(s.deliver("tofile@example.org"), "delivered 2.0.0 delivered to file: %DIR%/file")
	if !strings.Contains(s.read("file"), "Delivered-To: tofile@example.org\n") {
		t.Errorf("file %s", s.read("file"))
	}
	s.expect(s.deliver("cmd@example.org"), "delivered 2.0.0 delivered to command: cat > %DIR%/home/nobody/out")
	if rights.Switching() {
		st, err := os.Stat(s.path("home/nobody/out"))
		if err != nil || int(statUID(st)) != s.users["nobody"].UID {
			t.Errorf("command as root's alias: %v", err)
		}
	}
	if rights.Switching() { // else the table's owner is somebody with a home
		s.expect(s.deliver("tilde@example.org"), "failed 5.3.5 mail system configuration error")
	}
	s.expect(s.deliver("tilduser@example.org"), "failed 5.3.5 mail system configuration error")
	s.expect(s.deliver("bad@example.org"), "failed 5.1.3 bad recipient address syntax: x@error.test")
	s.expect(s.deliver("temp@example.org"), "delayed 4.3.0 address resolver failure")
	s.expect(s.deliver("mixed@example.org"), `failed 5.1.1 unknown user: "who"`)
	s.expect(s.deliver("ext+a@example.org"), "delivered 2.0.0 delivered to mailbox")
	s.expect(s.deliver("far@example.org"), "expanded 2.0.0 forwarded as NEWID")
	if len(s.queued) != 1 {
		t.Fatalf("%d messages queued", len(s.queued))
	}
	q := s.queued[0]
	if q.Envelope.Sender != "sender@far.test" || len(q.Envelope.Recipients) != 2 || q.Envelope.Recipients[1].Address != "b@far.test" ||
		q.Envelope.Recipients[1].Original != "far@example.org" {
		t.Errorf("%+v", q.Envelope)
	}
	c := string(q.Content)
	if !strings.HasPrefix(c, "Received: by mx.example.org (Posthaste)\r\n\tid "+string(q.Envelope.ID)+"; ") ||
		!strings.HasSuffix(c, "\r\nDelivered-To: far@example.org\r\n"+message) {
		t.Errorf("content %q", c)
	}
}

func statUID(st os.FileInfo) int { return int(st.Sys().(*syscall.Stat_t).Uid) }

func TestLoopAndTrouble(t *testing.T) {
	t.Parallel()
	s := newSite(t, "broken joe\n", "alias_maps = fail:x texthash:%DIR%/aliases")
	s.expect(s.deliver("joe@example.org"), "delayed 4.3.0 alias database unavailable")
	s = newSite(t, "list a@far.test, b@far.test, nofile, joe\nnofile who@fail.test\n", "")
	s.expect(s.deliver("list@example.org"), "delayed 4.3.0 address resolver failure")
	if len(s.queued) != 0 {
		t.Errorf("mail that will be tried again was forwarded: %d messages", len(s.queued))
	}
	s.expect(s.deliverEnv(mail.Envelope{}, "X: 1\r\ndelivered-to: \r\n JOE@example.org\r\n\r\nDelivered-To: ann@example.org\r\n", "joe@example.org", "ann@example.org"),
		"failed 5.4.6 mail forwarding loop for joe@example.org", "delivered 2.0.0 delivered to mailbox")
	s.refuse = true
	s.write("aliases2", "", nil)
	s.forward("ann", "x@far.test\n")
	s.expect(s.deliver("ann@example.org"), "delayed 4.3.0 unable to forward message")
}

func TestDotForward(t *testing.T) {
	t.Parallel()
	s := newSite(t, "all joe, ann\n", "")
	s.forward("joe", "# my mail\n\n\\joe,\n  \"|cat > $HOME/copy\"\nann, x@far.test\n")
	s.expect(s.deliver("joe@example.org"), "expanded 2.0.0 delivered to mailbox; delivered to command: cat > $HOME/copy; forwarded as NEWID")
	if q := s.queued[0].Envelope.Recipients; len(q) != 2 || q[0].Address != "ann@example.org" || q[1].Address != "x@far.test" {
		t.Errorf("queued %+v", q)
	}
	want := "From sender@far.test  DATE\n" + fmt.Sprintf(stored, "joe@example.org", "joe@example.org") + "From me\nbye\n"
	if got := s.boxed("home/joe/copy"); got != want {
		t.Errorf("command got:\n%s", got)
	}
	for name, content := range map[string]string{"joe": "joe\n", "ann": "# nothing\n"} {
		os.Remove(s.path("spool/" + name))
		s.forward(name, content)
		s.expect(s.deliver(name+"@example.org"), "delivered 2.0.0 delivered to mailbox")
	}
	s.write("home/ann/.forward+x", "~/filed\n", s.users["ann"])
	s.expect(s.deliver("ann+x@example.org"), "delivered 2.0.0 delivered to file: %DIR%/home/ann/filed")
	s.expect(s.deliver("ann+y@example.org"), "delivered 2.0.0 delivered to mailbox")
	s.expect(s.deliver("ann+/../../joe/.forward@example.org"), "delivered 2.0.0 delivered to mailbox")
	// One user, reached twice: once.
	s.forward("ann", "once@far.test\n")
	s.write("aliases", "twice deep, ann\ndeep deeper\ndeeper ann\n", nil)
	n := len(s.queued)
	s2 := newSite(t, "twice deep, ann\ndeep deeper\ndeeper ann\n", "")
	s2.forward("ann", "once@far.test\n")
	s2.expect(s2.deliver("twice@example.org"), "expanded 2.0.0 forwarded as NEWID")
	if len(s2.queued) != 1 || len(s2.queued[0].Envelope.Recipients) != 1 || n != len(s.queued) {
		t.Errorf("queued %d", len(s2.queued))
	}
}

// TestForwardFilesOfOthers: files that somebody else could have written are
// not believed.
func TestForwardFilesOfOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "")
	file := s.write("home/joe/.forward", "evil@far.test\n", s.users["joe"])
	os.Chmod(file, 0o666)
	s.expect(s.deliver("joe@example.org"), "delivered 2.0.0 delivered to mailbox")
	os.Remove(file)
	os.Mkdir(file, 0o755)
	s.expect(s.deliver("joe@example.org"), "delivered 2.0.0 delivered to mailbox")
	os.Remove(file)
	want := []string{"is world writable", "is not a regular file"}
	if rights.Switching() {
		s.write("home/joe/.forward", "evil@far.test\n", s.users["ann"])
		s.expect(s.deliver("joe@example.org"), "delivered 2.0.0 delivered to mailbox")
		os.Remove(file)
		secret := s.write("secret", "evil@far.test\n", s.users["root"])
		os.Chmod(secret, 0o600)
		os.Symlink(secret, file)
		s.expect(s.deliver("joe@example.org"), "delivered 2.0.0 delivered to mailbox")
		os.Rename(secret, file)
		s.expect(s.deliver("joe@example.org"), "delivered 2.0.0 delivered to mailbox")
		want = append(want, "has bad owner uid", "permission denied")
	}
	for _, w := range want {
		if !strings.Contains(s.logged(), w) {
			t.Errorf("log lacks %q: %s", w, s.logged())
		}
	}
	if len(s.queued) != 0 {
		t.Errorf("forwarded: %+v", s.queued)
	}
}

// TestSettings: what can only go wrong is refused at once.
func TestSettings(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "")
	s.users["wheel"] = &users.User{Name: "wheel", UID: 60009, GID: 0, Home: "/"}
	for _, tt := range []struct{ settings, want string }{
		{"", ""}, {"mailbox_size_limit = 0\nmessage_size_limit = 0", ""}, {"mailbox_size_limit = 10000\nmessage_size_limit = 10000", ""},
		{"mailbox_size_limit = 9999\nmessage_size_limit = 10000", "mailbox_size_limit = 9999 is smaller than message_size_limit"},
		{"message_size_limit = 0", "is smaller than message_size_limit"}, {"message_size_limit = 60m", "is smaller than message_size_limit"},
		{"mailbox_delivery_lock =", "mailbox_delivery_lock: expected at least one"}, {"mailbox_delivery_lock = lockf", "mailbox_delivery_lock: lock method"},
		{"default_privs = root", "default_privs: user \"root\" has root's rights"}, {"default_privs = wheel", "default_privs: user \"wheel\" has root's rights, or group"},
		{"default_privs = nosuch", "default_privs: there is no user"}, {"default_privs = lookuperror", "default_privs: the directory is down"},
		{"mail_owner = lookuperror", "mail_owner: the directory is down"}, {"allow_mail_to_files = alias, here", `allow_mail_to_files: "here"`},
	} {
		cfg, err := config.LoadString("myhostname = mx.example.org\n" + tt.settings)
		if err != nil {
			t.Fatal(err)
		}
		a, err := newAgent(options{Config: cfg, Users: s, Log: s.sink})
		if err == nil {
			a.Close()
		}
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.settings, err, tt.want)
		}
	}
}

// TestNotWhoseTheQueueIs: mail_owner's .forward, alias table and :include: file
// give nobody his rights, and cannot become default_privs.
func TestNotWhoseTheQueueIs(t *testing.T) {
	t.Parallel()
	s := newSite(t, "id |id\nincluded :include:%DIR%/list\n", "mail_owner = ann\nallow_mail_to_commands = alias, forward, include")
	if !rights.Switching() {
		t.Skip("takes root")
	}
	const id = "\"|id -u >> %DIR%/spool/id\"\n"
	os.Mkdir(s.path("spool/box"), 0o777)
	s.own(s.path("spool/box"), s.users["nobody"])
	s.forward("ann", id+"%DIR%/spool/box/\n")
	s.deliver("ann@example.org")
	s.write("list", id, s.users["ann"])
	s.expect(s.deliver("included@example.org"), "delivered 2.0.0 delivered to command: id -u >> %DIR%/spool/id")
	s.own(s.path("aliases"), s.users["ann"])
	s.write("aliases", "id "+id, s.users["ann"])
	s.again()
	s.expect(s.deliver("id@example.org"), "delivered 2.0.0 delivered to command: id -u >> %DIR%/spool/id")
	if got := s.read("spool/id"); got != strings.Repeat("60003\n", 3) {
		t.Errorf("commands ran as %q", got)
	}
	if boxes, _ := filepath.Glob(s.path("spool/box/new/*")); len(boxes) != 1 {
		t.Errorf("maildir: %q", boxes)
	}
}

// TestAliasTableOfAll: a table that everybody can write to is not believed.
func TestAliasTableOfAll(t *testing.T) {
	t.Parallel()
	s := newSite(t, "one joe\n", "")
	s.expect(s.deliver("one@example.org"), "delivered 2.0.0 delivered to mailbox")
	os.Chmod(s.path("aliases"), 0o666)
	s.again()
	s.expect(s.deliver("one@example.org", "joe@example.org"), "delayed 4.3.0 mail system configuration error", "delivered 2.0.0 delivered to mailbox")
	if !strings.Contains(s.logged(), "alias_maps: the table that has one has no owner, or is world-writable") {
		t.Errorf("log %s", s.logged())
	}
}

// TestIncludeChain: files that include one another without end.
func TestIncludeChain(t *testing.T) {
	t.Parallel()
	s := newSite(t, "chain :include:%DIR%/f0\n", "")
	for i := range 120 {
		s.write(fmt.Sprintf("f%d", i), fmt.Sprintf(":include:%%DIR%%/f%d\n", i+1), nil)
	}
	s.expect(s.deliver("chain@example.org"), "failed 5.4.6 :include: nesting limit exceeded")
	s.write("f50", "x@far.test\n", nil)
	s.expect(s.deliver("chain@example.org"), "expanded 2.0.0 forwarded as NEWID")
}

// TestForwardedEnvelope: what the sender asked for goes on with what is queued
// again, but for success, of which he is told here; not with a list's mail.
func TestForwardedEnvelope(t *testing.T) {
	t.Parallel()
	s := newSite(t, "far x@far.test\nlist x@far.test\nowner-list ann\n", "")
	s.forward("joe", "x@far.test\n")
	env := mail.Envelope{EnvID: "e", Ret: dsn.RetHeaders, Tenant: "acme", Campaign: "spring", Pool: "bulk"}
	for _, tt := range []struct {
		to, want    string
		notify      dsn.Notify
		orcpt, orig string
	}{
		{"far", "expanded 2.0.0 alias expanded; x@far.test far@example.org rfc822;o 2 e 2 sender@far.test", dsn.NotifySuccess | dsn.NotifyFailure, "rfc822;o", ""},
		{"joe", "expanded 2.0.0 alias expanded; x@far.test first@example.org rfc822;o 4 e 2 sender@far.test", dsn.NotifySuccess | dsn.NotifyDelay, "rfc822;o", "first@example.org"},
		{"far", "expanded 2.0.0 alias expanded; x@far.test far@example.org  8 e 2 sender@far.test", dsn.NotifySuccess, "", ""},
		{"far", "expanded 2.0.0 forwarded as NEWID; x@far.test far@example.org  8 e 2 sender@far.test", dsn.NotifyNever, "", ""},
		{"list", "delivered 2.0.0 alias expanded; x@far.test   0  0 owner-list@example.org", dsn.NotifySuccess | dsn.NotifyDelay, "rfc822;o", ""},
		{"list", "expanded 2.0.0 forwarded as NEWID; x@far.test   0  0 owner-list@example.org", dsn.NotifyFailure, "rfc822;o", ""},
	} {
		env.Recipients = []mail.Recipient{{Address: tt.to + "@example.org", Notify: tt.notify, ORCPT: tt.orcpt, Original: tt.orig}}
		got := s.deliverEnv(env, message)
		if len(s.queued) != 1 {
			t.Fatalf("%s: queued %d", tt.to, len(s.queued))
		}
		e := s.queued[0].Envelope
		// Whose mail it is, and what it is sent from, stays with it.
		if e.Tenant != env.Tenant || e.Campaign != env.Campaign || e.Pool != env.Pool {
			t.Errorf("%s: of %s/%s from %s", tt.to, e.Tenant, e.Campaign, e.Pool)
		}
		r := e.Recipients[0]
		got[0] += fmt.Sprintf("; %s %s %s %d %s %d %s", r.Address, r.Original, r.ORCPT, r.Notify, e.EnvID, e.Ret, e.Sender)
		s.expect(got, tt.want)
		s.queued = nil
	}
}

// TestOwnExpansion: what one user's files can lead to is bounded; the lists of
// administrators are not.
func TestOwnExpansion(t *testing.T) {
	t.Parallel()
	const many = maxOwn + 1
	var list strings.Builder
	for i := range many {
		fmt.Fprintf(&list, "reader%d@far.test\n", i)
	}
	s := newSite(t, "all :include:%DIR%/members\n", "duplicate_filter_limit = 10")
	s.write("members", list.String(), nil)
	s.expect(s.deliver("all@example.org"), "expanded 2.0.0 forwarded as NEWID")
	s.forward("joe", "all\n")
	s.expect(s.deliver("joe@example.org"), "expanded 2.0.0 forwarded as NEWID")
	s.forwards()
	const tooMuch = ": it lists more than 10000 destinations, or is larger than 1048576 bytes"
	s.forward("joe", list.String())
	s.expect(s.deliver("joe@example.org"), "failed 5.2.4 cannot expand %DIR%/home/joe/.forward"+tooMuch)
	if got := len(s.forwards()); got != 0 || !strings.Contains(s.logged(), "warning: file "+s.path("home/joe/.forward")+tooMuch) {
		t.Errorf("%d forwarded; log %s", got, s.logged())
	}
	s.forward("joe", ":include:%DIR%/home/joe/more, here@far.test\n")
	s.write("home/joe/more", list.String(), s.users["joe"])
	s.expect(s.deliver("joe@example.org"), "failed 5.2.4 cannot expand %DIR%/home/joe/more"+tooMuch)
	s.forwards()
	s = newSite(t, "both joe, ann\nall :include:%DIR%/members\n", "duplicate_filter_limit = 10")
	for _, user := range []string{"joe", "ann"} { // each for himself
		s.forward(user, strings.Repeat(user+"@far.test\n", maxOwn))
	}
	s.expect(s.deliver("both@example.org"), "expanded 2.0.0 forwarded as NEWID")
	s.forwards()
	// What is no destination counts too.
	for _, filler := range []string{"#\n", "\n", ",", "(x) "} {
		s.forward("joe", "x@far.test\n"+strings.Repeat(filler, maxOwnFile/len(filler)+1))
		got := s.deliver("joe@example.org")
		if !strings.HasPrefix(got[0], "failed 5.2.4 cannot expand %DIR%/home/joe/.forward: ") {
			t.Errorf("%q: %s", filler, got)
		}
	}
	// An administrator's list, too large to be a user's.
	list.Reset()
	for i := range 18 {
		fmt.Fprintf(&list, "reader%d%s@far.test\n", i, strings.Repeat("x", maxLed/17))
	}
	s.write("members", list.String(), nil)
	s.forward("joe", "all\n")
	s.expect(s.deliver("joe@example.org"), "failed 5.2.4 too many destinations")
}

func TestInclude(t *testing.T) {
	t.Parallel()
	s := newSite(t, `
list		:include:%DIR%/members
owner-list	ann
open		:include:%DIR%/open
relative	:include:members
missing		:include:/nowhere/members
cmds		:include:%DIR%/cmds
nested		:include:%DIR%/nested
`, "")
	s.write("members", "joe\n# not: this\nx@far.test,\n  y@far.test\n", nil)
	open := s.write("open", "joe\n", nil)
	os.Chmod(open, 0o666)
	s.write("cmds", "|true\n/tmp/x\n", nil)
	s.write("nested", ":include:%DIR%/nested\n:include:%DIR%/members\n", nil)
	s.expect(s.deliverEnv(mail.Envelope{EnvID: "e", Ret: dsn.RetHeaders}, message, "list@example.org"),
		"expanded 2.0.0 forwarded as NEWID")
	e := s.queued[0].Envelope
	if e.Sender != "owner-list@example.org" || e.EnvID != "" || e.Ret != 0 || len(e.Recipients) != 3 || e.Recipients[0].Original != "" {
		t.Errorf("the list's envelope: %+v", e)
	}
	s.expect(s.deliver("open@example.org"), "failed 5.3.5 mail system configuration error")
	s.expect(s.deliver("relative@example.org"), "failed 5.3.5 mail system configuration error")
	s.expect(s.deliver("missing@example.org"), "failed 5.3.5 mail system configuration error")
	s.expect(s.deliver("cmds@example.org"), "failed 5.7.1 mail to command is restricted; mail to file is restricted")
	s.expect(s.deliver("nested@example.org"), "expanded 2.0.0 forwarded as NEWID")
	if !rights.Switching() {
		return
	}
	s = newSite(t, "cmds :include:%DIR%/cmds\n", "allow_mail_to_commands = alias, include")
	s.write("cmds", "\"|id -u > %DIR%/home/joe/id\"\n", s.users["joe"])
	s.expect(s.deliver("cmds@example.org"), "delivered 2.0.0 delivered to command: id -u > %DIR%/home/joe/id")
	if got := s.read("home/joe/id"); got != "60001\n" {
		t.Errorf("ran as %s", got)
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	s := newSite(t, `
fail		"|echo no such thing; exit 67"
temp		"|exit 75"
odd		"|exit 3"
coded		"|echo 4.2.2 quota is full; exit 1"
died		"|kill -9 $$"
deaf		"|true"
`, "command_execution_directory = %DIR%\nmailbox_command = env > $HOME/env; pwd > $HOME/pwd; id -u >> $HOME/pwd; id -g >> $HOME/pwd; id -G >> $HOME/pwd")
	s.users["joe"].Groups = []int{60077}
	s.expect(s.deliver("fail@example.org"), "failed 5.1.1 user unknown. Command output: no such thing")
	s.expect(s.deliver("temp@example.org"), "delayed 4.3.0 temporary failure")
	s.expect(s.deliver("odd@example.org"), `failed 5.3.0 Command died with status 3: "exit 3"`)
	s.expect(s.deliver("coded@example.org"), "delayed 4.2.2 quota is full")
	s.expect(s.deliver("died@example.org"), `delayed 4.3.0 Command died with signal 9: "kill -9 $$"`)
	hurried := newSite(t, "hang		\"|sleep 1000\"\n", "command_time_limit = 1s") // the others have the time that they need
	hurried.expect(hurried.deliver("hang@example.org"), `failed 5.3.0 Command time limit exceeded: "sleep 1000"`)
	s.expect(s.deliverEnv(mail.Envelope{}, strings.Repeat("x\r\n", 1<<18), "deaf@example.org"), "delivered 2.0.0 delivered to command: true")
	s.expect(s.deliverEnv(mail.Envelope{EnvID: "e1;", Client: mail.Client{Name: "c.test", Addr: "192.0.2.1", Helo: "c`rm`", Proto: "ESMTP"},
		SASL: mail.SASL{Method: "PLAIN", Username: "u"}}, message, `joe+a"b@example.org`),
		"delivered 2.0.0 delivered to command: env > $HOME/env; pwd > $HOME/pwd; id -u >> $HOME/pwd; id -g >> $HOME/pwd; id -G >> $HOME/pwd")
	env := strings.Split(strings.TrimSpace(s.read("home/joe/env")), "\n")
	env = slices.DeleteFunc(env, func(v string) bool {
		return strings.HasPrefix(v, "_=") || strings.HasPrefix(v, "SHLVL=") || strings.HasPrefix(v, "OLDPWD=")
	})
	slices.Sort(env)
	want := []string{"CLIENT_ADDRESS=192.0.2.1", "CLIENT_HELO=c_rm_", "CLIENT_HOSTNAME=c.test", "CLIENT_PROTOCOL=ESMTP", "DOMAIN=example.org", "ENVID=e1_",
		"EXTENSION=a_b", "HOME=%DIR%/home/joe", "LOCAL=joe+a_b", "LOGNAME=joe", "ORIGINAL_RECIPIENT=joe+a_b@example.org", "PATH=/usr/bin:/bin",
		"PWD=%DIR%", "RECIPIENT=joe+a_b@example.org", "SASL_METHOD=PLAIN", "SASL_USERNAME=u", "SENDER=sender@far.test", "SHELL=/bin/bash", "TZ=the-TZ", "USER=joe"}
	if !slices.Equal(env, want) {
		t.Errorf("environment %q\nwant %q", env, want)
	}
	if got := s.read("home/joe/pwd"); rights.Switching() && got != "%DIR%\n60001\n60001\n60001 60077\n" {
		t.Errorf("directory and ids: %q", got)
	}
}

func TestUnknownUsers(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "luser_relay = $user@catch.test")
	s.expect(s.deliver("who+x@example.org"), "expanded 2.0.0 forwarded as NEWID")
	if got := s.queued[0].Envelope.Recipients[0].Address; got != "who@catch.test" {
		t.Errorf("to %s", got)
	}
	s = newSite(t, "", "luser_relay = ann+unknown-$local")
	s.expect(s.deliver("who@example.org"), "delivered 2.0.0 delivered to mailbox")
	if got := s.read("spool/ann"); !strings.Contains(got, "Delivered-To: who@example.org\n") {
		t.Errorf("%s", got)
	}
	s = newSite(t, "", "luser_relay = $user")
	s.expect(s.deliver("who@example.org"), `failed 5.1.1 unknown user: "who"`)
	s = newSite(t, "", "require_home_directory = yes")
	os.Remove(s.users["joe"].Home)
	s.expect(s.deliver("joe@example.org"), "delayed 4.3.0 cannot access home directory %DIR%/home/joe: No such file or directory")
	s.expect(s.deliver("ann@example.org"), "delivered 2.0.0 delivered to mailbox")
}

// TestLuserRelayOfStrangers: the name that a stranger writes to can make no
// command, file or list of luser_relay.
func TestLuserRelayOfStrangers(t *testing.T) {
	t.Parallel()
	for _, relay := range []string{"$user@catch.test", "$local@catch.test", "$recipient@catch.test", "$extension@catch.test"} {
		s := newSite(t, "", "luser_relay = "+relay+"\nallow_mail_to_commands = alias, include\nallow_mail_to_files = alias, include")
		s.write("commands", "|touch %DIR%/spool/did\n", s.users["nobody"])
		for _, name := range []string{"|touch " + s.path("spool/did") + ";#", s.path("spool/did"), s.path("spool") + "/", ":include:" + s.path("commands"),
			"ann, |touch " + s.path("spool/did") + ",b", "~/did", "ann joe", `\|touch ` + s.path("spool/did") + ";#", `"|touch ` + s.path("spool/did") + `"`} {
			if relay == "$extension@catch.test" {
				name = "who+" + strings.ReplaceAll(name, "/", ";")
			}
			n := len(s.queued)
			s.expect(s.deliver(name+"@example.org"), "expanded 2.0.0 forwarded as NEWID")
			if len(s.queued) == n+1 && len(s.queued[n].Envelope.Recipients) != 1 {
				t.Errorf("%s for %s: queued for %+v", relay, name, s.queued[n].Envelope.Recipients)
			}
		}
		if left, _ := filepath.Glob(s.path("spool/*")); len(left) != 0 {
			t.Errorf("luser_relay = %s: somebody could write %q", relay, left)
		}
	}
	// The same, where it stays here.
	s := newSite(t, "", "luser_relay = $local+x")
	s.expect(s.deliver("|touch "+s.path("spool/did")+"@example.org"), `failed 5.1.1 unknown user: "|touch %DIR%/spool/did"`)
	s.expect(s.deliver("ann, joe@example.org"), `failed 5.1.1 unknown user: "ann, joe"`)
	s = newSite(t, "", "luser_relay = $extension")
	s.expect(s.deliver("who@example.org"), `failed 5.1.1 unknown user: "who"`)
	s.expect(s.deliver("who+else@example.org"), `failed 5.1.1 unknown user: "else"`)
	s.expect(s.deliver("who+joe@example.org"), "delivered 2.0.0 delivered to mailbox")
}

func TestTrace(t *testing.T) {
	t.Parallel()
	s := newSite(t, "one joe\nfar x@far.test\ncmd |date\nfile /tmp/x\n", "")
	s.forward("ann", "x@far.test\n")
	report := mail.Envelope{Trace: mail.TraceReport}
	for to, want := range map[string]string{
		"joe": "deliverable 2.0.0 delivers to mailbox", "one": "deliverable 2.0.0 delivers to mailbox",
		"far": "deliverable 2.0.0 forwards to x@far.test", "cmd": "deliverable 2.0.0 delivers to command: date",
		"file": "deliverable 2.0.0 delivers to file: /tmp/x", "ann": "deliverable 2.0.0 forwards to x@far.test",
		"who": `undeliverable 5.1.1 unknown user: "who"`,
	} {
		s.expect(s.deliverEnv(report, message, to+"@example.org"), want)
	}
	probe := mail.Envelope{Trace: mail.TraceProbe}
	s.expect(s.deliverEnv(probe, message, "far@example.org"), "deliverable 2.0.0 aliased to x@far.test")
	s.expect(s.deliverEnv(probe, message, "ann@example.org"), "deliverable 2.0.0 forward via file: %DIR%/home/ann/.forward")
	if left, _ := filepath.Glob(s.path("spool/*")); len(left) != 0 || len(s.queued) != 0 {
		t.Errorf("something was delivered: %q, %d", left, len(s.queued))
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want []token
	}{
		{"", nil},
		{"joe", []token{{tokenAddress, "joe"}}},
		{"joe, ann@x , \"Joe, the\" <j@y>", []token{{tokenAddress, "joe"}, {tokenAddress, "ann@x"}, {tokenAddress, "j@y"}}},
		{`"|a b, c", d`, []token{{tokenCommand, "a b, c"}, {tokenAddress, "d"}}},
		{`|a b "c, d", e`, []token{{tokenCommand, "a"}, {tokenAddress, "b"}, {tokenAddress, "c, d"}, {tokenAddress, "e"}}},
		{`joe "|a b" /c ~/d :include:/e ann`, []token{{tokenAddress, "joe"}, {tokenCommand, "a b"}, {tokenFile, "/c"}, {tokenHome, "~/d"}, {tokenInclude, "/e"}, {tokenAddress, "ann"}}},
		{`\joe "|vacation joe"`, []token{{tokenAddress, "joe"}, {tokenCommand, "vacation joe"}}},
		{`"|a"joe <"|b c">, Joe </d>`, []token{{tokenCommand, "b c"}, {tokenFile, "/d"}}},
		{`"/a b"@x`, []token{{tokenFile, "/a b@x"}}},
		{`"|say \"hi\""`, []token{{tokenCommand, `say "hi"`}}},
		{`/a/b, "/c d/", ~/x`, []token{{tokenFile, "/a/b"}, {tokenFile, "/c d/"}, {tokenHome, "~/x"}}},
		{`:include:/a/b, ":Include:/c d"`, []token{{tokenInclude, "/a/b"}, {tokenInclude, "/c d"}}},
		{`\joe`, []token{{tokenAddress, "joe"}}},
		{`"odd user"@x`, []token{{tokenAddress, "odd user@x"}}},
		{"joe (a, b)", []token{{tokenAddress, "joe"}}},
		{",,(c),", nil},
	} {
		if got := parseTokens(tt.text); !slices.Equal(got, tt.want) {
			t.Errorf("%q: %+v, want %+v", tt.text, got, tt.want)
		}
	}
}

// TestForesee: trivial-rewrite is asked ahead about members of lists, of one line or of
// many, each before its turn; about a single address, or what is none, it is not.
func TestForesee(t *testing.T) {
	t.Parallel()
	s := newSite(t, "list :include:%DIR%/members\nsingle only@far.test\nboth one@far.test, two@far.test, joe\n", "allow_mail_to_commands = alias, include")
	file, want := "# members\n", []string(nil)
	for i := range 2*maxForeseen + 3 {
		file += fmt.Sprintf("m%d@far.test\n", i)
		want = append(want, fmt.Sprintf("sender@far.test m%d@far.test", i))
		if i == 70 {
			file += "|true\njoe\n\n"
		}
	}
	s.write("members", file, nil)
	for to, want := range map[string][]string{"list": want, "single": nil, "both": {"sender@far.test one@far.test", "sender@far.test two@far.test"}} {
		s.foreseen = nil
		s.deliver(to + "@example.org")
		if !slices.Equal(s.foreseen, want) {
			t.Errorf("%s: asked about %q, want %q", to, s.foreseen, want)
		}
	}
	if got := s.forwards(); len(got) < 2*maxForeseen+6 {
		t.Errorf("forwarded to %d", len(got))
	}
}

func FuzzTokens(f *testing.F) {
	f.Add("a, \"|b\", :include:/c (x) <d@e>\n f\n")
	f.Fuzz(func(t *testing.T, text string) {
		eachLine(strings.NewReader(text), func(line string) bool {
			for _, tok := range parseTokens(line) {
				if tok.kind == tokenFile && !strings.HasPrefix(tok.text, "/") {
					t.Errorf("%q: file %q", text, tok.text)
				}
			}
			return true
		})
	})
}
