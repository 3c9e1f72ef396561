package eventjournal

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"sync"

	"posthaste/internal/vfs"
)

const (
	positionPrefix = "position."
	// slotSize is how far the two slots of a position are apart: no sector has both.
	slotSize = 4096
	slotUsed = 32
)

// A position is where somebody is, in a file with two slots.
type position struct {
	f     vfs.File
	count uint64 // of writes
	seq   uint64
	err   error // of a failed write or sync: nothing more is written
}

// positions are the open ones.
type positions struct {
	fs  vfs.FS
	dir string

	mu   sync.Mutex
	open map[string]*position
}

func (p *positions) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	for _, one := range p.open {
		err = errors.Join(err, one.f.Close())
	}
	clear(p.open)
	return err
}

// load opens a position's file; nil when there is none.
func (p *positions) load(name string) (*position, error) {
	if one := p.open[name]; one != nil {
		return one, nil
	}
	f, err := p.fs.OpenWrite(path.Join(p.dir, positionPrefix+name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	one := &position{f: f}
	for slot := range int64(2) {
		var b [slotUsed]byte
		if n, err := f.ReadAt(b[:], slot*slotSize); n < len(b) {
			if err != nil && !errors.Is(err, io.EOF) {
				f.Close()
				return nil, err
			}
			continue
		}
		count, seq := binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])
		if crc32.Checksum(b[:16], castagnoli) == binary.LittleEndian.Uint32(b[16:]) && count > one.count {
			one.count, one.seq = count, seq
		}
	}
	p.open[name] = one
	return one, nil
}

// get reads a position.
func (p *positions) get(name string) (seq uint64, ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one, err := p.load(name)
	if one == nil || err != nil {
		return 0, false, err
	}
	return one.seq, one.count > 0, nil
}

// set writes a position. It is durable on return.
func (p *positions) set(name string, seq uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	one, err := p.load(name)
	if err != nil {
		return err
	}
	fresh := one == nil
	if fresh {
		f, err := p.fs.Create(path.Join(p.dir, positionPrefix+name))
		if err != nil {
			return err
		}
		one = &position{f: f}
		p.open[name] = one
	}
	if one.err != nil {
		return one.err
	}
	var b [slotUsed]byte
	binary.LittleEndian.PutUint64(b[:], one.count+1)
	binary.LittleEndian.PutUint64(b[8:], seq)
	binary.LittleEndian.PutUint32(b[16:], crc32.Checksum(b[:16], castagnoli))
	if _, err = one.f.WriteAt(b[:], int64((one.count+1)%2)*slotSize); err == nil {
		err = one.f.Datasync()
	}
	if err == nil && fresh {
		err = p.fs.SyncDir(p.dir)
	}
	if err != nil {
		one.err = err // a second sync that succeeds would prove nothing
		return err
	}
	one.count, one.seq = one.count+1, seq
	return nil
}

// Position is the number of the event that name wants next, as it was set last. ok is false when it was never
// set.
func (j *Journal) Position(name string) (seq uint64, ok bool, err error) {
	return j.positions.get(name)
}

// SetPosition sets it. It is durable on return.
func (j *Journal) SetPosition(name string, seq uint64) error { return j.positions.set(name, seq) }

// Hold keeps segments from seq on for name, as far as Limit allows. Positions that are only on disk keep
// nothing.
func (j *Journal) Hold(name string, seq uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.floors[name] = seq
}
