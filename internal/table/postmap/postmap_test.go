package postmap

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
)

// dir is a configuration directory with the files given, name and content.
func dir(t *testing.T, files ...string) string {
	t.Helper()
	d := t.TempDir()
	write(t, filepath.Join(d, "main.cf"), "myhostname = mx.example.org\nalias_database = hash:"+d+"/aliases\n")
	for i := 0; i < len(files); i += 2 {
		write(t, filepath.Join(d, files[i]), files[i+1])
	}
	return d
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// in runs a command in d; % in an argument is d.
func in(d, stdin, cmd string, args ...string) (out, errs string, status int) {
	var o, e bytes.Buffer
	all := []string{"-c", d}
	if cmd == "newaliases" {
		all = append(all, args...)
		status = Newaliases(all, strings.NewReader(stdin), &o, &e)
		return o.String(), e.String(), status
	}
	for _, a := range args {
		all = append(all, strings.ReplaceAll(a, "%", d))
	}
	if cmd == "postmap" {
		status = Run("postmap", nil, all, strings.NewReader(stdin), &o, &e)
	} else {
		status = Postalias(all, strings.NewReader(stdin), &o, &e)
	}
	return o.String(), strings.ReplaceAll(e.String(), d, "%"), status
}

const mapSource = "a  b\nfoo: bar\nnovalue\nA dup\nK v\n\"x y\"@z w\n# c\n"

func TestBuildAndQuery(t *testing.T) {
	t.Parallel()
	d := dir(t, "t", mapSource)
	_, errs, status := in(d, "", "postmap", "hash:%/t")
	want := "postmap: warning: %/t, line 2: record is in \"key: value\" format; is this an alias file?\n" +
		"postmap: warning: %/t, line 3: expected: key, white space, value; line ignored\n" +
		"postmap: warning: %/t.phdb: duplicate entry: \"a\"\n"
	if status != 0 || errs != want {
		t.Errorf("%d %q", status, errs)
	}
	for _, tc := range []struct {
		stdin  string
		args   string
		out    string
		status int
	}{
		{"", "-q a hash:%/t", "b\n", 0},
		{"", "-q A %/t", "b\n", 0},
		{"", "-qK btree:%/t", "v\n", 0},
		{"", "-fq K hash:%/t", "", 1},
		{"", "-q zz hash:%/t", "", 1},
		{"", "-q zz hash:%/t inline:{zz=q}", "q\n", 0},
		{"a\nzz\nK\n", "-q - hash:%/t", "a\tb\nK\tv\n", 0},
		{"zz\n", "-q - hash:%/t", "", 1},
		{"", "-s hash:%/t", "a\tb\nfoo:\tbar\nk\tv\n\"x y\"@z\tw\n", 0},
		{"", "-sj hash:%/t", "{\"a\": \"b\"}\n{\"foo:\": \"bar\"}\n{\"k\": \"v\"}\n{\"\\\"x y\\\"@z\": \"w\"}\n", 0},
		{"", "-jq K hash:%/t", "{\"K\": \"v\"}\n", 0},
		{"", "-jq zz hash:%/t", "", 1},
		{"a\nzz\nK\n", "-j -q - hash:%/t", "{\"a\": \"b\"}\n{\"K\": \"v\"}\n", 0},
		{"Subject: <x>\n\nbody\n", "-hjq - regexp:{{/./<&>}}", "{\"Subject: <x>\": \"<&>\"}\n", 0},
		{"", "-j hash:%/t", "", 1},
		{"", "-j -d a hash:%/t", "", 1},
		{"", "-s texthash:%/t", "a\tb\nfoo:\tbar\nk\tv\n\"x y\"@z\tw\n", 0},
		{"", "-s inline:{b=1,a=2}", "b\t1\na\t2\n", 0},
		{"", "-s static:x", "", 1},
		{"", "-q a fail:x", "", 1},
		{"", "-q a hash:%/none", "", 1},
		{"", "hash:%/none", "", 1},
		{"", "regexp:%/t", "", 1},
		{"", "-Z hash:%/t", "", 1},
		{"", "-q", "", 1},
		{"", "-q a -d b hash:%/t", "", 1},
		{"", "-b -q a hash:%/t", "", 1},
		{"", "-m -q - hash:%/t", "", 1},
		{"", "", "", 1},
	} {
		out, errs, status := in(d, tc.stdin, "postmap", strings.Fields(tc.args)...)
		if out != tc.out || status != tc.status {
			t.Errorf("%s: %d %q %q", tc.args, status, out, errs)
		}
	}
}

func TestChange(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"hash:", "cdb:"} {
		d := dir(t, "t", "a 1\nb 2\n")
		for _, tc := range []struct{ stdin, args, out string }{
			{"", kind + "%/t", "a 1|b 2"},
			{"c 3\na 9\n", "-i " + kind + "%/t", "a 1|b 2|c 3"},
			{"a 9\n", "-ir " + kind + "%/t", "a 9|b 2|c 3"},
			{"", "-d B " + kind + "%/t", "a 9|c 3"},
			{"c\na\n", "-d - " + kind + "%/t", ""},
			{"new 1\n", "-i " + kind + "%/fresh", ""},
		} {
			if _, errs, status := in(d, tc.stdin, "postmap", strings.Fields(tc.args)...); status != 0 {
				t.Errorf("%s: %d %q", tc.args, status, errs)
			}
			out, _, _ := in(d, "", "postmap", "-s", kind+"%/t")
			if got := strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(out), "\n", "|"), "\t", " "); got != tc.out {
				t.Errorf("%s: %q", tc.args, got)
			}
		}
		if _, _, status := in(d, "", "postmap", "-d", "gone", kind+"%/t"); status != 1 {
			t.Errorf("deleting what is not there: %d", status)
		}
		if out, _, _ := in(d, "", "postmap", "-q", "new", kind+"%/fresh"); out != "1\n" {
			t.Errorf("a fresh table: %q", out)
		}
		// Nothing is left behind but the tables.
		left, err := filepath.Glob(filepath.Join(d, ".*"))
		if err != nil || len(left) != 0 {
			t.Errorf("left %q %v", left, err)
		}
	}
}

func TestNoWarnings(t *testing.T) {
	t.Parallel()
	d := dir(t, "t", "a 1\nA 2\n")
	for flag, want := range map[string]string{"-w": "1\n", "-r": "2\n", "-f": "1\n"} {
		_, errs, _ := in(d, "", "postmap", flag, "hash:%/t")
		if out, _, _ := in(d, "", "postmap", "-q", "a", "hash:%/t"); out != want || errs != "" {
			t.Errorf("%s: %q %q", flag, out, errs)
		}
	}
	in(d, "", "postmap", "-f", "hash:%/t")
	if out, _, _ := in(d, "", "postmap", "-fq", "A", "hash:%/t"); out != "2\n" {
		t.Errorf("-f: %q", out)
	}
}

func TestFilesValues(t *testing.T) {
	t.Parallel()
	d := dir(t, "one", "content 1\n", "two", "content 2\n")
	write(t, filepath.Join(d, "t"), "k "+d+"/one, "+d+"/two\nbad "+d+"/three\n")
	if _, errs, status := in(d, "", "postmap", "-F", "hash:%/t"); status != 0 || !strings.Contains(errs, "line 2") {
		t.Errorf("%d %q", status, errs)
	}
	if out, _, _ := in(d, "", "postmap", "-Fq", "k", "hash:%/t"); out != "content 1\ncontent 2\n" {
		t.Errorf("%q", out)
	}
	if out, _, _ := in(d, "", "postmap", "-q", "k", "hash:%/t"); out != "Y29udGVudCAxCmNvbnRlbnQgMgo=\n" {
		t.Errorf("%q", out)
	}
}

func TestUTF8(t *testing.T) {
	t.Parallel()
	d := dir(t, "t", "a \xff\n\u00dc v\n")
	if _, errs, _ := in(d, "", "postmap", "-U", "hash:%/t"); !strings.Contains(errs, "non-UTF-8") {
		t.Errorf("%q", errs)
	}
	if out, _, _ := in(d, "", "postmap", "-q", "\u00fc", "hash:%/t"); out != "v\n" {
		t.Errorf("%q", out)
	}
	if _, errs, _ := in(d, "", "postmap", "-u", "hash:%/t"); errs != "" {
		t.Errorf("%q", errs)
	}
}

func TestNullBytes(t *testing.T) {
	t.Parallel()
	d := dir(t, "t", "a 1\n")
	in(d, "", "postmap", "-N", "cdb:%/t")
	b, err := os.ReadFile(filepath.Join(d, "t.cdb"))
	if err != nil || !bytes.Contains(b, []byte("a\x001\x00")) {
		t.Errorf("%q %v", b, err)
	}
	if out, _, _ := in(d, "", "postmap", "-q", "a", "cdb:%/t"); out != "1\n" {
		t.Errorf("%q", out)
	}
	if out, _, _ := in(d, "", "postmap", "-s", "cdb:%/t"); out != "a\t1\n" {
		t.Errorf("%q", out)
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	d := dir(t, "t", "a 1\n")
	source := filepath.Join(d, "t")
	if err := os.Chmod(source, 0o640); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		flag string
		want os.FileMode
	}{{"-v", 0o640}, {"-p", 0o644}} {
		if err := os.Remove(source + ".phdb"); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		in(d, "", "postmap", tc.flag, "hash:%/t")
		fi, err := os.Stat(source + ".phdb")
		if err != nil || fi.Mode().Perm() != tc.want {
			t.Errorf("%s: %v %v", tc.flag, fi.Mode(), err)
		}
	}
}

const message = "Subject: a\n b\nContent-Type: multipart/mixed; boundary=x\n\npreamble\n--x\nContent-Type: text/plain\n\npart\n--x\nContent-Type: message/rfc822\n\nSubject: inner\n\ntext\n--x--\n"

func TestMessage(t *testing.T) {
	t.Parallel()
	d := dir(t)
	for args, want := range map[string]string{
		"-h -q - static:x":  "Subject: a\n b|Content-Type: multipart/mixed; boundary=x",
		"-hm -q - static:x": "Subject: a\n b|Content-Type: multipart/mixed; boundary=x|Content-Type: text/plain|Content-Type: message/rfc822|Subject: inner",
		"-bm -q - static:x": "preamble|--x|part|--x|text|--x--",
		"-b -q - static:x":  "preamble|--x|Content-Type: text/plain||part|--x|Content-Type: message/rfc822||Subject: inner||text|--x--",
	} {
		out, errs, status := in(d, message, "postmap", strings.Fields(args)...)
		got := strings.Join(strings.Split(strings.TrimSuffix(out, "\tx\n"), "\tx\n"), "|")
		if got != want || status != 0 {
			t.Errorf("%s: %d %q %q", args, status, got, errs)
		}
	}
}

const aliasSource = "# c\nroot: joe, \"|cmd: x\"\nFOO : a@b,\n  c\nfoo: dup\nbad line\n\"q: u\": x\nnoval:\njoe@x.test: b\n"

func TestAliases(t *testing.T) {
	t.Parallel()
	d := dir(t, "aliases", aliasSource)
	_, errs, status := in(d, "", "postalias", "hash:%/aliases")
	want := "postalias: warning: %/aliases.phdb: duplicate entry: \"foo\"\npostalias: warning: %/aliases, line 6: need name:value pair\n" +
		"postalias: warning: %/aliases, line 8: need name:value pair\n" +
		"postalias: warning: %/aliases, line 9: name must be local\n"
	if errs != want || status != 0 {
		t.Errorf("%d %q", status, errs)
	}
	for args, want := range map[string]string{"-q FOO hash:%/aliases": "a@b,  c\n", "-q root hash:%/aliases": "joe, \"|cmd: x\"\n", "-q @ hash:%/aliases": "@\n",
		"-s hash:%/aliases": "root:\tjoe, \"|cmd: x\"\nfoo:\ta@b,  c\nq: u:\tx\n@:\t@\n"} {
		if out, _, _ := in(d, "", "postalias", strings.Fields(args)...); out != want {
			t.Errorf("%s: %q", args, out)
		}
	}
	write(t, filepath.Join(d, "aliases"), "new: x\n")
	if _, errs, status := in(d, "", "newaliases"); status != 0 {
		t.Errorf("newaliases: %d %q", status, errs)
	}
	if out, _, _ := in(d, "", "postalias", "-q", "new", "hash:%/aliases"); out != "x\n" {
		t.Errorf("after newaliases: %q", out)
	}
	if _, _, status := in(d, "", "newaliases", "hash:x"); status != 1 {
		t.Error("newaliases took a table")
	}
}

// TestLikePostfix builds and lists the same sources with Postfix's commands.
func TestLikePostfix(t *testing.T) {
	t.Parallel()
	testpeers.Postfix(t, "postmap")
	types, err := exec.Command("/usr/sbin/postconf", "-c", dir(t), "-m").Output()
	if err != nil || !strings.Contains(string(types), "hash") {
		t.Skip("this Postfix has no hash: tables")
	}
	for cmd, source := range map[string]string{"postmap": mapSource, "postalias": "root: joe\nFOO : a@b\nx.y: z\n"} {
		d := dir(t, "t", source)
		if out, err := exec.Command("/usr/sbin/"+cmd, "-c", d, "hash:"+d+"/t").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		theirs, err := exec.Command("/usr/sbin/"+cmd, "-c", d, "-s", "hash:"+d+"/t").Output()
		if err != nil {
			t.Fatal(err)
		}
		in(d, "", cmd, "hash:%/t")
		ours, _, _ := in(d, "", cmd, "-s", "hash:%/t")
		if a, b := sorted(ours), sorted(string(theirs)); a != b {
			t.Errorf("%s:\nours\n%s\nPostfix\n%s", cmd, a, b)
		}
	}
}

func sorted(text string) string {
	var lines []string
	for _, l := range strings.Split(strings.TrimSpace(text), "\n") {
		if !strings.HasPrefix(l, "YP_") {
			lines = append(lines, l)
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// A table that only Postfix has built is asked, listed, added to and deleted from: what was
// in it stays, and its file is as it was.
func TestBuiltByPostfix(t *testing.T) {
	t.Parallel()
	original := testpeers.Program(t, "postmap")
	for _, kind := range []string{"hash", "btree", "lmdb"} {
		d := dir(t, "t", "a one\nb two\nc three\n")
		if out, err := exec.Command(original, "-c", d, kind+":"+d+"/t").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		theirs := map[string]string{"hash": "/t.db", "btree": "/t.db", "lmdb": "/t.lmdb"}[kind]
		before, err := os.ReadFile(d + theirs)
		if err != nil {
			t.Fatal(err)
		}
		list := func() string {
			t.Helper()
			out, errs, status := in(d, "", "postmap", "-s", kind+":%/t")
			if status != 0 || errs != "" {
				t.Errorf("%s: -s: %d %q", kind, status, errs)
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			sort.Strings(lines)
			return strings.ReplaceAll(strings.Join(lines, "|"), "\t", " ")
		}
		if out, errs, status := in(d, "", "postmap", "-q", "B", kind+":%/t"); out != "two\n" || errs != "" || status != 0 {
			t.Errorf("%s: -q: %q %q %d", kind, out, errs, status)
		}
		if got := list(); got != "a one|b two|c three" {
			t.Errorf("%s: -s: %s", kind, got)
		}
		if _, errs, status := in(d, "", "postmap", "-d", "b", kind+":%/t"); errs != "" || status != 0 {
			t.Errorf("%s: -d: %q %d", kind, errs, status)
		}
		if got := list(); got != "a one|c three" {
			t.Errorf("%s: after -d: %s", kind, got)
		}
		if err := os.Remove(d + "/t.phdb"); err != nil {
			t.Fatal(err)
		}
		if _, errs, status := in(d, "e five\n", "postmap", "-i", kind+":%/t"); errs != "" || status != 0 {
			t.Errorf("%s: -i: %q %d", kind, errs, status)
		}
		if got := list(); got != "a one|b two|c three|e five" {
			t.Errorf("%s: after -i: %s", kind, got)
		}
		if after, err := os.ReadFile(d + theirs); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: Postfix's file is changed, %v", kind, err)
		}
	}
	d := dir(t)
	if _, errs, status := in(d, "", "postmap", "-d", "b", "hash:%/t"); status != 1 || !strings.Contains(errs, "t.phdb: no such file") {
		t.Errorf("-d in a table that is not there: %q %d", errs, status)
	}
}
