package logread

import (
	"bufio"
	"cmp"
	"compress/bzip2"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// packed are programs' names for what a file begins with that they have compressed.
var packed = [...]struct{ magic, program string }{
	{"\x1f\x8b", ""}, {"BZh", ""}, // these are unpacked here
	{"\xfd7zXZ\x00", "xzcat"}, {"\x28\xb5\x2f\xfd", "zstdcat"}, {"\x04\x22\x4d\x18", "lz4cat"},
}

// Open opens a log, which may be compressed. "-" is stdin.
func Open(name string, stdin io.Reader) (io.ReadCloser, error) {
	f := io.NopCloser(stdin)
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		f = file
	}
	r, err := unpack(f, name)
	if err != nil {
		f.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{r, f}, nil
}

func unpack(f io.Reader, name string) (io.Reader, error) {
	br := bufio.NewReaderSize(f, 64<<10)
	head, err := br.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	for i, p := range packed {
		if len(head) < len(p.magic) || string(head[:len(p.magic)]) != p.magic {
			continue
		}
		switch i {
		case 0:
			z, err := gzip.NewReader(br)
			if err != nil {
				return nil, fmt.Errorf("%s: gzip: %w", name, err)
			}
			return z, nil
		case 1:
			return bzip2.NewReader(br), nil
		}
		return nil, fmt.Errorf("%s is compressed in a way that is not known here: %s %s | posthaste ... -", name, p.program, name)
	}
	return br, nil
}

// InOrder puts logs in the order in which they were written: by the time of their first line. What has none, or is
// standard input, stays where it is, at the end.
func InOrder(names []string, now time.Time) ([]string, error) {
	type log struct {
		name  string
		begin int64
	}
	list := make([]log, 0, len(names))
	for _, name := range names {
		begin := int64(1<<63 - 1)
		if name != "-" {
			at, err := begins(name, now)
			if err != nil {
				return nil, err
			}
			if at != 0 {
				begin = at
			}
		}
		list = append(list, log{name, begin})
	}
	slices.SortStableFunc(list, func(a, b log) int { return cmp.Compare(a.begin, b.begin) })
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].name
	}
	return out, nil
}

// begins is the time of a log's first line; 0: it has none.
func begins(name string, now time.Time) (int64, error) {
	f, err := Open(name, nil)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	r := NewReader(f, now)
	for {
		l, err := r.Next()
		if err == io.EOF {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		if l.Time != 0 {
			return l.Time, nil
		}
	}
}

// endings are what compressors add to a file's name.
var endings = []string{".gz", ".bz2", ".xz", ".zst", ".lz4"}

// Rotated are a log's own name and those that it was given when it was rotated: the name with a
// dot and more behind it, or with a hyphen and a date, as logrotate's dateext has it. If a file is there twice,
// compressed and not, only the one that is not compressed is listed.
func Rotated(name string) ([]string, error) {
	dir, base := filepath.Split(name)
	entries, err := os.ReadDir(filepath.Clean(cmp.Or(dir, ".")))
	if err != nil {
		return nil, err
	}
	var list []string
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), base)
		if !ok || len(rest) < 2 || !e.Type().IsRegular() {
			continue
		}
		if rest[0] == '.' || rest[0] == '-' && '0' <= rest[1] && rest[1] <= '9' {
			list = append(list, e.Name())
		}
	}
	list = slices.DeleteFunc(list, func(n string) bool {
		ext := filepath.Ext(n)
		return slices.Contains(endings, ext) && slices.Contains(list, n[:len(n)-len(ext)])
	})
	for i := range list {
		list[i] = dir + list[i]
	}
	return append(list, name), nil
}
