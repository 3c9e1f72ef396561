package cleanup

import (
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"reflect"
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
)

// fate is all that can be seen of what became of a message.
type fate struct {
	Reply     proto.SubmitReply
	Entry     queue.Entry // without its Ref; zero: not in the queue
	Envelope  mail.Envelope
	Content   string
	Outcomes  []mail.Outcome
	Log       string
	Announced [2]string // what the queue manager got of the envelope and the recipients
}

// Messages that are taken in memory that others were in come out as they do in
// memory of their own, whatever those were: short, long, refused, held,
// discarded, given up, with many recipients or with a state.
func TestMemoryUsedAgain(t *testing.T) {
	t.Parallel()
	const messages = 100
	first := uint64(1)<<32 | 1<<31 // numbers that neither spool gives out itself
	list := make([]*proto.Submit, messages)
	for i := range list {
		list[i] = anyMessage(rand.New(rand.NewPCG(7, uint64(i))), mail.MakeQueueID(time.Unix(1800000000, int64(i)*1000), first+uint64(i)))
	}
	want := make([]fate, messages)
	s, read := reuseServer(t)
	for i, q := range list {
		in := s.incomings.New()
		if err := in.q.Decode(q.Append(nil)); err != nil {
			t.Fatal(err)
		}
		in.begin()
		in.write(in.q.Content)
		if givenUp(i) {
			in.abort()
			continue
		}
		verdict, _ := in.commit()
		want[i].Reply = *verdict
	}
	read(list, want)

	got := make([]fate, messages)
	s, read = reuseServer(t)
	client, announced := announcing(t, s)
	var wg sync.WaitGroup
	const submitters = 5
	for n := range submitters {
		wg.Go(func() {
			for i := n; i < messages; i += submitters {
				if err := submitted(t, client, list[i], i, &got[i].Reply); err != nil {
					t.Errorf("message %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	s.Wait() // those that were given up are forgotten
	read(list, got)
	kinds := map[int]int{}
	for i, q := range list {
		kinds[got[i].Reply.Code]++
		if got[i].Entry.NRcpt > 0 {
			kinds[int(got[i].Entry.Queue)]++
			if len(got[i].Outcomes) == 0 && q.State == nil { // else it is to be read
				want[i].Announced = announcement(&want[i].Envelope)
			}
			got[i].Announced = announced(q.Envelope.ID)
		}
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("message %d: got\n%.2000q\nwant\n%.2000q", i, fmt.Sprint(got[i]), fmt.Sprint(want[i]))
		}
	}
	for _, kind := range []int{0, 250, 550, int(queue.Incoming), int(queue.Deferred), int(queue.Hold)} {
		if kinds[kind] == 0 {
			t.Errorf("no message that came to %d: %v", kind, kinds)
		}
	}
}

// givenUp says whether the submitter gives message i up.
func givenUp(i int) bool { return i%17 == 16 }

// submitted submits a message, in parts when it is long or given up.
func submitted(t *testing.T, client *ipc.Client, q *proto.Submit, i int, reply *proto.SubmitReply) error {
	conn, err := client.Conn(t.Context())
	if err != nil {
		return err
	}
	if !givenUp(i) && i%3 > 0 {
		return conn.Call(t.Context(), q, reply)
	}
	part, rest := *q, q.Content
	part.Content, rest, part.More = rest[:len(rest)/3], rest[len(rest)/3:], true
	if err := conn.Call(t.Context(), &part, new(proto.ChunkReply)); err != nil {
		return err
	}
	if givenUp(i) {
		return conn.Send(&proto.Abort{ID: q.Envelope.ID})
	}
	chunk := &proto.Chunk{ID: q.Envelope.ID, More: true, Data: rest[:len(rest)/2]}
	if err := conn.Call(t.Context(), chunk, new(proto.ChunkReply)); err != nil {
		return err
	}
	chunk.More, chunk.Data = false, rest[len(rest)/2:]
	return conn.Call(t.Context(), chunk, reply)
}

// anyMessage is some message with everything that a message may have.
func anyMessage(r *rand.Rand, id mail.QueueID) *proto.Submit {
	some := func(text string) string { // text of the message's own, or none
		if r.IntN(2) == 0 {
			return ""
		}
		return text + string(id)
	}
	when := time.Unix(1800000000, 0)
	q := &proto.Submit{Flags: proto.SubmitFlags(r.Uint32()) & (proto.SubmitFilter | proto.SubmitBCC | proto.SubmitMap | proto.SubmitAutoUTF8),
		FullName: some("Name "),
		Envelope: mail.Envelope{ID: id, Arrival: when, Sender: some("s") + "@from.test", EnvID: some("envid"), RewriteContext: "local",
			Client: mail.Client{Name: some("name"), Helo: some("helo")}, SASL: mail.SASL{Username: some("user")},
			Reverse: some("reverse"), LogIdent: some("ident"), Filter: some("smtp:"), Redirect: some("redirect"), TLSOptional: r.IntN(2) == 0}}
	if r.IntN(2) == 0 { // a stranger
		q.Envelope.Client.Addr, q.Envelope.Client.Proto, q.Envelope.RewriteContext = "192.0.2.1", "ESMTP", "remote"
	}
	if r.IntN(3) == 0 {
		q.Flags |= 1 << r.IntN(9) &^ proto.SubmitMilter
		q.BCC, q.Prepend = []string{"bcc" + string(id) + "@to.test"}, []string{"X-Prepended: " + string(id)}
	}
	for range []int{0, 1, 1, 1, 2, 5, 150}[r.IntN(7)] {
		rcpt := mail.Recipient{Address: fmt.Sprintf("r%d@to.test", r.IntN(100))} // others have it, too, and some twice
		if r.IntN(2) == 0 {
			rcpt = mail.Recipient{Address: fmt.Sprintf("r%d%s@to.test", r.IntN(1000), id), Original: some("original"),
				ORCPT: some("rfc822;o"), Notify: dsn.Notify(r.IntN(3))}
		}
		q.Envelope.Recipients = append(q.Envelope.Recipients, rcpt)
	}
	if n := len(q.Envelope.Recipients); n > 0 && r.IntN(4) == 0 {
		q.State = &queue.Change{Set: queue.SetQueue | queue.SetAttempts, Queue: queue.Deferred, Attempts: 3, Outcomes: []mail.Outcome{
			{Rcpt: n - 1, Action: dsn.Deferred, Status: dsn.S(4, 0, 0), Reason: "reason " + string(id), When: when}}}
		q.Settles = &proto.Settle{ID: "4Zxxx0000000000z9", Rcpts: []int{1}}
	}
	var b strings.Builder
	for _, field := range []string{"Message-Id: <m%s@from.test>", "From: f%s@from.test", "To: t%s@to.test, u@to.test", "Date: %s", "X-Other: %s",
		"Subject: \xc3\xa4 %s", "X-Hold: %s", "X-Reject: %s", "X-Discard: %s", "X-Replace: %s", "Received: %s"} {
		if r.IntN(3) == 0 {
			fmt.Fprintf(&b, field+"\r\n", id)
		}
	}
	b.WriteString("\r\n")
	for range []int{0, 1, 20, 200, 2000}[r.IntN(5)] {
		b.WriteString([]string{"line of ", ".dot", "\xe4", strings.Repeat("x", r.IntN(3000)/10)}[r.IntN(4)] + string(id) + "\r\n")
	}
	q.Content = []byte(b.String()[:b.Len()-2*r.IntN(2)])
	return q
}

// reuseServer is a server, and what reads all that can be seen of messages.
func reuseServer(t *testing.T) (*server, func([]*proto.Submit, []fate)) {
	s, log := newTestServer(t, `mail_authentication = check
authserv_id = mx.test
always_bcc = always@to.test
virtual_alias_maps = inline:{ {u@to.test = v@to.test, w@to.test} }
header_checks = pcre:{ {/^X-Hold:/ HOLD} {/^X-Reject:/ REJECT no} {/^X-Discard:/ DISCARD} {/^X-Replace: (.*)/ REPLACE X-Replaced: $1} }
`, "from.test. 60 IN TXT \"v=spf1 -all\"\n")
	dir := filepath.Join(t.TempDir(), "spool")
	sp, err := spool.Open(spool.Options{Dir: dir, SegmentSize: 1 << 20, InlineLimit: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Wait(); sp.Close() })
	s.opt.Engine = logEngine{Spool: sp}
	return s, func(list []*proto.Submit, fates []fate) {
		t.Helper()
		r := spool.NewReader(nil, dir)
		defer r.Close()
		lines := strings.SplitAfter(log.String(), "\n")
		for i, q := range list {
			f := &fates[i]
			for _, l := range lines {
				if _, text, of := strings.Cut(l, string(q.Envelope.ID)+": "); of {
					f.Log += text
				}
			}
			if en, found := sp.Locate(q.Envelope.ID); found {
				if err := f.read(r, en); err != nil {
					t.Errorf("message %d: %v", i, err)
				}
			}
		}
	}
}

// read reads what the spool has of a message.
func (f *fate) read(r *spool.Reader, en queue.Entry) error {
	st, err := r.Read(en.Ref, en.ID)
	if err != nil {
		return err
	}
	f.Entry = en
	f.Entry.Ref = queue.Ref{}
	if f.Envelope, err = st.Envelope(); err != nil {
		return err
	}
	if f.Envelope.Recipients, err = st.Recipients(0, -1); err != nil {
		return err
	}
	if f.Outcomes, err = st.Outcomes(); err != nil {
		return err
	}
	c, err := st.Content()
	if err != nil {
		return err
	}
	defer c.Close()
	content, err := io.ReadAll(c)
	f.Content = string(content)
	return err
}

// announcing is a client that is the queue manager, too, and what it was told
// of a message.
func announcing(t *testing.T, s *server) (*ipc.Client, func(mail.QueueID) [2]string) {
	t.Helper()
	var mu sync.Mutex
	told := map[mail.QueueID][2]string{}
	client := servedTo(t, s, func(_ *ipc.Conn, r *ipc.Request) {
		var q proto.Entries
		if err := r.Decode(&q); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, e := range q.List {
			told[e.ID] = [2]string{string(e.Envelope), string(e.Recipients)}
		}
	})
	conn, err := client.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Call(t.Context(), new(proto.Attach), nil); err != nil {
		t.Fatal(err)
	}
	return client, func(id mail.QueueID) [2]string {
		mu.Lock()
		defer mu.Unlock()
		return told[id]
	}
}

// announcement is what the queue manager is told of a message.
func announcement(env *mail.Envelope) [2]string {
	a := [2]string{string(env.Append(nil)), string(mail.AppendRecipients(nil, env.Recipients))}
	if len(a[0])+len(a[1]) > maxInlineEntry {
		a = [2]string{}
	}
	return a
}
