package ldaptable

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/table"
	"posthaste/internal/testservers"
	"posthaste/internal/testwait"
)

const content = `dn: ou=people,dc=example,dc=com
objectClass: organizationalUnit
ou: people

dn: cn=plain,ou=people,dc=example,dc=com
objectClass: inetOrgPerson
objectClass: mailthing
cn: plain
sn: p
mail: plain@example.com
maildrop: plain@host.example
maildrop: second@host.example

dn: cn=strange (*\5C),ou=people,dc=example,dc=com
objectClass: inetOrgPerson
objectClass: mailthing
cn: strange (*\)
sn: s
mail: a*(b)c\d@example.com
maildrop: strange@host.example

dn:: Y249R3LDvMOfZSxvdT1wZW9wbGUsZGM9ZXhhbXBsZSxkYz1jb20=
objectClass: inetOrgPerson
objectClass: mailthing
cn:: R3LDvMOfZQ==
sn: g
maillocal:: Z3LDvMOfZUBiw7xjaGVyLmV4YW1wbGU=
maildrop: gruesse@host.example

dn: cn=list,dc=example,dc=com
objectClass: groupOfNames
objectClass: mailthing
cn: list
maillocal: list@example.com
maildrop: archive@host.example
member: cn=plain,ou=people,dc=example,dc=com
member: cn=sub,dc=example,dc=com
member: cn=gone,dc=example,dc=com
mailurl: ldap:///ou=people,dc=example,dc=com?maildrop?sub?(cn=strange*)

dn: cn=sub,dc=example,dc=com
objectClass: groupOfNames
objectClass: mailthing
cn: sub
maillocal: sub@example.com
ou: owned@host.example
member: cn=plain,ou=people,dc=example,dc=com

dn: cn=circle,dc=example,dc=com
objectClass: groupOfNames
objectClass: mailthing
cn: circle
maillocal: circle@example.com
member: cn=circle,dc=example,dc=com
member: cn=plain,ou=people,dc=example,dc=com

dn: ou=example.net,dc=example,dc=com
objectClass: organizationalUnit
ou: example.net

dn: cn=domuser,ou=example.net,dc=example,dc=com
objectClass: inetOrgPerson
objectClass: mailthing
cn: domuser
sn: d
maildrop: domuser@host.example

`

// opened opens a table with settings in a file; the usual ones are added where
// they are missing.
func opened(t *testing.T, s *testservers.Server, settings string, warned *[]string) table.Table {
	t.Helper()
	for _, line := range []string{"server_host = ldap://" + s.Addr, "search_base = dc=example,dc=com", "bind_dn = cn=admin,dc=example,dc=com", "bind_pw = secret",
		"query_filter = (|(mail=%s)(maillocal=%s))"} {
		name, _, _ := strings.Cut(line, " ")
		if !strings.Contains("\n"+settings, "\n"+name+" =") {
			settings += "\n" + line
		}
	}
	path := filepath.Join(t.TempDir(), "table.cf")
	if err := os.WriteFile(path, []byte(settings+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	tab, err := Open(nil)(path, table.Options{Warn: func(text string) {
		mu.Lock()
		defer mu.Unlock()
		if warned == nil {
			t.Error(text)
			return
		}
		*warned = append(*warned, text)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tab.Close() })
	return tab
}

func ask(t *testing.T, tab table.Table, key string) string {
	t.Helper()
	value, found, err := tab.Lookup(context.Background(), key)
	switch {
	case err != nil:
		t.Logf("%s: %v", key, err)
		return "error"
	case !found:
		return "none"
	}
	return value
}

const group = "special_result_attribute = member\n"

func TestServer(t *testing.T) {
	t.Parallel()
	s := testservers.OpenLDAP(t, "sizelimit 3", content)
	t.Run("lookups", func(t *testing.T) { testLookups(t, s) })
	t.Run("groups", func(t *testing.T) { testGroups(t, s) })
	t.Run("many", func(t *testing.T) {
		tab := opened(t, s, "", nil)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if got := ask(t, tab, "plain@example.com"); got != "plain@host.example,second@host.example" {
					t.Error(got)
				}
			})
		}
		wg.Wait()
	})
	t.Run("away", func(t *testing.T) { testAway(t, s) })
}

func testLookups(t *testing.T, s *testservers.Server) {
	socket := "ldapi://" + strings.ReplaceAll(s.Socket, "/", "%2F")
	both := "plain@host.example,second@host.example"
	for _, c := range []struct{ settings, key, want string }{
		{"", "plain@example.com", both},
		{"", "Plain@Example.COM", both},
		{"", "nobody@example.com", "none"},
		{"", `a*(b)c\d@example.com`, "strange@host.example"},
		{"", "*", "none"},
		{"", "*)(cn=*", "none"},
		{"", "x)(|(cn=plain", "none"},
		{"", "grüße@bücher.example", "gruesse@host.example"},
		{"", "\xff", "none"},
		{"", "a\x00", "none"},
		{"server_host = " + socket, "plain@example.com", both},
		{"server_host = ldap://127.0.0.1:1 " + s.Addr, "plain@example.com", both},
		{"bind = sasl\nsasl_mechs = EXTERNAL\nserver_host = " + socket, "plain@example.com", both},
		{"bind = no", "plain@example.com", both},
		{"bind_dn =\nbind_pw =", "plain@example.com", both},
		{"bind_pw = wrong", "plain@example.com", "error"},
		{"start_tls = yes", "plain@example.com", "error"}, // it has none
		{"result_format = lmtp:[%d]", "plain@example.com", "lmtp:[host.example],lmtp:[host.example]"},
		{"result_attribute = mail, maildrop", "plain@example.com", "plain@example.com," + both},
		{"result_attribute = absent", "plain@example.com", "none"},
		{"domain = example.com", "plain@example.net", "none"},
		{"expansion_limit = 2", "plain@example.com", both},
		{"expansion_limit = 1\nsize_limit = 0", "plain@example.com", "error"},
		{"query_filter = (mail=*)\nsize_limit = 1", "plain@example.com", "error"},
		{"bind = no\nquery_filter = (objectClass=*)", "plain@example.com", "error"}, // over the server's limit
		{"query_filter = cn=%u", "plain@example.com", both},
		{"search_base = ou=%d,dc=example,dc=com\nquery_filter = cn=%u", "domuser@example.net", "domuser@host.example"},
		{"search_base = ou=%d,dc=example,dc=com\nquery_filter = cn=%u", "domuser@absent.net", "none"},
		{"search_base = ou=%d,dc=example,dc=com\nquery_filter = cn=%u", "domuser@people,dc=example", "none"},
		{"search_base = ou=%d,dc=example,dc=com\nquery_filter = cn=%u", "domuser", "none"},
		{"search_base = ou=absent,dc=example,dc=com", "plain@example.com", "error"},
		{"scope = one", "plain@example.com", "none"},
		{"scope = base\nsearch_base = cn=%u,ou=people,dc=example,dc=com\nquery_filter = objectClass=*", "plain@x", both},
	} {
		if got := ask(t, opened(t, s, c.settings, nil), c.key); got != c.want {
			t.Errorf("%s: %q: %q, expected %q", c.settings, c.key, got, c.want)
		}
	}
}

func testGroups(t *testing.T, s *testservers.Server) {
	var warned []string
	for _, c := range []struct{ settings, key, want string }{
		{group, "list@example.com", "archive@host.example,plain@host.example,second@host.example,plain@host.example,second@host.example"},
		{"special_result_attribute = member, mailurl\nresult_format = %u", "list@example.com", "archive,plain,second,plain,second,strange"},
		{group + "leaf_result_attribute = maildrop\nresult_attribute = absent", "list@example.com",
			"plain@host.example,second@host.example,plain@host.example,second@host.example"},
		{group + "terminal_result_attribute = ou", "sub@example.com", "owned@host.example"},
		{group + "terminal_result_attribute = ou\nresult_format = %u", "list@example.com", "archive,plain,second,owned"},
		{group + "expansion_limit = 4\nsize_limit = 0", "list@example.com", "error"},
		{group + "recursion_limit = 1", "list@example.com", "error"},
		{group + "recursion_limit = 20", "circle@example.com", "error"},
	} {
		if got := ask(t, opened(t, s, c.settings, &warned), c.key); got != c.want {
			t.Errorf("%s: %q: %q, expected %q", c.settings, c.key, got, c.want)
		}
	}
	if len(warned) == 0 || !strings.Contains(strings.Join(warned, "\n"), `"cn=gone,dc=example,dc=com" does not exist`) {
		t.Errorf("warned %q", warned)
	}
}

// A restart is not noticed; a server that is away is an error.
func testAway(t *testing.T, s *testservers.Server) {
	tab := opened(t, s, "timeout = 1", nil)
	good := "plain@host.example,second@host.example"
	if got := ask(t, tab, "plain@example.com"); got != good {
		t.Error(got)
	}
	s.Stop()
	s.Start()
	if got := ask(t, tab, "plain@example.com"); got != good {
		t.Errorf("after a restart: %s", got)
	}
	s.Pause()
	got := ask(t, tab, "plain@example.com")
	s.Resume()
	if got != "error" {
		t.Errorf("a server that hangs: %s", got)
	}
	s.Stop()
	for range 3 {
		if got := ask(t, tab, "plain@example.com"); got != "error" {
			t.Errorf("while away: %s", got)
		}
	}
	s.Start()
	for limit := time.Now().Add(testwait.Patience); ask(t, tab, "plain@example.com") != good; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("it is not found again")
		}
	}
}

// A directory that says that another one knows.
func TestReferrals(t *testing.T) {
	t.Parallel()
	knows := testservers.OpenLDAP(t, "", content)
	says := testservers.OpenLDAP(t, "referral ldap://"+knows.Addr, `dn: ou=people,dc=example,dc=com
objectClass: referral
objectClass: extensibleObject
ou: people
ref: ldap://`+knows.Addr+`/ou=people,dc=example,dc=com

`)
	if got := ask(t, opened(t, says, "chase_referrals = 1", nil), "plain@example.com"); got != "plain@host.example,second@host.example" {
		t.Errorf("a reference inside: %s", got)
	}
	if got := ask(t, opened(t, says, "chase_referrals = 1\nsearch_base = ou=people,dc=example,dc=com", nil), "plain@example.com"); got != "plain@host.example,second@host.example" {
		t.Errorf("the base is elsewhere: %s", got)
	}
	if got := ask(t, opened(t, says, "", nil), "plain@example.com"); got != "none" {
		t.Errorf("not to be chased: %s", got)
	}
	if got := ask(t, opened(t, says, "search_base = ou=people,dc=example,dc=com", nil), "plain@example.com"); got != "error" {
		t.Errorf("the base is elsewhere, and not to be asked: %s", got)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key := testservers.Certificate(t)
	other, _ := testservers.Certificate(t)
	s := testservers.OpenLDAP(t, "TLSCertificateFile "+cert+"\nTLSCertificateKeyFile "+key, content)
	const good = "plain@host.example,second@host.example"
	for settings, want := range map[string]string{
		"start_tls = yes": good,
		"start_tls = yes\ntls_require_cert = yes\ntls_ca_cert_file = " + cert:  good,
		"start_tls = yes\ntls_require_cert = yes\ntls_ca_cert_file = " + other: "error",
		"start_tls = yes\ntls_require_cert = yes":                              "error", // nobody's
		"server_host = ldaps://" + s.Addr:                                      "error", // the port is not for that
	} {
		if got := ask(t, opened(t, s, settings+"\ntimeout = 2", nil), "plain@example.com"); got != want {
			t.Errorf("%s: %s", settings, got)
		}
	}
}

func TestWrongSettings(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"scope = tree", "bind = maybe", "bind = sasl\nsasl_mechs = GSSAPI", "server_host = http://x", "query_filter = (a=%s",
		"query_filter = %x", "dereference = 4", "timeout = 0", "version = 1", "tls_cert = /nonexistent", "tls_ca_cert_file = /nonexistent"} {
		path := filepath.Join(t.TempDir(), "table.cf")
		if err := os.WriteFile(path, []byte("search_base = dc=x\n"+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if tab, err := Open(nil)(path, table.Options{}); err == nil {
			tab.Close()
			t.Errorf("%s is taken", text)
		}
	}
}

func TestServerURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"host": "ldap://host:1389", "host:390": "ldap://host:390", "ldap://h:1": "ldap://h:1", "ldaps://h": "ldaps://h",
		"ldap://h/dc=x": "ldap://h", "[2001:db8::1]": "ldap://[2001:db8::1]:1389", "ldapi://%2Frun%2Fx": "ldapi://%2Frun%2Fx", "ftp://x": "",
	} {
		if got, _ := serverURL(text, "1389"); got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}

func FuzzURL(f *testing.F) {
	f.Add("ldap://h/dc=x?a?sub?(b=c)")
	f.Add("ldap:///%")
	f.Fuzz(func(t *testing.T, text string) {
		at, err := parseURL(text)
		if err == nil && (at.filter == "" || at.filter[0] != '(') {
			t.Fatalf("%q: %+v", text, at)
		}
	})
}
