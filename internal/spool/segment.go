package spool

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/vfs"
)

// Names under the spool's directory.
const (
	segDir   = "seg"
	bigDir   = "big"
	lockFile = "LOCK"
	// damagedDir has copies of what was damaged, for people: see quarantine.
	damagedDir = "damaged"
)

const (
	segVersion  = 2
	segVersion1 = 1 // both copies of the header in block 0, batches from block 1 on
	segMagic    = "PHSEG001"
	minSegment  = 16 << 10
	maxSegment  = 1 << 30
	segHdrBytes = 512                     // one sector: it cannot be torn on a disk that writes sectors whole
	segHdrCopy1 = blockSize - segHdrBytes // where the second copy is in version 1
	segHdrCopy  = blockSize               // and since
	headRoom    = 2 * blockSize           // batches begin after it
)

// segHeader is at the start of blocks 0 and 1 of a segment, written with the
// segment's first batch: one block of a disk that goes bad takes one of them.
type segHeader struct {
	segno      uint64
	promised   uint64 // highest batch known durable when this was written
	from       point  // a recovery point that was durable before this was written
	firstBatch uint64
	size       uint32
	salt       uint64
	uuid       [16]byte
	created    int64

	start  int64 // where batches begin, by the version; put does not look at it
	second bool  // read: it is of a version that has an IDENTITY
	whole  bool  // read: both copies are sound, and the same
}

// put writes both copies into b, of headRoom bytes.
func (h *segHeader) put(b []byte) {
	clear(b[:headRoom])
	h.record(b, segVersion)
	copy(b[segHdrCopy:], b[:segHdrBytes])
}

// putBlock writes a header into b, a block, in the place of those of a segment
// whose batches begin nobody knows where: after one block, or two.
func (h *segHeader) putBlock(b []byte) {
	clear(b[:blockSize])
	h.record(b, segVersion1)
	copy(b[segHdrCopy1:], b[:segHdrBytes])
}

func (h *segHeader) record(b []byte, version uint16) {
	le := binary.LittleEndian
	copy(b, segMagic)
	le.PutUint64(b[8:], h.segno)
	le.PutUint64(b[16:], h.promised)
	le.PutUint64(b[24:], h.from.segno)
	le.PutUint64(b[32:], h.from.batch)
	le.PutUint64(b[40:], h.firstBatch)
	le.PutUint32(b[48:], h.size)
	le.PutUint16(b[52:], version)
	le.PutUint16(b[54:], blockSize)
	le.PutUint64(b[56:], h.salt)
	copy(b[64:80], h.uuid[:])
	le.PutUint64(b[80:], uint64(h.created))
	le.PutUint32(b[508:], checksum(b[:508]))
}

// read decodes blocks 0 and 1. Of two copies that differ the later use of the segment
// counts: its first batch did not get as far as being durable, and the former
// use is over in any case.
func (h *segHeader) read(b []byte) (ok bool, err error) {
	for _, at := range []int{0, segHdrCopy1, segHdrCopy} {
		var c segHeader
		found, err := c.parse(b[at:])
		if err != nil {
			return true, err
		}
		if !found || at == segHdrCopy1 && c.second || at == segHdrCopy && !c.second {
			continue // an older use's
		}
		switch {
		case !ok || c.segno > h.segno:
			*h, ok = c, true
		case c.segno == h.segno:
			h.whole = true
		}
	}
	return ok, nil
}

// errNewer says that a newer program wrote what we found.
type errNewer struct{ what string }

func (e *errNewer) Error() string {
	return e.what + " was written by a newer version of posthaste: start that version, or export the queue with it"
}

// parse decodes a segment header. It is false for a block that is none; a
// sound header of another version is an error.
func (h *segHeader) parse(b []byte) (ok bool, err error) {
	le := binary.LittleEndian
	if len(b) < segHdrBytes || string(b[:8]) != segMagic || checksum(b[:508]) != le.Uint32(b[508:]) {
		return false, nil
	}
	v, bs := le.Uint16(b[52:]), le.Uint16(b[54:])
	if v != segVersion && v != segVersion1 || bs != blockSize {
		return true, &errNewer{fmt.Sprintf("segment (format %d, block size %d)", v, bs)}
	}
	h.second, h.start = v == segVersion, blockSize
	if h.second {
		h.start = headRoom
	}
	h.segno = le.Uint64(b[8:])
	h.promised = le.Uint64(b[16:])
	h.from = point{segno: le.Uint64(b[24:]), batch: le.Uint64(b[32:])}
	h.firstBatch = le.Uint64(b[40:])
	h.size = le.Uint32(b[48:])
	h.salt = le.Uint64(b[56:])
	copy(h.uuid[:], b[64:80])
	h.created = int64(le.Uint64(b[80:]))
	return true, nil
}

// unusedMagic begins a segment file that was made and has not been used. The
// first header takes its place.
const unusedMagic = "PHSEGNEW"

// unusedMark is what a new segment file begins with: the magic, zeros, and the
// checksum where a header has it.
func unusedMark() []byte {
	b := make([]byte, segHdrBytes)
	copy(b, unusedMagic)
	binary.LittleEndian.PutUint32(b[508:], checksum(b[:508]))
	return b
}

// isUnused says whether b, which is the first two blocks of a segment file, shows that
// nothing was ever written to the rest: it has the mark, and there is nothing where
// a first batch would be. Were only the header lost, that would be there.
func isUnused(b []byte) bool {
	return len(b) >= 2*blockSize && bytes.Equal(b[:segHdrBytes], unusedMark()) && !slices.ContainsFunc(b[segHdrBytes:2*blockSize], func(c byte) bool { return c != 0 })
}

type segState uint8

const (
	segFree   segState = iota // may be overwritten
	segOpen                   // the log's head, or the head of what the cleaner copies
	segClosed                 // holds something, or may be needed by a recovery
)

// segment is one file of the log and its present use.
type segment struct {
	file  uint32
	f     vfs.File
	size  int64
	state segState
	cold  bool // holds what the cleaner copied

	left time.Time // when something in it could not be read: see leave

	segno      uint64
	salt       uint32
	firstBatch uint64
	lastBatch  uint64 // 0: none that matters
	freed      uint64 // batch that made it free
	off        int64  // end of what is written, while open
	start      int64  // of its first batch, as far as is known
	since      readSince
	headless   bool // its header is to be written again: see mendHeaders

	live      int64 // bytes of records that matter
	stateLive int64 // of those, STATE records
	nstates   int   // messages whose newest record is here
	ncontents int   // messages whose MSG record is here

	// No message under these numbers has its newest record, or its MSG record, here:
	// where moveFrom and copyFrom go on. They are 0 but while the segment is emptied.
	statesFrom, contentsFrom uint64
}

func segName(dir string, file uint32) string {
	if inStash(file) {
		return path.Join(dir, stashDir, fmt.Sprintf("%08d.seg", file-stashBase))
	}
	return path.Join(dir, segDir, fmt.Sprintf("%08d.seg", file))
}

// segNumber is the counterpart of segName, given the last element.
func segNumber(name string) (uint32, bool) {
	digits, ok := strings.CutSuffix(name, ".seg")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), err == nil && fmt.Sprintf("%08d.seg", n) == name
}
