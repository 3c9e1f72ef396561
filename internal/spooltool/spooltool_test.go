package spooltool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/doubtful"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/vfs"
)

func run(s *faketest.Site, args ...string) (out, errs string, status int) {
	var o, e bytes.Buffer
	status = Run("posthaste spool", append([]string{"-c", s.Config}, args...), nil, nil, &o, &e)
	return o.String(), e.String(), status
}

var arrival = time.Date(2026, 11, 21, 8, 56, 26, 5000, time.Local)

func mails() []faketest.Mail {
	next := arrival.Add(time.Hour)
	return []faketest.Mail{
		{Queue: queue.Incoming, Content: "Subject: one\r\n\r\n.x\r\n", Envelope: mail.Envelope{Arrival: arrival, Sender: "a b@from.test", Size: 10,
			EnvID: "e", Ret: dsn.RetFull, Client: mail.Client{Name: "c", Addr: "192.0.2.1"},
			Recipients: []mail.Recipient{{Address: "d@to.test", Notify: dsn.NotifyNever, ORCPT: "rfc822;d"}, {Address: "e@to.test"}}}},
		{Queue: queue.Deferred, Content: strings.Repeat("0123456789\r\n", 20000), Attempts: 2, Next: next, Warned: true, Done: []int{0},
			Envelope: mail.Envelope{Arrival: arrival.Add(time.Second), Size: 220000, Recipients: []mail.Recipient{{Address: "done@to.test"}, {Address: "todo@to.test"}}},
			Outcomes: []mail.Outcome{{Rcpt: 1, Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: "r", When: arrival}}},
		{Queue: queue.Hold, Attempts: 1, Expire: true, Content: "Subject: held\r\n\r\n", Envelope: mail.Envelope{Arrival: arrival, Sender: "h@from.test", Size: 15, Recipients: []mail.Recipient{{Address: "h@to.test"}}}},
	}
}

// A store is a cleanup that keeps what it is given.
type store struct {
	mu    sync.Mutex
	next  uint64
	mails map[string]*proto.Submit // by first recipient
	parts map[mail.QueueID]*proto.Submit
	say   *proto.SubmitReply // instead of 250
}

func newStore(t *testing.T, s *faketest.Site) *store {
	st := &store{next: 1 << 32, mails: map[string]*proto.Submit{}, parts: map[mail.QueueID]*proto.Submit{}}
	s.Serve("cleanup", func(r *ipc.Request) {
		st.mu.Lock()
		defer st.mu.Unlock()
		var id mail.QueueID
		more := false
		switch r.Kind {
		case proto.KindLease:
			q := faketest.Decode[proto.Lease](t, r)
			r.Reply(&proto.LeaseReply{First: st.next, N: q.N})
			st.next += uint64(q.N)
			return
		case proto.KindSubmit:
			q := faketest.Decode[proto.Submit](t, r)
			q.Content = bytes.Clone(q.Content)
			id, more = q.Envelope.ID, q.More
			st.parts[id] = &q
		case proto.KindChunk:
			q := faketest.Decode[proto.Chunk](t, r)
			id, more = q.ID, q.More
			st.parts[id].Content = append(st.parts[id].Content, q.Data...)
		default:
			r.Fail("request %d", r.Kind)
			return
		}
		switch q := st.parts[id]; {
		case more:
			r.Reply(&proto.ChunkReply{})
		case st.say != nil:
			r.Reply(st.say)
		default:
			st.mails[q.Envelope.Recipients[0].Address] = q
			r.Reply(&proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0)})
		}
	})
	return st
}

// A whole queue goes out into files and into another queue.
func TestExportImport(t *testing.T) {
	t.Parallel()
	from := faketest.New(t, "")
	in := mails()
	ids := from.Fill(in...)
	dir := filepath.Join(t.TempDir(), "out")
	if out, errs, status := run(from, "export", "-a", dir); out != "3 messages exported to "+dir+"\n" || status != 0 {
		t.Fatalf("exit status %d, %q, %q", status, out, errs)
	}
	to := faketest.New(t, "")
	if _, errs, status := run(to, "import", dir); status != 69 || !strings.Contains(errs, "start it first") {
		t.Errorf("while it is down: exit status %d, %q", status, errs)
	}
	st := newStore(t, to)
	if out, _, status := run(to, "import", "-nr", dir); !strings.HasPrefix(out, "3 messages can be imported, 0 have") || len(st.mails) != 0 || status != 0 {
		t.Errorf("-n: exit status %d, %q", status, out)
	}
	if out, errs, status := run(to, "import", "-r", dir); out != "3 messages imported, 0 have nothing left to do, 0 files are not sound messages, 0 were refused\n" || status != 0 {
		t.Fatalf("exit status %d, %q, %q", status, out, errs)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("-r has left %v", left)
	}
	outcome := in[1].Outcomes[0]
	outcome.Rcpt = 0 // the one before is done
	states := []*queue.Change{nil,
		{Set: queue.SetQueue | queue.SetNextAttempt | queue.SetAttempts | queue.SetWarned, Queue: queue.Deferred, NextAttempt: in[1].Next,
			Attempts: 2, Warned: true, Outcomes: []mail.Outcome{outcome}},
		{Set: queue.SetAttempts | queue.SetExpire, Queue: queue.Deferred, Attempts: 1, Expire: true}}
	for i, name := range []string{"d@to.test", "todo@to.test", "h@to.test"} {
		got := st.mails[name]
		if got == nil {
			t.Errorf("no message for %s", name)
			continue
		}
		want := in[i].Envelope
		want.ID, want.LogIdent = got.Envelope.ID, string(ids[i])
		if i == 1 {
			want.Recipients = want.Recipients[1:]
		}
		if !reflect.DeepEqual(got.Envelope, want) || string(got.Content) != in[i].Content {
			t.Errorf("%d octets of content\n got %+v\nwant %+v", len(got.Content), got.Envelope, want)
		}
		if at, _, _ := got.Envelope.ID.Parse(); !at.Equal(in[i].Envelope.Arrival) {
			t.Errorf("its age counts from %v", at)
		}
		if want := states[i]; !reflect.DeepEqual(got.State, want) {
			t.Errorf("%s: state\n got %+v\nwant %+v", name, got.State, want)
		}
		if hold := got.Flags&proto.SubmitHold != 0; hold != (i == 2) || got.Flags&(proto.SubmitMap|proto.SubmitFilter|proto.SubmitBCC) != 0 {
			t.Errorf("flags %b", got.Flags)
		}
	}
}

func TestExportOne(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	ids := s.Fill(mails()...)
	out, errs, status := run(s, "export", string(ids[0]))
	if !strings.HasPrefix(out, "Posthaste-Message: 1\nQueue-ID: "+string(ids[0])+"\nQueue: incoming\n") || !strings.HasSuffix(out, "\n\nSubject: one\n\n.x\n") || status != 0 {
		t.Errorf("exit status %d, %q\n%s", status, errs, out)
	}
	entries := s.Entries()
	s.Serve("cleanup", func(r *ipc.Request) {
		q := faketest.Decode[proto.Locate](t, r)
		e, ok := entries[q.ID]
		r.Reply(&proto.LocateReply{Found: ok, Entry: e})
	})
	if again, _, _ := run(s, "export", string(ids[0])); again != out {
		t.Errorf("through cleanup it is another:\n%s", again)
	}
	if _, errs, status := run(s, "export", "4jWmK60rlcz1SCpW"); status != 66 || !strings.Contains(errs, "no message") {
		t.Errorf("exit status %d, %q", status, errs)
	}
}

func TestImportRefused(t *testing.T) {
	t.Parallel()
	from := faketest.New(t, "")
	from.Fill(mails()...)
	dir := t.TempDir()
	run(from, "export", "-a", dir)
	if err := os.WriteFile(filepath.Join(dir, "bad.msg"), []byte("Posthaste-Message: 1\nnonsense\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	to := faketest.New(t, "")
	st := newStore(t, to)
	st.say = &proto.SubmitReply{Code: 452, Status: dsn.S(4, 3, 1), Text: "Insufficient system storage"}
	out, errs, status := run(to, "import", "-r", dir)
	if status != 75 || !strings.HasPrefix(out, "0 messages imported, 0 have nothing left to do, 1 files are not sound messages, 3 were refused\n") ||
		!strings.Contains(errs, "refused: 452 4.3.1 Insufficient system storage") || !strings.Contains(errs, "bad.msg: line 2: expected NAME: VALUE") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	if left, _ := os.ReadDir(dir); len(left) != 4 {
		t.Errorf("left: %v", left)
	}
}

// postfixQueue lays out a queue directory as Postfix does.
func postfixQueue(t *testing.T, files map[string]os.FileMode) string {
	t.Helper()
	data, err := os.ReadFile("pffile/testdata/queued-3.7.11")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, q := range []string{"incoming", "active", "deferred/4", "hold", "maildrop", "pid", "corrupt"} {
		if err := os.MkdirAll(filepath.Join(dir, q), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range files {
		// Each has a first recipient of its own, one letter of it changed.
		one := bytes.ReplaceAll(data, []byte("d1@to.test"), []byte(name[:1]+"1@to.test"))
		if strings.Contains(name, "done") {
			for _, r := range []string{"\x0ad1@to.test", "\x0bd 2@to.test", "\x0aone@x.test", "\x0atwo@x.test"} {
				one = bytes.ReplaceAll(one, []byte("R"+strings.Replace(r, "d1", name[:1]+"1", 1)), []byte("D"+strings.Replace(r, "d1", name[:1]+"1", 1)))
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), one, mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// deferLog is what Postfix's defer service has of the second recipient: two
// attempts, the last of which counts.
const deferLog = "\n<d 2@to.test>: x\nrecipient=d 2@to.test\nstatus=4.0.0\naction=delayed\nreason=the first time\n\n" +
	"\n<d 2@to.test>: connect to mx.to.test[192.0.2.9]:25: Connection timed out\nrecipient=d 2@to.test\noffset=600\nstatus=4.4.1\n" +
	"action=delayed\ndiag_type=x-unix\ndiag_text=late\nmta_type=dns\nmta_mname=mx.to.test\nreason=connect to mx.to.test[192.0.2.9]:25: Connection timed out\n\n" +
	"\n<stranger@to.test>: x\nrecipient=stranger@to.test\nstatus=4.0.0\naction=delayed\nreason=x\n\n"

func TestImportPostfix(t *testing.T) {
	t.Parallel()
	dir := postfixQueue(t, map[string]os.FileMode{"incoming/A1": 0o700, "incoming/done": 0o700, "active/B1": 0o700, "deferred/4/C1": 0o710,
		"hold/D1": 0o700, "incoming/torn": 0o600, "maildrop/x": 0o700, "corrupt/y": 0o400})
	log := filepath.Join(dir, "defer", "4", "C1")
	due := arrival.Truncate(time.Second)
	err := os.MkdirAll(filepath.Dir(log), 0o700)
	if err == nil {
		err = os.WriteFile(log, []byte(deferLog), 0o600)
	}
	for _, name := range []string{log, filepath.Join(dir, "deferred", "4", "C1")} {
		err = errors.Join(err, os.Chtimes(name, due, due))
	}
	if err != nil {
		t.Fatal(err)
	}
	s := faketest.New(t, "")
	st := newStore(t, s)
	out, errs, status := run(s, "import", "-v", dir)
	if status != 65 || !strings.Contains(out, "\n4 messages imported, 1 have nothing left to do, 1 files are not sound messages, 0 were refused\n") ||
		!strings.Contains(errs, "incoming/torn: not a whole message") || !strings.Contains(errs, "maildrop has 1 files") {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	if line := regexp.MustCompile(`(?m)^\Q` + dir + `\E/deferred/4/C1: 4jW\w+z\w+$`); !line.MatchString(out) {
		t.Errorf("-v: %s", out)
	}
	wantState := &queue.Change{Set: queue.SetQueue | queue.SetNextAttempt | queue.SetAttempts, Queue: queue.Deferred, NextAttempt: due, Attempts: 1,
		Outcomes: []mail.Outcome{{Rcpt: 1, Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: "connect to mx.to.test[192.0.2.9]:25: Connection timed out",
			MTA: "mx.to.test", DiagType: "x-unix", DiagText: "late", When: due}}}
	if got := st.mails["d1@to.test"]; got != nil && !reflect.DeepEqual(got.State, wantState) {
		t.Errorf("state of what was deferred\n got %+v\nwant %+v", got.State, wantState)
	}
	for name, hold := range map[string]bool{"i1@to.test": false, "a1@to.test": false, "d1@to.test": false, "h1@to.test": true} {
		got := st.mails[name]
		if got == nil {
			t.Errorf("no message for %s", name)
			continue
		}
		e := got.Envelope
		created, _, _ := e.ID.Parse()
		if e.Sender != "s p@from.test" || e.EnvID != "abc" || e.Ret != dsn.RetHeaders || len(e.Recipients) != 4 ||
			e.Recipients[0].Notify != dsn.NotifySuccess|dsn.NotifyFailure || e.Arrival.Unix() != 1795252751 || created.Unix() != 1795252751 ||
			got.Flags&proto.SubmitHold != 0 != hold {
			t.Errorf("%s: %b %+v", name, got.Flags, e)
		}
		if !bytes.HasSuffix(got.Content, []byte("\r\nlast\r\n")) {
			t.Errorf("%s: content of %d octets", name, len(got.Content))
		}
	}
}

// Postfix's master keeps a lock on its process file.
func TestImportFromRunningPostfix(t *testing.T) {
	t.Parallel()
	dir := postfixQueue(t, map[string]os.FileMode{"incoming/A1": 0o700})
	f, err := os.Create(filepath.Join(dir, "pid", "master.pid"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintf(f, "%*d\n", 20, 4711)
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	s := faketest.New(t, "")
	st := newStore(t, s)
	if _, errs, status := run(s, "import", dir); status != 75 || !strings.Contains(errs, "process 4711") || len(st.mails) != 0 {
		t.Errorf("exit status %d, %q", status, errs)
	}
	f.Close()
	if out, errs, status := run(s, "import", dir); status != 0 || len(st.mails) != 1 {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
}

func TestDumpCheckStats(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	for _, verb := range []string{"dump", "check", "stats"} {
		if _, errs, status := run(s, verb); status != 66 || !strings.Contains(errs, "nothing has been queued here yet") {
			t.Errorf("%s: exit status %d, %q", verb, status, errs)
		}
	}
	ids := s.Fill(mails()...)
	out, errs, status := run(s, "dump")
	for _, id := range ids {
		if !strings.Contains(out, " "+string(id)+" ") || status != 0 {
			t.Errorf("dump: exit status %d, %q lacks %s\n%s", status, errs, id, out)
		}
	}
	out, _, _ = run(s, "dump", "-m")
	line := regexp.MustCompile(`(?m)^` + string(ids[1]) + ` deferred size 220000 rcpts 2 pending 1 attempts 2 next ` +
		arrival.Add(time.Hour).UTC().Format("2006-01-02T15:04:05Z") + ` warned segment \d+ file \d+ at \d+$`)
	if n := strings.Count(out, "\n"); n != 3 || !line.MatchString(out) {
		t.Errorf("dump -m:\n%s", out)
	}
	// What the spool writes between messages depends on time, and so does where they lie:
	// the held one in the first block of its batch, which is what check names.
	place := regexp.MustCompile(`(?m)^` + string(ids[2]) + ` hold .* segment 1 file 0 at (\d+)$`).FindStringSubmatch(out)
	if place == nil {
		t.Fatalf("dump -m does not say where %s is:\n%s", ids[2], out)
	}
	at, _ := strconv.Atoi(place[1]) // digits, as the pattern says
	problem := fmt.Sprintf("problem: seg/00000000.seg:%d: message %s: ", at-at%4096, ids[2])
	out, errs, status = run(s, "check")
	if !strings.HasPrefix(out, "3 messages, 4 recipients pending; ") || !strings.HasSuffix(out, "\nconsistent\n") || status != 0 {
		t.Errorf("check: exit status %d, %q, %q", status, out, errs)
	}
	out, errs, status = run(s, "stats")
	want := "incoming          1 messages         2 recipients           10 octets\n" +
		"deferred          1 messages         1 recipients       220000 octets\n" +
		"hold              1 messages         1 recipients           15 octets\n" +
		"corrupt           0 messages         0 recipients            0 octets\n" +
		"oldest message of 2026-11-21 08:56:26\nnext attempt at 2026-11-21 09:56:26\n"
	if !strings.HasPrefix(out, want) || !strings.Contains(out, "\n1 files of large messages, ") || status != 0 {
		t.Errorf("stats: exit status %d, %q\n%s", status, errs, out)
	}
	corrupt(t, s, "Subject: held")
	out, errs, status = run(s, "check")
	if !strings.Contains(out, problem) || !strings.Contains(errs, "1 problems") || status != 65 {
		t.Errorf("check of a damaged one: exit status %d, %q, %q", status, out, errs)
	}
	dir := t.TempDir()
	_, errs, status = run(s, "export", "-d", dir, string(ids[2]), string(ids[0]))
	text, err := os.ReadFile(filepath.Join(dir, string(ids[2])+".msg"))
	if status != 65 || !strings.Contains(errs, "1 messages are damaged") || err != nil || !strings.HasSuffix(string(text), "\n\nsubject: held\n\n") {
		t.Errorf("export of a damaged one: exit status %d, %q, %v\n%s", status, errs, err, text)
	}
}

// corrupt changes one octet of a message's content.
func corrupt(t *testing.T, s *faketest.Site, text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.Queue, "spool", "seg", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(data, []byte(text)); i > 0 {
			data[i] ^= 0x20
			if err := os.WriteFile(name, data, 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("%q is nowhere", text)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	for _, args := range []string{"", "explode", "dump x", "check x", "stats x", "export", "export a b", "export -a d x", "import", "import -z x", "dump -z"} {
		if _, errs, status := run(s, strings.Fields(args)...); status != 64 || !strings.Contains(errs, "usage: posthaste spool") {
			t.Errorf("%q: exit status %d, %q", args, status, errs)
		}
	}
	if _, errs, status := run(s, "import", "-n", "/nonexistent"); status != 66 {
		t.Errorf("exit status %d, %q", status, errs)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	explain := func(args ...string) (string, string, int) {
		var o, e bytes.Buffer
		status := Explain("posthaste explain", append([]string{"-c", s.Config}, args...), &o, &e)
		return o.String(), e.String(), status
	}
	if _, errs, status := explain("076AF9D46E1"); status != 69 || !strings.Contains(errs, "the mail system is down") {
		t.Errorf("exit status %d, %q", status, errs)
	}
	s.Serve("qmgr", func(r *ipc.Request) {
		q := faketest.Decode[proto.Explain](t, r)
		reply := new(proto.ExplainReply)
		if q.ID == "076AF9D46E1" {
			reply.Lines = []string{"076AF9D46E1: deferred queue", "  next attempt at noon"}
		}
		r.Reply(reply)
	})
	if out, errs, status := explain("076AF9D46E1"); out != "076AF9D46E1: deferred queue\n  next attempt at noon\n" || status != 0 {
		t.Errorf("exit status %d, %q, %q", status, out, errs)
	}
	if _, errs, status := explain("4jWmK60rlcz1SCpW"); status != 66 || !strings.Contains(errs, "is not in the queue") {
		t.Errorf("exit status %d, %q", status, errs)
	}
	if _, errs, status := explain("tenant=news"); status == 64 {
		t.Errorf("a tenant is no destination: %q", errs)
	}
	for _, args := range [][]string{nil, {"-x"}, {"a/b"}, {"tenant=a/b"}} {
		if _, errs, status := explain(args...); status != 64 {
			t.Errorf("%v: exit status %d, %q", args, status, errs)
		}
	}
}

// What is in doubt of a spool that is down is listed as its next start will find it, and can be
// marked as seen when a start has.
func TestDoubtful(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	if _, errs, status := run(s, "doubtful"); status != 66 || !strings.Contains(errs, "nothing has been queued here yet") {
		t.Errorf("exit status %d, %q", status, errs)
	}
	ids := s.Fill(mails()...)
	if out, errs, status := run(s, "doubtful"); status != 0 || out != "" {
		t.Errorf("after a clean end: %d %q %q", status, out, errs)
	}
	dir := filepath.Join(s.Queue, "spool")
	began, found := arrival, arrival.Add(time.Minute)
	list := doubtful.List{{ID: ids[0], Sender: "a b@from.test", Rcpt: 1, Recipient: "e@to.test", More: 3, Nexthop: "mx[192.0.2.1]:25", Why: doubtful.InHand,
		Began: &began, Found: found, State: doubtful.Delivered, Ended: &found},
		{ID: ids[2], Sender: "", Rcpt: -1, Recipient: "h@to.test", Why: doubtful.Unanswered, Found: found, State: doubtful.Queued}}
	if err := list.Save(vfs.OS{}, dir); err != nil {
		t.Fatal(err)
	}
	want := string(ids[0]) + " from <a b@from.test> to <e@to.test> and 3 more by way of mx[192.0.2.1]:25: it was being delivered when the mail system ended; begun 2026-11-21 08:56:26; found 2026-11-21 08:57:26; delivered again 2026-11-21 08:57:26\n" +
		string(ids[2]) + " from <> to <h@to.test>: its client may not have been told that it was queued, and may have sent it again; found 2026-11-21 08:57:26; in the queue\n"
	if out, errs, status := run(s, "doubtful"); status != 0 || out != want {
		t.Errorf("%d %q\n%s%s", status, errs, out, want)
	}
	out, _, status := run(s, "doubtful", "-j", "-s")
	var e doubtful.Entry
	if first, _, _ := strings.Cut(out, "\n"); status != 0 || strings.Count(out, "\n") != 2 || json.Unmarshal([]byte(first), &e) != nil || e.ID != ids[0] || e.Nexthop == "" {
		t.Errorf("%d %s", status, out)
	}
	if out, _, status := run(s, "doubtful"); status != 0 || out != "" {
		t.Errorf("seen: %d %q", status, out)
	}
	if _, _, status := run(s, "doubtful", "x"); status != 64 {
		t.Errorf("with an argument: %d", status)
	}
}
