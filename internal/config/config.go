// Package config reads main.cf and master.cf as Postfix writes them.
//
// Every parameter is declared once, in the tables of params_*.go: its name,
// type, default, bounds and a sentence. From these come the accessors' checks, the
// postconf command and the warnings for what is unknown or does nothing.
//
// A Config is what one process knows of its configuration: the settings of
// main.cf, then the overrides (-o name=value of master.cf and of command lines),
// later ones over earlier ones. Nothing of it changes after Load. Values are expanded
// on first use and kept, so a read costs a map lookup.
//
// Load checks every setting and reports all malformed ones in one error. A process
// that holds a Config will therefore not fail on a value later; asking for a name
// that is not declared is a mistake of ours, and panics.
//
// # Security
//
// main.cf is trusted: whoever writes it says who runs as root. Names of directories
// that a set-gid program takes from its caller must be checked against
// alternate_config_directories by that program. Overrides travel to child processes on the
// command line, never in the environment, which a local user controls.
//
// # Parameters
//
// config_directory, and those that have computed defaults: myhostname, mydomain,
// mynetworks, mail_owner, process_name, process_id. myorigin may name a file, which
// has the domain in its first line.
//
// # Diagnostics
//
// Problems name the file, the line, the setting and what was expected:
//
//	main.cf:12: message_size_limit = 10x: expected a size such as 10240000, 512k or 20m
//
// # Bugs
//
// The LDAP, SQL and memcache table settings that old files keep in main.cf itself are
// accepted by the form of their names only.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultDir is the configuration directory when nothing names another one.
const DefaultDir = "/etc/posthaste"

// An Override is a setting from a command line or from master.cf, as in
// -o name=value. It is read as if it stood in main.cf, after everything else.
type Override struct{ Name, Value string }

// String returns "name=value".
func (o Override) String() string { return o.Name + "=" + o.Value }

// ParseOverride reads what follows -o: "name=value", or "{ name = value }"
// for values with white space.
func ParseOverride(text string) (Override, error) {
	text = strings.Trim(text, " \t\r\n")
	if strings.HasPrefix(text, "{") {
		if closingBrace(text) != len(text)-1 {
			return Override{}, fmt.Errorf("expected { name = value }, found %q", abbreviate(text))
		}
		text = text[1 : len(text)-1]
	}
	name, value, err := SplitNameValue(text)
	return Override{name, value}, err
}

// A Config is an immutable set of parameter values. All methods may be called
// by any number of goroutines.
type Config struct {
	dir       string
	inDir     bool // dir was read, so there may be a master.cf beside main.cf
	overrides []Override
	settings  map[string]setting
	duplicate []string // warnings found while reading
	cache     []atomic.Pointer[value]
	files     *sync.Map // first lines, by path; copies share it, which are made in places from where no file is seen
}

// Dir returns the configuration directory to use: flag (the -c option) if it is
// not empty, else $MAIL_CONFIG, else DefaultDir. A set-gid program must not call it
// on behalf of an unprivileged caller without checking the result.
func Dir(flag string) string {
	if flag != "" {
		return flag
	}
	if dir := os.Getenv("MAIL_CONFIG"); dir != "" {
		return dir
	}
	return DefaultDir
}

// Load reads main.cf in dir and applies the overrides. The error holds every
// problem, one a line, with file and line. A missing main.cf is an error that
// satisfies errors.Is(err, fs.ErrNotExist).
func Load(dir string, over ...Override) (*Config, error) {
	file := filepath.Join(dir, "main.cf")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, missingMain(err)
	}
	return load(dir, true, file, string(text), over)
}

// Read is Load without the check of values, for tools that show or repair a
// configuration, or start for each message: its error is for a file that cannot be read or has
// malformed lines. Of a Config from Read only Raw, Value, Expand, IsSet, Names, Warnings and Dir
// may be called, and the others for the parameters that Check has found well-formed.
func Read(dir string, over ...Override) (*Config, error) {
	c, malformed, err := readMain(dir)
	if err == nil {
		err = errors.Join(malformed, c.override(over))
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ReadFor is Read for a tool that uses the named parameters and no others, which it checks:
// a malformed setting of a service that the tool has nothing to do with does not stop it.
func ReadFor(dir string, names ...string) (*Config, error) {
	c, err := Read(dir)
	if err != nil {
		return nil, missingMain(err)
	}
	return c, c.Check(names...)
}

// missingMain adds the remedy to the error of a main.cf that cannot be read.
func missingMain(err error) error {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fmt.Errorf("%w (name the configuration directory with -c or MAIL_CONFIG)", err)
}

// readMain reads what there is in main.cf. malformed are lines that are none.
func readMain(dir string) (c *Config, malformed, err error) {
	file := filepath.Join(dir, "main.cf")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	c = newConfig(dir)
	c.inDir = true
	c.duplicate, malformed = parseMain(file, string(text), c.settings)
	return c, malformed, nil
}

// Salvage reads what can be had of a main.cf that Load refuses: lines and values
// that are malformed count as absent. It is for commands that must work
// whatever main.cf says, which name the parameters that they cannot do without:
// if one of those is malformed, or an absent main.cf cannot say them, that is the error.
func Salvage(dir string, names ...string) (*Config, error) {
	c, bad, err := readMain(dir)
	if err != nil {
		return nil, err
	}
	if err := c.Check(names...); err != nil {
		return nil, err
	}
	for _, name := range names {
		if bad != nil && (strings.Contains(bad.Error(), name) || strings.Contains(c.Raw(name), "$")) {
			return nil, bad // it may be about this one
		}
	}
	whole := newConfig(dir) // what fails depends on what else is there
	whole.inDir, whole.settings = true, maps.Clone(c.settings)
	e := &evaluation{c: whole}
	for name := range whole.settings {
		var err error
		if p, ok := Lookup(name); ok {
			err = e.lookup(&p).err
		} else {
			_, err = e.text(name)
		}
		if err != nil {
			delete(c.settings, name)
		}
	}
	if err := c.check(); err != nil { // two that do not go together: nobody who is in need reads the one
		delete(c.settings, contentDirectory)
		delete(c.settings, severalDirectories)
	}
	return c, c.check()
}

// LoadString reads a main.cf given as text, for tests. Its directory is
// DefaultDir.
func LoadString(main string, over ...Override) (*Config, error) {
	return load(DefaultDir, false, "main.cf", main, over)
}

// With returns a copy of c with more overrides, checked like Load's.
func (c *Config) With(over ...Override) (*Config, error) {
	n := newConfig(c.dir)
	n.inDir, n.files = c.inDir, c.files
	n.settings = maps.Clone(c.settings)
	n.duplicate = c.duplicate
	n.overrides = slices.Clip(c.overrides)
	if err := n.override(over); err != nil {
		return nil, err
	}
	return n, n.check()
}

func newConfig(dir string) *Config {
	return &Config{
		dir:      dir,
		settings: make(map[string]setting),
		cache:    make([]atomic.Pointer[value], len(declared().params)),
		files:    new(sync.Map),
	}
}

func load(dir string, inDir bool, file, text string, over []Override) (*Config, error) {
	c := newConfig(dir)
	c.inDir = inDir
	warnings, err := parseMain(file, text, c.settings)
	c.duplicate = warnings
	err = errors.Join(err, c.override(over), c.check())
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) override(over []Override) error {
	var errs []error
	for _, o := range over {
		if !validName(o.Name) {
			errs = append(errs, fmt.Errorf("-o %s: expected a parameter name made of letters, digits and _", abbreviate(o.String())))
			continue
		}
		c.overrides = append(c.overrides, o)
		c.settings[o.Name] = setting{raw: o.Value, file: "-o"}
	}
	return errors.Join(errs...)
}

// check evaluates every setting, and every default that a setting can change,
// so that no accessor meets a malformed value.
func (c *Config) check() error {
	var errs []error
	e := &evaluation{c: c}
	for _, name := range slices.SortedFunc(maps.Keys(c.settings), c.byPlace) {
		s := c.settings[name]
		var err error
		if p, ok := Lookup(name); ok {
			err = e.lookup(&p).err
		} else {
			_, err = e.text(name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s = %s: %w", s.where(), name, abbreviate(s.raw), err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	params := declared().params
	for i := range params {
		p := &params[i]
		if p.Type == String || p.Type == Raw || !strings.Contains(p.Default, "$") || c.isSet(p.Name) {
			continue
		}
		if v := e.lookup(p); v.err != nil {
			errs = append(errs, fmt.Errorf("%s (by default %s): %w", p.Name, p.Default, v.err))
		}
	}
	return errors.Join(append(errs, c.checkPlaces())...)
}

// Check evaluates these parameters of a Config from Read. The error holds every
// problem, one a line, with file and line.
func (c *Config) Check(names ...string) error {
	var errs []error
	e := &evaluation{c: c}
	for _, name := range names {
		p, ok := Lookup(name)
		if !ok {
			panic("config: " + name + " is not declared")
		}
		if v := e.lookup(&p); v.err != nil && c.isSet(name) {
			s := c.settings[name]
			errs = append(errs, fmt.Errorf("%s: %s = %s: %w", s.where(), name, abbreviate(s.raw), v.err))
		} else if v.err != nil {
			errs = append(errs, fmt.Errorf("%s (by default %s): %w", name, p.Default, v.err))
		}
	}
	return errors.Join(errs...)
}

// byPlace orders names by the place that sets them.
func (c *Config) byPlace(a, b string) int {
	x, y := c.settings[a], c.settings[b]
	if x.line != y.line {
		return x.line - y.line
	}
	return strings.Compare(a, b)
}

func (c *Config) isSet(name string) bool {
	_, ok := c.settings[name]
	return ok
}

// Dir returns the configuration directory.
func (c *Config) Dir() string { return c.dir }

// IsDefault reports whether a declared parameter has the value that it has where main.cf does
// not set it.
func (c *Config) IsDefault(name string) bool {
	p, ok := Lookup(name)
	return ok && c.String(name) == p.Default
}

// IsSet reports whether main.cf or an override sets the parameter, and where:
// file is "-o" and line 0 for an override.
func (c *Config) IsSet(name string) (set bool, file string, line int) {
	s, ok := c.settings[name]
	return ok, s.file, s.line
}

// Source returns the parameter that an operator changes to change name: name where it is
// set, else the one whose value it has by default, such as mynetworks. Messages name that one.
func (c *Config) Source(name string) string {
	for !c.isSet(name) {
		other, ok := strings.CutPrefix(c.RawDefault(name), "$")
		if _, known := Lookup(other); !ok || !known {
			break
		}
		name = other
	}
	return name
}

// Raw returns the text of a parameter before expansion: the setting, else
// the declared default, else (user-defined and not set) nothing.
func (c *Config) Raw(name string) string {
	if s, ok := c.settings[name]; ok {
		return s.raw
	}
	if p, ok := Lookup(name); ok {
		return c.rawDefault(&p)
	}
	return ""
}

// Value returns a parameter after expansion, whatever its type and whether or not it
// is declared. The error is about the expansion only.
func (c *Config) Value(name string) (string, error) {
	if p, ok := Lookup(name); ok && p.Type == Raw {
		return c.Raw(name), nil
	}
	return (&evaluation{c: c}).text(name)
}

// RawDefault returns the default of a declared parameter before expansion; the
// computed ones are computed.
func (c *Config) RawDefault(name string) string {
	if p, ok := Lookup(name); ok {
		return c.rawDefault(&p)
	}
	return ""
}

// Names returns the names that main.cf and the overrides set, sorted.
func (c *Config) Names() []string { return slices.Sorted(maps.Keys(c.settings)) }

// Expand replaces $name, ${name?text:text} and comparisons in text by their
// values, as in main.cf. Names that are not defined expand to nothing.
func (c *Config) Expand(text string) (string, error) {
	return (&evaluation{c: c}).expand(text)
}

// Env returns the environment variables that tell a child process where
// the configuration is. The overrides go on its command line: see Args.
func (c *Config) Env() []string { return []string{"MAIL_CONFIG=" + c.dir} }

// Args returns the command line options that give a child process the same
// settings: -c and one -o for each override.
func (c *Config) Args() []string {
	args := []string{"-c", c.dir}
	for _, o := range c.overrides {
		args = append(args, "-o", o.String())
	}
	return args
}

// Overrides returns the overrides, in the order in which they apply.
func (c *Config) Overrides() []Override { return slices.Clone(c.overrides) }

// String returns the value of a parameter after expansion (a Raw parameter is not
// expanded). It panics if name is not declared; so do the other accessors.
func (c *Config) String(name string) string {
	_, v := c.get(name)
	return v.text
}

// Int returns the value of an Int or Bytes parameter.
func (c *Config) Int(name string) int { return int(c.number(name, Int, Bytes)) }

// Bytes returns the value of a Bytes or Int parameter.
func (c *Config) Bytes(name string) int64 { return c.number(name, Bytes, Int) }

// Bool returns the value of a Bool parameter.
func (c *Config) Bool(name string) bool { return c.number(name, Bool, Bool) != 0 }

// Duration returns the value of a Duration parameter.
func (c *Config) Duration(name string) time.Duration {
	return time.Duration(c.number(name, Duration, Duration))
}

// List returns the items of a List parameter: split at commas and white space, with
// { } groups kept whole and their braces stripped. The slice is shared: do not change it.
func (c *Config) List(name string) []string {
	p, v := c.get(name)
	if p.Type != List {
		panic(fmt.Sprintf("config: %s is a %s parameter, not a list", name, p.Type))
	}
	return v.list
}

// get returns the value of a parameter, and its declaration.
func (c *Config) get(name string) (*Param, *value) {
	r := declared()
	if i, ok := r.index[name]; ok {
		p := &r.params[i]
		if v := c.cache[i].Load(); v != nil && v.err == nil {
			return p, v
		}
		return p, c.must(p)
	}
	p, ok := r.familyMember(name)
	if !ok {
		panic("config: parameter " + name + " is not declared: add it to the tables of internal/config")
	}
	return &p, c.must(&p)
}

func (c *Config) must(p *Param) *value {
	v := c.lookup(p)
	if v.err != nil {
		panic(fmt.Sprintf("config: %s is read without a check, and is malformed: %v", p.Name, v.err))
	}
	return v
}

func (c *Config) number(name string, t, also Type) int64 {
	p, v := c.get(name)
	if p.Type != t && p.Type != also {
		panic(fmt.Sprintf("config: %s is a %s parameter, not %s", name, p.Type, t))
	}
	return v.num
}

// lookup returns the value of p, from the cache if it is there. Two
// goroutines may both compute a value; they get the same one.
func (c *Config) lookup(p *Param) *value { return (&evaluation{c: c}).lookup(p) }
