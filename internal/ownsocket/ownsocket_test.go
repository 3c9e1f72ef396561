package ownsocket

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSockets(t *testing.T) {
	t.Parallel()
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "d")
	if all, err := All(dir); err != nil || all != nil {
		t.Errorf("without a directory: %q, %v", all, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, fmt.Sprintf("127.0.0.1:25.%d", os.Getpid()))
	left := filepath.Join(dir, fmt.Sprintf("127.0.0.1:25.%d", dead.Process.Pid))
	alive := filepath.Join(dir, fmt.Sprintf("127.0.0.1:25.%d", os.Getppid()))
	other := filepath.Join(dir, fmt.Sprintf("127.0.0.1.%d", os.Getppid()))
	for _, path := range []string{own, left, alive, other, filepath.Join(dir, "none"), filepath.Join(dir, "127.0.0.1:25.x")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Listen(dir, "127.0.0.1:25")
	if err != nil {
		t.Fatal(err)
	}
	want := []Socket{{"127.0.0.1:25", own}, {"127.0.0.1:25", alive}, {"127.0.0.1", other}}
	byPath := func(a, b Socket) int { return strings.Compare(a.Path, b.Path) }
	slices.SortFunc(want, byPath)
	all, err := All(dir)
	if slices.SortFunc(all, byPath); err != nil || !slices.Equal(all, want) {
		t.Errorf("found %q, %v; want %q", all, err, want)
	}
	l.Close()
	if all, err := All(dir); err != nil || len(all) != 2 {
		t.Errorf("after the end: %q, %v", all, err)
	}
}
