package manual

import (
	"fmt"
	"go/doc/comment"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A formatPage is a page of section 5 about a file or a kind of table, made of
// a text in formats/. The text is in the syntax of Go's doc comments
// (https://go.dev/doc/comment), below two lines:
//
//	name, alias ... - what it is
//	see: pages that it refers to
//
// Items of a list in the form "term -- text" become a list of terms. In code
// blocks, a first line "# /etc/posthaste/NAME" makes the block that file, and
// "$ command" is followed by what the command prints: a test does it.
type formatPage struct {
	name    string
	aliases []string
	what    string
	see     []string
	doc     *comment.Doc
}

// formatDir is where the texts are, below the module's root.
const formatDir = "internal/manual/formats"

// late are the chapters that have a place of their own behind the description,
// in mdoc's order.
var lateChapters = []string{"Files", "Examples", "Diagnostics", "See also", "Standards", "Bugs", "Security considerations"}

func formatPages(root string) ([]formatPage, error) {
	names, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(formatDir), "*.txt"))
	if err != nil {
		return nil, err
	}
	var list []formatPage
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		f, err := parseFormat(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, f)
	}
	return list, nil
}

func parseFormat(text string) (f formatPage, err error) {
	first, rest, _ := strings.Cut(text, "\n")
	second, body, _ := strings.Cut(rest, "\n")
	names, what, ok := strings.Cut(first, " - ")
	see, ok2 := strings.CutPrefix(second, "see: ")
	if !ok || !ok2 {
		return f, fmt.Errorf(`expected "name - what" and "see: pages", found %q and %q`, first, second)
	}
	list := strings.Split(names, ", ")
	words := comment.Parser{LookupSym: func(string, string) bool { return true }}
	return formatPage{name: list[0], aliases: list[1:], what: what, see: strings.Fields(see), doc: words.Parse(body)}, nil
}

// page writes the page.
func (f *formatPage) page() []byte {
	p := newPage(f.name, 5, f.what, f.aliases...)
	all := chapters(f.doc)
	write := func(title string, begin func(string)) {
		for _, c := range all[1:] {
			if c.title == title {
				begin(title)
				p.formatBlocks(c.blocks)
			}
		}
	}
	write("Synopsis", p.section)
	p.section("Description")
	p.formatBlocks(all[0].blocks)
	for _, c := range all[1:] {
		if c.title != "Synopsis" && !slices.Contains(lateChapters, c.title) {
			p.subsection(c.title)
			p.formatBlocks(c.blocks)
		}
	}
	for _, title := range lateChapters {
		if title == "See also" {
			p.seeAlso(slices.Clone(f.see)...)
			continue
		}
		write(title, p.section)
	}
	return p.Bytes()
}

// formatBlocks writes blocks, lists of terms among them.
func (p *roff) formatBlocks(list []comment.Block) {
	for i, b := range list {
		l, ok := b.(*comment.List)
		if !ok {
			if _, code := b.(*comment.Code); i > 0 && !code {
				p.line(".Pp")
			}
			p.blocks(list[i:i+1], func(s string) string { return strings.ReplaceAll(s, "\n", " ") })
			continue
		}
		p.terms(l)
	}
}

// terms writes a list whose items are "term -- text"; where one is not, it is
// an ordinary list.
func (p *roff) terms(l *comment.List) {
	var list []item
	for _, it := range l.Items {
		var text []string
		for _, b := range it.Content {
			if t, ok := b.(*comment.Paragraph); ok {
				text = append(text, strings.ReplaceAll(plain(t.Text), "\n", " "))
			}
		}
		tag, rest, ok := strings.Cut(strings.Join(text, " "), " -- ")
		if !ok {
			p.list(l, func(s string) string { return s })
			return
		}
		list = append(list, item{argument(tag), rest})
	}
	p.items("Ds", list)
}
