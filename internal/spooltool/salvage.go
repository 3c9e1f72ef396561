package spooltool

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"posthaste/internal/cli"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/spooltool/plain"
)

// lostFile is the list of what could not be had, in the target directory.
const lostFile = "LOST"

// bareSuffix is that of files with nothing but content, of which there is no envelope.
const bareSuffix = ".content"

// salvage writes all messages that can be had of a spool, damaged or not, to files
// in a directory, and a list of what could not be had.
func (c *command) salvage(flags options, args []string) error {
	if len(args) != 1 {
		return c.wrongUsage()
	}
	dir := c.queue.Spool()
	if flags.has('d') {
		dir = flags['d']
	}
	if _, err := os.ReadDir(dir); err != nil {
		return cli.Errorf(cli.ExitNoInput, "%w", err)
	}
	if err := os.MkdirAll(args[0], 0o700); err != nil {
		return cli.Errorf(cli.ExitIO, "%w", err)
	}
	s := &salvager{x: exporter{c: c, dir: args[0]}}
	err := spool.Salvage(nil, dir, s.note, s.message, s.orphan)
	if err != nil {
		s.note(err.Error())
	}
	if s.failed != nil { // not for want of the spool, but of the target
		return cli.Errorf(cli.ExitIO, "%w", s.failed)
	}
	if err := s.finish(); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "%d messages written to %s, %d of them perhaps delivered before, %d damaged; %d contents without an envelope\n",
		s.messages, args[0], s.unsure, s.x.damaged, s.bare)
	if len(s.lost) > 0 {
		return cli.Errorf(cli.ExitData, "%d findings: see %s", len(s.lost), filepath.Join(args[0], lostFile))
	}
	return nil
}

// A salvager is what salvage has got out so far.
type salvager struct {
	x                      exporter
	lost                   []string
	messages, unsure, bare int
	failed                 error // the target cannot be written
}

func (s *salvager) note(text string) {
	s.lost = append(s.lost, text)
	s.x.c.Warn("%s", text)
}

// message writes one message. What could not be had of it is the error.
func (s *salvager) message(rd *spool.Reader, en queue.Entry, sure bool) error {
	if s.failed != nil {
		return nil
	}
	m, content, err := plain.FromSpool(rd, &en)
	if err != nil {
		return fmt.Errorf("not written: %w", err)
	}
	defer content.Close()
	if err := s.x.file(string(en.ID), m, content); err != nil {
		s.failed = err
		return nil
	}
	s.messages++
	if !sure {
		s.unsure++
	}
	if err := content.Damaged(); err != nil {
		s.x.damaged++
		return fmt.Errorf("written as far as it could be read: %w", err)
	}
	return nil
}

// orphan writes content of which there is no envelope.
func (s *salvager) orphan(name string, content io.Reader) error {
	if s.failed != nil {
		return nil
	}
	path := filepath.Join(s.x.dir, filepath.Base(name)+bareSuffix)
	f, err := os.OpenFile(path+unnamed, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		s.failed = err
		return nil
	}
	out := bufio.NewWriter(f)
	_, err = io.Copy(out, content)
	if s.failed = errors.Join(err, out.Flush(), f.Close()); s.failed != nil {
		return nil
	}
	s.x.written = append(s.x.written, path)
	s.bare++
	return fmt.Errorf("no envelope: written to %s alone; the message had left the queue, or its record is lost", filepath.Base(path))
}

// finish gives the files their names, and writes the list.
func (s *salvager) finish() error {
	if len(s.lost) > 0 {
		path := filepath.Join(s.x.dir, lostFile)
		var text []byte
		for _, l := range s.lost {
			text = append(append(text, l...), '\n')
		}
		if err := os.WriteFile(path+unnamed, text, 0o600); err != nil {
			return cli.Errorf(cli.ExitIO, "%w", err)
		}
		s.x.written = append(s.x.written, path)
	}
	return s.x.finish()
}
