package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// run builds both, sends the mail, and prints the figures. lost says that one of them is worse than it may be.
func run(ctx context.Context, o *options, w io.Writer) (lost bool, err error) {
	if o.wait {
		return false, waits(ctx, o, w)
	}
	if o.sending {
		return false, sending(ctx, o, w)
	}
	if o.serial {
		return false, serials(ctx, o, w)
	}
	if o.beside {
		return false, beside(ctx, o, w)
	}
	if o.busy > 0 || len(o.command) > 0 {
		return false, besideCompilers(ctx, o, w)
	}
	list, err := chosen(o.workloads)
	if err != nil {
		return false, err
	}
	if o.rounds < 2 {
		return false, errors.New("there must be at least two pairs: one says nothing about how far the next would be from it")
	}
	base, err := baseOf(ctx, o.base)
	if err != nil {
		return false, err
	}
	dir, remove, err := o.place()
	if err != nil {
		return false, err
	}
	defer remove()
	fmt.Fprintf(w, "now beside %s, %d pairs, queues in %s\n", base, o.rounds, dir)
	before, now, err := startBoth(ctx, dir, base)
	if err != nil {
		return false, err
	}
	defer before.stop()
	defer now.stop()
	fmt.Fprintf(w, "%-10s%-28s%10s%10s   ratio   95 %%\n", "workload", "figure", "before", "now")
	for i := range list {
		bad, err := measure(ctx, &list[i], o, before, now, w)
		if err != nil {
			return false, err
		}
		lost = lost || bad
	}
	return lost, nil
}

// place makes the directory of a run; remove removes it, unless it is to be kept.
func (o *options) place() (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp(o.dir, "speed"); err != nil {
		return "", nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", nil, err
	}
	os.Chmod(dir, 0o755) // services run as another user
	return dir, func() {
		if !o.keep {
			os.RemoveAll(dir)
		}
	}, nil
}

// measure compares one workload.
func measure(ctx context.Context, load *workload, o *options, before, now *system, w io.Writer) (lost bool, err error) {
	pairs := map[figure][]pair{}
	for n := -1; n < o.rounds; n++ { // the first pair warms up
		var r, c pair
		order := []*system{before, now}
		if n%2 != 0 {
			order = []*system{now, before}
		}
		for _, s := range order {
			wall, cpu, err := s.round(ctx, load)
			if err != nil {
				return false, fmt.Errorf("%s: %w", load.name, err)
			}
			perSecond, each := float64(load.messages)/wall.Seconds(), float64(cpu.Microseconds())/float64(load.messages)
			if s == before {
				r.before, c.before = perSecond, max(each, 0.01)
			} else {
				r.now, c.now = perSecond, max(each, 0.01)
			}
		}
		if n >= 0 {
			pairs[rate], pairs[processor] = append(pairs[rate], r), append(pairs[processor], c)
		}
	}
	for _, f := range []figure{rate, processor} {
		r := compare(pairs[f])
		bad, words := f.verdict(r, o.loss)
		fmt.Fprintln(w, strings.TrimRight(f.line(load.name, r, words), " "))
		lost = lost || bad
	}
	return lost, nil
}

// startBoth builds and starts the two mail systems.
func startBoth(ctx context.Context, dir, base string) (before, now *system, err error) {
	tree := filepath.Join(dir, "tree")
	if err := command(ctx, ".", "git", "worktree", "add", "--detach", tree, base); err != nil {
		return nil, nil, err
	}
	// Also when the build was interrupted: git must not be left with a work tree that is not there.
	defer command(context.WithoutCancel(ctx), ".", "git", "worktree", "remove", "--force", tree)
	for name, from := range map[string]string{"before": tree, "now": "."} {
		to := filepath.Join(dir, name)
		if err := os.Mkdir(to, 0o755); err != nil {
			return nil, nil, err
		}
		if err := command(ctx, from, "go", "build", "-trimpath", "-o", filepath.Join(to, "posthaste"), "./cmd/posthaste"); err != nil {
			return nil, nil, err
		}
	}
	if before, err = startSystem(filepath.Join(dir, "before"), ""); err != nil {
		return nil, nil, err
	}
	if now, err = startSystem(filepath.Join(dir, "now"), ""); err != nil {
		before.stop()
		return nil, nil, err
	}
	return before, now, nil
}

// baseOf is the commit to compare with.
func baseOf(ctx context.Context, base string) (string, error) {
	if base != "" {
		return base, nil
	}
	out, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--abbrev=0").Output()
	if err != nil {
		return "", errors.New("there is no tag of a release yet: say what to compare with (-base, or make speed BASE=commit)")
	}
	return strings.TrimSpace(string(out)), nil
}

// command runs a program to its end.
func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, args[0], err, out)
	}
	return nil
}
