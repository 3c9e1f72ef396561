package tlsrpt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/resolver"
	"posthaste/internal/rfc5322"
)

const (
	flushEvery = time.Minute
	sendEvery  = 30 * time.Minute
	patience   = 24 * time.Hour // after a report was due
	sendTime   = time.Minute    // for all destinations of a report
	atOnce     = 10             // reports that are sent at a time
)

// Run writes counts and sends reports until ctx ends. The Log is not to be used
// after that.
func (l *Log) Run(ctx context.Context) {
	defer l.dir.Close() // nothing can be lost: files are closed where they are written
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	send := time.NewTicker(sendEvery)
	defer send.Stop()
	var wg sync.WaitGroup
	sending := make(chan struct{}, 1)
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			l.flush()
			return
		case <-flush.C:
			l.flush()
		case <-send.C:
			select {
			case sending <- struct{}{}:
				wg.Go(func() { // counts are written meanwhile
					l.Step(ctx, time.Now())
					<-sending
				})
			default: // it takes longer than that
			}
		}
	}
}

// Step makes the reports that are due at now and sends those that wait, unless
// another process is at it. It is not to be called concurrently with itself.
func (l *Log) Step(ctx context.Context, now time.Time) {
	l.flush()
	lock, err := l.dir.OpenFile("lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		l.warn("%v", err)
		return
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if !errors.Is(err, unix.EWOULDBLOCK) {
			l.warn("lock %s: %v", lock.Name(), err)
		}
		return
	}
	days, err := l.finished(now)
	if err != nil {
		l.warn("%v", err)
	}
	for _, day := range days {
		if err := l.conclude(day); err != nil {
			l.warn("reports of %s: %v", day.Format(dayForm), err)
		}
	}
	l.sendAll(ctx, now)
}

// conclude turns a day's counts into reports. When it is cut short it is done
// again, with the same result.
func (l *Log) conclude(day time.Time) error {
	name := day.Format(dayForm)
	domains, err := l.readDay(name)
	if err != nil {
		return err
	}
	for domain, counts := range domains {
		if err := l.save(l.compose(domain, day, counts)); err != nil {
			return err
		}
	}
	return l.dir.Remove(dayFile(name))
}

// reportDir is where reports wait.
const reportDir = "report"

func (r *report) file() string {
	return reportDir + "/" + r.Range.Start.Format(dayForm) + "." + r.domain() + ".json"
}

// save writes a report durably.
func (l *Log) save(r *report) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := l.dir.Mkdir(reportDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return l.dir.ReplaceDurably(r.file(), append(text, '\n'))
}

// sendAll sends each report that waits, atOnce of them at a time: a site that hangs is not to have the
// reports to others wait.
func (l *Log) sendAll(ctx context.Context, now time.Time) {
	files, err := l.dir.Glob(reportDir + "/*.json")
	if err != nil {
		l.warn("%v", err) // the pattern is malformed
	}
	next := make(chan string)
	var wg sync.WaitGroup
	for range min(atOnce, len(files)) {
		wg.Go(func() {
			for path := range next {
				l.sendOne(ctx, path, now)
			}
		})
	}
	for _, path := range files {
		if ctx.Err() != nil {
			break
		}
		next <- path
	}
	close(next)
	wg.Wait()
}

// sendOne sends a report, and removes it when it is sent or given up.
func (l *Log) sendOne(ctx context.Context, path string, now time.Time) {
	var r report
	text, err := l.dir.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && len(r.Policies) == 0 {
		err = errors.New("it has no policies")
	}
	if err != nil {
		l.warn("report %s: %v", path, err)
		l.remove(path)
		return
	}
	due := r.Range.End.Add(delay(l.opt.Hostname, r.Range.Start.Format(dayForm)))
	switch err := l.send(ctx, &r, now); {
	case err == nil:
		l.remove(path)
	case now.Sub(due) > patience:
		l.warn("report %s could not be sent: %v", r.ID, err)
		l.remove(path)
	}
}

func (l *Log) remove(path string) {
	if err := l.dir.Remove(path); err != nil {
		l.warn("%v", err)
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
		l.opt.Sent(r.ID, printable(uri))
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
	u, err := url.Parse(uri)
	if err != nil {
		return err
	}
	switch strings.ToLower(u.Scheme) {
	case "mailto":
		to, err := url.PathUnescape(u.Opaque)
		if err != nil {
			return err
		}
		list := rfc5322.AppendAddresses(nil, to, 0)
		if len(list) != 1 || strings.ContainsAny(to, "\r\n") {
			return fmt.Errorf("%q is no address", printable(to))
		}
		msg, err := l.message(r, list[0].Addr, now)
		if err != nil {
			return err
		}
		return l.opt.Mail(ctx, list[0].Addr, msg)
	case "https":
		return l.post(ctx, r, uri)
	}
	return fmt.Errorf("unknown scheme %q: expected mailto or https", u.Scheme)
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

// printable is a stranger's text for a log line.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, s[:min(len(s), 200)])
}
