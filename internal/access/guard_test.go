package access

import (
	"io"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/table"
)

// TestGuards: lists that would let strangers relay are refused: those without a restriction that keeps
// them out, and those in which it comes too late, only warns, or is in a class that nobody uses.
func TestGuards(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		lists string // the relay list, if the recipient list is not set
		open  bool
	}{
		{"smtpd_relay_restrictions = reject_unauth_destination", false},
		{"smtpd_relay_restrictions = permit_mynetworks, permit_sasl_authenticated, defer_unauth_destination", false},
		{"smtpd_relay_restrictions = reject", false},
		{"smtpd_relay_restrictions = defer", false},
		{"smtpd_relay_restrictions = defer_if_permit", false},
		{"smtpd_relay_restrictions = ", true},
		{"smtpd_relay_restrictions = permit_mynetworks, permit_sasl_authenticated", true},
		{"smtpd_relay_restrictions = reject_non_fqdn_recipient, reject_unknown_sender_domain", true},
		{"smtpd_relay_restrictions = permit, reject_unauth_destination", true},
		{"smtpd_relay_restrictions = permit_mynetworks, permit\nsmtpd_recipient_restrictions = reject_unauth_destination", false},
		{"smtpd_relay_restrictions =\nsmtpd_recipient_restrictions = reject_unauth_pipelining, reject", false},
		{"smtpd_relay_restrictions = warn_if_reject reject_unauth_destination", true},
		{"smtpd_relay_restrictions = warn_if_reject reject_unauth_destination, reject_unauth_destination", false},
		{"smtpd_relay_restrictions = ours\nsmtpd_restriction_classes = ours\nours = permit_mynetworks, reject_unauth_destination", false},
		{"smtpd_relay_restrictions = ours\nsmtpd_restriction_classes = ours\nours = permit_mynetworks", true},
		{"smtpd_relay_restrictions = ours\nsmtpd_restriction_classes = ours\nours = permit, reject", true},
		{"smtpd_relay_restrictions = warn_if_reject ours\nsmtpd_restriction_classes = ours\nours = reject", true},
		{"smtpd_relay_restrictions = ours\nsmtpd_restriction_classes = ours\nours = permit_mynetworks, ours", true},
		{"smtpd_relay_restrictions = check_recipient_access inline:{a=reject}", true},
	} {
		t.Run(tc.lists, func(t *testing.T) {
			t.Parallel()
			cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = mx.example.test\nqueue_directory = /\nsmtpd_recipient_restrictions =\n" + tc.lists + "\n")
			if err != nil {
				t.Fatal(err)
			}
			log := maillog.New("smtpd", maillog.NewWriter(io.Discard, maillog.Classic))
			defer log.Close()
			e, err := New(t.Context(), cfg, Deps{Log: log, Router: anywhere{}, Tables: table.Options{Recheck: -1}})
			if e != nil {
				defer e.Close()
			}
			if (err != nil) != tc.open {
				t.Errorf("error %v; the lists are open: %v", err, tc.open)
			}
		})
	}
}
