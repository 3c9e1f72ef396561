package sched

import (
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// Concurrency feedback: a destination's window grows with deliveries that
// reach it and shrinks with those that do not, by a whole step for each
// 1/feedback of them: at the end of such a run when growing, at its beginning
// when shrinking. A destination that was reached and said that it wants less (421)
// is one that was not reached, here. Whether a destination is dead is a separate matter: it is
// when as many deliveries as FailedCohortLimit windows hold have failed
// without one success between them.

const suspended = "delivery temporarily suspended: "

// positive: a delivery to q ended and the destination took part in it.
// q.busy still counts that delivery.
func (s *Scheduler) positive(q *queue) {
	s.tried(q)
	q.failCohorts = 0
	first := !q.answered
	q.answered = true
	if q.state == DestDead {
		s.stopTimer(&q.timer)
		s.makeReady(q)
	} else if q.course == nil && q.state == DestReady && (q.limit == 0 || q.window < q.limit) && q.window < q.busy+q.initial() {
		if first && q.tport.cfg.SlowLimit > 0 {
			q.window = max(q.window, q.initial())
		}
		fb := q.tport.cfg.PositiveFeedback.Value(q.window)
		q.success += fb
		for q.success+slack(&q.tport.cfg, fb) >= 1 {
			q.window++
			q.success--
			q.failure = 0
		}
		if q.limit > 0 {
			q.window = min(q.window, q.limit)
		}
		s.feedbackNote(q, fb, true)
	}
	s.updateQueue(q)
	// Mail that waits for this destination is released as it answers.
	if q.site != 0 {
		s.siteAnswered(q)
	}
}

// negative: the delivery of e to q ended and the destination did not take part, or not
// in all of it.
func (s *Scheduler) negative(q *queue, e *entry, r *Result) {
	if q.site != 0 {
		s.sites[q.site].alive = false
	}
	// Deliveries that were under way when it died, or in a rate pause, say nothing new.
	if q.state != DestReady {
		return
	}
	s.tried(q)
	c := &q.tport.cfg
	if s.asks(q, e, r) {
		return
	}
	if !r.SitePartly {
		// A cohort is as many deliveries as the window holds: with a window of 20, each
		// failure is a twentieth of one.
		q.failCohorts += 1 / float64(q.window)
	}
	if !r.SitePartly && c.FailedCohortLimit > 0 && q.failCohorts >= float64(c.FailedCohortLimit) {
		s.kill(q, r.Status, r.Reason)
		return
	}
	if q.course != nil { // it says what becomes of the window
		return
	}
	fb := c.NegativeFeedback.Value(q.window)
	q.failure -= fb
	for q.failure-slack(c, fb) < 0 {
		q.window--
		q.success = 0
		q.failure++
	}
	q.window = max(q.window, 1)
	s.feedbackNote(q, fb, false)
	s.updateQueue(q)
}

// kill declares a destination dead: what waits for it goes to the retry
// transport, and so does what comes for it until its time is over.
func (s *Scheduler) kill(q *queue, status dsn.Status, reason string) {
	if status.IsZero() {
		status = dsn.S(4, 0, 0)
	}
	if reason == "" {
		reason = "unknown error"
	}
	s.dead(q, status, suspended+reason, s.now+micros(s.cfg.MinimalBackoff))
	s.feedbackNote(q, 0, false)
	s.note(Note{Kind: NoteDead, Transport: q.tport.name, Queue: q.name, Until: toTime(q.until), Status: status, Reason: reason})
	s.startTimer(&q.timer, q.until)
	s.updateQueue(q)
	if q.source != "" {
		s.spread(q, gradeDead)
	}
	s.excuseQueue(q, q.excuse, q.status, q.reason)
}

// dead makes q a dead destination, for the reason that is said to whoever waits
// for it.
func (s *Scheduler) dead(q *queue, status dsn.Status, reason string, until int64) {
	q.state, q.window, q.answered, q.hearsay = DestDead, 0, false, false
	q.status, q.reason = status, reason
	q.excuse = mail.Nexthop(status.String() + " " + reason)
	q.until, q.cache = until, 0
}

// slack is what a sum of feedback may lack of a whole step: Postfix takes half
// of one delivery's feedback, so that rounding errors do not cost a delivery.
// With a feedback of 1 this has consequences: the first failure takes two off
// the window.
func slack(c *TransportConfig, fb float64) float64 {
	if c.PlainFeedback {
		return 0
	}
	return fb / 2
}

// feedbackNote logs a change of a window, for destination_concurrency_feedback_debug. The
// retry and error transports are left out: their destinations are reasons.
func (s *Scheduler) feedbackNote(q *queue, fb float64, positive bool) {
	if !s.cfg.FeedbackDebug || q.tport.name == RetryTransport || q.tport.name == ErrorTransport {
		return
	}
	s.note(Note{Kind: NoteFeedback, Transport: q.tport.name, Queue: q.name, Positive: positive, Feedback: fb,
		Limit: q.limit, Window: q.window, Success: q.success, Failure: q.failure, FailCohorts: q.failCohorts})
}

// cacheHints decides, when an entry is selected, whether agents should look
// for a cached session and leave theirs in the cache: worth it when
// deliveries follow each other within a second.
func (s *Scheduler) cacheHints(q *queue) Cache {
	backToBack := q.lastDone != 0 && q.lastDone/second+1 >= s.now/second
	if q.cache&CacheStore == 0 {
		if backToBack {
			q.cache = CacheLoad | CacheStore
		}
	} else if q.busy <= 1 && !backToBack {
		q.cache &^= CacheStore // those that are there may be used up
	}
	return q.cache
}
