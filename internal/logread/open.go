package logread

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// packed are the programs that unpack what begins like this.
var packed = [...]struct{ magic, program string }{
	{"\x1f\x8b", ""}, {"BZh", ""}, // these are unpacked here
	{"\xfd7zXZ\x00", "xz"}, {"\x28\xb5\x2f\xfd", "zstd"}, {"\x04\x22\x4d\x18", "lz4"},
}

// Packed says whether a file that begins with head is compressed in a way that Open knows. Six octets are enough.
func Packed(head []byte) bool {
	for _, p := range packed {
		if bytes.HasPrefix(head, []byte(p.magic)) {
			return true
		}
	}
	return false
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
	r, err := Unpack(f, name)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &opened{r, f}, nil
}

// opened closes what unpacks, and then the file.
type opened struct {
	io.ReadCloser
	file io.Closer
}

func (o *opened) Close() error { return errors.Join(o.ReadCloser.Close(), o.file.Close()) }

// Unpack reads a log, which may be compressed, from f; name is for errors. A program that it needs for that ends
// when the reader is closed, or the log at its end. f stays open.
func Unpack(f io.Reader, name string) (io.ReadCloser, error) {
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
			return io.NopCloser(z), nil
		case 1:
			return io.NopCloser(bzip2.NewReader(br)), nil
		}
		return unpackWith(p.program, br, name)
	}
	return io.NopCloser(br), nil
}

// An unpacker is a program that unpacks a log.
type unpacker struct {
	io.Reader
	cmd    *exec.Cmd
	name   string
	said   bytes.Buffer
	ended  bool
	result error
}

// maxSaid bounds what is kept of what such a program complains about, in octets.
const maxSaid = 4 << 10

// Write takes what the program says on standard error.
func (u *unpacker) Write(p []byte) (int, error) {
	u.said.Write(p[:min(len(p), maxSaid-u.said.Len())])
	return len(p), nil
}

func unpackWith(program string, r io.Reader, name string) (io.ReadCloser, error) {
	u := &unpacker{cmd: exec.Command(program, "-dc"), name: name}
	u.cmd.Stdin, u.cmd.Stderr = r, u
	u.cmd.WaitDelay = time.Second // standard input may be a terminal that says nothing
	out, err := u.cmd.StdoutPipe()
	if err == nil {
		err = u.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%s is compressed with %s, which must be installed to read it: %w", name, program, err)
	}
	u.Reader = out
	return u, nil
}

// Read returns an error in place of the end when the program has failed.
func (u *unpacker) Read(p []byte) (int, error) {
	if u.ended {
		return 0, u.result
	}
	n, err := u.Reader.Read(p)
	if err == nil || n > 0 {
		return n, nil
	}
	u.ended, u.result = true, io.EOF
	if failed := u.cmd.Wait(); failed != nil {
		u.result = fmt.Errorf("%s: %s: %w: %s", u.name, filepath.Base(u.cmd.Path), failed, bytes.TrimSpace(u.said.Bytes()))
	}
	return 0, u.result
}

// Close ends the program, whose failure does not matter any more.
func (u *unpacker) Close() error {
	if !u.ended {
		u.ended, u.result = true, fs.ErrClosed
		u.cmd.Process.Kill()
		u.cmd.Wait()
	}
	return nil
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

// rotated is what logrotate adds to a log's name: a number, or a date.
var rotated = regexp.MustCompile(`(\.[0-9]+|[.-][0-9]{4}-?[0-9]{2}-?[0-9]{2}(-[0-9]+)?)$`)

// Family is what a log was called before it was rotated and compressed: the same for all files of one log.
func Family(name string) string {
	if ext := filepath.Ext(name); slices.Contains(endings, ext) {
		name = name[:len(name)-len(ext)]
	}
	return name[:len(name)-len(rotated.FindString(name))]
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
