// Package feedback reads the concurrency feedback of main.cf: how much the end
// of one delivery counts for or against the number of deliveries that a
// destination gets at once.
package feedback

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Law is how feedback depends on the window N, the number of deliveries that a
// destination may get at once.
type Law uint8

const (
	Constant Law = iota // base
	Inverse             // base/N
	Root                // base/sqrt(N)
)

// Feedback is how much one delivery counts: Base within [0,1], and how it
// depends on the window.
type Feedback struct {
	Base float64
	Law  Law
}

// Value is the feedback of one delivery at window n, which is at least 1.
func (f Feedback) Value(n int) float64 {
	switch f.Law {
	case Inverse:
		return f.Base / float64(n)
	case Root:
		return f.Base / math.Sqrt(float64(n))
	}
	return f.Base
}

// Errors of Parse.
var (
	errForm  = errors.New("expected a number from 0 to 1 such as 0.25, or a fraction such as 1/4, 1/concurrency or 1/sqrt_concurrency")
	errTrail = errors.New("the text after the number is ignored")
)

// maxDivisor is the longest text after the slash that Postfix reads.
const maxDivisor = 30

// Parse reads NUMBER, NUMBER/NUMBER, NUMBER/concurrency or
// NUMBER/sqrt_concurrency, with blanks where one likes. It takes what
// Postfix's parser takes, and sqrt_concurrency, which is in Postfix's sources
// but not in its programs. The value must be within [0,1]: 3/4 is, 3/2 is not.
//
// With an error comes the value that Postfix goes on with after its warning: 1,
// or the number when there is only text behind it that is no fraction.
func Parse(text string) (Feedback, error) {
	refused := Feedback{Base: 1}
	number, rest := cutNumber(strings.TrimLeft(text, blanks))
	base, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return refused, errForm
	}
	f := Feedback{Base: base}
	rest = strings.TrimLeft(rest, blanks)
	divisor, divided := strings.CutPrefix(rest, "/")
	if divided {
		divisor = strings.TrimLeft(divisor, blanks)
		switch {
		case len(divisor) > maxDivisor || strings.ContainsAny(divisor, blanks):
			return refused, errForm
		case strings.EqualFold(divisor, "concurrency"):
			f.Law = Inverse
		case strings.EqualFold(divisor, "sqrt_concurrency"):
			f.Law = Root
		default:
			d, err := strconv.ParseFloat(divisor, 64)
			if err != nil || !(d >= 1.0/math.MaxInt32 && d <= math.MaxInt32) {
				return refused, errForm
			}
			f.Base /= d
		}
	}
	switch {
	case !(f.Base >= 0 && f.Base <= 1):
		return refused, errForm
	case !divided && rest != "":
		return f, errTrail
	}
	return f, nil
}

const blanks = " \t\r\n\v\f"

// maxNumber bounds the text that is tried as a number.
const maxNumber = 64

// cutNumber cuts off the longest beginning of text that is a number.
func cutNumber(text string) (number, rest string) {
	for i := min(len(text), maxNumber); i > 0; i-- {
		if _, err := strconv.ParseFloat(text[:i], 64); err == nil {
			return text[:i], text[i:]
		}
	}
	return "", text
}
