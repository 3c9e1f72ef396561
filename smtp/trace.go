// The dialogues of deliveries for those who follow them: debug_peer_list, -v in
// master.cf, and "posthaste watch". The attributes are those of Postfix's verbose log.

package smtp

import (
	"bytes"
	"context"
	"strconv"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
	"posthaste/internal/watch"
)

// tracer says whose dialogues are logged, and who watches them. It does not change.
type tracer struct {
	peers *table.List // debug_peer_list
	level int         // debug_peer_level; 0: nothing is logged for peers
	all   bool        // master.cf has -v
	hub   *watch.Hub  // nil: nobody watches
}

// traced says whether the dialogue with a server is to be logged.
func (a *Agent) traced(t *target) bool {
	if a.trace.all {
		return true
	}
	if a.trace.level <= 0 || a.trace.peers.Empty() {
		return false
	}
	found, err := a.trace.peers.MatchClient(context.Background(), t.host, t.address())
	if err != nil {
		a.log.Warning("%v", err)
	}
	return found
}

// followed is ctx with what is looked up for a delivery logged, if master.cf has -v, after what the
// queue manager asks for. Of a peer of debug_peer_list only the dialogue is: before there is a
// session nobody knows that it is one.
func (d *delivery) followed(ctx context.Context) context.Context {
	if !d.a.trace.all {
		return ctx
	}
	// Tables that are asked with this context log what they were asked and what
	// they had.
	ctx = table.WithTrace(ctx, d.log.Info)
	d.say = table.TraceOf(ctx)
	env := d.env
	d.say.Received("queue_id", d.id, "size", strconv.FormatInt(env.Size, 10), "nexthop", string(d.nexthop),
		"smtputf8", flagText(env.Body&mail.BodySMTPUTF8 != 0), "sender", env.Sender, "envelope_id", env.EnvID,
		"ret_flags", strconv.Itoa(int(env.Ret)), "log_client_name", env.Client.Name, "log_client_address", env.Client.Addr,
		"log_client_port", env.Client.Port, "log_protocol_name", env.Client.Proto, "log_helo_name", env.Client.Helo,
		"sasl_method", env.SASL.Method, "sasl_username", env.SASL.Username, "sasl_sender", env.SASL.Sender,
		"log_ident", env.LogIdent, "rewrite_context", env.RewriteContext, "recipient_count", strconv.Itoa(len(env.Recipients)))
	for i := range env.Recipients {
		d.say.Received(d.recipient(i)...)
	}
	return ctx
}

// recipient is what the trace says of one recipient, as name, value, ...
func (d *delivery) recipient(i int) []string {
	to := &d.env.Recipients[i]
	return []string{"original_recipient", to.Orig(), "recipient", to.Address, "dsn_orig_rcpt", to.ORCPT, "notify_flags", strconv.Itoa(notifyNumber(to.Notify))}
}

// notifyNumber is Postfix's number for NOTIFY, whose bits are in another order than
// ours.
func notifyNumber(n dsn.Notify) int {
	number := int(n&^dsn.NotifyNever) << 1
	if n&dsn.NotifyNever != 0 {
		number |= 1
	}
	return number
}

// flagText is a flag as the trace has it.
func flagText(yes bool) string {
	if yes {
		return "1"
	}
	return "0"
}

// sayFailed logs what the queue manager is told of a recipient that is not
// delivered to. It does nothing without -v.
func (d *delivery) sayFailed(i int, f *failure, soft bool) {
	if d.say == nil {
		return
	}
	action, kind := dsn.Failed, ""
	if soft {
		action = dsn.Deferred
	}
	if f.detail.MTA != "" {
		kind = "dns"
	}
	d.say.Sent("queue_id", d.id)
	d.say.Sent(d.recipient(i)...)
	d.say.Sent("status", f.status.String(), "diag_type", f.detail.DiagType, "diag_text", f.detail.DiagText,
		"mta_type", kind, "mta_mname", f.detail.MTA, "action", action.String(), "reason", f.text)
}

// followedDNS has the deliveries of a service that has -v say what the DNS was asked.
func followedDNS(r resolver.Resolver, names resolver.Names, verbose int) resolver.Resolver {
	if verbose == 0 {
		return r
	}
	return resolver.Traced(r, names, func(ctx context.Context) func(string, ...any) { return table.TraceOf(ctx) })
}

// traceTo has the dialogues of a session go to the log, if they are to, and to
// whoever watches the server or the destination. The session calls trace once for
// each line or packet. A session for which neither can happen has no trace at all.
func (d *delivery) traceTo(s *session, t *target) {
	a, debug, asked := d.a, d.a.traced(t), ""
	if d.hop != nil {
		asked = d.hop.host
	}
	if !debug && a.trace.hub == nil {
		return
	}
	// A session outlives the delivery that has set it up: watchers of the first
	// destination must not see the mail of the next.
	var talk watch.Talk
	var by *delivery // for which talk is right
	s.trace = func(arrow string, text []byte) {
		if s.by != by {
			by, talk = s.by, watch.Talk{} // the session goes on with another destination's mail
			if by != nil && by.hop != nil {
				asked = by.hop.host
			}
		}
		if !debug && talk.Idle(a.trace.hub) {
			return
		}
		peer := watch.Peer{Names: []string{t.host, t.asked, asked}, Addr: t.ip, Shown: s.relay}
		if t.path != "" {
			peer.Names = append(peer.Names, t.path)
		}
		for line := range bytes.Lines(text) {
			line = notice.Redact(bytes.TrimRight(line, "\r\n"))
			if debug {
				a.log.Log(maillog.Dialogue{Sent: arrow == ">", Peer: s.relay, Line: line})
			}
			talk.Line(a.trace.hub, arrow, &peer, line)
		}
	}
}

// Start lets others watch the dialogues. It is called when the process has given up
// its privileges: the socket must belong to the user that it runs as.
func (a *Agent) Start() {
	if a.trace.hub == nil {
		return
	}
	if err := a.trace.hub.Serve(a.listen); err != nil {
		a.log.Warning("dialogues cannot be watched: %v", err)
	}
}
