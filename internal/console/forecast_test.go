package console

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/testwait"
	"posthaste/internal/whatif"
)

// A forecast is on the page and in the API, now and with changes; more at a time is over sooner.
func TestForecast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.throttle()
	b := w.login("joe")
	status, text, _ := b.do("GET", "/whatif", nil)
	const link = `href="/whatif?o=smtp_destination_concurrency_limit%3D40"`
	if status != 200 || strings.Contains(text, "Half") || !strings.Contains(text, link) || !strings.Contains(text, "limit%3D10") {
		t.Errorf("the form: %d\n%s", status, text)
	}
	status, text, _ = b.do("GET", "/whatif?ask=yes&o=smtp_destination_concurrency_limit%3D40%0D%0A%0D%0Aminimal_backoff_time=100s%0D%0A", nil)
	for _, want := range []string{"1,010 messages are in the forecast, and not 3 on hold and 0 suspended. New mail is not.", "then with smtp_destination_concurrency_limit=40 minimal_backoff_time=100s.",
		"smtp_destination_concurrency_limit=40\nminimal_backoff_time=100s\n</textarea>", `<a href="/destination/smtp:slow.test">smtp:slow.test</a>`, "tenant slow.test", "no tenant", "nothing has been measured of it"} {
		if status != 200 || !strings.Contains(text, want) {
			t.Errorf("%d, there is no %q:\n%s", status, want, text)
		}
	}
	status, text, _ = b.do("GET", apiPath+"/whatif?o=smtp_destination_concurrency_limit=40&o=minimal_backoff_time=100s", nil)
	var r whatif.Report
	if err := json.Unmarshal([]byte(text), &r); err != nil || status != 200 || len(r.Lines) != 5 || *r.Lines[1].Now.Last < 1.7**r.Lines[1].Then.Last {
		t.Errorf("%d %v\n%s", status, err, text)
	}
	if status, text, _ = b.do("GET", apiPath+"/whatif", nil); status != 200 || strings.Contains(text, "then") || !strings.Contains(text, `"half"`) {
		t.Errorf("without changes: %d\n%s", status, text)
	}
	if status, _, _ = (&browser{w: w}).do("GET", apiPath+"/whatif", nil); status != http.StatusUnauthorized {
		t.Errorf("nobody: %d", status)
	}
}

// What cannot be forecast is refused with its reason, on the page beside what was entered. No value of another parameter, and
// nothing of a file, is told by that.
func TestForecastRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.throttle()
	b := w.login("joe")
	reply := func(r proto.BacklogReply) func(*ipc.Request) {
		return func(q *ipc.Request) { q.Reply(&r) }
	}
	for _, c := range []struct {
		change  string
		backlog func(*ipc.Request)
		status  int
		want    string
	}{
		{change: "smtp_destination_concurrency_limit=20", status: 400, want: "has no effect on the forecast"},
		{change: "myhostname=a.test", status: 400, want: "myhostname has no effect on the forecast"},
		{change: "no such thing", status: 400, want: "expected name = value"},
		{change: "smtp_destination_concurrency_limit=many", status: 400, want: "smtp_destination_concurrency_limit"},
		{change: "tenant_weights=$console_oidc_client_secret_file", status: 400, want: "no other parameter"},
		{change: "tenant_weights=a=1, /etc/passwd", status: 400, want: "no file"},
		{change: "defer_transports=texthash:/etc/passwd", status: 400, want: "no file"},
		{change: "minimal_backoff_time=" + strings.Repeat("1", 300), status: 400, want: "octets"},
		{change: strings.Repeat("minimal_backoff_time=7s\n", 21), status: 400, want: "at most 20 parameters"},
		{backlog: reply(proto.BacklogReply{Hold: 5}), status: 422, want: whatif.ErrEmpty.Error()},
		{backlog: reply(proto.BacklogReply{Rows: []proto.BacklogRow{{Count: 1}}}), status: 422, want: whatif.ErrUnknown.Error()},
		{backlog: func(r *ipc.Request) { r.Fail("not now") }, status: 503, want: "not now"},
	} {
		w.set(func() { w.backlog = c.backlog })
		query := "o=" + url.QueryEscape(c.change)
		status, text, _ := b.do("GET", apiPath+"/whatif?"+query, nil)
		if status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%.80q: %d, want %d %q\n%s", c.change, status, c.status, c.want, text)
		}
		status, text, _ = b.do("GET", "/whatif?ask=yes&"+query, nil)
		if status != c.status || !strings.Contains(text, `role="alert" id="refused">`) || !strings.Contains(text, c.want) || !strings.Contains(text, strings.TrimSpace(c.change)+"\n</textarea>") && c.change != "" {
			t.Errorf("%.80q on the page: %d\n%s", c.change, status, text)
		}
	}
	w.console.forecasts.broken = context.DeadlineExceeded
	if status, _, _ := b.do("GET", "/whatif?ask=yes", nil); status != 500 {
		t.Errorf("without settings: %d", status)
	}
}

// A user has one forecast at a time, and all have two. Who goes gives the place back.
func TestForecastsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := make(chan bool, 10)
	w.set(func() { w.backlog = func(*ipc.Request) { asked <- true } }) // never answered
	begin := func(b *browser) (leave func()) {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "GET", w.server.URL+apiPath+"/whatif", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.AddCookie(b.cookie)
		gone := make(chan bool)
		go func() {
			defer close(gone)
			if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		}()
		<-asked
		return func() { cancel(); <-gone }
	}
	ann, joe, eve := w.login("ann"), w.login("joe"), w.login("eve")
	leave := begin(ann)
	for _, path := range []string{"/whatif?ask=yes", apiPath + "/whatif"} {
		if status, text, h := ann.do("GET", path, nil); status != 429 || h.Get("Retry-After") == "" || !strings.Contains(text, errForecast.Error()) {
			t.Errorf("a second one: %d %v\n%s", status, h, text)
		}
	}
	leaveToo := begin(joe)
	if status, text, h := eve.do("GET", apiPath+"/whatif", nil); status != 429 || h.Get("Retry-After") == "" || !strings.Contains(text, errForecasts.Error()) {
		t.Errorf("a third user: %d %v\n%s", status, h, text)
	}
	leave()
	leaveToo()
	w.set(func() { w.backlog = nil })
	testwait.Until(t, "ann's place is free", func() bool {
		status, _, _ := ann.do("GET", apiPath+"/whatif", nil)
		return status == 200
	})
	testwait.Until(t, "eve finds a place", func() bool {
		status, _, _ := eve.do("GET", apiPath+"/whatif", nil)
		return status == 200
	})
	f := w.console.forecasts
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.busy); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}
