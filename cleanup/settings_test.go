package cleanup

import (
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/table"
)

// TestSettingsRefused: what main.cf says and cannot be meant keeps cleanup from starting, and the error names it; of several all.
func TestSettingsRefused(t *testing.T) {
	t.Parallel()
	none := t.TempDir() + "/none"
	load := func(main string) error {
		t.Helper()
		cfg, err := config.LoadString(baseConfig + main)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewCore(cfg, plainRewriter{}, table.Options{})
		if err == nil {
			c.Close()
		}
		return err
	}
	all, names := "", []string{}
	for _, line := range []string{
		"srs_domain = a b",
		"sender_canonical_classes = nonsense",
		"recipient_canonical_classes = nonsense",
		"canonical_classes = nonsense",
		"masquerade_classes = nonsense",
		"tenant_header = To",
		"campaign_header = Subject",
		"tenant_header_clients = 192.0.2.1/24",
		"unsubscribe_secret_file = " + none,
	} {
		name, _, _ := strings.Cut(line, " ")
		main := line + "\n"
		if name == "unsubscribe_secret_file" {
			main += "unsubscribe_url = https://u.test/u/\n"
		}
		all, names = all+main, append(names, name)
		if err := load(main); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", line, err)
		}
	}
	err := load(all)
	if err == nil {
		t.Fatal("nothing is refused")
	}
	for _, name := range names {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named:\n%v", name, err)
		}
	}
}
