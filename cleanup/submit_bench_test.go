package cleanup

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
)

// deferred is what becomes of a message that could not be delivered.
var deferred = queue.Change{Set: queue.SetQueue | queue.SetAttempts, Queue: queue.Deferred, Attempts: 1}

// BenchmarkSubmit queues messages of 10 KB, has each deferred once and then removed, in a spool on TMPDIR. It
// is what a message costs in this service without the socket: memory that is taken for each shows here.
func BenchmarkSubmit(b *testing.B) {
	sp, err := spool.Open(spool.Options{Dir: filepath.Join(b.TempDir(), "spool"), SegmentSize: 16 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer sp.Close()
	log := maillog.NewWriter(io.Discard, maillog.Classic)
	defer log.Close()
	s := newServer(b.Context(), serverOptions{Core: newCore(b, "", nil), Engine: logEngine{Spool: sp}, Log: maillog.New("postfix/cleanup", log),
		Token: func() bool { return true }, PutToken: func() {}, BufferLimit: 64 << 20})
	content := []byte("Subject: x\r\nMessage-ID: <x@from.test>\r\nDate: Mon, 23 Nov 2026 20:00:00 +0000\r\nFrom: s@from.test\r\n\r\n" +
		strings.Repeat("The quick brown fox jumps over the lazy dog and goes on for a while like this.\r\n", 128))
	now := time.Now()
	rcpts := []mail.Recipient{{Address: "r@to.test"}}
	done := make(chan error, 1)
	b.SetBytes(int64(len(content)))
	b.ReportAllocs()
	for b.Loop() {
		n, err := sp.Lease(1)
		if err != nil {
			b.Fatal(err)
		}
		id := mail.MakeQueueID(now, n)
		in := s.incomings.Get()
		in.q = proto.Submit{Flags: proto.SubmitFilter, Envelope: mail.Envelope{ID: id, Arrival: now, Sender: "s@from.test", Recipients: rcpts}}
		in.begin()
		in.write(content)
		if reply, _ := in.commit(); reply.Code != 250 {
			b.Fatal(reply)
		}
		rec := s.recordings.Get()
		rec.batch.Apart()
		rec.batch.Update(id, deferred)
		rec.batch.Remove(id)
		s.opt.Engine.Post(rec.batch, func(err error) { done <- err })
		s.opt.Engine.Hurry()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		rec.release()
		rcpts = rcpts[:1]
		rcpts[0].Address = "r@to.test" // release has emptied the list
	}
}
