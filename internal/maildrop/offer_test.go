package maildrop

import (
	"bytes"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"posthaste/internal/pack"
)

// A small message is a file only when pickup does not take it; a large one is
// not offered.
func TestOffer(t *testing.T) {
	t.Parallel()
	small, large := "Subject: x\n\nhello\n", strings.Repeat("x\n", maxOffered)
	for _, c := range []struct {
		name, content, answer  string
		offered, file, tooLong bool
	}{
		{name: "taken", content: small, answer: "Q", offered: true},
		{name: "empty", content: "", answer: "Q", offered: true},
		{name: "not taken", content: small, answer: "", offered: true, file: true},
		{name: "another word", content: small, answer: "F", offered: true, file: true},
		{name: "large", content: large, answer: "Q", file: true},
		{name: "many recipients", content: small, answer: "Q", tooLong: true, file: true},
	} {
		dir := t.TempDir()
		box := Box{Dir: filepath.Join(dir, "maildrop"), Socket: filepath.Join(dir, "pickup")}
		if err := os.Mkdir(box.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		h := sample()
		for c.tooLong && len(h.Recipients)*5 < MaxOffer {
			h.Recipients = append(h.Recipients, h.Recipients[0])
		}
		offers, wakes := playPickup(t, box.Socket, c.answer)
		if err := box.Store(h, strings.NewReader(c.content), 0); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		files, _ := os.ReadDir(box.Dir)
		if len(files) == 1 != c.file || len(files) > 1 {
			t.Errorf("%s: %d files", c.name, len(files))
		}
		if c.file {
			f, err := os.Open(filepath.Join(box.Dir, files[0].Name()))
			if err != nil {
				t.Fatal(err)
			}
			expectMessage(t, c.name+", file", f, h, c.content)
			f.Close()
			<-wakes
		}
		if c.offered {
			expectMessage(t, c.name+", offered", bytes.NewReader(<-offers), h, c.content)
		}
		if len(offers)+len(wakes) != 0 {
			t.Errorf("%s: offered %d times more, woken %d times more", c.name, len(offers), len(wakes))
		}
	}
}

// Without a pickup a message is a file.
func TestNobodyThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := (Box{Dir: dir, Socket: filepath.Join(dir, "none")}).Store(sample(), strings.NewReader("x\n"), 0); err != nil {
		t.Fatal(err)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("%d files, want 1", len(files))
	}
}

// What the version before left in the directory is read.
func TestOlderVersion(t *testing.T) {
	t.Parallel()
	file := sample().append(nil)
	file[2] = 1
	file = pack.Bytes(file, 'C', []byte("hello\n"))
	old := appendEnd(file, crc32.Checksum(file, crc32.MakeTable(crc32.Castagnoli)))
	expectMessage(t, "version 1", bytes.NewReader(old), sample(), "hello\n")
	m, err := NewReader(bytes.NewReader(appendEnd(file, crc32.ChecksumIEEE(file))))
	if err == nil {
		_, err = io.ReadAll(m)
	}
	if err != ErrIncomplete {
		t.Errorf("version 1 with the other sum: %v", err)
	}
	file[2] = Version + 1
	if _, err := NewReader(bytes.NewReader(file)); err == nil || !strings.Contains(err.Error(), "version 3") {
		t.Errorf("version 3: %v", err)
	}
}

func expectMessage(t *testing.T, what string, r io.Reader, h *Header, content string) {
	t.Helper()
	m, err := NewReader(r)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	got, err := io.ReadAll(m)
	if err != nil || string(got) != content || !reflect.DeepEqual(&m.Header, h) {
		t.Errorf("%s: %d octets, %v, header %+v", what, len(got), err, m.Header)
	}
}

// playPickup tells what it is offered, and that it is woken.
func playPickup(t *testing.T, socket, answer string) (offers <-chan []byte, wakes <-chan bool) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	offered, woken := make(chan []byte, 10), make(chan bool, 10)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var first [1]byte
			io.ReadFull(c, first[:])
			if first[0] == wakeUp {
				woken <- true
				c.Close()
				continue
			}
			var whole bytes.Buffer
			m, err := NewReader(io.TeeReader(c, &whole))
			if err == nil {
				_, err = io.ReadAll(m)
			}
			if first[0] != OfferFirst || err != nil {
				t.Errorf("%q, %v", first, err)
			}
			io.WriteString(c, answer)
			c.Close()
			offered <- whole.Bytes()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	return offered, woken
}
