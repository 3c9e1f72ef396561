package spool

import (
	"encoding/binary"
	"fmt"
	"path"
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
)

const (
	segVersion  = 1
	segMagic    = "PHSEG001"
	minSegment  = 16 << 10
	maxSegment  = 1 << 30
	segHdrBytes = 512                     // one sector: it cannot be torn on a disk that writes sectors whole
	segHdrCopy  = blockSize - segHdrBytes // where the second copy is
)

// segHeader is in block 0 of a segment, twice, written with the segment's first batch.
type segHeader struct {
	segno      uint64
	promised   uint64 // highest batch known durable when this was written
	from       point  // a recovery point that was durable before this was written
	firstBatch uint64
	size       uint32
	salt       uint64
	uuid       [16]byte
	created    int64
}

func (h *segHeader) put(b []byte) {
	le := binary.LittleEndian
	clear(b[:blockSize])
	copy(b, segMagic)
	le.PutUint64(b[8:], h.segno)
	le.PutUint64(b[16:], h.promised)
	le.PutUint64(b[24:], h.from.segno)
	le.PutUint64(b[32:], h.from.batch)
	le.PutUint64(b[40:], h.firstBatch)
	le.PutUint32(b[48:], h.size)
	le.PutUint16(b[52:], segVersion)
	le.PutUint16(b[54:], blockSize)
	le.PutUint64(b[56:], h.salt)
	copy(b[64:80], h.uuid[:])
	le.PutUint64(b[80:], uint64(h.created))
	le.PutUint32(b[508:], checksum(b[:508]))
	copy(b[segHdrCopy:], b[:segHdrBytes])
}

// read decodes block 0. Of two copies that differ the later use of the segment
// counts: its first batch did not get as far as being durable, and the former
// use is over in any case.
func (h *segHeader) read(b []byte) (ok bool, err error) {
	for _, at := range []int{0, segHdrCopy} {
		var c segHeader
		found, err := c.parse(b[at:])
		if err != nil {
			return true, err
		}
		if found && (!ok || c.segno > h.segno) {
			*h, ok = c, true
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
	if v, bs := le.Uint16(b[52:]), le.Uint16(b[54:]); v != segVersion || bs != blockSize {
		return true, &errNewer{fmt.Sprintf("segment (format %d, block size %d)", v, bs)}
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

	live      int64  // bytes of records that matter
	stateLive int64  // of those, STATE records
	nstates   int    // messages whose newest record is here
	states    uint32 // list of them: slot+1
	contents  uint32 // list of messages whose MSG record is here: slot+1
	ncontents int
}

func segName(dir string, file uint32) string {
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

func bigName(dir string, id string) string { return path.Join(dir, bigDir, id) }
