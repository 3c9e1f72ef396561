package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/testproc"
	"posthaste/internal/testwait"
)

// A patroni is two PostgreSQL servers, the primary and its synchronous standby, of which Patroni says by etcd which is which.
type patroni struct {
	t    *testing.T
	dbs  []*dbHost
	psql string
	bin  string // the directory of PostgreSQL's programs
}

// A dbHost is a host of a server. Its disk is small, and stays when all of its programs are killed.
type dbHost struct {
	*host
	p    *patroni
	cmd  *exec.Cmd // Patroni, with all that it has started; nil when it is down
	done chan struct{}
	out  testproc.Output
	dir  string
}

// diskSize is large for what the tests write, and small enough to be filled.
const diskSize = 400 << 20

const patroniConfig = `scope: mail
name: {name}
restapi: {listen: '{ip}:8008', connect_address: '{ip}:8008'}
etcd3: {host: '10.77.0.1:2379'}
bootstrap:
  dcs:
    ttl: 6
    loop_wait: 1
    retry_timeout: 3
    primary_start_timeout: 5
    maximum_lag_on_failover: 1048576
    synchronous_mode: true
    synchronous_mode_strict: true
    postgresql:
      use_pg_rewind: true
      parameters:
        max_connections: 200
        shared_buffers: 16MB
        min_wal_size: 32MB
        max_wal_size: 64MB
        wal_keep_size: 32MB
        wal_log_hints: 'on'
  initdb: [encoding: UTF8, locale: C, no-sync]
postgresql:
  listen: '{ip}:5432'
  connect_address: '{ip}:5432'
  data_dir: {dir}/data
  bin_dir: {bin}
  pgpass: {dir}/pgpass
  authentication:
    superuser: {username: postgres}
    replication: {username: standby}
    rewind: {username: postgres}
  parameters: {unix_socket_directories: '{dir}'}
  pg_hba:
  - local all all trust
  - host all all 10.77.0.0/24 trust
  - host replication all 10.77.0.0/24 trust
  remove_data_directory_on_rewind_failure: true
  remove_data_directory_on_diverged_timelines: true
`

// newPatroni starts etcd on the bridge, and the two servers on hosts of their own, and makes an empty database "mail" of the user "mail".
func newPatroni(l *lan) *patroni {
	t := l.t
	t.Helper()
	need(t, "patroni")
	need(t, "etcd")
	initdb := ""
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
		initdb = found[len(found)-1] // Debian's is not on the path
	} else {
		initdb = need(t, "initdb")
	}
	p := &patroni{t: t, bin: filepath.Dir(initdb)}
	p.psql = filepath.Join(p.bin, "psql")
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	etcd := exec.Command("etcd", "--data-dir", dir, "--listen-client-urls", "http://10.77.0.1:2379", "--advertise-client-urls", "http://10.77.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380", "--initial-cluster", "default=http://127.0.0.1:2380")
	testproc.Start(t, etcd, dir)
	for i, name := range []string{"db1", "db2"} {
		d := &dbHost{p: p, dir: "/mnt/" + name}
		// The disk is on a mount point that only the host has.
		d.host = l.newHost(name, 21+i, fmt.Sprintf("mount --make-rprivate /; mount -t tmpfs tmpfs /mnt; mkdir %[1]s; mount -t tmpfs -o size=%d tmpfs %[1]s; chown postgres %[1]s; chmod 700 %[1]s", d.dir, diskSize))
		r := strings.NewReplacer("{name}", name, "{ip}", d.ip, "{dir}", d.dir, "{bin}", p.bin)
		if err := os.WriteFile(d.path("/mnt/"+name+".yml"), []byte(r.Replace(patroniConfig)), 0o644); err != nil {
			t.Fatal(err)
		}
		p.dbs = append(p.dbs, d)
	}
	t.Cleanup(func() {
		for _, d := range p.dbs {
			if t.Failed() {
				t.Logf("%s says:\n%s", d.name, tail(d.out.String(), 15000))
			}
			d.kill()
		}
	})
	for _, d := range p.dbs {
		d.boot()
		testwait.Until(t, "there is a primary server", func() bool { return p.primary() != nil })
	}
	p.calm()
	for _, sql := range []string{"CREATE USER mail", "GRANT pg_read_all_stats TO mail", "CREATE DATABASE mail OWNER mail"} {
		if out, err := p.primary().sql("postgres", sql); err != nil {
			t.Fatalf("%s: %v\n%s", sql, err, out)
		}
	}
	return p
}

// tail is the end of a text.
func tail(text string, n int) string { return text[max(0, len(text)-n):] }

// boot starts Patroni on a host whose programs have all ended, as its machine does when it has power again.
func (d *dbHost) boot() {
	d.p.t.Helper()
	// The first process of the process name space is root's, so that it ends with its parent.
	// It ends with its standard input, too, should this program be killed.
	script := fmt.Sprintf("rm -f %s/data/postmaster.pid; setpriv --reuid postgres --regid postgres --init-groups patroni /mnt/%s.yml </dev/null & cat >/dev/null", d.dir, d.name)
	args := d.args("--net --mount", "unshare", "--pid", "--ipc", "--fork", "--mount-proc", "--kill-child", "/bin/sh", "-c", script)
	d.cmd = exec.Command(args[0], args[1:]...)
	d.cmd.Dir = "/"
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.out
	if _, err := d.cmd.StdinPipe(); err != nil {
		d.p.t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		d.p.t.Fatal(err)
	}
	d.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) { cmd.Wait(); close(done) }(d.cmd, d.done)
}

// kill ends all programs of the host at once. What they have written stays.
func (d *dbHost) kill() {
	if d.cmd == nil {
		return
	}
	d.cmd.Process.Kill() // the kernel ends the process name space with it
	<-d.done
	d.cmd = nil
}

// sql has the server carry out a statement, as its superuser. It has five seconds.
func (d *dbHost) sql(database, statement string) (string, error) {
	cmd := exec.Command("timeout", "-s", "KILL", "5", d.p.psql, "-X", "-h", d.ip, "-U", "postgres", "-d", database, "-Atqc", statement)
	cmd.Env = append(os.Environ(), "PGCONNECT_TIMEOUT=2")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errs.String())
	}
	return strings.TrimSpace(string(out)), err
}

// primary is the server that can be written to now; nil: there is none.
func (p *patroni) primary() *dbHost {
	for _, d := range p.dbs {
		if d.cmd == nil {
			continue
		}
		if out, err := d.sql("postgres", "SELECT pg_is_in_recovery()"); err == nil && out == "f" {
			return d
		}
	}
	return nil
}

// standby is the one that is not d.
func (p *patroni) standby(d *dbHost) *dbHost {
	if p.dbs[0] == d {
		return p.dbs[1]
	}
	return p.dbs[0]
}

// calm waits until there is a primary server and its standby is synchronous, for PostgreSQL and for Patroni, which promotes no other.
func (p *patroni) calm() {
	p.t.Helper()
	testwait.Until(p.t, "the standby is synchronous", func() bool {
		d := p.primary()
		if d == nil {
			return false
		}
		out, err := d.sql("postgres", "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')")
		return err == nil && out == "1" && p.standby(d).says("/synchronous")
	})
}

// says is whether Patroni on the host answers 200 to a question: https://patroni.readthedocs.io/en/latest/rest_api.html has them.
func (d *dbHost) says(question string) bool {
	conn, err := net.DialTimeout("tcp", d.ip+":8008", time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", question)
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && strings.Contains(line, " 200 ")
}

// fill leaves no room on the host's disk, and returns what ends that.
func (d *dbHost) fill() (free func()) {
	d.p.t.Helper()
	name := d.path(d.dir + "/ballast")
	f, err := os.Create(name)
	if err != nil {
		d.p.t.Fatal(err)
	}
	block := make([]byte, 64<<10)
	for {
		if _, err := f.Write(block); err != nil {
			break // what is not full yet was freed just now
		}
	}
	f.Close()
	return func() { os.Remove(name) }
}

// slow has each commit wait for the standby for about as long as told, until the returned function is called: the standby's
// receiver is stopped for so long again and again.
func (d *dbHost) slow(wait time.Duration) (end func()) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			pids := d.receivers()
			signal(pids, syscall.SIGSTOP)
			over := false
			select {
			case <-stop:
				over = true
			case <-time.After(wait):
			}
			signal(pids, syscall.SIGCONT)
			if over {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	return sync.OnceFunc(func() { close(stop); wg.Wait() })
}

func signal(pids []int, s syscall.Signal) {
	for _, pid := range pids {
		syscall.Kill(pid, s)
	}
}

// receivers are the host's processes that receive the log of the primary.
func (d *dbHost) receivers() (pids []int) {
	space, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", d.pid))
	list, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range list {
		title, _ := os.ReadFile(dir + "/cmdline")
		if !bytes.Contains(title, []byte("walreceiver")) {
			continue
		}
		if in, err := os.Readlink(dir + "/ns/net"); err == nil && in == space {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}
