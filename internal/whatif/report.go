package whatif

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"posthaste/internal/overview"
	"posthaste/internal/queuelist"
	"posthaste/qmgr/sched"
)

const (
	// Seeds is how many runs a forecast is made of.
	Seeds = 3
	// shown is how many destinations and tenants the text names.
	shown = 20
)

// A Report is what a forecast says, with the settings as they are and with others.
type Report struct {
	At        time.Time `json:"at" doc:"When the copy of the queue was made"`
	Messages  int       `json:"messages" doc:"Those in the forecast"`
	Hold      int       `json:"hold" doc:"Messages on hold, which are not in the forecast"`
	Suspended int       `json:"suspended" doc:"Messages that wait for suspensions, which are not, either"`
	Unknown   int       `json:"unknown" doc:"Messages of which it is not known where they go: they are shared out among the others' destinations"`
	Changed   string    `json:"changed,omitempty" doc:"The changes"`
	Stands    float64   `json:"stands" doc:"For how many messages one of the forecast stands, on average"`
	LeftOut   []string  `json:"left_out,omitempty" doc:"What holds for the mail and is not in the forecast, in sentences"`
	Warnings  []string  `json:"warnings,omitempty" doc:"Settings that cannot be read, and what stands in their place"`
	Lines     []Line    `json:"lines" doc:"The whole, then destinations, those with most messages first, then tenants"`
}

// A Line is some of the mail.
type Line struct {
	Kind string  `json:"kind" doc:"all, destination or tenant"`
	Name string  `json:"name,omitempty"`
	Now  *Expect `json:"now" doc:"With the settings as they are"`
	Then *Expect `json:"then,omitempty" doc:"With the changes"`
	Note string  `json:"note,omitempty" doc:"What is not certain"`
}

// Expect is what is expected of some mail, in seconds from now: the median of all runs. A time that
// is absent is beyond the forecast.
type Expect struct {
	Messages int      `json:"messages"`
	Half     *float64 `json:"half,omitempty" doc:"Seconds until half of it has left the queue; absent: beyond the forecast, as are the other times"`
	Many     *float64 `json:"p95,omitempty" doc:"Until 95 in 100 messages have: the others wait for longer"`
	Most     *float64 `json:"most,omitempty" doc:"Until 99 in 100 messages have"`
	Last     *float64 `json:"last,omitempty" doc:"Until all of it has"`
	Earliest *float64 `json:"earliest,omitempty" doc:"The last, of the run in which it was first"`
	Latest   *float64 `json:"latest,omitempty" doc:"And of that in which it was latest; absent if it was beyond in any"`
	Mean     float64  `json:"mean" doc:"How long a message that leaves takes, on average"`
	Expired  int      `json:"expired" doc:"Messages that were returned as too old"`
	Left     int      `json:"left" doc:"Messages that are still there at the end"`
	Busy     int      `json:"busy" doc:"Deliveries at once, at most"`
}

// Compare makes forecasts of c with both settings; then is nil if there is only one.
func Compare(ctx context.Context, c *Copy, now sched.Config, then *sched.Config, seed uint64) (*Report, error) {
	r := &Report{At: c.Now, Messages: c.Messages(), Hold: c.Hold, Suspended: c.Suspended, Unknown: c.Unknown, LeftOut: c.LeftOut}
	runs := make([][]*Forecast, 1, 2)
	configs := []sched.Config{now}
	if then != nil {
		configs, runs = append(configs, *then), append(runs, nil)
	}
	known := c.learn()
	for i := range configs {
		for k := range uint64(Seeds) {
			f, err := c.run(ctx, known, configs[i], seed+k)
			if err != nil {
				return nil, err
			}
			runs[i] = append(runs[i], f)
		}
	}
	r.Stands = runs[0][0].Stands
	add := func(l Line, of func(*Forecast) Outcome) {
		l.Now = expect(runs[0], of)
		if then != nil {
			l.Then = expect(runs[1], of)
		}
		if of(runs[0][0]).Unseen {
			l.Note = fmt.Sprintf("it is not in the forecast: one message stands for %.1f, and it has fewer", r.Stands)
		}
		r.Lines = append(r.Lines, l)
	}
	add(Line{Kind: "all"}, func(f *Forecast) Outcome { return f.All })
	for _, i := range c.byMail() {
		l := Line{Kind: "destination", Name: string(c.Dests[i].Transport) + ":" + c.Dests[i].Queue}
		l.Note = note(c, runs, i)
		add(l, func(f *Forecast) Outcome { return f.Dests[i] })
	}
	for _, t := range slices.Sorted(maps.Keys(runs[0][0].Tenants)) {
		add(Line{Kind: "tenant", Name: t}, func(f *Forecast) Outcome { return f.Tenants[t] })
	}
	return r, nil
}

// note says what is not certain of a destination.
func note(c *Copy, runs [][]*Forecast, i int) string {
	f := runs[len(runs)-1][0]
	busy := 0
	for _, list := range runs {
		for _, f := range list {
			busy = max(busy, f.Dests[i].Busy)
		}
	}
	switch {
	case c.Dests[i].Behaviour == nil:
		return "nothing has been measured of it: as others of its transport"
	case f.Down[i]:
		return "it does not answer: that is supposed to go on"
	case busy > f.Seen[i]:
		return fmt.Sprintf("up to %d at once, and no more than %d were ever seen there", busy, f.Seen[i])
	}
	return ""
}

// expect is the median of several runs.
func expect(runs []*Forecast, of func(*Forecast) Outcome) *Expect {
	list := make([]Outcome, len(runs))
	for i, f := range runs {
		list[i] = of(f)
	}
	// A time beyond the forecast is later than all others.
	times := func(get func(*Outcome) time.Duration) (low, mid, high *float64) {
		var s []time.Duration
		for i := range list {
			d := get(&list[i])
			if d < 0 {
				d = 2 * Horizon
			}
			s = append(s, d)
		}
		slices.Sort(s)
		sec := func(d time.Duration) *float64 {
			if d > Horizon {
				return nil
			}
			x := d.Round(100 * time.Millisecond).Seconds()
			return &x
		}
		return sec(s[0]), sec(s[len(s)/2]), sec(s[len(s)-1])
	}
	o := list[len(list)/2]
	e := &Expect{Messages: o.Messages, Mean: o.Mean.Round(100 * time.Millisecond).Seconds(), Expired: o.Expired, Left: o.Left, Busy: o.Busy}
	_, e.Half, _ = times(func(o *Outcome) time.Duration { return o.Half })
	_, e.Many, _ = times(func(o *Outcome) time.Duration { return o.Many })
	_, e.Most, _ = times(func(o *Outcome) time.Duration { return o.Most })
	e.Earliest, e.Last, e.Latest = times(func(o *Outcome) time.Duration { return o.Last })
	return e
}

// Preface says in sentences what is in the forecast and what is not.
func (r *Report) Preface() (list []string) {
	text := messages(r.Messages) + " are in the forecast"
	if r.Messages == 1 {
		text = "1 message is in the forecast"
	}
	if r.Hold+r.Suspended > 0 {
		text += fmt.Sprintf(", and not %s on hold and %s suspended", overview.Number(int64(r.Hold)), overview.Number(int64(r.Suspended)))
	}
	list = append(list, text+". New mail is not.")
	if r.Unknown > 0 {
		list = append(list, fmt.Sprintf("Of %s it is not known where they go. They are shared out among the others' destinations.", messages(r.Unknown)))
	}
	list = append(list, r.LeftOut...)
	if r.Stands > 1 {
		list = append(list, fmt.Sprintf("One message of the forecast stands for %.1f of the queue, on average.", r.Stands))
	}
	if r.Changed != "" {
		list = append(list, "First with the settings as they are, then with "+r.Changed+".")
	}
	return list
}

// Top are the lines that people are shown, and sentences about how many more there are.
func (r *Report) Top() (lines []Line, more []string) {
	count := map[string]int{}
	for i := range r.Lines {
		if count[r.Lines[i].Kind]++; count[r.Lines[i].Kind] <= shown {
			lines = append(lines, r.Lines[i])
		}
	}
	for _, kind := range []string{"destination", "tenant"} {
		if n := count[kind] - shown; n > 0 {
			more = append(more, fmt.Sprintf("and %s more %ss", overview.Number(int64(n)), kind))
		}
	}
	return lines, more
}

// Title is what a line is about.
func (l *Line) Title() string {
	switch {
	case l.Kind == "all":
		return "all"
	case l.Kind == "tenant" && l.Name == "":
		return "no tenant"
	case l.Kind == "tenant":
		return "tenant " + l.Name
	}
	return l.Name
}

// Text is r in lines, with nothing in it that would move a terminal about.
func (r *Report) Text() []byte {
	var b bytes.Buffer
	for _, line := range r.Preface() {
		b.WriteString(queuelist.Printable(line) + "\n")
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprint(w, "\tmessages\thalf\t95 %\t99 %\tall\tby chance\tmean wait")
	if r.Changed != "" {
		fmt.Fprint(w, "\t|\thalf\t95 %\t99 %\tall\tby chance\tmean wait")
	}
	fmt.Fprint(w, "\tremarks\n")
	lines, more := r.Top()
	for i := range lines {
		l := &lines[i]
		fmt.Fprintf(w, "%s\t%s%s", queuelist.Printable(l.Title()), overview.Number(int64(l.Now.Messages)), l.Now.columns())
		if l.Then != nil {
			fmt.Fprint(w, "\t|", l.Then.columns())
		}
		fmt.Fprintf(w, "\t%s\n", l.Note)
	}
	w.Flush()
	for _, text := range more {
		b.WriteString(text + ", which -j prints\n")
	}
	return b.Bytes()
}

func messages(n int) string {
	if n == 1 {
		return "1 message"
	}
	return overview.Number(int64(n)) + " messages"
}

// columns are the times, each behind a tab.
func (e *Expect) columns() string {
	return "\t" + Span(e.Half) + "\t" + Span(e.Many) + "\t" + Span(e.Most) + "\t" + Span(e.Last) + "\t" + Span(e.Earliest) + " to " + Span(e.Latest) + "\t" + Span(&e.Mean)
}

// Span is a time in words; nil is beyond the forecast.
func Span(seconds *float64) string {
	if seconds == nil {
		return "> " + overview.Span(Horizon)
	}
	return overview.Span(time.Duration(*seconds * float64(time.Second)))
}
