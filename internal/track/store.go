package track

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/statedir"
)

// A store is the directory of the index. Its methods may be called concurrently. The nil store is empty and takes nothing.
type store struct {
	dir      *statedir.Dir
	lock     *os.File // nil: another process has it, or we may not write: nothing is changed
	former   *os.File // the lock, when it was let go
	limit    int64    // octets of all files
	foreign  bool     // its files were made otherwise, and are not used
	mu       sync.Mutex
	used     int64
	byAge    []stored // what may be removed, the newest first
	refused  bool     // something was not kept, as all that is there is newer
	complain func(format string, args ...any)
}

// stored is a file of the index.
type stored struct {
	name string
	size int64
	time time.Time // of the last line that it is about
}

const (
	segmentSuffix = ".seg"
	packedSuffix  = ".zip"
	lockName      = "lock"
	formatName    = "format"
	maxFormat     = 256 // octets of that file
	hashDigits    = 16  // of the hash that the name of a file begins with
)

// formatOf says how the files of an index are made. The number changes whenever the files do, or what keys, and what tokens, a line has.
func formatOf(z sizes) string {
	return fmt.Sprintf("posthaste trace, index 4: blocks of %d octets, segments of %d, known by the last %d\n", z.block, z.segment, z.tail)
}

// ErrBusy says that another process is building the index.
var ErrBusy = errors.New("another process is building the index")

// openStore opens the directory of the index, and says why nothing can be written to it. format says how its files are made: those that are made
// otherwise are not used.
func openStore(path, format string, limit int64, complain func(string, ...any)) (s *store, readonly error) {
	dir, err := statedir.Open(path)
	if err != nil {
		return nil, err
	}
	s = &store{dir: dir, limit: limit, complain: complain}
	s.foreign = s.format() != format
	f, err := dir.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return s, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrBusy
		}
		return s, err
	}
	s.lock = f
	s.foreign = s.format() != format // now nobody changes it
	if err := s.list(); err != nil || !s.foreign {
		return s, err
	}
	return s, s.anew(path, format)
}

// format is what the index says of how it was made; empty: nothing.
func (s *store) format() string {
	f, err := s.file(formatName)
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, maxFormat)
	n, _ := f.ReadAt(b, 0) // a pipe has no places, and is not waited for
	return string(b[:n])
}

// anew removes all files, which were made otherwise than those that will be.
func (s *store) anew(path, format string) error {
	if len(s.byAge) > 0 {
		s.complain("the index in %s is of another version: it is made anew", path)
	}
	for _, f := range slices.Clone(s.byAge) {
		if !s.remove(f.name) {
			return fmt.Errorf("%s: %s cannot be removed", path, f.name)
		}
	}
	err := s.dir.Replace(formatName, []byte(format))
	s.foreign = err != nil
	return err
}

// prune removes what is about logs that there are no more: what is of none of the names, which are the beginnings of files' names, and older
// than the oldest log.
func (s *store) prune(names map[string]bool, oldest time.Time) {
	if s == nil || s.lock == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range slices.Clone(s.byAge) {
		if len(f.name) >= hashDigits && !names[f.name[:hashDigits]] && f.time.Before(oldest) {
			s.remove(f.name)
		}
	}
}

// close ends the use of the directory.
func (s *store) close() {
	if s == nil {
		return
	}
	if s.unlock(); s.former != nil {
		s.former.Close()
	}
	s.dir.Close()
}

// unlock lets others write to the directory: from now on it is read. Whoever shows what is found may wait for somebody who reads it.
func (s *store) unlock() {
	if s != nil && s.lock != nil {
		// A program that is being started may have the file for a moment more, and the lock with it.
		unix.Flock(int(s.lock.Fd()), unix.LOCK_UN)
		s.lock, s.former = nil, s.lock
	}
}

// alone calls f while no other process writes to the directory, if that may be done.
func (s *store) alone(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.lock != nil:
		f()
	case s.former != nil && unix.Flock(int(s.former.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil:
		f()
		unix.Flock(int(s.former.Fd()), unix.LOCK_UN)
	}
}

// list looks what there is, and removes what was not finished.
func (s *store) list() error {
	entries, err := s.dir.ReadDir(".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, ".new") {
			s.dir.Remove(name)
			continue
		}
		info, err := s.dir.Lstat(name)
		if err != nil || !strings.HasSuffix(name, segmentSuffix) && !strings.HasSuffix(name, packedSuffix) {
			continue
		}
		s.used += info.Size()
		s.byAge = append(s.byAge, stored{name, info.Size(), info.ModTime()})
	}
	slices.SortFunc(s.byAge, func(a, b stored) int { return b.time.Compare(a.time) })
	s.makeRoom(0, time.Unix(1<<40, 0))
	return nil
}

// hashName is what the names of files begin with.
func hashName(hash uint64) string { return fmt.Sprintf("%0*x", hashDigits, hash) }

func segmentName(ident uint64, n int) string {
	return fmt.Sprintf("%s-%06d%s", hashName(ident), n, segmentSuffix)
}

// volumeName is that of the volume whose first part would be the n-th segment.
func volumeName(ident uint64, n int) string {
	return fmt.Sprintf("%s-v%05d%s", hashName(ident), n/volumeParts, segmentSuffix)
}

// get is the volume that begins with the n-th segment of a log, or else that segment; nil: there is none that can be used.
func (s *store) get(ident uint64, n int) *segment {
	if s == nil || s.foreign {
		return nil
	}
	if n%volumeParts == 0 {
		if v := s.open(ident, volumeName(ident, n), volumeBits); v != nil {
			return v
		}
	}
	return s.open(ident, segmentName(ident, n), segmentBits)
}

// file opens a file of the index. What is not a file is not waited for: the directory is another user's when root searches.
func (s *store) file(name string) (*os.File, error) {
	return s.dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// open opens the file of a segment.
func (s *store) open(ident uint64, name string, bits uint8) *segment {
	f, err := s.file(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	b := make([]byte, headerSize(bits, 1<<bits))
	size, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil
	}
	seg, err := decodeSegment(b[:size])
	if info, failed := f.Stat(); err == nil && (failed != nil || seg.ident != ident || seg.blockBits != bits ||
		info.Size() != seg.fileSize()) {
		err = errDamaged
	}
	if err != nil {
		s.drop(name, err)
		return nil
	}
	seg.name = name
	return seg
}

// drop removes a file that cannot be used. It is made again.
func (s *store) drop(name string, why error) {
	if errors.Is(why, errDamaged) {
		s.alone(func() {
			s.complain("index file %s: %v: it is made again", name, why)
			s.remove(name)
		})
	}
}

// discard removes a volume that is not of the text of its log, and says whether it did. It would be taken for the segments that are
// made now, at each search.
func (s *store) discard(seg *segment) bool {
	if seg == nil || seg.blockBits != volumeBits || s.lock == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(seg.name)
}

// remove removes a file, and says whether it is gone. The caller holds mu.
func (s *store) remove(name string) bool {
	if err := s.dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	s.forget(map[string]bool{name: true})
	return true
}

// forget takes files out of the list, and returns them. The caller holds mu.
func (s *store) forget(names map[string]bool) (list []stored) {
	s.byAge = slices.DeleteFunc(s.byAge, func(f stored) bool {
		if names[f.name] {
			s.used -= f.size
			list = append(list, f)
		}
		return names[f.name]
	})
	return list
}

// insert puts a file into the list. The caller holds mu.
func (s *store) insert(f stored) {
	s.used += f.size
	at, _ := slices.BinarySearchFunc(s.byAge, f.time, func(f stored, t time.Time) int { return t.Compare(f.time) })
	s.byAge = slices.Insert(s.byAge, at, f)
}

// makeRoom removes what is oldest until size octets fit, but nothing that is not older than when. The caller holds mu, or is
// alone.
func (s *store) makeRoom(size int64, when time.Time) bool {
	for s.used+size > s.limit {
		if len(s.byAge) == 0 || !s.byAge[len(s.byAge)-1].time.Before(when) {
			return false
		}
		before := len(s.byAge)
		if s.remove(s.byAge[before-1].name); len(s.byAge) == before {
			return false
		}
	}
	return true
}

// put keeps a segment. It says whether it was kept; its entries and its sieve are then in the file only.
func (s *store) put(seg *segment, n int) bool {
	if s == nil || s.lock == nil {
		return false
	}
	name := segmentName(seg.ident, n)
	_, last := seg.times()
	if !s.write(name, seg.encode(), last) {
		return false
	}
	seg.name, seg.entries, seg.sieve.rows, seg.gate = name, nil, nil, nil
	return true
}

// write writes a file of the index. Its time is that of the last line that it is about.
func (s *store) write(name string, text []byte, micros int64) bool {
	when := time.UnixMicro(micros)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(map[string]bool{name: true}) // what it replaces
	if !s.makeRoom(int64(len(text)), when) {
		s.refused = true
		s.dir.Remove(name)
		return false
	}
	if err := s.dir.Replace(name, text); err != nil {
		s.complain("index file %s: %v", name, err)
		return false
	}
	s.dir.Chtimes(name, when, when)
	s.insert(stored{name, int64(len(text)), when})
	return true
}

// A digest is what is known of a compressed log without opening it: it was read to its end once.
type digest struct {
	ident    uint64 // of its text
	begin    int64  // time of its first line
	size     int64  // of its text
	segments int
	tails    uint64 // of the tails of these
}

// tailsOf is a hash of the tails of segments. Two logs may have one beginning and one size, and so the same names of files of the index.
func tailsOf(list []*segment) uint64 {
	var b []byte
	for _, seg := range list {
		b = binary.LittleEndian.AppendUint64(b, seg.tail)
	}
	return fingerprint(0, b)
}

func digestName(raw uint64) string { return hashName(raw) + packedSuffix }

// getDigest is what is known of the compressed log whose file has the hash raw.
func (s *store) getDigest(raw uint64) (d digest, ok bool) {
	if s == nil || s.foreign {
		return d, false
	}
	name := digestName(raw)
	f, err := s.file(name)
	if err != nil {
		return d, false
	}
	defer f.Close()
	const size = len(segmentMagic) + 5*8 + 4
	b := make([]byte, size+1)
	n, err := f.ReadAt(b, 0) // a pipe has no places, and is not waited for
	if err != nil && err != io.EOF {
		return d, false
	}
	if b = b[:n]; n != size || string(b[:len(segmentMagic)]) != segmentMagic || crc32.ChecksumIEEE(b[:size-4]) != binary.LittleEndian.Uint32(b[size-4:]) {
		s.drop(name, errDamaged)
		return d, false
	}
	word := func(n int) uint64 { return binary.LittleEndian.Uint64(b[len(segmentMagic)+8*n:]) }
	return digest{word(0), int64(word(1)), int64(word(2)), int(word(3)), word(4)}, true
}

// putDigest keeps what is known of a compressed log. last is the time of its last line.
func (s *store) putDigest(raw uint64, d digest, last int64) {
	if s == nil || s.lock == nil {
		return
	}
	b := []byte(segmentMagic)
	for _, v := range []uint64{d.ident, uint64(d.begin), uint64(d.size), uint64(d.segments), d.tails} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	s.write(digestName(raw), binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b)), last)
}
