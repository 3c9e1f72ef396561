// The directories of the mail system: which there must be, with which owner and mode, and
// how set-permissions and start make them so. master does this as root in places that
// mail_owner can write to; therefore nothing is changed by name (mend).

package master

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/service"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
)

// A directory is one that the mail system needs.
type directory struct {
	path string
	// at most these bits are allowed, and with root's privileges exactly these
	mode     fs.FileMode
	uid, gid int // -1: not ours to say
	// deep says that all that is in it belongs to uid, too.
	deep bool
	// used says that it has been there, and is not to be made when it is missing.
	used bool
}

// directories lists what must be there. The error says that the accounts that must own it
// do not exist. Without root's privileges everything belongs to the present user.
func directories(cfg *config.Config) ([]directory, error) {
	uid, gid := -1, -1
	// -1 leaves an owner or group as it is.
	root := -1
	if os.Geteuid() == 0 {
		var err error
		if uid, gid, err = accounts(cfg); err != nil {
			return nil, err
		}
		root = 0
	}
	queue := cfg.String("queue_directory")
	list := []directory{
		{path: queue, mode: 0o755, uid: root, gid: -1},
		{path: pidDirectory(cfg), mode: 0o755, uid: root, gid: -1},
		{path: filepath.Join(queue, "private"), mode: 0o700, uid: uid, gid: -1},
		// Users reach public/ only by way of set-gid programs: 0710 lets the group
		// connect, and not list.
		{path: filepath.Join(queue, "public"), mode: 0o710, uid: uid, gid: gid},
		// The group may make files and cannot read those of others.
		{path: filepath.Join(queue, "maildrop"), mode: 0o730, uid: uid, gid: gid},
		{path: filepath.Join(queue, "spool"), mode: 0o700, uid: uid, gid: -1, deep: true},
		{path: filepath.Join(queue, "tmp"), mode: 0o700, uid: uid, gid: -1}, // is /tmp inside chroot
		{path: cfg.String("data_directory"), mode: 0o700, uid: uid, gid: -1, deep: true},
	}
	if content := cfg.String("spool_content_directory"); content != "" {
		// If the queue has used this content directory before and it is missing now, its
		// file system is not mounted: making an empty one would lose sight of the mail in
		// it.
		was, err := spool.ContentDir(nil, filepath.Join(queue, spool.Subdir))
		list = append(list, directory{path: content, mode: 0o700, uid: uid, gid: -1, deep: true, used: err != nil || was == filepath.Clean(content)})
	}
	// A directory that has had mail and is missing now is not made either.
	if storage.Elsewhere(cfg) {
		return list, nil
	}
	// The directories are looked into as their owner: see visible.
	defer visible()
	plan, err := spools.Find(nil, filepath.Join(queue, spool.Subdir), cfg)
	if errors.Is(err, fs.ErrPermission) {
		return list, nil // the check of the spool's own directory says so
	}
	if err != nil {
		return nil, err
	}
	for _, pl := range plan.Places[1:] {
		list = append(list, directory{path: pl.Dir, mode: 0o700, uid: uid, gid: -1, deep: true, used: !pl.Fresh})
	}
	return list, nil
}

// accounts are the user and the group of the mail system. root is refused: services give
// up their privileges by becoming that user.
func accounts(cfg *config.Config) (uid, gid int, err error) {
	owner, err := service.LookupAccount(cfg.String("mail_owner"))
	if err == nil && owner.UID == 0 {
		err = fmt.Errorf("user %q is root, which the mail system must not run as: name another one", owner.Name)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%smail_owner: %w", place(cfg, "mail_owner"), err)
	}
	if gid, err = lookupGroup(cfg.String("setgid_group")); err != nil {
		return 0, 0, fmt.Errorf("%ssetgid_group: %w", place(cfg, "setgid_group"), err)
	}
	return owner.UID, gid, nil
}

// place is where a parameter is set, with a colon, for messages; "" if it is not set.
func place(cfg *config.Config, name string) string {
	set, file, line := cfg.IsSet(name)
	if !set {
		return ""
	}
	return fmt.Sprintf("%s:%d: ", file, line)
}

// lookupGroup is the number of a group, with an error that says what to do.
func lookupGroup(name string) (int, error) {
	g, err := user.LookupGroup(name)
	if unknown := user.UnknownGroupError(""); errors.As(err, &unknown) {
		return 0, fmt.Errorf("there is no group %q: create it, or name another one in main.cf", name)
	}
	if err != nil {
		return 0, fmt.Errorf("group %q: %w", name, err)
	}
	return strconv.Atoi(g.Gid)
}

// prepareDirectories makes the directories that are missing, and returns what is wrong
// with any, for the log. The error is about the accounts, without which nothing can be
// started.
func prepareDirectories(cfg *config.Config) (problems []string, err error) {
	return eachDirectory(cfg, func(d directory) error {
		if err := d.make(); err != nil {
			return err
		}
		return d.check()
	})
}

// eachDirectory applies f to each directory and returns the texts of its errors. The
// error is that of directories.
func eachDirectory(cfg *config.Config, f func(directory) error) (problems []string, err error) {
	list, err := directories(cfg)
	if err != nil {
		return nil, err
	}
	for _, d := range list {
		if err := f(d); err != nil {
			problems = append(problems, err.Error())
		}
	}
	return problems, nil
}

// make makes the directory if there is nothing of that name. What is wrong with something
// that exists is for check to say.
func (d directory) make() error {
	if _, err := os.Lstat(d.path); !errors.Is(err, fs.ErrNotExist) || d.used {
		return nil // check says what is wrong with it
	}
	if err := os.MkdirAll(filepath.Dir(d.path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(d.path, d.mode); err != nil {
		return err
	}
	return d.mend()
}

// mend gives the directory its owner, group and mode. It goes by a descriptor that was
// opened without following a link: root must not be led to another file by name.
func (d directory) mend() error {
	f, err := os.OpenFile(d.path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("a symbolic link, and not a directory: %s", d.path)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if d.uid >= 0 || d.gid >= 0 {
		// Before the mode: chown clears set-id bits.
		if err := f.Chown(d.uid, d.gid); err != nil {
			return err
		}
	}
	return f.Chmod(d.mode)
}

// strangers calls f for each file in a deep directory that belongs to another user. After
// a copy of the queue as root, services cannot open what is theirs. Links, files with
// another name elsewhere, and lost+found are passed over.
func (d directory) strangers(f func(in *os.Root, name string) error) error {
	if !d.deep || d.uid < 0 {
		return nil
	}
	// Nothing in the directory can lead out of it.
	in, err := os.OpenRoot(d.path)
	if err != nil {
		return err
	}
	defer in.Close()
	return fs.WalkDir(in.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		if name == "lost+found" && entry.IsDir() {
			return fs.SkipDir // the file system's own, where one is mounted
		}
		info, err := in.Lstat(name)
		if err != nil {
			return ignoreGone(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) == d.uid || !only(info) {
			return nil
		}
		return f(in, name)
	})
}

// only says that a file is a directory, or a plain file without another name, which a
// hard link to somebody else's file would have.
func only(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return info.IsDir() || ok && info.Mode().IsRegular() && st.Nlink == 1
}

// ignoreGone drops the error for a file that was removed meanwhile: services may be
// running.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// mendContents gives what is in a deep directory its owner. mail_owner can exchange files
// there while root walks; so what was opened is looked at once more, and the owner is set
// by descriptor.
func (d directory) mendContents() error {
	return d.strangers(func(in *os.Root, name string) error {
		f, err := in.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			return ignoreGone(err)
		}
		defer f.Close()
		if info, err := f.Stat(); err != nil || !only(info) {
			return err
		}
		return f.Chown(d.uid, -1)
	})
}

// checkContents names the first file in a deep directory that belongs to another user.
// One is enough to know what to do.
func (d directory) checkContents() error {
	return d.strangers(func(_ *os.Root, name string) error {
		if name == "." {
			return nil // check has said so
		}
		return fmt.Errorf("not owned by user ID %d: %s; %s", d.uid, filepath.Join(d.path, name), remedy)
	})
}

// writable says why the directory's owner cannot make files in it although owner and mode
// are right: the file system is read-only, or is another machine's, which maps users.
// Whether the owner can get to the directory does not matter, since services start in the
// queue directory.
func (d directory) writable() error {
	if d.check() != nil {
		return nil
	}
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer f.Close()
	uid := os.Geteuid()
	if d.uid > 0 {
		uid = d.uid
	}
	result := make(chan error)
	// The file system identity is a thread's, so that no other goroutine runs with it.
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, and is nobody else's in between
		unix.SetfsuidRetUid(uid)
		result <- unix.Faccessat(int(f.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	}()
	if err := <-result; err != nil {
		return fmt.Errorf("user ID %d cannot make files in %s: %w", uid, d.path, err)
	}
	return nil
}

// remedy is what mends a directory.
const remedy = "\"posthaste set-permissions\" mends it"

// check says what is wrong with the directory and how to mend it. Too much access is an
// error for anybody; too little only when root could have granted it.
func (d directory) check() error {
	info, err := os.Lstat(d.path)
	// The message says what is likely, as making the directory would hide the mail in it.
	if err != nil && d.used {
		return fmt.Errorf("%w: its file system may not be mounted", err)
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("not a directory: %s", d.path)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: the file system tells no owner", d.path)
	}
	if d.uid >= 0 && int(st.Uid) != d.uid {
		return fmt.Errorf("not owned by user ID %d: %s; %s", d.uid, d.path, remedy)
	}
	if d.gid >= 0 && int(st.Gid) != d.gid {
		return fmt.Errorf("not owned by group ID %d: %s; %s", d.gid, d.path, remedy)
	}
	// Others could read mail, or put something there.
	if extra := info.Mode().Perm() &^ d.mode; extra != 0 {
		return fmt.Errorf("too accessible (mode %04o, expected %04o): %s; %s", info.Mode().Perm(), d.mode, d.path, remedy)
	}
	// A user who runs the system alone may have a stricter umask on purpose.
	if lacking := d.mode &^ info.Mode().Perm(); lacking != 0 && d.uid >= 0 {
		return fmt.Errorf("not accessible enough (mode %04o, expected %04o): %s; %s", info.Mode().Perm(), d.mode, d.path, remedy)
	}
	return nil
}
