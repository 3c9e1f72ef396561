// Transcripts of sessions for postmaster, as far as notify_classes asks for any.

package smtp

import (
	"context"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/submit"
)

// newNotices is what mails transcripts of sessions that went wrong. It is nil,
// and nothing is written down, unless notify_classes has one of the two classes
// that can come up here: a reply that says that we, or the server, do not
// keep to the protocol, and a message that could not be read.
func newNotices(cfg *config.Config, s *submit.Client, log *maillog.Logger) *notice.Mailer {
	if s == nil {
		return nil
	}
	for _, class := range cfg.List("notify_classes") {
		if class == "protocol" || class == "data" {
			return notice.New(cfg, s, log)
		}
	}
	return nil
}

// noticeFault takes note of a failure that tells of a broken protocol: its code is
// none that a command may be refused with, or says that the server did not
// understand us.
func (s *session) noticeFault(code int) {
	if code < 400 || code > 599 || code == 555 || code >= 500 && code < 510 {
		s.notes.Fault(notice.Protocol)
	}
}

// notify mails the transcript of this delivery's part of a session if
// something went wrong that notify_classes asks for. Mail that is a notice
// itself is not told of.
func (d *delivery) notify(ctx context.Context, s *session) {
	if s.notes == nil {
		return
	}
	if sender := d.env.Sender; sender == "" || sender == d.a.doubleBounce {
		s.notes.Reset()
		return
	}
	reason := ""
	if s.broke != nil {
		reason = s.broke.text
	}
	d.a.notices.Post(ctx, s.notes, notice.Session{Side: "client", Peer: s.relay, Reason: reason, Unexpected: "Unexpected response from " + s.relay + "."})
}
