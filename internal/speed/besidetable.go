package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// figures are those of contests, in the order of the table, before that of how much goes through.
var figures = []figure{processor, helping, middle, slowest, memory}

// besideHead prints what was measured on what, and the head of the table.
func besideHead(w io.Writer, dir string, o *options) {
	version := "of an unknown version"
	if out, err := exec.Command("postconf", "-dh", "mail_version").Output(); err == nil {
		version = strings.TrimSpace(string(out))
	}
	fmt.Fprintf(w, "Beside Postfix %s; medians of %d rounds, and the mean ratio of Posthaste to Postfix with its interval of 95 %%.\n", version, o.rounds)
	load, _, _ := strings.Cut(fileText("/proc/loadavg"), " ")
	fmt.Fprintf(w, "%d processors (%s), Linux %s, a load of %s before; the queues are in %s.\n\n", runtime.NumCPU(),
		lineOf("/proc/cpuinfo", "model name"), strings.TrimSpace(fileText("/proc/sys/kernel/osrelease")), load, dir)
	head, rule := "| workload | figure | Posthaste | Postfix | ratio |", "|---|---|---|---|---|"
	if o.busy > 0 {
		head += fmt.Sprintf(" compilers (%d) beside: Posthaste | Postfix | ratio |", o.busy)
		rule += "---|---|---|"
	}
	fmt.Fprintf(w, "%s\n%s\n", head, rule)
}

func fileText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	return string(b)
}

// lineOf is what follows the colon in the first line of a file that begins with a name.
func lineOf(path, name string) string {
	for line := range strings.Lines(fileText(path)) {
		if strings.HasPrefix(line, name) {
			_, value, _ := strings.Cut(line, ":")
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// print prints the rows of a contest. busy says that there are figures of the busy machine too.
func (c *contest) print(list []*entrant, busy bool, w io.Writer) {
	b := bufio.NewWriter(w)
	defer b.Flush()
	states := 1
	if busy {
		states = 2
	}
	for _, f := range slices.Concat([]figure{c.rate()}, figures) {
		if len(list[0].scores[0][f])+len(list[1].scores[0][f]) == 0 {
			continue
		}
		fmt.Fprintf(b, "| %s | %s |", c.name, f.name)
		for state := range states {
			fmt.Fprint(b, cells(list[0].scores[state][f], list[1].scores[state][f]))
		}
		fmt.Fprintln(b)
	}
	for _, e := range list[2:] {
		for _, f := range []figure{c.rate(), processor} {
			fmt.Fprintf(b, "| %s | %s: %s |", c.name, e.name, f.name)
			for state := range states {
				fmt.Fprintf(b, " %s | | %s of it |", cell(e.scores[state][f]), ratioOf(list[0].scores[state][f], e.scores[state][f]))
			}
			fmt.Fprintln(b)
		}
	}
}

// cells are the columns of a figure: ours, theirs, the ratio.
func cells(ours, theirs []float64) string {
	return strings.ReplaceAll(fmt.Sprintf(" %s | %s | %s |", cell(ours), cell(theirs), ratioOf(ours, theirs)), "  ", " ")
}

// ratioOf is the mean ratio of a to b, with its interval if there are pairs enough. There is none of what is not there.
func ratioOf(a, b []float64) string {
	if len(a) != len(b) || len(a) == 0 {
		return ""
	}
	if len(a) == 1 {
		return short(a[0] / b[0])
	}
	pairs := make([]pair, len(a))
	for i := range a {
		pairs[i] = pair{b[i], a[i]}
	}
	r := compare(pairs)
	return fmt.Sprintf("%s (%s to %s)", short(r.mean), short(r.low), short(r.top))
}

// cell is the median of a figure, as a table has it.
func cell(values []float64) string {
	if len(values) == 0 {
		return ""
	}
	if m := median(values); m < 100 {
		return short(m)
	} else {
		return thousands(m)
	}
}

// short writes a number with three digits that say something.
func short(x float64) string {
	switch {
	case x >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 10:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case x >= 1:
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return strconv.FormatFloat(x, 'f', 3, 64)
}
