// Package occupant finds out which program listens on a TCP port that another
// one wants: the mail system that was there before, most often.
//
// # Security
//
// It reads below /proc, and so sees the processes that its user may see: root sees all.
// Names of programs are others' to choose, and are printed as one line.
package occupant

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Program has a port.
type Program struct {
	Path string // of the executable, or its name; "" if this user may not see it
	PID  int    // 0 if this user may not see it
}

// String is the program as a sentence has it: /usr/sbin/exim4 (process 123).
func (p Program) String() string {
	if p.PID == 0 {
		return "a program that root can see (ss -ltnp)"
	}
	return fmt.Sprintf("%s (process %d)", p.Path, p.PID)
}

// Of returns the program that listens on an address, or on every address, in the
// way of who wants to listen there. ok is false if there is none.
func Of(addr netip.AddrPort) (p Program, ok bool) {
	return of("/proc", addr)
}

func of(proc string, addr netip.AddrPort) (p Program, ok bool) {
	var inodes []string
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(proc, "net", name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if inode, ok := listens(line, addr); ok {
				inodes = append(inodes, inode)
			}
		}
	}
	if len(inodes) == 0 {
		return p, false
	}
	return holder(proc, inodes), true
}

// listening is the state of a socket that listens.
const listening = "0A"

// listens returns the inode of the socket of a line of /proc/net/tcp, if it listens in
// the way of addr.
func listens(line string, addr netip.AddrPort) (inode string, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 || f[3] != listening {
		return "", false
	}
	at, err := parse(f[1])
	if err != nil || at.Port() != addr.Port() {
		return "", false
	}
	mine, other := addr.Addr().Unmap(), at.Addr()
	switch {
	case other.IsUnspecified() && (other.Is4() == mine.Is4() || other.Is6()): // [::] may have both
	case mine.IsUnspecified() && mine.Is4() == other.Unmap().Is4():
	case mine == other.Unmap():
	default:
		return "", false
	}
	return f[9], true
}

// parse reads an address as the kernel prints it: words in the machine's order, in
// hexadecimal, and the port.
func parse(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b, err := hex.DecodeString(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for i := 0; i+4 <= len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	ip, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", text)
	}
	return netip.AddrPortFrom(ip, uint16(n)), nil
}

// holder is the process that has one of the sockets open: the one with the lowest
// number, as children have those of their parents.
func holder(proc string, inodes []string) (p Program) {
	dirs, err := os.ReadDir(proc)
	if err != nil {
		return p
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || p.PID != 0 && pid > p.PID {
			continue
		}
		dir := filepath.Join(proc, d.Name())
		fds, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			continue
		}
		if slices.ContainsFunc(fds, func(fd os.DirEntry) bool {
			to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
			inode, ok := strings.CutPrefix(strings.TrimSuffix(to, "]"), "socket:[")
			return err == nil && ok && slices.Contains(inodes, inode)
		}) {
			p = Program{program(dir), pid}
		}
	}
	return p
}

// program is the path of a process's executable, or its name.
func program(dir string) string {
	path, err := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil {
		comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
		path = strings.TrimSpace(string(comm))
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.TrimSuffix(path, " (deleted)"))
}
