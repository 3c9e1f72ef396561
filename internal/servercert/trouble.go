package servercert

import "time"

// A Trouble is what the refusals of one authority have come to. It is zero where there were none
// since the last success.
type Trouble struct {
	Failures int       `json:"failures,omitempty"` // in a row
	Problem  string    `json:"problem,omitempty"`  // why the last attempt failed
	Next     time.Time `json:"next,omitzero"`      // no attempt before, unless somebody asks for one
}

const (
	// maxElsewhere is of how many other authorities it is remembered what they have refused.
	maxElsewhere = 8
	// forgive is how long after it may be asked again an authority's refusals are forgotten.
	forgive = 24 * time.Hour
)

// Turn has the state be about the authority with that directory. What another one has refused says
// nothing of this one, which may be asked at once; and whoever goes back to the other one goes on
// where that one was: it is not asked more often because somebody has tried a third.
func (st *State) Turn(directory string, now time.Time) {
	if st.Asked == "" {
		st.Asked = directory // a state of a version that did not tell them apart
	}
	if st.Asked == directory {
		return
	}
	if st.Elsewhere == nil {
		st.Elsewhere = make(map[string]Trouble)
	}
	if st.Trouble != (Trouble{}) {
		st.Elsewhere[st.Asked] = st.Trouble
	}
	st.Asked, st.Trouble = directory, st.Elsewhere[directory]
	delete(st.Elsewhere, directory)
	st.prune(now)
}

// prune forgets what is old, and the oldest of what is too much.
func (st *State) prune(now time.Time) {
	for url, t := range st.Elsewhere {
		if now.Sub(t.Next) > forgive {
			delete(st.Elsewhere, url)
		}
	}
	for len(st.Elsewhere) > maxElsewhere {
		oldest := ""
		for url, t := range st.Elsewhere {
			if next := st.Elsewhere[oldest].Next; oldest == "" || t.Next.Before(next) || t.Next.Equal(next) && url < oldest {
				oldest = url
			}
		}
		delete(st.Elsewhere, oldest)
	}
}
