package console

import (
	"bytes"
	"flag"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"posthaste/internal/history"
	"posthaste/internal/ipc"
	"posthaste/internal/pace"
	"posthaste/internal/proto"
	"posthaste/internal/statedir"
)

var pictures = flag.Bool("pictures", false, "write the pictures of docs/console.md")

// pictureDir is where the pictures of docs/console.md are.
const pictureDir = "../../docs/console"

// A provider is a destination of the story that the pictures tell.
type provider struct {
	domain string
	counts []int // recipients that wait, by age
	info   proto.DestInfo
	oldest time.Duration
}

// providers are those: one throttles, one is dead, one is well.
func providers(now time.Time) []provider {
	group := func(n, code int, status, text, example string) proto.ReplyGroup {
		return proto.ReplyGroup{Sessions: n, Code: code, Status: status, Text: text, Example: example, Accepted: text == "", Last: now.Add(-time.Duration(n) * time.Second)}
	}
	base := proto.DestInfo{Transport: "smtp", State: "ready", Limit: 20, Span: 15 * time.Minute}
	slow, dead, well := base, base, base
	slow.Nexthop, slow.Window, slow.Busy, slow.Todo, slow.Sessions = "slow.example", 2, 2, 640, 412
	slow.Replies = []proto.ReplyGroup{group(301, 421, "4.7.0", "too many connections from *", "421 4.7.0 too many connections from 198.51.100.7"),
		group(41, 421, "4.7.0", "try again in * seconds", "421 4.7.0 try again in 300 seconds"), group(62, 0, "", "", ""), group(8, 450, "4.2.1", "*: mailbox busy", "450 4.2.1 <ann@slow.example>: mailbox busy")}
	slow.Course, slow.Securities = courseOf(now, 20, 2), []proto.Security{{Text: "TLS 1.3 TLS_AES_128_GCM_SHA256, certificate verified, policy MTA-STS", Connections: 1204, Last: now.Add(-4 * time.Second)}}
	dead.Nexthop, dead.State, dead.Until, dead.Why, dead.Sessions = "dead.example", "dead", now.Add(4*time.Minute), "4.4.1 connect to mx.dead.example[192.0.2.9]:25: Connection timed out", 15
	dead.Replies = []proto.ReplyGroup{group(15, 0, "", "connect to *: Connection timed out", "connect to mx.dead.example[192.0.2.9]:25: Connection timed out")}
	well.Nexthop, well.Window, well.Busy, well.Todo, well.Sessions = "well.example", 20, 20, 310, 5210
	well.Replies = []proto.ReplyGroup{group(5210, 0, "", "", "")}
	return []provider{{"slow.example", []int{210, 330, 480, 770, 1200, 1320}, slow, 3 * time.Hour}, {"dead.example", []int{0, 0, 0, 12, 40, 96, 101}, dead, 5 * time.Hour},
		{"well.example", []int{330}, well, 40 * time.Second}, {"other.example", []int{3, 0, 1}, base, 12 * time.Minute}}
}

// tell has the world be that of the story.
func (w *world) tell() {
	list := providers(w.now)
	w.set(func() {
		w.changes = true
		w.entries = []proto.OverrideEntry{{Of: "limit", Target: "[hub.other.example]", Most: 2, By: "ann", Reason: "ticket 4711", Since: w.now.Add(-20 * time.Minute), Until: w.now.Add(100 * time.Minute)}}
		w.rows = nil
		w.taken = takenBy(w.now, "slowmail")
		for i, p := range list {
			w.rows = append(w.rows, proto.ShapeRow{Domain: p.domain, Queue: []string{"deferred", "deferred", "active", "deferred"}[i], Counts: p.counts},
				proto.ShapeRow{Domain: "smtp:" + p.domain, Queue: []string{"deferred", "deferred", "active", "deferred"}[i], Hops: true, Counts: p.counts},
				proto.ShapeRow{Domain: []string{"news.example.org", "example.org", "example.org", ""}[i], Queue: []string{"deferred", "deferred", "active", "deferred"}[i], Senders: true, Counts: p.counts})
		}
		w.backlog = func(r *ipc.Request) { r.Reply(backlogOf(list, w.now)) }
		w.explain = func(name string) *proto.ExplainReply {
			for _, p := range list {
				if p.domain == name {
					d := p.info
					lines := []string{name + ": messages", fmt.Sprintf("  %s to %s: %d deliveries under way, %d wait; window %d (at most %d), feedback +0.35 -0.00", d.Transport, d.Nexthop, d.Busy, d.Todo, d.Window, d.Limit)}
					return &proto.ExplainReply{Lines: lines, Dests: []proto.DestInfo{d}, Oldest: w.now.Add(-p.oldest)}
				}
			}
			return &proto.ExplainReply{Lines: []string{name}}
		}
		w.console.machine.advice = Advice{At: w.now.Add(-26 * time.Hour), Mistakes: []string{}, Unwise: []string{"main.cf:31: smtp_tls_key_file: /etc/ssl/private/relay.key can be read by everybody"}, Differences: []string{}}
	})
	dir, err := statedir.Open(w.console.mta.history)
	if err != nil {
		w.t.Fatal(err)
	}
	store, err := history.OpenWriter(dir, history.Limits{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer store.Close()
	w.console.live.before = map[string][]*history.Sample{"": {{At: time.Now().Add(-time.Minute), Totals: proto.Totals{Since: w.now.Add(-time.Hour), In: 1e6 - 187, Sent: 2e6 - 112, Deferred: 3e6 - 423, Bounced: 4e6 - 2}}}}
	begin := w.now.Add(-24 * time.Hour)
	totals := proto.Totals{Since: begin.Add(-time.Hour)}
	for i := range 24 * 12 { // a sample each five minutes is enough for a chart
		wave := int64(40 + (i*37)%23 + min(i, 288-i)/2)
		throttled := int64(max(0, i-250))
		totals.In, totals.Sent, totals.Deferred, totals.Bounced = totals.In+5*wave, totals.Sent+5*(wave-throttled/3), totals.Deferred+4*throttled+wave/8, totals.Bounced+wave/20
		s := &history.Sample{At: begin.Add(time.Duration(i) * 5 * time.Minute), Totals: totals, Tables: []history.Table{{Queue: "deferred",
			Rows: []history.Row{{Domain: "slow.example", Counts: history.Counts{1: 30 + wave + 110*throttled}}}}}}
		if err := store.Append(s); err != nil {
			w.t.Fatal(err)
		}
	}
	w.console.day.load(w.console.mta.history, w.now)
	w.count()
}

// backlogOf is the mail for providers, and how they take it: as they do in the story.
func backlogOf(list []provider, now time.Time) *proto.BacklogReply {
	reply := new(proto.BacklogReply)
	for _, p := range list {
		b := new(pace.Behaviour)
		for i := range 200 {
			d := pace.Delivery{Took: time.Duration(800+7*(i%90)) * time.Millisecond, Busy: 1 + i%p.info.Limit, Rcpts: 1}
			d.Away = p.info.State == "dead" || p.domain == "slow.example" && d.Busy > 2 && i%3 > 0
			b.Add(now, d)
		}
		d := proto.BacklogDest{Transport: "smtp", Queue: p.domain, Nexthop: p.domain, Window: p.info.Window, Behaviour: b.Append(nil)}
		if p.info.State == "dead" {
			d.State, d.Until = 2, now.Add(4*time.Minute)
		}
		reply.Dests = append(reply.Dests, d)
		for i, n := range p.counts {
			if n > 0 {
				age := 5 * time.Minute << i / 2
				reply.Rows = append(reply.Rows, proto.BacklogRow{Transport: "smtp", Queue: p.domain, Count: n, Rcpts: 1, Created: now.Add(-age), Deferred: p.domain != "well.example", Due: now.Add(age)})
			}
		}
	}
	return reply
}

// The pictures of the documents are of pages that say what the documents say. With -pictures they are taken anew.
func playPictures(t *testing.T, b *tab) {
	b.w.tell()
	b.login("ann", "secret of ann")
	b.see("slow.example: answers 421 4.7.0 to 83 % of sessions; window 2 of 20; 4,310 recipients wait, the oldest for 3 h.")
	b.do(chromedp.EmulateViewport(1100, 1300))
	for name, path := range map[string]string{"now": "/", "queue": "/queue", "destination": "/destination/slow.example", "whatif": "/whatif?o=smtp_destination_concurrency_limit%3D40"} {
		b.to(path)
		b.see("slow.example")
		if path == "/" { // places of files in a test say nothing
			b.do(chromedp.Evaluate[chromedp.Void](`for (const e of document.querySelectorAll("main dd")) e.textContent = e.textContent.replace(/\/tmp\/\S+\/mail.log/, "/var/log/mail.log").replace(/\/tmp\/\S+/, "/var/spool/posthaste")`))
		}
		data, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		shot, err := png.Decode(bytes.NewReader(data))
		if err != nil || shot.Bounds().Dx() < 1000 || shot.Bounds().Dy() < 1000 {
			t.Errorf("%s: %v", name, err)
		}
		file := filepath.Join(pictureDir, name+".png")
		if *pictures {
			if err := os.MkdirAll(pictureDir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		page, err := os.ReadFile("../../docs/console.md")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(file); err != nil || !strings.Contains(string(page), "(console/"+name+".png)") {
			t.Errorf("docs/console.md does not show %s: %v", file, err)
		}
	}
	b.sound("pictures")
}
