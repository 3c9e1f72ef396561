// A pickup process that dies may have had messages queued and not have come to removing
// their files, or to saying so to who offers them. The next one queues them again, and must
// name them. It can tell that its predecessor has died by a file that each process removes
// at its end.

package pickup

import (
	"os"
	"path/filepath"
	"strconv"
	"time"

	"posthaste/internal/statedir"
)

// runningName is the file, in data_directory's pickup.
const runningName = "running"

// running notes that this process runs, and says whether the one before it has died: killed,
// or with the machine. The file is not synced for that: it is there long before it matters.
// change is as in Options.
func running(dir *statedir.Dir, change func(op, path string) error) (died bool, end func() error, err error) {
	if _, err := dir.Lstat(runningName); err == nil {
		died = true
	} else if err := dir.WriteFile(runningName, nil, 0o600); err != nil {
		return false, nil, err
	}
	return died, func() error {
		if change != nil {
			if err := change("remove", runningName); err != nil {
				return err
			}
		}
		if err := dir.Remove(runningName); err != nil && !os.IsNotExist(err) {
			return err
		}
		return nil
	}, nil
}

// doubtful says whether there are still files that a process that has died may have queued. The
// name of a file begins with the time of its submission. What is no message, or is refused for
// good, was not queued by anybody.
func (p *Picker) doubtful() bool {
	if !p.opt.Died {
		return false
	}
	names, err := p.list()
	for _, name := range names {
		fi, err := os.Lstat(filepath.Join(p.opt.Dir, name))
		if err != nil || fi.Mode()&0o100 == 0 || p.broken[name].Equal(fi.ModTime()) {
			continue
		}
		micros, err := strconv.ParseInt(name[:min(len(name), 16)], 16, 64)
		if err != nil || time.UnixMicro(micros).Before(p.opt.Began) {
			return true
		}
	}
	return err != nil
}
