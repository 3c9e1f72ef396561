// Package watch lets root follow the SMTP dialogues with one client or one destination while
// they go on, without a change of main.cf and without a reload.
//
//	posthaste watch client NAME|ADDRESS
//	posthaste watch destination NAME|ADDRESS
//
// Each process of smtpd, and of smtp or lmtp, has a socket of its own below private/watch in the
// queue directory: a Hub serves it. The command asks all of them, and those that start later,
// for the dialogues with one peer, and prints the lines as they come. When the command ends, so
// does the watching: there is no state to clean up.
//
// A process without a watcher pays one atomic load for each command or reply. Lines wait for a
// slow watcher up to a bound; what comes on top of that is lost, and the watcher is told how many
// lines were. The dialogue never waits.
//
// # Security
//
// A process answers root, and the user that started it, as the kernel names the peer; nobody
// else is told anything. What belongs to a password (AUTH and what follows it) and the content
// of messages is not in the lines: the caller of Line leaves them out. Lines are made printable.
// Requests, watchers, lines and their number are bounded. The directory is mail_owner's: a process
// that is still root makes and removes its socket with the file rights of mail_owner.
//
// # Parameters
//
// queue_directory.
package watch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/maillog"
)

// A Kind says which end of a dialogue is the other one.
type Kind string

// Client dialogues are those of smtpd, Destination dialogues those of smtp and lmtp.
const (
	Client      Kind = "client"
	Destination Kind = "destination"
)

// Dir is where the sockets are, relative to the queue directory.
const Dir = "private/watch"

const (
	maxWatchers  = 16   // of one process
	maxWaiting   = 1000 // lines that wait for a watcher
	maxLine      = 2048 // octets of a line
	requestTime  = 5 * time.Second
	deliveryTime = 10 * time.Second // of what waits
)

// A Hub is where a process's dialogues can be watched. Its methods may be called concurrently,
// also those of a nil Hub, which nobody watches.
type Hub struct {
	kind    Kind
	process string // smtpd
	user    int    // who may watch, besides root

	listener net.Listener // nil before Serve
	ctx      context.Context
	stop     context.CancelFunc
	wg       sync.WaitGroup

	changes  atomic.Uint64 // of watchers
	mu       sync.Mutex
	watchers []*watcher // each is replaced with a new slice
	waiting  int        // connections that have not asked yet
}

// New makes the Hub of a process. It is called before the process gives up privileges: the user
// that it runs as then may watch, besides root.
func New(kind Kind, process string) *Hub {
	h := &Hub{kind: kind, process: process, user: os.Geteuid()}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// Serve makes the socket with own (ownsocket.Listen), in Dir below the working directory, and begins to answer. It is called
// when the process has given up its privileges, or has decided to keep them.
func (h *Hub) Serve(own func(dir, name string) (net.Listener, error)) error {
	return h.serveIn(own, Dir)
}

func (h *Hub) serveIn(own func(dir, name string) (net.Listener, error), dir string) error {
	l, err := own(dir, string(h.kind))
	if err != nil {
		return err
	}
	h.listener = l
	h.wg.Go(h.accept)
	return nil
}

// Close ends all watching and removes the socket.
func (h *Hub) Close() {
	if h == nil {
		return
	}
	h.stop()
	if h.listener != nil {
		h.listener.Close()
	}
	h.wg.Wait()
}

func (h *Hub) accept() {
	for {
		c, err := h.listener.Accept()
		if err != nil {
			if h.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // too many open files, for a moment
			case <-time.After(time.Second):
			case <-h.ctx.Done():
			}
			continue
		}
		if !h.mayWatch(c) {
			c.Close()
			continue
		}
		if !h.enter() {
			c.SetWriteDeadline(time.Now().Add(time.Second))
			fmt.Fprintf(c, "error %d others watch %s[%d] already\n", maxWatchers, h.process, os.Getpid())
			c.Close()
			continue
		}
		h.wg.Go(func() {
			defer c.Close()
			defer context.AfterFunc(h.ctx, func() { c.Close() })()
			h.serve(c)
		})
	}
}

// mayWatch says whether the peer may be told what clients say.
func (h *Hub) mayWatch(c net.Conn) bool {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return err == nil && cerr == nil && (cred.Uid == 0 || int(cred.Uid) == h.user)
}

// enter counts a connection, unless there are too many.
func (h *Hub) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting+len(h.watchers) >= maxWatchers {
		return false
	}
	h.waiting++
	return true
}

// serve answers one watcher until it goes away.
func (h *Hub) serve(c net.Conn) {
	c.SetDeadline(time.Now().Add(requestTime))
	in := bufio.NewReaderSize(c, 512)
	request, err := in.ReadSlice('\n')
	w := &watcher{more: make(chan struct{}, 1)}
	if err == nil {
		w.pattern, err = ParsePattern(strings.TrimSuffix(string(request), "\n"))
	}
	h.mu.Lock()
	h.waiting--
	if err == nil {
		h.watchers = append(slices.Clone(h.watchers), w)
		h.changes.Add(1)
	}
	h.mu.Unlock()
	if err != nil {
		fmt.Fprintf(c, "error %s\n", maillog.AppendClean(nil, []byte(err.Error())))
		return
	}
	defer h.remove(w)
	if _, err := fmt.Fprintf(c, "ok %s[%d]\n", h.process, os.Getpid()); err != nil {
		return
	}
	c.SetDeadline(time.Time{})
	gone := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { // a watcher says nothing more
		defer close(gone)
		_, _ = in.ReadByte()
	})
	defer reader.Wait()
	defer c.Close()
	w.deliver(c, gone)
}

func (h *Hub) remove(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers = slices.DeleteFunc(slices.Clone(h.watchers), func(other *watcher) bool { return other == w })
	h.changes.Add(1)
}

// A watcher is one who is told the dialogues with a peer.
type watcher struct {
	pattern Pattern
	more    chan struct{} // has one when something waits

	mu    sync.Mutex
	lines []string
	lost  int // lines for which there was no room, after lines
}

// tell has a line wait for the watcher.
func (w *watcher) tell(line string) {
	w.mu.Lock()
	if w.lost > 0 || len(w.lines) >= maxWaiting {
		w.lost++
	} else {
		w.lines = append(w.lines, line)
	}
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// take empties what waits. The lines lost are counted in the last one.
func (w *watcher) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.lines
	if w.lost > 0 {
		lines = append(lines, fmt.Sprintf("(%d lines were lost: they came faster than they could be shown)", w.lost))
	}
	w.lines, w.lost = nil, 0
	return lines
}

// deliver writes what waits until the watcher is gone.
func (w *watcher) deliver(c net.Conn, gone <-chan struct{}) {
	for {
		select {
		case <-gone:
			return
		case <-w.more:
		}
		lines := w.take()
		if len(lines) == 0 {
			continue
		}
		c.SetWriteDeadline(time.Now().Add(deliveryTime))
		if _, err := c.Write([]byte(strings.Join(lines, "\n") + "\n")); err != nil {
			return
		}
	}
}

// A Talk is one dialogue as watchers see it. The zero Talk has none. It belongs to one goroutine.
type Talk struct {
	seen uint64 // changes of the Hub's watchers
	to   []*watcher
}

// A Peer is the other end of a dialogue.
type Peer struct {
	Names []string // the host's, and those that a destination was asked for under
	Addr  netip.Addr
	Shown string // how logs call it: mx.example.org[192.0.2.1]:25
}

// Idle reports that nobody watches the process: what a dialogue costs then.
func (t *Talk) Idle(h *Hub) bool { return h == nil || h.changes.Load() == t.seen && len(t.to) == 0 }

// Line tells the watchers of a peer one line of the dialogue: arrow is "<" for what the peer
// says, ">" for what it is told. The line must have nothing secret in it. The caller need not
// have asked Idle.
func (t *Talk) Line(h *Hub, arrow string, p *Peer, line []byte) {
	if t.Idle(h) {
		return
	}
	if seen := h.changes.Load(); seen != t.seen {
		h.mu.Lock()
		list := h.watchers
		h.mu.Unlock()
		t.seen, t.to = seen, nil
		for _, w := range list {
			if w.pattern.Matches(p.Addr, p.Names...) {
				t.to = append(t.to, w)
			}
		}
	}
	if len(t.to) == 0 {
		return
	}
	more := ""
	if len(line) > maxLine {
		line, more = line[:maxLine], "..."
	}
	clean := maillog.AppendClean(nil, line)
	text := fmt.Sprintf("%s %s[%d] %s %s: %s%s", time.Now().Format("15:04:05.000"), h.process, os.Getpid(), arrow, p.Shown, clean, more)
	for _, w := range t.to {
		w.tell(text)
	}
}
