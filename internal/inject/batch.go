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

// hasKey says whether a message may have an idempotency key.
func hasKey(item []byte) bool {
	return bytes.Contains(item, []byte("idempotency_key")) || bytes.Contains(item, []byte(`\u`)) // a name may be escaped
}

// batch carries out many messages. What is wrong with one is no reason to refuse the others. If the
// request itself breaks off, those that came before have been carried out; the client does not hear of
// them, and sends them again: that is what keys are for.
func (s *server) batch(w http.ResponseWriter, r *http.Request, who *caller, stream *items, lines bool) error {
	var mu sync.Mutex
	var results []*Result
	var waiting sync.WaitGroup
	room := make(chan struct{}, parallel)
	var failed error
	for n := 0; ; n++ {
		item, err := stream.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && n >= s.limits.batch {
			err = tooLarge("there are more than %d messages in the request (inject_batch_limit)", s.limits.batch)
		}
		if err != nil {
			failed = at(n, err)
			break
		}
		mine := &share{b: s.memory}
		if err := mine.take(r.Context(), len(item)); err != nil {
			failed = at(n, err)
			break
		}
		own := bytes.Clone(item)
		room <- struct{}{}
		mu.Lock()
		results = append(results, nil)
		mu.Unlock()
		waiting.Go(func() {
			defer func() { mine.end(); <-room }()
			result, _, err := s.single(own, r.URL.Path, "", who, decode)
			if err != nil {
				f := asFault(err)
				result = &Result{Status: f.status, Messages: []Queued{}, Detail: f.Error()}
			}
			mu.Lock()
			results[n] = result
			mu.Unlock()
		})
	}
	waiting.Wait()
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
