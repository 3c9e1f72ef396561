// Package query is what tables in databases and directories have in common:
// their settings, the templates that make a query of a key and an answer of
// what was found, and the check of a key's domain. It has no connections;
// packages sqltable, sqlite and ldaptable do.
//
// # Settings
//
// What follows "mysql:" is the name of a file if it begins with "/" or ".". Its
// lines are as in main.cf, "name = value", without $name expansion. Any other name
// stands for settings in main.cf: with "mysql:users" the setting hosts is
// main.cf's users_hosts, and $name is expanded there as everywhere in main.cf.
//
// # Templates
//
// In a template for queries, such as "SELECT x FROM y WHERE z = '%s'":
//
//	%s    the key
//	%u    of user@domain the user; of any other key, all of it
//	%d    of user@domain the domain
//	%1 .. %9  the parts of the key's domain, from the end: in
//	      user@mail.example.com %1 is com, %2 example, %3 mail
//	%S %U %D  the same as %s %u %d
//	%%    a percent sign
//
// A key that lacks something that the template asks for is not looked up,
// and is not found. What is put in is quoted as the query's language wants it.
//
// In result_format %s %u %d are of the value that was found, and %S %U %D and
// %1 .. %9 of the key; a value that lacks something is passed over. Nothing is
// quoted there.
//
// # Security
//
// Keys come from strangers. They get into a query by way of a quoting function
// only, and a key that is not UTF-8, or that has a NUL byte, is not asked for at all: no
// table has it, and servers differ in what they make of it.
package query

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxAnswer bounds what a server may say to one question, in octets.
const MaxAnswer = 16 << 20

// Askable says whether key, which comes from anybody, may be made part of a query.
func Askable(key string) bool {
	return key != "" && utf8.ValidString(key) && strings.IndexByte(key, 0) < 0
}

// A Template makes texts of keys and values. It is not changed after it is
// parsed.
type Template struct {
	text  string
	parts []part
	keyed bool // %s %u %d are of the key even where there is a value
}

// part is literal text, or with what != 0 the letter of an expansion.
type part struct {
	text string
	what byte
}

// Parse reads a template for queries.
func Parse(text string) (*Template, error) { return parse(text, true) }

// ParseResult reads a result_format.
func ParseResult(text string) (*Template, error) { return parse(text, false) }

func parse(text string, keyed bool) (*Template, error) {
	t := &Template{text: text, keyed: keyed}
	var literal strings.Builder
	for rest := text; rest != ""; {
		i := strings.IndexByte(rest, '%')
		if i < 0 {
			literal.WriteString(rest)
			break
		}
		literal.WriteString(rest[:i])
		if i+1 == len(rest) {
			return nil, fmt.Errorf("%q: a %% at the end; write %%%% for a percent sign", text)
		}
		c := rest[i+1]
		rest = rest[i+2:]
		switch {
		case c == '%':
			literal.WriteByte('%')
			continue
		case !strings.ContainsRune("sudSUD123456789", rune(c)):
			return nil, fmt.Errorf("%q: %%%c is none of %%s %%u %%d %%S %%U %%D %%1 to %%9 and %%%%", text, c)
		}
		if literal.Len() > 0 {
			t.parts = append(t.parts, part{text: literal.String()})
			literal.Reset()
		}
		t.parts = append(t.parts, part{what: c})
	}
	if literal.Len() > 0 {
		t.parts = append(t.parts, part{text: literal.String()})
	}
	return t, nil
}

// String is the template as it was written.
func (t *Template) String() string { return t.text }

// Fixed says that all keys give the same text.
func (t *Template) Fixed() bool {
	for _, p := range t.parts {
		if p.what != 0 {
			return false
		}
	}
	return true
}

// Query is the template with key put in, each piece of it quoted. ok is false
// when the key lacks something.
func (t *Template) Query(key string, quote func(string) string) (text string, ok bool) {
	return t.expand(key, key, quote)
}

// Result is the template with what was found for key put in. ok is false when
// there is nothing to tell of it.
func (t *Template) Result(key, value string) (text string, ok bool) {
	if value == "" {
		return "", false
	}
	if len(t.parts) == 1 && t.parts[0].what == 's' {
		return value, true
	}
	return t.expand(key, value, nil)
}

func (t *Template) expand(key, value string, quote func(string) string) (string, bool) {
	var b strings.Builder
	for _, p := range t.parts {
		text, ok := p.text, true
		switch c := p.what; {
		case c == 0:
			b.WriteString(text)
			continue
		case c >= '1' && c <= '9':
			text, ok = domainPart(key, int(c-'0'))
		case c >= 'a' && !t.keyed:
			text, ok = piece(value, c)
		default:
			text, ok = piece(key, c|0x20)
		}
		if !ok {
			return "", false
		}
		if quote != nil {
			text = quote(text)
		}
		b.WriteString(text)
	}
	return b.String(), true
}

// piece is %s, %u or %d of an address.
func piece(addr string, what byte) (string, bool) {
	at := strings.LastIndexByte(addr, '@')
	switch {
	case what == 's':
		return addr, true
	case what == 'u' && at < 0:
		return addr, true
	case what == 'u':
		return addr[:at], at > 0
	case at < 0:
		return "", false
	}
	return addr[at+1:], at+1 < len(addr)
}

// domainPart is the nth part of an address's domain, counted from its end.
func domainPart(addr string, n int) (string, bool) {
	domain, ok := piece(addr, 'd')
	if !ok {
		return "", false
	}
	parts := strings.Split(domain, ".")
	if n > len(parts) || parts[len(parts)-n] == "" {
		return "", false
	}
	return parts[len(parts)-n], true
}

// maxAnswer bounds the answer to one key: 100,000 addresses and more.
const maxAnswer = 8 << 20

// errLimit: an answer over a limit is not cut, as nobody would know.
var errLimit = errors.New("more results than expansion_limit allows")

// Results collects what was found for one key.
type Results struct {
	Key    string
	Format *Template
	Limit  int // expansion_limit: 0 is none

	n    int
	text strings.Builder
}

// Add adds one value, if it has something to tell.
func (r *Results) Add(value string) error {
	text, ok := r.Format.Result(r.Key, value)
	if !ok {
		return nil
	}
	if r.n++; r.Limit > 0 && r.n > r.Limit {
		return fmt.Errorf("%w (%d)", errLimit, r.Limit)
	}
	if r.n > 1 {
		r.text.WriteByte(',')
	}
	r.text.WriteString(text)
	if r.text.Len() > maxAnswer {
		return fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	return nil
}

// Answer is all results with commas between them, as Table.Lookup returns it.
func (r *Results) Answer() (value string, found bool) {
	return r.text.String(), r.text.Len() > 0
}

// OneLine is err with a text that fits a line of the log: what several servers
// said, or one said in several lines, has semicolons between.
func OneLine(err error) error {
	if err == nil || !strings.Contains(err.Error(), "\n") {
		return err
	}
	return &line{err}
}

type line struct{ error }

func (l *line) Unwrap() error { return l.error }

func (l *line) Error() string {
	var b strings.Builder
	for _, part := range strings.FieldsFunc(l.error.Error(), func(r rune) bool { return r == '\n' }) {
		switch {
		case strings.HasSuffix(b.String(), ":"):
			b.WriteString(" ")
		case b.Len() > 0:
			b.WriteString("; ")
		}
		b.WriteString(strings.TrimSpace(part))
	}
	return b.String()
}
