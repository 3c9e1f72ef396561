package lockstep

import (
	"bufio"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// pair is a connection and its other end.
func pair(t *testing.T) (*Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nc, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); peer.Close() })
	return New(nc), peer
}

func TestStep(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, before, with, after string // what the server says before the question, with the answer, and after that has been read
		end                       bool   // and then it ends the connection
		askable, keep             bool
		err                       error // after the answer
	}{
		{name: "in step", askable: true, keep: true},
		{name: "before", before: "x"},
		{name: "two at once", with: "b\n", askable: true, err: ErrUnasked},
		{name: "the rest of it later", after: "b\n", askable: true, err: ErrUnasked},
		{name: "empty line", with: "\r\n", askable: true},
		{name: "empty line later", after: "\n", askable: true},
		{name: "end", end: true, askable: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, peer := pair(t)
			io.WriteString(peer, tt.before)
			if err := c.Before(); (err == nil) != tt.askable || err != nil && !errors.Is(err, ErrUnasked) {
				t.Fatalf("before: %v", err)
			}
			if !tt.askable {
				return
			}
			io.WriteString(peer, "a\n"+tt.with)
			if line, err := ReadLine(c.Reader(), 10); string(line) != "a" || err != nil {
				t.Fatalf("%q, %v", line, err)
			}
			io.WriteString(peer, tt.after)
			if tt.end {
				peer.Close()
			}
			if keep, err := c.After(); keep != tt.keep || !errors.Is(err, tt.err) {
				t.Errorf("after: %v, %v", keep, err)
			}
			if err := c.Before(); tt.end && !errors.Is(err, io.EOF) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

func TestReadLine(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3*bufferSize)
	for _, tt := range []struct {
		text  string
		limit int
		want  string
		err   error
	}{
		{"a\n", 2, "a", nil}, {"a\r\n", 3, "a", nil}, {"\n", 1, "", nil}, {"abc\n", 3, "", ErrLong}, {"abc", 10, "", io.ErrUnexpectedEOF}, {"", 10, "", io.EOF},
		{long + "\n", len(long) + 1, long, nil}, {long + "\n", len(long), "", ErrLong}, {long + "\n", 10, "", ErrLong}, {long, 1 << 20, "", io.ErrUnexpectedEOF},
	} {
		got, err := ReadLine(bufio.NewReaderSize(strings.NewReader(tt.text), bufferSize), tt.limit)
		if string(got) != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%.20q, %d: %.20q, %v", tt.text, tt.limit, got, err)
		}
	}
}

// No more is read than the limit and a buffer.
func TestReadLineReadsLittle(t *testing.T) {
	t.Parallel()
	in := &io.LimitedReader{R: strings.NewReader(strings.Repeat("x", 1<<20)), N: 1 << 20}
	if _, err := ReadLine(bufio.NewReaderSize(in, bufferSize), 10000); !errors.Is(err, ErrLong) {
		t.Error(err)
	}
	if read := 1<<20 - in.N; read > 10000+2*bufferSize {
		t.Errorf("read %d octets", read)
	}
}

func TestBound(t *testing.T) {
	t.Parallel()
	c, peer := pair(t)
	b := Bound(c.Conn, 10)
	for range 2 {
		if _, err := b.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		io.WriteString(peer, "0123456789")
		if _, err := io.ReadFull(b, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
	}
	io.WriteString(peer, "more")
	if n, err := b.Read(make([]byte, 10)); n != 0 || !errors.Is(err, ErrLong) {
		t.Errorf("%d, %v", n, err)
	}
}
