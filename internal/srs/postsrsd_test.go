package srs

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testpeers"
	"posthaste/internal/testport"
	"posthaste/internal/testwait"
)

// peerFile is where "make peers" unpacks Debian's package.
const peerFile = "/var/cache/posthaste-peers/postsrsd/usr/sbin/postsrsd"

// A peer asks a running postsrsd by its TCP tables.
type peer struct {
	t                *testing.T
	forward, reverse *bufio.ReadWriter
}

// startPeer starts postsrsd for fwd.test, with a separator.
func startPeer(t *testing.T, separator string) *peer {
	if _, err := os.Stat(peerFile); err != nil {
		testpeers.Missing(t, "postsrsd ("+peerFile+")")
	}
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("first secret\nsecond secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	there, back := testport.Free(t), testport.Free(t)
	cmd := exec.Command(peerFile, "-4", "-d", "fwd.test", "-s", file, "-a", separator, "-f", strconv.Itoa(there), "-r", strconv.Itoa(back))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	dial := func(port int) *bufio.ReadWriter {
		var c net.Conn
		testwait.Until(t, "postsrsd listens", func() bool {
			var err error
			c, err = net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			return err == nil
		})
		t.Cleanup(func() { c.Close() })
		return bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
	}
	return &peer{t: t, forward: dial(there), reverse: dial(back)}
}

// ask is the answer to a key; empty if there is none.
func (p *peer) ask(on *bufio.ReadWriter, key string) string {
	p.t.Helper()
	fmt.Fprintf(on, "get %s\n", key)
	on.Flush()
	line, err := on.ReadString('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	answer, found := strings.CutPrefix(strings.TrimSpace(line), "200 ")
	if !found {
		return ""
	}
	return answer
}

// What postsrsd makes is what we make, and each takes apart what the other has made: a system can
// change from one to the other while mail is under way. Debian's version 1.10 writes its hashes
// with + and /, and does not know - and _, so that the other way is for addresses without these.
func TestPostsrsd(t *testing.T) {
	t.Parallel()
	for _, separator := range []string{"=", "+", "-"} {
		p := startPeer(t, separator)
		ours := forwarder()
		ours.Separator = separator[0]
		both := 0
		for i := range 40 {
			sender := fmt.Sprintf("Ann.%d@Sender%d.test", i, i%3)
			switch i % 4 {
			case 1:
				sender = fmt.Sprintf("SRS0+ab%d=XY=sender.test=ann@first.test", i)
			case 2:
				sender = fmt.Sprintf("SRS1-zzzz=first.test==ab%d=XY=sender.test=ann@second.test", i)
			}
			now := time.Now()
			theirs, made := p.ask(p.forward, sender), ""
			made, _ = ours.Forward(sender, now)
			if day(now) == day(time.Now()) && string(folded(theirs)) != string(folded(made)) {
				t.Errorf("%s: postsrsd makes %s, and we make %s", sender, theirs, made)
			}
			back, err := ours.Reverse(theirs, now)
			if want := p.ask(p.reverse, theirs); err != nil || back != want {
				t.Errorf("%s: postsrsd leads it to %s, and we to %s, %v", theirs, want, back, err)
			}
			hash := made[len("SRS0="):][:4]
			if strings.ContainsAny(hash, "-_") {
				continue
			}
			both++
			if got := p.ask(p.reverse, made); got != back {
				t.Errorf("%s: postsrsd leads it to %q, not to %s", made, got, back)
			}
		}
		if both < 20 {
			t.Errorf("%d addresses of ours were asked about", both)
		}
		for _, bad := range []string{"SRS0=aaaa=JQ=sender.test=ann@fwd.test", "ann@fwd.test", "SRS0=@fwd.test"} {
			got := p.ask(p.reverse, bad)
			if back, err := ours.Reverse(bad, time.Now()); got != "" || err == nil {
				t.Errorf("%s: postsrsd leads it to %q, and we to %q", bad, got, back)
			}
		}
	}
}
