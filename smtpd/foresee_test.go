package smtpd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestPlainRcpt(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"RCPT TO:<a@b.test>\r":                 "a@b.test",
		"rcpt to:<a@b.test> NOTIFY=NEVER\r":    "a@b.test",
		"RCPT TO:<postmaster>\r":               "postmaster",
		"RCPT TO: <a@b.test>\r":                "", // seen in its turn only
		"RCPT TO:a@b.test\r":                   "",
		"RCPT TO:<a@b.test\r":                  "",
		"RCPT TO:<>\r":                         "",
		`RCPT TO:<"a"@b.test>`:                 "",
		`RCPT TO:<a\ b@b.test>`:                "",
		"RCPT TO:<@relay.test:a@b.test>\r":     "",
		"RCPT TO:<a b@b.test>\r":               "",
		"MAIL FROM:<a@b.test>\r":               "",
		"RCPT":                                 "",
		"":                                     "",
		"RCPT TO:<\r":                          "",
		"DATA\r":                               "",
		"XRCPT TO:<a@b.test>":                  "",
		"RCPT TO:<" + strings.Repeat("x", 900): "",
	} {
		got, ok := plainRcpt([]byte(line))
		if !ok {
			got = nil
		}
		if ok != (want != "") || string(got) != want {
			t.Errorf("%q: %q, %v, want %q", line, got, ok, want)
		}
	}
}

// foreseeing is a session that has received input, and the questions it asks ahead.
func foreseeing(input string) (s *session, asked *[]string) {
	asked = new([]string)
	s = &session{srv: &Server{foresee: func(_ context.Context, sender, addr string) {
		*asked = append(*asked, sender+" "+addr)
	}}}
	s.wire.buf, s.wire.w, s.wire.received = []byte(input), len(input), int64(len(input))
	return s, asked
}

// nextForeseen reads a command, as the session does, and looks ahead.
func nextForeseen(t *testing.T, s *session) {
	t.Helper()
	if _, err := s.wire.line(1000, nil); err != nil {
		t.Fatal(err)
	}
	s.foresee("s")
}

// Each recipient that waits is asked for once, and no more than some at a time.
func TestForesee(t *testing.T) {
	t.Parallel()
	input, n := "RCPT TO:<r0@b.test>\r\n", 2*maxForeseen+10
	var want []string
	for i := 1; i <= n; i++ {
		input += fmt.Sprintf("RCPT TO:<r%d@b.test>\r\n", i)
		want = append(want, fmt.Sprintf("s r%d@b.test", i))
	}
	s, asked := foreseeing(input + "DATA\r\nRCPT TO:<content@b.test>\r\n")
	for i := range n {
		nextForeseen(t, s)
		if ahead := len(*asked) - i; ahead < 1 || ahead > maxForeseen {
			t.Fatalf("%d asked before their turn", ahead)
		}
	}
	nextForeseen(t, s) // the last one
	if !slices.Equal(*asked, want) {
		t.Errorf("asked %q", *asked)
	}
}

// What is not there as a whole, or is not a recipient, ends the look ahead.
func TestForeseeStops(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]int{
		"RCPT TO:<1@b.test>\r\n":                                                   0,
		"RCPT TO:<1@b.test>\r\nRCPT TO:<2@b.te":                                    0,
		"RCPT TO:<1@b.test>\r\nRCPT TO:<2@b.test>\r\nRCPT TO:<3@b.test>":           1,
		"RCPT TO:<1@b.test>\r\nNOOP\r\nRCPT TO:<3@b.test>\r\n":                     0,
		"RCPT TO:<1@b.test>\r\nRCPT TO:<2@b.test>\r\nBDAT 99\r\nRCPT TO:<x@y>\r\n": 1,
	} {
		s, asked := foreseeing(input)
		nextForeseen(t, s)
		if len(*asked) != want {
			t.Errorf("%q: asked %q", input, *asked)
		}
	}
	s, asked := foreseeing("RCPT TO:<1@b.test>\r\nRCPT TO:<2@b.test>\r\n")
	s.srv.foresee = nil // nobody to ask
	nextForeseen(t, s)
	if len(*asked) != 0 {
		t.Errorf("asked %q", *asked)
	}
}
