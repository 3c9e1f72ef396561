package spawn

import (
	"context"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/local/users"
)

// db has this user under the name policyd, another one if this is root.
type db struct{}

func (db) Lookup(name string) (*users.User, error) {
	switch name {
	case "policyd":
		if os.Getuid() != 0 {
			return &users.User{Name: name, UID: os.Getuid(), GID: os.Getgid()}, nil
		}
		return &users.User{Name: name, UID: 60001, GID: 60001}, nil
	case "root":
		return &users.User{Name: name}, nil
	case "mailowner":
		return &users.User{Name: name, UID: 60009, GID: 60009}, nil
	}
	return nil, nil
}
func (db) LookupID(int) (*users.User, error) { return nil, nil }
func (db) LookupGroup(name string) (int, bool, error) {
	gid, ok := map[string]int{"wheel": 0, "crowd": 60050}[name]
	return gid, ok, nil
}

type lockedLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func newTest(t *testing.T, args ...string) (*server, *maillog.Logger, *lockedLog, error) {
	t.Helper()
	cfg, err := config.LoadString("mail_owner = mailowner\npolicy_time_limit = 100s\nshort_time_limit = 1s\nexport_environment = COLOUR=red\n")
	if err != nil {
		t.Fatal(err)
	}
	text := new(lockedLog)
	log := maillog.New("postfix/spawn", maillog.NewWriter(text, maillog.Classic))
	t.Cleanup(func() { log.Close() })
	s, err := newServer(cfg, args[0], args[1:], db{}, log)
	return s, log, text, err
}

// client has s serve one client over TCP, and returns what the client read to
// the end, and the log.
func client(t *testing.T, ctx context.Context, talk func(net.Conn), args ...string) (said, logged string) {
	t.Helper()
	s, log, text, err := newTest(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.serve(ctx, accepted) })
	if talk != nil {
		talk(c)
	}
	b, _ := io.ReadAll(c)
	wg.Wait()
	log.Flush()
	return string(b), text.b.String()
}

// A command talks with its client, as somebody else, with nothing of ours in
// its environment or open.
func TestDialogue(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script")
	text := "while read line && [ -n \"$line\" ]; do echo \"$0 got $line\"; done\nenv | grep -v ^PWD=; id -u; ls /proc/self/fd | tr '\\n' ' '\necho error >&2\n"
	if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(script); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755) // for somebody else
	}
	said, logged := client(t, t.Context(), func(c net.Conn) {
		io.WriteString(c, "one\n")
		var b [64]byte
		if n, _ := c.Read(b[:]); string(b[:n]) != "it got one\n" {
			t.Errorf("read %q", b[:n])
		}
		io.WriteString(c, "two\n\n")
	}, "policy", "user=policyd", "argv=/bin/sh", "-c", ". "+script, "it")
	uid := "60001"
	if u, err := user.Current(); err == nil && os.Getuid() != 0 {
		uid = u.Uid
	}
	want := "it got two\n"
	for _, part := range []string{want, "COLOUR=red\n", "PATH=/usr/bin:/bin\n", "\n" + uid + "\n", "0 1 2 3 ", "error\n"} {
		if !strings.Contains(said, part) {
			t.Errorf("no %q in %q", part, said)
		}
	}
	if strings.Contains(said, "HOME=") || logged != "" {
		t.Errorf("said %q, logged %q", said, logged)
	}
}

// What a command does wrong is a warning.
func TestWarnings(t *testing.T) {
	t.Parallel()
	stopping, stop := context.WithCancel(t.Context())
	defer stop()
	for _, c := range []struct {
		ctx  context.Context
		args []string
		want string
	}{
		{t.Context(), []string{"policy", "user=policyd", "argv=/bin/sh", "-c", "exit 7"}, `warning: command "/bin/sh -c exit 7" exit status 7`},
		{t.Context(), []string{"policy", "user=policyd", "argv=/bin/sh", "-c", "kill -9 $$"}, `killed by signal 9`},
		{t.Context(), []string{"short", "user=policyd", "argv=/bin/sleep", "1000"}, `warning: command "/bin/sleep 1000" killed: it took longer than 1s`},
		{t.Context(), []string{"policy", "user=policyd", "argv=/does/not/exist"}, `warning: cannot run command "/does/not/exist": `},
		{stopping, []string{"policy", "user=policyd", "argv=/bin/sleep", "1000"}, `warning: command "/bin/sleep 1000" killed: the mail system is stopping`},
	} {
		talk := func(net.Conn) {}
		if c.ctx == stopping {
			talk = func(net.Conn) { time.AfterFunc(50*time.Millisecond, stop) }
		}
		if said, logged := client(t, c.ctx, talk, c.args...); said != "" || !strings.Contains(logged, c.want) || strings.Count(logged, "\n") != 1 {
			t.Errorf("%q: said %q, logged %q, want %q", c.args, said, logged, c.want)
		}
	}
}

// What master.cf says is checked when the service starts.
func TestAttributes(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                                   "expected user=NAME",
		"argv=/bin/cat":                      "expected user=NAME",
		"user=policyd":                       "expected argv=COMMAND",
		"user=policyd argv=":                 "expected argv=COMMAND",
		"user=nobody-here argv=/bin/cat":     `there is no user "nobody-here"`,
		"user=root argv=/bin/cat":            "without root's privileges",
		"user=policyd:wheel argv=/bin/cat":   "without root's privileges",
		"user=policyd:none argv=/bin/cat":    `there is no group "none"`,
		"flags=R user=policyd argv=/bin/cat": `attribute "flags=R" is not known`,
		"user=policyd /bin/cat":              `attribute "/bin/cat" is not known`,
	} {
		_, _, _, err := newTest(t, append([]string{"policy"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "service policy: spawn: ") {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	s, _, _, err := newTest(t, "policy", "user=policyd:crowd", "argv=/bin/cat", "-u", "argv=x")
	if err != nil || strings.Join(s.command.Args, " ") != "/bin/cat -u argv=x" || s.command.Rights.GID != 60050 || s.command.Limit != 100*time.Second {
		t.Errorf("%+v, %v", s, err)
	}
	if _, _, _, err := newTest(t, "policy", "user=mailowner", "argv=/bin/cat"); os.Getuid() == 0 && (err == nil || !strings.Contains(err.Error(), "the mail system's privileges")) {
		t.Error("mail_owner:", err)
	}
}
