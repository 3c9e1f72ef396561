// What of a client's words may stand in a reply (smtpd_expansion_filter).

package access

// charset is the characters that smtpd_expansion_filter lets through, given with C
// escapes. Octets beyond ASCII are not in the default: they could be half of a
// character.
func charset(text string) *[256]bool {
	var set [256]bool
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' && i+1 < len(text) {
			i++
			switch c = text[i]; {
			case c >= '0' && c <= '7':
				// Three octal digits, as in C.
				v := 0
				for n := 0; n < 3 && i < len(text) && text[i] >= '0' && text[i] <= '7'; n++ {
					v = v*8 + int(text[i]-'0')
					i++
				}
				i--
				c = byte(v)
			case c == 't':
				c = '\t'
			case c == 'n':
				c = '\n'
			case c == 'r':
				c = '\r'
			}
		}
		set[c] = true
	}
	return &set
}

// filtered is s with "_" in the place of what the filter does not let through. What
// a client says is thus no way to put line ends into a reply.
func filtered(s string, set *[256]bool) string {
	for i := 0; i < len(s); i++ {
		if !set[s[i]] {
			b := []byte(s)
			for j := range b {
				if !set[b[j]] {
					b[j] = '_'
				}
			}
			return string(b)
		}
	}
	return s
}
