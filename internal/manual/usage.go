package manual

import (
	"fmt"
	"regexp"
	"strings"
)

// below is where a page goes on; here it is what follows.
var below = regexp.MustCompile(` See [A-Z ]+(and [A-Z ]+)? below\.`)

// usageWidth is how long lines of help are.
const usageWidth = 79

// usages is the file of package usage: for each command, behind a line of its name, how it is called.
func usages() []byte {
	var b strings.Builder
	b.WriteString("Made of the manual pages by \"make man\".\n")
	for _, c := range commands() {
		if c.name != "posthaste" { // its list of commands is package main's
			c.usage(&b, c.name)
		}
		for _, alias := range c.aliases {
			if c.name != "posthaste" {
				c.usage(&b, alias)
			}
		}
		for _, w := range c.words {
			if w.name != "tool" {
				c.wordUsage(&b, w)
			}
		}
	}
	return []byte(b.String())
}

// usage writes the help for a command under one of its names.
func (c *command) usage(b *strings.Builder, name string) {
	fmt.Fprintf(b, "\n== %s\n", name)
	forms := c.synopsis
	if name != c.name && name == "mailq" || name == "newaliases" {
		forms = []string{"[-v] [-C config_dir]"}
	}
	for i, form := range forms {
		head := "usage: "
		if i > 0 {
			head = "       "
		}
		wrap(b, usageWidth, head+name+" ", strings.Repeat(" ", len(head)+2), strings.NewReplacer(" :", ":").Replace(form))
	}
	if name != c.name {
		fmt.Fprintf(b, "\nIt is %s(1) under another name.\n", c.name)
	} else if len(c.options) > 0 {
		b.WriteString("\n")
		for _, o := range c.options {
			flag := fmt.Sprintf("  -%c %s", o.letter, o.arg)
			wrap(b, usageWidth, fmt.Sprintf("%-20s ", flag), strings.Repeat(" ", 21), o.text)
		}
	}
	fmt.Fprintf(b, "\n%s(1), the manual page, says more.\n", name)
}

// wordUsage writes the help for one of posthaste's commands.
func (c *command) wordUsage(b *strings.Builder, w word) {
	fmt.Fprintf(b, "\n== %s\n", w.name)
	args := strings.TrimPrefix(w.args, "!")
	wrap(b, usageWidth, "usage: posthaste [-c config_dir] "+w.name+" ", strings.Repeat(" ", 9), args)
	b.WriteString("\n")
	wrap(b, usageWidth, "", "", below.ReplaceAllString(w.text, ""))
	for _, s := range c.sections {
		for _, item := range s.items {
			if form, ok := strings.CutPrefix(item.tag, "Cm "+w.name+" "); ok {
				b.WriteString("\n")
				wrap(b, usageWidth, "  "+w.name+" ", "      ", plainMarkup(form))
				wrap(b, usageWidth, "      ", "      ", item.text)
			}
		}
	}
	b.WriteString("\nposthaste(1), the manual page, says more.\n")
}

// plainMarkup is a term of a list without its markup.
func plainMarkup(term string) string {
	var words []string
	open, glue, dash := 0, false, false
	prefix := ""
	add := func(word string) {
		if dash {
			word, dash = "-"+word, false
		}
		word, prefix = prefix+word, ""
		if n := len(words); glue && n > 0 {
			words[n-1] += word
		} else {
			words = append(words, word)
		}
		glue = false
	}
	for word := range strings.FieldsSeq(term) {
		switch word {
		case "Cm", "Ar", "Pa", "Li", "No":
		case "Fl":
			dash = true
		case "Op":
			prefix += "["
			open++
		case "Oo":
			prefix += "["
		case "Oc":
			words[len(words)-1] += "]"
		case "Ns":
			glue = true
		default:
			add(word)
		}
	}
	return strings.Join(words, " ") + strings.Repeat("]", open)
}

// wrap writes words in lines of at most width octets, or one word: the first begins with head, the
// others with indent.
func wrap(b *strings.Builder, width int, head, indent, text string) {
	line := head
	begun := false
	for word := range strings.FieldsSeq(text) {
		if begun && len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line, begun = indent, false
		}
		if begun {
			line += " "
		}
		line += word
		begun = true
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}
