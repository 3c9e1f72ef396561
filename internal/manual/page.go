package manual

import (
	"strconv"
	"strings"
)

// A command is a program that people call, and what its page says. The same
// tables make its completion.
type command struct {
	name     string
	aliases  []string // names whose page is this one
	what     string
	synopsis []string // see synopsis
	about    []string // paragraphs
	options  []option
	long     []longOption // described in a section
	words    []word       // subcommands
	operands kind         // what arguments after the options are
	sections []section
	status   []status
	files    []item
	see      []string
}

// An option is one letter that a command takes.
type option struct {
	letter byte
	arg    string // what stands for the value; "" when there is none
	kind   kind   // what the value is, for completion
	text   string
}

// A word is a subcommand.
type word struct {
	name, args string // args in the form of a synopsis
	text       string
}

// A section has a title of its own, prose, and perhaps a list.
type section struct {
	title   string
	about   []string
	items   []item
	example string
}

type status struct {
	code int
	text string
}

// A kind says what a value is.
type kind string

// The kinds of values; a value of the form "a|b|c" is one of these words.
const (
	none      kind = ""
	directory kind = "directory"
	file      kind = "file"
	queueID   kind = "queue ID"
	parameter kind = "parameter"
	tableSpec kind = "table"
	site      kind = "site"
	queueName kind = "hold|incoming|active|deferred|corrupt|maildrop"
)

// choices are the words that the value may be.
func (k kind) choices() []string {
	if strings.Contains(string(k), "|") {
		return strings.Split(string(k), "|")
	}
	return nil
}

// page is the manual page.
func (c *command) page() []byte {
	p := newPage(c.name, 1, c.what, c.aliases...)
	p.section("Synopsis")
	for _, s := range c.synopsis {
		p.synopsis(s)
	}
	p.section("Description")
	p.paragraphs(c.about...)
	if len(c.words) > 0 {
		p.line(".Pp")
		p.line("The commands are:")
		var list []item
		for _, w := range c.words {
			list = append(list, item{"Cm " + w.name + terms(w.args), w.text})
		}
		p.items("Ds", list)
	}
	if len(c.options) > 0 {
		p.line(".Pp")
		p.line("The options are:")
		var list []item
		for _, o := range c.options {
			tag := "Fl " + argument(string(o.letter))
			if o.arg != "" {
				tag += " Ar " + argument(o.arg)
			}
			list = append(list, item{tag, o.text})
		}
		p.items("Ds", list)
	}
	for _, s := range c.sections {
		if s.title != "Security considerations" && s.title != "Examples" {
			p.section(s.title)
			s.write(p)
		}
	}
	if len(c.files) > 0 {
		p.section("Files")
		p.items("Ds", c.files)
	}
	if len(c.status) > 0 {
		p.section("Exit status")
		var list []item
		for _, s := range c.status {
			list = append(list, item{strconv.Itoa(s.code), s.text})
		}
		p.items("Ds", list)
	}
	c.late(p, "Examples")
	p.seeAlso(c.see...)
	c.late(p, "Security considerations")
	return p.Bytes()
}

// late writes the section of that title, where there is one: its place is
// fixed by mdoc(7).
func (c *command) late(p *roff, title string) {
	for _, s := range c.sections {
		if s.title == title {
			p.section(title)
			s.write(p)
		}
	}
}

func (s *section) write(p *roff) {
	p.paragraphs(s.about...)
	if len(s.items) > 0 {
		p.items("Ds", s.items)
	}
	if s.example != "" {
		p.literal(s.example)
	}
}

// synopsis writes one form of a command line: the command's name, then
// options, [optional parts], !words that are typed as they stand, and names of
// arguments. What follows "]" without a space is written without one.
func (p *roff) synopsis(form string) {
	p.line(".Nm")
	glue := ""
	for form = strings.TrimSpace(form); form != ""; form = strings.TrimLeft(form, " ") {
		if strings.HasPrefix(form, "[") {
			end := strings.IndexByte(form, ']')
			part := form[1:end]
			form = form[end+1:]
			if form != "" && form[0] != ' ' {
				glue = "Oo" + terms(part) + " Oc Ns "
				continue
			}
			p.line(".Op%s", terms(part))
			continue
		}
		end := strings.IndexByte(form, '[')
		if end < 0 {
			end = len(form)
		}
		p.line(".%s%s", glue, strings.TrimSpace(terms(form[:end])))
		form, glue = form[end:], ""
	}
}

// terms turns options, !words, arguments and [words] into macros, with a
// space before.
func terms(part string) string {
	var b strings.Builder
	for _, w := range strings.Fields(part) {
		inner, opened := strings.CutPrefix(w, "[")
		inner, closed := strings.CutSuffix(inner, "]")
		if opened {
			b.WriteString(" Oo")
		}
		switch {
		case inner == "|" || inner == ":":
			b.WriteString(" " + inner)
		case inner[0] == '-':
			b.WriteString(" Fl " + argument(inner[1:]))
		case inner[0] == '!':
			b.WriteString(" Cm " + argument(inner[1:]))
		case inner == "...":
			b.WriteString(" Ar ...")
		default:
			b.WriteString(" Ar " + argument(inner))
		}
		if closed {
			b.WriteString(" Oc")
		}
	}
	return b.String()
}
