package domain

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/resolver"
	"posthaste/internal/rights"
)

// A vault is the directory of the DKIM keys, dkim_key_directory. Root's are the directory and the
// files in it, which the group of mail_owner may read: no service of the mail system can change
// what it signs with. In a directory of mail_owner's, as administrators make them, the files are
// mail_owner's, and root makes them with that user's rights. Without root's rights, everything is
// the caller's.
type vault struct {
	dir  string
	gid  int           // mail_owner's group; -1: files keep the caller's
	at   *os.File      // nil: there is no such directory
	root *os.Root      // of at
	who  rights.Rights // whose the files are
}

// openVault opens the directory and, unless it only looks, makes it and locks it against other
// runs of the command.
func openVault(cfg *config.Config, look bool) (v *vault, made bool, err error) {
	v = &vault{dir: cfg.String("dkim_key_directory"), gid: -1}
	owner := -1
	if rights.Switching() {
		if owner, v.gid, err = idsOf(cfg.String("mail_owner")); err != nil {
			return nil, false, fmt.Errorf("mail_owner: %w", err)
		}
	}
	_, err = os.Lstat(v.dir)
	if err == nil && look {
		// Before there was this directory, a table could have its name.
		var fi fs.FileInfo
		if fi, err = os.Stat(v.dir); err == nil && !fi.IsDir() {
			return v, false, nil
		}
	}
	if missing := errors.Is(err, fs.ErrNotExist); missing && look {
		return v, false, nil
	} else if missing {
		if err := v.make(); err != nil {
			return nil, false, err
		}
		made = true
	}
	if v.at, v.who, err = rights.OpenDirectory(v.dir); err != nil {
		return nil, false, err
	}
	if err = v.check(owner); err == nil {
		v.root, err = os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", v.at.Fd()))
	}
	if err == nil && !look {
		err = unix.Flock(int(v.at.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, false, errors.Join(err, v.Close())
	}
	return v, made, nil
}

// make makes the directory. That above it must be root's, or the caller's.
func (v *vault) make() error {
	above, who, err := rights.OpenDirectory(filepath.Dir(v.dir))
	if err != nil {
		return err
	}
	defer above.Close()
	if !who.IsOwn() {
		return fmt.Errorf("%s is not root's: make %s yourself", filepath.Dir(v.dir), v.dir)
	}
	if err := unix.Mkdirat(int(above.Fd()), filepath.Base(v.dir), 0o750); err != nil {
		return &fs.PathError{Op: "mkdir", Path: v.dir, Err: err}
	}
	if err := unix.Fchownat(int(above.Fd()), filepath.Base(v.dir), -1, v.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "chown", Path: v.dir, Err: err}
	}
	return above.Sync()
}

// check refuses a directory into which somebody else could put keys.
func (v *vault) check(owner int) error {
	fi, err := v.at.Stat()
	if err != nil {
		return err
	}
	if fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s: mode %04o lets others put keys there: expected 0750 or 0700", v.dir, fi.Mode().Perm())
	}
	if !v.who.IsOwn() && v.who.UID != owner {
		return fmt.Errorf("%s belongs to user %d: expected root or mail_owner", v.dir, v.who.UID)
	}
	return nil
}

// idsOf are the numbers of a user and of the user's group.
func idsOf(name string) (uid, gid int, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, err
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	return uid, gid, errors.Join(err1, err2)
}

// Close gives up the lock.
func (v *vault) Close() error {
	var err error
	if v.root != nil {
		err = v.root.Close()
	}
	if v.at != nil {
		err = errors.Join(err, v.at.Close())
	}
	return err
}

// path is where a file is.
func (v *vault) path(name string) string { return filepath.Join(v.dir, name) }

// read reads a file, up to limit octets. The error may be fs.ErrNotExist.
func (v *vault) read(name string, limit int64) (text []byte, err error) {
	if v.root == nil {
		return nil, fs.ErrNotExist
	}
	err = v.who.Do(func() error {
		f, err := v.root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		if text, err = io.ReadAll(io.LimitReader(f, limit+1)); err == nil && int64(len(text)) > limit {
			err = fmt.Errorf("%s: more than %d octets", v.path(name), limit)
		}
		return err
	})
	return text, err
}

// write writes a file, durably and whole: who reads it by its name finds what was there before
// or what is there now.
func (v *vault) write(name string, text []byte) error {
	return v.who.Do(func() (err error) {
		temporary := name + ".new" // what an interrupted run left is no longer needed
		if err := v.root.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err := v.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(text)
		if v.gid >= 0 && v.who.IsOwn() && err == nil {
			if err = f.Chown(-1, v.gid); err == nil {
				err = f.Chmod(0o640)
			}
		}
		if err == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err == nil {
			err = v.root.Rename(temporary, name)
		}
		if err != nil {
			return errors.Join(err, v.root.Remove(temporary))
		}
		return v.at.Sync()
	})
}

// ring reads the keys of a domain. Without a file there are none.
func (v *vault) ring(domain string) (*ring, error) {
	text, err := v.read(ringFile(domain), maxRing)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return parseRing(domain, string(text))
}

// record publishes a key of a ring.
func (v *vault) record(domain string, k RingKey) (Record, error) {
	name := keyFile(domain, k.Selector)
	text, err := v.read(name, maxRing)
	if err != nil {
		return Record{}, fmt.Errorf("DKIM key %s: %w", v.path(name), err)
	}
	key, err := dkimkey.Parse(text)
	if err != nil {
		return Record{}, fmt.Errorf("DKIM key %s: %w", v.path(name), err)
	}
	record, err := dkimkey.Record(key)
	return dkimRecord(dkimkey.Entry{Domain: domain, Selector: k.Selector}, record), err
}

// remove removes a file.
func (v *vault) remove(name string) error {
	return v.who.Do(func() error {
		if err := v.root.Remove(name); err != nil {
			return err
		}
		return v.at.Sync()
	})
}

// domains are the domains that have keys here.
func (v *vault) domains() (list []string, err error) {
	if v.root == nil {
		return nil, nil
	}
	err = v.who.Do(func() error {
		dir, err := v.root.Open(".")
		if err != nil {
			return err
		}
		defer dir.Close()
		names, err := dir.Readdirnames(-1)
		for _, name := range names {
			if domain, ok := strings.CutSuffix(name, ringFile("")); ok && resolver.ValidHostname(domain) {
				list = append(list, domain)
			}
		}
		return err
	})
	slices.Sort(list)
	return list, err
}
