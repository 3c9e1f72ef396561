package table

import (
	"errors"
	"fmt"
	"strings"
)

// Line is one entry of a table's source text.
type Line struct {
	Number     int
	Key, Value string
}

// EachLine calls fn with each logical line of text: a line that begins with
// white space continues the one before it; empty lines and lines whose first
// character other than white space is "#" are passed over, also between
// a line and its continuation. Numbers count from 1 and are where the logical
// line starts.
func EachLine(text string, fn func(n int, line string) error) error {
	var cur string
	start := 0
	flush := func() error {
		if start == 0 {
			return nil
		}
		line, n := cur, start
		cur, start = "", 0
		return fn(n, strings.TrimRight(line, " \t\r"))
	}
	for n := 1; text != ""; n++ {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		line = strings.TrimSuffix(line, "\r")
		trimmed := strings.TrimLeft(line, " \t")
		if trimmed == "" || trimmed[0] == '#' {
			continue
		}
		if line[0] == ' ' || line[0] == '\t' {
			if start > 0 {
				cur += line
				continue
			}
			line = trimmed // nothing to continue: take it as it is meant
		}
		if err := flush(); err != nil {
			return err
		}
		cur, start = line, n
	}
	return flush()
}

var errFormat = errors.New("expected: key, white space, value")

// SplitEntry cuts a logical line of a postmap source at the first white space
// that is not inside quotes or after a backslash.
func SplitEntry(line string) (key, value string, err error) {
	quoted := false
	i := 0
scan:
	for ; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case (c == ' ' || c == '\t') && !quoted:
			break scan
		}
	}
	if i >= len(line) {
		return "", "", errFormat
	}
	key, value = line[:i], strings.TrimSpace(line[i:])
	if value == "" {
		return "", "", errFormat
	}
	return key, value, nil
}

// ParseSource reads a postmap source. Malformed lines are passed over and
// reported to warn with name and line number; fn gets the rest in order.
func ParseSource(name, text string, warn func(string), fn func(Line) error) error {
	if warn == nil {
		warn = func(string) {}
	}
	return EachLine(text, func(n int, line string) error {
		key, value, err := SplitEntry(line)
		if err != nil {
			warn(fmt.Sprintf("%s, line %d: %v; line ignored", name, n, err))
			return nil
		}
		if len(key) > 1 && key[len(key)-1] == ':' {
			warn(fmt.Sprintf("%s, line %d: record is in \"key: value\" format; is this an alias file?", name, n))
		}
		return fn(Line{Number: n, Key: key, Value: value})
	})
}
