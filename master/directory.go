package master

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"posthaste/internal/config"
	"posthaste/internal/service"
)

// A directory is one that the mail system needs.
type directory struct {
	path     string
	mode     fs.FileMode
	uid, gid int // -1: not ours to say
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
	return []directory{
		{queue, 0o755, root, -1},
		{pidDirectory(cfg), 0o755, root, -1},
		{filepath.Join(queue, "private"), 0o700, uid, -1},
		{filepath.Join(queue, "public"), 0o710, uid, gid},
		{filepath.Join(queue, "maildrop"), 0o730, uid, gid},
		{filepath.Join(queue, "spool"), 0o700, uid, -1},
		{filepath.Join(queue, "tmp"), 0o700, uid, -1}, // is /tmp inside chroot
		{cfg.String("data_directory"), 0o700, uid, -1},
	}, nil
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
	if _, err := os.Lstat(d.path); !errors.Is(err, fs.ErrNotExist) {
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

// mend gives the directory its owner, group and mode.
func (d directory) mend() error {
	if d.uid >= 0 || d.gid >= 0 {
		if err := os.Lchown(d.path, d.uid, d.gid); err != nil {
			return err
		}
	}
	return os.Chmod(d.path, d.mode)
}

// check says what is wrong with the directory, and how to mend it.
func (d directory) check() error {
	info, err := os.Lstat(d.path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("not a directory: %s", d.path)
	}
	const remedy = "\"posthaste set-permissions\" mends it"
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
