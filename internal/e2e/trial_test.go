package e2e

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"posthaste/internal/sasl"
)

var trialQueue = flag.Int("trial.n", 3000, "messages in the queue of TestOperatorsTrial")

// throttler is a provider that has had enough: it answers every message with 421.
func throttler(t *testing.T) (port int) { return answerer(t, throttle) }

// answerer serves connections until the test ends, and then closes them.
func answerer(t *testing.T, serve func(net.Conn)) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { conn.Close() })
			wg.Go(func() { serve(conn) })
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

func throttle(conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(conn, "220 big.test\r\n")
	for in := bufio.NewScanner(conn); in.Scan(); {
		switch verb, _, _ := strings.Cut(strings.ToUpper(in.Text()), " "); verb {
		case "EHLO", "HELO":
			fmt.Fprint(conn, "250 big.test\r\n")
		case "QUIT":
			fmt.Fprint(conn, "221 2.0.0 bye\r\n")
			return
		default:
			fmt.Fprint(conn, "421 4.7.0 too many messages from you, slow down\r\n")
			return
		}
	}
}

// thinking is how long slowpoke takes for each message.
const thinking = 10 * time.Second

// slowpoke takes every message, one at a time and slowly.
func slowpoke(conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(conn, "220 slow.test\r\n")
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		verb, _, _ := strings.Cut(strings.ToUpper(strings.TrimSpace(line)), " ")
		reply := "250 2.0.0 ok\r\n"
		switch {
		case err != nil:
			return
		case verb == "DATA":
			fmt.Fprint(conn, "354 go on\r\n")
			for err == nil && line != ".\r\n" {
				line, err = in.ReadString('\n')
			}
			time.Sleep(thinking) // as a host that is busy
			conn.SetDeadline(time.Now().Add(patience))
		case verb == "QUIT":
			reply = "221 2.0.0 bye\r\n"
		}
		fmt.Fprint(conn, reply)
	}
}

// fillTrial fills the queue with mail for 300 domains: two fifths for a provider, some for a host that is down, some for one that is
// slow, a fifth of all from one campaign. That of the slow host is due, and a few of the provider's and of the dead host's; the others
// wait for hours.
func fillTrial(t *testing.T, s *system, n int) (campaign int) {
	t.Helper()
	fillQueue(t, s, n, "Subject: offers\r\n\r\nbuy\r\n", func(i int) deferredMail {
		domain, due := fmt.Sprintf("d%d.test", i%297), false
		switch {
		case i%5 < 2:
			domain, due = "big.test", i < 250
		case i%20 == 7:
			domain, due = "dead.test", i < 250
		case i%10 == 3:
			domain, due = "slow.test", true
		}
		m := deferredMail{sender: fmt.Sprintf("u%d@from%d.test", i, i%40), rcpt: fmt.Sprintf("r%d@%s", i, domain), host: "mx." + domain, age: time.Duration(i%14400) * time.Second, due: due}
		if i%5 == 4 || i%25 == 1 {
			m.sender = "news@shop.test"
			campaign++
		}
		return m
	})
	return campaign
}

// A trial is a mail system in trouble, and its console.
type trial struct {
	*system
	address  string
	slow     int // the port of slow.test
	campaign int // messages of news@shop.test
}

func newTrial(t *testing.T) *trial {
	t.Helper()
	if err := buildAside("posthaste-console"); err != nil {
		t.Fatal(err)
	}
	secret, err := sasl.NewSecret("secret of ann")
	if err != nil {
		t.Fatal(err)
	}
	r := &trial{address: fmt.Sprintf("127.0.0.1:%d", freePort(t)), slow: answerer(t, slowpoke)}
	r.system = newSystem(t, options{unstarted: true, master: "console unix - - n 60 1 console\n",
		main: "transport_maps = inline:{ {big.test = smtp:[127.0.0.1]:" + fmt.Sprint(throttler(t)) + "}, {dead.test = smtp:[127.0.0.1]:" + fmt.Sprint(freePort(t)) + "}, {slow.test = smtp:[127.0.0.1]:" + fmt.Sprint(r.slow) + "} }\n" +
			"console_listen = " + r.address + "\nconsole_user_maps = inline:{ { ann = " + strings.ReplaceAll(secret.String(), "$", "$$") + " } }\nconsole_operators = ann\nmaillog_file_permissions = 0644\n"})
	r.campaign = fillTrial(t, r.system, *trialQueue)
	r.start()
	r.waitLogN(`to=<r\d+@big\.test>,.*status=deferred .*421 4\.7\.0 too many messages`, 5)
	r.waitLogN(`to=<r\d+@dead\.test>,.*status=deferred .*Connection refused`, 1)
	r.waitLogN(`to=<r\d+@slow\.test>,.*status=sent`, 20)
	r.eventually("the console has counted the queue", func() bool {
		resp, err := http.Get("http://" + r.address + "/login")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return r
}

// An operator who knows nothing of what has happened finds out, by commands alone and with the mouse alone, what hurts and why, and
// where a message is, what would happen with another setting, and stops a campaign that should not have been sent: in the steps that docs/console.md has.
//
//	go test ./internal/e2e -run TestOperatorsTrial -trial.n 50000 -v
func TestOperatorsTrial(t *testing.T) {
	t.Parallel()
	t.Run("commands", func(t *testing.T) { newTrial(t).commands(t) })
	t.Run("mouse", func(t *testing.T) { newTrial(t).mouse(t) })
}

// commands are the steps by command, each of which says what it is for.
func (r *trial) commands(t *testing.T) {
	steps, began := 0, time.Now()
	step := func(want []string, args ...string) string {
		t.Helper()
		steps++
		out, status := r.tool(nil, args...)
		for _, pattern := range want {
			if status != 0 || !regexp.MustCompile(pattern).MatchString(out) {
				t.Errorf("posthaste %s: %d, there is no %s:\n%.3000s", strings.Join(args, " "), status, pattern, out)
			}
		}
		return out
	}
	answered := func(question string, most int) {
		t.Helper()
		t.Logf("%s: %d steps, %v", question, steps, time.Since(began).Round(10*time.Millisecond))
		if steps > most {
			t.Errorf("%s took %d steps, docs/console.md has %d", question, steps, most)
		}
		steps, began = 0, time.Now()
	}
	step([]string{`big\.test: .*answers 421 4\.7\.0 to 100 % of sessions`, `dead\.test: .*Connection refused`}, "top", "-1")
	answered("what hurts now, and why", 1)
	out := step([]string{`to <r\d+@big\.test>`, `421 4\.7\.0 too many messages`}, "trace", "--limit=1", "--to=@big.test")
	id, _, _ := strings.Cut(out, " ")
	step([]string{regexp.QuoteMeta(id), `421 4\.7\.0 too many messages`}, "explain", id)
	answered("where is this message", 2)
	step([]string{`then with smtp_destination_concurrency_limit=40\.`, fmt.Sprintf(`smtp:\[127\.0\.0\.1\]:%d +[0-9,]+ .*\|`, r.slow)}, "whatif", "-o", "smtp_destination_concurrency_limit=40")
	answered("what happens if more go there at a time", 1)
	step([]string{fmt.Sprintf(`%d messages?`, r.campaign)}, "queue", "hold", "--sender=news@shop.test", "--dry-run")
	step([]string{fmt.Sprintf(`%d messages?`, r.campaign)}, "queue", "hold", "--sender=news@shop.test")
	answered("a campaign is stopped", 2)
}

// A hand has a mouse, and logs in with the keyboard before the time is taken.
type hand struct {
	t      *testing.T
	ctx    context.Context
	clicks int
	began  time.Time
}

func (r *trial) mouse(t *testing.T) {
	h := r.surf(t, "ann")
	h.began = time.Now()

	h.see("answers 421 4.7.0 to 100 % of sessions")
	h.see("Connection refused")
	h.answered("what hurts now, and why", 0)
	h.click("ol.hurts a", "big.test")
	h.see("421 4.7.0 too many messages from you")
	h.click("main td a", "")
	h.see("Queue ID")
	h.click("tbody th a", "")
	h.see("Why it is in the queue")
	h.see("What the log says")
	h.answered("where is this message", 3)
	h.click("nav a", "What if")
	h.see("Parameters of the scheduler")
	h.click("main li a", "up to 40 deliveries at a time")
	h.see("then with smtp_destination_concurrency_limit=40.")
	h.see(fmt.Sprintf("smtp:[127.0.0.1]:%d", r.slow))
	h.answered("what happens if more go there at a time", 2)
	h.click("nav a", "Queue")
	h.see("Counted are")
	h.click("label", "by the sender's domain")
	h.click("form.choose button", "Show")
	h.see("Age by")
	h.click("tr:has(a[href*='shop.test']) td a", "")
	h.see("Queue ID")
	h.click("a[href*='sender=']", "Count all of them")
	h.see("of them")
	h.click("form[action='/do/all'] summary", "Hold all")
	h.click("details[open] button", "Hold all")
	h.see("Put the message on hold: ")
	h.answered("a campaign is held", 7)
	if out := r.mustTool("queue", "list", "--queue=hold", "--sender=news@shop.test"); counted(out) != r.campaign {
		t.Errorf("of %d messages %d are on hold", r.campaign, counted(out))
	}
}

func (h *hand) do(actions ...chromedp.Action[chromedp.Void]) {
	h.t.Helper()
	if err := chromedp.Do(h.ctx, actions...); err != nil {
		h.t.Fatal(err)
	}
}

// until waits until something is true on the page.
func (h *hand) until(expression string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.ctx, patience)
	defer cancel()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Poll[bool](expression, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(time.Second)))
		switch {
		case err == nil && ok:
			return
		case ctx.Err() != nil:
			text, _ := chromedp.Run(h.ctx, chromedp.Evaluate[string]("location.href + document.body.innerText"))
			h.t.Fatalf("%s: %v\n%s", expression, err, text)
		}
	}
}

func (h *hand) see(text string) {
	h.t.Helper()
	h.until(fmt.Sprintf("document.readyState == 'complete' && document.body.innerText.includes(%q)", text))
}

// click clicks on the first element that a selector and a text name, and that can be seen. A page that moves may have it replaced
// at any time: it is found and clicked on at once.
func (h *hand) click(selector, text string) {
	h.t.Helper()
	h.clicks++
	find := fmt.Sprintf(`[...document.querySelectorAll(%q)].find(e => e.innerText.includes(%q) && e.checkVisibility())`, selector, text)
	h.until("document.readyState == 'complete' && !!" + find)
	h.do(chromedp.Evaluate[chromedp.Void](find + ".click()"))
}

func (h *hand) answered(question string, most int) {
	h.t.Helper()
	h.t.Logf("%s: %d clicks, %v", question, h.clicks, time.Since(h.began).Round(10*time.Millisecond))
	if h.clicks > most {
		h.t.Errorf("%s took %d clicks, docs/console.md has %d", question, h.clicks, most)
	}
	h.clicks, h.began = 0, time.Now()
}
