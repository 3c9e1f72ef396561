package main

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{GoVersion: "go1.99", Settings: []debug.BuildSetting{{Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: "amd64"}}}
	info.Main.Version = "(devel)"
	head := strings.SplitAfter(version(nil), "\n")[0]
	if !strings.HasPrefix(head, "posthaste ") || len(head) < len("posthaste 0.1\n") || version(nil) != head {
		t.Errorf("without a build: %q", version(nil))
	}
	if got, want := version(info), head+"built with go1.99 for linux/amd64\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	info.Main.Version = "v1.2.3"
	info.Settings = append(info.Settings, debug.BuildSetting{Key: "vcs.revision", Value: "0123abc"}, debug.BuildSetting{Key: "vcs.time", Value: "2026-11-22T01:02:03Z"},
		debug.BuildSetting{Key: "vcs.modified", Value: "true"})
	if got, want := version(info), head+"module v1.2.3\ncommit 0123abc of 2026-11-22T01:02:03Z, with changes\nbuilt with go1.99 for linux/amd64\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, argv := range [][]string{{"posthaste", "version"}, {"posthaste", "--version"}, {"/usr/sbin/posthaste", "-c", "/nonexistent", "version"}} {
		var out, errOut strings.Builder
		if status := run(argv, strings.NewReader(""), &out, &errOut); status != 0 || !strings.HasPrefix(out.String(), head) || errOut.Len() > 0 {
			t.Errorf("%q: status %d, %q, %q", argv, status, out.String(), errOut.String())
		}
	}
}
