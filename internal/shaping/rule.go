// Rules of automation: what a server answers, and what is done then.

package shaping

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/rate"
)

// A Rule is one rule of automation. It does not change.
type Rule struct {
	At       Place
	Section  string // whose it is, as in "provider bigmail"
	ID       string // names the rule as long as it says the same, wherever it stands
	Trigger  Trigger
	Actions  []Action
	Duration time.Duration
	Internal bool // match_internal: it is for what no server has said, too

	patterns []*pattern
	number   int // among the rules of all files
}

// A Trigger says when a rule acts: at once, or when N replies have matched within Per.
type Trigger struct {
	N   int // 1: at once
	Per time.Duration
}

// String is the trigger as a file has it.
func (t Trigger) String() string {
	if t.Per == 0 {
		return "Immediate"
	}
	return rate.Rate{N: int64(t.N), Per: t.Per}.String()
}

// An ActionKind is a kind of action.
type ActionKind string

// The actions that there are.
const (
	Suspend         ActionKind = "Suspend"
	SuspendTenant   ActionKind = "SuspendTenant"
	SuspendCampaign ActionKind = "SuspendCampaign"
	SetConfig       ActionKind = "SetConfig"
	SetDomainConfig ActionKind = "SetDomainConfig"
	Bounce          ActionKind = "Bounce"
	BounceTenant    ActionKind = "BounceTenant"
	BounceCampaign  ActionKind = "BounceCampaign"
)

// An Action is what a rule does.
type Action struct {
	Kind ActionKind
	// Of SetConfig and SetDomainConfig: a key, and its value.
	Name  string
	Value Value
}

// String is the action as people read it.
func (a *Action) String() string {
	if a.Name == "" {
		return string(a.Kind)
	}
	return fmt.Sprintf("%s %s = %s", a.Kind, a.Name, a.Value.Text)
}

// Returns says whether an action returns mail to its senders.
func (a *Action) Returns() bool {
	return a.Kind == Bounce || a.Kind == BounceTenant || a.Kind == BounceCampaign
}

// ForGroup says whether an action is about the mail of a tenant or a campaign.
func (a *Action) ForGroup() bool {
	switch a.Kind {
	case SuspendTenant, SuspendCampaign, BounceTenant, BounceCampaign:
		return true
	}
	return false
}

// NoEffect says why an action does nothing here; "": it does something.
func (a *Action) NoEffect() string {
	if k := keyOf(a.Name); a.Name != "" && (k == nil || k.effect != honoured) {
		return "the key " + a.Name + " has none"
	}
	return ""
}

// maxCount bounds N of a trigger.
const maxCount = 10_000

// automation takes in the rules of a section.
func (l *loader) automation(s *section, n *node) error {
	list := n.list
	if n.kind == tableNode {
		list = []*node{n}
	} else if n.kind != listNode {
		return errorAt(n.line, "automation is %s where a list of rules is expected", n.kind)
	}
	for _, of := range list {
		if of.kind != tableNode {
			return errorAt(of.line, "automation: %s where a rule is expected", of.kind)
		}
		r, err := l.rule(s, of)
		if err != nil {
			return err
		}
		if l.n++; l.n > maxRules {
			return errorAt(of.line, "there are more than %d rules", maxRules)
		}
		s.rules = append(s.rules, r)
	}
	return nil
}

// rule reads one rule.
func (l *loader) rule(s *section, n *node) (*Rule, error) {
	r := &Rule{At: Place{l.name, n.line}, Section: s.String(), Trigger: Trigger{N: 1}}
	sum := sha256.New()
	fmt.Fprintf(sum, "%q", r.Section)
	for _, k := range n.keys {
		of := n.kids[k]
		var err error
		switch k {
		case "regex":
			err = r.regex(of)
		case "action":
			err = l.actions(r, of)
		case "trigger":
			r.Trigger, err = parseTrigger(of)
		case "duration":
			if r.Duration, err = parseTime(of); err == nil && r.Duration < time.Second {
				err = errors.New("it is less than a second")
			}
		case "match_internal":
			if r.Internal = of.yes; of.kind != boolNode {
				err = fmt.Errorf("%s where true or false is expected", of.kind)
			}
		default:
			l.rules.named++
			l.warn(of.line, "automation "+k, "the key %s of a rule is not known, and has no effect", quoted(k))
		}
		if at := new(lineError); err != nil && !errors.As(err, &at) {
			err = errorAt(of.line, "%s: %w", k, err)
		}
		if err != nil {
			return nil, err
		}
		l.rules.honoured++
	}
	for _, must := range []string{"regex", "action", "duration"} {
		if n.kids[must] == nil {
			return nil, errorAt(n.line, "a rule needs %s", must)
		}
	}
	for _, p := range r.patterns {
		fmt.Fprintf(sum, " %q", p.text)
	}
	for i := range r.Actions {
		fmt.Fprintf(sum, " %q", r.Actions[i].String())
	}
	fmt.Fprintf(sum, " %q %q %v", r.Trigger, r.Duration, r.Internal)
	r.ID = hex.EncodeToString(sum.Sum(nil)[:8])
	return r, nil
}

// regex reads the expressions of a rule.
func (r *Rule) regex(n *node) error {
	list := n.list
	if n.kind == stringNode {
		list = []*node{n}
	} else if n.kind != listNode || len(list) == 0 {
		return errors.New("a string or a list of strings is expected")
	}
	for _, of := range list {
		if of.kind != stringNode {
			return errorAt(of.line, "regex: %s where a string is expected", of.kind)
		}
		p, err := compile(of.text)
		if err != nil {
			return errorAt(of.line, "regex: %w", err)
		}
		if p.at.Line = of.line; len(r.patterns) >= maxNames {
			return fmt.Errorf("more than %d expressions", maxNames)
		}
		p.at.File = r.At.File
		r.patterns = append(r.patterns, p)
	}
	return nil
}

// actions reads what a rule does.
func (l *loader) actions(r *Rule, n *node) error {
	list := n.list
	if n.kind != listNode {
		list = []*node{n}
	}
	for _, of := range list {
		a, err := parseAction(of)
		if err != nil {
			return errorAt(of.line, "action: %w", err)
		}
		a.Value.At, a.Value.In = Place{l.name, of.line}, "automation of "+r.Section
		if why := a.NoEffect(); why != "" {
			l.rules.named++
			l.warn(of.line, "action "+a.String(), "the action %s is without effect: %s", a.String(), why)
		}
		if r.Actions = append(r.Actions, a); len(r.Actions) > 100 {
			return errors.New("more than 100 actions")
		}
	}
	return nil
}

// parseAction reads one action: a word, or a table with one key.
func parseAction(n *node) (a Action, err error) {
	if n.kind == stringNode {
		switch a.Kind = ActionKind(n.text); a.Kind {
		case Suspend, SuspendTenant, SuspendCampaign, Bounce, BounceTenant, BounceCampaign:
			return a, nil
		}
		return a, fmt.Errorf("there is no %s", quoted(n.text))
	}
	if n.kind != tableNode || len(n.keys) != 1 {
		return a, errors.New("a word or {SetConfig={name=\"key\", value=x}} is expected")
	}
	set := n.kids[n.keys[0]]
	if a.Kind = ActionKind(n.keys[0]); a.Kind != SetConfig && a.Kind != SetDomainConfig {
		return a, fmt.Errorf("there is no %s", quoted(n.keys[0]))
	}
	if set.kind != tableNode || set.kids["name"] == nil || set.kids["value"] == nil || set.kids["name"].kind != stringNode {
		return a, fmt.Errorf("%s needs name and value", a.Kind)
	}
	a.Name = set.kids["name"].text
	k := keyOf(a.Name)
	if k == nil {
		return a, nil // it is warned of, as a key that is not known
	}
	if a.Value, err = k.parse(set.kids["value"]); err != nil {
		return a, fmt.Errorf("%s: %w", a.Name, err)
	}
	return a, nil
}

// parseTrigger reads "Immediate" or {Threshold="10/hr"}.
func parseTrigger(n *node) (t Trigger, err error) {
	if n.kind == stringNode && n.text == "Immediate" {
		return Trigger{N: 1}, nil
	}
	th := n.kids["Threshold"]
	if n.kind != tableNode || len(n.keys) != 1 || th == nil || th.kind != stringNode {
		return t, errors.New("\"Immediate\" or {Threshold=\"N/PERIOD\"} is expected")
	}
	r, err := parseRate(th.text)
	if err != nil {
		return t, err
	}
	if r.N > maxCount {
		return t, fmt.Errorf("%s is more than %d", strconv.FormatInt(r.N, 10), maxCount)
	}
	return Trigger{int(r.N), r.Per}, nil
}

// Set gives a key the value of a text, as an override has it. The error says what is wrong with it.
func Set(name, text string) (v Value, err error) {
	k := keyOf(name)
	if k == nil || k.effect != honoured {
		return v, fmt.Errorf("%s has no effect", quoted(name))
	}
	n := &node{kind: stringNode, text: text}
	switch k.form {
	case boolForm:
		n.kind, n.yes = boolNode, text == "true"
	case hostsForm:
		n = &node{kind: tableNode, keys: strings.Fields(text)}
	}
	return k.parse(n)
}
