//go:build linux

// Package disktest makes real file systems for tests to break: on memory, and
// on loop devices whose blocks can be taken away. It takes root; without it, or
// where the kernel does not let it, a test is skipped and says so.
package disktest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
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

// Apart runs the test in a process with a mount namespace of its own, and returns
// false when that is done: the test is then over. In that process it returns true.
// What is mounted there nobody else sees, who could keep it busy: a process that
// makes a mount namespace takes a copy of every mount with it. Arguments that are
// not the testing package's are handed on.
func Apart(t *testing.T) bool {
	t.Helper()
	const inside = "DISKTEST_APART"
	if os.Getenv(inside) == t.Name() {
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT PROVED HERE: a file system of its own takes root")
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v", "-test.timeout=0"}
	for _, a := range os.Args[1:] {
		if !strings.HasPrefix(a, "-test.") {
			args = append(args, a)
		}
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // mounts are made private with it
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch text := strings.TrimSpace(string(out)); {
	case err != nil && !errors.As(err, &exit):
		t.Skipf("SKIPPED, NOT PROVED HERE: a mount namespace: %v", err)
	case err != nil:
		t.Errorf("%v\n%s", err, text)
	case strings.Contains(text, "--- SKIP"):
		t.Skip(text)
	case !strings.Contains(text, "--- PASS: "+t.Name()):
		t.Errorf("the test did not run: %s", text)
	default:
		t.Log(text)
	}
	return false
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
		if out, err := whileBusy(func() ([]byte, error) { return exec.Command("umount", dir).CombinedOutput() }); err != nil {
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

// whileBusy tries something again for a while. A process that another test is about
// to start has all files open that this one has, until it is what it is to be.
func whileBusy(try func() ([]byte, error)) (out []byte, err error) {
	for range 200 {
		if out, err = try(); err == nil {
			return out, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return out, err
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
	return Make(t, ext4, image, size)
}

// A Kind is a kind of file system.
type Kind struct {
	Name string
	mkfs []string
	fsck []string // before it can be mounted again; nil: mounting does what is needed
	Size int64    // the least that a program to make one takes
	Cuts bool     // it knows Cut
}

var (
	ext4 = Kind{Name: "ext4", Size: 48 << 20, Cuts: true, // the journal in front: see Fail
		mkfs: []string{"mkfs.ext4", "-q", "-b", "4096", "-J", "size=4,location=0", "-E", "lazy_itable_init=0,nodiscard"}}
	noJournal = Kind{Name: "ext4 without a journal", Size: 48 << 20, Cuts: true, fsck: []string{"e2fsck", "-fy"},
		mkfs: []string{"mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard"}}
	// XFS can also make a Snapshot of what is on it.
	XFS   = Kind{Name: "xfs", Size: 320 << 20, Cuts: true, mkfs: []string{"mkfs.xfs", "-q", "-f", "-K"}}
	btrfs = Kind{Name: "btrfs", Size: 128 << 20, mkfs: []string{"mkfs.btrfs", "-q", "-f", "-K"}}
)

// Kinds are the file systems that tests are made for.
var Kinds = []Kind{ext4, noJournal, XFS, btrfs}

// Make makes a file with a file system in it, and a device of that. Where the
// program for it is missing the test is skipped.
func Make(t *testing.T, k Kind, image string, size int64) (dev string) {
	t.Helper()
	f, err := os.Create(image)
	if err == nil {
		err = errors.Join(f.Truncate(max(size, k.Size)), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	dev = Loop(t, image)
	run(t, append(k.mkfs[:len(k.mkfs):len(k.mkfs)], dev)...)
	return dev
}

// Check does what is to be done with a file system after a power cut before it is
// mounted again.
func (k Kind) Check(t *testing.T, dev string) {
	t.Helper()
	if k.fsck == nil {
		return
	}
	out, err := whileBusy(func() ([]byte, error) {
		out, err := exec.Command(k.fsck[0], append(k.fsck[1:len(k.fsck):len(k.fsck)], dev)...).CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 1 { // it has put something right
			err = nil
		}
		return out, err
	})
	if err != nil {
		t.Fatalf("%s: %v %s", k.fsck[0], err, out)
	}
}

// Cut is a power cut for the file system that is mounted on dir: what it has not
// given to the disk is thrown away, its journal included, and every later
// operation fails. It is for kinds that have Cuts.
func Cut(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const shutdown = 0x8004587d // EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN: the same number
	flags := uint32(2)          // without writing the journal
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), shutdown, uintptr(unsafe.Pointer(&flags))); errno != 0 {
		t.Skipf("SKIPPED, NOT PROVED HERE: shutting down a file system: %v", errno)
	}
}

// Copy makes a copy of a file that nobody writes to, its holes included.
func Copy(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "--sparse=always", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v %s", err, out)
	}
}

// Snapshot makes a copy of a file as it is at one moment, which takes a file
// system that can share blocks.
func Snapshot(t *testing.T, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())), dst.Close()); err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: a snapshot of %s: %v", from, err)
	}
}

// Punch makes holes in image where the blocks of a file are from offset off
// to, not including, end, so that writing them takes new space. A write that begins in front
// of them may be said to have succeeded when there is none: see Fail.
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
		if err := unix.Fallocate(int(img.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, blockOf(t, f, off)*BlockSize, BlockSize); err != nil {
			t.Skipf("SKIPPED, NOT PROVED HERE: punching a hole: %v", err)
		}
	}
}

// Fail has the device dev, which Ext4 made and which is mounted, fail from the first
// block of these files on: what is there or behind cannot be written nor read (EIO), and a
// new file of some length cannot be made. What is in front, the journal and directories that
// were there before, is spared: ext4 without a journal works only when mounted anew. The
// function returned has the device work again; nothing that was on it is lost.
//
// A full file system below the device does not do for this: of a write of which the first
// blocks find room Linux (6.18) says that all of it succeeded, and so does the sync.
func Fail(t *testing.T, dev string, files ...string) (mend func()) {
	t.Helper()
	first := int64(-1)
	for _, name := range files {
		if at := firstBlock(t, name); first < 0 || at < first {
			first = at
		}
	}
	if first <= 0 {
		t.Fatalf("the files %v have no blocks", files)
	}
	limit(t, dev, uint64(first)*BlockSize)
	mended := false
	mend = func() {
		if !mended {
			mended = true
			limit(t, dev, 0)
		}
	}
	t.Cleanup(mend)
	return mend
}

// firstBlock is where the first of a file's blocks is on its device: the one with the
// lowest number.
func firstBlock(t *testing.T, name string) int64 {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	first := int64(-1)
	for off := int64(0); off < info.Size(); off += BlockSize {
		if at := blockOf(t, f, off); at > 0 && (first < 0 || at < first) {
			first = at
		}
	}
	return first
}

// blockOf is the number of the block, on its device, that f has at offset off, and 0 where
// it has a hole.
func blockOf(t *testing.T, f *os.File, off int64) int64 {
	t.Helper()
	block := int32(off / BlockSize)
	const fibmap = 1
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fibmap, uintptr(unsafe.Pointer(&block))); errno != 0 {
		t.Skipf("SKIPPED, NOT PROVED HERE: FIBMAP: %v", errno)
	}
	return int64(block)
}

// limit has a loop device end after so many octets of its file; 0 is all of them.
func limit(t *testing.T, dev string, octets uint64) {
	t.Helper()
	f, err := os.OpenFile(dev, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		t.Fatalf("status of %s: %v", dev, err)
	}
	info.Sizelimit = octets
	if err := unix.IoctlLoopSetStatus64(int(f.Fd()), info); err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: the size of %s: %v", dev, err)
	}
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
