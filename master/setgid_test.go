package master

import (
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// setgidSite is a site with the set-gid programs as set-permissions leaves them. They lie
// in its directory sbin, on which prepare may mount something.
func setgidSite(t *testing.T, prepare func(dir string)) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOT PROVED HERE: the test needs root")
	}
	s := newSite(t, "command_directory = QUEUE/sbin\n", echoService+needed)
	if err := os.Mkdir(s.path("sbin"), 0o755); err != nil {
		t.Fatal(err)
	}
	prepare(s.path("sbin"))
	for _, p := range setgidPrograms {
		s.write("sbin/"+p.name, "#!/bin/sh\n")
	}
	s.mustCommand("set-permissions")
	return s
}

// aboutRights is what a command has said, but for what depends on how the directory
// of temporary files is mounted.
func aboutRights(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "mounted nosuid") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Each way in which a program that users need may have lost its rights is told, and
// set-permissions mends all of them.
func TestCheckSetgid(t *testing.T) {
	t.Parallel()
	s := setgidSite(t, func(string) {})
	group, err := user.LookupGroup("nogroup")
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.Atoi(group.Gid)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid, gid int
		mode     os.FileMode
		want     string // "": nothing
	}{
		{0, gid, 0o755 | os.ModeSetgid, ""},
		{0, gid, 0o711 | os.ModeSetgid, ""},
		{0, 0, 0o755 | os.ModeSetgid, "not of group nogroup"},
		{0, gid, 0o755, "not set-gid (of group nogroup)"},
		{0, gid, 0o755 | os.ModeSetgid | os.ModeSetuid, "set-uid, which it must not be"},
		{1, gid, 0o755 | os.ModeSetgid, "not owned by root"},
		{0, gid, 0o775 | os.ModeSetgid, "too accessible (mode 0775, expected 0755)"},
		{0, gid, 0o750 | os.ModeSetgid, "not executable by every user (mode 0750, expected 0755)"},
	} {
		for _, p := range setgidPrograms {
			path := s.path("sbin/" + p.name)
			if err := os.Chown(path, c.uid, c.gid); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			status, text := s.command("check")
			text = aboutRights(text)
			want := "warning: " + c.want + ": " + path + "; \"posthaste set-permissions\" mends it\n"
			if said := strings.Contains(text, path); status != 0 || said != (c.want != "") || said && !strings.Contains(text, want) {
				t.Errorf("%s, %d:%d, mode %v: check: %d %s", p.name, c.uid, c.gid, c.mode, status, text)
			}
			s.mustCommand("set-permissions")
			if _, text := s.command("check"); strings.Contains(aboutRights(text), path) {
				t.Errorf("%s, %d:%d, mode %v: after set-permissions: %s", p.name, c.uid, c.gid, c.mode, text)
			}
		}
	}
	for path, want := range map[string]string{
		s.path("sbin/postdrop"):  "no such file or directory: local mail cannot be submitted",
		s.path("sbin/postqueue"): "not a program: " + s.path("sbin/postqueue") + ": users cannot list the queue",
	} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if filepath.Base(path) == "postqueue" {
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if _, text := s.command("check"); !strings.Contains(text, want) {
			t.Errorf("%s: check said %s", path, text)
		}
	}
}

// On a file system that is mounted nosuid the programs have no rights,
// whatever their modes, and set-permissions, which cannot mend it, says so too.
func TestCheckNosuid(t *testing.T) {
	t.Parallel()
	dir := ""
	s := setgidSite(t, func(sbin string) {
		dir = sbin
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			t.Skipf("SKIPPED, NOT PROVED HERE: no mounts of its own can be had: %v", err)
		}
		if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", sbin, "tmpfs", unix.MS_NOSUID, ""); err != nil {
			t.Skipf("SKIPPED, NOT PROVED HERE: no file system can be mounted: %v", err)
		}
	})
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	nosuid := func(command string) (n int) {
		t.Helper()
		status, text := s.command(command)
		for _, p := range setgidPrograms {
			if strings.Contains(text, "warning: on a file system mounted nosuid, where set-gid has no effect: "+s.path("sbin/"+p.name)+": "+p.without+"; ") {
				n++
			}
		}
		if status != 0 || strings.Count(text, "mounted nosuid") != n {
			t.Errorf("%s: %d %s", command, status, text)
		}
		return n
	}
	for _, command := range []string{"check", "set-permissions"} {
		if n := nosuid(command); n != len(setgidPrograms) {
			t.Errorf("%s: %d of %d programs", command, n, len(setgidPrograms))
		}
	}
	if err := unix.Mount("none", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"check", "set-permissions"} {
		if n := nosuid(command); n != 0 {
			t.Errorf("mounted otherwise, %s: %d programs", command, n)
		}
	}
}
