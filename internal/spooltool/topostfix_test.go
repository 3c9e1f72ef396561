package spooltool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/spooltool/pffile"
)

// queueFiles are the files below a queue of Postfix's, by first recipient.
func queueFiles(t *testing.T, dir string) map[string]os.FileInfo {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]os.FileInfo{}
	for _, d := range list {
		f, err := os.Open(filepath.Join(dir, d.Name()))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		q, err := pffile.Open(f)
		if err != nil {
			t.Fatalf("%s: %v", d.Name(), err)
		}
		info, err := d.Info()
		if err != nil {
			t.Fatal(err)
		}
		found[q.Envelope.Recipients[0].Address] = info
	}
	return found
}

// The queue becomes queue files, and leaves ours only then.
func TestExportToPostfix(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	in := mails()
	in[1].Next = time.Now().Add(time.Hour).Truncate(time.Second)
	s.Fill(in...)
	dir := postfixQueue(t, map[string]os.FileMode{"incoming/A1": 0o700})
	if err := os.MkdirAll(filepath.Join(dir, "hold"), 0o700); err != nil {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(dir, "incoming", "A1"))
	out, errs, status := run(s, "export", "-r", "-p", dir)
	if status != 0 || !strings.HasPrefix(out, "3 messages exported to "+dir) {
		t.Fatalf("exit status %d, %q, %q", status, out, errs)
	}
	incoming, hold := queueFiles(t, filepath.Join(dir, "incoming")), queueFiles(t, filepath.Join(dir, "hold"))
	if len(incoming) != 2 || len(hold) != 1 || incoming["d@to.test"] == nil || hold["h@to.test"] == nil {
		t.Fatalf("incoming %v, hold %v", incoming, hold)
	}
	late := incoming["todo@to.test"]
	if late == nil || !late.ModTime().Equal(in[1].Next) || late.Mode().Perm() != whole {
		t.Errorf("deferred until %v: %+v", in[1].Next, late)
	}
	if left := s.Entries(); len(left) != 0 {
		t.Errorf("%d messages are still here", len(left))
	}
	if out, _, status := run(s, "export", "-r", "-p", dir); status != 0 || !strings.HasPrefix(out, "0 messages") {
		t.Errorf("once more: exit status %d, %q", status, out)
	}
}

func TestExportToPostfixRefused(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	s.Fill(mails()...)
	if _, errs, status := run(s, "export", "-p", t.TempDir()); status != 66 || !strings.Contains(errs, "not a Postfix queue") {
		t.Errorf("no queue: exit status %d, %q", status, errs)
	}
	dir := postfixQueue(t, map[string]os.FileMode{"incoming/A1": 0o700})
	os.Remove(filepath.Join(dir, "incoming", "A1"))
	s.Serve("qmgr", func(r *ipc.Request) { r.Fail("not asked") })
	if _, errs, status := run(s, "export", "-p", dir); status != 75 || !strings.Contains(errs, "stop it first") {
		t.Errorf("while it runs: exit status %d, %q", status, errs)
	}
	if left := queueFiles(t, filepath.Join(dir, "incoming")); len(left) != 0 {
		t.Errorf("%v", left)
	}
	if _, _, status := run(s, "export", "-r", "-a", dir); status != 64 {
		t.Errorf("-r with -a: exit status %d", status)
	}
}
