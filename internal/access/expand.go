package access

// charset is the characters that smtpd_expansion_filter lets through, given
// with C escapes.
func charset(text string) *[256]bool {
	var set [256]bool
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' && i+1 < len(text) {
			i++
			switch c = text[i]; {
			case c >= '0' && c <= '7':
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
