package cleanup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/doubtful"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/metrics"
	"posthaste/internal/milter"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/rfc5322"
	"posthaste/internal/spool"
)

// What a client is told when a message cannot be stored: only what would fail again is a permanent error.
func TestStorageReplies(t *testing.T) {
	t.Parallel()
	s, log := newTestServer(t, "", "")
	for _, x := range []struct {
		err    error
		code   int
		status dsn.Status
		silent bool
	}{
		{errors.New("disk"), 451, dsn.S(4, 3, 0), false},
		{queue.ErrFull, 452, dsn.S(4, 3, 1), false},
		{errHead, 552, dsn.S(5, 3, 4), false},
		{queue.ErrTooLarge, 552, dsn.S(5, 5, 3), false},
		{queue.ErrSilent, 451, dsn.S(4, 3, 0), true},
		{fmt.Errorf("%w: %w", queue.ErrSilent, queue.ErrNotOurs), 451, dsn.S(4, 3, 2), true},
	} {
		err := fmt.Errorf("because: %w", x.err)
		got := s.storageReply("Q", err)
		if got.Code != x.code || got.Status != x.status || got.Silent != x.silent || got.Cause != err.Error() {
			t.Errorf("%v: %+v", x.err, got)
		}
		if text := log.String(); !strings.Contains(text, "Q: message not queued: "+err.Error()) {
			t.Errorf("%v: logged\n%s", x.err, text)
		}
	}
	if writeError.Silent || writeError.Cause != "" || noSpace.Cause != "" {
		t.Error("what one client is told is said to others")
	}
}

// Of lost records it is said, in the log and in the list, that the message may have been delivered, and not that its delivery had begun.
func TestLostRecordsInWords(t *testing.T) {
	t.Parallel()
	d := queue.Doubt{ID: "Q", Kind: queue.DoubtLost, Rcpts: []int{0, 2}, At: arrival}
	if got := doubtText(&d); got != "records of the queue are lost, and one may have been about it: recipients number 0 2 may have it, and may get it again" {
		t.Error(got)
	}
	if e := doubtOf(&d); e.Why != doubtful.Lost || e.Began != nil {
		t.Errorf("%+v", e)
	}
	if d.Kind = queue.DoubtHanded; doubtOf(&d).Why != doubtful.InHand || doubtOf(&d).Began == nil {
		t.Errorf("%+v", doubtOf(&d))
	}
}

// aMessage is a submission with this content.
func aMessage(n uint64, content string, rcpts ...string) *proto.Submit {
	q := submission("", rcpts...)
	q.Envelope.ID = mail.MakeQueueID(arrival, n)
	q.Content = []byte(content)
	return q
}

// committed is the verdict on a message.
func committed(s *server, q *proto.Submit) *proto.SubmitReply {
	in := begun(s, q)
	in.write(q.Content)
	verdict, _ := in.commit()
	return verdict
}

// pending is how many recipients of each message in the queue are pending.
func pending(s *server) map[mail.QueueID]int {
	list := map[mail.QueueID]int{}
	for e := range s.opt.Engine.Entries {
		list[e.ID] = e.NPending
	}
	return list
}

// What a notice settles is recorded with it, and also when the notice itself is discarded: else the same recipients would be
// reported again and again. When it is refused nothing is settled.
func TestSettled(t *testing.T) {
	t.Parallel()
	const text = "Subject: x\r\nMessage-Id: <a@b>\r\n\r\nx\r\n"
	for name, x := range map[string]struct {
		conf    string
		code    int
		queued  bool // the notice
		settled bool
	}{
		"queued":    {code: 250, queued: true, settled: true},
		"discarded": {conf: "header_checks = static:DISCARD\n", code: 250, settled: true},
		"refused":   {conf: "header_checks = static:{REJECT no}\n", code: 550},
	} {
		s, _ := newTestServer(t, x.conf, "")
		plain := aMessage(1, text, "a@x.test", "b@x.test", "c@x.test")
		plain.Flags = 0
		if got := committed(s, plain); got.Code != 250 {
			t.Fatalf("%s: %+v", name, got)
		}
		notice := aMessage(2, text, "s@x.test")
		notice.Flags |= proto.SubmitFilter
		notice.Settles = &proto.Settle{ID: plain.Envelope.ID, Rcpts: []int{1}, Warned: true, Outcomes: []mail.Outcome{{Rcpt: 0, Action: dsn.Deferred, Status: dsn.S(4, 2, 0), Reason: "told"}}}
		if got := committed(s, notice); got.Code != x.code {
			t.Errorf("%s: %+v", name, got)
		}
		left := pending(s)
		_, there := left[notice.Envelope.ID]
		want := 3
		if x.settled {
			want = 2
		}
		if there != x.queued || left[plain.Envelope.ID] != want {
			t.Errorf("%s: the notice is in the queue: %v; of the message %d recipients are pending, not %d", name, there, left[plain.Envelope.ID], want)
		}
		for e := range s.opt.Engine.Entries {
			if e.ID == plain.Envelope.ID && e.Warned != x.settled {
				t.Errorf("%s: the sender has been warned: %v", name, e.Warned)
			}
		}
		// A notice that settles nothing, and is discarded, changes nothing.
		other := aMessage(3, text, "s@x.test")
		other.Flags |= proto.SubmitFilter
		if got := committed(s, other); got.Code != x.code || pending(s)[plain.Envelope.ID] != want {
			t.Errorf("%s: %+v, %v", name, got, pending(s))
		}
	}
}

// Mail that was queued before keeps what is on record of it, but for outcomes of recipients that it does not have any more; a
// hold that is decided now outweighs the queue that it was in.
func TestFormerState(t *testing.T) {
	t.Parallel()
	rcpt := func(a, original string) mail.Recipient { return mail.Recipient{Address: a, Original: original} }
	outcome := func(i int, why string) mail.Outcome { return mail.Outcome{Rcpt: i, Reason: why} }
	in := new(incoming)
	res := &Result{Envelope: mail.Envelope{Recipients: []mail.Recipient{rcpt("b@x", ""), rcpt("a@x", ""), rcpt("c@x", "alias@x")}}}
	if c, changed := in.state(res); changed || c.Set != 0 {
		t.Errorf("of new mail: %+v", c)
	}
	in.q.Envelope.Recipients = []mail.Recipient{rcpt("a@x", ""), rcpt("c@x", "other@x"), rcpt("b@x", ""), rcpt("c@x", "alias@x")}
	in.q.State = &queue.Change{Set: queue.SetQueue | queue.SetAttempts, Queue: queue.Deferred, Attempts: 3, Done: []int{1},
		Outcomes: []mail.Outcome{outcome(0, "a"), outcome(1, "gone"), outcome(2, "b"), outcome(3, "c"), outcome(4, "none"), outcome(-1, "none")}}
	check := func(what string, set queue.Field, want ...string) {
		t.Helper()
		c, changed := in.state(res)
		var got []string
		for _, o := range c.Outcomes {
			got = append(got, fmt.Sprint(o.Rcpt, o.Reason))
		}
		if c.Set != set || c.Attempts != 3 || len(c.Done) != 0 || !slices.Equal(got, want) || changed != (set != 0 || len(want) > 0) {
			t.Errorf("%s: %+v, changed %v, want %v", what, c, changed, want)
		}
	}
	check("as it was", queue.SetQueue|queue.SetAttempts, "1a", "0b", "2c")
	res.Hold = true
	check("on hold", queue.SetAttempts, "1a", "0b", "2c")
	in.q.Was = []mail.Recipient{rcpt("b@x", "")}
	in.q.State.Outcomes = in.q.State.Outcomes[:2]
	check("by the recipients before", queue.SetAttempts, "0a")
	in.q.State.Set, in.q.State.Outcomes = queue.SetQueue, nil
	check("nothing but the queue", 0)
	if len(in.q.State.Done) != 1 || in.q.State.Set != queue.SetQueue {
		t.Error("what was submitted is changed")
	}
}

// Messages are counted by where they came from.
func TestSources(t *testing.T) {
	t.Parallel()
	for want, x := range map[string]struct {
		flags proto.SubmitFlags
		addr  string
	}{"local": {}, "network": {addr: "192.0.2.1"}, "internal": {flags: proto.SubmitNoReceive, addr: "192.0.2.1"}} {
		set := metrics.New()
		in := &incoming{s: &server{opt: serverOptions{Metrics: set}}}
		in.q.Flags = x.flags
		in.count(&mail.Envelope{Size: 30, Client: mail.Client{Addr: x.addr}})
		in.count(&mail.Envelope{Size: 4, Client: mail.Client{Addr: x.addr}})
		got := map[string]float64{}
		for _, m := range set.Take().Samples {
			got[m.Name+" "+strings.Join(m.Labels, " ")] = m.Value
		}
		if len(got) != 2 || got["posthaste_accepted_messages "+want] != 2 || got["posthaste_accepted_bytes "+want] != 34 {
			t.Errorf("%s: %v", want, got)
		}
	}
}

// What is found by reading the queue is named with what becomes of it, and counted over all readers.
func TestScrubWords(t *testing.T) {
	t.Parallel()
	log := new(logText)
	logger := maillog.New("postfix/cleanup", maillog.NewWriter(log, maillog.Format(0)))
	log.l = logger
	if newScrubbing(0, logger, nil, "") != nil {
		t.Error("without a period the queue is read")
	}
	s := newScrubbing(time.Hour, logger, nil, "")
	for _, f := range []spool.ScrubFinding{{ID: "A"}, {ID: "B", Unread: true}, {ID: "C", Mended: true}} {
		f.Where, f.Err = spool.Place{}, errors.New("why")
		s.found(f)
	}
	for _, want := range []string{"A: found by reading the queue (spool_scrub_period), at " + spool.Place{}.String() + ": damaged: it goes to the corrupt queue: why",
		"B: found by reading the queue (spool_scrub_period), at " + spool.Place{}.String() + ": cannot be read; it stays where it is, and may be read later: why",
		"C: found by reading the queue (spool_scrub_period), at " + spool.Place{}.String() + ": its last state was damaged, and has been recorded again from memory: why"} {
		if text := log.String(); !strings.Contains(text, "warning: "+want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	at := time.Unix(1700000000, 0)
	s.past = plus(spool.ScrubStats{Passes: 1, Bytes: 20, Findings: 3, Last: at.Add(time.Hour)}, spool.ScrubStats{Passes: 4, Bytes: 50, Findings: 6, Last: at})
	set := metrics.New()
	set.Offer(func(o *metrics.Offer) { offerScrub(o, s.stats()) })
	got := map[string]float64{}
	for _, m := range set.Take().Samples {
		got[m.Name] = m.Value
	}
	var values []float64
	for _, v := range got {
		values = append(values, v)
	}
	slices.Sort(values)
	if !slices.Equal(values, []float64{5, 9, 70, float64(at.Unix())}) {
		t.Errorf("published: %v", got)
	}
	if (*scrubbing)(nil).stats() != nil {
		t.Error("nothing is scrubbed, and it has numbers")
	}
	set = metrics.New()
	set.Offer(func(o *metrics.Offer) { offerScrub(o, nil) })
	if n := len(set.Take().Samples); n != 0 {
		t.Errorf("nothing is scrubbed, and %d numbers are published", n)
	}
}

// field is a header field of a message.
func field(line string) milter.Field {
	name, _, _ := strings.Cut(line, ":")
	return milter.Field{Name: name, Raw: []byte(line + "\r\n")}
}

// A report is known by its subject, all of it; and mail is signed for the domain of the first address in From, else for the
// sender's.
func TestByTheHeader(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"Subject: Report Domain: x.test Submitter: y.test Report-ID: <1>": true,
		"subject:  report domain: x.test report-id: 1":                    true,
		"Subject: Report Domain: x.test":                                  false,
		"Subject: Re: Report Domain: x.test Report-ID: 1":                 false,
		"Comments: Report Domain: x.test Report-ID: 1":                    false,
	} {
		if got := isReport([]milter.Field{field("From: a@b"), field(text)}); got != want {
			t.Errorf("%q is a report: %v", text, got)
		}
	}
	if isReport(nil) {
		t.Error("mail without a subject is a report")
	}
	for _, x := range []struct {
		want  string
		lines []string
	}{
		{"sender.test", nil}, {"sender.test", []string{"To: a@To.test"}}, {"from.test", []string{"To: a@To.test", "from: A <a@From.test>, b@other.test"}},
		{"sender.test", []string{"From: nobody"}}, {"b.test", []string{"From: nobody, b@b.test"}}, {"first.test", []string{"From: a@first.test", "From: b@second.test"}},
	} {
		var list []milter.Field
		for _, l := range x.lines {
			list = append(list, field(l))
		}
		if got := fromDomain(list, "s@Sender.test"); got != x.want {
			t.Errorf("%q: %q, not %q", x.lines, got, x.want)
		}
	}
}

// A sender without From gets one, in the form that is asked for, and with a full name that cannot do harm.
func TestFromFormats(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ format, sender, name, want string }{
		{"standard", "a@x.test", "", "From: a@x.test\r\n"},
		{"standard", "a@x.test", " Ann\r\nBcc: b ", "From: \"Ann  Bcc: b\" <a@x.test>\r\n"},
		{"standard", "", "Ann", "From: MAILER-DAEMON\r\n"},
		{"standard", "a b@x.test", "Ann", "From: Ann <\"a b\"@x.test>\r\n"},
		{"standard", "a@x.test", "Änne", "From: =?utf-8?q?=C3=84nne?= <a@x.test>\r\n"},
		{"obsolete", "a@x.test", "Ann (x", "From: a@x.test (Ann \\(x)\r\n"},
		{"obsolete", "a@x.test", "Änne", "From: a@x.test (=?utf-8?q?=C3=84nne?=)\r\n"},
		{"obsolete", "", "Ann", "From: MAILER-DAEMON\r\n"},
	} {
		c := newCore(t, "header_from_format = "+x.format+"\nfull_name_encoding_charset = utf-8\n", nil)
		m := &Message{c: c, fullName: x.name}
		m.env.Sender = x.sender
		if got := string(m.appendFrom(nil)); got != x.want {
			t.Errorf("%s, %q, %q: %q, not %q", x.format, x.sender, x.name, got, x.want)
		}
	}
	c := newCore(t, "full_name_encoding_charset = utf-8\n", nil)
	m := &Message{c: c, fullName: strings.Repeat("Ä", 60)}
	m.env.Sender = "a@x.test"
	lines := strings.Split(strings.TrimSuffix(string(m.appendFrom(nil)), "\r\n"), "\r\n")
	if len(lines) < 3 {
		t.Errorf("a long name is not folded: %q", lines)
	}
	for i, l := range lines {
		if len(l) > 100 || i > 0 && l[0] != '\t' {
			t.Errorf("line %d: %q", i, l)
		}
	}
	if _, ok := rfc5322.ParseField([]byte(strings.Join(lines, "\r\n") + "\r\n")); !ok {
		t.Error("it is no field")
	}
}
