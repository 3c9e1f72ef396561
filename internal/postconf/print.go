package postconf

import (
	"strings"

	"posthaste/internal/config"
)

// Folded lines are shorter than lineLimit where words allow, and continue
// with indent.
const (
	lineLimit = 80
	indent    = "    "
)

// A folder builds one logical line from words, one space apart.
type folder struct {
	b      strings.Builder
	column int
	fresh  bool // at the start of a line: no space before the next word
	fold   bool
}

func newFolder(fold bool) folder { return folder{fold: fold, fresh: true} }

// word appends a word, on a new line if folding asks for it.
func (f *folder) word(w string) {
	switch {
	case f.fresh:
		f.fresh = false
	case f.fold && f.column+1+len(w) >= lineLimit:
		f.newline()
		f.fresh = false
	default:
		f.b.WriteByte(' ')
		f.column++
	}
	f.b.WriteString(w)
	f.column += len(w)
}

// newline continues the logical line on the next physical one. The word that
// follows needs no space before it.
func (f *folder) newline() {
	f.b.WriteString("\n" + indent)
	f.column = len(indent)
	f.fresh = true
}

// parameter formats "name = value" (name empty: the value only).
func parameter(name, value string, fold bool) string {
	f := newFolder(fold)
	if name != "" {
		f.word(name)
		f.word("=")
	}
	for _, w := range strings.Fields(value) {
		f.word(w)
	}
	return f.b.String()
}

// masterEntry formats a master.cf entry in columns. Folded, each -o has
// a line of its own.
func masterEntry(e *entry, fold bool) string {
	f := newFolder(fold)
	width := [...]int{10, 5, 7, 7, 7, 7, 7}
	stop := 0
	for i, field := range e.fields {
		stop += width[i] + 1
		f.b.WriteString(field + " ")
		f.column += len(field) + 1
		for ; f.column < stop; f.column++ {
			f.b.WriteByte(' ')
		}
	}
	f.word(e.command)
	inOptions := true
	for args := e.args; len(args) > 0; {
		inOptions = inOptions && strings.HasPrefix(args[0], "-")
		n := 1
		if args[0] == "-o" && len(args) > 1 {
			n = 2
		}
		own := fold && inOptions && n == 2
		if own && !f.fresh {
			f.newline()
		}
		f.word(optionText(args[:n]))
		if args = args[n:]; own && len(args) > 0 {
			f.newline()
		}
	}
	return f.b.String()
}

// optionText writes one argument, or -o with its argument.
func optionText(args []string) string {
	if len(args) == 2 {
		if o, err := config.ParseOverride(args[1]); err == nil {
			return "-o " + config.JoinArgs([]string{o.String()})
		}
	}
	return config.JoinArgs(args)
}
