package vfs

import (
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"sync"
	"syscall"
)

const memPage = 4096

type page [memPage]byte // never changed once it is in a file

// Mem is a file system in memory that knows what is durable. Everybody sees
// what was written; [Mem.Cut] shows what a power cut may leave of it.
//
// Per file it keeps all versions of every unsynced sector, so that a cut may
// leave any of them, or garbage, or what was there before, for each sector by
// itself: writes are torn and reordered. Names are lost in the reverse order
// of their making, or in any, and a file is lost with its names when no sync of
// the file has made durable that it has one. A sync that fails forgets what it should have written, and the
// next one that succeeds does not make up for it, as with Linux.
type Mem struct {
	mu    sync.Mutex
	dirs  map[string]*memDir
	locks map[string]*memLock
	temps map[*inode]bool // unnamed and open
	next  int

	sector int64 // 512 or 4096: what is not torn
	limit  int64 // bytes of all files but those of mounts, 0: no bound
	mounts map[string]*memMount
	lies   func() bool
}

var _ FS = (*Mem)(nil)

type memDir struct {
	now, durable map[string]*inode
	pending      []dirOp // since the last SyncDir, in order
}

type dirOp struct {
	name string
	node *inode // nil: removed
}

// inode is a file, with or without a name.
type inode struct {
	id            int
	now, durable  []*page
	size, durSize int64
	pending       map[int64][]*page // by sector: pages that hold its versions, oldest first
	bad           map[int64]bool    // sectors that cannot be read
	cut           int64             // where Truncate shortened it since the last sync: what is durable there is not what is read; or -1
	readers       int               // by OpenShared, of processes that live
	mount         string            // of a file made by CreateTemp: the file system that it is on
	named         bool              // it has had a name
	counted       bool              // that is durable: synced since
}

type memFile struct {
	m      *Mem
	n      *inode
	name   string
	write  bool
	temp   bool
	shared bool
	closed bool
}

type memLock struct {
	m    *Mem
	name string
}

// NewMem returns an empty file system whose disk writes sectors of that many
// bytes, 512 or 4096, whole.
func NewMem(sector int) *Mem {
	if sector != 512 && sector != memPage {
		panic("vfs: sector size")
	}
	m := &Mem{dirs: map[string]*memDir{}, locks: map[string]*memLock{}, mounts: map[string]*memMount{}, sector: int64(sector)}
	m.dirs["."] = newMemDir()
	m.dirs["/"] = newMemDir()
	return m
}

func newMemDir() *memDir {
	return &memDir{now: map[string]*inode{}, durable: map[string]*inode{}}
}

// SetLimit bounds the bytes of all files that are on no mount; 0 lifts the bound.
func (m *Mem) SetLimit(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = bytes
}

// Lie has each sync of a file or directory for which lies is true do nothing and say
// that all is well, as disks do that keep in a cache what they were told to write. A
// later sync that does not lie makes up for it.
func (m *Mem) Lie(lies func() bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lies = lies
}

func pathErr(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func (m *Mem) dir(name string) (d *memDir, base string, err error) {
	name = path.Clean(name)
	d = m.dirs[path.Dir(name)]
	if d == nil {
		return nil, "", fs.ErrNotExist
	}
	return d, path.Base(name), nil
}

// Open opens a file for reading.
func (m *Mem) Open(name string) (File, error) { return m.opened(name, false) }

// OpenWrite opens a file for reading and writing.
func (m *Mem) OpenWrite(name string) (File, error) { return m.opened(name, true) }

func (m *Mem) opened(name string, write bool) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.open(name, write)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenShared opens a file for reading, and counts who does.
func (m *Mem) OpenShared(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.open(name, false)
	if err != nil {
		return nil, err
	}
	f.shared = true
	f.n.readers++
	return f, nil
}

// OpenIdle opens a file for writing that has none of them.
func (m *Mem) OpenIdle(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.open(name, true)
	if err != nil {
		return nil, err
	}
	if f.n.readers > 0 {
		return nil, pathErr("open", name, ErrInUse)
	}
	return f, nil
}

func (m *Mem) open(name string, write bool) (*memFile, error) {
	d, base, err := m.dir(name)
	if err != nil {
		return nil, pathErr("open", name, err)
	}
	n := d.now[base]
	if n == nil {
		return nil, pathErr("open", name, fs.ErrNotExist)
	}
	return &memFile{m: m, n: n, name: name, write: write}, nil
}

func (m *Mem) newInode() *inode {
	m.next++
	return &inode{id: m.next, pending: map[int64][]*page{}, cut: -1}
}

// Create makes a file that must not exist.
func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.dir(name)
	if err == nil && d.now[base] != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return nil, pathErr("open", name, err)
	}
	n := m.newInode()
	n.named = true
	d.link(base, n)
	return &memFile{m: m, n: n, name: name, write: true}, nil
}

func (d *memDir) link(base string, n *inode) {
	if n == nil {
		delete(d.now, base)
	} else {
		d.now[base] = n
	}
	d.pending = append(d.pending, dirOp{base, n})
}

// CreateTemp makes an unnamed file.
func (m *Mem) CreateTemp(dir string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dirs[path.Clean(dir)] == nil {
		return nil, pathErr("open", dir, fs.ErrNotExist)
	}
	n := m.newInode()
	n.mount = m.mountOf(dir)
	if m.temps == nil {
		m.temps = map[*inode]bool{}
	}
	m.temps[n] = true
	return &memFile{m: m, n: n, name: path.Join(dir, "(unnamed)"), write: true, temp: true}, nil
}

// Link names a file made by CreateTemp.
func (m *Mem) Link(f File, name string) error {
	o, ok := f.(*memFile)
	if !ok || o.m != m || !o.temp {
		return errForeign
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.dir(name)
	if err == nil && d.now[base] != nil {
		err = fs.ErrExist
	}
	if err == nil && o.n.mount != m.mountOf(path.Dir(name)) {
		err = syscall.EXDEV
	}
	if err != nil {
		return pathErr("link", name, err)
	}
	d.link(base, o.n)
	o.n.named = true
	delete(m.temps, o.n)
	o.temp, o.name = false, name
	return nil
}

// Rename gives a file another name. A cut may leave it both.
func (m *Mem) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.dir(from)
	if err == nil && d.now[base] == nil {
		err = fs.ErrNotExist
	}
	if err == nil && path.Dir(path.Clean(from)) != path.Dir(path.Clean(to)) {
		err = syscall.EXDEV
	}
	if err == nil && d.now[path.Base(to)] != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return pathErr("rename", from, err)
	}
	d.link(path.Base(to), d.now[base])
	d.link(base, nil)
	return nil
}

// Remove removes a name.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.dir(name)
	if err == nil && d.now[base] == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return pathErr("remove", name, err)
	}
	d.link(base, nil)
	return nil
}

// List lists a directory.
func (m *Mem) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.dirs[path.Clean(dir)]
	if d == nil {
		return nil, pathErr("open", dir, fs.ErrNotExist)
	}
	return slices.Sorted(maps.Keys(d.now)), nil
}

// MkdirAll makes directories, durable at once.
func (m *Mem) MkdirAll(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for dir = path.Clean(dir); m.dirs[dir] == nil; dir = path.Dir(dir) {
		m.dirs[dir] = newMemDir()
	}
	return nil
}

// SyncDir makes names durable.
func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.dirs[path.Clean(dir)]
	if d == nil {
		return pathErr("open", dir, fs.ErrNotExist)
	}
	if m.lies != nil && m.lies() {
		return nil
	}
	d.durable, d.pending = maps.Clone(d.now), nil
	return nil
}

// Lock takes a lock that lasts until it is closed, or Restart or Cut.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks[name] != nil {
		return nil, &LockedError{Name: name, PID: 1}
	}
	l := &memLock{m, name}
	m.locks[name] = l
	return l, nil
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.locks[l.name] == l {
		delete(l.m.locks, l.name)
	}
	return nil
}

// Free is what SetLimit, or SetMountLimit, leaves where dir is.
func (m *Mem) Free(dir string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	on := m.mountOf(dir)
	limit := m.limitOf(on)
	if limit == 0 {
		return 1 << 50, nil
	}
	return max(0, limit-m.used(on)), nil
}

// used is how many bytes the files have on a mount.
func (m *Mem) used(on string) int64 {
	var sum int64
	for name, d := range m.dirs {
		if m.mountOf(name) != on {
			continue
		}
		for _, n := range d.now {
			sum += n.size
		}
	}
	for n := range m.temps {
		if n.mount == on {
			sum += n.size
		}
	}
	return sum
}

// Restart is the death of all processes without a power cut: what was written
// stays to be seen and is no more durable than before. Locks are gone.
func (m *Mem) Restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.locks)
	clear(m.temps)
	for _, n := range m.inodes() {
		n.readers = 0
	}
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return 0, pathErr("read", f.name, fs.ErrClosed)
	}
	n := 0
	for n < len(p) && off < f.n.size {
		if f.n.bad[off/512] {
			return n, pathErr("read", f.name, syscall.EIO)
		}
		k := int(min(int64(len(p)-n), f.n.size-off, memPage-off%memPage))
		if len(f.n.bad) > 0 {
			k = min(k, int(512-off%512))
		}
		copy(p[n:n+k], f.n.now[off/memPage][off%memPage:])
		n, off = n+k, off+int64(k)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed || !f.write {
		return 0, pathErr("write", f.name, fs.ErrClosed)
	}
	n := f.n
	if end := off + int64(len(p)); end > n.size {
		if on := f.mount(); f.m.limitOf(on) > 0 && f.m.used(on)+end-n.size > f.m.limitOf(on) {
			return 0, pathErr("write", f.name, syscall.ENOSPC)
		}
		for int64(len(n.now))*memPage < end {
			n.now = append(n.now, new(page))
		}
		n.size = end
	}
	for done := 0; done < len(p); {
		i := off / memPage
		pg := new(page)
		*pg = *n.now[i]
		k := copy(pg[off%memPage:], p[done:])
		n.now[i] = pg
		for s := off / f.m.sector; s <= (off+int64(k)-1)/f.m.sector; s++ {
			n.pending[s] = append(n.pending[s], pg)
			for o := s * f.m.sector / 512; o < (s+1)*f.m.sector/512; o++ {
				delete(n.bad, o) // a write remaps a bad sector
			}
		}
		done, off = done+k, off+int64(k)
	}
	return len(p), nil
}

func (f *memFile) Truncate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed || !f.write {
		return pathErr("truncate", f.name, fs.ErrClosed)
	}
	n := f.n
	for int64(len(n.now))*memPage < size {
		n.now = append(n.now, new(page))
	}
	if size < n.size {
		n.now = n.now[:(size+memPage-1)/memPage]
		zeroFrom(n.now, size)
		for s, versions := range n.pending {
			switch {
			case s*f.m.sector >= size:
				delete(n.pending, s)
			case (s+1)*f.m.sector > size:
				n.pending[s] = append(versions, n.now[len(n.now)-1])
			}
		}
		if n.cut < 0 || size < n.cut {
			n.cut = size
		}
	}
	n.size = size
	return nil
}

// zeroFrom clears what the last page has from size on, in a copy of it.
func zeroFrom(pages []*page, size int64) {
	if i := size / memPage; i < int64(len(pages)) {
		pg := *pages[i]
		clear(pg[size%memPage:])
		pages[i] = &pg
	}
}

func (f *memFile) Datasync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return pathErr("fdatasync", f.name, fs.ErrClosed)
	}
	if f.m.lies != nil && f.m.lies() {
		return nil
	}
	n := f.n
	if n.cut >= 0 {
		n.durable = n.durable[:min(int64(len(n.durable)), (n.cut+memPage-1)/memPage)]
		zeroFrom(n.durable, n.cut)
		n.cut = -1
	}
	for int64(len(n.durable)) < int64(len(n.now)) {
		n.durable = append(n.durable, new(page))
	}
	for s, versions := range n.pending {
		n.keep(s, f.m.sector, versions[len(versions)-1])
	}
	clear(n.pending)
	n.durSize, n.counted = n.size, n.named
	return nil
}

// Writeback does nothing: what is not synced may be on the disk after a cut or
// not, whether or not the disk was to begin with it.
func (f *memFile) Writeback(off, n int64) {}

// keep makes sector s of the durable file as it is in from.
func (n *inode) keep(s, sector int64, from *page) {
	i := s * sector / memPage
	if sector == memPage {
		n.durable[i] = from
		return
	}
	pg := new(page)
	*pg = *n.durable[i]
	o := s * sector % memPage
	copy(pg[o:o+sector], from[o:])
	n.durable[i] = pg
}

// failSync is a sync that fails: the pages count as clean and the disk does
// not have them.
func (f *memFile) failSync() {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	clear(f.n.pending)
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.n.size, nil
}

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return pathErr("close", f.name, fs.ErrClosed)
	}
	f.closed = true
	if f.shared && f.n.readers > 0 {
		f.n.readers--
	}
	delete(f.m.temps, f.n)
	return nil
}
