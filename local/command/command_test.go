package command

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/rights"
	"posthaste/internal/testwait"
)

func test(line string) *Command {
	r := rights.Rights{UID: os.Getuid(), GID: os.Getgid()}
	if rights.Switching() {
		r = rights.Rights{UID: 60001, GID: 60001, Groups: []int{60077}}
	}
	return &Command{Line: line, Env: []string{"PATH=/usr/bin:/bin", "A=b c"}, Dir: "/", Rights: r, Limit: 20 * time.Second}
}

func hello(f *os.File) error { _, err := f.WriteString("hello\nworld\n"); return err }

func TestRun(t *testing.T) {
	t.Parallel()
	tests := []struct{ line, status, text, diag, output string }{
		{"true", "2.0.0", "", "", ""},
		{"cat", "2.0.0", "", "", "hello world"},
		{"exit 0", "2.0.0", "", "", ""},
		{"echo $A; echo err >&2", "2.0.0", "", "", "b c err"},
		{"cat; exit 64", "5.3.0", "command line usage error. Command output: hello world", "hello world", "hello world"},
		{"exit 65", "5.6.0", "data format error", "data format error", ""},
		{"exit 66", "5.3.0", "cannot open input", "cannot open input", ""},
		{"exit 67", "5.1.1", "user unknown", "user unknown", ""},
		{"exit 68", "5.1.2", "host name unknown", "host name unknown", ""},
		{"exit 69", "5.3.0", "service unavailable", "service unavailable", ""},
		{"exit 70", "5.3.0", "internal software error", "internal software error", ""},
		{"exit 71", "4.3.0", "system resource problem", "system resource problem", ""},
		{"exit 72", "5.3.0", "critical OS file missing", "critical OS file missing", ""},
		{"exit 73", "5.2.0", "can't create user output file", "can't create user output file", ""},
		{"exit 74", "5.3.0", "input/output error", "input/output error", ""},
		{"exit 75", "4.3.0", "temporary failure", "temporary failure", ""},
		{"exit 76", "5.5.0", "remote error in protocol", "remote error in protocol", ""},
		{"exit 77", "5.7.0", "permission denied", "permission denied", ""},
		{"exit 78", "5.3.5", "local configuration error", "local configuration error", ""},
		{"exit 1", "5.3.0", `Command died with status 1: "exit 1"`, "unknown mail system error 1", ""},
		{"false", "5.3.0", `Command died with status 1: "false"`, "unknown mail system error 1", ""},
		{"echo 5.7.1 go away; exit 75", "5.7.1", "go away", "go away", "5.7.1 go away"},
		{"echo 4.7.1 come back; exit 67", "4.7.1", "come back", "come back", "4.7.1 come back"},
		{"echo 2.0.0 fine; exit 1", "5.0.0", "fine", "fine", "2.0.0 fine"},
		{"echo 5.7.1 but ok", "2.0.0", "", "", "5.7.1 but ok"},
		{"kill -15 $$", "4.3.0", `Command died with signal 15: "kill -15 $$"`, "internal software error", ""},
		{"/no/such/program x", "4.3.0", `cannot run command "/no/such/program x": fork/exec /no/such/program: no such file or directory`, "system resource problem", ""},
		{"no-such-program", "5.3.0", `Command died with status 127: "no-such-program". Command output: `, "", ""},
	}
	for _, tt := range tests {
		r := test(tt.line).Run(t.Context(), hello)
		if r.Status.String() != tt.status || r.OK != (tt.status[0] == '2') {
			t.Errorf("%s: %+v", tt.line, r)
		}
		if strings.HasSuffix(tt.text, "output: ") {
			if !strings.HasPrefix(r.Text, tt.text) {
				t.Errorf("%s: %+v", tt.line, r)
			}
		} else if r.Text != tt.text || r.Diag != tt.diag || r.Output != tt.output {
			t.Errorf("%s: %+v", tt.line, r)
		}
	}
}

// TestTime: a command that hangs, one that leaves a child with our pipes, and
// one that closes its output and goes on, are all ended in time, and another
// delivery does not wait for them.
func TestTime(t *testing.T) {
	t.Parallel()
	big := func(f *os.File) error { _, err := f.Write(make([]byte, 1<<20)); return err }
	var wg sync.WaitGroup
	begin := time.Now()
	for _, line := range []string{"sleep 1000", "sleep 1000 & wait", "exec >&- 2>&-; sleep 1000", "cat >/dev/null; trap '' TERM; while :; do sleep 1; done"} {
		wg.Go(func() {
			c := test(line)
			c.Limit = 700 * time.Millisecond
			r := c.Run(t.Context(), big)
			if r.OK || !r.TimedOut || !strings.HasPrefix(r.Text, `Command time limit exceeded: "`+line+`"`) || r.Status.String() != "5.3.0" {
				t.Errorf("%s: %+v", line, r)
			}
		})
	}
	if r := test("cat").Run(t.Context(), hello); !r.OK {
		t.Errorf("%+v", r)
	}
	wg.Wait()
	if took := time.Since(begin); took > 4*testwait.Patience {
		t.Errorf("took %v", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stop := time.AfterFunc(300*time.Millisecond, cancel)
	defer stop.Stop()
	if r := test("sleep 60").Run(ctx, hello); r.OK || r.Status.Class != 4 || !strings.Contains(r.Text, "stopping") {
		t.Errorf("stopped: %+v", r)
	}
}

// TestBackground: what a command leaves running in a session of its own, with
// no pipe of ours, is not waited for.
func TestBackground(t *testing.T) {
	t.Parallel()
	r := test("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!; exit 1").Run(t.Context(), hello)
	pid, err := strconv.Atoi(strings.TrimSpace(r.Output))
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("it was waited for, or killed: %v", err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	if r := test("yes | head -c 1000000; exit 1").Run(t.Context(), hello); len(r.Output) > MaxOutput {
		t.Errorf("%d octets of output kept", len(r.Output))
	}
}

func TestDeafCommand(t *testing.T) {
	t.Parallel()
	r := test("true").Run(t.Context(), func(f *os.File) error {
		for range 100 {
			if _, err := f.Write(make([]byte, 1<<16)); err != nil {
				return nil
			}
		}
		t.Error("a command that reads nothing took it all")
		return nil
	})
	if !r.OK {
		t.Errorf("%+v", r)
	}
	r = test("cat >/dev/null").Run(t.Context(), func(*os.File) error { return &FeedError{errors.New("bad disk")} })
	if r.OK || r.Status.Class != 4 || !strings.Contains(r.Text, "bad disk") {
		t.Errorf("half a message counted as delivered: %+v", r)
	}
}

func TestRights(t *testing.T) {
	t.Parallel()
	if !rights.Switching() {
		t.Skip("not root")
	}
	r := test("id -u; id -g; id -G; grep -E '^(Uid|Gid|CapEff)' /proc/self/status; ps -o sid=,pgid=,pid= -p $$ | tr -s ' '; ls /proc/self/fd; env | sort").Run(t.Context(), hello)
	words := strings.Fields(r.Output)
	want := "60001 60001 60001 60077 Uid: 60001 60001 60001 60001 Gid: 60001 60001 60001 60001 CapEff: 0000000000000000"
	if !strings.HasPrefix(strings.Join(words, " "), want) {
		t.Errorf("%s", r.Output)
	}
	if ids := words[16:19]; ids[0] != ids[1] || ids[1] != ids[2] {
		t.Errorf("session, group, process: %q", ids)
	}
	if got := strings.Join(words[19:], " "); got != "0 1 2 3 A=b c PATH=/usr/bin:/bin PWD=/" { // 3 is ls's own
		t.Errorf("descriptors and environment: %s", got)
	}
	c := test("id")
	c.Rights.UID = 0
	if r := c.Run(t.Context(), hello); r.OK || r.Status.Class != 4 {
		t.Errorf("run as root: %+v", r)
	}
	secret, err := os.MkdirTemp("/tmp", "command")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(secret)
	c = test("pwd")
	c.Dir = secret
	if r := c.Run(t.Context(), hello); r.OK || r.Status.Class != 4 {
		t.Errorf("entered root's directory: %+v", r)
	}
}

const chrootProgram = `package main

import ("fmt"; "io"; "os")

func main() {
	names, err := os.ReadDir("/")
	dir, _ := os.Getwd()
	fmt.Println(names, err, dir, os.Getuid(), os.Getgid(), os.Args[1:])
	io.Copy(os.Stdout, os.Stdin)
}
`

// TestChroot: the command is all that there is in its root directory.
func TestChroot(t *testing.T) {
	t.Parallel()
	c := test("x")
	c.Args = []string{"/command", "an argument"}
	if !rights.Switching() {
		c.Chroot = "/"
		if r := c.Run(t.Context(), hello); r.OK || r.Status.Class != 4 || !strings.Contains(r.Text, "chroot= needs") {
			t.Errorf("not root: %+v", r)
		}
		t.Skip("not root")
	}
	root, source := t.TempDir(), filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(source, []byte(chrootProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-ldflags=-w", "-o", filepath.Join(root, "command"), source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // it has nothing to load
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for dir := root; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	c.Chroot = root
	r := c.Run(t.Context(), hello)
	if want := "[- command] <nil> / 60001 60001 [an argument] hello world"; !r.OK || r.Output != want {
		t.Errorf("%+v, want %q", r, want)
	}
	os.Chmod(root, 0o700) // it is entered with the command's rights
	if r := c.Run(t.Context(), hello); r.OK || r.Status.Class != 4 {
		t.Errorf("in a root directory that the user may not enter: %+v", r)
	}
}

func TestArgs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		c    Command
		want string
	}{
		{Command{Line: "cat -n x"}, "/usr/bin/cat: cat|-n|x"},
		{Command{Line: "/bin/cat\tx"}, "/bin/cat: /bin/cat|x"},
		{Command{Line: "cat 'a b'"}, "/bin/sh: sh|-c|cat 'a b'"},
		{Command{Line: "cat >x"}, "/bin/sh: sh|-c|cat >x"},
		{Command{Line: "exit 3"}, "/bin/sh: sh|-c|exit 3"},
		{Command{Line: "A=b cat"}, "/bin/sh: sh|-c|A=b cat"},
		{Command{Line: "nonesuch a"}, "/bin/sh: sh|-c|nonesuch a"},
		{Command{Line: "cat x", Shell: "/bin/smrsh -c"}, "/bin/smrsh: /bin/smrsh|-c|cat x"},
		{Command{Line: "cat x", Args: []string{"a b", "$c"}}, "a b: a b|$c"},
		{Command{Line: ""}, "/bin/sh: sh|-c|"},
	} {
		tt.c.Env = []string{"PATH=/usr/bin:/bin"}
		path, args := tt.c.args()
		if got := path + ": " + strings.Join(args, "|"); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.c.Line, got, tt.want)
		}
	}
}
