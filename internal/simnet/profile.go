package simnet

import (
	"slices"
	"time"
)

// Kind says what a host does to those who send to it.
type Kind uint8

// The kinds are those of the package comment.
const (
	Good Kind = iota
	Crowded
	Metered
	Judged
	Grey
	Slow
	Dead
)

var kinds = []string{"good", "crowded", "metered", "judged", "grey", "slow", "dead"}

// String is the kind as ParseKind reads it.
func (k Kind) String() string { return kinds[k] }

// ParseKind reads the name of a kind. ok is false if there is none of the name.
func ParseKind(name string) (k Kind, ok bool) {
	i := slices.Index(kinds, name)
	return Kind(max(i, 0)), i >= 0
}

// A Profile describes a host. What its kind does not need is ignored.
type Profile struct {
	Kind Kind
	// How long the greeting takes, and a transaction from MAIL to the reply after the content.
	Greeting, Took time.Duration
	// Jitter is by what share of it, more or less, each of these differs.
	Jitter float64
	// Sessions of one client at once (Crowded), or workers for all (Slow).
	Sessions int
	// Messages of one client in a Span (Metered), and for how long all is refused after one more.
	Messages int
	Span     time.Duration
	Penalty  time.Duration
	// Share of the messages that draw a complaint, how many of these are tolerated, and the time in which
	// half of them is forgotten (Judged).
	Complaints float64
	Tolerated  float64
	HalfLife   time.Duration
	// Delay is the time that a grey host wants between two attempts.
	Delay time.Duration
	// Reply is what is said when mail is refused for now: code, enhanced code and text.
	Reply string
}

// Profiles are hosts with the words of known providers, by name. Their numbers are small enough for a
// simulation of minutes to meet them. The map is made anew by each call.
func Profiles() map[string]Profile {
	return map[string]Profile{
		// Too many at once: a large provider, and a Postfix.
		"microsoft": {Kind: Crowded, Greeting: 50 * time.Millisecond, Took: 400 * time.Millisecond, Jitter: .1, Sessions: 8,
			Reply: "451 4.7.652 The mail server [192.0.2.1] has exceeded the maximum number of connections. (S3115) [mx.microsoft.example]"},
		"postfix": {Kind: Crowded, Greeting: 20 * time.Millisecond, Took: 200 * time.Millisecond, Jitter: .1, Sessions: 5,
			Reply: "421 4.7.0 mx.postfix.example Error: too many connections from 192.0.2.1"},
		"orange": {Kind: Crowded, Greeting: 30 * time.Millisecond, Took: 300 * time.Millisecond, Jitter: .1, Sessions: 2,
			Reply: "421 mwinf5c04 ME Trop de connexions, veuillez verifier votre configuration. Too many connections, slow down. OFR004_104 [104]"},
		// Too much in a time.
		"gmail": {Kind: Metered, Greeting: 40 * time.Millisecond, Took: 300 * time.Millisecond, Jitter: .2, Messages: 120, Span: time.Minute, Penalty: time.Minute,
			Reply: "421 4.7.28 Gmail has detected an unusual rate of unsolicited mail originating from your IP address. To protect our users from spam, mail sent from your IP address has been temporarily rate limited. https://support.google.com/mail/?p=UnsolicitedRateLimitError - gsmtp"},
		"comcast": {Kind: Metered, Greeting: 40 * time.Millisecond, Took: 200 * time.Millisecond, Jitter: .1, Messages: 60, Span: time.Minute, Penalty: 5 * time.Minute,
			Reply: "421 4.1.0 192.0.2.1 Throttled - too many messages, try again later"},
		// Complaints.
		"yahoo": {Kind: Judged, Greeting: 60 * time.Millisecond, Took: 300 * time.Millisecond, Jitter: .2, Complaints: .05, Tolerated: 10, HalfLife: 5 * time.Minute,
			Reply: "421 4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to unexpected volume or user complaints - 4.16.55.1; see https://postmaster.yahooinc.com/error-codes"},
		// Those who want to be asked twice.
		"postgrey": {Kind: Grey, Greeting: 20 * time.Millisecond, Took: 150 * time.Millisecond, Jitter: .1, Delay: 5 * time.Minute,
			Reply: "450 4.2.0 <joe@example.com>: Recipient address rejected: Greylisted, see http://postgrey.schweikert.ch/help/example.com.html"},
		"good": {Kind: Good, Greeting: 20 * time.Millisecond, Took: 150 * time.Millisecond, Jitter: .1},
		"slow": {Kind: Slow, Greeting: 50 * time.Millisecond, Took: 500 * time.Millisecond, Jitter: .1, Sessions: 4},
		"dead": {Kind: Dead},
	}
}
