package console

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/history"
	"posthaste/internal/overview"
	"posthaste/internal/proto"
	"posthaste/internal/servercert"
)

// lookAt is a machine of a configuration in a directory of its own.
func lookAt(t *testing.T, main string) (*machine, string) {
	t.Helper()
	dir := t.TempDir()
	cfg, err := config.LoadString("compatibility_level = 3.6\nqueue_directory = " + dir + "\ndata_directory = " + dir + "\nmaillog_file_prefixes = /\n" + strings.ReplaceAll(main, "DIR", dir))
	if err != nil {
		t.Fatal(err)
	}
	return &machine{cfg: cfg}, dir
}

// What is well is told, and what is not is said first.
func TestSystem(t *testing.T) {
	t.Parallel()
	m, dir := lookAt(t, "maillog_file = DIR/mail.log\nqueue_minfree = 1\nmessage_size_limit = 1000\n")
	now := time.Now()
	for name, text := range map[string]string{"spool/seg/1.seg": "12345", "spool/seg/2.seg": "1234567", "mail.log": "line\n"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := m.look(now)
	if len(s.Disks) != 1 || strings.Join(s.Disks[0].Uses, " ") != "queue data log" || s.Disks[0].Octets < s.Disks[0].Free || s.Disks[0].Free <= 0 || s.Disks[0].Files <= 0 {
		t.Errorf("%+v", s.Disks)
	}
	if s.Spool != (Spool{Segments: 2, Octets: 12, Minfree: 1500}) || s.Log.Octets != 5 || s.Log.Written == nil || s.Log.Problem != "" {
		t.Errorf("%+v %+v", s.Spool, s.Log)
	}
	if m.look(now.Add(lookTime-1)) != s || m.look(now.Add(lookTime)) == s || m.look(now) == s {
		t.Error("it is not looked at again, or too often")
	}
	m, _ = lookAt(t, "maillog_file = DIR/nosuch/mail.log\nqueue_minfree = 9000000000000000\n")
	if err := os.MkdirAll(filepath.Join(m.cfg.String("queue_directory"), segmentDir), 0o755); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(m.look(now).Problems, "\n")
	for _, part := range []string{"with less than 9.0 PB (queue_minfree, message_size_limit) mail is refused.", "The log file cannot be looked at: "} {
		if !strings.Contains(text, part) {
			t.Errorf("%q lacks %q", text, part)
		}
	}
	m, _ = lookAt(t, "spool_content_directory = "+t.TempDir()+"\nspool_inline_limit = 100000\nmessage_size_limit = 90000000\n")
	if s := m.look(now); s.Spool.Minfree != 150000 || !strings.Contains(strings.Join(s.Disks[0].Uses, ", "), "content of large messages") {
		t.Errorf("%+v %+v", s.Spool, s.Disks)
	}
	m, _ = lookAt(t, "maillog_file =\n")
	if s := m.look(now); s.Log != (LogFile{}) || s.Spool.Segments != 0 {
		t.Errorf("%+v", s)
	}
}

// A certificate that ends soon, has ended or is not valid yet is a problem.
func TestCertificateDates(t *testing.T) {
	t.Parallel()
	chain, _ := chainFile(t)
	m, _ := lookAt(t, "smtpd_tls_chain_files = "+chain+"\n")
	m.keys = servercert.New(m.cfg, servercert.Options{Warn: func(string) {}})
	s := m.look(time.Now())
	if len(s.Certificates) != 1 || s.Certificates[0].Names[0] != "127.0.0.1" || !s.Certificates[0].SelfSigned {
		t.Fatalf("%+v", s)
	}
	c := s.Certificates[0] // of a day
	for at, want := range map[time.Time]string{c.End.Add(-5 * time.Hour): " expires in 5 h.", c.End.Add(time.Second): " expired on ", c.Begin.Add(-time.Minute): " is not valid before "} {
		if s := m.look(at); len(s.Problems) != 1 || !strings.HasPrefix(s.Problems[0], "The certificate of ") || !strings.Contains(s.Problems[0], want) {
			t.Errorf("%v: %q, want %q", at, s.Problems, want)
		}
	}
}

// What "posthaste check -v" says of the files is what the page says.
func TestAdvise(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"main.cf": "compatibility_level = 3.6\nalias_maps = hash:" + dir + "/nosuch\nrelayhost = [a b\n",
		"master.cf": "127.0.0.1:25 inet n - n - 1 smtpd\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	a := advise(cfg, time.Now())
	if len(a.Mistakes) == 0 || !strings.Contains(strings.Join(a.Mistakes, "\n"), "main.cf:3: relayhost") || len(a.Differences) == 0 || !strings.Contains(strings.Join(a.Differences, "\n"), "a process limit of 1") {
		t.Errorf("%+v", a)
	}
	if err := os.Remove(filepath.Join(dir, "master.cf")); err != nil {
		t.Fatal(err)
	}
	if a := advise(cfg, time.Now()); a.Mistakes == nil || len(a.Mistakes) != 0 {
		t.Errorf("%+v", a)
	}
}

// Rates are of about the last minute, however often it is counted.
func TestRates(t *testing.T) {
	t.Parallel()
	l := newLive()
	begin := time.Now()
	for i := range 30 {
		at := begin.Add(time.Duration(i) * 10 * time.Second)
		s := &history.Sample{At: at, Totals: proto.Totals{Since: begin.Add(-time.Hour), In: int64(100 * i), Sent: int64(10 * i), Bounced: 5}}
		l.publish(s, overview.Glance(s))
		r := l.view().Rates
		switch {
		case i == 0 && r != nil:
			t.Errorf("there are rates of one sample: %+v", r)
		case i > 0 && (r == nil || r.In != 600 || r.Sent != 60 || r.Bounced != 0):
			t.Errorf("%d: %+v", i, r)
		case i > 8 && r.Seconds != 70:
			t.Errorf("%d: over %d s", i, r.Seconds)
		}
	}
	if len(l.before) > 10 {
		t.Errorf("%d samples are kept", len(l.before))
	}
	for n, want := range map[int64]string{999: "999 octets", 1000: "1.0 kB", 9949: "9.9 kB", 12345678: "12 MB", 79e9: "79 GB", 9e18: "9.0 EB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

// A count for the history does not forget what is known of the domains.
func TestKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.throttle()
	before := w.console.live.view().Hurts[0]
	s := &history.Sample{At: time.Now(), Tables: []history.Table{{Queue: "deferred", Rows: []history.Row{{Domain: "slow.test", Counts: history.Counts{5: 9}}, {Domain: "new.test", Counts: history.Counts{1}}}}}}
	w.console.live.publish(s, overview.Glance(s))
	n := w.console.live.view()
	if h := n.Hurts[0]; h.Reason != "answers 421 4.7.0 to 83 % of sessions; window 2 of 20; 9 recipients wait, the oldest for over 80 min" || len(h.Why) != len(before.Why) || len(h.Destinations) != 1 || n.Hurts[1].Reason != "1 recipient waits, the oldest for under 5 min" {
		t.Errorf("%+v", n.Hurts)
	}
}

// A day is kept in bounded memory, the young part of it in full, and what is older goes.
func TestDay(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	d := new(day)
	sample := func(i int) *history.Sample {
		return &history.Sample{At: begin.Add(time.Duration(i) * 10 * time.Second), Totals: proto.Totals{Since: begin.Add(-time.Hour), In: int64(20 * i)}, Tables: []history.Table{
			{Queue: "deferred", Rows: []history.Row{{Domain: "A.test", Counts: history.Counts{int64(i)}}, {Domain: fmt.Sprintf("d%d.test", i), Counts: history.Counts{1}}}},
			{Queue: "active", Rows: []history.Row{{Domain: "a.test", Counts: history.Counts{1}}}, Others: history.Counts{5}, Names: 2},
			{Queue: "deferred", Senders: true, Rows: []history.Row{{Domain: "a.test", Counts: history.Counts{1000}}}}, {Queue: "hold", Rows: []history.Row{{Domain: "a.test", Counts: history.Counts{1000}}}}}}
	}
	for i := range 20000 { // more than two days
		d.add(sample(i))
		d.add(sample(i)) // twice is once
		if i == dayMoments-1 && len(d.moments) != dayMoments {
			t.Errorf("%d moments of %d", len(d.moments), dayMoments)
		}
		if len(d.moments) > dayMoments || len(d.names) > 4*dayMoments {
			t.Fatalf("%d: %d moments, %d names", i, len(d.moments), len(d.names))
		}
	}
	list := d.waiting()
	first, last := list[0], list[len(list)-1]
	if len(list) < chartPoints/2 || last.N != 19999+7 || !last.At.Equal(sample(19999).At) || last.At.Sub(first.At) > dayTime || last.At.Sub(first.At) < dayTime-time.Hour {
		t.Errorf("%d points from %+v to %+v", len(list), first, last)
	}
	for _, p := range d.flow()[0].Points {
		if p.N != 120 {
			t.Errorf("%+v", p)
		}
	}
	if list := d.waitingFor("A.TEST"); list[len(list)-1].N != 20000 {
		t.Errorf("%+v", list[len(list)-1])
	}
	if d.waitingFor("other.test") != nil {
		t.Error("a line of nothing")
	}
}
