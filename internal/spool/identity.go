package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"posthaste/internal/vfs"
)

// identityFile has the spool's identity.
const identityFile = "IDENTITY"

const (
	identityMagic   = "PHIDENT1"
	identityVersion = 1
	identityBytes   = 512
	identityLen     = 2 * blockSize // the record twice, at the start of either block
)

// ErrNoIdentity says that a spool holds data and that nothing of it tells its
// identity. Without that no record can be verified, and to draw a new one would be
// to write over the mail.
var ErrNoIdentity = errors.New("the spool holds data, and its identity cannot be read, neither from IDENTITY nor from a segment's header")

// identity is what IDENTITY says.
type identity struct {
	uuid    [16]byte
	created int64 // µs since 1970
	segSize int64 // that new segments had then; for people
}

func (id *identity) put() []byte {
	le := binary.LittleEndian
	b := make([]byte, identityLen)
	copy(b, identityMagic)
	le.PutUint16(b[8:], identityVersion)
	copy(b[16:32], id.uuid[:])
	le.PutUint64(b[32:], uint64(id.created))
	le.PutUint64(b[40:], uint64(id.segSize))
	le.PutUint32(b[identityBytes-4:], checksum(b[:identityBytes-4]))
	copy(b[blockSize:], b[:identityBytes])
	return b
}

// read decodes the file's content. copies is how many of the two are sound.
func (id *identity) read(b []byte) (copies int, err error) {
	le := binary.LittleEndian
	for at := 0; at+identityBytes <= len(b); at += blockSize {
		c := b[at : at+identityBytes]
		if string(c[:8]) != identityMagic || checksum(c[:identityBytes-4]) != le.Uint32(c[identityBytes-4:]) {
			continue
		}
		if v := le.Uint16(c[8:]); v != identityVersion {
			return 0, &errNewer{fmt.Sprintf("%s (format %d)", identityFile, v)}
		}
		copies++
		copy(id.uuid[:], c[16:32])
		id.created = int64(le.Uint64(c[32:]))
		id.segSize = int64(le.Uint64(c[40:]))
	}
	return copies, nil
}

// readIdentity reads IDENTITY in dir. Without the file, found is false.
func readIdentity(fsys vfs.FS, dir string, open func(vfs.File, string) vfs.File) (id identity, found bool, copies int, err error) {
	name := path.Join(dir, identityFile)
	f, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return id, false, 0, nil
	}
	if err != nil {
		return id, true, 0, err
	}
	b := make([]byte, identityLen)
	readAround(open(f, name), b, 0)
	copies, err = id.read(b)
	return id, true, copies, errors.Join(err, f.Close())
}

// settleIdentity decides what the spool's identity is: IDENTITY says so, or else
// the headers of the segments, which agree (useHeader). It writes what is missing
// of it, before anything else of a new spool.
func (r *recovery) settleIdentity() error {
	e := r.e
	name := path.Join(e.dir, identityFile)
	switch {
	case r.copies == 2 && (r.told || e.readOnly):
		return nil
	case r.copies == 2:
		// It can be read, but who wrote it may have been killed before it was synced, and no
		// segment would tell what it was, should the power fail next.
		if err := syncIdentity(e.fs, e.dir); err != nil {
			return fmt.Errorf("spool: %s: %w", name, err)
		}
		return nil
	case r.copies == 1:
		r.e.warn("spool: %s: one of its two records is damaged; it is written again", name)
	case r.known && r.hadIdentity:
		r.e.warn("spool: %s: damaged; the segments say which spool this is, and it is written again", name)
	case r.known && r.second:
		r.e.warn("spool: %s: gone; the segments say which spool this is, and it is written again", name)
	case r.known: // a spool of a version that had no such file
	case r.anyhow:
	default:
		if err := r.idPatience.err(); err != nil {
			return fmt.Errorf("spool: the start is refused: %w", err)
		}
		if held, err := r.holdsData(); err != nil {
			return err
		} else if held != "" && !e.planted(plantNewIdentity) {
			return fmt.Errorf("spool: %s: %w (%s). %s", e.dir, ErrNoIdentity, held, howToSalvage)
		}
		e.random(e.uuid[:])
	}
	if e.readOnly {
		return nil
	}
	if err := r.writeIdentity(e.fs, e.dir, r.hadIdentity); err != nil {
		return fmt.Errorf("spool: %s: %w", name, err)
	}
	return nil
}

// syncIdentity makes an IDENTITY durable that is as it should be.
func syncIdentity(fsys vfs.FS, dir string) error {
	f, err := fsys.OpenWrite(path.Join(dir, identityFile))
	if err != nil {
		return err
	}
	if err := errors.Join(f.Datasync(), f.Close()); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// howToSalvage is what an operator can do about a spool that does not start.
const howToSalvage = `If there is a copy of the missing file, put it back. ` +
	`Else get the mail out with "posthaste spool salvage TARGET", move the spool directory away, start, and "posthaste spool import TARGET"`

// writeIdentity writes IDENTITY in dir, or the records in it that are not sound. One that
// is sound is not touched. had says that there is such a file. A file that a crash leaves half written is no loss: the
// segments say the same, or there is nothing yet that it would be needed for.
func (r *recovery) writeIdentity(fsys vfs.FS, dir string, had bool) error {
	e, name := r.e, path.Join(dir, identityFile)
	id := identity{uuid: e.uuid, created: e.now().UnixMicro(), segSize: e.lim.segSize}
	b := id.put()
	var f vfs.File
	var err error
	if had {
		f, err = fsys.OpenWrite(name)
	} else {
		f, err = fsys.Create(name)
	}
	if err != nil {
		return err
	}
	for at := int64(0); at < identityLen && err == nil; at += blockSize {
		var old identity
		was := make([]byte, identityBytes)
		if had {
			readAround(f, was, at)
		}
		if n, _ := old.read(was); n == 0 {
			_, err = f.WriteAt(b[at:at+blockSize], at)
		}
	}
	if err == nil {
		err = f.Datasync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// holdsData says what there is that may be mail, in a spool of unknown
// identity; nothing: "".
func (r *recovery) holdsData() (string, error) {
	e := r.e
	for _, d := range []string{bigDir, damagedDir} {
		names, err := e.fs.List(path.Join(e.dir, d))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("spool: %w", err)
		}
		if len(names) > 0 {
			return path.Join(d, names[0]), nil
		}
	}
	buf := make([]byte, windowLen)
	for _, s := range sorted(e.segs) {
		for off := int64(0); off < s.size; off += int64(len(buf)) {
			b := buf[:min(int64(len(buf)), s.size-off)]
			bad := readAround(s.f, b, off)
			if err := r.unreadable(); err != nil {
				return "", err
			}
			if bad > 0 || !bytes.Equal(b, zeros[:len(b)]) {
				return segName("", s.file), nil
			}
		}
	}
	return "", nil
}
