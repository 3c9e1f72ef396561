package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// codeBlock is a block of a text in internal/manual/formats, without what
// surrounds it.
var codeBlock = regexp.MustCompile(`(?m)(?:^\t.*\n)(?:(?:^\t.*|^)\n)*`)

// beginning is where a file or a row of commands begins behind another.
var beginning = regexp.MustCompile(`\n\n(# /etc/posthaste/|\$ )`)

// TestManualExamples does what the manual pages of section 5 show: blocks that
// begin with "# /etc/posthaste/NAME" are files, and what follows "$ command" is
// what the command prints. The commands run with the tools under test, in a
// directory that takes the place of /etc/posthaste.
func TestManualExamples(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../manual/formats/*.txt")
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	tools := t.TempDir()
	for _, name := range []string{"postmap", "postalias", "postconf"} {
		if err := os.Symlink(filepath.Join(binDir, "posthaste"), filepath.Join(tools, name)); err != nil {
			t.Fatal(err)
		}
	}
	tablesProgram(t)
	// Pages whose tables are servers that would have to be there first.
	served := []string{"socketmap_table", "tcp_table", "mysql_table", "pgsql_table", "ldap_table", "memcache_table", "mongodb_table", "suppress_table"}
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".txt")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			x := &pageExample{t: t, dir: t.TempDir(), tools: tools}
			if err := os.WriteFile(filepath.Join(x.dir, "main.cf"), []byte("compatibility_level = 3.6\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, block := range codeBlock.FindAllString(string(text), -1) {
				text := strings.ReplaceAll("\n"+strings.TrimRight(block, "\n")+"\n", "\n\t", "\n")[1:]
				for part := range strings.SplitSeq(beginning.ReplaceAllString(text, "\x00$1"), "\x00") {
					x.block(strings.TrimRight(part, "\n") + "\n")
				}
			}
			if x.commands == 0 && !strings.Contains(strings.Join(served, " "), name) {
				t.Errorf("the page has no example that can be tried")
			}
		})
	}
}

// A pageExample is what a page shows, being done.
type pageExample struct {
	t          *testing.T
	dir, tools string // in the place of /etc/posthaste; where the commands are
	commands   int    // so far
}

func (x *pageExample) block(text string) {
	x.t.Helper()
	first, rest, _ := strings.Cut(text, "\n")
	switch name, isFile := strings.CutPrefix(first, "# /etc/posthaste/"); {
	case isFile:
		if err := os.WriteFile(filepath.Join(x.dir, name), []byte(x.here(rest)), 0o644); err != nil {
			x.t.Fatal(err)
		}
	case strings.HasPrefix(first, "$ "):
		for part := range strings.SplitSeq(strings.TrimPrefix(text, "$ "), "\n$ ") {
			command, want, _ := strings.Cut(strings.TrimSuffix(part, "\n"), "\n")
			x.run(command, want)
		}
	}
}

func (x *pageExample) here(text string) string {
	return strings.ReplaceAll(text, "/etc/posthaste/", x.dir+"/")
}

// run does a command and compares what it prints. A key that is not found is an exit
// status of 1 and no output; other failures say something.
func (x *pageExample) run(command, want string) {
	x.t.Helper()
	x.commands++
	cmd := exec.Command("/bin/sh", "-c", x.here(command))
	cmd.Env = append(os.Environ(), "MAIL_CONFIG="+x.dir, "PATH="+x.tools+":"+os.Getenv("PATH"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if got := strings.TrimRight(out.String(), "\n"); got != want {
		x.t.Errorf("$ %s\nprints\n%s\n(%v), the page has\n%s", command, got, err, want)
	}
	if query := strings.Contains(command, " -q "); (err == nil) == (query && want == "") {
		x.t.Errorf("$ %s: %v", command, err)
	}
}
