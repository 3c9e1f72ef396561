package tlsrpt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"posthaste/internal/dayreport"
	"posthaste/internal/resolver"
)

// sendTime bounds the sending of one report, to all its destinations.
const sendTime = time.Minute

// Run writes counts and sends reports until ctx ends. The Log is not to be used
// after that.
func (l *Log) Run(ctx context.Context) { l.journal.Run(ctx, l.flush, l.Step) }

// Step makes the reports that are due at now and sends those that wait, unless
// another process is at it. It is not to be called concurrently with itself.
func (l *Log) Step(ctx context.Context, now time.Time) {
	l.flush()
	l.journal.Locked(func() {
		days, err := l.journal.Finished(now)
		if err != nil {
			l.warn("%v", err)
		}
		l.journal.Conclude(days, now, l.conclude)
		l.journal.Each(ctx, func(path string) { l.sendOne(ctx, path, now) })
	})
}

// conclude turns a day's counts into reports. When it is cut short it is done
// again, with the same result.
func (l *Log) conclude(day time.Time) error {
	name := day.Format(dayreport.DayForm)
	domains, err := l.readDay(name)
	if err != nil {
		return err
	}
	for domain, counts := range domains {
		if err := l.save(l.compose(domain, day, counts)); err != nil {
			return err
		}
	}
	return l.journal.Drop(name)
}

// save writes a report durably.
func (l *Log) save(r *report) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return l.journal.Save(r.Range.Start.Format(dayreport.DayForm)+"."+r.domain(), append(text, '\n'))
}

// sendOne sends a report, and removes it when it is sent or given up.
func (l *Log) sendOne(ctx context.Context, path string, now time.Time) {
	var r report
	text, err := l.journal.Dir.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && len(r.Policies) == 0 {
		err = errors.New("it has no policies")
	}
	if err != nil {
		l.warn("report %s: %v", path, err)
		l.journal.Remove(path)
		return
	}
	switch err := l.send(ctx, &r, now); {
	case err == nil:
		l.journal.Remove(path)
	case l.journal.GivenUp(r.Range.Start, now):
		l.warn("report %s could not be sent: %v", r.ID, err)
		l.journal.Remove(path)
	}
}

// send brings a report to where its domain wants it. It returns an error when
// it should be tried again: it could be had nowhere.
func (l *Log) send(ctx context.Context, r *report, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	a, err := l.opt.Resolver.TXT(ctx, "_smtp._tls."+r.domain())
	if err != nil {
		if resolver.KindOf(err) == resolver.TempFail {
			return err
		}
		return nil // nobody wants it
	}
	var failed []error
	sent := 0
	list := Destinations(a.Records)
	for _, uri := range list {
		if err := l.sendTo(ctx, r, uri, now); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", uri, err))
			continue
		}
		sent++
		l.opt.Sent(r.ID, dayreport.Printable(uri))
	}
	if sent == 0 {
		return errors.Join(failed...)
	}
	for _, err := range failed {
		l.warn("report %s: %v", r.ID, err)
	}
	return nil
}

func (l *Log) sendTo(ctx context.Context, r *report, uri string, now time.Time) error {
	to, err := destination(uri)
	switch {
	case err != nil:
		return err
	case to == "":
		return l.post(ctx, r, uri)
	}
	msg, err := l.message(r, to, now)
	if err != nil {
		return err
	}
	return l.opt.Mail(ctx, to, msg)
}

// destination reads a URI of a TLSRPT record: the address of mailto, or the empty string for https.
func destination(uri string) (to string, err error) {
	u, err := url.Parse(uri)
	if err != nil {
		return "", err
	}
	switch strings.ToLower(u.Scheme) {
	case "mailto":
		return dayreport.Mailto(u)
	case "https":
		return "", nil
	}
	return "", fmt.Errorf("unknown scheme %q: expected mailto or https", u.Scheme)
}

// CheckDestination says why no report can go to a URI of a TLSRPT record (RFC 8460 section 3); nil
// if one can. Nothing is connected to.
func CheckDestination(uri string) error {
	_, err := destination(uri)
	return err
}

// post sends a report by HTTPS, RFC 8460 section 5.4.
func (l *Log) post(ctx context.Context, r *report, uri string) error {
	data, err := r.compressed()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, uri, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/tlsrpt+gzip")
	resp, err := l.opt.Client.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}
