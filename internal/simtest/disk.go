package simtest

import (
	"io"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/vfs"
)

// disk is the file system as one process has it: with its death everything that it does there ends.
type disk struct {
	*vfs.Faulty
	p *process
}

func (s *site) diskOf(p *process, mem *vfs.Mem) disk {
	return disk{&vfs.Faulty{FS: mem, Hook: func(op vfs.Op) error { return s.operate(p, op) }}, p}
}

// operate is called before each operation on the disk.
func (s *site) operate(p *process, op vfs.Op) error {
	switch op.Kind {
	case vfs.OpRead, vfs.OpOpen, vfs.OpList, vfs.OpClose:
		if p.dead() {
			return vfs.ErrCut
		}
		return nil
	}
	if p.step(op.Kind.String()+" "+op.Name) != nil {
		return vfs.ErrCut
	}
	if op.Kind == vfs.OpCreate {
		p.fresh(op.Name, true)
	}
	if op.Kind != vfs.OpSync {
		return nil
	}
	// The first sync of a new segment takes no time: the spool holds a lock meanwhile, and in a
	// bubble no time passes for who waits for one.
	if strings.Contains(op.Name, "seg/") && !p.fresh(op.Name, false) || strings.HasPrefix(op.Name, eventsDir+"/") {
		time.Sleep(p.syncTime())
		if p.dead() {
			return vfs.ErrCut
		}
	}
	if s.syncsFail() {
		return syscall.EIO
	}
	return nil
}

// Lock ends with the process.
func (d disk) Lock(name string) (io.Closer, error) {
	if d.p.dead() {
		return nil, vfs.ErrCut
	}
	l, err := d.Faulty.Lock(name)
	if err == nil {
		d.p.holds(l)
	}
	return l, err
}

// fresh says whether the process has made that file and not synced it since, and notes what is so from now on.
func (p *process) fresh(name string, now bool) (was bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.created == nil {
		p.created = map[string]bool{}
	}
	was = p.created[name]
	if p.created[name] = now; !now {
		delete(p.created, name)
	}
	return was
}
