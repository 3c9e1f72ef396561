// The words that an access table may answer with, for tools that check tables before
// they are used.

package access

import (
	"maps"
	"slices"
	"strings"

	"posthaste/internal/table"
)

// actions are what an access table can say besides numbers, replies, restrictions and classes:
// those that act knows.
var actions = []string{"BCC", "DEFER", "DEFER_IF_PERMIT", "DEFER_IF_REJECT", "DISCARD", "DUNNO", "FILTER", "HANGUP", "HOLD", "INFO", "OK",
	"POOL", "PREPEND", "REDIRECT", "REJECT", "RELAY", "WARN"}

// Unknown returns the first word of a table's answer that no list of restrictions understands, for
// which a client is told 451, or "": it is neither an action nor a restriction nor one of classes,
// the value of smtpd_restriction_classes.
func Unknown(answer string, classes []string) string {
	words := table.SplitList(answer)
	if len(words) == 0 || slices.Contains(actions, strings.ToUpper(words[0])) || allDigits(strings.TrimSpace(answer)) {
		return ""
	}
	if _, is := replyAction(strings.TrimSpace(answer)); is {
		return ""
	}
	if i := slices.IndexFunc(words, table.IsSpec); i >= 0 {
		return words[i] // a table may not ask for another one
	}
	simple, withArgument := simpleChecks(), argumentChecks()
	for i := 0; i < len(words); i++ {
		name := strings.ToLower(words[i])
		switch {
		case withArgument[name] != nil:
			i++
		case simple[name] == nil && name != "warn_if_reject" && name != "reject_maps_rbl" && !slices.Contains(classes, words[i]):
			return words[i]
		}
	}
	return ""
}

// Answers are the words with which the answer of an access table can begin, in lower case and in
// no order: the actions, and all restrictions.
func Answers() []string {
	names := Restrictions()
	for _, a := range actions {
		names = append(names, strings.ToLower(a))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Restrictions are the names of all restrictions, in no order.
func Restrictions() []string {
	names := slices.Collect(maps.Keys(simpleChecks()))
	return slices.AppendSeq(names, maps.Keys(argumentChecks()))
}
