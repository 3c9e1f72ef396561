package service

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A Flow is the pipe that slows the reception of mail down when it comes in
// faster than the queue manager takes it up (in_flow_delay). The bytes in the
// pipe are tokens. No method ever blocks. All may be called concurrently, by
// any number of processes. The nil Flow always has a token.
type Flow struct{ r, w int }

// NewFlow makes a Flow of the two ends of a pipe, both of them non-blocking.
func NewFlow(r, w int) *Flow { return &Flow{r, w} }

// Take takes one token. It is false when there is none.
func (f *Flow) Take() bool {
	if f == nil {
		return true
	}
	var b [1]byte
	for {
		n, err := unix.Read(f.r, b[:])
		if err == unix.EINTR {
			continue
		}
		return err == nil && n == 1
	}
}

// Put puts n tokens in, or takes -n out. A pipe that is full, or empty, keeps
// what it has.
func (f *Flow) Put(n int) {
	if f == nil {
		return
	}
	var b [512]byte
	for n != 0 {
		var done int
		var err error
		if n > 0 {
			done, err = unix.Write(f.w, b[:min(n, len(b))])
		} else {
			done, err = unix.Read(f.r, b[:min(-n, len(b))])
			done = -done
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil || done == 0 {
			return
		}
		n -= done
	}
}

// Level is the number of tokens in the pipe.
func (f *Flow) Level() int {
	if f == nil {
		return 0
	}
	n, err := unix.IoctlGetInt(f.r, unix.TIOCINQ) // FIONREAD
	if err != nil {
		panic(fmt.Sprintf("service: flow control pipe: %v", err))
	}
	return n
}
