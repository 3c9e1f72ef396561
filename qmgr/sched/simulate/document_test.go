package simulate

import (
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestDocument: docs/scheduler.md has the figures of testdata, each line of them, and no others
// in these tables.
func TestDocument(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/scheduler.md")
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) []string {
		text, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(text), "\n")
	}
	for heading, want := range map[string][]string{
		"### Full connection queue":                tableRows(read("tables.txt"), "full connection", 11),
		"### Connection queue that is never full":  tableRows(read("tables.txt"), "connection queue", 11),
		"### Active limiter":                       tableRows(read("tables.txt"), "active limiter", 8),
		"## A bad server behind a load balancer\n": balancerRows(read("balancer.txt")),
	} {
		got := documentRows(string(page), heading)
		if strings.Join(got, "\n") != strings.Join(want, "\n") || len(want) == 0 {
			t.Errorf("%s: docs/scheduler.md has\n%s\nand testdata\n%s", strings.TrimSpace(heading), strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestDocumentWaits: docs/scheduler.md has the waits of the reports.
func TestDocumentWaits(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/scheduler.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		report, class string
		columns       []int // of median, 90 %, longest
		whole         bool  // seconds
	}{
		{"bulk-preemptive", "small", []int{0, 1, 2}, false}, {"bulk-fifo", "small", []int{0, 1, 2}, false}, {"bulk-thread", "small", []int{0, 1, 2}, false},
		{"fair-preemptive", "small", []int{0, 2}, false}, {"fair-fifo", "small", []int{0, 2}, false}, {"fair-unbound", "small", []int{0, 2}, false}, {"fair-thread", "small", []int{0, 2}, false},
		{"storm", "good", []int{0, 1, 2}, true}, {"storm-slow", "good", []int{0, 1, 2}, true},
	} {
		text, err := os.ReadFile("testdata/" + tt.report + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		var cells []string
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) != 11 || fields[0] != tt.class {
				continue
			}
			for _, i := range tt.columns {
				cells = append(cells, cell(t, fields[5+2*i], tt.whole))
			}
		}
		if row := strings.Join(cells, " | "); row == "" || !strings.Contains(string(page), "| "+row+" |") {
			t.Errorf("%s: %q is not in docs/scheduler.md", tt.report, row)
		}
	}
}

// cell is a time as the document has it: whole ones rounded, with a comma in thousands.
func cell(t *testing.T, text string, whole bool) string {
	t.Helper()
	if !whole {
		return text + " s"
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	text = strconv.Itoa(int(math.Round(value)))
	if n := len(text); n > 3 {
		text = text[:n-3] + "," + text[n-3:]
	}
	return text + " s"
}

// documentRows are the rows, without the head, of the first table below a heading.
func documentRows(page, heading string) (rows []string) {
	_, page, _ = strings.Cut(page, heading)
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "|"):
			rows = append(rows, strings.TrimSpace(line))
		case len(rows) > 2:
			return rows[2:]
		}
	}
	return nil
}

// asRow writes fields as a row of a document's table.
func asRow(fields ...string) string { return "| " + strings.Join(fields, " | ") + " |" }

// tableRows are the lines below a title of tables.txt, as a document has them: the first n
// columns.
func tableRows(lines []string, title string, n int) (rows []string) {
	inside := false
	for _, line := range lines {
		fields := strings.Fields(line)
		switch {
		case len(line) > 0 && line[0] != ' ':
			inside = strings.HasPrefix(line, title)
		case inside && len(fields) == 11 && fields[0] != "feedback":
			rows = append(rows, asRow(fields[:n]...))
		}
	}
	return rows
}

// balancerRows are the lines of balancer.txt as a document has them: those of both arithmetics
// beside each other.
func balancerRows(lines []string) (rows []string) {
	var plain, rounded [][]string
	for _, line := range lines {
		switch fields := strings.Fields(strings.ReplaceAll(line, "1/concurrency", "1/N")); {
		case len(fields) != 6:
		case fields[0] == "plain":
			plain = append(plain, fields)
		case fields[0] == "rounded":
			rounded = append(rounded, fields)
		}
	}
	for i, p := range plain {
		rows = append(rows, asRow(p[1]+", "+p[2], p[3], p[4], p[5], rounded[i][4], rounded[i][5]))
	}
	return rows
}
