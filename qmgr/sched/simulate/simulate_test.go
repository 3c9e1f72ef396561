package simulate

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// play runs a workload of testdata.
func play(t *testing.T, name string) *Report {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".load"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := Run(f)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReports keeps the text report of every workload in testdata beside it,
// and requires that the same workload gives the same report.
func TestReports(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.load")
	if err != nil || len(files) == 0 {
		t.Fatal("no workloads in testdata", err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".load")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var a, b bytes.Buffer
			if err := play(t, name).WriteText(&a); err != nil {
				t.Fatal(err)
			}
			if err := play(t, name).WriteText(&b); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(a.Bytes(), b.Bytes()) {
				t.Fatalf("the same workload, two reports:\n%s\n%s", a.Bytes(), b.Bytes())
			}
			golden := filepath.Join("testdata", name+".txt")
			if *rewrite {
				if err := os.WriteFile(golden, a.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(want, a.Bytes()) {
				t.Errorf("not the report in %s (go test -rewrite):\n%s", golden, a.Bytes())
			}
		})
	}
}

// TestSmallMailSlipsPast is the point of preemption: the median wait of small
// mail behind a large one is at most a quarter of what it is first come first
// served.
func TestSmallMailSlipsPast(t *testing.T) {
	t.Parallel()
	wait := func(name string) float64 { return play(t, name).class("small").Wait(0.5).Seconds() }
	p, f := wait("bulk-preemptive"), wait("bulk-fifo")
	if p <= 0 || p > f/4 {
		t.Errorf("median wait of small mail: %.2f s preemptive, %.2f s first come first served", p, f)
	}
}

// TestLoadBalancer is the document's limitation of feedback less than one.
func TestLoadBalancer(t *testing.T) {
	t.Parallel()
	inverse, _ := play(t, "balancer-inverse").Window()
	fixed, _ := play(t, "balancer-fixed").Window()
	if inverse > 6 {
		t.Errorf("1 of 4 bad, feedback 1/N: mean window %.1f, should stay at about 4", inverse)
	}
	if fixed < 15 {
		t.Errorf("1 of 4 bad, feedback 1/4: mean window %.1f, should grow towards 20", fixed)
	}
}

// TestFormats reads the CSV and SVG reports back.
func TestFormats(t *testing.T) {
	t.Parallel()
	r := play(t, "mixed")
	var b bytes.Buffer
	if err := r.WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(lines) != len(r.Classes)+2 {
		t.Errorf("%d CSV lines for %d classes: %v", len(lines), len(r.Classes), err)
	}
	b.Reset()
	if err := r.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	paths := 0
	for d := xml.NewDecoder(&b); ; {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "path" {
			paths++
		}
	}
	if paths < len(r.Classes)+1 {
		t.Errorf("%d paths for %d classes", paths, len(r.Classes))
	}
}

func TestBadWorkloads(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                "no mail",
		"send to=smtp:a":                  "not described",
		"server a\nsend":                  "to=TRANSPORT:SERVER is missing",
		"server a\nsend to=a":             "not TRANSPORT:SERVER",
		"frobnicate":                      "not a statement",
		"qmgr active=1":                   "line 1: active=1: there is no such setting",
		"server a per_recipient=-1s":      "not within",
		"transport smtp scheduler=lifo":   "no such choice",
		"server a jitter=200%":            "not a share",
		"transport smtp process_limit=-1": "not within",
	} {
		if _, err := Run(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, should say %q", text, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.load")
	for _, name := range files {
		data, _ := os.ReadFile(name)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		w, err := read(bytes.NewReader(data))
		if err == nil && len(w.sends) == 0 {
			t.Error("accepted without mail")
		}
	})
}

func TestCommand(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		args   []string
		stdin  string
		status int
		want   string
	}{
		{[]string{"testdata/balancer-inverse.load"}, "", 0, "deferred"},
		{[]string{"-csv"}, "server a\nsend to=smtp:a\n", 0, "TOTAL,1,1,1"},
		{[]string{"-svg"}, "server a\nsend to=smtp:a\n", 0, "<svg"},
		{[]string{"testdata/none"}, "", 1, "no such file"},
		{nil, "send", 1, "line 1"},
		{[]string{"-svg", "-csv"}, "", 64, "usage"},
		{[]string{"-x"}, "", 64, "usage"},
		{[]string{"a", "b"}, "", 64, "usage"},
	} {
		var out bytes.Buffer
		if got := Command(x.args, strings.NewReader(x.stdin), &out, &out); got != x.status || !strings.Contains(out.String(), x.want) {
			t.Errorf("%q: status %d, %.200q; should be %d, %q", x.args, got, out.String(), x.status, x.want)
		}
	}
}
