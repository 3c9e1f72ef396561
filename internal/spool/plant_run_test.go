//go:build !spoolplant

package spool

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// goTool runs the go command, without which a test is skipped.
func goTool(t *testing.T, args ...string) string {
	t.Helper()
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("SKIPPED, NOT PROVED HERE: %v", err)
	}
	out, err := exec.Command(tool, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestPlanted runs the test of that name in a build that can have faults planted.
func TestPlanted(t *testing.T) {
	once(t)
	t.Parallel()
	out := goTool(t, "test", "-tags", "spoolplant", "-vet=off", "-timeout=0", "-count=1", "-v", "-run", "^TestPlanted$", ".") // the time is for this test to bound
	if n := strings.Count(out, "    --- PASS: TestPlanted/"); n != int(numFaults)-1 {
		t.Errorf("%d of %d faults were found:\n%s", n, numFaults-1, out)
	}
}

// TestNothingPlanted holds the program that is installed against the package as it is
// when faults can be planted: no symbol is left that has to do with them, and no branch can
// be, since there is nothing that it could look at.
func TestNothingPlanted(t *testing.T) {
	once(t)
	t.Parallel()
	if n := unsafe.Sizeof(planter{}); n != 0 {
		t.Errorf("what says which fault is planted takes %d octets", n)
	}
	product := filepath.Join(t.TempDir(), "posthaste")
	goTool(t, "build", "-ldflags=-w", "-o", product, "posthaste/cmd/posthaste")
	// The package alone will do for the other side: a whole program of it takes as long to build as
	// the product.
	archive := strings.TrimSpace(goTool(t, "list", "-export", "-tags", "spoolplant", "-f", "{{.Export}}", "."))
	plants := regexp.MustCompile(`posthaste/internal/spool\S*([Pp]lant|[Ff]ault)\S*`)
	const flushName = "posthaste/internal/spool.(*engine).flush"
	none, small := programSymbols(t, product, plants, flushName)
	nm := goTool(t, "tool", "nm", "-size", archive)
	some := plants.FindAllString(nm, -1)
	m := regexp.MustCompile(`(?m) +[0-9a-f]+ +([0-9]+) [tT] ` + regexp.QuoteMeta(flushName) + `$`).FindStringSubmatch(nm)
	if m == nil {
		t.Fatalf("%s: there is no (*engine).flush", archive)
	}
	large, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	if len(none) > 0 {
		t.Errorf("left in the product: %q", none)
	}
	if len(some) == 0 {
		t.Error("nothing is found in a build that has them: the test proves nothing")
	}
	if small >= large {
		t.Errorf("(*engine).flush takes %d octets in the product and %d with faults: the branches are in it", small, large)
	}
	t.Logf("with faults: %d symbols more; (*engine).flush takes %d octets and not %d", len(some), large, small)
}

// programSymbols are those of a program that match, and the size of a function that is there. To have "go tool nm" sort and
// print all of them takes longer.
func programSymbols(t *testing.T, path string, match *regexp.Regexp, function string) (matching []string, size int) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if match.MatchString(s.Name) {
			matching = append(matching, s.Name)
		}
		if s.Name == function {
			size = int(s.Size)
		}
	}
	if size == 0 {
		t.Fatalf("%s: there is no %s", path, function)
	}
	return matching, size
}
