package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
)

// As with Postfix, a malformed setting of one service does not stop the tools, which do not read
// it: the operator needs them to find out, and scripts build tables meanwhile. A tool that reads
// more than it has checked panics here.
func TestToolsIgnoreForeignSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	read := append(maillog.Parameters(), "smtputf8_enable", "socketmap_max_query_size", "socketmap_max_reply_size", "trigger_timeout",
		"deliver_lock_attempts", "deliver_lock_delay", "stale_lock_time", "spool_segment_size", "spool_inline_limit", "spool_size_limit", "spool_type")
	main := "queue_directory = " + dir + "/queue\ndata_directory = " + dir + "/data\nmaillog_file = " + dir + "/log\nmaillog_file_prefixes = " + dir +
		"\nalias_database = cdb:" + dir + "/table\n"
	for _, p := range config.All() {
		if p.Type != config.String && p.Type != config.Raw && p.Type != config.List && !slices.Contains(read, p.Name) {
			main += p.Name + " = neither!\n"
		}
	}
	table, mailbox := filepath.Join(dir, "table"), filepath.Join(dir, "mailbox")
	for name, text := range map[string]string{"main.cf": main, "master.cf": "qmgr unix n - n 300 1 qmgr\n", "table": "a: b\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"postmap -c " + dir + " cdb:" + table, 0, ""},
		{"postmap -c " + dir + " -q a: cdb:" + table, 0, "b"},
		{"postalias -c " + dir + " cdb:" + table, 0, ""},
		{"postalias -c " + dir + " -q a cdb:" + table, 0, "b"},
		{"postlog -c " + dir + " -t tag said", 0, ""},
		{"postkick -c " + dir + " public qmgr F", 1, "perhaps the mail system is down"},
		{"postlock -c " + dir + " " + mailbox + " true", 0, ""},
		{"postqueue -c " + dir + " -f", 69, "mail system is down"},
		{"postcat -c " + dir + " -q 4jWn4F1YhnzSshsm4", 66, "No such file"},
		{"postsuper -c " + dir + " -d ALL", 66, "nothing has been queued"},
	} {
		var said strings.Builder
		status := run(strings.Fields(c.args), strings.NewReader(""), &said, &said)
		if text := said.String(); status != c.status || !strings.Contains(text, c.says) || strings.Contains(text, "neither!") {
			t.Errorf("%s: status %d, want %d and %q in:\n%s", c.args, status, c.status, c.says, text)
		}
	}
}

// Scripts that call Postfix's control program get the same from a link of its name.
func TestPostfixIsPosthaste(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	main := "queue_directory = " + dir + "/queue\ndata_directory = " + dir + "/data\nmaillog_file = " + dir + "/log\nmaillog_file_prefixes = " + dir + "\n"
	for name, text := range map[string]string{"main.cf": main, "master.cf": "qmgr unix n - n 300 1 qmgr\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"status", 1, "mail system is not running"},
		{"-v status", 1, "mail system is not running"},
		{"-vv -D status", 1, "debugger_command is not run"},
		{"reload", 1, "mail system is not running"},
		{"flush", 1, "mail system is not running"},
		{"stop", 1, "mail system is not running"},
		{"check", 1, "has no service cleanup/unix"},
		{"upgrade-configuration", 0, "adding missing entry for cleanup service"},
		{"upgrade-configuration", 0, "have what the mail system needs"},
		{"upgrade-configuration mail_owner", 1, "expected name=value"},
		{"set-permissions relayhost=x", 1, "one of command_directory"},
		{"frobnicate", 1, "unknown command: 'frobnicate'"},
	} {
		var said strings.Builder
		status := run(append([]string{"/usr/sbin/postfix", "-c", dir}, strings.Fields(c.args)...), strings.NewReader(""), &said, &said)
		if text := said.String(); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("postfix %s: status %d, want %d and %q in:\n%s", c.args, status, c.status, c.says, text)
		}
	}
}
