package postconf

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"posthaste/internal/config"
)

// A change is one argument of -e, -X or -#.
type change struct {
	name, value string
	seen        int // entries of that name in the file
}

// parseChanges reads the arguments of an edit of main.cf.
func (c *command) parseChanges() ([]*change, error) {
	var changes []*change
	for _, arg := range c.args {
		if strings.ContainsAny(arg, "\r\n") {
			return nil, errors.New("-e, -X, or -# accepts no multi-line input")
		}
		ch := &change{name: strings.TrimSpace(arg)}
		if c.flags['e'] {
			var err error
			if ch.name, ch.value, err = config.SplitNameValue(arg); err != nil {
				return nil, err
			}
		} else if strings.Contains(arg, "=") {
			return nil, fmt.Errorf("-X or -# requires names without value, found %q", arg)
		}
		if i := slices.IndexFunc(changes, func(o *change) bool { return o.name == ch.name }); i >= 0 {
			if c.flags['e'] {
				c.warn("ignoring earlier request: '%s = %s'", ch.name, changes[i].value)
			}
			changes[i] = ch
		} else {
			changes = append(changes, ch)
		}
	}
	if len(changes) == 0 {
		if c.flags['e'] {
			return nil, errors.New("-e requires name=value argument")
		}
		return nil, errors.New("-X or -# requires name argument")
	}
	return changes, nil
}

// editMain carries out an edit of main.cf, and warns if a new value is
// malformed. It is written nevertheless: a later edit may make it right.
func (c *command) editMain() error {
	changes, err := c.parseChanges()
	if err != nil {
		return err
	}
	file := c.dir + "/main.cf"
	c.verbose("editing %s", file)
	err = EditFile(file, func(text string) (string, error) {
		return c.changeMain(file, text, changes), nil
	})
	if err != nil || !c.flags['e'] {
		return err
	}
	if _, err := config.Load(c.dir); err != nil {
		for line := range strings.Lines(err.Error()) {
			c.warn("%s", strings.TrimSuffix(line, "\n"))
		}
	}
	return c.warnEdited(func(name string) bool {
		return slices.ContainsFunc(changes, func(ch *change) bool { return ch.name == name })
	}, nil)
}

// warnEdited warns, after an edit, of names that nothing reads, in Postfix's words: of
// those in main.cf that mine lists, and of those in master.cf that theirs does. Nil lists none.
func (c *command) warnEdited(mine, theirs func(name string) bool) error {
	cfg, err := c.read()
	if err != nil {
		return nil // the edit is done; what is wrong with the rest has been said
	}
	services, err := c.overrides()
	if err != nil {
		return nil
	}
	check := cfg.CheckNames(services)
	for _, list := range []struct {
		file   string
		unused []string
		edited func(string) bool
	}{{"main.cf", check.UnusedMain, mine}, {"master.cf", check.UnusedMaster, theirs}} {
		for _, setting := range list.unused {
			name, _, _ := strings.Cut(setting, "=")
			if list.edited == nil || !list.edited(name) {
				continue
			}
			meant := config.NearestParameter(name)
			if meant != "" {
				meant = "; did you mean " + meant + "?"
			}
			c.warn("%s/%s: unused parameter: %s%s", c.dir, list.file, setting, meant)
		}
	}
	return nil
}

// changeMain applies the changes to the text of main.cf.
func (c *command) changeMain(file, text string, changes []*change) string {
	var out strings.Builder
	done := 0
	for _, l := range config.LogicalLines(text) {
		name, _, err := config.SplitNameValue(l.Text)
		if err != nil || l.Orphan {
			continue
		}
		i := slices.IndexFunc(changes, func(ch *change) bool { return ch.name == name })
		if i < 0 {
			continue
		}
		ch := changes[i]
		if ch.seen++; ch.seen == 2 {
			c.warn("%s: multiple entries for %q", file, name)
		}
		out.WriteString(text[done:l.Start])
		done = l.End
		old := text[l.Start:l.End]
		switch {
		case c.flags['#']:
			out.WriteString(commentOut(old))
		case c.flags['X']:
			out.WriteString(comments(old))
		default:
			out.WriteString(ch.line() + comments(old))
		}
	}
	out.WriteString(text[done:])
	result := out.String()
	if !c.flags['e'] {
		return result
	}
	if result != "" && !strings.HasSuffix(result, "\n") {
		result += "\n"
	}
	for _, ch := range changes {
		if ch.seen == 0 {
			result += ch.line()
		}
	}
	return result
}

func (ch *change) line() string { return ch.name + " = " + ch.value + "\n" }

// isComment reports whether a physical line is a comment or empty.
func isComment(line string) bool {
	body := strings.TrimLeft(line, " \t\r\n")
	return body == "" || body[0] == '#'
}

// comments keeps the comment lines that stand inside a logical line.
func comments(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if isComment(line) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// commentOut puts a # before every line of a logical line.
func commentOut(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if !isComment(line) {
			out.WriteByte('#')
		}
		out.WriteString(line)
	}
	return out.String()
}

// editMaster carries out -M, -F or -P with -e, -X or -#.
func (c *command) editMaster() error {
	edits, err := c.parseMasterEdits()
	if err != nil {
		return err
	}
	file := c.masterFile()
	c.verbose("editing %s", file)
	err = EditFile(file, func(text string) (string, error) {
		entries, err := parseEntries(file, text)
		if err != nil {
			return "", err
		}
		for _, edit := range edits {
			var added *entry
			if added, err = c.applyMaster(entries, edit); err != nil {
				return "", err
			}
			if added != nil {
				entries = append(entries, added)
			}
		}
		return c.writeMaster(text, entries), nil
	})
	if err != nil || !c.flags['e'] || c.flags['F'] {
		return err
	}
	return c.warnEdited(nil, func(name string) bool {
		return slices.ContainsFunc(edits, func(e *masterEdit) bool { return e.sets(name) })
	})
}

// sets says whether an edit gives a -o parameter its value.
func (e *masterEdit) sets(name string) bool {
	if e.newEntry == nil {
		return e.item == name
	}
	return slices.ContainsFunc(e.newEntry.options(), func(i int) bool {
		o, err := config.ParseOverride(e.newEntry.args[i])
		return err == nil && o.Name == name
	})
}

// A masterEdit is service/type[/item][=value].
type masterEdit struct {
	request
	value    string
	newEntry *entry // -Me
}

func (c *command) parseMasterEdits() ([]*masterEdit, error) {
	flag, parts, form := "-F", 3, "service_name/type/field=value"
	switch {
	case c.flags['M']:
		flag, parts, form = "-M", 2, "service_name/type"
	case c.flags['P']:
		flag, form = "-P", "service_name/type/parameter"
	}
	if c.flags['e'] && !strings.Contains(form, "=") {
		form += "=value"
	}
	var edits []*masterEdit
	for _, arg := range c.args {
		if strings.ContainsAny(arg, "\r\n") {
			return nil, errors.New("-e, -X, or -# accepts no multi-line input")
		}
		name, value, hasValue := strings.Cut(arg, "=")
		p := strings.Split(strings.TrimSpace(name), "/")
		if len(p) != parts || slices.Contains(p, "") || hasValue != c.flags['e'] {
			return nil, fmt.Errorf("%s: expected %s, found %q", flag, form, arg)
		}
		if parts == 3 && p[2] == "*" {
			return nil, fmt.Errorf("%s: %q: an edit names one %s, not all", flag, arg, strings.TrimPrefix(strings.TrimSuffix(form, "=value"), "service_name/type/"))
		}
		e := &masterEdit{request: request{text: arg, service: p[0], typ: p[1], item: "*"}, value: strings.TrimSpace(value)}
		if parts == 3 {
			e.item = p[2]
		}
		if err := c.checkMasterEdit(e); err != nil {
			return nil, err
		}
		edits = append(edits, e)
	}
	if len(edits) == 0 {
		return nil, fmt.Errorf("%s: expected %s", flag, form)
	}
	return edits, nil
}

// checkMasterEdit reads the new value of an edit.
func (c *command) checkMasterEdit(e *masterEdit) error {
	switch {
	case c.flags['F']:
		if !slices.Contains(fieldNames[:], e.item) {
			return fmt.Errorf("invalid service attribute name: %q (expected one of %s)", e.item, strings.Join(fieldNames[:], ", "))
		}
		words, err := config.SplitArgs(e.value)
		if err != nil {
			return err
		}
		if len(words) == 0 || len(words) > 1 && e.item != "command" {
			return fmt.Errorf("expected one word for %s, found %q", e.item, e.value)
		}
	case c.flags['M'] && c.flags['e']:
		added, err := parseEntry(config.LogicalLine{Text: e.value, Line: 1})
		if err == nil {
			err = added.check()
		}
		if err != nil {
			return fmt.Errorf("%q: %w", e.text, err)
		}
		e.newEntry = added
	}
	return nil
}

// applyMaster applies one edit to the entries that it matches. With -Me an
// edit that matches none is a new entry, which it returns.
func (c *command) applyMaster(entries []*entry, edit *masterEdit) (*entry, error) {
	for _, e := range entries {
		if !edit.wants(e) || e.removed {
			continue
		}
		switch {
		case c.flags['X'] && c.flags['M'], c.flags['#']:
			e.removed = true
		case c.flags['M']:
			e.become(edit.newEntry, entries)
		case c.flags['F']:
			err := e.setField(edit.item, edit.value)
			if err == nil {
				err = e.check()
			}
			if err != nil {
				return nil, err
			}
		default:
			e.setOption(edit.item, edit.value, c.flags['X'])
		}
	}
	if edit.matched {
		return nil, nil
	}
	if edit.newEntry == nil {
		c.warn("unmatched service_name/type: %q", edit.text)
		return nil, nil
	}
	added := edit.newEntry
	for _, e := range entries {
		if !e.removed && e.name() == added.name() { // NAME/TYPE=OTHER, and OTHER is there
			e.become(added, entries)
			return nil, nil
		}
	}
	added.changed = true
	added.line = config.LogicalLine{Start: -1}
	return added, nil
}

// become makes e another entry, of which name there is one among entries.
func (e *entry) become(n *entry, entries []*entry) {
	e.fields, e.command, e.args, e.changed = n.fields, n.command, n.args, true
	for _, other := range entries {
		if other != e && other.name() == e.name() {
			other.removed = true
		}
	}
}

func (e *entry) setField(field, value string) error {
	e.changed = true
	i := slices.Index(fieldNames[:], field)
	if i < len(e.fields) {
		e.fields[i] = value
		return nil
	}
	words, err := config.SplitArgs(value)
	if err != nil {
		return err
	}
	e.command, e.args = words[0], words[1:]
	return nil
}

// setOption sets or removes a -o parameter. A new one goes after the last
// option, before the service's own arguments.
func (e *entry) setOption(name, value string, remove bool) {
	at := e.options()
	last, found := 0, false
	for last < len(e.args) && strings.HasPrefix(e.args[last], "-") {
		if last++; e.args[last-1] == "-o" && last < len(e.args) {
			last++
		}
	}
	for i := len(at) - 1; i >= 0; i-- {
		o, err := config.ParseOverride(e.args[at[i]])
		if err != nil || name != o.Name {
			continue
		}
		e.changed = true
		if remove {
			e.args = slices.Delete(e.args, at[i]-1, at[i]+1)
			continue
		}
		found = true
		e.args[at[i]] = config.Override{Name: o.Name, Value: value}.String()
	}
	if remove || found {
		return
	}
	e.changed = true
	e.args = slices.Insert(e.args, last, "-o", config.Override{Name: name, Value: value}.String())
}

// writeMaster writes the entries back into the text of master.cf. What was not
// changed stays as it was.
func (c *command) writeMaster(text string, entries []*entry) string {
	var out strings.Builder
	done := 0
	for _, e := range entries {
		if e.line.Start < 0 || !e.changed && !e.removed {
			continue
		}
		out.WriteString(text[done:e.line.Start])
		done = e.line.End
		old := text[e.line.Start:e.line.End]
		switch {
		case e.removed && c.flags['#']:
			out.WriteString(commentOut(old))
		case e.removed:
			out.WriteString(comments(old))
		default:
			out.WriteString(masterEntry(e, true) + "\n" + comments(old))
		}
	}
	out.WriteString(text[done:])
	result := out.String()
	if result != "" && !strings.HasSuffix(result, "\n") {
		result += "\n"
	}
	for _, e := range entries {
		if e.line.Start < 0 && !e.removed {
			result += masterEntry(e, true) + "\n"
		}
	}
	return result
}
