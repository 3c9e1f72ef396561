package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/testpeers"
	"posthaste/internal/testservers"
)

// buildTables builds the program that has the clients of databases, beside the
// others: without the race detector, as its SQLite takes minutes to compile
// with it, and is not ours. What is ours of it is tested with it elsewhere.
var buildTables = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binDir, "posthaste-tables")
	out, err := exec.Command("go", "build", "-ldflags=-w", "-o", path, "posthaste/cmd/posthaste-tables").CombinedOutput()
	return string(out), err
})

// tablesProgram is its path.
func tablesProgram(t *testing.T) string {
	t.Helper()
	if out, err := buildTables(); err != nil {
		t.Fatalf("build posthaste-tables: %v\n%s", err, out)
	}
	return filepath.Join(binDir, "posthaste-tables")
}

// settingsDir is a configuration directory with files in it, name and text; {dir}
// is the directory.
func settingsDir(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		text := strings.ReplaceAll(files[i+1], "{dir}", dir)
		if err := os.WriteFile(filepath.Join(dir, files[i]), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// postmap runs the command, which executes the tables program.
func postmap(t *testing.T, dir string, args ...string) (out string, status int) {
	t.Helper()
	tablesProgram(t)
	cmd := exec.Command(filepath.Join(binDir, "posthaste"), append([]string{"postmap", "-c", dir}, args...)...)
	b, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), dir, "{dir}"), cmd.ProcessState.ExitCode()
}

// sqlite fills a database with Debian's sqlite3.
func sqlite(t *testing.T, path, text string) {
	t.Helper()
	tool := testpeers.Program(t, "sqlite3")
	cmd := exec.Command(tool, "-bail", path)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

const aliases = `CREATE TABLE alias (address TEXT, goto TEXT, n INTEGER);
INSERT INTO alias VALUES ('user@example.com', 'one@example.com', NULL), ('user@example.com', 'two@example.com', NULL);
INSERT INTO alias VALUES ('o''brien@example.com', 'brien@example.com', 7), ('grüße@bücher.example', 'empfänger@example.com', NULL);
`

func TestSQLiteTables(t *testing.T) {
	t.Parallel()
	usual := "dbpath = {dir}/db\nquery = SELECT goto, n FROM alias WHERE address = '%s' ORDER BY goto\n"
	dir := settingsDir(t, "main.cf", "legacy_dbpath = $config_directory/db\nlegacy_table = alias\nlegacy_select_field = goto\nlegacy_where_field = address\n",
		"a.cf", usual, "limit.cf", usual+"expansion_limit = 1\n", "format.cf", usual+"result_format = <%u>\n",
		"wrong.cf", "dbpath = {dir}/db\nquery = SELECT x FROM nowhere WHERE '%s'\n", "write.cf", "dbpath = {dir}/db\nquery = DELETE FROM alias WHERE '%s' <> ''\n",
		"absent.cf", "dbpath = {dir}/absent\nquery = SELECT 1\n", "none.cf", "query = SELECT 1\n", "odd.cf", usual+"hosts = x\n")
	sqlite(t, filepath.Join(dir, "db"), aliases)
	for _, c := range []struct {
		table, key, want string
		status           int
	}{
		{"sqlite:{dir}/a.cf", "User@Example.com", "one@example.com,two@example.com\n", 0},
		{"proxy:sqlite:{dir}/a.cf", "user@example.com", "one@example.com,two@example.com\n", 0},
		{"unionmap:{sqlite:{dir}/a.cf,inline:{user@example.com=three}}", "user@example.com", "one@example.com,two@example.com,three\n", 0},
		{"sqlite:{dir}/a.cf", "o'brien@example.com", "brien@example.com,7\n", 0},
		{"sqlite:{dir}/a.cf", "grüße@bücher.example", "empfänger@example.com\n", 0},
		{"sqlite:{dir}/a.cf", "x' OR '1'='1", "", 1},
		{"sqlite:{dir}/a.cf", "'; DELETE FROM alias; --", "", 1},
		{"sqlite:legacy", "user@example.com", "one@example.com,two@example.com\n", 0},
		{"sqlite:{dir}/format.cf", "user@example.com", "<one>,<two>\n", 0},
		{"sqlite:{dir}/limit.cf", "user@example.com", "more results than expansion_limit", 1},
		{"sqlite:{dir}/wrong.cf", "user@example.com", "no such table: nowhere", 1},
		{"sqlite:{dir}/write.cf", "user@example.com", "readonly database", 1},
		{"sqlite:{dir}/absent.cf", "user@example.com", "no such file", 1},
		{"sqlite:{dir}/none.cf", "user@example.com", "dbpath: is required", 1},
		{"sqlite:{dir}/odd.cf", "user@example.com", "unknown setting hosts", 0},
		{"sqlite:unknown", "user@example.com", "begin with unknown_", 1},
		{"mysql:{dir}/a.cf", "user@example.com", "dbname: is required", 1},
	} {
		out, status := postmap(t, dir, "-q", c.key, strings.ReplaceAll(c.table, "{dir}", dir))
		if status != c.status || !strings.Contains(out, c.want) || c.want == "" && out != "" {
			t.Errorf("%s %s: status %d, %q, expected %q", c.table, c.key, status, out, c.want)
		}
	}
	if out, status := postmap(t, dir, "-q", "user@example.com", "sqlite:"+dir+"/a.cf"); status != 0 {
		t.Errorf("afterwards: %s", out)
	}
}

func TestTablesProgram(t *testing.T) {
	t.Parallel()
	program := tablesProgram(t)
	for _, args := range [][]string{nil, {"smtpd"}, {"proxymap"}} {
		out, err := exec.Command(program, args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "fatal: ") {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}

// Mail flows by a table in a database. While the database is away mail is
// deferred, and nothing is refused for good; when it is back mail flows again.
func TestDatabaseTables(t *testing.T) {
	t.Parallel()
	tablesProgram(t)
	db := testservers.MariaDB(t, `CREATE TABLE alias (address varchar(200), goto varchar(200));
INSERT INTO alias VALUES ('list@virtual.test', 'one@to.test'), ('list@virtual.test', 'two@to.test'), ('o\'brien@virtual.test', 'three@to.test');`)
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true, main: next.relayhost() + `
virtual_alias_domains = virtual.test
virtual_alias_maps = proxy:mysql:{dir}/etc/alias.cf
queue_run_delay = 1s
minimal_backoff_time = 1s
maximal_backoff_time = 1s
`})
	s.write("etc/alias.cf", "hosts = "+db.Addr+"\nuser = mail\npassword = secret\ndbname = mail\n"+
		"query = SELECT goto FROM alias WHERE address = '%s' ORDER BY goto\nretry_interval = 1\n")
	if err := os.Chmod(s.path("etc/alias.cf"), 0o600); err != nil { // root's only: it has a password
		t.Fatal(err)
	}
	s.start()
	s.mustSend("a@from.test", []string{"list@virtual.test", "o'brien@virtual.test"}, "Subject: x\n\nx\n")
	s.waitLogN(`status=sent`, 3)
	var to []string
	for _, m := range next.received() {
		to = append(to, m.to...)
	}
	if slices.Sort(to); strings.Join(to, " ") != "one@to.test three@to.test two@to.test" {
		t.Errorf("arrived for %q", to)
	}
	rcpt := func(addr, want string) {
		t.Helper()
		replies := s.dialogue(t, "", "EHLO client.test", "MAIL FROM:<a@from.test>", "RCPT TO:<"+addr+">", "QUIT")
		if got := replies[3]; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, expected %s", addr, got, want)
		}
	}
	rcpt("nobody@virtual.test", "550 5.1.1")
	db.Stop()
	rcpt("nobody@virtual.test", "451 4.3.0")
	rcpt("list@virtual.test", "451 4.3.0")
	s.waitLog(`postfix/smtpd\[\d+\]: .*mysql:.*lookup of .*connection refused`)
	db.Start()
	s.eventually("the database is found again", func() bool {
		replies := s.dialogue(t, "", "EHLO client.test", "MAIL FROM:<a@from.test>", "RCPT TO:<list@virtual.test>", "QUIT")
		return strings.HasPrefix(replies[3], "250")
	})
	s.mustSend("a@from.test", []string{"list@virtual.test"}, "Subject: x\n\nx\n")
	s.waitLogN(`status=sent`, 5)
}
