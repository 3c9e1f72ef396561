package maillog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/quickio"
	"posthaste/internal/reuse"
	"posthaste/internal/testwait"
)

// memory is a sink that remembers, and fails when told to.
type memory struct {
	mu     sync.Mutex
	format Format
	buf    bytes.Buffer
	writes int
	fail   bool
	sizes  []int
}

func (m *memory) Format() Format { return m.format }
func (m *memory) Write(lines []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail {
		return 0, errors.New("away")
	}
	m.writes++
	m.sizes = append(m.sizes, len(lines))
	return m.buf.Write(lines)
}
func (m *memory) Close() error { return nil }
func (m *memory) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.buf.String()
}
func (m *memory) setFail(fail bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = fail
}

func TestGather(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := &memory{format: Plain}
		l := New("postfix/test", sink)
		defer l.Close()
		for i := range 100 {
			l.Info("line %d", i)
		}
		if sink.String() != "" {
			t.Error("written at once")
		}
		time.Sleep(gatherTime)
		synctest.Wait()
		if n := strings.Count(sink.String(), "\n"); n != 100 || sink.writes != 1 {
			t.Errorf("%d lines in %d writes, want 100 in one", n, sink.writes)
		}
		l.Error("now")
		if !strings.HasSuffix(sink.String(), "postfix/test: error: now\n") {
			t.Error("an error waits")
		}
	})
}

func TestBatches(t *testing.T) {
	t.Parallel()
	sink := &memory{format: Plain}
	l := New("t", sink)
	long := strings.Repeat("x", 7000)
	for range 40 {
		l.Info("%s", long)
	}
	l.Close()
	for _, n := range sink.sizes {
		if n > maxBatch {
			t.Errorf("a write of %d bytes", n)
		}
	}
	for line := range strings.Lines(sink.String()) {
		if line != "t: "+long+"\n" {
			t.Fatalf("a line was torn: %d bytes", len(line))
		}
	}
	if n := strings.Count(sink.String(), "\n"); n != 40 {
		t.Errorf("%d lines", n)
	}
}

// TestAway has the sink fail for a while: nothing is lost, order is kept.
func TestAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := &memory{format: Plain, fail: true}
		l := New("t", sink)
		defer l.Close()
		want := ""
		for i := range 50 {
			l.Info("%d", i)
			want += fmt.Sprintf("t: %d\n", i)
			time.Sleep(7 * ms)
		}
		sink.setFail(false)
		time.Sleep(retryTime)
		synctest.Wait()
		if got := sink.String(); got != want {
			t.Errorf("got %q", got)
		}
	})
}

func TestDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := &memory{format: Plain, fail: true}
		l := New("t", sink)
		line := strings.Repeat("x", 1020)
		const n = 2000
		for range n {
			l.Info("%s", line)
		}
		sink.setFail(false)
		time.Sleep(time.Second)
		synctest.Wait()
		l.Close()
		kept := strings.Count(sink.String(), line)
		want := fmt.Sprintf("warning: %d log lines were lost: the log could not be written\n", n-kept)
		if kept < 1000 || kept == n || !strings.HasSuffix(sink.String(), want) {
			t.Errorf("%d kept; want %q at the end of the log", kept, want)
		}
	})
}

func TestCloseLost(t *testing.T) {
	t.Parallel()
	sink := &memory{fail: true}
	l := New("t", sink)
	l.Info("gone")
	if err := l.Close(); err == nil {
		t.Error("no error for a line that was lost")
	}
	if err := l.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestNilLogger(t *testing.T) {
	t.Parallel()
	var l *Logger
	l.Info("x")
	l.Log(Removed{"x"})
	l.With("y").Warning("z")
	l.Flush()
	if err := l.Close(); err != nil || l.Tag() != "" {
		t.Error(err)
	}
}

func TestLevelsAndTags(t *testing.T) {
	t.Parallel()
	sink := &memory{format: LocalSyslog}
	l := New("postfix/smtpd", sink)
	sub := l.With("postfix/submission/smtpd")
	l.Info("100%% sure")
	l.Info("100% sure")
	l.Warning("w %d", 1)
	sub.Error("e")
	l.Fatal("f")
	l.Text(LevelPanic, "p")
	l.LogWarning(Throttling{"x"})
	l.Close()
	pid := fmt.Sprintf("[%d]: ", os.Getpid())
	stamp := regexp.MustCompile(`>[A-Z][a-z]{2} [ 0-3][0-9] \d\d:\d\d:\d\d `)
	got := stamp.ReplaceAllString(sink.String(), ">STAMP ")
	want := "<22>STAMP postfix/smtpd" + pid + "100%% sure\n" +
		"<22>STAMP postfix/smtpd" + pid + "100% sure\n" +
		"<20>STAMP postfix/smtpd" + pid + "warning: w 1\n" +
		"<19>STAMP postfix/submission/smtpd" + pid + "error: e\n" +
		"<18>STAMP postfix/smtpd" + pid + "fatal: f\n" +
		"<18>STAMP postfix/smtpd" + pid + "panic: p\n" +
		"<20>STAMP postfix/smtpd" + pid + "warning: x: bad command startup -- throttling\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestClassicLine(t *testing.T) {
	t.Setenv("POSTLOG_HOSTNAME", "mx.example.test")
	synctest.Test(t, func(t *testing.T) {
		sink := &memory{}
		l := New("postfix/smtpd", sink)
		l.Info("one")
		time.Sleep(24 * time.Hour * 12)
		l.Info("two")
		l.Close()
		begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Local()
		pid := os.Getpid()
		want := fmt.Sprintf("%s mx postfix/smtpd[%d]: one\n%s mx postfix/smtpd[%d]: two\n",
			begin.Format("Jan _2 15:04:05"), pid, begin.Add(24*12*time.Hour).Format("Jan _2 15:04:05"), pid)
		if got := sink.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestJSON(t *testing.T) {
	t.Setenv("POSTLOG_HOSTNAME", "mx")
	sink := &memory{format: JSON}
	l := New("postfix/qmgr", sink)
	l.Log(QueueActive{ID: "4b", From: `"a b"@c.test`, Size: 5, NRcpt: 1})
	l.Warning(`a "quoted\" word`)
	l.Close()
	lines := strings.Split(sink.String(), "\n")
	var first, second map[string]any
	if err := errors.Join(json.Unmarshal([]byte(lines[0]), &first), json.Unmarshal([]byte(lines[1]), &second)); err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse(time.RFC3339Nano, first["time"].(string)); err != nil {
		t.Error(err)
	}
	delete(first, "time")
	want := map[string]any{
		"host": "mx", "process": "postfix/qmgr", "pid": float64(os.Getpid()), "level": "info", "event": "queue active",
		"queue_id": "4b", "from": `"a b"@c.test`, "size": 5.0, "nrcpt": 1.0, "text": `4b: from=<"a b"@c.test>, size=5, nrcpt=1 (queue active)`,
	}
	if fmt.Sprint(first) != fmt.Sprint(want) {
		t.Errorf("got %v\nwant %v", first, want)
	}
	if second["level"] != "warning" || second["text"] != `warning: a "quoted\" word` {
		t.Errorf("got %v", second)
	}
}

// TestJSONQueueID: a line of a message can be found by its ID, whether or not
// the line is an event.
func TestJSONQueueID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"4jWzqL72J2zDQqwN7: reject: header Subject: x": "4jWzqL72J2zDQqwN7", "076AF9D46E1: hold": "076AF9D46E1",
		"NOQUEUE: reject": "", "connect to x: refused": "", "mx1: x": "", "mx.1test: x": "", "12345678": "", "": "",
	} {
		sink := &memory{format: JSON}
		l := New("t", sink)
		l.Text(LevelInfo, text)
		l.Text(LevelWarning, text)
		l.Close()
		for line := range strings.Lines(sink.String()) {
			var o map[string]any
			if err := json.Unmarshal([]byte(line), &o); err != nil {
				t.Fatal(err)
			}
			if got, ok := o["queue_id"]; ok != (want != "") || ok && got != want {
				t.Errorf("%s: %v", line, got)
			}
		}
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "maillog")
	f, err := OpenFile(path, 0o662, Plain) // more than any umask leaves
	if err != nil {
		t.Fatal(err)
	}
	l := New("t", f)
	l.Info("one")
	l.Flush()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o662 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	l.Reopen()
	l.Info("two")
	l.Close()
	for name, want := range map[string]string{path + ".1": "t: one\n", path: "t: two\n"} {
		if b, err := os.ReadFile(name); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// TestRotated renames the file without telling anybody.
func TestRotated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "maillog")
	f, err := OpenFile(path, 0o600, Plain)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	os.Rename(path, path+".1")
	f.checked = f.checked.Add(-time.Second)
	if _, err := f.Write([]byte("new\n")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "new\n" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestFileRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	second := filepath.Join(dir, "second")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "first"), nil, 0o600), os.Link(filepath.Join(dir, "first"), second)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{link: "symbolic link", second: "second name", "/dev/null": "not a regular file", dir + "/no/such": "no such file"} {
		if _, err := OpenFile(path, 0o600, Classic); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// In a directory of somebody else's root has the rights of that user, and no more than is needed to
// go on with a log file that root has made there.
func TestPlantedLog(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: there is no other user")
	}
	base, err := os.MkdirTemp("/tmp", "maillog")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	const owner = 60071 // nobody has this number
	dir, secrets := filepath.Join(base, "log"), filepath.Join(base, "secrets")
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Chmod(base, 0o755), os.Mkdir(dir, 0o700), os.Mkdir(secrets, 0o755),
		os.WriteFile(filepath.Join(secrets, "s"), []byte("secret\n"), 0o600), os.Symlink(secrets, in("away")),
		os.Symlink(filepath.Join(secrets, "s"), in("link")), os.Link(filepath.Join(secrets, "s"), in("second")),
		os.WriteFile(in("roots"), nil, 0o600), os.WriteFile(in("others"), nil, 0o600), os.Chown(in("others"), owner+1, owner+1),
		os.Chown(dir, owner, owner)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"away/s", "away/new", "link", "second", "others"} {
		if f, err := OpenFile(in(name), 0o600, Plain); err == nil {
			f.Close()
			t.Errorf("%s: opened", name)
		}
	}
	for name, uid := range map[string]uint32{"roots": 0, "new": owner} {
		f, err := OpenFile(in(name), 0o640, Plain)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("line\n")); err != nil {
			t.Error(err)
		}
		if st := f.info.Sys().(*syscall.Stat_t); st.Uid != uid {
			t.Errorf("%s belongs to %d", name, st.Uid)
		}
		f.Close()
	}
	if entries, err := os.ReadDir(secrets); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestCutStamp(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{
		"\x011793000000123456x": 1793000000123456, "\x010000000000000000x": 0,
		"x": 0, "\x01x": 0, "": 0, "\x01179300000012345x": 0, "1793000000123456x": 0,
	} {
		at, rest := CutStamp([]byte(in))
		if at != want || at != 0 && string(rest) != "x" || string(rest) != "x" && string(rest) != in {
			t.Errorf("%q: %d, %q", in, at, rest)
		}
	}
}

func TestPostlogSink(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "postlog")
	sink := NewPostlog(path, Plain)
	l := New("t", sink)
	l.Info("early") // nobody listens yet
	l.Flush()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l.Info("late")
	l.Flush()
	b := make([]byte, 1000)
	conn.SetReadDeadline(time.Now().Add(testwait.Patience))
	n, err := conn.Read(b)
	want := []string{"t: early\n", "t: late\n"}
	last := time.Now().Add(-time.Hour).UnixMicro()
	for line := range bytes.Lines(b[:n]) {
		at, rest := CutStamp(line)
		if len(want) == 0 || string(rest) != want[0] || at < last || at > time.Now().UnixMicro() {
			t.Fatalf("%q, %v", b[:n], err)
		}
		want, last = want[1:], at
	}
	if err != nil || len(want) > 0 {
		t.Errorf("%q, %v", b[:n], err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// What was connected before the path leads nowhere, as inside chroot, goes on,
// also after a line that is too long; and there is a new connection when the path leads somewhere again.
func TestSyslogPathIsGone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	listen := func() *net.UnixConn {
		t.Helper()
		conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	first := listen()
	expect := func(conn *net.UnixConn, want string) {
		t.Helper()
		b := make([]byte, 2000)
		conn.SetReadDeadline(time.Now().Add(testwait.Patience))
		n, err := conn.Read(b)
		if err != nil || !strings.Contains(string(b[:n]), want) {
			t.Errorf("%q, %v; want %s", b[:n], err, want)
		}
	}
	sink, err := NewSyslog(Syslog{Protocol: "rfc3164", Socket: path, Facility: "mail"})
	if err != nil {
		t.Fatal(err)
	}
	l := New("t", sink)
	defer l.Close()
	l.Reopen()
	if err := os.Rename(path, path+".elsewhere"); err != nil {
		t.Fatal(err)
	}
	l.Info("one")
	l.Flush()
	expect(first, "one")
	sink.(*syslogSink).conn.(*quickio.Conn).Conn.(*net.UnixConn).SetWriteBuffer(2048)
	l.Info("%s", strings.Repeat("long", 3000))
	l.Flush()
	expect(first, "longlong")
	l.Info("two")
	l.Flush()
	expect(first, "two")

	first.Close()
	l.Info("three")
	l.Flush() // fails
	second := listen()
	l.Flush()
	expect(second, "three")
}

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, test := range []struct{ main, err, tag string }{
		{"", "", "postfix/smtpd"},
		{"syslog_facility = local7\n", "", "postfix/smtpd"},
		{"syslog_name = postfix/submission\n", "", "postfix/submission/smtpd"},
		{"multi_instance_name = out\n", "", "out/smtpd"},
		{"maillog_file = /dev/stdout\n", "", "postfix/smtpd"},
		{"maillog_file = /etc/passwd\n", "maillog_file = /etc/passwd: expected a path under one of: /var /dev/stdout", ""},
		{"maillog_file = /variable/log\n", "expected a path under", ""},
		{"maillog_file = /var/../etc/passwd\n", "expected a path under", ""},
		{"maillog_file = DIR/log\nmaillog_file_prefixes = DIR\n", "", "postfix/smtpd"},
		{"maillog_file = DIR/log\nmaillog_file_prefixes = DIR\nmaillog_file_permissions = 0777\n", "expected an octal file mode", ""},
	} {
		cfg, err := config.LoadString(strings.ReplaceAll(test.main, "DIR", dir))
		if err != nil {
			t.Fatal(err)
		}
		l, err := OpenDirect(cfg, "smtpd")
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%q: %v, want %s", test.main, err, test.err)
			}
			continue
		}
		if err != nil || l.Tag() != test.tag {
			t.Errorf("%q: %v, %v", test.main, l.Tag(), err)
		}
		l.Close()
	}
}

// The lines of maillog_file are $myhostname's, by its first label, as Postfix's are.
func TestFileHost(t *testing.T) {
	t.Setenv("POSTLOG_HOSTNAME", "")
	dir := t.TempDir()
	cfg, err := config.LoadString("myhostname = mx7.example.test\nmaillog_file_prefixes = " + dir + "\nmaillog_file = " + dir + "/log\n")
	if err != nil {
		t.Fatal(err)
	}
	l, err := OpenDirect(cfg, "smtpd")
	if err != nil {
		t.Fatal(err)
	}
	l.Info("x")
	l.Close()
	if line, err := os.ReadFile(dir + "/log"); err != nil || !strings.Contains(string(line), " mx7 postfix/smtpd[") {
		t.Errorf("%q, %v", line, err)
	}
}

// TestAddress: info_log_address_format, which every log of the process heeds.
func TestAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ main, addr, want string }{
		{"", "name with spaces@from.test", `"name with spaces"@from.test`},
		{"", "plain@from.test", "plain@from.test"},
		{"", "", ""},
		{"info_log_address_format = internal\n", "name with spaces@from.test", "name with spaces@from.test"},
		{"info_log_address_format = internal\n", "", ""},
	} {
		cfg, err := config.LoadString("maillog_file = /dev/stdout\n" + test.main)
		if err != nil {
			t.Fatal(err)
		}
		l, err := OpenDirect(cfg, "smtpd")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []*Logger{l, l.With("other")} {
			if got := l.Address(test.addr); got != test.want {
				t.Errorf("%q: %s, want %s", test.main, got, test.want)
			}
		}
		if got := FormOf(cfg).Of(test.addr); got != test.want {
			t.Errorf("%q: FormOf: %s, want %s", test.main, got, test.want)
		}
		l.Close()
	}
	if got := (*Logger)(nil).Address("a b@c"); got != `"a b"@c` {
		t.Errorf("the logger that is none: %s", got)
	}
}

func TestPanic(t *testing.T) {
	t.Parallel()
	sink := &memory{format: Plain}
	l := New("t", sink)
	func() {
		defer func() { l.Panic(recover()) }()
		panic("oh")
	}()
	lines := strings.Split(sink.String(), "\n")
	if lines[0] != "t: panic: oh" || !strings.HasPrefix(lines[1], "t: panic: at posthaste/internal/maillog.TestPanic.func") {
		t.Errorf("got %q", lines[:2])
	}
}

func TestLongText(t *testing.T) {
	t.Parallel()
	sink := &memory{format: Plain}
	l := New("t", sink)
	l.Info("%s", strings.Repeat("x", maxText-1)+"ä and more")
	l.Close()
	if got, want := sink.String(), "t: "+strings.Repeat("x", maxText-1)+"...\n"; got != want {
		t.Errorf("%d bytes, want %d; end %q", len(got), len(want), got[len(got)-20:])
	}
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for c := range 256 {
		for at := range 19 {
			b := []byte("this is 19 bytes ok")
			b[at] = byte(c)
			bad := c < ' ' || c >= 0x7f
			if n := printable(b); n > at && bad || !bad && n < 16 {
				t.Errorf("byte %#x at %d: %d bytes are printable", c, at, n)
			}
		}
	}
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	sink := &memory{format: Plain}
	l := New("t", sink)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 500 {
				l.Info("from %d", i)
			}
		})
	}
	wg.Wait()
	l.Close()
	for i := range 8 {
		if n := strings.Count(sink.String(), fmt.Sprintf("t: from %d\n", i)); n != 500 {
			t.Errorf("%d lines of %d", n, i)
		}
	}
}

// TestNoAllocation guards the hot path: a delivery line costs no garbage.
func TestNoAllocation(t *testing.T) {
	if reuse.Poison {
		t.Skip("the poisoned build makes new memory on purpose")
	}
	l := New("t", NewWriter(discard{}, Classic))
	defer l.Close()
	e := &Delivery{ID: "4b", To: "a@b.test", Status: "sent", Text: "250 ok"}
	for range 1000 {
		l.Log(e)
	}
	if n := testing.AllocsPerRun(1000, func() { l.Log(e) }); n >= 1 {
		t.Errorf("%v allocations a line", n)
	}
}
