package bounceclass

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{
		"":                         "",
		"no reply at all":          "no reply at all",
		"550":                      "550",
		"550 ":                     "550",
		"550 5.1.1 User unknown":   "550 5.1.1 User unknown",
		"550-5.1.1 first 550 last": "550 5.1.1 first last",
		"550-5.7.1 one 550-5.7.1 two 550 5.7.1 three": "550 5.7.1 one two three",
		"550-5.7.1 one 550 5.7.2 two":                 "550 5.7.1 one 5.7.2 two", // another one stays
		"421 try 450 later":                           "421 try 450 later",       // not a line of this reply
		"452 4.2.2 552 full":                          "452 4.2.2 552 full",
		"550 550 550 x":                               "550 550 x", // its text, and what may be a line
		"550 5.1.1000 x":                              "550 5.1.1000 x",
		"550 5.1 x":                                   "550 5.1 x",
		"650 5.1.1 x":                                 "650 5.1.1 x",
		"5501 x":                                      "5501 x",
	} {
		if got := Text(reply); got != want {
			t.Errorf("Text(%q) = %q, want %q", reply, got, want)
		}
	}
	if got := Local(false, "4.4.1", "connect to x"); got != "450 4.4.1 connect to x" {
		t.Error(got)
	}
	if got := Local(true, "", "gone"); got != "550 gone" {
		t.Error(got)
	}
}

// What servers answer, and what it means.
func TestBuiltin(t *testing.T) {
	t.Parallel()
	rules, err := Open([]string{Builtin})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/replies.txt")
	if err != nil {
		t.Fatal(err)
	}
	n, seen := 0, make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		class, reply, _ := strings.Cut(line, "\t")
		reply = strings.TrimSpace(reply)
		n++
		seen[class] = true
		if got := rules.Class(Text(reply)); got != class {
			rule, _ := rules.Match(Text(reply))
			t.Errorf("%s: %s, by %q, want %s", reply, got, rule.Pattern, class)
		}
	}
	for _, r := range rules.list {
		if !seen[r.Class] {
			t.Errorf("no reply of class %s among %d", r.Class, n)
			seen[r.Class] = true
		}
	}
}

// The first expression that matches decides, in the order of the files, also in JSON.
func TestOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]string{
		"a.toml": "# of our own\n[rules]\nZeta = ['^550 5\\.1\\.1', \"^551\"]\nAlpha = ['^550', \"^551\"]\nNone = []\n",
		"b.json": `{"rules": {"Second": ["^55[0-3]", "^4"], "First": ["^450", "^2"]}}`,
	}
	var names []string
	for _, name := range []string{"a.toml", "b.json"} {
		names = append(names, filepath.Join(dir, name))
		if err := os.WriteFile(names[len(names)-1], []byte(files[name]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rules, err := Open(names)
	if err != nil {
		t.Fatal(err)
	}
	if rules.Len() != 8 {
		t.Errorf("%d rules", rules.Len())
	}
	for text, want := range map[string]string{
		"550 5.1.1 x": "Zeta", "550 5.1.2 x": "Alpha", "551 x": "Zeta", "552 x": "Second", "450 x": "Second", "250 x": "First",
		"650 550": Uncategorized, "": Uncategorized,
		strings.Repeat("x", MaxText) + "550": Uncategorized,
	} {
		if got := rules.Class(text); got != want {
			t.Errorf("%.40q: %s, want %s", text, got, want)
		}
	}
	if rule, ok := rules.Match("552 x"); !ok || rule.File != names[1] || rule.Pattern != "^55[0-3]" {
		t.Errorf("%+v", rule)
	}
	var none *Rules
	if none.Class("550 x") != "" || none.Len() != 0 {
		t.Error("no rules, and yet a class")
	}
}

func TestBroken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, says string }{
		{"x.toml", "[rules\n", "line 2"},
		{"x.toml", "[other]\na = ['b']\n", "other is not understood"},
		{"x.toml", "[rules]\nA = ['x']\nB = []\nA = ['y']\n", "A"},
		{"x.toml", "", "there is no table rules"},
		{"x.toml", "[rules]\nA = ['(']\n", "A: error parsing regexp: missing closing )"},
		{"x.toml", "[rules]\nA = 'x'\n", "rules.A"},
		{"x.toml", "[rules]\nA = ['" + strings.Repeat("x", maxPattern+1) + "']\n", "longer than 4096"},
		{"x.toml", "[rules]\nA = [" + strings.Repeat("'x',", maxRules+1) + "]\n", "more than 20000"},
		{"x.toml", "[rules]\n" + manyClasses(), "more than 200 classes"},
		{"x.toml", "[rules]\n'' = ['x']\n", "no name for a class"},
		{"x.toml", "[rules]\n'a b' = ['x']\n", "no name for a class"},
		{"x.toml", "#" + strings.Repeat("x", maxFile), "more than"},
		{"x.json", "{", "EOF"},
		{"x.json", "[]", "where an object is expected"},
		{"x.json", "{}", "there is no table rules"},
		{"x.json", `{"rules": {"A": "x"}}`, "A: "},
		{"x.json", `{"rules": {}} x`, "follows"},
		{"x.json", `{"a": {}}`, "a is not understood"},
	} {
		name := filepath.Join(t.TempDir(), c.name)
		if err := os.WriteFile(name, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open([]string{Builtin, name}); err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%.40q: %v, expected %q", c.text, err, c.says)
		}
	}
	if _, err := Open([]string{"/nonexistent"}); err == nil || err.Error() != "/nonexistent: no such file or directory" {
		t.Error(err)
	}
}

func manyClasses() string {
	var b strings.Builder
	for i := range maxClasses + 1 {
		fmt.Fprintf(&b, "C%d = ['x']\n", i)
	}
	return b.String()
}

// Text changes nothing but codes, and what it has made it leaves alone where no line begins in it.
func FuzzText(f *testing.F) {
	f.Add("550-5.7.1 one 550-5.7.1 two 550 5.7.1 three")
	f.Add("421 4.7.0 4.7.0 x")
	f.Add("550 550-550 ")
	f.Fuzz(func(t *testing.T, reply string) {
		text := Text(reply)
		if len(text) > len(reply)+1 {
			t.Fatalf("%q has grown to %q", reply, text)
		}
		if code, _, ok := cutCode(strings.TrimSpace(reply)); ok && !strings.HasPrefix(text, code) {
			t.Fatalf("%q lost its code: %q", reply, text)
		}
	})
}

func BenchmarkBuiltin(b *testing.B) {
	rules, err := Open([]string{Builtin})
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string]string{
		"known":   "550 5.1.1 <joe@example.com>: Recipient address rejected: User unknown in local recipient table",
		"unknown": "554 5.0.0 " + strings.Repeat("nothing that anybody has ever heard of ", 5),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				rules.Class(text)
			}
		})
	}
}
