package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/smtp"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/testcert"
	"posthaste/internal/testusers"
)

// chrootMaster confines what Debian's Postfix confines.
const chrootMaster = `127.0.0.1:{port} inet n - y - - smtpd
pickup unix n - y 60 1 pickup
cleanup unix n - y - 0 cleanup
rewrite unix - - y - - trivial-rewrite
bounce unix - - y - 0 bounce
smtp unix - - y - - smtp
error unix - - y - - error
retry unix - - y - - error
`

// Tables and keys that only root can read, or that are outside chroot, serve
// processes that have given up both; and a table that changes is used.
func TestConfined(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: without root's privileges there is nothing to give up")
	}
	for name, master := range map[string]string{"chroot": chrootMaster, "unprivileged": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			confined(t, master)
		})
	}
}

func confined(t *testing.T, master string) {
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true})
	if err := os.Mkdir(s.path("secret"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.writeKeyPair("secret/key.pem")
	s.write("secret/virtual", "alias@to.test first@to.test\n")
	s.write("secret/access", "bad.test REJECT not you\n")
	s.write("secret/headers", "/^X-Secret:/ IGNORE\n")
	s.write("secret/generic", "a@from.test generic@from.test\n")
	s.configure(next.relayhost()+`smtpd_tls_security_level = may
smtpd_tls_chain_files = {dir}/secret/key.pem
virtual_alias_domains =
virtual_alias_maps = hash:{dir}/secret/virtual
smtpd_sender_restrictions = check_sender_access texthash:{dir}/secret/access
header_checks = regexp:{dir}/secret/headers
smtp_generic_maps = texthash:{dir}/secret/generic
`, master)
	if out, status := s.tool(nil, "postmap", "hash:"+s.path("secret/virtual")); status != 0 {
		t.Fatalf("postmap: %s", out)
	}
	s.start()
	sendTLS := func(from, to string) error {
		c, err := smtp.Dial(s.addr())
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.StartTLS(&tls.Config{InsecureSkipVerify: true}); err != nil {
			return err
		}
		return transaction(c, from, []string{to}, "X-Secret: 1\nSubject: confined\n\nbody\n")
	}
	if err := sendTLS("a@from.test", "alias@to.test"); err != nil {
		t.Fatal(err)
	}
	s.eventually("the message arrives", func() bool { return len(next.received()) > 0 })
	if got := next.received()[0]; got.from != "generic@from.test" || got.to[0] != "first@to.test" || strings.Contains(got.data, "X-Secret") {
		t.Errorf("a table was not used: %+v", got)
	}
	if err := sendTLS("a@bad.test", "alias@to.test"); err == nil || !strings.Contains(err.Error(), "not you") {
		t.Errorf("sender refused with %v", err)
	}

	s.write("secret/virtual", "alias@to.test second@to.test\n")
	if out, status := s.tool(nil, "postmap", "hash:"+s.path("secret/virtual")); status != 0 {
		t.Fatalf("postmap: %s", out)
	}
	s.write("secret/access", "bad.test OK\nworse.test REJECT nor you\n")
	s.writeKeyPair("secret/key.pem")
	s.eventually("the new tables are used", func() bool {
		if err := sendTLS("a@from.test", "alias@to.test"); err != nil {
			t.Fatalf("refused while tables change: %v", err)
		}
		got := next.received()
		err := sendTLS("a@worse.test", "alias@to.test")
		return got[len(got)-1].to[0] == "second@to.test" && err != nil && strings.Contains(err.Error(), "nor you")
	})
	s.waitLog(`postfix/cleanup\[\d+\]: table \S+/secret/virtual\S* has changed -- restarting$`)
	s.waitLog(`postfix/smtpd\[\d+\]: table \S+/secret/\S+ has changed -- restarting$`)
}

// Debian's own master.cf, in which what can be inside chroot is, and the default
// local_recipient_maps, which name a file outside: users and aliases are known,
// nobody else is, and mail for them arrives.
func TestDebianMaster(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: chroot takes root's privileges")
	}
	need(t, "postfix")
	text, err := os.ReadFile("/usr/share/postfix/master.cf.dist")
	if err != nil {
		t.Fatal(err)
	}
	tablesProgram(t)
	s := newSystem(t, options{unstarted: true})
	const name = "phjailed"
	testusers.Home(t, s.dir, name)
	s.configure(`mydestination = local.test, mta.test
alias_maps = hash:{dir}/etc/aliases
local_recipient_maps = proxy:unix:passwd.byname $alias_maps
smtpd_recipient_restrictions = check_recipient_access inline:{{probe@local.test=reject_unverified_recipient}}, permit_mynetworks, reject
home_mailbox = Maildir/
`, "")
	s.write("etc/aliases", "alias: "+name+"\nprobe: "+name+"\n")
	if out, status := s.tool(nil, "postalias", "hash:"+s.path("etc/aliases")); status != 0 {
		t.Fatalf("postalias: %s", out)
	}
	listen := regexp.MustCompile(`(?m)^smtp(\s+inet)`)
	s.write("etc/master.cf", listen.ReplaceAllString(string(text), s.addr()+"$1"))
	s.start()
	s.mustSend("a@from.test", []string{name + "@local.test", "alias@local.test"}, "Subject: x\n\nx\n")
	s.waitLogN(`to=<`+name+`@(?:local|mta)\.test>,.*relay=local,.*status=sent \(delivered to maildir`, 2)
	replies := s.dialogue(t, "", "EHLO client.test", "MAIL FROM:<a@from.test>", "RCPT TO:<no-such-user@local.test>",
		"RCPT TO:<root@local.test>", "RCPT TO:<probe@local.test>", "QUIT")
	if !strings.HasPrefix(replies[3], "550 5.1.1") || !strings.HasPrefix(replies[4], "250") {
		t.Errorf("unknown user: %s; known one: %s", replies[3], replies[4])
	}
	if !strings.HasPrefix(replies[5], "250") {
		t.Errorf("an address that verify has to ask for: %s", replies[5])
	}
	for _, pid := range s.processes("smtpd", "verify", "cleanup", "trivial-rewrite") {
		root, err := os.Readlink(fmt.Sprintf("/proc/%d/root", pid))
		if err != nil || root != s.path("spool") {
			t.Errorf("process %d is not inside chroot: %s %v", pid, root, err)
		}
	}
	if warnings := regexp.MustCompile(`(?m)^.*postfix/[^m]\S*: (?:warning|fatal): .*$`).FindAllString(s.log(), -1); len(warnings) > 0 {
		t.Errorf("%q", warnings)
	}
}

// writeKeyPair writes a key and its certificate for mta.test, for the owner of
// the process alone, in place of what was there.
func (s *system) writeKeyPair(name string) {
	s.t.Helper()
	pair := testcert.Make(s.t, x509.Certificate{Subject: pkix.Name{CommonName: "mta.test"}, DNSNames: []string{"mta.test"}}, nil)
	text := append(pair.KeyPEM(), pair.CertPEM()...)
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		s.t.Fatal(err)
	}
}
