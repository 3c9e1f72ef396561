package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// maxKept is the longest input that is put into the tree, in octets of its file.
const maxKept = 2048

// keep puts what is worth it of the cache into the tree.
func (p pkg) keep(ctx context.Context, tmp, cache string) error {
	program := filepath.Join(tmp, "cover.test")
	if err := p.build(ctx, program, "-cover"); err != nil {
		return err
	}
	for _, name := range p.fuzzers {
		files, err := shortestFirst(filepath.Join(cache, name))
		if err != nil {
			return err
		}
		room, err := os.MkdirTemp(tmp, "room")
		if err != nil {
			return err
		}
		if err := p.furnish(room, name); err != nil {
			return err
		}
		corpus := filepath.Join(room, "testdata", "fuzz", name)
		seen, _, err := covered(ctx, program, room, "^"+name+"$")
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		kept := 0
		for _, file := range files {
			// Alone, beside those that are not run because of the pattern.
			as := filepath.Join(corpus, filepath.Base(file))
			if _, err := os.Lstat(as); err == nil {
				continue
			}
			if err := copyFile(as, file); err != nil {
				return err
			}
			blocks, ok, err := covered(ctx, program, room, "^"+name+"$/^"+filepath.Base(file)+"$")
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil || !ok || !adds(seen, blocks) {
				continue // of an earlier form of the fuzzer, or nothing new
			}
			if err := copyFile(filepath.Join(p.dir, "testdata", "fuzz", name, filepath.Base(file)), file); err != nil {
				return err
			}
			kept++
		}
		fmt.Printf("%s %s: %d of %d inputs kept\n", p.dir, name, kept, len(files))
		os.RemoveAll(room)
	}
	return nil
}

// adds notes blocks among those seen, and says whether one was new.
func adds(seen, blocks map[string]bool) (news bool) {
	for b := range blocks {
		if !seen[b] {
			seen[b], news = true, true
		}
	}
	return news
}

// shortestFirst lists the inputs of a directory, which need not be there, that are short enough.
func shortestFirst(dir string) (files []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	size := map[string]int64{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		if path := filepath.Join(dir, e.Name()); info.Mode().IsRegular() && info.Size() <= maxKept {
			files, size[path] = append(files, path), info.Size()
		}
	}
	slices.SortFunc(files, func(a, b string) int {
		return cmp.Or(cmp.Compare(size[a], size[b]), strings.Compare(a, b))
	})
	return files, nil
}

// furnish makes a directory in which the package's tests can run, with a corpus of the fuzzer that
// can be added to.
func (p pkg) furnish(room, fuzzer string) error {
	if err := links(p.dir, room, "testdata"); err != nil {
		return err
	}
	if err := links(filepath.Join(p.dir, "testdata"), filepath.Join(room, "testdata"), "fuzz"); err != nil {
		return err
	}
	return links(filepath.Join(p.dir, "testdata", "fuzz", fuzzer), filepath.Join(room, "testdata", "fuzz", fuzzer), "")
}

// links makes a directory with links to what is in another, which need not be there, but for one name.
func links(from, to, but string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	from, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.Name() == but {
			continue
		}
		if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// covered runs tests, and returns the blocks that they execute; ok is false if none of that name ran.
func covered(ctx context.Context, program, room, test string) (blocks map[string]bool, ok bool, err error) {
	profile := filepath.Join(room, "cover.out")
	cmd := exec.CommandContext(ctx, program, "-test.run="+test, "-test.coverprofile="+profile)
	cmd.Dir = room
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, false, fmt.Errorf("%w\n%s", err, text)
	} else if strings.Contains(string(text), "no tests to run") {
		return nil, false, nil
	}
	f, err := os.Open(profile)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	blocks = map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if block, count, ok := strings.Cut(lines.Text(), " "); ok && !strings.HasSuffix(count, " 0") {
			blocks[block] = true
		}
	}
	return blocks, true, nil
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}
