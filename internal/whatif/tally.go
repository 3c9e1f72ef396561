package whatif

import "time"

// A tally adds up what became of some mail. Messages are added in the order in which they leave.
type tally struct {
	messages int     // of the queue
	made     float64 // for how many those of the run stand, together
	count    int     // of the run
	gone     []gone
	weight   []float64 // for how many each stands
	all      float64
	expired  float64
	sum      float64 // of times, in seconds
}

func (t *tally) add(g gone, stands float64) {
	t.gone, t.weight = append(t.gone, g), append(t.weight, stands)
	t.all += stands
	t.sum += g.at.Seconds() * stands
	if g.expired {
		t.expired += stands
	}
}

// outcome is the tally in numbers.
func (t *tally) outcome() Outcome {
	o := Outcome{Messages: t.messages, Half: -1, Many: -1, Most: -1, Last: -1, Expired: int(t.expired + 0.5)}
	if t.count == 0 {
		o.Unseen, o.Left = true, t.messages
		return o
	}
	n := 0.0
	for i := range t.gone {
		n += t.weight[i]
		if o.Half < 0 && n >= 0.5*t.made {
			o.Half = t.gone[i].at
		}
		if o.Many < 0 && n >= 0.95*t.made {
			o.Many = t.gone[i].at
		}
		if o.Most < 0 && n >= 0.99*t.made {
			o.Most = t.gone[i].at
		}
	}
	o.Left = int(float64(t.messages)*(1-t.all/t.made) + 0.5)
	if len(t.gone) > 0 {
		o.Mean = time.Duration(t.sum / t.all * float64(time.Second))
	}
	if len(t.gone) == t.count {
		o.Last, o.Left = t.gone[len(t.gone)-1].at, 0
	}
	return o
}
