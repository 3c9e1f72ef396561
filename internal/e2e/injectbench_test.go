package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkInject has the same number of messages of 10 KB queued by SMTP and by HTTP in each form, in turns, by as
// many connections that stay open, and delivered to nowhere. It reports the messages a second until the last
// was confirmed, and the processor time of the mail system for each until all are gone.
func BenchmarkInject(b *testing.B) {
	source := need(b, "smtp-source")
	if err := buildAside("posthaste-inject"); err != nil {
		b.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", freePort(b))
	s := newSystem(b, options{main: "relay_transport = discard:\ndefault_transport = discard:\nrelayhost =\ndefault_process_limit = 200\n", master: address + " inet n - n - - inject\n"})
	out, status := s.tool(nil, "token", "add", "-s", "from.test", "app")
	if status != 0 {
		b.Fatal(out)
	}
	const messages, each = 3000, 500
	text := strings.Repeat("The quick brown fox jumps over the lazy dog and goes on for a while like this.\r\n", relaySize/80)
	quoted := strconv.Quote(text)
	head := func(path, kind string, n int) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", path, strings.TrimSpace(out), kind, n)
	}
	one := func(path, kind, body string) string { return head(path, kind, len(body)) + body }
	message := `{"from": "a@from.test", "to": ["b@to.test"], "subject": "x", "text": ` + quoted + "}\n"
	file := `{"from": "a@from.test", "to": ["b@to.test"], "subject": "x", "text": "x", "attachments": [{"filename": "f", "content": "` + base64.StdEncoding.EncodeToString([]byte(text[:len(text)*3/4])) + `"}]}`
	forms := []struct {
		name, request string
		n             int // messages of a request
	}{
		{"raw", one("/v1/messages?from=a@from.test&to=b@to.test", "message/rfc822", "From: a@from.test\r\nTo: b@to.test\r\nSubject: x\r\n\r\n"+text), 1},
		{"json", one("/v1/messages", "application/json", message), 1},
		{"file", one("/v1/messages", "application/json", file), 1},
		{"batch", one("/v1/messages", "application/x-ndjson", strings.Repeat(message, each)), each},
	}
	took, used, sent := map[string]time.Duration{}, map[string]time.Duration{}, 0
	round := func(name string, queue func()) {
		before, start := s.processorTime(), time.Now()
		queue()
		took[name] += time.Since(start)
		sent += messages
		s.eventually("all mail is delivered", func() bool { return strings.Count(s.log(), ": removed\n") >= sent })
		used[name] += s.processorTime() - before
	}
	for b.Loop() {
		round("smtp", func() {
			out, err := exec.Command(source, "-d", "-s", fmt.Sprint(relaySessions), "-l", fmt.Sprint(relaySize), "-m", fmt.Sprint(messages), "-f", "a@from.test", "-t", "b@to.test", s.addr()).CombinedOutput()
			if err != nil {
				b.Fatalf("smtp-source: %v\n%s", err, out)
			}
		})
		for _, f := range forms {
			conns := relaySessions
			if f.n > 1 {
				conns = 4
			}
			round(f.name, func() { postMany(b, address, f.request, messages/f.n, conns) })
		}
	}
	n := float64(b.N * messages)
	for name := range took {
		b.ReportMetric(n/took[name].Seconds(), name+"/s")
		b.ReportMetric(float64(used[name].Microseconds())/n, name+"-cpu-µs")
	}
	b.ReportMetric(0, "ns/op")
}

// postMany makes a request so many times, over so many connections. It costs little itself.
func postMany(b *testing.B, address, request string, times, conns int) {
	var left atomic.Int64
	left.Store(int64(times))
	var wg sync.WaitGroup
	for range conns {
		wg.Go(func() {
			c, err := net.Dial("tcp", address)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			r := bufio.NewReader(c)
			for left.Add(-1) >= 0 {
				if _, err := io.WriteString(c, request); err != nil {
					b.Error(err)
					return
				}
				if err := answered(r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// answered reads an answer, which has to be 200.
func answered(r *bufio.Reader) error {
	line, err := r.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 200 ") {
		return fmt.Errorf("%q %w", line, err)
	}
	length, chunked := 0, false
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			break
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(v))
		}
		chunked = chunked || bytes.Equal(line, []byte("Transfer-Encoding: chunked"))
	}
	for chunked {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(line), 16, 64)
		if err != nil {
			return err
		}
		if _, err := r.Discard(int(n) + 2); err != nil || n == 0 {
			return err
		}
	}
	_, err = r.Discard(length)
	return err
}
