package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// value is one parameter after expansion: the text, and what the text means
// to the parameter's type.
type value struct {
	text string
	num  int64 // Int, Bytes, Bool (0 or 1), Duration (nanoseconds)
	list []string
	err  error
}

// parse reads text as a value of p's type. An error says what was expected;
// the caller says where.
func (p *Param) parse(text string) value {
	v := value{text: text}
	switch p.Type {
	case Int:
		v.num, v.err = parseInt(text)
	case Bytes:
		v.num, v.err = parseBytes(text)
	case Bool:
		v.num, v.err = parseBool(text)
	case Duration:
		var d time.Duration
		d, v.err = parseDuration(text, p.Unit)
		v.num = int64(d)
	case List:
		v.list, v.err = SplitList(text)
	case Enum:
		v.text, v.err = p.parseEnum(text)
	}
	if v.err == nil {
		v.err = p.checkBounds(v.num)
	}
	if v.err == nil {
		v.err = p.checkForm(v)
	}
	return v
}

// parseEnum returns the declared spelling of the word.
func (p *Param) parseEnum(text string) (string, error) {
	for _, word := range p.values() {
		if strings.EqualFold(word, text) {
			return word, nil
		}
	}
	words := strings.Join(p.values(), ", ")
	if strings.HasPrefix(words, ",") {
		words = "nothing" + words
	}
	return text, fmt.Errorf("expected one of: %s", words)
}

func (p *Param) checkBounds(n int64) error {
	unit := ""
	switch p.Type {
	case Int, Bytes:
	case Duration:
		n, unit = n/int64(time.Second), "s"
	default:
		return nil
	}
	if n < p.Min {
		return fmt.Errorf("expected at least %d%s", p.Min, unit)
	}
	if p.Max > 0 && n > p.Max {
		return fmt.Errorf("expected at most %d%s", p.Max, unit)
	}
	return nil
}

func parseInt(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("expected a whole number such as 100")
	}
	return n, nil
}

func parseBytes(text string) (int64, error) {
	digits, shift := text, 0
	if text != "" {
		switch text[len(text)-1] | 0x20 {
		case 'k':
			shift = 10
		case 'm':
			shift = 20
		case 'g':
			shift = 30
		}
		if shift > 0 {
			digits = text[:len(text)-1]
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64>>shift || n < 0 {
		return 0, fmt.Errorf("expected a size such as 10240000, 512k or 20m")
	}
	return n << shift, nil
}

func parseBool(text string) (int64, error) {
	switch {
	case strings.EqualFold(text, "yes"):
		return 1, nil
	case strings.EqualFold(text, "no"):
		return 0, nil
	}
	return 0, fmt.Errorf("expected yes or no")
}

// parseDuration reads a number with a unit. unit is the unit of a number that
// has none; 0 means seconds. As with Postfix only the first letter of a unit
// counts, but in ms: 1h, 1hour and 1hh are the same time.
func parseDuration(text string, unit byte) (time.Duration, error) {
	digits, suffix := cutNumber(text)
	if suffix == "" && unit != 0 {
		suffix = string(rune(unit))
	}
	scale := time.Second
	if strings.EqualFold(suffix, "ms") {
		scale = time.Millisecond
	} else if suffix != "" {
		scale = unitOf(suffix[0])
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || scale == 0 || n < 0 || n > math.MaxInt64/int64(scale) {
		return 0, fmt.Errorf("expected a time such as 30s, 5m, 2h, 1d or 1w")
	}
	return time.Duration(n) * scale, nil
}

// cutNumber splits text behind the decimal number that it begins with.
func cutNumber(text string) (number, rest string) {
	sign := len(text) - len(strings.TrimLeft(text, "+-"))
	rest = strings.TrimLeft(text[sign:], "0123456789")
	return text[:len(text)-len(rest)], rest
}

// unitOf returns the time that a letter stands for, or 0.
func unitOf(letter byte) time.Duration {
	switch letter | 0x20 {
	case 's':
		return time.Second
	case 'm':
		return time.Minute
	case 'h':
		return time.Hour
	case 'd':
		return 24 * time.Hour
	case 'w':
		return 7 * 24 * time.Hour
	}
	return 0
}

// misreadUnit returns what parseDuration reads of text, where a reader could take
// it for more: 5m30s is 5m, and 2months is 2m.
func misreadUnit(text string) (read string, misread bool) {
	_, suffix := cutNumber(text)
	if len(suffix) < 2 || strings.EqualFold(suffix, "ms") {
		return "", false
	}
	switch strings.TrimSuffix(strings.ToLower(suffix), "s") {
	case "", "sec", "second", "min", "minute", "h", "hr", "hour", "d", "day", "w", "week":
		return "", false
	}
	return text[:len(text)-len(suffix)+1], true
}

// isListSpace reports whether c separates the items of a list.
func isListSpace(c byte) bool {
	return c == ' ' || c == ',' || c == '\t' || c == '\r' || c == '\n'
}

// SplitList splits text at commas and white space. A group in braces is one
// item, without the outer braces and the white space next to them; braces inside
// an item (regexp:{{...}}) hold it together and are kept. The error names a brace
// that is never closed.
func SplitList(text string) ([]string, error) {
	items, err := splitWords(text, isListSpace)
	for i, item := range items {
		items[i] = stripBraces(item)
	}
	return items, err
}

// splitWords splits text into words. A separator inside braces separates nothing.
func splitWords(text string, separates func(byte) bool) ([]string, error) {
	var words []string
	for i := 0; i < len(text); {
		if separates(text[i]) {
			i++
			continue
		}
		start, depth := i, 0
		for i < len(text) && (depth > 0 || !separates(text[i])) {
			switch text[i] {
			case '{':
				depth++
			case '}':
				depth--
			}
			i++
		}
		if depth > 0 {
			return nil, fmt.Errorf("expected a } to close %q", abbreviate(text[start:]))
		}
		words = append(words, text[start:i])
	}
	return words, nil
}

// stripBraces removes the braces of an item that is one whole group.
func stripBraces(item string) string {
	if end := closingBrace(item); end == len(item)-1 && end > 0 {
		return strings.Trim(item[1:end], " \t\r\n")
	}
	return item
}

// closingBrace returns the index of the brace that closes the one text begins
// with, or -1 if text does not begin with a brace or it is not closed.
func closingBrace(text string) int {
	if text == "" || text[0] != '{' {
		return -1
	}
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}
