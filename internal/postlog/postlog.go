// Package postlog is the postlogd service, which writes the log file when
// main.cf has a maillog_file, and the postlog command, with which scripts
// write to the log.
//
// The other processes send whole lines to the service's socket, several in a
// datagram, each line with the time at which it was logged. The service holds
// lines back for a few milliseconds, so that those of several processes come
// in the order in which things happened, and appends what is due in one write. When the disk
// is full it waits and tries again, while the lines wait where they come from.
//
// # Security
//
// The socket is open to every local user that may enter the public directory.
// What arrives is bounded, and control characters become "?": nobody can make
// a line that looks like somebody else's beyond what syslog allows too. The
// file is opened before privileges are given up.
//
// # Parameters
//
// maillog_file, maillog_file_prefixes, maillog_file_permissions,
// maillog_format, syslog_name.
package postlog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/reuse"
	"posthaste/internal/service"
)

// Spec declares the postlogd service.
func Spec() service.Spec {
	var s server
	return service.Spec{
		Process:   "postlogd",
		Exclusive: true,
		Rank:      service.LogWriter,
		LogDirect: true,
		Confines:  true,
		Sandbox:   writes,
		Frugal:    true,
		Run:       s.run,
	}
}

// writes is the directory of the log file, which is opened anew after it was
// renamed.
func writes(cfg *config.Config) (writes []string, ok bool) {
	if path := cfg.String("maillog_file"); path != "" && !strings.HasPrefix(path, "/dev/") {
		writes = []string{filepath.Dir(path)}
	}
	return writes, true
}

const (
	maxDatagram = 64 << 10
	maxGathered = 128 << 10
	retryTime   = 200 * time.Millisecond
)

// A server appends lines to the log file.
type server struct {
	sink maillog.Sink
	log  *maillog.Logger
}

// open opens the log file with the rights of whoever may own it.
func (s *server) open(env *service.Env) error {
	s.log = env.Log
	path := env.Config.String("maillog_file")
	switch path {
	case "":
		s.sink = relay{env.Log} // somebody still has the old configuration
		return nil
	case "/dev/stdout":
		s.sink = maillog.NewWriter(os.Stdout, maillog.Classic)
		return nil
	case "/dev/stderr":
		s.sink = maillog.NewWriter(os.Stderr, maillog.Classic)
		return nil
	}
	if err := maillog.CheckFile(env.Config); err != nil {
		return err
	}
	perm, err := maillog.Permissions(env.Config)
	if err != nil {
		return err
	}
	s.sink, err = maillog.OpenFile(path, perm, maillog.Classic)
	return err
}

func (s *server) run(ctx context.Context, env *service.Env) error {
	if err := s.open(env); err != nil {
		return err
	}
	defer s.sink.Close()
	if err := env.Confine(); err != nil {
		return err
	}
	if len(env.PacketConns) == 0 {
		return fmt.Errorf("service %s is of type %s: expected unix-dgram in master.cf", env.Name, env.Type)
	}
	errs := make([]error, len(env.PacketConns))
	var wg sync.WaitGroup
	var writing sync.Mutex
	for i, c := range env.PacketConns {
		wg.Go(func() { errs[i] = s.serve(ctx, c, &writing, env.Used) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// serve appends what arrives on c until ctx ends and nothing is left.
func (s *server) serve(ctx context.Context, c *net.UnixConn, writing *sync.Mutex, used func()) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Now()) })
	defer stop()
	defer c.Close()
	in := receiver{datagram: make([]byte, maxDatagram)}
	var lines []byte
	for {
		due := in.held.due(time.Now())
		c.SetReadDeadline(due) // the zero time, when there is nothing, is no deadline
		if ctx.Err() != nil {  // the deadline that tells us has just been put off
			c.SetReadDeadline(time.Now())
		}
		before := len(in.held.lines)
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			failed = in.receive(int(fd))
			return failed != nil || len(in.held.lines) > before
		})
		ended := ctx.Err() != nil
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
			if ended { // what came before the end is still there
				err = raw.Control(func(fd uintptr) { failed = in.receive(int(fd)) })
			}
		}
		if err = errors.Join(err, failed); err != nil {
			return fmt.Errorf("receive log lines: %w", err)
		}
		now, all := time.Now(), ended || len(in.held.text) >= maxGathered
		if !all && now.Before(due) {
			continue
		}
		if lines = in.held.appendDue(reuse.Truncated(lines), now, all); len(lines) > 0 {
			used()
			writing.Lock()
			s.write(ctx, lines)
			writing.Unlock()
		} else if ended {
			return nil
		}
	}
}

// A receiver gathers lines from a socket.
type receiver struct {
	datagram []byte
	held     sequence
}

// receive takes what is there now, without waiting.
func (r *receiver) receive(fd int) error {
	for len(r.held.text) < maxGathered {
		n, _, err := unix.Recvfrom(fd, r.datagram, unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN {
			return nil
		}
		if err != nil {
			return err
		}
		r.held.add(r.datagram[:n], time.Now())
	}
	return nil
}

// write appends the lines. It goes on trying until ctx ends.
func (s *server) write(ctx context.Context, lines []byte) {
	for said := false; ; said = true {
		n, err := s.sink.Write(lines)
		lines = lines[n:]
		if err == nil || len(lines) == 0 {
			return
		}
		if !said {
			fmt.Fprintf(os.Stderr, "log lines wait: %v\n", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryTime):
		}
	}
}

// relay is a sink that passes lines on as texts.
type relay struct{ log *maillog.Logger }

func (relay) Format() maillog.Format { return maillog.Classic }
func (r relay) Write(lines []byte) (int, error) {
	for line := range strings.Lines(string(lines)) {
		r.log.Info("%s", strings.TrimSuffix(line, "\n"))
	}
	return len(lines), nil
}
func (relay) Close() error { return nil }
