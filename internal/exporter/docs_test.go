package exporter

import (
	"encoding/json"
	"maps"
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

// dashboardLacks are the families that the dashboard has no panel for, and why.
var dashboardLacks = map[string]string{
	"posthaste_accepted_bytes":             "the panel of accepted messages says how busy the system is",
	"posthaste_smtpd_commands":             "too many series: it is for questions about one command",
	"posthaste_queue_recipients_in_memory": "it follows the queue's length, and is bounded by the configuration",
	"posthaste_scheduler_decisions":        "it follows the number of deliveries",
	"posthaste_scheduler_preemptions":      "it is for who works on the scheduler",
	"posthaste_scheduler_deliveries_busy":  "the busiest destinations have a panel",
	"posthaste_spool_messages":             "the panel of the queue has them by queue",
	"posthaste_spool_directory_up":         "few have several directories, and one that is down is an alert",
	"posthaste_spool_directory_messages":   "few have several directories; posthaste spool directories shows it",
	"posthaste_spool_directory_disk_bytes": "few have several directories; the panel of the spool has their sum",
	"posthaste_spool_segments":             "the panel of the spool has octets",
	"posthaste_warmup_recipients":          "few have addresses that warm up, and for a few weeks only; posthaste sources shows it",
	"posthaste_warmup_limit":               "few have addresses that warm up, and for a few weeks only; posthaste sources shows it",
	"posthaste_processes":                  "a service that is missing is an alert",
	"posthaste_process_open_files":         "it follows the number of connections",
}

// The dashboard has every metric in a panel, but for those that are left out for a reason.
func TestDashboardIsComplete(t *testing.T) {
	t.Parallel()
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "../../etc/metrics/dashboard.json")), &board); err != nil {
		t.Fatal(err)
	}
	known, shown, ids, places := published(), map[string]bool{}, map[int]bool{}, map[[2]int]bool{}
	lacks := maps.Clone(dashboardLacks)
	for _, p := range board.Panels {
		at := [2]int{p.GridPos.X, p.GridPos.Y}
		if ids[p.ID] || places[at] || len(p.Targets) == 0 {
			t.Errorf("panel %d, %s: its number or its place is another's, or it asks for nothing", p.ID, p.Title)
		}
		ids[p.ID], places[at] = true, true
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`posthaste_\w+`).FindAllString(target.Expr, -1) {
				shown[known[name]] = true
			}
		}
	}
	for _, f := range metrics.Families() {
		if _, left := lacks[f.Name]; left == shown[f.Name] {
			t.Errorf("%s: in a panel %v, among those that are left out %v", f.Name, shown[f.Name], left)
		}
		delete(lacks, f.Name)
	}
	for name := range lacks {
		t.Errorf("there is no metric %s to be left out", name)
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
