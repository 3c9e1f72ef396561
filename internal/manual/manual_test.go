package manual

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/testpeers"
)

// root is the directory of the module.
const root = "../.."

func generate(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := Files(root)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestFilesAreCurrent(t *testing.T) {
	t.Parallel()
	files := generate(t)
	for path, want := range files {
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the program says (%v): go run ./internal/manual/gen", path, err)
		}
	}
	old, err := filepath.Glob(filepath.Join(root, "docs", "man", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range old {
		if rel, err := filepath.Rel(root, path); err != nil || files[rel] == nil {
			t.Errorf("%s is no longer generated: go run ./internal/manual/gen", path)
		}
	}
}

func TestFilesAreTheSameTwice(t *testing.T) {
	t.Parallel()
	one, two := generate(t), generate(t)
	for path, text := range one {
		if !bytes.Equal(text, two[path]) {
			t.Errorf("%s differs from one time to the next", path)
		}
	}
}

func TestDroppedParagraphsExist(t *testing.T) {
	t.Parallel()
	for _, s := range servicePages() {
		doc, err := packageComment(filepath.Join(root, s.dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range s.stale(doc) {
			t.Errorf("%s: no paragraph of the package comment begins with %q", s.dir, d)
		}
	}
}

func TestPagesPassMandoc(t *testing.T) {
	t.Parallel()
	mandoc := testpeers.Program(t, "mandoc")
	dir := t.TempDir()
	args := []string{"-T", "lint", "-W", "warning"}
	for path, text := range generate(t) {
		if !strings.HasPrefix(path, "docs/man/") || bytes.HasPrefix(text, []byte(".so ")) {
			continue
		}
		file := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, file)
	}
	if out, err := exec.Command(mandoc, args...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("mandoc: %v\n%s", err, out)
	}
}

// Links lead to pages that exist, and so do references to our own pages.
func TestReferencesExist(t *testing.T) {
	t.Parallel()
	files := generate(t)
	elsewhere := []string{"group.5", "passwd.5", "strftime.3", "sysexits.3"}
	reference := regexp.MustCompile(`(?m)^\.Xr (\S+) (\d)`)
	link := regexp.MustCompile(`^\.so man\d/(\S+)\n$`)
	for path, text := range files {
		if m := link.FindSubmatch(text); m != nil && files[filepath.Join("docs/man", string(m[1]))] == nil {
			t.Errorf("%s leads to %s, which does not exist", path, m[1])
		}
		for _, m := range reference.FindAllStringSubmatch(string(text), -1) {
			page := m[1] + "." + m[2]
			if strings.HasPrefix(path, "docs/man/") && files[filepath.Join("docs/man", page)] == nil && !slices.Contains(elsewhere, page) {
				t.Errorf("%s refers to %s, which does not exist", path, page)
			}
		}
	}
}

// Every parameter that does something has its place in main.cf(5).
func TestMainPageHasEveryParameter(t *testing.T) {
	t.Parallel()
	page := string(generate(t)[manPath("main.cf", 5)])
	for _, p := range config.All() {
		n := strings.Count(page, "\n.It Va "+p.Name+" Pq ")
		if want := config.Supported(p.Name) && !isMember(&p); want != (n == 1) || n > 1 {
			t.Errorf("%s is there %d times", p.Name, n)
		}
	}
	for _, f := range config.Families() {
		if !strings.Contains(page, "\n.It Va TRANSPORT_"+f.Suffix+" Pq ") {
			t.Errorf("TRANSPORT_%s is missing", f.Suffix)
		}
	}
}

func TestParameterTableHasEveryParameter(t *testing.T) {
	t.Parallel()
	table := string(parameterTable())
	for _, p := range config.All() {
		if strings.Count(table, "\n| "+p.Name+" | `") < 1 {
			t.Errorf("%s is missing", p.Name)
		}
	}
}

// The options of a page are those that the command's source takes.
func TestOptionsAreThoseTaken(t *testing.T) {
	t.Parallel()
	getopt := regexp.MustCompile(`Getopt\(args, "([^"]*)"\)`)
	for _, c := range []struct {
		command, file string
		find          *regexp.Regexp
	}{
		{"postsuper", "internal/postsuper/postsuper.go", getopt},
		{"postqueue", "internal/postqueue/postqueue.go", getopt},
		{"postcat", "internal/postcat/postcat.go", getopt},
		{"postlock", "local/postlock/postlock.go", getopt},
		{"posttls-finger", "internal/posttlsfinger/options.go", getopt},
		{"qshape", "internal/qshape/qshape.go", getopt},
		{"postmap", "internal/table/postmap/build.go", regexp.MustCompile(`mapSyntax\) letters\(\)[^"]*"([^"]*)"`)},
		{"postalias", "internal/table/postmap/build.go", regexp.MustCompile(`aliasSyntax\) letters\(\)[^"]*"([^"]*)"`)},
		{"postconf", "internal/postconf/postconf.go", regexp.MustCompile(`(?:plain|value)Flags = "([^"]*)"`)},
		{"sendmail", "internal/sendmail/sendmail.go", regexp.MustCompile(`withValue = "([^"]*)"`)},
	} {
		taken := sourceLetters(t, filepath.Join(root, c.file), c.find)
		i := slices.IndexFunc(commands(), func(x command) bool { return x.name == c.command })
		var said []byte
		for _, o := range commands()[i].options {
			if c.command == "sendmail" && o.arg == "" {
				continue // its options without a value are in a switch
			}
			said = append(said, o.letter)
		}
		slices.Sort(said)
		if string(said) != taken {
			t.Errorf("%s: the page has -%s, the command takes -%s", c.command, said, taken)
		}
	}
}

// sourceLetters are the option letters that an expression finds in a source, sorted.
func sourceLetters(t *testing.T, name string, find *regexp.Regexp) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	found := find.FindAllStringSubmatch(string(text), -1)
	if len(found) == 0 {
		t.Fatalf("%s: nothing like %s", name, find)
	}
	var all []byte
	for _, m := range found {
		all = append(all, strings.ReplaceAll(m[1], ":", "")...)
	}
	slices.Sort(all)
	return string(slices.Compact(all))
}

func TestProse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"One. Two.", "One.\nTwo.\n"},
		{"See postmap(1), or -c.", "See\n.Xr postmap 1 ,\nor\n.Fl c .\n"},
		{"this page(8) is it", "this\n.Nm\nis it\n"},
		{".start and \\n", "\\&.start and \\en\n"},
		{"myhostname message_size_limit made_up_name", "myhostname\n.Va message_size_limit\nmade_up_name\n"},
		{"in /etc/posthaste.", "in\n.Pa /etc/posthaste .\n"},
		{strings.Repeat("word ", 20), strings.TrimSpace(strings.Repeat("word ", 15)) + "\n" + strings.TrimSpace(strings.Repeat("word ", 5)) + "\n"},
	} {
		p := &roff{name: "page"}
		p.prose(c.in)
		if p.String() != c.want {
			t.Errorf("%q: %q, expected %q", c.in, p.String(), c.want)
		}
	}
}

func TestSynopsis(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"[-v] -p | -j", ".Nm\n.Op Fl v\n.Fl p | Fl j\n"},
		{"-q key [type :]file ...", ".Nm\n.Fl q Ar key\n.Oo Ar type : Oc Ns Ar file Ar ...\n"},
		{"[-c dir] !spool ID", ".Nm\n.Op Fl c Ar dir\n.Cm spool Ar \\&ID\n"},
	} {
		p := &roff{name: "page"}
		p.synopsis(c.in)
		if p.String() != c.want {
			t.Errorf("%q: %q, expected %q", c.in, p.String(), c.want)
		}
	}
}

// lastOption is what Op may stand for: it reaches to the end of the line, so that whatever follows
// would be in its brackets.
var lastOption = regexp.MustCompile(`^((Ar|Cm) \S+( Ns = Ns Ar \S+)?( \.\.\.)?|Fl \S+( (Ns = Ns )?Ar \S+)?)$`)

// A term with several optional parts has each in brackets of its own.
func TestOptionalPartsAreNotNested(t *testing.T) {
	t.Parallel()
	found := 0
	for _, c := range commands() {
		words := map[string]bool{}
		for _, w := range c.words {
			if words[w.name] {
				t.Errorf("%s: %q is described twice", c.name, w.name)
			}
			words[w.name] = true
		}
		for _, s := range c.sections {
			for _, i := range s.items {
				if _, option, has := strings.Cut(i.tag, "Op "); has {
					found++
					if !lastOption.MatchString(option) {
						t.Errorf("%s, %s: %q: only the last part may be Op; put others between Oo and Oc", c.name, s.title, i.tag)
					}
				}
			}
		}
	}
	if found == 0 {
		t.Error("no term has an optional part")
	}
}
