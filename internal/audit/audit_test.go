package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/spool"
	"posthaste/internal/spooltool/faketest"
)

// run carries out the command for a site.
func run(s *faketest.Site, stdin string, args ...string) (out, errs string, status int) {
	var o, e bytes.Buffer
	status = Run("posthaste audit", append([]string{"-c", s.Config}, args...), strings.NewReader(stdin), &o, &e)
	return o.String(), e.String(), status
}

// accepted are the lines of a message that is taken up.
func accepted(at time.Time, id string) string {
	stamp := at.Format("2006-01-02T15:04:05.000000Z07:00")
	return stamp + " mx postfix/pickup[1]: " + id + ": uid=0 from=<s@from.test>\n" +
		stamp + " mx postfix/qmgr[1]: " + id + ": from=<s@from.test>, size=3, nrcpt=1 (queue active)\n"
}

// While the mail system is down its spool says what is in the queue, and its log the rest.
func TestDown(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	ids := s.Fill(faketest.Mail{Queue: spool.Deferred, Attempts: 1, Next: time.Now().Add(time.Hour), Content: "x\r\n",
		Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Recipients: []mail.Recipient{{Address: "a@to.test"}}}})
	before := time.Now().Add(-time.Hour)
	write := func(text string) {
		if err := os.WriteFile(s.Log, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(accepted(before, string(ids[0])))
	if out, errs, status := run(s, ""); status != 0 || errs != "" || !strings.Contains(out, "queued                          1          1") {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
	write(accepted(before, string(ids[0])) + accepted(before, "4aAAAA1z"))
	out, _, status := run(s, "", "-j")
	var r struct {
		AddsUp   bool             `json:"adds_up"`
		Fates    map[string]Count `json:"fates"`
		Problems []Problem        `json:"problems"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 1 || r.AddsUp || r.Fates["lost"].Messages != 1 || len(r.Problems) != 1 || r.Problems[0].ID != "4aAAAA1z" || r.Problems[0].Kind != "lost" {
		t.Errorf("status %d, %v: %s", status, err, out)
	}
	if _, _, status := run(s, "", "-q", "none"); status != 0 {
		t.Errorf("without the queue: status %d", status)
	}
	// A rotated log, and a listing.
	if err := os.Rename(s.Log, s.Log+".1"); err != nil {
		t.Fatal(err)
	}
	write(time.Now().Format(time.RFC3339) + " mx postfix/postsuper[1]: 4aAAAA1z: removed\n")
	list := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(list, []byte(`{"queue_name": "deferred", "queue_id": "`+string(ids[0])+`", "arrival_time": 1, "recipients": [{"address": "a@to.test"}]}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(list, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if out, errs, status := run(s, "", "-q", list); status != 0 || !strings.Contains(out, "deleted                         1          1") {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
}

// Of a running mail system what comes after its queue was listed does not count.
func TestRunning(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	s.Serve("qmgr", func(r *ipc.Request) {
		r.Reply(&proto.ListReply{Items: []proto.Item{{ID: "4aAAAA1z", Queue: "active", Arrival: time.Now().Add(-time.Hour), Recipients: []proto.ItemRcpt{{Address: "a@to.test"}}}}})
	})
	log := accepted(time.Now().Add(-time.Hour), "4aAAAA1z") + accepted(time.Now().Add(time.Hour), "4bBBBB2z")
	out, errs, status := run(s, log, "-")
	if status != 0 || !strings.Contains(out, "accepted                        1          1") || !strings.Contains(out, "queued                          1          1") {
		t.Errorf("status %d, %s%s", status, out, errs)
	}
}

// What the node delivers and has not accepted was taken over, if it is younger than the log.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	start := time.Now().Add(-time.Hour)
	stamp := start.Format("2006-01-02T15:04:05.000000Z07:00")
	log := ""
	for i, born := range []time.Time{start.Add(-time.Minute), start.Add(time.Minute)} {
		id := string(mail.MakeQueueID(born, uint64(i+1)))
		log += stamp + " mx postfix/qmgr[1]: " + id + ": from=<s@from.test>, size=3, nrcpt=1 (queue active)\n" +
			stamp + " mx postfix/smtp[1]: " + id + ": to=<a@b.test>, relay=x, delay=1, delays=0/0/0/1, dsn=2.0.0, status=sent (ok)\n" +
			stamp + " mx postfix/qmgr[1]: " + id + ": removed\n"
		stamp = start.Add(2 * time.Minute).Format("2006-01-02T15:04:05.000000Z07:00")
	}
	for _, shared := range []bool{false, true} {
		a := newAccount("postfix", 0, math.MaxInt64)
		a.shared = shared
		if err := a.read([]string{"-"}, strings.NewReader(log), time.Now()); err != nil {
			t.Fatal(err)
		}
		a.finish()
		want := Count{}
		if shared {
			want = Count{1, 1}
		}
		if b := &a.report.Balance; b.Origins[taken] != want || b.Before != (Count{1, 1}) || b.Fates[delivered] != (Count{2, 2}) {
			t.Errorf("shared %v: %+v", shared, b)
		}
	}
}

// Files of one host that follow each other are one log, whatever they are called; a session may go on from one to the next. Files
// that overlap are the logs of two nodes.
func TestFollows(t *testing.T) {
	t.Parallel()
	line := func(second int, text string) string {
		return time.Date(2026, 11, 23, 10, 0, second, 0, time.UTC).Format(time.RFC3339) + " mx postfix/" + text + "\n"
	}
	connect, disconnect := "smtpd[1]: connect from c.test[192.0.2.1]", "smtpd[1]: disconnect from c.test[192.0.2.1] commands=0"
	for _, c := range []struct {
		first, second string
		nodes         int
	}{
		{line(1, connect), line(2, disconnect), 1},
		{line(1, connect) + line(3, disconnect), line(2, connect) + line(4, disconnect), 2},
	} {
		dir := t.TempDir()
		a := newAccount("postfix", 0, math.MaxInt64)
		var names []string
		for name, text := range map[string]string{"monday": c.first, "tuesday": c.second} {
			name = filepath.Join(dir, name)
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			names = append(names, name)
		}
		if err := a.read(names, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
		if len(a.nodes) != c.nodes || len(a.sessions) != 0 {
			t.Errorf("%d nodes, want %d; %d sessions go on", len(a.nodes), c.nodes, len(a.sessions))
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestMistakes(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		status int
		text   string
	}{
		{[]string{"-x"}, 64, "usage: "},
		{[]string{"-s", "yesterday"}, 64, "is not a time"},
		{[]string{"-s", "1h", "-u", "2h"}, 64, "nothing lies between"},
		{nil, 66, "mail.log"},
		{[]string{"/nonexistent"}, 66, "/nonexistent"},
		{[]string{"-q", "/nonexistent"}, 66, "/nonexistent"},
		{[]string{"-q", bad}, 66, bad},
		{[]string{"-c", "/nonexistent"}, 78, "/nonexistent"},
	} {
		out, errs, status := run(s, "", c.args...)
		if status != c.status || out != "" || !strings.HasPrefix(errs, "posthaste audit: fatal: ") || !strings.Contains(errs, c.text) {
			t.Errorf("%q: status %d, %s%s", c.args, status, out, errs)
		}
	}
	syslog := faketest.New(t, "maillog_file =\n")
	if _, errs, status := run(syslog, ""); status != 64 || !strings.Contains(errs, "name the log") {
		t.Errorf("a log that is no file: status %d, %s", status, errs)
	}
	var errs bytes.Buffer
	if status := Run("posthaste audit", []string{"-c", s.Config, "-"}, strings.NewReader(""), fullDisk{}, &errs); status != 74 {
		t.Errorf("a full disk: status %d, %s", status, errs.String())
	}
}
