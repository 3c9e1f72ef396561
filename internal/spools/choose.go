package spools

import (
	"errors"
	"time"

	"posthaste/internal/queue"
)

// spare is how many batches more than twice another's may wait for a part before new mail goes to that one.
const spare = 8

// choose appends to list the parts to try for new mail, the best one first. Messages go round by their numbers, so that
// one is looked for first where it is, unless its part has much more to do than the next one. Parts that have failed are
// not among them; those that are full, or do not answer, come last.
func (s *Set) choose(list []*part, number uint64, large bool) []*part {
	begin := len(list)
	if large && s.large != nil && s.large.present().up {
		list = append(list, s.large)
	}
	n, first := len(s.takers), s.at(number)
	if n > 1 {
		a, b := s.takers[first], s.takers[(first+1)%n]
		if a.load.Load() > 2*b.load.Load()+spare {
			first++
		}
	}
	now := time.Now().UnixNano()
	for _, later := range []bool{false, true} {
		for i := range n {
			p := s.takers[(first+i)%n]
			st := p.present()
			if !st.up || len(list) > begin && list[begin] == p {
				continue
			}
			if poor := p.full.Load() > now || st.en.Silent() != nil; poor == later {
				list = append(list, p)
			}
		}
	}
	return list
}

// elsewhere says whether another part may take what p has refused with err, and notes why p has. Nothing of it was written
// then.
func (p *part) elsewhere(err error) bool {
	if errors.Is(err, queue.ErrFull) {
		p.full.Store(time.Now().Add(fullTime).UnixNano())
		return true
	}
	return errors.Is(err, queue.ErrSilent) || errors.Is(err, queue.ErrClosed)
}
