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
	decimals := significant(micros)
	if limit := int(r) + 2; decimals > limit {
		decimals = limit
	}
	unit := int64(1) // of the last decimal, in microseconds
	for range 6 - decimals {
		unit *= 10
	}
	micros = (micros + unit/2) / unit * unit
	b = strconv.AppendInt(b, micros/1e6, 10)
	rest := micros % 1e6
	if rest == 0 {
		return b
	}
	b = append(b, '.')
	for place := int64(1e5); rest > 0; place /= 10 {
		b = append(b, byte('0'+rest/place))
		rest %= place
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
