package postconf

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
)

// scopes are configurations in which it matters whose value a name has: that of main.cf, of
// an entry of master.cf, or of a table's file. DIR is the directory of all of them.
var scopes = []struct {
	name, main, master, table string
	args                      []string
	out                       string // what is printed
	warnings                  string // sorted
}{
	{name: "an option of an entry before main.cf", main: "aaa = main\n", master: "foo unix - n n - 0 other -o always_bcc=$aaa -o aaa=own\n",
		args: []string{"-Mx"}, out: "foo        unix  -       n       n       -       0       other -o always_bcc=own -o aaa=own\n"},
	{name: "options written in one word", master: "foo unix - n n - 0 other -voaaa=b -vo ccc=$aaa -oddd=$ccc\n",
		args: []string{"-Px"}, out: "foo/unix/aaa = b\nfoo/unix/ccc = b\nfoo/unix/ddd = b\n", warnings: "postconf: warning: DIR/master.cf: unused parameter: ddd=$ccc\n"},
	{name: "what a service is", master: "smtp inet n - n - - smtpd -o syslog_name=$process_name/$service_name\n",
		args: []string{"-Px"}, out: "smtp/inet/syslog_name = smtpd/smtp\n"},
	{name: "what cannot be set", master: "foo unix - n n - 0 other -o process_name=a -o process_id=b -o service_name=c\n", args: []string{"-n"},
		warnings: "postconf: warning: DIR/master.cf: read-only parameter assignment: process_id=b\npostconf: warning: DIR/master.cf: read-only parameter assignment: process_name=a\npostconf: warning: DIR/master.cf: read-only parameter assignment: service_name=c\n"},
	{name: "a name that only an entry's own option hides", main: "bar = xx\nbaz = yy\n", master: "foo inet - n n - 0 spawn -o bar=yes -o always_bcc=$bar$baz\n",
		args: []string{"-n"}, out: "baz = yy\n", warnings: "postconf: warning: DIR/main.cf: unused parameter: bar=xx\n"},
	{name: "settings of tables that are asked", main: "xx = ldap:foo\nfoo_domain = bar\nheader_checks = ldap:hh\nhh_domain = c\nzz = $yy\nyy = aap\ndb = memcache\naap_domain = w\naap_hosts = w\n",
		master: "foo unix - n n - 0 other -o body_checks=$db:$zz\n", args: []string{"-n"},
		out:      "aap_domain = w\ndb = memcache\nheader_checks = ldap:hh\nhh_domain = c\nyy = aap\nzz = $yy\n",
		warnings: "postconf: warning: DIR/main.cf: unused parameter: aap_hosts=w\npostconf: warning: DIR/main.cf: unused parameter: foo_domain=bar\npostconf: warning: DIR/main.cf: unused parameter: xx=ldap:foo\n"},
	{name: "a file of a table", main: "dir = DIR\nalias_maps = ldap:$dir/table.cf, proxy:sqlite:$dir/table.cf\nother = pgsql:DIR/table.cf\n", table: "domain = a.test\nquery = b\nsearch_base = c\n", args: []string{"-n"},
		out:      "alias_maps = ldap:$dir/table.cf, proxy:sqlite:$dir/table.cf\ndir = DIR\n",
		warnings: "postconf: warning: DIR/main.cf: unused parameter: other=pgsql:DIR/table.cf\npostconf: warning: ldap:DIR/table.cf: unused parameter: query=b\npostconf: warning: sqlite:DIR/table.cf: unused parameter: search_base=c\n"},
	{name: "a file that is not there", master: "foo unix - n n - 0 other -o dir=DIR -o alias_maps=mysql:$dir/none.cf\n", args: []string{"-n"},
		warnings: "postconf: warning: open \"mysql\" configuration \"DIR/none.cf\": No such file or directory\n"},
	{name: "a wake-up time that is none", master: "foo unix - n n -? 0 other\n", args: []string{"-M"}, out: "foo        unix  -       n       n       -?      0       other\n"},
}

// layOutScope writes the files of the case of index i and returns their directory.
func layOutScope(t *testing.T, i int) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"main.cf": scopes[i].main, "master.cf": scopes[i].master, "table.cf": scopes[i].table} {
		writeFile(t, filepath.Join(dir, name), strings.ReplaceAll(text, "DIR", dir))
	}
	return dir
}

// withoutDir is what was printed, without the line about the directory.
func withoutDir(out, dir string) string {
	return strings.ReplaceAll(strings.ReplaceAll(out, dir, "DIR"), "config_directory = DIR\n", "")
}

func sortLines(text string) string {
	lines := slices.Sorted(strings.Lines(text))
	return strings.Join(lines, "")
}

func TestScopes(t *testing.T) {
	t.Parallel()
	for i, c := range scopes {
		dir := layOutScope(t, i)
		out, errs, status := run(append([]string{"-c", dir}, c.args...)...)
		out, errs = withoutDir(out, dir), sortLines(strings.ReplaceAll(errs, dir, "DIR"))
		if out != c.out || errs != c.warnings || status != 0 {
			t.Errorf("%s: status %d, prints\n%ssays\n%swant\n%s%s", c.name, status, out, errs, c.out, c.warnings)
		}
	}
}

// TestScopesOfPostfix: what TestScopes wants is what Postfix does.
func TestScopesOfPostfix(t *testing.T) {
	t.Parallel()
	postconf := testpeers.Postfix(t, "postconf")
	for i, c := range scopes {
		dir := layOutScope(t, i)
		cmd := exec.Command(postconf, append([]string{"-c", dir}, c.args...)...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		out := withoutDir(stdout.String(), dir)
		errs := sortLines(strings.NewReplacer(dir, "DIR", postconf, "postconf").Replace(stderr.String()))
		if out != c.out || errs != c.warnings {
			t.Errorf("%s: Postfix prints\n%ssays\n%swant\n%s%s", c.name, out, errs, c.out, c.warnings)
		}
	}
}
