package manual

import (
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// packageComment returns the comment of the package in a directory.
func packageComment(dir string) (*comment.Doc, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var text string
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return nil, err
		}
		if t := docText(f.Doc); len(t) > len(text) {
			text = t
		}
	}
	if text == "" {
		return nil, fmt.Errorf("%s: no package comment", dir)
	}
	words := comment.Parser{LookupSym: func(string, string) bool { return true }}
	return words.Parse(text), nil
}

func docText(g *ast.CommentGroup) string {
	if g == nil {
		return ""
	}
	return g.Text()
}

// A chapter is a part of a comment under one heading; the first has none.
type chapter struct {
	title  string
	blocks []comment.Block
}

func chapters(d *comment.Doc) []chapter {
	list := []chapter{{}}
	for _, b := range d.Content {
		if h, ok := b.(*comment.Heading); ok {
			list = append(list, chapter{title: plain(h.Text)})
			continue
		}
		last := &list[len(list)-1]
		last.blocks = append(last.blocks, b)
	}
	return list
}

// plain is the words of a text without links.
func plain(text []comment.Text) string {
	var b strings.Builder
	for _, t := range text {
		switch t := t.(type) {
		case comment.Plain:
			b.WriteString(string(t))
		case comment.Italic:
			b.WriteString(string(t))
		case *comment.Link:
			b.WriteString(plain(t.Text))
		case *comment.DocLink:
			b.WriteString(plain(t.Text))
		}
	}
	return b.String()
}

// blocks writes the blocks of a comment; edit changes the text of each paragraph, and
// drops one by returning nothing.
func (p *roff) blocks(list []comment.Block, edit func(string) string) {
	first := true
	for _, b := range list {
		switch b := b.(type) {
		case *comment.Paragraph:
			text := edit(plain(b.Text))
			if text == "" {
				continue
			}
			if !first {
				p.line(".Pp")
			}
			p.leading(text)
		case *comment.Code:
			p.literal(b.Text)
		case *comment.List:
			p.list(b, edit)
		}
		first = false
	}
}

// leading writes a paragraph that may begin with the page's name in the form
// "\x00 is", see servicePage.edit.
func (p *roff) leading(text string) {
	if rest, ok := strings.CutPrefix(text, nameMark); ok {
		p.line(".Nm")
		text = strings.TrimSpace(rest)
	}
	p.prose(text)
}

func (p *roff) list(l *comment.List, edit func(string) string) {
	kind := "-bullet"
	if len(l.Items) > 0 && l.Items[0].Number != "" {
		kind = "-enum"
	}
	p.line(".Bl %s -compact", kind)
	for _, it := range l.Items {
		p.line(".It")
		for _, b := range it.Content {
			if t, ok := b.(*comment.Paragraph); ok {
				p.prose(edit(plain(t.Text)))
			}
		}
	}
	p.line(".El")
}
