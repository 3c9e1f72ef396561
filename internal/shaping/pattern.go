// Expressions of rules. Those that Go's package regexp understands take a time that is linear in the
// text; those that look ahead or behind go to an engine that tries ways one after the other, within a
// time.

package shaping

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"time"

	"github.com/dlclark/regexp2"

	"posthaste/internal/prefilter"
)

const (
	maxPattern = 4096 // octets of an expression
	// matchTime bounds what the engine that goes back may take for an expression, and budget what it may take
	// for all of them with one reply.
	matchTime = 10 * time.Millisecond
	budget    = 50 * time.Millisecond
	// MaxText is how much of a reply the expressions see, in octets.
	MaxText = 2048
	// clockTime is how often the engine looks at the clock: by itself it does so ten times a second, and an expression
	// would have that much longer than matchTime.
	clockTime = 2 * time.Millisecond
)

// The setting is the engine's, for the whole process, and must stand before its first expression.
func init() { regexp2.SetTimeoutCheckPeriod(clockTime) }

// A pattern is one expression.
type pattern struct {
	text string
	at   Place
	lin  *regexp.Regexp
	back *regexp2.Regexp // nil: lin is what counts
	need []int           // what a text must have, by the filter
	expr *syntax.Regexp  // of lin
}

// compile reads an expression. That it is valid in Go's dialect says that it means the same there.
func compile(text string) (*pattern, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("an expression is longer than %d octets", maxPattern)
	}
	p := &pattern{text: text}
	var err error
	if p.lin, err = regexp.Compile(text); err == nil {
		p.expr, err = syntax.Parse(text, syntax.Perl)
		return p, err
	}
	if p.back, err = regexp2.Compile(text, regexp2.None); err != nil {
		return nil, errors.New("the expression is not understood: " + err.Error())
	}
	p.back.MatchTimeout = matchTime
	return p, nil
}

// A filter holds what replies must have for rules to match.
type filter struct {
	filter prefilter.Filter
	rules  []*Rule
}

func (f *filter) add(r *Rule) {
	f.rules = append(f.rules, r)
	for _, p := range r.patterns {
		if p.expr != nil {
			p.need = f.filter.Add(p.expr)
		}
	}
}

// A look is what one reply has been found to have.
type look struct {
	text string
	has  prefilter.Presence
	left time.Duration // for expressions that go back
	// None of these is tried: it is the destination's that has made one take too long.
	rests bool
}

// look prepares to match a reply.
func (f *filter) look(text string) *look {
	l := &look{text: text[:min(len(text), MaxText)], has: make(prefilter.Presence, f.filter.Words()), left: budget}
	f.filter.Find(l.text, l.has)
	return l
}

// match says whether an expression matches. late says that it has found no answer within its time, and
// counts as one that does not.
func (l *look) match(p *pattern) (yes, late bool) {
	if p.back == nil {
		return l.has.All(p.need) && p.lin.MatchString(l.text), false
	}
	if l.left <= 0 {
		return false, true
	}
	start := time.Now()
	yes, err := p.back.MatchString(l.text)
	l.left -= time.Since(start)
	return yes && err == nil, err != nil
}

// matches says whether one of the rule's expressions matches.
func (l *look) matches(r *Rule) (yes, late bool) {
	for _, p := range r.patterns {
		y, t := l.match(p)
		if late = late || t; y {
			return true, late
		}
	}
	return false, late
}
