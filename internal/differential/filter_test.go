package differential

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A filter is a milter that does as its lines say:
//
//	options VERSION ACTIONS STEPS   what it asks for, the last two in hex
//	macros STAGE names              the macros that it wants at a stage, by its number
//	EVENT [text] => reply; reply    what it says to an event whose arguments hold text
//
// Events are CONNECT HELO MAIL RCPT DATA HEADER EOH BODY EOM UNKNOWN. A reply is the
// letter of the protocol, then the arguments, with "|" between them. What is not
// told otherwise gets "c". It writes down all that it is told.
type filter struct {
	name  string
	l     net.Listener
	opts  [3]uint32
	lists []macroList
	rules []rule

	wg    sync.WaitGroup
	mu    sync.Mutex
	told  strings.Builder
	conns map[net.Conn]struct{}
}

type macroList struct {
	stage uint32
	names string
}

type rule struct {
	event, text string
	replies     [][]byte // packets
}

var events = map[byte]string{'C': "CONNECT", 'H': "HELO", 'M': "MAIL", 'R': "RCPT", 'T': "DATA", 'L': "HEADER", 'N': "EOH",
	'B': "BODY", 'E': "EOM", 'U': "UNKNOWN", 'A': "ABORT", 'Q': "QUIT", 'K': "QUIT_NC"}

func newFilter(t *testing.T, name, text string) *filter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &filter{name: name, l: l, opts: [3]uint32{6, 0x1ff, 0}, conns: map[net.Conn]struct{}{}}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0][0] == '#':
		case words[0] == "options":
			for i, base := range []int{10, 16, 16} {
				n, err := strconv.ParseUint(words[i+1], base, 32)
				if err != nil {
					t.Fatal(err)
				}
				f.opts[i] = uint32(n)
			}
		case words[0] == "macros":
			n, _ := strconv.Atoi(words[1])
			f.lists = append(f.lists, macroList{uint32(n), strings.Join(words[2:], " ")})
		default:
			left, right, ok := strings.Cut(line, " => ")
			event, match, _ := strings.Cut(strings.TrimSpace(left), " ")
			if !ok {
				t.Fatalf("filter %s: %q", name, line)
			}
			ru := rule{event: event, text: match}
			for _, part := range strings.Split(strings.TrimSpace(right), "; ") {
				ru.replies = append(ru.replies, replyPacket(part))
			}
			f.rules = append(f.rules, ru)
		}
	}
	f.wg.Go(func() { accept(l, &f.wg, &f.mu, f.conns, f.serve) })
	t.Cleanup(func() { closeAll(l, &f.wg, &f.mu, f.conns) })
	return f
}

func (f *filter) port() int { return f.l.Addr().(*net.TCPAddr).Port }

// replyPacket makes "h X-Name|value" the packet that a filter sends.
func replyPacket(text string) []byte {
	kind, rest, _ := strings.Cut(text, " ")
	rest = strings.NewReplacer(`\n`, "\n", `\r`, "\r", `\t`, "\t", `\s`, " ").Replace(rest)
	var args []string
	if rest != "" {
		args = strings.Split(rest, "|")
	}
	var data []byte
	switch kind {
	case "i", "m":
		n, _ := strconv.Atoi(args[0])
		data = binary.BigEndian.AppendUint32(data, uint32(n))
		args = args[1:]
	case "b":
		return packet(kind[0], []byte(rest))
	}
	for _, a := range args {
		data = append(append(data, a...), 0)
	}
	return packet(kind[0], data)
}

func packet(kind byte, data []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(data)+1))
	return append(append(b, kind), data...)
}

// take is what it was told since the last time.
func (f *filter) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := f.told.String()
	f.told.Reset()
	return text
}

func (f *filter) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(&f.told, "filter "+f.name+" "+format+"\n", args...)
}

func (f *filter) serve(c net.Conn) {
	for {
		var head [5]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(head[:4])
		if n == 0 || n > 1<<20 {
			f.note("bad length %d", n)
			return
		}
		data := make([]byte, n-1)
		if _, err := io.ReadFull(c, data); err != nil {
			return
		}
		if head[4] == 'Q' {
			return // when it comes depends on who is faster
		}
		if _, err := c.Write(f.answer(head[4], data)); err != nil {
			return
		}
	}
}

// answer is what it says to one packet.
func (f *filter) answer(kind byte, data []byte) []byte {
	switch kind {
	case 'O':
		var nums [3]uint32
		for i := range nums {
			nums[i] = binary.BigEndian.Uint32(data[4*i:])
		}
		f.note("OPTIONS %d %#x %#x", nums[0], nums[1], nums[2])
		var b []byte
		for _, n := range f.opts {
			b = binary.BigEndian.AppendUint32(b, n)
		}
		for _, m := range f.lists {
			b = append(append(binary.BigEndian.AppendUint32(b, m.stage), m.names...), 0)
		}
		return packet('O', b)
	case 'D':
		parts := strings.Split(strings.TrimSuffix(string(data[1:]), "\x00"), "\x00")
		text := ""
		for i := 0; i+1 < len(parts); i += 2 {
			text += " " + parts[i] + "=" + parts[i+1]
		}
		if text != "" {
			f.note("macros %c%s", data[0], text)
		}
		return nil
	case 'A', 'K':
		// Both say so when a message is over, at moments of their own.
		return nil
	}
	args := strings.ReplaceAll(strings.TrimSuffix(string(data), "\x00"), "\x00", "|")
	if kind == 'C' {
		name, rest, _ := strings.Cut(string(data), "\x00")
		args = name + " " + rest[:1]
		if rest[0] != 'U' {
			args += " " + strings.TrimSuffix(rest[3:], "\x00") // the port is never the same
		}
	}
	f.note("%s %s", events[kind], visible(args))
	for _, r := range f.rules {
		if r.event == events[kind] && strings.Contains(args, r.text) {
			var b []byte
			for _, p := range r.replies {
				b = append(b, p...)
			}
			return b
		}
	}
	return packet('c', nil)
}
