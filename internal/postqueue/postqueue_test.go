package postqueue

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
)

func run(s *faketest.Site, name string, args ...string) (out, errs string, status int) {
	var o, e bytes.Buffer
	status = Run(name, append([]string{"-c", s.Config}, args...), &o, &e)
	return o.String(), e.String(), status
}

const refused = "connect to 127.0.0.1[127.0.0.1]:37999: Connection refused"

var arrival = time.Date(2026, 11, 21, 8, 56, 26, 0, time.Local)

func items() []proto.Item {
	return []proto.Item{
		{ID: "4jWmK60qnzz1SDZl", Queue: "active", Arrival: arrival, Size: 5305, ForcedExpire: true, Sender: "s p@from.test",
			Recipients: []proto.ItemRcpt{{Address: "d1@to.test"}, {Address: "d 2@to.test"}}, Attempts: 1, Client: "client.test", ClientAddr: "192.0.2.9", SASLUser: "ann",
			Tenant: "acme", Campaign: "spring"},
		{ID: "4jWmK60rlcz1SCpW", Queue: "hold", Arrival: arrival, Size: 301,
			Recipients: []proto.ItemRcpt{{Address: "pm@to.test"}}},
		{ID: "4jWmL10SyZz1SCBX", Queue: "deferred", Arrival: arrival, Size: 298, Sender: "a@from.test", Attempts: 4, Next: time.Unix(1795260000, 0),
			Recipients: []proto.ItemRcpt{{Address: "new@x.test"}, {Address: "one@x.test", Reason: refused, Orig: "al@v.test", Status: dsn.S(4, 4, 1)},
				{Address: "q@y.test", Reason: "say \"\x1b[1m\"\t" + strings.Repeat("long ", 15)}, {Address: "two@x.test", Reason: refused}}},
	}
}

// The listing is, to the column, what Postfix 3.7 prints with long queue IDs.
const golden = `----Queue ID----- --Size-- ---Arrival Time---- --Sender/Recipient------
4jWmK60qnzz1SDZl*#     5305 Sat Nov 21 08:56:26 "s p"@from.test
                                               d1@to.test
                                               "d 2"@to.test

4jWmK60rlcz1SCpW!      301 Sat Nov 21 08:56:26 MAILER-DAEMON
                                               pm@to.test

4jWmL10SyZz1SCBX       298 Sat Nov 21 08:56:26 a@from.test
                   (connect to 127.0.0.1[127.0.0.1]:37999: Connection refused)
                                               one@x.test
                                               two@x.test
(say "?[1m"?long long long long long long long long long long long long long long long )
                                               q@y.test
                                               new@x.test

-- 5 Kbytes in 3 Requests.
`

const goldenJSON = `{"queue_name": "active", "queue_id": "4jWmK60qnzz1SDZl", "arrival_time": 1795251386, "message_size": 5305, "forced_expire": true, "sender": "\"s p\"@from.test", "recipients": [{"address": "d1@to.test"}, {"address": "\"d 2\"@to.test"}], "attempts": 1, "client_name": "client.test", "client_address": "192.0.2.9", "sasl_username": "ann", "tenant": "acme", "campaign": "spring"}
{"queue_name": "hold", "queue_id": "4jWmK60rlcz1SCpW", "arrival_time": 1795251386, "message_size": 301, "forced_expire": false, "sender": "MAILER-DAEMON", "recipients": [{"address": "pm@to.test"}], "attempts": 0}
{"queue_name": "deferred", "queue_id": "4jWmL10SyZz1SCBX", "arrival_time": 1795251386, "message_size": 298, "forced_expire": false, "sender": "a@from.test", "recipients": [{"address": "new@x.test"}, {"orig_address": "al@v.test", "address": "one@x.test", "delay_reason": "REFUSED", "dsn": "4.4.1"}, {"address": "q@y.test", "delay_reason": "say \"\u001B[1m\"\tLONG"}, {"address": "two@x.test", "delay_reason": "REFUSED"}], "attempts": 4, "next_attempt": 1795260000}
`

// list answers listings with these items, one a page.
func list(t *testing.T, items []proto.Item) func(*ipc.Request) {
	return func(r *ipc.Request) {
		q := faketest.Decode[proto.List](t, r)
		reply := new(proto.ListReply)
		if q.Cursor < len(items) {
			reply.Items = items[q.Cursor : q.Cursor+1]
			if q.Cursor+1 < len(items) {
				reply.Next = q.Cursor + 1
			}
		}
		r.Reply(reply)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	s.Serve("qmgr", list(t, items()))
	for _, name := range []string{"postqueue", "mailq"} {
		if out, errs, status := run(s, name, "-p"); out != golden || errs != "" || status != 0 {
			t.Errorf("%s -p: exit status %d, %q\n%s", name, status, errs, out)
		}
	}
	want := strings.NewReplacer("REFUSED", refused, "LONG", strings.Repeat("long ", 15), "1795251386", "ARRIVAL").Replace(goldenJSON)
	out, errs, status := run(s, "postqueue", "-j")
	out = strings.ReplaceAll(out, strconv.FormatInt(arrival.Unix(), 10), "ARRIVAL")
	if out != want || errs != "" || status != 0 {
		t.Errorf("-j: exit status %d, %q\n got %s\nwant %s", status, errs, out, want)
	}
}

// Mail that is suspended says so, even if it was last deferred for something else.
func TestSuspended(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	s.Serve("qmgr", list(t, []proto.Item{{ID: "4jWmL10SyZz1SCBX", Queue: "deferred", Arrival: arrival, Size: 298, Sender: "a@from.test", Attempts: 4,
		Recipients: []proto.ItemRcpt{
			{Address: "one@x.test", Reason: refused, Status: dsn.S(4, 4, 1), Suspended: "x.test", Waits: "delivery to x.test is suspended: ticket \x1b 4711"},
			{Address: "two@y.test", Reason: refused},
			{Address: "three@x.test", Reason: "delivery to x.test is suspended: ticket \x1b 4711", Suspended: "x.test"}}}}))
	want := `4jWmL10SyZz1SCBX       298 Sat Nov 21 08:56:26 a@from.test
                              (delivery to x.test is suspended: ticket ? 4711)
                                               one@x.test
                                               three@x.test
                   (connect to 127.0.0.1[127.0.0.1]:37999: Connection refused)
                                               two@y.test
`
	if out, _, status := run(s, "mailq"); status != 0 || !strings.Contains(out, want) {
		t.Errorf("exit status %d\n%s", status, out)
	}
	out, _, status := run(s, "postqueue", "-j")
	for _, part := range []string{`{"address": "one@x.test", "delay_reason": "` + refused + `", "dsn": "4.4.1", "suspended": "x.test"}`,
		`{"address": "two@y.test", "delay_reason": "` + refused + `"}`, `"delay_reason": "delivery to x.test is suspended: ticket \u001B 4711", "suspended": "x.test"}`} {
		if status != 0 || !strings.Contains(out, part) {
			t.Errorf("-j: exit status %d, lacks %s\n%s", status, part, out)
		}
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	s.Serve("qmgr", list(t, nil))
	if out, _, status := run(s, "mailq"); out != "Mail queue is empty\n" || status != 0 {
		t.Errorf("exit status %d, %q", status, out)
	}
	if out, _, status := run(s, "postqueue", "-j"); out != "" || status != 0 {
		t.Errorf("-j: exit status %d, %q", status, out)
	}
}

// While the mail system is down, who may read it sees what is there, and what
// the sendmail program has left.
func TestDown(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	if out, _, status := run(s, "mailq"); out != "Mail queue is empty\n" || status != 0 {
		t.Errorf("nothing queued yet: exit status %d, %q", status, out)
	}
	ids := s.Fill(faketest.Mail{Queue: queue.Deferred, Content: "x\r\n", Done: []int{1}, Attempts: 2,
		Envelope: mail.Envelope{Arrival: arrival, Sender: "a@from.test", Size: 298,
			Recipients: []mail.Recipient{{Address: "one@x.test"}, {Address: "done@x.test"}, {Address: "two@x.test"}}},
		Outcomes: []mail.Outcome{{Rcpt: 0, Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: refused}}})
	var drop bytes.Buffer
	h := maildrop.Header{Sender: "me", Recipients: []mail.Recipient{{Address: "you"}}}
	if err := maildrop.Write(&drop, &h, strings.NewReader("Subject: x\n\n")); err != nil {
		t.Fatal(err)
	}
	if err := (maildrop.Box{Dir: filepath.Join(s.Queue, "maildrop")}).Drop(&drop, 0, arrival, 0); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Join(s.Queue, "maildrop"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.WriteFile(filepath.Join(s.Queue, "maildrop", "litter"), []byte("V"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, status := run(s, "postqueue", "-p")
	want := golden[:strings.Index(golden, "\n")+1] +
		files[0].Name() + "       12 Sat Nov 21 08:56:26 me\n                                               you\n\n" +
		string(ids[0]) + "      298 Sat Nov 21 08:56:26 a@from.test\n" +
		"                   (" + refused + ")\n                                               one@x.test\n" +
		"                                               two@x.test\n\n-- 0 Kbytes in 2 Requests.\n"
	if strings.Join(strings.Fields(out), " ") != strings.Join(strings.Fields(want), " ") ||
		errs != "postqueue: warning: Mail system is down -- accessing queue directly\n" || status != 0 {
		t.Errorf("exit status %d, %q\n got %s\nwant %s", status, errs, out, want)
	}
	for _, args := range [][]string{{"-f"}, {"-i", string(ids[0])}, {"-s", "to.test"}} {
		_, errs, status := run(s, "postqueue", args...)
		if errs != "postqueue: fatal: Cannot flush mail queue - mail system is down\n" || status != 69 {
			t.Errorf("%v: exit status %d, %q", args, status, errs)
		}
	}
}

func TestFlush(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	asked := make(chan proto.Command, 10)
	s.Serve("qmgr", func(r *ipc.Request) {
		q := faketest.Decode[proto.Command](t, r)
		asked <- q
		reply := new(proto.CommandReply)
		if q.Site == "elsewhere.test" || q.ID == "4jWmK60rlcz1SCpW" {
			reply.Denied = "no"
		}
		r.Reply(reply)
	})
	for _, c := range []struct {
		args   string
		want   proto.Command
		errs   string
		status int
	}{
		{"-f", proto.Command{Verb: proto.VerbFlush, All: true}, "", 0},
		{"-i 076AF9D46E1", proto.Command{Verb: proto.VerbFlush, ID: "076AF9D46E1"}, "", 0},
		{"-i 4jWmK60rlcz1SCpW", proto.Command{Verb: proto.VerbFlush, ID: "4jWmK60rlcz1SCpW"}, "postqueue: warning: 4jWmK60rlcz1SCpW: no\n", 0},
		{"-s to.test", proto.Command{Verb: proto.VerbFlush, Site: "to.test"}, "", 0},
		{"-s [192.0.2.1]", proto.Command{Verb: proto.VerbFlush, Site: "192.0.2.1"}, "", 0},
		{"-s elsewhere.test", proto.Command{Verb: proto.VerbFlush, Site: "elsewhere.test"},
			"postqueue: fatal: Flush service is not configured for destination \"elsewhere.test\"\n", 69},
		{"-i a/b", proto.Command{}, "postqueue: fatal: Cannot flush queue ID - invalid name: \"a/b\"\n", 64},
		{"-s a..b", proto.Command{}, "postqueue: fatal: Cannot flush mail queue - invalid destination: \"a..b\"\n", 64},
		{"-s [to.test]", proto.Command{}, "postqueue: fatal: Cannot flush mail queue - invalid destination: \"[to.test]\"\n", 64},
	} {
		_, errs, status := run(s, "postqueue", strings.Fields(c.args)...)
		var got proto.Command
		if len(asked) > 0 { // who was asked has said so before it answered
			got = <-asked
		}
		if got != c.want || errs != c.errs || status != c.status {
			t.Errorf("%s: exit status %d, %q, asked %+v", c.args, status, errs, got)
		}
	}
}

// A manager that is replaced at that moment takes the request and does not answer; its
// successor does.
func TestFlushWhileManagerIsReplaced(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	var asked atomic.Int32 // the second connection may be served while the first one ends
	s.ServeConn("qmgr", func(c *ipc.Conn, r *ipc.Request) {
		if asked.Add(1) == 1 {
			c.Close()
			return
		}
		r.Reply(new(proto.CommandReply))
	})
	if _, errs, status := run(s, "postqueue", "-f"); status != 0 || errs != "" || asked.Load() != 2 {
		t.Errorf("exit status %d, %q, asked %d times", status, errs, asked.Load())
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	const text = "postqueue: fatal: usage: postqueue -f | postqueue -i queueid | postqueue -j | postqueue -p | postqueue -s site\n"
	for args, want := range map[string]string{"": text, "-p -j": text, "-p x": text, "-x": "postqueue: invalid option -- 'x'\n" + text,
		"-i": "postqueue: option requires an argument -- 'i'\n" + text} {
		if _, errs, status := run(s, "postqueue", strings.Fields(args)...); errs != want || status != 64 {
			t.Errorf("%q: exit status %d, %q", args, status, errs)
		}
	}
	var e bytes.Buffer
	if status := Run("mailq", []string{"-c", "/nonexistent"}, nil, &e); status != 78 || !strings.Contains(e.String(), "/nonexistent/main.cf") {
		t.Errorf("exit status %d, %q", status, e.String())
	}
}

// A full disk behind a redirection is not taken for success.
func TestOutputFails(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	s.Serve("qmgr", list(t, items()))
	var e bytes.Buffer
	if status := Run("mailq", []string{"-c", s.Config}, full{}, &e); status != 74 || e.String() != "mailq: fatal: no space left\n" {
		t.Errorf("exit status %d, %q", status, e.String())
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestAuthorized(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list string
		uid  int
		name string
		want bool
	}{
		{"static:anyone", 7, "joe", true},
		{"", 7, "joe", false},
		{"", 0, "root", true},
		{"!www, static:all", 7, "www", false},
		{"!www, static:all", 7, "joe", true},
		{"ann joe", 7, "joe", true},
	} {
		cfg, err := config.LoadString("authorized_mailq_users = " + c.list + "\n")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := authorized(t.Context(), cfg, "authorized_mailq_users", c.uid, c.name); got != c.want || err != nil {
			t.Errorf("%q for %s: %v, %v", c.list, c.name, got, err)
		}
	}
}

// Conditions go to the queue manager as they are, page after page, and what comes of them is
// counted; while the mail system is down the spool is judged here.
func TestSelection(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	var mu sync.Mutex
	var asked []proto.Select
	s.Serve("qmgr", func(r *ipc.Request) {
		if r.Kind != proto.KindSelect {
			t.Errorf("request %d", r.Kind)
		}
		q := faketest.Decode[proto.Select](t, r)
		mu.Lock()
		asked = append(asked, q)
		mu.Unlock()
		reply := &proto.SelectReply{Next: (q.Cursor + 1) % 3}
		for _, it := range items()[q.Cursor : q.Cursor+1] {
			reply.IDs = append(reply.IDs, it.ID)
			if q.Items {
				reply.Items = append(reply.Items, it)
			}
		}
		r.Reply(reply)
	})
	if out, errs, status := run(s, "postqueue", "-p", "--sender=a@from.test", "--older", "1h"); out != golden || status != 0 {
		t.Errorf("-p: exit status %d, %q\n%s", status, errs, out)
	}
	if out, _, status := run(s, "mailq", "--domain=x.test"); out != golden || status != 0 {
		t.Errorf("mailq: exit status %d\n%s", status, out)
	}
	if out, _, status := run(s, "postqueue", "-f", "--dry-run", "--domain=x.test"); out != golden || status != 0 {
		t.Errorf("-f --dry-run: exit status %d\n%s", status, out)
	}
	if _, errs, status := run(s, "postqueue", "-f", "--domain=x.test"); errs != "postqueue: Flushed: 3 messages\n" || status != 0 {
		t.Errorf("-f: exit status %d, %q", status, errs)
	}
	mu.Lock()
	if len(asked) != 12 || asked[0].Where[1] != "sender=a@from.test" || asked[2].Where[2] != "older=1h" || asked[8].Verb != 0 || asked[11].Verb != proto.VerbFlush {
		t.Errorf("asked: %+v", asked)
	}
	mu.Unlock()
	for _, args := range [][]string{{"-s", "x.test", "--sender=x"}, {"-p", "--dry-run"}, {"-p", "--nosuch=x"}, {"--sender=x"}, {"-i", "4jWmK60qnzz1SDZl", "-j"}} {
		if _, _, status := run(s, "postqueue", args...); status != 64 {
			t.Errorf("%v: exit status %d", args, status)
		}
	}
}
