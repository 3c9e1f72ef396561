package cleanup

import (
	"strings"
	"testing"

	"posthaste/internal/proto"
)

// TestTenant: whose mail a message is, by what its client may say, and by what tables say. The field is gone when
// it counts, and stays when it does not.
func TestTenant(t *testing.T) {
	t.Parallel()
	const conf = "tenant_header = X-Tenant\ncampaign_header = X-Campaign\ntenant_header_clients = 192.0.2.0/28\n" +
		"tenant_maps = inline:{{joe = login} {192.0.2.99 = host} {192.0.3 = net} {s@a.test = sender} {b.test = domain} {bad@a.test = no/name}}\n"
	type want struct {
		tenant, campaign string
		fields           string // of the two that are left
		log              string // other than the message ID and a tenant's line
	}
	for _, tc := range []struct {
		name   string
		fields string
		change func(s *proto.Submit)
		want   want
	}{
		{"field", "x-tenant: acme\nX-Campaign:  spring \n", nil, want{tenant: "acme", campaign: "spring"}},
		{"two fields", "X-Tenant: acme\nX-Tenant: other\n", nil, want{tenant: "acme"}},
		{"bad field", "X-Tenant: a/b\n", nil, want{tenant: "sender", log: `ignoring the X-Tenant header, which names nobody: "a/b"`}},
		{"long field", "X-Tenant: " + strings.Repeat("a", 65) + "\n", nil, want{tenant: "sender", log: `ignoring the X-Tenant header, which names nobody: "` + strings.Repeat("a", 65) + `"`}},
		{"a stranger's field", "X-Tenant: acme\n", func(s *proto.Submit) { s.Envelope.Client.Addr = "192.0.2.77" },
			want{tenant: "sender", fields: "X-Tenant: acme\n"}},
		{"a local user's field", "X-Tenant: acme\n", func(s *proto.Submit) { s.Envelope.Client.Addr = "" },
			want{tenant: "sender", fields: "X-Tenant: acme\n"}},
		{"login first", "", func(s *proto.Submit) { s.Envelope.SASL.Username, s.Envelope.Client.Addr = "joe", "192.0.2.99" }, want{tenant: "login"}},
		{"then the client", "", func(s *proto.Submit) { s.Envelope.SASL.Username, s.Envelope.Client.Addr = "ann", "192.0.2.99" }, want{tenant: "host"}},
		{"and its network", "", func(s *proto.Submit) { s.Envelope.Client.Addr = "192.0.3.4" }, want{tenant: "net"}},
		{"then the sender", "", func(s *proto.Submit) { s.Envelope.Sender = "S@A.test" }, want{tenant: "sender"}},
		{"and its domain", "X-Campaign: c\n", func(s *proto.Submit) { s.Envelope.Sender = "x@B.test" }, want{tenant: "domain", campaign: "c"}},
		{"a subdomain is another", "", func(s *proto.Submit) { s.Envelope.Sender = "x@sub.b.test" }, want{}},
		{"a bad entry", "", func(s *proto.Submit) { s.Envelope.Sender = "bad@a.test" }, want{log: `ignoring a bad tenant in tenant_maps: "no/name"`}},
		{"no campaign without a tenant", "X-Campaign: c\n", func(s *proto.Submit) { s.Envelope.Sender = "" }, want{log: "ignoring the campaign c of mail without a tenant"}},
		{"a token's", "X-Tenant: acme\n", func(s *proto.Submit) { s.Envelope.Tenant, s.Envelope.Campaign = "token", "json" }, want{tenant: "token", campaign: "json"}},
		{"queued again", "X-Tenant: acme\n", func(s *proto.Submit) { s.Envelope.Tenant, s.Flags = "before", s.Flags|proto.SubmitRequeued }, want{tenant: "before", fields: "X-Tenant: acme\n"}},
		{"a notice of ours", "X-Tenant: acme\n", func(s *proto.Submit) { s.Flags |= proto.SubmitNoReceive }, want{fields: "X-Tenant: acme\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCore(t, conf, nil)
			s := submission("remote", "r@x.y")
			if tc.change != nil {
				tc.change(s)
			}
			got, r := feed(c, s, crlfText("Message-Id: <a@b>\n"+tc.fields+"\nx\n"), 0)
			if r.Refused != nil {
				t.Fatal(r.Refused)
			}
			var is want
			is.tenant, is.campaign = r.Envelope.Tenant, r.Envelope.Campaign
			is.fields = strings.TrimSuffix(strings.TrimPrefix(strings.ReplaceAll(got, "\r\n", "\n"), "Message-Id: <a@b>\n"), "\nx\n")
			said := ""
			for _, l := range r.Log[1:] {
				text := strings.TrimPrefix(l.String(), "4XyZ0000000000z1: ")
				if strings.HasPrefix(text, "tenant=") {
					said = text
					continue
				}
				is.log += text
			}
			if is != tc.want {
				t.Errorf("got %+v\nwant %+v", is, tc.want)
			}
			line := ""
			if is.tenant != "" {
				line = "tenant=" + is.tenant
			}
			if is.campaign != "" {
				line += ", campaign=" + is.campaign
			}
			if said != line {
				t.Errorf("logged %q, want %q", said, line)
			}
		})
	}
}

// TestTenantList: a tenant's mail is under that tenant's list, and under that of its sender as one list of it; other mail
// is under that of its sender alone, and mail without a sender under none.
func TestTenantList(t *testing.T) {
	t.Parallel()
	const conf = "suppress_tenants = shop\nsuppress_list_maps = inline:{ {@news.test = letter} }\n"
	for _, tc := range []struct{ tenant, sender, want string }{
		{"shop", "a@b.test", "shop/"},
		{"shop", "a@news.test", "shop/letter"},
		{"bank", "a@news.test", "letter"},
		{"bank", "a@b.test", ""},
		{"", "a@news.test", "letter"},
		{"shop", "", ""},
	} {
		c := newCore(t, conf, nil)
		s := submission("remote", "r@x.y")
		s.Envelope.Tenant, s.Envelope.Sender = tc.tenant, tc.sender
		if _, r := feed(c, s, crlfText("Message-Id: <a@b>\n\nx\n"), 0); r.Refused != nil || r.Envelope.List != tc.want {
			t.Errorf("%+v: %v, %q", tc, r.Refused, r.Envelope.List)
		}
	}
}

// TestTenantPool: a tenant's mail goes from the pool of the tenant, unless an action has named one for the message. A value that is no
// name keeps the mail away, since nobody knows what it was to go from.
func TestTenantPool(t *testing.T) {
	t.Parallel()
	const conf = "tenant_egress_pool_maps = inline:{ {shop = fast} {bank = none} {club = DUNNO} {bad = a/b} {* = bulk} }\nheader_checks = regexp:{ {/^X-Pool:/ POOL checked} }\n"
	for _, tc := range []struct {
		tenant, pool, fields string
		flags                proto.SubmitFlags
		want                 string
	}{
		{tenant: "shop", want: "fast"},
		{tenant: "bank", want: "none"},
		{tenant: "club", want: ""},
		{tenant: "news", want: "bulk"},
		{tenant: "", want: ""},
		{tenant: "shop", pool: "named", want: "named"},
		{tenant: "shop", fields: "X-Pool: checked\n", want: "checked"},
		{tenant: "shop", flags: proto.SubmitNoReceive, want: "fast"}, // it was forwarded
		{tenant: "shop", pool: "before", flags: proto.SubmitRequeued, want: "before"},
		{tenant: "bad", want: "refused"},
	} {
		c := newCore(t, conf, nil)
		s := submission("remote", "r@x.y")
		s.Envelope.Tenant, s.Envelope.Pool, s.Flags = tc.tenant, tc.pool, s.Flags|tc.flags
		_, r := feed(c, s, crlfText("Message-Id: <a@b>\n"+tc.fields+"\nx\n"), 0)
		got := r.Envelope.Pool
		if r.Refused != nil {
			got = "refused"
		}
		if got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}
