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

// Recipients on the suppression list are refused, each by itself, and the others get their mail, once with a key; mail of
// other senders is not asked for. Nobody's quota is used for mail that is not sent.
func TestSuppressed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg, err := config.LoadString("compatibility_level = 3.6\nsuppress_list_maps = inline:{ {news@from.test = news} {bad@from.test = a list} }\n")
	if err != nil {
		t.Fatal(err)
	}
	lists, err := suppressclient.OpenLists(cfg, table.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer lists.Close()
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
