package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
