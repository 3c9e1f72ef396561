// Package master supervises the mail system. It reads master.cf, opens the
// listening sockets, starts each service as a child process when its first
// client connects, restarts services that die, wakes services up periodically,
// reloads the configuration, and stops everything in order.
//
// # Services on demand
//
// While a service has no process, master watches its sockets. When one of them
// becomes readable, master executes its own program again under the name of
// the service's program, passes it the sockets, and does not watch them again
// until that process has ended or has given them up. A service is one process
// with a goroutine for each client; the process limit in master.cf bounds the
// number of clients.
//
// Master never closes a socket while the service is in master.cf: not during a
// reload, not when an idle process ends, not after a crash. Clients wait in
// the backlog; none is refused.
//
// # Reload
//
// A configuration with errors is refused, and the old one stays in force.
// Otherwise master starts a successor for each process, which reads the new
// settings and opens its tables while the old process serves. When all
// successors are ready, the old processes are told to retire and the
// successors to serve, so no client waits for a process to start. An ordinary
// process continues until its sessions have ended. The successor of an
// exclusive service (cleanup, qmgr, ...) serves when the old process has
// released its exclusive resource. The queue manager is replaced before
// cleanup, which records its last decisions. A further request to reload is
// carried out afterwards. Sockets are opened and closed as inet_interfaces,
// inet_protocols and master.cf now specify; directories and sockets that
// somebody has removed are created again.
//
// # Mistakes in master.cf
//
// An entry that is malformed, or that names a program that does not exist,
// affects only its own service. It is left out, the log has an error with file
// and line, and the other services run. At a reload, a running service whose
// entry is now faulty continues as it was. "posthaste check" ends with status
// 1 and names every faulty entry.
//
// # Stop
//
// Services stop in the order of their ranks: those that receive mail, those
// that deliver it, the queue manager, the services that these depend on, and
// finally cleanup and the log. Each rank has a time limit, after which its
// processes are killed.
//
// # When master dies
//
// Its processes notice and stop. The next master waits for them.
//
// # Security
//
// Master runs as root, and so do the services whose master.cf entry says
// privileged; the others run as mail_owner. Started by an ordinary user it
// does the same without changing users, and says so.
//
// The queue directory and pid/ belong to root; the content of private/,
// public/ and data_directory belongs to mail_owner. Master creates and removes
// sockets there with the owner's privileges, and repairs a directory through
// its descriptor, because its name could lead elsewhere. Only the owner of a
// lock file can open it, and so lock it. Lock files of earlier versions, which
// everybody could read, are replaced. The control commands send signals only
// to the process that holds the lock, and not to another process with the same
// number.
//
// Master reads nothing from peers or other processes except one status byte at
// a time, and the last standard error output of a service that dies, which
// goes to the log, bounded.
//
// # Parameters
//
// application_event_drain_time, daemon_directory, default_process_limit,
// import_environment, inet_interfaces, inet_protocols, mail_owner,
// mail_version, master_service_disable, process_id_directory, queue_directory,
// service_throttle_time, setgid_group, and those of package maillog.
//
// # Diagnostics
//
// "process P pid N exit status S", "process P pid N killed by signal S": a
// service failed.
//
// "P: bad command startup -- throttling": the service failed before it had
// done anything. It is started again after one second, then after two, and so
// on up to service_throttle_time.
//
// "P: has failed soon after its start, N times in a row: the next start waits
// for ...": the service had begun to serve each time. The pause is seconds,
// not a minute.
package master

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/service"
)

// Options is what the program that contains master tells it.
type Options struct {
	// ConfigDir is the directory of main.cf and master.cf.
	ConfigDir string
	// Services are the programs that master.cf may name.
	Services map[string]service.Spec
	// Executable is what is executed for a service; empty means the present
	// program. It must hand a service's command line to service.Main.
	Executable string
	// Verbose is how often -v was given on the command line: each service has it
	// besides those of its own line.
	Verbose int
	// StopTimeout bounds how long deliveries and sessions that are under way
	// may take when the mail system stops; zero means defaultStopTimeout.
	StopTimeout time.Duration
	// Echo, when set, is told of problems that end master, besides the log.
	Echo func(text string)
	// Ready, when set, is called once the sockets are open.
	Ready func()
	// Advice, when set, says for "check -v" what would behave differently
	// from Postfix with the same files.
	Advice func(*config.Config, []config.Service) []string
	// Unwise, when set, says for "check -v" what works and is probably not meant.
	Unwise func(*config.Config, []config.Service) []string
}

// defaultStopTimeout is how long a stopping mail system waits for what is
// under way.
const defaultStopTimeout = 15 * time.Second

// errRunning says that another master runs with the same queue directory.
var errRunning = errors.New("already running")

// runMaster runs the mail system until ctx ends, or a signal says so: SIGTERM or
// SIGINT stops it, SIGQUIT aborts it, SIGHUP reloads. It returns when no
// process is left. An error is why the mail system could not start; it has
// been logged if there was a log.
func runMaster(ctx context.Context, opts Options) error {
	err := run(ctx, opts)
	if err != nil && opts.Echo != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			opts.Echo(line)
		}
	}
	return err
}

func run(ctx context.Context, opts Options) error {
	dir, err := filepath.Abs(opts.ConfigDir)
	if err != nil {
		return err
	}
	opts.ConfigDir = dir
	if opts.Executable == "" {
		opts.Executable = "/proc/self/exe"
	}
	if opts.StopTimeout == 0 {
		opts.StopTimeout = defaultStopTimeout
	}
	settings, err := loadSettings(opts)
	if err != nil {
		return err
	}
	log, err := maillog.OpenDirect(settings.config, "master")
	if err != nil {
		return err
	}
	defer func() { log.Close() }()
	m, err := newMaster(opts, settings, log)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			log.Fatal("%s", line)
		}
		return err
	}
	defer func() { log = m.log }() // a reload opens another one
	m.serve(ctx)
	return nil
}

// newMaster does everything that can fail before the first service starts.
func newMaster(opts Options, s *settings, log *maillog.Logger) (m *master, err error) {
	m = &master{opts: opts, settings: s, log: log, events: make(chan func(), 64), gone: make(chan struct{}), children: make(map[int]*child),
		signals: make(chan os.Signal, 16)}
	// Who finds the lock held may ask for a reload at once: that must not end us.
	signal.Notify(m.signals, syscall.SIGHUP)
	defer func() {
		if err != nil {
			m.release()
			m = nil
		}
	}()
	problems, err := prepareDirectories(s.config)
	if err != nil {
		return m, err
	}
	for _, w := range problems {
		log.Warning("%s", w)
	}
	for _, w := range furnishJail(s, "/") {
		log.Warning("%s", w)
	}
	if err = os.Chdir(s.queue); err != nil {
		return m, fmt.Errorf("queue_directory: %w; create it, or name another one in main.cf", err)
	}
	if m.lock, err = lockPID(s.config); err != nil {
		return m, err
	}
	if m.livesLock, err = lockServices(s.config, log); err != nil {
		return m, err
	}
	if m.progressFile, err = openProgress(s.config); err != nil {
		log.Warning("%v", err)
	}
	m.publish()
	if m.flow, err = openFlow(); err != nil {
		return m, err
	}
	if m.poll, err = newPoller(m.readable); err != nil {
		return m, err
	}
	sockets, err := m.openSockets(s, nil)
	if err != nil {
		return m, err
	}
	m.adopt(s, sockets)
	m.announce(nil)
	return m, nil
}

// announce logs what a person should know about the configuration. What is
// built in is no news: "posthaste check -v" says it.
func (m *master) announce(before *settings) {
	for _, w := range m.settings.warnings() {
		m.log.Warning("%s", w)
	}
	for _, f := range m.settings.faulty {
		if slices.ContainsFunc(m.order, func(s *serv) bool { return f.Concerns(s.Name, s.Type) }) {
			m.log.Error("%v; the service goes on as it was", f)
		} else {
			m.log.Error("%v; the service is left out", f)
		}
	}
	if before == nil && os.Geteuid() != 0 {
		m.log.Info("not started by root: all services run as user ID %d", os.Geteuid())
	}
}

// version and place are what the log says at start and reload.
func (s *settings) version() string { return s.config.String("mail_version") }

// statusPanic is the exit status after a panic, which is that of Go's runtime.
const statusPanic = 2

// settle gives back the memory that only the start has needed: what was made for reading and examining the configuration
// is garbage now, and so little is allocated later that it would lie there for long.
func settle() {
	debug.FreeOSMemory()
	service.Settle()
}

// serve runs the mail system. It returns when every process has ended.
func (m *master) serve(ctx context.Context) {
	defer m.release()
	defer func() {
		// Nobody would handle events while release waits for the processes. They
		// notice that master has died, end, and the service manager starts all anew.
		if p := recover(); p != nil {
			m.log.Panic(p)
			m.log.Close()
			os.Exit(statusPanic)
		}
	}()
	signal.Notify(m.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGCHLD)
	m.log.Log(maillog.MasterStarted{Version: m.settings.version(), ConfigDir: m.opts.ConfigDir})
	m.log.Flush()
	m.poll.start()
	for _, s := range m.order {
		m.listen(s)
		m.startWakeups(s)
	}
	m.notify("READY=1")
	if m.opts.Ready != nil {
		m.opts.Ready()
	}
	m.after(service.SettleTime, settle)
	done := ctx.Done()
	for !m.finished() {
		select {
		case <-done:
			done = nil
			m.stop(syscall.SIGTERM)
		case f := <-m.events:
			f()
		case s := <-m.signals:
			m.signal(s.(syscall.Signal))
		}
	}
	m.log.Flush()
}

func (m *master) signal(s syscall.Signal) {
	switch s {
	case syscall.SIGCHLD:
		m.reap()
	case syscall.SIGHUP:
		m.reload()
	case syscall.SIGQUIT:
		m.abort(s)
	case syscall.SIGINT:
		if m.stopping { // the person is impatient
			m.abort(s)
			return
		}
		m.stop(s)
	default:
		m.stop(s)
	}
}

// release lets go of everything but the log.
func (m *master) release() {
	signal.Stop(m.signals)
	if m.poll != nil {
		m.poll.close()
	}
	m.quit.Do(func() { close(m.gone) })
	m.wg.Wait()
	for _, s := range m.sockets {
		s.remove()
	}
	if m.flow != nil {
		m.flow.close()
	}
	if m.progressFile != nil {
		m.progressFile.Close()
	}
	if m.livesLock != nil {
		m.livesLock.Close()
	}
	if m.lock != nil {
		m.lock.Close()
	}
}

// notify tells the service manager that started us, as sd_notify(3) does. A
// service manager that does not listen is not our trouble.
func (m *master) notify(state string) {
	if err := sdNotify(os.Getenv("NOTIFY_SOCKET"), state); err != nil {
		m.log.Warning("tell the service manager %q: %v", state, err)
	}
}

// A settings is one reading of main.cf and master.cf.
type settings struct {
	config   *config.Config
	queue    string // queue_directory
	services []*entry
	notes    []string            // what is built in
	faulty   []*config.LineError // entries of master.cf whose services are left out, in the order of the file
}
