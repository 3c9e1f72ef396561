package track

import (
	"slices"
	"time"

	"posthaste/internal/logread"
)

// A Step is what one line of the log says.
type Step struct {
	Time    time.Time `json:"time,omitzero"` // zero: the line has none that can be read
	Program string    `json:"program"`
	// Text is the line's text without the queue ID, as it stands there.
	Text string `json:"text"`
	File string `json:"file"`
	Line int64  `json:"line"` // from 1
	Raw  string `json:"-"`    // the whole line
}

// An Attempt is one try to deliver to a recipient.
type Attempt struct {
	Step
	Relay  string `json:"relay"`
	Delay  string `json:"delay"`  // seconds
	Delays string `json:"delays"` // before the queue manager, in it, connection, transmission
	TLS    string `json:"tls,omitempty"`
	DSN    string `json:"dsn"`
	Status string `json:"status"` // sent, deferred, bounced, ...
	Reply  string `json:"reply"`  // of the next hop, or the reason
}

// A Recipient is one of a message, with all attempts.
type Recipient struct {
	To       string    `json:"to"`
	OrigTo   string    `json:"orig_to,omitempty"` // before aliases, if it was another
	Attempts []Attempt `json:"attempts"`
}

// A Message is what the log has of one queue ID.
type Message struct {
	ID        string      `json:"queue_id"`
	How       string      `json:"how,omitempty"` // what made it of the message whose child it is: forwarded, report, requeued, filtered, passed on, brought back
	MessageID string      `json:"message_id,omitempty"`
	Client    string      `json:"client_name,omitempty"`
	Address   string      `json:"client_address,omitempty"`
	Orig      string      `json:"orig_client_name,omitempty"` // before a filter
	OrigAddr  string      `json:"orig_client_address,omitempty"`
	User      string      `json:"sasl_username,omitempty"`
	UID       string      `json:"uid,omitempty"`  // of the user who submitted it
	From      *string     `json:"from,omitempty"` // nil: not known; empty: the null sender
	Size      int64       `json:"size,omitempty"`
	NRcpt     int         `json:"nrcpt,omitempty"`
	State     State       `json:"state"`
	Begin     time.Time   `json:"begin,omitzero"` // of the first line
	End       time.Time   `json:"end,omitzero"`   // of the last one
	Rcpts     []Recipient `json:"recipients"`
	// Steps are all lines but the attempts.
	Steps    []Step     `json:"steps"`
	Children []*Message `json:"children,omitempty"`
}

// A State says in a word what became of a message.
type State string

// The states of messages.
const (
	Queued    State = "queued"    // it has not left the queue, by the log, and was not tried
	Deferred  State = "deferred"  // it has not left the queue, and was tried
	Delivered State = "delivered" // to all recipients
	Forwarded State = "forwarded" // other messages carry it on
	Bounced   State = "bounced"   // all recipients failed
	Partly    State = "partly delivered"
	Requeued  State = "requeued"
	Deleted   State = "deleted" // by an operator
	Expired   State = "expired"
	Refused   State = "refused" // by the server, when its content was there or before
	Finished  State = "removed" // the log does not say how
)

// A Refusal is a line of a client that is of no message.
type Refusal struct {
	Step
	Action  string  `json:"action"` // reject, hold, ...; session: it is not a decision
	Stage   string  `json:"stage,omitempty"`
	Client  string  `json:"client_name,omitempty"`
	Address string  `json:"client_address,omitempty"`
	Helo    string  `json:"helo,omitempty"`
	User    string  `json:"sasl_username,omitempty"`
	From    *string `json:"from,omitempty"`
	To      string  `json:"to,omitempty"`
	Reply   string  `json:"reply,omitempty"`
}

// step is what a line says.
func (x *run) step(e *event, r record) Step {
	s := Step{Program: string(e.line.Program), Text: string(e.line.Text), File: x.fileOf(r.pos), Line: r.line, Raw: r.raw}
	if r.at != 0 {
		s.Time = time.UnixMicro(r.at)
	}
	if level := e.line.Level; len(level) > 0 {
		s.Text = string(level) + ": " + s.Text
	}
	return s
}

// messages are those of a family, as a forest.
func (x *run) messages(b *book, family []*entry) (roots []*Message) {
	made := map[*entry]*Message{}
	for _, e := range family {
		made[e] = x.message(e)
	}
	under := map[*entry]*entry{}
	for _, e := range family {
		parent, how := b.came(e)
		for p := parent; p != nil; p = under[p] {
			if p == e { // two that name each other
				parent = nil
				break
			}
		}
		if parent == nil || made[parent] == nil {
			roots = append(roots, made[e])
			continue
		}
		under[e] = parent
		made[e].How = relations[how]
		made[parent].Children = append(made[parent].Children, made[e])
	}
	return roots
}

// An assembler puts the lines of one message together.
type assembler struct {
	*Message
	deleted, requeued, expired, refused, gone bool
}

// message is what the lines of one queue ID say.
func (x *run) message(e *entry) *Message {
	a := assembler{Message: &Message{ID: e.id, Rcpts: []Recipient{}, Steps: []Step{}}}
	var ev event
	for _, r := range e.records {
		l, ok := x.parsers[r.pos>>fileShift].Parse([]byte(r.raw))
		if !ok || !ev.parse(l) {
			continue
		}
		step := x.step(&ev, r)
		if !step.Time.IsZero() {
			if a.End = step.Time; a.Begin.IsZero() {
				a.Begin = step.Time
			}
		}
		if ev.kind == delivery {
			a.attempt(&ev, step)
			continue
		}
		a.Steps = append(a.Steps, step)
		a.addEvent(&ev)
	}
	a.State = a.state()
	return a.Message
}

func (a *assembler) attempt(ev *event, step Step) {
	d := &ev.delivery
	to, orig := string(d.To), string(d.OrigTo)
	i := slices.IndexFunc(a.Rcpts, func(r Recipient) bool { return r.To == to && r.OrigTo == orig })
	if i < 0 {
		i = len(a.Rcpts)
		a.Rcpts = append(a.Rcpts, Recipient{To: to, OrigTo: orig})
	}
	r := &a.Rcpts[i]
	r.Attempts = append(r.Attempts, Attempt{step, string(d.Relay), string(d.Delay), string(d.Delays), string(d.TLS), string(d.DSN), string(d.Status), string(d.Reason)})
}

// addEvent takes in a line that is not about a recipient.
func (a *assembler) addEvent(ev *event) {
	host := func(h logread.Host, name, addr *string) {
		if len(h.Name)+len(h.Addr) > 0 && *name == "" {
			*name, *addr = string(h.Name), string(h.Addr)
		}
	}
	switch ev.kind {
	case arrival, verdict:
		host(ev.client, &a.Client, &a.Address)
		host(ev.orig, &a.Orig, &a.OrigAddr)
		if len(ev.user) > 0 {
			a.User = string(ev.user)
		}
		a.refused = a.refused || ev.kind == verdict && ends(ev.verdict)
	case pickup:
		if p, ok := ev.line.Pickup(); ok {
			a.UID = string(p.UID)
		}
	case messageID:
		if !ev.resent || a.MessageID == "" {
			a.MessageID = string(ev.mid)
		}
	case active:
		a.Size, a.NRcpt = ev.active.Size, max(a.NRcpt, ev.active.NRcpt)
	case requeued:
		a.requeued = true
	case expired:
		a.expired = true
	case removed:
		a.gone = true
		a.deleted = a.deleted || string(ev.line.Program) == "postsuper"
	}
	if ev.hasFrom && (a.From == nil || ev.kind == active) {
		from := string(ev.from)
		a.From = &from
	}
}

// state says what became of the message, by the last attempt for each recipient.
func (a *assembler) state() State {
	sent, carried, failed, waiting := 0, 0, 0, max(0, a.NRcpt-len(a.Rcpts))
	for _, r := range a.Rcpts {
		switch last := r.Attempts[len(r.Attempts)-1]; last.Status {
		case "sent", "deliverable":
			if sent++; len(last.Reply) > len("forwarded as ") && last.Reply[:len("forwarded as ")] == "forwarded as " {
				carried++
			}
		case "bounced", "undeliverable":
			failed++
		default:
			waiting++
		}
	}
	switch {
	case a.deleted:
		return Deleted
	case a.requeued:
		return Requeued
	case a.expired:
		return Expired
	case a.refused && len(a.Rcpts) == 0:
		return Refused
	case !a.gone && len(a.Rcpts) == 0:
		return Queued
	case !a.gone && (waiting > 0 || sent+failed < a.NRcpt):
		return Deferred
	case sent > 0 && failed > 0:
		return Partly
	case failed > 0:
		return Bounced
	case sent > 0 && carried == sent:
		return Forwarded
	case sent > 0:
		return Delivered
	}
	return Finished
}
