package setup

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthaste/etc"
	"posthaste/internal/advice"
	"posthaste/internal/config"
)

// tools are those of a machine with a full name and, where aliases is the name of a file, local
// aliases. Calls are noted in said.
func tools(aliases string, said *[]string, status int) Tools {
	note := func(what string) int { *said = append(*said, what); return 0 }
	return Tools{Main: etc.Main, Master: etc.Master, Aliases: aliases,
		Hostname: func() (string, error) { return "Mail.example.org", nil },
		Build:    func(dir, table string) int { return note("build " + table) },
		Check:    func(dir string) int { note("check"); return status },
		Running:  func(dir string) bool { return strings.HasSuffix(dir, "/running") }}
}

// Each case gives a configuration of which nobody has anything to say, and in which the
// settings that matter are what was asked for.
func TestCases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want map[string]string
	}{
		{"-d Example.org -d example.net site", map[string]string{"myhostname": "mail.example.org", "mydomain": "example.org", "myorigin": "example.org", "inet_interfaces": "all",
			"mydestination": "mail.example.org, localhost.example.org, localhost, example.org, example.net", "mynetworks_style": "host", "relayhost": "",
			"smtpd_tls_chain_files": "", "smtpd_tls_auth_only": "yes", "mail_authentication": "check"}},
		{"-d example.org -t /CHAIN -r [out.example.com]:587 -w 192.0.2.0/24,2001:db8::/32 site", map[string]string{"smtpd_tls_security_level": "may",
			"relayhost": "[out.example.com]:587", "mynetworks": "127.0.0.0/8, [::1]/128, 192.0.2.0/24, [2001:db8::]/32"}},
		{"--acme -d example.org --acme-agree site --acme-email ann@example.org", map[string]string{"tls_acme": "yes", "tls_acme_agree": "yes", "tls_acme_account": "ann@example.org",
			"smtpd_tls_security_level": "may", "smtpd_tls_chain_files": ""}},
		{"--acme --acme-agree -w 192.0.2.0/24 relay", map[string]string{"tls_acme": "yes", "tls_acme_account": ""}},
		{"-w 192.0.2.0/24 -w 198.51.100.0/24 -n out.example.net relay", map[string]string{"myhostname": "out.example.net", "mydomain": "example.net", "myorigin": "out.example.net",
			"mydestination": "out.example.net, localhost", "mynetworks": "127.0.0.0/8, [::1]/128, 192.0.2.0/24, 198.51.100.0/24",
			"smtpd_client_restrictions": "permit_mynetworks, reject"}},
		{"-r relay.example.org -d example.org null-client", map[string]string{"relayhost": "relay.example.org", "myorigin": "example.org", "mydestination": "",
			"inet_interfaces": "loopback-only", "local_transport": "error:5.1.1 there are no mailboxes on this host"}},
		{"-d example.net -d example.com backup-mx", map[string]string{"relay_domains": "example.net, example.com", "myorigin": "mail.example.org", "mydomain": "example.org",
			"mydestination": "mail.example.org, localhost", "maximal_queue_lifetime": "10d"}},
		{"-d news.example.org sender", map[string]string{"myorigin": "news.example.org", "inet_interfaces": "loopback-only", "mydestination": "mail.example.org, localhost"}},
		{"sender", map[string]string{"myorigin": "mail.example.org", "mydomain": "example.org"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			chain := filepath.Join(dir, "chain.pem")
			if err := os.WriteFile(chain, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"-c", filepath.Join(dir, "new")}, strings.Fields(strings.ReplaceAll(c.args, "/CHAIN", chain))...)
			var out, complaint bytes.Buffer
			var said []string
			if status := Run("posthaste setup", args, tools(filepath.Join(dir, "aliases"), &said, 0), &out, &complaint); status != 0 {
				t.Fatalf("status %d: %s", status, complaint.String())
			}
			if strings.Join(said, ", ") != "check" {
				t.Errorf("called: %v", said)
			}
			cfg, err := config.Load(filepath.Join(dir, "new"))
			if err != nil {
				t.Fatal(err)
			}
			services, faulty, err := config.LoadMaster(cfg.Dir(), cfg)
			if err != nil || len(faulty) > 0 || len(services) < 20 {
				t.Fatal(len(services), faulty, err)
			}
			system := advice.System{User: func(string) error { return nil }}
			for _, m := range advice.Mistakes(cfg, services, system) {
				t.Errorf("check says: %+v", m)
			}
			for _, line := range append(cfg.Warnings(), advice.Unwise(cfg, services)...) {
				t.Errorf("check -v says: %s", line)
			}
			for name, want := range c.want {
				if got, err := cfg.Value(name); err != nil || got != want {
					t.Errorf("%s = %q, not %q (%v)", name, got, want, err)
				}
			}
			acme := slices.ContainsFunc(services, func(s config.Service) bool { return s.Name == "80" && s.Command == "acme" })
			if want := strings.Contains(c.args, "--acme"); acme != want {
				t.Errorf("port 80 is open to the authority: %v", acme)
			}
			for name := range map[string]string{"main.cf": "", "master.cf": ""} {
				text, _ := os.ReadFile(filepath.Join(cfg.Dir(), name))
				for n, line := range strings.Split(string(text), "\n") {
					if len(line) > 100 && strings.HasPrefix(line, "# ") {
						t.Errorf("%s:%d has %d characters", name, n+1, len(line))
					}
				}
			}
			if strings.Contains(out.String(), "unwise") || !strings.Contains(out.String(), "\nposthaste check finds no error\nnext: posthaste ") {
				t.Errorf("said: %s", out.String())
			}
			// Once more, it is the same, and not in the way of itself.
			if status := Run("posthaste setup", args, tools("", &said, 0), &out, &complaint); status != 0 {
				t.Errorf("again: status %d: %s", status, complaint.String())
			}
		})
	}
}

// TestNext: what is said to come next depends on whether a mail system runs already, as it does after
// the installation of a package, and on the certificate, for which the records come first.
func TestNext(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-c /fresh -d example.org site":                            "posthaste start; then posthaste domain add --class local example.org",
		"-c /running -d example.org site":                          "posthaste reload; then posthaste domain add --class local example.org",
		"-c /running --acme --acme-agree -d example.org site":      "posthaste domain add --class local example.org; publish the records; then posthaste reload",
		"-c /fresh --acme --acme-agree -d example.org site":        "posthaste domain add --class local example.org; publish the records; then posthaste start",
		"-c /running -d example.org sender":                        "posthaste reload; then posthaste domain add --class none example.org",
		"-c /running -d example.org -r mx.example.net null-client": "posthaste reload",
		"-c /fresh sender":                                         "posthaste start",
	} {
		dir := t.TempDir()
		var out, complaint bytes.Buffer
		var said []string
		status := Run("posthaste setup", strings.Fields(strings.Replace(args, "-c ", "-c "+dir, 1)), tools("", &said, 0), &out, &complaint)
		if status != 0 || !strings.HasSuffix(out.String(), "finds no error\nnext: "+want+"\n") {
			t.Errorf("%s: status %d, %s%s, not: %s", args, status, out.String(), complaint.String(), want)
		}
	}
}

// Files that somebody has changed stay, and the other one with them. Those of the installation
// are replaced.
func TestOverwriting(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		main, master string
		status       int
	}{
		{"", "", 0}, {etc.Main, etc.Master, 0}, {etc.Main, "", 0},
		{etc.Main + "\n", etc.Master, 73}, {"relayhost = x\n", "", 73}, {etc.Main, "smtp inet n - n - - smtpd\n", 73},
	} {
		dir := t.TempDir()
		files := map[string]string{"main.cf": c.main, "master.cf": c.master}
		for name, text := range files {
			if text != "" {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		var out, complaint bytes.Buffer
		var said []string
		status := Run("posthaste setup", []string{"-c", dir, "-d", "example.org", "site"}, tools("", &said, 0), &out, &complaint)
		if status != c.status || (status != 0) != strings.Contains(complaint.String(), "has been changed since it was installed: nothing is written") {
			t.Errorf("status %d, not %d: %s", status, c.status, complaint.String())
		}
		for name, text := range files {
			now, _ := os.ReadFile(filepath.Join(dir, name))
			if changed := string(now) != text; changed == (status != 0) {
				t.Errorf("status %d, and %s: changed is %v", status, name, changed)
			}
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) > 2 {
			t.Errorf("%d files are left, %v", len(list), err)
		}
	}
}

// With --dry-run both files are shown, and nothing is there or called.
func TestDryRun(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	var out, complaint bytes.Buffer
	var said []string
	status := Run("posthaste setup", []string{"--dry-run", "-c", dir, "-d", "example.org", "site"}, tools("/dev/null", &said, 0), &out, &complaint)
	if status != 0 || !strings.Contains(out.String(), "==> "+dir+"/main.cf <==\n") || !strings.Contains(out.String(), "==> "+dir+"/master.cf <==\n") ||
		!strings.Contains(out.String(), "\nmydomain = example.org\n") || len(said) > 0 {
		t.Errorf("status %d, called %v: %s\n%s", status, said, complaint.String(), out.String())
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("there is a directory")
	}
}

// Aliases are built before the check, which would say that they are not; what it says
// decides.
func TestCheck(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]int{0: 0, 1: 78} {
		dir := t.TempDir()
		aliases := filepath.Join(dir, "aliases")
		if err := os.WriteFile(aliases, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		var out, complaint bytes.Buffer
		var said []string
		got := Run("posthaste setup", []string{"-c", dir, "sender"}, tools(aliases, &said, status), &out, &complaint)
		if got != want || strings.Join(said, ", ") != "build hash:"+aliases+", check" {
			t.Errorf("status %d, not %d; called %v", got, want, said)
		}
		if text, _ := os.ReadFile(filepath.Join(dir, "main.cf")); !bytes.Contains(text, []byte("\nalias_maps = hash:/etc/aliases\n")) {
			t.Errorf("%s", text)
		}
	}
}

// A key that everybody can read is named at once.
func TestUnwise(t *testing.T) {
	t.Parallel()
	chain := filepath.Join(t.TempDir(), "chain.pem")
	if err := os.WriteFile(chain, []byte("-----BEGIN PRIVATE KEY-----\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(chain, 0o644); err != nil { // whatever the umask
		t.Fatal(err)
	}
	var out, complaint bytes.Buffer
	args := []string{"-c", t.TempDir(), "-d", "example.org", "-t", chain, "site"}
	if status := Run("posthaste setup", args, tools("", new([]string), 0), &out, &complaint); status != 0 ||
		!strings.Contains(out.String(), "smtpd_tls_chain_files: every user can read "+chain) {
		t.Errorf("status %d: %s%s", status, out.String(), complaint.String())
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"", "usage: posthaste setup"},
		{"host", "usage: posthaste setup"},
		{"-x sender", "usage: posthaste setup"},
		{"site", "site needs a domain: -d"},
		{"relay", "relay needs the networks of its clients: -w"},
		{"null-client", "null-client needs a relay host: -r"},
		{"-w 192.0.2.0/24 -r x null-client", "-w is not for null-client"},
		{"-w 0.0.0.0/0 relay", "this would be an open relay"},
		{"-w 192.0.2.1/24 relay", "192.0.2.1/24: the network is 192.0.2.0/24"},
		{"-w host relay", "expected address/length"},
		{"-d x_y site", `"x_y" is not the name of a domain`},
		{"-d example site", `"example" is not the name of a domain`},
		{"-d a.test -d b.test sender", "sender has one domain"},
		{"-n host sender", `"host" is not a full name`},
		{"-t cert.pem -d a.test site", "expected the path of a file"},
		{"-r $x null-client", "expected [host]:port"},
		{"--acme -d a.test site", "read the terms of service of Let's Encrypt, https://letsencrypt.org/repository/, and accept them with --acme-agree"},
		{"--acme-agree -d a.test site", "--acme-agree and --acme-email are for --acme"},
		{"--acme --acme-agree sender", "--acme is not for sender"},
		{"--acme --acme-agree -t /x -d a.test site", "--acme and -t"},
		{"--acme --acme-agree --acme-email ann -d a.test site", `--acme-email "ann": expected user@domain`},
		{"--acme --acme-agree --acme-email=a$b@c.example -d a.test site", "expected user@domain"},
		{"--acme-email", "--acme-email: expected an address"},
		{"--acme=yes -d a.test site", "--acme has no value"},
	} {
		var out, complaint bytes.Buffer
		var said []string
		if status := Run("posthaste setup", strings.Fields(c.args), tools("", &said, 0), &out, &complaint); status != 64 || !strings.Contains(complaint.String(), c.want) {
			t.Errorf("%s: status %d, %s", c.args, status, complaint.String())
		}
	}
	none := tools("", new([]string), 0)
	none.Hostname = func() (string, error) { return "", errors.New("no name") }
	var complaint bytes.Buffer
	if status := Run("posthaste setup", []string{"sender"}, none, &complaint, &complaint); status != 69 || !strings.Contains(complaint.String(), "give it with -n") {
		t.Errorf("without a name: status %d, %s", status, complaint.String())
	}
}
