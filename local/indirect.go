package local

import (
	"fmt"
	"io"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/submit"
	"posthaste/local/mailbox"
)

// resolve delivers to an address that an expansion has given: here, when it
// is local, or by queueing it again.
func (d *delivery) resolve(st state, addr string) {
	st.level++
	// Aliases and files are this site's: an address without a domain is one of it, whoever sent the mail.
	full, err := d.Rewriter.Rewrite(d.ctx, "local", addr)
	var to proto.ResolveReply
	if err == nil {
		to, err = d.Rewriter.Resolve(d.ctx, st.sender, full)
	}
	if err != nil || to.Flags&proto.ResolveFail != 0 {
		d.deferIt(&st, tryLater, "address resolver failure")
		return
	}
	if to.Flags&proto.ResolveError != 0 {
		d.bounce(&st, dsn.S(5, 1, 3), "bad recipient address syntax: %s", mailbox.External(addr))
		return
	}
	st.addr = to.Recipient
	if st.unmatched != "" {
		if local, domain, at := rfc5322.Split(st.addr); at {
			st.addr = local + st.delim + st.unmatched + "@" + domain
		}
	}
	// The same transport under another name is another delivery, with limits of its own: it goes
	// through the queue.
	if to.Transport == d.Service {
		d.recipient(st)
	} else {
		d.indirect(st)
	}
}

// A forward is a message to be queued: with one Delivered-To: line and one
// sender, and no more recipients than the spool can record as one. The members
// of a list that has more are spread over several; when one of these cannot be
// queued those before it are, and come again with the next attempt.
type forward struct {
	delivered, sender string
	envID             string
	ret               dsn.Ret
	rcpts             []mail.Recipient
	size              int64 // of the recipients as the spool records them, about
}

// indirect has the message queued again for an address.
func (d *delivery) indirect(st state) {
	if d.seen("indirect %s", strings.ToLower(st.addr)) {
		return
	}
	if d.request.Envelope.Trace.DontDeliver() {
		d.sent(&st, "forwards to %s", mailbox.External(st.addr))
		return
	}
	if st.led != nil && !d.allowed(&st) {
		return
	}
	var f *forward
	// Members of a list mostly go out under one sender: one message, and one sync, for all of them.
	for _, old := range d.forwards {
		if old.delivered == st.delivered && old.sender == st.sender && old.size < d.forwardLimit {
			f = old
		}
	}
	if f == nil {
		f = &forward{delivered: st.delivered, sender: st.sender, envID: st.envID, ret: st.ret}
		d.forwards = append(d.forwards, f)
	}
	r := st.envelope()
	const fixed = 9 // lengths, tags, notifications
	f.rcpts = append(f.rcpts, r)
	f.size += int64(len(r.Address) + len(r.Original) + len(r.ORCPT) + fixed)
}

// maxLed bounds what a user's .forward file can lead to, in octets of
// recipients: by lists that it names again and again, say.
const maxLed = 16 << 20

// allowed counts an address for that. The bound is the user's, and the failure the address's that has
// reached it: it is said once, and what comes after it is left out without a word.
func (d *delivery) allowed(st *state) bool {
	if st.led.led < 0 {
		return false
	}
	if st.led.led += int64(len(st.addr) + len(st.orig) + len(st.orcpt)); st.led.led <= maxLed {
		return true
	}
	st.led.led = -1
	d.Log.LogWarning(maillog.AddressProblem{ID: string(d.request.Envelope.ID), Address: mailbox.External(st.delivered), Fault: maillog.AddressTooMany})
	d.bounce(st, dsn.S(5, 2, 4), "too many destinations")
	return false
}

// envelope is the present address as a recipient of a message. What it was originally is left out
// where it is the same: the spool would record it twice.
func (st *state) envelope() mail.Recipient {
	r := mail.Recipient{Address: st.addr, Original: st.orig, ORCPT: st.orcpt, Notify: st.notify}
	if r.Original == r.Address {
		r.Original = ""
	}
	return r
}

// sendForwards queues what indirect has gathered. What came of it is said of
// the recipient: once for each message, however many it is for.
func (d *delivery) sendForwards() {
	st := &state{addr: d.request.Envelope.Recipients[d.index].Address}
	for _, f := range d.forwards {
		id, err := d.sendForward(f)
		if err != nil {
			d.Log.LogWarning(maillog.ForwardFailed{ID: string(d.request.Envelope.ID), Reason: err.Error()})
			d.deferIt(st, tryLater, "unable to forward message")
			return // it will all be done again
		}
		d.add(st, dsn.Expanded, dsn.S(2, 0, 0), "forwarded as "+string(id), "", "")
	}
}

// sendForward submits one message, to cleanup as a client would: it is durable when this returns
// without an error, and has a queue ID of its own. An error that comes of Commit may be in doubt:
// then there may be a copy in the queue, and the next attempt makes another.
func (d *delivery) sendForward(f *forward) (mail.QueueID, error) {
	now := time.Now()
	id, err := d.Submit.NewID(d.ctx, now)
	if err != nil {
		return "", err
	}
	from := d.request.Envelope
	// What the message is by its nature, SMTPUTF8 or REQUIRETLS, stays with it, and so does whose it is and what it is sent
	// from. What was asked of the envelope that it came in does not.
	env := mail.Envelope{ID: id, Arrival: now, Sender: f.sender, EnvID: f.envID, Ret: f.ret, Client: from.Client, SASL: from.SASL,
		Reverse: from.Reverse, Trace: from.Trace, RewriteContext: from.RewriteContext, LogIdent: from.LogIdent,
		Body: from.Body & mail.BodySMTPUTF8, RequireTLS: from.RequireTLS, Tenant: from.Tenant, Campaign: from.Campaign, Pool: from.Pool, TLSOptional: from.TLSOptional, Forwarded: true, Recipients: f.rcpts}
	// Its client was judged when the message came in, and is still the same in env; it may be signed.
	m := d.Submit.Open(&env, submit.Options{Flags: proto.SubmitMap | proto.SubmitBounce | proto.SubmitNoReceive | proto.SubmitRequeued | d.autoUTF8})
	head := fmt.Sprintf("Received: by %s (%s)\r\n\tid %s; %s\r\n", d.hostname, d.mailName, id, rfc5322.Date(now))
	if d.headers&toForward != 0 {
		head += "Delivered-To: " + strings.ToLower(mailbox.External(f.delivered)) + "\r\n"
	}
	_, err = io.WriteString(m, head)
	if err == nil {
		if all := d.content.Bytes(); all != nil {
			_, err = m.Write(all)
		} else {
			_, err = io.Copy(m, d.content.Reader())
		}
	}
	if err != nil {
		// Nothing is queued of it. The recipient is tried again, with all that it expands to.
		m.Abort()
		return "", err
	}
	reply, err := m.Commit(d.ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", id, err) // it may be in doubt
	}
	if reply.Code != 250 {
		return "", fmt.Errorf("cleanup refused the message: %s", reply.Reason())
	}
	return id, nil
}
