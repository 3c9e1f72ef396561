package table

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// textTable is texthash: a source file in memory.
type textTable struct {
	file *watched[*textEntries]
	opt  Options
}

// textEntries is one version of the file.
type textEntries struct {
	values map[string]string
	keys   []string // in the order of the file
}

func openText(name string, o Options) (Table, error) {
	file, err := newWatched(name, o, func(path string) (*textEntries, error) { return loadText(path, o) })
	if err != nil {
		return nil, err
	}
	return &textTable{file: file, opt: o}, nil
}

func loadText(path string, o Options) (*textEntries, error) {
	text, err := readText(path)
	if err != nil {
		return nil, err
	}
	e := &textEntries{values: make(map[string]string)}
	err = ParseSource(path, text, o.warnFile(), func(l Line) error {
		key := o.fold(l.Key)
		if _, dup := e.values[key]; dup {
			o.warn("%s, line %d: duplicate entry: %q", path, l.Number, key)
			return nil
		}
		e.values[key] = l.Value
		e.keys = append(e.keys, key)
		return nil
	})
	return e, err
}

func (t *textTable) Lookup(_ context.Context, key string) (string, bool, error) {
	e, err := t.file.get()
	if err != nil {
		return "", false, err
	}
	value, found := e.values[t.opt.fold(key)]
	return value, found, nil
}

// All implements Sequence.
func (t *textTable) All(fn func(key, value string) bool) error {
	e, err := t.file.get()
	if err != nil {
		return err
	}
	for _, key := range e.keys {
		if !fn(key, e.values[key]) {
			break
		}
	}
	return nil
}

func (t *textTable) Pattern() bool      { return false }
func (t *textTable) Close() error       { return nil }
func (t *textTable) Owner() (int, bool) { return t.file.owner() }

// inlineTable is inline:{ key=value, { key = value with spaces } }.
type inlineTable struct {
	entries map[string]string
	keys    []string
	opt     Options
}

func openInline(name string, o Options) (Table, error) {
	items, err := Braced(name)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("expected inline:{key=value, ...}")
	}
	t := &inlineTable{entries: make(map[string]string), opt: o}
	for _, item := range items {
		key, value, ok := strings.Cut(item, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || key == "" {
			return nil, fmt.Errorf("%q: expected key=value", item)
		}
		key = o.fold(key)
		if _, dup := t.entries[key]; dup {
			o.warn("inline:%s: duplicate entry: %q", name, key)
			continue
		}
		t.entries[key] = value
		t.keys = append(t.keys, key)
	}
	return t, nil
}

func (t *inlineTable) Lookup(_ context.Context, key string) (string, bool, error) {
	value, found := t.entries[t.opt.fold(key)]
	return value, found, nil
}

func (t *inlineTable) Pattern() bool { return false }
func (t *inlineTable) Close() error  { return nil }

// All implements Sequence.
func (t *inlineTable) All(fn func(key, value string) bool) error {
	for _, key := range t.keys {
		if !fn(key, t.entries[key]) {
			break
		}
	}
	return nil
}

// Owner: what stands in main.cf is the superuser's.
func (t *inlineTable) Owner() (int, bool) { return 0, true }

// Braced takes "{ a, {b c}, d }" apart: the elements, with braces around one
// element removed.
func Braced(text string) ([]string, error) {
	text = strings.TrimSpace(text)
	if len(text) < 2 || text[0] != '{' || text[len(text)-1] != '}' {
		return nil, fmt.Errorf("%q: expected { ... }", text)
	}
	inner := text[1 : len(text)-1]
	depth := 0
	for i := 0; i < len(inner); i++ {
		switch inner[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth < 0 {
				return nil, fmt.Errorf("%q: text after the closing brace", text)
			}
		}
	}
	if depth != 0 {
		return nil, fmt.Errorf("%q: unbalanced braces", text)
	}
	items := SplitList(inner)
	for i, item := range items {
		if item[0] == '{' && item[len(item)-1] == '}' {
			items[i] = strings.TrimSpace(item[1 : len(item)-1])
		}
	}
	return items, nil
}

// staticTable is static:value: every key is found.
type staticTable string

func openStatic(name string, o Options) (Table, error) {
	if strings.HasPrefix(name, "{") {
		if len(name) < 2 || name[len(name)-1] != '}' {
			return nil, fmt.Errorf("expected static:{text}")
		}
		name = strings.TrimSpace(name[1 : len(name)-1])
	}
	return staticTable(name), nil
}

func (t staticTable) Lookup(context.Context, string) (string, bool, error) {
	return string(t), true, nil
}
func (t staticTable) Pattern() bool      { return false }
func (t staticTable) Close() error       { return nil }
func (t staticTable) Owner() (int, bool) { return 0, true }

// failTable is fail:name: every lookup is an error. It is for tests of what
// happens then, and for "must not be used".
type failTable string

func openFail(name string, _ Options) (Table, error) { return failTable(name), nil }

func (t failTable) Lookup(context.Context, string) (string, bool, error) {
	return "", false, fmt.Errorf("fail:%s always fails", string(t))
}
func (t failTable) Pattern() bool { return true }
func (t failTable) Close() error  { return nil }

// environTable is environ:name: the process's environment variables.
type environTable struct{}

func openEnviron(string, Options) (Table, error) { return environTable{}, nil }

func (environTable) Lookup(_ context.Context, key string) (string, bool, error) {
	value, found := os.LookupEnv(key)
	return value, found, nil
}
func (environTable) Pattern() bool { return false }
func (environTable) Close() error  { return nil }
