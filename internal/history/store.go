package history

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/statedir"
)

const (
	magicName = "posthaste queue history "
	version   = "1"
	magic     = magicName + version + "\n"
	suffix    = ".shape"
	// aside ends the name of a file of another version of the program that stood in the way.
	aside    = ".other"
	hours    = "2006010215" // names of files
	lockName = "lock"
	// recordHead are the octets before a sample.
	recordHead = 8
	// maxDictionary is how much of a sample DEFLATE can refer to.
	maxDictionary = 32 << 10
	// near is how much older than what was asked for a sample may be.
	near = 15 * time.Minute
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	// ErrBusy says that another process writes the samples.
	ErrBusy = errors.New("another process keeps the history of the queue")
	// ErrVersion says that the samples of a time were written by another version of the program, which this one cannot read.
	ErrVersion = errors.New("another version of Posthaste has written it")
	// ErrNone says that there is no sample of the time that was asked for.
	ErrNone = errors.New("there is no sample of the queue of that time")
	// errTooLarge says that a sample has no room in a record.
	errTooLarge = fmt.Errorf("the sample has more than %d octets", maxSample)
)

// Limits bound the files. Zero is no bound.
type Limits struct {
	Octets int64
	Age    time.Duration
}

// A Writer appends samples. There is one of them at a time, over all processes. It belongs to one
// goroutine.
type Writer struct {
	dir    *statedir.Dir
	limits Limits
	// Warn is told of files that were set aside; nil: nobody is.
	Warn   func(format string, args ...any)
	lock   *os.File
	file   *os.File // nil: none is open
	name   string
	end    int64  // of the file's last whole record
	before []byte // the last sample in the file
}

// OpenWriter makes the Writer for a directory, which belongs to it from then on. An error to tell
// apart is ErrBusy.
func OpenWriter(dir *statedir.Dir, limits Limits) (*Writer, error) {
	f, err := dir.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		dir.Close()
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		dir.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrBusy
		}
		return nil, fmt.Errorf("lock the history of the queue: %w", err)
	}
	return &Writer{dir: dir, limits: limits, lock: f}, nil
}

// Close lets another process write.
func (w *Writer) Close() error {
	err := w.lock.Close()
	if w.file != nil {
		err = errors.Join(err, w.file.Close())
	}
	return errors.Join(err, w.dir.Close())
}

// Append adds a sample, behind all that are there: one that is not later than the last of its
// hour is dropped. After an error the sample is not there, and the next one may be appended.
func (w *Writer) Append(s *Sample) error {
	if err := w.open(s.At.UTC().Format(hours) + suffix); err != nil {
		return err
	}
	if w.before != nil {
		if last, err := decode(w.before); err == nil && !s.At.After(last.At) {
			return nil
		}
	}
	raw := s.append(nil)
	if len(raw) > maxSample {
		return errTooLarge
	}
	record := make([]byte, recordHead, 4096)
	out := bytes.NewBuffer(record)
	z, err := flate.NewWriterDict(out, flate.DefaultCompression, dictionary(w.before))
	if err != nil {
		return err
	}
	if _, err := z.Write(raw); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	record = out.Bytes()
	binary.LittleEndian.PutUint32(record, uint32(len(record)-recordHead))
	binary.LittleEndian.PutUint32(record[4:], crc32.Checksum(record[recordHead:], castagnoli))
	if _, err := w.file.WriteAt(record, w.end); err != nil {
		w.file.Close() // what is there now is found out when it is opened again
		w.file = nil
		return err
	}
	w.end += int64(len(record))
	w.before = raw
	return nil
}

// open opens the file of that name, behind its last whole record.
func (w *Writer) open(name string) error {
	if w.file != nil && w.name == name {
		return nil
	}
	if w.file != nil {
		w.file.Close()
		w.file = nil
	}
	if err := w.prune(name); err != nil {
		return err
	}
	f, err := w.read(name)
	if errors.Is(err, ErrVersion) {
		// After a downgrade within the hour, or an upgrade and back. What the other version has written it can still read.
		if err := w.dir.Rename(name, name+aside); err != nil {
			return err
		}
		if w.Warn != nil {
			w.Warn("%s of the history of the queue is set aside as %s: %v", name, name+aside, err)
		}
		f, err = w.read(name)
	}
	if err != nil {
		return err
	}
	err = f.Truncate(w.end)
	if err == nil && w.end == 0 {
		_, err = f.WriteAt([]byte(magic), 0)
		w.end = int64(len(magic))
	}
	if err != nil {
		f.Close()
		return err
	}
	w.file, w.name = f, name
	return nil
}

// read opens a file and finds its end, that of its last whole record.
func (w *Writer) read(name string) (*os.File, error) {
	f, err := w.dir.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	w.before, w.end = nil, 0
	_, err = scan(f, func(_ *Sample, raw []byte, end int64) bool {
		w.before, w.end = raw, end
		return true
	})
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// prune removes the files that are too old or too many. That of the name that is going to be
// written stays.
func (w *Writer) prune(name string) error {
	list, err := w.dir.ReadDir(".")
	if err != nil {
		return err
	}
	now, err := time.Parse(hours, strings.TrimSuffix(name, suffix))
	if err != nil {
		return err
	}
	total := int64(0)
	for _, e := range slices.Backward(list) { // the latest first
		// Those that were set aside take room as others do.
		own := strings.TrimSuffix(e.Name(), aside)
		begin, err := time.Parse(hours, strings.TrimSuffix(own, suffix))
		if err != nil || !strings.HasSuffix(own, suffix) || e.Name() == name {
			continue
		}
		if info, err := e.Info(); err == nil {
			total += info.Size()
		}
		old := w.limits.Age > 0 && now.Sub(begin) > w.limits.Age
		if !old && (w.limits.Octets <= 0 || total <= w.limits.Octets) {
			continue
		}
		if err := w.dir.Remove(e.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func dictionary(raw []byte) []byte { return raw[max(0, len(raw)-maxDictionary):] }

// scan calls f for each sample of a file until f returns false, with its encoding, which f may
// keep, and the place behind it. It stops without an error where the file has no whole record. A file of another version is
// ErrVersion.
func scan(file *os.File, f func(s *Sample, raw []byte, end int64) bool) (more bool, err error) {
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return true, err
	}
	in := bufio.NewReaderSize(io.NewSectionReader(file, 0, 1<<40), 64<<10)
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(in, head); err != nil {
		return true, ignoreEnd(err)
	}
	if string(head) != magic {
		return true, otherVersion(head, in)
	}
	end := int64(len(magic))
	var before []byte
	for {
		raw, n, err := readRecord(in, before)
		if err != nil {
			return true, ignoreEnd(err)
		}
		s, err := decode(raw)
		if err != nil {
			return true, nil
		}
		before, end = raw, end+int64(n)
		if !f(s, raw, end) {
			return false, nil
		}
	}
}

// otherVersion is ErrVersion where the head of a file is one, of which the first octets are given: with another number. Else the
// file is damaged, and nil.
func otherVersion(head []byte, in *bufio.Reader) error {
	number, ok := strings.CutPrefix(string(head), magicName)
	for ok && !strings.Contains(number, "\n") && len(number) < 9 {
		b, err := in.ReadByte()
		if err != nil {
			return ignoreEnd(err)
		}
		number += string(rune(b))
	}
	number, _, whole := strings.Cut(number, "\n")
	if _, err := strconv.ParseUint(number, 10, 31); err != nil || !ok || !whole || number == version {
		return nil
	}
	return fmt.Errorf("%w (format %s, and this one knows %s)", ErrVersion, number, version)
}

// errTorn says that a record is not whole.
var errTorn = errors.New("torn")

// ignoreEnd is nil for what is no error of the disk.
func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errTorn) {
		return nil
	}
	return err
}

// readRecord reads one record, of n octets, and unpacks it.
func readRecord(in io.Reader, before []byte) (raw []byte, n int, err error) {
	var head [recordHead]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, 0, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > maxSample+maxSample/8 { // what cannot be compressed grows a little
		return nil, 0, errTorn
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(in, body); err != nil {
		return nil, 0, err
	}
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, 0, errTorn
	}
	z := flate.NewReaderDict(bytes.NewReader(body), dictionary(before))
	raw, err = io.ReadAll(io.LimitReader(z, maxSample+1))
	if err != nil || len(raw) > maxSample {
		return nil, 0, errTorn
	}
	return raw, recordHead + len(body), nil
}

// files are the names of the files in dir, the earliest first.
func files(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range list {
		if _, err := time.Parse(hours, strings.TrimSuffix(e.Name(), suffix)); err == nil && strings.HasSuffix(e.Name(), suffix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Between calls f for the samples from since to until, both included, in the order of time, until
// f returns false. Samples that are less than step after the one before are left out. Files of another version of the program are passed
// over: ErrVersion says so if there is nothing else.
func Between(dir string, since, until time.Time, step time.Duration, f func(*Sample) bool) error {
	names, err := files(dir)
	if err != nil {
		return err
	}
	first, last := since.UTC().Format(hours)+suffix, until.UTC().Format(hours)+suffix
	var next time.Time
	var other error
	for _, name := range names {
		if name < first || name > last {
			continue
		}
		file, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // dropped meanwhile
		}
		if err != nil {
			return err
		}
		more, err := scan(file, func(s *Sample, _ []byte, _ int64) bool {
			if s.At.Before(since) || s.At.Before(next) {
				return true
			}
			if s.At.After(until) {
				return false
			}
			next = s.At.Add(step)
			return f(s)
		})
		file.Close()
		if errors.Is(err, ErrVersion) {
			other = fmt.Errorf("%s: %w", name, err)
			continue
		}
		if err != nil || !more {
			return err
		}
	}
	if next.IsZero() {
		return other
	}
	return nil
}

// At is the last sample that is not after t. ErrNone says that there is none, or none of the
// quarter of an hour before t: the mail system was down, or nobody kept samples.
func At(dir string, t time.Time) (*Sample, error) {
	var found *Sample
	err := Between(dir, t.Add(-near), t, 0, func(s *Sample) bool {
		found = s
		return true
	})
	if err == nil && found == nil {
		err = ErrNone
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// First says since when there are samples. It reads no more than the first, but passes over files without one. ErrNone says that there
// are none.
func First(dir string) (first time.Time, err error) {
	names, err := files(dir)
	if err != nil {
		return first, err
	}
	if len(names) == 0 {
		return first, ErrNone
	}
	for _, name := range names {
		begin, bad := time.Parse(hours, strings.TrimSuffix(name, suffix))
		if bad != nil {
			return first, bad
		}
		err = Between(dir, begin, begin.Add(time.Hour-1), 0, func(s *Sample) bool {
			first = s.At
			return false
		})
		if !first.IsZero() || err != nil && !errors.Is(err, ErrVersion) {
			return first, err
		}
	}
	return first, cmp.Or(err, ErrNone)
}

// Span says of what time there are samples. ErrNone says that there are none.
func Span(dir string) (first, last time.Time, err error) {
	if first, err = First(dir); err != nil {
		return first, last, err
	}
	names, err := files(dir)
	if err != nil || len(names) == 0 {
		return first, last, cmp.Or(err, ErrNone)
	}
	end, err := time.Parse(hours, strings.TrimSuffix(names[len(names)-1], suffix))
	if err != nil {
		return first, last, err
	}
	err = Between(dir, end, end.Add(time.Hour), 0, func(s *Sample) bool {
		last = s.At
		return true
	})
	if err == nil && last.IsZero() {
		err = ErrNone
	}
	return first, last, err
}
