package advice

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/table/tabletest"
)

// report writes main.cf and master.cf, in which {dir} is their directory, and
// returns what is said of them with {dir} for it.
func report(t *testing.T, dir, main, master string) []string {
	t.Helper()
	for name, text := range map[string]string{"main.cf": main, "master.cf": master} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "{dir}", dir)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	services, faulty, err := config.LoadMaster(dir, cfg)
	if err != nil || len(faulty) > 0 {
		t.Fatal(faulty, err)
	}
	var lines []string
	for _, l := range Report(cfg, services) {
		lines = append(lines, strings.ReplaceAll(l, dir, "{dir}"))
	}
	return lines
}

// settled sets everything whose default is not Postfix's, so that nothing is
// said of defaults.
func settled(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, d := range config.Differences() {
		if config.Supported(d.Name) && d.Name != "queue_directory" && d.Name != "alias_maps" {
			b.WriteString(d.Name + " = " + d.Postfix + "\n")
		}
	}
	return b.String()
}

func file(t *testing.T, path string, age time.Duration) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x y\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 0).Add(-age)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	base := settled(t)
	at := strings.Count(base, "\n") + 3 // the line after these and two more
	dir := t.TempDir()
	file(t, filepath.Join(dir, "unbuilt"), 0)
	file(t, filepath.Join(dir, "fresh"), time.Hour)
	file(t, filepath.Join(dir, "fresh.phdb"), 0)
	file(t, filepath.Join(dir, "stale"), 0)
	file(t, filepath.Join(dir, "stale.phdb"), time.Hour)
	hash := tabletest.Sample(t, "../table/dbfile/testdata/hash.db.gz") // which Postfix has built
	for name, content := range map[string][]byte{"theirs": nil, "theirs.db": hash, "both": nil, "both.phdb": nil, "both.db": hash, "sendmail": nil, "sendmail.db": make([]byte, 8192)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		age := time.Hour
		if strings.HasSuffix(name, ".db") {
			age = 0
		}
		when := time.Now().Add(-age)
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "q", "deferred"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, line string
		want       []string // without the file and line
	}{
		{"nothing", "relayhost = [mail.test]", nil},
		{"built", "virtual_alias_maps = hash:{dir}/fresh, regexp:{dir}/r", nil},
		{"not built", "virtual_alias_maps = proxy:hash:{dir}/unbuilt",
			[]string{"virtual_alias_maps: hash:{dir}/unbuilt is not built for Posthaste, which reads {dir}/unbuilt.phdb; run: postmap hash:{dir}/unbuilt"}},
		{"aliases", "alias_maps = lmdb:{dir}/unbuilt",
			[]string{"alias_maps: lmdb:{dir}/unbuilt is not built for Posthaste, which reads {dir}/unbuilt.phdb; run: postalias lmdb:{dir}/unbuilt"}},
		{"public format", "transport_maps = cdb:{dir}/unbuilt",
			[]string{"transport_maps: cdb:{dir}/unbuilt is not built for Posthaste, which reads {dir}/unbuilt.cdb; run: postmap cdb:{dir}/unbuilt"}},
		{"older than its source", "transport_maps = hash:{dir}/stale",
			[]string{"transport_maps: {dir}/stale is newer than {dir}/stale.phdb; run: postmap hash:{dir}/stale"}},
		{"built by Postfix", "transport_maps = hash:{dir}/theirs", nil},
		{"built by both", "transport_maps = hash:{dir}/both",
			[]string{"transport_maps: {dir}/both.db, which Postfix has built, is newer than {dir}/both.phdb, and is read; to read the other run: postmap hash:{dir}/both"}},
		{"built by something else", "alias_maps = hash:{dir}/sendmail",
			[]string{"alias_maps: table hash:{dir}/sendmail: {dir}/sendmail.db, which Postfix has built, cannot be read: " +
				"not a file that is read here: it is not a Berkeley DB hash or btree file (build the table with \"postmap hash:{dir}/sendmail\", or postalias for aliases); run: postalias hash:{dir}/sendmail"}},
		{"missing", "transport_maps = hash:{dir}/gone",
			[]string{"transport_maps: hash:{dir}/gone: neither {dir}/gone.phdb nor the text it is built from exists"}},
		{"within a restriction", "smtpd_sender_restrictions = check_sender_access hash:{dir}/unbuilt, permit",
			[]string{"smtpd_sender_restrictions: hash:{dir}/unbuilt is not built for Posthaste, which reads {dir}/unbuilt.phdb; run: postmap hash:{dir}/unbuilt"}},
		{"Postfix's queue", "queue_directory = {dir}/q",
			[]string{"queue_directory = {dir}/q: Postfix's queue is there, and is not looked at; stop Postfix and run: posthaste spool import {dir}/q"}},
	} {
		got := report(t, dir, base+"queue_directory = {dir}/empty\nalias_maps =\n"+c.line+"\n", "")
		var want []string
		for _, w := range c.want {
			want = append(want, "{dir}/main.cf:"+strconv.Itoa(at)+": "+w)
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s\nexpected\n%s", c.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestForeignTables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value string
		want  bool
	}{
		{"nis:mail.aliases", true}, {"proxy:nisplus:x", true}, {"hash:/x, nis:y", true},
		{"inline:{ldaps://x=y}", false}, {"static:nis", false},
	} {
		if got := strings.Join(unknown(c.value), "\n"); strings.Contains(got, "there are no tables of type nis") != c.want {
			t.Errorf("%s: %q", c.value, got)
		}
	}
}

func TestMasterAndDefaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file(t, filepath.Join(dir, "unbuilt"), 0)
	got := strings.Join(report(t, dir, "alias_maps =\nqueue_directory = {dir}/empty\n", "# services\nsmtp inet n - n - 1 smtpd\n -o transport_maps=hash:{dir}/unbuilt\ncleanup unix n - y - 0 cleanup\n"), "\n")
	for _, want := range []string{
		"{dir}/master.cf:2: service smtp/inet: -o transport_maps: hash:{dir}/unbuilt is not built for Posthaste, which reads {dir}/unbuilt.phdb; run: postmap hash:{dir}/unbuilt\n",
		"{dir}/master.cf:2: service smtp/inet: a process limit of 1 means one client at a time",
		"\nsmtpd_forbid_bare_newline is not set, and is normalize here; in Postfix 3.7 it is no: ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("nothing like %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "alias_maps") {
		t.Errorf("alias_maps is set:\n%s", got)
	}
}
