package inject

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/apitoken"
	"posthaste/internal/proto"
	"posthaste/internal/suppress/suppressclient"
)

// A fakeKeeper is the suppression list, by list and address. Pages have two entries.
type fakeKeeper struct {
	mu      sync.Mutex
	entries map[string]proto.Suppression
	asked   []string // the scopes, or tenants, of all that was asked
	fails   bool
}

func (f *fakeKeeper) note(scope string) error {
	f.asked = append(f.asked, scope)
	if f.fails {
		return errors.New("suppress service: it is not running")
	}
	return nil
}

func (f *fakeKeeper) Page(_ context.Context, q *proto.SuppressPage) (r proto.SuppressPageReply, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []string
	for k := range f.entries {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys { // as if the service did not look for the tenant
		if e := f.entries[k]; k > q.After && (q.Address == "" || q.Address == e.Address) {
			if len(r.Entries) == 2 {
				r.Next = r.Entries[1].List + " " + r.Entries[1].Address
				break
			}
			r.Entries = append(r.Entries, e)
		}
	}
	return r, f.note(q.Tenant + "/")
}

func (f *fakeKeeper) Change(_ context.Context, q *proto.SuppressChange) (n uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range q.Entries {
		if e.Address == "full@x.test" {
			return 0, suppressclient.ErrFull
		}
		err = errors.Join(err, f.note(e.List))
		k := e.List + " " + e.Address
		old, there := f.entries[k]
		switch q.What {
		case proto.SuppressRemove:
			delete(f.entries, k)
		case proto.SuppressOffer:
			if there = old.Reason != "complaint" || e.Reason == "complaint"; there {
				f.entries[k] = e
			}
		default:
			err = errors.Join(err, fmt.Errorf("%q is not for tenants", q.What))
		}
		if there {
			n++
		}
	}
	return n, err
}

// suppressionsOf makes a request for the suppression list.
func (w *world) suppressionsOf(token, method, query, body string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequest(method, w.web.URL+"/v1/suppressions"+query, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(text))
}

// A tenant's token sees and changes the entries of that tenant. Nothing that it can ask for is another's, and what a recipient
// has asked for is not made less by what a tenant adds.
func TestSuppressionsOfTenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := &fakeKeeper{entries: map[string]proto.Suppression{}}
	for _, e := range []proto.Suppression{{List: "", Address: "all@x.test", Reason: "manual"}, {List: "news", Address: "news@x.test", Reason: "bounce"}, {List: "bank/", Address: "joe@x.test", Reason: "complaint", Time: 1795867200},
		{List: "shop/", Address: "joe@x.test", Reason: "complaint", Time: 1795867200}, {List: "shop/letter", Address: "jim@x.test", Reason: "unsubscribe", Time: 1795867200}, {List: "shop2/", Address: "joe@x.test", Reason: "bounce"}} {
		f.entries[e.List+" "+e.Address] = e
	}
	w.server.keeper = f
	shop := w.newToken(apitoken.Token{Name: "list", Tenant: "shop", Roles: []string{apitoken.Suppress}})
	mailer := w.newToken(apitoken.Token{Name: "mail", Tenant: "shop", Roles: []string{apitoken.Inject}, Senders: []string{"from.test"}})
	const add = `{"suppressions": [%s]}`
	for i, tt := range []struct {
		method, query, body string
		status              int
		want                string
	}{
		{"GET", "?list=letter", "", 200, `{"suppressions":[],"next":"`},
		{"GET", "?address=joe@x.test", "", 200, `{"address":"joe@x.test","reason":"complaint","since":"2026-11-28T12:00:00Z"}`},
		{"GET", "?tenant=bank", "", 400, "there is no such parameter"},
		{"GET", "?list=letter&list=x", "", 400, "it is there twice"},
		{"GET", "?list=../bank", "", 422, "it is no name of a list"},
		{"GET", "?after=%21", "", 400, "it is not of an answer"},
		{"POST", "", fmt.Sprintf(add, `{"address": "Ann@x.test", "list": "letter"}`), 200, `{"changed":1}`},
		{"POST", "", fmt.Sprintf(add, `{"address": "joe@x.test"}, {"address": "new@x.test", "reason": "moved", "until": "2126-01-01T00:00:00Z"}`), 200, `{"changed":1}`},
		{"POST", "", fmt.Sprintf(add, `{"address": "jim@x.test", "list": "letter", "reason": "complaint"}`), 200, `{"changed":1}`},
		{"POST", "", fmt.Sprintf(add, `{"address": "joe@x.test", "list": "bank/"}`), 422, "suppressions[0].list"},
		{"POST", "", fmt.Sprintf(add, `{"address": "joe@x.test", "tenant": "bank"}`), 400, "unknown field"},
		{"POST", "", fmt.Sprintf(add, `{"address": "joe"}`), 422, "suppressions[0].address"},
		{"POST", "", fmt.Sprintf(add, `{"address": "joe@x.test", "until": "2020-01-01T00:00:00Z"}`), 422, "it is over"},
		{"POST", "", fmt.Sprintf(add, `{"address": "joe@x.test", "reason": "a b"}`), 422, "it is no word"},
		{"POST", "", fmt.Sprintf(add, `{"address": "full@x.test"}`), 403, "more entries than the tenant may have"},
		{"POST", "", fmt.Sprintf(add, strings.Repeat(`{"address": "a@x.test"},`, 1000)+`{"address": "a@x.test"}`), 413, "more than 1000 entries"},
		{"POST", "", fmt.Sprintf(add, strings.Repeat(" ", maxSuppressionBody)), 413, "octets"},
		{"POST", "", `{"suppressions": []} x`, 400, "more behind"},
		{"POST", "?list=x", fmt.Sprintf(add, ""), 400, "query"},
		{"DELETE", "?address=new@x.test", "", 200, `{"changed":1}`},
		{"DELETE", "?address=new@x.test", "", 404, "it is not on the list"},
		{"DELETE", "?address=news@x.test", "", 404, "it is not on the list"},
		{"DELETE", "?address=joe@x.test&list=/", "", 422, "it is no name of a list"},
		{"DELETE", "", "", 422, "it is no mail address"},
		// What cannot be read names no other scope, and what the list cannot have is not tried again.
		{"DELETE", "?address=joe@x.test&list=%zz", "", 400, "the query is malformed"},
		{"DELETE", "?address=joe@x.test&list=a;b", "", 400, "the query is malformed"},
		{"GET", "?address=%zz", "", 400, "the query is malformed"},
		{"GET", "?address=joe", "", 422, "it is no mail address"},
		{"DELETE", "?address=a%20b@x.test", "", 422, "it is no mail address"},
		{"POST", "", fmt.Sprintf(add, `{"address": "\"a\u0009b\"@x.test"}`), 422, "suppressions[0].address"},
		// A local part that needs quotes has them here, and one that does not may.
		{"POST", "", fmt.Sprintf(add, `{"address": "\"john \\doe\"@x.test"}`), 200, `{"changed":1}`},
		{"GET", "?address=%22john%20doe%22@x.test", "", 200, `{"address":"\"john doe\"@x.test","reason":"manual",`},
		{"DELETE", "?address=%22john%20do%5Ce%22@x.test", "", 200, `{"changed":1}`},
		{"DELETE", "?address=%22joe@x.test", "", 422, "it is no mail address"},
	} {
		status, text := w.suppressionsOf(shop, tt.method, tt.query, tt.body)
		if status != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%d: %s %s: %d %s, expected %d %s", i, tt.method, tt.query, status, text, tt.status, tt.want)
		}
	}
	// All pages, and nothing of others.
	var all []string
	for query := ""; ; {
		_, text := w.suppressionsOf(shop, "GET", query, "")
		for _, a := range strings.Split(text, `"address":"`)[1:] {
			address, rest, _ := strings.Cut(a, `"`)
			if _, list, ok := strings.Cut(rest[:min(len(rest), 20)], `"list":"`); ok {
				address += " " + list[:6]
			}
			all = append(all, address)
		}
		_, next, more := strings.Cut(text, `"next":"`)
		if !more {
			break
		}
		query = "?after=" + strings.TrimSuffix(next, `"}`)
	}
	if !slices.Equal(all, []string{"joe@x.test", "Ann@x.test letter", "jim@x.test letter"}) {
		t.Errorf("%q", all)
	}
	for _, scope := range f.asked {
		if !strings.HasPrefix(scope, "shop/") {
			t.Errorf("%q was asked for", scope)
		}
	}
	if got := f.entries["bank/ joe@x.test"].Reason + f.entries["news news@x.test"].Reason + f.entries["shop/ joe@x.test"].Reason + f.entries["shop/letter jim@x.test"].Reason; got != "complaintbouncecomplaintcomplaint" {
		t.Errorf("%s", got)
	}
	// Each role for what it is.
	if status, text := w.suppressionsOf(mailer, "GET", "", ""); status != 403 {
		t.Errorf("who may hand in mail sees the list: %d %s", status, text)
	}
	w.token = shop
	if status, _, text := w.send(hello); status != 403 {
		t.Errorf("who has the list may hand in mail: %d %s", status, text)
	}
	if _, err := w.server.tokens.Add(apitoken.Token{Name: "none", Roles: []string{apitoken.Suppress}}); err == nil {
		t.Error("a token without a tenant has a list")
	}
	f.fails = true
	for _, method := range []string{"GET", "POST", "DELETE"} {
		query, body := "?address=a@x.test", ""
		if method == "POST" {
			query, body = "", fmt.Sprintf(add, `{"address": "a@x.test"}`)
		}
		if status, text := w.suppressionsOf(shop, method, query, body); status != 503 {
			t.Errorf("%s: %d %s", method, status, text)
		}
	}
}
