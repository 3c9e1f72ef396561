package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
)

var (
	aboutMessage = regexp.MustCompile(`(?m)^Message-Id: <k(\d+)@far\.test>`)
	noticeSent   = regexp.MustCompile(`sender non-delivery notification`)
)

// The bounce service is killed, again and again, while it makes notices: each
// sender is told all the same, and no message stays. One may be told twice: when
// the request is made again while cleanup is still at what the dead one gave it.
func TestBounceKilled(t *testing.T) {
	t.Parallel()
	s := newSystem(t, options{main: reportSettings + "notify_classes =\nbounce_size_limit = 1000000\nservice_throttle_time = 1s\n", unstarted: true})
	setUpReports(s)
	s.write("etc/aliases", readAll(t, s.path("etc/aliases"))+"pair fails, nosuch\n"+
		strings.ReplaceAll("waits \"|until test -e {dir}/now; do sleep 0.1; done; exit 67\"\n", "{dir}", s.dir))
	s.start()
	s.killedBeforeCleanup()
	const senders, each, kills = 2, 8, 4
	text := "Subject: returned\n\n" + strings.Repeat("all of this goes back to its sender\n", 3000)
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for k := range each {
				m := reported{name: fmt.Sprintf("k%d", i*each+k), mail: "<box@local.test> RET=FULL", rcpt: []string{"<nosuch@local.test>"}, content: text}
				if k%3 == 0 {
					m.rcpt = []string{"<pair@local.test>", "<fails@local.test>"}
				}
				if err := s.sendReported(m); err != nil {
					t.Errorf("%s: %v", m.name, err)
				}
			}
		})
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		wg.Wait()
	}()
	killed, before := 0, 0
	s.eventually("all mail has gone back", func() bool {
		s.operate("", "postqueue", "-f")
		n := len(noticeSent.FindAllString(s.log(), -1))
		if n > before && killed < kills && len(s.processes("bounce")) > 0 {
			s.kill("bounce")
			killed, before = killed+1, n
		}
		select {
		case <-sent:
			return strings.Contains(s.mustTool("postqueue", "-p"), "Mail queue is empty")
		default:
			return false
		}
	})
	told := map[string]int{}
	files, _ := filepath.Glob(s.path("mail/box/new/*"))
	for _, name := range files {
		if g := aboutMessage.FindStringSubmatch(readAll(t, name)); g != nil {
			told[g[1]]++
		}
	}
	for i := range senders * each {
		if n := told[fmt.Sprint(i)]; n < 1 || n > kills+1 {
			t.Errorf("message %d: %d notices", i, n)
		}
	}
	if n := told["999"]; n != 1 {
		t.Errorf("the message whose notice waited for cleanup: %d notices", n)
	}
}

// killedBeforeCleanup has the bounce service killed while it waits for cleanup,
// which is stopped, to take a notice.
func (s *system) killedBeforeCleanup() {
	s.t.Helper()
	if err := s.sendReported(reported{name: "k999", mail: "<box@local.test>", rcpt: []string{"<waits@local.test>"}}); err != nil {
		s.t.Fatal(err)
	}
	s.waitLog("nrcpt=1 \\(queue active\\)")
	cleanup := s.processes("cleanup")
	for _, pid := range cleanup {
		syscall.Kill(pid, syscall.SIGSTOP)
	}
	s.write("now", "")
	s.waitLog("to=<waits@local.test>.*status=bounced")
	pid, seen, wait := 0, 0, 10
	s.eventually("a notice is cut off", func() bool {
		if list := s.processes("bounce"); len(list) == 0 || list[0] != pid {
			pid, seen = append(list, 0)[0], 0
		}
		if seen++; pid != 0 && seen == wait { // it may need longer to get its work
			s.kill("bounce")
			wait *= 2
		}
		return strings.Contains(s.log(), "the bounce service has made no notice")
	})
	for _, pid := range cleanup {
		syscall.Kill(pid, syscall.SIGCONT)
	}
}
