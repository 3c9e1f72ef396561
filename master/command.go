// The control commands: "posthaste start", stop, reload, status, check and so on, which
// are Postfix's postfix(1). Each is a process of its own that looks at files and signals
// the running master; only start-fg becomes master itself. What an operator should know
// goes to standard error and to the log.

package master

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/advice"
	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/service"
)

// Program is the name under which Command executes the present program to be master. The
// program hands such a command line to Main.
const Program = "master"

// usage is printed with an error in the options; the manual page says more.
const usage = "usage: posthaste [-v] [-c config_dir] start [-w] | start-fg | stop | abort | reload | status | flush | check [-v] | set-permissions [name=value ...] | upgrade-configuration [name=value ...] | logrotate"

// Command carries out a control command. args are [-v] [-c config_dir], the command, and
// its arguments. It returns the exit status: 0, or 1 with the reason on stderr and in the
// log. status also returns 1 when the mail system is not running.
func Command(opts Options, args []string, stdout, stderr io.Writer) int {
	c := &control{opts: opts, stdout: stdout, stderr: stderr}
	args, err := c.flags(args)
	if err != nil {
		fmt.Fprintf(stderr, "posthaste: fatal: %v\n%s\n", err, usage)
		return 1
	}
	// The name is checked before main.cf is read: a misspelt command is a more likely
	// mistake than main.cf.
	f, ok := commands[args[0]]
	if !ok {
		return c.fatal("unknown command: '%s'. Usage: posthaste start (or stop, reload, abort, flush, check, status, set-permissions, upgrade-configuration, logrotate)", args[0])
	}
	c.config, err = config.Load(c.opts.ConfigDir)
	// A mistake in main.cf must not keep anybody from stopping the mail system.
	if err != nil && slices.Contains(always, args[0]) {
		c.config, err = c.salvage(err)
	}
	if err != nil {
		return c.fatal("%v", err)
	}
	// status says so itself, and set-permissions may have to give the queue its owner.
	if args[0] != "status" && args[0] != "set-permissions" {
		// A clear refusal, before anything has been tried.
		if err := own(c.config.String("queue_directory"), os.Geteuid()); err != nil {
			return c.fatal("%s: %v", args[0], err)
		}
	}
	// Without a log the mail system is not started: nobody would learn what becomes of
	// mail. It can still be stopped.
	if c.log, err = maillog.OpenDirect(c.config, "postfix-script"); err == nil {
		defer c.log.Close()
	} else if args[0] == "start" || args[0] == "start-fg" || args[0] == "check" {
		return c.fatal("%v", err)
	}
	// Arguments that mean nothing are refused: "stop smtpd" must not stop everything.
	for _, a := range args[1:] {
		switch args[0] + " " + a {
		// Postfix's -w waits for master to be up; here start always does.
		case "start -w": // it waits in any case
		case "check -v":
			c.verbose = true
		default:
			return c.fatal("%s: unexpected argument %s", args[0], a)
		}
	}
	return f(c)
}

// commands are the control commands by name.
var commands = map[string]func(*control) int{
	"start": (*control).start, "start-fg": (*control).startForeground, "stop": (*control).stop, "abort": (*control).abort,
	"reload": (*control).reload, "status": (*control).status, "flush": (*control).flush, "check": (*control).check,
	"set-permissions": (*control).setPermissions, "logrotate": (*control).logRotate,
}

// always are the commands that a mistake in main.cf does not stop: the mail system may
// have been running since before the mistake was made.
var always = []string{"stop", "abort", "status"}

// salvage prints what is wrong with main.cf, and reads what the command needs of the
// rest. If even that cannot be read, problem is the error.
func (c *control) salvage(problem error) (*config.Config, error) {
	// These three say where the running master's files are.
	cfg, err := config.Salvage(c.opts.ConfigDir, "queue_directory", "data_directory", "process_id_directory")
	if err != nil {
		return nil, problem
	}
	for line := range strings.SplitSeq(problem.Error(), "\n") {
		fmt.Fprintf(c.stderr, "posthaste/postfix-script: warning: %s\n", line)
	}
	return cfg, nil
}

// own says whether uid may control the mail system with this queue, by the queue's owner.
// Without it, the command would fail later with a message about some file.
func own(queue string, uid int) error {
	info, err := os.Stat(queue)
	// root may control any mail system.
	if err != nil || uid == 0 {
		return nil // where there is no queue somebody may want to make one
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != uid {
		owner := fmt.Sprintf("user ID %d", st.Uid)
		if st.Uid == 0 {
			owner = "root"
		}
		return fmt.Errorf("the mail system with the queue %s is for %s to control", queue, owner)
	}
	return nil
}

// A control is a control command that is being carried out.
type control struct {
	opts           Options
	config         *config.Config
	log            *maillog.Logger // nil when there is none
	verbose        bool            // check -v
	stdout, stderr io.Writer
}

// flags reads the options before the command and returns the rest. Like postfix(1) it
// takes -vv and -cDIR in one word.
func (c *control) flags(args []string) ([]string, error) {
	dir := c.opts.ConfigDir
	if _, set := os.LookupEnv("MAIL_VERBOSE"); set { // by postmulti -v
		c.opts.Verbose++
	}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch {
		case args[0] == "-c" && len(args) > 1:
			dir = args[1]
			args = args[1:]
		case strings.HasPrefix(args[0], "-c") && len(args[0]) > 2:
			dir = args[0][2:]
		case strings.Trim(args[0], "v") == "-":
			c.opts.Verbose += len(args[0]) - 1
		// Postfix runs debugger_command; a Go program wants a debugger that attaches.
		case args[0] == "-D":
			fmt.Fprintln(c.stderr, "posthaste: warning: -D: debugger_command is not run; attach a debugger to the service's process instead")
		default:
			return nil, fmt.Errorf("unknown option: %s", args[0])
		}
		args = args[1:]
	}
	if len(args) == 0 {
		return nil, errors.New("no command")
	}
	var err error
	// master changes its working directory, and the services' is the queue directory.
	c.opts.ConfigDir, err = filepath.Abs(config.Dir(dir))
	return args, err
}

// say tells the operator and the log.
func (c *control) say(format string, args ...any) {
	if !c.journaled() {
		fmt.Fprintf(c.stderr, "posthaste/postfix-script: %s\n", fmt.Sprintf(format, args...))
	}
	c.log.Info(format, args...)
}

// announce says what is being done to the mail system. In the log it has Postfix's name,
// because programs that read logs count these lines.
func (c *control) announce(doing string) {
	fmt.Fprintf(c.stderr, "posthaste/postfix-script: %s %s\n", doing, c.name())
	c.log.Info("%s the Postfix mail system", doing)
}

// warn is say for what may be wrong.
func (c *control) warn(format string, args ...any) {
	if !c.journaled() {
		fmt.Fprintf(c.stderr, "posthaste/postfix-script: warning: %s\n", fmt.Sprintf(format, args...))
	}
	c.log.Warning(format, args...)
}

// journaled says that there is a log and that standard error ends in systemd's journal,
// which would then have everything twice.
func (c *control) journaled() bool {
	f, ok := c.stderr.(*os.File)
	if !ok || c.log == nil {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	// systemd says which file its journal is; a redirected standard error is another one.
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// fatal says why the command fails, a line each, and returns the exit status 1.
func (c *control) fatal(format string, args ...any) int {
	text := fmt.Sprintf(format, args...)
	// Each mistake in a file has a line, and each line its prefix, for those who look for
	// it in the log.
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintf(c.stderr, "posthaste/postfix-script: fatal: %s\n", line)
		c.log.Fatal("%s", line)
	}
	return 1
}

// name is what the mail system calls itself, by mail_name.
func (c *control) name() string { return "the " + c.config.String("mail_name") + " mail system" }

// running is the process ID of the running master; 0 if there is none, or if that cannot
// be seen, which is warned of.
func (c *control) running() int {
	pid, ok, err := findRunning(c.config)
	if err != nil {
		c.warn("%v", err)
	}
	if !ok {
		return 0
	}
	return pid
}

// mustRun is running for commands that need a master; status is 1 if there is none.
func (c *control) mustRun() (pid, status int) {
	if pid = c.running(); pid == 0 {
		return 0, c.fatal("%s is not running", c.name())
	}
	return pid, 0
}

// start starts master in the background and waits until its sockets are open, or until it
// says why it cannot run. So a script may submit mail as soon as the command returns.
func (c *control) start() int {
	// Before the announcement: "starting" in the log must mean that something starts.
	if pid := c.running(); pid != 0 {
		return c.fatal("%s is already running (process %d)", c.name(), pid)
	}
	if file := c.config.String("maillog_file"); strings.HasPrefix(file, "/dev/std") {
		return c.fatal("maillog_file = %s works with start-fg only: in the background its output would be lost", file)
	}
	if err := c.room(); err != nil {
		return c.fatal("%v", err)
	}
	c.announce("starting")
	c.checkLog()
	// master writes to the pipe; if it dies before, the pipe ends.
	r, w, err := os.Pipe()
	if err != nil {
		return c.fatal("%v", err)
	}
	defer r.Close()
	// A daemon must not hold a terminal, nor the pipe of a script.
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return c.fatal("%v", err)
	}
	defer null.Close()
	// /proc/self/exe is this very program, even if an upgrade replaces the file
	// meanwhile.
	exe := c.opts.Executable
	if exe == "" {
		exe = "/proc/self/exe"
	}
	argv := []string{Program, "-w", "-c", c.opts.ConfigDir}
	// Each level is handed on, for the services.
	for range c.opts.Verbose {
		argv = append(argv, "-v")
	}
	p, err := os.StartProcess(exe, argv, &os.ProcAttr{
		Dir:   "/",
		Env:   os.Environ(),
		Files: []*os.File{null, null, null, w},
		// Signals of the terminal are not for the mail system.
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	w.Close()
	if err != nil {
		return c.fatal("execute %s: %v", exe, err)
	}
	defer p.Release()
	// Errors can be many, and a person reads them.
	said, err := io.ReadAll(io.LimitReader(r, 64<<10))
	text := strings.TrimSpace(string(said))
	if err == nil && text == readyText {
		if settings, err := loadSettings(c.opts); err == nil {
			c.foretell(settings)
		}
		return 0
	}
	// It has said why, or it has died; either way it is about to be gone.
	p.Wait()
	if text == "" {
		text = "it ended without a reason; see the log"
	}
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintf(c.stderr, "posthaste/master: fatal: %s\n", line)
	}
	return 1
}

// room says why the disk has no room to take mail in: cleanup would not start, and
// everybody would wait for it.
func (c *control) room() error {
	if _, err := prepareDirectories(c.config); err != nil {
		return err
	}
	return errors.Join(advice.Room(c.config), advice.Place(c.config))
}

// syslogSocket is where the system's log service listens.
const syslogSocket = "/dev/log"

// checkLog warns if nobody would ever read the log.
func (c *control) checkLog() {
	if c.config.String("maillog_file") != "" {
		return
	}
	// The socket is there as long as a log service listens, or was not cleaned up; a
	// better question there is not.
	if _, err := os.Stat(syslogSocket); err != nil {
		c.warn("nothing is logged: %v, and maillog_file is empty; start a syslog service, or set maillog_file = /var/log/maillog, or /dev/stdout for start-fg", err)
	}
}

// readyText is what master says on descriptor readyFD when its sockets are open.
const (
	readyText = "ready"
	readyFD   = 3
)

// Main is the entry of a process that was executed as Program: the mail system in the
// background. args are -c config_dir, -v once for each level of verbosity of all
// services, and -w when descriptor 3 is to be told "ready" or why not. It returns the
// exit status.
func Main(opts Options, args []string) int {
	// ps and pidof show it as Postfix's is shown.
	service.NameProcess(Program)
	var report *os.File
	for len(args) > 0 {
		switch {
		case args[0] == "-w":
			report = os.NewFile(readyFD, "start")
			syscall.CloseOnExec(readyFD)
		case args[0] == "-c" && len(args) > 1:
			opts.ConfigDir = args[1]
			args = args[1:]
		case args[0] == "-v":
			opts.Verbose++
		default:
			fmt.Fprintf(os.Stderr, "%s: fatal: unknown option %s; use \"posthaste start\"\n", Program, args[0])
			return 1
		}
		args = args[1:]
	}
	opts.ConfigDir = config.Dir(opts.ConfigDir)
	// Modes are set as they should be; the umask of whoever started us is not for the
	// mail system.
	syscall.Umask(0o022)
	say := func(text string) {
		if report != nil {
			fmt.Fprintln(report, text)
		}
	}
	// Before the log is open, the pipe is the only way to say anything.
	opts.Echo = say
	opts.Ready = func() {
		say(readyText)
		report.Close()
		report = nil
	}
	if err := runMaster(context.Background(), opts); err != nil {
		return 1
	}
	return 0
}

// startForeground is the mail system in this process, for containers and service
// managers. It returns when the mail system has stopped.
func (c *control) startForeground() int {
	if pid := c.running(); pid != 0 {
		return c.fatal("%s is already running (process %d)", c.name(), pid)
	}
	if err := c.room(); err != nil {
		return c.fatal("%v", err)
	}
	c.announce("starting")
	c.checkLog()
	// master has a log of its own; the lines must not get out of order.
	c.log.Flush()
	c.opts.Echo = func(text string) { fmt.Fprintf(c.stderr, "posthaste/master: fatal: %s\n", text) }
	if err := runMaster(context.Background(), c.opts); err != nil {
		return 1
	}
	return 0
}

// stop stops the mail system and waits until it has stopped.
func (c *control) stop() int {
	pid, status := c.mustRun()
	if status != 0 {
		return status
	}
	c.announce("stopping")
	if status := c.kill(pid, syscall.SIGTERM); status != 0 {
		return status
	}
	limit := defaultStopTimeout
	if c.opts.StopTimeout != 0 {
		limit = c.opts.StopTimeout
	}
	// Each rank may take its least time on top of that.
	return c.waitStopped(pid, limit+time.Duration(service.LogWriter+1)*keeperTime)
}

// waitStopped waits until the process pid has released its lock. After limit it has
// master abort.
func (c *control) waitStopped(pid int, limit time.Duration) int {
	// A new master may have started since; that is not the one that was to stop.
	for deadline := time.Now().Add(limit); c.running() == pid; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			// Deliveries are cut off then, and made again at the next start; an operator
			// who stops the system wants it stopped.
			c.warn("process %d does not stop: it is told to abort", pid)
			return c.kill(pid, syscall.SIGQUIT)
		}
	}
	return 0
}

// kill sends the master a signal, if it is still process pid. That it has ended meanwhile
// is no error.
func (c *control) kill(pid int, s syscall.Signal) int {
	if err := signalMaster(c.config, pid, s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return c.fatal("send process %d a signal: %v", pid, err)
	}
	return 0
}

// abort ends the mail system at once, and does not wait.
func (c *control) abort() int {
	pid, status := c.mustRun()
	if status != 0 {
		return status
	}
	c.announce("aborting")
	return c.kill(pid, syscall.SIGQUIT)
}

// reload has the running mail system read its configuration again, and waits until the
// new one is in force.
func (c *control) reload() int {
	pid, status := c.mustRun()
	if status != 0 {
		return status
	}
	// What master would refuse is better said here, where a person sees it.
	settings, err := loadSettings(c.opts)
	if err != nil {
		return c.fatal("%v\nthe running configuration goes on", err)
	}
	c.announce("refreshing")
	// A master of an earlier version does not say how far it is; then the command does
	// not wait.
	before, waits := readProgress(c.config)
	// The progress was read before this, so that an end of the reload cannot be missed.
	if status = c.kill(pid, syscall.SIGHUP); status != 0 {
		return status
	}
	c.foretell(settings)
	if !waits {
		return 0
	}
	late, err := c.awaitReload(pid, before)
	switch {
	case err != nil:
		return c.fatal("%v", err)
	// No error: the reload goes on, and master will see to the processes.
	case late:
		c.warn("some processes still serve with the former configuration after %v", reloadPatience)
	}
	return 0
}

// status says whether the mail system runs. Scripts rely on its exit status.
func (c *control) status() int {
	pid, _, err := findRunning(c.config)
	if errors.Is(err, os.ErrPermission) {
		return c.fatal("whether %s is running is for its owner to ask: %v", c.name(), err)
	}
	if err != nil {
		return c.fatal("whether %s is running cannot be seen: %v", c.name(), err)
	}
	if pid == 0 {
		c.say("%s is not running", c.name())
		return 1
	}
	c.say("%s is running: PID: %d", c.name(), pid)
	return 0
}

// flush has the queue manager try all deferred mail, by the letters that Postfix's tools
// send.
func (c *control) flush() int {
	if _, status := c.mustRun(); status != 0 {
		return status
	}
	// The public socket, so that it works without master's help.
	path := filepath.Join(c.config.String("queue_directory"), "public", c.config.String("queue_service_name"))
	if err := service.Trigger(path, "FADI", c.config.Duration("trigger_timeout")); err != nil {
		return c.fatal("%v", err)
	}
	return 0
}

// check says what is wrong with the configuration and the directories; with -v also what
// is unwise, and what would behave differently from Postfix. It mends missing
// directories, as postfix check does. The exit status is 1 if the mail system would not
// work.
func (c *control) check() int {
	status := 0
	settings, err := loadSettings(c.opts)
	if err != nil {
		status = c.fatal("%v", err)
	}
	warnings := c.config.Warnings()
	// Settings that cannot be read have been complained of; the rest is checked all the
	// same.
	if settings != nil {
		warnings = settings.warnings()
	}
	for _, w := range warnings {
		c.warn("%s", w)
	}
	problems, err := prepareDirectories(c.config)
	if err != nil {
		status = c.fatal("%v", err)
	} else if contents, err := eachDirectory(c.config, directory.checkContents); err == nil {
		problems = append(problems, contents...)
	}
	for _, w := range problems {
		c.warn("%s", w)
	}
	for _, problem := range c.checkSetgid() {
		c.warn("%v", problem)
	}
	for _, text := range c.unwritable() {
		status = c.fatal("%s", text)
	}
	if err := advice.Place(c.config); err != nil {
		status = c.fatal("%v", err)
	}
	c.checkLog()
	if settings != nil {
		// Services read their settings in this process, as root or whoever checks, and so
		// see what they will see.
		//
		// Last, since it takes longest: tables are opened, and names looked up.
		mistakes, failures := settings.verdicts()
		for _, m := range mistakes {
			// A mistake that would keep mail from being taken or delivered is a failure
			// of the check.
			if m.Stops {
				status = c.fatal("%s", m)
			} else {
				c.warn("%s", m)
			}
		}
		for _, text := range failures {
			status = c.fatal("%s", text) // each has a line of its own
		}
	}
	// The ports of a mail system that runs are its own.
	if settings != nil && c.running() == 0 {
		for _, text := range settings.occupied() {
			c.warn("%s", text)
		}
	}
	if c.verbose && settings != nil {
		c.advise(settings)
	}
	return status
}

// unwritable says which directories the services will be unable to use.
func (c *control) unwritable() []string {
	problems, err := eachDirectory(c.config, directory.writable)
	if err != nil {
		return nil // check has said so, and nothing starts
	}
	return problems
}

// advise prints what is unwise, and what would behave differently from Postfix. It goes
// to standard output: it is the answer, and nothing is wrong.
func (c *control) advise(s *settings) {
	services, _, err := config.LoadMaster(c.opts.ConfigDir, c.config)
	if err != nil {
		c.warn("%v", err)
		return
	}
	if c.opts.Unwise != nil {
		if lines := c.opts.Unwise(c.config, services); len(lines) > 0 {
			fmt.Fprintln(c.stdout, "what may be unwise:")
			for _, l := range lines {
				fmt.Fprintf(c.stdout, "  %s\n", l)
			}
		}
	}
	var lines []string
	if c.opts.Advice != nil {
		lines = c.opts.Advice(c.config, services)
	}
	for _, note := range s.notes {
		lines = append(lines, located(note, services))
	}
	if len(lines) == 0 {
		fmt.Fprintln(c.stdout, "nothing in these files behaves differently from Postfix")
		return
	}
	fmt.Fprintln(c.stdout, "differences from Postfix with the same files:")
	for _, l := range lines {
		fmt.Fprintf(c.stdout, "  %s\n", l)
	}
}

// located puts the place in master.cf before a note on a service.
func located(note string, services []config.Service) string {
	for i := range services {
		title := "service " + services[i].Name + "/" + services[i].Type
		if rest, ok := strings.CutPrefix(note, title); ok && strings.IndexAny(rest, " :") == 0 {
			return fmt.Sprintf("%s:%d: %s", services[i].File, services[i].Line, note)
		}
	}
	return note
}

// setPermissions gives everything its owner, group and mode, like "postfix
// set-permissions".
func (c *control) setPermissions() int {
	if os.Geteuid() != 0 {
		return c.fatal("set-permissions: only root can give files away")
	}
	status := 0
	// Without the accounts there is nobody to give files to.
	_, gid, err := accounts(c.config)
	if err != nil {
		return c.fatal("%v", err)
	}
	// Every step is tried, so that one run mends as much as it can.
	problems, err := eachDirectory(c.config, func(d directory) error {
		return errors.Join(d.make(), d.mend(), d.mendContents())
	})
	if err != nil {
		return c.fatal("%v", err)
	}
	for _, w := range problems {
		status = c.fatal("%s", w)
	}
	// Packages may have been unpacked by a tool that drops the set-gid bit.
	for _, p := range setgidPrograms {
		path := c.program(p.name)
		err := giveGroup(path, gid)
		switch {
		case errors.Is(err, os.ErrNotExist):
			c.warn("%s is missing: %s", path, p.without)
		case err != nil:
			status = c.fatal("%v", err)
		default:
			for _, problem := range c.checkProgram(p, gid) { // what it cannot mend
				c.warn("%v", problem)
			}
		}
	}
	return status
}

// giveGroup makes a program set-gid of group gid. It goes by a descriptor, so that the
// file whose type was looked at is the file that is changed. The owner is set before the
// mode, because chown clears the set-gid bit.
func giveGroup(path string, gid int) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		if err = f.Chown(0, gid); err == nil {
			err = f.Chmod(setgidMode)
		}
	}
	return err
}

// A setgidProgram is a program by which users do what the group may do; without says what
// they cannot do if it is not so.
type setgidProgram struct{ name, without string }

var setgidPrograms = []setgidProgram{
	{"postdrop", "local mail cannot be submitted"},
	{"postqueue", "users cannot list the queue"},
}

// setgidMode is the mode of these programs.
const setgidMode = 0o755 | os.ModeSetgid

// program is the path of a program in command_directory.
func (c *control) program(name string) string {
	return filepath.Join(c.config.String("command_directory"), name)
}

// checkSetgid says what users will be unable to do. Without root's privileges there is
// one user, who needs nothing special.
func (c *control) checkSetgid() (problems []error) {
	if os.Geteuid() != 0 {
		return nil
	}
	gid, err := lookupGroup(c.config.String("setgid_group"))
	if err != nil {
		return nil // the check of the directories has said so
	}
	for _, p := range setgidPrograms {
		problems = append(problems, c.checkProgram(p, gid)...)
	}
	return problems
}

// checkProgram says what is wrong with a program that should be set-gid of group gid.
func (c *control) checkProgram(p setgidProgram, gid int) (problems []error) {
	path := c.program(p.name)
	info, err := os.Stat(path)
	if err != nil {
		return []error{fmt.Errorf("%w: %s", err, p.without)}
	}
	if !info.Mode().IsRegular() {
		return []error{fmt.Errorf("not a program: %s: %s", path, p.without)}
	}
	if err := c.programRights(info, gid); err != nil {
		problems = append(problems, fmt.Errorf("%w: %s; \"posthaste set-permissions\" mends it", err, path))
	}
	var fs unix.Statfs_t
	switch err := unix.Statfs(path, &fs); {
	case err != nil:
		problems = append(problems, fmt.Errorf("look at the file system of %s: %w", path, err))
	// The mode would be right, and postdrop would still fail for every user.
	case fs.Flags&unix.MS_NOSUID != 0: // statfs(2) has its own name for the same bit
		problems = append(problems, fmt.Errorf("on a file system mounted nosuid, where set-gid has no effect: %s: %s; mount it without nosuid, or have command_directory elsewhere",
			path, p.without))
	}
	return problems
}

// programRights says what is wrong with the owner, the group or the mode of such a
// program. A program that others can write to would give them the group's rights.
func (c *control) programRights(info os.FileInfo, gid int) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	mode := info.Mode()
	switch {
	case !ok || int(st.Gid) != gid:
		return fmt.Errorf("not of group %s", c.config.String("setgid_group"))
	case mode&os.ModeSetgid == 0:
		return fmt.Errorf("not set-gid (of group %s)", c.config.String("setgid_group"))
	case mode&os.ModeSetuid != 0:
		return errors.New("set-uid, which it must not be")
	// Its owner could replace what runs with the group's rights.
	case st.Uid != 0:
		return errors.New("not owned by root")
	case mode&0o022 != 0:
		return fmt.Errorf("too accessible (mode %04o, expected 0755)", mode.Perm())
	case mode&0o111 != 0o111:
		return fmt.Errorf("not executable by every user (mode %04o, expected 0755)", mode.Perm())
	}
	return nil
}
