//go:build linux

// Package disktest makes real file systems for tests to break: on memory, and
// on loop devices whose blocks can be taken away. It takes root; without it, or
// where the kernel does not let it, a test is skipped and says so.
package disktest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BlockSize is that of the file systems made here.
const BlockSize = 4096

// run runs a program, and skips the test, saying so, when it cannot.
func run(t *testing.T, args ...string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT PROVED HERE: a file system of its own takes root")
	}
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: %s: %v %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// Mount mounts something in a directory of its own until the test is over;
// args are mount's. The function returned takes it off earlier.
func Mount(t *testing.T, args ...string) (dir string, off func()) {
	t.Helper()
	dir = t.TempDir()
	return dir, MountAt(t, dir, args...)
}

// MountAt is Mount for a directory that is there.
func MountAt(t *testing.T, dir string, args ...string) (off func()) {
	t.Helper()
	run(t, append(append([]string{"mount"}, args...), dir)...)
	on := true
	off = func() {
		if !on {
			return
		}
		on = false
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	}
	t.Cleanup(func() {
		if on && t.Failed() { // a test that gave up may have files open
			on = false
			exec.Command("umount", "-l", dir).Run()
		}
		off()
	})
	return off
}

// Loop makes a block device of a file until the test is over.
func Loop(t *testing.T, image string) string {
	t.Helper()
	dev := run(t, "losetup", "-f", "--show", image)
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "-d", dev).CombinedOutput(); err != nil {
			t.Errorf("losetup -d: %v %s", err, out)
		}
	})
	return dev
}

// Ext4 makes a file with an ext4 file system in it, and a device of that.
func Ext4(t *testing.T, image string, size int64) (dev string) {
	t.Helper()
	f, err := os.Create(image)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	dev = Loop(t, image)
	run(t, "mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0,nodiscard", dev)
	return dev
}

// Punch makes holes in image where the blocks of a file are from offset off
// to, not including, end, so that writing them takes new space.
func Punch(t *testing.T, image, file string, off, end int64) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	for ; off < end; off += BlockSize {
		block := int32(off / BlockSize)
		const fibmap = 1
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fibmap, uintptr(unsafe.Pointer(&block))); errno != 0 {
			t.Skipf("SKIPPED, NOT PROVED HERE: FIBMAP: %v", errno)
		}
		if err := unix.Fallocate(int(img.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(block)*BlockSize, BlockSize); err != nil {
			t.Skipf("SKIPPED, NOT PROVED HERE: punching a hole: %v", err)
		}
	}
}

// PunchZeros punches the blocks of a file, of a file system in image, in
// which nothing has been written but zeros.
func PunchZeros(t *testing.T, image, file string) (blocks int) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	zero := make([]byte, BlockSize)
	for off := 0; off+BlockSize <= len(data); off += BlockSize {
		if bytes.Equal(data[off:off+BlockSize], zero) {
			Punch(t, image, file, int64(off), int64(off+BlockSize))
			blocks++
		}
	}
	return blocks
}

// Fill leaves no space in the file system that dir is on, until Free is called
// with the file that it names.
func Fill(t *testing.T, dir string) (filler string) {
	t.Helper()
	filler = filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(f, io.LimitReader(zeros{}, 1<<30))
	if f.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the file system: %v", err)
	}
	return filler
}

// Free gives back the space that a file takes, at once, and removes it. A file that
// is removed only keeps it for as long as it is open anywhere, and so in a process
// that another test is just about to start.
func Free(t *testing.T, file string) {
	t.Helper()
	if err := errors.Join(os.Truncate(file, 0), os.Remove(file)); err != nil {
		t.Fatal(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
