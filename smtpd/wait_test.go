package smtpd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/table"
)

// What smtpd_delivery_wait cannot be combined with is an error in the configuration, and nothing else is.
func TestDeliveryWaitSettings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"smtpd_delivery_wait = 5s", ""},
		{"spool_exact_doubt = yes", ""},
		{"smtpd_delivery_wait = 5s\nspool_exact_doubt = yes", "with spool_exact_doubt = yes every message must be stored before it is delivered"},
		{"smtpd_delivery_wait = 5s\nspool_type = postgresql", "with spool_type = postgresql every message must be stored before it is delivered"},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"main.cf": "compatibility_level = 3.6\nmyhostname = mail.test\n" + tt.text + "\n", "master.cf": ""} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cfg, err := config.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		s, err := readSettings(cfg, table.Options{})
		switch {
		case err == nil && tt.want != "", err != nil && (tt.want == "" || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v", tt.text, err)
		}
		if s != nil {
			s.close()
		}
	}
}
