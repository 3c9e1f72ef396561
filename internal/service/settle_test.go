package service

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memory is the mapping of an address, as the kernel describes it, if it is as in the file.
func memory(t *testing.T, address uint64) (list []mapping) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return asInFile(f, []uint64{address})
}

// A file that is mapped is in memory no more, and can be read as before.
func TestLetGo(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, bytes.Repeat([]byte("posthaste"), size/9+1)[:size], 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(data)
	address := uint64(uintptr(unsafe.Pointer(&data[0])))
	before := bytes.Count(data, []byte("posthaste")) // which reads all of it
	if list := memory(t, address); len(list) != 1 || list[0].resident != size>>10 {
		t.Fatalf("the file in memory: %+v", list)
	}
	letGo([]uint64{address})
	if list := memory(t, address); len(list) != 1 || list[0].resident != 0 {
		t.Errorf("after it was let go: %+v", list)
	}
	if n := bytes.Count(data, []byte("posthaste")); n != before {
		t.Errorf("%d words are left of %d", n, before)
	}
}

// The program's code and its constants are found, and it goes on without them.
func TestSettle(t *testing.T) {
	t.Parallel()
	for _, address := range programAddresses() {
		if list := memory(t, address); len(list) != 1 {
			t.Errorf("the mapping of %x: %+v", address, list)
		}
	}
	Settle()
}

// Only what is as in the file is given up, and nothing that can be written to.
func TestAsInFile(t *testing.T) {
	t.Parallel()
	const smaps = `00400000-00402000 r--p 00000000 fe:00 1 /usr/lib/posthaste/posthaste
Size:                  8 kB
Rss:                   8 kB
Anonymous:             0 kB
00402000-01143000 r-xp 00002000 fe:00 1 /usr/lib/posthaste/posthaste
Rss:                8836 kB
Pss:                1903 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
01143000-01ddc000 r--p 00d43000 fe:00 1 /usr/lib/posthaste/posthaste
Rss:                7460 kB
Anonymous:             4 kB
01ddc000-01ddd000 r--p 019dc000 fe:00 1 /usr/lib/posthaste/posthaste
Rss:                   0 kB
Anonymous:             0 kB
Swap:                  4 kB
SwapPss:               4 kB
01ddd000-01e97000 rw-p 019dd000 fe:00 1 /usr/lib/posthaste/posthaste
Rss:                 596 kB
Anonymous:             0 kB
2c7722400000-2c7722c00000 rw-p 00000000 00:00 0
Rss:                1860 kB
Anonymous:          1860 kB
`
	for name, test := range map[string]struct {
		addresses []uint64
		want      []mapping
	}{
		"code":                          {[]uint64{0x402000}, []mapping{{0x402000, 0x1143000, 8836}}},
		"its end is not in it":          {[]uint64{0x402000, 0x402001, 0x1142fff}, []mapping{{0x402000, 0x1143000, 8836}}},
		"pages that the file has not":   {[]uint64{0x1143000}, nil},
		"such pages are swapped out":    {[]uint64{0x1ddc000}, nil},
		"to be written to":              {[]uint64{0x1ddd000, 0x2c7722400000}, nil},
		"nowhere":                       {[]uint64{0x1000}, nil},
		"two, of which one has its own": {[]uint64{0x400000, 0x1200000}, []mapping{{0x400000, 0x402000, 8}}},
	} {
		if got := asInFile(strings.NewReader(smaps), test.addresses); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
