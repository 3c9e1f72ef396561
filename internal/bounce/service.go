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
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
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
// spool.Stored, but for Warned: whether its sender has had a warning of delay.
type StoredMessage interface {
	Pending(rcpt int) bool
	Warned() bool
	Envelope() (mail.Envelope, error)
	Recipients(from, to int) ([]mail.Recipient, error)
	NRcpt() int
	Content() (io.ReadCloser, error)
}

// A Service answers Notify requests. It is made by NewService, and serves any
// number of connections.
type Service struct {
	composer *Composer
	policy   policy
	flags    [2]proto.SubmitFlags // of notices to senders, and to postmaster
	store    Store
	submit   *submit.Client
	log      *maillog.Logger
	slots    chan struct{}
	wg       sync.WaitGroup
}

// NewService returns a Service with the settings of cfg, which reads messages
// from store and hands notices to client.
func NewService(cfg *config.Config, store Store, client *submit.Client, log *maillog.Logger) *Service {
	return &Service{
		composer: NewComposer(cfg, func(format string, args ...any) { log.Warning(format, args...) }),
		policy:   newPolicy(cfg),
		flags:    [2]proto.SubmitFlags{notice.Flags(cfg, "bounce"), notice.Flags(cfg, "notify")},
		store:    store,
		submit:   client,
		log:      log,
		slots:    make(chan struct{}, maxNotices),
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
	if rest.Outcomes = untold(msg, req); len(rest.Outcomes) == 0 {
		return proto.NotifyReply{}, nil
	}
	req = &rest
	reports, err := join(msg, req)
	if err != nil {
		return proto.NotifyReply{}, err
	}
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
				reply.Notice, reply.Settled = id, settles[i] != nil && settlesAll(req)
			}
		case p.sendings[i].vital:
			return proto.NotifyReply{}, err
		default:
			s.log.Warning("%s: copy for postmaster not sent: %v", req.ID, err)
		}
	}
	return reply, nil
}

// untold is what the sender has not heard yet of what the request tells. Of a
// request that is made again, because the answer was lost or not all notices
// could be sent, some may have been told: their notices have settled them.
func untold(msg StoredMessage, req *proto.Notify) (list []mail.Outcome) {
	if req.Notice == proto.NoticeDelay {
		if msg.Warned() && !req.Continued {
			return nil
		}
		return req.Outcomes
	}
	for _, o := range req.Outcomes {
		if o.Rcpt < 0 || o.Rcpt >= msg.NRcpt() || !settled(req.Notice, o.Action) || msg.Pending(o.Rcpt) {
			list = append(list, o)
		}
	}
	return list
}

// join puts together what the queue manager says of recipients and what the
// message's envelope does.
func join(msg StoredMessage, req *proto.Notify) ([]Report, error) {
	reports := make([]Report, len(req.Outcomes))
	for i := range req.Outcomes {
		o := &req.Outcomes[i]
		if o.Rcpt < 0 || o.Rcpt >= msg.NRcpt() {
			return nil, fmt.Errorf("%s: there is no recipient number %d", req.ID, o.Rcpt)
		}
		reports[i].Outcome = *o
	}
	// One pass over the stored list for requests about many recipients.
	const batch = 256
	for from := 0; from < msg.NRcpt(); {
		if from = nextWanted(req.Outcomes, from); from < 0 {
			break
		}
		list, err := msg.Recipients(from, from+batch)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", req.ID, err)
		}
		if len(list) == 0 {
			return nil, fmt.Errorf("%s: recipient %d cannot be read", req.ID, from)
		}
		for i := range reports {
			if n := reports[i].Outcome.Rcpt - from; n >= 0 && n < len(list) {
				reports[i].Recipient = final(list[n], &reports[i].Outcome)
			}
		}
		from += len(list)
	}
	return reports, nil
}

// final is the recipient as it is reported: what it was expanded to, when that
// is what the outcome is about.
func final(r mail.Recipient, o *mail.Outcome) mail.Recipient {
	if o.Final != "" && o.Final != r.Address {
		r.Original, r.Address = r.Orig(), o.Final
	}
	if o.Owner != "" { // what the sender called it is not the owner's to know
		r.Original, r.ORCPT = "", ""
	}
	return r
}

// nextWanted is the least recipient index from from on, -1 when there is none.
func nextWanted(outcomes []mail.Outcome, from int) int {
	next := -1
	for i := range outcomes {
		if r := outcomes[i].Rcpt; r >= from && (next < 0 || r < next) {
			next = r
		}
	}
	return next
}

// settlements says what each of the sendings settles. The first vital one
// takes along all that no other vital one reports.
func settlements(req *proto.Notify, list []sending) []*proto.Settle {
	out := make([]*proto.Settle, len(list))
	if req.Notice == proto.NoticeDelay {
		for i := range list {
			if list[i].vital {
				out[i] = &proto.Settle{ID: req.ID, Warned: true}
				break
			}
		}
		return out
	}
	var rest []int
	owner := map[int]int{} // by recipient, for all but the first vital sending
	first := -1
	for i := range list {
		switch {
		case !list[i].vital:
		case first < 0:
			first = i
		default:
			for _, r := range list[i].reports {
				owner[r.Outcome.Rcpt] = i
			}
		}
	}
	if first < 0 {
		return out
	}
	for i := range req.Outcomes {
		o := &req.Outcomes[i]
		if !settled(req.Notice, o.Action) {
			continue
		}
		if i, ok := owner[o.Rcpt]; ok {
			if out[i] == nil {
				out[i] = &proto.Settle{ID: req.ID}
			}
			out[i].Rcpts = append(out[i].Rcpts, o.Rcpt)
			continue
		}
		rest = append(rest, o.Rcpt)
	}
	if len(rest) > 0 {
		out[first] = &proto.Settle{ID: req.ID, Rcpts: rest}
	}
	return out
}

// settled says whether nothing more is to be done for a recipient once it
// has been reported. A trace reports also what goes on, and failures that
// have a notice of their own.
func settled(kind proto.NoticeKind, action dsn.Action) bool {
	switch kind {
	case proto.NoticeFailure, proto.NoticeExpired:
		return true
	case proto.NoticeSuccess, proto.NoticeTrace:
		return action.Final() && action != dsn.Failed
	}
	return false
}

func settlesAll(req *proto.Notify) bool {
	if req.Notice == proto.NoticeDelay {
		return true
	}
	for i := range req.Outcomes {
		if !settled(req.Notice, req.Outcomes[i].Action) {
			return false
		}
	}
	return true
}

// send submits one notice and logs it.
func (s *Service) send(ctx context.Context, req *proto.Notify, env *mail.Envelope, msg StoredMessage, d *sending, settle *proto.Settle) (mail.QueueID, error) {
	now := time.Now()
	id, err := s.submit.NewID(ctx, now)
	if err != nil {
		return "", err
	}
	content, err := msg.Content()
	if errors.Is(err, spool.ErrCorrupt) {
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
		return "", err
	}
	if reply.Code != 250 {
		return "", fmt.Errorf("cleanup refused the notice: %d %s %s", reply.Code, reply.Status, reply.Text)
	}
	s.log.Log(maillog.BounceNotice{ID: string(req.ID), Kind: logKind(req.Notice, d.postmaster), NewID: string(id)})
	return id, nil
}

// sound is content up to where it is damaged.
type sound struct{ r io.Reader }

func (s sound) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if errors.Is(err, spool.ErrCorrupt) {
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

// FromQueue is the Store of a running system.
func FromQueue(o *queueread.Opener) Store { return queue{o} }

type queue struct{ *queueread.Opener }

func (q queue) Open(ctx context.Context, id mail.QueueID) (StoredMessage, error) {
	st, entry, err := q.Opener.Current(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read message %s: %w", id, err)
	}
	content := func() (*spool.Content, error) { return queueread.Content(ctx, q.Opener.Open, st, id) }
	return storedMessage{st, content, entry.Warned}, nil
}

// storedMessage narrows what Content returns.
type storedMessage struct {
	*spool.Stored
	content func() (*spool.Content, error)
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
