package script

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
)

// knownReplies are the commands to which Posthaste does not reply as Postfix 3.7 does, each with the reason
// and an example, which does differ.
var knownReplies = []struct {
	why                string
	line, ours, theirs *regexp.Regexp // the reply of each, if only one of them has it
	example            string
}{
	{"paths that other programs would read as another address are refused: docs/smtpd.md", regexp.MustCompile(`(?i)^\s*(MAIL|RCPT|VRFY)\s`), regexp.MustCompile(`^501 5\.1\.[37] Bad`), nil, "MAIL FROM:<a@b@c.test>"},
	{"a domain that cannot be is left to the restrictions: docs/smtpd.md", regexp.MustCompile(`(?i)^\s*(MAIL|RCPT|VRFY)\s`), nil, regexp.MustCompile(`^501 5\.1\.[37] Bad`), "MAIL FROM:<a@-b.test>"},
	{"an option that is not known is named whole; Postfix ends it at a colon", regexp.MustCompile(`(?i)^\s*(MAIL|RCPT)\s`), regexp.MustCompile(`^555 `), regexp.MustCompile(`^555 `), "MAIL FROM:<a@b.test> FROM:0"},
	{"HELP has an answer, RFC 5321 section 4.1.1.8", regexp.MustCompile(`(?i)^\s*HELP\b`), regexp.MustCompile(`^214 `), nil, "HELP"},
	{"this server has no queue with a name, RFC 1985 section 5.3: Postfix takes #name for a domain", regexp.MustCompile(`(?i)^\s*ETRN\s+#`), regexp.MustCompile(`^501 `), nil, "ETRN #site.test"},
}

// binary are the commands behind which something else than lines may follow: they are not compared here.
var binary = regexp.MustCompile(`(?im)^\s*(BDAT|STARTTLS|AUTH)\b`)

// known says whether it is known that our reply to a line is another one than Postfix's.
func known(line, ours, theirs string) bool {
	for _, k := range knownReplies {
		if k.line.MatchString(line) && (k.ours == nil || k.ours.MatchString(ours)) && (k.theirs == nil || k.theirs.MatchString(theirs)) {
			return true
		}
	}
	return false
}

const likeMain = "smtpd_hard_error_limit = 1000\nsmtpd_junk_command_limit = 1000\nsmtpd_client_connection_count_limit = 0\nsmtpd_client_connection_rate_limit = 0\n"

// FuzzLikePostfix: whatever commands a client sends, one after the other, each has the reply that Postfix gives, but
// for those of knownReplies. The input is the commands, a line each; after a DATA that was accepted lines are content up
// to a dot. Only printable ASCII is compared, and no command
// behind which something else than lines may follow.
func FuzzLikePostfix(f *testing.F) {
	for _, in := range []string{
		"EHLO x\nMAIL FROM:<a@b.test> SIZE=1 BODY=8BITMIME\nRCPT TO:<alice@example.test>\nRCPT TO:<x@relay.test> NOTIFY=NEVER\nDATA\nSubject: x\n\n..\n.\nRSET\nQUIT",
		"HELO\nHELO x y\nMAIL FROM:<>\nRCPT TO:<nobody@example.test>\nDATA\nRCPT TO:<bob>\nMAIL FROM:<a@b>\nDATA x\nNOOP x\nHELP",
		"VRFY alice\nETRN site.test\nETRN #x\nEXPN x\nXCLIENT A=b\nXFORWARD NAME=x\nGET / HTTP/1.0",
		"RSET x\nQUIT x\nFROM: a@b\nmail from: a@b.test ret=full envid=x\nrcpt to:<@x,@y:bob@example.test> orcpt=rfc822;a+2Bb\nRCPT TO:<b@elsewhere.test>\nDATA\nQUIT",
	} {
		f.Add(in)
	}
	p := newPair(f)
	f.Fuzz(func(t *testing.T, in string) {
		lines := strings.Split(in, "\n")
		if len(lines) > 16 || len(in) > 2000 || binary.MatchString(in) || strings.ContainsFunc(in, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }) {
			return
		}
		ours, theirs := p.play(t, lines)
		for i, line := range lines {
			if i >= len(ours) || i >= len(theirs) {
				break
			}
			if ours[i] == theirs[i] {
				continue
			}
			if known(line, ours[i], theirs[i]) {
				return // and the sessions have different states from here on
			}
			t.Fatalf("%q\nhere  %q\nPostfix %q\nin %q", line, ours[i], theirs[i], lines)
		}
		if len(ours) != len(theirs) {
			t.Fatalf("%d replies, and Postfix has %d in %q", len(ours), len(theirs), lines)
		}
	})
}

// TestKnownReplies: each of the known differences is one.
func TestKnownReplies(t *testing.T) {
	p := newPair(t)
	for _, k := range knownReplies {
		ours, theirs := p.play(t, []string{"EHLO x", k.example})
		if len(ours) != 2 || len(theirs) != 2 || ours[1] == theirs[1] || !known(k.example, ours[1], theirs[1]) {
			t.Errorf("%s: %q: %q, and Postfix has %q", k.why, k.example, ours, theirs)
		}
	}
}

// A pair is our server, and Postfix's with the same settings.
type pair struct {
	ours *world
	o    *original
}

func newPair(t testing.TB) *pair {
	ar := &txtar.Archive{Files: []txtar.File{{Name: "main.cf", Data: []byte(likeMain)}}}
	o := newOriginal(t)
	o.add(t, "fuzz", ar)
	o.start(t)
	w := newWorld(t, ar)
	w.cleanup.forget = true
	t.Cleanup(w.close)
	return &pair{w, o}
}

// play sends the lines to both, and returns the replies to each; those after the end of a session are missing.
func (p *pair) play(t *testing.T, lines []string) (ours, theirs []string) {
	ours = p.here(t, lines)
	c, err := net.Dial("unix", p.o.Path("spool", "public", p.o.parts[0].service))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "PROXY TCP4 198.51.100.7 192.0.2.25 40000 25\r\n")
	return ours, p.converse(t, c, lines)
}

// here sends the lines to our server.
func (p *pair) here(t *testing.T, lines []string) []string {
	client, server := net.Pipe()
	var done sync.WaitGroup
	done.Go(func() { p.ours.srv.ServeConn(context.Background(), pipeEnd{server}) })
	defer done.Wait()
	defer client.Close()
	return p.converse(t, client, lines)
}

// converse sends one line after the other, and waits for the reply to each.
func (p *pair) converse(t *testing.T, c net.Conn, lines []string) (replies []string) {
	r := bufio.NewReader(c)
	reply := func() (text string, ok bool) {
		for {
			c.SetReadDeadline(time.Now().Add(postfixPatience))
			line, err := r.ReadString('\n')
			if text += line; err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
					t.Fatalf("%q: %v", lines, err)
				}
				return text, false
			}
			if len(line) < 4 || line[3] != '-' {
				return p.ours.plain(text), true
			}
		}
	}
	if _, ok := reply(); !ok {
		return nil
	}
	content := false
	for _, line := range lines {
		c.SetWriteDeadline(time.Now().Add(postfixPatience))
		if _, err := io.WriteString(c, line+"\r\n"); err != nil {
			return replies
		}
		if content && line != "." {
			replies = append(replies, "")
			continue
		}
		text, ok := reply()
		if !ok {
			return replies
		}
		replies = append(replies, text)
		content = strings.HasPrefix(text, "354")
	}
	return replies
}
