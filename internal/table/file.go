package table

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"posthaste/internal/confine"
)

// A watched value is made from a file and made again when the file changes.
// get may be called concurrently.
type watched[T any] struct {
	pick func() string // the file that is to be read now
	load func(path string) (T, error)
	opt  Options

	cur  atomic.Pointer[version[T]]
	next atomic.Int64  // Unix nanoseconds: the file is not looked at before
	revs atomic.Uint64 // how often the file has been read
	mu   sync.Mutex    // held while looking and loading
}

// version is one reading of the file, with what was known of it then.
type version[T any] struct {
	value T
	path  string
	id    fileID
	fresh bool // changed so shortly before it was read that another change might not show
	mark  *confine.Mark
	err   error
}

// fileID tells versions of a file apart without reading it.
type fileID struct {
	dev, ino uint64
	size     int64
	mtime    time.Time
	uid      int
	loose    bool // everybody can write to it
}

func identify(fi os.FileInfo) fileID {
	id := fileID{size: fi.Size(), mtime: fi.ModTime(), uid: -1, loose: fi.Mode()&0o002 != 0}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		id.dev, id.ino, id.uid = uint64(st.Dev), st.Ino, int(st.Uid)
	}
	return id
}

func newWatched[T any](path string, o Options, load func(path string) (T, error)) (*watched[T], error) {
	return newWatchedOf(func() string { return path }, o, load)
}

// newWatchedOf watches the file that pick names, which may be now one and now another.
func newWatchedOf[T any](pick func() string, o Options, load func(path string) (T, error)) (*watched[T], error) {
	w := &watched[T]{pick: pick, load: load, opt: o}
	v, err := w.read()
	if err != nil {
		return nil, err
	}
	w.set(v)
	w.next.Store(time.Now().Add(w.interval()).UnixNano())
	o.Changes.watch(w)
	return w, nil
}

func (w *watched[T]) interval() time.Duration {
	if w.opt.Recheck == 0 {
		return time.Second
	}
	return w.opt.Recheck
}

// get is the present contents: looked at again if it is time to. Of many
// concurrent callers one looks, the others go on with what there is. A next time
// that is further away than the interval is from before the clock was set back.
func (w *watched[T]) get() (T, error) {
	now := time.Now().UnixNano()
	if left := w.next.Load() - now; (left <= 0 || left > int64(w.interval())) && w.mu.TryLock() {
		w.refresh()
		w.next.Store(now + int64(w.interval()))
		w.mu.Unlock()
	}
	v := w.cur.Load()
	return v.value, v.err
}

// again is get for a caller who has found out that the value was is out of date.
func (w *watched[T]) again(was T) (T, error) {
	w.mu.Lock()
	if any(w.cur.Load().value) == any(was) {
		w.refresh()
	}
	w.mu.Unlock()
	v := w.cur.Load()
	return v.value, v.err
}

// racy is how old a change must be to be told from a later one by its time: file
// systems keep time in steps.
const racy = 2 * time.Second

func (w *watched[T]) read() (*version[T], error) {
	path := w.pick()
	mark := w.opt.Confined.Mark(path)
	before, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	value, err := w.load(path)
	if err != nil {
		return nil, err
	}
	after, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	id := identify(before)
	return &version[T]{
		value: value,
		path:  path,
		id:    id,
		fresh: id != identify(after) || time.Since(id.mtime) < racy,
		mark:  mark,
	}, nil
}

// refresh reads the file again if it has changed. The old contents stay if
// that fails: a table that is being written must not stop the mail. A process
// that lacks the right to read it is replaced by one that has it.
func (w *watched[T]) refresh() {
	old := w.cur.Load()
	if w.opt.Confined.Jailed() {
		w.opt.Confined.Restart([]*confine.Mark{old.mark})
		return
	}
	path := w.pick()
	fi, err := os.Stat(path)
	if err == nil && path == old.path && identify(fi) == old.id && !old.fresh {
		return
	}
	var v *version[T]
	if err == nil {
		v, err = w.read()
	}
	if w.opt.Confined.Lost(err) {
		w.opt.Confined.Restart([]*confine.Mark{old.mark})
		return
	}
	if errors.Is(err, errWriting) {
		return // it is looked at again soon
	}
	if err != nil {
		w.opt.warn("table %s: %v; the previous contents stay in force", path, err)
		return
	}
	old.mark.Close()
	w.set(v)
}

// set has lookups answer from v.
func (w *watched[T]) set(v *version[T]) {
	w.cur.Store(v)
	w.revs.Add(1) // last: whoever has seen the number gets this version
}

// revision and look are for Changes.
func (w *watched[T]) revision() uint64 { return w.revs.Load() }

func (w *watched[T]) look() {
	w.mu.Lock()
	w.refresh()
	w.next.Store(time.Now().Add(w.interval()).UnixNano())
	w.mu.Unlock()
}

func (w *watched[T]) owner() (uid int, ok bool) {
	id := w.cur.Load().id
	return id.uid, id.uid >= 0 && !id.loose
}

// warnFile is a function that adds nothing to a line's own "file, line n".
func (o *Options) warnFile() func(string) {
	return func(text string) { o.warn("%s", text) }
}

// maxTextTable bounds the text files that are read into memory.
const maxTextTable = 1 << 30

func readText(path string) (string, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if fi.Size() > maxTextTable {
		return "", fmt.Errorf("%s: larger than %d bytes; use hash: instead", path, maxTextTable)
	}
	b, err := os.ReadFile(path)
	return string(b), err
}
