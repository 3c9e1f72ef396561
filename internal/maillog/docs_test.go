package maillog

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// blocks are the lines in the document's blocks of one kind.
func blocks(doc, kind string) (lines []string) {
	for _, m := range regexp.MustCompile("(?ms)^```"+kind+"\n(.*?)^```$").FindAllStringSubmatch(doc, -1) {
		lines = append(lines, strings.Split(strings.TrimSuffix(m[1], "\n"), "\n")...)
	}
	return lines
}

// jsonType is how the document calls the type of a value.
func jsonType(v any) string {
	switch v.(type) {
	case string:
		return "string"
	case float64:
		return "number"
	case bool:
		return "boolean"
	}
	return "numbers"
}

// TestDocs: docs/logs.md has each event's line as the golden file has it, and no
// other; it has each key of the JSON form with its type, which is the same
// wherever the key is.
func TestDocs(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	var lines []string
	keys := make(map[string]string)
	for _, e := range events() {
		lines = append(lines, string(e.Append(nil)))
		f, ok := e.(Fielder)
		if !ok {
			t.Errorf("%T has no keys of its own", e)
			continue
		}
		var fields map[string]any
		if err := json.Unmarshal(append(append([]byte("{"), f.AppendFields(nil)[1:]...), '}'), &fields); err != nil {
			t.Fatal(err)
		}
		for k, v := range fields {
			if was, ok := keys[k]; ok && was != jsonType(v) {
				t.Errorf("%T: %s is a %s, elsewhere a %s", e, k, jsonType(v), was)
			}
			keys[k] = jsonType(v)
		}
	}
	inDoc := blocks(doc, "log")
	for _, l := range lines {
		if !slices.Contains(inDoc, l) {
			t.Errorf("docs/logs.md lacks the line\n%s", l)
		}
	}
	for _, l := range inDoc {
		if !slices.Contains(lines, l) {
			t.Errorf("docs/logs.md has a line that no event of the tests prints:\n%s", l)
		}
	}
	table := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| .+ \\|$").FindAllStringSubmatch(doc, -1) {
		table[m[1]] = m[2]
	}
	if !maps.Equal(table, keys) {
		t.Errorf("the keys in docs/logs.md are\n%v\nwant\n%v", table, keys)
	}
}

// TestDocWarnings: the warnings that docs/logs.md mentions are still given by
// somebody.
func TestDocWarnings(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	formats, err := logFormats("../../smtpd", "../../smtp", "../../qmgr", "../../master")
	if err != nil {
		t.Fatal(err)
	}
	lines := blocks(string(b), "text")
	if len(lines) == 0 {
		t.Error("no warnings")
	}
	for _, l := range lines {
		if !slices.ContainsFunc(formats, func(re *regexp.Regexp) bool { return re.MatchString(l) }) {
			t.Errorf("nobody logs\n%s", l)
		}
	}
}

// logFormats are the formats of the lines that the packages log, as
// expressions that match what they print.
func logFormats(dirs ...string) (formats []*regexp.Regexp, err error) {
	verb := regexp.MustCompile(`%[-+#.0-9\\]*[a-z]`)
	for _, dir := range dirs {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("no files in %s: %v", dir, err)
		}
		for _, name := range files {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) == 0 {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				format, isText := call.Args[0].(*ast.BasicLit)
				if !ok || !isText || method.Sel.Name != "Info" && method.Sel.Name != "Warning" {
					return true
				}
				text, err := strconv.Unquote(format.Value)
				if err == nil && len(verb.ReplaceAllString(text, "")) > 10 {
					formats = append(formats, regexp.MustCompile("^"+verb.ReplaceAllString(regexp.QuoteMeta(text), ".*")+"$"))
				}
				return true
			})
		}
	}
	return formats, nil
}

// Every event has a sample: what has none is in no golden file, and in no document.
func TestEveryEventHasASample(t *testing.T) {
	t.Parallel()
	sampled := map[string]bool{}
	for _, e := range events() {
		sampled[strings.TrimPrefix(fmt.Sprintf("%T", e), "maillog.")] = true
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || fn.Name.Name != "AppendFields" {
				continue
			}
			found++
			if of, ok := fn.Recv.List[0].Type.(*ast.Ident); !ok || !sampled[of.Name] {
				t.Errorf("%s: %s.AppendFields: no list of samples has such an event", name, fn.Recv.List[0].Type)
			}
		}
	}
	if found < len(sampled) {
		t.Errorf("%d events are declared, and %d have samples", found, len(sampled))
	}
}
