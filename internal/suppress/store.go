package suppress

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"posthaste/internal/pack"
	"posthaste/internal/proto"
	"posthaste/internal/statedir"
	"posthaste/internal/suppress/suppressclient"
)

const (
	storeName    = "list"           // the file
	freshName    = "list.fresh"     // and one that is being made
	lockPatience = 10 * time.Second // for a process that is about to end and still has the file
	mergeStep    = 2000             // entries of an import that move at a time
	pageSize     = 1000             // entries of a page
)

// The buckets. Entries are by key. An import's stand apart until it is complete, and count from the moment
// that metaImport says so; then they move, a step at a time.
var (
	bucketEntries = []byte("entries")
	bucketImport  = []byte("import")
	bucketSoft    = []byte("soft") // days of failures that pass, by key
	bucketSeen    = []byte("seen") // what tokens have brought, by day, place and kind
	bucketMeta    = []byte("meta")
	metaImport    = []byte("import") // importDone: complete; otherwise it is of no value
	importDone    = []byte("done")
	metaEnded     = []byte("ended") // the name of the import that has ended last
)

var errImport = errors.New("this import has not begun, or another one has taken its place")

// A store keeps the entries. What its methods have changed survives a power cut when they return. They may be
// called concurrently.
type store struct {
	db   *bolt.DB
	dir  *statedir.Dir
	lost atomic.Bool // the entries are: the list is not to be asked
	now  func() time.Time
	warn func(format string, args ...any)

	// mu is held while an import is changed or moved.
	mu      sync.Mutex
	staging string // the name of an import that has begun, and has not ended; empty: none has

	// How many entries tenants have that have offered some. Only what writes uses it, and one writes at a time.
	held map[string]holding
}

// A holding is how many entries a tenant has: those at the time that they were counted, and what the tenant has
// added and removed since.
type holding struct {
	count   int
	counted time.Time
}

// openStore opens the file in dir, and makes it when there is none. What was left of an import that did not
// end is forgotten. warn hears of a file that is damaged: see setAside.
func openStore(dir *statedir.Dir, warn func(format string, args ...any)) (*store, error) {
	if err := setAside(dir, warn); err != nil {
		return nil, fmt.Errorf("%s: %w", storeName, err)
	}
	if err := found(dir); err != nil {
		return nil, fmt.Errorf("%s: %w", storeName, err)
	}
	lost, err := isLost(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", lostName, err)
	}
	db, err := openFile(dir, storeName)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", storeName, err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketEntries, bucketImport, bucketSoft, bucketSeen, bucketMeta} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		if bytes.Equal(tx.Bucket(bucketMeta).Get(metaImport), importDone) {
			return nil
		}
		return renew(tx, bucketImport)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", storeName, err), db.Close())
	}
	s := &store{db: db, dir: dir, now: time.Now, warn: warn, held: make(map[string]holding)}
	s.lost.Store(lost)
	return s, nil
}

func openFile(dir *statedir.Dir, name string) (*bolt.DB, error) {
	return bolt.Open(name, 0o600, &bolt.Options{Timeout: lockPatience, OpenFile: dir.OpenFile, NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
}

// found makes the file where there is none. It gets its name when it is whole and on stable storage: one without
// contents is never a new one, but one that a disk has lost.
func found(dir *statedir.Dir) error {
	if _, err := dir.Lstat(storeName); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// What a crash has left of it is of no value.
	if err := dir.Remove(freshName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := openFile(dir, freshName)
	if err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	empty, err := dir.ReadFile(freshName)
	if err != nil {
		return err
	}
	return errors.Join(dir.ReplaceDurably(storeName, empty), dir.Remove(freshName))
}

func renew(tx *bolt.Tx, name []byte) error {
	if err := tx.DeleteBucket(name); err != nil {
		return err
	}
	_, err := tx.CreateBucket(name)
	return err
}

func (s *store) close() error { return s.db.Close() }

// key is where an entry is. An address has no NUL, nor has the name of a list.
func key(list, address string) []byte { return []byte(list + "\x00" + address) }

// value is an entry as it is kept. Tags are on disk: one is never given another meaning.
func value(e *proto.Suppression) []byte {
	b := pack.String(nil, 'r', e.Reason)
	b = pack.String(b, 'o', e.Origin)
	b = pack.String(b, 'd', e.Detail)
	b = pack.Int(b, 't', e.Time)
	return pack.Int(b, 'u', e.Until)
}

// entry is what is kept under a key.
func entry(key, val []byte) (e proto.Suppression, err error) {
	list, address, ok := bytes.Cut(key, []byte{0})
	if !ok {
		return e, pack.ErrMalformed
	}
	e.List, e.Address = string(list), string(address)
	r := pack.NewReader(val)
	for r.Next() {
		switch r.Tag() {
		case 'r':
			e.Reason = r.String()
		case 'o':
			e.Origin = r.String()
		case 'd':
			e.Detail = r.String()
		case 't':
			e.Time = r.Int()
		case 'u':
			e.Until = r.Int()
		}
	}
	return e, r.Err()
}

// holds says whether an entry does at a time.
func holds(e *proto.Suppression, now time.Time) bool { return e.Until == 0 || now.Unix() < e.Until }

// find looks for an entry that holds for mail of a scope.
func (s *store) find(list, address string, now time.Time) (found proto.Suppression, ok bool, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		for _, scope := range suppressclient.Chain(list) {
			e, there, err := get(tx, key(scope, address), now)
			if err != nil {
				return err
			}
			if there && holds(&e, now) {
				found, ok = e, true
				return nil
			}
		}
		return nil
	})
	return found, ok, err
}

// get reads one entry. Where a complete import has one, too, it is the one that counts more.
func get(tx *bolt.Tx, k []byte, now time.Time) (e proto.Suppression, ok bool, err error) {
	var imported []byte
	if bytes.Equal(tx.Bucket(bucketMeta).Get(metaImport), importDone) {
		imported = tx.Bucket(bucketImport).Get(k)
	}
	val, err := either(k, tx.Bucket(bucketEntries).Get(k), imported, now)
	if err != nil || val == nil {
		return e, false, err
	}
	e, err = entry(k, val)
	return e, err == nil, err
}

// either is that of two values of a key that counts: of an entry, and of what an import has in its place. One may be nil.
func either(k, old, imported []byte, now time.Time) ([]byte, error) {
	if old == nil || imported == nil {
		if old == nil {
			return imported, nil
		}
		return old, nil
	}
	o, err := entry(k, old)
	if err != nil {
		return nil, err
	}
	n, err := entry(k, imported)
	if err != nil {
		return nil, err
	}
	if outranks(&o, &n, now) {
		o.Until = longer(&o, &n, now)
		return value(&o), nil
	}
	n.Until = longer(&n, &o, now)
	return value(&n), nil
}

// longer is until when an entry holds that takes the place of another one: never less long than that would have. A
// complaint that ends soon must not take away what was meant to hold for ever.
func longer(e, other *proto.Suppression, now time.Time) int64 {
	switch {
	case !holds(e, now) || !holds(other, now):
		return e.Until
	case e.Until == 0 || other.Until == 0:
		return 0
	}
	return max(e.Until, other.Until)
}

// outranks says whether an entry stays when an import has another one for the address. The list that was exported last week
// does not know who has complained since: what holds counts more than what is over, a complaint more than that somebody has
// unsubscribed, and that more than another reason, for ever more than for a time, and at last the newer one more than the
// older one.
func outranks(old, imported *proto.Suppression, now time.Time) bool {
	for _, more := range [...]func(e *proto.Suppression) bool{
		func(e *proto.Suppression) bool { return holds(e, now) },
		func(e *proto.Suppression) bool { return rank(e.Reason) >= rankComplaint },
		func(e *proto.Suppression) bool { return rank(e.Reason) >= rankUnsubscribe },
		func(e *proto.Suppression) bool { return e.Until == 0 },
	} {
		if more(old) != more(imported) {
			return more(old)
		}
	}
	return old.Time > imported.Time
}

// put writes an entry, in the place of one that is there.
func put(tx *bolt.Tx, e *proto.Suppression) error {
	k := key(e.List, e.Address)
	if bytes.Equal(tx.Bucket(bucketMeta).Get(metaImport), importDone) {
		if err := tx.Bucket(bucketImport).Delete(k); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketEntries).Put(k, value(e))
}

// add writes entries.
func (s *store) add(list []proto.Suppression) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		for i := range list {
			if err := put(tx, &list[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// A fullError says that a tenant has as many entries as it may have. Nothing was written.
type fullError struct{ tenant string }

func (e *fullError) Error() string {
	return "tenant " + e.tenant + " has as many entries as it may have"
}

// offer writes entries, as add does, and says how many are other ones now. Where one holds by which somebody has complained or
// unsubscribed, a reason of a lower rank does not take its place, and no reason makes it end sooner. It is seen and
// decided in one transaction: a complaint that comes at the same time is not lost. No tenant gets more entries than most by
// it; 0: that is no limit. The error is a *fullError then.
func (s *store) offer(list []proto.Suppression, most int) (n uint64, err error) {
	err = s.db.Update(func(tx *bolt.Tx) error {
		n = 0
		more := map[string]int{} // new entries, by tenant
		for _, e := range list {
			now := s.now()
			old, there, err := get(tx, key(e.List, e.Address), now)
			if err != nil {
				return err
			}
			if there && holds(&old, now) && rank(old.Reason) > rankOther {
				until := longer(&e, &old, now)
				if rank(e.Reason) < rank(old.Reason) {
					if until == old.Until {
						continue
					}
					e = old
				}
				e.Until = until
			}
			if err := put(tx, &e); err != nil {
				return err
			}
			if tenant, _, ok := strings.Cut(e.List, "/"); ok && !there {
				more[tenant]++
			}
			n++
		}
		return s.fit(tx, more, most)
	})
	if err != nil {
		n = 0
	}
	return n, err
}

// countAgain is how often the entries of a tenant that adds some are counted, which takes a look at each: others add some, too.
const countAgain = time.Minute

// fit says whether tenants may have what has been written. Their entries are counted, unless that is known: no more than most,
// what is new, and one.
func (s *store) fit(tx *bolt.Tx, more map[string]int, most int) error {
	if most == 0 {
		return nil
	}
	for tenant, n := range more {
		h := s.held[tenant]
		h.count += n
		age := s.now().Sub(h.counted)
		if h.counted.IsZero() || age >= countAgain || age < 0 {
			// What is counted here has what was written just now, and may lose it again: a count that stopped before would leave
			// room where there is none.
			h = holding{count: countOf(tx, tenant, most+n), counted: s.now()}
		}
		if h.count > most {
			s.held[tenant] = holding{h.count - n, h.counted} // the transaction is undone
			return &fullError{tenant}
		}
		s.held[tenant] = h
	}
	return nil
}

// countOf counts the entries of a tenant, up to most and one. One that an import has, too, counts twice until it is in place.
func countOf(tx *bolt.Tx, tenant string, most int) (n int) {
	names := [][]byte{bucketEntries}
	if bytes.Equal(tx.Bucket(bucketMeta).Get(metaImport), importDone) {
		names = append(names, bucketImport)
	}
	begin := []byte(tenant + "/")
	for _, name := range names {
		c := tx.Bucket(name).Cursor()
		for k, _ := c.Seek(begin); bytes.HasPrefix(k, begin) && n <= most; k, _ = c.Next() {
			n++
		}
	}
	return n
}

// removed counts an entry of a list that is going to be removed.
func (s *store) removed(list string) {
	tenant, _, ok := strings.Cut(list, "/")
	if h := s.held[tenant]; ok && h.count > 0 {
		h.count--
		s.held[tenant] = h
	}
}

// remove removes entries, with what has been counted of their addresses, and says how many there were.
func (s *store) remove(list []proto.Suppression) (n uint64, err error) {
	err = s.db.Update(func(tx *bolt.Tx) error {
		n = 0
		for i := range list {
			k := key(list[i].List, list[i].Address)
			_, there, err := get(tx, k, s.now())
			if err != nil {
				return err
			}
			if there {
				n++
				s.removed(list[i].List)
			}
			for _, name := range [][]byte{bucketEntries, bucketImport, bucketSoft} {
				if err := tx.Bucket(name).Delete(k); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return n, err
}

// begin begins an import of a name. One that has begun before, and has not ended, is forgotten: whoever made it may be gone.
// If not, its next step fails.
func (s *store) begin(name string) error {
	if name == "" || len(name) > maxText {
		return errors.New("an import needs a name")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.settle(); err != nil {
		return err
	}
	if err := s.db.Update(func(tx *bolt.Tx) error { return renew(tx, bucketImport) }); err != nil {
		return err
	}
	s.staging = name
	return nil
}

// stage adds entries to the import, which do not count yet.
func (s *store) stage(name string, list []proto.Suppression) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "" || s.staging != name {
		return errImport
	}
	return s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketImport)
		for i := range list {
			// A file may have an address twice, as one of several lists has that becomes one.
			k := key(list[i].List, list[i].Address)
			val, err := either(k, b.Get(k), value(&list[i]), s.now())
			if err == nil {
				err = b.Put(k, bytes.Clone(val)) // it may be what the database has given
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// end has all of the import count, at once. part says that it was for one tenant or one list.
func (s *store) end(name string, part bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "" || s.staging != name {
		return s.ended(name)
	}
	if err := s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		return errors.Join(b.Put(metaImport, importDone), b.Put(metaEnded, []byte(name)))
	}); err != nil {
		return err
	}
	s.staging = ""
	// It counts from here on, whatever becomes of the mark.
	if !part {
		s.restored()
	}
	return nil
}

// ended says whether it was this import that has ended last: who has not heard the answer asks again, perhaps
// after a restart of this service.
func (s *store) ended(name string) error {
	return s.db.View(func(tx *bolt.Tx) error {
		if name != "" && string(tx.Bucket(bucketMeta).Get(metaEnded)) == name {
			return nil
		}
		return errImport
	})
}

// settle moves a complete import to where all entries are. The caller has mu.
func (s *store) settle() error {
	for more := true; more; {
		var err error
		if more, err = s.move(); err != nil {
			return err
		}
	}
	return nil
}

// merge moves one step of a complete import, and says whether there is more.
func (s *store) merge() (more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.move()
}

func (s *store) move() (more bool, err error) {
	done := false
	if err := s.db.View(func(tx *bolt.Tx) error {
		done = bytes.Equal(tx.Bucket(bucketMeta).Get(metaImport), importDone)
		return nil
	}); err != nil || !done {
		return false, err
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		from, to := tx.Bucket(bucketImport), tx.Bucket(bucketEntries)
		var keys, values [][]byte
		c := from.Cursor()
		for k, v := c.First(); k != nil && len(keys) < mergeStep; k, v = c.Next() {
			keys, values = append(keys, bytes.Clone(k)), append(values, bytes.Clone(v))
		}
		for i, k := range keys {
			val, err := either(k, to.Get(k), values[i], s.now())
			if err == nil {
				err = to.Put(k, bytes.Clone(val)) // it may be what the database has given
			}
			if err != nil {
				return err
			}
			if err := from.Delete(k); err != nil {
				return err
			}
		}
		if more = len(keys) == mergeStep; more {
			return nil
		}
		return tx.Bucket(bucketMeta).Delete(metaImport)
	})
	return more, err
}

// page is a part of the entries, in their order: those of one scope, of all of a tenant, or all.
func (s *store) page(q *proto.SuppressPage) (reply *proto.SuppressPageReply, err error) {
	s.mu.Lock()
	err = s.settle()
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	reply = new(proto.SuppressPageReply)
	err = s.db.View(func(tx *bolt.Tx) error {
		var prefix []byte
		switch {
		case q.Tenant != "":
			prefix = []byte(suppressclient.Scope(q.Tenant, ""))
		case !q.All:
			prefix = key(q.List, "")
		}
		from := prefix
		if q.After > string(prefix) {
			from = []byte(q.After)
		}
		c := tx.Bucket(bucketEntries).Cursor()
		for k, v := c.Seek(from); k != nil && bytes.HasPrefix(k, prefix); k, v = c.Next() {
			if string(k) == q.After {
				continue
			}
			if len(reply.Entries) == pageSize {
				last := &reply.Entries[pageSize-1]
				reply.Next = string(key(last.List, last.Address))
				return nil
			}
			e, err := entry(k, v)
			if err != nil {
				return err
			}
			reply.Entries = append(reply.Entries, e)
		}
		return nil
	})
	return reply, err
}

// A change is what one piece of news comes to, in one transaction.
type change struct {
	tx *bolt.Tx
}

// update carries out f in a transaction, together with others that come at the same time. It may be called more
// than once for that.
func (s *store) update(f func(c change) error) error {
	return s.db.Batch(func(tx *bolt.Tx) error { return f(change{tx}) })
}

// seenKey is where it is kept that a token has brought something.
func seenKey(day int, position int64, what string) []byte {
	k := binary.BigEndian.AppendUint32(nil, uint32(day))
	k = binary.BigEndian.AppendUint64(k, uint64(position))
	return append(k, what...)
}

// brought says what a token has brought before.
func (s *store) brought(day int, position int64) (bounce, complaint bool, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketSeen)
		bounce = b.Get(seenKey(day, position, seenKind(proto.ToldBounce))) != nil
		complaint = b.Get(seenKey(day, position, seenKind(proto.ToldComplaint))) != nil
		return nil
	})
	return bounce, complaint, err
}

// seen notes that a token has brought something, and says whether it had before.
func (c change) seen(day int, position int64, what string) (before bool, err error) {
	k := seenKey(day, position, what)
	b := c.tx.Bucket(bucketSeen)
	if b.Get(k) != nil {
		return true, nil
	}
	return false, b.Put(k, []byte{1})
}

// maxDays bounds the days that are counted of an address.
const maxDays = 100

// count counts a failure that passes, on a day, and says on how many days since another there were some.
func (c change) count(list, address string, day, since int) (n int, err error) {
	k, b := key(list, address), c.tx.Bucket(bucketSoft)
	var days []byte
	for old := b.Get(k); len(old) >= 4; old = old[4:] {
		if d := int(binary.BigEndian.Uint32(old)); d >= since && d != day && len(days) < 4*maxDays {
			days = append(days, old[:4]...)
		}
	}
	days = binary.BigEndian.AppendUint32(days, uint32(day))
	return len(days) / 4, b.Put(k, days)
}

// The ranks of reasons: what a person has asked for counts more than what servers have said.
const (
	rankOther = iota
	rankUnsubscribe
	rankComplaint
)

func rank(reason string) int {
	switch reason {
	case reasonComplaint:
		return rankComplaint
	case suppressclient.Unsubscribed:
		return rankUnsubscribe
	}
	return rankOther
}

// suppress writes an entry, unless there is one that holds and counts more. One of a lower rank gives way, whatever its end:
// who has complained is known as somebody who has. Of the same rank one that holds for a time gives way to one that does
// for ever. An entry is never shorter than the one whose place it takes, nor than the one that it has kept away.
func (c change) suppress(e *proto.Suppression) (added bool, err error) {
	now := time.Unix(e.Time, 0)
	old, there, err := get(c.tx, key(e.List, e.Address), now)
	if err != nil || !there || !holds(&old, now) {
		if err != nil {
			return false, err
		}
		return true, put(c.tx, e)
	}
	switch was, is := rank(old.Reason), rank(e.Reason); {
	case is > was:
	case was > is && old.Until != 0 && e.Until == 0:
		old.Until = 0
		return false, put(c.tx, &old)
	case was > is || old.Until == 0 || e.Until != 0:
		return false, nil
	}
	e.Until = longer(e, &old, now)
	return true, put(c.tx, e)
}

// forget removes what tokens of before a day have brought, and failures that nobody counts any more.
func (s *store) forget(tokens, soft int) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketSeen).Cursor()
		for k, _ := c.First(); len(k) >= 4 && int(binary.BigEndian.Uint32(k)) < tokens; k, _ = c.First() {
			if err := c.Delete(); err != nil {
				return err
			}
		}
		var old [][]byte
		c = tx.Bucket(bucketSoft).Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			if len(v) < 4 || int(binary.BigEndian.Uint32(v[len(v)-4:])) < soft {
				old = append(old, bytes.Clone(k))
			}
		}
		for _, k := range old {
			if err := tx.Bucket(bucketSoft).Delete(k); err != nil {
				return err
			}
		}
		return nil
	})
}
