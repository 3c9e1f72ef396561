package audit

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"posthaste/internal/queueclient"
)

var update = flag.Bool("update", false, "write what the audit says into the stories")

// day is when the stories happen.
var day = time.Date(2026, 11, 23, 0, 0, 0, 0, time.Local)

// form is a way to write a line: of a time of the day, a program and a text.
type form func(clock, program, text string) string

var forms = map[string]form{
	"classic": func(clock, program, text string) string {
		return "Nov 23 " + clock + " mx postfix/" + program + "[1]: " + text
	},
	"precise": func(clock, program, text string) string {
		return "2026-11-23T" + clock + ".000000" + day.Format("-07:00") + " mx postfix/" + program + "[1]: " + text
	},
	"json": func(clock, program, text string) string {
		return `{"time":"2026-11-23T` + clock + ".000000" + day.Format("-07:00") + `","host":"mx","process":"postfix/` + program + `","pid":1,"level":"info","text":"` +
			strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"}`
	},
}

// A story is an archive of
//
//	log    10:00:01 smtpd text, a line each; blank lines are left out
//	log2   the same, of another node of the same host
//	shared nodes share the queue
//	queue  the queue at the end: an ID, time of arrival and number of recipients a line, and "other" if another node has it; without the file it is not looked at
//	args   -s and -u
//	want   what is said of it
//
// It is told in every form of the log, with the same outcome.
func TestStories(t *testing.T) {
	t.Parallel()
	files, _ := filepath.Glob("testdata/*.txtar")
	if len(files) == 0 {
		t.Fatal("no stories in testdata")
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Parallel()
			ar, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			want, at := "", -1
			for i, f := range ar.Files {
				if f.Name == "want" {
					want, at = string(f.Data), i
				}
			}
			for how, f := range forms {
				got := tell(t, ar, f)
				if *update && at >= 0 {
					ar.Files[at].Data, want = []byte(got), got
				}
				if got != want {
					t.Errorf("%s:\n%s\nwant:\n%s", how, got, want)
				}
			}
			if *update {
				if err := os.WriteFile(name, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// tell audits a story.
func tell(t *testing.T, ar *txtar.Archive, f form) string {
	t.Helper()
	c := command{now: day.Add(24 * time.Hour)}
	a := newAccount("postfix", 0, math.MaxInt64)
	logs := map[string]*strings.Builder{"log": {}, "log2": {}}
	for _, file := range ar.Files {
		for line := range strings.Lines(string(file.Data)) {
			words := strings.SplitN(strings.TrimSpace(line), " ", 3)
			switch {
			case words[0] == "":
			case logs[file.Name] != nil:
				logs[file.Name].WriteString(f(words[0], words[1], words[2]) + "\n")
			case file.Name == "queue":
				at, _, err := queueclient.ParseMoment("2026-11-23T"+words[1], c.now)
				if err != nil {
					t.Fatal(err)
				}
				h := &held{arrival: at.UnixMicro()}
				rest := strings.Fields(words[2])
				fmt.Sscan(rest[0], &h.pending)
				h.other = len(rest) > 1
				a.queue[words[0]] = h
			case file.Name == "args":
				if err := c.parse(strings.Fields(line)); err != nil {
					t.Fatal(err)
				}
			}
		}
		a.looked = a.looked || file.Name == "queue"
		a.shared = a.shared || file.Name == "shared"
		if file.Name == "log" { // the queue comes behind it
			a.queue = make(map[string]*held)
		}
	}
	if !c.since.IsZero() {
		a.since = c.since.UnixMicro()
	}
	if !c.until.IsZero() {
		a.until = c.until.UnixMicro()
	}
	var names []string
	for name, log := range logs {
		if log.Len() == 0 {
			continue
		}
		name = filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(name, []byte(log.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if err := a.read(names, nil, c.now); err != nil {
		t.Fatal(err)
	}
	a.finish()
	in, out := a.report.Balance.sums()
	if in != out {
		t.Errorf("%v came, and %v is told of", in, out)
	}
	var b strings.Builder
	if err := a.report.Text(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
