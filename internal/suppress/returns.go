package suppress

import (
	"fmt"
	"sync"
	"time"

	"posthaste/internal/proto"
	"posthaste/internal/standing"
	"posthaste/internal/statedir"
)

const (
	// returnsName is the file in which the counts of the last day are left to the next process.
	returnsName = "returns"
	// keepEvery is how often it is written while something comes back. A crash can take what came since.
	keepEvery = time.Minute
)

// returns are what came back in the last day, by provider: bounces of mail that had been accepted, and complaints. The queue
// manager, which counts what was delivered, asks for them. Methods may be called concurrently.
type returns struct {
	dir *statedir.Dir

	mu      sync.Mutex
	book    *standing.Book
	changed bool      // the file does not have all
	next    time.Time // when it is written next
}

// openReturns begins with what was counted before. Counts that cannot be read are no reason not to serve: warn hears of them.
func openReturns(dir *statedir.Dir, warn func(format string, args ...any)) *returns {
	text, err := dir.ReadIfThere(returnsName)
	var book *standing.Book
	if err == nil {
		book, err = standing.Decode(text)
	}
	if err != nil {
		warn("what comes back is counted anew by provider: %s: %v", returnsName, err)
		book = new(standing.Book)
	}
	return &returns{dir: dir, book: book}
}

// count counts a piece of news. What a server said in the session is no news of mail that it had accepted: the
// queue manager has counted that.
func (r *returns) count(now time.Time, q *proto.SuppressTell) {
	k := standing.Later
	switch {
	case q.What == proto.ToldComplaint:
		k = standing.Complaint
	case q.Token == "" || q.What != proto.ToldBounce && q.What != proto.ToldForwarded:
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.book.Count(now, q.Provider, q.Source, k)
	r.changed = r.changed || q.Provider != ""
}

// encode is what was counted.
func (r *returns) encode() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.book.Encode()
}

// keep writes the file when it is time, and there is something new.
func (r *returns) keep(now time.Time) error {
	r.mu.Lock()
	due := !now.Before(r.next)
	if due {
		r.next = now.Add(keepEvery)
	}
	r.mu.Unlock()
	if !due {
		return nil
	}
	return r.leave()
}

// leave writes the file if there is something new. One at a time may call it.
func (r *returns) leave() error {
	r.mu.Lock()
	changed := r.changed
	r.changed = false
	r.mu.Unlock()
	if !changed {
		return nil
	}
	text := r.encode()
	if err := r.dir.Replace(returnsName, text); err != nil {
		return fmt.Errorf("%s: %w", returnsName, err)
	}
	return nil
}
