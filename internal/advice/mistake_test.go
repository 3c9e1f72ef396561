package advice

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
)

// stage is a configuration in a directory, and a machine around it.
type stage struct {
	dir  string
	free int64
}

func newStage(t *testing.T) *stage {
	s := &stage{dir: t.TempDir(), free: 1 << 40}
	if err := os.Chmod(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stage) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "DIR", s.dir)), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// mistakes are those of main.cf and master.cf, with DIR for the directory.
func (s *stage) mistakes(t *testing.T, main, master string) (list []Mistake) {
	t.Helper()
	s.write(t, "main.cf", main, 0o644)
	s.write(t, "master.cf", master, 0o644)
	cfg, err := config.Load(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	services, faulty, err := config.LoadMaster(s.dir, cfg)
	if err != nil || len(faulty) > 0 {
		t.Fatal(faulty, err)
	}
	for _, m := range Mistakes(cfg, services, System{
		User: func(name string) error {
			if strings.HasPrefix(name, "no") {
				return errors.New("there is no user " + name)
			}
			return nil
		},
		Now:  func() time.Time { return certificateDay },
		Free: func(string) (int64, error) { return s.free, nil },
		Own:  func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil },
	}) {
		m.File = strings.ReplaceAll(m.File, s.dir+"/", "")
		m.Text = strings.ReplaceAll(m.Text, s.dir, "DIR")
		list = append(list, m)
	}
	return list
}

const (
	mainStart = "compatibility_level = 3.6\nmyhostname = mail.example.org\nalias_maps =\n"
	masterCF  = "smtp inet n - n - - smtpd\nsmtp unix - - n - - smtp\nrelay unix - - n - - smtp\nlocal unix - n n - - local\nvirtual unix - n n - - virtual\nerror unix - - n - - error\n"
)

// TestMistakes: each mistake is found, with its place; "!" is one that stops mail.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		main, master string // after three and six lines that are in order
		want         string // "" for none; "!" before what stops mail; several on lines
	}{
		{"", "", ""},
		{"account_recipient_limit = 500/d, 50/h\n", "sendlimit unix - - n - 1 sendlimit\n", ""},
		{"account_recipient_limit = 500/d\n", "", "main.cf:4: account_recipient_limit: master.cf has no line of sendlimit, which counts"},
		{"account_recipient_limit = 500\n", "sendlimit unix - - n - 1 sendlimit\n", "!main.cf:4: account_recipient_limit: \"500\": a rate is"},
		{"account_recipient_limit_maps = inline:{ {ann=many} {joe=none} }\n", "sendlimit unix - - n - 1 sendlimit\n", "main.cf:4: account_recipient_limit_maps: ann: \"many\": a rate is"},
		{"suppress_list_maps = inline:{ {@x.test=news} }\n", "suppress unix - - n - 1 suppressd\n", ""},
		{"suppress_list_maps = inline:{ {@x.test=news} }\n", "", "main.cf:4: suppress_list_maps: master.cf has no line of suppress"},
		{"suppress_list_maps = inline:{ {@x.test=no list} {@y.test=dunno} }\n", "suppress unix - - n - 1 suppressd\n", "main.cf:4: suppress_list_maps: @x.test: \"no list\" is no name of a list"},
		{"return_path_domain = b.test\n", "", "main.cf:4: return_path_domain: suppress_list_maps and suppress_tenants are empty"},
		{"return_path_domain = b.test\nsuppress_list_maps = inline:{ {@x.test=news} }\n", "suppress unix - - n - 1 suppressd\n", "main.cf:4: return_path_domain: master.cf has no line of comeback"},
		{"suppress_tenants = shop\n", "", "main.cf:4: suppress_tenants: master.cf has no line of suppress"},
		{"suppress_tenants = shop\nunsubscribe_url = https://u.test/u/\nunsubscribe_secret_file = DIR/unsubscribe.secret\n", "suppress unix - - n - 1 suppressd\n443 inet n - n - 9 unsubscribe\n", "main.cf:5: unsubscribe_url: dkim_sign_maps is empty"},
		{"suppress_tenants = shop\ndkim_sign_maps = inline:{{u.test=s1:DIR/access}}\nunsubscribe_url = http://u.test/u/\nunsubscribe_secret_file = DIR/unsubscribe.secret\n", "suppress unix - - n - 1 suppressd\n443 inet n - n - 9 unsubscribe\n", "!main.cf:6: unsubscribe_url: no mail is taken: \"http://u.test/u/\": expected a URL"},
		{"suppress_tenants = shop\ndkim_sign_maps = inline:{{u.test=s1:DIR/access}}\nunsubscribe_url = https://u.test/u/\nunsubscribe_secret_file = DIR/no.secret\n", "suppress unix - - n - 1 suppressd\n443 inet n - n - 9 unsubscribe\n", "!main.cf:6: unsubscribe_url: no mail is taken: unsubscribe_secret_file: open DIR/no.secret: no such file"},
		{"unsubscribe_url = https://u.test/u/\nunsubscribe_secret_file = DIR/unsubscribe.secret\n", "", "main.cf:4: unsubscribe_url: master.cf has no line of unsubscribe\nmain.cf:4: unsubscribe_url: suppress_list_maps and suppress_tenants are empty\nmain.cf:4: unsubscribe_url: dkim_sign_maps is empty"},
		{"suppress_tenants = shop\ndkim_sign_maps = inline:{{u.test=s1:DIR/access}}\nunsubscribe_url = https://u.test/u/\nunsubscribe_secret_file = DIR/unsubscribe.secret\nunsubscribe_header = Subject\n", "suppress unix - - n - 1 suppressd\n443 inet n - n - 9 unsubscribe\n", "!main.cf:8: unsubscribe_header: no mail is taken: \"Subject\": expected the name of a header field without a meaning of its own, such as X-Unsubscribe"},
		{"unsubscribe_header = Subject\n", "", ""}, // nobody asks for a link
		{"tenant_header = X-Tenant\ncampaign_header = list-id\n", "", "!main.cf:5: campaign_header: no mail is taken: \"list-id\": expected the name of a header field"},
		{"shaping_files = DIR/shaping.toml\n", "", "main.cf:4: shaping_files: DIR/shaping.toml:1: provider gmail has no match"},
		{"shaping_files = DIR/shaping.toml, DIR/none.toml\n", "", "!main.cf:4: shaping_files: DIR/none.toml: no such file or directory"},
		{"dmarc_report_enable = yes\n", "", "main.cf:4: dmarc_report_enable: there is nothing to report"},
		{"dmarc_report_enable = yes\nmail_authentication = check\n", "", ""},
		{"account_maps = inline:{ {ann=secret} }\n", "", ""},
		{"smtpd_sasl_type = accounts\naccount_maps = inline:{ {ann=secret} }\n", "", "main.cf:5: account_maps: ann: expected a password hash"},
		{"smtpd_delivery_wait = 5s\n", "", ""},
		{"smtpd_delivery_wait = 0\nevent_sinks = file:DIR/events\n", "events unix - - n - 1 events\n", ""},
		{"smtpd_delivery_wait = 5s\nevent_sinks = file:DIR/events\n", "events unix - - n - 1 events\n", "main.cf:4: smtpd_delivery_wait: it has no effect while event_sinks is set"},
		{"smtpd_delivery_wait = 5s\ncontent_filter = smtp:[127.0.0.1]:10025\n", "", "main.cf:4: smtpd_delivery_wait: it has no effect with content_filter"},
		{"smtpd_delivery_wait = 5s\ncontent_filter = smtp:[127.0.0.1]:10025\n", "10026 inet n - n - - smtpd -o content_filter=\n", ""},
		{"event_sinks = file:DIR/events\n", "events unix - - n - 1 events\n10026 inet n - n - - smtpd -o smtpd_delivery_wait=5s\n", "master.cf:8: service 10026/inet: -o smtpd_delivery_wait: it has no effect while event_sinks is set"},
		{"relayhost = [smtp.example.net:587\n", "", "!main.cf:4: relayhost: [smtp.example.net:587: a bracket is missing"},
		{"relayhost = smtp.example.net]:587\n", "", "!main.cf:4: relayhost: smtp.example.net]:587: a bracket is missing"},
		{"relayhost = [smtp.example.net]587\n", "", "!main.cf:4: relayhost: [smtp.example.net]587: there is something between"},
		{"relayhost = smtp.example.net:\n", "", "!main.cf:4: relayhost: smtp.example.net:: the port is missing"},
		{"relayhost = smtp.example.net:submision\n", "", "!main.cf:4: relayhost: smtp.example.net:submision: there is no port or service submision"},
		{"relayhost = []\n", "", "!main.cf:4: relayhost: []: there is no host"},
		{"relayhost = [2001:db8::1]:587, [ipv6:2001:db8::1], [192.0.2.9], example.net, example.net:smtp\n", "", ""},
		{"relayhost = [2001:db8:1]\n", "", "!main.cf:4: relayhost: [2001:db8:1]: it is no IPv6 address"},
		{"relayhost = $myhostname\n", "", "!main.cf:4: relayhost: mail.example.org is this machine"},
		{"relayhost = [127.0.0.1]\n", "", "!main.cf:4: relayhost: [127.0.0.1] is this machine"},
		{"relayhost = [127.0.0.1]:10025\n", "", ""},
		{"smtp_fallback_relay = [x\n", "", "!main.cf:4: smtp_fallback_relay: [x: a bracket"},
		{"sender_dependent_relayhost_maps = texthash:DIR/relays\n", "", "!relays:2: joe@example.com: [x: a bracket"},
		{"transport_maps = texthash:DIR/transport\n", "", "!transport:3: example.com: stmp:[x]: master.cf has no service stmp/unix, and the mail waits in the queue; did you mean smtp?\n!transport:5: example.edu: smtp:[x: a bracket"},
		{"transport_maps = inline:{{example.com=lmpt:unix:/x}}\n", "", "!main.cf:4: transport_maps: lmpt:unix:/x: master.cf has no service lmpt/unix"},
		{"transport_maps = pcre:DIR/patterns\n", "", "!patterns:3: /^b\\/ c/: none:x: master.cf has no service none/unix"},
		{"mailbox_transport = lmtp:unix:x\n", "", "!main.cf:4: mailbox_transport: lmtp:unix:x: master.cf has no service lmtp/unix"},
		{"header_checks = pcre:DIR/checks\n", "", "!checks:1: /^X-Spam/: scan:x: master.cf has no service scan/unix"},
		{"smtpd_client_restrictions = check_client_access texthash:DIR/access\n", "", "!access:2: 192.0.2.7: scan:[127.0.0.1]:10024: master.cf has no service scan/unix"},
		{"", "2525 inet n - n - - smtpd -o smtpd_client_restrictions=check_client_access,texthash:DIR/access\n", "!access:2: 192.0.2.7: scan:"},
		{"myorigin = $mydomian\n", "", "main.cf:4: myorigin: $mydomian is not set anywhere, and stands for nothing; did you mean $mydomain?\n!main.cf:4: myorigin: it is empty"},
		{"x = a\nmydestination = $myhostname $x\n", "", ""},
		{"", "2525 inet n - n - - smtpd -o smtpd_banner=$myhostnam\n", "master.cf:7: service 2525/inet: -o smtpd_banner: $myhostnam is not set anywhere"},
		{"myhostname = mail\n", "", "main.cf:4: myhostname: mail has no domain"},
		{"mynetworks = 127.0.0.0/8, 10.0.0.0/8, [::1]/128\n", "", ""},
		{"mynetworks = 0.0.0.0/0\n", "", "main.cf:4: mynetworks: 0.0.0.0/0 matches every address"},
		{"mynetworks = 127.0.0.0/8 [::]/0\n", "", "main.cf:4: mynetworks: [::]/0 matches every address"},
		{"mynetworks_style = class\ninet_interfaces = 127.0.0.1\n", "", "main.cf:4: mynetworks_style: class trusts"},
		{"inet_interfaces = 127.0.0.1, 192.0.2.1, 192.0.2.2\n", "", "!main.cf:4: inet_interfaces: this machine does not have the address 192.0.2.2"},
		{"virtual_alias_domains = $myhostname\n", "", "main.cf:4: virtual_alias_domains: mail.example.org is in mydestination and in virtual_alias_domains"},
		{"virtual_mailbox_domains = texthash:DIR/domains\n", "", "domains:2: mail.example.org: mail.example.org is in mydestination and in virtual_mailbox_domains"},
		{"relay_domains = $mydestination\nmydestination = hash:/x\n", "", ""},
		{"mydestination = localhost\n", "", "main.cf:4: mydestination: mail.example.org, which this machine's own mail is from (myorigin), is nowhere"},
		{"mydestination = localhost\nvirtual_mailbox_domains = mail.example.org\n", "", ""},
		{"mydestination =\nrelayhost = [smtp.example.net]\n", "", ""},
		{"virtual_alias_maps = mysql:DIR/incomplete.cf\n", "", "!main.cf:4: virtual_alias_maps: table mysql:DIR/incomplete.cf: DIR/incomplete.cf has no query"},
		{"virtual_alias_maps = proxy:mysql:DIR/complete.cf\n", "", ""},
		{"virtual_alias_maps = sqlite:DIR/complete.cf\n", "", "!main.cf:4: virtual_alias_maps: table sqlite:DIR/complete.cf: DIR/complete.cf has no dbpath"},
		{"virtual_alias_maps = ldap:DIR/complete.cf\n", "", "main.cf:4: virtual_alias_maps: table ldap:DIR/complete.cf: DIR/complete.cf has no search_base"},
		{"virtual_alias_maps = pgsql:accounts\naccounts_hosts = db\naccounts_dbname = m\n", "", "!main.cf:4: virtual_alias_maps: table pgsql:accounts: main.cf: accounts has no query"},
		{"dkim_sign_maps = inline:{{example.org=s1:DIR/no.key}}\n", "", "!main.cf:4: dkim_sign_maps: stat DIR/no.key: no such file"},
		{"dkim_sign_maps = inline:{{example.org=s1:DIR/access}}\n", "", ""},
		{"event_sinks = file:DIR/events.json\n", "", "main.cf:4: event_sinks: master.cf has no service events"},
		{"event_sinks = file:DIR/events.json\n", "events unix - - n 60 1 events\n", ""},
		{"event_sinks = fiel:DIR/events.json\n", "events unix - - n 60 1 events\n", "main.cf:4: event_sinks: \"fiel:DIR/events.json\": expected file:path"},
		{"event_sinks = { webhook:https://h.example.com/, secret_file=DIR/no.secret } file:DIR/no/x\n", "events unix - - n 60 1 events\n",
			"main.cf:4: event_sinks: stat DIR/no.secret: no such file\nmain.cf:4: event_sinks: stat DIR/no: no such file"},
		{"", "mlist unix - n n - - pipe user=nosuch argv=/bin/sh ${recipient}\n", "master.cf:7: service mlist/unix: user=nosuch: there is no user nosuch"},
		{"default_transport = mlist\n", "mlist unix - n n - - pipe user=list argv=DIR/access\n", "!master.cf:7: service mlist/unix: argv=DIR/access: it is not an executable program"},
		{"", "mlist unix - n n - - pipe user=list argv=/no/such ${recipient}\n", "master.cf:7: service mlist/unix: argv=/no/such: there is no such program"},
		{"", "uucp unix - n n - - pipe user=nouucp argv=/no/such\n", ""},
		{"transport_maps = inline:{example.com=uucp:}\n", "uucp unix - n n - - pipe user=nouucp argv=/bin/sh\n", "!master.cf:7: service uucp/unix: user=nouucp"},
		{"smtpd_recipient_restrictions = check_policy_service unix:private/policy, reject\n", "policy unix - n n - 0 spawn user=x argv=/no/such\n", "!master.cf:7: service policy/unix: argv=/no/such"},
		{"smtpd_recipient_restrictions = check_policy_service unix:private/policy2, reject\n", "policy unix - n n - 0 spawn user=x argv=/bin/sh\n", "main.cf:4: smtpd_recipient_restrictions: no process listens on DIR/spool/private/policy2"},
		{"queue_minfree = 20000000\n", "", "!main.cf:4: queue_minfree: the file system of DIR/spool has 10000000 bytes free, and mail is taken only while there are 20000000"},
		{"message_size_limit = 9000000\nspool_content_directory = DIR/content\nspool_segment_size = 1m\n", "", "!main.cf:4: message_size_limit: the file system of DIR/content has 10000000 bytes free, and large mail is taken only while there are 1.5 times 9000000"},
		{"message_size_limit = 9000000\n", "", "!main.cf:4: message_size_limit: the file system of DIR/spool has 10000000 bytes free, and mail is taken only while there are 1.5 times 9000000"},
		{"alias_maps = texthash:DIR/open\n", "", "main.cf:4: alias_maps: every user can write to DIR/open, and so change what the mail system does: chmod o-w DIR/open"},
		{"virtual_alias_maps = hash:DIR/newer\n", "", "main.cf:4: virtual_alias_maps: DIR/newer is newer than DIR/newer.phdb, which the services read; run: postmap hash:DIR/newer"},
	} {
		s := newStage(t)
		for name, text := range map[string]string{
			"shaping.toml": "[provider.gmail]\nidle_timeout = 5\n",
			"relays":       "# relays\njoe@example.com [x\nann@example.com DUNNO\nbob@example.com [y]:25\n",
			"transport": "# transports\nexample.org :\nexample.com\n stmp:[x]\nexample.edu smtp:[x\nexample.net smtp:[x]:24\n.example.net relay\n" +
				"example.info local:\nexample.biz error:no mail: really [no]\n",
			"patterns": "if /x/\n/^a/  smtp:[x]\n/^b\\/ c/i\tnone:x\n/^(c)/ $1:x\nendif\n",
			"checks":   "/^X-Spam/ FILTER scan:x\n/^Subject:/ WARN\n", "access": "192.0.2.6 OK\n192.0.2.7 FILTER scan:[127.0.0.1]:10024\n",
			"domains": "example.net x\nmail.example.org x\n@example.com x\n", "incomplete.cf": "hosts = x\ndbname = x\n",
			"complete.cf": "hosts = x\ndbname = x\nquery = SELECT 1\n", "newer": "x y\n", "newer.phdb": "", "closed": "",
		} {
			s.write(t, name, text, 0o644)
		}
		s.write(t, "open", "x: y\n", 0o646)
		s.write(t, "unsubscribe.secret", "sixteen octets and more\n", 0o600)
		if err := os.Chtimes(filepath.Join(s.dir, "newer.phdb"), time.Time{}, time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		main := mainStart
		if strings.Contains(c.main, "queue_minfree") || strings.Contains(c.main, "message_size_limit") {
			s.free = 10_000_000
			c.main += "spool_segment_size = 1m\n"
			if strings.Contains(c.main, "queue_minfree") {
				c.main += "message_size_limit = 1m\nmailbox_size_limit = 0\n"
			}
		}
		got := s.mistakes(t, main+c.main+"queue_directory = "+s.dir+"/spool\n", masterCF+c.master)
		wants := strings.Split(c.want, "\n")
		if c.want == "" {
			wants = nil
		}
		ok := len(got) == len(wants)
		for i := 0; ok && i < len(got); i++ {
			want, stops := strings.CutPrefix(wants[i], "!")
			ok = strings.HasPrefix(got[i].String(), want) && got[i].Stops == stops
		}
		if !ok {
			t.Errorf("%q, %q:\n%q, want\n%q", c.main, c.master, got, wants)
		}
	}
}

// TestMistakesOpenFiles: what runs as root is nobody else's to write.
func TestMistakesOpenFiles(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.mistakes(t, mainStart, masterCF)
	for _, name := range []string{"main.cf", "master.cf", "."} {
		path := filepath.Join(s.dir, name)
		before, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, before.Mode()|0o002); err != nil {
			t.Fatal(err)
		}
		got := s.mistakesAsIs(t)
		if len(got) != 1 || !strings.Contains(got[0].Text, "every user can write to "+filepath.Clean(path)) {
			t.Errorf("%s: %q", name, got)
		}
		if err := os.Chmod(path, before.Mode()); err != nil {
			t.Fatal(err)
		}
	}
}

// mistakesAsIs are those of the files as they are.
func (s *stage) mistakesAsIs(t *testing.T) []Mistake {
	t.Helper()
	cfg, err := config.Load(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	services, faulty, err := config.LoadMaster(s.dir, cfg)
	if err != nil || len(faulty) > 0 {
		t.Fatal(faulty, err)
	}
	return Mistakes(cfg, services, System{Free: func(string) (int64, error) { return 1 << 40, nil }})
}
