package access

import (
	"context"
	"io"
	"net/netip"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/table"
)

// anywhere resolves all mail to a relay domain.
type anywhere struct{}

func (anywhere) Rewrite(_ context.Context, _, addr string) (string, error) { return addr, nil }

func (anywhere) Resolve(_ context.Context, _, addr string) (proto.ResolveReply, error) {
	return proto.ResolveReply{Transport: "relay", Nexthop: "relay.test", Recipient: addr, Flags: proto.ResolveRelay}, nil
}

// BenchmarkRecipient is all that is asked of a recipient of a session that nobody follows:
// lists, tables and restrictions of an ordinary site.
func BenchmarkRecipient(b *testing.B) {
	cfg, err := config.LoadString(`compatibility_level = 3.6
myhostname = mx.example.test
queue_directory = /
inet_interfaces = 192.0.2.25
mynetworks = 127.0.0.0/8, 192.0.2.0/24, 2001:db8::/32
smtpd_reject_unlisted_recipient = no
smtpd_client_restrictions = permit_mynetworks, check_client_access inline:{198.51.100.8=REJECT}
smtpd_helo_restrictions = reject_invalid_helo_hostname, reject_non_fqdn_helo_hostname
smtpd_sender_restrictions = reject_non_fqdn_sender, check_sender_access inline:{bad@from.test=REJECT}
smtpd_recipient_restrictions = reject_non_fqdn_recipient
`)
	if err != nil {
		b.Fatal(err)
	}
	log := maillog.New("smtpd", maillog.NewWriter(io.Discard, maillog.Classic))
	e, err := New(b.Context(), cfg, Deps{Log: log, Router: anywhere{}, Tables: table.Options{Recheck: -1}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { e.Close(); log.Close() })
	s := &Session{Stage: "RCPT", Proto: "ESMTP", Helo: "host.from.test", HasSender: true, Sender: "a@from.test", HasRcpt: true, Recipient: "b@relay.test",
		Client: Client{Name: "host.from.test", ReverseName: "host.from.test", Addr: netip.MustParseAddr("198.51.100.7"), AddrText: "198.51.100.7"}}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	ctx, _ = table.NewBudget(ctx, table.MatchBudget)
	b.ReportAllocs()
	for b.Loop() {
		if reply := e.Rcpt(ctx, s); reply != nil {
			b.Fatal(reply)
		}
	}
}
