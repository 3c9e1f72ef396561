package master

import (
	"os"
	"path/filepath"
	"testing"

	"posthaste/internal/service"
)

func TestFurnishJail(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root directory")
	}
	root, queue := t.TempDir(), t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &settings{queue: queue, services: []*entry{{}}}
	put("etc/hosts", "127.0.0.1 localhost\n")
	if p := furnishJail(s, root); len(p) > 0 {
		t.Error(p)
	}
	if _, err := os.Stat(filepath.Join(queue, "etc")); err == nil {
		t.Error("files are copied for nobody")
	}
	s.services = append(s.services, &entry{line: service.CommandLine{Chroot: true}})
	for _, text := range []string{"nameserver 127.0.0.1\n", "nameserver 127.0.0.2\n"} {
		put("etc/resolv.conf", text)
		if p := furnishJail(s, root); len(p) > 0 {
			t.Error(p)
		}
		got, err := os.ReadFile(filepath.Join(queue, "etc/resolv.conf"))
		if err != nil || string(got) != text {
			t.Errorf("copied %q, %v; want %q", got, err, text)
		}
	}
	if info, err := os.Stat(filepath.Join(queue, "etc/hosts")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("hosts: %v, %v", info, err)
	}
	list, err := os.ReadDir(filepath.Join(queue, "etc"))
	if err != nil || len(list) != 2 {
		t.Errorf("%d files, %v; want hosts and resolv.conf", len(list), err)
	}
	if err := os.Mkdir(filepath.Join(root, "etc/services"), 0o755); err != nil {
		t.Fatal(err)
	}
	if p := furnishJail(s, root); len(p) != 1 {
		t.Errorf("a directory in place of a file: %q", p)
	}
}
