package postkick

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte("queue_directory = "+dir+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "public"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "public/pickup"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- err.Error()
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c)
		got <- string(b)
	}()
	var stderr bytes.Buffer
	if status := Run([]string{"-v", "-c", dir, "public", "pickup", "WX"}, &stderr); status != 0 || stderr.Len() > 0 {
		t.Errorf("status %d: %s", status, &stderr)
	}
	if s := <-got; s != "WX" {
		t.Errorf("the service got %q", s)
	}
	for args, want := range map[string]string{
		"":                                    "usage: postkick",
		"public pickup":                       "usage: postkick",
		"-z public pickup W":                  "unknown option -z",
		"-c":                                  "unknown option -c",
		"nowhere pickup W":                    "expected the class",
		"public ../public/x W":                "expected the class",
		"-c " + dir + " public nosuch W":      "Cannot contact class public service nosuch - perhaps the mail system is down",
		"-c " + dir + "/none public pickup W": "main.cf",
	} {
		stderr.Reset()
		if status := Run(strings.Fields(args), &stderr); status != 1 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: status %d, %q; want %s", args, status, &stderr, want)
		}
	}
}
