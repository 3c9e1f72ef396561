package vfs

import (
	"maps"
	"path"
	"strings"
)

// memMount is a file system of its own below a directory of Mem.
type memMount struct {
	limit int64 // bytes of all its files, 0: no bound
	// away are its directories while it is not mounted; nil when it is.
	away map[string]*memDir
}

// Mount makes dir the root of another file system: with a limit of its own, and without links
// and renames between it and others. Both lose their power at the same time. What
// has been unmounted there comes back.
func (m *Mem) Mount(dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir = path.Clean(dir)
	mt := m.mounts[dir]
	if mt == nil {
		mt = &memMount{}
		m.mounts[dir] = mt
	}
	if mt.away != nil {
		maps.Copy(m.dirs, mt.away)
		mt.away = nil
	}
	if m.dirs[dir] == nil {
		m.dirs[dir] = newMemDir()
	}
}

// Unmount leaves an empty directory where a file system was mounted. Nothing of it may be open.
func (m *Mem) Unmount(dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir = path.Clean(dir)
	mt := m.mounts[dir]
	if mt == nil || mt.away != nil {
		return
	}
	mt.away = map[string]*memDir{}
	for name, d := range m.dirs {
		if below(name, dir) {
			mt.away[name] = d
			delete(m.dirs, name)
		}
	}
	m.dirs[dir] = newMemDir()
}

// SetMountLimit is SetLimit for what is mounted on dir.
func (m *Mem) SetMountLimit(dir string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mounts[path.Clean(dir)].limit = bytes
}

func below(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// mountOf is the mount that a directory is on; "" is none.
func (m *Mem) mountOf(dir string) (on string) {
	if len(m.mounts) == 0 {
		return ""
	}
	dir = path.Clean(dir)
	for at, mt := range m.mounts {
		if mt.away == nil && below(dir, at) && len(at) > len(on) {
			on = at
		}
	}
	return on
}

func (m *Mem) limitOf(on string) int64 {
	if mt := m.mounts[on]; mt != nil {
		return mt.limit
	}
	return m.limit
}

// mount is the mount that a file is on.
func (f *memFile) mount() string {
	if f.temp {
		return f.n.mount
	}
	return f.m.mountOf(path.Dir(f.name))
}

// cloneMounts is for a file system with the same mounts. What is not mounted has nothing that
// is not durable: its directories are shared, and nobody writes there.
func (m *Mem) cloneMounts() map[string]*memMount {
	out := make(map[string]*memMount, len(m.mounts))
	for dir, mt := range m.mounts {
		c := *mt
		out[dir] = &c
	}
	return out
}
