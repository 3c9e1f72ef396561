package dmarcsend

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/dayreport"
	"posthaste/internal/mailauth"
	"posthaste/internal/resolver"
	"posthaste/internal/statedir"
)

const (
	maxRows       = 20_000         // different rows between two flushes; what is over is not counted
	maxReportRows = 10_000         // of a report; those with the largest counts are kept
	maxDayText    = 64 << 20       // octets of a day's different rows, when its reports are made; they take twice as much memory
	maxDay        = 256 << 20      // octets of a day's counts
	maxReport     = 10 << 20       // octets of a report, compressed
	maxPlaces     = 10             // addresses that a report goes to
	maxSignatures = 10             // of a row; the standard allows 100
	sendTime      = time.Minute    // for all addresses of a report
	maxName       = 255            // octets of a name that a stranger has given
	kind          = "dmarc report" // what warnings begin with
)

// Dir is the name of the directory in data_directory.
const Dir = "dmarc"

// Options are what a Log is made of.
type Options struct {
	Dir          string
	Organization string // org_name of reports
	Contact      string // email: whom people write to
	Extra        string // extra_contact_info; may be empty
	Sender       string // From: and envelope sender of reports
	Hostname     string // of this system
	Checker      *mailauth.Checker
	// Mail queues a message for one recipient of reports. It may be called again with the same
	// message after an error. It, Warn and Sent may be called concurrently.
	Mail func(ctx context.Context, to string, message []byte) error
	Warn func(text string)
	// Sent is told which report has gone to whom; the URI may be logged.
	Sent func(report, uri string)
}

// A Log counts messages and sends reports. Record may be called concurrently; a nil Log counts
// nothing.
type Log struct {
	opt     Options
	journal *dayreport.Journal

	dayText int // maxDayText; tests have less

	mu      sync.Mutex
	rows    map[string]*counted // since the last flush, by day and text of the row
	dropped bool                // more rows than fit, since the last flush
}

// counted is a row with its count: a line of the journal.
type counted struct {
	day string
	Row row   `json:"row"`
	N   int64 `json:"n"`
}

// A row is mail of one kind from one source.
type row struct {
	Published   mailauth.Record `json:"published"`
	Source      string          `json:"source"`
	Disposition string          `json:"disposition"`
	DKIM        bool            `json:"dkim,omitempty"` // aligned and good
	SPF         bool            `json:"spf,omitempty"`
	Reason      string          `json:"reason,omitempty"`
	Comment     string          `json:"comment,omitempty"`
	From        string          `json:"from"`
	Envelope    string          `json:"envelope,omitempty"` // domain of the envelope sender
	Signatures  []signature     `json:"signatures,omitempty"`
	SPFDomain   string          `json:"spf_domain,omitempty"`
	SPFResult   string          `json:"spf_result,omitempty"`
	// Quiet mail is no reason for a report: it looks like one.
	Quiet bool `json:"quiet,omitempty"`
}

type signature struct {
	Domain   string `json:"d"`
	Selector string `json:"s"`
	Result   string `json:"r"`
}

// Open makes a log that keeps its files in o.Dir, which it makes if need be. It may be called with
// other rights, and another root directory, than what follows.
func Open(o Options) (*Log, error) {
	dir, err := statedir.Open(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	l := &Log{opt: o, dayText: maxDayText, rows: make(map[string]*counted)}
	l.journal = &dayreport.Journal{Dir: dir, Hostname: o.Hostname, Suffix: ".json", Warn: l.warn}
	return l, nil
}

func (l *Log) warn(format string, args ...any) {
	l.opt.Warn(kind + ": " + fmt.Sprintf(format, args...))
}

// An Evaluation is what was found out of a message, and what was done with it.
type Evaluation struct {
	Client  netip.Addr
	Sender  string // envelope sender, internal form
	Results *mailauth.Results
	// Disposition is what was done: none, quarantine, reject. For mail that has passed it is none.
	Disposition string
	// Override is why less was done than the policy says, in the words of RFC 9990: local_policy,
	// trusted_forwarder. Comment says more. Both are empty where the policy was followed.
	Override, Comment string
	Report            bool // the message looks like a report
}

// Record counts a message. One without details, or whose record wants no reports, is not counted.
func (l *Log) Record(now time.Time, e *Evaluation) {
	if l == nil || e.Results.DMARC.Published == nil || e.Results.DMARC.Result == mailauth.TempError || !e.Client.IsValid() {
		return
	}
	r := rowOf(e)
	text, err := json.Marshal(r)
	if err != nil {
		return // cannot be: these are strings and numbers
	}
	day := now.UTC().Format(dayreport.DayForm)
	key := day + string(text)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.rows[key]
	if c == nil {
		if len(l.rows) >= maxRows {
			l.dropped = true
			return
		}
		c = &counted{day: day, Row: r}
		l.rows[key] = c
	}
	c.N++
}

// rowOf is the row that a message counts in.
func rowOf(e *Evaluation) row {
	d := &e.Results.DMARC
	r := row{Published: *d.Published, Source: e.Client.Unmap().WithZone("").String(), Disposition: e.Disposition, DKIM: d.Aligned.DKIM, SPF: d.Aligned.SPF,
		Reason: e.Override, Comment: e.Comment, From: name(d.From), Quiet: e.Report, SPFDomain: name(e.Results.SPF.Domain), SPFResult: string(e.Results.SPF.Result)}
	if d.Result == mailauth.Pass {
		r.Disposition = "pass"
	}
	if at := strings.LastIndexByte(e.Sender, '@'); at >= 0 {
		r.Envelope = name(strings.ToLower(e.Sender[at+1:]))
	}
	for _, s := range e.Results.DKIM {
		if s.Domain == "" || s.Selector == "" || len(r.Signatures) >= maxSignatures {
			continue
		}
		r.Signatures = append(r.Signatures, signature{name(s.Domain), name(s.Selector), string(s.Result)})
	}
	return r
}

// name is a stranger's domain as it may stand in a report.
func name(s string) string {
	s = strings.Map(func(c rune) rune {
		if c <= ' ' || c == 0x7f || c == 0xfffd || c == 0xfffe || c == 0xffff || c >= 0x80 && c < 0xa0 {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(s, "?"))
	return strings.ToValidUTF8(s[:min(len(s), maxName)], "")
}

// flush appends what has been counted to the journal.
func (l *Log) flush() {
	l.mu.Lock()
	rows, dropped := l.rows, l.dropped
	l.rows, l.dropped = make(map[string]*counted), false
	l.mu.Unlock()
	if dropped {
		l.warn("over %d kinds of mail in a minute: not all messages are counted", maxRows)
	}
	days := map[string]*bytes.Buffer{}
	for _, c := range rows {
		b := days[c.day]
		if b == nil {
			b = new(bytes.Buffer)
			days[c.day] = b
		}
		if err := json.NewEncoder(b).Encode(c); err != nil {
			l.warn("counts are lost: %v", err)
		}
	}
	for day, b := range days {
		err := errors.New("there are too many on this day")
		if l.journal.Size(day)+int64(b.Len()) <= maxDay {
			err = l.journal.Append(day, b.Bytes())
		}
		if err != nil {
			l.warn("counts are lost: %v", err)
		}
	}
}

// Run writes counts and sends reports until ctx ends. The Log is not to be used after that.
func (l *Log) Run(ctx context.Context) { l.journal.Run(ctx, l.flush, l.Step) }

// Close closes a Log that does not Run.
func (l *Log) Close() error { return l.journal.Dir.Close() }

// Step makes the reports that are due at now and sends those that wait, unless another process is
// at it. It is not to be called concurrently with itself.
func (l *Log) Step(ctx context.Context, now time.Time) { l.step(ctx, now, false) }

// SendNow does the same without waiting until reports are due: those of all days that are over are
// made. ok is false when another process makes or sends reports just now.
func (l *Log) SendNow(ctx context.Context, now time.Time) (ok bool) { return l.step(ctx, now, true) }

func (l *Log) step(ctx context.Context, now time.Time, early bool) (ok bool) {
	l.flush()
	return l.journal.Locked(func() {
		days, err := l.journal.Finished(now)
		if early {
			days, err = l.journal.Days()
			days = slices.DeleteFunc(days, func(day time.Time) bool { return now.Before(day.AddDate(0, 0, 1)) })
		}
		if err != nil {
			l.warn("%v", err)
		}
		l.journal.Conclude(days, now, l.conclude)
		l.journal.Each(ctx, func(path string) { l.sendOne(ctx, path, now) })
	})
}

// conclude turns a day's counts into reports. When it is cut short it is done again, with the same
// result.
func (l *Log) conclude(day time.Time) error {
	domains, err := l.readDay(day)
	if err != nil {
		return err
	}
	for domain, list := range domains {
		if !slices.ContainsFunc(list, func(t tally) bool { return !t.quiet }) {
			continue
		}
		rows, err := rowsOf(list)
		var text []byte
		if err == nil {
			text, err = json.Marshal(&report{Day: day, Domain: domain, Rows: rows})
		}
		if err == nil {
			err = l.journal.Save(day.Format(dayreport.DayForm)+"."+domain, append(text, '\n'))
		}
		if err != nil {
			return err
		}
	}
	return l.journal.Drop(day.Format(dayreport.DayForm))
}

// A tally is a row of a day, as text, with its count. Of a whole day there may be many.
type tally struct {
	text  string
	n     int64
	quiet bool
}

// readDay adds up the lines of a day, by the domain of the record. Rows are in the order of their
// counts. Over the bound, the rows that were first seen latest are missing.
func (l *Log) readDay(day time.Time) (map[string][]tally, error) {
	domains := map[string][]tally{}
	known := map[string]int{} // the place of a row in the list of its domain
	octets, lost := 0, false
	err := l.journal.Lines(day.Format(dayreport.DayForm), func(line []byte) {
		var c counted
		if json.Unmarshal(line, &c) != nil || c.N < 1 || !resolver.ValidHostname(c.Row.Published.Domain) {
			return
		}
		domain := strings.ToLower(c.Row.Published.Domain)
		c.Row.Published.Domain = domain
		text, err := json.Marshal(c.Row)
		if err != nil {
			return // cannot be
		}
		at, again := known[string(text)]
		switch {
		case again:
			domains[domain][at].n += c.N
		case octets+len(text) <= l.dayText:
			octets += len(text)
			t := tally{string(text), c.N, c.Row.Quiet}
			known[t.text] = len(domains[domain])
			domains[domain] = append(domains[domain], t)
		default:
			lost = true
		}
	})
	if lost {
		l.warn("over %d kinds of mail on %s: not all are reported", len(known), day.Format(dayreport.DayForm))
	}
	for domain, rows := range domains {
		slices.SortFunc(rows, func(a, b tally) int { return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.text, b.text)) })
		domains[domain] = rows[:min(len(rows), maxReportRows)]
	}
	return domains, err
}

// rowsOf are the rows that tallies are of.
func rowsOf(list []tally) (rows []counted, err error) {
	rows = make([]counted, len(list))
	for i, t := range list {
		rows[i].N = t.n
		if err := json.Unmarshal([]byte(t.text), &rows[i].Row); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// sendOne sends a report, and removes it when it is sent or given up.
func (l *Log) sendOne(ctx context.Context, path string, now time.Time) {
	var r report
	text, err := l.journal.Dir.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && (len(r.Rows) == 0 || !resolver.ValidHostname(r.Domain)) {
		err = errors.New("it has no rows")
	}
	if err != nil {
		l.warn("%s: %v", path, err)
		l.journal.Remove(path)
		return
	}
	switch err := l.send(ctx, &r, now); {
	case err == nil:
		l.journal.Remove(path)
	case l.journal.GivenUp(r.Day, now):
		l.warn("%s could not be sent: %v", r.id(l.opt.Hostname), err)
		l.journal.Remove(path)
	}
}

// send brings a report to all addresses that want it. It returns an error when it should be tried
// again: it could be had nowhere, or the DNS did not answer.
func (l *Log) send(ctx context.Context, r *report, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	p, at, _, err := l.opt.Checker.Policy(ctx, r.Domain)
	if err != nil {
		return err
	}
	if at != r.Domain {
		return nil // the record is gone, and with it who would have wanted the report
	}
	var failed []error
	sent := map[string]bool{}
	for _, uri := range p.Reports[:min(len(p.Reports), maxPlaces)] {
		to, err := l.opt.Checker.ReportsTo(ctx, r.Domain, uri)
		if err == nil && to != "" && !sent[to] {
			if err = l.sendTo(ctx, r, to, now); err == nil {
				sent[to] = true
				l.opt.Sent(r.id(l.opt.Hostname), dayreport.Printable("mailto:"+to))
			}
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", dayreport.Printable(uri), err))
		}
	}
	if len(sent) == 0 {
		return errors.Join(failed...)
	}
	for _, err := range failed {
		l.warn("%s: %v", r.id(l.opt.Hostname), err)
	}
	return nil
}

func (l *Log) sendTo(ctx context.Context, r *report, to string, now time.Time) error {
	msg, err := l.message(r, to, now)
	if err != nil {
		return err
	}
	return l.opt.Mail(ctx, to, msg)
}

// A Pending is a report that is to be sent, or a day's counts so far.
type Pending struct {
	Day      string `json:"day"`
	Domain   string `json:"domain"`
	Messages int64  `json:"messages"`
	Rows     int    `json:"rows"`
	Waiting  bool   `json:"waiting"` // the report is made, and could not be sent yet
	Quiet    bool   `json:"quiet"`   // there will be none: all that was counted looks like reports
}

// count adds a row.
func (p *Pending) count(n int64, quiet bool) {
	p.Messages += n
	p.Quiet = p.Quiet && quiet
}

// Pending lists what is to be reported, by day and domain. Counts of the last minute that another
// process has are not among them.
func (l *Log) Pending() (list []Pending, err error) {
	days, err := l.journal.Days()
	if err != nil {
		return nil, err
	}
	add := func(day time.Time, domain string, rows int, waiting bool) *Pending {
		list = append(list, Pending{Day: day.Format(dayreport.DayForm), Domain: domain, Rows: rows, Waiting: waiting, Quiet: true})
		return &list[len(list)-1]
	}
	for _, path := range l.journal.Waiting() {
		var r report
		text, err := l.journal.Dir.ReadFile(path)
		if err == nil && json.Unmarshal(text, &r) == nil {
			p := add(r.Day, r.Domain, len(r.Rows), true)
			for i := range r.Rows {
				p.count(r.Rows[i].N, r.Rows[i].Row.Quiet)
			}
		}
	}
	for _, day := range days {
		domains, err := l.readDay(day)
		if err != nil {
			return nil, err
		}
		for domain, rows := range domains {
			p := add(day, domain, len(rows), false)
			for _, t := range rows {
				p.count(t.n, t.quiet)
			}
		}
	}
	slices.SortFunc(list, func(a, b Pending) int { return cmp.Or(cmp.Compare(a.Day, b.Day), cmp.Compare(a.Domain, b.Domain)) })
	return list, nil
}
