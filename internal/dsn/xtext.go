package dsn

import "errors"

const hexDigits = "0123456789ABCDEF"

// Xtext encodes text as xtext, RFC 3461 section 4: printable ASCII but for
// "+" and "=" stands for itself, every other octet is "+" and two
// upper-case hexadecimal digits.
func Xtext(text string) string {
	plain := true
	for i := 0; i < len(text) && plain; i++ {
		plain = xchar(text[i])
	}
	if plain {
		return text
	}
	out := make([]byte, 0, len(text)+16)
	for i := 0; i < len(text); i++ {
		if c := text[i]; xchar(c) {
			out = append(out, c)
		} else {
			out = append(out, '+', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(out)
}

func xchar(c byte) bool { return c >= 33 && c <= 126 && c != '+' && c != '=' }

// ParseXtext decodes xtext. Octets that xtext does not allow unencoded are an
// error, as is a "+" that is not followed by two hexadecimal digits. Lower
// case digits are accepted.
func ParseXtext(text string) (string, error) {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '+' {
			if i+2 >= len(text) {
				return "", errXtext
			}
			hi, ok1 := unhex(text[i+1])
			lo, ok2 := unhex(text[i+2])
			if !ok1 || !ok2 {
				return "", errXtext
			}
			out = append(out, hi<<4|lo)
			i += 2
			continue
		}
		if !xchar(c) {
			return "", errXtext
		}
		out = append(out, c)
	}
	return string(out), nil
}

var errXtext = errors.New("dsn: malformed xtext")

func unhex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}
