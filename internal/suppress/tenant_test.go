package suppress

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/maillog"
	"posthaste/internal/metrics"
	"posthaste/internal/proto"
	"posthaste/internal/standing"
	"posthaste/internal/suppress/suppressclient"
)

// What a tenant's mail leads to holds for that tenant: for all of its lists, or for the one that a recipient has left. What
// operators have holds for whom they have it.
func TestTenants(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what, scope string
		home        string // where the entry is
		holds       string // of the scopes below
	}{
		{proto.ToldBounce, "shop/", "shop/", "shop/ shop/news"},
		{proto.ToldBounce, "shop/news", "shop/", "shop/ shop/news"},
		{proto.ToldComplaint, "shop/news", "shop/", "shop/ shop/news"},
		{proto.ToldUnsubscribed, "shop/news", "shop/news", "shop/news"},
		{proto.ToldUnsubscribed, "shop/", "shop/", "shop/ shop/news"},
		{proto.ToldUnsubscribed, "news", "news", "shop/news bank/news news"},
		{"by hand", "", "", "shop/ shop/news bank/ bank/news news shop"},
		{"by hand", "news", "news", "shop/news bank/news news"},
	} {
		w := start(t, t.TempDir(), "")
		if tt.what == "by hand" {
			w.change(proto.SuppressAdd, proto.Suppression{List: tt.scope, Address: "joe@example.net", Reason: "manual"})
		} else if w.tell(tt.what, tt.scope, "Joe@example.net", "InvalidRecipient", "") == "" {
			t.Errorf("%+v: nothing came of it", tt)
		}
		var holds []string
		for _, scope := range []string{"shop/", "shop/news", "bank/", "bank/news", "news", "shop"} {
			if w.suppressed(scope, "joe@example.net") != "-" {
				holds = append(holds, scope)
			}
		}
		if got := strings.Join(holds, " "); got != tt.holds {
			t.Errorf("%+v: it holds for %s", tt, got)
		}
		if all := w.all(); len(all) != 1 || !strings.HasPrefix(all[0], tt.home+" ") {
			t.Errorf("%+v: %q", tt, all)
		}
		w.stop()
	}
}

// A page of a tenant has nothing of another one, whatever is asked for.
func TestTenantPage(t *testing.T) {
	t.Parallel()
	w := start(t, t.TempDir(), "")
	for _, list := range []string{"", "a", "a/", "a/b", "a.b/", "b", "b/", "a-/"} {
		w.change(proto.SuppressAdd, proto.Suppression{List: list, Address: "joe@example.net", Reason: "manual"})
	}
	for _, q := range []proto.SuppressPage{{}, {All: true}, {List: "b"}, {After: "A"}, {Address: "Joe@example.net"}, {All: true, Address: "joe@example.net"}} {
		q.Tenant = "a"
		p, err := w.Page(t.Context(), &q)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range p.Entries {
			got = append(got, e.List)
		}
		if !slices.Equal(got, []string{"a/", "a/b"}) {
			t.Errorf("%+v: %q", q, got)
		}
	}
	for _, bad := range []string{"a/", "/", "a\x00", strings.Repeat("a", 65)} {
		if _, err := w.Page(t.Context(), &proto.SuppressPage{Tenant: bad}); err == nil {
			t.Errorf("%q was taken for a tenant", bad)
		}
	}
}

// The reason that counts most is kept, and nothing ends sooner than it would have.
func TestReasons(t *testing.T) {
	t.Parallel()
	const month = 30 * 24 * time.Hour
	for _, tt := range []struct {
		first  proto.Suppression
		until  time.Duration // of the first; 0: for ever
		told   string
		reason string
		ends   bool
	}{
		{proto.Suppression{Reason: "import"}, 0, proto.ToldComplaint, "complaint", false},
		{proto.Suppression{Reason: "import"}, 0, proto.ToldUnsubscribed, "unsubscribe", false},
		{proto.Suppression{Reason: "import"}, month, proto.ToldUnsubscribed, "unsubscribe", false},
		{proto.Suppression{Reason: "import"}, 0, proto.ToldBounce, "import", false},
		{proto.Suppression{Reason: "bounce"}, month, proto.ToldBounce, "bounce", true},
		{proto.Suppression{Reason: "complaint"}, month, proto.ToldUnsubscribed, "complaint", false},
		{proto.Suppression{Reason: "complaint"}, month, proto.ToldBounce, "complaint", true},
		{proto.Suppression{Reason: "unsubscribe"}, month, proto.ToldComplaint, "complaint", false},
		{proto.Suppression{Reason: "unsubscribe"}, 0, proto.ToldBounce, "unsubscribe", false},
	} {
		w := start(t, t.TempDir(), "suppress_bounce_lifetime = 10d\n")
		tt.first.List, tt.first.Address, tt.first.Time = "shop/", "joe@example.net", w.now.Unix()
		if tt.until > 0 {
			tt.first.Until = w.now.Add(tt.until).Unix()
		}
		w.change(proto.SuppressAdd, tt.first)
		w.tell(tt.told, "shop/", "joe@example.net", "InvalidRecipient", "")
		if got := w.suppressed("shop/", "joe@example.net"); got != tt.reason {
			t.Errorf("%+v: %s", tt, got)
		}
		w.later(40 * 24 * time.Hour)
		if ends := w.suppressed("shop/", "joe@example.net") == "-"; ends != tt.ends {
			t.Errorf("%+v: it ends: %v", tt, ends)
		}
		w.stop()
	}
}

// What comes back is counted once, by tenant and by the recipient's domain, and so is who is on the list for it.
func TestFeedbackCounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := start(t, dir, "")
	w.s.metrics = metrics.New()
	for _, n := range []struct{ what, list, address, class string }{
		{proto.ToldBounce, "shop/letter", "joe@example.net", "InvalidRecipient"},
		{proto.ToldBounce, "shop/", "joe@example.net", "SpamBlock"},
		{proto.ToldUnsubscribed, "shop/", "jane@example.net", ""},
		{proto.ToldComplaint, "news", "jim@example.com", ""},
		{"anything", "news", "jim@example.com", ""},
	} {
		w.tell(n.what, n.list, n.address, n.class, "")
	}
	a, err := w.Ask(t.Context(), &proto.SuppressAsk{List: "shop/", Address: "ann@example.org", QueueID: "4jWn4F1YhnzSshsm4", Sender: "list@example.org",
		Provider: "bigmail", Source: "mta1"})
	if err != nil {
		t.Fatal(err)
	}
	// A failure that the agent sees has the provider with it, and what comes back that of its record.
	if _, err := w.Tell(t.Context(), &proto.SuppressTell{What: proto.ToldBounce, List: "shop/", Address: "tom@example.org", Class: "SpamBlock", Provider: "bigmail"}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second one is no news
		w.tell(proto.ToldComplaint, "shop/", "ann@example.org", "", a.Path)
	}
	got := map[string]float64{}
	for _, s := range w.s.metrics.Take().Samples {
		got[strings.TrimPrefix(s.Name, "posthaste_")+" "+strings.Join(s.Labels, " ")] = s.Value
	}
	want := map[string]float64{"feedback shop bounce": 3, "feedback shop unsubscribed": 1, "feedback shop complaint": 1, "feedback shop suppressed": 3,
		"feedback (none) complaint": 1, "feedback (none) suppressed": 1,
		"domain_feedback example.net bounce": 2, "domain_feedback example.net unsubscribed": 1, "domain_feedback example.net suppressed": 2,
		"domain_feedback example.com complaint": 1, "domain_feedback example.com suppressed": 1, "domain_feedback example.org complaint": 1, "domain_feedback example.org suppressed": 1, "domain_feedback example.org bounce": 1,
		"provider_feedback bigmail (none) bounce": 1, "provider_feedback bigmail mta1 complaint": 1, "provider_feedback bigmail mta1 suppressed": 1}
	if !maps.Equal(got, want) {
		t.Errorf("%v\nexpected %v", got, want)
	}
	// Of what came back after it was accepted the queue manager is told, by provider and source, also by the next process.
	counts := func() string {
		book, err := standing.Decode(w.s.back.encode())
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(book.Rows(w.s.now()))
	}
	b, err := w.Ask(t.Context(), &proto.SuppressAsk{List: "shop/", Address: "tim@example.org", QueueID: "4jWn4F1YhnzSshsm5", Sender: "list@example.org",
		Provider: "bigmail", Source: "mta1"})
	if err != nil {
		t.Fatal(err)
	}
	w.tell(proto.ToldBounce, "shop/", "tim@example.org", "SpamBlock", b.Path)
	const told = "[{{bigmail mta1} [0 0 0 1 1]}]"
	if got := counts(); got != told {
		t.Errorf("%s, expected %s", got, told)
	}
	w.stop()
	w = start(t, dir, "")
	if got := counts(); got != told {
		t.Errorf("after a restart: %s, expected %s", got, told)
	}
	w.stop()
	if err := os.WriteFile(filepath.Join(dir, returnsName), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	w = start(t, dir, "")
	if got := counts(); got != "[]" || !strings.Contains(w.log.String(), "counted anew by provider: returns: ") {
		t.Errorf("of a damaged file: %s\n%s", got, w.log)
	}
}

// What a tenant offers takes nothing away that a recipient has asked for, and otherwise replaces what is there.
func TestOffered(t *testing.T) {
	t.Parallel()
	const day, month = 24 * time.Hour, 30 * 24 * time.Hour
	for _, tt := range []struct {
		first        string
		until        time.Duration // 0: it does not end
		offered      string
		ending       time.Duration
		changed      uint64
		reason, then string // at once, and after ten days
	}{
		{"complaint", 0, "manual", 0, 0, "complaint", "complaint"},
		{"complaint", 0, "manual", day, 0, "complaint", "complaint"},
		{"complaint", 0, "unsubscribe", day, 0, "complaint", "complaint"},
		{"complaint", 0, "complaint", day, 1, "complaint", "complaint"},
		{"complaint", day, "manual", 0, 1, "complaint", "complaint"},
		{"complaint", day, "complaint", month, 1, "complaint", "complaint"},
		{"unsubscribe", 0, "complaint", day, 1, "complaint", "complaint"},
		{"unsubscribe", 0, "unsubscribe", day, 1, "unsubscribe", "unsubscribe"},
		{"unsubscribe", month, "bounce", day, 0, "unsubscribe", "unsubscribe"},
		{"bounce", 0, "manual", day, 1, "manual", "-"},
		{"bounce", month, "manual", 0, 1, "manual", "manual"},
	} {
		w := start(t, t.TempDir(), "")
		entry := func(reason string, d time.Duration) proto.Suppression {
			e := proto.Suppression{List: "shop/", Address: "joe@example.net", Reason: reason, Time: w.now.Unix()}
			if d > 0 {
				e.Until = w.now.Add(d).Unix()
			}
			return e
		}
		w.change(proto.SuppressAdd, entry(tt.first, tt.until))
		n, err := w.Change(t.Context(), &proto.SuppressChange{What: proto.SuppressOffer, Entries: []proto.Suppression{entry(tt.offered, tt.ending)}})
		if got := w.suppressed("shop/", "joe@example.net"); err != nil || n != tt.changed || got != tt.reason {
			t.Errorf("%+v: %s, %d, %v", tt, got, n, err)
		}
		w.later(10 * day)
		if got := w.suppressed("shop/", "joe@example.net"); got != tt.then {
			t.Errorf("%+v: after ten days %s", tt, got)
		}
		w.stop()
	}
}

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A tenant adds no more entries than it may have. What others add of it counts, and is not refused; other tenants, and entries
// that are there, are not concerned.
func TestTenantLimit(t *testing.T) {
	t.Parallel()
	w := start(t, t.TempDir(), "suppress_tenant_limit = 5\n")
	w.s.metrics = metrics.New()
	var log lines
	w.s.log = maillog.New("suppressd", maillog.NewWriter(&log, maillog.Classic))
	offer := func(tenant string, want uint64, wantErr error, names ...string) {
		t.Helper()
		var list []proto.Suppression
		for _, name := range names {
			list = append(list, proto.Suppression{List: tenant + "/", Address: name + "@x.test", Reason: "manual", Time: w.now.Unix()})
		}
		n, err := w.Change(t.Context(), &proto.SuppressChange{What: proto.SuppressOffer, Entries: list})
		if n != want || !errors.Is(err, wantErr) {
			t.Errorf("%s %v: %d, %v", tenant, names, n, err)
		}
	}
	at := func(list, name string) proto.Suppression {
		return proto.Suppression{List: list, Address: name + "@x.test", Reason: "bounce", Time: w.now.Unix()}
	}
	w.change(proto.SuppressAdd, at("shop/", "a"), at("shop/letter", "a"), at("shop2/", "a"), at("", "a"), at("shop", "a"))
	offer("shop", 3, nil, "b", "c", "d")
	offer("shop", 0, suppressclient.ErrFull, "e")
	offer("shop", 2, nil, "b", "c") // they are there
	offer("other", 1, nil, "a")
	if got := w.suppressed("shop/", "e@x.test"); got != "-" {
		t.Errorf("one too many is there: %s", got)
	}
	// Nothing of a request that does not fit is there.
	offer("other", 0, suppressclient.ErrFull, "1", "2", "3", "4", "5")
	offer("other", 4, nil, "1", "2", "3", "4")
	// What is removed makes room at once.
	w.change(proto.SuppressRemove, at("shop/", "b"), at("shop/", "none"))
	offer("shop", 0, suppressclient.ErrFull, "e", "f")
	offer("shop", 1, nil, "e")
	// What others add is not refused, and is found when the tenant seems to have room.
	w.change(proto.SuppressAdd, at("shop/", "g"), at("shop/", "h"))
	w.change(proto.SuppressRemove, at("shop/", "c"), at("shop/", "d"))
	offer("shop", 0, suppressclient.ErrFull, "i", "j", "k")
	w.later(countAgain)
	offer("shop", 0, suppressclient.ErrFull, "i", "j")
	// However much was refused, it leaves no room: not for less in the same minute, either.
	w.later(countAgain)
	offer("other", 0, suppressclient.ErrFull, "5", "6", "7", "8", "9")
	offer("other", 0, suppressclient.ErrFull, "5", "6", "7", "8")
	offer("other", 0, suppressclient.ErrFull, "5")
	// The log has it of each tenant, and not of each request.
	for tenant, want := range map[string]int{"shop": 1, "other": 1} {
		if n := strings.Count(log.String(), "tenant "+tenant+": "); n != want {
			t.Errorf("%d lines of %s: %s", n, tenant, log.String())
		}
	}
	w.later(sayEvery)
	offer("other", 0, suppressclient.ErrFull, "5")
	if n := strings.Count(log.String(), "tenant other: 1 entries are not added"); n != 1 {
		t.Errorf("%d lines: %s", n, log.String())
	}
	refused := map[string]float64{}
	for _, sm := range w.s.metrics.Take().Samples {
		if sm.Name == "posthaste_suppress_refused" {
			refused[sm.Labels[0]] = sm.Value
		}
	}
	if !maps.Equal(refused, map[string]float64{"shop": 1 + 2 + 3 + 2, "other": 5 + 5 + 4 + 1 + 1}) {
		t.Errorf("refused: %v", refused)
	}
	w.stop()
	// Without a limit there may be any number.
	w = start(t, t.TempDir(), "suppress_tenant_limit = 0\n")
	offer("shop", 6, nil, "a", "b", "c", "d", "e", "f")
}

// Of an address that an import has twice, what counts more is left, in whatever order they come.
func TestImportedTwice(t *testing.T) {
	t.Parallel()
	w := start(t, t.TempDir(), "")
	entry := func(address, reason string, until int64) proto.Suppression {
		return proto.Suppression{List: "shop/", Address: address, Reason: reason, Time: w.now.Unix(), Until: until}
	}
	soon := w.now.Add(time.Hour).Unix()
	w.change(proto.SuppressBegin)
	w.change(proto.SuppressStage, entry("a@x.test", "complaint", 0), entry("a@x.test", "import", soon), entry("b@x.test", "import", 0))
	w.change(proto.SuppressStage, entry("b@x.test", "complaint", soon))
	w.change(proto.SuppressEnd)
	w.later(2 * time.Hour)
	if got := w.suppressed("shop/", "a@x.test") + " " + w.suppressed("shop/", "b@x.test"); got != "complaint complaint" {
		t.Error(got)
	}
}

// However many lists other tenants have, a tenant finds where an address is on its own.
func TestManyLists(t *testing.T) {
	t.Parallel()
	w := start(t, t.TempDir(), "")
	var others []proto.Suppression
	for i := range proto.MaxSuppressions {
		others = append(others, proto.Suppression{List: fmt.Sprintf("bank/%d", i), Address: "joe@example.net", Reason: "manual"})
	}
	w.change(proto.SuppressAdd, others...)
	w.change(proto.SuppressAdd, proto.Suppression{List: "shop/letter", Address: "joe@example.net", Reason: "complaint"}, proto.Suppression{List: "shop2/", Address: "joe@example.net", Reason: "manual"})
	for tenant, want := range map[string]int{"shop": 1, "shop2": 1, "sho": 0, "bank": proto.MaxSuppressions} {
		page, err := w.Page(t.Context(), &proto.SuppressPage{Tenant: tenant, Address: "joe@example.net"})
		if err != nil || len(page.Entries) != want {
			t.Errorf("%s: %d entries, %v", tenant, len(page.Entries), err)
		}
	}
}
