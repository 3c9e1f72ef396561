package bounce

import (
	"context"
	"errors"
	"io"
	"testing"

	"posthaste/internal/bounceclass"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

type fakeTeller struct {
	told []string
	err  error
}

func (f *fakeTeller) Tell(_ context.Context, q *proto.SuppressTell) (proto.SuppressTold, error) {
	f.told = append(f.told, q.What+" "+q.List+" "+q.Address+" "+q.Class)
	return proto.SuppressTold{}, f.err
}

// Of mail of a list that has waited too long the suppression list hears, with the class of what kept it waiting; of other
// notices and other mail it does not.
func TestListedExpired(t *testing.T) {
	t.Parallel()
	rules, err := bounceclass.Open([]string{bounceclass.Builtin})
	if err != nil {
		t.Fatal(err)
	}
	reports := []Report{
		{Recipient: mail.Recipient{Address: "joe@x.test"}, Outcome: mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 2, 2), DiagType: "smtp", DiagText: "452 4.2.2 mailbox full"}},
		{Recipient: mail.Recipient{Address: "jane@x.test"}, Outcome: mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: "connect to x.test[192.0.2.1]:25: Connection timed out"}},
	}
	for _, tt := range []struct {
		kind         proto.NoticeKind
		list, sender string
		err          error
		want         int
	}{
		{proto.NoticeExpired, "news", "list@x.test", nil, 2},
		{proto.NoticeExpired, "news", "list@x.test", errors.New("no"), 1},
		{proto.NoticeExpired, "", "list@x.test", nil, 0},
		{proto.NoticeExpired, "news", "", nil, 0},
		{proto.NoticeFailure, "news", "list@x.test", nil, 0},
		{proto.NoticeDelay, "news", "list@x.test", nil, 0},
	} {
		f := &fakeTeller{err: tt.err}
		l := &listed{f, rules, maillog.New("bounce", maillog.NewWriter(io.Discard, maillog.Classic))}
		l.expired(t.Context(), tt.kind, &mail.Envelope{ID: "Q", List: tt.list, Sender: tt.sender}, reports)
		want := []string{"expired news joe@x.test QuotaIssues", "expired news jane@x.test NoAnswerFromHost"}[:tt.want]
		if len(f.told) != len(want) {
			t.Errorf("%+v: %q", tt, f.told)
			continue
		}
		for i := range want {
			if f.told[i] != want[i] {
				t.Errorf("%+v: %q, expected %q", tt, f.told[i], want[i])
			}
		}
	}
	var none *listed
	none.expired(t.Context(), proto.NoticeExpired, &mail.Envelope{List: "news", Sender: "a@b"}, reports)
}
