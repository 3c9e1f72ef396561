package console

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"posthaste/internal/proto"
)

var rewrite = flag.Bool("rewrite", false, "write what the API answers to testdata")

// varying is what differs from one run to the next: times, directories, and how full disks are.
var varying = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"`), `"TIME"`},
	{regexp.MustCompile(`dead until \d\d:\d\d:\d\d`), `dead until TIME`},
	{regexp.MustCompile(`"/[^"]*/([^/"]+)"`), `"DIR/$1"`},
	{regexp.MustCompile(`"path": "[^"]*"`), `"path": "DIR"`},
	{regexp.MustCompile(`"(free|octets|free_files)": [1-9]\d*`), `"$1": 1`},
	{regexp.MustCompile(`"seconds": \d+`), `"seconds": 1`}, // 0 on a fast machine
	{regexp.MustCompile(`"(in|sent|deferred|bounced)": [\d.e+]+`), `"$1": 1.5`},
	{regexp.MustCompile(`"Nov 24 [^"]*"`), `"LINE"`},
}

// What each GET of the API answers has the form that programs rely on: a change of it is seen in testdata/api.json.
func TestGoldenAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.throttle()
	w.set(func() {
		w.entries = []proto.OverrideEntry{{Of: "suspension", Target: "slow.test", By: "ann", Reason: "ticket 4711", Since: w.now, Until: w.now.Add(time.Hour)},
			{Of: "limit", Target: "slow.test", Most: 2, By: "ann", Since: w.now}, {Of: "diversion", Target: "slow.test", Nexthop: "[relay2.test]:587", By: "ann", Since: w.now}}
	})
	w.countIn(lookTime)
	b := w.login("ann")
	var all bytes.Buffer
	for _, o := range operations() {
		if o.method != http.MethodGet {
			continue
		}
		path := apiPath + strings.NewReplacer("{id}", queueID, "{name}", "slow.test").Replace(o.path)
		if o.name == "search" {
			path += "?q=" + url.QueryEscape(queueID)
		}
		if o.name == "whatif" {
			path += "?o=smtp_destination_concurrency_limit%3D40"
		}
		status, text, h := b.do("GET", path, nil)
		if status != http.StatusOK || h.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s\n%s", path, status, h.Get("Content-Type"), text)
			continue
		}
		all.WriteString("GET " + path + "\n")
		if err := json.Indent(&all, bytes.TrimSpace([]byte(text)), "", " "); err != nil {
			t.Fatal(err)
		}
		all.WriteString("\n\n")
	}
	if status, text, _ := b.do("GET", "/destination/slow.test", nil); status != http.StatusOK || !strings.Contains(text, "Of those who wait half have waited for at most 20 min, 95 in 100") {
		t.Errorf("the page does not say how long they have waited: %d\n%s", status, text)
	}
	if status, text, _ := b.do("GET", "/message/"+queueID, nil); status != http.StatusOK || !strings.Contains(text, "<dt>Tenant</dt>") || !strings.Contains(text, ", campaign ") {
		t.Errorf("the page does not say whose mail it is: %d\n%s", status, text)
	}
	got := all.String()
	for _, v := range varying {
		got = v.re.ReplaceAllString(got, v.to)
	}
	name := filepath.Join("testdata", "api.json")
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
		for i := range min(len(g), len(w)) {
			if g[i] != w[i] {
				t.Fatalf("%s:%d is %s, and it answers %s (-rewrite accepts it)", name, i+1, w[i], g[i])
			}
		}
		t.Fatalf("%s has %d lines, and it answers %d", name, len(w), len(g))
	}
}
