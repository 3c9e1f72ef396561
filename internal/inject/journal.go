package inject

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/statedir"
)

// The journal remembers idempotency keys: what was asked for with each, under which queue IDs it was
// queued, and what was answered. It is a file of records, each with its length and a checksum; a record
// that power failed in is at the end, and does not count. The file is written anew without what is over
// when it has grown to twice what is alive.
//
// A request with a key goes through three steps, each durable before the next:
//
//  1. begin: the key, what was asked, and the queue IDs that its messages are to have;
//  2. the messages, in the queue, which cleanup has confirmed; they are not tried yet (see release);
//  3. done: the answer, which the client gets now. The messages are released.
//
// A process that dies between 1 and 3 leaves a key that is begun. Whether its messages are in the queue
// can be found out, since they wait there for releaseTime: see resolve.
const (
	journalName = "keys"
	// journalSlack is how large the file becomes at least before it is written anew.
	journalSlack = 4 << 20
	// maxRecord bounds a record.
	maxRecord = 1 << 20
	// journalLimit bounds what is alive in the file.
	journalLimit = 512 << 20
)

// A keyHash names an idempotency key of a token, and a digest what was asked with it.
type (
	keyHash [sha256.Size]byte
	digest  [sha256.Size]byte
)

// hashKey is the name of a token's key.
func hashKey(token, key string) keyHash { return sha256.Sum256([]byte(token + "\x00" + key)) }

// A keyState is where the request of a key is.
type keyState uint8

const (
	stateBusy  keyState = iota // this process is at it
	stateBegun                 // a process before was, or the end of it is not known
	stateDone                  // it has its answer
	stateDoubt                 // whether it was queued is not known, and never will be
)

// An entry is what is known of a key.
type entry struct {
	key   keyHash
	what  digest
	begun time.Time
	state keyState
	ids   []mail.QueueID
	found []bool    // by ids: it was seen in the queue, or confirmed; nil: none
	hold  bool      // its messages wait to be released
	until time.Time // when they are tried without that
	// checked is when all ids that are not found were last looked for; zero: not in this process.
	checked time.Time
	// The answer: where it is in the file, with its HTTP status in front.
	at   int64
	size int
	cost int64 // octets of the entry in the file
}

var (
	// errBusy says that a request with the same key is under way.
	errBusy = &fault{status: 409, detail: "a request with this idempotency key is under way", retry: time.Second}
	// errOther says that the key was used for something else.
	errOther = &fault{status: 422, detail: "this idempotency key was used for another request"}
	// errDoubt says that nobody knows.
	errDoubt = &fault{status: 409, detail: "it is not known whether the request with this idempotency key was carried out: the service was down for too long after it"}
	// errManyKeys says that there is no room.
	errManyKeys = &fault{status: 429, detail: "there are too many idempotency keys (inject_idempotency_limit)", retry: time.Hour}
	// errJournal says that the file cannot be written.
	errJournal = errors.New("the journal of idempotency keys is broken")
)

// A journal is that file. Methods may be called concurrently.
type journal struct {
	dir   *statedir.Dir
	now   func() time.Time
	keep  time.Duration // how long a key is remembered
	limit int

	mu      sync.Mutex
	all     map[keyHash]*entry
	order   []*entry // by begun
	f       *os.File
	size    int64 // of the file
	alive   int64 // octets in it that are not over
	broken  error
	pending *flushing // what waits to be written; nil: nothing
	writing bool
	writers sync.WaitGroup
}

// A flushing is records that become durable together.
type flushing struct {
	data []byte
	done chan struct{}
	err  error // good when done is closed
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openJournal reads the file, and writes it anew without what is over.
func openJournal(dir *statedir.Dir, now func() time.Time, keep time.Duration, limit int) (*journal, error) {
	j := &journal{dir: dir, now: now, keep: keep, limit: limit, all: make(map[keyHash]*entry)}
	f, err := dir.Open(journalName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		err = j.read(f)
		if err == nil {
			j.f = f
			err = j.rewrite()
		}
		f.Close()
	} else {
		err = j.rewrite()
	}
	if err != nil {
		return nil, fmt.Errorf("inject_directory: %s: %w", journalName, err)
	}
	return j, nil
}

func (j *journal) close() error {
	j.writers.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken = errJournal
	return j.f.Close()
}

// record appends a record to b: its length, its checksum, what it is.
func record(b []byte, payload func([]byte) []byte) []byte {
	start := len(b)
	b = payload(append(b, make([]byte, 8)...))
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-8))
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(b[start+8:], castagnoli))
	return b
}

// beginRecord is that of an entry without its answer.
func (e *entry) beginRecord(b []byte) []byte {
	return record(b, func(b []byte) []byte {
		b = pack.Bytes(b, 'b', e.key[:])
		b = pack.Bytes(b, 'w', e.what[:])
		b = mail.AppendTime(b, 't', e.begun)
		b = mail.AppendTime(b, 'u', e.until)
		b = pack.Bool(b, 'h', e.hold)
		b = pack.Bool(b, '?', e.state == stateDoubt)
		for i, id := range e.ids {
			b = pack.Bytes(b, 'q', id)
			if e.found != nil && e.found[i] {
				b = pack.Bool(b, 'f', true)
			}
		}
		return b
	})
}

// doneRecord is the answer of a key.
func doneRecord(b []byte, key keyHash, answer []byte) []byte {
	return record(b, func(b []byte) []byte {
		b = pack.Bytes(b, 'd', key[:])
		return pack.Bytes(b, 'a', answer)
	})
}

// dropRecord says that a key is free again.
func dropRecord(b []byte, key keyHash) []byte {
	return record(b, func(b []byte) []byte { return pack.Bytes(b, 'x', key[:]) })
}

// read reads all records. What follows one that is not whole does not count: nothing after it was
// confirmed to anybody.
func (j *journal) read(f *os.File) error {
	r := &counted{r: io.NewSectionReader(f, 0, 1<<62)}
	var head [8]byte
	buf := make([]byte, 0, 4096)
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return tornOr(err)
		}
		n := binary.LittleEndian.Uint32(head[:])
		if n > maxRecord {
			return nil
		}
		buf = slices.Grow(buf[:0], int(n))[:n]
		at := r.n
		if _, err := io.ReadFull(r, buf); err != nil {
			return tornOr(err)
		}
		if crc32.Checksum(buf, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
			return nil
		}
		if err := j.replay(buf, at); err != nil {
			return err
		}
	}
}

// A counted counts what is read.
type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func tornOr(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// replay takes a record that begins, without its head, at an offset of the file.
func (j *journal) replay(payload []byte, at int64) error {
	e := &entry{state: stateBegun}
	r := pack.NewReader(payload)
	for r.Next() {
		switch r.Tag() {
		case 'b':
			copy(e.key[:], r.Bytes())
		case 'w':
			copy(e.what[:], r.Bytes())
		case 't':
			e.begun = mail.ReadTime(&r)
		case 'u':
			e.until = mail.ReadTime(&r)
		case 'h':
			e.hold = r.Bool()
		case '?':
			if r.Bool() {
				e.state = stateDoubt
			}
		case 'q':
			e.ids = append(e.ids, mail.QueueID(r.String()))
			e.found = append(e.found, false)
		case 'f':
			if len(e.found) > 0 {
				e.found[len(e.found)-1] = r.Bool()
			}
		case 'd':
			if was := j.all[keyHash(r.Bytes())]; was != nil {
				e = was
			}
		case 'a':
			b := r.Bytes()
			// It ends the record.
			e.state, e.size, e.at = stateDone, len(b), at+int64(len(payload)-len(b))
			return r.Err()
		case 'x':
			delete(j.all, keyHash(r.Bytes()))
			return r.Err()
		}
	}
	if err := r.Err(); err != nil {
		return err
	}
	j.all[e.key] = e
	return nil
}

// rewrite writes the file anew, with what is alive. The caller has mu, or is alone.
func (j *journal) rewrite() error {
	now := j.now()
	var list []*entry
	for _, e := range j.all {
		if now.Sub(e.begun) < j.keep {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *entry) int { return a.begun.Compare(b.begun) })
	var text []byte
	type moved struct {
		at   int64
		cost int64
	}
	places := make([]moved, len(list))
	for i, e := range list {
		start := len(text)
		text = e.beginRecord(text)
		if e.state == stateDone {
			answer := make([]byte, e.size)
			if _, err := j.f.ReadAt(answer, e.at); err != nil {
				return err
			}
			text = doneRecord(text, e.key, answer)
			places[i].at = int64(len(text) - e.size)
		}
		places[i].cost = int64(len(text) - start)
	}
	if err := j.dir.ReplaceDurably(journalName, text); err != nil {
		return err
	}
	f, err := j.dir.OpenFile(journalName, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if j.f != nil {
		j.f.Close()
	}
	j.f, j.size, j.alive = f, int64(len(text)), int64(len(text))
	clear(j.all)
	for i, e := range list {
		e.at, e.cost = places[i].at, places[i].cost
		j.all[e.key] = e
	}
	j.order = list
	return nil
}

// expire forgets keys whose time is over. The caller has mu.
func (j *journal) expire(now time.Time) {
	n := 0
	for n < len(j.order) && now.Sub(j.order[n].begun) >= j.keep {
		if e := j.order[n]; j.all[e.key] == e && e.state != stateBusy {
			delete(j.all, e.key)
			j.alive -= e.cost
		}
		n++
	}
	j.order = slices.Delete(j.order, 0, n)
}

// begin claims a key. The entry is new (its state is stateBusy, and it has no ids), or one that was
// begun before, whose ids may be in the queue; it is the caller's until done, drop or leave. If the
// answer is there it is returned instead.
func (j *journal) begin(key keyHash, what digest) (e *entry, answer []byte, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken != nil {
		return nil, nil, j.broken
	}
	now := j.now()
	j.expire(now)
	if e := j.all[key]; e != nil {
		switch {
		case e.what != what:
			return nil, nil, errOther
		case e.state == stateBusy:
			return nil, nil, errBusy
		case e.state == stateDoubt:
			return nil, nil, errDoubt
		case e.state == stateDone:
			answer = make([]byte, e.size)
			_, err := j.f.ReadAt(answer, e.at)
			return nil, answer, err
		}
		e.state = stateBusy
		return e, nil, nil
	}
	if len(j.all) >= j.limit || j.alive >= journalLimit {
		return nil, nil, errManyKeys
	}
	e = &entry{key: key, what: what, begun: now}
	j.all[key] = e
	j.order = append(j.order, e)
	return e, nil, nil
}

// plan records what is going to be queued, before it is. It is durable on return.
func (j *journal) plan(e *entry, ids []mail.QueueID, until time.Time, hold bool) error {
	if e.found == nil {
		e.found = make([]bool, len(ids))
	}
	e.ids, e.until, e.hold = ids, until, hold
	return j.append(e, e.beginRecord(nil))
}

// saw records what was found in the queue. It is durable on return.
func (j *journal) saw(e *entry) error { return j.append(e, e.beginRecord(nil)) }

// done records the answer. It is durable on return. If it cannot be recorded the key stays begun, and
// its messages are found in the queue later.
func (j *journal) done(e *entry, answer []byte) error {
	rec := doneRecord(nil, e.key, answer)
	if len(rec) > maxRecord {
		j.leave(e)
		return fmt.Errorf("the answer has %d octets", len(answer))
	}
	at, err := j.appendAt(e, rec)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		e.state = stateBegun
		return err
	}
	e.state, e.size = stateDone, len(answer)
	e.at = at + int64(len(rec)-len(answer))
	return nil
}

// drop frees a key: nothing was queued. It need not be durable: a key that is found to be begun is
// looked for in the queue.
func (j *journal) drop(e *entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.remove(e)
	if e.ids == nil || j.broken != nil {
		return // nothing is in the file
	}
	j.queue(dropRecord(nil, e.key))
}

func (j *journal) remove(e *entry) {
	if j.all[e.key] == e {
		delete(j.all, e.key)
		j.alive -= e.cost
		if i := slices.Index(j.order, e); i >= 0 {
			j.order = slices.Delete(j.order, i, i+1)
		}
	}
}

// leave gives a key up whose messages may be in the queue.
func (j *journal) leave(e *entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.state = stateBegun
}

// doubt says that nobody will know what became of a key's messages.
func (j *journal) doubt(e *entry) error {
	j.mu.Lock()
	e.state = stateDoubt
	j.mu.Unlock()
	return j.append(e, e.beginRecord(nil))
}

// append makes a record durable.
func (j *journal) append(e *entry, rec []byte) error {
	_, err := j.appendAt(e, rec)
	return err
}

// appendAt makes a record durable, and says where it is in the file, for as long as nothing is written
// anew. Who holds an entry that is busy keeps it from that.
func (j *journal) appendAt(e *entry, rec []byte) (at int64, err error) {
	j.mu.Lock()
	if j.broken != nil {
		j.mu.Unlock()
		return 0, j.broken
	}
	e.cost += int64(len(rec))
	j.alive += int64(len(rec))
	b, at := j.queue(rec)
	j.mu.Unlock()
	<-b.done
	return at, b.err
}

// queue adds a record to what is written next. The caller has mu. The first one who comes starts a
// goroutine that writes until nothing is left, which close waits for.
func (j *journal) queue(rec []byte) (b *flushing, at int64) {
	if j.pending == nil {
		j.pending = &flushing{done: make(chan struct{})}
	}
	b = j.pending
	at = j.size + int64(len(b.data))
	b.data = append(b.data, rec...)
	if !j.writing {
		j.writing = true
		j.writers.Go(j.write)
	}
	return b, at
}

// write writes what is pending, one sync for all who wait, until nothing is.
func (j *journal) write() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.pending != nil {
		b, f := j.pending, j.f
		// What is queued from now on stands behind.
		j.pending = nil
		j.size += int64(len(b.data))
		err := j.broken
		j.mu.Unlock()
		if err == nil {
			if _, err = f.Write(b.data); err == nil {
				err = f.Sync()
			}
		}
		j.mu.Lock()
		if err != nil && j.broken == nil {
			// A second sync that succeeds would prove nothing.
			j.broken = fmt.Errorf("%w: %w", errJournal, err)
		}
		b.err = j.broken
		close(b.done)
	}
	j.writing = false
}

// tidy writes the file anew if that makes it much smaller, when nobody is in the middle of a request:
// where answers are changes by it.
func (j *journal) tidy() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.expire(j.now())
	if j.broken != nil || j.writing || j.pending != nil || j.size < journalSlack || j.size < 2*j.alive {
		return j.broken
	}
	for _, e := range j.all {
		if e.state == stateBusy {
			return nil
		}
	}
	if err := j.rewrite(); err != nil {
		j.broken = fmt.Errorf("%w: %w", errJournal, err)
	}
	return j.broken
}

// begunKeys are those of which the end is not known, and can be found out. They are the caller's, as
// after begin.
func (j *journal) begunKeys() (list []*entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.order {
		if e.state == stateBegun && e.checked.Before(e.until) && slices.Contains(e.found, false) {
			e.state = stateBusy
			list = append(list, e)
		}
	}
	return list
}

// recent are the messages of keys that were answered not long ago and may not have been released.
func (j *journal) recent(since time.Time) (ids []mail.QueueID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.order {
		if e.hold && e.state == stateDone && e.begun.After(since) {
			ids = append(ids, e.ids...)
		}
	}
	return ids
}
