package manual

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/config"
)

// The defaults that the documents' tables have are those of the program.
func TestDefaultsInDocuments(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| `?([^`|]+?)`?(?:,[^|]*)? \\|")
	found := 0
	for _, page := range []string{"tuning.md", "scheduler.md", "queue.md", "logs.md", "relay.md", "filters.md", "security.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range strings.Split(string(text), "\n\n") {
			if !strings.Contains(table, "| parameter | default |") {
				continue
			}
			for _, m := range row.FindAllStringSubmatch(table, -1) {
				p, known := config.Lookup(m[1])
				if !known {
					t.Errorf("docs/%s: there is no %s", page, m[1])
					continue
				}
				found++
				if def := usual(shown(&p)); def != strings.TrimSpace(m[2]) {
					t.Errorf("docs/%s: %s is %s there, and %s by default", page, m[1], m[2], def)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("%d defaults were compared", found)
	}
}

// stressed is a default that depends on stress.
var stressed = regexp.MustCompile(`^\$\{stress\?\{\w+\}:\{(\w+)\}\}(\w*)$`)

// usual is a default without stress.
func usual(text string) string { return stressed.ReplaceAllString(text, "$1$2") }
