// Package testservers starts real database servers for tests: PostgreSQL,
// MariaDB, OpenLDAP and memcached, from their Debian packages. Each has an own data
// directory, listens on loopback and on a socket below it, and ends with the test.
//
// A test whose server is not installed is skipped, and says so; with
// PEERS_REQUIRED set it fails.
//
// # Security
//
// The servers take any client on this machine that knows the passwords of
// the tests. They see no data but the tests'.
package testservers

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/testport"
	"posthaste/internal/testproc"
	"posthaste/internal/testwait"
)

// patience is how long a server may take to start. It is only ever reached by
// a failure.
const patience = testwait.Patience

// A Server is one server, running or not. It belongs to the test's goroutine.
type Server struct {
	Addr   string // host:port on loopback
	Socket string // the path of its socket

	t    testing.TB
	dir  string
	args []string
	cred *syscall.Credential
	quit syscall.Signal
	ask  func() *exec.Cmd // succeeds when the server is there
	load func(text string) *exec.Cmd

	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan struct{}
}

// program finds a program where Debian keeps it, or on the path. Debian's psql on the path is a Perl program that
// looks for this one, for ten times as long as this one needs.
func program(t testing.TB, name string) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	slices.Reverse(found) // the newest
	if path, err := exec.LookPath(name); err == nil {
		found = append(found, path)
	}
	for _, f := range append(found, "/usr/sbin/"+name) {
		if _, err := os.Stat(f); err == nil {
			return f
		}
	}
	if os.Getenv("PEERS_REQUIRED") != "" {
		t.Fatalf("%s is not installed (make peers)", name)
	}
	t.Skipf("SKIPPED: %s is not installed (make peers)", name)
	return ""
}

// newServer makes the directory of a server that runs as account, if that
// exists and we may choose.
func newServer(t testing.TB, account string) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "db") // short, for the socket's sake
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &Server{t: t, dir: dir, quit: syscall.SIGTERM}
	if u, err := user.Lookup(account); err == nil && os.Getuid() == 0 {
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		s.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	os.Chmod(dir, 0o755)
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(testport.Free(t)))
	return s
}

func (s *Server) port() string {
	_, port, _ := net.SplitHostPort(s.Addr)
	return port
}

// run runs a command to its end, as the server's user.
func (s *Server) run(name string, args ...string) {
	s.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// Start starts the server and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.out.Reset()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = s.dir, &s.out, &s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.done = make(chan struct{})
	unwatch := testproc.Watch(s.t, s.cmd, s.dir)
	go func(cmd *exec.Cmd, done chan struct{}) {
		cmd.Wait()
		unwatch()
		close(done)
	}(s.cmd, s.done)
	s.t.Cleanup(s.Stop)
	for limit := time.Now().Add(patience); ; time.Sleep(30 * time.Millisecond) {
		out, err := s.answer()
		if err == nil {
			return
		}
		select {
		case <-s.done:
			s.t.Fatalf("%s ended:\n%s", s.args[0], s.out.String())
		default:
		}
		if time.Now().After(limit) {
			s.t.Fatalf("%s does not answer: %v\n%s", s.args[0], err, out)
		}
	}
}

// answer asks the server whether it is there. To start a client is dear, so it is not done before the server listens.
func (s *Server) answer() ([]byte, error) {
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		return nil, err
	}
	conn.Close()
	return s.ask().CombinedOutput()
}

// Stop stops the server and waits until it has ended. It may be started again.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	s.cmd.Process.Signal(s.quit)
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Errorf("%s does not stop", s.args[0])
		s.cmd.Process.Kill()
		<-s.done
	}
	s.cmd = nil
}

// Kill ends all of the server's processes at once, as a power cut does, save that what it has written to the
// operating system stays. It may be started again.
func (s *Server) Kill() {
	s.t.Helper()
	syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Fatalf("%s cannot be killed", s.args[0])
	}
	s.cmd = nil
}

// Pause has the server not answer, and keep its connections. When it returns
// all of the server's threads stand still.
func (s *Server) Pause() {
	s.t.Helper()
	pid := s.cmd.Process.Pid
	syscall.Kill(-pid, syscall.SIGSTOP)
	for limit := time.Now().Add(patience); !stopped(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			s.t.Fatalf("%s does not pause", s.args[0])
		}
	}
}

// stopped says whether all threads of a process are.
func stopped(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		_, state, _ := strings.Cut(string(stat), ") ")
		if err == nil && !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return len(tasks) > 0
}

// Resume ends a pause.
func (s *Server) Resume() { syscall.Kill(-s.cmd.Process.Pid, syscall.SIGCONT) }

// Load gives the server text in its own language: SQL, or LDIF.
func (s *Server) Load(text string) {
	s.t.Helper()
	cmd := s.load(text)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("load:\n%s\n%v\n%s", text, err, out)
	}
}

// PostgreSQL starts a PostgreSQL server with a database "mail", a user
// "mail" with the password "secret", and what text says in SQL. More settings may follow, name=value.
func PostgreSQL(t testing.TB, text string, settings ...string) *Server {
	t.Helper()
	s := postgres(t, settings...)
	tar := exec.Command("tar", "-x", "-p", "-C", s.dir)
	tar.Stdin = newCluster(t)
	tar.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	if out, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	s.Start()
	s.Load(text + "\nGRANT SELECT ON ALL TABLES IN SCHEMA public TO mail;")
	return s
}

// postgres is a server that has no data yet.
func postgres(t testing.TB, settings ...string) *Server {
	t.Helper()
	server, psql := program(t, "postgres"), program(t, "psql")
	s := newServer(t, "postgres")
	s.quit = syscall.SIGINT // ends sessions too
	s.Socket = s.dir
	s.args = []string{server, "-D", filepath.Join(s.dir, "data"), "-p", s.port(), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=" + s.dir,
		"-c", "fsync=off", "-c", "shared_buffers=8MB", "-c", "max_wal_size=1GB", "-c", "max_connections=30"}
	for _, setting := range settings {
		s.args = append(s.args, "-c", setting)
	}
	client := func(db string) *exec.Cmd {
		return exec.Command(psql, "-h", s.dir, "-p", s.port(), "-U", "admin", "-d", db, "-v", "ON_ERROR_STOP=1", "-q")
	}
	s.ask = func() *exec.Cmd {
		cmd := client("postgres")
		cmd.Args = append(cmd.Args, "-c", "SELECT 1")
		return cmd
	}
	s.load = func(string) *exec.Cmd { return client("mail") }
	return s
}

// made is an archive of the data of a server that nobody has used yet. It is a file without a name, which goes with
// the process.
var made struct {
	sync.Mutex
	file *os.File
	size int64
}

// newCluster reads that archive. The first test has it made: that takes more than a second of a processor, which
// a hundred tests would have to spend each.
func newCluster(t testing.TB) io.Reader {
	t.Helper()
	made.Lock()
	defer made.Unlock()
	if made.file == nil {
		made.file, made.size = makeCluster(t)
	}
	return io.NewSectionReader(made.file, 0, made.size)
}

func makeCluster(t testing.TB) (*os.File, int64) {
	t.Helper()
	s := postgres(t)
	s.run(program(t, "initdb"), "-D", filepath.Join(s.dir, "data"), "-U", "admin", "-A", "scram-sha-256", "--auth-local=trust", "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=1")
	s.Start()
	load := s.ask()
	load.Args = append(load.Args, "-c", "CREATE DATABASE mail", "-c", "CREATE USER mail PASSWORD 'secret'")
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("create the database: %v\n%s", err, out)
	}
	s.Stop()
	file, err := os.CreateTemp(s.dir, "")
	if err != nil {
		t.Fatal(err)
	}
	tar := exec.Command("tar", "-c", "-C", s.dir, "data")
	tar.Stdout, tar.Stderr = file, &s.out
	if err := tar.Run(); err != nil {
		t.Fatalf("tar: %v\n%s", err, s.out.String())
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return file, info.Size()
}

// MariaDB starts a MariaDB server with a database "mail", a user "mail" with
// the password "secret", and what text says in SQL. More options may follow.
func MariaDB(t testing.TB, text string, options ...string) *Server {
	t.Helper()
	server, install, client := program(t, "mariadbd"), program(t, "mariadb-install-db"), program(t, "mariadb")
	s := newServer(t, "mysql")
	data := filepath.Join(s.dir, "data")
	s.run(install, "--no-defaults", "--datadir="+data, "--tmpdir="+s.dir, "--skip-test-db", "--auth-root-authentication-method=normal",
		"--innodb-log-file-size=4M", "--innodb-flush-method=nosync", "--skip-name-resolve")
	s.Socket = filepath.Join(s.dir, "sock")
	s.args = []string{server, "--no-defaults", "--datadir=" + data, "--tmpdir=" + s.dir, "--socket=" + s.Socket, "--port=" + s.port(), "--bind-address=127.0.0.1",
		"--pid-file=" + filepath.Join(s.dir, "pid"), "--innodb-log-file-size=4M", "--innodb-buffer-pool-size=8M", "--innodb-flush-method=nosync",
		"--innodb-fast-shutdown=2", "--skip-name-resolve", "--skip-log-bin", "--performance-schema=off"}
	s.args = append(s.args, options...)
	as := func(args ...string) *exec.Cmd {
		return exec.Command(client, append([]string{"--no-defaults", "--socket=" + s.Socket, "-u", "root", "--default-character-set=utf8mb4"}, args...)...)
	}
	s.ask = func() *exec.Cmd { return as("-e", "SELECT 1") }
	s.load = func(string) *exec.Cmd { return as() }
	s.Start()
	s.Load("CREATE DATABASE mail CHARACTER SET utf8mb4;\nCREATE USER mail@'%' IDENTIFIED BY 'secret';\nGRANT SELECT, EXECUTE ON mail.* TO mail@'%';\n")
	s.load = func(string) *exec.Cmd { return as("mail") }
	s.Load(text)
	return s
}

// OpenLDAP starts a slapd for dc=example,dc=com, whose administrator is
// cn=admin,dc=example,dc=com with the password "secret", and loads what text
// says in LDIF. An attribute maildrop is defined. conf is added to the
// configuration of the database.
func OpenLDAP(t testing.TB, conf, text string) *Server {
	t.Helper()
	server, add, search := program(t, "slapd"), program(t, "ldapadd"), program(t, "ldapsearch")
	s := newServer(t, "root")
	s.cred = nil
	data := filepath.Join(s.dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.dir, "slapd.conf")
	global := `include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
attributetype ( 1.3.6.1.4.1.32473.1 NAME 'maildrop' EQUALITY caseIgnoreIA5Match SUBSTR caseIgnoreIA5SubstringsMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.26 )
attributetype ( 1.3.6.1.4.1.32473.2 NAME 'maillocal' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 )
attributetype ( 1.3.6.1.4.1.32473.3 NAME 'mailurl' EQUALITY caseExactMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 )
objectclass ( 1.3.6.1.4.1.32473.4 NAME 'mailthing' AUXILIARY MAY ( maildrop $ maillocal $ mailurl ) )
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile %[1]s/pid
%[2]s
database mdb
directory %[1]s/data
maxsize 10485760
suffix "dc=example,dc=com"
rootdn "cn=admin,dc=example,dc=com"
rootpw secret
dbnosync
`
	if err := os.WriteFile(file, fmt.Appendf(nil, global, s.dir, conf), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Socket = filepath.Join(s.dir, "ldapi")
	uri := "ldapi://" + strings.ReplaceAll(s.Socket, "/", "%2F")
	s.args = []string{server, "-d", "0", "-f", file, "-h", "ldap://" + s.Addr + "/ " + uri}
	s.ask = func() *exec.Cmd { return exec.Command(search, "-x", "-H", uri, "-s", "base", "-b", "") }
	s.load = func(string) *exec.Cmd {
		return exec.Command(add, "-x", "-H", uri, "-D", "cn=admin,dc=example,dc=com", "-w", "secret")
	}
	s.Start()
	s.Load("dn: dc=example,dc=com\nobjectClass: domain\ndc: example\n\n" + text)
	return s
}

// Memcached starts a memcached server, empty.
func Memcached(t testing.TB) *Server {
	t.Helper()
	path := program(t, "memcached")
	s := newServer(t, "nobody")
	s.args = []string{path, "-l", "127.0.0.1", "-p", s.port(), "-U", "0", "-m", "8", "-t", "1"}
	s.ask = func() *exec.Cmd { return exec.Command("bash", "-c", "</dev/tcp/127.0.0.1/"+s.port()) }
	s.Start()
	return s
}
