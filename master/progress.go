// How a reload command learns that the reload is over: master writes how far it has come
// to a file, which commands read. A file needs no server in master, and works for
// commands of another version.

package master

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
)

// progress is how far a master has come with its reloads. The numbers only grow while it
// runs.
type progress struct {
	// reloads begun; the configuration of the last was read after this was written
	begun int
	// reloads that are over, which means that whoever served before them takes nothing
	// new
	ended   int
	refused int // the last that was refused; 0: none
}

// progressPath is beside master.pid.
func progressPath(cfg *config.Config) string {
	return filepath.Join(pidDirectory(cfg), "master.reload")
}

// progressForm has a fixed length, so that one write replaces what was there and a reader
// never sees half of it.
const progressForm = "%20d %20d %20d\n"

// openProgress makes the file. A mail system without one works, but its commands do not
// wait for reloads.
func openProgress(cfg *config.Config) (*os.File, error) {
	f, sound, err := openLock(progressPath(cfg))
	if err == nil && !sound {
		f.Close()
		return nil, fmt.Errorf("others than its owner can open %s: it is not written", progressPath(cfg))
	}
	return f, err
}

// readProgress says how far the running master has come; ok is false when it does not
// say.
func readProgress(cfg *config.Config) (p progress, ok bool) {
	f, err := os.OpenFile(progressPath(cfg), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return p, false
	}
	defer f.Close()
	// Twenty digits and the space or line end behind each of three numbers.
	b := make([]byte, 3*21)
	if _, err := f.ReadAt(b, 0); err != nil {
		return p, false
	}
	_, err = fmt.Sscanf(string(b), progressForm, &p.begun, &p.ended, &p.refused)
	return p, err == nil
}

// publish writes the progress. A file that cannot be written is given up, with one
// warning.
func (m *master) publish() {
	if m.progressFile == nil {
		return
	}
	if _, err := m.progressFile.WriteAt(fmt.Appendf(nil, progressForm, m.progress.begun, m.progress.ended, m.progress.refused), 0); err != nil {
		m.log.Warning("%v: a reload command will not see its progress", err)
		m.progressFile.Close()
		m.progressFile = nil
	}
}

// settle notes that all reloads begun so far are over, if no process of before holds
// anything any more. It is called whenever one lets go.
func (m *master) settle() {
	if m.progress.ended == m.progress.begun || m.reloading != nil || m.stores != nil {
		return
	}
	for _, s := range m.order {
		if len(s.before) > 0 {
			return
		}
	}
	m.progress.ended = m.progress.begun
	m.publish()
}

// Outcomes of waiting for a reload.
var (
	errReloadRefused = errors.New("the reload was refused, and the running configuration goes on: the log says why")
	errStopped       = errors.New("the mail system has stopped meanwhile")
)

// reloadPatience bounds how long a command waits for a reload: the sum of the times after
// which master goes on without the slowest.
const reloadPatience = prepareTime + letGoTime + storesWait

// awaitReload waits for the end of a reload that began after before was read. late says
// that it took longer than reloadPatience; the error is errReloadRefused or errStopped.
func (c *control) awaitReload(pid int, before progress) (late bool, err error) {
	for deadline := time.Now().Add(reloadPatience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		p, ok := readProgress(c.config)
		switch {
		// The file is gone, and so perhaps is the master; waiting on would tell nothing.
		case !ok:
			return false, nil
		case p.refused > before.begun:
			return false, errReloadRefused
		case p.ended > before.begun:
			return false, nil
		// Asked last, since it costs more than a read.
		case c.running() != pid:
			return false, errStopped
		}
	}
	return true, nil
}
