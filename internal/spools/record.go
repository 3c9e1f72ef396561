package spools

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path"
	"slices"

	"posthaste/internal/pack"
	"posthaste/internal/vfs"
)

// recordFile says, in the spool of queue_directory, which other spools the queue has.
const recordFile = "MEMBERS"

const (
	recordMagic   = "PHSPOOLS"
	recordVersion = 1
	// slotLen is the length of each of the two slots of the file, in octets. A record is written to the one that does
	// not have the newest, so that a torn write leaves that.
	slotLen  = 256 << 10
	slotHead = 32
	// maxNumber is the highest number of a spool. Each directory that was ever added has a number of its own.
	maxNumber = 31
)

// A state is what a spool of the record is.
type state uint8

const (
	joined   state = iota // it may have mail
	draining              // its mail is being moved to the others: some may be in both
	retired               // it has none any more; its number is not given again
)

// A member is a spool in the record.
type member struct {
	number uint8
	dir    string
	id     [16]byte // its identity; see package spool
	state  state
}

// A record is what recordFile says. It lists no spool in queue_directory, which is there always.
type record struct {
	generation uint64
	members    []member
}

// errRecord says that the file is there and neither slot can be used.
var errRecord = errors.New("it is damaged, so that nobody knows which spools the queue has")

func (r *record) encode() []byte {
	var body []byte
	for i := range r.members {
		m := &r.members[i]
		body = pack.Nested(body, 'm', func(b []byte) []byte {
			b = pack.Uint(b, 'n', m.number)
			b = pack.String(b, 'd', m.dir)
			b = pack.Bytes(b, 'i', m.id[:])
			return pack.Uint(b, 's', m.state)
		})
	}
	le := binary.LittleEndian
	b := make([]byte, slotHead, slotHead+len(body))
	copy(b, recordMagic)
	le.PutUint16(b[8:], recordVersion)
	le.PutUint32(b[12:], uint32(len(body)))
	le.PutUint64(b[16:], r.generation)
	b = append(b, body...)
	le.PutUint32(b[24:], recordSum(b))
	return b
}

// recordSum is the checksum of a slot, but for the octets that it is in.
func recordSum(b []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(b[:24], table), table, b[28:])
}

// decode reads one slot. found is false for one that was never written, or not to its end.
func (r *record) decode(b []byte) (found bool, err error) {
	le := binary.LittleEndian
	if len(b) < slotHead || string(b[:8]) != recordMagic {
		return false, nil
	}
	n := int64(le.Uint32(b[12:]))
	if n > slotLen-slotHead || slotHead+n > int64(len(b)) || recordSum(b[:slotHead+n]) != le.Uint32(b[24:]) {
		return false, nil
	}
	// Looked at after the checksum: what is torn has any version.
	if v := le.Uint16(b[8:]); v != recordVersion {
		return false, fmt.Errorf("%s has format %d, which this version does not know", recordFile, v)
	}
	r.generation = le.Uint64(b[16:])
	p := pack.NewReader(b[slotHead : slotHead+n])
	for p.Next() {
		if p.Tag() != 'm' {
			continue
		}
		var m member
		q := pack.NewReader(p.Bytes())
		for q.Next() {
			switch q.Tag() {
			case 'n':
				m.number = uint8(q.Uint())
			case 'd':
				m.dir = q.String()
			case 'i':
				copy(m.id[:], q.Bytes())
			case 's':
				m.state = state(q.Uint())
			}
		}
		if q.Err() != nil || m.number == 0 || m.number > maxNumber {
			return false, errRecord
		}
		r.members = append(r.members, m)
	}
	return true, p.Err()
}

// readRecord reads what is in dir, which is the spool in queue_directory. Without a file there are no others.
func readRecord(fsys vfs.FS, dir string) (r record, err error) {
	name := path.Join(dir, recordFile)
	f, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return r, err
	}
	found := false
	for at := int64(0); at < 2*slotLen && at < size; at += slotLen {
		b := make([]byte, min(slotLen, size-at))
		if _, err := f.ReadAt(b, at); err != nil {
			return r, fmt.Errorf("%s: %w", name, err)
		}
		var slot record
		ok, err := slot.decode(b)
		if err != nil {
			return r, fmt.Errorf("%s: %w", name, err)
		}
		if ok && (!found || slot.generation > r.generation) {
			r, found = slot, true
		}
	}
	// With the second slot not begun, the first one was being written when the power failed: nobody had mail in another spool.
	if !found && size > slotLen {
		return r, fmt.Errorf("%s: %w", name, errRecord)
	}
	return r, nil
}

// clone is a record that can be changed without r.
func (r *record) clone() record { return record{r.generation, slices.Clone(r.members)} }

// write makes r durable, as the newest one. The first one stands in both slots. After an error r is not to be used: its
// generation may be beyond that of what is durable, and the next one would go over that.
func (r *record) write(fsys vfs.FS, dir string) error {
	name := path.Join(dir, recordFile)
	f, err := fsys.OpenWrite(name)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = fsys.Create(name)
	}
	if err != nil {
		return err
	}
	for again := r.generation == 0; err == nil; again = false {
		r.generation++
		b := r.encode()
		if len(b) > slotLen {
			err = fmt.Errorf("the names of the directories are too long")
			break
		}
		if _, err = f.WriteAt(b, int64((r.generation+1)%2)*slotLen); err == nil {
			err = f.Datasync()
		}
		if !again {
			break
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return fsys.SyncDir(dir)
}

// find is the member in a directory that has not retired; nil: there is none.
func (r *record) find(dir string) *member {
	for i := range r.members {
		if m := &r.members[i]; m.dir == dir && m.state != retired {
			return m
		}
	}
	return nil
}

// unused is the least number that was never given.
func (r *record) unused() (uint8, error) {
	for n := uint8(1); n <= maxNumber; n++ {
		if !slices.ContainsFunc(r.members, func(m member) bool { return m.number == n }) {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%d directories have been added to this queue, which is as many as can be", maxNumber)
}
