package spooltool

import (
	"fmt"
	"io/fs"
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
	found := map[string]os.FileInfo{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		q, err := pffile.Open(f)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		found[q.Envelope.Recipients[0].Address], err = d.Info()
		return err
	})
	if err != nil {
		t.Fatal(err)
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
	if want := "3 messages moved to " + dir + ": 1 deferred, 1 on hold, 1 to be delivered at once; 0 stay here\n"; status != 0 || out != want || errs != "" {
		t.Fatalf("exit status %d, %q, %q", status, out, errs)
	}
	incoming, hold := queueFiles(t, filepath.Join(dir, "incoming")), queueFiles(t, filepath.Join(dir, "hold"))
	deferred := queueFiles(t, filepath.Join(dir, "deferred"))
	if len(incoming) != 1 || len(hold) != 1 || len(deferred) != 1 || incoming["d@to.test"] == nil || hold["h@to.test"] == nil {
		t.Fatalf("incoming %v, hold %v, deferred %v", incoming, hold, deferred)
	}
	late := deferred["todo@to.test"]
	if late == nil || !late.ModTime().Equal(in[1].Next) || late.Mode().Perm() != whole {
		t.Errorf("deferred until %v: %+v", in[1].Next, late)
	}
	at := filepath.Join(dir, "deferred", late.Name()[:1], late.Name())
	log := filepath.Join(dir, "defer", late.Name()[:1], late.Name())
	if _, err := os.Stat(at); err != nil {
		t.Errorf("it is not where Postfix looks for it: %v", err)
	}
	text, err := os.ReadFile(log)
	if want := "\n<todo@to.test>: r\nrecipient=todo@to.test\nstatus=4.4.1\naction=delayed\nreason=r\n\n"; err != nil || string(text) != want {
		t.Errorf("the reason is %q, want %q (%v)", text, want, err)
	}
	if info, err := os.Stat(log); err != nil || !info.ModTime().Equal(in[1].Outcomes[0].When) {
		t.Errorf("the reason is not of the time of the last attempt: %v", err)
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
