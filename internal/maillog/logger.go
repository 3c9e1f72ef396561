// Package maillog writes the mail log. Every text that has the shape of a
// Postfix log line is declared here, as a typed event that prints itself:
// people grep these lines, and programs (pflogsumm, fail2ban, logwatch,
// exporters) read them, so that they must not be composed in many places.
//
// A Logger gathers lines, and what has gathered goes to its Sink a few
// milliseconds later in one write. An error, a fatal error or a panic goes
// out at once, and so does everything that goes to syslog or to standard
// output: a message passes through several processes in less time than that,
// and programs that read the log expect its lines in the order in which
// things happened. On the way to the postlog service each line carries its
// time, by which the service puts them in order. While the sink cannot be reached (the postlog service
// restarts, the disk is full) up to a megabyte of lines is kept and tried
// again; what comes on top of that is dropped and counted, and the count is
// logged.
//
// # Security
//
// Much of what is logged comes from strangers. Control characters, and bytes
// that are not UTF-8, become "?", so that nobody can forge a line or send
// escape sequences to a terminal. The text of one line is bounded.
//
// The log file must lie in one of maillog_file_prefixes, and is neither
// reached through a symbolic link nor anything but a regular file. Root opens and makes it
// with the rights of whoever the directory belongs to.
//
// # Standards
//
// RFC 3164 (BSD syslog), RFC 5424 (syslog), and the protocol of systemd's
// journal, as syslog_protocol has it; RFC 5426 (syslog over UDP). RFC 8259
// (JSON) for maillog_format = json: one object a line, with the text of the
// classic line in "text".
//
// # Parameters
//
// info_log_address_format, maillog_file, maillog_file_prefixes, maillog_file_permissions,
// maillog_format, postlog_service_name, syslog_facility, syslog_name,
// syslog_protocol, syslog_socket.
package maillog

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"posthaste/internal/reuse"
)

// An Event is something that happened, and knows the text of its log line:
// what follows "postfix/smtpd[1357]: ".
//
// Addresses in events are in the form that Logger.Address gives them, and
// without angle brackets.
type Event interface {
	// Append appends the text, without a line end.
	Append(b []byte) []byte
}

// A Fielder is an Event with values worth keys of their own in a JSON log.
// The events of this package that carry values are Fielders.
type Fielder interface {
	// AppendFields appends members of a JSON object, each with a comma before
	// it: ,"queue_id":"4Zq..."
	AppendFields(b []byte) []byte
}

// A Level is the severity of a line.
type Level uint8

// The levels, and what each one means to an operator.
const (
	LevelInfo    Level = iota // what happened
	LevelWarning              // something to look at; the service goes on
	LevelError                // something failed; the service goes on
	LevelFatal                // the process ends
	LevelPanic                // the process ends: a defect in the program
)

var levelNames = [...]string{"info", "warning", "error", "fatal", "panic"}

// String is the name of the level as it stands before the text of a line.
func (v Level) String() string { return levelNames[v] }

// syslog is the severity of RFC 3164 section 4.1.1.
func (v Level) syslog() int { return [...]int{6, 4, 3, 2, 2}[v] }

// An Observer is told of each line: its level, whether it is written (see
// Count), and its event, which is nil where the line has none. It must not
// keep the event. Concurrent calls happen.
type Observer func(level Level, written bool, e Event)

// A Logger writes lines under one tag. All methods may be called
// concurrently. None of them fails: what cannot be written is kept and tried
// again, see the package comment. The nil Logger discards.
type Logger struct {
	tag    string
	ident  string // "postfix/smtpd[1357]: "
	lines  *gatherer
	parent bool // owns lines
}

// New returns a Logger that writes to sink under tag, such as
// "postfix/smtpd". Close closes the sink.
func New(tag string, sink Sink) *Logger {
	l := &Logger{lines: newGatherer(sink), parent: true}
	l.setTag(tag)
	return l
}

func (l *Logger) setTag(tag string) {
	l.tag = tag
	l.ident = tag + "[" + strconv.Itoa(os.Getpid()) + "]: "
}

// With returns a Logger that writes to the same place under another tag.
// Closing it only flushes.
func (l *Logger) With(tag string) *Logger {
	if l == nil {
		return nil
	}
	w := &Logger{lines: l.lines}
	w.setTag(tag)
	return w
}

// Tag is the tag that lines are written under.
func (l *Logger) Tag() string {
	if l == nil {
		return ""
	}
	return l.tag
}

// Log writes the event. It does not keep e: a caller on a hot path passes a
// pointer to an event that it uses again, which spares an allocation.
func (l *Logger) Log(e Event) { l.event(LevelInfo, e) }

// LogWarning writes the event with "warning: " before it.
func (l *Logger) LogWarning(e Event) { l.event(LevelWarning, e) }

// Count has the observer told of an event that the settings keep out of the
// log.
func (l *Logger) Count(e Event) {
	if l != nil && l.lines.observer != nil {
		l.lines.observer(LevelInfo, false, e)
	}
}

// Observe has f told of each line that is written from now on, under whatever
// tag. It must be called before the Logger is used concurrently.
func (l *Logger) Observe(f Observer) {
	if l != nil {
		l.lines.observer = f
	}
}

func (l *Logger) event(level Level, e Event) {
	if l == nil {
		return
	}
	if l.lines.observer != nil {
		l.lines.observer(level, true, e)
	}
	r := newRecord(level)
	r.text = e.Append(r.text)
	if l.lines.json {
		if f, ok := e.(Fielder); ok {
			r.fields = f.AppendFields(r.fields)
		}
	}
	l.lines.add(l, r)
}

func (l *Logger) printf(level Level, format string, args []any) {
	if l == nil {
		return
	}
	if l.lines.observer != nil {
		l.lines.observer(level, true, nil)
	}
	r := newRecord(level)
	if len(args) == 0 {
		r.text = append(r.text, format...)
	} else {
		r.text = fmt.Appendf(r.text, format, args...)
	}
	l.lines.add(l, r)
}

// Info writes a line that has no typed event. Without arguments the format
// is the text itself.
func (l *Logger) Info(format string, args ...any) { l.printf(LevelInfo, format, args) }

// Warning writes a line that begins with "warning: ".
func (l *Logger) Warning(format string, args ...any) { l.printf(LevelWarning, format, args) }

// Text writes a line of the given level without waiting for it to be written.
func (l *Logger) Text(level Level, text string) { l.printf(level, "%s", []any{text}) }

// Error writes a line that begins with "error: ", and flushes.
func (l *Logger) Error(format string, args ...any) {
	l.printf(LevelError, format, args)
	l.Flush()
}

// Fatal writes a line that begins with "fatal: ", and flushes. It does not
// end the process: the caller returns its error or exits.
func (l *Logger) Fatal(format string, args ...any) {
	l.printf(LevelFatal, format, args)
	l.Flush()
}

// Panic writes what was recovered from a panic, and the stack one frame a
// line, and flushes. The caller ends the process. It must be called by the
// deferred function that recovered, so that the stack is that of the panic.
func (l *Logger) Panic(recovered any) {
	l.printf(LevelPanic, "%v", []any{recovered})
	for _, frame := range stackFrames(debug.Stack()) {
		l.printf(LevelPanic, frame, nil)
	}
	l.Flush()
}

// Flush writes what has gathered. It returns when the sink has taken it, or
// has refused it once.
func (l *Logger) Flush() {
	if l != nil {
		l.lines.flush()
	}
}

// Reopen has a sink that writes a file open it anew, for log rotation, and one that sends
// to a socket connect to it now: what is going to confine itself calls it before.
func (l *Logger) Reopen() {
	if l != nil {
		l.lines.reopen()
	}
}

// Close flushes, and closes the sink of a Logger made by New or Open. It
// fails when lines could not be written; they are lost.
func (l *Logger) Close() error {
	if l == nil {
		return nil
	}
	if !l.parent {
		l.Flush()
		return nil
	}
	return l.lines.close()
}

// A record is one line under way.
type record struct {
	level  Level
	text   []byte
	fields []byte
}

var records = reuse.Pool[record]{New: func() *record { return &record{text: make([]byte, 0, 1024)} }}

// newRecord returns a record that begins with its level's name.
func newRecord(level Level) *record {
	r := records.Get()
	r.level, r.text, r.fields = level, reuse.Truncated(r.text), reuse.Truncated(r.fields)
	if level != LevelInfo {
		r.text = append(append(r.text, levelNames[level]...), ": "...)
	}
	return r
}

// free gives the record back, unless it has become too large to keep.
func (r *record) free() {
	if cap(r.text) <= 16<<10 && cap(r.fields) <= 16<<10 {
		records.Put(r)
	}
}

// GatherTime is how long a line may wait for others before it is sent to the
// postlog service.
const GatherTime = 10 * time.Millisecond

const (
	maxText    = 8 << 10  // text of one line, in bytes; what is over it is cut
	maxPending = 1 << 20  // lines kept for a sink that does not take them
	maxBatch   = 32 << 10 // one write
	eager      = 16 << 10 // this much is written without waiting
	crowded    = 64 << 10 // this much, by whoever wrote the last line

	gatherTime = GatherTime
	retryTime  = 100 * time.Millisecond
)

// A gatherer collects lines and hands them to a sink in batches.
type gatherer struct {
	sink     Sink
	format   Format
	stamped  bool   // each line begins with its time, for the postlog service
	direct   bool   // each line is written at once
	json     bool   // lines are, or have as their text, JSON objects
	host     string // its first label
	fullHost string
	observer Observer

	addresses AddressForm

	// writing is held while the sink is in use. It is taken before mu.
	writing sync.Mutex
	spare   []byte // the buffer that is not being filled
	closed  bool

	mu       sync.Mutex
	pending  []byte
	dropped  int
	timer    *time.Timer
	armed    bool // the timer runs, or flush is about to
	failing  bool
	stamp    []byte // time of the second in format's form
	stampSec int64
}

func newGatherer(sink Sink) *gatherer {
	g := &gatherer{sink: sink, format: sink.Format()}
	g.setHost(hostName())
	g.json = g.format == JSON
	// Nobody puts the lines of several processes in order behind those that are
	// direct, and syslog takes a line at a time anyway.
	switch sink := sink.(type) {
	case *postlogSink:
		g.stamped = true
	case *syslogSink:
		g.direct, g.json = true, sink.json
	case *journalSink, *writerSink:
		g.direct = true
	}
	return g
}

// setHost says whose lines they are. It comes before the first line.
func (g *gatherer) setHost(name string) {
	g.fullHost = name
	g.host, _, _ = strings.Cut(name, ".") // as syslog has it
}

// add puts the record's line among those that wait. It frees r.
func (g *gatherer) add(l *Logger, r *record) {
	r.text = bound(r.text)
	clean(r.text)
	now := time.Now()
	g.mu.Lock()
	if len(g.pending) >= maxPending {
		g.dropped++
		g.mu.Unlock()
		r.free()
		return
	}
	g.pending = g.appendLine(g.pending, now, l, r)
	switch {
	case g.failing: // the timer runs at its own pace
	case g.direct, len(g.pending) > crowded: // whoever writes more than the sink takes waits for it
		g.mu.Unlock()
		r.free()
		g.flush()
		return
	case len(g.pending) > eager && len(g.pending)-len(r.text) < eager+512:
		g.arm(0)
	case !g.armed:
		g.arm(gatherTime)
	}
	g.mu.Unlock()
	r.free()
}

// arm sees to it that flush runs after d. Called with mu held.
func (g *gatherer) arm(d time.Duration) {
	g.armed = true
	if g.timer == nil {
		g.timer = time.AfterFunc(d, g.flush)
		return
	}
	g.timer.Reset(d)
}

// flush writes everything that waits, unless the sink refuses.
func (g *gatherer) flush() {
	g.writing.Lock()
	defer g.writing.Unlock()
	if g.closed {
		return
	}
	g.mu.Lock()
	lines := g.pending
	g.pending, g.spare = reuse.Truncated(g.spare), nil
	g.armed = false
	g.mu.Unlock()

	n, err := writeBatches(g.sink, lines)

	g.mu.Lock()
	defer g.mu.Unlock()
	g.failing = err != nil
	if err != nil {
		// What came meanwhile goes behind what is left.
		rest := append(lines[:copy(lines, lines[n:])], g.pending...)
		g.spare, g.pending = reuse.Truncated(g.pending), rest
		g.arm(retryTime)
		return
	}
	if cap(lines) <= 4*maxBatch {
		g.spare = reuse.Truncated(lines)
	}
	if g.dropped > 0 {
		r := newRecord(LevelWarning)
		r.text = append(strconv.AppendInt(r.text, int64(g.dropped), 10), " log lines were lost: the log could not be written"...)
		g.dropped = 0
		g.pending = g.appendLine(g.pending, time.Now(), &Logger{ident: "postfix/maillog[" + strconv.Itoa(os.Getpid()) + "]: ", tag: "postfix/maillog"}, r)
		r.free()
		g.arm(gatherTime)
	}
}

// writeBatches hands lines to the sink in pieces of at most maxBatch that
// end with a line. It returns how many bytes were taken.
func writeBatches(sink Sink, lines []byte) (n int, err error) {
	for n < len(lines) {
		batch := lines[n:]
		if len(batch) > maxBatch {
			batch = batch[:lastLine(batch[:maxBatch])]
		}
		taken, err := sink.Write(batch)
		n += taken
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (g *gatherer) reopen() {
	g.flush()
	g.writing.Lock()
	defer g.writing.Unlock()
	if r, ok := g.sink.(interface{ Reopen() }); ok && !g.closed {
		r.Reopen()
	}
}

func (g *gatherer) close() error {
	g.flush()
	g.writing.Lock()
	defer g.writing.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	g.mu.Lock()
	if g.timer != nil {
		g.timer.Stop()
	}
	lost := len(g.pending)
	g.mu.Unlock()
	err := g.sink.Close()
	if lost > 0 {
		err = errors.Join(fmt.Errorf("%d bytes of log lines could not be written", lost), err)
	}
	return err
}
