package metrics

import (
	"posthaste/internal/maillog"
)

// Event counts a line of the log. e is nil for a line without a typed event.
// It is a maillog.Observer.
func (s *Set) Event(level maillog.Level, written bool, e maillog.Event) {
	if s == nil {
		return
	}
	if written {
		s.Add(LogLines, 1, level.String())
	}
	switch e := e.(type) {
	case *maillog.Delivery:
		s.delivery(e)
	case maillog.Delivery:
		s.delivery(&e)
	case *maillog.Reject:
		s.reject(e)
	case maillog.Reject:
		s.reject(&e)
	case *maillog.ContentCheck:
		s.reject(&e.Reject)
	case maillog.ContentCheck:
		s.reject(&e.Reject)
	case *maillog.SMTPDDisconnect:
		s.commands(e.Counts)
	case maillog.SMTPDDisconnect:
		s.commands(e.Counts)
	case *maillog.LostConnection:
		s.lost(e.What)
	case maillog.LostConnection:
		s.lost(e.What)
	case *maillog.SASLFailed:
		s.Add(SASLFailures, 1, saslMethod(e.Method))
	case maillog.SASLFailed:
		s.Add(SASLFailures, 1, saslMethod(e.Method))
	case *maillog.TLSEstablished:
		s.handshake(e)
	case maillog.TLSEstablished:
		s.handshake(&e)
	case *maillog.LimitExceeded:
		s.Add(LimitsExceeded, 1, e.What)
	case maillog.LimitExceeded:
		s.Add(LimitsExceeded, 1, e.What)
	case *maillog.BounceNotice:
		s.Add(Notifications, 1, noticeKind(e.Kind))
	case maillog.BounceNotice:
		s.Add(Notifications, 1, noticeKind(e.Kind))
	default:
		if id, ok := plain(e); ok {
			s.Add(id, 1)
		}
	}
}

// plain are the events of which only the number counts.
func plain(e maillog.Event) (ID, bool) {
	switch e.(type) {
	case *maillog.SMTPDConnect, maillog.SMTPDConnect:
		return Connections, true
	case *maillog.ConnectFailed, maillog.ConnectFailed:
		return ConnectFailures, true
	case *maillog.QueueActive, maillog.QueueActive:
		return Activated, true
	case *maillog.Removed, maillog.Removed:
		return Removed, true
	case *maillog.Expired, maillog.Expired:
		return Expired, true
	case *maillog.ProcessLimit, maillog.ProcessLimit:
		return ProcessLimits, true
	}
	return 0, false
}

var stages = [...]string{"before_queue", "queue", "connect", "transmit"}

func (s *Set) delivery(e *maillog.Delivery) {
	s.Add(Deliveries, 1, e.Status)
	if class := replyClass(e.DSN.Class); class != "" {
		s.Add(DeliveryReplies, 1, class, statusCode(e.DSN))
	}
	if e.Class != "" {
		s.Add(DeliveryFailures, 1, e.Status, e.Class)
	}
	s.addDomain(domainOf(e.To), e.Status)
	if e.Tenant != "" {
		s.addTenant(e.Tenant, e.Status)
	}
	s.addProvider(ProviderDeliveries, e.Provider, e.Source, e.Status)
	s.Observe(DeliveryDelay, e.Delay.Seconds(), e.Status)
	for i, d := range e.Delays {
		s.Observe(DeliveryStage, d.Seconds(), stages[i])
	}
}

func (s *Set) reject(e *maillog.Reject) {
	class := ""
	if code := e.Text; len(code) > 0 && (code[0] == '4' || code[0] == '5') {
		class = code[:1]
	}
	s.Add(Rejected, 1, e.Action, e.Stage, class, Reason(e.Text))
}

func (s *Set) commands(counts []maillog.CommandCount) {
	for _, c := range counts {
		if c.OK > 0 {
			s.Add(Commands, float64(c.OK), c.Name, "ok")
		}
		if c.Total > c.OK {
			s.Add(Commands, float64(c.Total-c.OK), c.Name, "refused")
		}
	}
}

func (s *Set) lost(what string) {
	if what == "" {
		what = "lost connection"
	}
	s.Add(LostConnections, 1, what)
}

func (s *Set) handshake(e *maillog.TLSEstablished) {
	side := "client"
	if e.Server {
		side = "server"
	}
	s.Add(TLSSessions, 1, side, e.Proto)
}

// saslMethod is the method, if it is one that a server may have offered:
// clients send anything.
func saslMethod(m string) string {
	switch m {
	case "PLAIN", "LOGIN", "CRAM-MD5", "DIGEST-MD5", "SCRAM-SHA-1", "SCRAM-SHA-1-PLUS", "SCRAM-SHA-256", "SCRAM-SHA-256-PLUS",
		"EXTERNAL", "GSSAPI", "GS2-KRB5", "NTLM", "OAUTHBEARER", "XOAUTH2", "ANONYMOUS":
		return m
	}
	return Other
}

func noticeKind(n maillog.Notice) string {
	switch n {
	case maillog.SenderBounce:
		return "bounce"
	case maillog.SenderDelay:
		return "delay"
	case maillog.SenderStatus:
		return "status"
	}
	return "postmaster"
}
