package postsuper

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/spooltool/faketest"
)

// run runs the command and returns what it says.
func run(s *faketest.Site, stdin string, args ...string) (string, int) {
	var errs bytes.Buffer
	status := Run("postsuper", append([]string{"-c", s.Config}, args...), strings.NewReader(stdin), nil, &errs)
	return errs.String(), status
}

func message(sender string, q queue.Name) faketest.Mail {
	return faketest.Mail{Queue: q, Content: "Subject: x\r\n\r\nx\r\n", Envelope: mail.Envelope{Arrival: time.UnixMicro(1795251386000000),
		Sender: sender, Size: 14, Recipients: []mail.Recipient{{Address: "b@to.test"}}}}
}

// Long lists of recipients and of what became of them, which together are more than the spool takes as
// one, keep nobody from changing what has them.
func TestDownLongLists(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "spool_segment_size = 1m\n")
	var mails []faketest.Mail
	for range 6 {
		m := message("1", queue.Deferred)
		m.Envelope.Recipients = nil
		for i := range 1000 {
			m.Envelope.Recipients = append(m.Envelope.Recipients, mail.Recipient{Address: fmt.Sprintf("member.number.%d@list.test", i)})
			m.Outcomes = append(m.Outcomes, mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: dsn.S(4, 0, 0), Reason: strings.Repeat("no ", 50)})
		}
		mails = append(mails, m)
	}
	s.Fill(mails...)
	if got, status := run(s, "", "-h", "ALL"); got != "postsuper: Placed on hold: 6 messages\n" || status != 0 {
		t.Errorf("exit status %d: %s", status, got)
	}
}

// While the mail system is down the spool is changed, and nothing else.
func TestDown(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	ids := s.Fill(message("1", queue.Incoming), message("2", queue.Deferred), message("3", queue.Hold), message("4", queue.Deferred),
		message("5", queue.Corrupt))
	name := strings.NewReplacer("$1", string(ids[0]), "$2", string(ids[1]), "$3", string(ids[2]), "$4", string(ids[3]), "$5", string(ids[4]))
	for _, c := range []struct{ args, stdin, want string }{
		{"-h $1", "", "postsuper: $1: placed on hold\npostsuper: Placed on hold: 1 message\n"},
		{"-h $1", "", "postsuper: Placed on hold: 0 messages\n"},
		{"-h $2 hold", "", "postsuper: Placed on hold: 0 messages\n"},
		{"-h ALL", "", "postsuper: Placed on hold: 2 messages\n"},
		{"-H -", "$2\n../x\n$4\n", "postsuper: warning: invalid mail queue id: ../x\npostsuper: $2: released from hold\n" +
			"postsuper: $4: released from hold\npostsuper: Released from hold: 2 messages\n"},
		{"-e $2 -e $2", "", "postsuper: $2: expired\npostsuper: Force-expired: 1 message\n"},
		{"-f $2 -f $3", "", "postsuper: $3: expired\npostsuper: $3: released from hold\n" +
			"postsuper: Force-expired: 1 message\npostsuper: Released from hold: 1 message\n"},
		{"-d $5", "", "postsuper: Deleted: 0 messages\n"},
		{"-d ALL corrupt", "", "postsuper: Deleted: 1 message\n"},
		{"-d $3 -h $2", "", "postsuper: $3: removed\npostsuper: $2: placed on hold\npostsuper: Deleted: 1 message\npostsuper: Placed on hold: 1 message\n"},
		{"-d $3 -d NOSUCH1 -d 4jWmK60rlcz1SCpW", "", "postsuper: Deleted: 0 messages\n"},
		{"-d ALL deferred", "", "postsuper: Deleted: 1 message\n"},
	} {
		got, status := run(s, name.Replace(c.stdin), strings.Fields(name.Replace(c.args))...)
		if want := name.Replace(c.want); got != want || status != 0 {
			t.Errorf("%s: exit status %d\n got %q\nwant %q", c.args, status, got, want)
		}
	}
	left := s.Entries()
	if len(left) != 2 || left[ids[0]].Queue != queue.Hold || left[ids[1]].Queue != queue.Hold || !left[ids[1]].Expire {
		t.Errorf("left: %+v", left)
	}
	line := regexp.MustCompile(`(?m) postfix/postsuper\[\d+\]: ` + string(ids[0]) + `: placed on hold$`)
	if log := s.LogText(); !line.MatchString(log) || !strings.Contains(log, "]: Deleted: 1 message\n") {
		t.Errorf("log:\n%s", log)
	}
}

func TestRequeueNeedsCleanup(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	ids := s.Fill(message("1", queue.Deferred))
	out, status := run(s, "", "-d", string(ids[0]), "-r", string(ids[0]))
	if status != 69 || !strings.Contains(out, "requeueing needs it") || len(s.Entries()) != 1 {
		t.Errorf("exit status %d, %q, %v", status, out, s.Entries())
	}
}

// The spool is not taken from somebody who has it open.
func TestLocked(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	ids := s.Fill(message("1", queue.Deferred))
	sp, err := spool.Open(spool.Options{Dir: filepath.Join(s.Queue, "spool"), SegmentSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer sp.Close()
	if out, status := run(s, "", "-d", string(ids[0])); status != 75 || !strings.Contains(out, fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("exit status %d, %q", status, out)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"-x", 64, "postsuper: invalid option -- 'x'\npostsuper: fatal: usage: postsuper [-c config_dir] [-d queue_id (delete)]"},
		{"-d", 64, "option requires an argument -- 'd'"},
		{"-d ALL nosuch", 64, "postsuper: fatal: invalid directory name: nosuch\n"},
		{"-c /nonexistent -d X12345", 78, "/nonexistent"},
		{"-d X12345", 66, "nothing has been queued here yet"},
		{"-s", 0, "posthaste spool check"},
		{"", 0, "posthaste spool check"},
		{"-psv", 0, "posthaste spool check"},
	} {
		out, status := run(s, "", strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(out, c.says) {
			t.Errorf("%q: exit status %d, want %d; %q lacks %q", c.args, status, c.status, out, c.says)
		}
	}
}

func TestMaildrop(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	s.Fill(message("1", queue.Deferred))
	for _, n := range []string{"a1", "b2", "c3"} {
		if err := os.WriteFile(filepath.Join(s.Queue, "maildrop", n), nil, 0o744); err != nil {
			t.Fatal(err)
		}
	}
	if out, _ := run(s, "", "-d", "b2", "-d", "zz", "maildrop"); out != "postsuper: b2: removed\npostsuper: Deleted: 1 message\n" {
		t.Errorf("%q", out)
	}
	if out, _ := run(s, "", "-d", "ALL", "maildrop"); out != "postsuper: Deleted: 2 messages\n" {
		t.Errorf("%q", out)
	}
	if len(s.Entries()) != 1 {
		t.Error("the queue was touched")
	}
}

// A manager plays the queue manager: a listing in pages, and commands.
type manager struct {
	mu    sync.Mutex
	items []*proto.Item
	asked []string
}

func (m *manager) answer(t *testing.T) func(*ipc.Request) {
	return func(r *ipc.Request) {
		m.mu.Lock()
		defer m.mu.Unlock()
		switch r.Kind {
		case proto.KindList:
			q := faketest.Decode[proto.List](t, r)
			reply := new(proto.ListReply)
			for i, it := range m.items {
				if q.ID != "" && it.ID == q.ID {
					reply.Items = append(reply.Items, *it)
				}
				if q.ID == "" && i >= q.Cursor && len(reply.Items) < q.N {
					reply.Items = append(reply.Items, *it)
					if reply.Next = i + 1; i+1 == len(m.items) {
						reply.Next = 0
					}
				}
			}
			r.Reply(reply)
		case proto.KindCommand:
			r.Reply(m.command(faketest.Decode[proto.Command](t, r)))
		default:
			t.Errorf("request %d", r.Kind)
		}
	}
}

func (m *manager) command(q proto.Command) *proto.CommandReply {
	reply := new(proto.CommandReply)
	i := slices.IndexFunc(m.items, func(it *proto.Item) bool { return it.ID == q.ID })
	if i < 0 || q.Queue != "" && q.Queue != m.items[i].Queue {
		return reply
	}
	reply.IDs = []mail.QueueID{q.ID}
	m.asked = append(m.asked, fmt.Sprintf("%d%s%t", q.Verb, q.Queue, q.Now))
	switch it := m.items[i]; q.Verb {
	case proto.VerbDelete, proto.VerbRequeue:
		m.items = slices.Delete(m.items, i, i+1)
	case proto.VerbHold:
		it.Queue = "hold"
	case proto.VerbRelease:
		it.Queue = "deferred"
	case proto.VerbExpire:
		it.ForcedExpire = true
	}
	return reply
}

// While it is up everything goes through the queue manager. The spool's
// directory does not even exist.
func TestUp(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	m := new(manager)
	for i := range 2500 {
		m.items = append(m.items, &proto.Item{ID: mail.MakeQueueID(time.Unix(1795251386, 0), uint64(i+1)), Queue: [...]string{"active", "deferred"}[i%2]})
	}
	a, b := string(m.items[0].ID), string(m.items[1].ID)
	s.Serve("qmgr", m.answer(t))
	logged := s.Postlog()
	for _, c := range []struct{ args, want string }{
		{"-h " + a + " -h " + b + " deferred", "postsuper: " + b + ": placed on hold\npostsuper: Placed on hold: 1 message\n"},
		{"-f " + a + " -f " + b, "postsuper: " + a + ": expired\npostsuper: " + b + ": expired\npostsuper: " + b + ": released from hold\n" +
			"postsuper: Force-expired: 2 messages\npostsuper: Released from hold: 1 message\n"},
		{"-r " + a + " -d NOSUCH1", "postsuper: " + a + ": requeued\npostsuper: Requeued: 1 message\npostsuper: Deleted: 0 messages\n"},
		{"-h ALL active", "postsuper: Placed on hold: 1249 messages\n"},
		{"-d ALL", "postsuper: Deleted: 2499 messages\n"},
	} {
		got, status := run(s, "", strings.Fields(c.args)...)
		if got != c.want || status != 0 {
			t.Errorf("%s: exit status %d\n got %q\nwant %q", c.args, status, got, c.want)
		}
	}
	// An expiry takes effect at once but for mail on hold, which its release sends.
	want := []string{"2deferredfalse", "6true", "6false", "3false", "5false"}
	if got := m.asked[:5]; !slices.Equal(got, want) {
		t.Errorf("orders %q, want %q", got, want)
	}
	log := logged()
	if !strings.Contains(log, "]: "+a+": requeued\n") || !strings.Contains(log, "]: Deleted: 2499 messages\n") {
		t.Errorf("log:\n%s", log)
	}
	if n := strings.Count(log, ": removed\n"); n < 2499 { // else nobody would know what has become of them
		t.Errorf("of 2499 messages that were deleted the log names %d", n)
	}
	if len(m.items) != 0 {
		t.Errorf("%d messages left", len(m.items))
	}
}

// What a killed sendmail program has left is removed, and nothing else.
func TestPurge(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	old, young := time.Now().Add(-8*24*time.Hour), time.Now().Add(-6*24*time.Hour)
	for name, f := range map[string]struct {
		mode os.FileMode
		at   time.Time
	}{"litter": {0o600, old}, "unfinished": {0o600, young}, "message": {0o744, old}} {
		path := filepath.Join(s.Queue, "maildrop", name)
		if err := os.WriteFile(path, nil, f.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, f.at, f.at); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (names []string) {
		list, err := os.ReadDir(filepath.Join(s.Queue, "maildrop"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			names = append(names, e.Name())
		}
		return names
	}
	if out, status := run(s, "", "-s"); status != 0 || len(left()) != 3 {
		t.Errorf("-s: exit status %d, %q, left %v", status, out, left())
	}
	if out, status := run(s, "", "-pv"); status != 0 || out != "postsuper: removed maildrop/litter\n" || !slices.Equal(left(), []string{"message", "unfinished"}) {
		t.Errorf("-p: exit status %d, %q, left %v", status, out, left())
	}
}
