package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// Results are the answer to a batch: what came of each message, in the order of the request.
type Results struct {
	Results []*Result `json:"results"`
}

// hasKey says whether a message may have an idempotency key. It looks for the rarest octet of the name, since the others
// are many in a text of any length.
func hasKey(item []byte) bool {
	for rest := item; ; {
		i := bytes.IndexByte(rest, '_')
		if i < 0 {
			break
		}
		if bytes.HasSuffix(rest[:i], []byte("idempotency")) && bytes.HasPrefix(rest[i:], []byte("_key")) {
			return true
		}
		rest = rest[i+1:]
	}
	for rest := item; ; { // a name may be escaped
		i := bytes.IndexByte(rest, '\\')
		if i < 0 || i+1 == len(rest) {
			return false
		}
		if rest[i+1] == 'u' {
			return true
		}
		rest = rest[i+1:]
	}
}

// pooled is the largest item whose memory is used again: as many as are carried out at once are kept at most, beside
// inject_memory_limit.
const pooled = 64 << 10

// itemOf is a copy of an item of a batch, in memory that is used again, and giveBack gives it back. Without that, the
// copies of a batch are most of the garbage of the process.
func (s *server) itemOf(item []byte) *[]byte {
	var own *[]byte
	if len(item) <= pooled {
		own, _ = s.items.Get().(*[]byte)
	}
	if own == nil {
		own = new([]byte)
	}
	*own = append((*own)[:0], item...)
	return own
}

func (s *server) giveBack(own *[]byte) {
	if cap(*own) <= 2*pooled {
		s.items.Put(own)
	}
}

// A crew carries out the messages of a batch, up to parallel at once. Its goroutines stay for the next message: a new one
// for each would have its stack grown each time.
type crew struct {
	carry   func(item []byte) *Result
	end     func(*job) // called when a message has been carried out
	jobs    chan job
	members int
	working sync.WaitGroup
	mu      sync.Mutex // guards results
	results []*Result
}

// A job is one message of a batch.
type job struct {
	n     int // its place in the request
	item  *[]byte
	share *share // of the memory
}

// give has the next job done. It waits while all are at work.
func (c *crew) give(j job) {
	c.mu.Lock()
	c.results = append(c.results, nil)
	c.mu.Unlock()
	select {
	case c.jobs <- j:
		return
	default:
	}
	if c.members == parallel {
		c.jobs <- j
		return
	}
	c.members++
	c.working.Go(func() {
		c.do(j)
		for j := range c.jobs {
			c.do(j)
		}
	})
}

func (c *crew) do(j job) {
	defer c.end(&j)
	r := c.carry(*j.item)
	c.mu.Lock()
	c.results[j.n] = r
	c.mu.Unlock()
}

// wait waits until all is done, and gives what came of it.
func (c *crew) wait() []*Result {
	close(c.jobs)
	c.working.Wait()
	return c.results
}

// batch carries out many messages. What is wrong with one is no reason to refuse the others. If the
// request itself breaks off, those that came before have been carried out; the client does not hear of
// them, and sends them again: that is what keys are for.
func (s *server) batch(w http.ResponseWriter, r *http.Request, who *caller, stream *items, lines bool) error {
	carry := func(item []byte) *Result {
		result, _, err := s.single(item, r.URL.Path, "", who, decode)
		if err != nil {
			f := asFault(err)
			result = &Result{Status: f.status, Messages: []Queued{}, Detail: f.Error()}
		}
		return result
	}
	// A result has no part of the item, whose memory is another one's then.
	crew := &crew{carry: carry, end: func(j *job) { s.giveBack(j.item); j.share.end() }, jobs: make(chan job)}
	var failed error
	for n := 0; ; n++ {
		item, err := stream.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && n >= s.limits.batch {
			err = tooLarge("there are more than %d messages in the request (inject_batch_limit)", s.limits.batch)
		}
		mine := &share{b: s.memory}
		if err == nil {
			err = mine.take(r.Context(), len(item))
		}
		if err != nil {
			failed = at(n, err)
			break
		}
		crew.give(job{n, s.itemOf(item), mine})
	}
	results := crew.wait()
	if failed != nil {
		return broken(results, failed)
	}
	if len(results) == 0 {
		return refuse("there is no message")
	}
	s.results(w, http.StatusOK, results, lines)
	return nil
}

// broken answers a batch that broke off: what came of its messages up to there is said as well.
func broken(results []*Result, err error) error {
	if len(results) == 0 {
		return err
	}
	f := *asFault(err)
	f.more = map[string]any{"results": results}
	return &f
}

// results writes the answer of a batch.
func (s *server) results(w http.ResponseWriter, status int, results []*Result, lines bool) {
	if !lines {
		s.reply(w, status, Results{results})
		return
	}
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(status)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for _, x := range results {
		if e.Encode(x) != nil {
			return // it has texts and numbers
		}
		if b.Len() > 32<<10 {
			_ = control.SetWriteDeadline(time.Now().Add(answerTime))
			if _, err := w.Write(b.Bytes()); err != nil {
				return
			}
			b.Reset()
		}
	}
	_ = control.SetWriteDeadline(time.Now().Add(answerTime))
	_, _ = w.Write(b.Bytes())
}
