package qshape

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/statedir"
)

// A table of an earlier time is that of the last sample before it; what it has no name for stands
// in the last row.
func TestAt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "history")
	s := faketest.New(t, "queue_history_directory = "+dir+"\n")
	at := func(text string) time.Time {
		tm, err := time.ParseInLocation("2006-01-02T15:04:05", text, time.Local)
		if err != nil {
			t.Fatal(err)
		}
		return tm
	}
	fails := func(status int, want string, args ...string) {
		t.Helper()
		if out, errs, got := run(s, args...); got != status || !strings.Contains(errs, want) || out != "" {
			t.Errorf("%q: exit status %d, %q\n%s", args, got, errs, out)
		}
	}
	fails(66, "the console service takes them", "--at", "2026-11-24T08:00")
	d, err := statedir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	w, err := history.OpenWriter(d, history.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for i, tables := range [][]history.Table{
		{{Queue: "incoming", Rows: []history.Row{{Domain: "early.test", Counts: history.Counts{1}}}}},
		{{Queue: "incoming", Rows: []history.Row{{Domain: "a.test", Counts: history.Counts{3, 0, 1}}, {Domain: "to.test", Counts: history.Counts{9: 2}}}},
			{Queue: "incoming", Senders: true, Rows: []history.Row{{Domain: "", Counts: history.Counts{5}}}},
			{Queue: "active", Rows: []history.Row{{Domain: "To..test", Counts: history.Counts{1}}}, Others: history.Counts{7: 90}, Names: 30},
			{Queue: "deferred", Rows: []history.Row{{Domain: "later.test", Counts: history.Counts{8}}, {Domain: history.Unread, Counts: history.Counts{1}}}},
			{Queue: "deferred", Tenants: true, Rows: []history.Row{{Domain: "Acme", Counts: history.Counts{4}}}}, {Queue: "deferred", Sources: true, Rows: []history.Row{{Domain: "m1", Counts: history.Counts{0, 6}}}},
			{Queue: "incoming", Tenants: true, Rows: []history.Row{{Domain: "Acme", Counts: history.Counts{1}}}}},
	} {
		if err := w.Append(&history.Sample{At: at("2026-11-24T08:00:30").Add(time.Duration(i) * time.Minute), Tables: tables}); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	for args, want := range map[string]string{
		"": heading + "                                  TOTAL 97  4  0  1  0  0   0   0  90    0     2\n" +
			"                                 a.test  4  3  0  1  0  0   0   0   0    0     0\n" +
			"                                to.test  3  1  0  0  0  0   0   0   0    0     2\n" +
			"                               (others) 90  0  0  0  0  0   0   0  90    0     0\n",
		"-s": heading + "                                  TOTAL  5  5  0  0  0  0   0   0   0    0     0\n" +
			"                          MAILER-DAEMON  5  5  0  0  0  0   0   0   0    0     0\n",
		"deferred": heading + "                                  TOTAL  9  9  0  0  0  0   0   0   0    0     0\n" +
			"                             later.test  8  8  0  0  0  0   0   0   0    0     0\n" +
			"                         (not read yet)  1  1  0  0  0  0   0   0   0    0     0\n",
		"--by tenant incoming deferred": heading + "                                  TOTAL  5  5  0  0  0  0   0   0   0    0     0\n" +
			"                                   Acme  5  5  0  0  0  0   0   0   0    0     0\n",
		"--by=source deferred": heading + "                                  TOTAL  6  0  6  0  0  0   0   0   0    0     0\n" +
			"                                     m1  6  0  6  0  0  0   0   0   0    0     0\n",
		"-b 3 incoming": strings.Repeat(" ", 67) + "  T  5 10 10+\n" + strings.Repeat(" ", 62) + "TOTAL  6  3  0   3\n" +
			strings.Repeat(" ", 61) + "a.test  4  3  0   1\n" + strings.Repeat(" ", 60) + "to.test  2  0  0   2\n",
	} {
		for _, form := range [][]string{{"--at", "2026-11-24T08:02"}, {"--at=2026-11-24T08:01:30"}} {
			if out, errs, status := run(s, append(form, strings.Fields(args)...)...); out != want || errs != "" || status != 0 {
				t.Errorf("%s: exit status %d, %q\n got %s\nwant %s", args, status, errs, out, want)
			}
		}
	}
	if out, _, _ := run(s, "--at", "2026-11-24 08:01"); !strings.Contains(out, "early.test") {
		t.Errorf("the sample before: %s", out)
	}
	fails(66, "the first is of 2026-11-24 08:00:30, the last of 2026-11-24 08:01:30", "--at", "2026-11-24T07:00")
	fails(66, "there is no sample", "--at", "2026-11-24T08:30")
	for _, args := range []string{"--at", "--at soon", "--at 2026-11-24T08:01 -l", "--at 2026-11-24T08:01 -t 10", "--at 2026-11-24T08:01 -b 11",
		"--at 2026-11-24T08:01 maildrop", "--at 2100-01-01", "--at 2026-11-24T08:01 --at 2026-11-24T08:02"} {
		fails(64, "--at: ", strings.Fields(args)...)
	}
	for _, args := range []string{"--by", "--by domain", "--by tenant -s", "--by tenant -p", "--by=source corrupt", "--by tenant maildrop"} {
		fails(64, "--by: ", strings.Fields(args)...)
	}
}

// By tenant and by source the queue manager counts; without it tenants are in the queue, and nobody knows the sources.
func TestBy(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	of := func(tenant string) faketest.Mail {
		return faketest.Mail{Queue: queue.Deferred, Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now().Add(-time.Minute), Sender: "a@b.test", Tenant: tenant, Recipients: []mail.Recipient{{Address: "c@d.test"}}}}
	}
	read := of("acme")
	read.Envelope.Campaign = "read"
	id := s.Fill(of("acme"), of(""), of("shop"), read)[3]
	unread := proto.Item{ID: id, Queue: "deferred", Arrival: time.Now().Add(-time.Minute), Ref: s.Entries()[id].Ref}
	row := func(name string, n int) string {
		return strings.Repeat(" ", 39-len(name)) + fmt.Sprintf("%s  %d  %d  0  0  0  0   0   0   0    0     0\n", name, n, n)
	}
	if out, errs, status := run(s, "--by", "tenant", "deferred"); status != 0 || out != heading+row("TOTAL", 3)+row("acme", 2)+row("shop", 1) {
		t.Errorf("down: %d %s\n%s", status, errs, out)
	}
	if out, errs, status := run(s, "--by", "campaign", "deferred"); status != 0 || out != heading+row("TOTAL", 1)+row("acme/read", 1) {
		t.Errorf("down, campaigns: %d %s\n%s", status, errs, out)
	}
	if out, errs, status := run(s, "--by", "source", "deferred"); status != 69 || out != "" {
		t.Errorf("down, sources: %d %s\n%s", status, errs, out)
	}
	s.Serve("qmgr", func(r *ipc.Request) {
		q := faketest.Decode[proto.Shape](t, r)
		if !q.Split || !slices.Equal(q.Queues, []string{"deferred"}) || len(q.Edges) != 9 {
			t.Errorf("asked %+v", q)
		}
		rows := []proto.ShapeRow{{Domain: "d.test", Queue: "deferred", Counts: []int{9}}, {Domain: "acme", Queue: "deferred", Tenants: true, Counts: []int{2}}, {Domain: "m1", Queue: "deferred", Sources: true, Counts: []int{3}},
			{Domain: "acme/Spring", Queue: "deferred", Campaigns: true, Counts: []int{4}}}
		reply := proto.ShapeReply{Rows: rows, Next: max(0, 1-q.Cursor)}
		if q.Cursor == 0 { // one that the queue manager has not read
			reply.Unread = []proto.Item{unread}
		}
		r.Reply(&reply)
	})
	for by, want := range map[string]string{"tenant": heading + row("TOTAL", 4) + row("acme", 4), "source": heading + row("TOTAL", 6) + row("m1", 6),
		"campaign": heading + row("TOTAL", 9) + row("acme/Spring", 8) + row("acme/read", 1)} {
		if out, errs, status := run(s, "--by", by, "deferred"); status != 0 || out != want {
			t.Errorf("%s: %d %s\n%s", by, status, errs, out)
		}
	}
}
