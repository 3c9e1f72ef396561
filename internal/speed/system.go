package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const mainCf = `compatibility_level = 3.6
queue_directory = {dir}/spool
data_directory = {dir}/data
maillog_file = {dir}/mail.log
maillog_file_prefixes = {dir}
myhostname = mta.test
mydestination = local.test
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
relayhost = [127.0.0.1]:{sink}
alias_maps =
alias_database =
smtpd_client_connection_count_limit = 0
smtpd_client_connection_rate_limit = 0
smtpd_recipient_limit = 2000
in_flow_delay = 0
default_process_limit = 200
smtp_destination_concurrency_limit = 100
`

const masterCf = `127.0.0.1:{port} inet n - n - - smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
smtp unix - - n - - smtp
retry unix - - n - - error
error unix - - n - - error
postlog unix-dgram n - n - 1 postlogd
`

// A system is a mail system of one build.
type system struct {
	dir     string
	addr    string
	program []string // what runs it, with its arguments; the directory's own program, if this is empty
	env     []string // variables of the environment that it needs besides
	sink    *sink
	cmd     *exec.Cmd
	done    chan error // its end
	out     bytes.Buffer
}

// startSystem configures and starts a mail system below dir, which has the program. more are lines for its main.cf.
func startSystem(dir, more string) (*system, error) {
	s, err := prepareSystem(dir, more, "")
	if err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		s.sink.close()
		return nil, err
	}
	return s, nil
}

// prepareSystem configures one, with these lines at the end of its main.cf and of its master.cf.
func prepareSystem(dir, more, services string) (*system, error) {
	s, err := newSystem(dir)
	if err != nil {
		return nil, err
	}
	owner, err := s.directories("posthaste", "postfix")
	if err == nil {
		err = s.configure("command_directory = {dir}\n"+owner+more, services)
	}
	if err != nil {
		s.sink.close()
		return nil, err
	}
	return s, nil
}

// newSystem is one that has a port, and a next hop that listens.
func newSystem(dir string) (*system, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &system{dir: dir, addr: "127.0.0.1:" + strconv.Itoa(port)}
	s.sink, err = newSink()
	return s, err
}

// configure writes main.cf and master.cf, with these lines at their ends.
func (s *system) configure(more, services string) error {
	_, port, _ := net.SplitHostPort(s.addr)
	r := strings.NewReplacer("{dir}", s.dir, "{port}", port, "{sink}", strconv.Itoa(s.sink.port()))
	return errors.Join(os.WriteFile(filepath.Join(s.dir, "etc", "main.cf"), []byte(r.Replace(mainCf+more)), 0o644),
		os.WriteFile(filepath.Join(s.dir, "etc", "master.cf"), []byte(r.Replace(masterCf+services)), 0o644))
}

// directories makes those of the mail system, and returns the lines of main.cf that say whose they are. Services
// of root's run as the mail system's user, which is the first of these that there is.
func (s *system) directories(users ...string) (lines string, err error) {
	for _, d := range []string{"etc", "spool", "data"} {
		if err := os.Mkdir(filepath.Join(s.dir, d), 0o755); err != nil {
			return "", err
		}
	}
	if os.Geteuid() != 0 {
		return "", nil
	}
	for _, name := range users {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		return "mail_owner = " + name + "\n", os.Chown(filepath.Join(s.dir, "data"), uid, gid)
	}
	return "", errors.New("there is no user " + strings.Join(users, " or ") + ", as which root's services would run: add one, or be another user")
}

// start starts the mail system, and waits until it takes mail.
func (s *system) start() error {
	program := s.program
	if len(program) == 0 {
		program = []string{filepath.Join(s.dir, "posthaste"), "-c", filepath.Join(s.dir, "etc"), "start-fg"}
	}
	s.cmd = exec.Command(program[0], program[1:]...)
	s.cmd.Dir, s.cmd.Env = filepath.Join(s.dir, "spool"), append(os.Environ(), s.env...)
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.done = make(chan error, 1)
	go func() { s.done <- s.cmd.Wait() }()
	for range 400 {
		select {
		case err := <-s.done:
			return fmt.Errorf("the mail system in %s ended: %v: %s", s.dir, err, s.out.String())
		case <-time.After(50 * time.Millisecond):
		}
		if c, err := net.Dial("tcp", s.addr); err == nil {
			c.Close()
			return nil
		}
	}
	s.stop()
	return fmt.Errorf("the mail system in %s does not take mail: %s", s.dir, s.out.String())
}

// stop ends it.
func (s *system) stop() {
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(time.Minute):
		s.cmd.Process.Kill()
		<-s.done
	}
	s.sink.close()
}

// round sends the mail of w, and returns the figures of it.
func (s *system) round(ctx context.Context, w *workload) (wall, cpu time.Duration, err error) {
	before := s.processorTime()
	wall, err = s.carry(ctx, w)
	return wall, s.processorTime() - before, err
}

// carry sends the mail of w, waits until all of it is delivered, and returns how long that took.
func (s *system) carry(ctx context.Context, w *workload) (wall time.Duration, err error) {
	want := s.sink.deliveries.Load() + int64(w.messages*w.recipients)
	start := time.Now()
	if err := w.send(s.addr); err != nil {
		return 0, fmt.Errorf("%s: %w", s.dir, err)
	}
	for limit := time.Now().Add(dialogueTime); s.sink.deliveries.Load() < want; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if time.Now().After(limit) {
			return 0, fmt.Errorf("%s: %d deliveries are missing", s.dir, want-s.sink.deliveries.Load())
		}
	}
	wall = time.Since(start)
	if n := s.sink.deliveries.Load(); n > want {
		return 0, fmt.Errorf("%s: %d deliveries too many", s.dir, n-want)
	}
	return wall, nil
}

// processes are the directories in /proc of the processes of the mail system. They are known by their working
// directory, the queue's; and its helpers by theirs.
func (s *system) processes() (list []string) {
	queue := filepath.Join(s.dir, "spool")
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		if cwd, err := os.Readlink(d + "/cwd"); err == nil && (cwd == queue || s.helps(cwd)) {
			list = append(list, d)
		}
	}
	return list
}

// helps says whether processes in a working directory are helpers of the mail system.
func (s *system) helps(cwd string) bool {
	return strings.HasPrefix(cwd, filepath.Join(s.dir, "helpers")+"/")
}

// processorTime is what the processes of the mail system have used, in user and system mode, with those that have
// ended since.
func (s *system) processorTime() (sum time.Duration) {
	for _, d := range s.processes() {
		_, own, ended := used(d)
		sum += own + ended
	}
	return sum
}

// processorTimes is the same by the names of the services, as the processes bear them, without those that have ended.
func (s *system) processorTimes() map[string]time.Duration {
	times := map[string]time.Duration{}
	for _, d := range s.processes() {
		if name, own, _ := used(d); name != "" {
			times[name] += own
		}
	}
	return times
}

// used is the name of the process with this directory in /proc, and what it and those of its children that have ended
// have used. A process that is gone has no name.
func used(dir string) (name string, own, ended time.Duration) {
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return "", 0, 0
	}
	return usedOf(b)
}

// usedOf is the same by the text of that file.
func usedOf(b []byte) (name string, own, ended time.Duration) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[end+1:]))
	ticks := func(i int) time.Duration {
		n, _ := strconv.Atoi(f[i])
		return time.Duration(n) * time.Second / 100 // USER_HZ, which Linux has everywhere
	}
	return string(b[open+1 : end]), ticks(11) + ticks(12), ticks(13) + ticks(14)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
