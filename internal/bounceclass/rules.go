// Package bounceclass says what kind of failure a reply is: an unknown recipient, a full
// mailbox, a block for spam, a host that does not answer.
//
// # Rules
//
// The rules are those of KumoMTA's bounce classifier, whose files are read unchanged:
//
//	[rules]
//	InvalidRecipient = ["^550 5\\.1\\.1", "(?i)user unknown"]
//	QuotaIssues = ["^[45]52 "]
//
// A file is TOML, or JSON where its name ends in ".json". Each class has a list of regular
// expressions in the syntax of Go's package regexp, which is RE2's. They are not anchored, and
// they tell upper from lower case unless they say otherwise. All files, in each file its classes,
// and in each class its expressions make one ordered list: the first expression that matches
// decides. If none does, the class is [Uncategorized]. A class may have any name.
//
// In place of a file, [Builtin] names the rules that come with the program (builtin.toml).
//
// The expressions see a reply in the form that [Text] gives it:
//
//	550 5.1.1 <joe@example.com>: Recipient address rejected: User unknown
//
// # Security
//
// Replies come from strangers. The time that an expression takes is linear in the length of the
// text, and no more than [MaxText] octets of it are looked at.
package bounceclass

import (
	"regexp"
	"strings"

	"posthaste/internal/prefilter"
)

// Uncategorized is the class of a text that no rule matches.
const Uncategorized = "Uncategorized"

// MaxText is how much of a text the expressions see, in octets.
const MaxText = 2048

// A Rule is one regular expression and the class that it stands for.
type Rule struct {
	Class   string
	Pattern string // as it is in the file
	File    string // the name that was given to Open
	re      *regexp.Regexp
	need    []int // what a text must have, by the list's filter
}

// Rules is an ordered list of rules. It does not change, and may be used concurrently. The nil
// list has no rules.
type Rules struct {
	list   []Rule
	filter prefilter.Filter
	names  map[string]bool // of the classes
}

// Match returns the first rule that matches a text; ok is false if none does.
func (r *Rules) Match(text string) (rule Rule, ok bool) {
	if r == nil {
		return Rule{}, false
	}
	text = text[:min(len(text), MaxText)]
	var few [16]uint64 // enough for most lists
	has := prefilter.Presence(few[:])
	if words := r.filter.Words(); words > len(few) {
		has = make(prefilter.Presence, words)
	}
	r.filter.Find(text, has)
	for i := range r.list {
		if has.All(r.list[i].need) && r.list[i].re.MatchString(text) {
			return r.list[i], true
		}
	}
	return Rule{}, false
}

// Class returns the class of a text: that of the first rule that matches, or Uncategorized. The nil
// list, which is that of a site without rules, knows no classes: the class is empty.
func (r *Rules) Class(text string) string {
	if r == nil {
		return ""
	}
	if rule, ok := r.Match(text); ok {
		return rule.Class
	}
	return Uncategorized
}

// Len is how many rules there are.
func (r *Rules) Len() int {
	if r == nil {
		return 0
	}
	return len(r.list)
}

// Text gives a server's reply the form that rules are written for: the code, the enhanced status
// code if there is one, and the lines of the reply, joined by one blank. Replies reach us with
// their lines joined already, as they are logged ("550-5.7.1 not 550 5.7.1 wanted"): from each line
// but the first its code goes, and its enhanced code if it repeats that of the first.
func Text(reply string) string {
	reply = strings.TrimSpace(reply)
	code, rest, ok := cutCode(reply)
	if !ok {
		return reply
	}
	status, rest := cutStatus(rest)
	var b strings.Builder
	b.Grow(len(reply))
	b.WriteString(code)
	b.WriteByte(' ')
	b.WriteString(status)
	for line, rest := nextLine(rest, code); ; line, rest = nextLine(rest, code) {
		b.WriteString(strings.TrimRight(line, " "))
		if rest == "" {
			return strings.TrimRight(b.String(), " ")
		}
		b.WriteByte(' ')
		if again, after := cutStatus(rest); again != "" && again == status {
			rest = after
		}
	}
}

// Local gives a reason of our own, such as that a host cannot be reached, the form that rules are
// written for. It has no reply code: what RFC 5321 would have a server say stands for it, 450 or 550.
// status is an enhanced status code, and may be empty.
func Local(permanent bool, status, reason string) string {
	code := "450 "
	if permanent {
		code = "550 "
	}
	if status != "" {
		status += " "
	}
	return code + status + reason
}

// cutCode takes a reply code off the beginning of a line.
func cutCode(s string) (code, rest string, ok bool) {
	if len(s) < 3 || s[0] < '2' || s[0] > '5' || !digit(s[1]) || !digit(s[2]) || len(s) > 3 && s[3] != ' ' && s[3] != '-' {
		return "", s, false
	}
	return s[:3], s[min(4, len(s)):], true
}

// cutStatus takes an enhanced status code off the beginning of a line, with the blank behind it.
func cutStatus(s string) (status, rest string) {
	i := 0
	for dots, digits := 0, 0; ; i++ {
		switch {
		case i < len(s) && digit(s[i]) && digits < 3:
			digits++
		case i < len(s) && s[i] == '.' && digits > 0 && dots < 2:
			dots, digits = dots+1, 0
		case i < len(s) && s[i] == ' ' && digits > 0 && dots == 2 && s[1] == '.':
			return s[:i+1], s[i+1:]
		default:
			return "", s
		}
	}
}

// nextLine splits what follows the first line's codes before the next line of the reply, which begins with
// the same code. The rest is empty at the last line.
func nextLine(s, code string) (line, rest string) {
	for i := 0; ; {
		j := strings.Index(s[i:], " "+code)
		if j < 0 {
			return s, ""
		}
		i += j + 1
		if after := s[i+len(code):]; after != "" && (after[0] == '-' || after[0] == ' ') {
			return s[:i-1], after[1:]
		}
	}
}

func digit(c byte) bool { return c >= '0' && c <= '9' }
