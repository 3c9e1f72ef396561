package master

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
)

// Root rotates a log file in a directory of somebody else's with the rights of that user: what
// is planted there is neither renamed, nor read by the compressor, nor written to.
func TestPlantedLogRotate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		plant  func(p *planting) error
		status int
		says   string
	}{
		{"nothing", func(p *planting) error { return nil }, 0, ""},
		{"the file is a link", func(p *planting) error {
			return errors.Join(os.Remove(filepath.Join(p.private, "maillog")), os.Symlink(p.secret, filepath.Join(p.private, "maillog")))
		}, 1, "ermission denied"},
		{"the file is a second name", func(p *planting) error {
			return errors.Join(os.Remove(filepath.Join(p.private, "maillog")), os.Link(p.secret, filepath.Join(p.private, "maillog")))
		}, 1, "chown the file"},
		{"the old name is taken", func(p *planting) error { return os.Symlink(p.secret, filepath.Join(p.private, "maillog.old")) }, 1, "exists already"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := plant(t)
			path, copied := filepath.Join(p.private, "maillog"), filepath.Join(p.private, "maillog.old.copy")
			etc, tool := filepath.Join(p.dir, "etc"), filepath.Join(p.dir, "compress")
			text := "queue_directory = " + filepath.Join(p.dir, "queue") + "\nmaillog_file = " + path + "\nmaillog_file_prefixes = " + p.dir +
				"\nmaillog_file_rotate_suffix = old\nmaillog_file_compressor = " + tool + "\n"
			if err := errors.Join(os.Mkdir(etc, 0o755), os.WriteFile(filepath.Join(etc, "main.cf"), []byte(text), 0o644),
				os.WriteFile(path, []byte("line\n"), 0o600), os.Chown(path, 60071, 60072),
				os.WriteFile(tool, []byte("#!/bin/sh\ncat \"$1\" > \"$1.copy\"\n"), 0o755), test.plant(p)); err != nil {
				t.Fatal(err)
			}
			cfg, err := config.Load(etc)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			c := &control{config: cfg, stdout: &out, stderr: &out}
			if status := c.logRotate(); status != test.status || !strings.Contains(out.String(), test.says) {
				t.Errorf("status %d: %s", status, out.String())
			}
			p.unharmed()
			b, _ := os.ReadFile(copied)
			var st unix.Stat_t
			switch unix.Lstat(copied, &st); {
			case strings.Contains(string(b), "secret"):
				t.Error("the compressor has read the secret")
			case test.status == 0 && (string(b) != "line\n" || st.Uid != 60071):
				t.Errorf("copied %q, for user %d", b, st.Uid)
			}
		})
	}
}
