package inject

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// maxDepth bounds how deep JSON may be nested.
	maxDepth = 16
	// maxMembers bounds the members of one object, and maxElements the elements of a list.
	maxMembers = 1000
	// maxVariables bounds those of one recipient, or of a message.
	maxVariables = 200
	maxElements  = 100000
)

// A scanner reads one JSON value (RFC 8259) that is in memory. It is strict: names of members occur
// once, texts are UTF-8 without NUL, and nothing stands behind the value. Texts are not copied: what
// text returns is a part of the value, in which escapes have been replaced in place.
//
// Errors are faults, and say in which field they are.
type scanner struct {
	b     []byte
	i     int
	depth int
}

// newScanner reads a value, which is the scanner's from now on.
func newScanner(b []byte) (*scanner, error) {
	if !utf8.Valid(b) {
		return nil, malformed("the JSON is not UTF-8")
	}
	return &scanner{b: b}, nil
}

// end verifies that the value is all there is.
func (s *scanner) end() error {
	if s.space(); s.i < len(s.b) {
		return malformed("something stands behind the JSON, at octet %d", s.i)
	}
	return nil
}

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\n' || s.b[s.i] == '\t' || s.b[s.i] == '\r') {
		s.i++
	}
}

// peek is the first octet of what comes next; 0 at the end.
func (s *scanner) peek() byte {
	if s.space(); s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// take takes an octet, if it is the next.
func (s *scanner) take(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.i++
	return true
}

// wrong says what was expected.
func (s *scanner) wrong(expected string) error {
	switch c := s.peek(); {
	case c == 0 && s.i >= len(s.b):
		return malformed("the JSON ends where %s was expected", expected)
	case c == 'n' && bytes.HasPrefix(s.b[s.i:], []byte("null")):
		return malformed("it is null, where %s was expected; leave it out", expected)
	}
	return malformed("%s was expected, at octet %d", expected, s.i)
}

// object reads an object. member is called for each member, and reads its value.
func (s *scanner) object(member func(name string) error) error {
	if !s.take('{') {
		return s.wrong("an object")
	}
	if s.depth++; s.depth > maxDepth {
		return malformed("the JSON is nested more than %d deep", maxDepth)
	}
	defer func() { s.depth-- }()
	if s.take('}') {
		return nil
	}
	var seen names
	for {
		key, err := s.text()
		if err != nil {
			return err
		}
		name := string(key)
		if !s.take(':') {
			return in(shown(name), s.wrong("a colon"))
		}
		if err := seen.add(name); err != nil {
			return err
		}
		if err := member(name); err != nil {
			return in(shown(name), err)
		}
		if s.take('}') {
			return nil
		}
		if !s.take(',') {
			return s.wrong("a comma or the end of an object")
		}
	}
}

// shown is a member's name in the text of an error.
func shown(name string) string {
	if len(name) > 64 {
		return strconv.QuoteToASCII(name[:64]) + "..."
	}
	for i := range len(name) {
		if c := name[i]; c < '0' || c > 'z' || c > '9' && c < 'A' || c > 'Z' && c < 'a' && c != '_' {
			return strconv.QuoteToASCII(name)
		}
	}
	return name
}

// names finds names that occur twice.
type names struct {
	few  []string
	many map[string]bool // nil while there are few
}

func (n *names) add(name string) error {
	twice := n.many[name]
	if n.many == nil {
		for _, o := range n.few {
			twice = twice || o == name
		}
		if n.few = append(n.few, name); len(n.few) > 16 {
			n.many = make(map[string]bool, 64)
			for _, o := range n.few {
				n.many[o] = true
			}
		}
	} else {
		n.many[name] = true
	}
	if twice {
		return in(shown(name), malformed("it is there twice"))
	}
	if len(n.many) > maxMembers {
		return tooLarge("an object has more than %d members", maxMembers)
	}
	return nil
}

// array reads a list. element is called for each element, and reads it.
func (s *scanner) array(element func(i int) error) error {
	if !s.take('[') {
		return s.wrong("a list")
	}
	if s.depth++; s.depth > maxDepth {
		return malformed("the JSON is nested more than %d deep", maxDepth)
	}
	defer func() { s.depth-- }()
	if s.take(']') {
		return nil
	}
	for i := 0; ; i++ {
		if i == maxElements {
			return tooLarge("a list has more than %d elements", maxElements)
		}
		if err := element(i); err != nil {
			return at(i, err)
		}
		if s.take(']') {
			return nil
		}
		if !s.take(',') {
			return at(i, s.wrong("a comma or the end of a list"))
		}
	}
}

// text reads a text. It is never nil without an error.
func (s *scanner) text() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.wrong("a text")
	}
	s.i++
	rest := s.b[s.i:]
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return nil, malformed("a text has no end")
	}
	if bytes.IndexByte(rest[:end], '\\') < 0 {
		if hasControl(rest[:end]) {
			return nil, malformed("a text has a control character that is not escaped")
		}
		s.i += end + 1
		return rest[:end:end], nil
	}
	return s.escaped(rest)
}

// Octets of a word of eight: the lowest bit of each, and the highest.
const (
	lowBits  = 0x0101010101010101
	highBits = lowBits << 7
)

// hasControl says whether an octet is less than a space. It takes eight at a time: where one is less, the subtraction
// sets its highest bit, which is not set in it before.
func hasControl(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if x := binary.LittleEndian.Uint64(b); (x-lowBits*' ')&^x&highBits != 0 {
			return true
		}
	}
	for _, c := range b {
		if c < ' ' {
			return true
		}
	}
	return false
}

// escaped reads a text with escapes. They are replaced in place, since none becomes longer.
func (s *scanner) escaped(rest []byte) ([]byte, error) {
	out, from, quote := 0, 0, -1
	for {
		// The quote is looked for once, and not for each escape before it.
		if quote < from {
			n := bytes.IndexByte(rest[from:], '"')
			if n < 0 {
				return nil, malformed("a text has no end")
			}
			quote = from + n
		}
		n := quote - from
		if esc := bytes.IndexByte(rest[from:from+n], '\\'); esc >= 0 {
			n = esc
		}
		if hasControl(rest[from : from+n]) {
			return nil, malformed("a text has a control character that is not escaped")
		}
		out += copy(rest[out:], rest[from:from+n])
		if from += n; rest[from] == '"' {
			s.i += from + 1
			return rest[:out:out], nil
		}
		c, used, err := unescape(rest[from:])
		if err != nil {
			return nil, err
		}
		out += utf8.EncodeRune(rest[out:from+used], c)
		from += used
	}
}

// unescape reads the escape that b begins with.
func unescape(b []byte) (c rune, used int, err error) {
	if len(b) < 2 {
		return 0, 0, malformed("a text has no end")
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2, nil
	case 'b':
		return '\b', 2, nil
	case 'f':
		return '\f', 2, nil
	case 'n':
		return '\n', 2, nil
	case 'r':
		return '\r', 2, nil
	case 't':
		return '\t', 2, nil
	case 'u':
		c, ok := hex4(b)
		if !ok {
			return 0, 0, malformed(`a text has an escape \u without four hexadecimal digits`)
		}
		used = 6
		if utf16.IsSurrogate(c) {
			low, _ := hex4(b[6:])
			if c = utf16.DecodeRune(c, low); c == utf8.RuneError {
				return 0, 0, malformed("a text has half of a surrogate pair")
			}
			used = 12
		}
		if c == 0 {
			return 0, 0, malformed("a text has a NUL")
		}
		return c, used, nil
	}
	return 0, 0, malformed("a text has an escape that JSON does not know")
}

// hex4 is the number of an escape \uXXXX that b begins with.
func hex4(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	n := rune(0)
	for _, c := range b[2:6] {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

// boolean reads true or false.
func (s *scanner) boolean() (bool, error) {
	s.space()
	for word, v := range map[string]bool{"true": true, "false": false} {
		if bytes.HasPrefix(s.b[s.i:], []byte(word)) {
			s.i += len(word)
			return v, nil
		}
	}
	return false, s.wrong("true or false")
}

// number reads a number, as it stands there.
func (s *scanner) number() ([]byte, error) {
	s.space()
	n := numberEnd(s.b[s.i:])
	if n == 0 {
		return nil, s.wrong("a number")
	}
	s.i += n
	return s.b[s.i-n : s.i : s.i], nil
}

// numberEnd is where the number ends that b begins with; 0: there is none.
func numberEnd(b []byte) int {
	i := 0
	digits := func() bool {
		from := i
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		return 0
	}
	if i < len(b) && b[i] == '.' {
		if i++; !digits() {
			return 0
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return 0
		}
	}
	return i
}

// values reads an object of texts, numbers and truth values into m, by name. Those of objects in it get
// names with a dot between.
func (s *scanner) values(m map[string]string, under string) error {
	return s.object(func(name string) error {
		if !isVariable(name) {
			return refuse("it is no name of a variable: that is a letter, then letters, digits, _ and -, 64 at most")
		}
		name = under + name
		if len(m) >= maxVariables {
			return tooLarge("there are more than %d variables", maxVariables)
		}
		var v []byte
		var err error
		switch c := s.peek(); {
		case c == '"':
			v, err = s.text()
		case c == '{':
			return s.values(m, name+".")
		case c == 't' || c == 'f':
			var b bool
			b, err = s.boolean()
			v = strconv.AppendBool(nil, b)
		case c == '[':
			return refuse("lists cannot be put into a text")
		default:
			v, err = s.number()
		}
		m[name] = string(v)
		return err
	})
}
