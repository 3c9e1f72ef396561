package service

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SettleTime is how long after its start a process has done what is only done at a start.
const SettleTime = 5 * time.Second

// Settle has the kernel take the program's code and constants out of the memory of this process.
//
// Most of what a process touches of its program is for its start: the initialisation of all packages, the settings. The
// kernel maps 64 KB around each place, too. What is used again comes back in the same way, from the kernel's cache of
// the file. So a process that has nothing to do holds some 0.4 MB of the program instead of 3 to 5 MB, its share of
// what all processes have mapped. The kernel may still keep the file in its cache, but need not ask a process
// before it takes the memory for something else.
//
// It does nothing where /proc is not to be seen, as inside chroot.
func Settle() { letGo(programAddresses()) }

// letGo has the kernel unmap what is as in the file, of the mappings that have these addresses.
func letGo(addresses []uint64) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer f.Close()
	for _, m := range asInFile(f, addresses) {
		// It cannot fail but for memory that is locked, which is to stay.
		unix.Syscall(unix.SYS_MADVISE, uintptr(m.start), uintptr(m.end-m.start), unix.MADV_DONTNEED)
	}
}

// programAddresses are one of the program's code and one of its constants.
func programAddresses() []uint64 {
	const constant = "a constant of the program"
	return []uint64{uint64(reflect.ValueOf(Settle).Pointer()), uint64(uintptr(unsafe.Pointer(unsafe.StringData(constant))))}
}

// A mapping is a piece of a process's memory, as /proc/self/smaps describes it.
type mapping struct {
	start, end uint64
	resident   int // KB
}

// asInFile returns the mappings that have one of the addresses and cannot be written to, if all of them is what the
// file has. Where a debugger has set a breakpoint, or the dynamic linker has put an address, there are pages that would be
// lost, also when they have been swapped out.
func asInFile(smaps io.Reader, addresses []uint64) (list []mapping) {
	var m mapping
	wanted := false
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		line := lines.Bytes()
		if next, writable, ok := parseMapping(line); ok {
			m = next
			wanted = !writable && slices.ContainsFunc(addresses, m.has)
			continue
		}
		switch name, value, _ := bytes.Cut(line, []byte(":")); {
		case !wanted:
		case string(name) == "Rss":
			m.resident = kilobytes(value)
		case string(name) == "Anonymous" && kilobytes(value) == 0:
			list = append(list, m)
		case string(name) == "Swap" && kilobytes(value) != 0: // such a page is none of the others
			list = slices.DeleteFunc(list, func(other mapping) bool { return other.start == m.start })
		}
	}
	return list
}

// parseMapping reads the first line of a mapping: "00400000-00402000 r--p ...". The lines of all mappings are some thousand,
// and what is allocated for each would take more memory than is to be won.
func parseMapping(line []byte) (m mapping, writable, ok bool) {
	addresses, rest, _ := bytes.Cut(line, []byte(" "))
	from, to, ok := bytes.Cut(addresses, []byte("-"))
	if !ok || len(rest) < 4 {
		return m, false, false
	}
	var errStart, errEnd error
	m.start, errStart = strconv.ParseUint(string(from), 16, 64)
	m.end, errEnd = strconv.ParseUint(string(to), 16, 64)
	return m, rest[1] == 'w', errStart == nil && errEnd == nil
}

// kilobytes reads "    8836 kB". What is not understood is not 0, so that nothing is lost.
func kilobytes(value []byte) int {
	n, err := strconv.Atoi(string(bytes.TrimSuffix(bytes.TrimSpace(value), []byte(" kB"))))
	if err != nil {
		return -1
	}
	return n
}

func (m mapping) has(address uint64) bool { return m.start <= address && address < m.end }
