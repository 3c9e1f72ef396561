package table

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Maps is an ordered list of tables, asked in turn until one answers. The zero
// Maps, like a nil one, is empty and finds nothing. All methods may be called
// concurrently.
type Maps struct {
	title  string
	tables []*member
}

// member is one table of a Maps. A table that cannot be opened does not stop
// the program: lookups in it fail, and it is tried again from time to time, so
// that mail waits until the administrator has built the file.
type member struct {
	spec string
	opt  Options

	mu   sync.Mutex
	tab  Table
	err  error
	next time.Time // not opened again before
}

const reopenAfter = 10 * time.Second

// OpenMaps opens the tables that specs names, each type:name. title is the
// parameter that lists them and appears in errors and warnings. Tables that
// cannot be opened are warned of; lookups fail until they can.
func OpenMaps(title string, specs []string, o Options) *Maps {
	m := &Maps{title: title}
	for _, spec := range specs {
		mem := &member{spec: spec, opt: o}
		if _, err := mem.table(); err != nil {
			o.warn("%s: %v", title, err)
		}
		m.tables = append(m.tables, mem)
	}
	return m
}

func (m *member) table() (Table, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tab != nil {
		return m.tab, nil
	}
	if now := time.Now(); !now.Before(m.next) {
		if m.tab, m.err = Open(m.spec, m.opt); m.opt.Confined.Lost(m.err) {
			m.opt.Confined.Replace(m.spec) // it may be there by now
		}
		m.next = now.Add(reopenAfter)
	}
	return m.tab, m.err
}

// Title is the name of the parameter that the tables come from.
func (m *Maps) Title() string {
	if m == nil {
		return ""
	}
	return m.title
}

// Empty says that there is no table, so that nothing will ever be found.
func (m *Maps) Empty() bool { return m == nil || len(m.tables) == 0 }

// errEmptyValue: with an empty answer there is no telling whether the table's
// author meant "nothing" or "not found".
var errEmptyValue = errors.New("the answer is empty; a table must not have the key, or have a value for it")

// Lookup finds key in the first table that has it. partial says that key is
// only part of what is looked for, and keeps pattern tables out of it. An
// empty key is never found; an empty answer is an error.
func (m *Maps) Lookup(ctx context.Context, key string, partial bool) (value string, found bool, err error) {
	if m == nil || key == "" {
		return "", false, nil
	}
	spec := ""
	for _, mem := range m.tables {
		t, err := mem.table()
		if err != nil {
			return "", false, fmt.Errorf("%s: %w", m.title, err)
		}
		if partial && t.Pattern() {
			continue
		}
		value, found, err = t.Lookup(ctx, key)
		if err == nil && found && value == "" {
			err = errEmptyValue
		}
		if err != nil {
			return "", false, fmt.Errorf("%s: %s: lookup of %.200q: %w", m.title, mem.spec, key, err)
		}
		if found {
			spec = mem.spec
			break
		}
	}
	if !found {
		value = ""
	}
	if trace := TraceOf(ctx); trace != nil {
		trace.looked(m, spec, key, value)
	}
	return value, found, nil
}

// LookupOwned is Lookup with the owner of the table that answered, for tables
// that are one ([Owned]).
func (m *Maps) LookupOwned(ctx context.Context, key string, partial bool) (value string, uid int, owned, found bool, err error) {
	if m == nil {
		return "", 0, false, false, nil
	}
	for _, mem := range m.tables {
		one := Maps{title: m.title, tables: []*member{mem}}
		value, found, err = one.Lookup(ctx, key, partial)
		if err != nil || !found {
			if err != nil {
				return "", 0, false, false, err
			}
			continue
		}
		t, err := mem.table()
		if o, ok := t.(Owned); ok && err == nil {
			uid, owned = o.Owner()
		}
		return value, uid, owned, true, nil
	}
	return "", 0, false, false, nil
}

// Close closes all tables.
func (m *Maps) Close() error {
	if m == nil {
		return nil
	}
	var errs []error
	for _, mem := range m.tables {
		mem.mu.Lock()
		if mem.tab != nil {
			errs = append(errs, mem.tab.Close())
		}
		mem.mu.Unlock()
	}
	return errors.Join(errs...)
}
