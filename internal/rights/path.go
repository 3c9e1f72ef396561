package rights

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Anybody is the user ID of nobody. It stands for whoever it may be.
const Anybody = 65534

// anybody are the rights of whoever it may be: those of a user without any.
var anybody = Rights{UID: Anybody, GID: Anybody}

// ofStat are the rights of a file's owner: Own for this process's user and for root.
func ofStat(st *unix.Stat_t) Rights {
	if !Switching() || st.Uid == 0 {
		return Own
	}
	r := Rights{UID: int(st.Uid), GID: int(st.Gid)}
	if r.GID == 0 { // root's group lends nobody its rights
		r.GID = Anybody
		if u, err := user.LookupId(strconv.Itoa(r.UID)); err == nil {
			if gid, err := strconv.Atoi(u.Gid); err == nil && gid > 0 {
				r.GID = gid
			}
		}
	}
	return r
}

// maxLinks bounds how many symbolic links are followed on a path, as in the kernel.
const maxLinks = 40

// A walk is a path on its way from the root directory to a file. Each step goes
// by the descriptor of the step before, so that nobody can exchange what has
// been looked at.
type walk struct {
	at    int      // descriptor (O_PATH) of the directory that has been reached
	rest  []string // the names that are still to come
	links int      // followed so far
	who   Rights   // of whom controls the part that has been walked
}

// Open opens the file at an absolute path with the rights of whoever controls
// the path. A user who can put a symbolic link, or another file, at a place of
// the path decides where the path leads from there on; from there on the path is
// followed with this user's rights. So a path through a user's directory
// leads nowhere that the user could not get by other means. While every
// directory on the way is root's, and nobody else can write to it, the rights
// are Own. A directory that everybody may write to is anybody's, one that a group
// may write to is the group's; in a sticky one each entry is its owner's.
//
// flags are those of open(2) besides O_CLOEXEC. A symbolic link as the last name
// is followed unless flags have O_NOFOLLOW. who says whose rights were used, also with an
// error. When the process is not root's everything is done with its own rights.
func Open(name string, flags int, perm uint32) (f *os.File, who Rights, err error) {
	fail := func(err error) (*os.File, Rights, error) {
		return nil, who, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	who = Own
	if !strings.HasPrefix(name, "/") {
		return fail(errors.New("not an absolute path"))
	}
	if !Switching() {
		fd, err := openat(unix.AT_FDCWD, name, flags, perm)
		if err != nil {
			return fail(err)
		}
		return os.NewFile(uintptr(fd), name), who, nil
	}
	w := &walk{rest: split(name), who: Own}
	if len(w.rest) == 0 {
		return fail(unix.EISDIR)
	}
	if w.at, err = openat(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return fail(err)
	}
	defer func() { unix.Close(w.at) }()
	fd, err := w.open(flags, perm)
	who = w.who
	if err != nil {
		return fail(err)
	}
	return os.NewFile(uintptr(fd), name), who, nil
}

// split cuts a path into names. ".." is one like others: what it means depends on
// the links before it.
func split(name string) (names []string) {
	for n := range strings.SplitSeq(name, "/") {
		if n != "" && n != "." {
			names = append(names, n)
		}
	}
	return names
}

// openat is openat(2), repeated when a signal interrupts it.
func openat(at int, name string, flags int, perm uint32) (fd int, err error) {
	for {
		if fd, err = unix.Openat(at, name, flags|unix.O_CLOEXEC, perm); err != unix.EINTR {
			return fd, err
		}
	}
}

// open goes as far as the path is this process's own, and leaves the rest to
// the kernel, with the rights of who controls it.
func (w *walk) open(flags int, perm uint32) (fd int, err error) {
	for {
		if err = w.inspect(); err != nil {
			return -1, err
		}
		if !w.who.IsOwn() {
			err = w.who.Do(func() error {
				fd, err = openat(w.at, strings.Join(w.rest, "/"), flags, perm)
				return err
			})
			return fd, err
		}
		if len(w.rest) == 1 {
			fd, err = openat(w.at, w.rest[0], flags|unix.O_NOFOLLOW, perm)
			if err != unix.ELOOP || flags&unix.O_NOFOLLOW != 0 {
				return fd, err
			}
		}
		if err = w.step(); err != nil {
			return -1, err
		}
	}
}

// inspect finds out who controls the directory that has been reached, and what is in it.
func (w *walk) inspect() error {
	var dir unix.Stat_t
	if err := unix.Fstat(w.at, &dir); err != nil {
		return err
	}
	w.who = ofStat(&dir)
	if !w.who.IsOwn() || dir.Mode&(unix.S_IWGRP|unix.S_IWOTH) == 0 {
		return nil
	}
	if dir.Mode&unix.S_ISVTX == 0 {
		switch {
		case dir.Mode&unix.S_IWOTH != 0:
			w.who = anybody
		case dir.Gid != 0:
			w.who = Rights{UID: Anybody, GID: int(dir.Gid)}
		}
		return nil
	}
	var entry unix.Stat_t
	if err := unix.Fstatat(w.at, w.rest[0], &entry, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if w.who = ofStat(&entry); entry.Mode&unix.S_IFMT != unix.S_IFDIR && entry.Nlink > 1 {
		w.who = anybody // anybody may have linked it here
	}
	return nil
}

// step goes into the next name: a directory, or a symbolic link, whose target takes
// its place.
func (w *walk) step() error {
	name := w.rest[0]
	next, err := openat(w.at, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err = unix.Fstat(next, &st); err != nil {
		unix.Close(next)
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		unix.Close(w.at)
		w.at, w.rest = next, w.rest[1:]
		if len(w.rest) == 0 || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return unix.ENOTDIR
		}
		return nil
	}
	defer unix.Close(next)
	if w.links++; w.links > maxLinks {
		return unix.ELOOP
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(next, "", b)
	if err != nil {
		return err
	}
	return w.follow(string(b[:n]))
}

// follow puts a symbolic link's target in the place of the link's name.
func (w *walk) follow(target string) error {
	if target == "" {
		return unix.ENOENT
	}
	if strings.HasPrefix(target, "/") {
		root, err := openat(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		unix.Close(w.at)
		w.at = root
	}
	w.rest = append(split(target), w.rest[1:]...)
	if len(w.rest) == 0 {
		return unix.EISDIR
	}
	return nil
}

// OfDirectory are the rights of whoever controls an open directory: its owner.
// Own are those for a directory of root's or of this process's user.
func OfDirectory(dir *os.File) (Rights, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return Own, &fs.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	return ofStat(&st), nil
}

// OpenDirectory opens a directory as [Open] opens a file, and says whose rights
// are to be used for what is in it.
func OpenDirectory(name string) (*os.File, Rights, error) {
	name, err := filepath.Abs(name)
	if err != nil {
		return nil, Own, err
	}
	if name == "/" {
		f, err := os.Open(name)
		return f, Own, err
	}
	dir, who, err := Open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil || !who.IsOwn() {
		return dir, who, err
	}
	if who, err = OfDirectory(dir); err != nil {
		dir.Close()
		return nil, who, err
	}
	return dir, who, nil
}
