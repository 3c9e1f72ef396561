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
	if op.Kind != vfs.OpSync {
		return nil
	}
	if strings.Contains(op.Name, "seg/") {
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
