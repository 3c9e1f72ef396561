package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"

	"posthaste/internal/sasl"
	"posthaste/internal/testpeers"
)

// A world of few messages that has something on every side: a tenant with a campaign, two sources, two next hops.
func newSided(t *testing.T) *trial {
	t.Helper()
	if err := buildAside("posthaste-console"); err != nil {
		t.Fatal(err)
	}
	users := ""
	for _, name := range []string{"ann", "eve"} {
		secret, err := sasl.NewSecret("secret of " + name)
		if err != nil {
			t.Fatal(err)
		}
		users += "{ " + name + " = " + strings.ReplaceAll(secret.String(), "$", "$$") + " } "
	}
	r := &trial{address: fmt.Sprintf("127.0.0.1:%d", freePort(t)), slow: freePort(t)}
	r.system = newSystem(t, options{unstarted: true, master: "console unix - - n 60 1 console\n", main: fmt.Sprintf(`
transport_maps = inline:{ {slow.test = smtp:[127.0.0.1]:%d} {quick.test = smtp:[127.0.0.1]:%d} }
tenant_header = X-Tenant
campaign_header = X-Campaign
tenant_header_clients = 127.0.0.0/8
egress_source_maps = inline:{ {one = address=127.0.0.2} {two = address=127.0.0.3} }
egress_pool_maps = inline:{ {shop = one=1} {rest = two=1} }
sender_dependent_egress_pool_maps = inline:{ {@shop.test = shop} }
default_egress_pool = rest
initial_destination_concurrency = 1
console_listen = %s
console_user_maps = inline:{ %s}
console_operators = ann
console_role_maps = inline:{ {eve = read} }
maillog_file_permissions = 0644
`, r.slow, freePort(t), r.address, users)})
	r.start()
	for i, m := range [][3]string{{"ann@shop.test", "joe1@slow.test", "X-Tenant: acme\nX-Campaign: spring\n"}, {"ann@shop.test", "joe2@slow.test", "X-Tenant: acme\nX-Campaign: spring\n"},
		{"ann@shop.test", "joe3@slow.test", "X-Tenant: acme\nX-Campaign: spring\n"}, {"ann@shop.test", "jane@quick.test", "X-Tenant: acme\n"}, {"bob@other.test", "jim@quick.test", ""}, {"bob@other.test", "jim@slow.test", ""}} {
		r.mustSend(m[0], []string{m[1]}, fmt.Sprintf("Message-ID: <m%d@from.test>\nSubject: letter %d\n%s\nbody %d\n", i, i, m[2], i))
		// All wait for the destination of their source: the first has found that nobody answers there.
		r.waitLog(`to=<` + regexp.QuoteMeta(m[1]) + `>,.*status=deferred`)
	}
	return r
}

// surf starts Chromium, and has somebody log in.
func (r *trial) surf(t *testing.T, user string) *hand {
	t.Helper()
	program := testpeers.Program(t, "chromium")
	dir, err := os.MkdirTemp("", "phb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	ctx, wait := chromedp.NewExecAllocator(ctx, append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WindowSize(1200, 900), chromedp.Env("TMPDIR="+dir))...)
	t.Cleanup(wait)
	ctx, closed := chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {}))
	t.Cleanup(closed)
	h := &hand{t: t, ctx: ctx}
	r.eventually("the console answers", func() bool {
		return chromedp.Do(ctx, chromedp.Navigate("http://"+r.address+"/login"), chromedp.WaitReady(chromedp.CSS("main"))) == nil
	})
	h.login(user)
	return h
}

func (h *hand) login(user string) {
	h.t.Helper()
	h.see("Log in")
	h.do(chromedp.SendKeys(chromedp.CSS("#user"), user), chromedp.SendKeys(chromedp.CSS("#password"), "secret of "+user), chromedp.Click(chromedp.CSS("main button")))
	h.see("What hurts")
}

// text is what can be read in the elements that a selector names, a line for each.
func (h *hand) text(selector string) []string {
	h.t.Helper()
	list, err := chromedp.Run(h.ctx, chromedp.Evaluate[[]string](fmt.Sprintf(`[...document.querySelectorAll(%q)].map(e => e.innerText)`, selector)))
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

// row is an expression for the row of the table that has a name at its head.
func row(name string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("table.heat tbody tr")].find(r => r.querySelector("th").innerText == %q)`, name)
}

// From whatever side the queue is looked at, one click on a number, that of all ages or of one age, leads to just the messages that
// were counted.
func TestConsoleSides(t *testing.T) {
	t.Parallel()
	r := newSided(t)
	h := r.surf(t, "ann")
	hub := fmt.Sprintf("smtp:[127.0.0.1]:%d", r.slow)
	for _, c := range []struct {
		side, row string
		n         int
		has       string // of each row of the list
	}{
		{"recipients, by domain", "slow.test", 4, "@slow.test"},
		{"recipients, by domain", "All", 6, ".test"},
		{"by the sender's domain", "shop.test", 4, "ann@shop.test"},
		{"by the next hop", hub, 4, "@slow.test"},
		{"by the transport", "smtp", 6, ".test"},
		{"by the tenant", "acme", 4, "ann@shop.test"},
		{"by the campaign", "acme/spring", 3, "joe"},
		{"by the source", "one", 4, "ann@shop.test"},
		{"by the source", "two", 2, "bob@other.test"},
	} {
		for _, column := range []int{0, 1} { // all ages, and up to five minutes
			h.click("nav a", "Queue")
			h.see("Counted are")
			h.click("label", c.side)
			h.click("form.choose button", "Show")
			h.see("A number leads to the messages.")
			cell := fmt.Sprintf(`%s?.querySelectorAll("td")[%d]?.querySelector("a")`, row(c.row), column)
			// The queue is counted again while somebody looks: an earlier count may not have all of them yet.
			h.until(fmt.Sprintf("%s?.innerText == '%d'", cell, c.n))
			h.do(chromedp.Evaluate[chromedp.Void](cell + ".click()"))
			h.see("Queue ID")
			h.until(fmt.Sprintf("document.querySelectorAll('#found tbody tr').length >= %d", c.n))
			for _, line := range h.text("#found tbody tr") {
				if !strings.Contains(line, c.has) {
					t.Errorf("%s, %s, column %d leads to %q", c.side, c.row, column, line)
				}
			}
			if lines := h.text("#found tbody tr"); len(lines) != c.n {
				t.Errorf("%s, %s, column %d: %d messages, and the number is %d:\n%s", c.side, c.row, column, len(lines), c.n, strings.Join(lines, "\n"))
			}
		}
	}
}

// What an operator looks for is found by each of its names, and who may read sees the header and has the file, with the mouse.
func TestConsoleFinds(t *testing.T) {
	t.Parallel()
	r := newSided(t)
	h := r.surf(t, "eve")
	find := func(what string, queued, traced int, words ...string) {
		t.Helper()
		h.click("nav a", "Search")
		h.see("Search queue and log")
		h.do(chromedp.SendKeys(chromedp.CSS("main input[name=q]"), what))
		h.click("main form button", "Search")
		h.see("In the log")
		h.until(fmt.Sprintf("document.querySelector('main input[name=q]').value == %q", what))
		if n := len(h.text("main > .wide tbody tr")); n != queued {
			t.Errorf("%s: %d messages are found in the queue, not %d", what, n, queued)
		}
		found := h.text("main > section.traced")
		if len(found) != traced {
			t.Errorf("%s: %d messages are found in the log, not %d", what, len(found), traced)
		}
		for _, text := range append(found, h.text("main > .wide tbody tr")...) {
			for _, word := range words {
				if !strings.Contains(text, word) {
					t.Errorf("%s: there is no %s in what is found: %s", what, word, text)
				}
			}
		}
	}
	find("joe1@slow.test", 1, 1, "joe1@slow.test")
	find("@slow.test", 4, 4, "@slow.test")
	find("ann@shop.test", 4, 4, "ann@shop.test")
	find("@other.test", 2, 2, "bob@other.test")
	find("<m3@from.test>", 0, 1, "jane@quick.test") // the queue has no index of Message-IDs
	find("127.0.0.1", 0, 6, "127.0.0.1")
	find("slow.test", 4, 4, "@slow.test")
	find("nobody@slow.test", 0, 0)

	find("joe2@slow.test", 1, 1, "joe2@slow.test")
	h.click("main > .wide tbody th a", "")
	h.see("What it says")
	id := strings.TrimPrefix(h.text("h1")[0], "Message ")
	h.do(chromedp.SendKeys(chromedp.CSS("input[name=reason]"), "ticket 4711"))
	h.click("main button", "Show the header")
	h.see("Subject: letter 1")
	h.see("by mta.test")
	if text := strings.Join(h.text("main"), ""); strings.Contains(text, "body 1") || !strings.Contains(text, "Message-ID: <m1@from.test>") {
		t.Errorf("the header:\n%s", text)
	}
	r.waitLog(`user=eve client=127\.0\.0\.1: read-header ` + id + `: ticket 4711`)

	files := t.TempDir()
	if _, err := chromedp.Call(h.ctx, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{Behavior: browser.SetDownloadBehaviorBehaviorAllow, DownloadPath: files}); err != nil {
		t.Fatal(err)
	}
	h.do(chromedp.Navigate("http://"+r.address+"/message/"+id), chromedp.SendKeys(chromedp.CSS("input[name=reason]"), "ticket 4712"))
	h.click("main button", "Download the message")
	file := filepath.Join(files, id+".eml")
	r.eventually("the message is a file", func() bool { _, err := os.Stat(file); return err == nil })
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.ReplaceAll(string(text), "\r\n", "\n"); !strings.HasPrefix(got, "Received: ") || !strings.Contains(got, "\nSubject: letter 1\n") || !strings.HasSuffix(got, "\n\nbody 1\n") {
		t.Errorf("the file:\n%s", got)
	}
	r.waitLog(`user=eve client=127\.0\.0\.1: read ` + id + `: ticket 4712`)
	if forms := h.text("form[action='/do/hold'], form[action='/do/delete']"); len(forms) != 0 {
		t.Errorf("who may only read is offered %q", forms)
	}
}
