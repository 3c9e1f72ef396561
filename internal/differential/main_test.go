// Package differential sends the same mail through the original Postfix and
// through Posthaste, with the same main.cf and tables, and compares what
// becomes of it: the replies, what the next hop gets, envelope and content, what
// filters are told, what is logged, and what stays in the queue.
//
// A file in testdata is one configuration, with the mail that is sent through
// it:
//
//	comment
//	-- main.cf --
//	what is added to the usual parameters; {dir} is where the tables are,
//	{sink} the port of the next hop, {filter} and so on that of a filter
//	-- tables/name --
//	a lookup table; postmap is run on those whose name ends in .db, without it
//	-- filter name --
//	a mail filter that does as it is told, see filter_test.go
//	-- smtp name --
//	one SMTP session: lines to send. After DATA all lines up to "." belong to
//	the content. A line in double quotes has Go's escapes. A first line
//	"send <from> <to>..." says that the rest is a message for these.
//	-- sendmail name --
//	one local submission: arguments, and the message in the lines after them
//
// Without -whole a quarter of the configurations is tried, which takes part of a
// minute. What differs must be in testdata/differences, with the reason; and what is
// there must differ.
package differential

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"posthaste/internal/testpostfix"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/txtar"
)

var (
	update = flag.Bool("update", false, "write testdata/differences anew; reasons of new ones are for a person to write")
	whole  = flag.Bool("whole", false, "all configurations, not every fourth (make differential)")
	show   = flag.Bool("show", false, "print what becomes of all mail")
)

// binDir holds the programs under test.
var binDir string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	flag.Parse()
	dir, err := os.MkdirTemp("", "differential-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755) // services run as another user
	binDir = dir
	for _, p := range []string{"posthaste", "postdrop"} {
		cmd := exec.Command("go", "build", "-ldflags=-w", "-o", filepath.Join(dir, p), "posthaste/cmd/"+p)
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", p, err, out)
			return 1
		}
	}
	return m.Run()
}

// wantCases is how many messages and sessions are compared at least.
const wantCases = 120

func TestDifferential(t *testing.T) {
	testpostfix.Need(t)
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	known := readDifferences(t)
	var count counter
	t.Run("cases", func(t *testing.T) {
		for i, file := range files {
			if !*whole && i%4 != 0 {
				continue
			}
			name := strings.TrimSuffix(filepath.Base(file), ".txtar")
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ar, err := txtar.ParseFile(file)
				if err != nil {
					t.Fatal(err)
				}
				count.add(compare(t, known, name, ar))
			})
		}
	})
	if !*whole {
		return
	}
	if n := count.n; n < wantCases {
		t.Errorf("%d cases compared, want %d", n, wantCases)
	} else {
		t.Logf("%d cases compared", n)
	}
	known.finish(t, count.n >= wantCases)
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
}

// compare sends the mail of one file through both, and returns how many cases
// there were.
func compare(t *testing.T, known *differences, name string, ar *txtar.Archive) int {
	systems := []*system{newOurs(t, ar), newOriginal(t, ar)}
	n := 0
	if t.Failed() {
		return 0
	}
	for _, f := range ar.Files {
		kind, _, _ := strings.Cut(f.Name, " ")
		if kind != "smtp" && kind != "sendmail" {
			continue
		}
		n++
		var wg sync.WaitGroup
		said := make([]string, len(systems))
		for i, s := range systems {
			wg.Go(func() { said[i] = s.play(kind, string(f.Data)) })
		}
		wg.Wait()
		if *show {
			t.Logf("%s: Postfix:\n%s", f.Name, said[1])
		}
		for _, s := range systems {
			if s.lost {
				return n // what comes after would wait in vain too
			}
		}
		known.check(t, name+"/"+f.Name, said[0], said[1])
	}
	return n
}

const differencesFile = "testdata/differences"

// A difference is one entry of the list.
type difference struct {
	reason, diff string
	used, played bool
}

// differences is the list: a file for each case, whose first lines are "# " and
// the reason, the others what only we have (-) and what only Postfix has (+).
type differences struct {
	mu      sync.Mutex
	ar      *txtar.Archive
	entries map[string]*difference
}

func readDifferences(t *testing.T) *differences {
	data, err := os.ReadFile(differencesFile)
	if err != nil {
		t.Fatal(err)
	}
	k := &differences{ar: txtar.Parse(data), entries: map[string]*difference{}}
	for _, f := range k.ar.Files {
		d := &difference{}
		for line := range strings.Lines(string(f.Data)) {
			if strings.HasPrefix(line, "#") {
				d.reason += line
			} else {
				d.diff += line
			}
		}
		if len(d.reason) < 12 || strings.Contains(d.reason, "TODO") {
			t.Errorf("%s: %s: no reason", differencesFile, f.Name)
		}
		k.entries[f.Name] = d
	}
	return k
}

// check compares what became of one case.
func (k *differences) check(t *testing.T, name, ours, original string) {
	diff := lineDiff(ours, original)
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.entries[name]
	if d == nil {
		if diff == "" {
			return
		}
		d = &difference{reason: "# TODO\n"}
		k.entries[name] = d
	}
	d.used, d.played = diff != "", true
	if d.diff == diff {
		return
	}
	if diff != "" {
		t.Errorf("%s differs from Postfix (-ours +Postfix):\n%s", name, diff)
	}
	d.diff = diff
}

// finish complains of entries that do not hold any more, or with -update takes
// them out. Those of cases that -run left out stay as they are.
func (k *differences) finish(t *testing.T, all bool) {
	var names []string
	for name, d := range k.entries {
		switch {
		case d.used || !d.played && !all:
			names = append(names, name)
		case !*update:
			t.Errorf("%s: %s does not differ", differencesFile, name)
		}
	}
	if !*update {
		return
	}
	slices.Sort(names)
	k.ar.Files = nil
	for _, name := range names {
		d := k.entries[name]
		k.ar.Files = append(k.ar.Files, txtar.File{Name: name, Data: []byte(d.reason + d.diff)})
	}
	if err := os.WriteFile(differencesFile, txtar.Format(k.ar), 0o644); err != nil {
		t.Fatal(err)
	}
}

// lineDiff shows the lines that only a has with -, those that only b has with
// +.
func lineDiff(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	// common[i][j] is the longest common subsequence of x[i:] and y[j:].
	common := make([][]int, len(x)+1)
	for i := range common {
		common[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out strings.Builder
	i, j := 0, 0
	for i < len(x) || j < len(y) {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			i, j = i+1, j+1
		case i < len(x) && (j == len(y) || common[i+1][j] >= common[i][j+1]):
			out.WriteString("-" + x[i] + "\n")
			i++
		default:
			out.WriteString("+" + y[j] + "\n")
			j++
		}
	}
	return out.String()
}
