package rate

import (
	"errors"
	"fmt"
	"strings"
)

// Limits are what may go to a destination, or to several together. The zero
// value of each is no limit. They are written as items between commas or
// spaces, in any order, each once:
//
//	concurrency=20, connections=5/s, messages=1000/h, recipients=50000/d, messages_per_connection=100
//
// The word none is no limit at all.
type Limits struct {
	Concurrency int  // concurrency: deliveries at once
	Connections Rate // connections: connections that are opened
	Messages    Rate // messages: deliveries
	Recipients  Rate // recipients of these deliveries
	Reuse       int  // messages_per_connection: deliveries over one connection
}

// ParseLimits reads limits. With an error it also returns what it has
// understood; the error names the first item that it has not.
func ParseLimits(text string) (l Limits, err error) {
	items := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
	if len(items) == 0 {
		return l, errors.New("no limit is named; \"none\" is none")
	}
	if len(items) == 1 && items[0] == "none" {
		return l, nil
	}
	for _, item := range items {
		if e := l.set(item); e != nil && err == nil {
			err = e
		}
	}
	return l, err
}

// set takes in one item.
func (l *Limits) set(item string) error {
	name, value, _ := strings.Cut(item, "=")
	counts := map[string]*int{"concurrency": &l.Concurrency, "messages_per_connection": &l.Reuse}
	rates := map[string]*Rate{"connections": &l.Connections, "messages": &l.Messages, "recipients": &l.Recipients}
	count, rate := counts[name], rates[name]
	switch {
	case count == nil && rate == nil:
		return fmt.Errorf("%q: there is no limit of this name", name)
	case count != nil && *count != 0 || rate != nil && *rate != Rate{}:
		return fmt.Errorf("%q: %s is named twice", item, name)
	case count != nil:
		n, err := number(value, 1_000_000)
		if err != nil {
			return fmt.Errorf("%q: %w", item, err)
		}
		*count = int(n)
	default:
		r, err := Parse(value)
		if err != nil {
			return fmt.Errorf("%q: %w", item, err)
		}
		*rate = r
	}
	return nil
}

// String is l as ParseLimits reads it.
func (l Limits) String() string {
	var items []string
	add := func(name, value string) {
		if value != "" && value != "0" {
			items = append(items, name+"="+value)
		}
	}
	add("concurrency", fmt.Sprint(l.Concurrency))
	add("connections", l.Connections.String())
	add("messages", l.Messages.String())
	add("recipients", l.Recipients.String())
	add("messages_per_connection", fmt.Sprint(l.Reuse))
	if len(items) == 0 {
		return "none"
	}
	return strings.Join(items, ", ")
}
