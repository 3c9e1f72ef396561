package config

import (
	"errors"
	"fmt"
	"strings"

	"posthaste/internal/reuse"
)

// A LogicalLine is a line of main.cf or master.cf with its continuation lines,
// and the text's extent in the file. Both files have the same line structure.
type LogicalLine struct {
	Text  string // joined, without line ends; white space at the joints is kept
	Line  int    // number of the first physical line, from 1
	Start int    // offset of the first byte
	End   int    // offset after the last byte, line end included

	// Orphan is set for a line that begins with white space and has no line before it
	// that it could continue. Readers say so, as Postfix does (OrphanWarning), and ignore it.
	Orphan bool
}

// OrphanWarning says of an Orphan in file what Postfix says.
func (l *LogicalLine) OrphanWarning(file string) string {
	text, more := l.Text, ""
	if len(text) > 30 {
		text, more = text[:30], "..."
	}
	return fmt.Sprintf("%s:%d: logical line must not start with whitespace: %q", file, l.Line, text+more)
}

// LogicalLines splits a file. A line that is empty, or whose first character
// that is not white space is #, is a comment: it is left out, and it does not end a
// logical line. A line that begins with white space continues the logical line before it.
func LogicalLines(file string) []LogicalLine {
	var lines []LogicalLine
	var parts []string // physical lines of the last logical line
	flush := func() {
		if len(parts) > 1 {
			lines[len(lines)-1].Text = strings.Join(parts, "")
		}
		parts = reuse.Truncated(parts)
	}
	number := 0
	for offset := 0; offset < len(file); {
		end := len(file)
		if i := strings.IndexByte(file[offset:], '\n'); i >= 0 {
			end = offset + i + 1
		}
		text := strings.TrimRight(file[offset:end], "\r\n")
		number++
		body := trimLeft(text)
		switch {
		case body == "" || body[0] == '#':
		case len(body) < len(text) && len(lines) > 0:
			parts = append(parts, text)
			lines[len(lines)-1].End = end
		default:
			flush()
			parts = append(parts, text)
			lines = append(lines, LogicalLine{Text: text, Line: number, Start: offset, End: end, Orphan: len(body) < len(text)})
		}
		offset = end
	}
	flush()
	return lines
}

// SplitNameValue splits "name = value". The white space around either is
// dropped.
func SplitNameValue(text string) (name, value string, err error) {
	name, value, ok := strings.Cut(text, "=")
	name = strings.Trim(name, " \t\r\n")
	switch {
	case !ok:
		return "", "", fmt.Errorf("expected name = value, found %q", abbreviate(text))
	case name == "":
		return "", "", fmt.Errorf("expected a parameter name before the = in %q", abbreviate(text))
	case !validName(name):
		return "", "", fmt.Errorf("expected a parameter name made of letters, digits and _, found %q", abbreviate(name))
	}
	return name, strings.Trim(value, " \t\r\n"), nil
}

// validName admits what stands in real files besides letters, digits and
// underscores: names built from a service's name may hold what that holds, a
// hyphen, a dot, an address and a port.
func validName(name string) bool {
	for i := 0; i < len(name); i++ {
		if c := name[i]; !isNameByte(c) && strings.IndexByte("-.+:/[]@", c) < 0 {
			return false
		}
	}
	return name != ""
}

// abbreviate keeps what an error message quotes to one screen line.
func abbreviate(text string) string {
	if len(text) > 80 {
		return text[:77] + "..."
	}
	return text
}

// setting is one parameter as a file or an override sets it.
type setting struct {
	raw  string
	file string // as messages name it: "main.cf", or "-o"
	line int
}

// where is the place of a setting in messages.
func (s setting) where() string {
	if s.line == 0 {
		return s.file
	}
	return fmt.Sprintf("%s:%d", s.file, s.line)
}

// parseMain reads the text of a main.cf into settings; the last of several
// settings of one name wins. It goes on after an error and returns all of them.
func parseMain(file, text string, settings map[string]setting) (warnings []string, err error) {
	var errs []error
	for _, l := range LogicalLines(text) {
		if strings.IndexByte(l.Text, 0) >= 0 {
			errs = append(errs, fmt.Errorf("%s:%d: expected text without NUL bytes", file, l.Line))
			continue
		}
		if l.Orphan {
			warnings = append(warnings, l.OrphanWarning(file))
			continue
		}
		name, value, err := SplitNameValue(l.Text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", file, l.Line, err))
			continue
		}
		s := setting{value, file, l.Line}
		if readOnly(name) {
			warnings = append(warnings, fmt.Sprintf("%s: read-only parameter assignment: %s=%s", s.where(), name, abbreviate(value)))
			continue
		}
		if old, dup := settings[name]; dup && old.raw != value {
			warnings = append(warnings, fmt.Sprintf("%s: overriding earlier entry: %s=%s", s.where(), name, abbreviate(old.raw)))
		}
		settings[name] = s
	}
	return warnings, errors.Join(errs...)
}

// readOnly are parameters that say what a process is, which main.cf cannot.
func readOnly(name string) bool {
	return name == "process_id" || name == "process_name" || name == "service_name"
}
