// Package verify finds out whether mail to an address would be delivered, by
// sending a probe that delivery agents take as far as the recipient's server
// accepting or refusing the address, and remembers what came of it. It is
// Postfix's verify(8). smtpd asks it for reject_unverified_recipient and
// reject_unverified_sender.
//
// A question about an address with a known result is answered at once. A result is refreshed
// by a probe when it is old, and forgotten when it is older still. A refresh that fails does
// not replace a good result before that has expired, and is repeated at most every 1000
// seconds.
//
// While the largest permitted number of probes is under way, a question about an unknown
// address is answered at once with "Too many address verification requests", and the client is
// told to try again later. With Postfix such a probe enters the queue and comes back from
// there with these words, which are then remembered as the result for the address. Here
// nothing is remembered, and the next question causes a probe once others have ended.
//
// # Security
//
// Addresses come from strangers, who could cause probes to be sent anywhere. So there is one
// probe at a time for each address, and a bounded number altogether
// (address_verify_pending_request_limit), and results are kept. Keys and texts are bounded in
// length.
//
// # Diagnostics
//
// A damaged cache file is renamed to NAME.bolt.damaged, with a warning, and a new one is
// begun; the results are found out again. The whole file is examined before it is opened. If
// the file is damaged while it is open, an access may never end; then the process ends after
// five minutes, or sooner when it runs out of stack, and the next process finds the damage.
//
// # Parameters
//
// address_verify_map, address_verify_sender, address_verify_sender_ttl,
// address_verify_positive_expire_time, address_verify_positive_refresh_time,
// address_verify_negative_expire_time, address_verify_negative_refresh_time,
// address_verify_negative_cache, address_verify_cache_cleanup_interval,
// address_verify_pending_request_limit.
package verify

import (
	"time"

	"posthaste/internal/pack"
	"posthaste/internal/proto"
)

const (
	// maxKey and maxText bound what is kept of an address and of a server's words.
	maxKey  = 512
	maxText = 512
	// probeTime is how long a probe is taken to be under way when nothing is
	// heard of it: after that another one may be sent.
	probeTime = 1000 * time.Second
)

// Times are how long results are good.
type Times struct {
	PositiveExpire, PositiveRefresh time.Duration
	NegativeExpire, NegativeRefresh time.Duration
	NegativeCache                   bool
}

// A Record is what is known of an address.
type Record struct {
	Status  proto.ProbeStatus
	Probed  time.Time // when the last probe was sent that has not been heard of, or that did not take the place of a good result; zero: none
	Updated time.Time // when Status was found out; zero: never
	Text    string
}

// Known says whether the record's status may still be believed at time now.
func (r *Record) Known(t *Times, now time.Time) bool {
	switch {
	case r.Updated.IsZero() || r.Status == proto.ProbeTodo:
		return false
	case r.Status == proto.ProbeOK:
		return within(r.Updated, now, t.PositiveExpire)
	}
	return within(r.Updated, now, t.NegativeExpire)
}

// within says whether something was less than d ago. What lies further ahead
// than a probe takes is from a clock that was wrong, and must not count until
// that time comes.
func within(at, now time.Time, d time.Duration) bool {
	age := now.Sub(at)
	return age < d && age > -probeTime
}

// WantsProbe says whether a probe is to be sent at time now.
func (r *Record) WantsProbe(t *Times, now time.Time) bool {
	if r.underWay(now) {
		return false
	}
	if !r.Known(t, now) {
		return true
	}
	refresh := t.NegativeRefresh
	if r.Status == proto.ProbeOK {
		refresh = t.PositiveRefresh
	}
	return now.Sub(r.Updated) >= refresh
}

// underWay says whether a probe may still be heard of.
func (r *Record) underWay(now time.Time) bool {
	return !r.Probed.IsZero() && within(r.Probed, now, probeTime)
}

// Learn is the record after a probe has come to status. It is false when the
// record is not worth keeping.
func (r *Record) Learn(t *Times, now time.Time, status proto.ProbeStatus, text string) (keep bool) {
	if status != proto.ProbeOK && r.Status == proto.ProbeOK && r.Known(t, now) {
		return true // the good result stands until it expires; the next probe is due after probeTime, not at the next question
	}
	r.Probed = time.Time{}
	if len(text) > maxText {
		text = text[:maxText]
	}
	r.Status, r.Updated, r.Text = status, now, text
	return status == proto.ProbeOK || t.NegativeCache
}

// Dead says whether the record may be dropped at time now.
func (r *Record) Dead(t *Times, now time.Time) bool {
	return !r.Known(t, now) && !r.underWay(now)
}

func (r *Record) append(b []byte) []byte {
	b = pack.Uint(b, 's', uint8(r.Status)+1)
	b = pack.Int(b, 'p', seconds(r.Probed))
	b = pack.Int(b, 'u', seconds(r.Updated))
	return pack.String(b, 't', r.Text)
}

func seconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

func (r *Record) decode(b []byte) error {
	p := pack.NewReader(b)
	for p.Next() {
		switch p.Tag() {
		case 's':
			r.Status = proto.ProbeStatus(p.Uint() - 1)
		case 'p':
			r.Probed = time.Unix(p.Int(), 0)
		case 'u':
			r.Updated = time.Unix(p.Int(), 0)
		case 't':
			r.Text = p.String()
		}
	}
	return p.Err()
}
