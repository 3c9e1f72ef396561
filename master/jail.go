// Files that services with chroot need inside the queue directory. Postfix's
// distributions do this with a script before the start; here master does it at start and
// reload.

package master

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// jailFiles are the system's files that programs look up inside chroot too:
// names, addresses and the time of day.
var jailFiles = []string{"etc/resolv.conf", "etc/hosts", "etc/host.conf", "etc/nsswitch.conf", "etc/services", "etc/localtime"}

// maxJailFile bounds what is copied of each file.
const maxJailFile = 4 << 20

// furnishJail copies jailFiles from root into the queue directory if a service runs with
// chroot. It returns what went wrong, for the log: most services would work without. A
// file that the system does not have is not missed.
func furnishJail(s *settings, root string) (problems []string) {
	// Only root can chroot.
	if os.Geteuid() != 0 || !s.chroots() {
		return nil
	}
	queue, err := os.OpenRoot(s.queue)
	if err != nil {
		return []string{err.Error()}
	}
	defer queue.Close()
	for _, name := range jailFiles {
		if err := copyInto(queue, filepath.Join(root, name), name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Sprintf("copy %s for services with chroot: %v", name, err))
		}
	}
	return problems
}

// chroots says whether any service runs with chroot.
func (s *settings) chroots() bool {
	for _, e := range s.services {
		if e.line.Chroot {
			return true
		}
	}
	return false
}

// copyInto makes the file to in the queue directory the same as that at from, in one
// step, so that a running service never reads half of one. os.Root keeps links from
// leading outside the queue directory, where mail_owner can make some.
func copyInto(queue *os.Root, from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	// Links in /etc are followed, as resolv.conf mostly is one.
	if !info.Mode().IsRegular() || info.Size() > maxJailFile {
		return fmt.Errorf("%s is not a file of at most %d bytes", from, maxJailFile)
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	// Unchanged files are not written, so that a reload leaves their times alone.
	if old, err := queue.ReadFile(to); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := queue.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	// A name that nobody can have prepared.
	temp := filepath.Join(filepath.Dir(to), ".new"+rand.Text())
	f, err := queue.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer queue.Remove(temp) // fails when all went well
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return queue.Rename(temp, to)
}
