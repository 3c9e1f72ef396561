package simulate

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"time"
)

// Measures of the plot, in pixels.
const (
	plotWidth  = 860
	plotHeight = 240
	plotLeft   = 70
	plotTop    = 40
	plotGap    = 60
)

// colours tell curves apart, for the colour-blind too.
var colours = [...]string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

// WriteSVG draws two panels over time: the recipients delivered of each class,
// as a share of all, and the deliveries under way.
func (r *Report) WriteSVG(w io.Writer) error {
	var b bytes.Buffer
	height := plotTop + 2*plotHeight + plotGap + 50
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		plotLeft+plotWidth+20, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="20" font-size="15">%s</text>`+"\n", plotLeft, html.EscapeString(r.Title))
	r.axes(&b, plotTop, 100, "delivered, %")
	for i, c := range r.Classes {
		colour := colours[i%len(colours)]
		share := make([]point, len(c.curve))
		for k, p := range c.curve {
			share[k] = point{p.at, 100 * p.y / float64(max(c.Recipients, 1))}
		}
		r.line(&b, plotTop, 100, share, colour)
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", plotLeft+10+i*110, plotTop+plotHeight+32, colour, html.EscapeString(c.Name))
	}
	top := 1.0
	for _, p := range r.curve {
		top = max(top, p.y)
	}
	second := plotTop + plotHeight + plotGap
	r.axes(&b, second, top, "deliveries under way")
	r.line(&b, second, top, r.curve, colours[0])
	b.WriteString("</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}

func (r *Report) axes(b *bytes.Buffer, y int, top float64, label string) {
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", plotLeft, y-6, label)
	for i := 0; i <= 4; i++ {
		at := y + plotHeight - i*plotHeight/4
		fmt.Fprintf(b, `<path d="M%d %dh%d" stroke="#ddd"/><text x="%d" y="%d" text-anchor="end">%.4g</text>`+"\n",
			plotLeft, at, plotWidth, plotLeft-6, at+4, top*float64(i)/4)
		x := plotLeft + i*plotWidth/4
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%.4g s</text>`+"\n", x, y+plotHeight+16, r.Time.Seconds()*float64(i)/4)
	}
	fmt.Fprintf(b, `<path d="M%d %dv%dh%d" stroke="black" fill="none"/>`+"\n", plotLeft, y, plotHeight, plotWidth)
}

// line draws a curve that keeps its value until the next point.
func (r *Report) line(b *bytes.Buffer, y int, top float64, curve []point, colour string) {
	if len(curve) == 0 {
		return
	}
	span := max(r.Time, time.Nanosecond)
	fmt.Fprintf(b, `<path fill="none" stroke="%s" stroke-width="1.5" d="M%d %d`, colour, plotLeft, y+plotHeight)
	for _, p := range curve {
		fmt.Fprintf(b, "H%.1fV%.1f", plotLeft+plotWidth*p.at.Seconds()/span.Seconds(), float64(y)+plotHeight*(1-p.y/top))
	}
	b.WriteString(`"/>` + "\n")
}
