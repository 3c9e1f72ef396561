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
)

// A directory is one that the mail system needs.
type directory struct {
	path     string
	mode     fs.FileMode
	uid, gid int // -1: not ours to say
	// deep says that all that is in it belongs to uid, too.
	deep bool
	// used says that it has been there, and is not to be made when it is missing.
	used bool
}

// directories returns what must be there, or why the accounts to which it must
// belong cannot be had. Without root's privileges everything belongs to the
// present user.
func directories(cfg *config.Config) ([]directory, error) {
	uid, gid := -1, -1
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
		{path: filepath.Join(queue, "public"), mode: 0o710, uid: uid, gid: gid},
		{path: filepath.Join(queue, "maildrop"), mode: 0o730, uid: uid, gid: gid},
		{path: filepath.Join(queue, "spool"), mode: 0o700, uid: uid, gid: -1, deep: true},
		{path: filepath.Join(queue, "tmp"), mode: 0o700, uid: uid, gid: -1}, // is /tmp inside chroot
		{path: cfg.String("data_directory"), mode: 0o700, uid: uid, gid: -1, deep: true},
	}
	if content := cfg.String("spool_content_directory"); content != "" {
		was, err := spool.ContentDir(nil, filepath.Join(queue, spool.Subdir))
		list = append(list, directory{path: content, mode: 0o700, uid: uid, gid: -1, deep: true, used: err != nil || was == filepath.Clean(content)})
	}
	return list, nil
}

// accounts are the user and the group of the mail system. It must not do its
// work as root.
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

// place is where a parameter is set, with a colon; nothing where it is not.
func place(cfg *config.Config, name string) string {
	set, file, line := cfg.IsSet(name)
	if !set {
		return ""
	}
	return fmt.Sprintf("%s:%d: ", file, line)
}

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

// prepareDirectories makes the directories that are missing. It returns what
// is wrong with them, or, as an error, with the accounts that must own them.
func prepareDirectories(cfg *config.Config) (problems []string, err error) {
	return eachDirectory(cfg, func(d directory) error {
		if err := d.make(); err != nil {
			return err
		}
		return d.check()
	})
}

// eachDirectory applies f and returns the errors' texts. The error is that of
// directories.
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

// make makes the directory when it is missing.
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

// mend gives the directory its owner, group and mode. It goes by a descriptor, as
// does all that root does to what may be in somebody else's directory.
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
		if err := f.Chown(d.uid, d.gid); err != nil {
			return err
		}
	}
	return f.Chmod(d.mode)
}

// strangers calls f for each file in a deep directory that belongs to somebody
// else: after a copy or an unlucky chown the services cannot open what is theirs.
// Links are passed over, and files that have another name elsewhere, and lost+found.
func (d directory) strangers(f func(in *os.Root, name string) error) error {
	if !d.deep || d.uid < 0 {
		return nil
	}
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

// only says that a file is a directory, or one without another name.
func only(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return info.IsDir() || ok && info.Mode().IsRegular() && st.Nlink == 1
}

// ignoreGone drops the error of a file that was removed meanwhile: services
// may be running.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// mendContents gives what is in a deep directory its owner. The directory is not
// root's: what mail_owner has linked there must not become mail_owner's, so that
// what is opened is looked at once more.
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

// checkContents names the first file in a deep directory that belongs to somebody else.
func (d directory) checkContents() error {
	return d.strangers(func(_ *os.Root, name string) error {
		if name == "." {
			return nil // check has said so
		}
		return fmt.Errorf("not owned by user ID %d: %s; %s", d.uid, filepath.Join(d.path, name), remedy)
	})
}

// writable says why the directory's owner cannot make files in it although owner
// and mode are right, which is check's to say: the file system is mounted to be
// read only, or is another machine's, which has its own opinion of users. Whether
// the owner gets to the directory does not count: services are in the queue's.
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

// check says what is wrong with the directory, and how to mend it.
func (d directory) check() error {
	info, err := os.Lstat(d.path)
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
	if extra := info.Mode().Perm() &^ d.mode; extra != 0 {
		return fmt.Errorf("too accessible (mode %04o, expected %04o): %s; %s", info.Mode().Perm(), d.mode, d.path, remedy)
	}
	if lacking := d.mode &^ info.Mode().Perm(); lacking != 0 && d.uid >= 0 {
		return fmt.Errorf("not accessible enough (mode %04o, expected %04o): %s; %s", info.Mode().Perm(), d.mode, d.path, remedy)
	}
	return nil
}
