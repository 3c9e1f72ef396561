package advice

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"posthaste/internal/table"
)

// namedFile finds tables in files: [1] is the type, [2] the path.
var namedFile = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[\s,{=:!])(hash|btree|lmdb|cdb|dbm|sdbm|texthash|regexp|pcre|cidr|mysql|pgsql|sqlite|ldap):(/[^\s,{}]+)`)
})

// maxSource bounds the text of a table that is read to look for mistakes: what is
// larger was written by a program.
const maxSource = 4 << 20

// An entry is a line of a table's text.
type entry struct {
	key, value string
	file       string
	line       int // 0 in an inline table
}

// entries are those of the tables in files, and of those in the configuration itself, that
// a value names. What cannot be read has none: who opens the table says so.
func (c *checker) entries(v value) (list []entry) {
	for _, m := range namedFile().FindAllStringSubmatch(v.text, -1) {
		if slices.Contains([]string{"mysql", "pgsql", "sqlite", "ldap"}, m[1]) {
			continue
		}
		info, err := c.system.Stat(m[2])
		if err != nil || info.Size() > maxSource || !info.Mode().IsRegular() {
			continue
		}
		text, err := os.ReadFile(m[2])
		if err != nil {
			continue
		}
		split := table.SplitEntry
		switch m[1] {
		case "regexp", "pcre":
			split = splitPattern
		case "cidr":
			split = splitNetwork
		}
		_ = table.EachLine(string(text), func(n int, line string) error { // it has no errors but ours
			if key, value, err := split(line); err == nil {
				list = append(list, entry{strings.Trim(key, `"`), value, m[2], n})
			}
			return nil
		})
	}
	for _, spec := range table.SplitList(v.text) {
		items, err := table.Braced(strings.TrimPrefix(spec, "inline:"))
		if !strings.HasPrefix(spec, "inline:") || err != nil {
			continue
		}
		for _, item := range items {
			if key, text, ok := strings.Cut(item, "="); ok {
				list = append(list, entry{strings.TrimSpace(key), strings.TrimSpace(text), v.file, 0})
			}
		}
	}
	return list
}

// splitNetwork cuts "network answer" apart, where the network may be negated. "if" and "endif" are
// no entries.
func splitNetwork(line string) (key, value string, err error) {
	key, value, err = table.SplitEntry(strings.TrimLeft(line, "! \t"))
	if word := strings.ToLower(key); word == "if" || word == "endif" {
		return "", "", errNoEntry
	}
	return key, value, err
}

// splitPattern cuts "/pattern/flags answer" apart. A pattern whose delimiter it does not
// find, and "if" and "endif", are no entries.
func splitPattern(line string) (key, value string, err error) {
	text := strings.TrimPrefix(line, "!")
	if text == "" || strings.ContainsRune("abcdefghijklmnopqrstuvwxyz", rune(text[0])) {
		return "", "", errNoEntry
	}
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case text[0]:
			flags, value, _ := strings.Cut(text[i+1:], " ")
			if strings.HasPrefix(flags, "!") {
				return "", "", errNoEntry // a second pattern, which may have blanks in it
			}
			if j := strings.IndexByte(flags, '\t'); j >= 0 {
				value = flags[j+1:] + " " + value
			}
			return text[:i+1], strings.TrimSpace(value), nil
		}
	}
	return "", "", errNoEntry
}

// at is the place of an entry of a table that a value names.
func (e entry) at(v value) value {
	if e.line == 0 {
		return v
	}
	return value{file: e.file, line: e.line, title: e.key}
}
