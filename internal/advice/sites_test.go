package advice

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"posthaste/internal/config"
)

var update = flag.Bool("update", false, "rewrite the findings of testdata")

// TestSites: what is said of the lines of main.cf and master.cf as sites have
// them, with the start's warnings. Whether tables are built is not looked at.
func TestSites(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			ar, err := txtar.ParseFile(file)
			if err != nil || len(ar.Files) != 3 {
				t.Fatal("expected main.cf, master.cf and findings", err)
			}
			got := findings(t, ar)
			if *update {
				ar.Files[2].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := string(ar.Files[2].Data); got != want {
				t.Errorf("findings:\n%s\nexpected:\n%s", got, want)
			}
		})
	}
}

func findings(t *testing.T, ar *txtar.Archive) string {
	dir := t.TempDir()
	for _, f := range ar.Files[:2] {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	services, err := config.LoadMaster(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	lines := cfg.Warnings()
	for i := range services {
		lines = append(lines, services[i].Warnings(cfg)...)
	}
	for _, line := range append(lines, Behavior(cfg, services)...) {
		if line, ok := strings.CutPrefix(line, dir+"/"); ok { // the others are of defaults
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}
