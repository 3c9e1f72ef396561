package smallfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, text := range []string{"", "secret", strings.Repeat("x", 16)} {
		if got, err := Read(write("file", text), 16); err != nil || string(got) != text {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
	if got, err := Read("/dev/null", 16); err != nil || len(got) != 0 {
		t.Errorf("/dev/null: got %q, %v", got, err)
	}
	var long *LongError
	if got, err := Read(write("long", strings.Repeat("x", 17)), 16); !errors.As(err, &long) || got != nil {
		t.Errorf("17 octets of 16: got %q, %v", got, err)
	}
	if _, err := Read(filepath.Join(dir, "none"), 16); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	// Nobody writes to the pipe: the test would not end if Read waited for somebody.
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir, "/dev/zero"} {
		if got, err := Read(path, 16); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: got %q, %v", path, got, err)
		}
	}
}
