package rfc5322

import (
	"strings"

	"posthaste/internal/reuse"
)

// AppendRewritten appends the field name with the list text, in which
// AppendAddresses had found addrs, with those that are marked Changed replaced
// by what Addr is now. Everything else of the list, display names, comments,
// groups, is kept; commas that were missing are put in; the field is folded
// anew, and ends in CRLF.
func AppendRewritten(b []byte, name, text string, addrs []Address) []byte {
	var space [96]token
	toks := appendTokens(space[:0], text, len(text))
	w := listWriter{text: text, addrs: addrs}
	for i := 0; i < len(toks); i++ {
		switch toks[i].op {
		case '<':
			p := listParser{toks: toks}
			if end := p.closing(i); end >= 0 {
				i = end
			}
		case ',':
			w.copyTo(toks[i].start)
			w.endItem()
			w.pos = toks[i].end
		}
	}
	w.copyTo(len(text))
	w.endItem()
	return AppendList(b, name, w.items)
}

// listWriter cuts a list into items while it copies it.
type listWriter struct {
	text  string
	pos   int       // text before it is done
	addrs []Address // those not done
	item  []byte
	items []string
}

// copyTo copies text up to end, with addresses replaced.
func (w *listWriter) copyTo(end int) {
	for len(w.addrs) > 0 && w.addrs[0].Item < end {
		a := w.addrs[0]
		w.addrs = w.addrs[1:]
		if a.MissingComma && a.Item >= w.pos {
			w.copyText(a.Item)
			w.endItem()
		}
		if !a.Changed {
			continue
		}
		w.copyText(a.Start)
		if a.Addr == "" && !a.Bracketed {
			w.item = append(w.item, "<>"...)
		} else {
			w.item = AppendQuoted(w.item, a.Addr)
		}
		w.pos = max(w.pos, a.End)
	}
	w.copyText(end)
}

// copyText copies text up to end, unfolded: line ends go, and the white space
// that follows one is a space.
func (w *listWriter) copyText(end int) {
	for ; w.pos < end; w.pos++ {
		switch c := w.text[w.pos]; c {
		case '\r', '\n':
		case '\t':
			w.item = append(w.item, ' ')
		default:
			w.item = append(w.item, c)
		}
	}
}

func (w *listWriter) endItem() {
	if item := strings.TrimSpace(string(w.item)); item != "" {
		w.items = append(w.items, item)
	}
	w.item = reuse.Truncated(w.item)
}
