package console

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/overview"
)

// A point is a value at a time.
type point struct {
	At time.Time
	N  int64
}

const (
	chartWidth, chartHeight = 720, 120
	// chartPoints is about how many points a line has.
	chartPoints = 144
)

// waiting is how many recipients waited in the deferred and the active queue, for so long before
// now.
func (c *console) waiting(d time.Duration) []point {
	return c.points(d, func(*history.Row) bool { return true }, true)
}

// waitingFor is the same for one domain. Times at which it was too small to have a row of its own
// have no point.
func (c *console) waitingFor(domain string, d time.Duration) []point {
	return c.points(d, func(r *history.Row) bool { return strings.EqualFold(r.Domain, domain) }, false)
}

func (c *console) points(d time.Duration, which func(*history.Row) bool, others bool) (list []point) {
	now := c.now()
	if first, _, err := history.Span(c.mta.history); err == nil && now.Sub(first) < d { // a young history is drawn in full width
		d = now.Sub(first)
	}
	// A history that cannot be read is a chart without a line.
	_ = history.Between(c.mta.history, now.Add(-d), now, d/chartPoints, func(s *history.Sample) bool {
		p, found := point{At: s.At}, others
		for i := range s.Tables {
			t := &s.Tables[i]
			if t.Senders || t.Queue != "deferred" && t.Queue != "active" {
				continue
			}
			for j := range t.Rows {
				if which(&t.Rows[j]) {
					p.N += t.Rows[j].Counts.Sum()
					found = true
				}
			}
			if others {
				p.N += t.Others.Sum()
			} else {
				found = found || t.Names == 0
			}
		}
		if found {
			list = append(list, p)
		}
		return true
	})
	return list
}

// A series is one line of a chart of its own.
type series struct {
	Name   string
	Points []point
}

// ratesFor is what came in and went out by the minute, for so long before now. A time without the
// queue manager, or without samples, has no point.
func (c *console) ratesFor(d time.Duration) []series {
	now := c.now()
	if first, _, err := history.Span(c.mta.history); err == nil && now.Sub(first) < d {
		d = now.Sub(first)
	}
	list := []series{{"Messages in, by the minute", nil}, {"Recipients delivered to, by the minute", nil}, {"Attempts deferred, by the minute", nil}, {"Recipients bounced, by the minute", nil}}
	var before *history.Sample
	_ = history.Between(c.mta.history, now.Add(-d), now, d/chartPoints, func(s *history.Sample) bool {
		if before != nil {
			if r, ok := history.RatesBetween(before, s); ok {
				for i, v := range [...]float64{r.In, r.Sent, r.Deferred, r.Bounced} {
					list[i].Points = append(list[i].Points, point{s.At, int64(math.Round(v))})
				}
			}
		}
		before = &history.Sample{At: s.At, Totals: s.Totals}
		return true
	})
	return list
}

// chart draws a line, with the greatest value and the times at its ends. It has no text of
// strangers in it, and says in words what it shows.
func chart(list []point, what string) template.HTML {
	if len(list) < 2 {
		return ""
	}
	first, last, top := list[0].At, list[len(list)-1].At, int64(1)
	for _, p := range list {
		top = max(top, p.N)
	}
	var b strings.Builder
	for _, p := range list {
		x := float64(chartWidth) * float64(p.At.Sub(first)) / float64(last.Sub(first))
		fmt.Fprintf(&b, "%.1f,%.1f ", x, float64(chartHeight)*(1-float64(p.N)/float64(top)))
	}
	label := fmt.Sprintf("%s from %s to %s: at most %s, %s at last", what, first.Local().Format("Jan 2 15:04"), last.Local().Format("Jan 2 15:04"), overview.Number(top), overview.Number(list[len(list)-1].N))
	return template.HTML(fmt.Sprintf(`<figure><svg role="img" viewBox="-2 -4 %d %d" preserveAspectRatio="none" aria-label="%s"><polyline points="%s"/></svg><figcaption>%s</figcaption></figure>`,
		chartWidth+4, chartHeight+8, template.HTMLEscapeString(label), strings.TrimSpace(b.String()), template.HTMLEscapeString(label)))
}
