package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	protocol "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/overview"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/standing"
	"posthaste/internal/testpeers"
	"posthaste/internal/testwait"
)

// axeFile is where "make peers" puts axe-core, which examines pages for what keeps people with
// disabilities out.
const axeFile = "/var/cache/posthaste-peers/axe-core/axe.min.js"

// browserTime ends a test whose browser hangs. Nothing is measured by it.
const browserTime = 15 * time.Minute

// A tab is a page of a real browser that shows the console of a world.
type tab struct {
	t   *testing.T
	w   *world
	ctx context.Context

	mu     sync.Mutex
	faults []string // dialogs, exceptions, files that were not found, and violations of the policy
}

// startBrowser starts Chromium, for as long as the test runs.
func startBrowser(t *testing.T) context.Context {
	t.Helper()
	program := testpeers.Program(t, "chromium")
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WindowSize(1200, 900))
	dir, err := os.MkdirTemp("", "phb") // what it leaves behind; sockets in it want a short name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(context.Background(), browserTime)
	t.Cleanup(cancel)
	ctx, wait := chromedp.NewExecAllocator(ctx, append(options, chromedp.Env("TMPDIR="+dir))...)
	t.Cleanup(wait)
	ctx, closed := chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {})) // events that this version of the protocol does not know
	t.Cleanup(closed)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// open opens a tab with cookies of its own.
func open(t *testing.T, browser context.Context, w *world) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &tab{t: t, w: w, ctx: ctx}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Listen(ctx, b.event); err != nil {
		t.Fatal(err)
	}
	const violations = `window.violations = []; document.addEventListener("securitypolicyviolation", e => window.violations.push(e.violatedDirective + " " + e.blockedURI))`
	command(b, protocol.AddScriptToEvaluateOnNewDocument, protocol.AddScriptToEvaluateOnNewDocumentParams{Source: violations})
	return b
}

// event notes what should not happen.
func (b *tab) event(e any) {
	switch e := e.(type) {
	case *protocol.EventJavascriptDialogOpening:
		b.fault("a dialog: " + e.Message)
		go chromedp.Call(b.ctx, protocol.HandleJavaScriptDialog, protocol.HandleJavaScriptDialogParams{}) // an event must not wait for an answer
	case *runtime.EventExceptionThrown:
		b.fault("an exception: " + (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	case *log.EventEntryAdded:
		if e.Entry.Source == log.EntrySourceSecurity || e.Entry.Source == log.EntrySourceViolation {
			b.fault("a violation: " + e.Entry.Text)
		}
	case *network.EventLoadingFailed:
		if !e.Canceled && e.ErrorText != "net::ERR_ABORTED" { // a stream ends with its page
			b.fault("a file: " + e.ErrorText + " " + string(e.BlockedReason))
		}
	}
}

func (b *tab) fault(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, text)
}

// sound reports what went wrong in the browser since the last call.
func (b *tab) sound(where string) {
	b.t.Helper()
	for _, v := range value[[]string](b, `window.violations || []`) {
		b.fault("a violation: " + v)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		b.t.Errorf("%s: %s", where, f)
	}
	b.faults = nil
}

// command is one of the browser's protocol.
func command[P, R any](b *tab, c cdp.Command[P, R], params P) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, c, params); err != nil {
		b.t.Fatalf("%s: %v", c.Method, err)
	}
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatalf("%v\n%s", err, strings.Join(b.faults, "\n"))
	}
}

// value is what an expression comes to in the page.
func value[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%.200s: %v", expression, err)
	}
	return v
}

// to goes to a page.
func (b *tab) to(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.w.server.URL+path), chromedp.WaitReady(chromedp.CSS("main")))
}

// see waits until the page has a text in it.
func (b *tab) see(text string) {
	b.t.Helper()
	quoted, _ := json.Marshal(text)
	b.until(fmt.Sprintf("document.readyState == 'complete' && document.body.innerText.includes(%s)", quoted))
}

// until waits until an expression is true in the page, across pages.
func (b *tab) until(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 3*time.Minute)
	defer cancel()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Poll[bool](expression, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(time.Second)))
		switch {
		case err == nil && ok:
			return
		case ctx.Err() != nil:
			b.t.Fatalf("%s: %v\n%s", expression, err, value[string](b, "document.body ? document.body.innerText : ''"))
		}
	}
}

// login logs in with the mouse.
func (b *tab) login(user, password string) {
	b.t.Helper()
	b.to("/login")
	b.do(chromedp.SendKeys(chromedp.CSS("#user"), user), chromedp.SendKeys(chromedp.CSS("#password"), password), chromedp.Click(chromedp.CSS("main button")))
}

// press goes with the tabulator key to what matches a selector and has that text in it, sees that
// its focus is visible, and presses a key there.
func (b *tab) press(selector, text, key string) {
	b.t.Helper()
	quoted, _ := json.Marshal(text)
	there := fmt.Sprintf("document.activeElement.matches(%q) && document.activeElement.innerText.includes(%s)", selector, quoted)
	for range 100 {
		if b.do(chromedp.KeyEvent(kb.Tab)); value[bool](b, there) {
			if !value[bool](b, "getComputedStyle(document.activeElement).outlineStyle != 'none'") {
				b.t.Errorf("the focus on %s %q is not visible", selector, text)
			}
			b.do(chromedp.KeyEvent(key))
			return
		}
	}
	b.t.Fatalf("the keyboard does not reach %s %q:\n%s", selector, text, value[string](b, "document.body.innerHTML"))
}

// asked reports when the queue manager was asked for other changes since the last call: each wanted
// one is the words that it has in it.
func (b *tab) asked(want ...string) {
	b.t.Helper()
	_, changes := b.w.take()
	got := show(changes)
	if len(got) != len(want) {
		b.t.Errorf("asked for %q, want %q", got, want)
		return
	}
	for i := range got {
		for _, part := range strings.Fields(want[i]) {
			if !strings.Contains(got[i], part) {
				b.t.Errorf("asked for %q, want %q", got[i], want[i])
			}
		}
	}
}

// TestBrowser shows the console in a real browser. The subtests take turns: one browser is enough
// for a machine with two processors.
func TestBrowser(t *testing.T) {
	t.Parallel()
	browser := startBrowser(t)
	t.Run("story", func(t *testing.T) { playStory(t, open(t, browser, newWorld(t))) })
	if raceEnabled { // the rest takes ten times as long then, and is run again without the detector
		return
	}
	t.Run("provider", func(t *testing.T) { playProvider(t, browser) })
	t.Run("looking", func(t *testing.T) { playLookOn(t, open(t, browser, newWorld(t))) })
	t.Run("keyboard", func(t *testing.T) { playKeyboard(t, open(t, browser, newWorld(t))) })
	t.Run("hostile", func(t *testing.T) { playHostile(t, open(t, browser, newWorld(t))) })
	t.Run("narrow", func(t *testing.T) { playNarrow(t, open(t, browser, newWorld(t))) })
	t.Run("pictures", func(t *testing.T) { playPictures(t, open(t, browser, newWorld(t))) })
	t.Run("axe", func(t *testing.T) { playAxe(t, open(t, browser, newWorld(t))) })
}

const (
	throttled = "smtp to slow.test: 2 deliveries under way, 4308 wait; window 2 (at most 20), feedback +0.00 -0.83"
	// hurts is what the first page says of it.
	hurts = "slow.test: answers 421 4.7.0 to 83 % of sessions; window 2 of 20; 4,311 recipients wait, the oldest for 3 h."
)

// courseOf is how a destination has fared whose window went from one size to another.
func courseOf(now time.Time, from, to int) (list []proto.CourseMinute) {
	for i := range 60 {
		window, away := from, i%7/5
		if i > 30 {
			window, away = max(from-(i-30)*2, to), 17+i%3
		}
		list = append(list, proto.CourseMinute{At: now.Add(time.Duration(i-60) * time.Minute).Truncate(time.Minute), Window: window, Limit: 20, Busy: window, Todo: 20 * i, Positive: i * 3 % 100, Negative: min(away*4, 100),
			Sessions: 20, Away: away, Opened: 2 + away, Took: time.Duration(20*(700+15*(i%13))) * time.Millisecond})
	}
	return list
}

// takenBy is how a provider has taken mail from two sources, of which one is complained of too much.
func takenBy(now time.Time, provider string) *standing.Book {
	book := new(standing.Book)
	for source, counts := range map[string][]int{"mta1": {3000, 40, 12, 3, 2}, "mta2": {310, 104, 1, 0, 4}} {
		for k, n := range counts {
			for range n {
				book.Count(now, provider, source, standing.Kind(k))
			}
		}
	}
	return book
}

// throttle has slow.test answer most sessions with 421, and takes suspensions and holds seriously.
func (w *world) throttle() {
	w.set(func() {
		w.changes = true
		w.domain = "slow.test"
		w.entries = nil
		w.oldest = w.now.Add(-3*time.Hour - time.Minute)
		w.dests = []proto.DestInfo{{Transport: "smtp", Nexthop: "slow.test", State: "ready", Window: 2, Limit: 20, Busy: 2, Todo: 4308, Span: 15 * time.Minute, Sessions: 100, Replies: []proto.ReplyGroup{
			{Sessions: 50, Code: 421, Status: "4.7.0", Text: "too many connections from *", Example: "421 4.7.0 too many connections from 198.51.100.7 <b>now</b>", Last: w.now},
			{Sessions: 33, Code: 421, Status: "4.7.0", Text: "try again later", Example: "421 4.7.0 try again later", Last: w.now}, {Sessions: 17, Accepted: true, Last: w.now}},
			Course: courseOf(w.now, 20, 2), Securities: []proto.Security{{Text: "TLS 1.3 TLS_AES_128_GCM_SHA256, certificate verified, policy MTA-STS", Connections: 31, Last: w.now}}}}
		w.taken = takenBy(w.now, "bigmail")
		w.destination = []string{"slow.test: 4310 recipient(s) of 4310 message(s) deferred", "  " + throttled, "  83 message(s) were last told: 421 4.7.0 try again later"}
	})
	w.count()
}

// A provider throttles. The operator finds it, sees why, and acts, with the mouse; a page that is
// open shows the effect by itself.
func playStory(t *testing.T, b *tab) {
	b.w.throttle()
	b.w.console.machine.advice.Mistakes = nil
	b.login("ann", "wrong")
	b.see(errLogin.Error())
	b.login("ann", "secret of ann")
	b.see("What hurts")
	b.see(hurts)
	for _, text := range []string{"Providers, in the last 24 hours", "bigmail", "3,310", "1.8", "from mta2", "12.9", "free of", "segments,", "last written at", "The SMTP server has none.", "What posthaste check -v advises", "It finds no mistake."} {
		b.see(text)
	}
	b.do(chromedp.Click(chromedp.CSS("ol.hurts summary")))
	b.see(throttled)
	b.do(chromedp.Click(chromedp.CSS("ol.hurts a")))
	b.see("were last told: 421 4.7.0")
	b.see("What slow.test answered in the last 15 minutes (smtp)")
	b.see("421 4.7.0 too many connections from *")
	b.see("How slow.test has fared (smtp)")
	b.see("Window from ")
	b.see("certificate verified, policy MTA-STS")
	b.see("421 4.7.0 too many connections from 198.51.100.7 <b>now</b>")
	b.sound("the first pages")
	b.w.take()

	b.do(chromedp.Click(chromedp.CSS("form[action='/do/flush'] button")))
	b.see("2 messages for slow.test tried now")
	b.asked("*proto.Select destination=slow.test", "*proto.Select destination=slow.test")
	b.do(chromedp.SendKeys(chromedp.CSS("form[action='/do/suspend'] input[name=reason]"), "ticket <4711>"), chromedp.SendKeys(chromedp.CSS("form[action='/do/suspend'] input[name=for]"), "2h"), chromedp.Click(chromedp.CSS("form[action='/do/suspend'] button")))
	b.see("slow.test is suspended")
	b.see("ann (console)")
	b.see("ticket <4711>")
	b.asked("*proto.Override Target:slow.test ticket ann")

	other := open(t, b.ctx, b.w)
	other.login("joe", "secret of joe")
	other.see("What hurts")
	other.do(chromedp.Click(chromedp.CSS("ol.hurts summary")), chromedp.Evaluate[chromedp.Void](`document.activeElement.blur()`))
	b.w.count()
	other.see("ticket <4711>")
	other.see(throttled) // what was opened stays open
	b.do(chromedp.Click(chromedp.CSS("form[action='/do/resume'] button")))
	b.see("slow.test is resumed")
	b.asked("*proto.Override Target:slow.test ann")
	b.w.count()
	other.see("Nothing is suspended.")
	b.do(chromedp.SendKeys(chromedp.CSS("input[name=limit]"), "2"), chromedp.SendKeys(chromedp.CSS("form[action='/do/limit'] input[name=reason]"), "they ask for <less>"),
		chromedp.Click(chromedp.CSS("form[action='/do/limit'] button")))
	b.see("slow.test is limited to 2 at a time")
	b.see("they ask for <less>")
	b.asked("*proto.Override Of:limit Target:slow.test Most:2 Raises:false ann")
	b.w.count()
	other.see("they ask for <less>")
	b.do(chromedp.Click(chromedp.CSS("form[action='/do/unlimit'] button")))
	b.see("the limit of slow.test is lifted")
	b.asked("*proto.Override Of:limit Target:slow.test ann")
	b.w.count()
	other.see("Nothing is limited.")
	b.do(chromedp.SendKeys(chromedp.CSS("input[name=nexthop]"), "[relay2.test]:587"), chromedp.Click(chromedp.CSS("form[action='/do/divert'] button")))
	b.see("slow.test is diverted to [relay2.test]:587")
	b.asked("*proto.Override Of:diversion Target:slow.test Nexthop:[relay2.test]:587 ann")
	b.do(chromedp.Click(chromedp.CSS("form[action='/do/undivert'] button")))
	b.see("slow.test is no longer diverted")
	b.asked("*proto.Override Of:diversion Target:slow.test ann")
	other.do(chromedp.Click(chromedp.CSS("button.pause")))
	other.see("Move on")
	other.sound("the live page")

	b.to("/queue?queue=deferred")
	b.do(chromedp.Click(chromedp.CSS("input[value=transport]")), chromedp.Click(chromedp.CSS("main form.choose button")))
	b.see("Age by transport, in minutes")
	b.do(chromedp.Click(chromedp.CSS("input[value=nexthop]")), chromedp.Click(chromedp.CSS("main form.choose button")))
	b.see("smtp:[hub.test]:25")
	b.do(chromedp.Click(chromedp.CSS(`a[href*="hub.test"][href*="younger"]`)))
	b.see("waits-for=smtp:[hub.test]:25")
	b.sound("next hops")
	b.to("/queue?queue=deferred")
	b.do(chromedp.Click(chromedp.CSS(`tbody tr:nth-child(2) td:nth-child(5) a`)))
	b.see("Queue ID")
	b.do(chromedp.Click(chromedp.CSS("tbody th a")))
	b.see("Why it is in the queue")
	b.do(chromedp.Click(chromedp.CSS("form[action='/do/hold'] button")))
	b.see("Put the message on hold: " + queueID)
	b.do(chromedp.Click(chromedp.CSS("form[action='/do/release'] button")))
	b.see("Release the message from hold: " + queueID)
	b.asked("*proto.Command "+queueID, "*proto.Command "+queueID)

	b.to("/search")
	b.do(chromedp.SendKeys(chromedp.CSS("input[name=q]"), queueID), chromedp.Click(chromedp.CSS("main button")))
	b.see("In the log")
	b.see(queueID + " ")
	b.sound("messages")
	b.do(chromedp.Click(chromedp.CSS("nav a[href='/whatif']")))
	b.see("What if ...")
	b.do(chromedp.Click(chromedp.CSS("main a[href*='limit%3D40']")))
	b.see("then with smtp_destination_concurrency_limit=40.")
	b.see("With the changes")
	b.do(chromedp.SendKeys(chromedp.CSS("#changes"), "myhostname=a.test"), chromedp.Click(chromedp.CSS("main button")))
	b.see("myhostname has no effect on the forecast")
	b.asked()
	b.sound("forecasts")
	b.do(chromedp.Click(chromedp.CSS("form[action='/logout'] button")))
	b.see("Log in")
	b.sound("logging out")
}

// A provider on another site lets somebody in, who comes to the first page; then logs out, here and there.
func playProvider(t *testing.T, browser context.Context) {
	w, f := vouchedFor(t, func(o *providerOptions) { o.base = strings.Replace(o.base, "127.0.0.1", "localhost", 1) })
	w.throttle()
	b := open(t, browser, w)
	b.do(chromedp.Navigate(w.console.people.provider.base+"/"), chromedp.WaitReady(chromedp.CSS("main")))
	b.see("Log in with " + strings.TrimPrefix(f.server.URL, "http://"))
	b.do(chromedp.Click(chromedp.CSS("main p a")))
	b.see("What hurts")
	b.see("oidc/u1")
	b.sound("a provider")
	b.do(chromedp.Click(chromedp.CSS("form[action='/logout'] button")))
	b.see("You have logged out here.")
	b.sound("logging out of it")
}

// A list that has found nothing yet is shown at once, and goes on by itself until it has what there is, or somebody stops it.
func playLookOn(t *testing.T, b *tab) {
	asked := make(chan int, 100)
	goOn := make(chan bool)
	b.w.console.mta.patience.Store(int64(firstTime))
	defer b.w.console.mta.patience.Store(int64(testwait.Patience))
	b.w.set(func() {
		b.w.nodes = func(r *ipc.Request) bool {
			if r.Kind != proto.KindSelect {
				return false
			}
			q := faketest.Decode[proto.Select](t, r)
			asked <- q.Cursor
			if q.Cursor == 0 {
				time.Sleep(2 * firstTime) // a queue that takes its time
				r.Reply(&proto.SelectReply{Next: 7})
				return true
			}
			go func() {
				<-goOn
				r.Reply(&proto.SelectReply{IDs: []mail.QueueID{queueID}, Items: []proto.Item{{ID: queueID, Queue: "deferred", Arrival: time.Now(), Sender: "late@from.test"}}})
			}()
			return true
		}
	})
	b.login("ann", "secret of ann")
	b.see("The system")
	b.to("/messages?domain=a.test")
	b.see("There is no such message in the queue so far.")
	b.see("Looking on")
	if value[bool](b, "document.querySelector('#next > a').checkVisibility()") {
		t.Error("the reader is asked to look on while the page does")
	}
	close(goOn)
	b.see("late@from.test")
	b.until("!document.body.innerText.includes('Looking on') && !document.body.innerText.includes('so far')")
	if rows := value[int](b, "document.querySelectorAll('#found tbody tr').length"); rows != 1 {
		t.Errorf("%d messages are shown", rows)
	}
	if first, then := <-asked, <-asked; first != 0 || then != 7 || len(asked) != 0 {
		t.Errorf("the queue manager was asked from %d and %d on, and %d times besides", first, then, len(asked))
	}
	b.sound("looking on")
}

// What the mouse can do, the keyboard alone can.
func playKeyboard(t *testing.T, b *tab) {
	b.w.throttle()
	b.to("/login")
	b.do(chromedp.KeyEvent("ann"), chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent("secret of ann"+kb.Enter)) // the name has the focus
	b.see("What hurts")
	b.press(".skip", "To the content", kb.Enter)
	b.press("ol.hurts a", "slow.test", kb.Enter)
	b.see("were last told: 421 4.7.0")
	b.w.take()
	b.press("form[action='/do/flush'] button", "Try its mail now", kb.Enter)
	b.see("2 messages for slow.test tried now")
	b.w.take()
	b.press("input[name=reason]", "", "by keyboard"+kb.Enter)
	b.see("slow.test is suspended")
	b.asked("*proto.Override Target:slow.test keyboard")
	b.press("form[action='/do/resume'] button", "Resume", " ")
	b.see("slow.test is resumed")
	b.press("nav a", "Search", kb.Enter)
	b.see("Search queue and log")
	b.press("input[name=q]", "", queueID+kb.Enter)
	b.see("In the log")
	b.press(".traced a", queueID, kb.Enter)
	b.see("Why it is in the queue")
	b.w.take()
	b.press("form[action='/do/hold'] button", "Hold", kb.Enter)
	b.see("Put the message on hold")
	b.press("form[action='/do/delete'] summary", "Delete", kb.Enter)
	b.press("form[action='/do/delete'] button", "Delete", kb.Enter)
	b.see("Delete the message, without a word to anybody: " + queueID)
	b.asked("*proto.Command "+queueID, "*proto.Command "+queueID)
	b.press("nav a", "What if", kb.Enter)
	b.see("What if ...")
	b.press("#changes", "", "smtp_destination_concurrency_limit=30")
	b.press("main button", "Forecast", kb.Enter)
	b.see("then with smtp_destination_concurrency_limit=30.")
	b.sound("keys")
}

// Whatever strangers have put into names and replies is text: first it meets the policy, and
// nothing violates that, then it meets nothing, and still nothing runs. The page that is sent anew
// goes another way, and is looked at as well.
func playHostile(t *testing.T, b *tab) {
	b.w.count()
	b.login("ann", "secret of ann")
	b.see("What hurts")
	for _, bypass := range []bool{false, true} {
		command(b, protocol.SetBypassCSP, protocol.SetBypassCSPParams{Enabled: bypass})
		for _, p := range append(slices.Clone(pages), hostilePage) {
			if p == "/nosuch" { // it has no form
				continue
			}
			b.to(p)
			if live := value[bool](b, `!!document.querySelector("[data-live]")`); live {
				b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector("[data-live]").append(Object.assign(document.createElement("i"), {id: "old"}))`))
				s := *b.w.console.live.latest()
				s.At = s.At.Add(time.Second)
				b.w.console.live.publish(&s, overview.Glance(&s))
				b.until(`!document.getElementById("old")`)
			}
			b.sound(p)
			found := value[string](b, `[document.scripts.length, document.images.length, document.querySelectorAll("main script, main style, main iframe").length].join()`)
			if found != "1,0,0" {
				t.Errorf("%s: scripts, images and others: %s", p, found)
			}
		}
	}
	playHostileHeader(t, b)
	b.to("/message/" + queueID)
	b.see(`<script>alert(1)</script><img src=x onerror=alert(2)>\u202e\u001b[2J`)
}

// playHostileHeader reads the header of a message, which is code, with nothing but escaping between.
func playHostileHeader(t *testing.T, b *tab) {
	w, id := withMail(t, "Subject: "+evil+"\r\nX-Code: <script>document.title = 'run'</script>\r\n\r\nbody\r\n")
	w.count()
	r := open(t, b.ctx, w)
	command(r, protocol.SetBypassCSP, protocol.SetBypassCSPParams{Enabled: true})
	r.login("eve", "secret of eve")
	r.see("What hurts")
	r.to("/message/" + id)
	r.do(chromedp.SendKeys(chromedp.CSS("form[action='/do/content'] input[name=reason]"), "ticket"), chromedp.Click(chromedp.CSS("form[action='/do/content'] button")))
	r.see("X-Code: <script>document.title = 'run'</script>")
	if title := value[string](r, "document.title"); !strings.HasPrefix(title, "Header of ") {
		t.Errorf("the title is %q", title)
	}
	r.sound("a header")
}

// hostilePage is about a destination that is code.
var hostilePage = "/destination/" + url.PathEscape("<img/src=x/onerror=alert(3)>.test")

// seeable are the pages that an operator sees, with something on each.
func seeable(b *tab) []string {
	b.w.throttle()
	b.w.set(func() {
		b.w.entries = append(b.w.entries, proto.OverrideEntry{Of: "suspension", Target: "other.test", By: "joe", Reason: "moves", Since: b.w.now},
			proto.OverrideEntry{Of: "limit", Target: "smtp:[hub.example.test]:10025", Most: 50, Raises: true, By: "joe", Reason: "after the outage", Since: b.w.now},
			proto.OverrideEntry{Of: "diversion", Target: "nexthop=[relay1.example.test]", Nexthop: "smtp:[relay2.example.test]:587", By: "joe", Reason: "it is down", Since: b.w.now})
	})
	b.w.sampled()
	b.login("ann", "secret of ann")
	b.see("What hurts")
	return []string{"/", "/queue", "/queue?side=nexthop", "/queue?side=tenant", "/queue?side=campaign", "/queue?side=source", "/queue?queue=hold&queue=deferred", "/messages?queue=deferred", "/messages?counted=yes&queue=deferred", "/message/" + queueID, "/destination/slow.test", "/destination/other.test",
		"/search", "/search?q=" + queueID, "/search?reply=450", "/suspended", "/whatif", "/whatif?o=smtp_destination_concurrency_limit%3D50", "/whatif?o=smtp_destination_concurrency_limit%3D20", "/message/4jWmL10SyZz1SCBY", hostilePage}
}

// On a telephone nothing has to be moved sideways but tables that say so.
func playNarrow(t *testing.T, b *tab) {
	list := seeable(b)
	b.do(chromedp.EmulateViewport(320, 640))
	for _, p := range append(list, "/login") {
		b.to(p)
		if wide := value[int](b, "document.documentElement.scrollWidth"); wide > 320 {
			t.Errorf("%s: it is %d points wide, of 320: %s", p, wide, value[string](b, `[...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().right > 321 && !e.closest(".wide")).slice(0, 3).map(e => e.outerHTML.slice(0, 200)).join("\n")`))
		}
	}
}

// examine runs axe-core, and says what it has found, with up to three places.
const examine = `axe.run({%sresultTypes: ["violations"]}).then(r => r.violations.filter(v => v.impact == "serious" || v.impact == "critical").map(v =>
	v.id + ": " + v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + " (" + n.failureSummary.replaceAll("\n", " ") + ")").join("; ")))`

// axe-core finds nothing serious, in light and in dark.
func playAxe(t *testing.T, b *tab) {
	axe, err := os.ReadFile(axeFile)
	if err != nil {
		testpeers.Missing(t, "axe-core ("+axeFile+")")
	}
	list := seeable(b)
	for scheme, rules := range map[string]string{"light": "", "dark": `runOnly: ["color-contrast"], `} { // only colours differ
		command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		for _, p := range append(slices.Clone(list), "/login") {
			b.to(p)
			b.do(chromedp.Evaluate[chromedp.Void](string(axe)))
			for _, f := range value[[]string](b, fmt.Sprintf(examine, rules)) {
				t.Errorf("%s, %s: %s", p, scheme, f)
			}
		}
	}
}
