package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// left waits until the log says of a message, which went to that recipient, that it has left the queue.
func (s *system) left(to string) string {
	s.t.Helper()
	line := s.waitLog(`to=<` + regexp.QuoteMeta(to) + `>.*status=(sent|bounced)`)
	id := regexp.MustCompile(`\]: (\w+): to=`).FindStringSubmatch(line)[1]
	s.waitLog(id + ": removed")
	return id
}

// warm has a message delivered. While the queue manager has not called cleanup yet, what comes is queued as without
// smtpd_delivery_wait.
func (s *system) warm(to string) {
	s.t.Helper()
	s.mustSend("a@from.test", []string{to}, "Subject: x\n\nx\n")
	s.left(to)
}

// written is what the log of the queue has of a message: whether its content was ever there.
func (s *system) written(t *testing.T, text string) bool {
	t.Helper()
	files, err := filepath.Glob(s.path("spool", "spool", "seg", "*.seg"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no segments: %v", err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), text) {
			return true
		}
	}
	return false
}

// With smtpd_delivery_wait a message that is delivered is never in the queue's log, and one that is not, is: with a
// reply of 250 in each case.
func TestDeliveryWait(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	next := newSink(t, func(line string) string {
		switch {
		case strings.Contains(line, "<later@"):
			return "450 4.2.1 later"
		case strings.Contains(line, "<never@"):
			return "550 5.1.1 no such user"
		case strings.Contains(line, "<slow@"):
			<-slow
		}
		return ""
	})
	main := next.relayhost() + "notify_classes =\nsmtpd_delivery_wait = "
	s := newSystem(t, options{main: main + "300s\n"}) // longer than the slowest machine takes
	s.warm("first@to.test")
	s.mustSend("a@from.test", []string{"one@to.test", "two@to.test"}, "Subject: fast-message\n\nx\n")
	s.left("one@to.test")
	if s.written(t, "fast-message") {
		t.Error("a message that was delivered at once is in the log of the queue")
	}
	if n := len(next.received()); n != 2 {
		t.Errorf("the next hop has %d messages", n)
	}
	s.mustSend("a@from.test", []string{"later@to.test", "three@to.test"}, "Subject: later-message\n\nx\n")
	if !s.written(t, "later-message") {
		t.Error("a message with a recipient that is deferred is not in the log of the queue")
	}
	if list, _ := s.tool(nil, "mailq"); !strings.Contains(list, "later@to.test") || strings.Contains(list, "three@to.test") {
		t.Errorf("the queue is:\n%s", list)
	}
	s.mustSend("", []string{"never@to.test"}, "Subject: never-message\n\nx\n")
	if !s.written(t, "never-message") {
		t.Error("a message that is to be returned is not in the log of the queue")
	}
	// While it waits, it is in the queue for whoever looks.
	s.configure(main+"2s\n", "")
	if out, status := s.tool(nil, "reload"); status != 0 {
		t.Fatalf("reload: %s", out)
	}
	s.warm("again@to.test")
	begun := time.Now()
	told := make(chan error, 1)
	go func() { told <- s.send("a@from.test", []string{"slow@to.test"}, "Subject: slow-message\n\nx\n") }()
	var id string
	s.eventually("the message is listed", func() bool {
		list, _ := s.tool(nil, "postqueue", "-p")
		m := regexp.MustCompile(`(?m)^(\w+)\*? .*\n(?:.*\n)?\s+slow@to\.test`).FindStringSubmatch(list)
		if m != nil {
			id = m[1]
		}
		return m != nil
	})
	if text, status := s.tool(nil, "postcat", "-q", id); status != 0 || !strings.Contains(text, "slow-message") {
		t.Errorf("postcat: %d\n%s", status, text)
	}
	if err := <-told; err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took < 2*time.Second {
		t.Errorf("the client waited %v", took)
	}
	if !s.written(t, "slow-message") {
		t.Error("a message whose time was up is not in the log of the queue")
	}
	close(slow)
	s.left("slow@to.test")
	s.stop()
	if names, _ := filepath.Glob(s.path("spool", "spool", "volatile", "*")); len(names) > 0 {
		t.Errorf("an orderly stop has left %v", names)
	}
	if n := strings.Count(s.log(), "withdrawn"); n > 0 {
		t.Errorf("%d messages are named as withdrawn", n)
	}
}

// What all recipients refuse is refused to the client, and nobody is sent a notice.
func TestDeliveryWaitRefused(t *testing.T) {
	t.Parallel()
	next := newSink(t, func(line string) string {
		if strings.Contains(line, "<never") {
			return "550 5.1.1 no such user here"
		}
		return ""
	})
	s := newSystem(t, options{main: next.relayhost() + "smtpd_delivery_wait = 300s\nsmtpd_delivery_wait_failure = refuse\n"})
	s.warm("first@to.test")
	err := s.send("a@from.test", []string{"never1@to.test", "never2@to.test"}, "Subject: x\n\nx\n")
	if replyCode(err) != 550 || !strings.Contains(fmt.Sprint(err), "no such user here") {
		t.Errorf("the client was told: %v", err)
	}
	s.waitLog(`cleanup\[\d+\]: \w+: refused, as no recipient can have it: 550 5\.1\.1`)
	s.mustSend("a@from.test", []string{"never3@to.test", "good@to.test"}, "Subject: mixed\n\nx\n")
	s.waitLog(`bounce\[\d+\]: \w+: sender non-delivery notification`)
	s.eventually("the notice arrives", func() bool { return len(next.received()) == 3 })
	s.idle()
	if n := len(next.received()); n != 3 {
		t.Errorf("%d messages have arrived, want the first one, one and a notice", n)
	}
}

// Processes die, are reloaded and stopped while clients wait. What was acknowledged arrives, and what arrives twice is named.
func TestDeliveryWaitKill(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + "smtpd_delivery_wait = 10s\n" + quick})
	load := startLoad(s, 6)
	for _, victim := range []string{"cleanup", "qmgr", "smtp", "cleanup", "smtpd", "qmgr"} {
		load.waitAccepted(60)
		s.kill(victim)
	}
	for range 2 {
		load.waitAccepted(60)
		if out, status := s.tool(nil, "reload"); status != 0 {
			t.Fatalf("reload: %s", out)
		}
	}
	load.waitAccepted(60)
	load.end()
	s.allArrived(next, load)
	s.stop()
}

// A mail filter has looked at a message before it is delivered while its client waits, and is no reason to store it.
func TestDeliveryWaitFilter(t *testing.T) {
	t.Parallel()
	f, port := newFilter(t)
	next := newSink(t, func(line string) string {
		if strings.Contains(line, "<later@") {
			return "450 4.2.1 later"
		}
		return ""
	})
	s := newSystem(t, options{main: next.relayhost() + fmt.Sprintf("smtpd_milters = inet:127.0.0.1:%d\nsmtpd_delivery_wait = 300s\n", port)})
	s.warm("first@to.test")
	s.mustSend("a@from.test", []string{"one@to.test"}, "Subject: x\n\nfiltered-message\n")
	s.left("one@to.test")
	if s.written(t, "filtered-message") {
		t.Error("a message that a filter has looked at is in the log of the queue")
	}
	s.mustSend("a@from.test", []string{"later@to.test"}, "Subject: x\n\ndeferred-message\n")
	if !s.written(t, "deferred-message") {
		t.Error("a message that is deferred is not in the log of the queue")
	}
	if events := f.seen(); !slices.Contains(events, "rcpt one@to.test mailer=smtp") {
		t.Errorf("the filter has seen %q", events)
	}
}
