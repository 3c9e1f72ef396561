package local

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"posthaste/internal/rfc5322"
)

// tokenKind is what one destination in an alias, a .forward file or an
// :include: file is.
type tokenKind uint8

const (
	tokenAddress tokenKind = iota
	tokenCommand           // |command
	tokenFile              // /file, or /maildir/
	tokenHome              // ~/file
	tokenInclude           // :include:/path
)

// A token is one destination.
type token struct {
	kind tokenKind
	text string // without | and :include:; the address in internal form
}

// maxLine bounds one logical line of a file of destinations, in bytes.
const maxLine = 1 << 20

// parseTokens reads a comma-separated list of destinations. A destination
// with characters that mean something here stands in double quotes, all of
// it: "|command a, b". What is no destination is passed over.
func parseTokens(text string) []token {
	var out []token
	for text != "" {
		item, rest := cutItem(text)
		text = rest
		out = appendToken(out, strings.TrimSpace(item))
	}
	return out
}

// cutItem cuts at the first comma that is not in quotes, a comment or angle
// brackets.
func cutItem(text string) (item, rest string) {
	comment, angle, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '(':
			comment++
		case c == ')' && comment > 0:
			comment--
		case c == '<':
			angle++
		case c == '>' && angle > 0:
			angle--
		case c == ',' && comment == 0 && angle == 0:
			return text[:i], text[i+1:]
		}
	}
	return text, ""
}

const includePrefix = ":include:"

func appendToken(out []token, item string) []token {
	plain := item
	if q, ok := wholeQuoted(item); ok {
		plain = q
	}
	switch {
	case plain == "":
		return out
	case plain[0] == '|':
		return append(out, token{tokenCommand, strings.TrimSpace(plain[1:])})
	case plain[0] == '/':
		return append(out, token{tokenFile, plain})
	case plain[0] == '~':
		return append(out, token{tokenHome, plain})
	case len(plain) >= len(includePrefix) && strings.EqualFold(plain[:len(includePrefix)], includePrefix):
		path := strings.TrimSpace(plain[len(includePrefix):])
		if q, ok := wholeQuoted(path); ok {
			path = q
		}
		return append(out, token{tokenInclude, path})
	}
	// \user, which once meant the mailbox, is the user: whoever is named in his
	// own alias or .forward gets to the mailbox by that.
	item = strings.TrimPrefix(item, `\`)
	for _, a := range rfc5322.AppendAddresses(nil, item, 0) {
		if a.Addr != "" {
			out = append(out, token{tokenAddress, a.Addr})
		}
	}
	return out
}

// wholeQuoted undoes the quotes around a whole item.
func wholeQuoted(item string) (string, bool) {
	if len(item) < 2 || item[0] != '"' {
		return item, false
	}
	var b strings.Builder
	for i := 1; i < len(item); i++ {
		switch c := item[i]; {
		case c == '\\' && i+1 < len(item):
			i++
			b.WriteByte(item[i])
		case c == '"':
			return b.String(), i == len(item)-1
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), true // no quote at the end: taken as if there were
}

var errLongLine = errors.New("a line is longer than a megabyte")

// eachLine calls fn with every logical line of r: lines that begin with white
// space continue the one before, empty lines and those that begin with # are
// left out. It stops when fn returns false.
func eachLine(r io.Reader, fn func(line string) bool) error {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 4096), maxLine)
	var line strings.Builder
	flush := func() bool {
		text := strings.TrimSpace(line.String())
		line.Reset()
		return text == "" || fn(text)
	}
	for in.Scan() {
		text := in.Text()
		if trimmed := strings.TrimSpace(text); trimmed == "" || trimmed[0] == '#' {
			continue
		}
		if text[0] != ' ' && text[0] != '\t' && !flush() {
			return nil
		}
		if line.Len()+len(text) > maxLine {
			return errLongLine
		}
		line.WriteByte(' ')
		line.WriteString(text)
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return errLongLine
	}
	if in.Err() == nil {
		flush()
	}
	return in.Err()
}
