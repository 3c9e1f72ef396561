package advice

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"posthaste/etc"
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
	services, faulty, err := config.LoadMaster(dir, cfg)
	if err != nil || len(faulty) > 0 {
		t.Fatal(faulty, err)
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

// TestSitesMistakes: what sites have, as distributions ship it and as our documents say it,
// is not called a mistake.
func TestSitesMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range siteFiles(t) {
		s := newStage(t)
		for _, m := range s.mistakes(t, c.main, c.master) {
			if strings.Contains(m.Text, "this machine does not have the address") {
				continue // the page is of other machines
			}
			if !m.Stops && (strings.Contains(m.Text, "there is no such program") || strings.Contains(m.Text, ": no process listens on ") ||
				strings.Contains(m.Text, "/crm.secret: no such file")) || strings.Contains(m.Text, "/etc/posthaste/shaping.toml: no such file") {
				continue // on this machine it is true
			}
			t.Errorf("%s: %s (stops: %v)", c.name, m, m.Stops)
		}
	}
}

type siteFile struct{ name, main, master string }

// block finds settings in a document, services what it adds to master.cf.
var (
	block    = regexp.MustCompile("(?s)```main\\.cf\n(.*?)```")
	services = regexp.MustCompile("(?s)```master\\.cf\n(.*?)```")
)

func siteFiles(t *testing.T) (list []siteFile) {
	t.Helper()
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatal(archives, err)
	}
	for _, file := range archives {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, siteFile{file, string(ar.Files[0].Data), string(ar.Files[1].Data)})
	}
	list = append(list, siteFile{"etc", etc.Main, etc.Master})
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatal(docs, err)
	}
	for _, file := range docs {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		master := etc.Master
		for _, m := range services.FindAllStringSubmatch(string(text), -1) {
			master += m[1] + "\n"
		}
		for i, m := range block.FindAllStringSubmatch(string(text), -1) {
			list = append(list, siteFile{fmt.Sprintf("%s, %d", file, i), m[1] + "\n", master})
		}
	}
	for _, file := range []string{"main.cf.debian", "main.cf.dist", "main.cf.tls"} { // of Debian's package, where it is
		if text, err := os.ReadFile("/usr/share/postfix/" + file); err == nil {
			if master, err := os.ReadFile("/usr/share/postfix/master.cf.dist"); err == nil {
				list = append(list, siteFile{file, "myhostname = mail.example.org\n" + string(text), string(master)})
			}
		}
	}
	return list
}
