package exporter

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/metrics"
	"posthaste/internal/testpeers"
)

// published are the names that a scrape may have, by family.
func published() map[string]string {
	names := make(map[string]string)
	for _, f := range metrics.Families() {
		switch f.Kind {
		case metrics.Counter:
			names[f.Name+"_total"] = f.Name
		case metrics.Gauge:
			names[f.Name] = f.Name
		case metrics.Histogram:
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				names[f.Name+suffix] = f.Name
			}
		}
	}
	return names
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The document says of every metric what the code says, and of no other.
func TestDocument(t *testing.T) {
	t.Parallel()
	doc := read(t, "../../docs/metrics.md")
	rows := 0
	for _, f := range metrics.Families() {
		name := f.Name
		if f.Kind == metrics.Counter {
			name += "_total"
		}
		list := f.Labels
		if f.PerService {
			list = append([]string{"service"}, list...)
		}
		shown := ""
		if len(list) > 0 {
			shown = "`" + strings.Join(list, "` `") + "`"
		}
		row := "| `" + name + "` | " + f.Kind.String() + " | " + shown + " | " + f.Help + " |\n"
		if !strings.Contains(doc, row) {
			t.Errorf("docs/metrics.md does not have the row\n%s", row)
		}
		rows++
	}
	if n := strings.Count(doc, "\n| `posthaste_"); n != rows {
		t.Errorf("docs/metrics.md has %d metrics, the code %d", n, rows)
	}
}

// The dashboard and the rules ask for nothing that is not published.
func TestNamesInUse(t *testing.T) {
	t.Parallel()
	if !json.Valid([]byte(read(t, "../../etc/metrics/dashboard.json"))) {
		t.Error("dashboard.json is not JSON")
	}
	known := published()
	for _, path := range []string{"../../etc/metrics/dashboard.json", "../../etc/metrics/alerts.yml"} {
		used := regexp.MustCompile(`posthaste_\w+`).FindAllString(read(t, path), -1)
		if len(used) == 0 {
			t.Errorf("%s uses no metric", path)
		}
		for _, name := range used {
			if known[name] == "" {
				t.Errorf("%s: there is no metric %s", path, name)
			}
		}
	}
}

// The rules are valid, and tell trouble from an ordinary day.
func TestRules(t *testing.T) {
	t.Parallel()
	promtool := testpeers.Program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "../../etc/metrics/alerts.yml"}, {"test", "rules", "testdata/alerts_test.yml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
