// Services and their processes: starting them, hearing what they say of themselves, and
// what follows from their end. All of it happens in one goroutine, serve's; the few
// others only wait for something and then post a function. So no state here has a lock.

package master

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/maillog"
	"posthaste/internal/service"
)

// A master is the state of the running mail system. newMaster makes it, release ends it.
// It belongs to the goroutine of serve; others post functions to it.
type master struct {
	// What the program was started with, and the configuration in force. A reload replaces
	// settings and log.
	opts     Options
	settings *settings
	log      *maillog.Logger
	// The locked pid/master.pid, held until exit; the kernel releases the lock if this
	// process is killed.
	lock *os.File
	// A lock that every service process inherits. The next master waits for it, and so
	// for the services of a master that was killed.
	livesLock *os.File
	// in_flow_delay: a pipe that cleanup and qmgr share
	flow *flowPipe
	poll *poller

	// Listening sockets. They stay open over a reload, so that no client is refused.
	sockets map[string]*socket // by endpoint
	servs   map[string]*serv   // by entry key
	order   []*serv            // as in master.cf
	// which service a socket that became readable belongs to
	byFD     map[int]*serv
	children map[int]*child // by process ID

	// Set when the mail system stops, and never reset. Services are told to stop rank by
	// rank; rank is the present one, and allTold says that the last has been told.
	stopping  bool
	stopBegan time.Time
	rank      service.Rank // while stopping: what has been told to stop
	allTold   bool         // every rank has

	// The services whose processes will be replaced when their successors are ready; nil:
	// no reload is under way. A request that comes meanwhile is answered by one more
	// reload afterwards (again). covered counts requests beyond the first that the
	// present reload stands for.
	reloading []*serv
	reloads   int // how many have begun
	again     int // how often a reload has been asked for since
	covered   int // requests for which the one under way stands, besides the one that it answers
	// Those of them that keep other people's results, and are replaced last, when the
	// queue manager has left.
	stores []*serv

	progress     progress // what commands that wait for a reload are told
	progressFile *os.File // where; nil when that file could not be made or written

	// What other goroutines have to say: timers, processes' messages. serve reads it
	// until gone is closed.
	events  chan func()
	signals chan os.Signal
	quit    sync.Once
	gone    chan struct{} // closed when serve takes no more events
	wg      sync.WaitGroup
}

// A serv is a service of master.cf, with its processes. It outlives reloads as long as
// master.cf has it, and is forgotten when it is removed and its last process has ended.
type serv struct {
	*entry
	socks []*socket
	// The process that accepts clients, or is about to. nil before the first client and
	// after the last process has ended. There is at most one, since a process serves many
	// clients.
	current *child
	// During a reload: the successor, which reads its settings and opens its tables while
	// current serves.
	next *child
	// Processes of before a reload that have not let go of the sockets, or of what is
	// exclusive about the service.
	before []*child
	// Set for a while after a process that failed before it served, so that a mistake in
	// main.cf does not fork without end.
	throttled bool
	// Counts pauses: the timer of a pause that was replaced finds another number and does
	// nothing.
	throttles int
	crashes   int // in a row, each soon after the start
	badStarts int // in a row: it failed before it had served
	// master.cf does not have the service any more. Nothing more is started.
	removed bool
	wakeups int // the series of wake-ups that counts
	// a series of wake-ups is running
	waking bool
}

// A child is a process of a service, from its start until it has been reaped and heard to
// the end.
type child struct {
	serv *serv
	pid  int
	// For the log: the program's path as Postfix's log would have it.
	path  string
	began time.Time
	// It was told to retire or stop, or has been killed. Its end is expected: no crash,
	// and no reason for a pause.
	told bool
	// It waits for its turn; let says that it has been given it.
	ready bool
	let   bool // it is its turn
	// It does what its predecessor did. A store that it depends on is not replaced
	// before: the two pauses would add up.
	tookOver bool
	// It has served. A process that ends before that is taken to be misconfigured.
	used bool
	// The two halves of its end come in any order: reaped from wait4, eof from the status
	// socket. It is over when both have come, since its last words are on the socket.
	reaped  bool
	eof     bool // the status socket is at its end
	status  syscall.WaitStatus
	control *os.File // our end of the status socket
	stderr  *os.File
}

// post has f called by serve. It is dropped when serve has ended, so nobody may wait for
// f alone.
func (m *master) post(f func()) {
	select {
	case m.events <- f:
	case <-m.gone:
	}
}

// after has f called by serve after d.
func (m *master) after(d time.Duration, f func()) { time.AfterFunc(d, func() { m.post(f) }) }

// adopt makes the settings and their sockets those in force. Services that existed keep
// their processes.
func (m *master) adopt(s *settings, sockets map[string]*socket) {
	old := m.servs
	m.settings = s
	m.servs, m.order, m.byFD = make(map[string]*serv), nil, make(map[int]*serv)
	for _, e := range s.services {
		sv := old[e.key()]
		if sv == nil {
			sv = &serv{}
		}
		delete(old, e.key())
		sv.entry, sv.socks = e, nil
		for _, ep := range e.endpoints {
			sock := sockets[ep.String()]
			sv.socks = append(sv.socks, sock)
			m.byFD[sock.fd] = sv
		}
		m.servs[e.key()] = sv
		m.order = append(m.order, sv)
	}
	for _, sv := range old {
		// Its process goes on until its work is done: see retire.
		sv.removed = true
	}
	// Sockets that nothing uses any more. Clients in their backlog are lost, which
	// master.cf asks for.
	for name, sock := range m.sockets {
		if sockets[name] != sock {
			m.poll.forget(sock.fd)
			sock.remove()
		}
	}
	m.sockets = sockets
}

// listen watches the sockets of a service that has no process, and does nothing for one
// that has. It is called whenever that may have changed.
func (m *master) listen(s *serv) {
	if !m.wants(s) {
		return
	}
	for _, sock := range s.socks {
		if err := m.poll.arm(sock.fd); err != nil {
			panic(fmt.Sprintf("master: watch %s: %v", sock, err))
		}
	}
}

// wants says whether the service has no process and may have one.
func (m *master) wants(s *serv) bool {
	return s.current == nil && len(s.before) == 0 && !s.throttled && !s.removed && m.mayStart(s)
}

// mayStart says whether the service may have a new process. While the system stops, only
// services may that are of later ranks: others still need them.
func (m *master) mayStart(s *serv) bool {
	return !m.stopping || !m.allTold && s.spec.Rank > m.rank
}

// readable is called by the poller, on its goroutine. By the time serve looks, the
// service may have a process.
func (m *master) readable(fd int) {
	m.post(func() {
		if s := m.byFD[fd]; s != nil && m.wants(s) {
			m.start(s)
		}
	})
}

// start starts a process for the service, because a client has come.
func (m *master) start(s *serv) {
	c := m.spawn(s)
	if c == nil {
		m.throttle(s)
		return
	}
	s.current = c
	m.let(s)
	if s.WakeupLazy && !s.waking {
		m.nextWakeup(s, s.wakeups)
	}
}

// let tells the service's process that it is its turn, once nobody is in its way: at once
// for most services, for an exclusive one when its predecessor has let go.
func (m *master) let(s *serv) {
	if c := s.current; c != nil && !c.let && (len(s.before) == 0 || !s.spec.Exclusive) {
		c.let = true
		c.control.Write([]byte{service.StatusGo}) // one that has died is noticed elsewhere
	}
}

// spawn starts a process that waits for its turn, and the goroutines that listen to it.
// It returns nil, with a warning in the log, when that cannot be done.
func (m *master) spawn(s *serv) *child {
	c, err := m.fork(s)
	if err != nil {
		m.log.Warning("%s: start a process: %v", m.programPath(s), err)
		return nil
	}
	m.children[c.pid] = c
	// It ends with the process, whose end of the socket is then closed.
	m.wg.Go(func() { m.readStatus(c) })
	// nil where standard error is the log itself.
	if c.stderr != nil {
		m.wg.Go(func() {
			readLastWords(c.stderr, func(line string) {
				m.post(func() { m.log.Warning("process %s pid %d: %s", c.path, c.pid, line) })
			})
		})
	}
	return c
}

// programPath is the path that log lines name, which is where Postfix has its programs.
func (m *master) programPath(s *serv) string {
	return filepath.Join(m.settings.config.String("daemon_directory"), s.Command)
}

// fork executes the service's program, which for most services is the present one under
// another name, with the descriptors of package service in their places: status socket,
// locks, and the listening sockets last.
func (m *master) fork(s *serv) (_ *child, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	// The child's end must be closed here, or eof would never come.
	defer unix.Close(pair[1])
	// Go's poller then waits for it, and a read can be ended by closing.
	unix.SetNonblock(pair[0], true)
	c := &child{serv: s, path: m.programPath(s), began: time.Now(), control: os.NewFile(uintptr(pair[0]), "status")}
	defer func() {
		if err != nil {
			c.control.Close()
			c.stderr.Close() // which nil allows
		}
	}()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	stdout, stderr := null.Fd(), uintptr(2)
	logFile := m.settings.config.String("maillog_file")
	if logFile == "/dev/stdout" {
		stdout = 1
	}
	// What it writes to standard error is logged: see readLastWords.
	if logFile != "/dev/stderr" {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		defer w.Close()
		c.stderr, stderr = r, w.Fd()
	}
	files := []uintptr{
		null.Fd(), stdout, stderr,
		service.FlowReadFD: uintptr(m.flow.r), service.FlowWriteFD: uintptr(m.flow.w),
		service.StatusFD: uintptr(pair[1]), service.LockFD: m.livesLock.Fd(),
	}
	for _, sock := range s.socks {
		files = append(files, uintptr(sock.fd))
	}
	// Services with a program of their own, for the weight of what they link in, have one
	// in daemon_directory.
	executable := m.opts.Executable
	if program := s.spec.ProgramFor(m.settings.config); program != "" {
		if executable, err = service.ProgramPath(program, m.settings.config.String("daemon_directory")); err != nil {
			return nil, err
		}
	}
	c.pid, err = forkExec(executable, append([]string{s.Command}, s.line.Strings()...), &syscall.ProcAttr{
		Dir:   m.settings.queue,
		Env:   m.environment(),
		Files: files,
		Sys:   &syscall.SysProcAttr{Setpgid: true}, // a terminal's signals are for us
	}, s.Unprivileged && os.Geteuid() == 0)
	if err != nil {
		return nil, fmt.Errorf("execute %s: %w", executable, err)
	}
	return c, nil
}

// forkExec executes a program. With noNewPrivs, nothing that it executes can ever gain
// privileges. The flag belongs to a thread and cannot be taken back, so it is set on a
// thread that does nothing else and ends with its goroutine.
func forkExec(path string, argv []string, attr *syscall.ProcAttr, noNewPrivs bool) (pid int, err error) {
	if !noNewPrivs {
		return syscall.ForkExec(path, argv, attr)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		if err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err == nil {
			pid, err = syscall.ForkExec(path, argv, attr)
		}
	})
	wg.Wait()
	return pid, err
}

// runtimeVariables are those of the Go runtime, which an operator or a test
// sets for all processes.
var runtimeVariables = []string{"GOGC", "GOMEMLIMIT", "GOMAXPROCS", "GODEBUG", "GOTRACEBACK", "GOCOVERDIR"}

// environment is what processes inherit: import_environment, where the configuration is,
// and a safe search path. Anything else an administrator's shell may have is left out.
func (m *master) environment() []string {
	env := append(m.settings.config.Env(), "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
	for _, v := range append(m.settings.config.List("import_environment"), runtimeVariables...) {
		if name, _, ok := strings.Cut(v, "="); ok {
			env = append(env, v)
		} else if value, ok := os.LookupEnv(name); ok && name != "MAIL_CONFIG" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// readStatus reads what the process says of itself, an octet each, until it has ended.
func (m *master) readStatus(c *child) {
	defer c.control.Close()
	var b [1]byte
	for {
		n, err := c.control.Read(b[:])
		if n == 1 {
			what := b[0]
			m.post(func() { m.said(c, what) })
			continue
		}
		if err != nil {
			m.post(func() {
				c.eof = true
				m.ended(c)
			})
			return
		}
	}
}

// said takes in one such octet.
func (m *master) said(c *child, what byte) {
	switch what {
	case service.StatusUsed:
		c.used = true
		c.serv.badStarts = 0
	case service.StatusReady:
		c.ready = true
		m.replaceAll()
	case service.StatusTookOver:
		c.tookOver = true
		m.retireStores(false)
	case service.StatusRetired:
		c.told = true
		s := c.serv
		if s.current == c { // it retires by itself: it was idle
			s.current, s.before = nil, append(s.before, c)
		}
		if !s.spec.Exclusive {
			m.letGo(c)
		}
	case service.StatusReleased:
		if c.told { // else it has failed, which is seen to when it has ended
			m.letGo(c)
		}
	}
}

// letGo takes in that the process is in nobody's way any more, because it said so or
// because it has had letGoTime.
func (m *master) letGo(c *child) {
	s := c.serv
	i := slices.Index(s.before, c)
	if i < 0 {
		return
	}
	s.before = slices.Delete(s.before, i, i+1)
	m.let(s)
	m.listen(s)
	m.revive(s)
	m.retireStores(false)
	m.settle()
}

// lastWords is how many lines of a process's standard error are logged: the Go runtime's
// reason and the first goroutines.
const lastWords = 40

// readLastWords passes on what a process writes to standard error, where the Go runtime
// says why it gives up. It reads to the end in any case, so that a process never blocks
// on a full pipe.
func readLastWords(f *os.File, say func(line string)) {
	defer f.Close()
	in := bufio.NewReaderSize(f, 4096)
	for n := 0; ; {
		line, long, err := in.ReadLine()
		if err != nil {
			return
		}
		if len(line) > 0 && n < lastWords {
			n++
			say(string(line))
		}
		for long && err == nil {
			_, long, err = in.ReadLine()
		}
	}
}

// reap collects processes that have ended. SIGCHLD says only that there are some. Except
// as process 1 of a container, only our own are waited for, since a library may have
// started others.
func (m *master) reap() {
	if os.Getpid() == 1 { // in a container we inherit everybody's orphans
		for {
			var ws syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || pid <= 0 {
				return
			}
			if c := m.children[pid]; c != nil {
				m.reaped(c, ws)
			}
		}
	}
	for pid, c := range m.children {
		var ws syscall.WaitStatus
		if got, err := syscall.Wait4(pid, &ws, syscall.WNOHANG, nil); err == nil && got == pid {
			m.reaped(c, ws)
		}
	}
}

// reaped takes in the exit status of a process.
func (m *master) reaped(c *child, ws syscall.WaitStatus) {
	c.reaped, c.status = true, ws
	if c.stderr != nil {
		// What it has written is there already; what a grandchild of it may
		// write some day is not waited for.
		c.stderr.SetReadDeadline(time.Now().Add(time.Second))
	}
	m.ended(c)
}

// ended acts on the end of a process, when it has been reaped and heard to the end. What
// follows depends on what it was: a successor that failed before its turn holds up the
// reload no longer; a process that failed before it served is throttled; one that crashed
// is replaced, at once or after a pause.
func (m *master) ended(c *child) {
	if !c.reaped || !c.eof {
		return
	}
	delete(m.children, c.pid)
	s := c.serv
	failed := m.report(c)
	// Also a process that exits with 0 within a second without having served: it would be
	// started again for the client that still waits, without end.
	bad := !c.used && !c.told && (failed || time.Since(c.began) < time.Second)
	if s.next == c { // whatever is wrong, the successor is started again when there is need
		s.next = nil
		m.replaceAll()
		m.advance()
		return
	}
	if s.current == c {
		s.current = nil
		m.retireStores(false)
	}
	if i := slices.Index(s.before, c); i >= 0 {
		s.before = slices.Delete(s.before, i, i+1)
		m.retireStores(false)
		m.settle()
	}
	m.let(s)
	s.crashes++
	if !failed || c.told || time.Since(c.began) >= soundLife {
		s.crashes = 0
	}
	goesOn := !s.removed && !m.stopping
	switch pause := crashPause(s.crashes); {
	case bad && goesOn:
		m.throttle(s)
	case pause > 0 && goesOn:
		m.log.Warning("%s: has failed soon after its start, %d times in a row: the next start waits for %s", m.programPath(s), s.crashes, pause)
		m.pause(s, pause)
	default:
		m.listen(s)
		m.revive(s)
	}
	m.advance()
}

// A process that has served and dies is replaced at once. One that dies of something that
// it finds each time, a message or a table, would be started many times a second for
// ever; so from the third time on its successor waits.
const (
	soundLife  = 10 * time.Second // who lives for so long has not died of its start
	freeDeaths = 2
	maxPause   = 8 * time.Second
)

// crashPause is how long the next start waits after so many failures in a row.
func crashPause(crashes int) time.Duration {
	if crashes <= freeDeaths {
		return 0
	}
	return min(time.Second<<min(crashes-freeDeaths-1, 10), maxPause)
}

// revive wakes a service that has lost its process and works by the clock (qmgr, pickup):
// nobody may come to its socket for a long time.
func (m *master) revive(s *serv) {
	if s.Wakeup > 0 && !s.WakeupLazy && s.current == nil && len(s.before) == 0 && !s.removed && !m.stopping {
		m.wakeUp(s)
	}
}

// report logs the failure of a process, and says whether its end was one. An end by a
// signal that we sent is none.
func (m *master) report(c *child) bool {
	e := maillog.ProcessFailed{Path: c.path, PID: c.pid}
	switch {
	case c.status.Signaled():
		e.Signal = int(c.status.Signal())
		if c.told && (e.Signal == int(syscall.SIGHUP) || e.Signal == int(syscall.SIGTERM) || e.Signal == int(syscall.SIGKILL)) {
			return false
		}
	case c.status.ExitStatus() != 0:
		e.Status = c.status.ExitStatus()
	default:
		return false
	}
	m.log.LogWarning(e)
	return true
}

// throttle keeps a service without a process for a while after a bad start. What keeps it
// from starting is often over in a moment, such as a full disk or a table that is being
// made, and others wait for the service. So the first pauses are short; only what goes on
// failing waits for service_throttle_time, Postfix's pause.
func (m *master) throttle(s *serv) {
	m.log.LogWarning(maillog.Throttling{Path: m.programPath(s)})
	limit := m.settings.config.Duration("service_throttle_time")
	m.pause(s, min(firstThrottle<<min(s.badStarts, 20), limit))
	s.badStarts++
}

// firstThrottle is the pause after the first bad start; each one is twice as long
// as the one before.
const firstThrottle = time.Second

// pause keeps the service without a process for d, and then listens for it again.
func (m *master) pause(s *serv, d time.Duration) {
	s.throttled = true
	s.throttles++
	count := s.throttles
	m.after(d, func() {
		if s.throttles == count {
			s.throttled = false
			m.listen(s)
			m.revive(s)
		}
	})
}

// tell sends the process a signal. A process that was reaped gets none: its number may be
// another's by now.
func (m *master) tell(c *child, s syscall.Signal) {
	c.told = true
	if c.reaped {
		return
	}
	if s == syscall.SIGKILL {
		// And whatever it has executed.
		unix.Kill(-c.pid, s)
	}
	unix.Kill(c.pid, s) // ESRCH only between its end and its reaping
}

// String names the process for messages.
func (c *child) String() string { return c.serv.key() + " process " + strconv.Itoa(c.pid) }
