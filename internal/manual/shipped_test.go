package manual

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Every command in every file that we ship, and in every text that a program
// prints, is one that exists, with options that it takes. (Those in blocks of the
// documents are run besides, by TestDocs in internal/e2e.)
func TestShippedCommandsExist(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	found := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if n := d.Name(); path != root && (strings.HasPrefix(n, ".") || slices.Contains([]string{"testdata", "dist", "bin", "run", "node_modules"}, n)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || strings.HasSuffix(rel, "_test.go") || strings.HasPrefix(rel, "docs/man/") {
			return nil // manual pages are made of literals here
		}
		switch ext := filepath.Ext(rel); {
		case ext == ".go":
			found += checkLiterals(t, path, rel)
		case strings.HasPrefix(rel, "etc/") || strings.HasPrefix(rel, "docs/") && ext == ".md" || rel == "README.md" || rel == "Containerfile":
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found += checkText(t, rel, string(b))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 200 {
		t.Errorf("only %d commands were found: the search is wrong", found)
	}
}

// checkLiterals checks the string literals of a Go file.
func checkLiterals(t *testing.T, path, rel string) (n int) {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(node ast.Node) bool {
		if lit, ok := node.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				n += checkText(t, rel, text)
			}
		}
		return true
	})
	return n
}

func checkText(t *testing.T, where, text string) (n int) {
	for _, c := range commandsIn(text) {
		n++
		if err := c.check(); err != nil {
			t.Errorf("%s: %s %s: %v", where, c.name, strings.Join(c.words, " "), err)
		}
	}
	return n
}

// A mention is a command somewhere in a text.
type mention struct {
	name  string
	words []string // what follows, as far as it may belong to it
	code  bool     // it is marked as a command, and is not prose that begins like one
}

var (
	programs = `(?:posthaste|sendmail|mailq|newaliases|postqueue|postsuper|postcat|qshape|postconf|postmap|postalias|postkick|postlog|postdrop|postmulti)`
	// elsewhere is where posthaste is a user, or a directory or a file that is not installed.
	elsewhere = regexp.MustCompile(`/(?:spool|etc|lib|run)/posthaste\b|=bin/posthaste|(?:-o|-g|-u|passwd|user =) posthaste\b|posthaste if there is such a user`)

	commandSet = regexp.MustCompile("(?m)(^|[\\s\"'`(=/])(" + programs + ")((?:[ \\t]+[^\\s\"'`|;&)<>\\\\]+)*)(.?)")
)

func commandsIn(text string) (list []mention) {
	for _, m := range commandSet.FindAllStringSubmatch(elsewhere.ReplaceAllString(text, "x"), -1) {
		c := mention{name: m[2], code: strings.ContainsAny(m[1], "\"'`/") && m[1] != ""}
		for _, w := range strings.Fields(m[3]) {
			end := strings.TrimRight(w, ".,:)]")
			if end != "" {
				c.words = append(c.words, end)
			}
			if end != w { // the sentence goes on
				break
			}
		}
		list = append(list, c)
	}
	return list
}

// check resolves the program, its subcommand and its options.
func (c *mention) check() error {
	tool, err := toolOf(c.name)
	if err != nil || len(c.words) == 0 {
		return err
	}
	if c.name != "posthaste" {
		return checkOptions(c.words, tool.options, tool.long, false)
	}
	words := c.words
	for len(words) > 0 && strings.HasPrefix(words[0], "-") {
		if err := checkOptions(words[:1], append(tool.options, option{letter: 'h'}), []longOption{{name: "version"}, {name: "help"}}, true); err != nil {
			return err
		}
		if words = words[1:]; strings.HasPrefix(c.words[0], "-c") && len(words) > 0 {
			words = words[1:]
		}
	}
	if len(words) == 0 || !regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(words[0]) {
		return nil
	}
	if t, err := toolOf(words[0]); err == nil && words[0] != "posthaste" {
		return checkOptions(words[1:], t.options, t.long, false)
	}
	if !slices.Contains(tool.wordNames(), words[0]) {
		if c.code {
			return fmt.Errorf("there is no command %q", words[0])
		}
		return nil // prose
	}
	i := slices.IndexFunc(subcommands(), func(s subcommand) bool { return s.name == words[0] })
	switch {
	case i < 0:
		return checkOptions(words[1:], nil, nil, false)
	case words[0] == "simulate" && len(words) > 1 && (words[1] == "-csv" || words[1] == "-svg"):
		return nil // words, not letters
	}
	sub := subcommands()[i]
	if len(sub.words) > 0 && len(words) > 1 && regexp.MustCompile(`^[a-z]+$`).MatchString(words[1]) && c.code && !slices.Contains(sub.words, words[1]) {
		return fmt.Errorf("%s has no command %q", words[0], words[1])
	}
	return checkOptions(words[1:], append(sub.options, option{letter: 'c', arg: "dir"}), sub.long, false)
}

func toolOf(name string) (*command, error) {
	for _, c := range commands() {
		if slices.Contains(c.names(), name) {
			return &c, nil
		}
	}
	return nil, fmt.Errorf("there is no program %q", name)
}

// checkOptions goes over a command line as getopt does, and on to long options.
func checkOptions(words []string, options []option, long []longOption, one bool) error {
	for i := 0; i < len(words); i++ {
		w := words[i]
		switch {
		case strings.HasPrefix(w, "--"):
			name, _, _ := strings.Cut(w[2:], "=")
			if name != "" && !slices.ContainsFunc(long, func(o longOption) bool { return o.name == name }) {
				return fmt.Errorf("there is no option --%s", name)
			}
		case len(w) > 1 && w[0] == '-':
			for k := 1; k < len(w); k++ {
				n := slices.IndexFunc(options, func(o option) bool { return o.letter == w[k] })
				if n < 0 {
					return fmt.Errorf("there is no option -%c", w[k])
				}
				if options[n].arg != "" {
					if k == len(w)-1 && !one {
						i++ // its value
					}
					break
				}
				if w[1] == 'q' { // sendmail's -q30m has its value, if any, attached
					break
				}
			}
		}
	}
	return nil
}

// The test finds what is wrong, in each form in which commands are written.
func TestShippedCommandsFound(t *testing.T) {
	t.Parallel()
	for text, wrong := range map[string]bool{
		`description: "postqueue -x QUEUE_ID says what a message waits for"`: true,
		"run `posthaste explian ID`":                                         true,
		`"posthaste queue supend example.com"`:                               true,
		"ExecStart=/usr/sbin/posthaste -c /etc/x start-now":                  true,
		"`postsuper -d ALL --sendr=x`":                                       true,
		"`posthaste spool dump -x`":                                          true,
		"posthaste -c /etc/posthaste postqueue -pz":                          true,
		"`posthaste start -w`":                                               false,
		"posthaste is quick, and postqueue lists":                            false,
		"`postsuper -d ALL --sender=x --dry-run`":                            false,
		"echo x | sendmail -oi -t -f a@b; mailq":                             false,
		"`posthaste queue delete ALL`, `postqueue -s x`.":                    false,
	} {
		var err error
		for _, c := range commandsIn(text) {
			if e := c.check(); e != nil {
				err = e
			}
		}
		if (err != nil) != wrong {
			t.Errorf("%s: %v", text, err)
		}
	}
}
