package console

import (
	"fmt"
	"html/template"
	"strings"
	"time"

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
