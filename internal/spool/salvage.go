package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// Salvage looks through what is there of a spool, sound or not, without writing to
// it: it goes on over everything that cannot be read or is damaged. It calls yield
// for each message of which a sound record is found that is, or may be, in the queue, with
// a Reader for it; sure is false for one of which that is not known. The Reader is good until Salvage
// returns. What yield returns counts as what could not be had of that message. lost is told
// what could not be had at all, and orphan is given the content of large messages of which
// there is nothing else.
//
// A spool that does not tell its identity is read all the same: the identity's part in
// the checksums is worked out from the first records of segments, which nobody outside
// can have written.
func Salvage(fsys vfs.FS, dir string, lost func(string), yield func(rd *Reader, en Entry, sure bool) error, orphan func(name string, content io.Reader) error) error {
	if fsys == nil {
		fsys = vfs.OfOwner(dir)
	}
	warn := func(format string, args ...any) { lost(strings.TrimPrefix(fmt.Sprintf(format, args...), "spool: ")) }
	e, r, err := view(fsys, dir, true, warn)
	if err != nil {
		return err
	}
	defer e.closeFiles() // only read from
	rd := NewReader(e.fs, dir)
	defer rd.Close()
	rd.key, rd.keyed = e.key, true
	unsure := map[uint64]bool{}
	for _, n := range r.unsure {
		unsure[n] = true
	}
	e.entries(func(en Entry) bool {
		if err := yield(rd, en, !unsure[en.ID.Number()]); err != nil {
			lost(fmt.Sprintf("message %s: %v", en.ID, err))
		}
		return true
	})
	if err := r.salvageCopies(lost, yield); err != nil {
		lost("copies of damaged segments: " + err.Error())
	}
	return r.orphans(func(name string, content io.Reader) {
		if err := orphan(name, content); err != nil {
			lost(fmt.Sprintf("content of message %s: %v", name, err))
		}
	})
}

// orphans gives the content files that no message has, without their checksums.
func (r *recovery) orphans(yield func(name string, content io.Reader)) error {
	e := r.e
	names, err := e.content.fs.List(e.content.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, name := range names {
		if strings.HasSuffix(name, spentSuffix) || !isContent(name) {
			continue
		}
		if _, there := e.locate(mail.QueueID(name)); there {
			continue
		}
		f, err := e.content.fs.Open(e.content.name(name))
		if err != nil {
			e.warn("spool: content of message %s: %v", name, err)
			continue
		}
		size, err := f.Size()
		if err != nil {
			e.warn("spool: content of message %s: %v", name, err)
		}
		chunks := (size + bigChunk + 3) / (bigChunk + 4)
		yield(name, io.NewSectionReader(forgiving{f}, 0, max(0, size-4*chunks)))
		f.Close() // only read from
	}
	return err
}

// forgiving is a file that gives zeros for what cannot be read.
type forgiving struct{ f vfs.File }

func (g forgiving) ReadAt(p []byte, off int64) (int, error) {
	readAround(g.f, p, off)
	return len(p), nil
}

// deriveKey works out the spool's key: the register of the checksum of a record's
// header before its first octet follows from what it is after the last. The record that
// most segments begin with the same key counts.
func (r *recovery) deriveKey() (key uint32, ok bool) {
	votes := map[uint32]int{}
	b := make([]byte, headerLen)
	for _, s := range sorted(r.e.segs) {
		for _, at := range []int64{headRoom, blockSize} {
			if readAround(s.f, b, at) > 0 || binary.LittleEndian.Uint32(b) != recMagic {
				continue
			}
			le := binary.LittleEndian
			votes[unwind(le.Uint32(b[68:]), b[:68])^le.Uint32(b[64:])]++
			break
		}
	}
	best := 0
	for _, k := range slices.Sorted(maps.Keys(votes)) {
		if votes[k] > best {
			key, best = k, votes[k]
		}
	}
	return key, best > 0
}

// unwind gives what crc32.Update was called with as crc, from its result.
func unwind(sum uint32, p []byte) uint32 {
	var high [256]byte // which entry of the table has that high octet: each one once
	for i, v := range castagnoli {
		high[v>>24] = byte(i)
	}
	reg := ^sum
	for i := len(p) - 1; i >= 0; i-- {
		n := high[reg>>24]
		reg = (reg^castagnoli[n])<<8 | uint32(n^p[i])
	}
	return ^reg
}
