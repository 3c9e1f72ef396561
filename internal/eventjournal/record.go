package eventjournal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"posthaste/internal/proto"
	"posthaste/internal/vfs"
)

// recordSize is about how many octets a record has, and never less than that.
func recordSize(e *proto.EventRecord) int {
	return recordHead + 32 + len(e.Kind) + len(e.Key) + len(e.JSON)
}

// maxRecord bounds the payload of a record. Kinds and keys are short.
const maxRecord = proto.MaxEvent + 4096

// appendRecord appends event number seq as it stands in a segment.
func appendRecord(b []byte, seq uint64, e *proto.EventRecord) []byte {
	start := len(b)
	b = e.Append(append(b, make([]byte, recordHead)...))
	payload := b[start+recordHead:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[start+4:], checksum(seq, payload))
	return b
}

// checksum is of the number and the payload: a record that is left from before at the place of another one
// is none.
func checksum(seq uint64, payload []byte) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], seq)
	return crc32.Update(crc32.Checksum(b[:], castagnoli), castagnoli, payload)
}

// A scanner reads the records of a segment.
type scanner struct {
	f    vfs.File
	size int64
	at   int64  // of the next record
	seq  uint64 // its number

	buf   []byte // of the file, from start
	start int64
	ahead int // how much is read next time; 0: scanAhead
}

// scanAhead is how much is read at once, and scanTail how much at the end, where there is mostly little, and what
// is not there yet is read again with the next events.
const (
	scanAhead = 256 << 10
	scanTail  = 8 << 10
)

// bytes gives n octets of the file from off; nil where it ends before. They are good until the next call.
func (s *scanner) bytes(off int64, n int) ([]byte, error) {
	if off+int64(n) > s.size {
		return nil, nil
	}
	if off < s.start || off+int64(n) > s.start+int64(len(s.buf)) {
		ahead := cmp.Or(s.ahead, scanAhead)
		s.ahead = min(2*ahead, scanAhead)
		want := int(min(int64(max(n, ahead)), s.size-off))
		if cap(s.buf) < want {
			s.buf = make([]byte, want)
		}
		s.buf, s.start = s.buf[:want], off
		if k, err := s.f.ReadAt(s.buf, off); k < want {
			s.buf = s.buf[:0]
			if err == nil || errors.Is(err, io.EOF) {
				return nil, nil
			}
			return nil, err
		}
	}
	return s.buf[off-s.start:][:n], nil
}

// head gives the head of the next record, which may be that of the next write, and where that is; nil: the file ends.
func (s *scanner) head() (head []byte, at int64, err error) {
	at = s.at
	// Where the space up to the next write is too small for a head there is none.
	if next := aligned(at); next-at < recordHead {
		at = next
	}
	head, err = s.bytes(at, recordHead)
	if head == nil || err != nil || at%align == 0 || binary.LittleEndian.Uint32(head) != 0 {
		return head, at, err
	}
	head, err = s.bytes(aligned(at), recordHead)
	return head, aligned(at), err
}

// next gives the next event. ok is false at the end, and where the file is damaged; the position is then where it was: what was
// read beside a write may have the second page of it and not the first, so that what looks like the head of a record is
// in the middle of one. The event is good until the next call.
func (s *scanner) next() (e proto.EventRecord, ok bool, err error) {
	head, at, err := s.head()
	if head == nil || err != nil {
		return e, false, err
	}
	n, sum := binary.LittleEndian.Uint32(head), binary.LittleEndian.Uint32(head[4:])
	if n == 0 || n > maxRecord {
		return e, false, nil
	}
	payload, err := s.bytes(at+recordHead, int(n))
	if payload == nil || err != nil {
		return e, false, err
	}
	if checksum(s.seq, payload) != sum || e.Decode(payload) != nil {
		return e, false, nil
	}
	s.at = at + recordHead + int64(n)
	s.seq++
	return e, true, nil
}

// again forgets what was read: more may have been written since.
func (s *scanner) again() { s.buf, s.ahead = s.buf[:0], scanTail }
