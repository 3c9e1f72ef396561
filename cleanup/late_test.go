package cleanup

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/vfs"
)

// A message that the disk takes so long over that its submitter may have told somebody "not queued" is named: in the
// log, and in the list until an operator has seen it.
func TestLate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		hangs time.Duration
		named bool
	}{{4 * time.Minute, false}, {5 * time.Minute, true}, {9 * time.Hour, true}} {
		t.Run(tt.hangs.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { late(t, tt.hangs, tt.named) })
		})
	}
}

func late(t *testing.T, hangs time.Duration, named bool) {
	var slow atomic.Bool
	disk := &vfs.Faulty{FS: vfs.NewMem(4096), Hook: func(op vfs.Op) error {
		if op.Kind == vfs.OpSync && slow.CompareAndSwap(true, false) {
			time.Sleep(hangs)
		}
		return nil
	}}
	sp, err := spool.Open(spool.Options{FS: disk, Dir: "spool", SegmentSize: 1 << 20, InlineLimit: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer sp.Close()
	synctest.Wait() // it has made room for what comes
	rd := queueread.Log(spool.NewReader(disk, "spool"))
	defer rd.Close()
	log := new(logText)
	logger := maillog.New("postfix/cleanup", maillog.NewWriter(log, maillog.Format(0)))
	log.l = logger
	defer logger.Close()
	l := &life{t: t, sp: sp, doubts: newDoubts(disk, "spool", logger)}
	core := newCore(t, "", func(text string) { t.Error(text) })
	s := newServer(t.Context(), serverOptions{Core: core, Engine: logEngine{Spool: sp}, Log: logger, Token: func() bool { return true }, BufferLimit: 1 << 20,
		Doubts: l.doubts, Reader: rd})
	defer s.Wait()
	n, err := sp.Lease(1)
	if err != nil {
		t.Fatal(err)
	}
	id := mail.MakeQueueID(time.Now(), n)
	in := begun(s, &proto.Submit{Envelope: mail.Envelope{ID: id, Sender: "s@from.test",
		Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}}}})
	in.write([]byte("Subject: x\r\n\r\nx\r\n"))
	slow.Store(true)
	if r, _ := in.commit(); r.Code != 250 {
		t.Fatalf("%+v", r)
	}
	var want []string
	if named {
		want = []string{"-1 a@to.test unanswered/ queued"}
	}
	if got := l.list(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if said := strings.Contains(log.String(), string(id)+": in doubt: it is in the queue, which took the disk "+hangs.String()+"; its client may have been told 451"); said != named {
		t.Errorf("%s", log.String())
	}
}
