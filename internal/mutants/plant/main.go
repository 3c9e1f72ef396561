// Plant plants faults in the tree in the present directory, and says which of them no test notices.
// "make mutants" runs it; package mutants says more.
//
//	plant [-pkg name,...] [-file name] [-n number] [-seed number] [-time duration] [-run tests] [-only text] [-seeds]
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"posthaste/internal/mutants"
)

func main() {
	s := &sample{root: "."}
	var packages string
	flag.StringVar(&packages, "pkg", "", "packages, by comma: "+strings.Join(mutants.Names(), " "))
	flag.StringVar(&s.file, "file", "", "only faults in a file of this name")
	flag.IntVar(&s.n, "n", 40, "how many of those that the rules make; 0: all")
	flag.Uint64Var(&s.seed, "seed", 0, "which of them; 0: others each time")
	flag.DurationVar(&s.time, "time", 0, "how long; 0: until all are done")
	flag.StringVar(&s.tests, "run", "", "only tests that match this; more faults survive that than all tests")
	flag.StringVar(&s.only, "only", "", "only faults whose names have this in them")
	flag.BoolVar(&s.seeds, "seeds", false, "only those of seeds.txt")
	flag.Parse()
	for name := range strings.SplitSeq(packages, ",") {
		if name = strings.TrimPrefix(strings.TrimSuffix(name, "/"), "./"); name != "" {
			s.packages = append(s.packages, name)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status, err := s.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		status = 2
	}
	os.Exit(status)
}

// A sample is what is asked for.
type sample struct {
	root, file string
	only       string   // part of a name
	tests      string   // a pattern; "": all
	packages   []string // none: all
	n          int
	seed       uint64
	time       time.Duration
	seeds      bool
}

// run tries the mutants and returns the exit status: 1 if one survives that is not accepted.
func (s *sample) run(ctx context.Context) (int, error) {
	var err error
	if s.root, err = filepath.Abs(s.root); err != nil {
		return 0, err
	}
	list, err := s.choose()
	if err != nil {
		return 0, err
	}
	entries, _, err := mutants.Accepted()
	if err != nil {
		return 0, err
	}
	if s.time > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.time)
		defer cancel()
	}
	counts := make(map[mutants.Verdict]int)
	accepted, bad := 0, 0
	sound := make(map[string]bool) // packages whose tests are known to pass
	for i, m := range list {
		known := slices.ContainsFunc(entries, func(e mutants.Entry) bool { return e.Key == m.Key() })
		if known {
			accepted++
			continue
		}
		if tests := strings.Join(m.TestsOf(), " "); !sound[tests] {
			if err := mutants.Sound(ctx, s.root, s.tests, m.TestsOf()); err != nil && ctx.Err() == nil {
				return 0, err
			}
			sound[tests] = true
		}
		v, _, err := m.Try(ctx, s.root, s.tests)
		if err != nil {
			return 0, fmt.Errorf("%s:%d: %s: %w", m.File, m.Line, m.Name, err)
		}
		if v == mutants.Stopped {
			break
		}
		counts[v]++
		fmt.Printf("%d/%d %s: %s:%d: %s\n", i+1, len(list), v, m.File, m.Line, m.Name)
		if v == mutants.Survives {
			bad++
			src, err := os.ReadFile(filepath.Join(s.root, m.File))
			if err != nil {
				return 0, err
			}
			fmt.Printf("%sNo test notices. Write one, or put this into accepted.txt with the reason behind a tab:\n%s\n\n", m.Diff(src), m.Key())
		}
	}
	fmt.Printf("seed %d: %d noticed, %d without an end, %d survive, %d do not compile, %d are accepted, of %d\n", s.seed,
		counts[mutants.Noticed], counts[mutants.Endless], counts[mutants.Survives], counts[mutants.Invalid], accepted, len(list))
	if bad > 0 {
		return 1, nil
	}
	return 0, nil
}

// choose makes the list of mutants: the seeds, and a sample of the others.
func (s *sample) choose() ([]*mutants.Mutant, error) {
	for _, name := range s.packages {
		if mutants.Packages[name] == nil {
			return nil, fmt.Errorf("no faults are planted in %s, but in %s", name, strings.Join(mutants.Names(), ", "))
		}
	}
	asked := func(m *mutants.Mutant) bool {
		return (len(s.packages) == 0 || slices.Contains(s.packages, path.Dir(m.File))) && (s.file == "" || path.Base(m.File) == s.file) && strings.Contains(m.Name, s.only)
	}
	seeds, err := mutants.Seeds(s.root)
	if err != nil {
		return nil, err
	}
	seeds = slices.DeleteFunc(seeds, func(m *mutants.Mutant) bool { return !asked(m) })
	if s.seeds {
		return seeds, nil
	}
	var made []*mutants.Mutant
	for _, name := range mutants.Names() {
		if len(s.packages) > 0 && !slices.Contains(s.packages, name) {
			continue
		}
		found, err := mutants.Package(s.root, name)
		if err != nil {
			return nil, err
		}
		made = append(made, found...)
	}
	made = slices.DeleteFunc(made, func(m *mutants.Mutant) bool { return !asked(m) })
	if s.seed == 0 {
		s.seed = rand.Uint64N(1<<32) + 1
	}
	if s.n > 0 && s.n < len(made) {
		r := rand.New(rand.NewPCG(s.seed, 0))
		r.Shuffle(len(made), func(i, j int) { made[i], made[j] = made[j], made[i] })
		made = made[:s.n]
	}
	return append(seeds, made...), nil
}
