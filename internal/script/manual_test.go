package script

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"posthaste/internal/access"
)

// Whatever docs/smtpd.md says of restrictions is shown by dialogues: one that is
// let through, and one that is refused. The manual has all restrictions that
// there are, and no other.
func TestManual(t *testing.T) {
	t.Parallel()
	manual, err := os.ReadFile("../../docs/smtpd.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(manual), "\n## Restrictions\n")
	table, _, _ := strings.Cut(rest, "\n## ")
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1) {
		rows = append(rows, m[1])
	}
	known := access.Restrictions()
	for _, name := range known {
		if n := count(rows, name); n != 1 {
			t.Errorf("docs/smtpd.md has %d rows for %s", n, name)
		}
	}
	shown := shownRestrictions(t)
	// These never refuse, or never let through by themselves.
	only := map[string]string{"permit": "", "reject": "", "sleep": "let through"}
	for _, name := range rows {
		if !slices.Contains(known, name) {
			t.Errorf("docs/smtpd.md: there is no restriction %s", name)
			continue
		}
		s := shown[name]
		if want, special := only[name]; special && want == "" && s != nil {
			continue
		}
		if s == nil || !s.accepted || !s.refused && only[name] == "" {
			t.Errorf("no dialogue shows both what %s lets through and what it refuses: %+v", name, s)
		}
	}
}

func count(list []string, word string) (n int) {
	for _, w := range list {
		if w == word {
			n++
		}
	}
	return n
}

// A showing is what the dialogues with a restriction have in them.
type showing struct{ accepted, refused bool }

func shownRestrictions(t *testing.T) map[string]*showing {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	word := regexp.MustCompile(`[a-z_]+`)
	accepted := regexp.MustCompile(`(?m)^S: 250 (2\.1\.5|2\.0\.0 Ok: queued|Queuing)`)
	refused := regexp.MustCompile(`(?m)^S: [45]\d\d `)
	shown := map[string]*showing{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		ar := txtar.Parse(data)
		dialogue := section(ar, "dialogue")
		for _, name := range word.FindAllString(section(ar, "main.cf"), -1) {
			s := shown[name]
			if s == nil {
				s = &showing{}
				shown[name] = s
			}
			s.accepted = s.accepted || accepted.MatchString(dialogue)
			s.refused = s.refused || refused.MatchString(dialogue)
		}
	}
	return shown
}
