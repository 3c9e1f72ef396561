package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// TestFaces runs the same acts on the operating system and in memory.
func TestFaces(t *testing.T) {
	t.Parallel()
	t.Run("os", func(t *testing.T) { t.Parallel(); face(t, OS{}, t.TempDir()) })
	t.Run("tree", func(t *testing.T) {
		t.Parallel()
		root := t.TempDir()
		d, err := OpenTree(root)
		must(t, err)
		defer d.Close()
		face(t, d, root)
	})
	t.Run("mem", func(t *testing.T) { t.Parallel(); face(t, NewMem(512), "d") })
	t.Run("faulty", func(t *testing.T) {
		t.Parallel()
		face(t, &Faulty{FS: NewMem(4096), Hook: func(Op) error { return nil }}, "d")
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func face(t *testing.T, v FS, root string) {
	dir := path.Join(root, "a/b")
	must(t, v.MkdirAll(dir))
	must(t, v.MkdirAll(dir))
	name := path.Join(dir, "x")
	if _, err := v.Open(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open of nothing: %v", err)
	}
	f, err := v.Create(name)
	must(t, err)
	if _, err := v.Create(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second create: %v", err)
	}
	if _, err := f.WriteAt([]byte("hello"), 5000); err != nil {
		t.Fatal(err)
	}
	must(t, f.Datasync())
	must(t, v.SyncDir(dir))
	if n, err := f.Size(); n != 5005 || err != nil {
		t.Errorf("size %d, %v", n, err)
	}
	b := make([]byte, 10)
	if n, err := f.ReadAt(b, 4998); n != 7 || err != io.EOF || string(b[:7]) != "\x00\x00hello" {
		t.Errorf("read %d %q %v", n, b, err)
	}
	must(t, f.Close())
	if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("second close: %v", err)
	}

	tmp, err := v.CreateTemp(dir)
	must(t, err)
	if _, err := tmp.WriteAt([]byte("temp"), 0); err != nil {
		t.Fatal(err)
	}
	if err := v.Link(tmp, name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("link over a file: %v", err)
	}
	must(t, v.Link(tmp, path.Join(dir, "y")))
	must(t, tmp.Close())
	if list, err := v.List(dir); err != nil || !slices.Equal(list, []string{"x", "y"}) {
		t.Errorf("list %q, %v", list, err)
	}
	other := path.Join(dir, "z")
	if err := v.Rename(name, path.Join(dir, "y")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("rename to a name that is taken: %v", err)
	}
	must(t, v.Rename(name, other))
	if err := v.Rename(name, other); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("rename of nothing: %v", err)
	}
	if _, err := v.OpenShared(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open of nothing: %v", err)
	}
	reader, err := v.OpenShared(other)
	must(t, err)
	second, err := v.OpenShared(other)
	must(t, err)
	if _, err := v.OpenIdle(other); !errors.Is(err, ErrInUse) {
		t.Errorf("open of a file that is read: %v", err)
	}
	must(t, reader.Close())
	if _, err := v.OpenIdle(other); !errors.Is(err, ErrInUse) {
		t.Errorf("open of a file that another reads: %v", err)
	}
	must(t, second.Close())
	f, err = v.OpenIdle(other)
	must(t, err)
	second, err = v.OpenShared(other)
	must(t, err)
	must(t, second.Close())
	must(t, f.Truncate(5003))
	must(t, f.Datasync())
	if n, err := f.ReadAt(b, 4998); n != 5 || err != io.EOF || string(b[:5]) != "\x00\x00hel" {
		t.Errorf("read after truncate %d %q %v", n, b, err)
	}
	if _, err := f.WriteAt([]byte("!"), 5006); err != nil {
		t.Fatal(err)
	}
	if n, err := f.ReadAt(b, 4998); n != 9 || err != io.EOF || string(b[:9]) != "\x00\x00hel\x00\x00\x00!" {
		t.Errorf("read after truncate and write %d %q %v", n, b, err)
	}
	must(t, f.Close())
	must(t, v.Rename(other, name))
	must(t, v.Remove(name))
	if err := v.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("second remove: %v", err)
	}
	r, err := v.Open(path.Join(dir, "y"))
	must(t, err)
	if n, err := r.ReadAt(b[:4], 0); n != 4 || err != nil || string(b[:4]) != "temp" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	must(t, r.Close())

	l, err := v.Lock(path.Join(root, "lock"))
	must(t, err)
	var held *LockedError
	if _, err := v.Lock(path.Join(root, "lock")); !errors.As(err, &held) || held.PID == 0 {
		t.Errorf("second lock: %v", err)
	} else if _, isOS := v.(OS); isOS && held.PID != os.Getpid() {
		t.Errorf("held by %d", held.PID)
	}
	must(t, l.Close())
	l, err = v.Lock(path.Join(root, "lock"))
	must(t, err)
	must(t, l.Close())
	if n, err := v.Free(root); n <= 0 || err != nil {
		t.Errorf("free %d, %v", n, err)
	}
}

// TestCut holds Mem to what its comment says about power cuts.
func TestCut(t *testing.T) {
	t.Parallel()
	m := NewMem(512)
	must(t, m.MkdirAll("d"))
	f, err := m.Create("d/f")
	must(t, err)
	write := func(text byte, sectors int) {
		p := make([]byte, 512*sectors)
		for i := range p {
			p[i] = text
		}
		if _, err := f.WriteAt(p, 0); err != nil {
			t.Fatal(err)
		}
	}
	content := func(m *Mem) string {
		g, err := m.Open("d/f")
		if err != nil {
			return "no file"
		}
		var out []byte
		n, _ := g.Size()
		for off := int64(0); off < n; off += 512 {
			var b [1]byte
			g.ReadAt(b[:], off)
			out = append(out, b[0])
		}
		return string(out)
	}
	write('1', 4)
	must(t, f.Datasync())
	if got := content(m.Cut(Loss{})); got != "no file" {
		t.Errorf("a name that was not synced: %q", got)
	}
	must(t, m.SyncDir("d"))
	write('2', 4)
	write('3', 2)
	if s, n := m.Dirty(); s != 4 || n != 0 {
		t.Errorf("%d dirty sectors, %d names", s, n)
	}
	if got := content(m); got != "3322" {
		t.Errorf("seen: %q", got)
	}
	if got := content(m.Cut(Loss{})); got != "1111" {
		t.Errorf("all lost: %q", got)
	}
	torn := Loss{Sector: func(i, n, versions int) int { return []int{0, 1, 0, versions}[i] }}
	if got := content(m.Cut(torn)); got != "1212" {
		t.Errorf("torn: %q", got)
	}
	if got := content(m.Clone()); got != "3322" {
		t.Errorf("clone: %q", got)
	}

	// What has no name is gone, however often it was synced before it got one.
	tmp, err := m.CreateTemp("d")
	must(t, err)
	must(t, tmp.Datasync())
	must(t, m.Link(tmp, "d/t"))
	must(t, m.SyncDir("d"))
	for _, counted := range []bool{false, true} {
		list, err := m.Cut(Loss{Count: func() bool { return counted }}).List("d")
		if must(t, err); slices.Contains(list, "t") != counted {
			t.Errorf("after a link, counted %v: %q", counted, list)
		}
	}
	must(t, tmp.Datasync())
	if list, _ := m.Cut(Loss{}).List("d"); !slices.Contains(list, "t") {
		t.Errorf("after a sync of a file that was linked: %q", list)
	}

	// A failed sync forgets, and one that succeeds later does not make up for it.
	bad := &Faulty{FS: m, Hook: func(op Op) error {
		if op.Kind == OpSync {
			return syscall.EIO
		}
		return nil
	}}
	g, err := bad.OpenWrite("d/f")
	must(t, err)
	if err := g.Datasync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("sync: %v", err)
	}
	must(t, f.Datasync())
	if got := content(m); got != "3322" {
		t.Errorf("seen after a failed sync: %q", got)
	}
	if got := content(m.Cut(Loss{})); got != "1111" {
		t.Errorf("on disk after a failed sync and one that did not fail: %q", got)
	}
}

// TestCutOfReuse holds Mem to what it says about names and lengths that change.
func TestCutOfReuse(t *testing.T) {
	t.Parallel()
	t.Run("any order", testCutAnyOrder)
	m := NewMem(512)
	must(t, m.MkdirAll("d"))
	f, err := m.Create("d/old")
	must(t, err)
	if _, err := f.WriteAt(bytes.Repeat([]byte("1"), 6000), 0); err != nil {
		t.Fatal(err)
	}
	must(t, f.Datasync())
	must(t, m.SyncDir("d"))
	must(t, m.Rename("d/old", "d/new"))
	for keep, want := range [][]string{{"old"}, {"new", "old"}, {"new"}} {
		if list, _ := m.Cut(Loss{Names: func(_, _, ops int) int { return keep }}).List("d"); !slices.Equal(list, want) {
			t.Errorf("names after a cut that leaves %d changes: %q, want %q", keep, list, want)
		}
	}
	must(t, m.SyncDir("d"))
	content := func(m *Mem) string {
		g, err := m.Open("d/new")
		must(t, err)
		b := make([]byte, 7000)
		n, _ := g.ReadAt(b, 0)
		return fmt.Sprintf("%d%s%d", bytes.IndexByte(b, 0), b[4090:4102], n)
	}
	if _, err := f.WriteAt([]byte("22222"), 4096); err != nil {
		t.Fatal(err)
	}
	must(t, f.Truncate(4098))
	const short, long = "409811111122\x00\x00\x00\x004098", "60001111111111116000"
	if got := content(m); got != short {
		t.Errorf("seen: %q", got)
	}
	if got := content(m.Cut(Loss{})); got != long {
		t.Errorf("all lost: %q", got)
	}
	last := Loss{Sector: func(_, _, versions int) int { return versions }, Size: func(int, int) bool { return true }}
	if got := content(m.Cut(last)); got != short {
		t.Errorf("nothing lost: %q", got)
	}
	must(t, f.Datasync())
	must(t, f.Truncate(6000))
	must(t, f.Datasync())
	if got := content(m.Clone().Cut(Loss{})); got != "409811111122\x00\x00\x00\x006000" {
		t.Errorf("made longer: %q", got)
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	m := NewMem(4096)
	must(t, m.MkdirAll("d"))
	m.SetLimit(10000)
	f, err := m.CreateTemp("d")
	must(t, err)
	if _, err := f.WriteAt(make([]byte, 9000), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 9000), 9000); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("full: %v", err)
	}
	if n, _ := m.Free("d"); n != 1000 {
		t.Errorf("%d free", n)
	}
	must(t, f.Close())
	if n, _ := m.Free("d"); n != 10000 {
		t.Errorf("%d free after an unnamed file is gone", n)
	}
}

// testCutAnyOrder loses of three changes of names only the second.
func testCutAnyOrder(t *testing.T) {
	m := NewMem(512)
	must(t, m.MkdirAll("d"))
	for _, name := range []string{"d/a", "d/b", "d/c"} {
		f, err := m.Create(name)
		must(t, err)
		must(t, f.Datasync())
	}
	list, err := m.Cut(Loss{Each: func(op int) bool { return op != 1 }}).List("d")
	if must(t, err); !slices.Equal(list, []string{"a", "c"}) {
		t.Errorf("%q", list)
	}
}

// A directory that is open does all that the operating system's file system does, for files in it
// and no others, whatever becomes of the way there.
func TestDir(t *testing.T) {
	t.Parallel()
	way := filepath.Join(t.TempDir(), "way")
	dir := filepath.Join(way, "d")
	must(t, os.MkdirAll(dir, 0o700))
	d, err := OpenDir(dir + "/")
	must(t, err)
	must(t, os.Rename(way, way+"2")) // the path leads nowhere any more
	f, err := d.CreateTemp(dir)
	must(t, err)
	if _, err := f.WriteAt([]byte("hello"), 0); err != nil {
		t.Fatal(err)
	}
	must(t, f.Datasync())
	name := func(base string) string { return filepath.Join(dir, base) }
	must(t, d.Link(f, name("a")))
	must(t, f.Datasync())
	must(t, f.Close())
	must(t, d.SyncDir(dir))
	r, err := d.OpenShared(name("a"))
	must(t, err)
	must(t, d.Rename(name("a"), name("b")))
	if _, err := d.OpenIdle(name("b")); !errors.Is(err, ErrInUse) {
		t.Errorf("a file that is read: %v", err)
	}
	b := make([]byte, 5)
	if _, err := r.ReadAt(b, 0); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	must(t, r.Close())
	g, err := d.OpenIdle(name("b"))
	must(t, err)
	must(t, g.Close())
	if _, err := d.OpenShared(name("a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name that is gone: %v", err)
	}
	c, err := d.Create(name("c"))
	must(t, err)
	must(t, c.Close())
	if err := d.Rename(name("b"), name("c")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a name that is taken: %v", err)
	}
	for range 2 {
		if list, err := d.List(dir); err != nil || !slices.Equal(list, []string{"b", "c"}) {
			t.Errorf("%q, %v", list, err)
		}
	}
	must(t, d.Remove(name("c")))
	if n, err := d.Free(dir); err != nil || n <= 0 {
		t.Errorf("%d free, %v", n, err)
	}
	for _, other := range []string{filepath.Join(dir, "sub", "x"), filepath.Join(way, "x"), dir, filepath.Join(dir, "..", "x"), dir + "/../d/b", "b"} {
		if _, err := d.Open(other); err == nil {
			t.Errorf("%s was opened", other)
		}
	}
	if err := errors.Join(d.MkdirAll(dir), d.Close()); err != nil {
		t.Error(err)
	}
	must(t, os.Symlink("d", way+"2/link"))
	if _, err := OpenDir(way + "2/link"); err == nil {
		t.Error("a symbolic link was opened")
	}
}

// A tree has what is below its directory, wherever its path leads by then, and nothing else.
func TestTree(t *testing.T) {
	t.Parallel()
	way := filepath.Join(t.TempDir(), "way")
	dir := filepath.Join(way, "d")
	must(t, os.MkdirAll(dir, 0o700))
	d, err := OpenTree(dir)
	must(t, err)
	defer d.Close()
	must(t, os.Rename(way, way+"2"))
	must(t, d.MkdirAll(filepath.Join(dir, "a", "b")))
	f, err := d.Create(filepath.Join(dir, "a", "b", "c"))
	must(t, err)
	must(t, f.Close())
	if _, err := os.Stat(filepath.Join(way+"2", "d", "a", "b", "c")); err != nil {
		t.Error(err)
	}
	for _, other := range []string{filepath.Join(way, "x"), dir + "2/x", filepath.Join(dir, "..", "x"), dir + "/a/../a/b/c", "a/b/c"} {
		if _, err := d.Open(other); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", other, err)
		}
	}
}

// What is mounted has room of its own, and takes no links from elsewhere.
func TestMount(t *testing.T) {
	t.Parallel()
	m := NewMem(512)
	must(t, m.MkdirAll("d"))
	m.Mount("c")
	m.SetLimit(10000)
	m.SetMountLimit("c", 5000)
	f, err := m.CreateTemp("c")
	must(t, err)
	if err := m.Link(f, "d/f"); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("link to another file system: %v", err)
	}
	if _, err := f.WriteAt(make([]byte, 6000), 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("full: %v", err)
	}
	if _, err := f.WriteAt(make([]byte, 3000), 0); err != nil {
		t.Fatal(err)
	}
	must(t, m.Link(f, "c/f"))
	must(t, f.Datasync())
	must(t, f.Close())
	must(t, m.SyncDir("c"))
	for dir, want := range map[string]int64{"c": 2000, "c/sub": 2000, "d": 10000, ".": 10000} {
		if n, _ := m.Free(dir); n != want {
			t.Errorf("%s: %d free, want %d", dir, n, want)
		}
	}
	m.Unmount("c")
	if list, err := m.List("c"); err != nil || len(list) > 0 {
		t.Errorf("unmounted: %q, %v", list, err)
	}
	if n, _ := m.Free("c"); n != 10000 {
		t.Errorf("unmounted: %d free", n)
	}
	m = m.Cut(Loss{})
	m.Mount("c")
	if list, err := m.List("c"); err != nil || !slices.Equal(list, []string{"f"}) {
		t.Errorf("mounted again: %q, %v", list, err)
	}
	if n, _ := m.Cut(Loss{}).Clone().Free("c"); n != 2000 {
		t.Errorf("after a cut: %d free", n)
	}
}
