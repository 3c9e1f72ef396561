package local

import (
	"strings"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// add logs what came of the present address and notes it.
func (d *delivery) add(st *state, action dsn.Action, status dsn.Status, text, diagType, diag string) {
	p := d.request.Part(d.index, st.addr, action, status, text, agent.Detail{Relay: d.Service, DiagType: diagType, DiagText: diag})
	if st.listOwner && p.Action == dsn.Failed {
		p.Owner = st.owner
	}
	d.part(p)
}

// part notes what came of one destination. It has been logged.
func (d *delivery) part(p mail.Part) {
	// Counted, so that nobody has to look through the parts of a large list again and again.
	if rank(&p) == later {
		d.deferred++
	}
	d.parts = append(d.parts, p)
}

// adopt notes what another transport's agent says of an address.
func (d *delivery) adopt(to string, o *mail.Outcome) {
	if len(o.Parts) > 0 { // it expands, too
		for _, p := range o.Parts {
			d.part(p)
		}
		return
	}
	d.passed = o
	d.part(o.Part(to))
}

// rank orders what can come of a part: the highest decides.
func rank(p *mail.Part) int {
	switch {
	case p.Action == dsn.Deferred, p.Action == dsn.Undeliverable && p.Status.Class == 4:
		return later
	case p.Action == dsn.Failed, p.Action == dsn.Undeliverable:
		return never
	}
	return well
}

// What a part can come to, in the order of rank. A part to be tried again outranks one that has
// failed for good: the recipient stays in the queue, and all of it is done again.
const (
	well = iota
	never
	later
)

// conclude reports the recipient: it is to be tried again when any part of it
// is, has failed when any part has, and has been delivered when all have. A
// recipient that was expanded is reported with the parts that there is
// something to say of.
func (d *delivery) conclude() {
	r, i := d.request, d.index
	addr := r.Envelope.Recipients[i].Address
	if len(d.parts) == 0 { // everything was a duplicate of what another recipient got
		r.Sent(i, dsn.S(2, 0, 0), "duplicate", agent.Detail{Relay: d.Service})
		return
	}
	single := len(d.parts) == 1 && d.parts[0].Address == addr
	// Nothing was expanded: what the other agent has said stands as it is, with its server's reply.
	if single && d.passed != nil {
		r.Adopt(i, *d.passed)
		return
	}
	// From here on a report may name several parts, or the recipient as one.
	o, worst := d.whole()
	trace := r.Envelope.Trace
	report := trace&(mail.TraceReport|mail.TraceRecord) != 0 || d.confirmCleared && rank(worst) == well && d.unfolded == 0
	parts := []mail.Part(nil)
	if single = single && d.unfolded == 0; !single && (report || rank(worst) > well) {
		parts = d.reported(report)
	}
	if d.unfolded != 0 && !trace.DontDeliver() { // that is a success, whatever becomes of the members
		p := mail.Part{Address: addr, Action: d.unfolded, Status: dsn.S(2, 0, 0), Reason: "alias expanded", Relay: d.Service}
		if rank(worst) == well {
			o.Action, o.Status, o.Reason, worst = p.Action, p.Status, p.Reason, &p
		}
		if parts != nil {
			parts = append([]mail.Part{p}, parts...)
		}
	}
	if o.Parts = mail.BoundParts(parts, addr); parts == nil {
		o.MTA, o.DiagType, o.DiagText, o.Owner = worst.MTA, worst.DiagType, worst.DiagText, worst.Owner
	}
	r.Adopt(i, o)
}

// reported are the parts to be reported: all, or those that are not well.
func (d *delivery) reported(all bool) (list []mail.Part) {
	for i := range d.parts {
		if p := &d.parts[i]; all || rank(p) > well {
			list = append(list, *p)
		}
	}
	return list
}

// maxText bounds the reasons of many parts put together.
const maxText = 2000

// whole is what the parts come to together, and the first of those that decide.
func (d *delivery) whole() (o mail.Outcome, worst *mail.Part) {
	for i := range d.parts {
		p := &d.parts[i]
		switch {
		case worst == nil || rank(p) > rank(worst):
			worst = p
			o = mail.Outcome{Action: p.Action, Status: p.Status, Reason: p.Reason, Relay: p.Relay, When: time.Now()}
		case rank(p) < rank(worst):
		default:
			// A thousand members of a list that fail alike are one reason.
			if !strings.Contains(o.Reason, p.Reason) && len(o.Reason) < maxText {
				o.Reason += "; " + p.Reason
			}
			if p.Action == dsn.Expanded {
				o.Action = dsn.Expanded
			}
		}
	}
	return o, worst
}
