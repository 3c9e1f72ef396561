package table

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
)

// parts is the tables that a combined table is made of.
type parts []Table

func openParts(kind, name string, o Options) (parts, error) {
	specs, err := Braced(name)
	if err != nil {
		return nil, err
	}
	if len(specs) == 0 {
		return nil, fmt.Errorf("expected %s:{type:name, ...}", kind)
	}
	var p parts
	for _, spec := range specs {
		t, err := Open(spec, o)
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		p = append(p, t)
	}
	return p, nil
}

// Pattern is true if it is for any part: what would be wrong to ask one of
// them is wrong to ask the whole.
func (p parts) Pattern() bool {
	for _, t := range p {
		if t.Pattern() {
			return true
		}
	}
	return false
}

func (p parts) Close() error {
	var errs []error
	for _, t := range p {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// Owner is known if it is the same for all parts.
func (p parts) Owner() (uid int, ok bool) {
	for i, t := range p {
		o, is := t.(Owned)
		if !is {
			return 0, false
		}
		u, known := o.Owner()
		if !known || i > 0 && u != uid {
			return 0, false
		}
		uid = u
	}
	return uid, true
}

// unionTable is unionmap: the answers of all tables that have the key, with
// commas between.
type unionTable struct{ parts }

func openUnion(name string, o Options) (Table, error) {
	p, err := openParts("unionmap", name, o)
	if err != nil {
		return nil, err
	}
	return unionTable{p}, nil
}

func (t unionTable) Lookup(ctx context.Context, key string) (string, bool, error) {
	var values []string
	for _, part := range t.parts {
		value, found, err := part.Lookup(ctx, key)
		if err != nil {
			return "", false, err
		}
		if found {
			values = append(values, value)
		}
	}
	return strings.Join(values, ","), len(values) > 0, nil
}

// pipeTable is pipemap: each table's answer is the next one's key.
type pipeTable struct{ parts }

func openPipe(name string, o Options) (Table, error) {
	p, err := openParts("pipemap", name, o)
	if err != nil {
		return nil, err
	}
	return pipeTable{p}, nil
}

func (t pipeTable) Lookup(ctx context.Context, key string) (string, bool, error) {
	for _, part := range t.parts {
		value, found, err := part.Lookup(ctx, key)
		if err != nil || !found {
			return "", false, err
		}
		key = value
	}
	return key, true, nil
}

// randomTable is randmap: one of its elements, whatever the key.
type randomTable struct {
	values []string
	pick   func(n int) int
}

func openRandom(name string, o Options) (Table, error) {
	values, err := Braced(name)
	if err != nil {
		return nil, err
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("expected randmap:{value, ...}")
	}
	t := &randomTable{values: values, pick: o.Rand}
	if t.pick == nil {
		t.pick = rand.IntN
	}
	return t, nil
}

func (t *randomTable) Lookup(context.Context, string) (string, bool, error) {
	return t.values[t.pick(len(t.values))], true, nil
}
func (t *randomTable) Pattern() bool      { return true }
func (t *randomTable) Close() error       { return nil }
func (t *randomTable) Owner() (int, bool) { return 0, true }
