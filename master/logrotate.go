// "posthaste logrotate": the log file gets another name, the mail system opens a new one,
// and the old one is compressed.

package master

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/maillog"
	"posthaste/internal/rights"
)

// settleTime is how long the mail system may take to open its new log file. What a
// process writes to the old one after that is missing in the compressed file.
const settleTime = 2 * time.Second

// logRotate carries out the command. Its order is postfix logrotate's: rename, reload,
// wait, compress. If a step fails, the ones after it are not done, and nothing is lost.
func (c *control) logRotate() int {
	path := c.config.String("maillog_file")
	if path == "" || strings.HasPrefix(path, "/dev/") {
		return c.fatal("logrotate: maillog_file = %s: expected a file; syslog and standard output are rotated elsewhere", path)
	}
	// maillog_file_prefixes bounds where root writes a log, and so where it renames one.
	if err := maillog.CheckFile(c.config); err != nil {
		return c.fatal("%v", err)
	}
	old := path + "." + strftime(c.config.String("maillog_file_rotate_suffix"), time.Now())
	who, err := renameLog(path, old)
	if err != nil {
		return c.fatal("logrotate: %v", err)
	}
	if pid := c.running(); pid != 0 {
		// A reload has every process open its log anew.
		if status := c.kill(pid, syscall.SIGHUP); status != 0 {
			return status
		}
		// Nothing says when the last process has changed files: each does so when it next
		// writes.
		time.Sleep(settleTime)
	}
	compressor := c.config.String("maillog_file_compressor")
	if compressor == "" {
		return 0
	}
	cmd := exec.Command(compressor, old)
	cmd.Stdout, cmd.Stderr = c.stdout, c.stderr
	// A compressor that root runs in another user's directory would follow that user's
	// links.
	if !who.IsOwn() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(who.UID), Gid: uint32(who.GID)}}
	}
	if err := cmd.Run(); err != nil {
		return c.fatal("logrotate: %s %s: %v%s", compressor, old, err, whyNot(old, who))
	}
	return 0
}

// renameLog gives the log file another name in its directory, and returns whose rights
// are needed for further work there. If the directory is not root's, its owner could lead
// root elsewhere by the name, so it is done with the owner's rights. It never replaces a
// file.
func renameLog(path, old string) (rights.Rights, error) {
	if filepath.Dir(old) != filepath.Dir(path) {
		return rights.Own, fmt.Errorf("%s is not in the directory of %s: correct maillog_file_rotate_suffix", old, path)
	}
	// From here on the directory is known by a descriptor, and cannot be exchanged.
	dir, who, err := rights.OpenDirectory(filepath.Dir(path))
	if err != nil {
		return who, err
	}
	defer dir.Close()
	from, to, at := filepath.Base(path), filepath.Base(old), int(dir.Fd())
	err = who.Do(func() error {
		// An older log of the same second must not be lost.
		err := unix.Renameat2(at, from, at, to, unix.RENAME_NOREPLACE)
		if err != unix.EINVAL { // which file systems say that do not know how
			return err
		}
		// Without RENAME_NOREPLACE there is a moment between the look and the rename, in
		// which only the directory's owner could make a file.
		var st unix.Stat_t
		if err = unix.Fstatat(at, to, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
			return unix.EEXIST
		}
		return unix.Renameat(at, from, at, to)
	})
	switch {
	case errors.Is(err, unix.EEXIST):
		err = fmt.Errorf("%s exists already", old)
	case err != nil:
		err = &os.LinkError{Op: "rename", Old: path, New: old, Err: err}
	}
	return who, err
}

// whyNot explains why a program with the rights of the directory's owner may be unable to
// read a file there; "" if that is no reason.
func whyNot(path string, who rights.Rights) string {
	var st unix.Stat_t
	if who.IsOwn() || unix.Lstat(path, &st) != nil || int(st.Uid) == who.UID {
		return ""
	}
	return fmt.Sprintf("; it runs with the rights of user %d, whose the directory is: chown the file to that user", who.UID)
}

// strftime prints t as strftime(3) does, with the conversions that make sense in file
// names. Others stay as they are.
func strftime(format string, t time.Time) string {
	// Postfix's default is %Y%m%d-%H%M%S.
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM",
		'j': "002", 'b': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday", 'F': "2006-01-02", 'T': "15:04:05",
		'e': "_2", 'Z': "MST", 'z': "-0700",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch layout, ok := layouts[format[i]]; {
		case ok:
			b.WriteString(t.Format(layout))
		case format[i] == '%':
			b.WriteByte('%')
		case format[i] == 's':
			b.WriteString(strconv.FormatInt(t.Unix(), 10))
		default:
			b.WriteByte('%')
			b.WriteByte(format[i])
		}
	}
	return b.String()
}
