// Values of keys: numbers, rates, times, words.

package shaping

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/rate"
)

// A Value is what a section says of a key. Which of its fields counts depends on the key.
type Value struct {
	Text string // as it is said, for people
	At   Place
	In   string // the section, as in "provider bigmail, source mta1"

	N     int64         // of a number or a limit
	Rate  rate.Rate     // of a rate
	Time  time.Duration // of a time
	Yes   bool          // of a truth value
	Hosts []netip.Prefix
	rank  rank
}

// A rank says which kind of section a value is from.
type rank uint8

const (
	fromDefault rank = iota // the default section, and what is said for all
	fromShared              // a provider or a domain, by its MX hosts: the same for all domains that have these
	fromDomain              // a provider by a domain's name, or a domain without mx_rollup
)

// Default says whether only the default section says it.
func (v *Value) Default() bool { return v.rank == fromDefault }

// form is the form of a key's values.
type form uint8

const (
	limitForm form = iota
	countForm
	rateForm
	timeForm
	boolForm
	textForm
	wordForm
	hostsForm
	namedForm // names with limits or rates
	anyForm   // not looked at
)

// parse reads the value of a key.
func (k *key) parse(n *node) (v Value, err error) {
	if k.form != anyForm && k.form != namedForm && k.form != hostsForm && (n.kind == tableNode || n.kind == listNode) {
		return v, fmt.Errorf("%s where a value is expected", n.kind)
	}
	if v.Text = n.text; n.kind == boolNode {
		v.Text = strconv.FormatBool(n.yes)
	}
	switch k.form {
	case limitForm, countForm:
		v.N, err = parseLimit(n)
	case rateForm:
		if n.kind != stringNode {
			return v, errors.New("a rate is a string, such as \"100/min\"")
		}
		v.Rate, err = parseRate(n.text)
	case timeForm:
		v.Time, err = parseTime(n)
	case boolForm:
		if v.Yes = n.yes; n.kind != boolNode {
			err = fmt.Errorf("%s where true or false is expected", n.kind)
		}
	case textForm:
		if n.kind != stringNode || len(n.text) > 255 || strings.ContainsFunc(n.text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			err = errors.New("a string of at most 255 octets is expected, without control characters")
		}
	case wordForm:
		err = k.word(n)
	case hostsForm:
		v.Hosts, v.Text, err = parseHosts(n)
	}
	return v, err
}

// word says whether a value is one of those that the key has.
func (k *key) word(n *node) error {
	for _, w := range strings.Fields(k.words) {
		if n.kind == stringNode && n.text == w {
			return nil
		}
	}
	return fmt.Errorf("%.40q is none of %s", n.text, strings.Join(strings.Fields(k.words), ", "))
}

// maxLimit bounds limits and counts.
const maxLimit = 1_000_000

// parseLimit reads 10, "1,000" or "local:10". KumoMTA shares the others through Redis; here all are local.
func parseLimit(n *node) (int64, error) {
	text := n.text
	switch n.kind {
	case stringNode:
		text = strings.NewReplacer(",", "", "_", "").Replace(strings.TrimPrefix(text, "local:"))
	case numberNode:
	default:
		return 0, fmt.Errorf("%s where a number is expected", n.kind)
	}
	i, err := strconv.ParseInt(text, 10, 64)
	if err != nil || i < 1 {
		return 0, fmt.Errorf("%.40q is no number from 1 on", n.text)
	}
	return min(i, maxLimit), nil
}

var errRate = errors.New("a rate is [local:]N/[M]UNIT[,max_burst=B], with a unit of s, min, hour or day")

// parseRate reads a rate. max_burst says how much of it may go at once; here that is always a
// twentieth (package rate).
func parseRate(text string) (rate.Rate, error) {
	text, _ = strings.CutPrefix(strings.TrimSpace(text), "local:")
	if rest, burst, ok := strings.Cut(text, ",max_burst="); ok {
		if n, err := strconv.ParseInt(burst, 10, 64); err != nil || n < 1 {
			return rate.Rate{}, fmt.Errorf("max_burst=%.20q is no number from 1 on", burst)
		}
		text = rest
	}
	count, span, ok := strings.Cut(text, "/")
	n, err := strconv.ParseInt(strings.NewReplacer(",", "", "_", "").Replace(strings.TrimSpace(count)), 10, 64)
	if !ok || err != nil || n < 1 {
		return rate.Rate{}, errRate
	}
	span = strings.TrimSpace(span)
	digits := len(span) - len(strings.TrimLeft(span, "0123456789"))
	times := int64(1)
	if digits > 0 {
		if times, err = strconv.ParseInt(span[:digits], 10, 64); err != nil || times < 1 || times > 1_000_000 {
			return rate.Rate{}, errRate
		}
	}
	units := map[string]time.Duration{"s": time.Second, "sec": time.Second, "second": time.Second,
		"m": time.Minute, "min": time.Minute, "minute": time.Minute,
		"h": time.Hour, "hr": time.Hour, "hour": time.Hour, "d": rate.Day, "day": rate.Day}
	unit, ok := units[strings.TrimSpace(span[digits:])]
	if !ok {
		return rate.Rate{}, errRate
	}
	return expressible(n, times, unit), nil
}

// expressible is N in so many units as package rate can have it: at most 1000 units, a day but once,
// and no more than 100000 in a second. Where it must round it is the stricter way, by less than two
// in a hundred, up to a thousand hours.
func expressible(n, times int64, unit time.Duration) rate.Rate {
	if unit == rate.Day && times > 1 {
		times, unit = 24*times, time.Hour
	}
	for _, larger := range []time.Duration{time.Minute, time.Hour} {
		if times > 1000 && unit < larger {
			k := int64(larger / unit)
			times, unit = (times+k-1)/k, larger
		}
	}
	if times > 1000 {
		n, times = max(n*1000/times, 1), 1000
	}
	r := rate.Rate{N: min(n, 1_000_000_000), Per: time.Duration(times) * unit}
	r.N = min(r.N, 100_000*int64(r.Per/time.Second))
	return r
}

// maxTime bounds times.
const maxTime = 10 * 365 * 24 * time.Hour

// parseTime reads "90m", "2 hours", "1h 30m", or a number of seconds.
func parseTime(n *node) (time.Duration, error) {
	switch n.kind {
	case numberNode:
		f, err := strconv.ParseFloat(n.text, 64)
		if err != nil || !(f >= 0 && f <= maxTime.Seconds()) {
			return 0, fmt.Errorf("%.40s is no time", n.text)
		}
		return time.Duration(f * float64(time.Second)), nil
	case stringNode:
		return parseSpan(n.text)
	}
	return 0, fmt.Errorf("%s where a time is expected", n.kind)
}

var spans = map[string]time.Duration{
	"ns": 1, "nsec": 1, "us": time.Microsecond, "usec": time.Microsecond, "ms": time.Millisecond, "msec": time.Millisecond,
	"s": time.Second, "sec": time.Second, "secs": time.Second, "second": time.Second, "seconds": time.Second,
	"m": time.Minute, "min": time.Minute, "mins": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hrs": time.Hour, "hour": time.Hour, "hours": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour, "days": 24 * time.Hour,
	"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour, "weeks": 7 * 24 * time.Hour,
	"M": 30*24*time.Hour + 10*time.Hour + 33*time.Minute + 36*time.Second, "month": 30*24*time.Hour + 10*time.Hour + 33*time.Minute + 36*time.Second,
	"months": 30*24*time.Hour + 10*time.Hour + 33*time.Minute + 36*time.Second,
	"y":      365*24*time.Hour + 6*time.Hour, "year": 365*24*time.Hour + 6*time.Hour, "years": 365*24*time.Hour + 6*time.Hour,
}

func parseSpan(text string) (total time.Duration, err error) {
	rest := strings.TrimSpace(text)
	if n, err := strconv.ParseInt(rest, 10, 64); err == nil && n >= 0 && n <= int64(maxTime/time.Second) {
		return time.Duration(n) * time.Second, nil
	}
	for some := false; rest != "" || !some; some = true {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		n, err := strconv.ParseInt(rest[:digits], 10, 64)
		rest = strings.TrimLeft(rest[digits:], " ")
		letters := len(rest) - len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyzM"))
		unit, ok := spans[rest[:letters]]
		if err != nil || !ok || n > int64(maxTime/unit) {
			return 0, fmt.Errorf("%.40q is no time, such as \"90m\" or \"2 hours\"", text)
		}
		if total += time.Duration(n) * unit; total > maxTime {
			return 0, fmt.Errorf("%.40q is too long", text)
		}
		rest = strings.TrimLeft(rest[letters:], " ")
	}
	return total, nil
}

// maxHosts bounds a list of networks.
const maxHosts = 1000

// parseHosts reads a list of networks, or a table whose keys are some.
func parseHosts(n *node) (list []netip.Prefix, text string, err error) {
	var words []string
	switch n.kind {
	case listNode:
		for _, m := range n.list {
			if m.kind != stringNode {
				return nil, "", fmt.Errorf("%s where a network is expected", m.kind)
			}
			words = append(words, m.text)
		}
	case tableNode:
		words = n.keys
	default:
		return nil, "", fmt.Errorf("%s where a list of networks is expected", n.kind)
	}
	if len(words) > maxHosts {
		return nil, "", fmt.Errorf("more than %d networks", maxHosts)
	}
	for _, w := range words {
		p, err := netip.ParsePrefix(w)
		if err != nil {
			var ip netip.Addr
			if ip, err = netip.ParseAddr(w); err != nil {
				return nil, "", fmt.Errorf("%.60q is no network", w)
			}
			p = netip.PrefixFrom(ip, ip.BitLen())
		}
		list = append(list, p.Masked())
	}
	return list, strings.Join(words, " "), nil
}
