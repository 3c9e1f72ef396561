package dayreport

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"context"

	"posthaste/internal/statedir"
)

func open(t *testing.T, dir string) *Journal {
	t.Helper()
	d, err := statedir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return &Journal{Dir: d, Hostname: "mx.test", Suffix: ".json", Warn: func(format string, args ...any) { t.Errorf(format, args...) }}
}

// Counts of a day are read again until they are dropped; what a crash has cut off is passed over.
func TestJournal(t *testing.T) {
	t.Parallel()
	j := open(t, filepath.Join(t.TempDir(), "new"))
	day := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)
	for _, text := range []string{"one\ntwo\n", "three\nhal"} {
		if err := j.Append("2026-11-25", []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Append("2026-11-26", []byte("x\n")); err != nil {
		t.Fatal(err)
	}
	var lines []string
	if err := j.Lines("2026-11-25", func(line []byte) { lines = append(lines, string(line)) }); err != nil || !slices.Equal(lines, []string{"one\n", "two\n", "three\n"}) {
		t.Errorf("%q %v", lines, err)
	}
	if n := j.Size("2026-11-25"); n != 17 {
		t.Errorf("%d octets", n)
	}
	due := Due("mx.test", day)
	if after := due.Sub(day); after < 24*time.Hour+10*time.Minute || after > 28*time.Hour {
		t.Errorf("due after %v", after)
	}
	for at, want := range map[time.Time]int{due.Add(-time.Second): 0, due: 1, due.Add(48 * time.Hour): 2} {
		if days, err := j.Finished(at); err != nil || len(days) != want || want > 0 && !days[0].Equal(day) {
			t.Errorf("at %v: %v %v", at, days, err)
		}
	}
	if err := j.Drop("2026-11-25"); err != nil {
		t.Error(err)
	}
	if days, err := j.Days(); err != nil || len(days) != 1 {
		t.Errorf("%v %v", days, err)
	}
	if j.GivenUp(day, due.Add(24*time.Hour)) || !j.GivenUp(day, due.Add(24*time.Hour+time.Second)) {
		t.Error("reports are given up too early or too late")
	}
}

// Reports wait until they are removed, and one process alone has the lock.
func TestReports(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, other := open(t, dir), open(t, dir)
	for i := range 3 {
		if err := j.Save(fmt.Sprint(i), []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	if !j.Locked(func() {
		if other.Locked(func() { t.Error("two have the lock") }) {
			t.Error("a lock that another has")
		}
		j.Each(t.Context(), func(path string) {
			if !strings.HasSuffix(path, "1.json") {
				j.Remove(path)
			}
		})
	}) {
		t.Error("no lock")
	}
	if left := j.Waiting(); len(left) != 1 || left[0] != "report/1.json" {
		t.Errorf("%q", left)
	}
}

// Run writes once a minute, also while reports are being sent, and at the end.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := open(t, t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		flushed, steps := 0, 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			j.Run(ctx, func() { flushed++ }, func(ctx context.Context, _ time.Time) {
				steps++
				<-ctx.Done()
			})
		}()
		time.Sleep(2*time.Hour + time.Second)
		synctest.Wait()
		if flushed != 120 || steps != 1 {
			t.Errorf("%d times written, %d times sent", flushed, steps)
		}
		cancel()
		<-done
		if flushed != 121 {
			t.Errorf("%d times written", flushed)
		}
	})
}

// The addresses of mailto: URIs are one each; base64 comes in lines.
func TestMail(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{"mailto:a@b.test": "a@b.test", "mailto:a%2Bb@c.test": "a+b@c.test", "mailto:a@b.test%0d%0aBcc:x@y.test": "", "mailto:a@b.test,c@d.test": "", "mailto:": "", "mailto:%zz": "", "mailto:root": "", "mailto:root@": ""} {
		u, err := url.Parse(uri)
		if err != nil {
			if want != "" {
				t.Error(err)
			}
			continue
		}
		if got, err := Mailto(u); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q %v", uri, got, err)
		}
	}
	data := bytes.Repeat([]byte{1, 2, 3}, 100)
	text := string(AppendBase64(nil, data))
	for line := range strings.Lines(text) {
		if len(line) > 78 || !strings.HasSuffix(line, "\r\n") {
			t.Errorf("%q", line)
		}
	}
	if got, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(text, "\r\n", "")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%v", err)
	}
}
