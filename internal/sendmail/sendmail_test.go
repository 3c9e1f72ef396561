package sendmail

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/maildrop"
)

// A site is a configuration with a maildrop directory that this user may write to.
type site struct{ dir string }

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t.TempDir()}
	if err := os.Mkdir(filepath.Join(s.dir, "maildrop"), 0o700); err != nil {
		t.Fatal(err)
	}
	main := "compatibility_level = 3.6\nqueue_directory = " + s.dir + "\nmessage_size_limit = 200000\nmailbox_size_limit = 0\n"
	if err := os.WriteFile(filepath.Join(s.dir, "main.cf"), []byte(main), 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs the program. It returns what was written, the tools that were
// called, the exit status, and the message that was stored, if there is one.
func (s *site) run(t *testing.T, name, stdin string, args ...string) (out string, status int, h *maildrop.Header, content string) {
	t.Helper()
	var b bytes.Buffer
	tool := func(what string) func(string) int {
		return func(string) int { b.WriteString("<" + what + ">"); return 0 }
	}
	c := &Command{Name: name, Stdin: strings.NewReader(stdin), Stdout: &b, Stderr: &b,
		Mailq: tool("mailq"), Newaliases: tool("newaliases"), Daemon: tool("start"), Session: tool("session"),
		Flush: func(_ string, args []string) int { return tool("flush " + strings.Join(args, " "))("") }}
	status = c.Run(append([]string{"-C", s.dir}, args...))
	files, err := os.ReadDir(filepath.Join(s.dir, "maildrop"))
	if err != nil || len(files) > 1 {
		t.Fatalf("%d files are in maildrop, %v", len(files), err)
	}
	if len(files) == 0 {
		return b.String(), status, nil, ""
	}
	path := filepath.Join(s.dir, "maildrop", files[0].Name())
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := maildrop.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(m)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(path)
	return b.String(), status, &m.Header, string(text)
}

// TestCommandLine: what each option does, and that what cannot be done is not done.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const refused = "<>" // of a command line that stores nothing
	for _, c := range []struct {
		args   string
		status int
		out    string // a part of it
		rcpts  string
	}{
		{"joe", 0, "", "joe"},
		{"joe,jim bob@x.test", 0, "", "joe jim bob@x.test"},
		{"-f a@b.test -i -oi -om -oee -em -m -U -Ac -B 8BITMIME -h 5 -L tag -p x -O name=x joe", 0, "", "joe"},
		{"-- -t", 0, "", "-t"},
		{"joe -t", 0, "", "joe -t"},
		{"", 75, "Recipient addresses must be specified", refused},
		{"-t", 75, "No recipient addresses found", refused},
		{"-bp", 0, "<mailq>", refused},
		{"-bi", 0, "<newaliases>", refused},
		{"-I", 0, "<newaliases>", refused},
		{"-bd -q30m", 0, "<start>", refused},
		{"-bl", 0, "<start>", refused},
		{"-bs", 0, "<session>", refused},
		{"-bh", 0, "", refused},
		{"-q", 0, "<flush -f>", refused},
		{"-qIabc", 0, "<flush -i abc>", refused},
		{"-qR x.test", 0, "<flush -s x.test>", refused},
		{"-q30m", 0, "", refused},
		{"-qS x", 75, "-qS is not implemented", refused},
		{"-bp joe", 75, "sendmail: fatal: -bp: cannot be combined with recipients or -t\n", refused},
		{"-bi joe", 75, "sendmail: fatal: -bi: cannot be combined with recipients or -t\n", refused},
		{"-bd joe", 75, "sendmail: fatal: -bd: cannot be combined with recipients or -t\n", refused},
		{"-bs -t", 75, "sendmail: fatal: -bs: cannot be combined with recipients or -t\n", refused},
		{"-q joe", 75, "sendmail: fatal: -q: cannot be combined with recipients or -t\n", refused},
		{"-N never joe", 0, "", "joe"},
		{"-N soon joe", 0, `sendmail: warning: -N "soon": expected never, or a list`, "joe"},
		{"-R some joe", 0, `sendmail: warning: -R "some": expected full or hdrs; it is ignored`, "joe"},
		{"-V \x01 joe", 0, `sendmail: warning: -V "\x01": expected an envelope ID`, "joe"},
		{"-XV+= joe", 0, "", "joe"},
		{"-XV+ joe", 75, "VERP needs two delimiter characters", refused},
		{"-XVab joe", 75, "VERP needs two delimiter characters", refused},
		{"-X log joe", 0, "", "joe"},
		{"-X EMPTY joe", 0, "", "joe"},
		{"-b EMPTY joe", 75, "-b: unknown mode", refused},
		{"-bz joe", 75, "-bz: unknown mode", refused},
		{"-B 9BIT joe", 75, "-B 9BIT: expected 7BIT or 8BITMIME", refused},
		{"-n joe", 75, "aliases cannot be turned off", refused},
		{"-b", 75, "option -b requires a value", refused},
		{"-bv joe", 0, "Mail Delivery Status Report will be mailed to <", "joe"},
		{"-v -f a@b.test joe", 0, "Mail Delivery Status Report will be mailed to <a@b.test>.\n", "joe"},
	} {
		args := strings.Fields(c.args)
		if i := slices.Index(args, "EMPTY"); i >= 0 {
			args[i] = ""
		}
		out, status, h, _ := s.run(t, "sendmail", "Subject: x\n\nx\n", args...)
		rcpts := refused
		if h != nil {
			var list []string
			for _, r := range h.Recipients {
				list = append(list, r.Address)
			}
			rcpts = strings.Join(list, " ")
		}
		if status != c.status || !strings.Contains(out, c.out) || c.out == "" && out != "" || rcpts != c.rcpts ||
			status != 0 && strings.Contains(out, "<mailq>") {
			t.Errorf("sendmail %s: exit status %d, %q, message for %s; want %d, %q, %s", c.args, status, out, rcpts, c.status, c.out, c.rcpts)
		}
	}
	for name, tool := range map[string]string{"mailq": "<mailq>", "newaliases": "<newaliases>"} {
		if out, status, h, _ := s.run(t, name, ""); out != tool || status != 0 || h != nil {
			t.Errorf("%s: exit status %d, %q", name, status, out)
		}
		if out, status, _, _ := s.run(t, name, "", "joe"); status != 75 || strings.Contains(out, tool) {
			t.Errorf("%s joe: exit status %d, %q", name, status, out)
		}
	}
}

// TestContent: how a message ends, what is left out of it, and whom -t finds in it.
func TestContent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	long := strings.Repeat("x", 64<<10-1)
	for _, c := range []struct{ args, in, want, rcpts string }{
		{"joe", "a: b\r\n\r\nx\r\n.\r\ny", "a: b\n\nx\n", "joe"},
		{"-i joe", "a: b\n\nx\n.\ny", "a: b\n\nx\n.\ny", "joe"},
		{"joe", "a: b\n\nx\n.", "a: b\n\nx\n", "joe"},
		{"joe", "From x\n>From y\na: b\n\nFrom z\n", "a: b\n\nFrom z\n", "joe"},
		{"joe", long + "\r\n.\r\nx", long + "\n", "joe"},
		{"joe", long + "\rx\n", long + "\rx\n", "joe"},
		{"joe", "x\x00y\rz", "x\x00y\rz", "joe"},
		{"-t", "To: a, <b@x.test>\nCc: c\nBcc: d\n\nTo: e\n", "To: a, <b@x.test>\nCc: c\nBcc: d\n\nTo: e\n", "a b@x.test c d"},
		{"-t z", "To: a\nResent-To: b\n\n", "To: a\nResent-To: b\n\n", "z b"},
		{"-t", "To: a\n ,b,\n\tc\nx\nCc: d\n", "To: a\n ,b,\n\tc\nx\nCc: d\n", "a b c"},
	} {
		out, status, h, content := s.run(t, "sendmail", c.in, strings.Fields(c.args)...)
		if status != 0 || out != "" || h == nil {
			t.Errorf("sendmail %s < %.40q: exit status %d, %q", c.args, c.in, status, out)
			continue
		}
		var list []string
		for _, r := range h.Recipients {
			list = append(list, r.Address)
		}
		if content != c.want || strings.Join(list, " ") != c.rcpts {
			t.Errorf("sendmail %s < %.40q: got %.60q for %v", c.args, c.in, content, list)
		}
	}
	if out, status, h, _ := s.run(t, "sendmail", strings.Repeat("x\n", 100001), "joe"); status != 69 || h != nil || out != "sendmail: fatal: message file too big\n" {
		t.Errorf("a message that is too big: exit status %d, %q", status, out)
	}
}

// TestMalformedParameter: an administrator's mistake is told with its place, and
// the message is kept by who sends it.
func TestMalformedParameter(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"message_size_limit = abc", "header_size_limit = x", "queue_directory = relative", "command_directory = ${x",
		"pickup_service_name = ${x", "header_size_limit = -", "default_verp_delimiters = ${x", "verp_delimiter_filter = ${x"} {
		s := newSite(t)
		f, err := os.OpenFile(filepath.Join(s.dir, "main.cf"), os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(line + "\n")
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		name, _, _ := strings.Cut(line, " ")
		if out, status, h, _ := s.run(t, "sendmail", "To: a\n", "-t", "-XV"); status != 78 || h != nil || !strings.Contains(out, "main.cf:5: "+name+" = ") {
			t.Errorf("%s: exit status %d, %q", line, status, out)
		}
	}
}

// A recipient that is named is taken, or the whole message is refused: however
// many there are, however the header is folded.
func TestNoRecipientIsDropped(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	list := func(n int, sep string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "u%d@x.test%s", i, sep)
		}
		return strings.TrimSuffix(b.String(), sep)
	}
	const body = "\nSubject: x\n\nbody\n"
	for _, c := range []struct {
		name, header string
		args         []string
		status, want int
	}{
		{"folded", "Bcc: " + list(5000, ",\n\t"), []string{"-t"}, 0, 5000},
		{"one line", "Bcc: " + list(5000, ", "), []string{"-t"}, 0, 5000},
		{"one line, by words", "To: " + list(6000, " "), []string{"-t"}, 0, 6000},
		{"two fields", "To: " + list(5000, ", ") + "\nCc: " + strings.ReplaceAll(list(5000, ", "), "u", "v"), []string{"-t"}, 0, 10000},
		{"resent", "Resent-Bcc: " + list(5000, ",") + "\nTo: a@b.test", []string{"-t"}, 0, 5000},
		{"one line, too long", "Bcc: " + list(9000, ","), []string{"-t"}, ExitTempFail, 0},
		{"folded, too long", "Subject: y\nBcc: " + list(9000, ",\n "), []string{"-t"}, ExitTempFail, 0},
		{"a short line after what is too long", "To: a@x.test,\n " + strings.Repeat("x", 110000) + "@x.test,\n b@x.test", []string{"-t"}, ExitTempFail, 0},
		{"another field too long", "To: a@x.test\nX: " + strings.Repeat("x", 110000), []string{"-t"}, 0, 1},
		{"last field of the input", "X: y\nTo: " + list(3, ","), []string{"-t"}, 0, 3},
		{"arguments", "X: y", []string{"-f", "a@b.test", list(8000, ","), "b@x.test"}, 0, 8001},
	} {
		out, status, h, content := s.run(t, "sendmail", c.header+body, c.args...)
		got := 0
		if h != nil {
			got = len(h.Recipients)
		}
		if status != c.status || got != c.want {
			t.Errorf("%s: status %d, %d recipients, want %d and %d: %.300s", c.name, status, got, c.status, c.want, out)
		}
		if status == ExitTempFail && !strings.Contains(out, "unable to extract recipients: message header length exceeds safety limit") {
			t.Errorf("%s: said %q", c.name, out)
		}
		if status == 0 && content != c.header+body {
			t.Errorf("%s: the content is not what it was", c.name)
		}
	}
	if _, status, h, _ := s.run(t, "sendmail", "X: y\nTo: a@x.test,\n b@x.test", "-t"); status != 0 || len(h.Recipients) != 2 {
		t.Errorf("a header without a body: status %d, %v", status, h)
	}
}
