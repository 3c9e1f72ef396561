package audit

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"posthaste/internal/logread"
	"posthaste/internal/mail"
)

// A generator is the log of a relay, as long as one likes: sessions, two in three messages
// to one recipient and one to three, one message in ten tried twice, a minute later.
type generator struct {
	message, line int
	lines         int // so many
	buf           bytes.Buffer
	retries       []retry
}

type retry struct {
	at      time.Time
	id      mail.QueueID
	message int
}

// perSecond is how many messages come.
const perSecond = 100

func (g *generator) Read(p []byte) (int, error) {
	for g.buf.Len() < len(p) && g.line < g.lines {
		g.next()
	}
	return g.buf.Read(p) // io.EOF when there is no more
}

func (g *generator) say(at time.Time, program, format string, args ...any) {
	g.line++
	fmt.Fprintf(&g.buf, "%s mx postfix/%s[%d]: ", at.Format(time.Stamp), program, 1000+len(program))
	fmt.Fprintf(&g.buf, format+"\n", args...)
}

func (g *generator) next() {
	at := day.Add(time.Duration(g.message) * time.Second / perSecond)
	g.message++
	id := mail.MakeQueueID(at, uint64(g.message))
	c := fmt.Sprintf("host%d.test[192.0.2.%d]", g.message%1000, g.message%250)
	rcpts := 1 + g.message%3/2*2
	g.say(at, "smtpd", "connect from %s", c)
	g.say(at, "smtpd", "%s: client=%s", id, c)
	g.say(at, "cleanup", "%s: message-id=<%d@from.test>", id, g.message)
	g.say(at, "qmgr", "%s: from=<sender%d@from.test>, size=12345, nrcpt=%d (queue active)", id, g.message, rcpts)
	g.say(at, "smtpd", "disconnect from %s ehlo=1 mail=1 rcpt=%d data=1 quit=1 commands=%d", c, rcpts, 4+rcpts)
	for i := range rcpts {
		if g.message%10 == 0 && i == 0 {
			g.sent(at, id, i, g.message, "deferred (host mx.to.test[192.0.2.9] said: 450 4.2.0 try later (in reply to RCPT TO command))")
			g.retries = append(g.retries, retry{at.Add(time.Minute), id, g.message})
			continue
		}
		g.sent(at, id, i, g.message, "sent (250 2.0.0 Ok: queued as 4jWzqL72J2zDQqwN7)")
	}
	if g.message%10 != 0 {
		g.say(at, "qmgr", "%s: removed", id)
	}
	for len(g.retries) > 0 && g.retries[0].at.Before(at) {
		id, n := g.retries[0].id, g.retries[0].message
		g.retries = g.retries[1:]
		g.sent(at, id, 0, n, "sent (250 2.0.0 Ok: queued as 4jWzqL72J2zDQqwN7)")
		g.say(at, "qmgr", "%s: removed", id)
	}
}

func (g *generator) sent(at time.Time, id mail.QueueID, i, n int, status string) {
	g.say(at, "smtp", "%s: to=<recipient%d@to%d.test>, relay=mx.to.test[192.0.2.9]:25, delay=0.31, delays=0.01/0/0.1/0.2, dsn=2.0.0, status=%s", id, i, n%500, status)
}

// audited reads a log and returns the books.
func audited(t testing.TB, r io.Reader) *account {
	a := newAccount("postfix", 0, math.MaxInt64)
	lines := logread.NewReader(r, day.AddDate(0, 1, 0))
	for {
		l, err := lines.Next()
		if err == io.EOF {
			return a
		}
		if err != nil {
			t.Fatal(err)
		}
		a.line("", l)
	}
}

// Of a long log no more is kept than the mail that it has in the queue.
func TestMemory(t *testing.T) {
	t.Parallel()
	g := &generator{lines: 200000}
	a := audited(t, g)
	in := len(g.retries)
	// Beside the queue there are the messages that ended in the last seconds.
	if most := in + (settleTime/1e6+2)*perSecond; len(a.messages) > most || len(a.closing) > most || len(a.sessions) > 10 || len(a.ended)+len(a.short) > 10 {
		t.Errorf("%d in the queue: %d messages, %d of them closed, %d sessions and %d that have ended are kept", in, len(a.messages), len(a.closing), len(a.sessions), len(a.ended)+len(a.short))
	}
	a.finish()
	if b := a.report.Balance; a.report.Lines != g.line || b.Accepted.Messages != g.message || b.Fates[queued].Messages != in || !a.report.AddsUp() {
		t.Errorf("%d messages in %d lines, %d in the queue: %+v", g.message, g.line, in, a.report)
	}
}

// BenchmarkLines is how long a line takes.
func BenchmarkLines(b *testing.B) {
	var log bytes.Buffer
	const lines = 100000
	if _, err := log.ReadFrom(&generator{lines: lines}); err != nil {
		b.Fatal(err)
	}
	n := bytes.Count(log.Bytes(), []byte("\n"))
	b.ResetTimer()
	for i := 0; i < b.N; i += n {
		audited(b, bytes.NewReader(log.Bytes()))
	}
}
