package sqltable

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/table"
	"posthaste/internal/testservers"
	"posthaste/internal/testwait"
)

// content is what both servers have.
const content = `CREATE TABLE alias (address varchar(200), goto varchar(200), extra varchar(200));
INSERT INTO alias VALUES ('user@example.com', 'mailbox@example.com', NULL);
INSERT INTO alias VALUES ('list@example.com', 'one@example.com', 'two@example.com'), ('list@example.com', 'three@example.com', '');
INSERT INTO alias VALUES ('o''brien@example.com', 'brien@example.com', NULL), ('back\slash@example.com', 'bs@example.com', NULL);
INSERT INTO alias VALUES ('grüße@bücher.example', 'empfänger@example.com', NULL);
INSERT INTO alias VALUES ('@example.org', 'all@example.com', NULL), ('example.net', '42', NULL);
`

// dialect is one kind of server.
type dialect struct {
	name  string
	start func(t *testing.T) *testservers.Server
	open  func(*config.Config) table.Opener
	sleep string // a query that takes long
	// backslash has the server read backslashes the other way by default.
	backslash string
	host      func(s *testservers.Server) string
	socket    func(s *testservers.Server) string
}

var dialects = []dialect{
	{
		name: "pgsql", start: func(t *testing.T) *testservers.Server { return testservers.PostgreSQL(t, content) }, open: PostgreSQL,
		backslash: "ALTER DATABASE mail SET standard_conforming_strings = off;",
		sleep:     "SELECT pg_sleep(100), '%s'", host: func(s *testservers.Server) string { return s.Addr },
		socket: func(s *testservers.Server) string {
			_, port, _ := net.SplitHostPort(s.Addr)
			return "unix:" + s.Socket + "/.s.PGSQL." + port
		},
	},
	{
		name: "mysql", start: func(t *testing.T) *testservers.Server {
			return testservers.MariaDB(t, strings.ReplaceAll(content, `\`, `\\`)+`
CREATE PROCEDURE find(IN k varchar(200) CHARACTER SET utf8mb4) SELECT goto FROM alias WHERE address = k;
CREATE PROCEDURE nothing() SET @a = 1;
`)
		}, open: MySQL,
		backslash: "SET GLOBAL sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES';",
		sleep:     "SELECT SLEEP(100), '%s'", host: func(s *testservers.Server) string { return "inet:" + s.Addr },
		socket: func(s *testservers.Server) string { return "unix:" + s.Socket },
	},
}

// opened opens a table with settings in a file; lines that say nothing of
// hosts, user, password, dbname and query get the usual ones.
func opened(t *testing.T, d *dialect, s *testservers.Server, settings string) table.Table {
	t.Helper()
	for _, line := range []string{"hosts = " + d.host(s), "user = mail", "password = secret", "dbname = mail",
		"query = SELECT goto, extra FROM alias WHERE address = '%s' ORDER BY goto"} {
		name, _, _ := strings.Cut(line, " ")
		if !strings.Contains("\n"+settings, "\n"+name+" =") {
			settings += "\n" + line
		}
	}
	path := filepath.Join(t.TempDir(), "table.cf")
	if err := os.WriteFile(path, []byte(settings+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tab, err := d.open(nil)(path, table.Options{Warn: func(text string) { t.Error(text) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tab.Close(); err != nil {
			t.Error(err)
		}
	})
	return tab
}

// ask is the answer, "none", or "error".
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

// One server of each kind for all that does not change it.
func TestServers(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			s := d.start(t)
			t.Run("lookups", func(t *testing.T) { testLookups(t, &d, s) })
			t.Run("many", func(t *testing.T) { testMany(t, &d, s) })
			if d.name == "mysql" {
				t.Run("procedures", func(t *testing.T) { testProcedures(t, &d, s) })
			} else {
				t.Run("URI", func(t *testing.T) { testURI(t, &d, s) })
			}
			t.Run("quoting", func(t *testing.T) { testQuoting(t, &d, s) })
			t.Run("away", func(t *testing.T) { testAway(t, &d, s) })
		})
	}
}

func testLookups(t *testing.T, d *dialect, s *testservers.Server) {
	for _, c := range []struct{ settings, key, want string }{
		{"", "user@example.com", "mailbox@example.com"},
		{"", "User@Example.COM", "mailbox@example.com"},
		{"", "list@example.com", "one@example.com,two@example.com,three@example.com"},
		{"", "nobody@example.com", "none"},
		{"", "grüße@bücher.example", "empfänger@example.com"},
		{"", "@example.org", "all@example.com"},
		{"", "example.net", "42"},
		{"", "", "none"},
		{"", "o'brien@example.com", "brien@example.com"},
		{"", `back\slash@example.com`, "bs@example.com"},
		{"", "x' OR '1'='1", "none"},
		{"", `x\' OR 1=1 -- `, "none"},
		{"", `\`, "none"},
		{"", `x'; DROP TABLE alias; -- `, "none"},
		{"", "a\x00b", "none"},
		{"", "\xff\xfe'", "none"},
		{"", "multi\nline\r\x1a\"", "none"},
		{"hosts = " + d.socket(s), "user@example.com", "mailbox@example.com"},
		{"query = SELECT goto FROM alias WHERE address = '%u@%2.%1'", "user@x.example.com", "mailbox@example.com"},
		{"query = SELECT goto FROM alias WHERE address = '%d'", "who@example.net", "42"},
		{"query = SELECT goto FROM alias WHERE address LIKE '%u%%' ORDER BY goto", "list@x", "one@example.com,three@example.com"},
		{"result_format = smtp:[%d]", "user@example.com", "smtp:[example.com]"},
		{"domain = example.com", "user@example.com", "mailbox@example.com"},
		{"domain = example.com", "@example.org", "none"},
		{"expansion_limit = 3", "list@example.com", "one@example.com,two@example.com,three@example.com"},
		{"expansion_limit = 2", "list@example.com", "error"},
		{"query =\nselect_field = goto\ntable = alias\nwhere_field = address\nadditional_conditions = AND 1 = 1", "user@example.com", "mailbox@example.com"},
		{"query = SELECT nonsense FROM nowhere WHERE '%s'", "user@example.com", "error"},
		{"query = INSERT INTO alias VALUES ('%s', '%s', '')", "new@example.com", "error"}, // the account has no right to
		{"password = wrong", "user@example.com", "error"},
		{"user = nobody", "user@example.com", "error"},
		{"dbname = absent", "user@example.com", "error"},
		{"timeout = 1\nquery = " + d.sleep, "user@example.com", "error"},
	} {
		if got := ask(t, opened(t, d, s, c.settings), c.key); got != c.want {
			t.Errorf("%s: %q: %q, expected %q", c.settings, c.key, got, c.want)
		}
	}
	// Nothing of what strangers asked for was carried out.
	if got := ask(t, opened(t, d, s, ""), "user@example.com"); got != "mailbox@example.com" {
		t.Errorf("afterwards %q", got)
	}
}

// A server that is restarted is not missed; one that is away is an error, at
// once, and found again when it is back; and another one takes its place.
func testAway(t *testing.T, d *dialect, s *testservers.Server) {
	tab := opened(t, d, s, "")
	two := opened(t, d, s, "hosts = 127.0.0.1:1 "+d.host(s))
	good := func(what string, tab table.Table) {
		t.Helper()
		if got := ask(t, tab, "user@example.com"); got != "mailbox@example.com" {
			t.Errorf("%s: %q", what, got)
		}
	}
	good("at first", tab)
	s.Stop()
	s.Start()
	good("after a restart", tab)
	for range 5 {
		good("one of two is away", two)
	}
	s.Stop()
	for range 20 {
		if got := ask(t, tab, "user@example.com"); got != "error" {
			t.Errorf("while away: %q", got)
		}
	}
	s.Start()
	for limit := time.Now().Add(testwait.Patience); ask(t, tab, "user@example.com") != "mailbox@example.com"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("it is not found again")
		}
	}
	s.Pause()
	hung := opened(t, d, s, "timeout = 1")
	got := ask(t, hung, "user@example.com")
	s.Resume()
	if got != "error" {
		t.Errorf("a server that hangs: %q", got)
	}
}

func testMany(t *testing.T, d *dialect, s *testservers.Server) {
	tab := opened(t, d, s, "max_connections = 3")
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			key, want := "user@example.com", "mailbox@example.com"
			if i%2 == 0 {
				key, want = fmt.Sprintf("u%d@example.com", i), "none"
			}
			if got := ask(t, tab, key); got != want {
				t.Errorf("%s: %q", key, got)
			}
		})
	}
	wg.Wait()
}

func testProcedures(t *testing.T, d *dialect, s *testservers.Server) {
	for _, c := range []struct{ settings, key, want string }{
		{"query = CALL find('%s')", "user@example.com", "mailbox@example.com"},
		{"query = CALL find('%s')", "nobody@example.com", "none"},
		{"query = CALL nothing()", "user@example.com", "error"},
		{"query = CALL nothing()\nrequire_result_set = no", "user@example.com", "none"},
	} {
		if got := ask(t, opened(t, d, s, c.settings), c.key); got != c.want {
			t.Errorf("%s: %q: %q, expected %q", c.settings, c.key, got, c.want)
		}
	}
}

// Keys are quoted rightly whatever the server's default for backslashes is.
func testQuoting(t *testing.T, d *dialect, s *testservers.Server) {
	s.Load(d.backslash)
	tab := opened(t, d, s, "")
	for key, want := range map[string]string{"o'brien@example.com": "brien@example.com", `back\slash@example.com`: "bs@example.com", `\' OR 1=1 -- `: "none"} {
		if got := ask(t, tab, key); got != want {
			t.Errorf("%q: %q", key, got)
		}
	}
}

func testURI(t *testing.T, d *dialect, s *testservers.Server) {
	for _, c := range []struct{ settings, want string }{
		{"user =\npassword =\ndbname =\nhosts = postgresql://mail:secret@" + s.Addr + "/mail?sslmode=disable", "mailbox@example.com"},
		{"hosts = postgres://" + s.Addr, "mailbox@example.com"},
		{"hosts = postgresql://" + s.Addr + "/mail?sslmode=require", "error"}, // it has no TLS
	} {
		if got := ask(t, opened(t, d, s, c.settings), "user@example.com"); got != c.want {
			t.Errorf("%s: %q", c.settings, got)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key := testservers.Certificate(t)
	other, _ := testservers.Certificate(t)
	d := &dialects[1]
	s := testservers.MariaDB(t, content, "--ssl-cert="+cert, "--ssl-key="+key, "--require-secure-transport=ON")
	for settings, want := range map[string]string{
		"":                     "error", // it wants TLS
		"tls_CAfile = " + cert: "mailbox@example.com",
		"tls_CAfile = " + cert + "\ntls_verify_cert = yes": "mailbox@example.com",
		"tls_CAfile = " + other:                            "error",
		"tls_verify_cert = yes":                            "error",
	} {
		if got := ask(t, opened(t, d, s, settings), "user@example.com"); got != want {
			t.Errorf("%s: %s", settings, got)
		}
	}
}
