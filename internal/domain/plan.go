package domain

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"posthaste/internal/tabletext"

	"posthaste/internal/config"
	"posthaste/internal/postconf"
)

// A step is one change of a file.
type step struct {
	what string // the file, a colon, and what is changed in it
	do   func() error
}

// A plan is what a command changes. Its steps are in such an order that nothing refers to what is
// not there yet, and each writes its file whole: after an interruption, the command that is
// repeated does what is left.
type plan struct {
	cfg      *config.Config
	steps    []step
	settings []string // of main.cf, name=value; the last step makes all of them
	notes    []string // what is left to the administrator
}

// add adds a step.
func (p *plan) add(do func() error, format string, args ...any) {
	p.steps = append(p.steps, step{fmt.Sprintf(format, args...), do})
}

// set changes a setting of main.cf.
func (p *plan) set(name, value string) { p.settings = append(p.settings, name+"="+value) }

// extend adds an item to a list of main.cf.
func (p *plan) extend(name, item string) {
	old := p.cfg.Raw(name)
	if set, _, _ := p.cfg.IsSet(name); !set && strings.Contains(old, "{") { // a default that depends on others
		old, _ = p.cfg.Value(name) // main.cf was read: it expands
	}
	old = strings.TrimRight(strings.TrimSpace(strings.ReplaceAll(old, "\n", " ")), ", ")
	if old != "" {
		old += ", "
	}
	p.set(name, old+item)
}

// note tells the administrator something.
func (p *plan) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// entry has a table say value of key, and builds the table if that is needed.
func (p *plan) entry(t tabletext.File, key, value string) error {
	old, found, err := t.Get(key)
	if err != nil {
		return err
	}
	if !found || old != value {
		if err := t.Ours(); err != nil {
			return fmt.Errorf("%w; its entry would be: %s\t%s", err, key, value)
		}
		p.add(func() error { return t.Set(key, value) }, "%s: %s\t%s", t.Path, key, value)
	} else if !t.Stale() {
		return nil
	}
	p.build(t)
	return nil
}

// build builds a table, where it is a file of its own.
func (p *plan) build(t tabletext.File) {
	if t.Built {
		p.add(func() error { return t.Build(p.cfg.Dir()) }, "postmap %s", t.Spec)
	}
}

// finish puts the settings at the end.
func (p *plan) finish() {
	if len(p.settings) == 0 {
		return
	}
	file := p.cfg.Dir() + "/main.cf"
	lines := make([]string, len(p.settings))
	for i, s := range p.settings {
		name, value, _ := strings.Cut(s, "=")
		lines[i] = file + ": " + name + " = " + value
	}
	p.steps = append(p.steps, step{strings.Join(lines, "\n"), func() error {
		var complaint bytes.Buffer
		if postconf.Run(append([]string{"-c", p.cfg.Dir(), "-e"}, p.settings...), postconf.Build{}, io.Discard, &complaint) != 0 {
			return fmt.Errorf("change %s: %s", file, strings.TrimSpace(complaint.String()))
		}
		return nil
	}})
	p.notes = append([]string{"posthaste reload takes up the changes of main.cf"}, p.notes...)
}

// carryOut makes the changes one after the other, and tells each. With dry, it only tells them.
func (p *plan) carryOut(dry bool, tell func(what string) error) error {
	for _, s := range p.steps {
		if !dry {
			if err := s.do(); err != nil {
				return err
			}
		}
		if err := tell(s.what); err != nil {
			return err
		}
	}
	return nil
}
