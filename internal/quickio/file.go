package quickio

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// atOnce bounds what is copied without the scheduler, some ten microseconds' work.
const atOnce = 64 << 10

// ReadAt is f.ReadAt, at less expense for a few octets that the kernel has in
// memory (RWF_NOWAIT of preadv2(2)). The file must not be closed meanwhile.
func ReadAt(f *os.File, p []byte, off int64) (int, error) {
	if len(p) > 0 && len(p) <= atOnce && off >= 0 {
		fd := f.Fd()
		vec := syscall.Iovec{Base: &p[0]}
		vec.SetLen(len(p))
		n, _, errno := syscall.RawSyscall6(unix.SYS_PREADV2, fd, uintptr(unsafe.Pointer(&vec)), 1,
			uintptr(off), uintptr(uint64(off)>>32), unix.RWF_NOWAIT)
		if errno == 0 && int(n) == len(p) {
			haveRead(fd, p)
			return int(n), nil
		}
	}
	return f.ReadAt(p, off)
}
