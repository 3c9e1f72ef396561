package bounce

import (
	"fmt"
	"io"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/rfc5322"
	"posthaste/internal/smallfile"
)

// templateNames are the blocks of a template file, by the kind of notice.
var templateNames = [numTemplates]string{"failure_template", "delay_template", "success_template", "verify_template"}

const (
	failureTemplate = iota
	delayTemplate
	successTemplate
	verifyTemplate
	numTemplates
)

// A template is one block of a template file.
type template struct {
	charset    string
	from       string
	ownFrom    bool // from is the administrator's, and stays as it is
	subject    string
	postmaster string // subject of copies for postmaster; empty: none are made of this kind
	text       string // LF lines, $names expanded
}

// defaults are the templates before a file is read, $names not expanded.
var defaults = [numTemplates]template{
	failureTemplate: {
		charset:    "us-ascii",
		from:       "MAILER-DAEMON (Mail Delivery System)",
		subject:    "Undelivered Mail Returned to Sender",
		postmaster: "Postmaster Copy: Undelivered Mail",
		text: `This is the mail system at host $myhostname.

Your message did not reach one or more of its recipients, and it
will not be tried again. Who they are and what went wrong is said
below; your message, or the beginning of it, is attached.

If that does not help, write to the postmaster here and send this
report along. Your own text may be left out of it.

                   The mail system
`},
	delayTemplate: {
		charset:    "us-ascii",
		from:       "MAILER-DAEMON (Mail Delivery System)",
		subject:    "Delayed Mail (still being retried)",
		postmaster: "Postmaster Warning: Delayed Mail",
		text: `This is the mail system at host $myhostname.

This is only a warning: there is no need to send your message again.

Your message has been waiting here for more than
$delay_warning_time_hours hour(s), because one or more of its recipients
could not be reached. It will be tried again until it is
$maximal_queue_lifetime_days day(s) old.

If that does not help, write to the postmaster here and send this
report along. Your own text may be left out of it.

                   The mail system
`},
	successTemplate: {
		charset: "us-ascii",
		from:    "MAILER-DAEMON (Mail Delivery System)",
		subject: "Successful Mail Delivery Report",
		text: `This is the mail system at host $myhostname.

Your message was handed on to the recipients below, as you asked to be
told. Where it says that it went into a mailbox, it has arrived; other
systems that it went to may still report a failure.

                   The mail system
`},
	verifyTemplate: {
		charset: "us-ascii",
		from:    "MAILER-DAEMON (Mail Delivery System)",
		subject: "Mail Delivery Status Report",
		text: `This is the mail system at host $myhostname.

This is the report on mail delivery that you asked for.

                   The mail system
`},
}

// loadTemplates returns the templates of cfg, expanded. When the file named by
// bounce_template_file cannot be used the error says where and why, and the
// built-in templates are returned.
func loadTemplates(cfg *config.Config, file string) ([numTemplates]template, error) {
	set, err := readTemplates(file)
	if err == nil {
		var out [numTemplates]template
		if out, err = expandTemplates(cfg, set); err == nil {
			return out, nil
		}
	}
	out, err2 := expandTemplates(cfg, defaults)
	if err2 != nil {
		panic("bounce: built-in template: " + err2.Error())
	}
	return out, err
}

// readTemplates reads a template file over the built-in templates; no file
// named means those alone.
func readTemplates(file string) ([numTemplates]template, error) {
	if file == "" {
		return defaults, nil
	}
	const limit = 1 << 20
	b, err := smallfile.Read(file, limit)
	if err != nil {
		return defaults, fmt.Errorf("bounce_template_file: %w", err)
	}
	return parseTemplates(file, string(b))
}

// parseTemplates reads the text of a template file. Blocks that it does not
// have keep their built-in content, and so do headers within a block.
func parseTemplates(file, text string) ([numTemplates]template, error) {
	set := defaults
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if trimmed := strings.TrimSpace(line); trimmed == "" || trimmed[0] == '#' {
			continue
		}
		name, end, ok := blockStart(line)
		if !ok {
			return defaults, fmt.Errorf("%s:%d: expected NAME = <<WORD, found %.40q", file, i+1, line)
		}
		kind := templateIndex(name)
		if kind < 0 {
			return defaults, fmt.Errorf("%s:%d: unknown template %q; there are %s", file, i+1, name, strings.Join(templateNames[:], ", "))
		}
		first := i + 1
		for i = first; i < len(lines) && lines[i] != end; i++ {
		}
		if i == len(lines) {
			return defaults, fmt.Errorf("%s:%d: %s has no end: a line with only %q is missing", file, first, name, end)
		}
		if err := set[kind].parse(lines[first:i]); err != nil {
			return defaults, fmt.Errorf("%s:%d: %s: %w", file, first+err.line, name, err.err)
		}
	}
	return set, nil
}

func blockStart(line string) (name, end string, ok bool) {
	name, rest, found := strings.Cut(line, "=")
	rest = strings.TrimSpace(rest)
	end, found2 := strings.CutPrefix(rest, "<<")
	end = strings.TrimSpace(end)
	return strings.TrimSpace(name), end, found && found2 && end != "" && !strings.ContainsAny(end, " \t'\"")
}

func templateIndex(name string) int {
	for i, n := range templateNames {
		if n == name {
			return i
		}
	}
	return -1
}

// A lineError is an error in a block, with the line within it, from 1.
type lineError struct {
	line int
	err  error
}

// parse reads the lines of one block into t: header lines, an empty line, text.
func (t *template) parse(lines []string) *lineError {
	for i, line := range lines {
		if line == "" {
			t.text = strings.Join(lines[i+1:], "\n")
			if t.text != "" {
				t.text += "\n"
			}
			return nil
		}
		if err := t.header(line); err != nil {
			return &lineError{i + 1, err}
		}
	}
	return &lineError{len(lines), fmt.Errorf("no empty line between header and text")}
}

func (t *template) header(line string) error {
	name, value, ok := strings.Cut(line, ":")
	if !ok || line[0] == ' ' || line[0] == '\t' {
		return fmt.Errorf("expected a header line or an empty line, found %.40q", line)
	}
	value = strings.TrimSpace(value)
	if !isPrintableASCII(value) || value == "" {
		return fmt.Errorf("header %s: must be printable ASCII text on one line", name)
	}
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "charset":
		t.charset = value
	case "from":
		t.from, t.ownFrom = value, true
	case "subject":
		t.subject = value
	case "postmaster-subject":
		t.postmaster = value
	default:
		return fmt.Errorf("unknown header %q; there are Charset, From, Subject and Postmaster-Subject", name)
	}
	return nil
}

// expandTemplates puts parameter values into the texts.
func expandTemplates(cfg *config.Config, set [numTemplates]template) ([numTemplates]template, error) {
	for i := range set {
		t := &set[i]
		text, err := cfg.Expand(timeValues(cfg, t.text))
		if err != nil {
			return set, fmt.Errorf("%s: %w", templateNames[i], err)
		}
		t.text = text
		if !isASCII(text) && strings.EqualFold(t.charset, "us-ascii") {
			return set, fmt.Errorf("%s: the text has other than ASCII characters: name their character set in a Charset header", templateNames[i])
		}
	}
	return set, nil
}

// timeUnits are the suffixes of the two parameters that can be had in a unit.
var timeUnits = []struct {
	suffix string
	unit   time.Duration
}{
	{"_seconds", time.Second}, {"_minutes", time.Minute}, {"_hours", time.Hour},
	{"_days", 24 * time.Hour}, {"_weeks", 7 * 24 * time.Hour},
}

// timeValues replaces $delay_warning_time_hours and its like in text by whole
// numbers, rounded down as Postfix does.
func timeValues(cfg *config.Config, text string) string {
	var pairs []string
	for _, p := range []struct {
		name  string
		value time.Duration
	}{
		{"delay_warning_time", cfg.Duration("delay_warning_time")},
		{"maximal_queue_lifetime", cfg.Duration("maximal_queue_lifetime")},
	} {
		for _, u := range timeUnits {
			n := fmt.Sprint(int64(p.value / u.unit))
			for _, form := range []string{"$%s", "${%s}", "$(%s)"} {
				pairs = append(pairs, fmt.Sprintf(form, p.name+u.suffix), n)
			}
		}
	}
	// "$$" is a dollar sign and does not begin a name: it is passed over as it is.
	return strings.NewReplacer(append([]string{"$$", "$$"}, pairs...)...).Replace(text)
}

// WriteTemplates writes the templates that file (empty: none) gives, as
// "postconf -b" does when expanded is true, the texts with the values of
// cfg, and as "postconf -t" does when it is not, whole and unexpanded.
func WriteTemplates(w io.Writer, cfg *config.Config, file string, expanded bool) error {
	set, err := readTemplates(file)
	if err != nil {
		return err
	}
	full, err := expandTemplates(cfg, set)
	if err != nil {
		return err
	}
	var b strings.Builder
	for i, name := range templateNames {
		if i > 0 {
			b.WriteByte('\n')
		}
		if expanded {
			fmt.Fprintf(&b, "expanded_%s_text = <<EOF\n%sEOF\n", strings.TrimSuffix(name, "_template"), full[i].text)
			continue
		}
		t := &set[i]
		fmt.Fprintf(&b, "%s = <<EOF\nCharset: %s\nFrom: %s\nSubject: %s\n", name, t.charset, t.from, t.subject)
		if t.postmaster != "" {
			fmt.Fprintf(&b, "Postmaster-Subject: %s\n", t.postmaster)
		}
		fmt.Fprintf(&b, "\n%sEOF\n", t.text)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// fromHeader is the From header's value for a template: an address with a
// comment is turned round when header_from_format is standard.
func fromHeader(from string, standard bool) string {
	addr, comment, ok := strings.Cut(from, " (")
	if !standard || !ok || !strings.HasSuffix(comment, ")") || strings.ContainsAny(addr, "<>\" ") {
		return from
	}
	b := rfc5322.AppendPhrase(nil, strings.TrimSuffix(comment, ")"))
	return string(b) + " <" + addr + ">"
}
