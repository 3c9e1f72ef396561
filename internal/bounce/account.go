package bounce

import (
	"fmt"
	"slices"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// untold is what nobody has heard yet of what the request tells. Of a
// request that is made again, because the answer was lost or not all notices
// could be sent, some may have been told: their notices have recorded that.
func untold(msg StoredMessage, req *proto.Notify) (list []mail.Outcome, err error) {
	if req.Notice == proto.NoticeDelay {
		if msg.Warned() && !req.Continued {
			return nil, nil
		}
		return req.Outcomes, nil
	}
	told, err := recorded(msg, req)
	if err != nil {
		return nil, err
	}
	for _, o := range req.Outcomes {
		if old, ok := told[o.Rcpt]; ok {
			o.Follow(&old)
		}
		if o.Rcpt < 0 || o.Rcpt >= msg.NRcpt() || !reports(req.Notice, o.Action) || msg.Pending(o.Rcpt) {
			list = append(list, o)
		}
	}
	return list, nil
}

// recorded are the outcomes that are recorded with the message, by recipient,
// when the request is about failures of parts, of which some may have been told.
func recorded(msg StoredMessage, req *proto.Notify) (map[int]mail.Outcome, error) {
	if req.Notice != proto.NoticeFailure && req.Notice != proto.NoticeExpired || !slices.ContainsFunc(req.Outcomes, func(o mail.Outcome) bool { return len(o.Parts) > 0 }) {
		return nil, nil
	}
	list, err := msg.Outcomes()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", req.ID, err)
	}
	told := make(map[int]mail.Outcome, len(list))
	for _, o := range list {
		told[o.Rcpt] = o
	}
	return told, nil
}

// join puts together what the queue manager says of recipients and what the
// message's envelope does.
func join(msg StoredMessage, req *proto.Notify) ([]Report, error) {
	list := make([]Report, 0, len(req.Outcomes))
	for i := range req.Outcomes {
		o := &req.Outcomes[i]
		if o.Rcpt < 0 || o.Rcpt >= msg.NRcpt() {
			return nil, fmt.Errorf("%s: there is no recipient number %d", req.ID, o.Rcpt)
		}
		list = appendReports(list, req.Notice, o)
	}
	// One pass over the stored list for requests about many recipients.
	const batch = 256
	for from := 0; from < msg.NRcpt(); {
		if from = nextWanted(req.Outcomes, from); from < 0 {
			break
		}
		rcpts, err := msg.Recipients(from, from+batch)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", req.ID, err)
		}
		if len(rcpts) == 0 {
			return nil, fmt.Errorf("%s: recipient %d cannot be read", req.ID, from)
		}
		for i := range list {
			if n := list[i].Outcome.Rcpt - from; n >= 0 && n < len(rcpts) {
				list[i].Recipient = final(rcpts[n], &list[i])
			}
		}
		from += len(rcpts)
	}
	return list, nil
}

// appendReports appends what a notice says of one recipient: of each of its
// parts that the notice is about, or of the recipient when there are none. The
// recipients are filled in later, but for what each was expanded to.
func appendReports(list []Report, kind proto.NoticeKind, o *mail.Outcome) []Report {
	split := false
	switch kind {
	case proto.NoticeFailure:
		split = o.Action == dsn.Deferred || o.HasFailed()
	case proto.NoticeExpired, proto.NoticeDelay: // what keeps it waiting may have to do with no part of it
		split = slices.ContainsFunc(o.Parts, func(p mail.Part) bool { return p.Action == dsn.Deferred })
	case proto.NoticeSuccess: // what comes of the rest has notices of its own
		split = o.Action == dsn.Deferred || o.Action == dsn.Failed || o.HasGood(false)
	case proto.NoticeTrace:
		split = len(o.Parts) > 0
	}
	for i := range o.Parts {
		p := &o.Parts[i]
		if !tells(kind, p) {
			continue
		}
		r := Report{part: i + 1, Recipient: mail.Recipient{Address: p.Address}, Outcome: p.Outcome()}
		r.Outcome.Rcpt, r.Outcome.When = o.Rcpt, o.When
		list = append(list, r)
	}
	if !split {
		whole := *o
		whole.Parts = nil
		list = append(list, Report{Outcome: whole})
	}
	return list
}

// tells says whether a notice tells of such a part.
func tells(kind proto.NoticeKind, p *mail.Part) bool {
	switch kind {
	case proto.NoticeFailure:
		return p.Action == dsn.Failed && !p.Told
	case proto.NoticeExpired: // those that have failed, too, if their own notice could not be sent
		return (p.Action == dsn.Failed || p.Action == dsn.Deferred) && !p.Told
	case proto.NoticeDelay:
		return p.Action == dsn.Deferred
	case proto.NoticeSuccess:
		return p.IsGood() && !p.Told
	}
	return kind == proto.NoticeTrace
}

// final is the recipient as it is reported: what it was expanded to, when that
// is what the report is about.
func final(r mail.Recipient, about *Report) mail.Recipient {
	if to := about.Recipient.Address; about.part > 0 && to != r.Address {
		r.Original, r.Address = r.Orig(), to
	}
	if about.Outcome.Owner != "" { // what the sender called it is not the owner's to know
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

// settlements says what each of the sendings settles: the last vital one that
// reports a recipient, the recipient, and those before it their parts of it.
// The first vital one takes along all that none reports.
func settlements(req *proto.Notify, list []sending) []*proto.Settle {
	out := make([]*proto.Settle, len(list))
	first := slices.IndexFunc(list, func(s sending) bool { return s.vital })
	if first < 0 {
		return out
	}
	if req.Notice == proto.NoticeDelay {
		out[first] = &proto.Settle{ID: req.ID, Warned: true}
		return out
	}
	by := map[int][]int{} // recipient to the vital sendings that report it, in order
	for i := range list {
		if !list[i].vital {
			continue
		}
		for k := range list[i].reports {
			r := list[i].reports[k].Outcome.Rcpt
			if n := len(by[r]); n == 0 || by[r][n-1] != i {
				by[r] = append(by[r], i)
			}
		}
	}
	at := func(i int) *proto.Settle {
		if out[i] == nil {
			out[i] = &proto.Settle{ID: req.ID}
		}
		return out[i]
	}
	for i := range req.Outcomes {
		o := req.Outcomes[i]
		who := by[o.Rcpt]
		if len(who) == 0 {
			who = []int{first}
		}
		last := who[len(who)-1]
		for _, k := range who[:len(who)-1] {
			o.Parts = slices.Clone(o.Parts)
			for _, r := range list[k].reports {
				if r.Outcome.Rcpt == o.Rcpt && r.part > 0 {
					o.Parts[r.part-1].Told = true
				}
			}
			at(k).Outcomes = append(at(k).Outcomes, o)
		}
		switch {
		case settled(req.Notice, o.Action):
			at(last).Rcpts = append(at(last).Rcpts, o.Rcpt)
		case reports(req.Notice, o.Action) && o.Untold():
			o.Tell(false)
			at(last).Outcomes = append(at(last).Outcomes, o)
		}
	}
	return out
}

// reports says whether that a recipient has been reported is recorded. A trace
// reports also what goes on, and failures that have a notice of their own.
func reports(kind proto.NoticeKind, action dsn.Action) bool {
	switch kind {
	case proto.NoticeFailure, proto.NoticeExpired:
		return true
	case proto.NoticeSuccess, proto.NoticeTrace:
		return action.Final() && action != dsn.Failed
	}
	return false
}

// settled says whether nothing more is to be done for a recipient once it
// has been reported: not for one that is only to hear of some who have failed.
func settled(kind proto.NoticeKind, action dsn.Action) bool {
	return reports(kind, action) && (kind != proto.NoticeFailure || action != dsn.Deferred)
}

// recordsAll says whether the notices record all that is to be recorded.
func recordsAll(req *proto.Notify) bool {
	return req.Notice == proto.NoticeDelay ||
		!slices.ContainsFunc(req.Outcomes, func(o mail.Outcome) bool { return !reports(req.Notice, o.Action) })
}
