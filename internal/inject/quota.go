package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"sync"
	"time"

	"posthaste/internal/apitoken"
	"posthaste/internal/statedir"
)

// quotaName is the file with the counts.
const quotaName = "quota"

// A quota counts what each token has sent today, by recipients; a day begins at midnight UTC. The
// counts are written once a second where they have changed, and at the end: a process that is killed
// forgets a second of them. Methods may be called concurrently.
type quota struct {
	dir *statedir.Dir
	now func() time.Time

	mu      sync.Mutex
	day     string // as in the file
	sent    map[string]int
	changed bool
}

// A quotaFile is the file.
type quotaFile struct {
	Day  string         `json:"day"`
	Sent map[string]int `json:"sent"`
}

// openQuota reads the counts. A file that cannot be read is worth an error: who has used up a quota
// would have another.
func openQuota(dir *statedir.Dir, now func() time.Time) (*quota, error) {
	q := &quota{dir: dir, now: now, sent: make(map[string]int)}
	text, err := dir.ReadFile(quotaName)
	if errors.Is(err, fs.ErrNotExist) {
		return q, nil
	}
	var f quotaFile
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("inject_directory: %s: %w", quotaName, err)
	}
	q.day = f.Day
	for name, n := range f.Sent {
		q.sent[name] = n
	}
	return q, nil
}

// turn begins a new day, if there is one. The caller has mu.
func (q *quota) turn(now time.Time) {
	if day := now.UTC().Format(time.DateOnly); day != q.day {
		q.day, q.changed = day, true
		clear(q.sent)
	}
}

// take counts recipients of a token, or says that they are too many for today.
func (q *quota) take(t *apitoken.Token, n int) error {
	if t.Quota == 0 {
		return nil
	}
	now := q.now()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.turn(now)
	left := t.Quota - q.sent[t.Name]
	if n > left {
		tomorrow := now.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		return &fault{status: http.StatusTooManyRequests, retry: tomorrow.Sub(now),
			detail: fmt.Sprintf("the quota of the token is %d recipients a day; %d are left today", t.Quota, max(left, 0))}
	}
	q.sent[t.Name] += n
	q.changed = true
	return nil
}

// give takes back what was counted for mail that was not queued.
func (q *quota) give(t *apitoken.Token, n int) {
	if t.Quota == 0 || n == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.turn(q.now()); q.sent[t.Name] >= n {
		q.sent[t.Name] -= n
		q.changed = true
	}
}

// save writes the counts, if they have changed.
func (q *quota) save() error {
	q.mu.Lock()
	if !q.changed {
		q.mu.Unlock()
		return nil
	}
	q.changed = false
	text, err := json.Marshal(quotaFile{Day: q.day, Sent: q.sent})
	q.mu.Unlock()
	if err == nil {
		err = q.dir.ReplaceDurably(quotaName, text)
	}
	if err != nil {
		q.mu.Lock()
		q.changed = true
		q.mu.Unlock()
		return fmt.Errorf("inject_directory: %s: %w", quotaName, err)
	}
	return nil
}
