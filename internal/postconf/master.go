package postconf

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/jsontext"
)

// An entry is one service of master.cf. Unlike config.Service it holds what is
// written, right or wrong.
type entry struct {
	fields  [7]string // name type private unprivileged chroot wakeup process_limit
	command string
	args    []string
	line    config.LogicalLine
	changed bool // an edit changed it: write it anew
	removed bool
}

// fieldNames are what -F calls the columns.
var fieldNames = [8]string{"service", "type", "private", "unprivileged", "chroot", "wakeup", "process_limit", "command"}

// noMaster: there is no file of this name.
type noMaster struct{ file string }

// Error has Postfix's words.
func (e noMaster) Error() string { return "open " + e.file + ": No such file or directory" }

func isNoMaster(err error) bool {
	_, ok := errors.AsType[noMaster](err)
	return ok
}

// entries reads master.cf, once.
func (c *command) entries() ([]*entry, error) {
	if c.master != nil {
		return c.master, nil
	}
	text, err := c.readMaster()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noMaster{c.masterFile()}
	}
	if err != nil {
		return nil, err
	}
	if lines := config.LogicalLines(text); len(lines) > 0 && lines[0].Orphan {
		c.warn("%s", lines[0].OrphanWarning(c.masterFile()))
	}
	c.master, err = parseEntries(c.masterFile(), text)
	return c.master, err
}

// parseEntries passes over what is no entry since it begins with white space,
// as all who read the file do.
func parseEntries(file, text string) ([]*entry, error) {
	var entries []*entry
	for _, l := range config.LogicalLines(text) {
		if l.Orphan {
			continue
		}
		e, err := parseEntry(l)
		if err == nil {
			err = e.check()
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, l.Line, err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func parseEntry(l config.LogicalLine) (*entry, error) {
	fields, err := config.ServiceFields(l.Text)
	if err != nil {
		return nil, err
	}
	words, err := config.SplitArgs(fields[7])
	if err != nil {
		return nil, err
	}
	e := &entry{command: words[0], args: config.SeparateOptions(words[1:]), line: l}
	copy(e.fields[:], fields[:7])
	return e, nil
}

// check says what master would not take of the entry's fields.
func (e *entry) check() error {
	var f [8]string
	copy(f[:], e.fields[:])
	f[7] = e.command
	return config.CheckFields(f)
}

// name is how requests and output call the entry.
func (e *entry) name() string { return e.fields[0] + "/" + e.fields[1] }

// options finds the -o options among the arguments: the indexes of their texts.
func (e *entry) options() []int {
	var at []int
	for i := 0; i < len(e.args) && strings.HasPrefix(e.args[i], "-"); i++ {
		if e.args[i] == "-o" && i+1 < len(e.args) {
			i++
			at = append(at, i)
		}
	}
	return at
}

// A request is service[/type[/item]], where a * matches anything.
type request struct {
	text               string
	service, typ, item string
	matched            bool
}

// parseRequests reads the arguments of -M (2 parts), -F or -P (3 parts). No
// argument at all is one that matches everything.
func (c *command) parseRequests() ([]*request, error) {
	parts, form := 3, "service_name[/type[/parameter]]"
	switch {
	case c.flags['M']:
		parts, form = 2, "service_name[/type]"
	case c.flags['F']:
		form = "service_name[/type[/field]]"
	}
	args := c.args
	if len(args) == 0 {
		args = []string{"*"}
	}
	var requests []*request
	for _, arg := range args {
		p := strings.Split(arg, "/")
		if len(p) > parts || slices.Contains(p, "") {
			return nil, fmt.Errorf("expected %s, found %q", form, arg)
		}
		for len(p) < 3 {
			p = append(p, "*")
		}
		if c.flags['F'] && p[2] != "*" && !slices.Contains(fieldNames[:], p[2]) {
			return nil, fmt.Errorf("invalid service attribute name: %q (expected one of %s)", p[2], strings.Join(fieldNames[:], ", "))
		}
		requests = append(requests, &request{text: arg, service: p[0], typ: p[1], item: p[2]})
	}
	return requests, nil
}

func matches(pattern, s string) bool { return pattern == "*" || pattern == s }

// wants reports whether the request is about e.
func (r *request) wants(e *entry) bool {
	ok := matches(r.service, e.fields[0]) && matches(r.typ, e.fields[1])
	r.matched = r.matched || ok
	return ok
}

// showMaster prints entries (-M), their fields (-F) or their parameters (-P).
func (c *command) showMaster() error {
	entries, err := c.entries()
	if err != nil {
		return err
	}
	requests, err := c.parseRequests()
	if err != nil {
		return err
	}
	check, notes := &config.NameCheck{}, []string(nil)
	if cfg, err := c.read(); err == nil { // a main.cf that cannot be read is no reason not to show master.cf
		if check, err = c.checkNames(cfg); err != nil {
			return err
		}
		notes = cfg.LineWarnings()
	}
	for _, r := range requests {
		for _, e := range entries {
			if !r.wants(e) {
				continue
			}
			if err := c.showEntry(e, r); err != nil {
				return err
			}
		}
		if !r.matched && len(c.args) > 0 {
			c.warn("unmatched request: %q", r.text)
		}
	}
	for _, w := range notes {
		c.warn("%s", w)
	}
	c.warnNames("master.cf: unused parameter", check.UnusedMaster)
	return nil
}

func (c *command) showEntry(e *entry, r *request) error {
	switch {
	case c.flags['M']:
		e, err := c.expanded(e)
		if err != nil {
			return err
		}
		if c.flags['j'] {
			fmt.Fprintln(c.out, jsontext.Object(e.name(), strings.Join(append(e.fields[:], e.commandText()), " ")))
			return nil
		}
		fmt.Fprintln(c.out, masterEntry(e, c.flags['f']))
	case c.flags['F']:
		e, err := c.expanded(e)
		if err != nil {
			return err
		}
		for i, value := range append(e.fields[:], e.commandText()) {
			if matches(r.item, fieldNames[i]) {
				c.printParameter(e.name()+"/"+fieldNames[i], value)
			}
		}
	default:
		return c.showOptions(e, r)
	}
	return nil
}

// settings is main.cf as the service of the entry sees it: with its -o options, the name of
// its program and its own.
func (c *command) settings(e *entry) (*config.Config, error) {
	over := slices.Clone(c.over)
	for _, i := range e.options() {
		if o, err := config.ParseOverride(e.args[i]); err == nil { // whoever shows it says what is wrong
			over = append(over, o)
		}
	}
	return config.Read(c.dir, append(over, config.Override{Name: "process_name", Value: e.command},
		config.Override{Name: "service_name", Value: e.fields[0]})...)
}

// expanded is the entry with -x: $name in the values of its -o options is replaced. What the
// service itself is given is not ours to expand.
func (c *command) expanded(e *entry) (*entry, error) {
	if !c.flags['x'] {
		return e, nil
	}
	cfg, err := c.settings(e)
	if err != nil {
		return nil, err
	}
	copied := *e
	copied.args = slices.Clone(e.args)
	for _, i := range e.options() {
		o, err := config.ParseOverride(e.args[i])
		if err == nil {
			o.Value, err = cfg.Expand(o.Value)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: -o %s: %w", c.masterFile(), e.line.Line, e.args[i], err)
		}
		copied.args[i] = o.String()
	}
	return &copied, nil
}

// showOptions prints the -o parameters of an entry that a request names, in order
// of name.
func (c *command) showOptions(e *entry, r *request) error {
	var over []config.Override
	for _, i := range e.options() {
		o, err := config.ParseOverride(e.args[i])
		if err != nil {
			return fmt.Errorf("%s:%d: -o %s: %w", c.masterFile(), e.line.Line, e.args[i], err)
		}
		over = append(over, o)
	}
	slices.SortStableFunc(over, func(a, b config.Override) int { return strings.Compare(a.Name, b.Name) })
	for _, o := range over {
		if !matches(r.item, o.Name) {
			continue
		}
		if c.flags['x'] {
			cfg, err := c.settings(e)
			if err != nil {
				return err
			}
			if o.Value, err = cfg.Expand(o.Value); err != nil {
				return fmt.Errorf("%s:%d: -o %s: %w", c.masterFile(), e.line.Line, o, err)
			}
		}
		c.printParameter(e.name()+"/"+o.Name, o.Value)
	}
	return nil
}

// commandText is the last column.
func (e *entry) commandText() string {
	var words []string
	words = append(words, e.command)
	for i := 0; i < len(e.args); i++ {
		n := 1
		if e.args[i] == "-o" && i+1 < len(e.args) {
			n = 2
		}
		words = append(words, optionText(e.args[i:i+n]))
		i += n - 1
	}
	return strings.Join(words, " ")
}
