package query

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/table"
)

// Settings are what configures one table. The first error in them is kept, and
// End returns it, so that the code that reads them need not look after each.
// They belong to the goroutine that opens the table.
type Settings struct {
	where  string // for messages: the file, or the name in main.cf
	values map[string]string
	asked  map[string]bool
	err    error
}

// maxFile bounds a file of settings.
const maxFile = 1 << 20

// Load reads the settings of the table that name stands for, see the package
// comment. cfg is main.cf, nil if there is none to read from.
func Load(name string, cfg *config.Config) (*Settings, error) {
	if name[0] == '/' || name[0] == '.' {
		fi, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		if !fi.Mode().IsRegular() || fi.Size() > maxFile {
			return nil, fmt.Errorf("%s: expected a file of at most %d bytes with settings", name, maxFile)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		return ParseSettings(name, string(text))
	}
	if cfg == nil {
		return nil, fmt.Errorf("%q: expected the path of a file with settings", name)
	}
	s := &Settings{where: "main.cf: " + name, values: make(map[string]string), asked: make(map[string]bool)}
	for _, n := range cfg.Names() {
		short, ok := strings.CutPrefix(n, name+"_")
		if !ok {
			continue
		}
		value, err := cfg.Value(n)
		if err != nil {
			return nil, fmt.Errorf("main.cf: %s: %w", n, err)
		}
		s.values[short] = value
	}
	if len(s.values) == 0 {
		return nil, fmt.Errorf("%q: expected the path of a file with settings, or settings in main.cf whose names begin with %s_", name, name)
	}
	return s, nil
}

// ParseSettings reads the text of a file of settings. name stands for it in
// messages.
func ParseSettings(name, text string) (*Settings, error) {
	s := &Settings{where: name, values: make(map[string]string), asked: make(map[string]bool)}
	for _, l := range config.LogicalLines(text) {
		n, value, err := config.SplitNameValue(l.Text)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, l.Line, err)
		}
		s.values[n] = value // the last one counts, as in main.cf
	}
	return s, nil
}

// Where says where the settings are.
func (s *Settings) Where() string { return s.where }

// Text is the value of a setting, or def if it is not there. Several names are
// one setting, the newest name first.
func (s *Settings) Text(def string, names ...string) string {
	for _, n := range names {
		s.asked[n] = true
	}
	for _, n := range names {
		if v, ok := s.values[n]; ok {
			return v
		}
	}
	return def
}

// Has says whether a setting is there and not empty.
func (s *Settings) Has(name string) bool { return s.values[name] != "" }

// Need is a setting that must be there.
func (s *Settings) Need(name string) string {
	v := s.Text("", name)
	if v == "" {
		s.Fail(name, "is required and is not set")
	}
	return v
}

// Fail notes what is wrong with a setting.
func (s *Settings) Fail(name, format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("%s: %s: %s", s.where, name, fmt.Sprintf(format, args...))
	}
}

// Int is a number from low to high.
func (s *Settings) Int(name string, def, low, high int) int {
	text := s.Text("", name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		s.Fail(name, "%q: expected a number from %d to %d", text, low, high)
		return def
	}
	return n
}

// Seconds is a time in seconds, of at least one.
func (s *Settings) Seconds(name string, def time.Duration) time.Duration {
	return time.Duration(s.Int(name, int(def/time.Second), 1, 86400)) * time.Second
}

// Bool is yes or no.
func (s *Settings) Bool(name string, def bool) bool {
	switch text := strings.ToLower(s.Text("", name)); text {
	case "":
		return def
	case "yes", "true", "1":
		return true
	case "no", "false", "0":
		return false
	default:
		s.Fail(name, "%q: expected yes or no", text)
		return def
	}
}

// Template is a template for queries; def if it is empty or not there.
func (s *Settings) Template(name, def string) *Template {
	text := s.Text("", name)
	if text == "" {
		text = def
	}
	t, err := Parse(text)
	if err != nil {
		s.Fail(name, "%v", err)
	}
	return t
}

// ResultFormat is the settings result_format, of which result_filter is the
// old name.
func (s *Settings) ResultFormat() *Template {
	t, err := ParseResult(s.Text("%s", "result_format", "result_filter"))
	if err != nil {
		s.Fail("result_format", "%v", err)
	}
	return t
}

// Limit is the setting expansion_limit.
func (s *Settings) Limit() int { return s.Int("expansion_limit", 0, 0, 1<<30) }

// NoEffect warns of settings that are there and do nothing, with the reason.
func (s *Settings) NoEffect(o table.Options, reason string, names ...string) {
	for _, n := range names {
		if s.Text("", n) != "" && o.Warn != nil {
			o.Warn(fmt.Sprintf("%s: %s has no effect: %s", s.where, n, reason))
		}
	}
}

// End returns what was wrong with the settings. It warns of those that nobody
// asked for: they are misspelt, or of another kind of table.
func (s *Settings) End(o table.Options) error {
	if s.err != nil {
		return s.err
	}
	for _, n := range slices.Sorted(maps.Keys(s.values)) {
		if !s.asked[n] && o.Warn != nil {
			o.Warn(fmt.Sprintf("%s: unknown setting %s: nothing reads it", s.where, n))
		}
	}
	return nil
}

// Keys are what keys a table is asked for: those in its domains, in lower case.
type Keys struct {
	domains *table.List // nil: all
	noFold  bool
}

// Domain reads the setting domain: the domains that the table is for, a match
// list as in mydestination. With it only user@domain is looked up.
func (s *Settings) Domain(o table.Options) Keys {
	k := Keys{noFold: o.NoFold}
	if text := s.Text("", "domain"); text != "" {
		domains, err := table.NewList(s.where+": domain", table.SplitList(text), table.ListOptions{Kind: table.Strings, Table: o})
		if err != nil {
			s.Fail("domain", "%v", err)
		}
		k.domains = domains
	}
	return k
}

// Key is the form of key to ask for. ok is false when the table need not
// be asked, because it has no such key.
func (k *Keys) Key(ctx context.Context, key string) (folded string, ok bool, err error) {
	if !Askable(key) {
		return "", false, nil
	}
	if !k.noFold {
		key = table.Fold(key)
	}
	if k.domains == nil {
		return key, true, nil
	}
	domain, ok := piece(key, 'd')
	if !ok || key[0] == '@' {
		return "", false, nil
	}
	ok, err = k.domains.Match(ctx, domain)
	return key, ok, err
}
