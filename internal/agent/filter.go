package agent

import (
	"context"
	"fmt"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/table"
)

// A Filter is a delivery status filter (smtp_delivery_status_filter and its
// kin): it changes the status and the text of outcomes before they are logged
// and reported. It may turn a failure that passes into one that does not, and
// the other way round, but neither into success, nor success into failure.
// The nil Filter changes nothing. Its methods may be called concurrently.
type Filter struct {
	maps *table.Maps
	log  *maillog.Logger
}

// OpenFilter opens the filter of a program, nil if it has none. The agents
// error, retry and discard have no parameter for one: what they say is the
// administrator's own word already.
func OpenFilter(cfg *config.Config, process string, log *maillog.Logger) *Filter {
	switch process {
	case "smtp", "lmtp", "local", "virtual", "pipe":
	default:
		return nil
	}
	own := cfg.Prefix(process)
	specs := own.List("delivery_status_filter")
	if len(specs) == 0 {
		return nil
	}
	warn := func(text string) { log.Warning("%s", text) }
	return &Filter{table.OpenMaps(own.Name("delivery_status_filter"), specs, table.Options{Warn: warn}), log}
}

// Close frees the tables.
func (f *Filter) Close() {
	if f != nil {
		_ = f.maps.Close() // read only: nothing can be lost
	}
}

// apply gives what becomes of an outcome. One that cannot be looked up, or
// whose entry makes no sense, stays as it is, and that is warned of.
func (f *Filter) apply(action dsn.Action, status dsn.Status, text string) (dsn.Action, dsn.Status, string) {
	if f == nil {
		return action, status, text
	}
	value, found, err := f.maps.Lookup(context.Background(), status.String()+" "+text, false)
	if err != nil {
		f.log.Warning("%v", err) // which names the table
		return action, status, text
	}
	if found {
		var changed dsn.Status
		var words string
		if changed, words, err = filtered(status, value); err == nil {
			switch {
			case changed.Class == 4:
				action = dsn.Deferred
			case changed.Class == 5:
				action = dsn.Failed
			}
			return action, changed, words
		}
	}
	if err != nil {
		f.log.Warning("%s: %v", f.maps.Title(), err)
	}
	return action, status, text
}

// filtered reads the value of a filter's entry, which is an enhanced status
// code and a text, in place of old.
func filtered(old dsn.Status, value string) (dsn.Status, string, error) {
	s, words, ok := dsn.CutStatus(value)
	if !ok {
		return old, "", fmt.Errorf("%q: expected an enhanced status code and a text", value)
	}
	if (s.Class == 2) != (old.Class == 2) {
		return old, "", fmt.Errorf("%q: cannot turn %s into that", value, old)
	}
	return s, strings.TrimSpace(words), nil
}
