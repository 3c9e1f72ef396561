package smtp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/testwait"
)

// dotServer takes one message, and says whether it has seen the last line of its content, and its end.
type dotServer struct {
	l         net.Listener
	wg        sync.WaitGroup
	body, end atomic.Bool
}

func newDotServer(t *testing.T) *dotServer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dotServer{l: l}
	s.wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		r := bufio.NewReader(c)
		fmt.Fprint(c, "220 x ESMTP\r\n")
		for data := false; ; {
			line, err := r.ReadString('\n')
			switch {
			case err != nil:
				return
			case data:
				if strings.HasPrefix(line, "last") {
					s.body.Store(true)
				}
				if line == ".\r\n" {
					s.end.Store(true)
					data = false
					fmt.Fprint(c, "250 2.0.0 done\r\n")
				}
			case strings.HasPrefix(line, "EHLO"):
				fmt.Fprint(c, "250-x\r\n250 PIPELINING\r\n")
			case strings.HasPrefix(line, "RCPT TO:<no@"):
				fmt.Fprint(c, "550 5.1.1 no\r\n")
			case strings.HasPrefix(line, "DATA"):
				data = true
				fmt.Fprint(c, "354 go on\r\n")
			default:
				fmt.Fprint(c, "250 ok\r\n")
			}
		}
	})
	t.Cleanup(func() { l.Close(); s.wg.Wait() })
	return s
}

// With exact orders the end of the message is not sent before it is recorded that it is about to be, for
// those recipients that the server has taken; if it cannot be, not at all. The content does not wait.
func TestEndWaits(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"Subject: x\r\n\r\nlast\r\n", "Subject: x\r\n\r\n.dots\r\nlast\r\n", "Subject: x\r\n\r\n" + strings.Repeat("0123456789\r\n", 20000) + "last\r\n"} {
		for _, fault := range []error{nil, errors.New("no room")} {
			s := newDotServer(t)
			a := tcpAgent(t, "")
			env := envelope(len(content))
			env.Body = mail.BodyGauged
			if strings.Contains(content, ".dots") {
				env.Body |= mail.BodyDots
			}
			env.Recipients = []mail.Recipient{{Address: "a@sink.test"}, {Address: "no@sink.test"}, {Address: "c@sink.test"}}
			r := agent.NewTestRequest(env, mail.Nexthop("[127.0.0.1]:"+port(s.l)), []byte(content), nil)
			r.CacheKeep = true
			asked := 0
			r.HandBy(func(m *proto.Hand) error {
				asked++
				if !slices.Equal(m.Index, []int{0, 2}) || !strings.HasPrefix(m.Relay, "127.0.0.1[127.0.0.1]:") || m.ID != env.ID {
					t.Errorf("%+v", m)
				}
				for limit := time.Now().Add(testwait.Patience); !s.body.Load() && time.Now().Before(limit); {
					time.Sleep(time.Millisecond)
				}
				if !s.body.Load() || s.end.Load() {
					t.Errorf("content has come: %v, its end: %v", s.body.Load(), s.end.Load())
				}
				return fault
			})
			a.Deliver(context.Background(), r)
			a.Close()
			s.l.Close()
			s.wg.Wait()
			o := r.Outcomes()
			if asked != 1 || s.end.Load() != (fault == nil) || o[1].Action != dsn.Failed {
				t.Errorf("%v: asked %d times, end sent: %v, %+v", fault, asked, s.end.Load(), o)
			}
			if r.Kept() != (fault == nil) {
				t.Errorf("%v: the session is kept: %v", fault, r.Kept())
			}
			for _, i := range []int{0, 2} {
				if fault == nil && o[i].Action != dsn.Delivered || fault != nil && (o[i].Action != dsn.Deferred || o[i].Status != dsn.S(4, 3, 0)) {
					t.Errorf("%v: %+v", fault, o[i])
				}
			}
			if site, _ := r.Site(); !site.IsZero() {
				t.Errorf("the destination is blamed: %v", site)
			}
		}
	}
}
