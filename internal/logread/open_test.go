package logread

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
)

// What logrotate's compressors make is read, from a file and from standard input; what is damaged is an error, not
// the end; and a log that is closed before its end leaves no program behind.
func TestCompressors(t *testing.T) {
	t.Parallel()
	line := "Nov 23 10:00:00 mx postfix/qmgr[1]: 4aAAAA1z: removed\n"
	text := strings.Repeat(line, 10000)
	for _, program := range []string{"gzip", "bzip2", "xz", "zstd", "lz4"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(testpeers.Program(t, program), "-c")
			cmd.Stdin = strings.NewReader(text)
			packed, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(name, packed, 0o600); err != nil {
				t.Fatal(err)
			}
			if !Packed(packed[:6]) || Packed([]byte(line[:6])) {
				t.Error("it is not seen to be compressed")
			}
			for _, from := range []string{name, "-"} {
				f, err := Open(from, bytes.NewReader(packed))
				if err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(f); err != nil || string(got) != text {
					t.Errorf("%s: %d octets, %v", from, len(got), err)
				}
				if n, err := f.Read(make([]byte, 1)); n != 0 || err != io.EOF {
					t.Errorf("behind the end: %d, %v", n, err)
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
			f, err := Open("-", bytes.NewReader(packed[:len(packed)/2]))
			if err == nil {
				_, err = io.ReadAll(f)
				f.Close()
			}
			if err == nil {
				t.Error("half a file is read to its end")
			}
			if f, err = Open(name, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(f, make([]byte, 100)); err != nil {
				t.Error(err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if u, ok := f.(*opened).ReadCloser.(*unpacker); ok && u.cmd.ProcessState == nil {
				t.Error("the program goes on")
			}
			if _, err := f.Read(make([]byte, 1<<20)); err == nil && program != "gzip" && program != "bzip2" {
				t.Error("a closed log can be read")
			}
		})
	}
}

func TestFamily(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"/var/log/mail.log": "/var/log/mail.log", "/var/log/mail.log.1": "/var/log/mail.log", "/var/log/mail.log.12.gz": "/var/log/mail.log",
		"maillog-20261120": "maillog", "maillog-2026-11-20.zst": "maillog", "mail.log.2026-11-20-3": "mail.log", "-": "-",
		"node-1": "node-1", "b/mail.log": "b/mail.log", "mx1": "mx1",
	} {
		if got := Family(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
