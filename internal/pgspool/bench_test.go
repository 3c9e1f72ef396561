package pgspool

import (
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/internal/testwait"
)

// BenchmarkLifecycle queues messages of 10 KB durably, and removes each, with so many writers at a time, in
// a database that syncs. The cleaner runs beside. It is what the engine does for a message, without the services
// around it.
func BenchmarkLifecycle(b *testing.B) {
	s := newServer(b, "fsync=on", "shared_buffers=256MB", "max_wal_size=4GB")
	content := strings.Repeat("0123456789abcde\n", 640)
	for _, writers := range []int{1, 10, 20, 100} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			e := newDatabase(b, s, *shardsOf).store("a").mustOpen(b)
			defer e.Close()
			go e.Maintain(b.Context())
			todo := make(chan struct{}, writers)
			var working sync.WaitGroup
			for range writers {
				working.Go(func() {
					add := e.NewBatch()
					for range todo {
						m := message(b, e, content)
						add.Reset()
						add.Add(m)
						if err := e.Commit(add); err != nil {
							b.Error(err)
						}
						remove := e.NewBatch() // the engine has the last one
						remove.Finish(m.ID)
						e.Post(remove, func(err error) {
							if err != nil {
								b.Error(err)
							}
						})
					}
				})
			}
			b.SetBytes(int64(len(content)))
			for b.Loop() {
				todo <- struct{}{}
			}
			close(todo)
			working.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

var shardsOf = flag.Int("shards", 1, "BenchmarkLifecycle: of the queue")

var deepest = flag.Int("deepest", 1_000_000, "BenchmarkTakeover: the most messages of the dead node")

// BenchmarkTakeover has nodes that live take over what another has left: from when the leases are over until cleanup is told of the
// first messages, which can be delivered from then on, and until it is told of all. The dead node had all of its mail in one shard, or in
// 16, which one node takes, or four have in the end. s-to-first is the first message of all, s-to-each when each node has some.
// memory is what the index takes of each message, in octets.
func BenchmarkTakeover(b *testing.B) {
	for _, deep := range []int{100_000, 1_000_000, 3_000_000, 10_000_000} {
		for _, shards := range []int{1, 16} {
			for _, living := range []int{1, 4} {
				if deep <= *deepest && living <= shards {
					b.Run(fmt.Sprint(deep, " in ", shards, " to ", living), func(b *testing.B) { takeOver(b, deep, shards, living) })
				}
			}
		}
	}
}

// fillShard writes so many messages into the segments of a shard, as if its owner had taken them: of 1 KB, and all that the engine wants to
// know of them. One in eight was tried before, and is deferred.
func fillShard(b *testing.B, e *engine, sh *shard, first uint64, n int) {
	b.Helper()
	content := []byte(strings.Repeat("0123456789abcde\n", 64))
	for n > 0 {
		seg, err := e.head(b.Context(), sh, e.conn)
		if err != nil {
			b.Fatal(err)
		}
		var w rows
		pos := uint32(1)
		for ; n > 0 && int64(len(w.buf)) < e.store.segmentSize; n, first = n-1, first+1 {
			m := messageOf(mail.MakeQueueID(time.Unix(1800000000, 0), first), "")
			s := state{live: live{number: first, created: 1800000000e6, nrcpt: 2, npending: 2, first: seg.segno, size: int64(len(content))}, bodyLen: int64(len(content))}
			s.bodySum = sum(content, rowMSG, first, 0)
			r := rest{envelope: m.Envelope, recipients: m.Recipients, hasEnv: true}
			text := r.append(nil)
			s.restSum = sum(text, rowMSG, first, 0)
			size := w.add(pos, rowMSG, first, sealHead(nil, appendState(nil, &s, true), rowMSG, first), text, content)
			if pos++; first%8 == 0 {
				s.msgSeg, s.msgPos, s.msgLen = seg.segno, pos-1, uint32(size)
				s.queue, s.attempts, s.restSum = uint8(queue.Deferred), 1, sum(text, rowSTATE, first, 0)
				w.add(pos, rowSTATE, first, sealHead(nil, appendState(nil, &s, false), rowSTATE, first), text, nil)
				pos++
			}
		}
		if err := e.transact(b.Context(), e.conn, []*shard{sh}, func() error { return w.copyTo(b.Context(), e.store, e.conn, sh.id, seg.segno) }); err != nil {
			b.Fatal(err)
		}
		seg.bytes = e.store.segmentSize
		e.unpin(sh, seg.segno)
	}
}

// An heir is a node that takes over a part of what another has left.
type heir struct {
	told       chan struct{} // of messages
	engine     *engine
	first, all time.Duration // since the leases were over: until it was told of some, and of the last
}

// openHeirs has so many nodes each have one shard: those with the lowest numbers.
func openHeirs(b *testing.B, d *database, do func(sql string), name string, living int) (heirs []*heir) {
	b.Helper()
	do("UPDATE lease SET until = 'infinity'; UPDATE node SET seen = '-infinity'")
	for k := range living {
		// Until it has opened the queue it has the shard by name alone. All are alive for each other from the beginning.
		node := fmt.Sprint(name, "-", k)
		do(fmt.Sprintf("INSERT INTO node VALUES ('%s', '%[1]s:/q', clock_timestamp() + interval '1 hour'); UPDATE shard SET node = '%[1]s' WHERE id = %d", node, k+1))
	}
	for k := range living {
		h := &heir{told: make(chan struct{}, 1)}
		o := storage.Options{TempDir: b.TempDir(), InlineLimit: 128 << 10, Warn: b.Logf, Adopted: func(storage.Engine, storage.Recovery) {
			select {
			case h.told <- struct{}{}:
			default:
			}
		}}
		en, err := d.store(fmt.Sprint(name, "-", k)).Open(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		h.engine = en.(*engine)
		if n := len(h.engine.owned()); n != 1 {
			b.Fatalf("a living node has %d shards", n)
		}
		heirs = append(heirs, h)
	}
	return heirs
}

// await waits until the heirs have read so many shards, with their own, and returns how many messages these have.
func await(heirs []*heir, began time.Time, shards int) (n int) {
	var waiting sync.WaitGroup
	left := make(chan struct{}) // all has been read
	var read atomic.Int32
	for _, h := range heirs {
		waiting.Go(func() {
			had := 0
			for {
				select {
				case <-h.told:
				case <-left:
					return
				}
				if h.all = time.Since(began); h.first == 0 {
					h.first = h.all
				}
				whole := len(h.engine.whole())
				if int(read.Add(int32(whole-had))) == shards {
					close(left)
				}
				had = whole
			}
		})
	}
	waiting.Wait()
	for _, h := range heirs {
		for range h.engine.Entries {
			n++
		}
	}
	return n
}

func takeOver(b *testing.B, deep, shards, living int) {
	d := newDatabase(b, newServer(b, "shared_buffers=256MB", "max_wal_size=4GB"), shards+living)
	a := d.store("a").mustOpen(b)
	testwait.Until(b, "it has all shards", func() bool { return len(a.whole()) == shards+living }) // a slow database gives it some later
	a.stop()                                                                                       // its leases are those of the test
	conn := d.conn()
	do := func(sql string) {
		b.Helper()
		if _, err := conn.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
	for i, sh := range a.owned()[living:] {
		fillShard(b, a, sh, uint64(i*deep/shards+1), deep/shards)
	}
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		heirs := openHeirs(b, d, do, fmt.Sprint("b", i), living)
		do(fmt.Sprintf("UPDATE lease SET until = '-infinity' WHERE shard > %d", living))
		began := time.Now()
		b.StartTimer()
		n := await(heirs, began, shards+living)
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		if n != deep/shards*shards {
			b.Fatalf("%d messages", n)
		}
		first, each, all := time.Hour, time.Duration(0), time.Duration(0)
		for _, h := range heirs {
			b.Logf("%d shards, first message after %v, last after %v", len(h.engine.owned())-1, h.first.Round(time.Millisecond), h.all.Round(time.Millisecond))
			first, each, all = min(first, h.first), max(each, h.first), max(all, h.all)
			h.engine.Close()
		}
		b.ReportMetric(first.Seconds(), "s-to-first")
		b.ReportMetric(each.Seconds(), "s-to-each")
		b.ReportMetric(all.Seconds(), "s-to-all")
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(deep), "memory/message")
		b.StartTimer()
	}
}
