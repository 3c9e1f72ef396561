package dkimkey

import "strings"

// Tags reads a list of tags, RFC 6376 section 3.2, as signatures, key records and DMARC records
// have it. White space in values goes. Of a tag that occurs twice the first counts: the standard
// has no meaning for such a list.
func Tags(text string) map[string]string {
	tags := make(map[string]string)
	for part := range strings.SplitSeq(text, ";") {
		name, v, ok := strings.Cut(part, "=")
		name = strings.TrimSpace(name)
		if _, twice := tags[name]; ok && !twice {
			tags[name] = strings.Join(strings.Fields(v), "")
		}
	}
	return tags
}
