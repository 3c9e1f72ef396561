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
	At        time.Time `json:"at"`
	Messages  int       `json:"messages"`
	Hold      int       `json:"hold"`      // messages on hold, which are not in the forecast
	Suspended int       `json:"suspended"` // messages that wait for suspensions, which are not, either
	Unknown   int       `json:"unknown"`   // messages of which it is not known where they go: shared out
	Changed   string    `json:"changed,omitempty"`
	Stands    float64   `json:"stands"` // for how many messages one of the forecast stands
	Lines     []Line    `json:"lines"`
}

// A Line is some of the mail.
type Line struct {
	Kind string  `json:"kind"` // all, destination, tenant
	Name string  `json:"name,omitempty"`
	Now  *Expect `json:"now"`            // with the settings as they are
	Then *Expect `json:"then,omitempty"` // with the others
	Note string  `json:"note,omitempty"`
}

// Expect is what is expected of some mail, in seconds from now: the median of all runs. A time that
// is absent is beyond the forecast.
type Expect struct {
	Messages int      `json:"messages"`
	Half     *float64 `json:"half,omitempty"`
	Most     *float64 `json:"most,omitempty"` // until 99 in 100 messages have left
	Last     *float64 `json:"last,omitempty"`
	Earliest *float64 `json:"earliest,omitempty"` // last, of the run in which it was first
	Latest   *float64 `json:"latest,omitempty"`   // and of that in which it was latest; absent if beyond in any
	Mean     float64  `json:"mean"`
	Expired  int      `json:"expired"`
	Left     int      `json:"left"`
	Busy     int      `json:"busy"` // deliveries at once, at most
}

// Compare makes forecasts of c with both settings; then is nil if there is only one.
func Compare(ctx context.Context, c *Copy, now sched.Config, then *sched.Config, seed uint64) (*Report, error) {
	r := &Report{At: c.Now, Messages: c.Messages(), Hold: c.Hold, Suspended: c.Suspended, Unknown: c.Unknown}
	runs := make([][]*Forecast, 1, 2)
	configs := []sched.Config{now}
	if then != nil {
		configs, runs = append(configs, *then), append(runs, nil)
	}
	for i := range configs {
		for k := range uint64(Seeds) {
			f, err := Run(ctx, &c.Mail, configs[i], seed+k)
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
	_, e.Most, _ = times(func(o *Outcome) time.Duration { return o.Most })
	e.Earliest, e.Last, e.Latest = times(func(o *Outcome) time.Duration { return o.Last })
	return e
}

// Text is r in lines, with nothing in it that would move a terminal about.
func (r *Report) Text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s are in the forecast", messages(r.Messages))
	if r.Hold+r.Suspended > 0 {
		fmt.Fprintf(&b, ", and not %s on hold and %s suspended", overview.Number(int64(r.Hold)), overview.Number(int64(r.Suspended)))
	}
	fmt.Fprintf(&b, ". New mail is not.\n")
	if r.Unknown > 0 {
		fmt.Fprintf(&b, "Of %s it is not known where they go. They are shared out among the others' destinations.\n", messages(r.Unknown))
	}
	if r.Stands > 1 {
		fmt.Fprintf(&b, "One message of the forecast stands for %.1f of the queue, on average.\n", r.Stands)
	}
	if r.Changed != "" {
		fmt.Fprintf(&b, "First with the settings as they are, then with %s.\n", queuelist.Printable(r.Changed))
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprint(w, "\tmessages\thalf\t99 %\tall\tby chance\tmean wait")
	if r.Changed != "" {
		fmt.Fprint(w, "\t|\thalf\t99 %\tall\tby chance\tmean wait")
	}
	fmt.Fprint(w, "\tremarks\n")
	count := map[string]int{}
	for i := range r.Lines {
		l := &r.Lines[i]
		if count[l.Kind]++; count[l.Kind] > shown {
			continue
		}
		name := l.Name
		switch l.Kind {
		case "all":
			name = "all"
		case "tenant":
			name = "tenant " + name
		}
		fmt.Fprintf(w, "%s\t%s%s", queuelist.Printable(name), overview.Number(int64(l.Now.Messages)), l.Now.columns())
		if l.Then != nil {
			fmt.Fprint(w, "\t|", l.Then.columns())
		}
		fmt.Fprintf(w, "\t%s\n", l.Note)
	}
	w.Flush()
	for _, kind := range []string{"destination", "tenant"} {
		if n := count[kind] - shown; n > 0 {
			fmt.Fprintf(&b, "and %s more %ss, which -j prints\n", overview.Number(int64(n)), kind)
		}
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
	return "\t" + span(e.Half) + "\t" + span(e.Most) + "\t" + span(e.Last) + "\t" + span(e.Earliest) + " to " + span(e.Latest) + "\t" + span(&e.Mean)
}

// span is a time in words; nil is beyond the forecast.
func span(seconds *float64) string {
	if seconds == nil {
		return "> " + overview.Span(Horizon)
	}
	return overview.Span(time.Duration(*seconds * float64(time.Second)))
}
