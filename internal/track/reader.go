package track

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"posthaste/internal/logread"
)

// A reader has what is needed to go through blocks. Each processor has one.
type reader struct {
	parsers []*logread.Reader // of each source
	scanner scanner
	event   event
	bucket  []byte // room for one of the index
}

func newParsers(sources []*source) (list []*logread.Reader) {
	for _, s := range sources {
		list = append(list, logread.NewParser(s.now))
	}
	return list
}

// reader is the n-th reader.
func (x *run) reader(n int) *reader {
	for len(x.readers) <= n {
		x.readers = append(x.readers, &reader{parsers: newParsers(x.sources)})
	}
	return x.readers[n]
}

// inTurn calls f for each number below count.
func (x *run) inTurn(count int, f func(r *reader, n int)) {
	for n := range count {
		f(x.reader(0), n)
	}
}

// parallel calls f for each number below count, on several processors. Lower numbers are begun first.
func (x *run) parallel(count int, f func(r *reader, n int)) {
	workers := min(runtime.GOMAXPROCS(0), maxWorkers, count)
	var mu sync.Mutex
	next := 0
	work := func(r *reader) {
		for {
			mu.Lock()
			n := next
			next++
			mu.Unlock()
			if n >= count {
				return
			}
			f(r, n)
		}
	}
	var done sync.WaitGroup
	for i := 1; i < workers; i++ {
		r := x.reader(i)
		done.Go(func() { work(r) })
	}
	work(x.reader(0))
	done.Wait()
}

// each calls f for the blocks of tasks, on several processors, with the number of the task and with what picks the lines that may be wanted. It
// ends at the first error, of which there is one when ctx ends.
func (x *run) each(ctx context.Context, h *hunt, tasks []task, f func(r *reader, n int, b block, pick picker)) error {
	var mu sync.Mutex
	var failed error
	parallel := x.parallel
	if slices.ContainsFunc(tasks, func(t task) bool { return t.source.packed }) {
		parallel = x.inTurn // what is unpacked is read in its order
	}
	parallel(len(tasks), func(r *reader, n int) {
		mu.Lock()
		stop := failed != nil
		mu.Unlock()
		if stop {
			return
		}
		err := ctx.Err()
		if err == nil {
			err = x.task(r, h, &tasks[n], func(b block, pick picker) { f(r, n, b, pick) })
		}
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			failed = err
		}
	})
	return failed
}

// task reads a block.
func (x *run) task(r *reader, h *hunt, t *task, f func(b block, pick picker)) error {
	off, line, size := t.seg.blockAt(int(t.hits[0].block))
	at := position(t.source.number, off)
	p, room := x.cache.get(at)
	if p == nil {
		text, err := t.source.read(off, size, room)
		if err != nil {
			return err
		}
		p = x.cache.put(at, text)
	}
	defer x.cache.release(p)
	f(block{off, line, p.text}, r.picker(h, t))
	return nil
}

// picker is what picks the lines of a block that may be wanted.
func (r *reader) picker(h *hunt, t *task) picker {
	var wishes []*wish
	for _, t := range t.hits {
		if t.wish == allLines {
			return everyLine
		}
		wishes = append(wishes, &h.wishes[t.wish])
	}
	return func(text []byte, f func(begin, end int)) { r.scanner.lines(text, wishes, h.fold, f) }
}
