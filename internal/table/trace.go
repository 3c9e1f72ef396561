package table

import (
	"context"
	"net/netip"
	"strings"
)

// A Trace is told, line by line, what lookups do on behalf of a client whose session is
// followed: which element of a match list was compared with what, and what each table said. The
// lines are those of Postfix with -v. Several lookups may call it at a time.
type Trace func(format string, args ...any)

// WithTrace returns a context in which lookups tell t what they do.
func WithTrace(ctx context.Context, t Trace) context.Context {
	s := scopeOf(ctx)
	s.trace = t
	return context.WithValue(ctx, scopeKey{}, &s)
}

// TraceOf is the Trace of a context, nil if nobody follows.
func TraceOf(ctx context.Context) Trace { return scopeOf(ctx).trace }

// maxTraced bounds what a line has of a table's answer, in octets.
const maxTraced = 500

// Sent tells of a request to another service by its attributes: names and values by turns. The
// lines are Postfix's, but not what its processes say to each other besides.
func (t Trace) Sent(attributes ...string) {
	for i := 0; i+1 < len(attributes); i += 2 {
		t("send attr %s = %s", attributes[i], bounded(attributes[i+1]))
	}
}

// Received tells of another service's answer, or of its request, in the same way.
func (t Trace) Received(attributes ...string) {
	for i := 0; i+1 < len(attributes); i += 2 {
		value := attributes[i+1]
		if value == "" {
			value = "(end)" // as Postfix has it
		}
		t("input attribute name: %s", attributes[i])
		t("input attribute value: %s", bounded(value))
	}
}

// bounded is what a line has of a value.
func bounded(value string) string {
	if len(value) > maxTraced {
		return value[:maxTraced] + "..."
	}
	return value
}

// looked tells what the tables said of a key. spec is the one that has it, "" if none has.
func (t Trace) looked(m *Maps, spec, key, value string) {
	if spec == "" {
		t("maps_find: %s: %s: not found", m.label(), key)
		return
	}
	t("maps_find: %s: %s: %s = %s", m.label(), spec, key, bounded(value))
}

// label is the title as Postfix has it: of a table that stands in a list of restrictions it is
// the table.
func (m *Maps) label() string {
	if len(m.tables) == 1 && strings.HasSuffix(m.title, " "+m.tables[0].spec) {
		return m.tables[0].spec
	}
	return m.title
}

// compare tells that s is about to be compared with an element of the list.
func (t Trace) compare(l *List, it *listItem, s string, addr netip.Addr) {
	how := "match_hostname"
	switch {
	case l.kind == Strings:
		how = "match_string"
	case addr.IsValid():
		how = "match_hostaddr"
	}
	t("%s: %s: %s ~? %s", how, l.title, s, it.shown())
}

// unmatched tells that no element of the list is about the names.
func (t Trace) unmatched(names ...string) {
	for _, s := range names {
		if s != "" {
			t("match_list_match: %s: no match", s)
		}
	}
}

// shown is the element as it is written, but for what "!" stands before it.
func (it *listItem) shown() string {
	switch {
	case it.maps != nil:
		return it.maps.tables[0].spec
	case it.err != nil:
		return it.err.Error()
	}
	return it.text
}
