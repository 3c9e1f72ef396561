package resolver

import "encoding/hex"

// unescape turns the presentation form that package dns gives strings in
// (\DDD and \X, RFC 1035 section 5.1) back into the octets of the record.
func unescape(s string) string {
	i := 0
	for i < len(s) && s[i] != '\\' {
		i++
	}
	if i == len(s) {
		return s
	}
	out := append(make([]byte, 0, len(s)), s[:i]...)
	for ; i < len(s); i++ {
		c := s[i]
		if c != '\\' || i+1 == len(s) {
			out = append(out, c)
			continue
		}
		if i+3 < len(s) && digit(s[i+1]) && digit(s[i+2]) && digit(s[i+3]) {
			out = append(out, (s[i+1]-'0')*100+(s[i+2]-'0')*10+(s[i+3]-'0'))
			i += 3
			continue
		}
		i++
		out = append(out, s[i])
	}
	return string(out)
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func unhex(s string) ([]byte, bool) {
	b, err := hex.DecodeString(s)
	return b, err == nil
}
