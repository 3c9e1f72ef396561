package maildrop

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/pack"
)

func sample() *Header {
	return &Header{Time: time.UnixMicro(1700000000123456), UID: 1000, Sender: "joe", FullName: "Joe Doe",
		Recipients: []mail.Recipient{{Address: "a@x.test", Notify: dsn.NotifyNever}, {Address: "b"}},
		EnvID:      "e1", Ret: dsn.RetHeaders, Trace: mail.TraceRecord, VERP: "+=", Body8Bit: true, SMTPUTF8: true,
		Flags: Gateway, OrigID: "4Q", Filter: "x:y"}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, MaxPiece - 1, MaxPiece, MaxPiece + 1, 3*MaxPiece + 7} {
		content := strings.Repeat("x\n", n/2+1)[:n]
		var b bytes.Buffer
		if err := Write(&b, sample(), strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		m, err := NewReader(iotest.OneByteReader(&b))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(&m.Header, sample()) {
			t.Errorf("header: got %+v", m.Header)
		}
		got, err := io.ReadAll(m)
		if err != nil || string(got) != content {
			t.Errorf("%d octets: got %d, %v", n, len(got), err)
		}
	}
}

// Every prefix and every flipped bit must be told from a message.
func TestDamageIsSeen(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := Write(&b, sample(), strings.NewReader("Subject: x\n\nhello\n")); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	read := func(p []byte) error {
		m, err := NewReader(bytes.NewReader(p))
		if err == nil {
			_, err = io.Copy(io.Discard, m)
		}
		return err
	}
	if err := read(whole); err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		if read(whole[:i]) == nil {
			t.Errorf("the first %d of %d octets pass for a message", i, len(whole))
		}
		for bit := range 8 {
			p := bytes.Clone(whole)
			p[i] ^= 1 << bit
			if read(p) == nil {
				t.Errorf("bit %d of octet %d flipped: not noticed", bit, i)
			}
		}
	}
}

func TestDrop(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var b bytes.Buffer
	h := sample()
	h.UID = 0 // a lie
	if err := Write(&b, h, strings.NewReader("hello\n")); err != nil {
		t.Fatal(err)
	}
	now := time.UnixMicro(1700000001000000)
	if err := (Box{Dir: dir}).Drop(&b, 1234, now, 0); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	name := files[0].Name()
	fi, err := os.Stat(filepath.Join(dir, name))
	if err != nil || fi.Mode() != 0o744 {
		t.Errorf("mode %v, %v: want 0744", fi.Mode(), err)
	}
	f, _ := os.Open(filepath.Join(dir, name))
	defer f.Close()
	m, err := NewReader(f)
	if err != nil || m.UID != 1234 || !m.Time.Equal(now) {
		t.Errorf("got uid %d time %v, %v", m.UID, m.Time, err)
	}
}

func TestDropLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var b bytes.Buffer
	if err := Write(&b, sample(), strings.NewReader("hello\n")); err != nil {
		t.Fatal(err)
	}
	err := Box{Dir: dir}.Drop(bytes.NewReader(b.Bytes()[:b.Len()-1]), 1, time.Now(), 0)
	if !errors.Is(err, ErrIncomplete) {
		t.Errorf("got %v, want ErrIncomplete", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A failure to sync a message that has been picked up already is none.
func TestWithdraw(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Box{}).withdraw(name, true, io.ErrShortWrite); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("nobody had it: %v", err)
	}
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if err := (Box{}).withdraw(name, true, io.ErrShortWrite); err != nil {
		t.Errorf("it was picked up: %v", err)
	}
	if err := (Box{}).withdraw(name, false, io.ErrShortWrite); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("somebody has removed what was not whole: %v", err)
	}
}

func TestDropTooBig(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]error{"12345": nil, "123456": ErrTooBig} {
		var b bytes.Buffer
		if err := Write(&b, sample(), strings.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		if err := (Box{Dir: t.TempDir()}).Drop(&b, 1, time.Now(), 5); !errors.Is(err, want) {
			t.Errorf("%q with a limit of 5: got %v, want %v", content, err, want)
		}
	}
}

// However few they are, recipients cannot fill the memory of who reads them.
func TestLongHeader(t *testing.T) {
	t.Parallel()
	h := sample()
	h.Recipients = nil
	long := mail.Recipient{Address: strings.Repeat("x", MaxPiece-100)}
	for len(h.Recipients)*(MaxPiece-100) <= MaxHeader {
		h.Recipients = append(h.Recipients, long)
	}
	file := h.append(nil)
	file = pack.Bytes(file, 'C', []byte("hello\n"))
	file = pack.Bytes(file, 'E', binary.LittleEndian.AppendUint32(nil, crc32.Checksum(file, crc32.IEEETable)))
	if _, err := NewReader(bytes.NewReader(file)); !errors.Is(err, errTooLong) {
		t.Errorf("read: %v, want %v", err, errTooLong)
	}
	if err := (Box{Dir: t.TempDir()}).Drop(bytes.NewReader(file), 1, time.Now(), 0); !errors.Is(err, errTooLong) {
		t.Errorf("dropped: %v, want %v", err, errTooLong)
	}
	if err := Write(io.Discard, h, strings.NewReader("hello\n")); !errors.Is(err, errTooLong) {
		t.Errorf("written: %v, want %v", err, errTooLong)
	}
	h.Recipients = h.Recipients[:len(h.Recipients)*9/10]
	var b bytes.Buffer
	if err := Write(&b, h, strings.NewReader("hello\n")); err != nil {
		t.Fatal(err)
	}
	if m, err := NewReader(&b); err != nil || len(m.Recipients) != len(h.Recipients) {
		t.Errorf("a list that is not too long: %v", err)
	}
}

func TestHeaderProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := &Header{Time: time.UnixMicro(rapid.Int64Range(1, 1<<50).Draw(t, "time")), UID: rapid.Int().Draw(t, "uid"),
			Sender: rapid.StringMatching(`[^[:cntrl:]]*`).Draw(t, "sender"), FullName: rapid.String().Draw(t, "name")}
		for _, a := range rapid.SliceOf(rapid.StringMatching(`[^[:cntrl:]]*`)).Draw(t, "rcpts") {
			h.Recipients = append(h.Recipients, mail.Recipient{Address: a})
		}
		content := rapid.SliceOf(rapid.Byte()).Draw(t, "content")
		var b bytes.Buffer
		if err := Write(&b, h, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		m, err := NewReader(&b)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(&m.Header, h) {
			t.Fatalf("got %+v want %+v", m.Header, h)
		}
		if got, err := io.ReadAll(m); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("content: %q, %v", got, err)
		}
	})
}

// TestHostileHeader: anybody may run postdrop with a header that sendmail would
// never write.
func TestHostileHeader(t *testing.T) {
	t.Parallel()
	const evil = "a\r\nRCPT TO:<evil@x.test>\r\n"
	rcpt := func(r mail.Recipient) func(*Header) {
		return func(h *Header) { h.Recipients = append(h.Recipients, r) }
	}
	for name, change := range map[string]func(*Header){
		"sender":        func(h *Header) { h.Sender = evil },
		"envelope ID":   func(h *Header) { h.EnvID = evil },
		"VERP":          func(h *Header) { h.VERP = "\r\n" },
		"recipient":     rcpt(mail.Recipient{Address: evil}),
		"original":      rcpt(mail.Recipient{Address: "a", Original: evil}),
		"ORCPT":         rcpt(mail.Recipient{Address: "a", ORCPT: "rfc822;" + evil}),
		"ORCPT's type":  rcpt(mail.Recipient{Address: "a", ORCPT: evil + ";a"}),
		"two words":     rcpt(mail.Recipient{Address: "a", ORCPT: "rfc822 NOTIFY=NEVER;a"}),
		"ORCPT of none": rcpt(mail.Recipient{Address: "a", ORCPT: "rfc822"}),
	} {
		h := sample()
		change(h)
		var b bytes.Buffer
		if err := Write(&b, h, strings.NewReader("x\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := NewReader(&b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: error %v, want one of a malformed message", name, err)
		}
	}
	h := sample()
	h.Trace = 0xff
	rcpt(mail.Recipient{Address: "a", Original: "b", ORCPT: "x-other;any thing"})(h)
	var b bytes.Buffer
	Write(&b, h, strings.NewReader("x\n"))
	if m, err := NewReader(&b); err != nil || m.Trace != mail.TraceReport|mail.TraceRecord {
		t.Errorf("all kinds of delivery are asked for: error %v, got %#x", err, m.Trace)
	}
}

// TestInterrupted: a program that is told to end leaves no piece of a message,
// however much it waits for the rest.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	var b bytes.Buffer
	if err := Write(&b, sample(), strings.NewReader(strings.Repeat("a line of text\n", 20000))); err != nil {
		t.Fatal(err)
	}
	part := bytes.NewReader(b.Bytes()[:b.Len()-100])
	in := io.MultiReader(part, readerFunc(func([]byte) (int, error) {
		if names, _ := os.ReadDir(dir); len(names) != 1 {
			t.Errorf("%d files before the signal, want 1", len(names))
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		select {}
	}))
	if err := (Box{Dir: dir}).Drop(in, 1, time.Now(), 0); err == nil || !strings.Contains(err.Error(), "interrupted: terminated") {
		t.Errorf("Drop: %v", err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 0 {
		t.Errorf("%v is left", names)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func FuzzReader(f *testing.F) {
	var b bytes.Buffer
	Write(&b, sample(), strings.NewReader("hello\n"))
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, p []byte) {
		if m, err := NewReader(bytes.NewReader(p)); err == nil {
			io.Copy(io.Discard, m)
		}
	})
}
