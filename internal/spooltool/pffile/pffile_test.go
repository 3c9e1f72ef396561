package pffile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

func open(t *testing.T, data []byte) (*File, string) {
	t.Helper()
	f, err := Open(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Content()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return f, string(text)
}

// A file that Postfix 3.7.11 made: DSN parameters, 8-bit content, a line that
// is longer than a record, an alias. Postfix marks a recipient as done by
// changing its record's type.
func TestReal(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/queued-3.7.11")
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Replace(data, []byte("R\x0bd 2@to.test"), []byte("D\x0bd 2@to.test"), 1)
	f, content := open(t, data)
	want := mail.Envelope{Sender: "s p@from.test", Arrival: f.Envelope.Arrival, Size: 5312, Body: mail.Body8Bit, EnvID: "abc", Ret: dsn.RetHeaders,
		Client:  mail.Client{Name: "localhost", Addr: "127.0.0.1", Port: "52190", Helo: "c.test", Proto: "ESMTP"},
		Reverse: "localhost", RewriteContext: "local", LogIdent: "4jWmqM5WDfz1SCCb",
		Recipients: []mail.Recipient{
			{Address: "d1@to.test", ORCPT: "rfc822;orig@to.test", Notify: dsn.NotifySuccess | dsn.NotifyFailure},
			{Address: "d 2@to.test", ORCPT: `rfc822;"d 2"@to.test`, Notify: dsn.NotifyNever},
			{Address: "one@x.test", Original: "al@v.test", ORCPT: "rfc822;al@v.test"},
			{Address: "two@x.test", Original: "al@v.test", ORCPT: "rfc822;al@v.test"}}}
	if !reflect.DeepEqual(f.Envelope, want) {
		t.Errorf("\n got %+v\nwant %+v", f.Envelope, want)
	}
	if got := f.Envelope.Arrival.Unix(); got != 1795252751 || f.Created != 1795252751 || !f.Whole {
		t.Errorf("arrival %d, created %d, whole %v", got, f.Created, f.Whole)
	}
	if len(f.Done) != 1 || !f.Done[1] {
		t.Errorf("done: %v", f.Done)
	}
	head, body, _ := strings.Cut(content, "\r\n\r\n")
	if !strings.HasPrefix(head, "Received: from c.test (localhost [127.0.0.1])\r\n\tby mx.example.test") || !strings.Contains(head, "\r\nSubject: é\r\n") {
		t.Errorf("header:\n%s", head)
	}
	if body != "body é\r\n..dot\r\n"+strings.Repeat("x", 5000)+"\r\nlast\r\n" {
		t.Errorf("body of %d octets", len(body))
	}
	if _, again := open(t, data); again != content {
		t.Error("read again it is another")
	}
}

func record(typ byte, data string) string {
	b := []byte{typ}
	n := len(data)
	for ; n > 0x7f; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return string(append(b, byte(n))) + data
}

// Recipients that a milter has added, and a body that it has changed, lie
// behind the end of the original, where pointers lead.
func TestPointers(t *testing.T) {
	t.Parallel()
	pointer := func(at int) string { return record('p', fmt.Sprintf("%15d", at)) }
	size := len(pointer(0))
	head := record('C', "              3               0               2") + record('T', "1795251386 000123") + record('S', "") + record('R', "a@x")
	body := record('M', "") + record('N', "one")
	tail := record('X', "") + record('E', "")
	extraAt := len(head) + size + len(body) + size + len(tail)
	extra := record('K', "killed") + record('A', "notify_flags=8") + record('R', "b@x") + pointer(len(head)+size)
	newBodyAt := extraAt + len(extra)
	newBody := record('L', "tw") + record('w', "    ") + record('N', "o") + pointer(len(head)+size+len(body)+size)
	f, content := open(t, []byte(head+pointer(extraAt)+body+pointer(newBodyAt)+tail+extra+newBody))
	if content != "one\r\ntwo\r\n" {
		t.Errorf("content %q", content)
	}
	want := []mail.Recipient{{Address: "a@x"}, {Address: "b@x", Notify: dsn.NotifyDelay}}
	if !reflect.DeepEqual(f.Envelope.Recipients, want) || !f.Envelope.Arrival.Equal(time.UnixMicro(1795251386000123)) {
		t.Errorf("%+v", f.Envelope)
	}
}

func TestDamaged(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/aliased-3.7.11")
	if err != nil {
		t.Fatal(err)
	}
	open(t, data)
	for n := range data {
		if _, err := Open(bytes.NewReader(data[:n])); !errors.Is(err, ErrFormat) {
			t.Fatalf("the first %d of %d octets: %v", n, len(data), err)
		}
	}
	loop := record('S', "") + record('p', fmt.Sprintf("%15d", 2))
	for _, bad := range []string{"root:x:0:0:", loop, record('C', "x"), record('T', "-1"), record('S', "") + record('M', "") + record('S', ""),
		"S\xff\xff\xff\xff\x7f", record('S', "") + record('A', "notify_flags=x")} {
		if _, err := Open(strings.NewReader(bad)); !errors.Is(err, ErrFormat) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	for _, name := range []string{"testdata/queued-3.7.11", "testdata/aliased-3.7.11"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := Open(bytes.NewReader(p))
		if err != nil {
			return
		}
		if c, err := m.Content(); err == nil {
			io.Copy(io.Discard, io.LimitReader(c, 1<<20))
		}
	})
}
