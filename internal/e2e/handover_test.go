package e2e

import (
	"fmt"
	"io"
	"net/smtp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// newQueueManager waits until the queue manager is another process than those
// in old, and serves, and returns its process ID.
func (s *system) newQueueManager(old ...int) (pid int) {
	s.t.Helper()
	s.eventually("there is a new queue manager", func() bool {
		list := s.processes("qmgr")
		if len(list) != 1 || slices.Contains(old, list[0]) {
			return false
		}
		pid = list[0]
		out, status := s.tool(nil, "postqueue", "-j")
		return status == 0 && !strings.Contains(out, "mail system is down")
	})
	return pid
}

// A delivery that outlives two reloads is made once, although neither the
// queue manager nor the agent of that time is there any more, and although mail
// goes another way meanwhile.
func TestReloadLetsDeliveriesEnd(t *testing.T) {
	t.Parallel()
	for _, moved := range []bool{false, true} {
		t.Run(fmt.Sprint(moved), func(t *testing.T) {
			t.Parallel()
			dot, answer := make(chan bool, 10), make(chan bool)
			next := newSink(t, func(line string) string {
				if line == "." {
					dot <- true
					<-answer
				}
				return ""
			})
			s := newSystem(t, options{main: next.relayhost()})
			s.mustSend("a@from.test", []string{"b@to.test", "c@to.test"}, "Subject: long\n\nx\n")
			<-dot
			first, agent := s.processes("qmgr"), s.processes("smtp")
			if moved {
				s.mustTool("postconf", "-e", "default_transport = relay")
			}
			s.mustTool("reload")
			second := s.newQueueManager(first...)
			s.mustTool("reload")
			s.newQueueManager(append(first, second)...)
			close(answer)
			s.waitLog(`: to=<b@to\.test>.* status=sent`)
			s.waitLog(`: to=<c@to\.test>.* status=sent`)
			s.waitLog(`: removed$`)
			if got := next.received(); len(got) != 1 || len(got[0].to) != 2 {
				t.Errorf("arrived: %+v", got)
			}
			if n := len(regexp.MustCompile(`: to=<`).FindAllString(s.log(), -1)); n != 2 {
				t.Errorf("%d outcomes in the log:\n%s", n, s.log())
			}
			s.eventually("the old agent has ended", func() bool { return !slices.Contains(s.processes("smtp"), agent[0]) })
		})
	}
}

// A delivery that a stop of the mail system cuts off is made when it starts again,
// as if it had not been tried.
func TestStopLeavesMailForTheStart(t *testing.T) {
	t.Parallel()
	dot := make(chan bool, 10)
	hang := make(chan bool)
	next := newSink(t, func(line string) string {
		if line == "." {
			select {
			case <-hang:
			default:
				dot <- true
				<-hang
				return "451 too late"
			}
		}
		return ""
	})
	s := newSystem(t, options{main: next.relayhost()})
	s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: x\n\nx\n")
	<-dot
	s.stop()
	close(hang)
	s.start()
	s.waitLog(`: to=<b@to\.test>.* status=sent`)
	s.waitLog(`: removed$`)
}

// writesLargeMessage says whether cleanup has the file of a large message open,
// which has no name before it is complete.
func (s *system) writesLargeMessage() bool {
	for _, pid := range s.processes("cleanup") {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, f := range files {
			if to, err := os.Readlink(f); err == nil && strings.Contains(to, "/spool/big/") {
				return true
			}
		}
	}
	return false
}

// A long message that is on its way in goes on to its end during a reload.
func TestReloadWhileMailComesIn(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost()})
	c, err := smtp.Dial(s.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, err := range []error{c.Mail("a@from.test"), c.Rcpt("b@to.test")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	w, err := c.Data()
	if err != nil {
		t.Fatal(err)
	}
	body := strings.Repeat(strings.Repeat("x", 998)+"\r\n", 1000)
	if _, err := io.WriteString(w, "Subject: long\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	s.eventually("cleanup has some of it", s.writesLargeMessage)
	cleanup, qmgr := s.processes("cleanup"), s.processes("qmgr")
	// The command waits for cleanup, which waits for the message: at most half a minute. All that
	// follows goes on beside it, for a slow machine needs that time.
	var reload sync.WaitGroup
	reload.Go(func() {
		if out, status := s.tool(nil, "reload"); status != 0 {
			t.Errorf("reload: status %d: %s", status, out)
		}
	})
	defer reload.Wait()
	s.eventually("another queue manager", func() bool { p := s.processes("qmgr"); return len(p) == 1 && p[0] != qmgr[0] })
	if now := s.processes("cleanup"); !slices.Contains(now, cleanup[0]) {
		t.Errorf("cleanup has not waited for the message: it was %d and is %d", cleanup, now)
	}
	// Others wait neither for that message nor for the reload.
	s.mustSend("a@from.test", []string{"c@to.test"}, "Subject: short\n\nx\n")
	s.waitLog(`to=<c@to\.test>.* status=sent`)
	for range 4 {
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Errorf("the message: %v", err)
	}
	s.waitLog(`to=<b@to\.test>.* status=sent`)
	if got := next.received(); len(got) != 2 || len(got[1].data) < 5*990*1000 {
		t.Errorf("%d arrived", len(got))
	}
	s.eventually("another cleanup", func() bool { return !slices.Contains(s.processes("cleanup"), cleanup[0]) })
}
