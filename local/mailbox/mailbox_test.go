package mailbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/rights"
	"posthaste/internal/testwait"
)

// text is content in memory, stream the same not in memory.
type text string

func (c text) Bytes() []byte     { return []byte(c) }
func (c text) Reader() io.Reader { return strings.NewReader(string(c)) }

type stream string

func (c stream) Bytes() []byte     { return nil }
func (c stream) Reader() io.Reader { return &oneByOne{strings.NewReader(string(c))} }

// oneByOne gives few bytes at a time.
type oneByOne struct{ r io.Reader }

func (o *oneByOne) Read(p []byte) (int, error) { return o.r.Read(p[:min(len(p), 777)]) }

// user is whom the tests deliver as: somebody else when root runs them.
func user() rights.Rights {
	if rights.Switching() {
		return rights.Rights{UID: 60001, GID: 60001}
	}
	return rights.Rights{UID: os.Getuid(), GID: os.Getgid()}
}

// home is a directory that belongs to user.
func home(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mailbox")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if rights.Switching() {
		if err := os.Chown(dir, 60001, 60001); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func testStore(t testing.TB) *Store {
	return New(Options{LockAttempts: 2, LockDelay: 20 * time.Millisecond, StaleLock: time.Hour, Hostname: "mx/1:x",
		Warn: func(f string, a ...any) { t.Logf("warning: "+f, a...) }})
}

func mbox(path string) *Mbox {
	return &Mbox{Path: path, Rights: user(), Lock: Dotlock | Fcntl, Owner: user().UID, Otherwise: dsn.S(4, 2, 0)}
}

const head = "From a@b  Fri Nov 20 17:56:01 2026\nReturn-Path: <a@b>\n"

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAppend(t *testing.T) {
	t.Parallel()
	s, path := testStore(t), filepath.Join(home(t), "mbox")
	if err := s.Append(t.Context(), mbox(path), []byte(head), text("A: 1\r\n\r\nFrom here\r\n>From there\r\n From\r\nFromage\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), mbox(path), []byte(head), stream("B: 2\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	want := head + "A: 1\n\n>From here\n>From there\n From\nFromage\n\n" + head + "B: 2\n\n\n"
	if got := read(t, path); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if owner := st.Sys().(*syscall.Stat_t); st.Mode() != 0o600 || int(owner.Uid) != user().UID || int(owner.Gid) != user().GID {
		t.Errorf("mode %v, owner %d:%d", st.Mode(), owner.Uid, owner.Gid)
	}
	if _, err := os.Lstat(path + ".lock"); !os.IsNotExist(err) {
		t.Errorf("the lock file stayed: %v", err)
	}
}

// TestConversion: whatever the message and wherever chunks are cut, in memory
// and streamed give the same, and that is what line-by-line conversion gives.
func TestConversion(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	written := func(t *rapid.T, c Content, form Form) string {
		if err := errors.Join(file.Truncate(0), WriteTo(file, []byte("h"), c, "t", form)); err != nil {
			t.Fatal(err)
		}
		n, _ := file.Seek(0, 1)
		b := make([]byte, n)
		file.ReadAt(b, 0)
		file.Seek(0, 0)
		return string(b)
	}
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.OneOf(rapid.SampledFrom([]string{"", "From x", "From", ">From x", "."}), rapid.StringMatching(`[ -~]{0,70}`),
			rapid.Map(rapid.IntRange(chunk-9, chunk+9), func(n int) string { return strings.Repeat("x", n) }))
		lines := rapid.SliceOfN(line, 0, 8).Draw(t, "lines")
		form := Form{EOL: rapid.SampledFrom([]string{"", "\r\n", "|"}).Draw(t, "eol"), Quote: rapid.Bool().Draw(t, "quote"), Dots: rapid.Bool().Draw(t, "dots")}
		eol := form.EOL
		if eol == "" {
			eol = "\n"
		}
		var content, want strings.Builder
		for _, l := range lines {
			content.WriteString(l + "\r\n")
			if form.Quote && strings.HasPrefix(l, "From ") {
				want.WriteByte('>')
			}
			if form.Dots && strings.HasPrefix(l, ".") {
				want.WriteByte('.')
			}
			want.WriteString(l + eol)
		}
		for _, c := range []Content{text(content.String()), stream(content.String())} {
			if got := written(t, c, form); got != "h"+want.String()+"t" {
				t.Fatalf("%T: %d octets, want %d", c, len(got), want.Len()+2)
			}
		}
	})
}

func refused(t *testing.T, err error, status, text string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Status.String() != status || !strings.Contains(e.Error(), text) {
		t.Errorf("error %v, want %s %q", err, status, text)
	}
}

func TestAttacks(t *testing.T) {
	t.Parallel()
	s, dir := testStore(t), home(t)
	other := filepath.Join(dir, "other")
	own := func(name string) {
		t.Helper()
		if err := os.WriteFile(name, []byte("precious\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if rights.Switching() {
			os.Chown(name, user().UID, user().GID)
		}
	}
	own(other)
	at := func(name string) *Mbox { return mbox(filepath.Join(dir, name)) }

	os.Symlink(other, filepath.Join(dir, "symlink"))
	refused(t, s.Append(t.Context(), at("symlink"), nil, text("x\r\n")), "4.2.0", "file is a symbolic link")
	os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "dangling"))
	refused(t, s.Append(t.Context(), at("dangling"), nil, text("x\r\n")), "4.2.0", "file is a symbolic link")
	os.Link(other, filepath.Join(dir, "hardlink"))
	refused(t, s.Append(t.Context(), at("hardlink"), nil, text("x\r\n")), "4.2.0", "file has 2 hard links")
	os.Remove(filepath.Join(dir, "hardlink"))
	os.Mkdir(filepath.Join(dir, "directory"), 0o777)
	refused(t, s.Append(t.Context(), at("directory"), nil, text("x\r\n")), "4.2.0", "Is a directory")
	unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666)
	os.Chmod(filepath.Join(dir, "fifo"), 0o666)
	refused(t, s.Append(t.Context(), at("fifo"), nil, text("x\r\n")), "4.2.0", "No such device or address")

	own(filepath.Join(dir, "program"))
	os.Chmod(filepath.Join(dir, "program"), 0o700)
	m := at("program")
	m.Special, m.Owner = true, -1
	refused(t, s.Append(t.Context(), m, nil, text("x\r\n")), "5.7.1", "file is executable")
	refused(t, s.Append(t.Context(), mbox("/dev/null"), nil, text("x\r\n")), "5.2.0", "destination /dev/null is not a regular file")
	m = mbox("/dev/null")
	m.Special, m.Owner, m.LockMay = true, -1, true
	if err := s.Append(t.Context(), m, nil, text("x\r\n")); err != nil {
		t.Errorf("/dev/null as a file destination: %v", err)
	}
	if got := read(t, other); got != "precious\n" {
		t.Errorf("the victim's file now holds %q", got)
	}
	if !rights.Switching() {
		t.Skip("not root: other users' files were not tried")
	}
	foreign := filepath.Join(dir, "foreign")
	own(foreign)
	os.Chmod(foreign, 0o666)
	os.Chown(foreign, 60002, 60002)
	refused(t, s.Append(t.Context(), mbox(foreign), nil, text("x\r\n")), "4.2.0", "is not owned by recipient")
	os.Chmod(foreign, 0o600)
	refused(t, s.Append(t.Context(), mbox(foreign), nil, text("x\r\n")), "4.2.0", "Permission denied")
	m = at("mine")
	m.Rights.UID = 0
	refused(t, s.Append(t.Context(), m, nil, text("x\r\n")), "4.3.5", "refusing")
	m.Private = true
	refused(t, s.Append(t.Context(), m, nil, text("x\r\n")), "4.3.5", "refusing")
	refused(t, s.Deliver(&Maildir{Path: filepath.Join(dir, "md"), Rights: rights.Rights{UID: 0, GID: 1}}, nil, text("x\r\n")), "4.3.5", "refusing")
}

// TestSpoolDirectories: the three kinds of mail spool directories.
func TestSpoolDirectories(t *testing.T) {
	t.Parallel()
	if !rights.Switching() {
		t.Skip("not root")
	}
	for _, tt := range []struct {
		name    string
		mode    os.FileMode
		group   int
		private bool
		gid     int // of the mailbox
	}{
		{"group-writable", 0o775, 60008, false, 60008}, {"private", 0o755, 0, true, 60001},
	} {
		dir := home(t)
		os.Chown(dir, 0, tt.group)
		os.Chmod(dir, tt.mode)
		m := mbox(filepath.Join(dir, "joe"))
		m.Group, m.Private = tt.group, tt.private
		s := testStore(t)
		for range 2 {
			if err := s.Append(t.Context(), m, nil, text("x\r\n")); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
		}
		st, _ := os.Stat(m.Path)
		if o := st.Sys().(*syscall.Stat_t); int(o.Uid) != 60001 || int(o.Gid) != tt.gid || st.Mode() != 0o600 {
			t.Errorf("%s: %d:%d %v", tt.name, o.Uid, o.Gid, st.Mode())
		}
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	s, dir := testStore(t), home(t)
	m := mbox(filepath.Join(dir, "mbox"))
	m.Limit = 20
	if err := s.Append(t.Context(), m, nil, text("12345\r\n")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []Content{text(strings.Repeat("a\r\n", 7)), stream(strings.Repeat("b\r\n", 7)), text(strings.Repeat("c", 90))} {
		refused(t, s.Append(t.Context(), m, nil, c), "5.2.2", "error writing message: File too large")
	}
	if got := read(t, m.Path); got != "12345\n\n" {
		t.Errorf("after refusals: %q", got)
	}
	d := &Maildir{Path: filepath.Join(dir, "md"), Rights: user(), Limit: 3, Otherwise: dsn.S(5, 2, 0)}
	refused(t, s.Deliver(d, nil, text("12345\r\n")), "5.2.2", "File too large")
	refused(t, s.Deliver(d, nil, stream("12345\r\n")), "5.2.2", "File too large")
	if left, _ := filepath.Glob(dir + "/md/*/*"); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}

// TestTornMailbox: a message after one that was cut off begins on its own.
func TestTornMailbox(t *testing.T) {
	t.Parallel()
	s := testStore(t)
	for _, tt := range []struct{ before, want string }{
		{"From x\n\nhalf a li", "From x\n\nhalf a li\n\nNEW\n\n"}, {"From x\n\nline\n", "From x\n\nline\n\nNEW\n\n"},
		{"From x\n\nline\n\n", "From x\n\nline\n\nNEW\n\n"}, {"", "NEW\n\n"}, {"\n", "\nNEW\n\n"}, {"x", "x\n\nNEW\n\n"},
	} {
		m := mbox(filepath.Join(home(t), "mbox"))
		os.WriteFile(m.Path, []byte(tt.before), 0o600)
		if rights.Switching() {
			os.Chown(m.Path, user().UID, user().GID)
		}
		if err := s.Append(t.Context(), m, nil, text("NEW\r\n")); err != nil {
			t.Fatal(err)
		}
		if got := read(t, m.Path); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.before, got, tt.want)
		}
	}
}

func TestLocks(t *testing.T) {
	t.Parallel()
	s, dir := testStore(t), home(t)
	m := mbox(filepath.Join(dir, "mbox"))
	if err := s.Append(t.Context(), m, nil, text("1\r\n")); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(m.Path+".lock", nil, 0)
	refused(t, s.Append(t.Context(), m, nil, text("2\r\n")), "4.2.0", "unable to create lock file "+m.Path+".lock: File exists")
	old := time.Now().Add(-2 * time.Hour)
	os.Chtimes(m.Path+".lock", old, old)
	if err := s.Append(t.Context(), m, nil, text("3\r\n")); err != nil {
		t.Errorf("a stale lock: %v", err)
	}
	for _, lock := range []Lock{Fcntl, Flock} {
		f, err := os.OpenFile(m.Path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if lock == Fcntl { // as another program would
			err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
		} else {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		if err != nil {
			t.Fatal(err)
		}
		m.Lock = lock
		refused(t, s.Append(t.Context(), m, nil, text("4\r\n")), "4.2.0", "unable to lock for exclusive access: Resource temporarily unavailable")
		f.Close()
		if err := s.Append(t.Context(), m, nil, text("5\r\n")); err != nil {
			t.Error(err)
		}
	}
	os.Mkdir(filepath.Join(dir, "ro"), 0o755)
	m = mbox(filepath.Join(dir, "ro", "mbox"))
	if rights.Switching() {
		os.WriteFile(m.Path, nil, 0o600)
		os.Chown(m.Path, user().UID, user().GID)
		refused(t, s.Append(t.Context(), m, nil, text("6\r\n")), "4.2.0", "unable to create lock file "+m.Path+".lock: Permission denied")
		m.LockMay = true
		if err := s.Append(t.Context(), m, nil, text("7\r\n")); err != nil {
			t.Errorf("with a lock file that may be missing: %v", err)
		}
	}
	s.opt.LockAttempts, s.opt.LockDelay = 1000, time.Second
	os.WriteFile(filepath.Join(dir, "mbox.lock"), nil, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Append(ctx, mbox(filepath.Join(dir, "mbox")), nil, text("8\r\n")); err == nil {
		t.Error("a stopped delivery went on")
	}
}

// TestManyWriters: deliveries side by side, while a reader locks and looks,
// lose and tear nothing and keep their order.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	s := testStore(t)
	s.opt.LockAttempts, s.opt.LockDelay = 100_000, 10*time.Millisecond // on a busy machine it takes what it takes
	m := mbox(filepath.Join(home(t), "mbox"))
	if err := s.Append(t.Context(), m, []byte("From -\n"), text("first\r\n")); err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 12
	stop := make(chan struct{})
	var reader, wg sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			f, err := os.Open(m.Path)
			if err != nil {
				t.Error(err)
				return
			}
			lock := unix.Flock_t{Type: unix.F_RDLCK}
			if unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &lock) == nil {
				if b, _ := io.ReadAll(f); !bytes.HasSuffix(b, []byte("\n\n")) {
					t.Error("a reader with a lock saw half a message")
				}
			}
			f.Close()
			time.Sleep(3 * time.Millisecond) // somebody who reads mail, not one who wants to keep it out
		}
	})
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := s.Append(t.Context(), m, []byte("From -\n"), text(fmt.Sprintf("%d %d\r\n%s\r\n", w, i, strings.Repeat("y", 2000)))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	reader.Wait()
	next := make([]int, writers)
	for _, msg := range strings.Split(strings.TrimPrefix(read(t, m.Path), "From -\nfirst\n\n"), "From -\n")[1:] {
		var w, i int
		if _, err := fmt.Sscanf(msg, "%d %d\n", &w, &i); err != nil || !strings.HasSuffix(msg, "y\n\n") || next[w] != i {
			t.Fatalf("message %.20q: %v, expected number %d", msg, err, next[w])
		}
		next[w]++
	}
	for w, n := range next {
		if n != each {
			t.Errorf("writer %d: %d messages", w, n)
		}
	}
}

func TestDeliver(t *testing.T) {
	t.Parallel()
	s, dir := testStore(t), home(t)
	m := &Maildir{Path: filepath.Join(dir, "a", "b") + "/", Rights: user(), Otherwise: dsn.S(5, 2, 0)}
	const n = 50
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := s.Deliver(m, []byte("Return-Path: <>\n"), text("A: 1\r\n\r\nFrom x\r\n")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	names, _ := filepath.Glob(dir + "/a/b/new/*")
	if len(names) != n {
		t.Fatalf("%d messages of %d", len(names), n)
	}
	for _, name := range names {
		if got := read(t, name); got != "Return-Path: <>\nA: 1\n\nFrom x\n" {
			t.Errorf("%q", got)
		}
		st, _ := os.Stat(name)
		base := filepath.Base(name)
		if owner := st.Sys().(*syscall.Stat_t); st.Mode() != 0o600 || int(owner.Uid) != user().UID {
			t.Errorf("mode %v, owner %d", st.Mode(), owner.Uid)
		} else if want := fmt.Sprintf("V%xI%x", owner.Dev, owner.Ino); !strings.Contains(base, want) || !strings.HasSuffix(base, ".mx\\0571\\072x") {
			t.Errorf("name %s lacks %s", base, want)
		}
	}
	if left, _ := filepath.Glob(dir + "/a/b/tmp/*"); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
	if st, err := os.Stat(dir + "/a/b/cur"); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("cur: %v %v", st, err)
	}
	if rights.Switching() {
		err := s.Deliver(&Maildir{Path: "/root/nobody-goes-here/", Rights: user(), Otherwise: dsn.S(5, 2, 0)}, nil, text("x\r\n"))
		refused(t, err, "5.2.0", "Permission denied")
		if !errors.Is(err, syscall.EACCES) {
			t.Error("not EACCES")
		}
	}
}

// TestFullDisk uses a small file system of its own.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := home(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: no small file system to be had: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	os.Chown(dir, user().UID, user().GID)
	s, m := testStore(t), mbox(filepath.Join(dir, "mbox"))
	if err := s.Append(t.Context(), m, nil, text("small\r\n")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []Content{text(strings.Repeat("large\r\n", 20000)), stream(strings.Repeat("large\r\n", 90000))} {
		refused(t, s.Append(t.Context(), m, nil, c), "4.3.0", "error writing message: No space left on device")
		refused(t, s.Deliver(&Maildir{Path: filepath.Join(dir, "md"), Rights: user(), Otherwise: dsn.S(5, 2, 0)}, nil, c), "4.3.0", "No space left on device")
	}
	if got := read(t, m.Path); got != "small\n\n" {
		t.Errorf("the mailbox was not left as it was: %d octets", len(got))
	}
	if left, _ := filepath.Glob(dir + "/md/*/*"); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
	if err := s.Append(t.Context(), m, nil, text("small\r\n")); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestKilled kills a process in the middle of deliveries, again and again, and
// looks whether the others' messages are whole.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("MAILBOX_TEST_VICTIM"); dir != "" {
		s := testStore(t)
		for i := 0; ; i++ {
			msg := stream(strings.Repeat(fmt.Sprintf("%08d\r\n", i), 40000))
			s.Append(t.Context(), &Mbox{Path: dir + "/mbox", Rights: user(), Lock: Fcntl, Owner: -1}, []byte("From victim\n"), msg)
			s.Deliver(&Maildir{Path: dir + "/md", Rights: user(), Otherwise: dsn.S(5, 2, 0)}, nil, msg)
		}
	}
	t.Parallel()
	dir, s := home(t), testStore(t)
	s.opt.LockAttempts = 100_000
	m := &Mbox{Path: dir + "/mbox", Rights: user(), Lock: Fcntl, Owner: -1}
	const rounds = 8
	for i := range rounds {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "MAILBOX_TEST_VICTIM="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		grown := func(than int64) int64 {
			for end := time.Now().Add(testwait.Patience); time.Now().Before(end); {
				if st, err := os.Stat(m.Path); err == nil && st.Size() > than {
					return st.Size()
				}
				time.Sleep(time.Millisecond)
			}
			t.Fatal("the victim does nothing")
			return 0
		}
		size := int64(0)
		if st, err := os.Stat(m.Path); err == nil {
			size = st.Size()
		}
		grown(size + int64(i*30000))
		cmd.Process.Kill()
		cmd.Wait()
		if err := s.Append(t.Context(), m, []byte("From us\n"), text(fmt.Sprintf("ours %d\r\n", i))); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(read(t, m.Path), "\n\nFrom us\nours "); got != rounds {
		t.Errorf("%d of our %d messages stand on their own", got, rounds)
	}
	names, _ := filepath.Glob(dir + "/md/new/*")
	for _, name := range names {
		b := read(t, name)
		if len(b) != 40000*9 || b != strings.Repeat(b[:9], 40000) {
			t.Errorf("%s: torn, %d octets", name, len(b))
		}
	}
}

func BenchmarkAppendLines(b *testing.B) {
	msg := []byte(strings.Repeat("The quick brown fox jumps over the lazy dog and so on and so forth.\r\n", 150))
	buf := make([]byte, 0, len(msg))
	b.SetBytes(int64(len(msg)))
	for b.Loop() {
		buf, _ = appendLines(buf[:0], msg, true, Form{Quote: true})
	}
}

func BenchmarkDeliver(b *testing.B) {
	s, m := testStore(b), &Maildir{Path: home(b) + "/md", Rights: user(), Otherwise: dsn.S(5, 2, 0)}
	msg := text(strings.Repeat("The quick brown fox jumps over the lazy dog and so on and so forth.\r\n", 150))
	b.SetParallelism(10)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := s.Deliver(m, []byte(head), msg); err != nil {
				b.Error(err)
			}
		}
	})
}
