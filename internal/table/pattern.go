package table

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2"

	"posthaste/internal/prefilter"
)

// dialect is the language of a pattern table.
type dialect uint8

const (
	dialectPOSIX dialect = iota // regexp: POSIX extended, leftmost-longest
	dialectPerl                 // pcre: Perl-compatible, leftmost-first
)

func (d dialect) String() string { return [...]string{"regexp", "pcre"}[d] }

// patternTable is regexp and pcre: rules in order, the first that matches wins.
//
// Go's matcher is used wherever it knows the pattern, because it takes time
// linear in the key. Patterns with back-references, look-around or possessive
// parts go to a backtracking matcher with a time limit; a match that runs out of
// time is an error, not "no". Neither is asked about a key that has not the words
// that a pattern needs: see package prefilter.
type patternTable struct {
	file *watched[*patternRules] // nil for a table in braces
	text *patternRules
}

// patternRules are what is in a table.
type patternRules struct {
	rules  []patternRule
	filter prefilter.Filter
}

// patternRule is one line, or an if with all that is inside it.
type patternRule struct {
	match  pattern
	also   *pattern // /pattern/!/pattern/, in regexp tables
	value  template
	isIf   bool
	inside []patternRule
	bad    error // set when the rule cannot be read and lookups must not pass it
}

// pattern is /text/flags with an optional "!" before.
type pattern struct {
	not  bool
	lin  *regexp.Regexp
	back *regexp2.Regexp
	// where is the table and the line, for errors of back.
	where string
	need  []int // clauses of the table's filter
	// plain matches what the pattern does, and perhaps more, in the syntax of package
	// regexp; "" when there is no such expression.
	plain string
}

func openPatterns(d dialect, name string, o Options) (Table, error) {
	if strings.HasPrefix(name, "{") {
		text, err := bracedLines(name)
		if err != nil {
			return nil, err
		}
		return &patternTable{text: parsePatterns(d, d.String()+":"+name, text, o)}, nil
	}
	file, err := newWatched(name, o, func(path string) (*patternRules, error) {
		text, err := readText(path)
		if err != nil {
			return nil, err
		}
		return parsePatterns(d, path, text, o), nil
	})
	if err != nil {
		return nil, err
	}
	return &patternTable{file: file}, nil
}

// parsePatterns reads a table. Lines that are not understood are warned of
// and passed over; an if that is not understood is passed over with all that
// is inside, since that must not be taken as unconditional.
func parsePatterns(d dialect, name, text string, o Options) *patternRules {
	top := new(patternRules)
	stack := []*[]patternRule{&top.rules}
	// bad passes over a line, or makes it one that lookups stop at.
	bad := func(n int, err error, result string) {
		err = fmt.Errorf("%s, line %d: %w", name, n, err)
		if !o.stops(result) {
			o.warn("%v; line ignored", err)
			return
		}
		o.warn("%v; lookups that come to this rule fail", err)
		list := stack[len(stack)-1]
		*list = append(*list, patternRule{bad: err})
	}
	_ = EachLine(text, func(n int, line string) error {
		where := fmt.Sprintf("%.200s, line %d", name, n)
		word, rest := cutIf(line)
		switch word {
		case "endif":
			if len(stack) == 1 {
				o.warn("%s, line %d: endif without if; line ignored", name, n)
				return nil
			}
			stack = stack[:len(stack)-1]
			return nil
		case "if":
			p, tail, err := parsePattern(d, where, rest, &o)
			if err == nil && tail != "" {
				o.warn("%s, line %d: text after the pattern of if is ignored", name, n)
			}
			if err != nil {
				bad(n, err, "")
				stack = append(stack, new([]patternRule))
				return nil
			}
			list := stack[len(stack)-1]
			*list = append(*list, patternRule{isIf: true, match: p})
			stack = append(stack, &(*list)[len(*list)-1].inside)
			return nil
		}
		r, result, err := parseRule(d, where, line, &o)
		if err != nil {
			bad(n, err, result)
			return nil
		}
		if len(r.value.parts) == 0 {
			o.warn("%s, line %d: no result after the pattern: an empty one is an error when it is found", name, n)
		}
		list := stack[len(stack)-1]
		*list = append(*list, r)
		return nil
	})
	if len(stack) > 1 {
		o.warn("%s: if without endif", name)
	}
	learn(&top.filter, top.rules)
	return top
}

// learn has a filter take in the patterns of rules.
func learn(f *prefilter.Filter, rules []patternRule) {
	for i := range rules {
		r := &rules[i]
		for _, p := range []*pattern{&r.match, r.also} {
			if p == nil || p.plain == "" {
				continue
			}
			if expr, err := syntax.Parse(p.plain, syntax.Perl); err == nil {
				p.need = f.Add(expr)
			}
		}
		learn(f, r.inside)
	}
}

// cutIf recognizes the words if and endif, which patterns cannot begin with.
func cutIf(line string) (word, rest string) {
	if len(line) >= 5 && strings.EqualFold(line[:5], "endif") {
		return "endif", ""
	}
	if len(line) > 2 && strings.EqualFold(line[:2], "if") {
		return "if", strings.TrimLeft(line[2:], " \t")
	}
	return "", line
}

// parseRule reads a line. Where it fails, rest is the result that the rule was to
// have, or "" if that cannot be told.
func parseRule(d dialect, where, line string, o *Options) (r patternRule, rest string, err error) {
	if r.match, rest, err = parsePattern(d, where, line, o); err != nil {
		return r, rest, err
	}
	if strings.HasPrefix(rest, "!") {
		if d == dialectPerl {
			return r, "", errors.New("pcre tables have no second pattern: unknown option \"!\"")
		}
		also, tail, err := parsePattern(d, where, rest, o)
		if err != nil {
			return r, tail, err
		}
		r.also, rest = &also, tail
	}
	r.value, err = parseTemplate(rest)
	if err == nil && r.value.highest > 0 && o.NoSubstitution {
		err = errors.New("regular expression substitution is not allowed in this table, for security reasons")
	}
	if err == nil && r.value.highest > 0 && r.match.not {
		err = errors.New("a pattern with \"!\" matches no text that $number could stand for")
	}
	if err == nil && r.value.highest > r.match.groups() {
		err = fmt.Errorf("$%d in the result, but the pattern has %d groups", r.value.highest, r.match.groups())
	}
	return r, rest, err
}

// parsePattern reads !/text/flags and returns what follows, also when text is no
// pattern.
func parsePattern(d dialect, where, line string, o *Options) (p pattern, rest string, err error) {
	p.where = where
	for strings.HasPrefix(line, "!") {
		p.not = !p.not
		line = strings.TrimLeft(line[1:], " \t")
	}
	if line == "" || line[0] == '\\' || class(line[0]) {
		return p, "", errors.New("expected /pattern/flags, white space, result")
	}
	delim := line[0]
	end := 1
	for ; end < len(line) && line[end] != delim; end++ {
		if line[end] == '\\' {
			end++
		}
	}
	if end >= len(line) {
		return p, "", fmt.Errorf("no closing %q", delim)
	}
	text, rest := line[1:end], line[end+1:]
	i := 0
	for i < len(rest) && (rest[i] >= 'a' && rest[i] <= 'z' || rest[i] >= 'A' && rest[i] <= 'Z') {
		i++
	}
	flags := rest[:i]
	err = p.compile(d, text, flags, o)
	return p, strings.TrimSpace(rest[i:]), err
}

func class(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == ' ' || c == '\t'
}

// patternFlags are the letters after a pattern. Each toggles its default.
type patternFlags struct {
	fold, multi, dotall, extended, anchored, ungreedy, dollarEnd bool
}

func parseFlags(d dialect, letters string) (patternFlags, error) {
	f := patternFlags{fold: true, dotall: true}
	for _, c := range letters {
		switch {
		case c == 'i':
			f.fold = !f.fold
		case c == 'm':
			f.multi = !f.multi
		case d == dialectPOSIX && c == 'x':
			return f, errors.New("flag x: only extended expressions are supported")
		case d == dialectPerl && c == 's':
			f.dotall = !f.dotall
		case d == dialectPerl && c == 'x':
			f.extended = !f.extended
		case d == dialectPerl && c == 'A':
			f.anchored = !f.anchored
		case d == dialectPerl && c == 'E':
			f.dollarEnd = !f.dollarEnd
		case d == dialectPerl && c == 'U':
			f.ungreedy = !f.ungreedy
		case d == dialectPerl && c == 'X':
			// Strictness about unknown escapes: both matchers are strict.
		default:
			return f, fmt.Errorf("unknown flag %q", c)
		}
	}
	if d == dialectPOSIX && f.multi {
		f.dotall = false // REG_NEWLINE: a dot does not match a line end
	}
	return f, nil
}

func (p *pattern) compile(d dialect, text, letters string, o *Options) error {
	f, err := parseFlags(d, letters)
	if err != nil {
		return err
	}
	expr := latin1(text)
	if d == dialectPOSIX {
		expr = fromPOSIX(expr)
	}
	if f.anchored {
		expr = `\A(?:` + expr + `)`
	}
	if !f.extended {
		p.plain = f.inline() + expr
		if p.lin, err = regexp.Compile(p.plain); err == nil {
			if d == dialectPOSIX {
				p.lin.Longest()
			}
			return nil
		}
	}
	if f.ungreedy {
		return fmt.Errorf("flag U is not supported with this pattern: %w", err)
	}
	return p.compileBacktracking(expr, f, o)
}

// inline are the flags as they stand at the beginning of an expression of package
// regexp.
func (f *patternFlags) inline() string {
	inline := ""
	for _, l := range []struct {
		on     bool
		letter string
	}{{f.fold, "i"}, {f.multi, "m"}, {f.dotall, "s"}, {f.ungreedy, "U"}} {
		if l.on {
			inline += l.letter
		}
	}
	if inline != "" {
		inline = "(?" + inline + ")"
	}
	return inline
}

func (p *pattern) compileBacktracking(expr string, f patternFlags, o *Options) error {
	opt := regexp2.None
	for _, l := range []struct {
		on  bool
		opt regexp2.RegexOptions
	}{{f.fold, regexp2.IgnoreCase}, {f.multi, regexp2.Multiline}, {f.dotall, regexp2.Singleline}, {f.extended, regexp2.IgnorePatternWhitespace}} {
		if l.on {
			opt |= l.opt
		}
	}
	back, err := regexp2.Compile(expr, opt)
	if err != nil {
		return fmt.Errorf("pattern %q: %w", expr, err)
	}
	back.MatchTimeout = o.matchTimeout()
	p.back, p.plain = back, ""
	if plain, ok := superset(expr); ok && !f.extended {
		p.plain = f.inline() + plain
	}
	return nil
}

// fromPOSIX turns what POSIX and GNU write differently into what the
// matchers here understand: \< and \> are word boundaries, \` and \' the
// ends of the text.
func fromPOSIX(text string) string {
	if strings.IndexByte(text, '\\') < 0 {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '\\' || i+1 == len(text) {
			b.WriteByte(c)
			continue
		}
		i++
		switch c = text[i]; c {
		case '<', '>':
			b.WriteString(`\b`)
		case '`':
			b.WriteString(`\A`)
		case '\'':
			b.WriteString(`\z`)
		case '/', '@', '#', '%', '~', '!', '=', ':', ';', ',', '"', '&', '_', '-', ' ':
			b.WriteString(regexp.QuoteMeta(string(c)))
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

// latin1 has each octet of s be a character: patterns are about octets, as in
// Postfix, and the matchers about characters. \x80 to \xff then stand for
// octets, and mail that is not in UTF-8 can be matched, too.
func latin1(s string) string {
	i := 0
	for i < len(s) && s[i] < utf8.RuneSelf {
		i++
	}
	if i == len(s) {
		return s
	}
	b := append(make([]byte, 0, 2*len(s)), s[:i]...)
	for ; i < len(s); i++ {
		b = utf8.AppendRune(b, rune(s[i]))
	}
	return string(b)
}

// octets is the opposite of latin1.
func octets(s string) string {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		b = append(b, byte(r))
	}
	return string(b)
}

func (p *pattern) groups() int {
	if p.lin != nil {
		return p.lin.NumSubexp()
	}
	return len(p.back.GetGroupNumbers()) - 1
}

// matches says whether the key matches, "!" taken into account.
func (p *pattern) matches(l *patternLookup) (bool, error) {
	switch {
	case !l.has.All(p.need):
		return p.not, nil
	case p.lin != nil:
		return p.lin.MatchString(l.key) != p.not, nil
	}
	m, err := p.backtrack(l)
	return (m != nil) != p.not, err
}

// backtrack runs the backtracking matcher within the budget. The matcher's own error has
// pattern and key in it, of any length.
func (p *pattern) backtrack(l *patternLookup) (*regexp2.Match, error) {
	if l.budget == nil {
		l.budget = budgetOf(l.ctx)
	}
	if l.budget.left.Load() <= 0 {
		return nil, fmt.Errorf("%s: the patterns together have taken %v, which is all they have: no more are tried", p.where, l.budget.all)
	}
	start := time.Now()
	m, err := p.back.FindStringMatch(l.key)
	l.budget.left.Add(-int64(time.Since(start)))
	if err != nil {
		return nil, fmt.Errorf("%s: the pattern has no answer within %v", p.where, p.back.MatchTimeout)
	}
	return m, nil
}

// find is matches with the texts of the groups.
func (p *pattern) find(l *patternLookup) (groups []string, err error) {
	switch {
	case !l.has.All(p.need):
		return nil, nil
	case p.lin != nil:
		return p.lin.FindStringSubmatch(l.key), nil
	}
	m, err := p.backtrack(l)
	if m == nil || err != nil {
		return nil, err
	}
	for _, g := range m.Groups() {
		groups = append(groups, g.String())
	}
	return groups, nil
}

func (t *patternTable) Lookup(ctx context.Context, key string) (string, bool, error) {
	rules := t.text
	if t.file != nil {
		var err error
		if rules, err = t.file.get(); err != nil {
			return "", false, err
		}
	}
	return rules.lookup(ctx, key)
}

func (r *patternRules) lookup(ctx context.Context, key string) (string, bool, error) {
	var few [16]uint64 // enough for most tables
	has := prefilter.Presence(few[:])
	if words := r.filter.Words(); words > len(few) {
		has = make(prefilter.Presence, words)
	}
	key = latin1(key)
	r.filter.Find(key, has)
	l := patternLookup{ctx: ctx, key: key, has: has}
	return l.in(r.rules)
}

// A patternLookup looks for a key.
type patternLookup struct {
	ctx    context.Context
	key    string             // latin1 of the one that is asked for
	has    prefilter.Presence // the clauses that it fulfils
	budget *Budget            // nil until a pattern needs it
}

// in looks for the key in rules.
func (l *patternLookup) in(rules []patternRule) (string, bool, error) {
	for i := range rules {
		r := &rules[i]
		if r.bad != nil {
			return "", false, r.bad
		}
		if r.value.highest > 0 {
			groups, err := r.match.find(l)
			if err != nil {
				return "", false, err
			}
			if groups == nil {
				continue
			}
			if ok, err := l.alsoMatches(r); err != nil || ok {
				for i := range groups {
					groups[i] = octets(groups[i])
				}
				return r.value.expand(groups), err == nil, err
			}
			continue
		}
		ok, err := r.match.matches(l)
		if err != nil {
			return "", false, err
		}
		if !ok {
			continue
		}
		if r.isIf {
			if value, found, err := l.in(r.inside); found || err != nil {
				return value, found, err
			}
			continue
		}
		if ok, err := l.alsoMatches(r); err != nil || ok {
			return r.value.expand(nil), err == nil, err
		}
	}
	return "", false, nil
}

func (l *patternLookup) alsoMatches(r *patternRule) (bool, error) {
	if r.also == nil {
		return true, nil
	}
	return r.also.matches(l)
}

func (t *patternTable) Pattern() bool { return true }
func (t *patternTable) Close() error  { return nil }

// Owner implements Owned.
func (t *patternTable) Owner() (int, bool) {
	if t.file == nil {
		return 0, true
	}
	return t.file.owner()
}

// template is a result with places for groups: $1, ${1}, $(1); $$ is a dollar.
type template struct {
	parts   []templatePart
	highest int
}

type templatePart struct {
	text  string
	group int // 0: text
}

func parseTemplate(s string) (template, error) {
	var t template
	var lit strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' {
			lit.WriteByte(s[i])
			continue
		}
		if i++; i == len(s) {
			return t, errors.New("a \"$\" at the end of the result; write $$ for a dollar")
		}
		if s[i] == '$' {
			lit.WriteByte('$')
			continue
		}
		name, next := templateName(s, i)
		n, err := strconv.Atoi(name)
		if err != nil || n < 1 || n > 999 {
			return t, fmt.Errorf("%q in the result: expected $number, or $$ for a dollar", "$"+name)
		}
		if lit.Len() > 0 {
			t.parts = append(t.parts, templatePart{text: lit.String()})
			lit.Reset()
		}
		t.parts = append(t.parts, templatePart{group: n})
		t.highest = max(t.highest, n)
		i = next - 1
	}
	if lit.Len() > 0 {
		t.parts = append(t.parts, templatePart{text: lit.String()})
	}
	return t, nil
}

// templateName reads the name after a "$" at i-1 and returns where it ends.
func templateName(s string, i int) (name string, next int) {
	closer := byte(0)
	switch s[i] {
	case '{':
		closer = '}'
	case '(':
		closer = ')'
	}
	if closer != 0 {
		if j := strings.IndexByte(s[i:], closer); j > 0 {
			return s[i+1 : i+j], i + j + 1
		}
		return s[i:], len(s)
	}
	j := i
	for j < len(s) && (s[j] >= '0' && s[j] <= '9' || s[j] == '_' || s[j] >= 'a' && s[j] <= 'z' || s[j] >= 'A' && s[j] <= 'Z') {
		j++
	}
	return s[i:j], j
}

func (t *template) expand(groups []string) string {
	if len(t.parts) == 1 && t.highest == 0 {
		return t.parts[0].text
	}
	var b strings.Builder
	for _, p := range t.parts {
		if p.group == 0 {
			b.WriteString(p.text)
		} else if p.group < len(groups) {
			b.WriteString(groups[p.group])
		}
	}
	return b.String()
}
