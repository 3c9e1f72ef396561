package spooltool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/cli"
	"posthaste/internal/spooltool/faketest"
)

// wreck zeroes what tells a spool's identity: IDENTITY, and both headers of all segments.
func wreck(t *testing.T, dir string) {
	t.Helper()
	segs, err := filepath.Glob(filepath.Join(dir, "seg", "*.seg"))
	if err != nil || len(segs) == 0 {
		t.Fatal(segs, err)
	}
	for _, name := range append(segs, filepath.Join(dir, "IDENTITY")) {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, 8192), 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// What salvage writes of a spool that does not start is what export wrote before.
func TestSalvage(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	ids := s.Fill(mails()...)
	whole, saved, moved := t.TempDir(), filepath.Join(t.TempDir(), "saved"), filepath.Join(t.TempDir(), "moved")
	if _, errs, status := run(s, "export", "-a", whole); status != 0 {
		t.Fatal(errs)
	}
	if out, errs, status := run(s, "salvage", saved); status != 0 || !strings.HasPrefix(out, "3 messages written") {
		t.Errorf("of a sound spool: %d %s%s", status, out, errs)
	}
	dir := filepath.Join(s.Queue, "spool")
	wreck(t, dir)
	if out, _, status := run(s, "check"); status != cli.ExitData || !strings.Contains(out, "identity cannot be read") {
		t.Errorf("check: %d %s", status, out)
	}
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(saved); err != nil {
		t.Fatal(err)
	}
	out, errs, status := run(s, "salvage", "-d", moved, saved)
	if status != cli.ExitData || !strings.HasPrefix(out, "3 messages written") {
		t.Errorf("%d %s%s", status, out, errs)
	}
	for _, id := range ids {
		want, err := os.ReadFile(filepath.Join(whole, string(id)+suffix))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(saved, string(id)+suffix))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %v\n%.300s\nwant\n%.300s", id, err, got, want)
		}
	}
	if list, err := os.ReadFile(filepath.Join(saved, lostFile)); err != nil || !strings.Contains(string(list), "worked out from the records") {
		t.Errorf("%q, %v", list, err)
	}
	// An envelope that is gone leaves the content of a large message.
	name := filepath.Join(moved, "big", string(ids[0]))
	large, err := filepath.Glob(filepath.Join(moved, "big", "*"))
	if err != nil || len(large) != 1 {
		t.Fatal(large, err)
	}
	if err := os.Link(large[0], name); err != nil && large[0] != name {
		t.Fatal(err)
	}
	stray := filepath.Join(moved, "big", "4SVLCh0000z7")
	if err := os.Link(large[0], stray); err != nil {
		t.Fatal(err)
	}
	if _, _, status := run(s, "salvage", "-d", moved, saved); status != cli.ExitData {
		t.Error(status)
	}
	bare, err := os.ReadFile(filepath.Join(saved, "4SVLCh0000z7"+bareSuffix))
	if err != nil || string(bare) != mails()[1].Content {
		t.Errorf("%d octets of content, %v", len(bare), err)
	}
	for _, args := range [][]string{{"salvage"}, {"salvage", "a", "b"}, {"salvage", "-x", "a"}} {
		if _, _, status := run(s, args...); status != cli.ExitUsage {
			t.Errorf("%q: %d", args, status)
		}
	}
	if _, _, status := run(s, "salvage", "-d", filepath.Join(moved, "none"), saved); status != cli.ExitNoInput {
		t.Error(status)
	}
}
