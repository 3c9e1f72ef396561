package ipc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// frame is one as it is sent, which says that its payload has n octets.
func frame(what byte, id uint32, n int, payload string) []byte {
	var h [headerLen]byte
	binary.LittleEndian.PutUint32(h[:], uint32(n))
	h[4], h[6] = kindEcho, what
	binary.LittleEndian.PutUint32(h[8:], id)
	return append(h[:], payload...)
}

// A peer that does not keep to the protocol is disconnected, or waited for no longer than the
// caller says, and the caller learns which service it was.
func TestHostilePeer(t *testing.T) {
	t.Parallel()
	const patience = time.Minute
	pause := func(net.Conn) { time.Sleep(time.Hour) }
	for _, tt := range []struct {
		name string
		say  func(c net.Conn) // behind the preface, when it has been asked
		want string
	}{
		{"a length beyond the bound", func(c net.Conn) { c.Write(frame(frameReply, 1, MaxPayload+1, "")) }, "service private/x: " + ErrLost.Error() + ": the peer sent a message of 16777217 octets"},
		{"the greatest length", func(c net.Conn) { c.Write(frame(frameReply, 1, 1<<32-1, "")) }, "a message of 4294967295 octets"},
		{"a frame of no type", func(c net.Conn) { c.Write(frame(77, 1, 0, "")) }, "service private/x: " + ErrLost.Error() + ": the peer sent a frame of unknown type 77.0"},
		{"text", func(c net.Conn) { c.Write([]byte(strings.Repeat("220 smtp.test ESMTP\r\n", 100))) }, "the peer sent a message of"},
		{"a long frame that does not come", func(c net.Conn) { c.Write(frame(frameReply, 1, MaxPayload, "x")); pause(c) }, context.DeadlineExceeded.Error()},
		{"drop by drop", func(c net.Conn) {
			for _, b := range frame(frameReply, 1, 1000, strings.Repeat("x", 1000)) {
				c.Write([]byte{b})
				time.Sleep(time.Second)
			}
		}, context.DeadlineExceeded.Error()},
		{"a long frame without end", func(c net.Conn) {
			c.Write(frame(frameReply, 2, MaxPayload, ""))
			for range MaxPayload >> 16 {
				c.Write(make([]byte, 1<<16))
			}
			c.Write(frame(frameReply, 3, MaxPayload+1, ""))
		}, "a message of"},
		{"other answers without end", func(c net.Conn) {
			for id := range uint32(1000) {
				c.Write(frame(frameReply, id+2, 3, "xyz"))
			}
			pause(c)
		}, context.DeadlineExceeded.Error()},
		{"questions to one who serves nothing", func(c net.Conn) {
			c.Write(bytes.Repeat(frame(frameRequest, 9, 0, ""), 5000))
			pause(c)
		}, context.DeadlineExceeded.Error()},
		{"half of a header", func(c net.Conn) { c.Write([]byte{1, 2, 3}) }, ErrLost.Error()},
		{"nothing", pause, context.DeadlineExceeded.Error()},
		{"the end", func(net.Conn) {}, ErrLost.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				client := NewClient(Func("private/x", func(context.Context) (net.Conn, error) { return ours, nil }), nil)
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer theirs.Close()
					if _, err := io.ReadFull(theirs, make([]byte, prefaceLen+headerLen+1)); err != nil {
						return
					}
					theirs.Write(preface(0))
					tt.say(theirs)
				}()
				start := time.Now()
				err := client.CallWithin(t.Context(), patience, &text{kindEcho, "x"}, &text{})
				if took := time.Since(start); err == nil || !strings.Contains(err.Error(), tt.want) || took > patience {
					t.Errorf("after %v: %v; want %s", took, err, tt.want)
				}
				if strings.Contains(tt.want, "the peer sent") && !errors.Is(err, ErrLost) {
					t.Errorf("%v is no ErrLost", err)
				}
				client.Close()
				<-done
			})
		})
	}
}

// asking notes how much is asked for at once, at most, beyond what has been given.
type asking struct{ left, given, most int }

func (a *asking) Read(p []byte) (int, error) {
	a.most = max(a.most, len(p)-a.given)
	n := min(len(p), a.left, 1000)
	if n == 0 {
		return 0, io.EOF
	}
	for i := range p[:n] {
		p[i] = byte((a.given + i) % 251)
	}
	a.left, a.given = a.left-n, a.given+n
	return n, nil
}

// Memory for a payload is taken as it comes.
func TestPayloadMemory(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ said, comes int }{{0, 0}, {1, 1}, {minPooled, minPooled}, {maxPooled, maxPooled}, {maxPooled + 1, maxPooled + 1},
		{3*maxPooled + 7, 3*maxPooled + 7}, {MaxPayload, MaxPayload}, {MaxPayload, 0}, {MaxPayload, 1000}, {MaxPayload, maxPooled}} {
		r := &asking{left: tt.comes}
		b, err := readPayload(r, tt.said)
		if r.most > maxPooled {
			t.Errorf("of %d octets %d have come, and there is room for %d more", tt.said, tt.comes, r.most)
		}
		if (err == nil) != (tt.comes == tt.said) || err == nil && len(b) != tt.said {
			t.Errorf("%d of %d octets: %d, %v", tt.comes, tt.said, len(b), err)
		}
		for i := range b {
			if b[i] != byte(i%251) {
				t.Fatalf("%d octets: octet %d is wrong", tt.said, i)
			}
		}
	}
}
