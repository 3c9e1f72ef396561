package smtp

import (
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/confine"
	"posthaste/internal/table"
	"posthaste/internal/tlspolicy"
)

// TestRootsOutOfSight has the system's CAs, the trust anchors and the CAs of
// main.cf go out of sight once the client is made, as they do inside chroot.
// Another process does it: the system's CAs are read once in a process.
func TestRootsOutOfSight(t *testing.T) {
	t.Parallel()
	const marker = "POSTHASTE_TEST_ROOTS"
	if os.Getenv(marker) == "" {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestRootsOutOfSight$", "-test.v")
		cmd.Env = append(os.Environ(), marker+"=1", "SSL_CERT_FILE="+filepath.Join(dir, "system.pem"), "SSL_CERT_DIR="+filepath.Join(dir, "none"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	system := os.Getenv("SSL_CERT_FILE")
	anchor := filepath.Join(filepath.Dir(system), "anchor.pem")
	for _, file := range []string{system, anchor} {
		if err := os.WriteFile(file, testCA().pem, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.LoadString("smtp_tls_trust_anchor_file = " + anchor + "\n")
	if err != nil {
		t.Fatal(err)
	}
	c, err := newTLSClient(cfg, false, table.Options{Warn: func(text string) { t.Error(text) }})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{system, anchor} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	good, err := x509.ParseCertificate(testCA().certs["good"].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*policy{
		"the system's":     {Policy: &tlspolicy.Policy{}, system: true},
		"a trust anchor's": {Policy: c.Default(tlspolicy.Secure)},
	} {
		pool, err := c.pool(p)
		if err == nil {
			err = tlspolicy.Trusted([]*x509.Certificate{good}, pool, 9, time.Now(), x509.ExtKeyUsageServerAuth)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := tlspolicy.Trusted([]*x509.Certificate{good}, c.roots, 9, time.Now(), x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("CAs are trusted that nobody has named")
	}
}

// TestFilesChange has the service replaced when a file changes that it has read,
// and not before it is used for a while.
func TestFilesChange(t *testing.T) {
	t.Parallel()
	cert, key := testCA().files(t, "other")
	for _, change := range []string{"", "ca", "cert", "key", "chain", "anchor"} {
		dir := t.TempDir()
		path := func(name string) string { return filepath.Join(dir, name) }
		for name, text := range map[string][]byte{"ca": testCA().pem, "cert": cert, "key": key, "chain": append(key, cert...), "anchor": testCA().pem} {
			if err := os.WriteFile(path(name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		text := "smtp_tls_CAfile = " + path("ca") + "\nsmtp_tls_trust_anchor_file = " + path("anchor") + "\n"
		if change == "chain" {
			text += "smtp_tls_chain_files = " + path("chain") + "\n"
		} else {
			text += "smtp_tls_cert_file = " + path("cert") + "\nsmtp_tls_key_file = " + path("key") + "\n"
		}
		cfg, err := config.LoadString(text)
		if err != nil {
			t.Fatal(err)
		}
		replaced := ""
		c, err := newTLSClient(cfg, false, table.Options{Warn: func(text string) { t.Error(text) },
			Confined: confine.New(func(path string) { replaced = filepath.Base(path) })})
		if err != nil {
			t.Fatal(err)
		}
		if change != "" {
			if err := os.Remove(path(change)); err != nil {
				t.Fatal(err)
			}
		}
		c.keepUp(time.Now())
		if replaced != "" {
			t.Errorf("%s: replaced at once", change)
		}
		c.keepUp(time.Now().Add(filesRecheck))
		if replaced != change {
			t.Errorf("replaced for %q, want %q", replaced, change)
		}
	}
}

// TestChainFiles has a key in one file and its chain in the next, and several
// of them.
func TestChainFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var names []string
	for _, name := range []string{"other", "domain"} {
		cert, key := testCA().files(t, name)
		for kind, text := range map[string][]byte{"key": key, "cert": cert} {
			if err := os.WriteFile(filepath.Join(dir, name+kind), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		names = append(names, filepath.Join(dir, name+"key"), filepath.Join(dir, name+"cert"))
	}
	cfg, err := config.LoadString("smtp_tls_chain_files = " + strings.Join(names, ", ") + "\n")
	if err != nil {
		t.Fatal(err)
	}
	c, err := newTLSClient(cfg, false, table.Options{Warn: func(text string) { t.Error(text) }})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.certs) != 2 || c.certs[0].Leaf.Subject.CommonName != "other" || c.certs[1].Leaf.Subject.CommonName != "domain" {
		t.Errorf("%d certificates", len(c.certs))
	}
}

// A certificate in a file of its own is sent with its CA, which
// smtp_tls_CAfile has.
func TestCompleteChain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := testCA().files(t, "other")
	for name, text := range map[string][]byte{"ca": testCA().pem, "cert": cert, "key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for conf, want := range map[string]int{"": 1, "smtp_tls_CAfile = " + dir + "/ca\n": 2} {
		cfg, err := config.LoadString("smtp_tls_cert_file = " + dir + "/cert\nsmtp_tls_key_file = " + dir + "/key\n" + conf)
		if err != nil {
			t.Fatal(err)
		}
		c, err := newTLSClient(cfg, false, table.Options{Warn: func(text string) { t.Error(text) }})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(c.certs[0].Certificate); got != want {
			t.Errorf("%q: %d certificates, want %d", conf, got, want)
		}
	}
}
