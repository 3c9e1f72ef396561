package maillog

import (
	"strconv"
	"time"
)

// A Resolution is how finely delays are logged. The zero Resolution is the
// default of delay_logging_resolution_limit, two decimals.
type Resolution int8

// ResolutionLimit is the Resolution for a value of
// delay_logging_resolution_limit: the decimals shown at most, 0 to 6.
func ResolutionLimit(digits int) Resolution {
	return Resolution(min(max(digits, 0), 6) - 2)
}

// appendDelay appends d in seconds with two significant digits, with no more
// decimals than the resolution has, and without zeros at the end: 0, 0.01,
// 0.15, 1.5, 41.
func appendDelay(b []byte, d time.Duration, r Resolution) []byte {
	micros := max(d, 0).Microseconds()
	if micros == 0 {
		return append(b, '0')
	}
	decimals := significant(micros)
	if limit := int(r) + 2; decimals > limit {
		decimals = limit
	}
	// Division by a constant is much cheaper, and this is on the hot path.
	var n, whole, rest int64
	switch decimals {
	case 0:
		return strconv.AppendInt(b, (micros+5e5)/1e6, 10)
	case 1:
		n = (micros + 5e4) / 1e5
		whole, rest = n/10, n%10
	case 2:
		n = (micros + 5e3) / 1e4
		whole, rest = n/100, n%100
	default:
		unit, scale := int64(1), int64(1e6)
		for range 6 - decimals {
			unit, scale = unit*10, scale/10
		}
		n = (micros + unit/2) / unit
		whole, rest = n/scale, n%scale
	}
	b = strconv.AppendInt(b, whole, 10)
	if rest == 0 {
		return b
	}
	for rest%10 == 0 {
		rest /= 10
		decimals--
	}
	b = append(b, ".000000"[:decimals+1]...)
	for i := len(b) - 1; rest > 0; i-- {
		b[i] = byte('0' + rest%10)
		rest /= 10
	}
	return b
}

// significant is the number of decimals that show two significant digits.
func significant(micros int64) int {
	decimals := 0
	for limit := int64(10e6); micros < limit && decimals < 6; limit /= 10 {
		decimals++
	}
	return decimals
}
