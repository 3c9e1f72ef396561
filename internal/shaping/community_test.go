package shaping

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCommunity reads KumoMTA's own files, where somebody has them: those of a checkout.
func TestCommunity(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("KUMOMTA")
	if dir == "" {
		t.Skip("SKIPPED: KUMOMTA does not name a checkout of KumoMTA")
	}
	rules, warnings, err := Load([]string{filepath.Join(dir, "assets/policy-extras/shaping.toml"), filepath.Join(dir, "assets/community/shaping.toml")})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warnings {
		t.Log(w)
	}
	honoured, named, ignored := rules.Count()
	t.Logf("%d keys are honoured, %d are named, %d steer the insides of KumoMTA; %d rules of automation", honoured, named, ignored, len(rules.Automation()))
	if len(rules.Automation()) < 40 || honoured < 200 {
		t.Error("that is less than there was")
	}
}

// TestDocuments loads every example of a shaping file in KumoMTA's manual, where somebody has it: no key and no action in one
// is unknown here.
func TestDocuments(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("KUMOMTA")
	if dir == "" {
		t.Skip("SKIPPED: KUMOMTA does not name a checkout of KumoMTA")
	}
	example := regexp.MustCompile(`(?s)(?:\{% *call toml_data\(\) *%\}|\n *` + "```toml" + `[^\n]*\n)(.*?)(?:\{% *endcall *%\}|\n *` + "```" + `)`)
	// Other files of KumoMTA's have these, and an excerpt of what holds in the end has no section.
	others := regexp.MustCompile(`(?m)^ *(\[+(queue|pool|source|tenant|signature|base|domain|rules|spool|metrics|acl|user|group)\b|(relay_to|relay_from|log_oob|log_arf)\b)|queue_helper`)
	section := regexp.MustCompile(`(?m)^\[`)
	files, rules := 0, 0
	err := filepath.WalkDir(filepath.Join(dir, "docs"), func(name string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".md" || strings.Contains(name, "/changelog/") {
			return err
		}
		page, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for _, m := range example.FindAllSubmatch(page, -1) {
			text := string(m[1])
			if !bytes.Contains(page, []byte("shaping")) {
				break
			}
			if others.MatchString(text) || !section.MatchString(text) {
				continue
			}
			loaded, warnings, err := Load(write(t, text))
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, text)
				continue
			}
			for _, w := range warnings {
				if strings.Contains(w.Text, "is not known") || strings.Contains(w.Text, "is without effect") {
					t.Errorf("%s: %s\n%s", name, w.Text, text)
				}
			}
			files, rules = files+1, rules+len(loaded.Automation())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d examples, %d rules of automation in them", files, rules)
	if files < 18 || rules < 8 {
		t.Error("that is less than there was")
	}
}
