// Package dropper takes the place of cleanup for sendmail -bs.
package dropper

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/proto"
	"posthaste/internal/sendmail"
)

// A Dropper takes the place of cleanup for sendmail -bs: the SMTP server that
// speaks on standard input hands it messages as it would to cleanup, and they
// go into the maildrop directory, so that it works for any user, whether the
// mail system runs or not. A message's queue ID is only good until pickup
// gives it another one.
type Dropper struct {
	c   *sendmail.Command
	cfg *config.Config

	mu   sync.Mutex
	open map[mail.QueueID]*dropping
	wg   sync.WaitGroup
}

// dropping is one message on its way to the maildrop.
type dropping struct {
	w    *io.PipeWriter
	done chan struct{}
	err  error
}

// New makes a Dropper that stores as c does.
func New(c *sendmail.Command, cfg *config.Config) *Dropper {
	return &Dropper{c: c, cfg: cfg, open: make(map[mail.QueueID]*dropping)}
}

// Client is an ipc client whose service is d.
func (d *Dropper) Client() *ipc.Client {
	return ipc.NewClient(ipc.Func("maildrop", func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		ipc.NewConn(ours, d.handle)
		return theirs, nil
	}), nil)
}

// Close waits for messages under way.
func (d *Dropper) Close() { d.wg.Wait() }

// handle runs on the connection's reading goroutine; what waits for the disk
// is done beside it, in order for each message.
func (d *Dropper) handle(_ *ipc.Conn, r *ipc.Request) {
	switch r.Kind {
	case proto.KindLease:
		var q proto.Lease
		if err := r.Decode(&q); err != nil {
			r.Fail("%v", err)
			return
		}
		r.Reply(&proto.LeaseReply{First: 1 + rand.Uint64N(1<<40), N: max(q.N, 1)})
	case proto.KindSubmit:
		q := new(proto.Submit)
		if err := r.Decode(q); err != nil {
			r.Fail("%v", err)
			return
		}
		d.begin(q)
		d.part(r, q.Envelope.ID, q.Content, q.More)
	case proto.KindChunk:
		q := new(proto.Chunk)
		if err := r.Decode(q); err != nil {
			r.Fail("%v", err)
			return
		}
		d.part(r, q.ID, q.Data, q.More)
	case proto.KindAbort:
		var q proto.Abort
		if err := r.Decode(&q); err == nil {
			d.abort(q.ID)
		}
	default:
		r.Fail("sendmail: unknown request %d", r.Kind)
	}
}

func (d *Dropper) begin(q *proto.Submit) {
	pr, pw := io.Pipe()
	dr := &dropping{w: pw, done: make(chan struct{})}
	d.mu.Lock()
	d.open[q.Envelope.ID] = dr
	d.mu.Unlock()
	env := &q.Envelope
	h := &maildrop.Header{Time: env.Arrival, Sender: env.Sender, Recipients: env.Recipients, EnvID: env.EnvID, Ret: env.Ret,
		VERP: env.VERP, Body8Bit: env.Body&mail.Body8Bit != 0, SMTPUTF8: env.Body&mail.BodySMTPUTF8 != 0}
	for _, a := range q.BCC {
		h.Recipients = append(h.Recipients, mail.Recipient{Address: a, Notify: dsn.NotifyNever})
	}
	d.wg.Go(func() {
		defer close(dr.done)
		dr.err = d.c.Drop(d.cfg, h, pr)
		pr.CloseWithError(errors.Join(dr.err, io.ErrClosedPipe))
	})
}

// part passes content on. The submitter's window bounds what is under way, so
// that waiting here, on the connection's only reader, is right: it has but one
// session.
func (d *Dropper) part(r *ipc.Request, id mail.QueueID, data []byte, more bool) {
	d.mu.Lock()
	dr := d.open[id]
	d.mu.Unlock()
	if dr == nil {
		r.Fail("sendmail: message %s is not on its way", id)
		return
	}
	_, werr := dr.w.Write(data)
	if more && werr == nil {
		r.Reply(&proto.ChunkReply{})
		return
	}
	dr.w.Close()
	<-dr.done
	d.mu.Lock()
	delete(d.open, id)
	d.mu.Unlock()
	r.Reply(dropReply(dr.err))
}

func (d *Dropper) abort(id mail.QueueID) {
	d.mu.Lock()
	dr := d.open[id]
	delete(d.open, id)
	d.mu.Unlock()
	if dr != nil {
		dr.w.CloseWithError(errors.New("given up"))
		<-dr.done
	}
}

func dropReply(err error) *proto.SubmitReply {
	switch {
	case err == nil:
		return &proto.SubmitReply{Code: 250, Status: dsn.S(2, 0, 0), Text: "Ok"}
	case sendmail.TooBig(err):
		return &proto.SubmitReply{Code: 552, Status: dsn.S(5, 3, 4), Text: "Error: message file too big"}
	}
	return &proto.SubmitReply{Code: 451, Status: dsn.S(4, 3, 0), Text: "Error: queue file write error"}
}
