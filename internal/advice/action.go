package advice

import (
	"slices"
	"strings"

	"posthaste/internal/access"
	"posthaste/internal/config"
	"posthaste/internal/table"
)

// Actions of header_checks(5): those of cleanup, and those of smtp and lmtp, which change a copy.
var (
	cleanupActions = []string{"BCC", "DISCARD", "DUNNO", "FILTER", "HOLD", "IGNORE", "INFO", "OK", "PASS", "POOL", "PREPEND", "REDIRECT", "REJECT",
		"REPLACE", "STRIP", "WARN"}
	deliveryActions = []string{"DUNNO", "IGNORE", "INFO", "OK", "PREPEND", "REPLACE", "STRIP", "WARN"}
)

// actions looks at the right side of access tables, and of those for headers and bodies.
func (c *checker) actions() {
	classes := c.cfg.List("smtpd_restriction_classes")
	for _, v := range c.values {
		switch {
		case strings.HasPrefix(v.name, "smtpd_") && strings.HasSuffix(v.name, "_restrictions"):
			c.accessActions(v, classes)
		case strings.HasSuffix(v.name, "_checks"):
			c.checkActions(v)
		case v.name == "postscreen_access_list":
			c.screenActions(v)
		}
	}
	for _, name := range classes {
		if set, file, line := c.cfg.IsSet(name); set {
			if text, err := c.cfg.Expand("${" + name + "}"); err == nil {
				c.accessActions(value{name, text, file, line, name}, classes)
			}
		}
	}
}

// accessActions looks at the access tables of a list of restrictions. What is unknown
// there is told the client as an error of the server, and the mail waits.
func (c *checker) accessActions(v value, classes []string) {
	for _, e := range append(c.entries(v), constants(v)...) {
		word := access.Unknown(e.value, classes)
		switch {
		case word == "" || strings.Contains(e.value, "$"): // $1 is what a pattern matches
		case table.IsSpec(word):
			c.stop(e.at(v), "%s: an access table cannot ask for a table; make it one of smtpd_restriction_classes", word)
		default:
			c.stop(e.at(v), "%s is neither an action, nor a restriction, nor in smtpd_restriction_classes: mail that matches gets 451%s",
				word, meant(word, append(access.Answers(), classes...)))
		}
	}
}

// checkActions looks at header_checks and the like, where what is unknown is passed over with a
// warning.
func (c *checker) checkActions(v value) {
	known := cleanupActions
	if strings.HasPrefix(v.name, "smtp_") || strings.HasPrefix(v.name, "lmtp_") {
		known = deliveryActions
	}
	for _, e := range append(c.entries(v), constants(v)...) {
		words := strings.Fields(e.value)
		if len(words) == 0 || strings.Contains(words[0], "$") || slices.Contains(known, strings.ToUpper(words[0])) {
			continue
		}
		lower := make([]string, len(known))
		for i, k := range known {
			lower[i] = strings.ToLower(k)
		}
		c.warn(e.at(v), "%s is no action of %s: what it matches is passed over%s", words[0], v.name, meant(words[0], lower))
	}
}

// screenActions looks at the tables of postscreen, which goes on with its other tests where it does not
// understand one.
func (c *checker) screenActions(v value) {
	known := []string{"permit", "reject", "dunno"}
	for _, e := range append(c.entries(v), constants(v)...) {
		if word := strings.TrimSpace(e.value); word != "" && !slices.Contains(known, strings.ToLower(word)) {
			c.warn(e.at(v), "%s is not one of permit, reject and dunno: it neither permits nor refuses a client%s", word, meant(word, known))
		}
	}
}

// meant is what an unknown word of an answer likely stands for, in the way it is usually written.
func meant(word string, known []string) string {
	near := config.Nearest(strings.ToLower(word), slices.Values(known))
	if near == "" {
		return ""
	}
	if word == strings.ToUpper(word) {
		near = strings.ToUpper(near)
	}
	return "; did you mean " + near + "?"
}

// constants are the answers of the static tables that a value names.
func constants(v value) (list []entry) {
	for _, spec := range table.SplitList(v.text) {
		if text, ok := strings.CutPrefix(spec, "static:"); ok {
			text = strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}")
			list = append(list, entry{value: strings.TrimSpace(text), file: v.file})
		}
	}
	return list
}
