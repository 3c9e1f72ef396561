package local

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
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

const (
	// maxLine bounds one line of a file of destinations, in bytes.
	maxLine = 1 << 20
	// maxOwnFile and maxOwn bound what a user's .forward file and the :include:
	// files that it names list, in bytes (each) and destinations (together):
	// the process delivers for all.
	maxOwnFile, maxOwn = 1 << 20, 10000
)

// parseTokens reads a list of destinations, separated by commas or white
// space. A destination with characters that mean something here stands in
// double quotes, all of it: "|command a, b". What is no destination is passed
// over.
func parseTokens(text string) []token {
	var out []token
	for text != "" {
		item, rest := cutItem(text)
		text = rest
		out = appendItem(out, item)
	}
	return out
}

// cutItem cuts at the first comma that is not in quotes, a comment or angle
// brackets.
func cutItem(text string) (item, rest string) {
	return cut(text, func(c byte) bool { return c == ',' })
}

// cutWord cuts at white space.
func cutWord(item string) (word, rest string) {
	return cut(item, func(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' })
}

// cut cuts at the first character that at accepts outside quotes, comments and angle brackets (RFC
// 5322 section 3.2). What is never closed reaches to the end.
func cut(text string, at func(byte) bool) (before, after string) {
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
		case comment == 0 && angle == 0 && at(c):
			return text[:i], text[i+1:]
		}
	}
	return text, ""
}

// appendItem appends what stands between two commas: destinations, or one
// address with the name of whose it is.
func appendItem(out []token, item string) []token {
	var address strings.Builder
	flush := func() {
		for _, a := range rfc5322.AppendAddresses(nil, address.String(), 0) {
			if t, ok := special(a.Addr); ok {
				out = append(out, t)
			} else if a.Addr != "" {
				out = append(out, token{tokenAddress, a.Addr})
			}
		}
		address.Reset()
	}
	for item = strings.TrimSpace(item); item != ""; item = strings.TrimSpace(item) {
		word, rest := cutWord(item)
		item = rest
		if t, ok := special(wholeQuoted(word)); ok {
			flush()
			out = append(out, t)
			continue
		}
		// \user, which once meant the mailbox, is the user: whoever is named in
		// his own alias or .forward gets to the mailbox by that.
		address.WriteByte(' ')
		address.WriteString(strings.TrimPrefix(word, `\`))
	}
	flush()
	return out
}

// includePrefix stands in any letter case before the name of a file of destinations.
const includePrefix = ":include:"

// special reads what is no address. plain is without the quotes around it: in an alias they say
// where a destination ends, and nothing about what it is.
func special(plain string) (token, bool) {
	switch {
	case plain == "":
	case plain[0] == '|':
		return token{tokenCommand, strings.TrimSpace(plain[1:])}, true
	case plain[0] == '/':
		return token{tokenFile, plain}, true
	case plain[0] == '~':
		return token{tokenHome, plain}, true
	case len(plain) >= len(includePrefix) && strings.EqualFold(plain[:len(includePrefix)], includePrefix):
		return token{tokenInclude, wholeQuoted(strings.TrimSpace(plain[len(includePrefix):]))}, true
	}
	return token{}, false
}

// wholeQuoted undoes quotes that are around the whole of a word, if they are.
func wholeQuoted(word string) string {
	if len(word) < 2 || word[0] != '"' {
		return word
	}
	var b strings.Builder
	for i := 1; i < len(word); i++ {
		switch c := word[i]; {
		case c == '\\' && i+1 < len(word):
			i++
			b.WriteByte(word[i])
		case c == '"' && i < len(word)-1:
			return word
		case c != '"':
			b.WriteByte(c)
		}
	}
	return b.String() // no quote at the end: taken as if there were
}

// Why a file of destinations is not read to its end.
var (
	errLongLine = errors.New("a line is longer than a megabyte")
	errTooMuch  = fmt.Errorf("it lists more than %d destinations, or is larger than %d bytes", maxOwn, maxOwnFile)
)

// eachLine calls fn with every line of r, each by itself; empty lines and
// those that begin with # are left out. It stops when fn returns false.
func eachLine(r io.Reader, fn func(line string) bool) error {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 4096), maxLine)
	for in.Scan() {
		text := strings.TrimSpace(in.Text())
		if text != "" && text[0] != '#' && !fn(text) {
			return nil
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return errLongLine
	}
	return in.Err()
}

// An allowance is what a user's own files may come to.
type allowance struct {
	listed int   // destinations in them
	led    int64 // octets of recipients that they have led to; negative: too many
}

// allowance is that of a user, the same for all the files of one expansion: a user who names one file
// ten times gets no more by it.
func (d *delivery) allowance(user string) *allowance {
	if d.allowances[user] == nil {
		if d.allowances == nil {
			d.allowances = map[string]*allowance{}
		}
		d.allowances[user] = new(allowance)
	}
	return d.allowances[user]
}

// lines reads one of these files.
func (a *allowance) lines(r io.Reader) (lines [][]token, err error) {
	in := &io.LimitedReader{R: r, N: maxOwnFile + 1}
	err = eachLine(in, func(line string) bool {
		t := parseTokens(line)
		if len(t) > 0 {
			lines = append(lines, t)
		}
		a.listed += len(t)
		return a.listed <= maxOwn && in.N > 0
	})
	if a.listed > maxOwn || in.N <= 0 || errors.Is(err, errLongLine) {
		err = errTooMuch
	}
	return lines, err
}

// lines delivers to what the lines of a file list. After one with which the
// recipient has been deferred, to be tried again with all that it is expanded to,
// no other comes; next says whether there was none.
func (d *delivery) lines(st state, lines [][]token) (next bool) {
	before := d.deferred
	for i, list := range lines {
		if i%maxForeseen == 0 {
			for _, soon := range lines[i:min(i+maxForeseen, len(lines))] {
				d.foresee(&st, soon)
			}
		}
		if d.tokens(st, list); d.deferred != before {
			return false
		}
	}
	return true
}

// unreadable says that a file of destinations could not be read.
func (d *delivery) unreadable(st *state, path string, err error) {
	if errors.Is(err, errTooMuch) {
		d.Log.LogWarning(maillog.ForwardProblem{File: path, Fault: maillog.FileUnreadable, Reason: err.Error()})
		d.bounce(st, dsn.S(5, 2, 4), "cannot expand %s: %v", path, err)
		return
	}
	d.deferIt(st, tryLater, "cannot read file %s: %v", path, err)
}
