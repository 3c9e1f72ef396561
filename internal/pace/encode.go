package pace

import (
	"math"

	"posthaste/internal/pack"
)

// floats are the sums of b in the order of their tags, from 'a' on.
func (b *Behaviour) floats() [10]*float64 {
	return [...]*float64{&b.First.All, &b.First.Later, &b.First.Failed, &b.Again.All, &b.Again.Later, &b.Again.Failed, &b.R, &b.RR, &b.TR, &b.TT}
}

// floats are the sums of a level.
func (l *Level) floats() [5]*float64 {
	return [...]*float64{&l.Served, &l.Away, &l.ServedTime, &l.AwayTime, &l.Rcpts}
}

// Append appends b for another process, without the time of its counts.
func (b *Behaviour) Append(to []byte) []byte {
	for i, f := range b.floats() {
		to = pack.Uint(to, 'a'+byte(i), math.Float64bits(*f))
	}
	to = pack.Int(pack.Int(to, 'S', b.Streak), 'L', b.Longest)
	for i := range b.Levels {
		if l := &b.Levels[i]; *l != (Level{}) {
			to = pack.Nested(to, 'l', func(to []byte) []byte {
				to = pack.Int(to, 'n', i)
				for i, f := range l.floats() {
					to = pack.Uint(to, 'a'+byte(i), math.Float64bits(*f))
				}
				return to
			})
		}
	}
	return to
}

// Decode reads what Append wrote. Numbers that are none, or less than 0, are 0.
func (b *Behaviour) Decode(from []byte) error {
	r := pack.NewReader(from)
	sums := b.floats()
	for r.Next() {
		switch t := r.Tag(); {
		case t == 'S':
			b.Streak = int(min(max(r.Int(), 0), math.MaxInt32))
		case t == 'L':
			b.Longest = int(min(max(r.Int(), 0), math.MaxInt32))
		case t == 'l':
			if err := b.decodeLevel(r.Nested()); err != nil {
				return err
			}
		case t >= 'a' && int(t-'a') < len(sums):
			*sums[t-'a'] = number(r.Uint())
		}
	}
	return r.Err()
}

func (b *Behaviour) decodeLevel(r pack.Reader) error {
	var l Level
	n, sums := -1, l.floats()
	for r.Next() {
		if t := r.Tag(); t == 'n' {
			n = int(r.Int())
		} else if t >= 'a' && int(t-'a') < len(sums) {
			*sums[t-'a'] = number(r.Uint())
		}
	}
	if n >= 0 && n < Levels {
		b.Levels[n] = l
	} else if n < 0 {
		b.Levels[0] = l // pack leaves out what is 0
	}
	return r.Err()
}

// number is a sum, which is within 0 and 1e18.
func number(bits uint64) float64 {
	if f := math.Float64frombits(bits); f >= 0 && f < 1e18 {
		return f
	}
	return 0
}
