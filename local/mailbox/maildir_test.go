package mailbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"posthaste/internal/dsn"
	"posthaste/internal/rights"
)

// files are the names below dir, but for directories.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			names = append(names, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for errno, want := range map[syscall.Errno]string{
		unix.EDQUOT: "5.2.2", unix.EFBIG: "5.2.2", unix.ENOSPC: "4.3.0", unix.EIO: "4.3.0", unix.EROFS: "4.3.0", unix.EMFILE: "4.3.0",
		unix.EAGAIN: "4.2.0", unix.ESTALE: "4.2.0", unix.EINVAL: "4.2.0", unix.ENOSYS: "4.2.0", unix.EOPNOTSUPP: "4.2.0", unix.EEXIST: "4.2.0",
		unix.EACCES: "5.9.9", unix.ENOENT: "5.9.9", unix.ENOTDIR: "5.9.9",
	} {
		err := failure(fmt.Errorf("wrapped: %w", errno), dsn.S(5, 9, 9), "x")
		if err.Status.String() != want {
			t.Errorf("%v: %v, want %s", errno, err.Status, want)
		}
	}
}

// TestRename: file systems that cannot rename without replacing get a link.
func TestRename(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		rename func(fromAt int, from string, toAt int, to string) error
		status string // empty: delivered
		kept   int    // files afterwards
	}{
		{"EINVAL", func(int, string, int, string) error { return unix.EINVAL }, "", 1},
		{"ENOSYS", func(int, string, int, string) error { return unix.ENOSYS }, "", 1},
		{"EOPNOTSUPP", func(int, string, int, string) error { return unix.EOPNOTSUPP }, "", 1},
		{"EIO", func(int, string, int, string) error { return unix.EIO }, "4.3.0", 0},
		{"EACCES", func(int, string, int, string) error { return unix.EACCES }, "5.2.0", 0},
		{"lost answer", func(fromAt int, from string, toAt int, to string) error {
			return errors.Join(unix.Linkat(fromAt, from, toAt, to, 0), unix.EINVAL)
		}, "", 1},
		{"somebody else's file", func(_ int, _ string, _ int, to string) error {
			return errors.Join(os.WriteFile(to, []byte("other"), 0o600), unix.EINVAL)
		}, "4.2.0", 1},
	} {
		s, dir := testStore(t), home(t)+"/md"
		m := &Maildir{Path: dir, Rights: user(), Otherwise: dsn.S(5, 2, 0)}
		if err := s.Deliver(m, nil, text("x\r\n")); err != nil {
			t.Fatal(err)
		}
		os.RemoveAll(dir + "/new")
		os.Mkdir(dir+"/new", 0o777)
		os.Chmod(dir+"/new", 0o777)
		s.sys.rename = tt.rename
		err := s.Deliver(m, nil, text("y\r\n"))
		var e *Error
		if tt.status != "" && (!errors.As(err, &e) || e.Status.String() != tt.status) || tt.status == "" && err != nil {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.status)
		}
		names := files(t, dir)
		if len(names) != tt.kept || len(names) > 0 && !strings.HasPrefix(names[0], "new/") {
			t.Errorf("%s: files %q", tt.name, names)
		}
		if tt.status == "" && read(t, dir+"/"+names[0]) != "y\n" {
			t.Errorf("%s: %q", tt.name, read(t, dir+"/"+names[0]))
		}
	}
}

// TestSyncs: what is reported as delivered has been synced, file first, then
// the directory that names it; and when a sync fails nothing is left.
func TestSyncs(t *testing.T) {
	t.Parallel()
	const msg = "Return-Path: <>\nA: 1\n"
	dir := home(t)
	s, m := testStore(t), &Maildir{Path: filepath.Join(dir, "md"), Rights: user(), Otherwise: dsn.S(5, 2, 0)}
	if err := s.Deliver(m, nil, text("x\r\n")); err != nil {
		t.Fatal(err)
	}
	var events []string
	var fail string
	disk := theSystem()
	s.sys.sync = func(fd int, path string) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Error(err)
		}
		event := fmt.Sprintf("sync %s", filepath.Base(filepath.Dir(path)))
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			event = fmt.Sprintf("sync directory %s with %d", filepath.Base(path), len(files(t, path)))
		} else if st.Size != int64(len(msg)) {
			t.Errorf("%s synced with %d octets", path, st.Size)
		}
		if events = append(events, event); strings.HasPrefix(event, fail) && fail != "" {
			return unix.EIO
		}
		return disk.sync(fd, path)
	}
	s.sys.rename = func(fromAt int, from string, toAt int, to string) error {
		events = append(events, "rename")
		return disk.rename(fromAt, from, toAt, to)
	}
	deliver := func() error {
		events = nil
		return s.Deliver(m, []byte("Return-Path: <>\n"), text("A: 1\r\n"))
	}
	if err := deliver(); err != nil {
		t.Fatal(err)
	}
	if want := []string{"sync tmp", "rename", "sync directory new with 2"}; !slices.Equal(events, want) {
		t.Errorf("%q, want %q", events, want)
	}
	for _, fail = range []string{"sync tmp", "sync directory"} {
		refused(t, deliver(), "4.3.0", "Input/output error")
		if got := files(t, m.Path); len(got) != 2 {
			t.Errorf("after a failed %s: %q", fail, got)
		}
	}
	fail = ""
	m.Path = filepath.Join(dir, "other")
	if err := deliver(); err != nil {
		t.Fatal(err)
	}
	// tmp is made, and the maildir for it; then cur and new.
	want := []string{"sync directory " + filepath.Base(dir) + " with 2", "sync directory other with 0", "sync tmp", "rename",
		"sync directory other with 1", "sync directory other with 1", "rename", "sync directory new with 1"}
	if !slices.Equal(events, want) {
		t.Errorf("%q, want %q", events, want)
	}
	events, m.Path = nil, ""
	box := mbox(filepath.Join(dir, "box"))
	s.sys.sync = func(fd int, path string) error {
		b, err := os.ReadFile(box.Path)
		events = append(events, fmt.Sprintf("sync %s %q %v", filepath.Base(path), b, err))
		return disk.sync(fd, path)
	}
	if err := s.Append(t.Context(), box, nil, text("A: 1\r\n")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"sync " + filepath.Base(dir) + ` "" <nil>`, `sync box "A: 1\n\n" <nil>`}; !slices.Equal(events, want) {
		t.Errorf("mbox: %q, want %q", events, want)
	}
	s.sys.sync = func(int, string) error { return unix.EIO }
	refused(t, s.Append(t.Context(), box, nil, text("B: 2\r\n")), "4.3.0", "error writing message: Input/output error")
	if got := read(t, box.Path); got != "A: 1\n\n" {
		t.Errorf("after a failed sync: %q", got)
	}
}

// TestSpoolMaildir: in a directory where everybody may make names, what
// somebody else has put where a recipient's maildir is to be gets nothing, and
// no file appears where his links lead.
func TestSpoolMaildir(t *testing.T) {
	t.Parallel()
	if !rights.Switching() {
		t.Skip("not root")
	}
	root := home(t)
	s, victim, spool := testStore(t), filepath.Join(root, "victim"), filepath.Join(root, "spool")
	mkdir := func(path string, mode os.FileMode, uid int) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode), os.Chown(path, uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	const eve = 60002
	for _, who := range []struct {
		name string
		as   rights.Rights
		uid  int
	}{{"root", rights.Own, 0}, {"joe", user(), user().UID}} {
		m := &Maildir{Path: spool + "/" + who.name + "/", Spool: spool + "/", Rights: who.as, Otherwise: dsn.S(5, 2, 0)}
		box := filepath.Clean(m.Path)
		for attack, prepare := range map[string]func(){
			"link":         func() { os.Symlink(victim, box) },
			"dangling":     func() { os.Symlink(victim+"/nothing", box) },
			"file":         func() { os.WriteFile(box, nil, 0o666) },
			"hers":         func() { mkdir(box, 0o777, eve) },
			"hers, linked": func() { mkdir(box, 0o777, eve); os.Symlink(victim, box+"/new"); os.Symlink(victim, box+"/tmp") },
			"open":         func() { mkdir(box, 0o777|os.ModeSticky, who.uid) },
			"new linked": func() {
				mkdir(box, 0o700, who.uid)
				mkdir(box+"/tmp", 0o700, who.uid)
				os.Symlink(victim, box+"/new")
			},
			"tmp linked": func() { mkdir(box, 0o700, who.uid); os.Symlink(victim, box+"/tmp") },
			"tmp hers":   func() { mkdir(box, 0o700, who.uid); mkdir(box+"/tmp", 0o777, eve) },
		} {
			os.RemoveAll(spool)
			os.RemoveAll(victim)
			mkdir(victim, 0o777, who.uid)
			mkdir(spool, 0o777|os.ModeSticky, 0)
			prepare()
			before := files(t, spool)
			err := s.Deliver(m, nil, text("x\r\n"))
			var e *Error
			if !errors.As(err, &e) || e.Status.String() != "4.2.0" || !strings.Contains(e.Text, "destination "+m.Path+" is not ") {
				t.Errorf("%s, %s: %v", who.name, attack, err)
			}
			if got := files(t, victim); len(got) != 0 || !slices.Equal(files(t, spool), before) {
				t.Errorf("%s, %s: files %q, %q", who.name, attack, got, files(t, spool))
			}
		}
		os.RemoveAll(spool)
		mkdir(spool, 0o777|os.ModeSticky, 0)
		for range 2 { // the first makes it
			if err := s.Deliver(m, nil, text("x\r\n")); err != nil {
				t.Errorf("%s: %v", who.name, err)
			}
		}
		names := files(t, spool)
		if len(names) != 2 || !strings.HasPrefix(names[0], who.name+"/new/") || !strings.HasPrefix(names[1], who.name+"/new/") {
			t.Errorf("%s: %q", who.name, names)
		}
		if st, err := os.Stat(m.Path + "cur"); err != nil || int(st.Sys().(*syscall.Stat_t).Uid) != who.uid || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: cur: %v %v", who.name, st, err)
		}
		os.Chmod(spool, 0o755) // nobody but root: as the administrator has arranged it
		if err := s.Deliver(m, nil, text("x\r\n")); err != nil {
			t.Errorf("%s: in a private spool: %v", who.name, err)
		}
	}
}

// TestQuotaRights: what root has opened in a private spool is written as the
// recipient, whose quota then counts.
func TestQuotaRights(t *testing.T) {
	t.Parallel()
	if !rights.Switching() {
		t.Skip("not root")
	}
	dir := home(t)
	os.Chown(dir, 0, 0)
	os.Chmod(dir, 0o755)
	s, m := testStore(t), mbox(filepath.Join(dir, "joe"))
	m.Private = true
	seen := 0
	s.sys.sync = func(_ int, path string) error {
		uid, _ := unix.SetfsuidRetUid(-1)
		want := 0
		if path == m.Path {
			want, seen = user().UID, seen+1
		}
		if uid != want {
			t.Errorf("%s: written as user %d, want %d", path, uid, want)
		}
		return nil
	}
	if err := s.Append(t.Context(), m, nil, text("x\r\n")); err != nil || seen != 1 {
		t.Errorf("%v, %d syncs", err, seen)
	}
}

// TestQuota uses a small file system with a quota for every user.
func TestQuota(t *testing.T) {
	t.Parallel()
	dir := home(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,usrquota,usrquota_block_hardlimit=64k"); err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: no file system with quotas to be had: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	own, private := filepath.Join(dir, "own"), filepath.Join(dir, "private")
	os.Mkdir(own, 0o700)
	os.Chown(own, user().UID, user().GID)
	os.Mkdir(private, 0o755)
	s := testStore(t)
	large := text(strings.Repeat("large\r\n", 30000))
	for _, m := range []*Mbox{mbox(own + "/box"), mbox(private + "/joe")} {
		m.Private = strings.HasPrefix(m.Path, private)
		if err := s.Append(t.Context(), m, nil, text("small\r\n")); err != nil {
			t.Fatal(err)
		}
		refused(t, s.Append(t.Context(), m, nil, large), "5.2.2", "error writing message: Disk quota exceeded")
		if got := read(t, m.Path); got != "small\n\n" {
			t.Errorf("%s was not left as it was: %d octets", m.Path, len(got))
		}
	}
	refused(t, s.Deliver(&Maildir{Path: own + "/md", Rights: user(), Otherwise: dsn.S(5, 2, 0)}, nil, large), "5.2.2", "Disk quota exceeded")
	if left := files(t, own+"/md"); len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
}
