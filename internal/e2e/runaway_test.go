package e2e

import (
	"bufio"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// A gated server takes messages, and answers one each time that the test lets it.
type gated struct {
	l     net.Listener
	begun chan string   // the subject of each message that has come
	let   chan struct{} // one value lets one message be accepted
	over  chan struct{} // closed when the test ends: all may go
	wg    sync.WaitGroup
}

func newGated(t *testing.T) *gated {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gated{l: l, begun: make(chan string, 1000), let: make(chan struct{}), over: make(chan struct{})}
	g.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.wg.Go(func() { g.serve(c) })
		}
	})
	t.Cleanup(func() { close(g.over); l.Close(); g.wg.Wait() })
	return g
}

var subjectField = regexp.MustCompile(`(?m)^Subject: (.*?)\r?$`)

func (g *gated) serve(c net.Conn) {
	defer c.Close()
	fmt.Fprint(c, "220 gated.test ESMTP\r\n")
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch strings.ToUpper(line[:min(4, len(line))]) {
		case "DATA":
			fmt.Fprint(c, "354 go\r\n")
			text, err := readData(r)
			if err != nil {
				return
			}
			if m := subjectField.FindStringSubmatch(text); m != nil {
				select {
				case g.begun <- m[1]:
				case <-g.over:
				}
			}
			select {
			case <-g.let:
			case <-g.over:
			}
			fmt.Fprint(c, "250 2.0.0 Ok\r\n")
		case "QUIT":
			fmt.Fprint(c, "221 2.0.0 Bye\r\n")
			return
		default:
			fmt.Fprint(c, "250 2.0.0 Ok\r\n")
		}
	}
}

// TestRunawayCampaign is the story of docs/sending-reference.md: an application sends a campaign to twenty thousand by mistake, to
// a provider that takes four at a time, and somebody wants a password reset. One of another tenant, and one of the same
// tenant, begin after a few deliveries; then the campaign is stopped, and nothing else is.
func TestRunawayCampaign(t *testing.T) {
	t.Parallel()
	provider := newGated(t)
	s := newSystem(t, options{main: fmt.Sprintf("relayhost = [127.0.0.1]:%d\n", provider.l.Addr().(*net.TCPAddr).Port) + `
tenant_header = X-Tenant
campaign_header = X-Campaign
tenant_header_clients = 127.0.0.1
smtp_destination_concurrency_limit = 4
initial_destination_concurrency = 4
smtp_destination_recipient_limit = 5
smtpd_recipient_limit = 5000
smtp_data_done_timeout = 3600s
smtp_connection_cache_on_demand = no
`})
	send := func(from, head string, to []string, subject string) {
		t.Helper()
		if err := s.send(from, to, head+"Subject: "+subject+"\n\ntext\n"); err != nil {
			t.Fatal(err)
		}
	}
	const messages, each = 20, 1000
	var to []string
	for i := range each {
		to = append(to, fmt.Sprintf("u%d@big.test", i))
	}
	for range messages {
		send("news@from.test", "X-Tenant: news\nX-Campaign: spring\n", to, "offer")
	}
	s.waitLogN("nrcpt=1000 \\(queue active\\)", messages)
	for range 4 {
		<-provider.begun
	}
	// It is well on its way.
	for range 20 {
		provider.let <- struct{}{}
		<-provider.begun
	}
	send("shop@from.test", "X-Tenant: shop\n", []string{"ann@big.test"}, "reset of shop")
	send("reset@from.test", "X-Tenant: news\n", []string{"bob@big.test"}, "reset of news")
	for _, from := range []string{"shop", "reset"} {
		s.waitLog(`qmgr.*from=<` + from + `@from\.test>.*\(queue active\)`)
	}
	// Active is logged before the scheduler knows where it goes: when the explanation names the destination it does.
	s.eventually("both wait for their turns", func() bool {
		out, _ := s.tool(nil, "explain", "tenant=shop")
		return strings.Contains(out, "1 message(s) in memory, 1 of them in the active queue")
	})
	at := map[string]int{}
	for n := 1; len(at) < 2; n++ {
		if n > 40 {
			t.Fatalf("after %d deliveries of the campaign: %v", n, at)
		}
		provider.let <- struct{}{}
		if subject := <-provider.begun; subject != "offer" {
			at[subject] = n
		}
	}
	t.Logf("the resets were delivery number %v after they came", at)
	// What is at the agents already has begun before: bounds of docs/scheduler.md, and of preemption.
	if at["reset of shop"] > 6 || at["reset of news"] > 12 {
		t.Errorf("the resets were delivery number %v", at)
	}
	run := func(args ...string) string {
		t.Helper()
		out, status := s.tool(nil, args...)
		if status != 0 {
			t.Fatalf("%q: %d: %s", args, status, out)
		}
		return out
	}
	run("suspend", "--campaign=news/spring", "--reason", "wrong prices")
	send("reset@from.test", "X-Tenant: news\n", []string{"eve@big.test"}, "second reset of news")
	// The four that are under way end; nothing of the campaign begins any more.
	for range 4 {
		provider.let <- struct{}{}
	}
	if subject := <-provider.begun; subject != "second reset of news" {
		t.Errorf("%s began", subject)
	}
	provider.let <- struct{}{}
	s.waitLog(`to=<eve@big\.test>.*status=sent`)
	if out := run("explain", "tenant=news"); !strings.Contains(out, "campaign news/spring is suspended by ") {
		t.Errorf("%s", out)
	}
	run("queue", "delete", "--campaign=news/spring")
	s.eventually("the queue is empty", func() bool {
		out, _ := s.tool(nil, "explain", "tenant=news")
		return strings.Contains(out, "no mail in memory")
	})
	select {
	case subject := <-provider.begun:
		t.Errorf("%s began", subject)
	default:
	}
}
