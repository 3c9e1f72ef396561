package etc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/config"
)

// install writes the files as an installation does.
func install(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"main.cf": Main, "master.cf": Master} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestMainLoadsWithoutWarnings(t *testing.T) {
	t.Parallel()
	c, err := config.Load(install(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range c.Warnings() {
		t.Error(w)
	}
}

// A line that is commented out must be right when somebody takes the # away.
func TestExamplesLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	main := strings.ReplaceAll(Main, "\n#", "\n")
	var kept []string
	for _, line := range strings.Split(main, "\n") {
		if name, _, ok := strings.Cut(line, " = "); strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "  ") || ok && strings.Contains(name, " ") {
			continue // prose
		}
		if strings.HasPrefix(line, "    ") || strings.Contains(line, " = ") {
			kept = append(kept, line)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte(strings.Join(kept, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if set, _, _ := c.IsSet("relayhost"); !set {
		t.Error("the example of relayhost was not found")
	}
	for _, w := range c.Warnings() {
		if strings.Contains(w, "unknown parameter") {
			t.Error(w)
		}
	}
}

func TestMasterLoads(t *testing.T) {
	t.Parallel()
	dir := install(t)
	c, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	services, faulty, err := config.LoadMaster(dir, c)
	if err != nil || len(faulty) > 0 {
		t.Fatal(faulty, err)
	}
	have := make(map[string]string)
	for _, s := range services {
		if s.Replaces != 0 {
			t.Errorf("master.cf:%d: %s/%s is there twice", s.Line, s.Name, s.Type)
		}
		if s.Chroot {
			t.Errorf("master.cf:%d: %s/%s runs in a chroot, which a new site is not set up for", s.Line, s.Name, s.Type)
		}
		have[s.Name+"/"+s.Type] = s.Command
	}
	want := map[string]string{
		"smtp/inet": "smtpd", "pickup/unix": "pickup", "cleanup/unix": "cleanup", "qmgr/unix": "qmgr", "tlsmgr/unix": "tlsmgr",
		"rewrite/unix": "trivial-rewrite", "bounce/unix": "bounce", "defer/unix": "bounce", "trace/unix": "bounce",
		"verify/unix": "verify", "flush/unix": "flush", "proxymap/unix": "proxymap", "proxywrite/unix": "proxymap",
		"smtp/unix": "smtp", "relay/unix": "smtp", "showq/unix": "showq", "error/unix": "error", "retry/unix": "error",
		"discard/unix": "discard", "local/unix": "local", "virtual/unix": "virtual", "lmtp/unix": "lmtp",
		"anvil/unix": "anvil", "sendlimit/unix": "sendlimit", "suppress/unix": "suppressd", "comeback/unix": "comeback", "scache/unix": "scache", "postlog/unix-dgram": "postlogd",
	}
	for name, command := range want {
		if have[name] != command {
			t.Errorf("master.cf has %q for %s, want %q", have[name], name, command)
		}
	}
	if len(have) != len(want) {
		t.Errorf("master.cf has %d services, want %d", len(have), len(want))
	}
}

// The commented submission services must load when enabled.
func TestMasterExamplesLoad(t *testing.T) {
	t.Parallel()
	dir := install(t)
	c, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	text := Master
	for _, start := range []string{"#submission ", "#submissions ", "#maildrop ", "#  -o ", "#  flags="} {
		text = strings.ReplaceAll(text, "\n"+start, "\n"+start[1:])
	}
	services, faulty := config.LoadMasterString(text, c)
	if len(faulty) > 0 {
		t.Fatal(faulty)
	}
	found := 0
	for _, s := range services {
		switch s.Name {
		case "submission", "submissions":
			found++
			with, err := c.With(s.Overrides()...)
			if err != nil {
				t.Fatal(err)
			}
			if !with.Bool("smtpd_sasl_auth_enable") || strings.Join(with.List("smtpd_recipient_restrictions"), " ") != "permit_sasl_authenticated reject" {
				t.Errorf("%s does not demand a login", s.Name)
			}
		case "maildrop":
			found++
		}
	}
	if found != 3 {
		t.Errorf("found %d of the 3 commented services", found)
	}
}
