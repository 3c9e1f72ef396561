package bounce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/submit"
)

// maxNotices is how many notices are written at once. Each holds the
// returned part of a message in small buffers only.
const maxNotices = 20

// A Store opens queued messages, as they are now. Open may be called
// concurrently; what it returns belongs to the caller. An error that wraps
// queueread.ErrGone says that the message is not in the queue any more.
type Store interface {
	Open(ctx context.Context, id mail.QueueID) (StoredMessage, error)
}

// A StoredMessage is one message in the queue. Its methods are those of
// queueread.Stored, but for Warned: whether its sender has had a warning of delay.
type StoredMessage interface {
	Pending(rcpt int) bool
	Warned() bool
	Envelope() (mail.Envelope, error)
	Recipients(from, to int) ([]mail.Recipient, error)
	NRcpt() int
	Outcomes() ([]mail.Outcome, error)
	Content() (io.ReadCloser, error)
}

// A Service answers Notify requests. It is made by newService, and serves any
// number of connections.
type Service struct {
	composer *Composer
	policy   policy
	flags    [2]proto.SubmitFlags // of notices to senders, and to postmaster
	store    Store
	submit   *submit.Client
	log      *maillog.Logger
	listed   *listed // nil: no mail is under the suppression list
	slots    chan struct{}
	wg       sync.WaitGroup

	mu   sync.Mutex
	busy map[mail.QueueID]chan struct{} // messages that notices are made of; closed at the end
}

// newService returns a Service with the settings of cfg, which reads messages
// from store and hands notices to client.
func newService(cfg *config.Config, store Store, client *submit.Client, log *maillog.Logger) *Service {
	return &Service{
		composer: NewComposer(cfg, func(format string, args ...any) { log.Warning(format, args...) }),
		policy:   newPolicy(cfg),
		flags:    [2]proto.SubmitFlags{notice.Flags(cfg, "bounce"), notice.Flags(cfg, "notify")},
		store:    store,
		submit:   client,
		log:      log,
		slots:    make(chan struct{}, maxNotices),
		busy:     make(map[mail.QueueID]chan struct{}),
	}
}

// Handle is the service's ipc.Handler.
func (s *Service) Handle(_ *ipc.Conn, r *ipc.Request) {
	if r.Kind != proto.KindNotify {
		r.Fail("bounce: request kind %d is not known here", r.Kind)
		return
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		var req proto.Notify
		if err := r.Decode(&req); err != nil {
			r.Fail("%v", err)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), proto.NotifyTimeout)
		defer cancel()
		reply, err := s.inTurn(ctx, &req)
		if err != nil {
			s.log.Warning("%s: notification not sent: %v", req.ID, err)
			r.Fail("%v", err)
			return
		}
		r.Reply(&reply)
	}()
}

// inTurn is Notify when it is the request's turn.
func (s *Service) inTurn(ctx context.Context, req *proto.Notify) (proto.NotifyReply, error) {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return proto.NotifyReply{}, fmt.Errorf("%d other notices take their time: %w", maxNotices, ctx.Err())
	}
	defer func() { <-s.slots }()
	return s.Notify(ctx, req)
}

// Wait waits until all requests are answered. No request may come in
// meanwhile: the server that has Handle has stopped.
func (s *Service) Wait() { s.wg.Wait() }

// Notify carries out one request: it returns when the notice, if there is to
// be one, is on stable storage. On error the vital notices have not all been
// submitted, and the request is to be made again: what has been sent of them is
// not sent again then. Notify may be called concurrently.
func (s *Service) Notify(ctx context.Context, req *proto.Notify) (proto.NotifyReply, error) {
	free, err := s.alone(ctx, req.ID)
	if err != nil {
		return proto.NotifyReply{}, err
	}
	defer free()
	msg, err := s.store.Open(ctx, req.ID)
	if errors.Is(err, queueread.ErrGone) {
		return proto.NotifyReply{}, nil // notified before, and the answer was lost
	}
	if err != nil {
		return proto.NotifyReply{}, err
	}
	env, err := msg.Envelope()
	if err != nil {
		return proto.NotifyReply{}, fmt.Errorf("%s: %w", req.ID, err)
	}
	rest := *req
	if rest.Outcomes, err = untold(msg, req); err != nil || len(rest.Outcomes) == 0 {
		return proto.NotifyReply{}, err
	}
	req = &rest
	reports, err := join(msg, req)
	if err != nil {
		return proto.NotifyReply{}, err
	}
	s.listed.expired(ctx, req.Notice, &env, reports)
	p := s.policy.plan(req.Notice, &env, reports)
	if p.discarded {
		s.log.Warning("%s: undeliverable postmaster notification discarded", req.ID)
	}
	settles := settlements(req, p.sendings)
	var reply proto.NotifyReply
	for i := range p.sendings {
		id, err := s.send(ctx, req, &env, msg, &p.sendings[i], settles[i])
		switch {
		case err == nil:
			if p.sendings[i].vital {
				reply.Notice, reply.Settled = id, settles[i] != nil && recordsAll(req)
			}
		case p.sendings[i].vital:
			return proto.NotifyReply{}, err
		default:
			s.log.Warning("%s: copy for postmaster not sent: %v", req.ID, err)
		}
	}
	return reply, nil
}

// alone waits until no other notice of that message is being made. A queue manager that has just started may ask for
// the one that its predecessor has asked for: what has been told is known when that is recorded.
func (s *Service) alone(ctx context.Context, id mail.QueueID) (free func(), err error) {
	for {
		s.mu.Lock()
		other, mine := s.busy[id], make(chan struct{})
		if other == nil {
			s.busy[id] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.busy, id)
				close(mine)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: another notice of it takes its time: %w", id, ctx.Err())
		}
	}
}

// send submits one notice and logs it.
func (s *Service) send(ctx context.Context, req *proto.Notify, env *mail.Envelope, msg StoredMessage, d *sending, settle *proto.Settle) (mail.QueueID, error) {
	now := time.Now()
	id, err := s.submit.NewID(ctx, now)
	if err != nil {
		return "", err
	}
	content, err := msg.Content()
	if errors.Is(err, queue.ErrCorrupt) {
		// The sender has to hear of it all the same.
		s.log.Warning("%s: the notice goes without the message: %v", req.ID, err)
		content, err = io.NopCloser(strings.NewReader("")), nil
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", req.ID, err)
	}
	defer content.Close()
	notice := mail.Envelope{ID: id, Arrival: now, Sender: d.sender, RewriteContext: "local",
		Recipients: []mail.Recipient{{Address: d.to, Notify: dsn.NotifyNever}}}
	if !isASCII(d.to) {
		notice.Body |= mail.BodySMTPUTF8
	}
	flags := s.flags[0]
	if d.postmaster {
		flags = s.flags[1]
		notice.Recipients[0].Notify = 0
	}
	out := s.submit.Open(&notice, submit.Options{Flags: flags, Settles: settle})
	err = s.composer.Compose(out, &Notice{Kind: req.Notice, Postmaster: d.postmaster, ID: id, Time: now, To: d.to,
		Original: *env, Reports: d.reports, Return: d.ret, Content: sound{content}})
	if err != nil {
		out.Abort()
		return "", fmt.Errorf("%s: compose notice: %w", req.ID, err)
	}
	reply, err := out.Commit(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", id, err) // it may be in doubt
	}
	if reply.Code != 250 {
		return "", fmt.Errorf("cleanup refused the notice: %s", reply.Reason())
	}
	s.log.Log(maillog.BounceNotice{ID: string(req.ID), Kind: logKind(req.Notice, d.postmaster), NewID: string(id)})
	return id, nil
}

// sound is content up to where it is damaged.
type sound struct{ r io.Reader }

func (s sound) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if errors.Is(err, queue.ErrCorrupt) {
		err = io.EOF
	}
	return n, err
}

func logKind(kind proto.NoticeKind, postmaster bool) maillog.Notice {
	switch {
	case kind == proto.NoticeDelay && postmaster:
		return maillog.PostmasterDelay
	case kind == proto.NoticeDelay:
		return maillog.SenderDelay
	case postmaster:
		return maillog.PostmasterBounce
	case kind == proto.NoticeSuccess || kind == proto.NoticeTrace:
		return maillog.SenderStatus
	}
	return maillog.SenderBounce
}

// fromQueue is the Store of a running system.
func fromQueue(o *queueread.Opener) Store { return running{o} }

// running is the queue of a running system.
type running struct{ *queueread.Opener }

func (q running) Open(ctx context.Context, id mail.QueueID) (StoredMessage, error) {
	st, entry, err := q.Opener.Current(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read message %s: %w", id, err)
	}
	content := func() (queueread.Content, error) { return queueread.ContentOf(ctx, q.Opener.Open, st, id) }
	return storedMessage{st, content, entry.Warned}, nil
}

// storedMessage narrows what Content returns.
type storedMessage struct {
	queueread.Stored
	content func() (queueread.Content, error)
	warned  bool
}

func (m storedMessage) Warned() bool { return m.warned }

func (m storedMessage) Content() (io.ReadCloser, error) {
	c, err := m.content()
	if err != nil {
		return nil, err
	}
	return c, nil
}
