package suppress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"posthaste/internal/pack"
	"posthaste/internal/returnpath"
	"posthaste/internal/statedir"
)

const (
	recordPrefix = "sent." // and the day, since 1970
	maxRecord    = 8 << 10 // octets of one
	recordHead   = 2 + 4   // length, checksum
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errNoRecord = errors.New("there is no record of that delivery")

// A sent is what is recorded of a delivery.
type sent struct {
	List, Sender, Recipient, QueueID, MessageID, EnvID string
	Provider, Source                                   string
	Tenant, Campaign                                   string
}

// pack is the record. Tags are on disk.
func (s *sent) pack() []byte {
	b := pack.String(nil, 'l', s.List)
	b = pack.String(b, 's', s.Sender)
	b = pack.String(b, 'r', s.Recipient)
	b = pack.String(b, 'q', s.QueueID)
	b = pack.String(b, 'm', s.MessageID)
	b = pack.String(b, 'e', s.EnvID)
	b = pack.String(pack.String(b, 'p', s.Provider), 'f', s.Source)
	return pack.String(pack.String(b, 't', s.Tenant), 'c', s.Campaign)
}

func unpackSent(b []byte) (s sent, err error) {
	r := pack.NewTextReader(b)
	for r.Next() {
		switch r.Tag() {
		case 'l':
			s.List = r.String()
		case 's':
			s.Sender = r.String()
		case 'r':
			s.Recipient = r.String()
		case 'q':
			s.QueueID = r.String()
		case 'm':
			s.MessageID = r.String()
		case 'e':
			s.EnvID = r.String()
		case 'p':
			s.Provider = r.String()
		case 'f':
			s.Source = r.String()
		case 't':
			s.Tenant = r.String()
		case 'c':
			s.Campaign = r.String()
		}
	}
	return s, r.Err()
}

// records are the deliveries, a file for each day, to which records are only appended. A record's place in it is in the
// token that the mail leaves with, so that finding it costs one read. They are not synced: what a power cut takes are
// records of the last seconds, whose tokens still have queue ID and recipient's hash. Methods may be called concurrently.
type records struct {
	dir *statedir.Dir

	mu  sync.Mutex
	f   *os.File // of day; nil: none is open
	day int
	end int64 // of f
}

func recordName(day int) string { return recordPrefix + strconv.Itoa(day) }

// append writes a record of a day and returns its place. Days do not go back but for an hour or so at midnight.
func (r *records) append(day int, s *sent) (position int64, err error) {
	body := s.pack()
	if len(body) > maxRecord {
		return 0, fmt.Errorf("the record of a delivery has %d octets", len(body))
	}
	b := binary.BigEndian.AppendUint16(make([]byte, 0, recordHead+len(body)), uint16(len(body)))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(body, castagnoli))
	b = append(b, body...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.open(day); err != nil {
		return 0, err
	}
	if r.end+int64(len(b)) > returnpath.MaxPosition {
		return 0, fmt.Errorf("%s is too large", recordName(day))
	}
	if _, err := r.f.WriteAt(b, r.end); err != nil {
		return 0, err // the next one is written over what there may be of it
	}
	position = r.end
	r.end += int64(len(b))
	return position, nil
}

// open opens the file of a day. The caller has mu.
func (r *records) open(day int) error {
	if r.f != nil && r.day == day {
		return nil
	}
	r.shut()
	f, err := r.dir.OpenFile(recordName(day), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r.f, r.day, r.end = f, day, end
	return nil
}

// shut closes the file. The caller has mu. What it had to write has been written.
func (r *records) shut() {
	if r.f != nil {
		_ = r.f.Close()
		r.f = nil
	}
}

func (r *records) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut()
}

// read finds the record at a place, or returns errNoRecord. The place comes from a token that is good; that
// the record is that token's is for the caller to find out.
func (r *records) read(day int, position int64) (s sent, err error) {
	f, err := r.dir.Open(recordName(day))
	if errors.Is(err, fs.ErrNotExist) {
		return s, errNoRecord
	}
	if err != nil {
		return s, err
	}
	defer f.Close()
	var head [recordHead]byte
	if _, err := f.ReadAt(head[:], position); err == io.EOF {
		return s, errNoRecord
	} else if err != nil {
		return s, err
	}
	body := make([]byte, binary.BigEndian.Uint16(head[:]))
	if len(body) > maxRecord {
		return s, errNoRecord
	}
	if _, err := f.ReadAt(body, position+recordHead); err == io.EOF {
		return s, errNoRecord
	} else if err != nil {
		return s, err
	}
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(head[2:]) {
		return s, errNoRecord
	}
	if s, err = unpackSent(body); err != nil {
		return sent{}, errNoRecord
	}
	return s, nil
}

// forget removes the files of days before one.
func (r *records) forget(before int) error {
	names, err := r.dir.Glob(recordPrefix + "*")
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if day, err := strconv.Atoi(strings.TrimPrefix(name, recordPrefix)); err == nil && day < before {
			errs = append(errs, r.dir.Remove(name))
		}
	}
	return errors.Join(errs...)
}
