package trace

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/queueclient"
	"posthaste/internal/selection"
	"posthaste/internal/track"
)

// arguments are those of the command line.
type arguments struct {
	configDir string
	query     track.Query
	logs      []string
	limit     int
	json      bool
	lines     bool
	follow    bool
	noIndex   bool
	build     bool
}

// fields are the options that are conditions.
var fields = map[string]track.Field{
	"from": track.From, "to": track.To, "client": track.Client, "relay": track.Relay, "id": track.ID, "message-id": track.MessageID,
	"user": track.User, "reply": track.Reply, "text": track.Text,
}

// long are the names of options that have a letter.
var long = map[byte]string{'c': "config-dir", 's': "since", 'u': "until", 'n': "limit", 'j': "json", 'f': "follow", 'l': "lines"}

// parse reads the command line. Options and patterns may be mixed; behind -- there are patterns only.
func parse(args []string, now time.Time) (a arguments, err error) {
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		if word == "--" {
			for _, p := range args {
				a.condition(track.Anything, p)
			}
			break
		}
		if len(word) < 2 || word[0] != '-' {
			a.condition(track.Anything, word)
			continue
		}
		for _, o := range split(word) {
			if args, err = a.option(o, args, now); err != nil {
				return a, err
			}
		}
	}
	return a, a.check()
}

// An optionWord is one option, as far as its word says.
type optionWord struct {
	name, shown string
	value       *string
}

// split takes a word of options apart: --name, --name=value, -n5, -jl.
func split(word string) (list []optionWord) {
	if name, ok := strings.CutPrefix(word, "--"); ok {
		name, value, attached := strings.Cut(name, "=")
		o := optionWord{name: name, shown: "--" + name}
		if attached {
			o.value = &value
		}
		return append(list, o)
	}
	for i := 1; i < len(word); i++ {
		o := optionWord{name: long[word[i]], shown: "-" + word[i:i+1]}
		if strings.IndexByte("csun", word[i]) >= 0 && i+1 < len(word) {
			value := word[i+1:]
			o.value, i = &value, len(word)
		}
		list = append(list, o)
	}
	return list
}

// option takes one option, and its value from the next word if it needs one.
func (a *arguments) option(o optionWord, rest []string, now time.Time) ([]string, error) {
	flags := map[string]*bool{"json": &a.json, "lines": &a.lines, "follow": &a.follow, "no-index": &a.noIndex, "build": &a.build}
	if flag := flags[o.name]; flag != nil {
		if o.value != nil {
			return rest, fmt.Errorf("%s takes no value", o.shown)
		}
		*flag = true
		return rest, nil
	}
	field, isField := fields[o.name]
	if !isField {
		switch o.name {
		case "config-dir", "since", "until", "limit", "log":
		default:
			return rest, fmt.Errorf("unknown option %s", o.shown)
		}
	}
	if o.value == nil {
		if len(rest) == 0 {
			return rest, fmt.Errorf("%s needs a value", o.shown)
		}
		o.value, rest = &rest[0], rest[1:]
	}
	if isField {
		a.condition(field, *o.value)
		return rest, nil
	}
	if err := a.set(o.name, *o.value, now); err != nil {
		return rest, fmt.Errorf("%s: %w", o.shown, err)
	}
	return rest, nil
}

func (a *arguments) set(name, value string, now time.Time) (err error) {
	switch name {
	case "config-dir":
		a.configDir = value
	case "since":
		a.query.Since, err = moment(value, now)
	case "until":
		a.query.Until, err = moment(value, now)
	case "limit":
		if a.limit, err = strconv.Atoi(value); err != nil || a.limit < 1 {
			err = fmt.Errorf("%q is no number from 1", value)
		}
	case "log":
		a.logs = append(a.logs, value)
	}
	return err
}

func (a *arguments) condition(field track.Field, value string) {
	a.query.Conditions = append(a.query.Conditions, track.Condition{Field: field, Value: value})
}

// check says what does not go together.
func (a *arguments) check() error {
	timed := !a.query.Since.IsZero() || !a.query.Until.IsZero()
	some := len(a.query.Conditions) > 0
	switch {
	case a.build && (some || timed || a.follow || a.noIndex || a.json || a.lines || a.limit != 0):
		return fmt.Errorf("--build can be combined only with -c and --log")
	case !a.build && !some && !timed:
		return fmt.Errorf("no pattern: give a queue ID, an address, @domain, a Message-ID or a client")
	case !a.query.Since.IsZero() && !a.query.Until.IsZero() && !a.query.Since.Before(a.query.Until):
		return fmt.Errorf("--since and --until: nothing lies between %s and %s", a.query.Since.Format(time.DateTime), a.query.Until.Format(time.DateTime))
	case a.follow && timed:
		return fmt.Errorf("--follow cannot be combined with --since and --until")
	case a.follow && len(a.logs) > 1:
		return fmt.Errorf("--follow takes one log")
	}
	if a.build {
		return nil
	}
	return a.query.Valid()
}

// moment reads a time, or how long ago it is.
func moment(value string, now time.Time) (time.Time, error) {
	if d, err := selection.ParseTime(value); err == nil {
		return now.Add(-d), nil
	}
	t, _, err := queueclient.ParseMoment(value, now)
	if err != nil {
		return t, fmt.Errorf("%w, or 2h", err)
	}
	return t, nil
}
