package sendmail

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
	"posthaste/internal/whoami"
)

// deliver queues one message.
func (c *Command) deliver(o *options) error {
	cfg, err := config.Read(config.Dir(o.configDir))
	if err == nil {
		err = cfg.Check("queue_directory", "command_directory", "pickup_service_name", "message_size_limit",
			"header_size_limit", "default_verp_delimiters", "verp_delimiter_filter")
	}
	if err != nil {
		return failf(ExitConfig, "%v", err)
	}
	h, err := o.envelope(cfg)
	if err != nil {
		return err
	}
	in := c.Stdin
	if o.mode == modeVerify && !o.extract {
		in = probe(h)
	}
	content := newContent(in, !o.dotIsData, cfg.Bytes("message_size_limit"))
	if o.extract {
		found, err := content.recipients(cfg.Int("header_size_limit"))
		if err != nil {
			return err
		}
		for _, a := range found {
			h.Recipients = append(h.Recipients, mail.Recipient{Address: a, Notify: o.notify})
		}
		if len(h.Recipients) == 0 {
			return failf(ExitTempFail, "%s(%d): No recipient addresses found in message header", h.Sender, h.UID)
		}
	}
	if len(h.Recipients) == 0 {
		return failf(ExitTempFail, "%s(%d): Recipient addresses must be specified on the command line or via the -t option", h.Sender, h.UID)
	}
	if err := c.Drop(cfg, h, content); err != nil {
		return err
	}
	if h.Trace&(mail.TraceRecord|mail.TraceReport) != 0 {
		fmt.Fprintf(c.Stdout, "Mail Delivery Status Report will be mailed to <%s>.\n", h.Sender)
	}
	return nil
}

// probe is the message of -bv: nobody gets it, and its sender sees its header.
func probe(h *maildrop.Header) io.Reader {
	var to []string
	for _, r := range h.Recipients {
		to = append(to, rfc5322.Quote(r.Address))
	}
	return strings.NewReader("From: " + rfc5322.Quote(h.Sender) + "\nSubject: probe\nTo:\t" + strings.Join(to, ",\n\t") + "\n\n")
}

// envelope makes the header of the submission from the command line.
func (o *options) envelope(cfg *config.Config) (*maildrop.Header, error) {
	h := o.header
	h.Time = time.Now()
	h.UID = os.Getuid()
	who, _ := whoami.Lookup()
	h.Sender = loginName(who)
	if o.hasSender {
		h.Sender = oneAddress(o.sender)
	}
	if h.FullName == "" {
		h.FullName = fullName(who)
	}
	if h.VERP == "default" {
		h.VERP = cfg.String("default_verp_delimiters")
	} else if allowed := cfg.String("verp_delimiter_filter"); strings.Trim(h.VERP, allowed) != "" {
		return nil, failf(ExitTempFail, "-XV%s: VERP needs two delimiter characters out of %s (verp_delimiter_filter)", h.VERP, allowed)
	}
	for _, arg := range o.recipients {
		for _, a := range rfc5322.AppendAddresses(nil, arg, 0) {
			// "<>" too: cleanup gives it to empty_address_recipient.
			h.Recipients = append(h.Recipients, mail.Recipient{Address: a.Addr, Notify: o.notify})
		}
	}
	return &h, nil
}

// oneAddress is the first address in text; none is the null sender.
func oneAddress(text string) string {
	if list := rfc5322.AppendAddresses(nil, text, 0); len(list) > 0 {
		return list[0].Addr
	}
	return ""
}

// Drop gives a message to the maildrop: directly when this user may write
// there, else through postdrop, which has the right; through postdrop in any case
// when authorized_submit_users or local_login_sender_maps are to say who may send, and as whom. The message is durable when Drop
// returns nil.
func (c *Command) Drop(cfg *config.Config, h *maildrop.Header, content io.Reader) error {
	queue := cfg.String("queue_directory")
	box := maildrop.Box{Dir: filepath.Join(queue, "maildrop"), Socket: filepath.Join(queue, "public", cfg.String("pickup_service_name"))}
	asks := cfg.String("local_login_sender_maps") != maildrop.EverySender || cfg.String("authorized_submit_users") != maildrop.EveryUser
	if !asks && unix.Access(box.Dir, unix.W_OK|unix.X_OK) == nil {
		h.UID, h.Time = os.Getuid(), time.Now()
		return dropFailure(box.Store(h, content, 0))
	}
	return c.postdrop(filepath.Join(cfg.String("command_directory"), "postdrop"), cfg.Dir(), h, content)
}

// dropFailure finds the exit status for a message that could not be stored.
func dropFailure(err error) error {
	var f failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case errors.Is(err, os.ErrPermission):
		return failf(ExitNoPerm, "%v", err)
	}
	return failf(ExitTempFail, "%v", err)
}

// maxWhy bounds what postdrop may say of a sender.
const maxWhy = 4 << 10

// postdrop runs the set-gid program, which reads the message from its standard
// input, says what is wrong on our standard error, and whose exit status is ours.
// What it says on its standard output is why the sender is not taken.
func (c *Command) postdrop(path, configDir string, h *maildrop.Header, content io.Reader) error {
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), "MAIL_CONFIG="+configDir)
	cmd.Stderr = c.Stderr
	var why bytes.Buffer
	cmd.Stdout = &why
	in, err := cmd.StdinPipe()
	if err != nil {
		return failf(ExitOSErr, "%v", err)
	}
	if err := cmd.Start(); err != nil {
		return failf(ExitUnavailable, "cannot run %s, which puts mail into the maildrop directory: %v", path, err)
	}
	werr := maildrop.Write(in, h, content)
	in.Close()
	err = cmd.Wait()
	var f failure
	var exit *exec.ExitError
	switch {
	case errors.As(werr, &f):
		return f
	case errors.As(err, &exit) && !exit.Exited(): // killed: the message is not at fault
		return failf(ExitTempFail, "the message was not queued: %s: %v", path, exit)
	case errors.As(err, &exit) && why.Len() > 0:
		return failf(exit.ExitCode(), "%s(%d): %.*s", h.Sender, os.Getuid(), maxWhy, bytes.TrimSpace(why.Bytes()))
	case errors.As(err, &exit):
		return failf(exit.ExitCode(), "the message was not queued: %s: %v", path, exit)
	case err != nil:
		return failf(ExitOSErr, "%s: %v", path, err)
	case werr != nil:
		return failf(ExitTempFail, "%v", werr)
	}
	return nil
}

// content is the message as it is read from standard input: with LF line ends,
// without the "From " lines that mailboxes put on top, up to the end of input
// or the line with a single dot.
type content struct {
	br      *bufio.Reader
	dotEnds bool
	limit   int64 // message_size_limit; 0: none
	size    int64
	top     bool   // still looking for "From " lines
	midline bool   // what comes next continues a line
	pending []byte // header that recipients has read
	ended   bool
}

func newContent(r io.Reader, dotEnds bool, limit int64) *content {
	return &content{br: bufio.NewReaderSize(r, 64<<10), dotEnds: dotEnds, limit: limit, top: true}
}

var errTooBig = failure{ExitUnavailable, "message file too big"}

// TooBig says that an error of Drop is about the message's size.
func TooBig(err error) bool {
	var f failure
	return errors.Is(err, maildrop.ErrTooBig) || errors.As(err, &f) && f == errTooBig
}

// line reads the next piece of the message, a line with its LF or, if it is
// very long, a part of one. It is good until the next call.
func (c *content) line() ([]byte, error) {
	for !c.ended {
		b, err := c.br.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && err != io.EOF {
			return nil, failf(ExitDataErr, "reading the message: %v", err)
		}
		if err == io.EOF {
			c.ended = true
		}
		if err == bufio.ErrBufferFull && b[len(b)-1] == '\r' { // its LF may come next
			c.br.UnreadByte()
			b = b[:len(b)-1]
		}
		start := !c.midline
		c.midline = len(b) > 0 && b[len(b)-1] != '\n'
		if n := len(b); n > 1 && b[n-1] == '\n' && b[n-2] == '\r' {
			b[n-2] = '\n'
			b = b[:n-1]
		}
		if start && c.dotEnds && (string(b) == ".\n" || string(b) == "." && c.ended) {
			c.ended = true
			break
		}
		if start && c.top && isFrom(b) {
			continue
		}
		if len(b) == 0 {
			break
		}
		c.top = false
		c.size += int64(len(b))
		if c.limit > 0 && c.size > c.limit {
			return nil, errTooBig
		}
		return b, nil
	}
	return nil, io.EOF
}

// isFrom says whether a line at the top is a mailbox's separator, quoted or not.
func isFrom(b []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(b, ">"), []byte("From "))
}

// Read reads the message.
func (c *content) Read(p []byte) (int, error) {
	if len(c.pending) == 0 {
		b, err := c.line()
		if err != nil {
			return 0, err
		}
		n := copy(p, b)
		c.pending = append(c.pending[:0], b[n:]...)
		return n, nil
	}
	n := copy(p, c.pending)
	c.pending = c.pending[n:]
	return n, nil
}

// recipients reads the header and finds the addresses in To, Cc and Bcc, or in
// their Resent- forms if there is any of those. Each of them is a recipient, or
// the message is refused: a field of them must not be longer than fieldLimit
// octets. Of another field more is not looked at.
func (c *content) recipients(fieldLimit int) ([]string, error) {
	found := recipientFields{limit: fieldLimit}
	var header []byte
	for {
		continues := c.midline // a part of a line, after another
		b, err := c.line()
		if err != nil && err != io.EOF {
			return nil, err
		}
		header = append(header, b...)
		continues = continues || len(b) > 0 && (b[0] == ' ' || b[0] == '\t')
		if !continues || err == io.EOF {
			if ferr := found.end(); ferr != nil {
				return nil, ferr
			}
		}
		if err == io.EOF || !continues && !rfc5322.IsField(string(b)) { // an empty line is no field either
			break
		}
		found.add(b)
		if len(header) > maxHeader {
			return nil, failf(ExitDataErr, "the message header is longer than %d octets", maxHeader)
		}
	}
	c.pending = header
	if found.isResent {
		return found.resent, nil
	}
	return found.plain, nil
}

// maxHeader bounds the header that -t keeps in memory.
const maxHeader = 16 << 20

// recipientFields gathers the addresses of a header, field by field.
type recipientFields struct {
	limit         int    // octets of a field
	field         []byte // the present one, as far as it is within the limit
	cut           bool   // there is more of it
	plain, resent []string
	isResent      bool
}

// add takes the next piece of the present field.
func (r *recipientFields) add(b []byte) {
	if room := max(r.limit-len(r.field), 0); len(b) > room {
		b, r.cut = b[:room], true
	}
	r.field = append(r.field, b...)
}

// end ends the present field, if there is one.
func (r *recipientFields) end() error {
	err := r.whole(r.field, r.cut)
	r.field, r.cut = reuse.Truncated(r.field), false
	return err
}

// whole takes the recipients out of a field, of which the end is missing if it was cut.
// It does not keep raw.
func (r *recipientFields) whole(raw []byte, cut bool) error {
	f, ok := rfc5322.ParseField(raw)
	if !ok {
		return nil
	}
	list := &r.plain
	name := strings.ToLower(string(f.Name()))
	if rest, is := strings.CutPrefix(name, "resent-"); is {
		name, list = rest, &r.resent
	}
	if name != "to" && name != "cc" && name != "bcc" {
		return nil
	}
	if cut {
		return failf(ExitTempFail, "unable to extract recipients: message header length exceeds safety limit: "+
			"the field %s: is longer than %d octets (header_size_limit); nothing was sent", f.Name(), r.limit)
	}
	r.isResent = r.isResent || list == &r.resent
	for _, a := range rfc5322.AppendAddresses(nil, string(f.Body()), 0) {
		if a.Addr != "" {
			*list = append(*list, a.Addr)
		}
	}
	return nil
}
