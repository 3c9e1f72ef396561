package eventtool

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// run runs the command with a main.cf.
func run(t *testing.T, main string, args ...string) (out string, status int) {
	t.Helper()
	dir := t.TempDir()
	main = strings.ReplaceAll("compatibility_level = 3.6\nmyhostname = mail.example.org\nqueue_directory = DIR\nevent_directory = DIR\n"+main, "DIR", dir)
	for name, text := range map[string]string{"main.cf": main, "master.cf": "", "dead.crm": "{\"reason\":\"no\"}\n{\"reason\":\"never\"}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if len(args) > 0 {
		args = append([]string{args[0], "-c", dir}, args[1:]...)
	}
	status = Run("posthaste events", args, &b, &b)
	return b.String(), status
}

func TestRun(t *testing.T) {
	t.Parallel()
	const sinks = "event_sinks = { webhook:https://h.example.com/, name=crm } file:/var/log/mail.json\n"
	for _, x := range []struct {
		main   string
		args   string
		status int
		want   string
	}{
		{"", "", 64, "usage: posthaste events status"},
		{"", "start", 64, "usage: "},
		{sinks, "replay", 64, "usage: "},
		{sinks, "replay -f 0 crm", 64, "no number of an event"},
		{sinks, "status -x", 64, "usage: "},
		{"", "status", 69, "events are off: event_sinks is empty"},
		{"event_sinks = fiel:/x\n", "status", 78, "expected file:path"},
		{sinks, "retry nobody", 66, "no sink of the name nobody"},
		{sinks, "dead crm", 0, "{\"reason\":\"no\"}\n{\"reason\":\"never\"}\n"},
		{sinks, "dead", 0, "{\"reason\":\"no\"}\n"},
		{sinks, "dead file", 0, ""},
	} {
		out, status := run(t, x.main, strings.Fields(x.args)...)
		if status != x.status || !strings.Contains(out, x.want) || x.want == "" && out != "" {
			t.Errorf("%s: status %d\n%s", x.args, status, out)
		}
	}
}

// What status prints, in words.
func TestPrint(t *testing.T) {
	t.Parallel()
	st := State{Oldest: 5, Next: 105, Octets: 8 << 20, Refused: 2, Sinks: []SinkState{
		{Name: "file", Target: "file:/x", Position: 105},
		{Name: "crm", Target: "webhook:https://h/", Position: 95, Lag: 10, Dead: 3, Lost: 4, Error: "no route to host"}}}
	var b bytes.Buffer
	st.print(&b)
	const want = `journal: events 5 to 104, 8 MB
journal: 2 events refused: the disk was full
file: file:/x
    has all events
crm: webhook:https://h/
    10 events behind: the next one is number 95
    3 dead letters
    4 events lost: the journal was full
    failing since `
	if !strings.HasPrefix(b.String(), want) || !strings.HasSuffix(b.String(), ": no route to host\n") {
		t.Errorf("got\n%s", b.String())
	}
	b.Reset()
	(&State{Oldest: 7, Next: 7}).print(&b)
	if b.String() != "journal: no events; the next one is number 7\n" {
		t.Errorf("got %s", b.String())
	}
}

// The directory is the mail owner's, who could put anything there under the name of a file of dead letters:
// what only root can read, or a pipe. Root shows nothing of it, and does not wait for it.
func TestDeadPlanted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("only root reads this\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	main := "compatibility_level = 3.6\nmyhostname = mail.example.org\nqueue_directory = " + dir + "\nevent_directory = " + dir + "/events\n" +
		"event_sinks = { webhook:https://h.example.com/, name=crm }\n"
	for name, text := range map[string]string{"main.cf": main, "master.cf": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dead := func() (string, int) {
		var b bytes.Buffer
		status := Run("posthaste events", []string{"dead", "-c", dir}, &b, &b)
		return b.String(), status
	}
	if out, status := dead(); out != "" || status != 0 {
		t.Errorf("without a directory: status %d, %s", status, out)
	}
	if _, err := os.Stat(dir + "/events"); err == nil {
		t.Error("the command has made the directory")
	}
	if err := os.Mkdir(dir+"/events", 0o700); err != nil {
		t.Fatal(err)
	}
	name := dir + "/events/dead.crm"
	plant := map[string]func() error{
		"a link": func() error { return os.Symlink(secret, name) },
		"a pipe": func() error { return unix.Mkfifo(name, 0o600) },
	}
	if os.Getuid() == 0 {
		if err := os.Chown(dir+"/events", 65534, 65534); err != nil {
			t.Fatal(err)
		}
		plant["a second name"] = func() error { return os.Link(secret, name) }
	}
	for what, f := range plant {
		if err := f(); err != nil {
			t.Fatal(err)
		}
		if out, status := dead(); status == 0 || strings.Contains(out, "only root") {
			t.Errorf("%s: status %d, %s", what, status, out)
		}
		os.Remove(name)
	}
}
