package mutants

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Packages are those in which faults are planted, with the packages whose tests are to notice: its
// own where there are no others.
var Packages = map[string][]string{
	"internal/spool":   {"./internal/spool"},
	"qmgr/sched":       {"./qmgr/sched"},
	"qmgr":             {"./qmgr"},
	"cleanup":          {"./cleanup"},
	"smtp":             {"./smtp"},
	"smtpd":            {"./smtpd", "./internal/script"},
	"local":            {"./local"},
	"internal/rights":  {"./internal/rights"},
	"internal/agent":   {"./internal/agent"},
	"internal/pgspool": {"./internal/pgspool"},
}

//go:embed seeds.txt
var seedsText string

//go:embed accepted.txt
var acceptedText string

// Seeds are the faults of seeds.txt, below root.
//
//	== title
//	file path
//	test package ...      those of [Packages] when it is left out
//	- text that is there, once, perhaps of several lines
//	+ text in its place
func Seeds(root string) (list []*Mutant, err error) {
	for i, block := range strings.Split("\n"+seedsText, "\n== ") {
		if i == 0 {
			continue // what is in front of the first
		}
		m, err := seed(root, block)
		if err != nil {
			return nil, fmt.Errorf("seeds.txt: %s: %w", strings.SplitN(block, "\n", 2)[0], err)
		}
		list = append(list, m)
	}
	return list, nil
}

func seed(root, block string) (*Mutant, error) {
	m := &Mutant{Nth: 1}
	var before, after []string
	for i, line := range strings.Split(strings.TrimRight(block, "\n"), "\n") {
		switch mark, rest, _ := strings.Cut(line, " "); {
		case i == 0:
			m.Name = line
		case mark == "file":
			m.File = rest
		case mark == "test":
			m.Tests = strings.Fields(rest)
		case mark == "-":
			before = append(before, rest)
		case mark == "+":
			after = append(after, rest)
		case line != "" && mark != "#":
			return nil, fmt.Errorf("%q is not understood", line)
		}
	}
	src, err := os.ReadFile(filepath.Join(root, m.File))
	if err != nil {
		return nil, err
	}
	old := strings.Join(before, "\n")
	if n := strings.Count(string(src), old); n != 1 || old == "" {
		return nil, fmt.Errorf("the text is in %s %d times, and must be there once", m.File, n)
	}
	m.begin = strings.Index(string(src), old)
	m.end, m.text = m.begin+len(old), strings.Join(after, "\n")
	m.Line = 1 + strings.Count(string(src[:m.begin]), "\n")
	return m, nil
}

// An Entry is a line of accepted.txt.
type Entry struct{ Key, Reason string }

// Accepted are the faults that are let be, and how many there may be. A line is
//
//	path rule in function: text	reason
//
// with a tab before the reason; the first line is "at most N".
func Accepted() (entries []Entry, most int, err error) { return parseAccepted(acceptedText) }

func parseAccepted(text string) (entries []Entry, most int, err error) {
	most = -1
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch n, ok := strings.CutPrefix(line, "at most "); {
		case line == "" || strings.HasPrefix(line, "#"):
		case most < 0 && ok:
			if most, err = strconv.Atoi(n); err != nil {
				return nil, 0, fmt.Errorf("accepted.txt: %w", err)
			}
		default:
			key, reason, ok := strings.Cut(line, "\t")
			if reason = strings.TrimSpace(reason); !ok || reason == "" || most < 0 {
				return nil, 0, fmt.Errorf("accepted.txt: no reason: %s", line)
			}
			entries = append(entries, Entry{key, reason})
		}
	}
	return entries, most, nil
}

// TestsOf are the packages whose tests are to notice the mutant.
func (m *Mutant) TestsOf() []string {
	if len(m.Tests) > 0 {
		return m.Tests
	}
	dir := filepath.ToSlash(filepath.Dir(m.File))
	if tests := Packages[dir]; tests != nil {
		return tests
	}
	return []string{"./" + dir}
}

// Names are the names of Packages, in order.
func Names() []string {
	names := make([]string, 0, len(Packages))
	for name := range Packages {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
