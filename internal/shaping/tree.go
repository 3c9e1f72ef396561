// What a file says, before it is understood: values with the lines that they are on. TOML and JSON
// come to the same.

package shaping

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// A kind is what a node of a file is.
type kind uint8

const (
	tableNode kind = iota
	listNode
	stringNode
	numberNode
	boolNode
)

func (k kind) String() string {
	return [...]string{"a table", "a list", "a string", "a number", "a truth value"}[k]
}

// A node is a value of a file.
type node struct {
	kind kind
	line int
	text string           // of a string, and of a number as it stands
	yes  bool             // of a truth value
	list []*node          // of a list
	keys []string         // of a table, in the order of the file
	kids map[string]*node // by key
}

// child finds or makes a member of a table.
func (n *node) child(key string, k kind, line int) *node {
	c := n.kids[key]
	if c == nil {
		c = &node{kind: k, line: line}
		n.put(key, c)
	}
	return c
}

// put sets a member of a table.
func (n *node) put(key string, c *node) {
	if n.kids == nil {
		n.kids = make(map[string]*node)
	}
	if n.kids[key] == nil {
		n.keys = append(n.keys, key)
	}
	n.kids[key] = c
}

// maxDepth bounds how deep lists and tables are in each other.
const maxDepth = 32

var errDeep = errors.New("lists and tables are too deep in each other")

// deep says whether brackets are too deep in each other for a parser that calls itself. Strings may
// have some, and are counted: no file has so many.
func deep(text []byte) bool {
	depth := 0
	for _, c := range text {
		switch c {
		case '[', '{':
			if depth++; depth > 10*maxDepth {
				return true
			}
		case ']', '}':
			depth = max(depth-1, 0)
		}
	}
	return false
}

// A lineError is an error that knows its line.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return e.err.Error() }
func (e *lineError) Unwrap() error { return e.err }

func errorAt(line int, format string, args ...any) error {
	return &lineError{line, fmt.Errorf(format, args...)}
}

// parseTOML reads a file of TOML. The library's decoder says first whether it is TOML at all, so that the
// walk behind it meets no key twice.
func parseTOML(text []byte) (*node, error) {
	if deep(text) {
		return nil, errDeep
	}
	var all map[string]any
	if err := toml.Unmarshal(text, &all); err != nil {
		if at := new(toml.DecodeError); errors.As(err, &at) {
			row, _ := at.Position()
			return nil, errorAt(row, "%s", strings.TrimPrefix(at.Error(), "toml: "))
		}
		return nil, err
	}
	b := &builder{root: &node{kind: tableNode, line: 1}}
	b.parser.Reset(text)
	b.table = b.root
	for b.parser.NextExpression() {
		if err := b.expression(b.parser.Expression()); err != nil {
			return nil, err
		}
	}
	return b.root, b.parser.Error()
}

// A builder makes a tree of the expressions of a TOML file.
type builder struct {
	parser unstable.Parser
	root   *node
	table  *node // that of the latest header
}

func (b *builder) expression(e *unstable.Node) error {
	switch e.Kind {
	case unstable.KeyValue:
		return b.keyValue(b.table, e, 0)
	case unstable.Table, unstable.ArrayTable:
		at := b.root
		for it := e.Key(); it.Next(); {
			key, line := string(it.Node().Data), b.line(it.Node())
			if e.Kind == unstable.ArrayTable && it.IsLast() {
				l := at.child(key, listNode, line)
				if l.kind != listNode {
					return errorAt(line, "%s is not a list of tables", key)
				}
				at = &node{kind: tableNode, line: line}
				l.list = append(l.list, at)
				break
			}
			at = at.child(key, tableNode, line)
			if at.kind == listNode && len(at.list) > 0 {
				at = at.list[len(at.list)-1]
			}
			if at.kind != tableNode {
				return errorAt(line, "%s is not a table", key)
			}
		}
		b.table = at
	}
	return nil
}

// keyValue takes in a key, which may be dotted, and its value.
func (b *builder) keyValue(into *node, e *unstable.Node, depth int) error {
	var last string
	line := 0
	for it := e.Key(); it.Next(); {
		last, line = string(it.Node().Data), b.line(it.Node())
		if it.IsLast() {
			break
		}
		if into = into.child(last, tableNode, line); into.kind != tableNode {
			return errorAt(line, "%s is not a table", last)
		}
	}
	v, err := b.value(e.Value(), line, depth+1)
	if err == nil {
		into.put(last, v)
	}
	return err
}

func (b *builder) value(e *unstable.Node, line, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, &lineError{line, errDeep}
	}
	switch e.Kind {
	case unstable.String:
		return &node{kind: stringNode, line: line, text: string(e.Data)}, nil
	case unstable.Bool:
		return &node{kind: boolNode, line: line, yes: string(e.Data) == "true"}, nil
	case unstable.Integer, unstable.Float:
		return &node{kind: numberNode, line: line, text: strings.ReplaceAll(string(e.Data), "_", "")}, nil
	case unstable.Array:
		n := &node{kind: listNode, line: line}
		for it := e.Children(); it.Next(); {
			if it.Node().Kind == unstable.Comment {
				continue
			}
			v, err := b.value(it.Node(), max(line, b.line(it.Node())), depth+1)
			if err != nil {
				return nil, err
			}
			n.list = append(n.list, v)
		}
		return n, nil
	case unstable.InlineTable:
		n := &node{kind: tableNode, line: line}
		for it := e.Children(); it.Next(); {
			if it.Node().Kind != unstable.KeyValue {
				continue
			}
			if err := b.keyValue(n, it.Node(), depth+1); err != nil {
				return nil, err
			}
		}
		return n, nil
	}
	return nil, errorAt(line, "a date is not understood here")
}

// line is where a node stands; 0: the library has not said.
func (b *builder) line(n *unstable.Node) int {
	if n.Raw.Length == 0 {
		return 0
	}
	return b.parser.Shape(n.Raw).Start.Line
}

// parseJSON reads the same in JSON. It goes through the tokens, for their order and their lines.
func parseJSON(text []byte) (*node, error) {
	if deep(text) {
		return nil, errDeep
	}
	p := &jsonReader{text: text, d: json.NewDecoder(bytes.NewReader(text)), line: 1}
	p.d.UseNumber()
	t, err := p.token()
	if err != nil {
		return nil, err
	}
	if t != json.Delim('{') {
		return nil, errorAt(p.line, "an object is expected")
	}
	root, err := p.value(t, 0)
	if err != nil {
		return nil, err
	}
	if _, err := p.d.Token(); err != io.EOF {
		return nil, errors.New("something follows the object")
	}
	return root, nil
}

type jsonReader struct {
	text []byte
	d    *json.Decoder
	line int
	at   int // up to where lines have been counted
}

func (p *jsonReader) token() (json.Token, error) {
	t, err := p.d.Token()
	to := min(int(p.d.InputOffset()), len(p.text))
	p.line += bytes.Count(p.text[p.at:to], []byte{'\n'})
	p.at = to
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, &lineError{p.line, err}
	}
	return t, nil
}

func (p *jsonReader) value(t json.Token, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, &lineError{p.line, errDeep}
	}
	n := &node{line: p.line}
	switch t := t.(type) {
	case string:
		n.kind, n.text = stringNode, t
	case bool:
		n.kind, n.yes = boolNode, t
	case json.Number:
		n.kind, n.text = numberNode, t.String()
	case json.Delim:
		if n.kind = tableNode; t == '[' {
			n.kind = listNode
		}
		return n, p.members(n, depth)
	default:
		return nil, errorAt(p.line, "null is not understood")
	}
	return n, nil
}

// members reads what is in an object or a list, and its end.
func (p *jsonReader) members(n *node, depth int) error {
	for p.d.More() {
		t, err := p.token()
		if err != nil {
			return err
		}
		key := ""
		if n.kind == tableNode {
			key = t.(string) // the decoder has nothing else there
			if n.kids[key] != nil {
				return errorAt(p.line, "%s is there twice", key)
			}
			if t, err = p.token(); err != nil {
				return err
			}
		}
		v, err := p.value(t, depth+1)
		if err != nil {
			return err
		}
		if n.kind == tableNode {
			n.put(key, v)
		} else {
			n.list = append(n.list, v)
		}
	}
	_, err := p.token()
	return err
}
