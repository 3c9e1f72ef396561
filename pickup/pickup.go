// Package pickup takes the mail that the sendmail program has left in the
// maildrop directory, or offers on the service's socket, and hands it to
// cleanup. It is Postfix's pickup(8).
//
// A small message is offered while sendmail waits, or postdrop on its behalf,
// and never becomes a file: creating, syncing, finding and removing a file is
// most of the cost of a submission. The offer is declined, and the message
// becomes a file, if non_smtpd_milters are set, which may be slow, if enough
// other messages are in progress, or if cleanup does not accept it now. So
// refusals, and their reasons, come from one place.
//
// Files are taken in the order of their creation. A file stays until cleanup
// has confirmed that the message is on stable storage. If this process dies
// before that, the message may be queued twice, but it is never lost: the next
// process names each message that may be, and so does this one if postdrop has
// taken back a file that it could not sync. A message with more recipients than
// the spool accepts, which depends on spool_segment_size and spool_size_limit,
// is queued as several messages.
//
// # Security
//
// Anybody can leave anything in maildrop with postdrop. A file is opened
// without following links. It must be a plain file with one name, and have the
// mode that postdrop gives to a complete message. Its statement about the
// submitter is believed only if the file's owner is the same, or for an offer
// the user that the kernel reports. An offer is bounded in size, time and
// number. Addresses and content are as hostile as those from the network.
//
// # Parameters
//
// cleanup_service_name, content_filter, receive_override_options,
// local_header_rewrite_clients (local submissions are always local),
// message_size_limit, non_smtpd_milters, data_directory.
//
// # Diagnostics
//
// ID: uid=N from=<sender>, with orig_id= for mail that postsuper -r requeued.
// If cleanup refuses a message permanently, for example because it is too
// large, the message is returned to its sender. As in Postfix, a message
// without recipients is removed with a warning. A file that is not a message,
// or that cannot even be returned, is named in a warning and left alone.
package pickup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
	"posthaste/internal/submit"
)

// Options are what a Picker is made of.
type Options struct {
	Dir        string // the maildrop directory
	Submit     *submit.Client
	Log        *maillog.Logger
	Myhostname string
	MailName   string
	Filter     string // content_filter
	Override   proto.SubmitFlags
	AutoUTF8   proto.SubmitFlags // SubmitAutoUTF8, or nothing
	Owner      int               // mail_owner's user number, whose files postsuper makes
	// Parallel is how many messages are handed over at once: with one sync
	// for all who wait, more at once is faster for all.
	Parallel int
	// Died says that the process before this one, which began at Began, has died: what was
	// submitted before Began may have been queued.
	Died  bool
	Began time.Time
	// Change is asked before a file is removed (service.World); nil: nobody is.
	Change func(op, path string) error
	// Slow: cleanup may take longer over a message than a user should wait, who
	// then has only to wait for its file.
	Slow bool
}

// A Picker picks up mail. Scan is not to be called concurrently with itself.
type Picker struct {
	opt Options
	// broken are files that are no messages, with the time of their last
	// change: they are complained of once.
	broken map[string]time.Time
	// partly are files of whose recipients so many have been queued.
	partly map[string]int
}

// New makes a Picker.
func New(o Options) *Picker {
	return &Picker{opt: o, broken: make(map[string]time.Time), partly: make(map[string]int)}
}

// Scan picks up all that is there. Trouble with one file is logged and does
// not keep the others; the error is of the directory.
func (p *Picker) Scan(ctx context.Context) error {
	for ctx.Err() == nil {
		names, err := p.list()
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return nil
		}
		if p.queueFiles(ctx, names) == 0 {
			return nil // what is left cannot be taken now
		}
	}
	return nil
}

// list names the files, oldest first. Their names begin with their time.
func (p *Picker) list() ([]string, error) {
	// Opened anew for each scan: the directory may have been replaced.
	d, err := os.Open(p.opt.Dir)
	if err != nil {
		return nil, fmt.Errorf("pickup: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("pickup: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

// queueFiles takes these files, several at once, and returns how many it took. When ctx
// ends it begins no other and finishes those in hand: a message whose verdict from
// cleanup nobody waits for may be queued, and would be queued again from its file.
func (p *Picker) queueFiles(ctx context.Context, names []string) (taken int) {
	type result struct {
		name   string
		ok     bool
		queued int
		err    error
	}
	slots := make(chan struct{}, max(p.opt.Parallel, 1))
	results := make(chan result, len(names))
	started := 0
	inHand := context.WithoutCancel(ctx)
	for _, name := range names {
		fi, err := os.Lstat(filepath.Join(p.opt.Dir, name))
		if err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o100 == 0 || p.broken[name].Equal(fi.ModTime()) {
			continue // gone, being written, or known to be no message
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		started++
		queued := p.partly[name]
		go func() {
			defer func() { <-slots }()
			ok, queued, err := p.queueFile(inHand, name, queued)
			results <- result{name, ok, queued, err}
		}()
	}
	for range started {
		r := <-results
		if r.ok {
			taken++
		}
		if delete(p.partly, r.name); !r.ok && r.queued > 0 {
			p.partly[r.name] = r.queued
		}
		if r.err != nil {
			p.warnAbout(r.name, r.err)
		}
	}
	return taken
}

// warnAbout logs what is wrong with a file. If the fault is the file's own it is
// remembered, and the file is left alone until it changes: it would be logged with each
// scan.
func (p *Picker) warnAbout(name string, err error) {
	var later tryLater
	if !errors.As(err, &later) {
		if fi, serr := os.Lstat(filepath.Join(p.opt.Dir, name)); serr == nil {
			p.broken[name] = fi.ModTime()
		}
	}
	p.opt.Log.LogWarning(maillog.PickupFailed{Path: filepath.Join(p.opt.Dir, name), Reason: err.Error()})
}

// tryLater marks an error that is not the file's fault: cleanup or the disk cannot take
// the message now.
type tryLater struct{ error }

func (e tryLater) Unwrap() error { return e.error }

// queueFile hands one file over, of whose recipients so many are queued already, and
// returns how many are now. ok says that the file is gone.
func (p *Picker) queueFile(ctx context.Context, name string, was int) (ok bool, queued int, err error) {
	queued = was
	path := filepath.Join(p.opt.Dir, name)
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false, queued, tryLater{err}
	}
	defer f.Close()
	owner, err := checkFile(f)
	if err != nil {
		return false, queued, err
	}
	// A message with more recipients than the spool records as one is refused with
	// 5.5.3. Halving finds what fits within a few tries, and the refused part is
	// tried again from where the last one ended, so that nobody is queued twice.
	most := maildrop.MaxRecipients
	var last mail.QueueID
	for {
		all, n, id, err := p.queuePart(ctx, f, owner, queued, most)
		var many tooMany
		if errors.As(err, &many) && n > 1 {
			most = n / 2
			continue
		}
		if err != nil {
			return false, queued, err
		}
		last = id
		if queued += n; queued >= all {
			break
		}
	}
	if most < queued {
		p.opt.Log.LogWarning(maillog.PickupSplit{Path: path, NRcpt: queued, Each: most})
	}
	// The message is on stable storage by now. If the file cannot be removed the next
	// scan finds all of its recipients queued, and only removes it; a process that dies
	// here queues it twice, which is the lesser evil.
	err = p.remove(path)
	if errors.Is(err, os.ErrNotExist) { // postdrop could not sync it, and has told its user so
		p.opt.Log.LogWarning(maillog.PickupWithdrawn{ID: string(last), Path: path})
		err = nil
	}
	if err != nil {
		return false, queued, fmt.Errorf("the message has been queued, but: %w", err)
	}
	return true, queued, nil
}

// remove removes a file.
func (p *Picker) remove(path string) error {
	if p.opt.Change != nil {
		if err := p.opt.Change("remove", path); err != nil {
			return err
		}
	}
	return os.Remove(path)
}

// tooMany marks the refusal of a message with more recipients than the spool
// can record as one.
type tooMany struct{ error }

// queuePart hands over a file's message with some of its recipients, as many as most
// beginning with number from. It returns how many those were, of all, and the ID of the
// message that they have got.
func (p *Picker) queuePart(ctx context.Context, f *os.File, owner, from, most int) (all, n int, id mail.QueueID, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, 0, "", tryLater{err}
	}
	m, err := maildrop.NewReader(f)
	if err != nil {
		return 0, 0, "", fmt.Errorf("not a message: %w", err)
	}
	defer m.Free()
	if !p.checkSubmitter(m, owner) {
		return 0, 0, "", fmt.Errorf("the file says that user %d submitted it, but it belongs to user %d", m.UID, owner)
	}
	if all = len(m.Recipients); from > 0 && from >= all {
		return all, 0, "", nil // only the file is left
	}
	m.Recipients = m.Recipients[min(from, all):min(from+most, all)]
	id, err = p.submit(ctx, m)
	if err == nil && p.opt.Died && m.Time.Before(p.opt.Began) {
		p.opt.Log.LogWarning(maillog.PickupAgain{ID: string(id), Path: f.Name()})
	}
	return all, len(m.Recipients), id, err
}

// checkSubmitter says whether a message may be from whom it says, when it came from
// the user owner, and takes away what only postsuper may say.
func (p *Picker) checkSubmitter(m *maildrop.Reader, owner int) bool {
	ours := owner == 0 || owner == p.opt.Owner
	if !ours {
		m.OrigID, m.Filter = "", ""
	}
	return ours || m.UID == owner
}

// checkFile says who owns f, or why f cannot be a message that postdrop made. A second
// name could be a link that a user made to somebody else's file; the check is made on the
// open file, since the name may mean another by now.
func checkFile(f *os.File) (owner int, err error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !fi.Mode().IsRegular():
		return 0, errors.New("not a plain file")
	case st.Nlink != 1:
		return 0, fmt.Errorf("the file has %d names, one is right", st.Nlink)
	}
	return int(st.Uid), nil
}

// submit hands a message to cleanup and heeds its verdict. It returns the ID that the message has got.
func (p *Picker) submit(ctx context.Context, m *maildrop.Reader) (mail.QueueID, error) {
	now := time.Now()
	id, err := p.opt.Submit.NewID(ctx, now)
	if err != nil {
		return "", tryLater{err}
	}
	env := &mail.Envelope{ID: id, Arrival: m.Time, Sender: m.Sender, EnvID: m.EnvID, Ret: m.Ret, Trace: m.Trace,
		VERP: m.VERP, RewriteContext: "local", Recipients: m.Recipients, Filter: p.opt.Filter}
	if m.Flags&maildrop.Gateway != 0 {
		env.RewriteContext = "remote"
	}
	if m.SMTPUTF8 {
		env.Body |= mail.BodySMTPUTF8
	}
	if m.Body8Bit {
		env.Body |= mail.Body8Bit
	}
	if m.Filter != "" {
		env.Filter = m.Filter
	}
	p.opt.Log.Log(maillog.PickupUID{ID: string(id), UID: m.UID, From: p.opt.Log.Address(m.Sender), OrigID: string(m.OrigID)})
	flags := (proto.SubmitFilter | proto.SubmitMilter | proto.SubmitBCC | proto.SubmitMap) &^ p.opt.Override
	msg := p.opt.Submit.Open(env, submit.Options{Flags: flags | proto.SubmitBounce | p.opt.AutoUTF8, FullName: m.FullName})
	if err := p.copyContent(msg, m, id, now); err != nil {
		msg.Abort()
		return id, err
	}
	reply, err := msg.Commit(ctx)
	if err != nil {
		return id, tryLater{fmt.Errorf("%s: %w", id, err)}
	}
	// Durable from here on.
	if reply.Code == 250 {
		return id, nil
	}
	if reply.Code/100 == 5 && len(m.Recipients) == 0 { // nobody is to have it, and there is nothing to return
		p.opt.Log.LogWarning(maillog.PickupRemoved{ID: string(id), Reason: reply.Reason()})
		return id, nil
	}
	err = fmt.Errorf("%s: not queued: %s", id, reply.Reason())
	switch {
	case reply.Status == dsn.S(5, 5, 3):
		return id, tooMany{err}
	case reply.Code/100 == 5: // it will not be any better the next time
		return id, err
	}
	return id, tryLater{err}
}

// readers are buffers of the size of a piece, kept because each message needs one.
var readers = reuse.Pool[bufio.Reader]{New: func() *bufio.Reader { return bufio.NewReaderSize(nil, maildrop.MaxPiece) }}

// copyContent writes the Received field and the content, with CRLF line ends, to msg. The
// user's lines end in LF or CRLF.
func (p *Picker) copyContent(msg *submit.Message, m *maildrop.Reader, id mail.QueueID, now time.Time) error {
	fmt.Fprintf(msg, "Received: by %s (%s, from userid %d)\r\n\tid %s; %s\r\n", p.opt.Myhostname, p.opt.MailName,
		m.UID, id, rfc5322.Date(now))
	br := readers.Get()
	br.Reset(m)
	defer func() { br.Reset(nil); readers.Put(br) }()
	var out []byte
	if first, _ := br.Peek(1); len(first) == 1 && (first[0] == ' ' || first[0] == '\t') {
		out = append(out, "\r\n"...) // the user's text is no part of our field
	}
	midline := false
	for {
		// A line longer than the buffer is copied in parts.
		line, err := br.ReadSlice('\n')
		if err == bufio.ErrBufferFull && line[len(line)-1] == '\r' { // its LF may come next
			br.UnreadByte()
			line = line[:len(line)-1]
		}
		switch {
		case bytes.HasSuffix(line, []byte("\r\n")):
			out = append(out, line...)
		case bytes.HasSuffix(line, []byte("\n")):
			out = append(append(out, line[:len(line)-1]...), "\r\n"...)
		default:
			out = append(out, line...)
		}
		if _, werr := msg.Write(out); werr != nil {
			return tryLater{werr}
		}
		out = reuse.Truncated(out)
		midline = len(line) > 0 && line[len(line)-1] != '\n'
		if err == nil || errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != io.EOF {
			return fmt.Errorf("not a message: %w", err)
		}
		if midline {
			if _, werr := io.WriteString(msg, "\r\n"); werr != nil {
				return tryLater{werr}
			}
		}
		return nil
	}
}
