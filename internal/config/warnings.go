package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"posthaste/internal/feedback"
)

//go:generate go test -run TestSupported -update

// supported is the set of parameters that code of Posthaste reads.
var supported = sync.OnceValue(func() map[string]bool {
	m := make(map[string]bool, len(supportedNames))
	for _, name := range supportedNames {
		m[name] = true
	}
	return m
})

// Supported reports whether some code reads the parameter.
func Supported(name string) bool {
	if supported()[name] {
		return true
	}
	if _, ok := declared().index[name]; ok {
		return false
	}
	p, ok := declared().familyMember(name)
	return ok && supported()[strings.TrimPrefix(p.Default, "$")]
}

// Warnings returns what an operator should know about settings that were read
// without error: names that nobody knows, parameters that have no effect here,
// and settings that another line overrides. Each is reported once, with its place, in order of place.
func (c *Config) Warnings() []string { return c.warnings(true) }

// LineWarnings are those of Warnings that are about lines of main.cf without effect: one that
// another overrides, one that sets what cannot be set, one that continues nothing.
func (c *Config) LineWarnings() []string { return slices.Clone(c.duplicate) }

// Notes is Warnings without the names that nobody knows, which CheckNames has.
func (c *Config) Notes() []string { return c.warnings(false) }

func (c *Config) warnings(unknown bool) []string {
	warnings := slices.Clone(c.duplicate)
	used := c.userDefined()
	for _, name := range slices.SortedFunc(maps.Keys(c.settings), c.byPlace) {
		if _, known := Lookup(name); !known && !unknown {
			continue
		}
		s := c.settings[name]
		if w := warning(name, s.raw, used); w != "" {
			warnings = append(warnings, s.where()+": "+w)
		}
		if isFeedback(name) {
			// Like Postfix, the queue manager goes on with what it can make of it.
			if f, err := feedback.Parse(c.String(name)); err != nil {
				warnings = append(warnings, fmt.Sprintf("%s: parameter %s: %q: %v; %g is used", s.where(), name, c.String(name), err, f.Base))
			}
		}
	}
	return warnings
}

// isFeedback says whether a parameter is a concurrency feedback, of all
// transports or of one.
func isFeedback(name string) bool {
	return strings.HasSuffix(name, "_destination_concurrency_positive_feedback") ||
		strings.HasSuffix(name, "_destination_concurrency_negative_feedback")
}

// Warnings does for the -o options of a service what Config.Warnings does for main.cf.
func (s *Service) Warnings(c *Config) []string {
	var warnings []string
	if s.ignored != "" {
		warnings = append(warnings, s.ignored)
	}
	used := c.userDefined()
	for _, o := range s.Overrides() {
		if w := warning(o.Name, o.Value, used); w != "" {
			warnings = append(warnings, fmt.Sprintf("%s:%d: service %s/%s: -o: %s", s.File, s.Line, s.Name, s.Type, w))
		}
	}
	if s.Replaces != 0 {
		warnings = append(warnings, fmt.Sprintf("%s:%d: service %s/%s replaces the entry of line %d", s.File, s.Line, s.Name, s.Type, s.Replaces))
	}
	return warnings
}

// warning says what is to be said about a setting, or nothing.
func warning(name, raw string, used map[string]bool) string {
	p, known := Lookup(name)
	if !known {
		if used[name] {
			return ""
		}
		if meant := NearestParameter(name); meant != "" {
			return fmt.Sprintf("unknown parameter %s=%s: nothing reads it; did you mean %s?", name, abbreviate(raw), meant)
		}
		return fmt.Sprintf("unknown parameter %s=%s: nothing reads it", name, abbreviate(raw))
	}
	if reason := NoEffect(name); reason != "" && raw != p.Default {
		return fmt.Sprintf("parameter %s has no effect in Posthaste: %s", name, reason)
	}
	if p.Type == Duration {
		if read, misread := misreadUnit(raw); misread {
			return fmt.Sprintf("parameter %s=%s is read as %s: only the first letter after the number counts", name, abbreviate(raw), read)
		}
	}
	return ""
}

// userDefined returns the names that a setting refers to with $name, that
// smtpd_restriction_classes lists, that master.cf's options refer to, or that a table in a
// database has its settings under: a site's own names are as good as ours.
func (c *Config) userDefined() map[string]bool {
	used := make(map[string]bool)
	mark := func(name string) { used[name] = true }
	look := func(text string) {
		references(text, mark)
		tableSettings(text, mark)
	}
	for _, s := range c.settings {
		look(s.raw)
	}
	for _, class := range c.restrictionClasses() {
		mark(class)
	}
	if !c.inDir {
		return used
	}
	if master, err := os.ReadFile(filepath.Join(c.dir, "master.cf")); err == nil {
		for _, l := range LogicalLines(string(master)) {
			look(l.Text)
			for _, class := range classesOf(lineOverrides(l.Text)) {
				mark(class)
			}
		}
	}
	return used
}

// lineOverrides are the -o options of a line of master.cf; none if it is malformed.
func lineOverrides(line string) []Override {
	fields, err := ServiceFields(line)
	if err != nil {
		return nil
	}
	words, err := SplitArgs(fields[7])
	if err != nil || len(words) == 0 {
		return nil
	}
	over, err := optionOverrides(words[1:])
	if err != nil {
		return nil
	}
	return over
}

// classesOf are the restriction classes that -o options name.
func classesOf(over []Override) (classes []string) {
	for _, o := range over {
		if o.Name == "smtpd_restriction_classes" {
			classes = append(classes, strings.FieldsFunc(o.Value, func(r rune) bool { return strings.ContainsRune(" ,\t\r\n", r) })...)
		}
	}
	return classes
}

// restrictionClasses are the names in smtpd_restriction_classes.
func (c *Config) restrictionClasses() []string {
	classes, err := c.Value("smtpd_restriction_classes")
	if err != nil {
		return nil
	}
	return strings.FieldsFunc(classes, func(r rune) bool { return strings.ContainsRune(" ,\t\r\n", r) })
}
