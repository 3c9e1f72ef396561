// The queue manager's own log lines: deliveries that no agent was needed for, and what
// the scheduler has to say. Those that log analysis may parse are events of package
// maillog.

package qmgr

import (
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/qmgr/sched"
)

// logDelivery logs an outcome that no agent was needed for, in the form of an agent's
// line. delays= has the time before the queue manager and in it; c and d are 0, as there
// was no connection.
func (s *Server) logDelivery(id mail.QueueID, to mail.Recipient, env *mail.Envelope, active time.Time, o mail.Outcome) {
	now := time.Now()
	status := "deferred"
	if o.Action == dsn.Delivered {
		status = "sent"
	}
	s.opt.Log.Log(maillog.Delivery{ID: string(id), To: s.opt.Log.Address(to.Address), OrigTo: s.opt.Log.Address(to.Original),
		Delay: now.Sub(env.Arrival), Delays: [4]time.Duration{active.Sub(env.Arrival), now.Sub(active)},
		Resolution: s.opt.Settings.Resolution, DSN: o.Status, Status: status, Text: o.Reason,
		From: s.opt.Log.Address(env.Sender), MessageID: env.MessageID, EnvID: env.EnvID, Tenant: env.Tenant, Campaign: env.Campaign})
}

// logNote logs what the scheduler finds worth a line. Warnings are for the postmaster;
// the texts of NoteClog and NoteFeedback are Postfix's, since documentation and tools
// refer to them.
func (s *Server) logNote(m *message, n *sched.Note) {
	log := s.opt.Log
	switch n.Kind {
	case sched.NoteExpired, sched.NoteForceExpired:
		sender := ""
		// The sender is known only while the envelope is in memory.
		if m != nil && m.active != nil {
			sender = s.opt.Log.Address(m.active.env.Sender)
		}
		if m != nil {
			log.Log(maillog.Expired{ID: string(m.id), From: sender, Forced: n.Kind == sched.NoteForceExpired})
		}
	case sched.NoteClog:
		log.Warning("mail for %s is using up %d of %d active queue entries", n.Queue, n.Count, n.Total)
		log.Warning("you may need to reduce %s connect and helo timeouts so that Posthaste quickly skips unavailable hosts",
			n.Transport)
		log.Warning("you may need to increase the master.cf %s process limit", n.Transport)
		log.Warning("please avoid flushing the whole queue when you have lots of deferred mail, that is bad for performance")
		log.Warning("to turn off these warnings specify: qmgr_clog_warn_time = 0")
	case sched.NoteFeedback:
		sign := "negative"
		if n.Positive {
			sign = "positive"
		}
		log.Info("concurrency feedback type %s destination %s limit %d window %d success %g failure %g fail_cohorts %g feedback %g",
			sign, n.Queue, n.Limit, n.Window, n.Success, n.Failure, n.FailCohorts, n.Feedback)
	case sched.NoteTransportDown:
		log.Warning("transport %s is not available until %s: %s", n.Transport, n.Until.Format(time.TimeOnly), n.Reason)
	case sched.NoteBadCount:
		if m != nil {
			log.Warning("%s: rcpt count mismatch (%d)", m.id, n.Count)
		}
	case sched.NoteHint:
		log.Info("%s is not tried by %s until %s: %s", n.Queue, n.Transport, n.Until.Format(time.TimeOnly), n.Reason)
	case sched.NoteDead, sched.NoteAlive:
		// Told by the deliveries themselves, and by posthaste explain.
	}
}
