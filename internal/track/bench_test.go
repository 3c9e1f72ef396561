package track

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/mail"
)

// A logWriter writes the log of a relay: 100 messages a second, one in ten tried twice, one refusal for each three of them.
type logWriter struct {
	w       *bufio.Writer
	json    bool
	written int64
}

// say writes a line, and with it, in JSON, the fields that the log has of it.
func (l *logWriter) say(at time.Time, program, fields, format string, args ...any) {
	text, n := fmt.Sprintf(format, args...), 0
	if l.json {
		n, _ = fmt.Fprintf(l.w, `{"time":"%s","host":"mx","process":"postfix/%s","pid":%d,"level":"info",%s,"text":%q}`+"\n",
			at.Format("2006-01-02T15:04:05.000000Z07:00"), program, 1000+len(program), fields, text)
	} else {
		n, _ = fmt.Fprintf(l.w, "%s mx postfix/%s[%d]: %s\n", at.Format(time.Stamp), program, 1000+len(program), text)
	}
	l.written += int64(n)
}

// message writes the lines of the n-th message. It returns its queue ID and its recipient.
func (l *logWriter) message(n int) (id, rcpt string) {
	at := day.Add(time.Duration(n) * 10 * time.Millisecond)
	q := mail.MakeQueueID(at, uint64(n))
	of := func(event string) string { return fmt.Sprintf(`"event":"%s","queue_id":"%s"`, event, q) }
	c := fmt.Sprintf("host%d.net%d.test[10.%d.%d.%d]", n%250, n%997, n%7, n%251, n%241)
	rcpt = fmt.Sprintf("recipient%d@to%d.test", n, n%5000)
	l.say(at, "smtpd", `"event":"connect"`, "connect from %s", c)
	l.say(at, "smtpd", of("client"), "%s: client=%s", q, c)
	l.say(at, "cleanup", of("message-id"), "%s: message-id=<%d.%x@from%d.test>", q, n, n*7919, n%3000)
	l.say(at, "qmgr", of("active"), "%s: from=<sender%d@from%d.test>, size=12345, nrcpt=1 (queue active)", q, n%20000, n%3000)
	if n%3 == 0 {
		l.say(at, "smtpd", `"event":"reject"`, "NOQUEUE: reject: RCPT from %s: 550 5.1.1 <no%d@here.test>: Recipient address rejected: User unknown in local recipient table; from=<s@spam%d.test> to=<no%d@here.test> proto=ESMTP helo=<h%d.test>", c, n, n%100, n, n%250)
	}
	l.say(at, "smtpd", `"event":"disconnect"`, "disconnect from %s ehlo=1 mail=1 rcpt=1 data=1 quit=1 commands=5", c)
	relay := fmt.Sprintf("mx%d.to%d.test[203.0.%d.%d]:25", n%3, n%5000, n%113, n%199)
	tried := fmt.Sprintf(`,"to":"%s","relay":"%s"`, rcpt, relay)
	if n%10 == 0 {
		l.say(at, "smtp", of("deferred")+tried, "%s: to=<%s>, relay=%s, delay=0.31, delays=0.01/0/0.1/0.2, dsn=4.2.0, status=deferred (host %s said: 450 4.2.0 try later (in reply to RCPT TO command))", q, rcpt, relay, relay)
	}
	l.say(at, "smtp", of("sent")+tried, "%s: to=<%s>, relay=%s, delay=0.31, delays=0.01/0/0.1/0.2, dsn=2.0.0, status=sent (250 2.0.0 Ok: queued as %s)", q, rcpt, relay, mail.MakeQueueID(at, uint64(n)*31))
	l.say(at, "qmgr", of("removed"), "%s: removed", q)
	return string(q), rcpt
}

// writeLogs writes a log in two files of one size, the older one in text and the other in JSON. It returns the queue ID and the
// recipient of a message in the middle, and how many messages there are.
func writeLogs(b *testing.B, dir string, size int64) (names []string, id, to string, messages int) {
	for _, form := range []string{"text", "json"} {
		name := filepath.Join(dir, "mail.log."+form)
		f, err := os.Create(name)
		if err != nil {
			b.Fatal(err)
		}
		l := &logWriter{w: bufio.NewWriterSize(f, 1<<20), json: form == "json"}
		for ; l.written < size/2; messages++ {
			id0, to0 := l.message(messages)
			if !l.json {
				id, to = id0, to0
			}
		}
		if err := l.w.Flush(); err != nil {
			b.Fatal(err)
		}
		f.Close()
		names = append(names, name)
	}
	return names, id, to, messages
}

// keptName is the file that says what the logs are that an earlier run has kept.
const keptName = "track-log.txt"

// keptLogs are logs of an earlier run, if it has kept them, or new ones.
func keptLogs(b *testing.B, dir string, size int64) (names []string, id, to string, messages int) {
	var was int64
	if text, err := os.ReadFile(filepath.Join(dir, keptName)); err == nil {
		if _, err := fmt.Sscan(string(text), &was, &id, &to, &messages); err == nil && was == size {
			return []string{filepath.Join(dir, "mail.log.text"), filepath.Join(dir, "mail.log.json")}, id, to, messages
		}
	}
	names, id, to, messages = writeLogs(b, dir, size)
	if err := os.WriteFile(filepath.Join(dir, keptName), fmt.Append(nil, size, " ", id, " ", to, " ", messages, "\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	return names, id, to, messages
}

// BenchmarkLog says how fast the index of a log is made, how large it is, and how fast it is searched. The size of the log is that
// of the environment variable TRACK_LOG_SIZE, in MB, by default 32: TRACK_LOG_SIZE=10240 go test ./internal/track -run '^$'
// -bench Log -benchtime 1x -timeout 30m. TRACK_LOG_DIR is where it is written. TRACK_LOG_KEEP leaves it, and the index, for the next run. With TRACK_LOG_COLD each search is also measured when
// nothing of the log and of the index is in the kernel's memory.
func BenchmarkLog(b *testing.B) {
	size, err := strconv.ParseInt(os.Getenv("TRACK_LOG_SIZE"), 10, 64)
	if err != nil {
		size = 32
	}
	dir := os.Getenv("TRACK_LOG_DIR")
	if dir == "" {
		dir = b.TempDir()
	}
	names, id, to, messages := keptLogs(b, dir, size<<20)
	if os.Getenv("TRACK_LOG_KEEP") == "" {
		defer os.RemoveAll(filepath.Join(dir, "track"))
		defer func() {
			for _, n := range append(names, filepath.Join(dir, keptName)) {
				os.Remove(n)
			}
		}()
	}
	o := Options{Logs: names, Index: filepath.Join(dir, "track"), IndexLimit: 1 << 40, Now: day.AddDate(0, 3, 0), Warn: b.Logf}
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
	run := func(name string, want int, q Query, cold bool) {
		b.Run(name, func(b *testing.B) {
			n := 0
			for range b.N {
				if cold {
					b.StopTimer()
					forget(b, append(slices.Clone(names), files(b, o.Index)...))
					b.StartTimer()
				}
				n = 0
				err := Search(context.Background(), o, q, func(Found) bool { n++; return n != want })
				if err != nil || n != want && want > 0 {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64(n), "found")
		})
	}
	search := func(name string, want int, q Query) {
		if os.Getenv("TRACK_LOG_COLD") != "" {
			run(name+"-cold", want, q, true)
		}
		run(name, want, q, false)
	}
	one := func(f Field, v string) Query { return Query{Conditions: []Condition{{f, v}}} }
	search("id", 1, one(ID, id))
	search("recipient", 1, one(To, to))
	search("nothing", -1, one(Anything, "nobody@nowhere.test"))
	for _, c := range []struct {
		name  string
		share int
		q     Query
	}{
		{"domain", 5000, one(To, "@to77.test")}, {"sender-domain", 3000, one(From, "@from77.test")}, {"sender", 60000, one(From, "sender77@from77.test")},
		{"refused-sender", 300, one(From, "s@spam33.test")}, {"client", 250, one(Client, "10.1.0.0/16")}, {"reply", 10, one(Reply, "450 4.2.0 TRY LATER")},
	} {
		for _, n := range []int{1, 50} { // the first answer, and a page of the console
			search(fmt.Sprint(c.name, "-first-", n), min(n, max(1, messages/c.share-1)), c.q)
		}
		if c.share >= 3000 {
			search(c.name+"-all", -1, c.q)
		}
	}
	search("reply-nothing", -1, one(Reply, "451 4.7.1 come back"))
	search("network-nothing", -1, one(Client, "172.16.0.0/12"))
	part, _, _ := strings.Cut(to, "@")
	search("text-rare", -1, one(Text, part[len("recip"):]+"@TO")) // the trigrams of its figures are everywhere
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

// files are those of a directory.
func files(b *testing.B, dir string) (list []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, filepath.Join(dir, e.Name()))
	}
	return list
}

// forget has the kernel forget what files have.
func forget(b *testing.B, names []string) {
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close()); err != nil {
			b.Fatal(err)
		}
	}
}
