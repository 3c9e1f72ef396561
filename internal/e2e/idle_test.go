package e2e

import (
	"bufio"
	"flag"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

var idleConns = flag.Int("idle.n", 300, "connections in TestIdleConnections")

// maxIdleMemory bounds what a client that has said EHLO and then nothing costs
// smtpd: 10,000 of them fit into 400 MB with the process itself.
const maxIdleMemory = 38 << 10

// maxStrangerMemory bounds what a client that has not logged in can make smtpd
// keep for it.
const maxStrangerMemory = 256 << 10

// Clients that are connected and say nothing cost little memory, are all
// served, and are in nobody's way. What they cost is printed:
//
//	go test ./internal/e2e -run TestIdleConnections -idle.n 10000 -v
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	n := *idleConns
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost(), master: strings.Replace(usualMaster, "inet n - n - - smtpd", fmt.Sprintf("inet n - n - %d smtpd", n+100), 1)})
	s.mustSend("a@from.test", []string{"warm@to.test"}, "Subject: up\n\nx\n")
	pids := s.processes("smtpd")
	if len(pids) != 1 {
		t.Fatalf("%d smtpd processes", len(pids))
	}
	before := resident(t, pids[0])
	began := time.Now()
	conns := make([]net.Conn, 0, n)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range n {
		c, err := net.Dial("tcp", s.addr())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		c.SetDeadline(time.Now().Add(patience))
		r := bufio.NewReaderSize(c, 512)
		if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "220 ") {
			t.Fatalf("client %d: %q %v", len(conns), line, err)
		}
		fmt.Fprintf(c, "EHLO client.test\r\n")
		for line := "250-"; !strings.HasPrefix(line, "250 "); {
			if line, err = r.ReadString('\n'); err != nil {
				t.Fatalf("client %d: %v", len(conns), err)
			}
		}
	}
	after := resident(t, pids[0])
	t.Logf("%d idle clients after %v: smtpd has %d MB of memory, %d MB without them, %d KB a client",
		n, time.Since(began).Round(time.Millisecond), after>>20, before>>20, (after-before)/int64(n)>>10)
	// The collector may be in arrears by as much as there is.
	if most := 2*before + int64(n)*maxIdleMemory; !underRace && after > most {
		t.Errorf("%d idle clients: smtpd has %d octets of memory, want %d at most", n, after, most)
	}
	// Now they send all that a stranger can, and end none of it.
	for i, c := range conns {
		c.SetDeadline(time.Now().Add(patience))
		r := bufio.NewReader(c)
		for _, line := range []string{"NOOP " + strings.Repeat("x", 100000), "NOOP " + strings.Repeat("y", 1000), "MAIL FROM:<a@from.test> ENVID=" + strings.Repeat("z", 90),
			"RCPT TO:<b@to.test>", "RCPT TO:<c@to.test> ORCPT=rfc822;" + strings.Repeat("o", 400), "DATA"} {
			fmt.Fprintf(c, "%s\r\n", line)
			if reply, err := r.ReadString('\n'); err != nil || reply[0] != '2' && reply[0] != '3' && !strings.HasPrefix(reply, "500 ") {
				t.Fatalf("client %d: %.50s: %q %v", i, line, reply, err)
			}
		}
		fmt.Fprintf(c, "%s%s", strings.Repeat(strings.Repeat("content ", 9)+"\r\n", 900), strings.Repeat("without end ", 3000))
	}
	greedy := resident(t, pids[0])
	t.Logf("when they have sent what they can, %d MB, %d KB a client", greedy>>20, (greedy-before)/int64(n)>>10)
	if most := 2*before + int64(n)*maxStrangerMemory; !underRace && greedy > most {
		t.Errorf("%d greedy clients: smtpd has %d octets of memory, want %d at most", n, greedy, most)
	}
	s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: beside them\n\nx\n")
	s.eventually("mail passes beside them", func() bool { return len(next.received()) == 2 })
	for _, c := range []net.Conn{conns[0], conns[n-1]} {
		c.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(c, "\r\n.\r\n")
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.HasPrefix(line, "250 2.0.0 Ok: queued as ") {
			t.Errorf("a client that ends its message hears %q %v", line, err)
		}
	}
}

var rss = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)

// resident is the resident memory of a process, in octets.
func resident(t testing.TB, pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := rss.FindSubmatch(status)
	if m == nil {
		t.Fatalf("no memory in %s", status)
	}
	kb, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}
