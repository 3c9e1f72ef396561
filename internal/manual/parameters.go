package manual

import (
	"bytes"
	"cmp"
	"fmt"
	"go/doc/comment"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"posthaste/internal/config"
)

// computed are the parameters whose defaults are found out from the system.
var computed = map[string]string{
	"config_directory": "the directory that is read",
	"mail_owner":       "posthaste if there is such a user, else postfix",
	"mydomain":         "$myhostname without its first label",
	"myhostname":       "the system's host name",
	"mynetworks":       "from mynetworks_style",
	"process_id":       "the service's process ID",
	"process_name":     "the service's program",
}

// isMember says whether a parameter is one of those that every transport
// has, and says nothing of its own.
func isMember(p *config.Param) bool {
	for _, f := range config.Families() {
		if p.Default == "$"+f.Fallback && strings.HasSuffix(p.Name, "_"+f.Suffix) && p.Name != f.Fallback {
			return true
		}
	}
	return false
}

// shown is the default as a person reads it.
func shown(p *config.Param) string {
	if text, ok := computed[p.Name]; ok {
		return text
	}
	if p.Default == "" {
		return "empty"
	}
	return p.Default
}

func writeParameters(p *roff, list []config.Param) {
	slices.SortFunc(list, func(a, b config.Param) int { return cmp.Compare(a.Name, b.Name) })
	p.line(".Bl -tag -width Ds")
	for i := range list {
		q := &list[i]
		p.line(".It Va %s Pq %s", q.Name, argument(shown(q)))
		p.prose(sentence(q.Doc))
	}
	p.line(".El")
}

func writeFamilies(p *roff) {
	p.line(".Bl -tag -width Ds")
	for _, f := range config.Families() {
		p.line(".It Va TRANSPORT_%s Pq $%s", f.Suffix, f.Fallback)
		p.prose(sentence(f.Doc))
	}
	p.line(".El")
}

// sentence makes one of what is said of a parameter. Names keep their case.
func sentence(text string) string {
	if text == "" {
		return text
	}
	if first, _, _ := strings.Cut(text, " "); strings.ContainsAny(first, "_.$") {
		return strings.TrimSuffix(text, ".") + "."
	}
	return strings.ToUpper(text[:1]) + strings.TrimSuffix(text[1:], ".") + "."
}

// forms say how values of a type are written.
var forms = map[config.Type]string{
	config.String:   "text",
	config.Int:      "number",
	config.Bytes:    "size",
	config.Bool:     "yes or no",
	config.Duration: "time",
	config.List:     "list",
	config.Raw:      "text with variables of its own",
	config.Enum:     "word",
}

// form says how a value of the parameter is written, with its bounds.
func form(p *config.Param) string {
	text := forms[p.Type]
	if p.Type == config.Enum {
		text = strings.Join(strings.Split(p.Values, "|"), ", ")
	}
	bound := func(n int64) string { return strconv.FormatInt(n, 10) }
	if p.Type == config.Duration {
		bound = seconds
	}
	switch {
	case p.Min != 0 && p.Max != 0:
		text += fmt.Sprintf(" from %s to %s", bound(p.Min), bound(p.Max))
	case p.Min > 0:
		text += fmt.Sprintf(" of at least %s", bound(p.Min))
	case p.Max != 0:
		text += fmt.Sprintf(" of at most %s", bound(p.Max))
	}
	if unit := map[byte]string{'h': "hours", 'd': "days"}[p.Unit]; unit != "" {
		text += ", in " + unit + " where no unit is said"
	}
	return text
}

// seconds is a time in the largest unit of which it is a whole number.
func seconds(n int64) string {
	for _, u := range []struct {
		length int64
		name   string
	}{{86400, "d"}, {3600, "h"}, {60, "m"}} {
		if n%u.length == 0 {
			return fmt.Sprintf("%d%s", n/u.length, u.name)
		}
	}
	return fmt.Sprintf("%ds", n)
}

// longDir is where the long texts of parameters are, below the module's root: in the
// syntax of Go's doc comments, a chapter for each parameter, whose name is its title.
const longDir = "internal/config/docs"

// longTexts are the long texts, by parameter.
func longTexts(root string) (map[string][]comment.Block, error) {
	names, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(longDir), "*.txt"))
	if err != nil {
		return nil, err
	}
	words := comment.Parser{LookupSym: func(string, string) bool { return true }}
	long := make(map[string][]comment.Block)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for _, c := range chapters(words.Parse(string(text))) {
			switch _, known := config.Lookup(c.title); {
			case c.title == "" && len(c.blocks) == 0:
			case !known:
				return nil, fmt.Errorf("%s: %q is no parameter", name, c.title)
			case long[c.title] != nil:
				return nil, fmt.Errorf("%s: %s has a text already", name, c.title)
			default:
				long[c.title] = c.blocks
			}
		}
	}
	return long, nil
}

// mainPage is main.cf(5).
func mainPage(long map[string][]comment.Block) []byte {
	p := newPage("main.cf", 5, "settings of the mail system")
	p.section("Synopsis")
	p.line(".Pa /etc/posthaste/main.cf")
	p.section("Description")
	p.paragraphs(
		`main.cf(5) holds settings, one a line, as "name = value". A line that begins with white space continues the one before it. Empty lines, and lines whose first character that is no white space is #, are ignored; a comment between a line and its continuation does not part them. When a parameter is set twice the last one counts, and a warning says so.`,
		`A parameter that is not set has its default. "postconf -n" prints what is set, "postconf -d" all defaults, and "postconf -e" edits the file. A running mail system applies changes after "posthaste reload". "posthaste check" says what is wrong.`,
		`A parameter without effect is accepted, with a warning that says why. Unknown names also give a warning, unless a setting uses them as $name or they are restriction classes.`,
	)
	p.subsection("Values")
	p.items("Ds", []item{
		{"Li $name , ${name}", "The value of another parameter, also one that the site has made up. A name that is not set is nothing."},
		{"Li ${domain_to_ascii{text}}", "The domain that the text, expanded, is, with its international labels in ASCII; ${domain_to_utf8{text}} is the other way round."},
		{"Li ${name?text} , ${name:text}", "The text if the parameter is not empty; if it is empty. Both can be said: ${name?{text}:{text}}."},
		{"Li ${{a}==\\&{b}?text}", "The text if the comparison holds: == != < <= >= >, as numbers where both are numbers. The operators <level and the like compare compatibility levels."},
		{"Li $$", "A dollar sign."},
		{"size", "A number of bytes; with k, m or g, times 1024, 1024 twice, or thrice."},
		{"time", "A number and a unit: ms, s, m, h, d or w. Without a unit it is in seconds, or in what the parameter says."},
		{"list", "Items parted by commas or white space. What stands in braces is one item."},
		{"table", "type:name, as in hash:/etc/posthaste/virtual; see postmap(1)."},
	})
	p.section("Parameters")
	p.prose("In parentheses stand the form of the value and the default.")
	p.line(".Bl -tag -width Ds")
	differs := differences()
	for _, q := range sorted() {
		if !config.Supported(q.Name) || isMember(&q) {
			continue
		}
		p.line(".It Va %s Pq %s; %s", q.Name, argument(form(&q)), argument(shown(&q)))
		text := sentence(q.Doc)
		switch q.Origin {
		case config.Own:
			text += " Postfix does not have it; Posthaste has had it since its first release."
		case config.Newer:
			text += " Postfix has it in releases after 3.7."
		}
		if d, ok := differs[q.Name]; ok {
			text += " " + sentence("The default of Postfix 3.7 is "+orEmpty(d.Postfix)+": "+d.Reason)
		}
		if other, ok := sibling(&q); ok && long[q.Name] == nil {
			text += " What " + other + " says of SMTP holds for it."
		}
		p.prose(text)
		if blocks := long[q.Name]; blocks != nil {
			p.line(".Pp")
			p.formatBlocks(blocks)
		}
	}
	p.line(".El")
	p.section("Parameters of a transport")
	p.prose("Each of these exists once for every transport of master.cf(5), whose name takes the place of TRANSPORT. In parentheses stands what counts for a transport that sets none.")
	writeFamilies(p)
	p.section("Files")
	p.items("Ds", []item{{"Pa /etc/posthaste/main.cf", "The settings."}, {"Pa /etc/posthaste/master.cf", "The services, whose -o options take precedence."}})
	p.seeAlso("postconf.1", "posthaste.1", "postmap.1", "master.cf.5", "master.8")
	p.section("Security considerations")
	p.prose("Who can write this file says what runs as root: it must belong to root, and so must its directory.")
	return p.Bytes()
}

// sibling is the parameter of smtp that one of lmtp is like.
func sibling(q *config.Param) (name string, ok bool) {
	rest, ok := strings.CutPrefix(q.Name, "lmtp_")
	if !ok {
		return "", false
	}
	name = "smtp_" + rest
	_, ok = config.Lookup(name)
	return name, ok && config.Supported(name)
}

func orEmpty(text string) string {
	if text == "" {
		return "empty"
	}
	return text
}

// sorted are all parameters by name.
func sorted() []config.Param {
	list := config.All()
	slices.SortFunc(list, func(a, b config.Param) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func differences() map[string]config.Difference {
	m := make(map[string]config.Difference)
	for _, d := range config.Differences() {
		m[d.Name] = d
	}
	return m
}

// notApplicable are the reasons for which a parameter has nothing to act upon;
// the other reasons of config.NoEffect say what does its work here.
var notApplicable = []string{
	"Postfix ignores it too",
	"it tells Postfix's installer where files are",
	"TLS is Go's crypto/tls, not OpenSSL",
	"TLS here has no finite-field Diffie-Hellman",
	"Cyrus SASL is not built in; use dovecot",
	"there are no shared libraries",
	"attach a debugger to the service's process instead",
	"QMQP is not spoken",
	"it is for tests of Postfix itself",
}

// state is what a parameter is here, in a word, and why.
func state(p *config.Param) (word, reason string) {
	if config.Supported(p.Name) {
		if p.Origin == config.Own {
			return "ours", ""
		}
		return "supported", ""
	}
	switch reason := config.NoEffect(p.Name); {
	case slices.Contains(notApplicable, reason):
		return "not applicable", reason
	default:
		return "built in differently", reason
	}
}

// parameterTable is docs/parameters.md.
func parameterTable() []byte {
	list := sorted()
	count := make(map[string]int)
	for i := range list {
		word, _ := state(&list[i])
		count[word]++
	}
	var b bytes.Buffer
	b.WriteString(`<!-- Generated by "go run ./internal/manual/gen"; do not edit. -->

# Parameters

Every parameter of Postfix, and what it is here. "posthaste check" says of each that your main.cf
sets and that is not supported where it is set and why; "posthaste check -v" also says which
defaults differ.

| state | parameters | meaning |
|---|---:|---|
`)
	for _, s := range [][2]string{
		{"supported", "does what it does in Postfix"},
		{"ours", "Postfix does not have it"},
		{"built in differently", "what it tunes does not exist here, because another part does the work"},
		{"not applicable", "it has nothing to act upon"},
	} {
		fmt.Fprintf(&b, "| %s | %d | %s |\n", s[0], count[s[0]], s[1])
	}
	b.WriteString("\n## Other defaults than in Postfix 3.7\n\n| parameter | Postfix 3.7 | here | why |\n|---|---|---|---|\n")
	for _, d := range config.Differences() {
		p, _ := config.Lookup(d.Name)
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", d.Name, code(d.Postfix), code(shown(&p)), cell(d.Reason))
	}
	b.WriteString("\n## All\n\nA default that is `empty` is no text at all. How values are written, with their bounds and\nunits, is in main.cf(5).\n\n| parameter | default | state | what it says |\n|---|---|---|---|\n")
	for i := range list {
		p := &list[i]
		word, reason := state(p)
		if reason != "" {
			word += ": " + reason
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", p.Name, code(shown(p)), cell(word), cell(sentence(p.Doc)))
	}
	return b.Bytes()
}

// cell is text within a table of Markdown.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace(text)
}

// code is text as it is typed, within a table of Markdown.
func code(text string) string {
	text = strings.NewReplacer("|", `\|`, "\n", " ").Replace(orEmpty(text))
	return "`" + text + "`"
}
