package smtp

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
)

// An asking is a zone that notes whether what it is asked is to be validated.
type asking struct {
	*fakezone.Zone
	plain, validated atomic.Int64
}

func (a *asking) Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	if opt := q.IsEdns0(); opt != nil && opt.Do() || q.AuthenticatedData {
		a.validated.Add(1)
	} else {
		a.plain.Add(1)
	}
	return a.Zone.Exchange(ctx, q)
}

// The resolver that an agent makes itself asks as smtp_dns_support_level says, leaves out what smtp_dns_reply_filter does, and ends
// with the agent.
func TestOwnResolver(t *testing.T) {
	t.Parallel()
	for level, validated := range map[string]bool{"enabled": false, "dnssec": true} {
		for _, filtered := range []bool{false, true} {
			main := "myhostname = me.test\ninet_interfaces = 127.0.0.1\ninet_protocols = ipv4\nsmtp_dns_support_level = " + level + "\n"
			if filtered {
				main += "smtp_dns_reply_filter = pcre:{ {/ 192\\.0\\.2\\.1$$/ IGNORE} }\n"
			}
			cfg, err := config.LoadString(main)
			if err != nil {
				t.Fatal(err)
			}
			z := &asking{Zone: fakezone.Must("dest.test. A 192.0.2.1\ndest.test. A 192.0.2.2\n")}
			a, err := newAgent(deps{Config: cfg, Log: maillog.New("smtp", new(lines)), Lookups: func() (resolver.Options, error) {
				return resolver.Options{Exchanger: z, Hosts: os.DevNull}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			got, err := a.dns.Addrs(t.Context(), "dest.test", resolver.IPv4)
			if want := map[bool]int{false: 2, true: 1}[filtered]; err != nil || len(got.Records) != want {
				t.Errorf("%s, filtered %v: %+v, %v", level, filtered, got, err)
			}
			if p, v := z.plain.Load(), z.validated.Load(); (v > 0) != validated || (p > 0) == validated {
				t.Errorf("%s: %d questions with validation, and %d without", level, v, p)
			}
			free := 0
			for i, f := range a.free {
				a.free[i] = func() { free++; f() }
			}
			if a.Close(); free != 1 {
				t.Errorf("%d things are freed, want the resolver", free)
			}
		}
	}
}

// Each parameter that cannot be used is an error that names it, and no agent is made.
func TestAgentRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		main, args, want string
		lmtp             bool
	}{
		{main: "smtp_https_networks = 300.0.0.0/8", want: "smtp_https_networks"},
		{args: "flags=Z", want: "flags"},
		{main: "dnssec_probe = a b:x:y", want: "dnssec_probe"},
		{main: "debug_peer_list = nothing:x", want: "debug_peer_list"},
		{main: "smtp_tls_policy_maps = nothing:x", want: "smtp_tls_policy_maps"},
		{main: "smtp_generic_maps = nothing:x", want: "smtp_generic_maps"},
		{main: "smtp_header_checks = nothing:x", want: "smtp_header_checks"},
		{main: "smtp_sasl_auth_enable = yes\nsmtp_sasl_password_maps = nothing:x", want: "smtp_sasl_password_maps"},
		{main: "smtp_connection_cache_destinations = nothing:x", want: "smtp_connection_cache_destinations"},
		{main: "lmtp_generic_maps = nothing:x", want: "lmtp_generic_maps", lmtp: true},
	} {
		cfg, err := config.LoadString("myhostname = me.test\ninet_interfaces = 127.0.0.1\n" + tt.main + "\n")
		if err != nil {
			t.Errorf("%s: %v", tt.want, err)
			continue
		}
		sink := new(lines)
		log := maillog.New("log", sink)
		zone := fakezone.Must("").Resolver()
		a, err := newAgent(deps{Config: cfg, Log: log, Resolver: zone, LMTP: tt.lmtp, Args: strings.Fields(tt.args)})
		log.Flush()
		switch {
		case err == nil:
			// Tables that cannot be opened fail when they are asked, and are warned of.
			if !strings.Contains(sink.b.String(), tt.want) {
				t.Errorf("%s %s: there is no error, and logged is %q", tt.main, tt.args, sink.b.String())
			}
			a.Close()
		case !strings.Contains(err.Error(), tt.want) || a != nil:
			t.Errorf("%s %s: %v, %v", tt.main, tt.args, a, err)
		}
		zone.Close()
	}
}

// An order for a source that cannot be read of defers all its recipients, and says why; nothing is connected to.
func TestSourceNotUnderstood(t *testing.T) {
	t.Parallel()
	log := new(lines)
	a, done := keptAgent(t, "", log)
	r := agent.NewTestRequest(envelope(10), "[127.0.0.1]:1", []byte("A: b\r\n\r\n"), a.log)
	r.Source, r.SourceSpec = "s1", "nothing=known"
	a.Deliver(t.Context(), r)
	done()
	for _, o := range r.Outcomes() {
		if o.Action != dsn.Deferred || o.Status != dsn.S(4, 3, 5) || !strings.Contains(o.Reason, "egress source s1: ") {
			t.Errorf("%+v", o)
		}
	}
	if site, _ := r.Site(); !site.IsZero() || r.Opened() || len(r.Outcomes()) == 0 {
		t.Errorf("the destination is blamed: %v, a connection is opened: %v", site, r.Opened())
	}
}
