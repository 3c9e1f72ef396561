// Command fuzzall runs every fuzzer of the tree, each for its share of a time, and prints how often each was
// executed. "make fuzz TIME=1h" calls it.
//
// Each package is built once, as "go test -fuzz" would, and its fuzzers are run one after the other. What
// a run finds interesting stays in Go's cache, from where the next run goes on. An input that fails is written to
// testdata/fuzz of the package, its text is printed, and the other fuzzers have their turn.
//
// With -keep what is worth keeping of the cache is put into the tree: the shortest inputs that
// between them execute each block of the package that any does, less those blocks that the inputs of the
// tree execute. They are then part of "go test".
//
//	go run ./internal/fuzzall -time 1h [-keep] [-run REGEXP] [directory ...]
//
// # Bugs
//
// The time that building takes does not count.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	total := flag.Duration("time", 10*time.Minute, "for all fuzzers together")
	keep := flag.Bool("keep", false, "put what is worth keeping into testdata/fuzz")
	match := flag.String("run", "", "only fuzzers whose names match this regular expression")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *total, *keep, *match, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "fuzzall:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, total time.Duration, keep bool, match string, dirs []string) error {
	names, err := regexp.Compile(match)
	if err != nil {
		return err
	}
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	list, err := find(dirs, names)
	if err != nil {
		return err
	}
	n := 0
	for _, p := range list {
		n += len(p.fuzzers)
	}
	if n == 0 {
		return errors.New("no fuzzer is there")
	}
	share := max(total/time.Duration(n), time.Second)
	fmt.Printf("%d fuzzers in %d packages, %v each\n", n, len(list), share.Round(time.Millisecond))
	tmp, err := os.MkdirTemp("", "fuzzall")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	sum, failed := 0, 0
	for _, p := range list {
		execs, bad, err := p.run(ctx, tmp, share, keep)
		sum, failed = sum+execs, failed+bad
		if err != nil {
			fmt.Printf("%s: %v\n", p.dir, err)
			failed++
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Printf("%d executions\n", sum)
	if failed > 0 {
		return fmt.Errorf("%d failed", failed)
	}
	return nil
}

// A pkg is a package with fuzzers.
type pkg struct {
	dir     string
	fuzzers []string
}

var declared = regexp.MustCompile(`(?m)^func (Fuzz[A-Za-z0-9_]*)\(\w+ \*testing\.F\)`)

// find looks through directories, and what is below them, for fuzzers.
func find(dirs []string, names *regexp.Regexp) (list []pkg, err error) {
	found := map[string][]string{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range declared.FindAllSubmatch(text, -1) {
				if at := filepath.Dir(path); names.Match(m[1]) {
					found[at] = append(found[at], string(m[1]))
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for dir, fuzzers := range found {
		slices.Sort(fuzzers)
		list = append(list, pkg{dir, slices.Compact(fuzzers)})
	}
	slices.SortFunc(list, func(a, b pkg) int { return strings.Compare(a.dir, b.dir) })
	return list, nil
}

// run has each fuzzer of the package run for the time.
func (p pkg) run(ctx context.Context, tmp string, share time.Duration, keep bool) (execs, bad int, err error) {
	program := filepath.Join(tmp, "fuzz.test")
	if err := p.build(ctx, program, "-fuzz=."); err != nil {
		return 0, 0, err
	}
	cache, err := output(ctx, p.dir, "go", "env", "GOCACHE")
	if err != nil {
		return 0, 0, err
	}
	path, err := output(ctx, p.dir, "go", "list", ".")
	if err != nil {
		return 0, 0, err
	}
	cache = filepath.Join(cache, "fuzz", path)
	for _, name := range p.fuzzers {
		cmd := exec.CommandContext(ctx, program, "-test.run=^$", "-test.fuzz=^"+name+"$", "-test.fuzztime="+share.String(),
			"-test.fuzzcachedir="+cache, fmt.Sprintf("-test.parallel=%d", runtime.GOMAXPROCS(0)))
		cmd.Dir = p.dir
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		text, err := cmd.CombinedOutput()
		n := executions(string(text))
		execs += n
		fmt.Printf("%s %s: %d executions\n", p.dir, name, n)
		if err != nil && !late.Match(text) {
			bad++
			fmt.Printf("%s", text)
		} else if strings.Contains(string(text), "SKIPPED") || strings.Contains(string(text), "--- SKIP") {
			fmt.Printf("%s %s: skipped\n", p.dir, name)
		}
	}
	if keep && bad == 0 && ctx.Err() == nil {
		err = p.keep(ctx, tmp, cache)
	}
	return execs, bad, err
}

func (p pkg) build(ctx context.Context, program string, options ...string) error {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-vet=off", "-c", "-o", program}, options, []string{"."})...)
	cmd.Dir = p.dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	text, err := cmd.Output()
	return strings.TrimSpace(string(text)), err
}

// late is what Go says of a fuzzer that has found nothing, and whose time was over while it made an input smaller.
var late = regexp.MustCompile(`(?m)^--- FAIL: Fuzz\w+ \([0-9.]+s\)\n    context deadline exceeded\nFAIL\n`)

var progress = regexp.MustCompile(`fuzz: elapsed: [^,]*, execs: ([0-9]+)`)

// executions is the last number that the text has.
func executions(text string) (n int) {
	if all := progress.FindAllStringSubmatch(text, -1); len(all) > 0 {
		fmt.Sscan(all[len(all)-1][1], &n)
	}
	return n
}
