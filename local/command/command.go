// Package command runs the programs that mail is delivered to: |command in
// aliases and .forward files, mailbox_command, and the pipe transport.
//
// A command is a process of its own, leader of its own session and process
// group, with the recipient's user, group and supplementary groups, and an
// environment in which there is nothing but what the caller names. It gets the
// message on its standard input; what it says on standard output and error is
// kept, as far as [MaxOutput], for the sender.
//
// What came of it is told by its exit status as in sysexits.h, or by output
// that begins with an enhanced status code. A command need not read the
// message to its end.
//
// A command line is run directly when it has no character that means
// something to a shell, else by /bin/sh -c.
//
// # Time
//
// A command that has not ended, and closed its output, within its time is
// killed with its process group. Nothing of another delivery waits for it.
//
// # Security
//
// Root is refused (package rights). The working directory is entered with the
// recipient's rights. No descriptor of ours is inherited.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/rights"
)

// MaxOutput is how much of a command's output is kept, in bytes.
const MaxOutput = 4096

// A Command is a program to be run.
type Command struct {
	Line   string   // as the user or administrator wrote it; also for messages
	Args   []string // when set, run this, without a shell; Line is then only for messages
	Shell  string   // when set, run Line as the last argument of this command, which is split at white space
	Env    []string // all of it, NAME=value
	Dir    string   // working directory; empty: that of this process
	Chroot string   // when set, the root directory; needs root
	Rights rights.Rights
	Limit  time.Duration
}

// A Result is what came of a command. OK and Status agree: the class of
// Status is 2 when OK, else 4 or 5.
type Result struct {
	OK       bool
	Status   dsn.Status
	Text     string // the reason, for log and notice
	Diag     string // what the command said, or what its exit status means
	Output   string // on one line
	TimedOut bool
}

// Run runs c, gives it what feed writes, and waits for its end, its time
// limit, or the end of ctx. feed's errors of writing are not looked at: a
// command may stop reading. A feed that cannot read the message returns a
// *[FeedError]; the command's success is then not believed.
func (c *Command) Run(ctx context.Context, feed func(*os.File) error) Result {
	p, err := c.start()
	if err != nil {
		return Result{Status: dsn.S(4, 3, 0), Text: err.Error(), Diag: "system resource problem"}
	}
	stop := context.AfterFunc(ctx, p.kill)
	timer := time.AfterFunc(c.Limit, func() { p.timedOut.Store(true); p.kill() })
	output := make(chan string, 1)
	go func() { output <- p.read() }() // ends at end of file or at the deadline
	var bad *FeedError
	errors.As(feed(p.in), &bad)
	p.in.Close()
	said := <-output
	err = p.wait()
	timer.Stop()
	stop()
	p.out.Close()
	if bad != nil {
		return Result{Status: dsn.S(4, 3, 0), Text: "message cannot be read from the queue: " + bad.Err.Error()}
	}
	if ctx.Err() != nil && err != nil {
		return Result{Status: dsn.S(4, 3, 0), Text: fmt.Sprintf("mail system is stopping, command killed: %q", c.Line)}
	}
	return c.result(err, said, p.timedOut.Load())
}

// A FeedError is trouble with the message, not with the command.
type FeedError struct{ Err error }

func (e *FeedError) Error() string { return e.Err.Error() }
func (e *FeedError) Unwrap() error { return e.Err }

// process is a running command.
type process struct {
	cmd      *exec.Cmd
	in, out  *os.File
	timedOut atomic.Bool
	mu       sync.Mutex
	ended    bool
}

// prepare makes the command as it is to be run, without its input and output.
func (c *Command) prepare() (*exec.Cmd, error) {
	attr := &syscall.SysProcAttr{Setsid: true}
	if rights.Switching() {
		if err := c.Rights.Check(); err != nil {
			return nil, err
		}
		groups := make([]uint32, len(c.Rights.Groups))
		for i, g := range c.Rights.Groups {
			groups[i] = uint32(g)
		}
		attr.Credential = &syscall.Credential{Uid: uint32(c.Rights.UID), Gid: uint32(c.Rights.GID), Groups: groups}
		attr.Chroot = c.Chroot
	} else if c.Chroot != "" {
		return nil, errors.New("chroot= needs a mail system that runs as root")
	}
	path, args := c.args()
	cmd := &exec.Cmd{Path: path, Args: args, Env: c.Env, Dir: c.Dir, SysProcAttr: attr}
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	return cmd, keepDescriptors()
}

// start starts the command. Which errors are the command's and which the
// system's does not matter: all are tried again.
func (c *Command) start() (*process, error) {
	cmd, err := c.prepare()
	if err != nil {
		return nil, err
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		inR.Close()
		inW.Close()
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, outW
	err = cmd.Start()
	inR.Close()
	outW.Close()
	if err != nil {
		inW.Close()
		outR.Close()
		if _, bad := os.Stat(c.Dir); c.Dir != "" && c.Chroot == "" && bad != nil { // else it is called the program's
			err = bad
		}
		return nil, fmt.Errorf("cannot run command %q: %w", c.Line, err)
	}
	p := &process{cmd: cmd, in: inW, out: outR}
	// A little after the kill: what a killed group leaves behind elsewhere
	// may hold the other ends of the pipes.
	end := time.Now().Add(c.Limit + time.Second)
	inW.SetWriteDeadline(end)
	outR.SetReadDeadline(end)
	return p, nil
}

// Serve runs c with f, a connection, as its standard input, output and error,
// and waits for its end, its time limit, or the end of ctx. f is closed when it
// returns, in this process. The error says what the command did not do: run at all, end
// by itself, end with status 0.
func (c *Command) Serve(ctx context.Context, f *os.File) error {
	cmd, err := c.prepare()
	if err == nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = f, f, f
		err = cmd.Start()
	}
	f.Close()
	if err != nil {
		return fmt.Errorf("cannot run command %q: %w", c.Line, err)
	}
	p := &process{cmd: cmd}
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	timer := time.AfterFunc(c.Limit, func() { p.timedOut.Store(true); p.kill() })
	defer timer.Stop()
	err = p.wait()
	var exit *exec.ExitError
	switch {
	case p.timedOut.Load():
		return fmt.Errorf("command %q killed: it took longer than %v", c.Line, c.Limit)
	case ctx.Err() != nil && err != nil:
		return fmt.Errorf("command %q killed: the mail system is stopping", c.Line)
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled():
		return fmt.Errorf("command %q killed by signal %d", c.Line, exit.Sys().(syscall.WaitStatus).Signal())
	case errors.As(err, &exit):
		return fmt.Errorf("command %q exit status %d", c.Line, exit.ExitCode())
	}
	return err
}

// defaultPath is what commands find programs in.
const defaultPath = "/usr/bin:/bin"

// Environment is what commands of master.cf have in their environment: PATH,
// and what export_environment lists as NAME or NAME=value.
func Environment(exports []string) []string {
	env := []string{"PATH=" + defaultPath}
	for _, name := range exports {
		if strings.Contains(name, "=") {
			env = append(env, name)
		} else if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// kill kills the process group, as long as it is ours to kill.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	if p.in != nil { // there are pipes
		past := time.Now().Add(-time.Second)
		p.in.SetWriteDeadline(past)
		p.out.SetReadDeadline(time.Now().Add(time.Second)) // its last words
	}
}

func (p *process) wait() error {
	// Not reaped before ended is set, so that its number cannot be another's.
	waitNoReap(p.cmd.Process.Pid)
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	return p.cmd.Wait()
}

// read reads the output to its end and keeps the beginning.
func (p *process) read() string {
	kept := make([]byte, 0, 512)
	var buf [4096]byte
	for {
		n, err := p.out.Read(buf[:])
		kept = append(kept, buf[:min(n, MaxOutput-len(kept))]...)
		if err != nil {
			return oneLine(string(kept))
		}
	}
}

func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == '\t' {
			return ' '
		}
		return r
	}, strings.TrimSpace(s))
}

// args is what to execute.
func (c *Command) args() (path string, args []string) {
	switch {
	case len(c.Args) > 0:
		path, _ = c.find(c.Args[0])
		return path, c.Args
	case c.Shell != "":
		args = append(strings.Fields(c.Shell), c.Line)
		path, _ = c.find(args[0])
		return path, args
	}
	if words := strings.Fields(c.Line); len(words) > 0 && !needsShell(c.Line, words[0]) {
		// A path is run or it fails, and is tried again when somebody has seen
		// to it; a name that is not found may mean something to the shell.
		if path, ok := c.find(words[0]); ok || strings.ContainsRune(words[0], '/') {
			return path, words
		}
	}
	return "/bin/sh", []string{"sh", "-c", c.Line} // sh is how it calls itself in messages
}

// find looks for a program in the PATH that the command will have. The path is
// the name when there is none.
func (c *Command) find(name string) (string, bool) {
	if strings.ContainsRune(name, '/') {
		return name, executable(name)
	}
	for _, v := range c.Env {
		path, ok := strings.CutPrefix(v, "PATH=")
		for _, dir := range filepath.SplitList(path) {
			if file := filepath.Join(dir, name); ok && filepath.IsAbs(dir) && executable(file) {
				return file, true
			}
		}
	}
	return name, false
}

func executable(file string) bool {
	st, err := os.Stat(file)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// plain are the characters that mean nothing to a shell.
const plain = "1234567890!@%-_=+:,./abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \t"

// needsShell says whether line means more to a shell than its words.
func needsShell(line, first string) bool {
	if strings.Trim(line, plain) != "" || strings.Contains(first, "=") {
		return true
	}
	switch first {
	case ".", ":", "!", "alias", "bg", "break", "case", "cd", "command", "continue", "do", "done", "elif", "else", "esac", "eval",
		"exec", "exit", "export", "fg", "fi", "for", "getopts", "hash", "if", "in", "jobs", "read", "readonly", "return", "set",
		"shift", "then", "times", "trap", "type", "ulimit", "umask", "unalias", "unset", "until", "wait", "while":
		return true
	}
	return false
}

// result says what an end means. err is exec's; said is the output.
func (c *Command) result(err error, said string, timedOut bool) Result {
	r := Result{Output: said, TimedOut: timedOut}
	tail := ""
	if said != "" {
		tail = ". Command output: " + said
	}
	var exit *exec.ExitError
	switch {
	case timedOut:
		r.Status, r.Text, r.Diag = dsn.S(5, 3, 0), fmt.Sprintf("Command time limit exceeded: \"%s\"%s", c.Line, tail), cmp.Or(said, sysexits[70].text)
	case err == nil:
		r.OK, r.Status = true, dsn.S(2, 0, 0)
	case !errors.As(err, &exit):
		r.Status, r.Text, r.Diag = dsn.S(4, 3, 0), fmt.Sprintf("cannot wait for command %q: %v", c.Line, err), "system resource problem"
	case exit.Sys().(syscall.WaitStatus).Signaled():
		n := exit.Sys().(syscall.WaitStatus).Signal()
		r.Status, r.Text, r.Diag = dsn.S(4, 3, 0), fmt.Sprintf("Command died with signal %d: \"%s\"%s", int(n), c.Line, tail), cmp.Or(said, sysexits[70].text)
	default:
		r.exited(c.Line, exit.ExitCode(), said, tail)
	}
	return r
}

// exited is judge for a command that has exited with a status other than 0.
func (r *Result) exited(line string, code int, said, tail string) {
	if status, text, ok := dsn.CutStatus(said); ok {
		if status.Class == 2 { // it has failed all the same
			status.Class = 5
		}
		r.Status, r.Text, r.Diag = status, text, text
		return
	}
	e, ok := sysexits[code]
	if ok {
		r.Status, r.Text, r.Diag = e.status, e.text+tail, e.text
	} else {
		r.Status, r.Text, r.Diag = dsn.S(5, 3, 0), fmt.Sprintf("Command died with status %d: \"%s\"%s", code, line, tail), fmt.Sprintf("unknown mail system error %d", code)
	}
	r.Diag = cmp.Or(said, r.Diag)
}

// sysexits are the exit statuses of sysexits.h.
var sysexits = map[int]struct {
	status dsn.Status
	text   string
}{
	64: {dsn.S(5, 3, 0), "command line usage error"},
	65: {dsn.S(5, 6, 0), "data format error"},
	66: {dsn.S(5, 3, 0), "cannot open input"},
	67: {dsn.S(5, 1, 1), "user unknown"},
	68: {dsn.S(5, 1, 2), "host name unknown"},
	69: {dsn.S(5, 3, 0), "service unavailable"},
	70: {dsn.S(5, 3, 0), "internal software error"},
	71: {dsn.S(4, 3, 0), "system resource problem"},
	72: {dsn.S(5, 3, 0), "critical OS file missing"},
	73: {dsn.S(5, 2, 0), "can't create user output file"},
	74: {dsn.S(5, 3, 0), "input/output error"},
	75: {dsn.S(4, 3, 0), "temporary failure"},
	76: {dsn.S(5, 5, 0), "remote error in protocol"},
	77: {dsn.S(5, 7, 0), "permission denied"},
	78: {dsn.S(5, 3, 5), "local configuration error"},
}
