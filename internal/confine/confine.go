// Package confine lets a process keep in step with files that it opened
// before it gave up the rights to open them.
//
// A service reads its tables, keys and certificates while it is still root and
// sees the whole file system. Then it becomes an ordinary user, perhaps inside
// chroot, and what it has read may change. If it can open the changed file, it
// does. If it cannot, it is replaced: it takes no new work, master starts a
// successor that reads the files as this one did, and what is in hand ends in
// peace.
//
// # Security
//
// Inside chroot no path is looked up again for such a file: the same name may
// be another file there. What is kept is a descriptor by which the file's
// state can be seen, and which neither reads the file nor leads out of chroot.
package confine

import (
	"errors"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Confinement is what one process has given up. Methods may be called
// concurrently; nil is that of a process that keeps what it has.
type Confinement struct {
	replace func(path string)
	active  atomic.Bool
	jailed  atomic.Bool
	done    atomic.Bool
}

// New makes the Confinement of a process that has given nothing up yet.
// replace is called at most once, with the name of the file that could not be
// opened again.
func New(replace func(path string)) *Confinement { return &Confinement{replace: replace} }

// Begin says that rights have been given up, and whether the process is inside
// chroot now.
func (c *Confinement) Begin(jailed bool) {
	c.active.Store(true)
	c.jailed.Store(jailed)
}

// Jailed says whether paths mean something else than before.
func (c *Confinement) Jailed() bool { return c != nil && c.jailed.Load() }

// Lost says whether err, met in opening a file by its path, comes from the
// rights that have been given up.
func (c *Confinement) Lost(err error) bool {
	return c != nil && err != nil && c.active.Load() && (c.jailed.Load() || errors.Is(err, fs.ErrPermission))
}

// Replace has the process replaced for the sake of the file at path.
func (c *Confinement) Replace(path string) {
	if c.done.CompareAndSwap(false, true) {
		c.replace(path)
	}
}

// A Mark tells whether a file has changed, without its path. Nil has not.
type Mark struct {
	f     *os.File
	state state
	link  *Mark // on the symbolic link that path is; nil if it is none
}

// state shows a change of contents, and, by the time of change, one of name
// or links.
type state struct {
	size  int64
	ctime time.Time
}

// Mark opens a mark on the file at path. It is nil when the process gives
// nothing up, or cannot see the file.
func (c *Confinement) Mark(path string) *Mark {
	if c == nil || c.Jailed() {
		return nil
	}
	m := mark(path, 0)
	if fi, err := os.Lstat(path); m != nil && err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		m.link = mark(path, unix.O_NOFOLLOW)
	}
	return m
}

func mark(path string, flags int) *Mark {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil // whoever reads the file says why
	}
	m := &Mark{f: os.NewFile(uintptr(fd), path)}
	if m.state, err = m.look(); err != nil {
		m.Close()
		return nil
	}
	return m
}

func (m *Mark) look() (state, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(m.f.Fd()), &st); err != nil {
		return state{}, err
	}
	return state{st.Size, time.Unix(st.Ctim.Unix())}, nil
}

// Changed says whether the file was written to, replaced or removed since the
// mark was made, or a symbolic link of its name set to another one.
func (m *Mark) Changed() bool {
	if m == nil {
		return false
	}
	now, err := m.look()
	return err == nil && now != m.state || m.link.Changed()
}

// Close gives the mark up.
func (m *Mark) Close() {
	if m != nil {
		_ = m.f.Close() // nothing was written through it
		m.link.Close()
	}
}

// Restart replaces the process if one of the marked files has changed. It is
// for those who cannot read their files again.
func (c *Confinement) Restart(marks []*Mark) {
	for _, m := range marks {
		if m.Changed() {
			c.Replace(m.f.Name())
			return
		}
	}
}
