// Package dayreport keeps what is to be reported to other mail domains once a day: counts by day,
// and reports that wait until they can be sent. Packages tlsrpt (RFC 8460) and dmarcsend (RFC 9990)
// say what is counted, and what a report looks like.
//
// A [Journal] is a directory, which several processes may share:
//
//	DIR/2026-11-21.log     counts, one JSON object a line
//	DIR/report/...         reports that have not been sent yet
//	DIR/lock               is held by the process that makes and sends reports
//
// A day begins at midnight UTC. Its reports are due within four hours after its end, at a time that
// differs from system to system, so that not everybody reports to everybody at midnight.
//
// # Durability
//
// Counts are appended without a sync: a power cut loses those of the last seconds. A report is on
// stable storage until it has been handed on; after a crash at the wrong moment it may be sent twice.
package dayreport

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/statedir"
)

const (
	// DayForm is how days are written, for package time.
	DayForm = "2006-01-02"
	// AtOnce is how many reports are sent at a time.
	AtOnce = 10

	flushEvery = time.Minute
	sendEvery  = 30 * time.Minute
	patience   = 24 * time.Hour // after a report was due
	reportDir  = "report"       // where reports wait
)

// A Journal is the directory. Append may be called concurrently, also by several processes.
type Journal struct {
	Dir      *statedir.Dir
	Hostname string // of this system: it decides when reports are due
	Suffix   string // of the files of reports: .json
	Warn     func(format string, args ...any)
}

// Run calls flush once a minute, and step from time to time until ctx ends, and then flush once
// more. Flush goes on while step takes long. It closes the directory.
func (j *Journal) Run(ctx context.Context, flush func(), step func(ctx context.Context, now time.Time)) {
	defer j.Dir.Close() // nothing can be lost: files are closed where they are written
	flushing := time.NewTicker(flushEvery)
	defer flushing.Stop()
	send := time.NewTicker(sendEvery)
	defer send.Stop()
	var wg sync.WaitGroup
	sending := make(chan struct{}, 1)
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			flush()
			return
		case <-flushing.C:
			flush()
		case <-send.C:
			select {
			case sending <- struct{}{}:
				wg.Go(func() { // counts are written meanwhile
					step(ctx, time.Now())
					<-sending
				})
			default: // it takes longer than that
			}
		}
	}
}

// Locked calls f, unless another process makes or sends reports just now. ok says whether it did.
func (j *Journal) Locked(f func()) (ok bool) {
	lock, err := j.Dir.OpenFile("lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		j.Warn("%v", err)
		return false
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if !errors.Is(err, unix.EWOULDBLOCK) {
			j.Warn("lock %s: %v", lock.Name(), err)
		}
		return false
	}
	f()
	return true
}

// Append writes lines to a day's counts in one system call, so that those of several processes do
// not mix.
func (j *Journal) Append(day string, lines []byte) error {
	f, err := j.Dir.OpenFile(dayFile(day), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(lines)
	return errors.Join(err, f.Close())
}

func dayFile(day string) string { return day + ".log" }

// Size is how many octets a day's counts take; 0 if there are none.
func (j *Journal) Size(day string) int64 {
	info, err := j.Dir.Lstat(dayFile(day))
	if err != nil {
		return 0
	}
	return info.Size()
}

// Lines calls f for each line of a day's counts. One that was cut off by a crash is passed over.
func (j *Journal) Lines(day string, f func(line []byte)) error {
	file, err := j.Dir.Open(dayFile(day))
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReader(file)
	for {
		text, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil // what has no end was not written whole
		}
		if err != nil {
			return err
		}
		f(text)
	}
}

// Drop removes a day's counts.
func (j *Journal) Drop(day string) error { return j.Dir.Remove(dayFile(day)) }

// Days lists the days that have counts, in order.
func (j *Journal) Days() (days []time.Time, err error) {
	entries, err := j.Dir.ReadDir(".")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".log")
		if !ok || e.Type() != fs.FileMode(0) {
			continue
		}
		if day, err := time.Parse(DayForm, name); err == nil {
			days = append(days, day)
		}
	}
	slices.SortFunc(days, time.Time.Compare)
	return days, nil
}

// Finished lists the days that have counts, are over, and whose reports are due.
func (j *Journal) Finished(now time.Time) ([]time.Time, error) {
	days, err := j.Days()
	return slices.DeleteFunc(days, func(day time.Time) bool { return now.Before(Due(j.Hostname, day)) }), err
}

// Due is when the reports of a day are: from ten minutes to four hours after its end, so that not
// everybody reports to everybody at midnight (RFC 8460 section 4.1), and so that all counts have
// been written.
func Due(hostname string, day time.Time) time.Time {
	h := fnv.New32a()
	h.Write([]byte(hostname + day.Format(DayForm)))
	return day.AddDate(0, 0, 1).Add(10*time.Minute + time.Duration(h.Sum32()%230)*time.Minute)
}

// GivenUp says whether the time is over in which a report on a day is tried again.
func (j *Journal) GivenUp(day, now time.Time) bool { return now.Sub(Due(j.Hostname, day)) > patience }

// Conclude calls conclude for each of days, which makes all reports of a day and then drops its counts. It is called
// again for a day for which it fails, until that day's reports are given up.
func (j *Journal) Conclude(days []time.Time, now time.Time, conclude func(day time.Time) error) {
	for _, day := range days {
		err := conclude(day)
		if err == nil {
			continue
		}
		name := day.Format(DayForm)
		j.Warn("reports of %s: %v", name, err)
		if j.GivenUp(day, now) {
			j.Warn("reports of %s: the counts are given up", name)
			if err := j.Drop(name); err != nil {
				j.Warn("%v", err)
			}
		}
	}
}

// maxName is how long the name of a report's file may be, in octets, before it is replaced by a hash: a stranger's
// domain may be longer than file systems allow.
const maxName = 200

// Save writes a report durably. name is what its file is called by, without the suffix, and begins with the day and
// a dot; a report of that name is replaced.
func (j *Journal) Save(name string, text []byte) error {
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(name))
		name = name[:len(DayForm)] + "." + hex.EncodeToString(sum[:])
	}
	if err := j.Dir.Mkdir(reportDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return j.Dir.ReplaceDurably(reportDir+"/"+name+j.Suffix, text)
}

// Waiting lists the files of the reports that wait.
func (j *Journal) Waiting() []string {
	files, err := j.Dir.Glob(reportDir + "/*" + j.Suffix)
	if err != nil {
		j.Warn("%v", err) // the pattern is malformed
	}
	return files
}

// Each calls send for each report that waits, several at a time: a site that hangs is not to have the
// reports to others wait. A day that still has counts is not reported: its reports will be made again, and what was
// sent would be sent twice.
func (j *Journal) Each(ctx context.Context, send func(path string)) {
	days, err := j.Days()
	if err != nil {
		j.Warn("%v", err)
		return
	}
	files := slices.DeleteFunc(j.Waiting(), func(file string) bool {
		return slices.ContainsFunc(days, func(day time.Time) bool { return strings.HasPrefix(path.Base(file), day.Format(DayForm)+".") })
	})
	next := make(chan string)
	var wg sync.WaitGroup
	for range min(AtOnce, len(files)) {
		wg.Go(func() {
			for path := range next {
				send(path)
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

// Remove removes a report that was sent, or given up.
func (j *Journal) Remove(path string) {
	if err := j.Dir.Remove(path); err != nil {
		j.Warn("%v", err)
	}
}

// Printable is a stranger's text for a log line.
func Printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, s[:min(len(s), 200)])
}
