package master

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/service"
)

// TestMissing leaves lines out of master.cf that main.cf needs.
func TestMissing(t *testing.T) {
	t.Parallel()
	const lines = `cleanup unix n - n - 0 agent
qmgr unix n - n 300 1 agent
rewrite unix - - n - - agent
bounce unix - - n - 0 agent
smtp unix - - n - - agent
local unix - n n - - agent
proxymap unix - - n - - agent
`
	for _, test := range []struct{ main, without, add, want string }{
		{"", "", "", ""},
		{"", "cleanup", "", "has no service cleanup/unix (cleanup_service_name): no message can be taken in"},
		{"", "qmgr", "", "has no service qmgr/unix (queue_service_name): nothing is delivered"},
		{"", "rewrite", "", "has no service rewrite/unix"},
		{"", "bounce", "", "has no service bounce/unix"},
		{"", "smtp", "", "default_transport = smtp: master.cf has no service smtp/unix: the mail waits in the queue"},
		{"", "local", "", "local_transport = local:mail.example.org: master.cf has no service local/unix"},
		{"mydestination =\n", "local", "", ""},
		{"relay_domains = example.net\n", "", "", "relay_transport = relay: master.cf has no service relay/unix"},
		{"content_filter = scan:[127.0.0.1]:10024\n", "", "", "main.cf:4: content_filter = scan:[127.0.0.1]:10024: master.cf has no service scan/unix"},
		{"", "", "2525 inet n - n - - agent -o content_filter=scan:x\n", "master.cf:8: service 2525/inet: -o content_filter=scan:x: master.cf has no service scan/unix"},
		{"virtual_alias_maps = mysql:/etc/x.cf\n", "proxymap", "", "has no service proxymap/unix, which asks mysql:/etc/x.cf"},
		{"", "proxymap", "", ""},
		{"", "", "metrics unix - - n - - outside\n", "master.cf:8: service metrics/unix: program no-such-program: it is neither of "},
	} {
		dir := t.TempDir()
		master := test.add
		for line := range strings.Lines(lines) {
			if test.without == "" || !strings.HasPrefix(line, test.without) {
				master = master[:len(master)-len(test.add)] + line + test.add
			}
		}
		for name, text := range map[string]string{"main.cf": "compatibility_level = 3.6\nmyhostname = mail.example.org\nmydestination = $myhostname\n" + test.main, "master.cf": master} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cfg, err := config.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		services, faulty, err := config.LoadMaster(dir, cfg)
		if err != nil || len(faulty) > 0 {
			t.Fatal(faulty, err)
		}
		s := makeSettings(cfg, services, map[string]service.Spec{"agent": {Process: "agent"}, "outside": {Process: "outside", Program: "no-such-program"}})
		got := s.missing()
		if test.want == "" && len(got) != 0 || test.want != "" && (len(got) != 1 || !strings.Contains(got[0].String(), test.want)) {
			t.Errorf("%q without %q: %q, want %q", test.main, test.without, got, test.want)
		}
	}
}
