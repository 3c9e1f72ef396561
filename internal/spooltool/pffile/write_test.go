package pffile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/spooltool/plain"
)

// rewritten is what is read of a file that Write has made.
func rewritten(t *testing.T, path string, m *plain.Message, created time.Time, content string) (*File, string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Write(f, m, created, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return open(t, data)
}

// What Postfix wrote is the same after it has been read, written and read.
func TestRewrite(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"queued-3.7.11", "aliased-3.7.11"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		first, content := open(t, data)
		second, again := rewritten(t, filepath.Join(t.TempDir(), "f"), &first.Message, time.Unix(first.Created, 0), content)
		if again != content || second.Created != first.Created || !second.Whole {
			t.Errorf("%s: %d octets of content became %d", name, len(content), len(again))
		}
		if first.r, second.r = nil, nil; !reflect.DeepEqual(first.Envelope, second.Envelope) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, second.Envelope, first.Envelope)
		}
	}
}

// The places that the first record gives are those of the content.
func TestSizeRecord(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	m := &plain.Message{Envelope: mail.Envelope{Arrival: time.Unix(5, 6000), Size: 9, Body: mail.BodySMTPUTF8,
		Recipients: []mail.Recipient{{Address: "done@x.test"}, {Address: "a@x.test"}}}, Done: map[int]bool{0: true}}
	got, _ := rewritten(t, path, m, time.Unix(4, 0), "abc\r\n\r\n")
	data, _ := os.ReadFile(path)
	var size, start, rcpts, flags, length, options int64
	if _, err := fmt.Sscan(string(data[2:]), &size, &start, &rcpts, &flags, &length, &options); err != nil {
		t.Fatal(err)
	}
	if body := data[start : start+length]; string(body) != "N\x03abcN\x00" || size != length || rcpts != 1 || options != 1 {
		t.Errorf("%q %d %d %d", body, size, rcpts, options)
	}
	if len(got.Envelope.Recipients) != 1 || got.Envelope.Recipients[0].Address != "a@x.test" || got.Created != 4 {
		t.Errorf("%+v", got.Envelope)
	}
}

func TestNotWritable(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := &plain.Message{Envelope: mail.Envelope{Sender: "a\nb@x.test"}}
	if err := Write(f, m, time.Unix(4, 0), strings.NewReader("")); err == nil || !strings.Contains(err.Error(), `a\nb`) {
		t.Errorf("%v", err)
	}
}

// Whatever the lengths of lines, the content comes back.
func TestContentProperty(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		var content bytes.Buffer
		for range rapid.IntRange(0, 5).Draw(r, "lines") {
			n := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(maxText-3, maxText+3), rapid.IntRange(2*maxText-3, 2*maxText+3)).Draw(r, "length")
			content.WriteString(strings.Repeat("x", n) + "\r\n")
		}
		m := &plain.Message{Envelope: mail.Envelope{Arrival: time.Unix(1, 0), Trace: rapid.SampledFrom([]mail.Trace{0, mail.TraceReport, mail.TraceRecord}).Draw(r, "trace"),
			VERP:       rapid.SampledFrom([]string{"", "+="}).Draw(r, "verp"),
			Recipients: []mail.Recipient{{Address: "a@x.test", Notify: dsn.NotifyDelay | dsn.NotifyFailure}}}}
		f, text := rewritten(t, filepath.Join(dir, "f"), m, time.Unix(1, 0), content.String())
		if text != content.String() {
			r.Fatalf("%d octets became %d", content.Len(), len(text))
		}
		if e := f.Envelope; e.Trace != m.Envelope.Trace || e.VERP != m.Envelope.VERP || e.Recipients[0] != m.Envelope.Recipients[0] {
			r.Fatalf("%+v", e)
		}
	})
}
