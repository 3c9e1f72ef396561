package manual

import (
	"go/doc/comment"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/config"
)

// Every program that master.cf may name has a page, also those that have no
// process here.
func TestServicesHavePages(t *testing.T) {
	t.Parallel()
	files := generate(t)
	source, err := os.ReadFile(filepath.Join(root, "master/settings.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, builtIn, _ := strings.Cut(string(source), "var builtIn = ")
	builtIn, rest, _ := strings.Cut(builtIn, "\n}\n")
	_, aliases, _ := strings.Cut(rest, "var aliases = ")
	aliases, _, _ = strings.Cut(aliases, "\n")
	var names []string
	for _, m := range regexp.MustCompile(`"([a-z]+)": `).FindAllStringSubmatch(builtIn+aliases, -1) {
		names = append(names, m[1])
	}
	if len(names) < 8 {
		t.Fatalf("master/settings.go has %q", names)
	}
	for _, name := range append(names, "acme", "anvil", "bounce", "cleanup", "console", "defer", "discard", "error", "lmtp", "local", "master", "pickup", "pipe", "postlogd",
		"postscreen", "proxymap", "qmgr", "smtp", "smtpd", "spawn", "trace", "trivial-rewrite", "verify", "virtual") {
		if files[manPath(name, 8)] == nil {
			t.Errorf("there is no %s(8)", name)
		}
	}
	for _, s := range standIns {
		if !slices.Contains(names, s.name) {
			t.Errorf("%s(8) says that others do its work, and master does not", s.name)
		}
		for _, p := range s.parameters {
			if !strings.Contains(string(files[manPath(s.name, 8)]), "\n.It Va "+p+" Pq ") {
				t.Errorf("%s(8): %s has no effect, or does not exist", s.name, p)
			}
		}
	}
}

// The pages of databases have the settings that the programs read, and no others.
func TestTablePagesHaveEverySetting(t *testing.T) {
	t.Parallel()
	files := generate(t)
	term := regexp.MustCompile(`(?m)^\.It (.*)$`)
	for _, c := range []struct {
		page    string
		sources []string
	}{
		{"mysql_table", []string{"sqltable/sqltable.go", "sqltable/pool.go", "sqltable/mysql.go"}},
		{"pgsql_table", []string{"sqltable/sqltable.go", "sqltable/pool.go", "sqltable/pgsql.go"}},
		{"sqlite_table", []string{"sqltable/sqltable.go", "sqltable/sqlite.go"}},
		{"ldap_table", []string{"ldaptable/ldaptable.go", "ldaptable/directory.go"}},
	} {
		read := settingsRead(t, append(c.sources, "query/settings.go"))
		if c.page != "pgsql_table" {
			delete(read, "select_function") // PostgreSQL's, read with what is common
		}
		said := map[string]bool{}
		for _, m := range term.FindAllStringSubmatch(string(files[manPath(c.page, 5)]), -1) {
			for _, word := range strings.FieldsFunc(m[1], func(r rune) bool { return r == ' ' || r == ',' }) {
				if !strings.HasPrefix(word, "%") && word != "to" {
					said[word] = true
				}
			}
		}
		if len(read) < 9 {
			t.Errorf("%s: only %v are read", c.page, read)
		}
		for name := range read {
			if !said[name] {
				t.Errorf("%s does not have %s", c.page, name)
			}
		}
		for name := range said {
			if !read[name] {
				t.Errorf("%s has %s, which nothing reads", c.page, name)
			}
		}
	}
}

// settingsRead are the names that sources below internal/table ask the settings
// of a table for.
func settingsRead(t *testing.T, sources []string) map[string]bool {
	t.Helper()
	call := regexp.MustCompile(`\b(?:s\.(?:Need|Bool|Int|Seconds|Template|Has)|text)\("([a-zA-Z_]+)"|\bs\.Text\("[^"]*", "([a-zA-Z_]+)"|"([a-z]+_result_attribute)":`)
	names := map[string]bool{}
	for _, source := range sources {
		text, err := os.ReadFile(filepath.Join(root, "internal/table", source))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range call.FindAllStringSubmatch(string(text), -1) {
			names[m[1]+m[2]+m[3]] = true
		}
	}
	return names
}

// minimumWords is how much main.cf(5) says at least of a parameter that everybody
// uses: one line does not help anybody to choose a value.
const minimumWords = 30

// main.cf(5) says enough of the parameters of tiers 1 and 2, and the names in its long
// texts are names.
func TestLongTexts(t *testing.T) {
	t.Parallel()
	long, err := longTexts(root)
	if err != nil {
		t.Fatal(err)
	}
	// What looks like a parameter in the texts, and is another thing of main.cf(5).
	restriction := regexp.MustCompile(`^(permit|reject|defer|check)_[a-z_]+$`)
	other := []string{"mutual_auth", "forward_secrecy", "no_header_reply", "default_action", "connect_timeout", "slow_destination_rate_delay", "orig_to",
		"envelope_sender", "envelope_recipient", "header_sender", "header_recipient", "rbl_code", "rbl_class", "rbl_what", "rbl_domain", "rbl_reason",
		"postscreen_access", "no_unknown_recipient_checks", "no_address_mappings", "no_header_body_checks", "no_milters",
		"client_address", "policy_context", "speed_adjust", "preferred_username", "delay_dotcrlf", "disable_esmtp", "expires_in",
		"fix_quietly", "add_headers", "daemon_name", "auth_type", "messages_per_connection", "tls_cert", "tls_key", "warmup_over", "secret_file", "connection_limit", "provider_max_message_rate"}
	word := regexp.MustCompile(`\b[a-z0-9]+(?:_[a-zA-Z0-9]+)+\b`)
	for _, p := range config.All() {
		text := p.Doc
		for _, b := range long[p.Name] {
			text += "\n" + blockText(b)
		}
		if n := len(strings.Fields(text)); p.Tier == 1 && explained(&p) && n < minimumWords {
			t.Errorf("%s: %d words, at least %d are wanted", p.Name, n, minimumWords)
		}
		if n := len(statement.FindAllString(text, -1)); p.Tier == 2 && explained(&p) && n < 2 {
			t.Errorf("%s: %d sentences, at least 2 are wanted in %s", p.Name, n, longDir)
		}
		for _, name := range word.FindAllString(text, -1) {
			if _, known := config.Lookup(name); !known && long[p.Name] != nil && !restriction.MatchString(name) && !slices.Contains(other, name) {
				t.Errorf("%s: there is no %s", p.Name, name)
			}
		}
	}
}

// statement is what ends a sentence.
var statement = regexp.MustCompile(`[.:](?:\s|$)`)

// explained says whether main.cf(5) has to explain the parameter itself: it has an entry of its own,
// which does not send to another one.
func explained(p *config.Param) bool {
	if _, other := sibling(p); other {
		return false
	}
	return config.Supported(p.Name) && !isMember(p)
}

// blockText is the words of a block.
func blockText(b comment.Block) string {
	switch b := b.(type) {
	case *comment.Paragraph:
		return plain(b.Text)
	case *comment.Code:
		return b.Text
	case *comment.List:
		var list []string
		for _, it := range b.Items {
			for _, c := range it.Content {
				list = append(list, blockText(c))
			}
		}
		return strings.Join(list, "\n")
	}
	return ""
}

// Every type of tables has a page, TYPE_table(5), and is in the first column of docs/tables.md.
func TestTypesHavePages(t *testing.T) {
	t.Parallel()
	files := generate(t)
	source, err := os.ReadFile(filepath.Join(root, "internal/table/table.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(source), "func Types() []string {")
	list, _, _ = strings.Cut(list, "\n}\n")
	names := regexp.MustCompile(`"([a-z]+)"`).FindAllStringSubmatch(list, -1)
	if len(names) < 20 {
		t.Fatalf("internal/table/table.go has the types %q", names)
	}
	overview, err := os.ReadFile(filepath.Join(root, "docs/tables.md"))
	if err != nil {
		t.Fatal(err)
	}
	var first strings.Builder
	for line := range strings.Lines(string(overview)) {
		if cells := strings.Split(line, "|"); len(cells) > 2 && cells[0] == "" {
			first.WriteString(cells[1])
		}
	}
	for _, m := range names {
		if files[manPath(m[1]+"_table", 5)] == nil {
			t.Errorf("there is no %s_table(5)", m[1])
		}
		if !strings.Contains(first.String(), "`"+m[1]+"`") {
			t.Errorf("docs/tables.md has no row for %s", m[1])
		}
	}
}
