package pickup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/statedir"
	"posthaste/internal/submit"
)

// A process knows whether the one before it came to its end.
func TestRunning(t *testing.T) {
	t.Parallel()
	dir, err := statedir.Open(filepath.Join(t.TempDir(), "pickup"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	killed := errors.New("killed")
	for i, step := range []struct{ ends, want bool }{{true, false}, {false, false}, {false, true}, {true, true}, {true, false}} {
		died, end, err := running(dir, func(op, path string) error {
			if !step.ends {
				return killed
			}
			return nil
		})
		if err != nil || died != step.want {
			t.Errorf("process %d: died %v, %v", i, died, err)
		}
		if err := end(); err != nil != !step.ends {
			t.Errorf("process %d: %v", i, err)
		}
	}
}

// What may be queued twice is named: of what was submitted while a process that died was there, all; and what
// postdrop takes back while it is on its way to cleanup.
func TestDoubtIsNamed(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for _, c := range []struct {
		name      string
		died      bool
		submitted time.Time
		withdrawn bool
		want      string // after the queue ID; empty: nothing
	}{
		{name: "nothing"},
		{name: "left by one that died", died: true, submitted: began.Add(-time.Minute), want: "a pickup process that died may have queued it already"},
		{name: "left by one that ended", submitted: began.Add(-time.Minute)},
		{name: "submitted since", died: true, submitted: began.Add(time.Second)},
		{name: "withdrawn", submitted: began.Add(time.Second), withdrawn: true, want: "has been withdrawn"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			drop := filepath.Join(dir, "maildrop")
			if err := os.Mkdir(drop, 0o755); err != nil {
				t.Fatal(err)
			}
			h := &maildrop.Header{Time: c.submitted, UID: os.Getuid(), Sender: "a@from.test", Recipients: []mail.Recipient{{Address: "b@to.test"}}}
			if err := (maildrop.Box{Dir: drop}).Store(h, strings.NewReader("Subject: x\n\nx\n"), 0); err != nil {
				t.Fatal(err)
			}
			got := make(chan *ipc.Request, 1)
			submitter := submit.New(serveCleanup(t, filepath.Join(dir, "cleanup"), got))
			defer submitter.Close()
			var log strings.Builder
			w := maillog.NewWriter(&log, maillog.Plain)
			p := New(Options{Dir: drop, Submit: submitter, Log: maillog.New("pickup", w), Parallel: 1, Owner: os.Getuid(), Died: c.died, Began: began})
			if left := c.died && c.submitted.Before(began); p.doubtful() != left {
				t.Errorf("before it is queued it is doubtful: %v", p.doubtful())
			}
			done := make(chan error, 1)
			go func() { done <- p.Scan(t.Context()) }()
			r := <-got
			if c.withdrawn {
				names, _ := filepath.Glob(drop + "/*")
				if len(names) != 1 || os.Remove(names[0]) != nil {
					t.Errorf("files: %q", names)
				}
			}
			r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"})
			if err := <-done; err != nil {
				t.Error(err)
			}
			w.Close()
			if s := log.String(); strings.Contains(s, ": in doubt: ") != (c.want != "") || !strings.Contains(s, c.want) || strings.Contains(s, "no such file") {
				t.Error(s)
			}
			if p.doubtful() {
				t.Error("there is still doubt")
			}
			if left, _ := os.ReadDir(drop); len(left) != 0 {
				t.Errorf("%d files are left", len(left))
			}
		})
	}
}
