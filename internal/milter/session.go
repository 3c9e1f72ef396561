package milter

import (
	"context"
	"encoding/binary"
	"net/netip"

	"posthaste/internal/mailfilter"
)

// A Session is one SMTP session, or what stands for one, with all its filters.
// It is used by one goroutine at a time.
type Session struct {
	filters []*filter
	macros  map[string]string
	hold    bool // some filter wants the present message held
}

// Open makes a session. Filters are connected to when there is something to
// tell them. pool may be nil; warn is told what goes wrong with filters.
func Open(specs []mailfilter.Spec, pool *Pool, warn func(format string, args ...any)) *Session {
	s := &Session{macros: make(map[string]string, 16)}
	for _, spec := range specs {
		s.filters = append(s.filters, &filter{spec: spec, pool: pool, warn: warn})
	}
	return s
}

// SetMacros sets macros, given as names and values in turn. An empty value
// takes a macro back.
func (s *Session) SetMacros(pairs []string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			delete(s.macros, pairs[i])
		} else {
			s.macros[pairs[i]] = pairs[i+1]
		}
	}
}

// Connect tells of a client. addr is the zero Addr if there is none.
func (s *Session) Connect(ctx context.Context, name string, addr netip.Addr, port uint16) mailfilter.Verdict {
	e := &event{name: "CONNECT", kind: cmdConnect, stage: mailfilter.StageConnect, skip: stepNoConnect, noWait: stepNRConnect,
		fill: func(b []byte) []byte {
			b = appendStrings(b, name)
			switch {
			case addr.Is4():
				b = append(b, '4')
			case addr.Is6():
				b = append(b, '6')
			default:
				return append(b, 'U')
			}
			b = binary.BigEndian.AppendUint16(b, port)
			return appendStrings(b, addr.String())
		}}
	return s.each(func(f *filter) mailfilter.Verdict {
		if err := f.open(ctx); err != nil {
			f.warn("%v", err)
			return f.giveUp()
		}
		return f.send(e, s.macros)
	})
}

// Helo tells of HELO or EHLO. What was told of a message is forgotten.
func (s *Session) Helo(name string) mailfilter.Verdict {
	s.Abort()
	return s.tell(&event{name: "HELO", kind: cmdHelo, stage: mailfilter.StageHelo, skip: stepNoHelo, noWait: stepNRHelo,
		fill: func(b []byte) []byte { return appendStrings(b, name) }})
}

// Mail tells of the sender, in angle brackets, with the parameters of MAIL.
func (s *Session) Mail(args ...string) mailfilter.Verdict {
	for _, f := range s.filters {
		f.opened = true
	}
	return s.tell(&event{name: "MAIL", kind: cmdMail, stage: mailfilter.StageMail, skip: stepNoMail, noWait: stepNRMail,
		fill: func(b []byte) []byte { return appendStrings(b, args...) }})
}

// Rcpt tells of a recipient, in angle brackets, with the parameters of RCPT. A
// refusal is of this recipient only.
func (s *Session) Rcpt(args ...string) mailfilter.Verdict { return s.tell(rcpt(args)) }

func rcpt(args []string) *event {
	return &event{name: "RCPT", kind: cmdRcpt, stage: mailfilter.StageRcpt, skip: stepNoRcpt, noWait: stepNRRcpt,
		fill: func(b []byte) []byte { return appendStrings(b, args...) }}
}

// Refused tells of a recipient that has been refused already, as Rcpt does, only those
// filters that asked to see such. What they say changes nothing.
func (s *Session) Refused(args ...string) {
	for _, f := range s.filters {
		if !f.dead && !f.done && f.opts.steps&stepRcptRej != 0 {
			f.send(rcpt(args), s.macros)
		}
	}
}

// Data tells that content comes.
func (s *Session) Data() mailfilter.Verdict {
	return s.tell(&event{name: "DATA", kind: cmdData, stage: mailfilter.StageData, skip: stepNoData, noWait: stepNRData})
}

// Unknown tells of a command line that is none.
func (s *Session) Unknown(line string) mailfilter.Verdict {
	return s.tell(&event{name: "UNKNOWN", kind: cmdUnknown, stage: mailfilter.StageUnknown, skip: stepNoUnknown, noWait: stepNRUnknown,
		fill: func(b []byte) []byte { return appendStrings(b, line) }})
}

// Abort tells that nothing comes of the present message.
func (s *Session) Abort() {
	s.hold = false
	for _, f := range s.filters {
		f.abort()
	}
}

// Close ends the session.
func (s *Session) Close() {
	for _, f := range s.filters {
		f.close()
	}
}

func (s *Session) tell(e *event) mailfilter.Verdict {
	return s.each(func(f *filter) mailfilter.Verdict { return f.send(e, s.macros) })
}

// each asks the filters in order, up to the first that has something against
// it. A filter that is not asked any more still says what it said last of all
// messages.
func (s *Session) each(ask func(*filter) mailfilter.Verdict) mailfilter.Verdict {
	for _, f := range s.filters {
		v := f.verdict
		if !f.dead && !f.done {
			v = ask(f)
		}
		s.hold = s.hold || v.Hold
		if v.Action != mailfilter.Continue {
			v.Hold = s.hold
			return v
		}
	}
	return mailfilter.Verdict{Hold: s.hold}
}
