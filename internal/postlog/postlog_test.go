package postlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/testwait"
)

// memory is a sink that remembers, and is full when told to.
type memory struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	full  bool
	tried chan struct{} // gets one for each refusal
}

func (m *memory) Format() maillog.Format { return maillog.Classic }
func (m *memory) Write(lines []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full {
		select {
		case m.tried <- struct{}{}:
		default:
		}
		return 0, errors.New("no space left on device")
	}
	return m.buf.Write(lines)
}
func (m *memory) Close() error { return nil }
func (m *memory) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.buf.String()
}

// start runs the server on a socket. stop ends it and returns its error.
func start(t *testing.T, sink maillog.Sink) (path string, stop func() error) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "postlog")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{sink: sink}
	var writing sync.Mutex
	done := make(chan error, 1)
	go func() { done <- s.serve(ctx, c, &writing, func() {}) }()
	var once sync.Once
	stop = func() (err error) {
		once.Do(func() {
			cancel()
			err = <-done
		})
		return err
	}
	t.Cleanup(func() { stop() })
	return path, stop
}

func dial(t *testing.T, path string) net.Conn {
	t.Helper()
	c, err := net.Dial("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testwait.Patience))
	return c
}

// TestServer: everything that was sent before the end is written, in order,
// clean, one line each.
func TestServer(t *testing.T) {
	t.Parallel()
	sink := &memory{}
	path, stop := start(t, sink)
	c := dial(t, path)
	want := ""
	for i := range 300 {
		fmt.Fprintf(c, "first %d\nsecond %d\n", i, i)
		want += fmt.Sprintf("first %d\nsecond %d\n", i, i)
	}
	for _, d := range []string{"no newline", "a\x1b[2J\x07b\r\n\n", "W", "\xff\xfe\n", "ä\n"} {
		fmt.Fprint(c, d)
	}
	want += "no newline\na?[2J?b?\n??\nä\n"
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := sink.String(); got != want {
		t.Errorf("got %d bytes, want %d; end %q", len(got), len(want), got[max(0, len(got)-100):])
	}
}

// TestFull: while the disk is full nothing is lost.
func TestFull(t *testing.T) {
	t.Parallel()
	sink := &memory{full: true, tried: make(chan struct{}, 1)}
	path, stop := start(t, sink)
	fmt.Fprintln(dial(t, path), "one")
	<-sink.tried
	fmt.Fprintln(dial(t, path), "two")
	<-sink.tried
	sink.mu.Lock()
	sink.full = false
	sink.mu.Unlock()
	testwait.Until(t, "both lines are written", func() bool { return sink.String() == "one\ntwo\n" })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("one\ntwo\x00\n\nW\nthree"))
	f.Add([]byte("\x011793000000123456one\n\x019993000000123456two\n\x01x\n\x010000000000000000three"))
	now := time.UnixMicro(1800000000000000)
	f.Fuzz(func(t *testing.T, datagram []byte) {
		var q sequence
		q.add([]byte("before\n"), now)
		q.add(datagram, now)
		b := q.appendDue(nil, now, true)
		if !bytes.Contains(b, []byte("before\n")) || b[len(b)-1] != '\n' || len(q.lines) > 0 || len(q.text) > 0 {
			t.Fatalf("%q", b)
		}
		for line := range bytes.Lines(b) {
			if len(line) < 2 {
				t.Fatalf("an empty line in %q", b)
			}
			for _, c := range line[:len(line)-1] {
				if c < ' ' || c == 0x7f {
					t.Fatalf("byte %#x in %q", c, line)
				}
			}
		}
		q.add(b, now)
		if again := q.appendDue(nil, now, true); !bytes.Equal(again, b) {
			t.Fatalf("%q is not clean: %q", b, again)
		}
	})
}

// stamped is a line as a service sends it that logged it at micros.
func stamped(micros int64, text string) string { return fmt.Sprintf("\x01%016d%s\n", micros, text) }

// TestOrder: lines come out in the order in which they were logged, once each
// has been held back for its time, whatever the order in which they arrive.
func TestOrder(t *testing.T) {
	t.Parallel()
	const t0 = 1793000000000000
	hold, batch := holdTime.Microseconds(), batchTime.Microseconds()
	at := func(micros int64) time.Time { return time.UnixMicro(t0 + micros) }
	var q sequence
	if !q.due(at(0)).IsZero() {
		t.Error("nothing is due")
	}
	q.add([]byte(stamped(t0+3, "c")+stamped(t0+5, "e")+stamped(t0+5, "f")), at(9))
	q.add([]byte(stamped(t0+1, "a")+"i\n"+stamped(t0+4, "d")), at(10))  // i has no time: 10
	q.add([]byte(stamped(t0+99999999, "j")+stamped(t0+2, "b")), at(11)) // j lies ahead: 11
	q.add([]byte(stamped(t0+9, "g")+stamped(t0+10, "h?")), at(12))
	for _, step := range []struct {
		micros int64
		want   string
		due    int64
	}{
		{12, "", 1}, {hold, "", 1}, {hold + 1, "a", 2}, {hold + 5, "bcdef", 9}, {hold + 10, "gih?", 11}, {hold + 11, "j", -1}, {hold + 99, "", -1},
	} {
		got := strings.ReplaceAll(string(q.appendDue(nil, at(step.micros), false)), "\n", "")
		if got != step.want {
			t.Errorf("at %d: %q, want %q", step.micros, got, step.want)
		}
		if due := q.due(at(step.micros)); step.due < 0 && !due.IsZero() || step.due > 0 && !due.Equal(at(step.due+hold+batch)) {
			t.Errorf("at %d: due at %v", step.micros, due.UnixMicro()-t0)
		}
	}
	// The clock is set back.
	q.add([]byte(stamped(t0+3, "c")), at(9))
	if due := q.due(at(-1000000)); !due.Equal(at(-1000000 + hold + batch)) {
		t.Errorf("due at %v", due.UnixMicro()-t0)
	}
	if got := q.appendDue(nil, at(-1000000), false); string(got) != "c\n" {
		t.Errorf("a line from the future: %q", got)
	}
}

// configure writes a configuration whose log is a file, and returns its
// directory.
func configure(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf("queue_directory = %s/queue\nmaillog_file = %s/maillog\nmaillog_file_prefixes = %s\n", dir, dir, dir)
	if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCommand(t *testing.T) {
	t.Setenv("MAIL_LOGTAG", "")
	pid := fmt.Sprintf("[%d]: ", os.Getpid())
	for _, test := range []struct {
		args        string
		stdin, want string // of the log, after the host
		err         string
	}{
		{args: "hello world", want: "postfix/postlog" + pid + "hello world\n"},
		{args: "-t tag -p warn -i hello", want: "tag" + pid + "warning: hello\n"},
		{args: "-ttag -pfatal -v", stdin: "one\ntwo\n", want: "tag" + pid + "fatal: one\n" + "tag" + pid + "fatal: two\n"},
		{args: "-p error -- -x", want: "postfix/postlog" + pid + "error: -x\n"},
		{args: "-p panic x", want: "postfix/postlog" + pid + "panic: x\n"},
		{args: "-p loud x", err: `unknown priority "loud"`},
		{args: "-z x", err: "unknown option -z"},
		{args: "-t", err: "option -t: expected a value"},
	} {
		dir := configure(t)
		var errs bytes.Buffer
		status := Command(append([]string{"-c", dir}, strings.Fields(test.args)...), strings.NewReader(test.stdin), &errs)
		b, _ := os.ReadFile(filepath.Join(dir, "maillog"))
		got := ""
		for line := range strings.Lines(string(b)) {
			_, rest, _ := strings.Cut(line[len("Jan  2 15:04:05 "):], " ")
			got += rest
		}
		if got != test.want || (status != 0) != (test.err != "") || !strings.Contains(errs.String(), test.err) {
			t.Errorf("%q: status %d, %q, log %q; want %q", test.args, status, errs.String(), got, test.want)
		}
	}
}

// TestCommandSocket: with a running mail system the line goes to postlogd.
// A user who can neither reach the service nor write the file is told who can.
func TestWhoMay(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("mail_owner = postmaster\nsetgid_group = mailers\n")
	if err != nil {
		t.Fatal(err)
	}
	denied := &os.PathError{Op: "open", Path: "/var/log/mail.log", Err: syscall.EACCES}
	got := whoMay(cfg, denied)
	if !errors.Is(got, denied) || !strings.Contains(got.Error(), "root, postmaster and members of the group mailers") {
		t.Errorf("%v", got)
	}
	full := &os.PathError{Op: "write", Path: "/var/log/mail.log", Err: syscall.ENOSPC}
	if got := whoMay(cfg, full); got != error(full) || whoMay(cfg, nil) != nil {
		t.Errorf("%v", got)
	}
}

func TestCommandSocket(t *testing.T) {
	t.Parallel()
	dir := configure(t)
	if err := os.MkdirAll(filepath.Join(dir, "queue/public"), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "queue/public/postlog"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var errs bytes.Buffer
	if status := Command([]string{"-c", dir, "-t", "x", "by way of the socket"}, strings.NewReader(""), &errs); status != 0 {
		t.Fatalf("status %d: %s", status, &errs)
	}
	b := make([]byte, 200)
	c.SetReadDeadline(time.Now().Add(testwait.Patience))
	n, err := c.Read(b)
	if err != nil || !strings.HasSuffix(string(b[:n]), "]: by way of the socket\n") {
		t.Errorf("%q, %v", b[:n], err)
	}
	if _, err := os.Stat(filepath.Join(dir, "maillog")); err == nil {
		t.Error("the file was written as well")
	}
}
