package domain

import (
	"fmt"
	"io"
	"strings"
)

// A Level is how bad a finding is.
type Level uint8

const (
	Good    Level = iota
	Note          // nothing is wrong; something more could be done
	Unknown       // it could not be found out
	Warning       // some receivers or senders will treat mail worse for it
	Error         // mail is lost, refused or taken for forged because of it
)

// String is the level in one word.
func (l Level) String() string {
	return [...]string{"good", "note", "unknown", "warning", "error"}[l]
}

// MarshalText has JSON name the level by its word.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// A Finding is what a check says of one thing.
type Finding struct {
	Area    string   `json:"area"`              // address, mx, tls, spf, ...
	Level   Level    `json:"level"`             //
	Text    string   `json:"text"`              // what was found
	Why     string   `json:"why,omitempty"`     // what follows from it; empty for what is good
	Publish []Record `json:"publish,omitempty"` // what would mend it
}

// A report gathers the findings of one area.
type report struct {
	area string
	list []Finding
}

// say notes a finding: what was found, what follows from it, and what would mend it.
func (r *report) say(level Level, text, why string, publish ...Record) {
	r.list = append(r.list, Finding{Area: r.area, Level: level, Text: text, Why: why, Publish: publish})
}

// good notes that something is as it should be.
func (r *report) good(format string, args ...any) { r.say(Good, fmt.Sprintf(format, args...), "") }

// unanswered notes that the DNS, or another server, did not answer.
func (r *report) unanswered(err error) {
	r.say(Unknown, err.Error(), "try again; if that does not help, ask another name server (resolver_address)")
}

// worst is the highest level of the findings, and Good of none.
func worst(list []Finding) (l Level) {
	for _, f := range list {
		l = max(l, f.Level)
	}
	return l
}

// status is the exit status for monitoring, as plugins of Nagios have it: 0 good, 1 warning,
// 2 error, 3 if nothing is wrong that is known and something is not known.
func status(list []Finding) int {
	switch worst(list) {
	case Error:
		return 2
	case Warning:
		return 1
	case Unknown:
		return 3
	}
	return 0
}

// print writes findings for a person. With quiet, those that are good or notes are left out.
func printFindings(w io.Writer, list []Finding, quiet bool) error {
	for _, f := range list {
		if quiet && f.Level < Unknown {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-8s %-10s %s\n", f.Level, f.Area, f.Text); err != nil {
			return err
		}
		if f.Why != "" {
			if _, err := fmt.Fprintf(w, "%20s%s\n", "", f.Why); err != nil {
				return err
			}
		}
		for _, r := range f.Publish {
			if _, err := fmt.Fprintf(w, "%20spublish: %s\n", "", strings.ReplaceAll(r.String(), "\n", "\n"+strings.Repeat(" ", 20))); err != nil {
				return err
			}
		}
	}
	return nil
}
