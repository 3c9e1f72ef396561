package milter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"posthaste/internal/lockstep"
	"posthaste/internal/mailfilter"
	"posthaste/internal/reuse"
)

// maxContentTime bounds the wait for a filter that reports progress: an SMTP
// client waits ten minutes for its reply (RFC 5321 section 4.5.3.2.6).
const maxContentTime = 10 * time.Minute

// reuseLimit bounds the wait for a filter to begin another session on a
// connection. Not all filters of version 6 know how: those made with libmilter
// take the command and then say nothing.
const reuseLimit = 2 * time.Second

// A filter is one filter's part in a session.
type filter struct {
	spec mailfilter.Spec
	warn func(format string, args ...any)
	pool *Pool

	nc      *lockstep.Conn
	out     []byte // not sent yet
	buf     []byte // of the packet read last
	opts    options
	dead    bool               // not to be asked any more: it failed, or accepted all of the session
	verdict mailfilter.Verdict // of all messages to come, once there is one
	done    bool               // not to be asked about this message any more
	opened  bool               // it has heard something of a message
	skip    byte               // the kind of event of which it wants no more in a row
}

// open connects and negotiates.
func (f *filter) open(ctx context.Context) error {
	if f.spec.Reuse {
		if c := f.pool.take(f.spec.Endpoint); c != nil {
			f.nc = c.nc
			err := f.negotiate(min(f.spec.Command, reuseLimit))
			if err == nil {
				return nil
			}
			f.nc.Close()
			if isTimeout(err) { // else it has gone stale, which is nothing special
				f.pool.refuse(f.spec.Endpoint)
				f.warn("milter %s: connection_reuse = yes, but the filter does not serve a second session on a connection; it gets a new one each time", f.spec.Endpoint)
			}
		}
	}
	return f.dial(ctx)
}

func (f *filter) dial(ctx context.Context) error {
	network, addr, err := network(f.spec.Endpoint)
	if err != nil {
		return err
	}
	d := net.Dialer{Timeout: f.spec.Connect}
	nc, err := d.DialContext(ctx, network, addr)
	if err != nil {
		var sys *os.SyscallError
		if errors.As(err, &sys) {
			err = sys.Err // the address is in the text already
		}
		return fmt.Errorf("connect to Milter service %s: %w", f.spec.Endpoint, err)
	}
	f.nc = lockstep.New(nc)
	if err := f.negotiate(f.spec.Command); err != nil {
		return fmt.Errorf("milter %s: option negotiation: %w", f.spec.Endpoint, err)
	}
	return nil
}

// negotiate agrees with the filter on what each of us does. It is done anew
// for each session.
func (f *filter) negotiate(limit time.Duration) error {
	offer := options{version: f.spec.Protocol, actions: offered[f.spec.Protocol].actions, steps: offered[f.spec.Protocol].steps}
	if f.spec.NoHeaderReply {
		offer.steps |= stepNRHeader
	}
	f.out = offer.append(reuse.Truncated(f.out))
	p, err := f.answer(limit)
	if err == nil {
		f.opts, err = parseOptions(p, offer)
	}
	if err != nil {
		return err
	}
	// What a version does not know is not to be sent, whatever was said of it.
	if f.opts.version < 4 {
		f.opts.steps |= stepNoData
	}
	if f.opts.version < 3 {
		f.opts.steps |= stepNoUnknown
	}
	return nil
}

// flush sends what is to be sent.
func (f *filter) flush(limit time.Duration) error {
	if len(f.out) == 0 {
		return nil
	}
	f.nc.SetWriteDeadline(time.Now().Add(limit))
	_, err := f.nc.Write(f.out)
	if f.out = reuse.Truncated(f.out); cap(f.out) > 2*chunkSize {
		f.out = nil
	}
	return err
}

// answer sends what is to be sent and reads one packet. What a filter has said before
// it was asked would be taken for the answer: it is an error.
func (f *filter) answer(limit time.Duration) (packet, error) {
	if len(f.out) > 0 {
		if err := f.nc.Before(); err != nil {
			return packet{}, err
		}
	}
	if err := f.flush(limit); err != nil {
		return packet{}, err
	}
	f.nc.SetReadDeadline(time.Now().Add(limit))
	return readPacket(f.nc.Reader(), &f.buf)
}

// An event is one command for filters.
type event struct {
	name   string // as warnings have it
	kind   byte
	stage  mailfilter.Stage
	skip   uint32 // the step by which a filter says that it does not want it
	noWait uint32 // the step by which a filter says that it sends no reply
	fill   func([]byte) []byte
}

// emptyMacros is the size of a packet of no macros.
const emptyMacros = 4 + 1 + 1

// macros appends what the filter is to know at this stage.
func (f *filter) macros(b []byte, e *event, values map[string]string) []byte {
	names, asked := f.opts.macros[e.stage]
	if !asked {
		names = macroNames(f.spec.Macros[e.stage])
	}
	return appendPacket(b, cmdMacro, func(b []byte) []byte {
		b = append(b, e.kind)
		for _, n := range names {
			if v, ok := values[macroName(n)]; ok { // sent by the name that was asked for
				b = appendStrings(b, n, v)
			}
		}
		return b
	})
}

// send tells the filter of an event and heeds its reply. Replies to the
// content are not for here.
func (f *filter) send(e *event, values map[string]string) mailfilter.Verdict {
	if f.skip == e.kind {
		return mailfilter.Verdict{}
	}
	f.skip = 0
	if f.opts.steps&e.skip != 0 {
		// What it is to know at this stage it may need at a later one.
		if n := len(f.out); e.stage <= mailfilter.StageRcpt {
			if f.out = f.macros(f.out, e, values); len(f.out) == n+emptyMacros {
				f.out = f.out[:n]
			}
		}
		return mailfilter.Verdict{}
	}
	if e.stage < mailfilter.Stages {
		f.out = f.macros(f.out, e, values)
	}
	f.out = appendPacket(f.out, e.kind, e.fill)
	limit := f.spec.Command
	if e.kind == cmdHeader || e.kind == cmdEOH || e.kind == cmdBody {
		limit = f.spec.Content
	}
	if f.opts.steps&e.noWait != 0 {
		if len(f.out) > chunkSize {
			if err := f.flush(limit); err != nil {
				return f.fail(e.name, err)
			}
		}
		return mailfilter.Verdict{}
	}
	end := time.Now().Add(max(maxContentTime, limit))
	for range 1000 {
		p, err := f.answer(min(limit, time.Until(end)))
		if err != nil {
			return f.fail(e.name, err)
		}
		if p.kind != repProgress {
			return f.heed(p, e)
		}
	}
	return f.fail(e.name, errors.New("it reports progress without end"))
}

// heed is what a reply means for the session.
func (f *filter) heed(p packet, e *event) mailfilter.Verdict {
	session := e.kind == cmdConnect || e.kind == cmdHelo
	v := mailfilter.Verdict{}
	switch p.kind {
	case repContinue:
		return v
	case repAccept:
		if session {
			f.close()
			f.dead = true
		}
		f.done = true
		return v
	case repSkip: // whether it had asked to be allowed or not, and not only in the body
		f.skip = e.kind
		return v
	case repReject:
		v = mailfilter.Verdict{Action: mailfilter.Reject, Reply: replyReject}
	case repTempFail:
		v = mailfilter.Verdict{Action: mailfilter.Reject, Reply: replyTempFail}
	case repCode:
		text, _, _ := bytes.Cut(p.data, []byte{0}) // which some forget
		var ok bool
		if v, ok = parseReply(string(text)); !ok {
			return f.fail(e.name, fmt.Errorf("malformed SMTP reply %.100q", p.data))
		}
	case repDiscard:
		if session || e.kind == cmdUnknown {
			f.warn("milter %s: %s event: it wants to discard a message, but there is none", f.spec.Endpoint, e.name)
			return v
		}
		v = mailfilter.Verdict{Action: mailfilter.Discard}
	case repShutdown, repConnFail:
		v = mailfilter.Verdict{Action: mailfilter.Shutdown, Reply: replyShutdown}
	default:
		return f.fail(e.name, unexpectedReply(p))
	}
	switch {
	case session:
		f.verdict = v
		f.close()
		f.dead = true
	case e.kind != cmdRcpt && e.kind != cmdUnknown:
		f.done = true
	}
	return v
}

func unexpectedReply(p packet) error { return fmt.Errorf("unexpected reply %q", p.kind) }

// fail gives the filter up for the session: its default action is what it says
// from now on.
func (f *filter) fail(event string, err error) mailfilter.Verdict {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("connection lost")
	case isTimeout(err):
		err = errors.New("no answer in time")
	}
	f.warn("milter %s: %s event: %v", f.spec.Endpoint, event, err)
	return f.giveUp()
}

func (f *filter) giveUp() mailfilter.Verdict {
	if f.nc != nil {
		f.nc.Close()
		f.nc = nil
	}
	f.dead = true
	f.verdict = mailfilter.Default(f.spec.Default)
	return f.verdict
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// abort tells the filter to forget the message.
func (f *filter) abort() {
	f.done, f.skip = false, 0
	if f.dead || !f.opened {
		return
	}
	f.opened = false
	f.out = appendPacket(f.out, cmdAbort, nil)
	if err := f.flush(f.spec.Command); err != nil {
		f.fail("ABORT", err)
	}
}

// close ends the session with the filter.
func (f *filter) close() {
	if f.nc == nil {
		return
	}
	if f.spec.Reuse && f.opts.version >= 6 && !f.dead && f.pool.keeps(f.spec.Endpoint) {
		f.out = appendPacket(f.out, cmdQuitNC, nil)
		if f.flush(f.spec.Command) == nil && f.nc.Before() == nil {
			f.pool.give(f.spec.Endpoint, &pooled{nc: f.nc})
			f.nc = nil
			return
		}
	} else {
		f.out = appendPacket(f.out, cmdQuit, nil)
		f.flush(time.Second) // it may be gone already, and nothing depends on it
	}
	f.nc.Close()
	f.nc = nil
}

// headerValue is a field's value as filters are given it: lines end in LF, the
// space after the colon is left out unless the filter wants it.
func (f *filter) headerValue(fd Field) []byte {
	v := bytes.TrimSuffix(fd.Raw[len(fd.Name):], crlf)
	v = bytes.TrimLeft(v, " \t")
	v = bytes.TrimPrefix(v, []byte(":"))
	if f.opts.steps&stepLeadSpace == 0 && len(v) > 0 && (v[0] == ' ' || v[0] == '\t') {
		v = v[1:]
	}
	v = bytes.ReplaceAll(v, crlf, []byte("\n"))
	if bytes.IndexByte(v, 0) >= 0 { // it would end the value, and hide the rest of it
		v = bytes.ReplaceAll(v, []byte{0}, nil)
	}
	return v
}

// fieldOf makes a field of what a filter gives. Line ends in the value, of whatever
// kind, continue the field; CR, NUL and line ends in the name are not kept.
func (f *filter) fieldOf(name, value string) (Field, error) {
	if name == "" || len(name) > 900 || strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r >= 127 || r == ':' }) >= 0 {
		return Field{}, fmt.Errorf("%w: %.100q is not a valid header field name", errPacket, name)
	}
	value = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(value)
	value = strings.TrimRight(value, "\n")
	raw := make([]byte, 0, len(name)+len(value)+16)
	raw = append(append(raw, name...), ':')
	if f.opts.steps&stepLeadSpace == 0 {
		raw = append(raw, ' ')
	}
	for i, line := range strings.Split(value, "\n") {
		if i > 0 {
			if strings.Trim(line, " \t") == "" {
				continue // a line of nothing but space ends the header for some
			}
			raw = append(raw, "\r\n"...)
			if line[0] != ' ' && line[0] != '\t' {
				raw = append(raw, '\t')
			}
		}
		raw = append(raw, line...)
	}
	raw = append(raw, "\r\n"...)
	return Field{Name: name, Raw: raw}, nil
}

var crlf = []byte("\r\n")
