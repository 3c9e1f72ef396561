package inject

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"posthaste/internal/apitoken"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/rfc5322"
	"posthaste/internal/submit"
	"posthaste/internal/suppress/suppressclient"
)

const (
	// commitTimeout bounds the wait for cleanup to queue a message, as smtpd's does.
	commitTimeout = 9 * time.Minute
	// parallel is how many messages of one request are on their way to cleanup at once. They share
	// syncs, so more are faster.
	parallel = 64
	// releaseTime is how long the messages of a request with an idempotency key wait in the queue if
	// nobody releases them: the time in which it can be found out whether they are there. The queue
	// manager keeps no message waiting for longer than the longest back-off.
	releaseTime = 15 * time.Minute
)

// A caller is who makes a request.
type caller struct {
	token  *apitoken.Token
	client mail.Client
	tls    bool
}

// A door is the way into the queue. Its methods may be called concurrently.
type door struct {
	submit   *submit.Client
	cleanup  *ipc.Client
	log      *maillog.Logger
	journal  *journal
	quota    *quota
	release  func(ids []mail.QueueID)
	patience time.Duration // releaseTime, or maximal_backoff_time if that is less
	now      func() time.Time
	slots    chan struct{} // bounds what is on its way to cleanup
	flags    proto.SubmitFlags
	autoUTF8 proto.SubmitFlags
	filter   string // content_filter
	hostname string
	mailName string
	hide     bool // smtpd_hide_client_session
	// Which mail is under the suppression list, nil: none; and who is on it.
	lists    *suppressclient.Lists
	suppress suppressor
}

// carry queues the drafts of an order, and says what came of it. With a key the request is carried out
// once, whatever happens; replayed says that it was before.
func (d *door) carry(who *caller, o *order, key string, what digest) (r *Result, replayed bool, err error) {
	if d.submit.Silent() {
		return nil, false, later(retryTime, "4.3.0 Error: queue file write error")
	}
	if len(o.drafts) == 0 {
		return o.result(d.hostname), false, nil
	}
	if key == "" {
		if err := d.quota.take(who.token, o.recipients()); err != nil {
			return nil, false, err
		}
		d.all(who, o, nil)
		r = o.result(d.hostname)
		d.unused(who, o)
		return r, false, nil
	}
	e, answer, err := d.journal.begin(hashKey(who.token.Name, key), what)
	switch {
	case err != nil:
		return nil, false, err
	case answer != nil:
		r = new(Result)
		return r, true, json.Unmarshal(answer, r)
	}
	r, err = d.once(who, o, e)
	return r, false, err
}

// unused takes back what the quota has counted for mail that was not queued.
func (d *door) unused(who *caller, o *order) {
	n := 0
	for _, x := range o.drafts {
		if !x.queued {
			n += len(x.rcpts)
		}
	}
	d.quota.give(who.token, n)
}

// once carries out what has a key, which is the caller's.
func (d *door) once(who *caller, o *order, e *entry) (*Result, error) {
	fresh := e.ids == nil
	if err := d.prepare(who, o, e); err != nil {
		if fresh {
			d.journal.drop(e)
		} else if e.state == stateBusy {
			d.journal.leave(e)
		}
		return nil, err
	}
	d.all(who, o, e)
	return d.finish(who, o, e)
}

// prepare gives each draft a queue ID, and has that recorded. Of a request that was begun before it
// finds out what is in the queue.
func (d *door) prepare(who *caller, o *order, e *entry) error {
	if e.ids != nil {
		if len(e.ids) != len(o.drafts) {
			return errDoubt
		}
		if _, err := d.look(e); err != nil {
			return err
		}
		for i, x := range o.drafts {
			x.id, x.queued = e.ids[i], e.found[i]
		}
	}
	n := 0
	for _, x := range o.drafts {
		if !x.queued {
			n += len(x.rcpts)
		}
	}
	if err := d.quota.take(who.token, n); err != nil {
		return err
	}
	ids := make([]mail.QueueID, len(o.drafts))
	for i, x := range o.drafts {
		if x.id == "" {
			id, err := d.submit.NewID(context.Background(), d.now())
			if err != nil {
				d.quota.give(who.token, n)
				d.log.Warning("%v", err)
				return later(retryTime, "4.3.0 Error: queue file write error")
			}
			x.id = id
		}
		ids[i] = x.id
	}
	until, hold := d.wait(o.m.sendAt)
	if err := d.journal.plan(e, ids, until, hold); err != nil {
		d.quota.give(who.token, n)
		d.log.Warning("%v", err)
		return later(retryTime, "the idempotency key cannot be recorded")
	}
	return nil
}

// wait says until when the messages of a request with a key wait, and whether they are released before.
func (d *door) wait(sendAt time.Time) (until time.Time, hold bool) {
	now := d.now()
	if sendAt.After(now) {
		return sendAt, false
	}
	return now.Add(d.patience), true
}

// finish records the answer, and has the messages tried.
func (d *door) finish(who *caller, o *order, e *entry) (*Result, error) {
	d.unused(who, o)
	r := o.result(d.hostname)
	for _, x := range o.drafts {
		if x.fault == inDoubt {
			d.journal.leave(e) // the sweep finds out
			return nil, inDoubt
		}
	}
	if len(r.Messages) == 0 {
		d.journal.drop(e)
		return r, nil
	}
	answer, err := json.Marshal(r)
	if err == nil {
		err = d.journal.done(e, answer)
	}
	if err != nil {
		d.log.Warning("%v", err)
		return nil, later(retryTime, "the idempotency key cannot be recorded")
	}
	if e.hold {
		var ids []mail.QueueID
		for _, x := range o.drafts {
			if x.queued {
				ids = append(ids, x.id)
			}
		}
		d.release(ids)
	}
	return r, nil
}

// inDoubt says that the connection to cleanup was lost at the wrong moment.
var inDoubt = &fault{status: 503, detail: "4.3.0 Error: queue file write error", retry: retryTime}

// all submits the drafts that are not queued yet, several at once.
func (d *door) all(who *caller, o *order, e *entry) {
	if len(o.drafts) == 1 {
		d.one(who, o, o.drafts[0], e)
		return
	}
	next := make(chan *draft)
	var wg sync.WaitGroup
	for range min(parallel, len(o.drafts)) {
		wg.Go(func() {
			for x := range next {
				d.one(who, o, x, e)
			}
		})
	}
	for _, x := range o.drafts {
		next <- x
	}
	close(next)
	wg.Wait()
}

// one submits a draft, unless it is in the queue. What came of it is in the draft.
func (d *door) one(who *caller, o *order, x *draft, e *entry) {
	if x.queued {
		return
	}
	d.slots <- struct{}{}
	defer func() { <-d.slots }()
	if (d.lists != nil || o.m.unsub != nil && o.m.unsub.ours) && !d.sift(who, o, x) {
		return
	}
	msg, err := d.open(who, o, x, e)
	if err == nil {
		if err = o.write(msg, x); err != nil && errors.As(err, new(*fault)) {
			msg.Abort()
			x.fault = asFault(err)
			return
		}
		// Another error is the submission's own, whose verdict is asked for.
		d.commit(msg, x)
		return
	}
	d.log.Warning("%v", err)
	x.fault = later(retryTime, "4.3.0 Error: queue file write error")
}

// open begins a draft's message, and writes its Received: field.
func (d *door) open(who *caller, o *order, x *draft, e *entry) (*submit.Message, error) {
	now := d.now()
	if x.id == "" {
		id, err := d.submit.NewID(context.Background(), now)
		if err != nil {
			return nil, err
		}
		x.id = id
	}
	env := &mail.Envelope{ID: x.id, Arrival: now, Sender: o.m.sender, Client: who.client, RewriteContext: "local", Filter: d.filter,
		Tenant: who.token.Tenant, Campaign: o.m.campaign,
		SASL: mail.SASL{Method: "TOKEN", Username: who.token.Name}, Recipients: make([]mail.Recipient, len(x.rcpts))}
	if x.utf8 {
		env.Body |= mail.BodySMTPUTF8
	}
	for i, r := range x.rcpts {
		env.Recipients[i] = r.recipient()
	}
	opt := submit.Options{Flags: d.flags | d.autoUTF8, Limit: commitTimeout}
	if o.m.sendAt.After(now) {
		env.SendAt = o.m.sendAt
	}
	switch {
	case e != nil:
		opt.State = &queue.Change{Set: queue.SetQueue | queue.SetNextAttempt, Queue: queue.Deferred, NextAttempt: e.until}
	case o.m.sendAt.After(now):
		opt.State = &queue.Change{Set: queue.SetQueue | queue.SetNextAttempt, Queue: queue.Deferred, NextAttempt: o.m.sendAt}
	}
	d.log.Log(maillog.InjectClient{QueueID: string(x.id), Name: who.client.Name, Addr: who.client.Addr, Token: who.token.Name, Tenant: who.token.Tenant})
	msg := d.submit.Open(env, opt)
	if !o.m.noReceived {
		_, _ = msg.Write(d.received(who, x, now)) // an error is told by Commit
	}
	return msg, nil
}

// commit ends a message, and notes the verdict.
func (d *door) commit(msg *submit.Message, x *draft) {
	// Nobody's end is a reason to give up here: what is half done nobody would know of.
	reply, err := msg.Commit(context.Background())
	if err != nil {
		d.log.LogWarning(maillog.NotQueued{QueueID: string(x.id), Reason: err.Error()})
	}
	switch {
	case errors.Is(err, submit.ErrInDoubt):
		x.fault = inDoubt
	case reply.Code == 250:
		x.queued = true
	default:
		x.fault = ofReply(&reply)
	}
}

// received is the Received: field (RFC 5321 section 4.4).
func (d *door) received(who *caller, x *draft, now time.Time) []byte {
	b := make([]byte, 0, 400)
	if d.hide {
		b = append(b, "Received: by "...)
	} else {
		b = append(append(append(append(b, "Received: from "...), who.client.Name...), " ("...), who.client.Name...)
		b = append(b, " ["...)
		if isIPv6(who.client.Addr) {
			b = append(b, "IPv6:"...)
		}
		b = append(append(b, who.client.Addr...), "])\r\n\tby "...)
	}
	b = append(append(append(append(b, d.hostname...), " ("...), d.mailName...), ')')
	b = append(append(b, " with "...), who.client.Proto...)
	b = append(append(b, " id "...), x.id...)
	if len(x.rcpts) == 1 {
		b = append(rfc5322.AppendQuoted(append(b, "\r\n\tfor <"...), x.rcpts[0].Email), ">; "...)
	} else {
		b = append(b, ";\r\n\t"...)
	}
	return append(rfc5322.AppendDate(b, now), "\r\n"...)
}

func isIPv6(addr string) bool {
	for i := range len(addr) {
		if addr[i] == ':' {
			return true
		}
	}
	return false
}

// locate says whether a message is in the queue.
func (d *door) locate(id mail.QueueID) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var reply proto.LocateReply
	err := d.cleanup.CallAgain(ctx, &proto.Locate{ID: id}, &reply)
	return reply.Found, err
}

// look finds out which messages of a key that was begun are in the queue, and has that recorded. It
// returns those that were not known to be. The error is errDoubt if it is too late for that.
func (d *door) look(e *entry) (found []mail.QueueID, err error) {
	for i, id := range e.ids {
		if e.found[i] {
			continue
		}
		is, err := d.locate(id)
		if err != nil {
			return nil, later(retryTime, "it is not known yet whether the request with this idempotency key was carried out: %v", err)
		}
		if e.found[i] = is; is {
			found = append(found, id)
		}
	}
	missing := false
	for _, is := range e.found {
		missing = missing || !is
	}
	now := d.now()
	// What was not there shortly before it could be tried was not there at all, if it had been on its way
	// for longer than it takes.
	sure := !e.checked.Before(e.until.Add(-d.patience/15)) && e.checked.Sub(e.begun) >= wayTime
	if missing && !now.Before(e.until) && !sure {
		if err := d.journal.doubt(e); err != nil {
			d.log.Warning("%v", err)
		}
		return nil, errDoubt
	}
	e.checked = now
	if len(found) == 0 {
		return nil, nil
	}
	if err := d.journal.saw(e); err != nil {
		return nil, later(retryTime, "the idempotency key cannot be recorded")
	}
	return found, nil
}

// sweep finds out what became of the requests whose end is not known, and has what is in the queue
// tried. It is called every sweepTime.
func (d *door) sweep() {
	for _, e := range d.journal.begunKeys() {
		found, err := d.look(e)
		if err != nil {
			if e.state == stateBusy {
				d.journal.leave(e)
			}
			continue
		}
		if e.hold && len(found) > 0 {
			d.release(found)
		}
		if !slices.Contains(e.found, true) && !d.now().Before(e.until) {
			d.journal.drop(e) // it was never queued
			continue
		}
		d.journal.leave(e)
	}
}

const (
	// sweepTime is how often sweep is called.
	sweepTime = 20 * time.Second
	// wayTime is more than a message takes that nobody waits for any more to come to be in the queue.
	wayTime = 30 * time.Second
)
