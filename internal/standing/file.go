package standing

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"

	"posthaste/internal/pack"
)

// MaxFile bounds the octets that Encode makes: 201 rows of 24 hours.
const MaxFile = 1 << 20

// magic begins what Encode makes, and ends with the version of the form. The CRC-32C of the rest follows: a file that was not
// written to its end is none.
const magic = "PHSTAND\x01"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errFile = errors.New("the counts by provider are damaged, or of another version")

// Encode gives the Book the form in which it is kept, and passed on.
func (b *Book) Encode() []byte {
	out := make([]byte, len(magic)+4, 4096)
	for _, name := range b.names() {
		r := b.rows[name]
		out = pack.Nested(out, 'r', func(out []byte) []byte {
			out = pack.String(pack.String(out, 'p', name.Provider), 's', name.Source)
			for i := range r.slots {
				if s := &r.slots[i]; s.n.sum() > 0 {
					out = pack.Nested(out, 'h', s.append)
				}
			}
			return out
		})
	}
	return sealed(out)
}

// sealed writes the head into the room before a body.
func sealed(b []byte) []byte {
	copy(b, magic)
	binary.BigEndian.PutUint32(b[len(magic):], crc32.Checksum(b[len(magic)+4:], castagnoli))
	return b
}

// append and read are an hour. The tags of counts are 'A' and the Kind.
func (s *slot) append(out []byte) []byte {
	out = pack.Int(out, 'h', s.hour)
	for k, n := range s.n {
		out = pack.Int(out, 'A'+byte(k), n)
	}
	return out
}

func (s *slot) read(r pack.Reader) error {
	for r.Next() {
		switch tag := r.Tag(); {
		case tag == 'h':
			s.hour = r.Int()
		case tag >= 'A' && tag < 'A'+byte(kinds): // others are of a later version
			s.n[tag-'A'] = min(max(r.Int(), 0), math.MaxInt32)
		}
	}
	return r.Err()
}

// Decode is the inverse of Encode. Of nothing it makes an empty Book. What makes no sense is an error, and names are cut.
func Decode(text []byte) (*Book, error) {
	b := new(Book)
	if len(text) == 0 {
		return b, nil
	}
	head := len(magic) + 4
	if len(text) < head || len(text) > MaxFile || string(text[:len(magic)]) != magic ||
		crc32.Checksum(text[head:], castagnoli) != binary.BigEndian.Uint32(text[len(magic):]) {
		return nil, errFile
	}
	r := pack.NewReader(text[head:])
	for r.Next() {
		if r.Tag() != 'r' {
			continue
		}
		if err := b.read(r.Nested()); err != nil {
			return nil, err
		}
	}
	return b, r.Err()
}

// read reads a row.
func (b *Book) read(r pack.Reader) error {
	var name Name
	var slots []slot
	for r.Next() {
		switch r.Tag() {
		case 'p':
			name.Provider = Site(r.String())
		case 's':
			name.Source = Site(r.String())
		case 'h':
			var s slot
			if err := s.read(r.Nested()); err != nil {
				return err
			}
			if slots = append(slots, s); len(slots) > Hours {
				return errFile
			}
		}
	}
	if err := r.Err(); err != nil {
		return err
	}
	if b.rows == nil {
		b.rows = make(map[Name]*row)
	}
	if name.Provider == "" || b.rows[name] != nil || len(b.rows) > MaxNames {
		return errFile
	}
	b.turn++
	to := &row{turn: b.turn}
	for i := range slots {
		// Of two hours of one slot the later one counts, as it would have in the Book.
		if at := &to.slots[uint64(slots[i].hour)%Hours]; at.hour <= slots[i].hour {
			*at = slots[i]
		}
	}
	b.rows[name] = to
	return nil
}
