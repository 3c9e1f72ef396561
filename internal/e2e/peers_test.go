package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What peers.sh has installed is not started when the machine is booted: neither by systemd nor by a script of System V's. Other
// packages are left as they are.
func TestPeersDisabled(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"dpkg-query", "deb-systemd-helper"} {
		need(t, p)
	}
	root := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "DPKG_ROOT="+root, "DPKG_MAINTSCRIPT_PACKAGE=x")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	status := ""
	for _, name := range []string{"foreign", "own"} {
		status += "Package: " + name + "\nStatus: install ok installed\nMaintainer: a\nArchitecture: all\nVersion: 1\nDescription: a server\n\n"
		files := []string{"/.", "/lib", "/lib/systemd", "/lib/systemd/system", "/lib/systemd/system/" + name + ".service", "/lib/systemd/system/" + name + ".socket", "/etc", "/etc/init.d", "/etc/init.d/" + name}
		write("var/lib/dpkg/info/"+name+".list", strings.Join(files, "\n")+"\n", 0o644)
		write("lib/systemd/system/"+name+".service", "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\nAlias="+name+"2.service\n", 0o644)
		write("lib/systemd/system/"+name+".socket", "[Socket]\nListenStream=1\n[Install]\nWantedBy=sockets.target\n", 0o644)
		for _, level := range "2345" {
			dir := filepath.Join(root, "etc/rc"+string(level)+".d")
			os.MkdirAll(dir, 0o755)
			if err := os.Symlink("../init.d/"+name, filepath.Join(dir, "S01"+name)); err != nil {
				t.Fatal(err)
			}
		}
		// As the package's postinst does.
		run("deb-systemd-helper", "enable", name+".service")
		run("deb-systemd-helper", "enable", name+".socket")
	}
	write("var/lib/dpkg/status", status, 0o644)
	started := func(name string) (list []string) {
		for _, pattern := range []string{"etc/systemd/system/" + name + "*", "etc/systemd/system/*.wants/" + name + "*", "etc/rc[2-5].d/S*" + name} {
			found, _ := filepath.Glob(filepath.Join(root, pattern))
			list = append(list, found...)
		}
		return list
	}
	before := started("own")
	if len(before) != 7 || len(started("foreign")) != 7 {
		t.Fatalf("enabled: %v, %v", before, started("foreign"))
	}
	run("./peers.sh", "disable", "foreign")
	if left := started("foreign"); len(left) > 0 {
		t.Errorf("it is started all the same: %v", left)
	}
	if left := started("own"); len(left) != len(before) {
		t.Errorf("of another package is left: %v", left)
	}
}
