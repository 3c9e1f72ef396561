package bounceclass

import (
	"bytes"
	_ "embed" // for the rules that come with the program
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"regexp/syntax"
	"strings"

	"posthaste/internal/smallfile"

	"github.com/BurntSushi/toml"
)

// Builtin stands for the rules that come with the program, where a file is named.
const Builtin = "builtin"

// Bounds of what a file may have: far more than the files of the field do, and few enough that a mistake
// (the wrong file named) costs neither memory nor time.
const (
	maxFile    = 4 << 20 // octets
	maxRules   = 20_000  // in all files
	maxClasses = 200     // in all files: each is a series of a metric, for each transport
	maxName    = 64      // octets
	maxPattern = 4096    // octets
)

//go:embed builtin.toml
var builtin []byte

// Open reads files of rules, in order. Each is a path, or Builtin. An error names the file, and the
// class of an expression that is wrong.
func Open(files []string) (*Rules, error) {
	rules := &Rules{names: make(map[string]bool)}
	for _, name := range files {
		text, err := read(name)
		if err == nil {
			err = rules.add(name, text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return rules, nil
}

func read(name string) ([]byte, error) {
	if name == Builtin {
		return builtin, nil
	}
	text, err := smallfile.Read(name, maxFile)
	if path := new(fs.PathError); errors.As(err, &path) {
		err = path.Err // the caller says which file it is
	}
	return text, err
}

// A class is one class of a file, in the order in which the file has them.
type class struct {
	name     string
	patterns []string
}

// add appends the rules of a file.
func (r *Rules) add(name string, text []byte) error {
	parse := parseTOML
	if strings.HasSuffix(name, ".json") {
		parse = parseJSON
	}
	classes, err := parse(text)
	if err != nil {
		return err
	}
	for _, c := range classes {
		if c.name == "" || len(c.name) > maxName || strings.ContainsFunc(c.name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("%.*q is no name for a class", maxName, c.name)
		}
		if r.names[c.name] = true; len(r.names) > maxClasses {
			return fmt.Errorf("more than %d classes", maxClasses)
		}
		for _, p := range c.patterns {
			if len(p) > maxPattern {
				return fmt.Errorf("%s: an expression is longer than %d octets", c.name, maxPattern)
			}
			re, err := regexp.Compile(p)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			expr, err := syntax.Parse(p, syntax.Perl) // as package regexp does
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if r.list = append(r.list, Rule{c.name, p, name, re, r.filter.Add(expr)}); len(r.list) > maxRules {
				return fmt.Errorf("more than %d rules", maxRules)
			}
		}
	}
	return nil
}

func parseTOML(text []byte) ([]class, error) {
	var file struct {
		Rules map[string][]string `toml:"rules"`
	}
	meta, err := toml.Decode(string(text), &file)
	if err != nil {
		return nil, err
	}
	if stray := meta.Undecoded(); len(stray) > 0 {
		return nil, fmt.Errorf("%s is not understood: there is one table, rules", stray[0])
	}
	if file.Rules == nil {
		return nil, errNoRules
	}
	var classes []class
	seen := make(map[string]bool)
	for _, key := range meta.Keys() { // which is in the order of the file
		if len(key) != 2 {
			continue
		}
		if seen[key[1]] {
			return nil, fmt.Errorf("%s is there twice", key[1])
		}
		seen[key[1]] = true
		classes = append(classes, class{key[1], file.Rules[key[1]]})
	}
	return classes, nil
}

var errNoRules = errors.New("there is no table rules")

// parseJSON reads the same in JSON. It goes through the tokens, as the order of an object's names counts.
func parseJSON(text []byte) ([]class, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	var classes []class
	found := false
	err := object(d, func(name string) error {
		if name != "rules" {
			return fmt.Errorf("%s is not understood: there is one object, rules", name)
		}
		found = true
		return object(d, func(name string) error {
			c := class{name: name}
			if err := d.Decode(&c.patterns); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			classes = append(classes, c)
			return nil
		})
	})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, errNoRules
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows the object")
	}
	return classes, nil
}

// object reads a JSON object: member reads the value behind each name.
func object(d *json.Decoder, member func(name string) error) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return fmt.Errorf("%v where an object is expected", t)
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		if err := member(t.(string)); err != nil { // the decoder has nothing else there
			return err
		}
	}
	_, err = d.Token()
	return err
}
