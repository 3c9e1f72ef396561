package cleanup

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/doubtful"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/metrics"
	"posthaste/internal/nodeshare"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// A longQueue is an engine whose index has n messages, with the numbers from 1 on, and pages of that many.
type longQueue struct {
	stub
	n, pageSize int
	asked       *queue.DueQuery
	yielded     atomic.Int64
	pages       atomic.Int64
}

func numbered(n int) queue.Entry {
	return queue.Entry{ID: mail.MakeQueueID(arrival, uint64(n)), Attempts: n}
}

func (e *longQueue) Due(q *queue.DueQuery, yield func(queue.Entry) bool) (queue.Mark, bool) {
	e.asked = q
	for i := 1; i <= e.n; i++ {
		e.yielded.Add(1)
		if !yield(numbered(i)) {
			return queue.Mark{Number: uint64(i)}, false
		}
	}
	return queue.Mark{Next: arrival, Number: uint64(e.n)}, true
}

func (e *longQueue) Find(number uint64) (queue.Entry, bool) {
	if number == 0 || number > uint64(e.n) {
		return queue.Entry{}, false
	}
	return numbered(int(number)), true
}

func (e *longQueue) Page(cursor uint64, list []queue.Placed) ([]queue.Placed, uint64) {
	e.pages.Add(1)
	for range e.pageSize {
		if cursor++; cursor > uint64(e.n) {
			return list, 0
		}
		list = append(list, queue.Placed{Entry: numbered(int(cursor))})
	}
	if e.pageSize == 0 {
		cursor++
	}
	return list, cursor
}

// The queue manager hears of all that is due, in order and in messages that fit into a frame, before it is answered where that
// ends; when it is gone, nothing more is looked for.
func TestDueMail(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 999, 1000, 1001, 2500} {
		s, _ := newTestServer(t, "", "")
		en := &longQueue{n: n}
		s.opt.Engine = en
		client, told := toldTo(t, s)
		query := queue.DueQuery{After: queue.Mark{Next: arrival.Add(-time.Hour), Number: 7}, Limit: 5000, Sane: arrival.Add(time.Hour), Amnesty: arrival}
		var reply proto.DueReply
		if err := client.Call(t.Context(), &proto.Due{DueQuery: query}, &reply); err != nil {
			t.Fatal(err)
		}
		next := 1
		for len(told) > 0 {
			batch := <-told
			if !batch.Known || batch.Complete || len(batch.List) > 1000 {
				t.Errorf("%d are due: told of %d, known: %v, complete: %v", n, len(batch.List), batch.Known, batch.Complete)
			}
			for _, e := range batch.List {
				if want := numbered(next); e.ID != want.ID || e.Attempts != want.Attempts {
					t.Fatalf("%d are due: number %d is %+v", n, next, e)
				}
				next++
			}
		}
		if next != n+1 || !reply.Whole || reply.Last.Number != uint64(n) || !reply.Last.Next.Equal(arrival) {
			t.Errorf("%d are due: told of %d, and answered %+v", n, next-1, reply)
		}
		if q := en.asked; !q.After.Next.Equal(query.After.Next) || q.After.Number != 7 || q.Limit != 5000 || !q.Sane.Equal(query.Sane) || !q.Amnesty.Equal(query.Amnesty) {
			t.Errorf("looked for %+v", q)
		}
	}
	s, _ := newTestServer(t, "", "")
	en := &longQueue{n: 1 << 40}
	s.opt.Engine = en
	client := servedTo(t, s, func(c *ipc.Conn, _ *ipc.Request) { c.Close() })
	if err := client.Call(t.Context(), &proto.Due{DueQuery: queue.DueQuery{Limit: 1}}, new(proto.DueReply)); err == nil {
		t.Error("who is gone is answered")
	}
	s.Wait() // it would not end
}

// A page has the messages that are asked for by number, and none that is not there; or a few hundred from a cursor on, though
// the index is full of holes.
func TestPages(t *testing.T) {
	t.Parallel()
	ask := func(en engine, q *proto.Page) (reply proto.PageReply) {
		t.Helper()
		s, _ := newTestServer(t, "", "")
		s.opt.Engine = en
		if err := served(t, s).Call(t.Context(), q, &reply); err != nil {
			t.Fatal(err)
		}
		return reply
	}
	many := make([]uint64, proto.PageNumbers+5)
	for i := range many {
		many[i] = uint64(i + 1)
	}
	for _, c := range []struct {
		n, pageSize, tries int
		q                  proto.Page
		first, last        int
		next               uint64
	}{
		{n: 5000, q: proto.Page{Numbers: []uint64{4}}, first: 4, last: 4},
		{n: 5000, q: proto.Page{Numbers: []uint64{4999, 5000, 5001, 1 << 50}}, first: 4999, last: 5000},
		{n: 5000, q: proto.Page{Numbers: []uint64{6000}}},
		{n: 5000, q: proto.Page{Numbers: many}, first: 1, last: proto.PageNumbers},
		{n: 5000, pageSize: 100, tries: 5, first: 1, last: 500, next: 500},
		{n: 5000, pageSize: 99, tries: 6, q: proto.Page{Cursor: 10}, first: 11, last: 604, next: 604},
		{n: 450, pageSize: 100, tries: 5, first: 1, last: 450},
		{n: 5000, pageSize: 0, tries: 1000, q: proto.Page{Cursor: 3}, next: 1003},
	} {
		en := &longQueue{n: c.n, pageSize: c.pageSize}
		reply := ask(en, &c.q)
		want := 0
		if c.first > 0 {
			want = c.last - c.first + 1
		}
		if len(reply.Entries) != want || reply.Next != c.next || int(en.pages.Load()) != c.tries {
			t.Errorf("%d messages, pages of %d, %d tries, next %d; want %+v", len(reply.Entries), c.pageSize, en.pages.Load(), reply.Next, c)
			continue
		}
		for i, e := range reply.Entries {
			if e.ID != numbered(c.first+i).ID {
				t.Errorf("entry %d is %s", i, e.ID)
			}
		}
	}
}

// A node is an engine of a queue that nodes share, which notes what it is asked.
type node struct {
	stub
	asked []string
	err   error
}

func (n *node) Exchange(q *nodeshare.Request) (nodeshare.Reply, error) {
	n.asked = append(n.asked, fmt.Sprintf("%+v", *q))
	return nodeshare.Reply{Alone: true, Grants: []nodeshare.Grant{{Key: "k", Share: 3, Target: 2, Former: 1}}}, n.err
}

func (n *node) Notes(topic string, note []byte) ([][]byte, error) {
	n.asked = append(n.asked, topic+"/"+string(note))
	return [][]byte{[]byte("one"), []byte("two")}, n.err
}

func (*node) Owned() []storage.Ownership {
	return []storage.Ownership{{Part: 4, Epoch: 7}, {Part: 5, Epoch: 8}}
}
func (*node) Reading() []int { return []int{5} }

// What nodes tell each other goes to the engine as it was said, and comes back as others have said it; an error is one for who
// has asked. Where there is one node it is alone, and nobody says anything.
func TestAmongNodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		q, reply, want, alone ipc.Message
		asked                 string
	}{
		{&proto.Shares{Alone: true, Claims: []nodeshare.Claim{{Key: "k", Limit: 9, Hold: 4, Demand: 6}}, More: true}, new(proto.SharesReply),
			&proto.SharesReply{Alone: true, Grants: []nodeshare.Grant{{Key: "k", Share: 3, Target: 2, Former: 1}}}, &proto.SharesReply{Alone: true},
			fmt.Sprintf("%+v", nodeshare.Request{Alone: true, Claims: []nodeshare.Claim{{Key: "k", Limit: 9, Hold: 4, Demand: 6}}, More: true})},
		{&proto.Shares{Fresh: true}, new(proto.SharesReply),
			&proto.SharesReply{Alone: true, Grants: []nodeshare.Grant{{Key: "k", Share: 3, Target: 2, Former: 1}}}, &proto.SharesReply{Alone: true},
			fmt.Sprintf("%+v", nodeshare.Request{Fresh: true})},
		{&proto.Notes{Topic: "rates", Note: []byte("mine")}, new(proto.NotesReply), &proto.NotesReply{Notes: [][]byte{[]byte("one"), []byte("two")}}, new(proto.NotesReply), "rates/mine"},
		{new(proto.Owned), new(proto.OwnedReply), &proto.OwnedReply{Parts: []proto.OwnedPart{{ID: 4, Epoch: 7}, {ID: 5, Epoch: 8}}, Reading: []int{5}}, new(proto.OwnedReply), ""},
	} {
		en := new(node)
		s, _ := newTestServer(t, "", "")
		s.opt.Engine = en
		client := served(t, s)
		if err := client.Call(t.Context(), c.q, c.reply); err != nil || !reflect.DeepEqual(c.reply, c.want) {
			t.Errorf("%T: %v, %+v, want %+v", c.q, err, c.reply, c.want)
		}
		if got := strings.Join(en.asked, "|"); got != c.asked {
			t.Errorf("%T: the engine is asked %s, want %s", c.q, got, c.asked)
		}
		en.err = errors.New("the database is away")
		if err := client.Call(t.Context(), c.q, c.reply); c.asked != "" && (err == nil || !strings.Contains(err.Error(), "the database is away")) {
			t.Errorf("%T: the error is %v", c.q, err)
		}
		s.Wait()
		one, _ := newTestServer(t, "", "")
		empty := reflect.New(reflect.TypeOf(c.reply).Elem()).Interface().(ipc.Message)
		if err := served(t, one).Call(t.Context(), c.q, empty); err != nil || !reflect.DeepEqual(empty, c.alone) {
			t.Errorf("%T with one node: %v, %+v, want %+v", c.q, err, empty, c.alone)
		}
	}
}

// Several logs are published as one queue, and each directory by itself. New mail is refused only when no directory takes it.
func TestLogsNumbers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testLogsNumbers)
}

func testLogsNumbers(t *testing.T) {
	log := func(dir string, messages int, takes bool, err error) spools.Standing {
		sp, oerr := spool.Open(spool.Options{FS: vfs.NewMem(512), Dir: "spool", SegmentSize: 64 << 10})
		if oerr != nil {
			t.Fatal(oerr)
		}
		t.Cleanup(func() { sp.Close() })
		l := &life{t: t, sp: sp}
		for range messages {
			l.add(1)
		}
		return spools.Standing{Part: spools.Part{Dir: dir, Takes: takes}, Engine: logEngine{Spool: sp}, Err: err}
	}
	samples := func(list ...spools.Standing) map[string]float64 {
		set := metrics.New()
		set.Offer(func(o *metrics.Offer) { offerLogs(o, list) })
		got := map[string]float64{}
		for _, m := range set.Take().Samples {
			got[strings.TrimPrefix(fmt.Sprint(m.Name, m.Labels), "posthaste_spool_")] = m.Value
		}
		return got
	}
	alone := func(en storage.Engine) map[string]float64 {
		set := metrics.New()
		set.Offer(en.Offer)
		got := map[string]float64{}
		for _, m := range set.Take().Samples {
			got[strings.TrimPrefix(fmt.Sprint(m.Name, m.Labels), "posthaste_spool_")] = m.Value
		}
		return got
	}
	a, b, failed := log("/a", 3, true, nil), log("/b", 2, false, nil), log("/c", 1, true, syscall.EIO)
	synctest.Wait() // all have made room for what comes
	as, bs, cs := a.Engine.(logEngine).Stats(), b.Engine.(logEngine).Stats(), failed.Engine.(logEngine).Stats()
	got := samples(a, b, failed)
	one := samples(a)
	two := samples(b)
	three := samples(failed)
	// One log by itself says the same of the queue, and nothing of directories.
	for name, v := range alone(a.Engine) {
		if got, ok := one[name]; !ok || got != v {
			t.Errorf("%s is %v, and %v (%v) as one of several", name, v, got, ok)
		}
	}
	if n := len(alone(a.Engine)); n == 0 || n != len(one)-3 {
		t.Errorf("%d numbers are published of a log, and %d as of one of several", n, len(one))
	}
	sums := 0
	for name, v := range one {
		switch {
		case strings.Contains(name, "/a"):
			if got[name] != v {
				t.Errorf("%s is %v, alone %v", name, got[name], v)
			}
		case strings.HasPrefix(name, "full"):
			if got[name] != 0 || v != 0 || two[name] != 1 || three[name] != 1 {
				t.Errorf("full: %v, %v, %v; all %v", v, two[name], three[name], got[name])
			}
		default:
			sums++
			if want := v + two[name] + three[name]; got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
	}
	for part, want := range map[string]float64{"messages[]": 6, "live_bytes[]": float64(as.LiveBytes + bs.LiveBytes + cs.LiveBytes), "disk_bytes[]": float64(as.DiskBytes + bs.DiskBytes + cs.DiskBytes),
		"directory_up[/a]": 1, "directory_up[/b]": 1, "directory_up[/c]": 0, "directory_messages[/a]": 3, "directory_messages[/b]": 2, "directory_messages[/c]": 1, "directory_disk_bytes[/b]": float64(bs.DiskBytes),
		"segments[used]": float64(as.Segments - as.Free + bs.Segments - bs.Free + cs.Segments - cs.Free), "segments[free]": float64(as.Free + bs.Free + cs.Free)} {
		if v, ok := got[part]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", part, v, ok, want)
		}
	}
	if sums < 8 {
		t.Errorf("%d sums are published: %v", sums, got)
	}
}

// The queue in several logs was last read when the log was that is behind the others; while one of them has never been read to
// its end the queue has not been, either. What was read and found is added up.
func TestLogsScrubbed(t *testing.T) {
	t.Parallel()
	log := func(passes uint64, last time.Time) spools.Standing {
		sp, err := spool.Open(spool.Options{FS: vfs.NewMem(512), Dir: "spool", SegmentSize: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sp.Close() })
		return spools.Standing{Part: spools.Part{Dir: "/x", Takes: true}, Engine: logEngine{Spool: sp,
			scrub: &scrubbing{past: spool.ScrubStats{Passes: passes, Bytes: 10 * passes, Findings: 100 * passes, Last: last}}}}
	}
	at := time.Unix(1700000000, 0)
	first, second, third := log(1, at.Add(time.Hour)), log(2, at), log(4, at.Add(2*time.Hour))
	never, silent := log(0, time.Time{}), log(0, time.Time{})
	silent.Engine = logEngine{Spool: silent.Engine.(logEngine).Spool} // nobody reads it
	for _, c := range []struct {
		list []spools.Standing
		want []float64 // the last time, how often, octets, findings
	}{
		{[]spools.Standing{first, second, third}, []float64{1700000000, 7, 70, 700}},
		{[]spools.Standing{third, first}, []float64{1700003600, 5, 50, 500}},
		{[]spools.Standing{second}, []float64{1700000000, 2, 20, 200}},
		{[]spools.Standing{first, never}, []float64{0, 1, 10, 100}},
		{[]spools.Standing{never, first}, []float64{0, 1, 10, 100}},
		{[]spools.Standing{silent, first}, []float64{1700003600, 1, 10, 100}},
		{[]spools.Standing{silent}, []float64{0, 0, 0, 0}},
	} {
		set := metrics.New()
		set.Offer(func(o *metrics.Offer) { offerLogs(o, c.list) })
		got := make([]float64, 4)
		for _, m := range set.Take().Samples {
			for i, name := range []string{"last_pass_timestamp_seconds", "passes", "bytes", "findings"} {
				if m.Name == "posthaste_spool_scrub_"+name {
					got[i] = m.Value
				}
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("of %d logs: %v, want %v", len(c.list), got, c.want)
		}
	}
}

// The list of doubtful messages is written a second after a change, so that it outlives the process; what comes later is
// written too. One that cannot be read, or written, is warned of and holds nothing up.
func TestDoubtsSaved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := plainLog()
		mem := vfs.NewMem(512)
		if err := mem.MkdirAll("spool"); err != nil {
			t.Fatal(err)
		}
		saved := func() (lines []string) {
			list, err := doubtful.Load(mem, "spool")
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list {
				lines = append(lines, fmt.Sprintf("%s %d %s+%d %s/%s %s %v", e.ID, e.Rcpt, e.Recipient, e.More, e.Why, e.Nexthop, e.State, e.Ended != nil))
			}
			return lines
		}
		d := newDoubts(mem, "spool", log.l)
		d.withdrawn(&queue.Withdrawn{ID: "A", Sender: "s@from.test", Recipients: []string{"a@to.test", "b@to.test", "c@to.test"}})
		time.Sleep(999 * time.Millisecond)
		if got := saved(); got != nil {
			t.Errorf("within the second: %q", got)
		}
		d.withdrawn(&queue.Withdrawn{ID: "B"})
		time.Sleep(2 * time.Millisecond)
		want := []string{"A -1 a@to.test+2 withdrawn/ left true", "B -1 +0 withdrawn/ left true"}
		if got := saved(); !slices.Equal(got, want) {
			t.Errorf("after it: %q", got)
		}
		d.withdrawn(&queue.Withdrawn{ID: "C", Recipients: []string{"a@to.test"}})
		time.Sleep(1001 * time.Millisecond)
		want = append(want, "C -1 a@to.test+0 withdrawn/ left true")
		if got := saved(); !slices.Equal(got, want) {
			t.Errorf("later: %q", got)
		}
		if d = newDoubts(mem, "spool", log.l); d.unseen() != 3 {
			t.Errorf("the next process finds %d", d.unseen())
		}
		if text := log.String(); text != "" {
			t.Errorf("logged\n%s", text)
		}
		failing := &vfs.Faulty{FS: mem, Hook: func(op vfs.Op) error {
			if op.Kind == vfs.OpWrite || op.Kind == vfs.OpSync {
				return &fs.PathError{Op: "write", Path: "doubtful.new", Err: syscall.EIO}
			}
			return nil
		}}
		d = newDoubts(failing, "spool", log.l)
		d.withdrawn(&queue.Withdrawn{ID: "D"})
		time.Sleep(2 * time.Second)
		if got, text := saved(), log.String(); !slices.Equal(got, want) || !strings.Contains(text, "warning: the list of messages that may have arrived twice cannot be saved: ") {
			t.Errorf("%q, logged\n%s", got, text)
		}
		d.flush() // nothing waits to be saved
		if n := strings.Count(log.String(), "cannot be saved"); n != 1 {
			t.Errorf("it is tried %d times", n)
		}
		log.l.Close()
	})
	none := (*doubts)(nil) // nothing is kept
	none.found(nil, nil, nil, true)
	none.lost(nil, nil, nil, true)
	none.late(nil, nil, "A")
	none.withdrawn(nil)
	none.recorded(nil, nil)
	none.handed("A", nil)
	none.settled(nil)
	none.flush()
}

// A start has in its list what it has found, with what it could tell of each: of mail that its client may send again, and that is
// in the queue or was withdrawn, one entry for the whole message.
func TestDoubtsFound(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(512)
	l := begin(t, mem, false)
	rd := queueread.Log(spool.NewReader(mem, "spool"))
	defer rd.Close()
	at := time.Unix(1700000000, 0)
	several, one, trace := l.add(3), l.add(1), l.add(2)
	var done spool.Batch
	done.Done(several, []int{0})
	done.Done(trace, []int{1})
	done.Apart()
	if err := l.sp.Commit(&done); err != nil {
		t.Fatal(err)
	}
	gone := mail.MakeQueueID(time.Unix(1800000000, 0), 1<<30)
	l.doubts.found(logEngine{Spool: l.sp}, rd, &recovery{Exact: true, Unanswered: []mail.QueueID{several, one, gone},
		Withdrawn: []queue.Withdrawn{{ID: "W", Sender: "w@from.test", Recipients: []string{"a@to.test", "b@to.test"}}},
		InDoubt: []queue.Doubt{{ID: several, Kind: queue.DoubtHanded, Rcpts: []int{1}, Nexthop: "mx.test", At: at}, {ID: trace, Kind: queue.DoubtTrace}, {ID: one, Kind: queue.DoubtLost, Rcpts: []int{0, 5}},
			{ID: gone, Kind: queue.DoubtHanded, Rcpts: []int{3}}}}, false)
	list, err := doubtful.Load(mem, "spool") // it is written before the spool is served
	if err != nil {
		t.Fatal(err)
	}
	names := map[mail.QueueID]string{several: "several", one: "one", trace: "trace", gone: "gone", "W": "W"}
	var got []string
	for _, e := range list {
		began := "-"
		if e.Began != nil {
			began = fmt.Sprint(e.Began.Unix())
		}
		got = append(got, fmt.Sprintf("%s from %s: %d %s+%d %s/%s %s since %s, exact %v", names[e.ID], e.Sender, e.Rcpt, e.Recipient, e.More, e.Why, e.Nexthop, e.State, began, e.Exact))
	}
	want := []string{
		"several from s@from.test: 1 r1@to.test+0 in hand/mx.test queued since 1700000000, exact false",
		"trace from s@from.test: 0 r0@to.test+0 trace/ queued since -, exact false",
		"one from s@from.test: 0 r0@to.test+0 lost/ queued since -, exact false",
		"one from s@from.test: 5 +0 lost/ queued since -, exact false",
		"gone from : 3 +0 in hand/ queued since -, exact false",
		"several from s@from.test: -1 r1@to.test+1 unanswered/ queued since -, exact false",
		"one from s@from.test: -1 r0@to.test+0 unanswered/ queued since -, exact false",
		"gone from : -1 +0 unanswered/ queued since -, exact false",
		"W from w@from.test: -1 a@to.test+1 withdrawn/ left since -, exact false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !l.doubts.some.Load() {
		t.Error("nothing is followed")
	}
}
