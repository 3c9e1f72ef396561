// Package collate is "posthaste collate": it puts the log lines of each message together, as
// Postfix's auxiliary program postfix-collate does.
//
//	posthaste collate [file ...]
//
// Lines of a message have its queue ID. Lines of the SMTP session by which it came, and of
// the connection by which it went, have none: they belong to it by process and by the name
// and address of the client, or of the server. Where a client has several sessions at a time
// their lines cannot be told apart, and go to the messages of all.
//
// JSON lines and files that gzip, bzip2, xz, zstd or lz4 has compressed are read as well.
//
// A message is printed when it is removed from the queue, and those that are not at the
// end, in the order of their first lines. After each there is an empty line.
//
// # Diagnostics
//
// The exit status is 0, or 1 if a file cannot be read.
package collate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"posthaste/internal/logread"
)

// maxBefore bounds what is kept of a connection that has not delivered anything yet, in octets.
const maxBefore = 1 << 20

// Command reads files, or standard input when none is named, and returns the exit status.
func Command(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	} else if len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		fmt.Fprintf(stderr, "posthaste: fatal: collate: unknown option: %s\nusage: posthaste collate [file ...]\n", args[0])
		return 1
	}
	w := bufio.NewWriter(stdout)
	c := newCollator(w)
	err := c.files(args, stdin)
	c.rest()
	if err = errors.Join(err, w.Flush()); err != nil {
		fmt.Fprintf(stderr, "posthaste: fatal: collate: %v\n", err)
		return 1
	}
	return 0
}

func (c *collator) files(names []string, stdin io.Reader) error {
	if len(names) == 0 {
		names = []string{"-"}
	}
	for _, name := range names {
		f, err := logread.Open(name, stdin)
		if err != nil {
			return err
		}
		err = c.read(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// A message is what is known of one queue ID.
type message struct {
	order int // of its first line
	text  strings.Builder
}

// A session is a client's, from connect to disconnect.
type session struct {
	text strings.Builder
	ids  []string // its messages
	open int      // connections that have not ended
}

// A collator has what is not printed yet.
type collator struct {
	w        io.Writer
	messages map[string]*message         // by instance and queue ID
	sessions map[string]*session         // by smtpd's process and the client
	servers  map[string]*strings.Builder // lines before a delivery, by process and the server
	count    int
}

func newCollator(w io.Writer) *collator {
	return &collator{w: w, messages: map[string]*message{}, sessions: map[string]*session{}, servers: map[string]*strings.Builder{}}
}

func (c *collator) read(r io.Reader) error {
	lines := logread.NewReader(r, time.Now())
	for {
		l, err := lines.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if instance := string(l.Instance); strings.HasPrefix(instance, "postfix") || strings.HasPrefix(instance, "posthaste") {
			c.line(l, instance)
		}
	}
}

// agents are the programs that deliver.
var agents = []string{"smtp", "lmtp", "local", "virtual", "pipe", "error", "retry", "discard"}

// line takes the next line of the log.
func (c *collator) line(l *logread.Line, instance string) {
	program, process, line, id := string(l.Program), string(l.Tag)+"["+string(l.Process), string(l.Raw), ""
	if len(l.ID) > 0 && len(l.Level) == 0 {
		id = instance + "/" + string(l.ID)
	}
	switch {
	case program == "smtpd":
		c.server(process, id, l.Text, line)
	case id == "" && slices.Contains(agents, program):
		c.before(process, l.Text, line)
	case id == "":
	case program == "bounce":
		c.add(id, line)
		if n, ok := l.Notice(); ok {
			c.add(instance+"/"+string(n), line)
		}
	case slices.Contains(agents, program):
		c.add(id, c.connection(process, l.Text)+line)
	default:
		c.add(id, line)
		if program == "qmgr" && string(l.Text) == "removed" {
			c.print(id)
		}
	}
}

func (c *collator) add(id, line string) {
	m := c.messages[id]
	if m == nil {
		c.count++
		m = &message{order: c.count}
		c.messages[id] = m
	}
	m.text.WriteString(line)
	m.text.WriteByte('\n')
}

// server takes a line of smtpd. Those before a message's first line, and the
// last one of the session, have no queue ID.
func (c *collator) server(process, id string, text []byte, line string) {
	key := process + " " + string(logread.Peer(text))
	s := c.sessions[key]
	if bytes.HasPrefix(text, []byte("connect from ")) {
		if s == nil || s.open == 0 {
			s = &session{}
			c.sessions[key] = s
		}
		s.open++
	}
	switch {
	case id != "" && s != nil && bytes.HasPrefix(text, []byte("client=")):
		s.ids = append(s.ids, id)
		c.add(id, s.text.String()+line)
	case id != "":
		c.add(id, line)
	case s != nil:
		s.text.WriteString(line + "\n")
		for _, id := range s.ids {
			if c.messages[id] != nil { // else it has gone already
				c.add(id, line)
			}
		}
	}
	if s != nil && bytes.HasPrefix(text, []byte("disconnect from ")) {
		if s.open--; s.open <= 0 {
			delete(c.sessions, key)
		}
	}
}

// before keeps a line of a connection until it is known what it delivers.
func (c *collator) before(process string, text []byte, line string) {
	host := string(logread.Peer(text))
	if host == "" {
		return
	}
	key := process + " " + host
	if c.servers[key] == nil {
		c.servers[key] = &strings.Builder{}
	}
	if c.servers[key].Len() < maxBefore {
		c.servers[key].WriteString(line + "\n")
	}
}

// connection takes the lines of the connections that a delivery's line names.
func (c *collator) connection(process string, text []byte) (lines string) {
	for host := range logread.Peers(text) {
		key := process + " " + string(host)
		if b := c.servers[key]; b != nil {
			lines += b.String()
			delete(c.servers, key)
		}
	}
	return lines
}

func (c *collator) print(id string) {
	fmt.Fprintln(c.w, c.messages[id].text.String())
	delete(c.messages, id)
}

// rest prints the messages that are not known to have left.
func (c *collator) rest() {
	ids := make([]string, 0, len(c.messages))
	for id := range c.messages {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { return c.messages[a].order - c.messages[b].order })
	for _, id := range ids {
		c.print(id)
	}
}
