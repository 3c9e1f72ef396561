package cleanup

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/mailfilter"
	"posthaste/internal/milter"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/table"
)

// A filterFake is a filter that notes what it is told, a line each, and answers as it has been given.
type filterFake struct {
	endpoint string
	conns    sync.WaitGroup

	mu     sync.Mutex
	said   []string
	answer map[string][]string // by the line, or its letter: replies; "c" to all others
}

// newFilter runs a filter until the test ends.
func newFilter(t *testing.T, answer map[string][]string) *filterFake {
	t.Helper()
	f := &filterFake{endpoint: "unix:" + filepath.Join(t.TempDir(), "m"), answer: answer}
	l, err := net.Listen("unix", strings.TrimPrefix(f.endpoint, "unix:"))
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			f.conns.Go(func() { f.serve(nc) })
		}
	})
	t.Cleanup(func() { l.Close(); accepting.Wait(); f.conns.Wait() })
	return f
}

// ended is all that the filter was told, when its sessions are over.
func (f *filterFake) ended() []string {
	f.conns.Wait()
	return f.told()
}

// told is what the filter was told since the last time.
func (f *filterFake) told() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.said
	f.said = nil
	return list
}

func (f *filterFake) answers(answer map[string][]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func (f *filterFake) serve(nc net.Conn) {
	defer nc.Close()
	r := bufio.NewReader(nc)
	for {
		var size [4]byte
		if _, err := io.ReadFull(r, size[:]); err != nil {
			return
		}
		p := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(r, p); err != nil {
			return
		}
		for _, reply := range f.hear(p) {
			if _, err := nc.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(reply))), reply...)); err != nil {
				return
			}
		}
	}
}

// hear notes a packet, and returns the replies to it.
func (f *filterFake) hear(p []byte) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	kind, words := string(p[:1]), strings.Split(strings.TrimSuffix(string(p[1:]), "\x00"), "\x00")
	switch kind {
	case "O":
		return []string{"O\x00\x00\x00\x06\x00\x00\x01\xff\x00\x00\x08\x00"} // all actions, and refused recipients
	case "D":
		if len(p) > 2 {
			f.said = append(f.said, "D"+words[0][:1]+" "+words[0][1:]+" "+strings.Join(words[1:], " "))
		}
		return nil
	case "C":
		name, rest, _ := strings.Cut(string(p[1:]), "\x00")
		if words = []string{name, rest}; len(rest) > 3 {
			words = []string{name, rest[:1], strconv.Itoa(int(rest[1])<<8 | int(rest[2])), strings.TrimSuffix(rest[3:], "\x00")}
		}
	case "B":
		words = []string{fmt.Sprintf("%q", p[1:])}
		if len(p) > 100 {
			words = []string{fmt.Sprintf("%d octets", len(p)-1)}
		}
	}
	line := strings.TrimSpace(kind + " " + strings.Join(words, " "))
	f.said = append(f.said, line)
	if kind == "A" || kind == "Q" || kind == "K" {
		return nil
	}
	for _, key := range []string{line, kind} {
		if a := f.answer[key]; a != nil {
			return a
		}
	}
	return []string{"c"}
}

// A filteredServer is a server with filters.
type filteredServer struct {
	*server
	log   *logText
	specs []mailfilter.Spec // smtpd_milters
	dir   string            // the spool
}

func newFiltered(t *testing.T, main string) *filteredServer {
	t.Helper()
	s, log := newTestServer(t, main, "")
	dir := filepath.Join(t.TempDir(), "spool")
	sp, err := spool.Open(spool.Options{Dir: dir, SegmentSize: 1 << 20, InlineLimit: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Wait(); sp.Close() })
	s.opt.Engine = logEngine{Spool: sp}
	cfg, err := config.LoadString(baseConfig + main)
	if err != nil {
		t.Fatal(err)
	}
	if s.opt.Milters, err = newMilters(cfg, log.l, table.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if ms := s.opt.Milters; ms != nil {
			ms.Close() // or filters would wait for more
		}
	})
	specs, err := milter.Read(cfg, "smtpd_milters")
	if err != nil {
		t.Fatal(err)
	}
	return &filteredServer{s, log, specs, dir}
}

// verdictText is a verdict as tests have it.
func verdictText(v mailfilter.Verdict, err error) string {
	text := [...]string{"go on", "reject", "discard", "shutdown"}[v.Action]
	if err != nil {
		return err.Error()
	}
	if v.Reply != nil {
		text += fmt.Sprint(" ", v.Reply.Code, " ", v.Reply.Status, " ", v.Reply.Text)
	}
	if v.Hold {
		text += ", hold"
	}
	return text
}

// milterWords reads an event: its name, and its arguments.
func milterWords(t *testing.T, session uint64, specs []mailfilter.Spec, text string) *proto.Milter {
	t.Helper()
	f := strings.Fields(text)
	q := &proto.Milter{Session: session, Args: f[1:], Event: map[string]proto.MilterEvent{"connect": proto.MilterConnect, "helo": proto.MilterHelo,
		"mail": proto.MilterMail, "rcpt": proto.MilterRcpt, "data": proto.MilterData, "unknown": proto.MilterUnknown,
		"abort": proto.MilterAbort, "close": proto.MilterClose, "refused": proto.MilterRefused}[f[0]]}
	if q.Event == 0 {
		t.Fatal(text)
	}
	for i, a := range q.Args {
		if name, value, is := strings.Cut(a, "="); is && strings.HasPrefix(name, "{") {
			q.Macros = append(q.Macros, name, value)
			q.Args = q.Args[:min(len(q.Args), i)]
		}
	}
	if q.Event == proto.MilterConnect {
		q.Specs = specs
	}
	return q
}

// A session is told to its filters event by event, each by its own name and with its macros; the verdict is the filter's; a number
// is one session's; what is over, or was never begun, is an error and not a verdict.
func TestFilterSession(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer map[string][]string
		events [][2]string // and the verdict, or error
		said   string
	}{
		"all events": {events: [][2]string{
			{"connect c.test 192.0.2.1 4711", "go on"}, {"helo h.test", "go on"}, {"unknown WHAT", "go on"},
			{"mail <a@x.test> SIZE=1 {mail_addr}=a@x.test", "go on"}, {"rcpt <b@x.test> NOTIFY=NEVER {rcpt_addr}=b@x.test", "go on"}, {"refused <c@x.test>", "go on"},
			{"data", "go on"}, {"abort", "go on"}, {"mail <d@x.test> {mail_addr}=", "go on"}, {"close", "go on"}, {"mail <e@x.test>", "cleanup: no session 1 with filters"}},
			said: "C c.test 4 4711 192.0.2.1|H h.test|U WHAT|DM {mail_addr} a@x.test|M <a@x.test> SIZE=1|DR {rcpt_addr} b@x.test|R <b@x.test> NOTIFY=NEVER|DR {rcpt_addr} b@x.test|R <c@x.test>|T|A|M <d@x.test>|Q"},
		"nothing is known of the client": {events: [][2]string{{"connect c.test unknown 0", "go on"}, {"close", "go on"}}, said: "C c.test U|Q"},
		"few arguments":                  {events: [][2]string{{"connect", "go on"}, {"helo", "go on"}, {"unknown", "go on"}, {"close", "go on"}}, said: "C  U|H|U|Q"},
		"version 6":                      {events: [][2]string{{"connect c.test 2001:db8::1 25", "go on"}, {"close", "go on"}}, said: "C c.test 6 25 2001:db8::1|Q"},
		"a number twice":                 {events: [][2]string{{"connect c.test unknown 0", "go on"}, {"connect d.test unknown 0", "cleanup: session 1 with filters exists"}, {"helo h.test", "go on"}, {"close", "go on"}}, said: "C c.test U|H h.test|Q"},
		"it does not begin":              {events: [][2]string{{"helo h.test", "cleanup: no session 1 with filters"}, {"close", "go on"}, {"connect c.test unknown 0", "go on"}, {"close", "go on"}}, said: "C c.test U|Q"},
		"verdicts": {answer: map[string][]string{"M <a@x.test>": {"r"}, "M <b@x.test>": {"t"}, "R <c@x.test>": {"y550 5.1.1 nobody\x00"}, "R <d@x.test>": {"d"}},
			events: [][2]string{{"connect c.test unknown 0", "go on"}, {"mail <a@x.test>", "reject 550 5.7.1 Command rejected"}, {"abort", "go on"}, {"mail <b@x.test>", "reject 451 4.7.1 Service unavailable - try again later"},
				{"abort", "go on"}, {"mail <o@x.test>", "go on"}, {"rcpt <c@x.test>", "reject 550 5.1.1 nobody"}, {"rcpt <e@x.test>", "go on"}, {"rcpt <d@x.test>", "discard"}, {"close", "go on"}},
			said: "C c.test U|M <a@x.test>|A|M <b@x.test>|A|M <o@x.test>|R <c@x.test>|R <e@x.test>|R <d@x.test>|Q"},
		// What a filter says of a recipient that is refused already changes nothing, neither of it nor of what comes next.
		"refused already": {answer: map[string][]string{"R <c@x.test>": {"y550 5.1.1 nobody\x00"}, "R <d@x.test>": {"d"}},
			events: [][2]string{{"connect c.test unknown 0", "go on"}, {"mail <a@x.test>", "go on"}, {"refused <c@x.test> {rcpt_addr}=c@x.test", "go on"}, {"refused <d@x.test>", "go on"}, {"rcpt <b@x.test>", "go on"}, {"data", "go on"}, {"close", "go on"}},
			said:   "C c.test U|M <a@x.test>|DR {rcpt_addr} c@x.test|R <c@x.test>|DR {rcpt_addr} c@x.test|R <d@x.test>|DR {rcpt_addr} c@x.test|R <b@x.test>|T|Q"},
		"refused at once": {answer: map[string][]string{"C": {"r"}}, events: [][2]string{{"connect c.test unknown 0", "reject 550 5.7.1 Command rejected"}, {"helo h.test", "reject 550 5.7.1 Command rejected"}, {"close", "go on"}},
			said: "C c.test U|Q"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFilter(t, tt.answer)
			s := newFiltered(t, "smtpd_milters = "+f.endpoint+"\n")
			specs := s.specs
			ms := s.opt.Milters
			for _, e := range tt.events {
				if got := verdictText(ms.event(t.Context(), nil, milterWords(t, 1, specs, e[0]))); got != e[1] {
					t.Errorf("%s: %s, want %s", e[0], got, e[1])
				}
			}
			if len(ms.sessions) > 0 {
				t.Error("a session is left")
			}
			if got := strings.Join(f.ended(), "|"); got != tt.said {
				t.Errorf("the filter was told\n%s\nwant\n%s", got, tt.said)
			}
			if err := ms.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The sessions of a connection end with it, and no others; Close ends all, and none begins after it.
func TestFilterSessionsEnd(t *testing.T) {
	t.Parallel()
	mine, others, last := newFilter(t, nil), newFilter(t, nil), newFilter(t, nil)
	s := newFiltered(t, "")
	ms := s.opt.Milters
	specs := func(f *filterFake) []mailfilter.Spec {
		cfg, err := config.LoadString(baseConfig)
		if err != nil {
			t.Fatal(err)
		}
		list, err := milter.Parse(cfg, "smtpd_milters", []string{f.endpoint})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	// Over a connection, which is closed.
	client := servedTo(t, s.server, nil)
	conn, err := client.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	call := func(conn *ipc.Conn, q *proto.Milter) (r proto.MilterReply, err error) {
		err = conn.Call(t.Context(), q, &r)
		return r, err
	}
	for n := range uint64(2) {
		if r, err := call(conn, milterWords(t, n, specs(mine), "connect c.test 192.0.2.1 25")); err != nil || r.Action != mailfilter.Continue {
			t.Fatal(r, err)
		}
	}
	if _, err := call(conn, milterWords(t, 9, nil, "helo h.test")); err == nil || !strings.Contains(err.Error(), "no session 9") {
		t.Error(err)
	}
	// Of another connection, and of none that closes.
	if _, err := ms.event(t.Context(), new(ipc.Conn), milterWords(t, 7, specs(others), "connect o.test 192.0.2.1 25")); err != nil {
		t.Fatal(err)
	}
	held := ms.session(0)
	conn.Close()
	if got := mine.ended(); !slices.Equal(got, []string{"C c.test 4 25 192.0.2.1", "C c.test 4 25 192.0.2.1", "Q", "Q"}) {
		t.Errorf("its sessions were told %q", got)
	}
	held.mu.Lock()
	if over := held.over; !over || ms.session(0) != nil || ms.session(1) != nil {
		t.Error("a session of a connection that is gone is there")
	}
	held.mu.Unlock()
	if v, err := ms.event(t.Context(), nil, milterWords(t, 7, nil, "helo h.test")); err != nil || v.Action != mailfilter.Continue {
		t.Errorf("the session of another connection: %v, %v", v, err)
	}
	if err := ms.Close(); err != nil {
		t.Error(err)
	}
	if got := others.ended(); !slices.Equal(got, []string{"C o.test 4 25 192.0.2.1", "H h.test", "Q"}) {
		t.Errorf("the other session was told %q", got)
	}
	for range 2 { // the second would hang if the first had left something locked
		if v, err := ms.event(t.Context(), nil, milterWords(t, 8, specs(last), "connect l.test 192.0.2.1 25")); err == nil {
			t.Errorf("after the end: %v", v)
		}
	}
	if got := last.told(); got != nil {
		t.Errorf("after the end %q was told", got)
	}
	s.opt.Milters = nil
	if conn, err = client.Conn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := call(conn, milterWords(t, 1, nil, "helo h.test")); err == nil || !strings.Contains(err.Error(), "not served") {
		t.Error(err)
	}
}

// A cleanup that has not heard of a session is told what went before, with the filters of then, and tells them; what they let pass
// then and do not now holds for the rest of the transaction, and no longer.
func TestFilterSessionGoesOn(t *testing.T) {
	t.Parallel()
	const tempFail = "reject 451 4.7.1 Service unavailable - try again later"
	const before = "connect c.test 192.0.2.1 25|helo h.test|mail <a@x.test>|rcpt <b@x.test>|"
	for name, tt := range map[string]struct {
		answer map[string][]string
		events string
		want   string
		said   string
	}{
		"as before": {events: "rcpt <d@x.test>|data|mail <e@x.test>", want: "go on|go on|go on",
			said: "C c.test 4 25 192.0.2.1|H h.test|M <a@x.test>|R <b@x.test>|R <d@x.test>|T|M <e@x.test>|Q"},
		"not this sender any more": {answer: map[string][]string{"M <a@x.test>": {"y554 5.7.9 no\x00"}}, events: "rcpt <d@x.test>|data|abort|mail <e@x.test>|rcpt <f@x.test>", want: "reject 554 5.7.9 no|reject 554 5.7.9 no|go on|go on|go on",
			said: "C c.test 4 25 192.0.2.1|H h.test|M <a@x.test>|A|M <e@x.test>|R <f@x.test>|Q"},
		"not this recipient any more": {answer: map[string][]string{"R <b@x.test>": {"r"}}, events: "data|abort|mail <e@x.test>|rcpt <f@x.test>", want: tempFail + "|go on|go on|go on",
			said: "C c.test 4 25 192.0.2.1|H h.test|M <a@x.test>|R <b@x.test>|A|M <e@x.test>|R <f@x.test>|Q"},
		"discarded now": {answer: map[string][]string{"R <b@x.test>": {"d"}}, events: "rcpt <d@x.test>|helo i.test|mail <e@x.test>|rcpt <f@x.test>", want: "discard|go on|go on|go on",
			said: "C c.test 4 25 192.0.2.1|H h.test|M <a@x.test>|R <b@x.test>|A|H i.test|M <e@x.test>|R <f@x.test>|Q"},
		"not this client any more": {answer: map[string][]string{"H h.test": {"r"}}, events: "rcpt <d@x.test>", want: "reject 550 5.7.1 Command rejected",
			said: "C c.test 4 25 192.0.2.1|H h.test|Q"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFilter(t, tt.answer)
			s := newFiltered(t, "smtpd_milters = "+f.endpoint+"\n")
			specs := s.specs
			ms := s.opt.Milters
			told := toldOf(t, specs, before)
			var got []string
			for i, e := range strings.Split(tt.events, "|") {
				q := milterWords(t, 5, nil, e)
				if i == 0 {
					q.Told = told
					q.Specs = []mailfilter.Spec{{Endpoint: "unix:/nowhere", Protocol: 6, Default: "reject"}} // of now
				}
				got = append(got, verdictText(ms.event(t.Context(), nil, q)))
			}
			if text := strings.Join(got, "|"); text != tt.want {
				t.Errorf("%s, want %s", text, tt.want)
			}
			if err := ms.Close(); err != nil {
				t.Error(err)
			}
			if text := strings.Join(f.ended(), "|"); text != tt.said {
				t.Errorf("the filter was told\n%s\nwant\n%s", text, tt.said)
			}
			q := milterWords(t, 6, nil, "data")
			q.Told = proto.MilterTold("\xff")
			if v, err := ms.event(t.Context(), nil, q); err == nil {
				t.Errorf("told something that cannot be read: %v", v)
			}
		})
	}
}

// toldOf is what filters have been told: events, with bars between.
func toldOf(t *testing.T, specs []mailfilter.Spec, events string) (told proto.MilterTold) {
	for e := range strings.SplitSeq(strings.TrimSuffix(events, "|"), "|") {
		told = told.Add(milterWords(t, 5, specs, e))
	}
	return told
}

// queued is what the queue has of a message; nil if it is not there.
func (s *filteredServer) queued(t *testing.T, id mail.QueueID) *fate {
	t.Helper()
	e, found := s.opt.Engine.Locate(id)
	if !found {
		return nil
	}
	r := spool.NewReader(nil, s.dir)
	defer r.Close()
	f := new(fate)
	if err := f.read(r, e); err != nil {
		t.Fatal(err)
	}
	return f
}

// filteredMail is a message of a client whose session with the filters is number 3.
const filteredMail = "Received: from h.test\r\nFrom: a@x.test\r\nSubject: one\r\nX-Old: 1\r\nX-Old: 2\r\nMessage-Id: <m@x.test>\r\n\r\nbody\r\n.dot\r\n"

// What filters want at the end of a message is what is queued, answered and logged. Nothing is left of the message but that.
func TestFilterMessage(t *testing.T) {
	t.Parallel()
	const plainLog = "message-id=<m@x.test>"
	const header = "Received: from h.test\nFrom: a@x.test\nSubject: one\nX-Old: 1\nX-Old: 2\nMessage-Id: <m@x.test>\n"
	const body = "\nbody\n.dot\n"
	const about = " from c.test[192.0.2.1]: "
	const whom = "; from=<a@x.test> to=<c@y.test> proto=ESMTP helo=<h.test>"
	type result struct {
		conf    string
		replies []string // to the end of the message
		flags   proto.SubmitFlags
		reply   string // to the client; "": 250 2.0.0 Ok
		content string // "": as it came
		rcpts   string // "": b@y.test c@y.test
		sender  string // "": a@x.test
		queue   string // hold, incoming (""), none
		log     string // besides the message ID
	}
	for name, tt := range map[string]result{
		"nothing":          {replies: []string{"c"}},
		"accept":           {replies: []string{"a"}},
		"progress":         {replies: []string{"p", "p", "c"}},
		"add":              {replies: []string{"hX-New\x00new\x00", "c"}, content: header + "X-New: new\n" + body},
		"insert":           {replies: []string{"i\x00\x00\x00\x01X-New\x00new\n\tfolded\x00", "c"}, content: "Received: from h.test\nX-New: new\n\tfolded\n" + header[len("Received: from h.test\n"):] + body},
		"change":           {replies: []string{"m\x00\x00\x00\x02X-Old\x00new\x00", "c"}, content: strings.Replace(header, "Old: 2", "Old: new", 1) + body},
		"delete":           {replies: []string{"m\x00\x00\x00\x01X-Old\x00\x00", "c"}, content: strings.Replace(header, "X-Old: 1\n", "", 1) + body},
		"body":             {replies: []string{"bnew\r\n", "b.text\xc3\xa4\r\n", "c"}, content: header + "\nnew\n.text\xc3\xa4\n"},
		"no body":          {replies: []string{"b", "c"}, content: header},
		"body is too long": {conf: "message_size_limit = 300\n", replies: []string{"b" + strings.Repeat("x", 301), "c"}, reply: "451 4.7.1 Service unavailable - try again later", queue: "none", log: "milter-reject: END-OF-MESSAGE" + about + "4.7.1 Service unavailable - try again later" + whom},
		"sender":           {replies: []string{"e<n@x.test>\x00SIZE=3 RET=HDRS ENVID=i+2Bd\x00", "c"}, sender: "n@x.test HDRS i+d", log: "warning: Ignoring bad ESMTP parameter \"SIZE=3\" in SMFI_CHGFROM request"},
		"null sender":      {replies: []string{"e<>\x00", "c"}, sender: " - "},
		"bad sender":       {replies: []string{"en@x.test> SIZE=3\x00", "c"}, log: "warning: ID: a milter wants to change the sender to an invalid address: \"n@x.test> SIZE=3\" \"\": Bad message size syntax"},
		"mapped sender":    {conf: "sender_canonical_maps = inline:{ {n@x.test = mapped@x.test} }\n", replies: []string{"en@x.test\x00", "c"}, sender: "mapped@x.test - "},
		"recipient":        {replies: []string{"+d@y.test\x00", "c"}, rcpts: "b@y.test c@y.test d@y.test"},
		"recipient DSN":    {replies: []string{"2<d@y.test>\x00NOTIFY=NEVER BODY=7BIT ORCPT=rfc822;o@y.test\x00", "c"}, rcpts: "b@y.test c@y.test d@y.test/NEVER/rfc822;o@y.test", log: "warning: ID: ignoring ESMTP argument from Milter or header/body_checks: \"BODY=7BIT\""},
		"recipient again":  {replies: []string{"+d@y.test\x00", "+d@y.test\x00", "c"}, rcpts: "b@y.test c@y.test d@y.test"},
		"bad recipient":    {replies: []string{"+d@y.test> X\x00", "c"}, log: "warning: ID: a milter wants to add an invalid recipient address: \"d@y.test> X\" \"\": Unsupported option: X>"},
		"alias":            {conf: "virtual_alias_maps = inline:{ {d@y.test = e@y.test, b@y.test} }\n", replies: []string{"+d@y.test\x00", "c"}, rcpts: "b@y.test c@y.test e@y.test(d@y.test) b@y.test(d@y.test)"},
		"fewer":            {replies: []string{"-<B@y.test>\x00", "c"}, rcpts: "c@y.test"},
		"fewer not there":  {replies: []string{"-<z@y.test>\x00", "c"}},
		"fewer bad":        {replies: []string{"-b@y.test> X\x00", "c"}, log: "warning: ID: a milter wants to remove an invalid recipient address: \"b@y.test> X\": Unsupported option: X>"},
		"another":          {replies: []string{"-b@y.test\x00", "-c@y.test\x00", "+d@y.test\x00", "+b@y.test\x00", "c"}, rcpts: "d@y.test b@y.test"},
		"again":            {replies: []string{"+d@y.test\x00", "-d@y.test\x00", "+d@y.test\x00", "c"}, rcpts: "b@y.test c@y.test d@y.test"},
		"again by address": {conf: "enable_original_recipient = no\n", replies: []string{"-b@y.test\x00", "+b@y.test\x00", "+C@y.test\x00", "c"}, rcpts: "c@y.test b@y.test"},
		"of an alias":      {conf: "virtual_alias_maps = inline:{ {b@y.test = e@y.test, f@y.test} }\n", replies: []string{"-b@y.test\x00", "c"}, rcpts: "c@y.test"},
		"nobody":           {replies: []string{"-b@y.test\x00", "-c@y.test\x00", "c"}, queue: "none"},
		"nobody refused":   {replies: []string{"-b@y.test\x00", "-c@y.test\x00", "r"}, reply: "550 5.7.1 Command rejected", queue: "none", log: "milter-reject: END-OF-MESSAGE" + about + "5.7.1 Command rejected" + whom},
		"hold":             {replies: []string{"qspam\x00", "c"}, queue: "hold", log: "milter-hold: END-OF-MESSAGE" + about + "milter triggers HOLD action" + whom},
		"hold held":        {flags: proto.SubmitHold, replies: []string{"qspam\x00", "c"}, queue: "hold"},
		"hold and refuse":  {replies: []string{"qspam\x00", "t"}, reply: "451 4.7.1 Service unavailable - try again later", queue: "none", log: "milter-reject: END-OF-MESSAGE" + about + "4.7.1 Service unavailable - try again later" + whom},
		"discard":          {replies: []string{"hX-New\x00new\x00", "d"}, queue: "none", log: "milter-discard: END-OF-MESSAGE" + about + "milter triggers DISCARD action" + whom},
		"reply":            {replies: []string{"y451 4.5.6 later\r\n451 4.5.6 much later\x00"}, reply: "451 4.5.6 later\nmuch later", queue: "none", log: "milter-reject: END-OF-MESSAGE" + about + "4.5.6 later much later" + whom},
		"shutdown":         {replies: []string{"4"}, reply: "421 4.7.0 Server closing connection", queue: "none", log: "milter-reject: END-OF-MESSAGE" + about + "4.7.0 Server closing connection" + whom},
		"returned":         {flags: proto.SubmitBounce, replies: []string{"y550 5.5.6 never\r\n550 5.5.6 ever\x00"}, queue: "error:5.5.6 never ever HDRS", log: "milter-reject: END-OF-MESSAGE" + about + "5.5.6 never ever" + whom},
		"not returned":     {flags: proto.SubmitBounce, replies: []string{"y450 4.5.6 not\r\n450 4.5.6 now\x00"}, reply: "450 4.5.6 not now", queue: "none", log: "milter-reject: END-OF-MESSAGE" + about + "4.5.6 not now" + whom},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, large := range []bool{false, true} { // content in memory, and in a file
				f := newFilter(t, map[string][]string{"E": tt.replies})
				s := newFiltered(t, tt.conf+"smtpd_milters = "+f.endpoint+"\n")
				for _, e := range []string{"connect c.test 192.0.2.1 4711", "helo h.test", "mail <a@x.test>", "rcpt <b@y.test>", "rcpt <c@y.test>", "data"} {
					if v, err := s.opt.Milters.event(t.Context(), nil, milterWords(t, 3, s.specs, e)); err != nil || v.Action != mailfilter.Continue {
						t.Fatal(e, v, err)
					}
				}
				before := f.told()
				if len(before) != 6 {
					t.Errorf("before the message the filter was told %q", before)
				}
				if large {
					s.opt.BufferLimit = 0
				}
				q := s.mailOf(filteredMail)
				q.Flags |= tt.flags
				s.checkResult(t, committed(s.server, q), q, tt.reply, tt.queue, tt.log, plainLog)
				if got := s.queued(t, q.Envelope.ID); got != nil && !strings.HasPrefix(tt.queue, "error:") {
					want := tt.content
					if want == "" {
						want = header + body
					}
					if text := strings.ReplaceAll(got.Content, "\r\n", "\n"); text != want {
						t.Errorf("content\n%s\nwant\n%s", text, want)
					}
					if rcpts := recipientsText(&got.Envelope); rcpts != cmp.Or(tt.rcpts, "b@y.test c@y.test") {
						t.Errorf("recipients %s", rcpts)
					}
					if sender := fmt.Sprint(got.Envelope.Sender, " ", cmp.Or(got.Envelope.Ret.String(), "-"), " ", got.Envelope.EnvID); sender != cmp.Or(tt.sender, "a@x.test - ") {
						t.Errorf("sender %q", sender)
					}
					if eight := got.Envelope.Body&mail.Body8Bit != 0; eight != strings.Contains(want, "\xc3") || got.Envelope.Body&mail.BodyDots == 0 && strings.Contains(want, "\n.") {
						t.Errorf("the body is said to be %b", got.Envelope.Body)
					}
				}
				// The first field is this server's own, which filters do not see.
				const want = "DL i ID|L From a@x.test|DL i ID|L Subject one|DL i ID|L X-Old 1|DL i ID|L X-Old 2|DL i ID|L Message-Id <m@x.test>|DN i ID|N|DB i ID|B \"body\\r\\n.dot\\r\\n\"|DE i ID|E"
				if said := strings.ReplaceAll(strings.Join(f.told(), "|"), string(q.Envelope.ID), "ID"); said != want {
					t.Errorf("of the message the filter was told\n%s\nwant\n%s", said, want)
				}
				// The next message in the session.
				f.answers(nil)
				if v, err := s.opt.Milters.event(t.Context(), nil, milterWords(t, 3, nil, "abort")); err != nil || v.Action != mailfilter.Continue {
					t.Error(v, err)
				}
				s.nothingLeft(t)
			}
		})
	}
}

// Long content that filters have changed is stored anew, once: what was stored before takes no room in the queue any more. The
// envelope says of it what it would say had it come so, wherever the pieces in which it is read begin.
func TestFilterReplacesLarge(t *testing.T) {
	t.Parallel()
	const header = "From: a@x.test\r\nMessage-Id: <m@x.test>\r\n"
	// The CR of a line end is the last octet of the first 64 KiB.
	body := strings.Repeat("x", 63) + "\r\n" + strings.Repeat(strings.Repeat("x", 62)+"\r\n", 5000)
	f := newFilter(t, map[string][]string{"E": {"hX-New\x001\x00", "c"}})
	s := newFiltered(t, "non_smtpd_milters = "+f.endpoint+"\n")
	q := s.mailOf(header + "\r\n" + body)
	q.Milter = 0
	s.checkResult(t, committed(s.server, q), q, "", "")
	got := s.queued(t, q.Envelope.ID)
	if got == nil {
		t.Fatal("it is not queued")
	}
	if want := header + "X-New: 1\r\n\r\n" + body; got.Content != want {
		t.Errorf("%d octets are stored, want %d", len(got.Content), len(want))
	}
	live := s.opt.Engine.(logEngine).Stats().LiveBytes
	if n := int64(len(got.Content)); live < n || live > n+n/4 {
		t.Errorf("%d octets of mail are said to be queued, of %d", live, n)
	}
	plain := newFiltered(t, "")
	as := plain.mailOf(header + "X-New: 1\r\n\r\n" + body)
	as.Milter = 0
	plain.checkResult(t, committed(plain.server, as), as, "", "")
	if want := plain.queued(t, as.Envelope.ID); want == nil || want.Envelope.Body != got.Envelope.Body {
		t.Errorf("the body is said to be %b", got.Envelope.Body)
	}
}

// mailOf is a message of a client whose session is number 3, or of another source.
func (s *filteredServer) mailOf(content string) *proto.Submit {
	q := aMessage(4, content, "b@y.test", "c@y.test")
	q.Flags |= proto.SubmitMilter
	q.Milter = 3
	q.Envelope.Sender = "a@x.test"
	q.Envelope.Client = mail.Client{Name: "c.test", Addr: "192.0.2.1", Port: "4711", Helo: "h.test", Proto: "ESMTP"}
	q.Envelope.RewriteContext = "remote"
	return q
}

// checkResult compares what became of a message: the reply, the queue ("", "hold", "none", or what filter it has), and the log.
func (s *filteredServer) checkResult(t *testing.T, verdict *proto.SubmitReply, q *proto.Submit, reply, queued string, logged ...string) {
	t.Helper()
	if got := fmt.Sprint(verdict.Code, " ", verdict.Status, " ", verdict.Text); got != cmp.Or(reply, "250 2.0.0 Ok") {
		t.Errorf("the reply is %s, want %s", got, reply)
	}
	is := "none"
	if f := s.queued(t, q.Envelope.ID); f != nil {
		switch is = ""; {
		case f.Envelope.Filter != "":
			is = f.Envelope.Filter + " " + f.Envelope.Ret.String()
		case f.Entry.Queue == queue.Hold:
			is = "hold"
		case f.Entry.Queue != queue.Incoming:
			is = fmt.Sprint(f.Entry.Queue)
		}
		if size := int64(len(f.Content)); f.Envelope.Size != size {
			t.Errorf("the envelope says %d octets, there are %d", f.Envelope.Size, size)
		}
	}
	if is != queued {
		t.Errorf("it is in the queue: %q, want %q", is, queued)
	}
	text := strings.ReplaceAll(s.log.String(), string(q.Envelope.ID), "ID")
	for _, line := range logged {
		if line != "" && strings.Count(text, line) != 1 {
			t.Errorf("%q is not in the log once:\n%s", line, text)
		}
	}
	if !slices.ContainsFunc(logged, func(l string) bool { return strings.Contains(l, "milter-") }) && strings.Contains(text, "milter-") {
		t.Errorf("logged is\n%s", text)
	}
}

// nothingLeft holds that no message is on its way, and that none has left anything.
func (s *filteredServer) nothingLeft(t *testing.T) {
	t.Helper()
	if b, slow, storing := s.buffered.Load(), s.slow.Load(), s.storing.Load(); b != 0 || slow != 0 || storing < 0 {
		t.Errorf("%d octets are said to be in memory, %d messages to wait, %d to be on their way to the disk", b, slow, storing)
	}
	large, kept := 0, 0
	for e := range s.opt.Engine.Entries {
		if r := s.queued(t, e.ID); r != nil && s.opt.BufferLimit == 0 {
			kept++
		}
	}
	files, err := filepath.Glob(filepath.Join(s.dir, "big", "*"))
	if err != nil {
		t.Fatal(err)
	}
	if large = len(files); large > kept {
		t.Errorf("%d files are left of %d messages: %q", large, kept, files)
	}
}

// recipientsText is the recipients, each with (original)/NOTIFY/ORCPT where they say more than the address.
func recipientsText(env *mail.Envelope) string {
	var list []string
	for _, r := range env.Recipients {
		text := r.Address
		if r.Orig() != r.Address {
			text += "(" + r.Orig() + ")"
		}
		if r.Notify != 0 {
			text += "/" + r.Notify.String() + "/" + r.ORCPT
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

// A message whose filters cannot be asked, or have said what they want already, is not queued as if they had let it pass; and the
// transaction ends for the filters.
func TestFilterNotAsked(t *testing.T) {
	t.Parallel()
	const tempFail = "451 4.7.1 Service unavailable - try again later"
	const open = "connect c.test 192.0.2.1 4711|helo h.test|mail <a@x.test>|rcpt <b@y.test>|rcpt <c@y.test>|data"
	const heard = "C c.test 4 4711 192.0.2.1|H h.test|M <a@x.test>|R <b@y.test>|R <c@y.test>|T"
	const content = "|L From a@x.test|L Subject one|L X-Old 1|L X-Old 2|L Message-Id <m@x.test>|N|B \"body\\r\\n.dot\\r\\n\"|E"
	for name, tt := range map[string]struct {
		conf   string
		answer map[string][]string
		events string // before the message
		told   string // what the SMTP server says of them
		over   bool   // the session is closed just then
		rcpts  bool   // there are none
		unread bool   // what it says cannot be read
		reply  string
		queue  string
		log    string
		said   string
	}{
		"asked":                      {events: open, said: heard + content + "|Q"},
		"refused by a check":         {conf: "header_checks = static:{REJECT no}\n", events: open, reply: "550 5.7.1 no", queue: "none", said: heard + "|A|Q"},
		"discarded by a check":       {conf: "header_checks = static:DISCARD\n", events: open, queue: "none", said: heard + "|A|Q"},
		"refused no session":         {conf: "header_checks = static:{REJECT no}\n", reply: "550 5.7.1 no", queue: "none"},
		"for nobody":                 {events: open, rcpts: true, reply: "550 5.1.0 Error: no recipients specified", queue: "none", said: heard + "|A|Q"},
		"no session":                 {reply: tempFail, queue: "none", log: "milter-reject: END-OF-MESSAGE"},
		"no session can be read of":  {unread: true, reply: tempFail, queue: "none", log: "milter-reject: END-OF-MESSAGE"},
		"the session is over":        {events: open, over: true, reply: tempFail, queue: "none", log: "milter-reject: END-OF-MESSAGE", said: heard + "|Q"},
		"told of":                    {told: open, said: heard + content + "|Q"},
		"told of refused now":        {told: open, answer: map[string][]string{"M": {"y550 5.5.5 not now\x00"}}, reply: "550 5.5.5 not now", queue: "none", log: "milter-reject: END-OF-MESSAGE", said: "C c.test 4 4711 192.0.2.1|H h.test|M <a@x.test>|A|Q"},
		"told of a recipient is not": {told: open, answer: map[string][]string{"R <c@y.test>": {"r"}}, reply: tempFail, queue: "none", log: "milter-reject: END-OF-MESSAGE", said: "C c.test 4 4711 192.0.2.1|H h.test|M <a@x.test>|R <b@y.test>|R <c@y.test>|A|Q"},
		"told of discarded":          {told: open, answer: map[string][]string{"T": {"d"}}, queue: "none", log: "milter-discard: END-OF-MESSAGE", said: heard + "|A|Q"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFilter(t, tt.answer)
			cfg, err := config.LoadString(baseConfig + "milter_mail_macros =\nmilter_rcpt_macros =\nmilter_data_macros =\nmilter_end_of_data_macros =\nmilter_end_of_header_macros =\n")
			if err != nil {
				t.Fatal(err)
			}
			specs, err := milter.Parse(cfg, "smtpd_milters", []string{f.endpoint})
			if err != nil {
				t.Fatal(err)
			}
			for i := range specs {
				specs[i].Macros = [mailfilter.Stages]string{}
			}
			s := newFiltered(t, tt.conf)
			for e := range strings.SplitSeq(tt.events, "|") {
				if e != "" {
					if v, err := s.opt.Milters.event(t.Context(), nil, milterWords(t, 3, specs, e)); err != nil || v.Action != mailfilter.Continue {
						t.Fatal(e, v, err)
					}
				}
			}
			q := s.mailOf(filteredMail)
			if tt.told != "" {
				q.Told = toldOf(t, specs, tt.told)
			}
			if tt.unread {
				q.Told = proto.MilterTold("\xff")
			}
			if tt.rcpts {
				q.Envelope.Recipients = nil
			}
			if tt.over {
				s.opt.Milters.session(3).close()
			}
			s.checkResult(t, committed(s.server, q), q, tt.reply, tt.queue, tt.log)
			if tt.events == "" && len(s.opt.Milters.sessions) > 0 {
				t.Error("a session that was begun for one message is left")
			}
			s.nothingLeft(t)
			if err := s.opt.Milters.Close(); err != nil {
				t.Error(err)
			}
			if got := strings.Join(f.ended(), "|"); got != tt.said {
				t.Errorf("the filter was told\n%s\nwant\n%s", got, tt.said)
			}
		})
	}
}

// Mail that did not come by SMTP is shown to filters as if it had, with the envelope that came; at whichever event they are against
// it, it is refused to who submits it, or returned to its sender, and the log says at which.
func TestFilterLocal(t *testing.T) {
	t.Parallel()
	stages := []string{"CONNECT", "HELO", "MAIL", "RCPT", "DATA", "END-OF-MESSAGE"}
	heard := []string{"DC j mx.example.org {daemon_name} dm.test {daemon_addr} 127.0.0.1 v ver _ localhost [127.0.0.1]", "C localhost 4 0 127.0.0.1", "H localhost",
		"DM i ID {auth_type} plain {auth_authen} user {auth_author} as@x.test {mail_addr} \"a b\"@mapped.test", "M \"a b\"@mapped.test", "DR i ID {rcpt_addr} b@y.test", "R b@y.test", "DR i ID {rcpt_addr} c@y.test", "R c@y.test",
		"DT i ID", "T", "DL i ID", "L From a@x.test", "DL i ID", "L Subject one", "DL i ID", "L X-Old 1", "DL i ID", "L X-Old 2", "DL i ID", "L Message-Id <m@x.test>", "DN i ID", "N",
		"DB i ID", "B \"body\\r\\n.dot\\r\\n\"", "DE i ID", "E"}
	last := []string{"C localhost 4 0 127.0.0.1", "H localhost", "M \"a b\"@mapped.test", "R c@y.test", "T", "E"} // what is refused
	const main = "milter_macro_defaults = unused=1\nmilter_macro_v = ver\nmilter_macro_daemon_name = dm.test\nsender_canonical_maps = inline:{ {\"a b\"@x.test = \"a b\"@mapped.test} }\nnon_smtpd_milters = "
	run := func(t *testing.T, answer map[string][]string, flags proto.SubmitFlags, client bool) (s *filteredServer, q *proto.Submit, verdict *proto.SubmitReply, said []string) {
		f := newFilter(t, answer)
		s = newFiltered(t, main+f.endpoint+"\n")
		q = s.mailOf(filteredMail)
		q.Milter = 0
		q.Flags |= flags
		q.Envelope.Sender = "a b@x.test"
		q.Envelope.SASL = mail.SASL{Method: "plain", Username: "user", Sender: "as@x.test"}
		if !client {
			q.Envelope.Client = mail.Client{}
		}
		verdict = committed(s.server, q)
		s.nothingLeft(t)
		for _, line := range f.ended() {
			said = append(said, strings.ReplaceAll(line, string(q.Envelope.ID), "ID"))
		}
		return s, q, verdict, said
	}
	t.Run("let pass", func(t *testing.T) {
		t.Parallel()
		s, q, verdict, said := run(t, nil, 0, false)
		s.checkResult(t, verdict, q, "", "")
		if want := append(slices.Clone(heard), "Q"); !slices.Equal(said, want) {
			t.Errorf("the filter was told\n%s\nwant\n%s", strings.Join(said, "|"), strings.Join(want, "|"))
		}
	})
	t.Run("of a client", func(t *testing.T) {
		t.Parallel()
		s, q, verdict, said := run(t, map[string][]string{"E": {"q\x00", "c"}}, 0, true)
		s.checkResult(t, verdict, q, "", "hold", "milter-hold: END-OF-MESSAGE from c.test[192.0.2.1]: milter triggers HOLD action; from=<\"a b\"@mapped.test> to=<c@y.test> proto=ESMTP helo=<h.test>")
		if len(said) < 4 || said[0] != "DC j mx.example.org {daemon_name} dm.test {daemon_addr} 127.0.0.1 v ver _ c.test [192.0.2.1]" || said[1] != "C c.test 4 4711 192.0.2.1" || said[2] != "H h.test" {
			t.Errorf("the filter was told\n%s", strings.Join(said, "|"))
		}
	})
	t.Run("not asked", func(t *testing.T) {
		t.Parallel()
		f := newFilter(t, nil)
		for _, q := range []*proto.Submit{aMessage(1, filteredMail), aMessage(2, filteredMail, "b@y.test")} {
			s := newFiltered(t, main+f.endpoint+"\n")
			if len(q.Envelope.Recipients) == 0 {
				q.Flags |= proto.SubmitMilter // but there is nobody to send it to
			}
			committed(s.server, q)
		}
		if said := f.ended(); said != nil {
			t.Errorf("the filter was told %q", said)
		}
	})
	for i, stage := range stages {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			no := map[string][]string{last[i]: {"y550 5.5.5 no\r\n550 5.5.5 never\x00"}}
			text := "milter-reject: " + stage + " from localhost[127.0.0.1]: 5.5.5 no never; from=<\"a b\"@mapped.test> to=<c@y.test>"
			want := append(slices.Clone(heard[:slices.Index(heard, last[i])+1]), "Q")
			if stage != "END-OF-MESSAGE" && stage != "CONNECT" && stage != "HELO" {
				want = append(want[:len(want)-1], "A", "Q")
			}
			s, q, verdict, said := run(t, no, 0, false)
			s.checkResult(t, verdict, q, "550 5.5.5 no\nnever", "none", text)
			if !slices.Equal(said, want) {
				t.Errorf("the filter was told\n%s\nwant\n%s", strings.Join(said, "|"), strings.Join(want, "|"))
			}
			s, q, verdict, _ = run(t, no, proto.SubmitBounce, false)
			s.checkResult(t, verdict, q, "", "error:5.5.5 no never HDRS", text)
		})
	}
}

// Fields that filters add or change are checked by milter_header_checks: what these say of the field, of the message and of
// recipients is done, and nothing of the message's own fields.
func TestFilterFieldChecks(t *testing.T) {
	t.Parallel()
	const header = "From: a@x.test\nX-Own: 1\nMessage-Id: <m@x.test>\n"
	for name, tt := range map[string]struct {
		checks string
		fields string // what is stored of the one that is added
		reply  string
		queue  string
		rcpts  string
		log    string // what is done, and with what
	}{
		"nothing found": {checks: "{/^X-Own:/ REJECT no}", fields: "X-New: 1\n"},
		"left out":      {checks: "{/^X-New:/ IGNORE}"},
		"another":       {checks: "{/^X-New: (.*)/ REPLACE X-Other: $$1$$1}", fields: "X-Other: 11\n", log: "replace|: X-Other: 11"},
		"one before":    {checks: "{/^X-New:/ PREPEND X-Before: 0}", fields: "X-Before: 0\nX-New: 1\n", log: "prepend|: X-Before: 0"},
		"refused":       {checks: "{/^X-New:/ REJECT not this}", reply: "550 5.7.1 not this", queue: "none", log: "reject|: 5.7.1 not this"},
		"discarded":     {checks: "{/^X-New:/ DISCARD}", queue: "none", log: "discard|"},
		"held":          {checks: "{/^X-New:/ HOLD}", fields: "X-New: 1\n", queue: "hold", log: "hold|"},
		"a copy":        {checks: "{/^X-New:/ BCC d@y.test}", fields: "X-New: 1\n", rcpts: "b@y.test c@y.test d@y.test", log: "bcc|: d@y.test"},
		"unknown":       {checks: "{/^X-New:/ UNKNOWN}", fields: "X-New: 1\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFilter(t, map[string][]string{"E": {"hX-New\x001\x00", "c"}})
			s := newFiltered(t, "milter_header_checks = pcre:{ "+tt.checks+" }\nnon_smtpd_milters = "+f.endpoint+"\n")
			q := s.mailOf(strings.ReplaceAll(header+"\nbody\n", "\n", "\r\n"))
			q.Milter = 0
			action, with, _ := strings.Cut(tt.log, "|")
			line := ""
			if action != "" {
				line = "ID: milter-header-" + action + ": header X-New: 1 from c.test[192.0.2.1]; from=<a@x.test> to=<c@y.test> proto=ESMTP helo=<h.test>" + with + "\n"
			}
			s.checkResult(t, committed(s.server, q), q, tt.reply, tt.queue, line)
			if got := s.queued(t, q.Envelope.ID); got != nil {
				if text := strings.ReplaceAll(got.Content, "\r\n", "\n"); text != header+tt.fields+"\nbody\n" {
					t.Errorf("content\n%s", text)
				}
				if rcpts := recipientsText(&got.Envelope); rcpts != cmp.Or(tt.rcpts, "b@y.test c@y.test") {
					t.Errorf("recipients %s", rcpts)
				}
			}
			s.nothingLeft(t)
		})
	}
	// A table that cannot be asked: the message is not queued with what it might have left out.
	f := newFilter(t, map[string][]string{"E": {"hX-New\x001\x00", "c"}})
	s := newFiltered(t, "milter_header_checks = fail:checks\nnon_smtpd_milters = "+f.endpoint+"\n")
	q := s.mailOf(filteredMail)
	q.Milter = 0
	s.checkResult(t, committed(s.server, q), q, "451 4.3.0 Error: queue file write error", "none")
	s.nothingLeft(t)
}
