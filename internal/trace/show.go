package trace

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"posthaste/internal/track"
)

// show prints one thing that was found.
func (c *command) show(f track.Found) {
	if c.args.json {
		if f.Refusal != nil {
			c.json(struct {
				Kind string `json:"kind"`
				*track.Refusal
			}{"refusal", f.Refusal})
		}
		for _, m := range f.Messages {
			c.json(struct {
				Kind string `json:"kind"`
				*track.Message
			}{"message", m})
		}
		return
	}
	if f.Refusal != nil {
		c.refusal(f.Refusal)
	}
	for _, m := range f.Messages {
		c.message(m, "")
	}
	c.out.WriteByte('\n')
}

// json prints a value on one line, without what a terminal would not show as a character.
func (c *command) json(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		c.warn("%v", err)
		return
	}
	for _, r := range string(b) {
		switch {
		case unicode.IsPrint(r):
			c.out.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(c.out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(c.out, `\u%04x`, r)
		}
	}
	c.out.WriteByte('\n')
}

// visible makes control characters, what is not UTF-8, and what changes the direction of writing visible.
func visible(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1 || r < utf8.RuneSelf && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		s = s[n:]
	}
	return b.String()
}

// say prints a line with an indent.
func (c *command) say(indent, format string, args ...any) {
	c.out.WriteString(indent)
	c.out.WriteString(visible(fmt.Sprintf(format, args...)))
	c.out.WriteByte('\n')
}

// stamp is the time of a step.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "-                  "
	}
	return t.Local().Format(time.DateTime)
}

// place prints where a step stands in the log.
func (c *command) place(indent string, s track.Step) {
	if c.args.lines {
		c.say(indent+"    ", "%s:%d: %s", s.File, s.Line, s.Raw)
	}
}

func host(name, addr string) string {
	if addr == "" {
		return name
	}
	return name + "[" + addr + "]"
}

// message prints a message and what it became.
func (c *command) message(m *track.Message, indent string) {
	how := ""
	if m.How != "" {
		how = m.How + ": "
	}
	c.say(indent, "%s%s  %s", how, m.ID, m.State)
	in := indent + "    "
	c.origin(m, in)
	for _, r := range m.Rcpts {
		was := ""
		if r.OrigTo != "" {
			was = ", sent to <" + r.OrigTo + ">"
		}
		c.say(in, "to <%s>%s", r.To, was)
		for _, a := range r.Attempts {
			secure := ""
			if a.TLS != "" {
				secure = ", tls " + a.TLS
			}
			c.say(in+"    ", "%s  %s %s, relay %s, after %s s (%s)%s: %s", stamp(a.Time), a.Status, a.DSN, a.Relay, a.Delay, a.Delays, secure, a.Reply)
			c.place(in+"    ", a.Step)
		}
	}
	for _, s := range m.Steps {
		if c.args.lines || !told(m, s) {
			c.say(in, "%s  %s: %s", stamp(s.Time), s.Program, s.Text)
			c.place(in, s)
		}
	}
	for _, child := range m.Children {
		c.message(child, in)
	}
}

// told says whether a step is in what is printed of the message as a whole.
func told(m *track.Message, s track.Step) bool {
	switch s.Program {
	case "smtpd", "inject":
		return strings.HasPrefix(s.Text, "client=")
	case "pickup":
		return strings.HasPrefix(s.Text, "uid=")
	case "cleanup":
		return s.Text == "message-id="+m.MessageID || s.Text == "message-id=<"+m.MessageID+">"
	case "qmgr":
		return strings.HasSuffix(s.Text, " (queue active)") && m.From != nil && strings.HasPrefix(s.Text, "from=<"+*m.From+">, size=")
	}
	return false
}

// origin prints whom a message is from, and what it is.
func (c *command) origin(m *track.Message, in string) {
	var about []string
	if m.From != nil {
		about = append(about, "from <"+*m.From+">")
	}
	if m.Size > 0 {
		about = append(about, fmt.Sprintf("%d octets", m.Size))
	}
	if m.NRcpt > 0 {
		about = append(about, fmt.Sprintf("%d recipient%s", m.NRcpt, map[bool]string{true: "s"}[m.NRcpt != 1]))
	}
	if len(about) > 0 {
		c.say(in, "%s  %s", stamp(m.Begin), strings.Join(about, ", "))
	}
	if client := host(m.Client, m.Address); client != "" {
		if m.Orig != "" || m.OrigAddr != "" {
			client += " for " + host(m.Orig, m.OrigAddr)
		}
		if m.User != "" {
			client += ", logged in as " + m.User
		}
		c.say(in, "client %s", client)
	}
	if m.UID != "" {
		c.say(in, "submitted by user %s", m.UID)
	}
	if m.MessageID != "" {
		c.say(in, "message-id <%s>", m.MessageID)
	}
}

// refusal prints a line that is of no message.
func (c *command) refusal(r *track.Refusal) {
	if r.Action == "session" {
		c.say("", "session of %s", host(r.Client, r.Address))
		c.say("    ", "%s  %s: %s", stamp(r.Time), r.Program, r.Text)
		c.place("    ", r.Step)
		return
	}
	stage := ""
	if r.Stage != "" {
		stage = " at " + r.Stage
	}
	c.say("", "no queue ID  %s%s", r.Action, stage)
	var about []string
	if client := host(r.Client, r.Address); client != "" {
		about = append(about, "client "+client)
	}
	if r.Helo != "" {
		about = append(about, "helo <"+r.Helo+">")
	}
	if r.User != "" {
		about = append(about, "logged in as "+r.User)
	}
	if r.From != nil {
		about = append(about, "from <"+*r.From+">")
	}
	if r.To != "" {
		about = append(about, "to <"+r.To+">")
	}
	c.say("    ", "%s  %s", stamp(r.Time), strings.Join(about, ", "))
	if r.Reply != "" {
		c.say("    ", "%s", r.Reply)
	}
	c.place("    ", r.Step)
}

// live prints a step as it comes.
func (c *command) live(s track.Live) {
	if c.args.json {
		c.json(s)
		return
	}
	id := s.ID
	if id == "" {
		id = "no queue ID"
	}
	c.say("", "%s  %s  %s: %s", stamp(s.Time), id, s.Program, s.Text)
	c.place("", s.Step)
}
