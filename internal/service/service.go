// Package service is the skeleton of every service process, written once: a
// service is a Spec, which is a function to run and a few declared
// constraints, and Main does the rest.
//
// Master starts a service by executing its own program again under the
// service's name, with the listening sockets as inherited descriptors. Main
// reads the command line, loads main.cf with the -o settings of master.cf,
// opens the log, gives up privileges, and runs the service until it is told to end, or until it has had nothing to do for
// max_idle.
//
// # How a process ends
//
//   - Retire (SIGHUP, reload; also idleness): the listening sockets are given
//     up at once, and the successor may accept. What is under way, such as an
//     SMTP session, goes on to its natural end under the old settings. The
//     context of Spec.Run ends; those of handlers do not.
//     A service that lingers goes on as before until it suits everybody.
//   - Stop (SIGTERM; also the death of master): as above, and in addition the
//     handlers' contexts end: what is in hand is finished, nothing new is
//     begun. Master kills what has not ended in time.
//
// # How a process begins
//
// At a reload master starts the successor while the old process still serves.
// The successor reads its settings and opens its tables, says that it is ready,
// and waits until master lets it serve: Env.Await. So nobody waits for it to
// start. An exclusive service waits before Spec.Run, or, if its Spec says
// Prepares, where it calls Await; the others wait before they accept.
//
// SIGUSR1 has the process profile itself for a while, see profiler.
//
// The sockets themselves belong to master, which never closes them while the
// service is configured: a client that connects between two processes waits
// in the backlog and is not refused.
//
// # Inherited descriptors
//
//	3  reading end, 4 writing end of the flow control pipe
//	5  status socket: to master one byte per change, from master end of file
//	   when it has died
//	6  lock that says that processes of this mail system live
//	7  the first listening socket
//
// # Security
//
// A service whose master.cf entry says unprivileged runs as mail_owner, with
// that user's groups, and, as master sets no_new_privs, nothing that it
// executes gains privileges. A chroot service is confined to queue_directory.
// Both happen before Spec.Run, or, for a service that first opens tables, keys
// and certificates with master's privileges, when it calls Env.Confine: it
// opens nothing for writing but state of its own, and talks to nobody, before that.
//
// At the same time services that never execute programs nor change to other
// users give up both in earnest: with Landlock the kernel refuses them to execute
// anything, and to write outside queue_directory, data_directory, the directory
// of temporary files and what their Spec names; see package confine. A kernel
// without Landlock grants what the user may do. service_sandbox = no switches it off.
//
// # Parameters
//
// data_directory, in_flow_delay, mail_owner, max_idle, metrics_listen, process_name, queue_directory,
// service_name, service_sandbox, stress, and those of package maillog.
//
// # Diagnostics
//
// "N clients are served at a time instead of M": the process limit of master.cf
// is higher than what the limit of open files allows.
//
// "cannot accept a connection, and try again": the process has too many files open,
// or the system has. It is said once in 1000 seconds for each reason.
//
// "fatal: ..." is why the process could not start or go on; "panic: ..." is a
// defect, followed by the stack.
package service

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/confine"
	"posthaste/internal/event"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/metrics"
	"posthaste/internal/storage"
	"posthaste/internal/table"
)

// A Rank is when a service stops, relative to others. Those that ask stop
// before those that answer.
type Rank uint8

// The ranks, in the order in which services stop.
const (
	Intake    Rank = iota // smtpd, pickup: mail comes in
	Agent                 // smtp, local, ...: mail goes out
	Queue                 // qmgr: needs what agents report
	Helper                // bounce, verify, trivial-rewrite: serve all of those
	Store                 // cleanup: everybody's results end there
	Journal               // events: hears what all of them have to tell
	LogWriter             // postlog: has the last word
)

// A Spec declares a service.
type Spec struct {
	// Process is the program's name, as in master.cf's last column and in the
	// log: smtpd, trivial-rewrite.
	Process string
	// Exclusive services own something (the spool's log, the queue): never more
	// than one process has it. The old one has returned from Run, or has called
	// Env.Release, before its successor's Env.Await returns. An idle one stays.
	Exclusive bool
	// Prepares says that an exclusive service calls Env.Await itself, and does
	// nothing before that which its predecessor could notice.
	Prepares bool
	// Lingers says that the service, told to retire, goes on until it calls
	// Env.Retire: when nothing is under way that its successor would have to wait
	// for, at the latest after LingerTime. Env.Leaving says when it has been told.
	Lingers bool
	// TakesOver says that the service calls Env.TookOver some time after it has begun
	// to serve. At a reload the stores that it depends on stay as they are until then.
	TakesOver bool
	// Rank says when it is stopped.
	Rank Rank
	// Program is the file name of the program that has the service, where it is
	// not the present one. It is found as ProgramPath does.
	Program string
	// Queue says that the service opens the queue, and so is in another program (storage.Program) where
	// another engine than the log keeps it.
	Queue bool
	// Storage is the engine that the program has beside the log; nil: none. It is set by the program.
	Storage storage.Kind
	// LogDirect has the process write maillog_file itself. It is for postlog,
	// which cannot send its lines to itself.
	LogDirect bool
	// Confines says that Run calls Env.Confine itself, after it has opened
	// what needs master's privileges or lies outside chroot.
	Confines bool
	// Tries says that Run does nothing before Confine but read its settings and
	// open what they name, and so can be tried by "posthaste check": see Try.
	Tries bool
	// Sandbox lists what the service writes to besides queue_directory,
	// data_directory and the directory of temporary files, and says whether it
	// can do with that and without executing programs: then the kernel holds it
	// to that. Nil is for services that execute programs or change to other
	// users. See [Plain].
	Sandbox func(cfg *config.Config) (writes []string, ok bool)
	// MaxFile is how large a file the service, and the programs that it starts, may
	// write, in bytes; 0: any. Nil is for services without such a limit.
	MaxFile func(cfg *config.Config) int64
	// Frugal services wait for sockets and seldom for disks: they begin with one
	// processor, and have more when they need more. See governor.
	Frugal bool
	// Syncs says that many threads of the service wait for disks at a time: it has
	// more processors than there are. See spread.
	Syncs bool
	// Talks says that -v in master.cf has the service log its dialogues. It has no effect in
	// others.
	Talks bool
	// Run serves. When ctx ends it stops taking new work, finishes what is in
	// hand, and returns nil; see the package comment for the two ways in which
	// that happens. An error ends the process with "fatal: " and the error in
	// the log, and exit status 1.
	Run func(ctx context.Context, env *Env) error
}

// ProgramFor is the file name of the program that has the service, as cfg wants the queue to be kept; "": the
// present one.
func (s *Spec) ProgramFor(cfg *config.Config) string {
	if s.Queue && storage.Elsewhere(cfg) {
		return storage.Program
	}
	return s.Program
}

// Plain is the Spec.Sandbox of services that write nowhere else.
func Plain(*config.Config) (writes []string, ok bool) { return nil, true }

// An Env is what a service finds when it runs.
type Env struct {
	Name    string   // first column of master.cf: smtp, 127.0.0.1:10025, relay
	Type    string   // second column: inet, unix, pass, unix-dgram
	Process string   // smtpd
	Args    []string // of master.cf's command, less the options: flags=DR user=vmail argv=...
	Config  *config.Config
	Log     *maillog.Logger
	// Listeners are the service's sockets, of type inet, unix or pass. One of
	// type pass yields the connections that others hand over.
	Listeners []net.Listener
	// PacketConns are those of type unix-dgram.
	PacketConns []*net.UnixConn
	// MaxProc is how many clients may be served at once; 0 is no limit.
	MaxProc int
	// Verbose is how often master.cf has -v: the more, the more a service logs.
	Verbose int
	// Flow is the pipe of in_flow_delay.
	Flow *Flow
	// Metrics is what the process counts. It is nil, and counts nothing, unless
	// metrics_listen is set.
	Metrics *metrics.Set
	// Events hands over what becomes of mail. It is nil, and does nothing, unless
	// event_sinks is set.
	Events *event.Reporter
	// Privileged says that the process runs as root and may change to other
	// users: master.cf says so, and master was started by root.
	Privileged bool
	// Storage is the engine that the program has for the queue beside the log; nil: none.
	Storage storage.Kind

	owner    int // mail_owner's user number, if the process was started by root
	activity *activity
	stress   stress
	faults   faults
	confined *confine.Confinement
	reporter *reporter
	confine  func() error
	retire   func()
	leaving  chan struct{}         // closed when the process is to retire; nil where a test makes an Env
	await    func(context.Context) // nil: there is nobody to wait for
	turn     <-chan struct{}       // closed when the process may serve; nil where a test makes an Env
	world    World                 // nil: the operating system
	exit     func()                // ends a process that is simulated; nil: os.Exit does
	release  func()                // nil: nobody waits for us
	tookOver func()                // nil: nobody waits for that
}

// Await says to master that the process is prepared, and returns when it may
// serve, or when ctx ends. A second call does nothing.
func (env *Env) Await(ctx context.Context) {
	if env.await != nil {
		env.await(ctx)
	}
}

// Turn is closed when the process may serve: from then on Await does not wait. Where nobody has to be
// waited for, as at the start of the mail system, that is soon after the process has begun. It is nil in an
// Env that a test made.
func (env *Env) Turn() <-chan struct{} { return env.turn }

// LingerTime is how long a service that lingers may take to retire.
const LingerTime = 30 * time.Second

// Leaving is closed when a service that lingers is to retire.
func (env *Env) Leaving() <-chan struct{} { return env.leaving }

// Release says to master that the process does not need any more what is
// exclusive about the service, although it goes on for a while: the successor
// may have it. To return from Spec.Run says so, too.
func (env *Env) Release() {
	if env.release != nil {
		env.release()
	}
}

// TookOver says to master that the process does by now what its predecessor did
// before it: see Spec.TakesOver. Only the first call does something.
func (env *Env) TookOver() {
	if env.tookOver != nil {
		env.tookOver()
	}
}

// Retire has the process take no new work and end when what is in hand is
// done; its successor begins when there is need. It is for a process that had
// better be replaced.
func (env *Env) Retire() { env.retire() }

// Exit ends the process at once, as after a fatal error, which has been logged.
func (env *Env) Exit() {
	env.Log.Close()
	if env.exit != nil {
		env.exit()
		runtime.Goexit()
	}
	os.Exit(1)
}

// Confine gives up the privileges and the view of the file system that
// master.cf does not grant the service. It is for services whose Spec says
// that they confine themselves; none of them serves anybody before. A second
// call does nothing.
func (env *Env) Confine() error {
	do := env.confine
	env.confine = nil
	if do == nil {
		return nil
	}
	if err := do(); err != nil {
		return err
	}
	env.reporter.start()
	env.Events.Start()
	return nil
}

// Tables are the options of the service's tables: warnings go to the log, and
// a table that changes after Confine is read again, if need be by a successor
// of this process.
func (env *Env) Tables() table.Options {
	o := TableOptions(env.Config, env.Log)
	o.Confined = env.confined
	return o
}

// TableOptions are Tables for a process that gives up nothing.
func TableOptions(cfg *config.Config, log *maillog.Logger) table.Options {
	return table.Options{Warn: func(text string) { log.Warning("%s", text) },
		MaxQuery: int(cfg.Bytes("socketmap_max_query_size")), MaxReply: int(cfg.Bytes("socketmap_max_reply_size")),
		Proxy: filepath.Join("private", cfg.String("proxymap_service_name"))}
}

// Private is where another service is reached that is for the mail system only. The
// working directory is the queue directory, and the path of the socket is relative to it, so that it
// is short enough for a socket address and right inside chroot.
func (env *Env) Private(name string) ipc.Address { return env.at(filepath.Join("private", name)) }

// Public is Private for sockets that commands may reach too.
func (env *Env) Public(name string) ipc.Address { return env.at(filepath.Join("public", name)) }

// Used tells master that the service does its work: should it fail later, it
// is started again at once. Accepting a connection says so by itself; it is
// for services that do not.
func (env *Env) Used() { env.activity.use() }

// Busy says that something is under way, so that the process is not idle,
// until the function that it returns is called.
func (env *Env) Busy() (done func()) {
	env.activity.enter()
	return sync.OnceFunc(env.activity.leave)
}

// activity notices when nothing has happened for a while.
type activity struct {
	mu     sync.Mutex
	used   bool
	onUse  func() // called once
	n      int
	idle   time.Duration // 0: never idle
	timer  *time.Timer
	onIdle func()
}

// start begins to look for idleness.
func (a *activity) start(idle time.Duration, onIdle func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.idle, a.onIdle = idle, onIdle
	if idle > 0 {
		a.timer = time.AfterFunc(idle, a.expire)
	}
}

func (a *activity) expire() {
	a.mu.Lock()
	f := a.onIdle
	if a.n > 0 {
		f = nil
	}
	a.mu.Unlock()
	if f != nil {
		f()
	}
}

func (a *activity) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
	}
}

func (a *activity) use() {
	a.mu.Lock()
	first := !a.used
	a.used = true
	if a.timer != nil && a.n == 0 {
		a.timer.Reset(a.idle)
	}
	a.mu.Unlock()
	if first && a.onUse != nil {
		a.onUse()
	}
}

func (a *activity) enter() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	if a.timer != nil {
		a.timer.Stop()
	}
}

func (a *activity) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n--
	if a.timer != nil && a.n == 0 {
		a.timer.Reset(a.idle)
	}
}

// A listener is a socket whose use is noted. It hands out the connections as
// they are, so that a session has all that a TCP connection can do.
type listener struct {
	net.Listener
	a *activity
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.a.use()
	}
	return c, err
}
