package smtpd

import (
	"bytes"
	"net"
	"testing"
	"time"
)

// What has been received survives each change of the buffer, and a session is
// back to its own small one at the end.
func TestWireBuffers(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, smallBuf, middleBuf, middleBuf + 1, bigBuf, bigBuf + 5000} {
		data := bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n]
		w := &wire{buf: make([]byte, smallBuf)}
		own := &w.buf[0]
		if n > smallBuf {
			w.buf = make([]byte, n)
		}
		w.w = copy(w.buf, data)
		same := func(when string) {
			t.Helper()
			if !bytes.Equal(w.buf[w.r:w.w], data) {
				t.Fatalf("%d octets: other content %s", n, when)
			}
		}
		w.enlarge()
		w.enlarge()
		same("when enlarged")
		if len(w.buf) < middleBuf {
			t.Errorf("%d octets: a buffer of %d", n, len(w.buf))
		}
		w.grow()
		same("when grown")
		if len(w.buf) < bigBuf {
			t.Errorf("%d octets: a grown buffer of %d", n, len(w.buf))
		}
		w.shrink()
		same("when shrunk")
		w.shrink()
		if n <= smallBuf && &w.buf[0] != own {
			t.Errorf("%d octets: the session's own buffer is gone", n)
		}
	}
}

// Long content moves to the big buffer, short content does not.
func TestContentBuffer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		size int
		big  bool
	}{{1000, false}, {10000, false}, {200000, true}} {
		client, server := net.Pipe()
		defer client.Close()
		s := &session{srv: &Server{}, set: &settings{}}
		s.wire = wire{nc: server, timeout: time.Minute}
		line := []byte("0123456789012345678901234567890123456789012345678901234567890\r\n")
		in := append(bytes.Repeat(line, tc.size/len(line)+1), ".\r\n"...)
		go client.Write(in)
		var got int
		big := false
		c := &content{w: writerFunc(func(p []byte) (int, error) {
			got += len(p)
			big = big || len(s.wire.buf) >= bigBuf
			return len(p), nil
		})}
		if err := s.readContent(c); err != nil {
			t.Fatal(err)
		}
		if got < tc.size || big != tc.big {
			t.Errorf("%d octets: %d came, big buffer: %v", tc.size, got, big)
		}
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
