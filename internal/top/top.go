// Package top is the command posthaste top: what the console's first page shows, for a terminal.
//
//	posthaste top [-1j] [-c config_dir] [-i seconds] [-n node]
//
// It shows how many messages are in which queue and how old the oldest is, the domains whose mail
// has waited longest with what is wrong with each (also what its answers have taught, and until when it rests), the tenants
// with most mail and their limits, how providers took mail in the last 24 hours, with what bounced later and who complained,
// and what is suspended, limited, diverted or returned. From the
// second time on it shows what came in and went out since the time before. On a terminal it does so
// again every five seconds (-i), or less often, so that counting takes no more than a twentieth
// of the time, until it is interrupted. With -1, and where the output is no terminal, it does so
// once. With -j it prints what the console's API answers to GET /now, one object, once.
//
// Where nodes share the queue it counts what all of them have, says whose mail that is, and names the nodes that are down or do not
// answer, whose mail is missing. With -n it counts what one node has.
//
// # Security
//
// Who may ask the queue manager may use it: root and the mail owner. What comes from strangers is
// shown without what would move the terminal about.
//
// # Diagnostics
//
// Exit status 0; 64 wrong usage; 69 the mail system is down, or the queue manager does not
// answer; 74 the output cannot be written; 77 not permitted; 78 wrong configuration.
package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/overview"
	"posthaste/internal/queueclient"
	"posthaste/internal/queuelist"
)

const (
	usage = "usage: %s [-1j] [-c config_dir] [-i seconds] [-n node]"
	// share is the share of the time that counting may take: one of so many parts.
	share = 20
	// askTime bounds how long the queue manager may take.
	askTime = 2 * time.Minute
	// emptied is an empty screen.
	emptied = "\x1b[H\x1b[2J"
)

type command struct {
	cli.Tool
	dir   string
	every time.Duration
	once  bool
	json  bool
	node  string // whose mail is counted; "": that of all nodes
	// What was shown before, of each node, for rates; nil: nothing was.
	before []overview.Sampled
}

// Run carries out the command and returns its exit status.
func Run(name string, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := &command{Tool: cli.Tool{Name: name, Stdout: stdout, Stderr: stderr}, every: 5 * time.Second}
	if err := c.parse(args); err != nil {
		return c.Fail(err)
	}
	queue, err := queueclient.Open(c.dir)
	if err != nil {
		return c.Fail(err)
	}
	defer queue.Close()
	for {
		begin := time.Now()
		err := c.ask(ctx, queue, begin)
		switch {
		case ctx.Err() != nil:
			return 0
		case err != nil:
			return c.Fail(err)
		case c.once:
			return 0
		}
		pause := time.NewTimer(max(c.every, share*time.Since(begin)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return 0
		}
	}
}

func (c *command) parse(args []string) error {
	opts, rest, err := cli.Getopt(args, "1jc:i:n:")
	if err != nil || len(rest) > 0 {
		if err != nil {
			fmt.Fprintf(c.Stderr, "%s: %v\n", c.Name, err)
		}
		return cli.Errorf(cli.ExitUsage, usage, c.Name)
	}
	for _, o := range opts {
		switch o.Letter {
		case '1':
			c.once = true
		case 'j':
			c.json = true
		case 'c':
			c.dir = o.Value
		case 'n':
			c.node = o.Value
		case 'i':
			n, err := strconv.Atoi(o.Value)
			if err != nil || n < 1 || n > 86400 {
				return cli.Errorf(cli.ExitUsage, "option -i: expected seconds, 1 to 86400, found %q", o.Value)
			}
			c.every = time.Duration(n) * time.Second
		}
	}
	if _, _, ok := size(c.Stdout); !ok || c.json {
		c.once = true
	}
	return nil
}

// size is that of the terminal that is written to; ok is false when it is none.
func size(w io.Writer) (width, height int, ok bool) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0, false
	}
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	return int(ws.Col), int(ws.Row), true
}

// ask asks the queue manager and prints what it says.
func (c *command) ask(ctx context.Context, queue *queueclient.Queue, now time.Time) error {
	conn, err := queue.Manager(ctx)
	if errors.Is(err, queueclient.ErrDown) {
		return cli.Errorf(cli.ExitUnavailable, "%w", err)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	managers, missing, err := c.managers(ctx, queue, conn)
	if err != nil {
		return err
	}
	seen, err := overview.SeeAll(ctx, managers, now)
	if err != nil {
		return cli.Errorf(cli.ExitUnavailable, "%w", err)
	}
	seen.Now.Missing = append(seen.Now.Missing, missing...)
	seen.Now.Rates = overview.RatesOfAll(c.before, seen.Of)
	c.before = seen.Of
	return c.show(seen.Now)
}

// managers are the queue managers that count their mail, this node's first, and the nodes that cannot.
func (c *command) managers(ctx context.Context, queue *queueclient.Queue, conn *ipc.Conn) (list []overview.Manager, missing []string, err error) {
	parts, err := queue.Parts(ctx, conn)
	if err != nil {
		return nil, nil, err
	}
	living, missing := parts.Living(conn, "")
	if parts.Own() {
		list = append(list, overview.Manager{Node: queue.Node(), Manager: conn})
	}
	for _, n := range living {
		list = append(list, overview.Manager{Node: n.Name, Manager: n})
	}
	if c.node != "" {
		list = slices.DeleteFunc(list, func(m overview.Manager) bool { return m.Node != c.node })
		if len(list) == 0 && slices.Contains(missing, c.node) {
			return nil, nil, cli.Errorf(cli.ExitUnavailable, "node %s is down", c.node)
		}
		if len(list) == 0 {
			return nil, nil, cli.Errorf(cli.ExitUnavailable, "no node %s has a part of the queue", c.node)
		}
		missing = nil
	}
	if len(list) == 0 {
		return nil, nil, cli.Errorf(cli.ExitUnavailable, "all nodes that have something of the queue are down")
	}
	return list, missing, nil
}

// show prints what was seen.
func (c *command) show(n *overview.Now) (err error) {
	var out []byte
	if c.json {
		if out, err = json.Marshal(n); err != nil {
			return err
		}
		out = append(out, '\n')
	} else {
		out = Text(n)
		if width, height, ok := size(c.Stdout); ok && !c.once {
			out = append([]byte(emptied), fit(out, width, height)...)
		}
	}
	if _, err := c.Stdout.Write(out); err != nil {
		return cli.Errorf(cli.ExitIO, "%w", err)
	}
	return nil
}

// Text is a glance at the queue in lines, with nothing in it that would move a terminal about.
func Text(n *overview.Now) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s  ", n.At.Local().Format(time.DateTime))
	for _, q := range n.Queues {
		fmt.Fprintf(&b, "  %s %s", q.Queue, overview.Number(q.Messages))
		if q.Oldest != "" {
			fmt.Fprintf(&b, " (%s)", q.Oldest)
		}
	}
	if len(n.Nodes) > 0 {
		fmt.Fprintf(&b, "\non %s", queuelist.Printable(strings.Join(n.Nodes, ", ")))
	}
	if len(n.Missing) > 0 {
		fmt.Fprintf(&b, "\nnot counted, as they are down or do not answer: %s", queuelist.Printable(strings.Join(n.Missing, ", ")))
	}
	if r := n.Rates; r != nil {
		fmt.Fprintf(&b, "\nby the minute  in %.0f  delivered to %.0f  deferred %.0f  bounced %.0f", r.In, r.Sent, r.Deferred, r.Bounced)
	}
	b.WriteString("\n\n")
	if len(n.Hurts) == 0 {
		b.WriteString("No mail waits.\n")
	}
	for i := range n.Hurts {
		h := &n.Hurts[i]
		fmt.Fprintf(&b, "%s: %s\n", queuelist.Printable(h.Domain), queuelist.Printable(h.Reason))
		for _, line := range h.Why {
			fmt.Fprintf(&b, "    %s\n", queuelist.Printable(line))
		}
	}
	tenants(&b, n.Tenants)
	providers(&b, n)
	orders(&b, &n.Orders)
	return b.Bytes()
}

// tenants are those with most mail.
func tenants(b *bytes.Buffer, list []overview.Tenant) {
	if len(list) > 0 {
		b.WriteString("\nTenants\n")
	}
	for i := range list {
		t := &list[i]
		fmt.Fprintf(b, "    %s: %s wait, the oldest for %s\n", queuelist.Printable(t.Name), queueclient.Messages(int(t.Waiting)), t.Oldest)
		for _, line := range t.Why {
			fmt.Fprintf(b, "        %s\n", queuelist.Printable(line))
		}
	}
}

// providers are how those with most mail have taken it.
func providers(b *bytes.Buffer, n *overview.Now) {
	if len(n.Providers) > 0 || n.ProvidersFault != "" {
		b.WriteString("\nProviders, in the last 24 hours\n")
	}
	if n.ProvidersFault != "" {
		fmt.Fprintf(b, "    %s\n", queuelist.Printable(n.ProvidersFault))
	}
	for i := range n.Providers {
		p := &n.Providers[i]
		fmt.Fprintf(b, "    %s: %s\n", queuelist.Printable(p.Name), p.Taken.String())
		for j := range p.Sources {
			s := &p.Sources[j]
			name := s.Name
			if name == "" {
				name = "no source"
			}
			fmt.Fprintf(b, "        from %s: %s\n", queuelist.Printable(name), s.Taken.String())
		}
	}
}

// orders are what operators have ordered for now.
func orders(b *bytes.Buffer, n *overview.Orders) {
	heading(b, "Limited", len(n.Limits))
	for i := range n.Limits {
		l := &n.Limits[i]
		numbers := fmt.Sprintf("; %s under way, %s wait", overview.Number(int64(l.Busy)), overview.Number(int64(l.Todo)))
		ordered(b, fmt.Sprintf("%s to %d at a time", l.Target, l.Most), l.By, l.Since, l.Until, numbers, l.Reason)
	}
	heading(b, "Diverted", len(n.Diversions))
	for i := range n.Diversions {
		d := &n.Diversions[i]
		ordered(b, fmt.Sprintf("%s to %s", d.Name, d.Nexthop), d.By, d.Since, d.Until, "", d.Reason)
	}
	heading(b, "Returned to senders", len(n.Returns))
	for i := range n.Returns {
		r := &n.Returns[i]
		ordered(b, r.Name, r.By, r.Since, r.Until, "", r.Reason)
	}
	heading(b, "Suspended", len(n.Suspensions))
	for i := range n.Suspensions {
		s := &n.Suspensions[i]
		ordered(b, s.Name, s.By, s.Since, s.Until, fmt.Sprintf(", %s wait", queueclient.Messages(s.Waiting)), s.Reason)
	}
}

// heading begins a list of n orders; there is none without any.
func heading(b *bytes.Buffer, title string, n int) {
	if n > 0 {
		b.WriteString("\n" + title + "\n")
	}
}

// ordered is the line of an order. until is nil if it does not end by itself; numbers and reason may be empty.
func ordered(b *bytes.Buffer, what, by string, since time.Time, until *time.Time, numbers, reason string) {
	text := fmt.Sprintf("%s, by %s since %s", what, by, since.Local().Format(time.DateTime))
	if until != nil {
		text += " until " + until.Local().Format(time.DateTime)
	}
	text += numbers
	if reason != "" {
		text += ": " + reason
	}
	fmt.Fprintf(b, "    %s\n", queuelist.Printable(text))
}

// fit cuts lines, and their number, to the size of a terminal. The last line stays free.
func fit(text []byte, width, height int) (out []byte) {
	lines := 0
	for line := range bytes.Lines(text) {
		if lines++; height > 1 && lines >= height {
			break
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		for i, n := 0, 0; i < len(line) && width > 0; n++ {
			if n == width {
				line = line[:i]
				break
			}
			_, size := utf8.DecodeRune(line[i:])
			i += size
		}
		out = append(append(out, line...), '\n')
	}
	return out
}
