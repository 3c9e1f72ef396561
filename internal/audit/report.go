package audit

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

// Kinds of what does not add up, as reports name them.
const (
	kindLost     = "lost"     // accepted, without an end, and not in the queue
	kindVanished = "vanished" // accepted, as its client was told, and nothing else is known of it
	kindOutcome  = "outcome"  // some of its recipients are missing
	kindStays    = "stays"    // ended, and in the queue
	kindSilent   = "silent"   // in the queue, and not in the log
	kindTwice    = "twice"    // delivered twice without a word of doubt
)

// maxProblems bounds how many are listed.
const maxProblems = 1000

// A Count is how many messages, and recipients of theirs.
type Count struct {
	Messages   int `json:"messages"`
	Recipients int `json:"recipients"`
}

// A Balance is what there was and came, and what became of it.
type Balance struct {
	Before   Count // in the queue at the beginning
	Accepted Count
	Origins  [numOrigins]Count // parts of Accepted
	Fates    [numFates]Count
}

// A Problem is one thing that does not add up.
type Problem struct {
	ID   string `json:"queue_id"`
	Kind string `json:"kind"`
	Text string `json:"text"`
	at   int64
}

// A Report is the outcome of an audit.
type Report struct {
	Since, Until time.Time // what was counted; zero: up to the end of the log
	Lines        int       // of the log
	Missing      int       // lines that the log says could not be written
	Repeated     int       // recipients that have got a message more than once
	Looked       bool      // the queue was looked at
	Balance      Balance
	Problems     []Problem
	More         int // problems that are not listed
}

// problem notes what does not add up, if it concerns what is counted.
func (a *account) problem(m *message, kind, text string) {
	if !a.concerned(m) {
		return
	}
	if len(a.report.Problems) >= maxProblems {
		a.report.More++
		return
	}
	a.report.Problems = append(a.report.Problems, Problem{m.id, kind, text, cmp.Or(m.at, m.seen)})
}

func (r *Report) close(a *account) {
	if b := a.begin(); b != 0 {
		r.Since = time.UnixMicro(b)
	}
	if a.until != 1<<63-1 {
		r.Until = time.UnixMicro(a.until)
	}
	r.Looked = a.looked
	slices.SortStableFunc(r.Problems, func(x, y Problem) int { return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.ID, y.ID)) })
}

// sums are both sides of the balance.
func (b *Balance) sums() (in, out Count) {
	in = Count{b.Before.Messages + b.Accepted.Messages, b.Before.Recipients + b.Accepted.Recipients}
	for _, f := range b.Fates {
		out.Messages += f.Messages
		out.Recipients += f.Recipients
	}
	return in, out
}

// AddsUp says whether everything that was accepted has an end or is in the queue.
func (r *Report) AddsUp() bool {
	in, out := r.Balance.sums()
	return len(r.Problems) == 0 && in == out
}

// Text prints the report for people.
func (r *Report) Text(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "from %s to %s\n\n%-22s %10s %10s\n", stamp(r.Since, "the beginning"), stamp(r.Until, "the end of the log"), "", "messages", "recipients")
	row := func(name string, c Count) { fmt.Fprintf(w, "%-22s %10d %10d\n", name, c.Messages, c.Recipients) }
	b := &r.Balance
	row("queued before", b.Before)
	row("accepted", b.Accepted)
	for _, o := range [...]origin{client, local, notice, further, taken, unknown} {
		if b.Origins[o] != (Count{}) {
			row("  "+originNames[o], b.Origins[o])
		}
	}
	in, sum := b.sums()
	row("sum", in)
	fmt.Fprintln(w)
	for f, c := range b.Fates {
		if usual := f != int(probed) && f != int(requeued) && f != int(corrupt) && f != int(withdrawn) && f != int(handed) && f != int(lost); usual || c != (Count{}) {
			row(fateNames[f], c)
		}
	}
	row("sum", sum)
	fmt.Fprintln(w)
	if r.Repeated > 0 {
		fmt.Fprintf(w, "Recipients with more than one copy: %d\n", r.Repeated)
	}
	if r.Missing > 0 {
		fmt.Fprintf(w, "The log lacks %d lines, which could not be written.\n", r.Missing)
	}
	if !r.Looked {
		fmt.Fprintln(w, "The queue was not looked at.")
	}
	for _, p := range r.Problems {
		fmt.Fprintf(w, "%s: %s: %s\n", p.ID, p.Kind, p.Text)
	}
	switch n := len(r.Problems) + r.More; {
	case n == 0 && r.AddsUp():
		fmt.Fprintln(w, "It adds up.")
	case r.More > 0:
		fmt.Fprintf(w, "It does not add up: %d messages, %d of which are not listed.\n", n, r.More)
	default:
		fmt.Fprintf(w, "It does not add up: %d messages.\n", n)
	}
	return w.Flush()
}

func stamp(t time.Time, none string) string {
	if t.IsZero() {
		return none
	}
	return t.Local().Format(time.DateTime)
}

// JSON prints the report as one object.
func (r *Report) JSON(w io.Writer) error {
	type span struct {
		Since string `json:"since,omitempty"`
		Until string `json:"until,omitempty"`
	}
	form := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Local().Format(time.RFC3339)
	}
	object := struct {
		span
		AddsUp   bool             `json:"adds_up"`
		Lines    int              `json:"lines"`
		Missing  int              `json:"missing_lines"`
		Queue    bool             `json:"queue"`
		Before   Count            `json:"queued_before"`
		Accepted Count            `json:"accepted"`
		Origins  map[string]Count `json:"origins"`
		Fates    map[string]Count `json:"fates"`
		Repeated int              `json:"repeated_recipients"`
		Problems []Problem        `json:"problems"`
		More     int              `json:"more_problems"`
	}{span{form(r.Since), form(r.Until)}, r.AddsUp(), r.Lines, r.Missing, r.Looked, r.Balance.Before, r.Balance.Accepted,
		map[string]Count{}, map[string]Count{}, r.Repeated, append([]Problem{}, r.Problems...), r.More}
	for o, c := range r.Balance.Origins {
		object.Origins[originNames[o]] = c
	}
	for f, c := range r.Balance.Fates {
		object.Fates[fateNames[f]] = c
	}
	return json.NewEncoder(w).Encode(object)
}
