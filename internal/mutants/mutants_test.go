package mutants

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

const sample = `package p

func (t *T[K]) f(a, b int) (bool, error) {
	if a < b && b+1 >= a {
		t.g(a, b)
		t.n = a
	}
	for i := 0; i < a; i++ {
		_ = i
		continue
	}
	if err := t.g(a, a); err != nil {
		return false, err
	}
	panic("x")
}
`

// Each rule, on a small file.
func TestRules(t *testing.T) {
	t.Parallel()
	list, err := Find("p.go", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range list {
		got = append(got, fmt.Sprintf("%d %s\n%s", m.Line, m.Key(), m.Diff([]byte(sample))))
		if _, err := parser.ParseFile(token.NewFileSet(), "", m.Apply([]byte(sample)), 0); err != nil {
			t.Errorf("%s: %v", m.Key(), err)
		}
	}
	want := []string{
		"4 p.go negate in T.f: a < b && b+1 >= a\n- \tif a < b && b+1 >= a {\n+ \tif !(a < b && b+1 >= a) {\n",
		"4 p.go logic in T.f: a < b && b+1 >= a\n- \tif a < b && b+1 >= a {\n+ \tif a < b || b+1 >= a {\n",
		"4 p.go bound in T.f: a < b\n- \tif a < b && b+1 >= a {\n+ \tif a <= b && b+1 >= a {\n",
		"4 p.go bound in T.f: b+1 >= a\n- \tif a < b && b+1 >= a {\n+ \tif a < b && b+1 > a {\n",
		"4 p.go one in T.f: b+1\n- \tif a < b && b+1 >= a {\n+ \tif a < b && b >= a {\n",
		"5 p.go remove in T.f: t.g(a, b)\n- \t\tt.g(a, b)\n+ \t\t\n",
		"5 p.go swap in T.f: t.g(a, b)\n- \t\tt.g(a, b)\n+ \t\tt.g(b, a)\n",
		"6 p.go remove in T.f: t.n = a\n- \t\tt.n = a\n+ \t\t\n",
		"8 p.go bound in T.f: i < a\n- \tfor i := 0; i < a; i++ {\n+ \tfor i := 0; i <= a; i++ {\n",
		"8 p.go remove in T.f: i++\n- \tfor i := 0; i < a; i++ {\n+ \tfor i := 0; i < a;  {\n",
		"10 p.go jump in T.f: continue\n- \t\tcontinue\n+ \t\tbreak\n",
		"12 p.go negate in T.f: err != nil\n- \tif err := t.g(a, a); err != nil {\n+ \tif err := t.g(a, a); !(err != nil) {\n",
		"13 p.go error in T.f: return false, err\n- \t\treturn false, err\n+ \t\treturn false, nil\n",
		"13 p.go bool in T.f: false\n- \t\treturn false, err\n+ \t\treturn true, err\n",
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("mutant %d:\n%q\nwant %d:\n%q", i, got[min(i, len(got)):], len(want), want[min(i, len(want)):])
		}
	}
}

// What may be planted in the tree: every seed, and what the rules make of each package, under names of their own.
func TestTree(t *testing.T) {
	t.Parallel()
	seeds, err := Seeds(root)
	if err != nil {
		t.Fatal(err)
	}
	titles := make(map[string]bool)
	for _, m := range seeds {
		if titles[m.Name] {
			t.Errorf("two seeds are called %q", m.Name)
		}
		titles[m.Name] = true
	}
	for _, name := range Names() {
		list, err := Package(root, name)
		if err != nil {
			t.Fatal(err)
		}
		keys := make(map[string]bool)
		for _, m := range list {
			if keys[m.Key()] {
				t.Errorf("two are called %s", m.Key())
			}
			keys[m.Key()] = true
		}
	}
}

// The ratchet: each accepted fault is one that can be planted, and there are exactly as many as the first line says.
func TestAccepted(t *testing.T) {
	t.Parallel()
	entries, most, err := Accepted()
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != most {
		t.Errorf("%d faults are accepted, and the first line says %d: lower it when one has gone; it is not raised", len(entries), most)
	}
	if !slices.IsSortedFunc(entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) }) {
		t.Error("the accepted faults are not in order")
	}
	found := make(map[string]bool)
	seeds, err := Seeds(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range seeds {
		found[m.Key()] = true
	}
	for _, name := range Names() {
		list, err := Package(root, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			found[m.Key()] = true
		}
	}
	for _, e := range entries {
		if !found[e.Key] {
			t.Errorf("accepted, and not there any more: %s", e.Key)
		}
	}
	for _, bad := range []string{"a\treason\n", "at most x\n", "at most 1\na\n", "at most 1\na\t \n"} {
		if _, _, err := parseAccepted(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// What the go command says is understood.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	failed := errors.New("exit status 1")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		out  string
		want Verdict
	}{
		{t.Context(), nil, "ok  \tposthaste/qmgr\t1s\n", Survives},
		{t.Context(), failed, "--- FAIL: TestX\nFAIL\tposthaste/qmgr\t1s\n", Noticed},
		{t.Context(), failed, "# posthaste/qmgr\nx.go:1:2: y\nFAIL\tposthaste/qmgr [build failed]\n", Invalid},
		{t.Context(), failed, "panic: test timed out after 5m0s\nFAIL\tposthaste/qmgr\t300s\n", Endless},
		{t.Context(), failed, "FAIL\tposthaste/qmgr [setup failed]\n", ""},
		{t.Context(), failed, "go: no such tool\n", ""},
		{ended, failed, "", Stopped},
	} {
		got, _, err := new(Mutant).verdict(c.ctx, c.err, c.out)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%q: %s, %v, want %s", c.out, got, err, c.want)
		}
	}
}

// A small module shows that a fault is planted, that its tests see it, and that the tree stays as it is.
func TestTry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]string{
		"go.mod":      "module small\n\ngo 1.26\n",
		"p/p.go":      "package p\n\nfunc Less(a, b int) bool {\n\tseen = a\n\tx := a < b\n\treturn x\n}\n\nvar seen int\n",
		"p/p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestLess(t *testing.T) {\n\tif Less(1, 1) {\n\t\tt.Error(\"1 < 1\")\n\t}\n}\n",
	}
	if err := os.Mkdir(filepath.Join(dir, "p"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := Package(dir, "p")
	if err != nil {
		t.Fatal(err)
	}
	if err := Sound(t.Context(), dir, "", []string{"./p"}); err != nil {
		t.Error(err)
	}
	if err := Sound(t.Context(), dir, "", []string{"./q"}); err == nil {
		t.Error("tests that there are not are sound")
	}
	broken := *list[0]
	broken.Name, broken.text = "broken", "nothing"
	want := map[string]Verdict{"bound in Less: a < b": Noticed, "remove in Less: seen = a": Survives, "broken": Invalid}
	for _, m := range append(list, &broken) {
		v, out, err := m.Try(t.Context(), dir, "")
		if err != nil || v != want[m.Name] {
			t.Errorf("%s: %s, %v, want %s\n%s", m.Name, v, err, want[m.Name], out)
		}
		delete(want, m.Name)
	}
	if len(want) > 0 {
		t.Errorf("not planted: %v", want)
	}
	for name, text := range files {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != text {
			t.Errorf("%s was changed: %q, %v", name, b, err)
		}
	}
}
