package tryout

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Yield gives root's privileges up: it makes the directory, gives it to an
// ordinary user, and executes the program again, with argv, as that user. It does
// nothing for an ordinary user, and returns if it cannot.
//
// The user is the one to whom the directory belongs; of a new one, who has called sudo,
// or else one of those without a login.
func (s *System) Yield(argv []string, w io.Writer) error {
	if os.Geteuid() != 0 {
		return nil
	}
	to, err := s.give()
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(to.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(to.Gid)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "posthaste: root needs no mail server of its own: it runs as the user %s\n", to.Username)
	if err := errors.Join(syscall.Setgroups([]int{gid}), syscall.Setgid(gid), syscall.Setuid(uid)); err != nil {
		return err
	}
	for name, value := range map[string]string{"HOME": to.HomeDir, "USER": to.Username, "LOGNAME": to.Username} {
		os.Setenv(name, value)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// Services execute it by name, so it must be in sight.
	if err := unix.Access(self, unix.X_OK); err != nil {
		return fmt.Errorf("the user %s cannot execute %s (%w): put the program in a directory that every user can read, or run it as an ordinary user", to.Username, self, err)
	}
	return fmt.Errorf("execute %s: %w", self, syscall.Exec("/proc/self/exe", argv, os.Environ()))
}

// give makes the directory, or looks whose it is, and returns its owner, who is not root.
func (s *System) give() (*user.User, error) {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := enterable(s.Dir); err != nil {
		return nil, err
	}
	d, err := os.OpenFile(s.Dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	info, err := d.Stat()
	if err != nil {
		return nil, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
		return user.LookupId(strconv.Itoa(int(st.Uid)))
	}
	if _, err := d.Readdirnames(1); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s belongs to root and is not empty: give it to the user that the mail system is to run as (chown -R USER %s), or choose another directory with -d",
			s.Dir, s.Dir)
	}
	to, err := ordinary()
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(to.Uid)
	if err != nil {
		return nil, err
	}
	return to, d.Chown(uid, -1)
}

// enterable says whether every user may enter a directory.
func enterable(dir string) error {
	for d := dir; ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil {
			return err
		}
		if info.Mode()&0o001 == 0 {
			return fmt.Errorf("%s: only its owner may enter it, but the mail system does not run as root; "+
				"choose a directory with -d, such as /var/tmp/posthaste", d)
		}
		if d == "/" {
			return nil
		}
	}
}

// ordinary is the user to run as: who has called sudo, or one without a login.
func ordinary() (*user.User, error) {
	if id := os.Getenv("SUDO_UID"); id != "" && id != "0" {
		if u, err := user.LookupId(id); err == nil {
			return u, nil
		}
	}
	for _, name := range []string{"posthaste", "nobody", "mail"} {
		if u, err := user.Lookup(name); err == nil && u.Uid != "0" {
			return u, nil
		}
	}
	return nil, errors.New("root runs it as another user, and none of posthaste, nobody and mail exists: run it as an ordinary user")
}
