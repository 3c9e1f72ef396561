package advice

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/config"
)

func TestUnwise(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	const secret = "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"
	write("key.pem", secret, 0o644)
	write("closed.pem", secret, 0o640)
	write("passwd", "x y:z\n", 0o644)
	write("passwd.phdb", "", 0o644)
	write("my.cf", "password = x\n", 0o644)
	write("signed", "example.org s1:"+dir+"/lost.pem\nexample.net s1:"+dir+"/lost.pem\n", 0o644)
	const smtpd = "smtp inet n - n - - smtpd\n"
	const base = "compatibility_level = 3.6\nmyhostname = mail.example.org\n"
	for _, test := range []struct {
		main, master string
		want         []string
	}{
		{"", smtpd, nil},
		{"smtpd_tls_key_file = DIR/key.pem\n", smtpd, []string{"main.cf:3: smtpd_tls_key_file: every user can read DIR/key.pem, where there is a private key: chmod o-r DIR/key.pem"}},
		{"smtpd_tls_key_file = DIR/closed.pem\n", smtpd, nil},
		{"smtp_sasl_password_maps = hash:DIR/passwd\n", smtpd, []string{"main.cf:3: smtp_sasl_password_maps: every user can read DIR/passwd,", "every user can read DIR/passwd.phdb,"}},
		{"virtual_alias_maps = proxy:mysql:DIR/my.cf\n", smtpd, []string{"main.cf:3: virtual_alias_maps: every user can read DIR/my.cf, where there is a database's password"}},
		{"srs_domain = example.org\nsrs_secret_file = DIR/my.cf\n", smtpd, []string{"main.cf:4: srs_secret_file: every user can read DIR/my.cf, where there is a secret"}},
		{"srs_secret_file = DIR/my.cf\n", smtpd, nil},
		{"dkim_sign_maps = texthash:DIR/signed\nmail_owner = nobody\nmydestination = example.org, example.net\n", smtpd, []string{"main.cf:3: dkim_sign_maps: mail of example.org waits, as it cannot be signed: nobody, the user of the mail system, cannot read the key: open DIR/lost.pem"}},
		{"smtpd_sasl_auth_enable = yes\n", smtpd, []string{"master.cf:1: service smtp/inet: passwords are accepted without TLS"}},
		{"smtpd_sasl_auth_enable = yes\nsmtpd_tls_auth_only = yes\n", smtpd, nil},
		{"smtpd_sasl_auth_enable = yes\ninet_interfaces = loopback-only\n", smtpd, nil},
		{"", "587 inet n - n - - smtpd -o smtpd_sasl_auth_enable=yes -o smtpd_tls_security_level=encrypt\n", nil},
		{"", smtpd + "587 inet n - n - - smtpd -o smtpd_sasl_auth_enable=yes\n", []string{"master.cf:2: service 587/inet: passwords"}},
	} {
		write("main.cf", base+strings.ReplaceAll(test.main, "DIR", dir), 0o644)
		write("master.cf", test.master, 0o644)
		cfg, err := config.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		services, faulty, err := config.LoadMaster(dir, cfg)
		if err != nil || len(faulty) > 0 {
			t.Fatal(faulty, err)
		}
		got := Unwise(cfg, services)
		if !slices.EqualFunc(got, test.want, func(got, want string) bool {
			return strings.Contains(got, strings.ReplaceAll(want, "DIR", dir))
		}) {
			t.Errorf("%q, %q:\n%q, want\n%q", test.main, test.master, got, test.want)
		}
	}
}
