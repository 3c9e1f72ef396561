package upgrade

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/etc"
	"posthaste/internal/config"
	"posthaste/internal/postconf"
)

// tools are the real postconf, with its output in a buffer.
func tools(out *bytes.Buffer) Tools {
	return Tools{Master: etc.Master, Stdout: out, Stderr: out, Postconf: func(args []string, stdout, stderr io.Writer) int {
		return postconf.Run(args, postconf.Build{}, stdout, stderr)
	}}
}

func directory(t *testing.T, main, master string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"main.cf": main, "master.cf": master} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Services that are missing are appended once, under the names that main.cf gives them;
// what is there, comments too, stays.
func TestServicesAreAdded(t *testing.T) {
	t.Parallel()
	const master = "# mine\npickup fifo n - n 60 1 pickup\nqmgr unix n - n 300 1 qmgr\n  -o qmgr_message_active_limit=7\ntidy unix n - n - 0 cleanup\n"
	dir := directory(t, "cleanup_service_name = tidy\naddress_verify_service_name = probe\n", master)
	var out bytes.Buffer
	if status := Run(dir, nil, tools(&out)); status != 0 {
		t.Fatalf("status %d: %s", status, out.String())
	}
	for _, name := range []string{"rewrite", "bounce", "probe", "relay", "error", "retry", "discard", "postlog", "proxymap"} {
		if !strings.Contains(out.String(), "adding missing entry for "+name+" service\n") {
			t.Errorf("%s is not said to be added:\n%s", name, out.String())
		}
	}
	for _, name := range []string{"pickup", "qmgr", "tidy", "cleanup"} {
		if strings.Contains(out.String(), "entry for "+name+" service") {
			t.Errorf("%s is added:\n%s", name, out.String())
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "master.cf"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(b), master) {
		t.Errorf("what was there has changed:\n%s", b)
	}
	cfg, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	services, _, err := config.LoadMaster(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, s := range services {
		found[s.Name+"/"+s.Type] = s.Command
	}
	if found["probe/unix"] != "verify" || found["postlog/unix-dgram"] != "postlogd" || found["relay/unix"] != "smtp" || found["retry/unix"] != "error" {
		t.Errorf("%v", found)
	}
	out.Reset()
	if status := Run(dir, nil, tools(&out)); status != 0 || !strings.Contains(out.String(), "have what the mail system needs") {
		t.Errorf("the second time: status %d: %s", status, out.String())
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	dir := directory(t, "mail_owner = alice\n", etc.Master)
	var out bytes.Buffer
	if status := Set(dir, []string{"mail_owner=bob", "setgid_group=postdrop"}, tools(&out)); status != 0 {
		t.Fatalf("status %d: %s", status, out.String())
	}
	if want := "Editing " + dir + "/main.cf, setting mail_owner = bob\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	b, err := os.ReadFile(filepath.Join(dir, "main.cf"))
	if err != nil || string(b) != "mail_owner = bob\n" {
		t.Errorf("%q, %v", b, err)
	}
	for _, arg := range []string{"relayhost=x", "mail_owner", "mail_owners=x"} {
		out.Reset()
		if status := Set(dir, []string{arg}, tools(&out)); status != 1 || !strings.HasPrefix(out.String(), "posthaste: fatal: set-permissions: ") {
			t.Errorf("%s: status %d: %s", arg, status, out.String())
		}
	}
}

// A directory that cannot be read is an error, and nothing is written into it.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	dir := directory(t, "", "smtp inet\n")
	if status := Run(dir, nil, tools(&out)); status != 1 || !strings.Contains(out.String(), "master.cf:1: ") {
		t.Errorf("status %d: %s", status, out.String())
	}
	if b, err := os.ReadFile(filepath.Join(dir, "master.cf")); err != nil || string(b) != "smtp inet\n" {
		t.Errorf("%q, %v", b, err)
	}
}
