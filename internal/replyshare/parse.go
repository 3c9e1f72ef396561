package replyshare

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Accept is the answer of a session in which the message was accepted.
func Accept() Answer { return Answer{Accepted: true} }

// Parse makes the answer of a reply as it stands in the log, or as a host has sent it:
//
//	host mx.example.com[192.0.2.1] said: 421 4.7.0 too many connections from 198.51.100.7 (in reply to MAIL FROM command)
//	421 4.7.0 too many connections from 198.51.100.7
//	connect to mx.example.com[192.0.2.1]:25: Connection refused
//
// Of the first two the group is 421, 4.7.0, "too many connections from *", of the last "connect
// to *: Connection refused".
func Parse(reply string) Answer {
	words := strings.Fields(printable(said(reply)))
	var a Answer
	if len(words) > 0 {
		a.Code, a.Status, words = code(words)
	}
	var b strings.Builder
	last := ""
	for _, w := range words {
		w = word(w, a.Code)
		if w == "" || w[0] == '*' && last != "" && last[0] == '*' {
			continue
		}
		if b.Len()+1+len(w) > MaxText {
			break
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(w)
		last = w
	}
	a.Text = b.String()
	return a
}

// said is what a host has said, without the log's words around it.
func said(reply string) string {
	for _, mark := range [...]string{" said: ", " refused to talk to me: "} {
		if i := strings.Index(reply, mark); i >= 0 && strings.HasPrefix(strings.TrimPrefix(reply, "delivery temporarily suspended: "), "host ") {
			reply = reply[i+len(mark):]
			if i := strings.LastIndex(reply, " (in reply to "); i >= 0 {
				reply = reply[:i]
			}
			return reply
		}
	}
	return strings.TrimPrefix(reply, "delivery temporarily suspended: ")
}

// code takes the code and the status code off the words of a reply: "421 4.7.0 ...", or of one of
// several lines "421-4.7.0 ...".
func code(words []string) (n int, status string, rest []string) {
	first := words[0]
	if len(first) < 3 || first[0] < '2' || first[0] > '5' || !digits(first[:3]) || len(first) > 3 && first[3] != '-' {
		return 0, "", words
	}
	n = int(first[0]-'0')*100 + int(first[1]-'0')*10 + int(first[2]-'0')
	rest = words[1:]
	if len(first) > 4 { // of several lines
		rest = append([]string{first[4:]}, rest...)
	}
	if len(rest) > 0 && isStatus(strings.TrimRight(rest[0], ":")) {
		status, rest = strings.TrimRight(rest[0], ":"), rest[1:]
	}
	return n, status, rest
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// isStatus says whether a word is a status code.
func isStatus(w string) bool {
	parts := strings.Split(w, ".")
	return len(parts) == 3 && strings.Contains("245", parts[0]) && len(parts[0]) == 1 && digits(parts[1]) && digits(parts[2]) && len(w) <= 9
}

// word is a word as it stands in a group: "*" in place of one that has to do with this session
// alone, with the punctuation behind it; empty for the code at the beginning of a further line.
func word(w string, n int) string {
	core := strings.Trim(w, `.,;:!?()<>[]{}"'`)
	switch {
	case core == "":
		return w
	case n != 0 && len(core) >= 3 && digits(core[:3]) && (len(core) == 3 || core[3] == '-'):
		return "" // 421-4.7.0 of a further line
	case isStatus(core):
		return ""
	case !own(core):
		return w
	}
	return "*" + w[len(strings.TrimRight(w, `.,;:!?`)):]
}

// own says whether a word is of this session alone: it has a digit, names a host, an address or
// a page, or is an ID.
func own(w string) bool {
	if strings.ContainsAny(w, "0123456789@[]=_") || strings.Contains(w, "://") || strings.Count(w, ".") > 1 {
		return true
	}
	if i := strings.IndexByte(w, '.'); i > 0 && i < len(w)-1 { // example.com
		return true
	}
	// Letters alone can be an ID, too: those have capitals in odd places.
	upper, changes, was := 0, 0, false
	for i, r := range w {
		up := unicode.IsUpper(r)
		if up {
			upper++
		}
		if i > 0 && up != was {
			changes++
		}
		was = up
	}
	return len(w) >= 8 && changes > 3 && upper > 1
}

// Clean makes a text of strangers printable, UTF-8, and no longer than MaxText octets.
func Clean(s string) string {
	if s = printable(s); len(s) > MaxText {
		n := MaxText
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return s
}

// printable makes a text of strangers printable and UTF-8. Of a very long one there is a part.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError:
			return '?'
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, s[:min(len(s), 8*MaxText)])
}
