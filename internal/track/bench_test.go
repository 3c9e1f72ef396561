package track

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"posthaste/internal/mail"
)

// writeLog writes the log of a relay: 100 messages a second, one in ten tried twice, one refusal for each three of them. It returns
// the queue ID of the message in the middle, and its recipient.
func writeLog(b *testing.B, name string, size int64) (id, to string, messages int) {
	f, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	written := int64(0)
	say := func(at time.Time, program, format string, args ...any) {
		n, _ := fmt.Fprintf(w, "%s mx postfix/%s[%d]: ", at.Format(time.Stamp), program, 1000+len(program))
		m, _ := fmt.Fprintf(w, format+"\n", args...)
		written += int64(n + m)
	}
	for n := 0; written < size; n++ {
		at := day.Add(time.Duration(n) * 10 * time.Millisecond)
		q := mail.MakeQueueID(at, uint64(n))
		c := fmt.Sprintf("host%d.net%d.test[10.%d.%d.%d]", n%250, n%997, n%7, n%251, n%241)
		rcpt := fmt.Sprintf("recipient%d@to%d.test", n, n%5000)
		say(at, "smtpd", "connect from %s", c)
		say(at, "smtpd", "%s: client=%s", q, c)
		say(at, "cleanup", "%s: message-id=<%d.%x@from%d.test>", q, n, n*7919, n%3000)
		say(at, "qmgr", "%s: from=<sender%d@from%d.test>, size=12345, nrcpt=1 (queue active)", q, n%20000, n%3000)
		if n%3 == 0 {
			say(at, "smtpd", "NOQUEUE: reject: RCPT from %s: 550 5.1.1 <no%d@here.test>: Recipient address rejected: User unknown in local recipient table; from=<s@spam%d.test> to=<no%d@here.test> proto=ESMTP helo=<h%d.test>", c, n, n%100, n, n%250)
		}
		say(at, "smtpd", "disconnect from %s ehlo=1 mail=1 rcpt=1 data=1 quit=1 commands=5", c)
		relay := fmt.Sprintf("mx%d.to%d.test[203.0.%d.%d]:25", n%3, n%5000, n%113, n%199)
		if n%10 == 0 {
			say(at, "smtp", "%s: to=<%s>, relay=%s, delay=0.31, delays=0.01/0/0.1/0.2, dsn=4.2.0, status=deferred (host %s said: 450 4.2.0 try later (in reply to RCPT TO command))", q, rcpt, relay, relay)
		}
		say(at, "smtp", "%s: to=<%s>, relay=%s, delay=0.31, delays=0.01/0/0.1/0.2, dsn=2.0.0, status=sent (250 2.0.0 Ok: queued as %s)", q, rcpt, relay, mail.MakeQueueID(at, uint64(n)*31))
		say(at, "qmgr", "%s: removed", q)
		if id == "" && written > size/2 {
			id, to = string(q), rcpt
		}
		messages = n + 1
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	return id, to, messages
}

// BenchmarkLog says how fast the index of a log is made, how large it is, and how fast it is searched. The size of the log is that
// of the environment variable TRACK_LOG_SIZE, in MB, by default 32: TRACK_LOG_SIZE=10240 go test ./internal/track -run '^$'
// -bench Log -benchtime 1x -timeout 30m. TRACK_LOG_DIR is where it is written.
func BenchmarkLog(b *testing.B) {
	size, err := strconv.ParseInt(os.Getenv("TRACK_LOG_SIZE"), 10, 64)
	if err != nil {
		size = 32
	}
	dir := os.Getenv("TRACK_LOG_DIR")
	if dir == "" {
		dir = b.TempDir()
	}
	name := filepath.Join(dir, "mail.log")
	defer os.RemoveAll(filepath.Join(dir, "track"))
	defer os.Remove(name)
	id, to, messages := writeLog(b, name, size<<20)
	o := Options{Logs: []string{name}, Index: filepath.Join(dir, "track"), IndexLimit: 1 << 40, Now: day.AddDate(0, 3, 0), Warn: b.Logf}
	b.Run("build", func(b *testing.B) {
		b.SetBytes(size << 20)
		for range b.N {
			os.RemoveAll(o.Index)
			built, err := Build(context.Background(), o)
			if err != nil || built.Text < size<<20 {
				b.Fatal(built, err)
			}
			b.ReportMetric(float64(built.Size)/float64(size)/1024, "index-B/KiB")
		}
	})
	search := func(name string, o Options, want int, q Query) {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				n := 0
				err := Search(context.Background(), o, q, func(Found) bool { n++; return n != want })
				if err != nil || n != want && want > 0 {
					b.Fatal(n, err)
				}
			}
		})
	}
	one := func(f Field, v string) Query { return Query{Conditions: []Condition{{f, v}}} }
	search("id", o, -1, one(ID, id))
	search("recipient", o, -1, one(To, to))
	search("nothing", o, -1, one(Anything, "nobody@nowhere.test"))
	search("domain-first", o, 1, one(To, "@to77.test"))
	search("domain-first-100", o, min(100, messages/5000), one(To, "@to77.test"))
	search("sender-domain-first-100", o, min(100, messages/3000), one(From, "@from77.test"))
	search("sender-all", o, -1, one(From, "sender77@from77.test"))
	plain := o
	plain.Index = ""
	b.Run("scan", func(b *testing.B) {
		b.SetBytes(size << 20)
		for range b.N {
			if err := Search(context.Background(), plain, one(ID, id), func(Found) bool { return true }); err != nil {
				b.Fatal(err)
			}
		}
	})
}
