package inject

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"posthaste/internal/apitoken"
	"posthaste/internal/config"
	"posthaste/internal/proto"
	"posthaste/internal/suppress/suppressclient"
	"posthaste/internal/table"
)

type fakeSuppressor struct{}

func (fakeSuppressor) Ask(_ context.Context, q *proto.SuppressAsk) (proto.SuppressAnswer, error) {
	switch {
	case strings.HasPrefix(q.Address, "gone@"):
		return proto.SuppressAnswer{Suppressed: true, Entry: proto.Suppression{Reason: "bounce", Detail: "secret", Time: 1795867200}}, nil
	case strings.HasPrefix(q.Address, "unknown@"):
		return proto.SuppressAnswer{}, errors.New("suppress service: it is not running")
	}
	return proto.SuppressAnswer{}, nil
}

// listsOf are the suppression lists that mail is under by these settings.
func listsOf(t *testing.T, main string) *suppressclient.Lists {
	t.Helper()
	cfg, err := config.LoadString("compatibility_level = 3.6\n" + main)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := suppressclient.OpenLists(cfg, table.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lists.Close() })
	return lists
}

// Recipients on the suppression list are refused, each by itself, and the others get their mail, once with a key; mail of
// other senders is not asked for. Nobody's quota is used for mail that is not sent.
func TestSuppressed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lists := listsOf(t, "suppress_list_maps = inline:{ {news@from.test = news} {bad@from.test = a list} }\n")
	d := w.server.door
	d.lists, d.suppress = lists, fakeSuppressor{}
	w.token = w.newToken(apitoken.Token{Name: "quota", Roles: []string{apitoken.Inject}, Senders: []string{"from.test"}, Quota: 6})
	message := func(from, to, more string) string {
		return fmt.Sprintf(`{"from": "%s@from.test", "to": [%s], "text": "x"%s}`, from, to, more)
	}
	const both, gone = `"joe@to.test", "gone@to.test"`, `"gone@to.test"`
	for i, tt := range []struct {
		body    string
		key     string
		status  int
		queued  int // recipients
		refused string
	}{
		{message("ann", gone, ""), "", 200, 1, ""},
		{message("news", both, ""), "", 200, 1, "gone@to.test 422 on the suppression list since 2026-11-28: bounce"},
		{message("news", both, `, "individual": true`), "k", 200, 1, "gone@to.test 422 on the suppression list since 2026-11-28: bounce"},
		{message("news", both, `, "individual": true`), "k", 200, 1, "gone@to.test 422 on the suppression list since 2026-11-28: bounce"}, // replayed
		{message("news", gone, ""), "", 422, 0, "gone@to.test 422 on the suppression list since 2026-11-28: bounce"},
		{message("news", `"unknown@to.test"`, ""), "", 503, 0, "unknown@to.test 503 4.3.0 Error: the suppression list cannot be asked"},
		{message("bad", `"joe@to.test"`, ""), "", 503, 0, "joe@to.test 503 4.3.0 Error: the sender cannot be looked up"},
		{message("news", `"a@to.test", "b@to.test", "c@to.test"`, ""), "", 200, 3, ""},
		{message("news", `"d@to.test"`, ""), "", 429, 0, ""}, // the quota counts the six that were queued
	} {
		var header []string
		if tt.key != "" {
			header = []string{"Idempotency-Key", tt.key}
		}
		status, r, text := w.send(tt.body, header...)
		queued, refused := 0, ""
		for _, m := range r.Messages {
			queued += len(m.Recipients)
		}
		for _, x := range r.Refused {
			refused += fmt.Sprintf("%s %d %s", x.Recipient, x.Status, x.Detail)
		}
		if status != tt.status || queued != tt.queued || refused != tt.refused {
			t.Errorf("%d: %d, %s", i, status, text)
		}
	}
}

// A program that asks for a link of this system gets the field by which cleanup makes one, and is told when there can be none. What is
// asked of the suppression list is the list that is named.
func TestOurLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lists := listsOf(t, "suppress_tenants = shop\nsuppress_list_maps = inline:{ {news@from.test = news} }\n")
	w.server.door.lists = lists
	w.server.limits.unsubscribe = "X-Unsubscribe"
	shop := w.newToken(apitoken.Token{Name: "shop", Tenant: "shop", Roles: []string{apitoken.Inject}, Senders: []string{"from.test"}})
	bank := w.newToken(apitoken.Token{Name: "bank", Tenant: "bank", Roles: []string{apitoken.Inject}, Senders: []string{"from.test"}})
	for i, tt := range []struct {
		token, sender, to, unsub string
		field, asked             string // of the message; of the suppress service
		refused                  string
	}{
		{shop, "ann", `"joe@to.test"`, `{"one_click": true}`, "all", "shop/ joe@to.test", ""},
		{shop, "ann", `"joe@to.test"`, `{"list": "offers"}`, "offers", "shop/offers joe@to.test", ""},
		{shop, "news", `"joe@to.test"`, `{"one_click": true}`, "all", "shop/news joe@to.test", ""},
		{shop, "news", `"joe@to.test"`, `{"list": "offers", "one_click": true}`, "offers", "shop/offers joe@to.test", ""},
		{bank, "news", `"joe@to.test"`, `{"list": "news"}`, "news", "news joe@to.test", ""},
		{bank, "news", `"joe@to.test"`, `{"list": "offers"}`, "", "", "this sender's mail is of another list"},
		{bank, "ann", `"joe@to.test"`, `{"list": "offers"}`, "", "", "is under no suppression list"},
		{shop, "ann", `"joe@to.test", "jane@to.test"`, `{"one_click": true}`, "", "", "a link is for one recipient"},
		{shop, "ann", `"joe@to.test"`, `{"list": "of/fers"}`, "", "", "it is no name of a list"},
		{shop, "ann", `"joe@to.test"`, `{"list": "offers", "one_click": false}`, "", "", "is for one click"},
		{shop, "ann", `"joe@to.test"`, `{"list": "offers", "url": "https://x.test/"}`, "", "", "it is for a link of this system"},
		{shop, "ann", `"joe@to.test"`, `{"list": "offers", "mailto": "a@x.test"}`, "", "", "it is for a link of this system"},
	} {
		s := &asked{}
		w.server.door.suppress = s
		w.token = tt.token
		status, r, text := w.send(fmt.Sprintf(`{"from": "%s@from.test", "to": [%s], "text": "x", "list_unsubscribe": %s}`, tt.sender, tt.to, tt.unsub))
		if tt.refused != "" {
			if status != 422 || !strings.Contains(text, tt.refused) || len(s.list) > 0 {
				t.Errorf("%d: %d, %s, %q", i, status, text, s.list)
			}
			continue
		}
		if status != 200 || len(r.Messages) != 1 || strings.Join(s.list, " ") != tt.asked {
			t.Fatalf("%d: %d, %s, %q", i, status, text, s.list)
		}
		if got := w.mails()[len(w.mails())-1].text; !strings.Contains(got, "\r\nX-Unsubscribe: "+tt.field+"\r\n") || strings.Contains(got, "List-Unsubscribe") {
			t.Errorf("%d: %s", i, got)
		}
	}
	w.server.limits.unsubscribe = ""
	if status, _, text := w.send(`{"from": "ann@from.test", "to": ["joe@to.test"], "text": "x", "list_unsubscribe": {"one_click": true}}`); status != 422 || !strings.Contains(text, "unsubscribe_url") {
		t.Errorf("without links: %d, %s", status, text)
	}
}

// asked notes what the suppress service is asked.
type asked struct{ list []string }

func (a *asked) Ask(_ context.Context, q *proto.SuppressAsk) (proto.SuppressAnswer, error) {
	a.list = append(a.list, q.List, q.Address)
	return proto.SuppressAnswer{}, nil
}
