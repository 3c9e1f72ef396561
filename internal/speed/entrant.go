package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// besideServices are those of a usual master.cf that a relay without settings has no need of.
const besideServices = `tlsmgr unix - - n 1000? 1 tlsmgr
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
proxywrite unix - - n - 1 proxymap
relay unix - - n - - smtp
showq unix n - n - - showq
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
tlsproxy unix - - n - 0 tlsproxy
`

// An entrant is one of those that have the mail of a contest.
type entrant struct {
	*system
	name    string
	postfix bool
	helpers []*helper
	load    workload // with what belongs to this entrant alone
	sinkTLS *tls.Config
	scores  [2]map[figure][]float64 // of each round, without compilers and with them
}

// The names of the entrants.
const (
	oursName  = "Posthaste"
	theirName = "Postfix"
	limitName = "limit"
)

// newEntrant configures and starts a mail system for a contest, below dir. bin has our programs.
func newEntrant(name, dir, bin string, c *contest) (*entrant, error) {
	dir = filepath.Join(dir, strings.ToLower(name))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s, err := newSystem(dir)
	if err != nil {
		return nil, err
	}
	e := &entrant{system: s, name: name, postfix: name == theirName, load: c.workload}
	e.scores = [2]map[figure][]float64{{}, {}}
	if err := e.prepare(bin, c); err != nil {
		e.sink.close()
		e.stopHelpers()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := e.start(); err != nil { // which has left nothing behind but these
		e.sink.close()
		e.stopHelpers()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return e, nil
}

// prepare gives it all that it needs to start.
func (e *entrant) prepare(bin string, c *contest) error {
	lines, err := e.place(bin)
	if err != nil || e.name == limitName {
		return err
	}
	if c.tls != nil {
		if err := e.secure(c); err != nil {
			return err
		}
		lines += c.tls.lines()
	}
	if c.equip != nil {
		more, err := c.equip(e)
		if err != nil {
			return err
		}
		lines += strings.ReplaceAll(more, "{dir}", e.dir)
	}
	if err := e.configure(lines+c.lines, besideServices); err != nil {
		return err
	}
	if !e.postfix {
		return nil
	}
	if err := old(filepath.Join(e.dir, "etc")); err != nil {
		return err
	}
	return command(context.Background(), e.dir, "postfix", "-c", filepath.Join(e.dir, "etc"), "check")
}

// place makes the directories, and says what is to be run. It returns the lines of main.cf that only this one has.
func (e *entrant) place(bin string) (lines string, err error) {
	switch {
	case e.name == limitName:
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		e.program = []string{self, "-part", "bare", e.addr, fmt.Sprintf("127.0.0.1:%d", e.sink.port())}
		return "", os.Mkdir(filepath.Join(e.dir, "spool"), 0o755)
	case e.postfix:
		out, err := exec.Command("postconf", "-dh", "daemon_directory").Output()
		if err != nil {
			return "", err
		}
		e.program = []string{filepath.Join(strings.TrimSpace(string(out)), "master"), "-d"}
		e.env = []string{"MAIL_CONFIG=" + filepath.Join(e.dir, "etc")}
		_, err = e.directories("postfix")
		return "", err
	}
	if err := os.CopyFS(e.dir, os.DirFS(bin)); err != nil {
		return "", err
	}
	owner, err := e.directories("posthaste", "postfix")
	return "command_directory = {dir}\n" + owner, err
}

// old has the files of a directory look old: Postfix waits until what it reads has been left alone for a second.
func old(dir string) error {
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	when := time.Now().Add(-time.Minute)
	var errs error
	for _, f := range files {
		errs = errors.Join(errs, os.Chtimes(f, when, when))
	}
	return errs
}

// secure gives it a certificate, its sink the same, and its load the way to begin TLS.
func (e *entrant) secure(c *contest) error {
	pair, text, err := makeCertificate()
	if err != nil {
		return err
	}
	conf := measuredTLS()
	conf.Certificates, conf.SessionTicketsDisabled = append(conf.Certificates, pair), !c.tls.resume && !c.tls.keep
	e.sinkTLS = conf
	e.load.secured = newSecured(c.tls.resume)
	return os.WriteFile(filepath.Join(e.dir, "etc", "tls.pem"), text, 0o644)
}

// close stops it and its helpers.
func (e *entrant) close() {
	e.stop()
	e.stopHelpers()
}

func (e *entrant) stopHelpers() {
	for _, h := range e.helpers {
		h.stop()
	}
}

// rested waits until the processes take no more processor time: what comes behind a delivery is done then.
func (e *entrant) rested(ctx context.Context) time.Duration {
	last, since := e.processorTime(), time.Now()
	for limit := since.Add(restTime); ctx.Err() == nil && time.Now().Before(limit) && time.Since(since) < quietTime; {
		select {
		case <-ctx.Done():
		case <-time.After(quietTime / 10):
		}
		if now := e.processorTime(); now != last {
			last, since = now, time.Now()
		}
	}
	return last
}

// What is done behind deliveries is done when nothing has happened for so long, or it is not waited for any longer.
const (
	quietTime = 300 * time.Millisecond
	restTime  = 10 * time.Second
)

// helperTime is what of the processor time its helpers have used.
func (e *entrant) helperTime() (sum time.Duration) {
	for _, d := range e.processes() {
		if cwd, err := os.Readlink(d + "/cwd"); err == nil && e.helps(cwd) {
			_, own, ended := used(d)
			sum += own + ended
		}
	}
	return sum
}

// answers waits until something listens on an address.
func answers(addr string, done <-chan struct{}) error {
	for range 400 {
		if c, err := net.Dial("tcp", addr); err == nil {
			return c.Close()
		}
		select {
		case <-done:
			return errors.New("it has ended")
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("nothing listens on %s", addr)
}
