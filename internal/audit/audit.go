// Package audit is "posthaste audit": it holds the log against the queue, and says whether
// everything that was accepted has been delivered, returned, or is still there.
//
//	posthaste audit [-j] [-s TIME] [-u TIME] [-q FILE|none] [FILE ...]
//
// For a span of time, and of messages as of recipients, this must hold:
//
//	queued before + accepted = delivered + forwarded + discarded + bounced + expired
//	                         + returned + deleted + queued
//
// and where there are such, requeued, corrupt, withdrawn and probed on the right. What is accepted says
// the log: qmgr has taken it up, the queue has it, or something has become of it. What a rule or a filter discards
// at once counts as well, one recipient each, as the log does not say how many.
//
// A message counts under what became of its recipients, and if that differs, under the last
// that applies of delivered, forwarded, discarded, probed, bounced. A recipient that an alias or a .forward file
// replaces by several counts as these.
//
// # What does not add up
//
// These are listed, with the queue ID:
//
//	lost      accepted, with recipients that nothing is known of, and not in the queue
//	vanished  a client was told that more messages are queued than the log and the queue know of
//	outcome   it has left the queue without an outcome of all recipients; or it is in the
//	          queue without some that have none
//	stays     it has left the queue, and is in it
//	silent    it is in the queue, and the log does not mention it
//	twice     a recipient has it twice, and nothing in the log says that it is in doubt
//
// A notice, a forwarded message, and one that was queued again, are messages of their own, and are
// judged as the others.
//
// # The log
//
// Without files, maillog_file and what it was called after logrotate are read. Files are put in
// the order of their first lines; they may be compressed by gzip, bzip2, xz, zstd or lz4; "-" is standard
// input. See package logread for the forms of lines. Only lines with this mail system's
// syslog_name count. The log should reach back to before the span, and must reach up to now, or up to when the
// queue was listed. A message whose beginning it does not have counts from the time that its queue ID tells.
//
// Memory is taken for messages that have not ended, and for the queue.
//
// # Several nodes
//
// Nodes that share a queue have a log each, and a message that one has accepted may be delivered by another. With the
// logs of all nodes the books are those of all: logs are read side by side, by the times of their lines. What host a line is
// of, and what log, says which processes are the same. Files of one host that do not overlap in time are one log.
//
// With the log of one node alone, what it has handed over, or what is in the queue as another node's, counts as handed
// over, and what others have accepted as taken over. What a node was taken from without a line of its own
// cannot be told from what is lost, unless it is in the queue.
//
// # The queue
//
// The queue manager is asked for it, before the log is read; while the mail system is down the spool is
// read. Of a running system what came after that does not count. With -q a listing of
// "postqueue -j" is taken in its place, and with "-q none" none: what has no end is then believed to be in the
// queue.
//
// # Security
//
// It reads and changes nothing. Nothing that it prints comes from strangers but the names of clients,
// which the log has without control characters.
//
// # Parameters
//
// maillog_file, queue_directory, syslog_name
//
// # Diagnostics
//
// Exit status 0 if it adds up; 1 if it does not; 64 wrong usage; 66 a log cannot be read; 69 the queue
// cannot; 74 the output cannot be written; 77 the user is not authorized; 78 wrong configuration.
package audit

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/logread"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/selection"
)

const usage = "usage: %s [-j] [-c config_dir] [-q file|none] [-s time] [-u time] [file ...]"

// writeTime is how long a line of the log may take from the process that writes it to the file.
const writeTime = time.Second

// command is one run.
type command struct {
	cli.Tool
	now          time.Time
	configDir    string
	json         bool
	listing      string // -q
	since, until time.Time
	files        []string
}

// Run carries out the command and returns its exit status.
func Run(name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &command{Tool: cli.Tool{Name: name, Stdin: stdin, Stdout: stdout, Stderr: stderr}, now: time.Now()}
	if err := c.parse(args); err != nil {
		return c.Fail(err)
	}
	r, err := c.audit(context.Background())
	if err != nil {
		return c.Fail(err)
	}
	show := r.Text
	if c.json {
		show = r.JSON
	}
	if err := show(stdout); err != nil {
		return c.Fatal(cli.ExitIO, "%v", err)
	}
	if !r.AddsUp() {
		return 1
	}
	return 0
}

// parse reads the options.
func (c *command) parse(args []string) error {
	opts, rest, err := cli.Getopt(args, "c:jq:s:u:")
	if err != nil {
		return cli.Errorf(cli.ExitUsage, "%w; "+usage, err, c.Name)
	}
	for _, o := range opts {
		switch o.Letter {
		case 'c':
			c.configDir = o.Value
		case 'j':
			c.json = true
		case 'q':
			c.listing = o.Value
		case 's':
			c.since, err = moment(o.Value, c.now)
		case 'u':
			c.until, err = moment(o.Value, c.now)
		}
		if err != nil {
			return cli.Errorf(cli.ExitUsage, "-%c: %w", o.Letter, err)
		}
	}
	if !c.since.IsZero() && !c.until.IsZero() && !c.since.Before(c.until) {
		return cli.Errorf(cli.ExitUsage, "-s and -u: nothing lies between %s and %s", c.since.Format(time.DateTime), c.until.Format(time.DateTime))
	}
	c.files = rest
	return nil
}

// moment reads a time, or how long ago it is.
func moment(value string, now time.Time) (time.Time, error) {
	if d, err := selection.ParseTime(value); err == nil {
		return now.Add(-d), nil
	}
	t, _, err := queueclient.ParseMoment(value, now)
	if err != nil {
		return t, fmt.Errorf("%w, or 2h", err)
	}
	return t, nil
}

// audit reads the queue, and then the log.
func (c *command) audit(ctx context.Context) (*Report, error) {
	q, err := queueclient.Open(c.configDir)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	instance, _, _ := strings.Cut(q.Config.String("syslog_name"), "/")
	a := newAccount(instance, 0, math.MaxInt64)
	if !c.since.IsZero() {
		a.since = c.since.UnixMicro()
	}
	a.shared = q.Node() != ""
	live, err := c.look(ctx, q, a)
	if err != nil {
		return nil, err
	}
	if a.until = a.listed; !c.until.IsZero() {
		a.until = min(a.until, c.until.UnixMicro())
	}
	if live {
		time.Sleep(writeTime)
	}
	files := c.files
	if len(files) == 0 {
		name := q.Config.String("maillog_file")
		if name == "" || name[0] != '/' || name == "/dev/stdout" {
			return nil, cli.Errorf(cli.ExitUsage, "maillog_file is not a file: name the log, or - for standard input; "+usage, c.Name)
		}
		if files, err = logread.Rotated(name); err != nil {
			return nil, cli.Errorf(cli.ExitNoInput, "%w", err)
		}
	}
	if err := a.read(files, c.Stdin, c.now); err != nil {
		return nil, cli.Errorf(cli.ExitNoInput, "%w", err)
	}
	a.finish()
	return &a.report, nil
}

// A stream is the log of a family of files, one after the other.
type stream struct {
	family string
	files  []string // not opened yet
	name   string   // of the open one
	f      io.ReadCloser
	r      *logread.Reader
	line   *logread.Line // the next one; nil: there is none
	at     int64         // its time, or that of the last line that has one
	host   string        // of the last line that was taken
	begun  bool          // one was
	goesOn bool          // it has ended, and another stream goes on with it
}

// next reads the next line.
func (s *stream) next(stdin io.Reader, now time.Time) (err error) {
	for {
		if s.r == nil {
			if s.line = nil; len(s.files) == 0 {
				return nil
			}
			s.name, s.files = s.files[0], s.files[1:]
			if s.f, err = logread.Open(s.name, stdin); err != nil {
				return err
			}
			s.r = logread.NewReader(s.f, now)
		}
		if s.line, err = s.r.Next(); err == nil {
			s.at = cmp.Or(s.line.Time, s.at)
			return nil
		}
		s.close()
		if err != io.EOF {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
}

// follow has the stream go on with one that has ended, when its first line is the next: files of one host that do not overlap are one
// log, whatever they are called.
func (s *stream) follow(streams []*stream) {
	if string(s.line.Host) != s.host {
		s.host = string(s.line.Host)
	}
	if s.begun {
		return
	}
	s.begun = true
	for _, e := range streams {
		if e.begun && e.line == nil && !e.goesOn && e.host == s.host {
			s.family, e.goesOn = e.family, true
			return
		}
	}
}

func (s *stream) close() {
	if s.f != nil {
		s.f.Close()
	}
	s.f, s.r = nil, nil
}

// families makes the streams of files that are in order.
func families(files []string) (streams []*stream) {
	for _, name := range files {
		family := logread.Family(name)
		i := slices.IndexFunc(streams, func(s *stream) bool { return s.family == family })
		if i < 0 {
			i = len(streams)
			streams = append(streams, &stream{family: family})
		}
		streams[i].files = append(streams[i].files, name)
	}
	return streams
}

// read reads the log. Logs of different families are those of nodes, and are read side by side, by the times of their lines.
func (a *account) read(files []string, stdin io.Reader, now time.Time) error {
	files, err := logread.InOrder(files, now)
	if err != nil {
		return err
	}
	streams := families(files)
	defer func() {
		for _, s := range streams {
			s.close()
		}
	}()
	for _, s := range streams {
		if err := s.next(stdin, now); err != nil {
			return err
		}
	}
	for {
		var first *stream
		for _, s := range streams {
			if s.line != nil && (first == nil || s.at < first.at) {
				first = s
			}
		}
		if first == nil {
			return nil
		}
		first.follow(streams)
		a.line(first.family, first.line)
		if err := first.next(stdin, now); err != nil {
			return err
		}
	}
}

// look takes in the queue. It says whether that is one of a running mail system.
func (c *command) look(ctx context.Context, q *queueclient.Queue, a *account) (live bool, err error) {
	a.queue = make(map[string]*held)
	a.looked = c.listing != "none"
	switch c.listing {
	case "none":
		return false, nil
	case "":
	default:
		if err := c.readListing(a, q.Node()); err != nil {
			return false, cli.Errorf(cli.ExitNoInput, "%s: %w", c.listing, err)
		}
		return false, nil
	}
	own := q.Node()
	take := func(it *proto.Item) bool {
		a.queue[string(it.ID)] = &held{arrival: it.Arrival.UnixMicro(), pending: len(it.Recipients), other: own != "" && it.Node != own}
		return true
	}
	// Where the log has only seconds, what came in this one is not told from what came after now.
	listed := time.Now().Truncate(time.Second).UnixMicro()
	conn, err := q.Manager(ctx)
	switch {
	case err == nil:
		a.listed = listed
		return true, q.EachOfAll(ctx, conn, take)
	case !errors.Is(err, queueclient.ErrDown):
		return false, err
	}
	if err := q.Readable(); err != nil {
		return false, cli.Errorf(cli.ExitUnavailable, "the mail system is down, and its spool cannot be read: %w", err)
	}
	return false, q.Items(c.Warn, take)
}

// readListing takes in a listing of "postqueue -j", as of when the file was written.
func (c *command) readListing(a *account, own string) error {
	f, err := os.Open(c.listing)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	a.listed = info.ModTime().UnixMicro()
	d := json.NewDecoder(bufio.NewReaderSize(f, 64<<10))
	for {
		var it struct {
			Queue      string `json:"queue_name"`
			ID         string `json:"queue_id"`
			Arrival    int64  `json:"arrival_time"`
			Node       string `json:"node"`
			Recipients []struct{}
		}
		if err := d.Decode(&it); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if it.ID != "" && it.Queue != "maildrop" { // that has not been accepted by cleanup
			a.queue[it.ID] = &held{arrival: it.Arrival * 1e6, pending: len(it.Recipients), other: own != "" && it.Node != own}
		}
	}
}
