package adaptive

import (
	"strings"
	"time"
)

// Ask is what a reply asks of the sender.
type Ask uint8

// See the package comment.
const (
	Nothing Ask = iota
	Fewer
	Slower
	Later
	Again
	Away
	// Latency is no reply: deliveries take too long.
	Latency
)

// String is the ask as listings have it.
func (a Ask) String() string {
	switch a {
	case Fewer:
		return "too many at once"
	case Slower:
		return "too much in a time"
	case Later:
		return "try again later"
	case Again:
		return "greylisting"
	case Away:
		return "no answer"
	case Latency:
		return "deliveries take long"
	}
	return "nothing"
}

// maxText is how much of a reply is read. Known ones say what they mean within that.
const maxText = 512

// Words of replies that say what they ask, in lower case. The first list that has one counts: a reply that
// speaks of greylisting may say "too fast", and one that speaks of connections may say "slow down".
var (
	greyWords = []string{"greylist", "graylist", "grey-list", "gray-list", "postgrey", "milter-grey"}
	rateWords = []string{"rate limit", "ratelimit", "rate-limit", "sending rate", "unusual rate", "rate that prevents", "throttl", "too many messages", "too many mails", "too many emails",
		"too many recipients", "too fast", "too much mail", "message limit", "messages per", "mails per", "exceeded the rate", "quota for your ip", "hourly", "user complaints", "unexpected volume",
		"reputation", "unsolicited", "4.7.28", "4.7.650", "rp-001", "rp-002", "rp-003", "tss04", "tss05", "tss09"}
	crowdWords = []string{"too many connections", "too many concurrent", "too many sessions", "too many simultaneous", "maximum number of connections", "connection limit",
		"concurrent connections", "concurrency", "trop de connexions", "connections from your", "max connections", "4.7.652"}
	laterWords = []string{"try again later", "try later", "temporarily deferred", "server busy", "service unavailable", "service not available", "resources", "4.7.500", "slow down", "too busy"}
)

// Read says what a reply asks, and when it says that mail may be tried again: 0 when it does not. code and
// text are those of the reply; greeting says that it came in the place of one, or of the reply to EHLO. A reply that accepts, or refuses for
// good, asks nothing.
func Read(code int, text string, greeting bool) (Ask, time.Duration) {
	if code < 400 || code > 499 {
		return Nothing, 0
	}
	text = strings.ToLower(text[:min(len(text), maxText)])
	switch {
	case has(text, greyWords):
		return Again, 0
	case has(text, crowdWords):
		return Fewer, 0
	case has(text, rateWords):
		return Slower, after(text)
	case greeting:
		return Fewer, 0
	case code == 421 || has(text, laterWords):
		return Later, after(text)
	}
	return Nothing, 0
}

func has(text string, words []string) bool {
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// after is the time in "try again in 10 minutes"; 0: there is none.
func after(text string) time.Duration {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '(' || r == ')' || r == ',' || r == '.' || r == ';' })
	for i := 1; i+1 < len(words); i++ {
		if words[i-1] != "in" && words[i-1] != "after" && words[i-1] != "least" {
			continue
		}
		n := 0
		for _, c := range []byte(words[i]) {
			if c < '0' || c > '9' || n > 1e6 {
				n = 0
				break
			}
			n = 10*n + int(c-'0')
		}
		for unit, d := range map[string]time.Duration{"second": time.Second, "sec": time.Second, "minute": time.Minute, "min": time.Minute, "hour": time.Hour} {
			if w := strings.TrimSuffix(words[i+1], "s"); n > 0 && w == unit {
				return time.Duration(n) * d
			}
		}
	}
	return 0
}
