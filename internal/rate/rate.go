// Package rate has limits of the form "so many in such a time", such as 100/h,
// and the meters that say when the next one may go. It reads no clock: the
// time is passed in.
//
// # Rates
//
// A [Rate] is written N/UNIT or N/MUNIT: 5/s, 20/min, 100/15min, 1000/h,
// 50000/d. N is 1 to 1,000,000,000, M is 1 to 1000. Units are s (sec, second),
// min (m, minute), h (hr, hour) and d (day); a day has no multiple. No rate is
// higher than 100,000 in a second.
//
// # What a rate means
//
// A rate by the second, minute or hour is spread over its time: in any span of
// that length no more than N go, whenever it begins. After a pause a twentieth
// of N may go at once, and at least one; the others follow evenly. So a limit
// of 100/h does not mean a hundred at once and then an hour of silence, during
// which urgent mail would wait. The price is a twentieth of the rate: what
// always has something to send sends 95 in an hour.
//
// A rate by the day is a count: it begins with 0 at midnight UTC, and N may go
// at any time of the day. A calendar day was chosen because schedules of
// warming up are by the day, and because a count and a date are all that has to
// be kept over a restart. UTC was chosen because its days have all the same
// length and do not depend on where the server stands.
//
// # Limits
//
// [Limits] are the rates and counts that hold for a destination, as
// destination_limit_maps has them.
//
// # What was not used
//
// [Meter.Refund] gives back what was spent and not used. A refund is taken at
// its face value, up to what is left of the debt: so in a span that begins
// while k that were spent are to be refunded, N+k may go.
package rate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bounds of what is accepted.
const (
	maxN         = 1_000_000_000
	maxMultiple  = 1000
	maxPerSecond = 100_000
)

// Day is the time of a rate that is counted by the calendar.
const Day = 24 * time.Hour

// A Rate is at most N in a time of Per. The zero Rate is no limit.
type Rate struct {
	N   int64         // at least 1
	Per time.Duration // at least a second; Day: by the calendar
}

// Tightens says whether r allows less in the long run than another rate, or that is no limit.
func (r Rate) Tightens(o Rate) bool {
	return o.IsZero() || float64(r.N)/float64(r.Per) < float64(o.N)/float64(o.Per)
}

// IsZero says whether r is no limit.
func (r Rate) IsZero() bool { return r.N == 0 }

// unit is a unit of time by one of its names. The first name is the one that is printed.
type unit struct {
	names []string
	per   time.Duration
}

var units = [...]unit{
	{[]string{"d", "day"}, Day},
	{[]string{"h", "hr", "hour"}, time.Hour},
	{[]string{"min", "m", "minute"}, time.Minute},
	{[]string{"s", "sec", "second"}, time.Second},
}

// Parse reads a rate. The error says what is wrong, without the text.
func Parse(text string) (Rate, error) {
	count, span, ok := strings.Cut(text, "/")
	if !ok {
		return Rate{}, errors.New("a rate is a number, a slash and a time, such as 100/h")
	}
	n, err := number(count, maxN)
	if err != nil {
		return Rate{}, err
	}
	digits := len(span) - len(strings.TrimLeft(span, "0123456789"))
	times := int64(1)
	if digits > 0 {
		if times, err = number(span[:digits], maxMultiple); err != nil {
			return Rate{}, err
		}
	}
	for _, u := range units {
		for _, name := range u.names {
			if name != span[digits:] {
				continue
			}
			if u.per == Day && digits > 0 {
				return Rate{}, errors.New("a day has no multiple: it is counted by the calendar")
			}
			r := Rate{N: n, Per: time.Duration(times) * u.per}
			if n > maxPerSecond*int64(r.Per/time.Second) {
				return Rate{}, fmt.Errorf("more than %d in a second cannot be limited", maxPerSecond)
			}
			return r, nil
		}
	}
	return Rate{}, fmt.Errorf("%q is no unit of time: it is one of s, min, h and d", span[digits:])
}

// ParseList reads several rates, separated by blanks or commas; "none" is none. The error says
// which one is wrong.
func ParseList(text string) (list []Rate, err error) {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' || r == '\n' || r == ',' })
	if len(words) == 1 && words[0] == "none" {
		return nil, nil
	}
	for _, w := range words {
		r, err := Parse(w)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", w, err)
		}
		list = append(list, r)
	}
	return list, nil
}

// number reads a number from 1 to most.
func number(text string, most int64) (int64, error) {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%q is not a number", text)
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case text == "":
		return 0, errors.New("the number is missing")
	case err != nil || n < 1 || n > most:
		return 0, fmt.Errorf("%s is not from 1 to %d", text, most)
	}
	return n, nil
}

// String is r as Parse reads it; "" for no limit.
func (r Rate) String() string {
	if r.IsZero() {
		return ""
	}
	for _, u := range units {
		if m := r.Per / u.per; r.Per%u.per == 0 && m >= 1 && (m == 1 || u.per != Day && m <= maxMultiple) {
			if m == 1 {
				return fmt.Sprintf("%d/%s", r.N, u.names[0])
			}
			return fmt.Sprintf("%d/%d%s", r.N, m, u.names[0])
		}
	}
	return fmt.Sprintf("%d/%s", r.N, r.Per)
}
