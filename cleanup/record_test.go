package cleanup

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
)

// A change that cannot be recorded is logged and does not keep those that
// came in the same request; nor does their length.
func TestRecordRefused(t *testing.T) {
	t.Parallel()
	for name, open := range engines(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recordRefused(t, open(t))
		})
	}
}

func recordRefused(t *testing.T, sp engine) {
	var log strings.Builder
	logs := maillog.NewWriter(&log, maillog.Classic)
	s := newServer(t.Context(), serverOptions{Engine: sp, Log: maillog.New("postfix/cleanup", logs)})
	client := served(t, s)

	first, err := sp.Lease(20)
	if err != nil {
		t.Fatal(err)
	}
	var record proto.Record
	add := sp.NewBatch()
	for i := range 20 {
		id := mail.MakeQueueID(time.Unix(1800000000, 0), first+uint64(i))
		env := mail.Envelope{ID: id, Sender: "s@from.test"}
		add.Add(addition{ID: id, Envelope: env.Append(nil), NRcpt: 1,
			Recipients: mail.AppendRecipients(nil, []mail.Recipient{{Address: "r@to.test"}}), Content: []byte("x\r\n")})
		record.Ops = append(record.Ops, proto.Op{ID: id, Change: queue.Change{Set: queue.SetQueue, Queue: queue.Deferred,
			Outcomes: []mail.Outcome{{Action: dsn.Deferred, Status: dsn.S(4, 0, 0), Reason: strings.Repeat("later ", 1000)}}}})
	}
	if err := sp.Commit(add); err != nil {
		t.Fatal(err)
	}
	bad := record.Ops[7].ID
	record.Ops[7] = proto.Op{ID: bad, Change: queue.Change{Done: []int{5}}}
	record.Ops[8] = proto.Op{ID: record.Ops[8].ID, Remove: true}
	gone := mail.MakeQueueID(time.Unix(1800000000, 0), first+100)
	record.Ops = append(record.Ops, proto.Op{ID: gone, Change: record.Ops[0].Change}, proto.Op{ID: gone, Change: queue.Change{Done: []int{0}}})
	var reply proto.RecordReply
	if err := client.Call(t.Context(), &record, &reply); err != nil {
		t.Fatal(err)
	}
	if len(reply.Refused) != 1 || reply.Refused[0].ID != bad || !strings.Contains(reply.Refused[0].Reason, "recipient 5") {
		t.Errorf("refused: %+v", reply.Refused)
	}
	if len(reply.Entries) != 18 {
		t.Errorf("%d entries in the answer, want 18", len(reply.Entries))
	}
	if !slices.Equal(reply.Gone, []mail.QueueID{gone}) {
		t.Errorf("gone: %v", reply.Gone)
	}
	for i, op := range record.Ops[:20] {
		en, ok := sp.Locate(op.ID)
		if want := i != 7; ok != (i != 8) || ok && (en.Queue == queue.Deferred) != want {
			t.Errorf("message %d: there %v, %+v", i, ok, en)
		}
	}
	logs.Close()
	if !strings.Contains(log.String(), string(bad)+": a change of the message in the queue is not recorded: spool: invalid batch") {
		t.Errorf("log: %s", log.String())
	}
}

// What somebody waits for is recorded at once, with all that was asked for before.
func TestRecordUrgent(t *testing.T) {
	t.Parallel()
	sp, err := spool.Open(spool.Options{Dir: filepath.Join(t.TempDir(), "spool"), SegmentSize: 64 << 10, Warn: t.Logf, PostDelay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer sp.Close()
	s := newServer(t.Context(), serverOptions{Engine: logEngine{Spool: sp}, Log: maillog.New("postfix/cleanup", maillog.NewWriter(io.Discard, maillog.Classic))})
	client := served(t, s)
	conn, err := client.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := make(chan error, 1)
	conn.Go(&proto.Record{Ops: []proto.Op{{ID: "gone", Remove: true}}}, func(_ []byte, err error) { before <- err })
	if err := client.Call(t.Context(), &proto.Record{Urgent: true}, new(proto.RecordReply)); err != nil {
		t.Fatal(err)
	}
	if err := <-before; err != nil {
		t.Error(err)
	}
	used := &recording{s: s, batch: s.opt.Engine.NewBatch(), q: proto.Record{Urgent: true}}
	used.release()
	if used.q.Urgent {
		t.Error("the next request in this memory would be urgent")
	}
}

// Requests to record something that come at the same time and one after the
// other are each answered with what is theirs.
func TestRecordMemoryUsedAgain(t *testing.T) {
	t.Parallel()
	for name, open := range engines(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recordAtOnce(t, open(t))
		})
	}
}

// recordAtOnce has several clients record at the same time.
func recordAtOnce(t *testing.T, en engine) {
	s := newServer(t.Context(), serverOptions{Engine: en, Log: maillog.New("postfix/cleanup", maillog.NewWriter(io.Discard, maillog.Classic))})
	client := served(t, s)
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(n)))
			for range 30 {
				// On a machine with much else to do the lease may not be renewed in time, and what is refused for that
				// is tried again, with other messages.
				for tries := 1; !recordSome(t, r, s.opt.Engine, client); tries++ {
					if tries == 100 {
						t.Error("the engine does not answer")
						return
					}
					time.Sleep(100 * time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
}

// recordSome adds some messages, has something recorded of each, and looks at
// the answer. It returns false if the engine is silent.
func recordSome(t *testing.T, r *rand.Rand, sp engine, client *ipc.Client) bool {
	n := 4 + r.IntN(10)
	first, err := sp.Lease(n)
	if err != nil {
		t.Error(err)
		return true
	}
	var record proto.Record
	var want, got []string
	add := sp.NewBatch()
	for i := range n {
		id := mail.MakeQueueID(time.Unix(1800000000, 0), first+uint64(i))
		env := mail.Envelope{ID: id, Sender: "s@from.test"}
		add.Add(addition{ID: id, Envelope: env.Append(nil), NRcpt: 2, Content: []byte("x\r\n"),
			Recipients: mail.AppendRecipients(nil, []mail.Recipient{{Address: "r@to.test"}, {Address: "s@to.test"}})})
		op := proto.Op{ID: id}
		switch r.IntN(4) {
		case 0:
			op.Remove = true
		case 1:
			op.Set, op.Attempts, op.Done = queue.SetAttempts, 1+i, []int{1}
			want = append(want, fmt.Sprint(id, " tried ", 1+i, ", pending 1"))
		case 2:
			op.Done = []int{0}
		case 3:
			op.Done = []int{i + 2}
			want = append(want, string(id)+" refused")
		}
		record.Ops = append(record.Ops, op)
	}
	var reply proto.RecordReply
	if err := errors.Join(sp.Commit(add), client.Call(t.Context(), &record, &reply)); err != nil {
		if sp.Silent() != nil || errors.Is(err, queue.ErrSilent) {
			return false
		}
		t.Error(err)
		return true
	}
	for _, e := range reply.Entries {
		got = append(got, fmt.Sprint(e.ID, " tried ", e.Attempts, ", pending ", e.NPending))
	}
	for _, f := range reply.Refused {
		got = append(got, string(f.ID)+" refused")
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("answered %q, want %q", got, want)
	}
	for i, op := range record.Ops {
		if en, there := sp.Locate(op.ID); there == op.Remove || there && (en.NPending == 1) != (len(op.Done) == 1 && op.Done[0] < 2) {
			t.Errorf("message %d: there %v, %+v after %+v", i, there, en, op)
		}
	}
	return true
}

// The set-gid group, whose members can connect, may ask for nothing.
func TestNothingPublic(t *testing.T) {
	t.Parallel()
	srv := newServer(t.Context(), serverOptions{}).IPC()
	for kind := range uint16(100) {
		if srv.Public == nil || srv.Public(&ipc.Request{Kind: kind}) {
			t.Errorf("kind %d is for everybody", kind)
		}
	}
}
