package trace

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write what is printed into the files of testdata")

// TestMain has the time zone that testdata is of.
func TestMain(m *testing.M) {
	time.Local = time.UTC
	os.Exit(m.Run())
}

// now is when the tests look at the log: its lines have no year.
var now = time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)

// play runs the command on files of testdata.
func play(t *testing.T, stdin string, args ...string) (out, errs string, status int) {
	t.Helper()
	var o, e bytes.Buffer
	c := &command{now: now}
	c.Name, c.Stdin, c.Stdout, c.Stderr = "posthaste trace", strings.NewReader(stdin), &o, &e
	status = c.run(context.Background(), args)
	return o.String(), e.String(), status
}

// configured is a configuration whose data_directory is new.
func configured(t *testing.T, more string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	text := "data_directory = " + dir + "\nmaillog_file = " + filepath.Join(dir, "mail.log") + "\nmaillog_file_prefixes = " + dir + "\n" + more
	if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// blocks are those of an output, in another order.
func blocks(out string) string {
	list := strings.Split(out, "\n\n")
	slices.Sort(list)
	return strings.Join(list, "\n\n")
}

// The stories of testdata: what is printed for a command line, of every kind of line, with the index and without.
func TestStories(t *testing.T) {
	t.Parallel()
	log, err := os.ReadFile("testdata/mail.log")
	if err != nil {
		t.Fatal(err)
	}
	dir := configured(t, "")
	if err := os.WriteFile(filepath.Join(dir, "mail.log"), log, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"family":     {"zoe@d.test"},
		"member":     {"--id", "4cCCCC3z"},
		"deferred":   {"--reply", "mailbox FULL", "--to", "@c.test"},
		"refusals":   {"nobody@b.test"},
		"session":    {"192.0.2.66"},
		"network":    {"--client", "203.0.113.0/24"},
		"filter":     {"--lines", "4dDDDD4z"},
		"brought":    {"<4@e.test>"},
		"milter":     {"2001:DB8:0::9"},
		"expired":    {"4kKKKK1z"},
		"hostile":    {"evil.test"},
		"json":       {"-j", "--user", "ANN", "--since", "2026-11-24 10:00"},
		"jsonrefuse": {"--json", "--from", "evil@evil.test"},
		"span":       {"--since", "2026-11-24 13:00", "--until", "2026-11-24 14:00"},
		"text":       {"--text", "TLS13,veri", "--text", "T="},
		"null":       {"--from", "<>", "--to", "root@b.test"},
		"limit":      {"-n1", "bob@b.test"},
	} {
		for _, mode := range []string{"", "--no-index"} {
			args := append([]string{"-c", dir}, args...)
			if mode != "" {
				args = append(args, mode)
			}
			out, errs, status := play(t, "", args...)
			out = strings.ReplaceAll(out, dir, "DIR")
			file := filepath.Join("testdata", name+".out")
			if *update && mode == "" {
				if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if mode != "" { // what is complete first comes first
				out, want = blocks(out), []byte(blocks(string(want)))
			}
			if err != nil || out != string(want) || errs != "" || status != 0 {
				t.Errorf("%q: status %d, %s\n%s\nwant (%v)\n%s", args, status, errs, out, err, want)
			}
		}
	}
}

// Lines that name no time zone are of that of import_environment, whoever asks.
func TestZone(t *testing.T) {
	t.Parallel()
	for zone, at := range map[string]string{"Asia/Tokyo": "01:00", ":Asia/Tokyo": "01:00", "/usr/share/zoneinfo/Asia/Tokyo": "01:00", "": "10:00", "No/Where": "10:00"} {
		if _, err := os.Stat(zone); err != nil && strings.HasPrefix(zone, "/") {
			continue // the machine has no such files
		}
		dir := configured(t, "import_environment = LANG=C TZ="+zone+"\n")
		line := "Nov 24 10:00:00 mx postfix/qmgr[12]: 4aAAAA1z: removed\n"
		if err := os.WriteFile(filepath.Join(dir, "mail.log"), []byte(line), 0o644); err != nil {
			t.Fatal(err)
		}
		out, errs, status := play(t, "", "-c", dir, "-s", "2026-11-24 "+at, "-u", "2026-11-24 "+at+":01")
		if want := "    2026-11-24 " + at + ":00  qmgr: removed\n"; status != 0 || errs != "" || !strings.Contains(out, want) {
			t.Errorf("%s: status %d, %s\n%s", zone, status, errs, out)
		}
	}
}

// What the next hop says, and what clients put into lines, does not connect messages.
func TestStrangersWords(t *testing.T) {
	t.Parallel()
	dir := configured(t, "")
	for _, args := range [][]string{{"eve@e.test", "bob@b.test"}, {"--message-id", "<3@e.test>"}} {
		out, _, status := play(t, "", append([]string{"-c", dir, "--log", "testdata/mail.log"}, args...)...)
		if status != 0 || strings.Contains(out, "ann@a.test") || !strings.Contains(out, "filtered: 4eEEEE5z") {
			t.Errorf("%q: %d\n%s", args, status, out)
		}
	}
	if out, _, status := play(t, "", "-c", dir, "--log", "testdata/mail.log", "--from", "boss@a.test"); status != 66 {
		t.Errorf("status %d\n%s", status, out)
	}
}

// Mistakes have sysexits' statuses, and what is not found has one, too.
func TestStatuses(t *testing.T) {
	t.Parallel()
	dir := configured(t, "")
	for _, c := range []struct {
		args   string
		status int
		text   string
	}{
		{"", 64, "no pattern: give"}, {"--from", 64, "--from needs a value"}, {"-Z", 64, "unknown option -Z"}, {"--json=1 x", 64, "takes no value"},
		{"-s yesterday x", 64, "-s: "}, {"-n 0 x", 64, "-n: "}, {"--build x", 64, "--build"}, {"-f -s 1h x", 64, "--follow"}, {"-f --log a --log b x", 64, "one log"},
		{"-s 10:00 -u 09:00", 64, "nothing lies between"}, {"--reply=", 64, "empty"},
		{"x --log /nonexistent", 66, "no such file"}, {"-c /nonexistent x", 78, "main.cf"}, {"nobody@else.test --log testdata/mail.log", 66, ""},
		{"--log - zoe@d.test", 66, ""}, {"x", 66, "mail.log"},
	} {
		args := strings.Fields(c.args)
		if !strings.Contains(c.args, "-c ") {
			args = append([]string{"-c", dir}, args...)
		}
		out, errs, status := play(t, "", args...)
		if status != c.status || out != "" || !strings.Contains(errs, c.text) || (c.text == "") != (errs == "") {
			t.Errorf("%s: status %d, %q, %q", c.args, status, out, errs)
		}
	}
}

// Standard input is searched as it comes, and followed; the limit ends it.
func TestStandardInput(t *testing.T) {
	t.Parallel()
	log, err := os.ReadFile("testdata/mail.log")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/family.out")
	if err != nil {
		t.Fatal(err)
	}
	dir := configured(t, "")
	out, errs, status := play(t, string(log), "-c", dir, "--log", "-", "zoe@d.test")
	if out != string(want) || status != 0 {
		t.Errorf("%d %s\n%s", status, errs, out)
	}
	out, errs, status = play(t, string(log), "-c", dir, "--log", "-", "-f", "--id", "4cCCCC3z", "--from", "<>")
	// The report is known to be one when its sender is; what it came of is shown then, too.
	if lines := strings.Split(out, "\n"); status != 0 || errs != "" || !strings.HasPrefix(lines[0], "2026-11-24 10:00:01  4aAAAA1z  smtpd: client=mail.a.test[192.0.2.1]") || !strings.Contains(out, "10:20:03  4aAAAA1z  qmgr: removed") {
		t.Errorf("%d %s\n%s", status, errs, out)
	}
	out, _, _ = play(t, string(log), "-c", dir, "--log", "-", "-fj", "-n2", "192.0.2.66")
	if strings.Count(out, "\n") != 2 || !strings.Contains(out, `"text":"warning: unknown[192.0.2.66]: SASL LOGIN`) {
		t.Errorf("%s", out)
	}
}

// The index is made by command, within its limit, and says so.
func TestBuild(t *testing.T) {
	t.Parallel()
	dir := configured(t, "track_index_limit = 128k\n")
	line := "Nov 24 10:00:00 mx postfix/qmgr[12]: 4aAAAA1z: removed\n"
	if err := os.WriteFile(filepath.Join(dir, "mail.log"), []byte(strings.Repeat(line, 40000)), 0o644); err != nil {
		t.Fatal(err)
	}
	out, errs, status := play(t, "", "-c", dir, "--build")
	if status != 0 || errs != "" || !strings.Contains(out, "index of 2 MB of log, 2 MB of them new") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	if out, _, _ = play(t, "", "-c", dir, "--build"); !strings.Contains(out, "index of 2 MB of log, 0 MB of them new") {
		t.Error(out)
	}
	dir2 := configured(t, "track_index_limit = 1k\nmaillog_file = "+filepath.Join(dir, "mail.log")+"\nmaillog_file_prefixes = "+dir+"\n")
	if out, errs, status := play(t, "", "-c", dir2, "--build"); status != 0 || !strings.Contains(errs, "track_index_limit is too small") {
		t.Errorf("%d %q %q", status, out, errs)
	}
	dir3 := configured(t, "track_index_directory = /nonexistent/track\n")
	if _, errs, status := play(t, "", "-c", dir3, "--build", "--log", "testdata/mail.log"); status != 69 || !strings.Contains(errs, "/nonexistent") {
		t.Errorf("%d %q", status, errs)
	}
}
