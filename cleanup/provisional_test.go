package cleanup

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
	"posthaste/internal/event"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

func done(rcpts ...int) proto.Op { return proto.Op{Change: queue.Change{Done: rcpts}} }

// with is a decision with outcomes for the recipients from 0 on.
func with(op proto.Op, actions ...dsn.Action) proto.Op {
	for i, a := range actions {
		op.Outcomes = append(op.Outcomes, mail.Outcome{Rcpt: i, Action: a, Status: dsn.S(5, 1, 1), DiagText: fmt.Sprint("no ", i)})
	}
	return op
}

// What each decision leads to, in each phase.
func TestWait(t *testing.T) {
	t.Parallel()
	var (
		finish = proto.Op{Remove: true, Finished: true}
		remove = proto.Op{Remove: true}
		wanted = proto.Op{Keep: true}
		lost   = proto.Op{Handed: []int{0}, Lost: true}
		later  = proto.Op{Change: queue.Change{Set: queue.SetQueue, Queue: queue.Deferred}}
		hold   = proto.Op{Change: queue.Change{Set: queue.SetQueue, Queue: queue.Hold}}
	)
	for _, tt := range []struct {
		name   string
		n      int
		refuse bool
		ops    []proto.Op
		want   []step
		phase  phase
		done   string
	}{
		{"all at once", 2, false, []proto.Op{done(0, 1)}, []step{settled}, ended, "[0 1]"},
		{"one by one", 2, false, []proto.Op{done(1), done(1), done(0)}, []step{taken, taken, settled}, ended, "[0 1]"},
		{"finished", 2, false, []proto.Op{done(1), finish}, []step{taken, settled}, ended, "[1]"},
		{"deferred", 2, false, []proto.Op{done(0), later, done(1)}, []step{taken, keep, behind}, keeping, "[0]"},
		{"deferred with the last success", 2, false, []proto.Op{{Change: queue.Change{Set: queue.SetQueue, Done: []int{1}}}}, []step{keep}, keeping, "[1]"},
		{"held", 1, false, []proto.Op{hold, remove}, []step{keep, behind}, keeping, "[]"},
		{"deleted", 1, true, []proto.Op{remove}, []step{keep}, keeping, "[]"},
		{"agent died", 1, true, []proto.Op{lost, done(0)}, []step{keep, behind}, keeping, "[]"},
		{"wanted", 1, true, []proto.Op{wanted, finish}, []step{keep, behind}, keeping, "[]"},
		{"failed, to be bounced", 1, false, []proto.Op{with(wanted, dsn.Failed)}, []step{keep}, keeping, "[]"},
		{"failed, to be refused", 2, true, []proto.Op{with(wanted, dsn.Failed, dsn.Failed), done(0)}, []step{refused, behind}, ended, "[]"},
		{"one of two failed", 2, true, []proto.Op{with(wanted, dsn.Failed)}, []step{keep}, keeping, "[]"},
		{"one failed, one has it", 2, true, []proto.Op{done(1), with(wanted, dsn.Failed)}, []step{taken, keep}, keeping, "[1]"},
		{"one has it, and is said to have failed", 2, true, []proto.Op{done(1), with(wanted, dsn.Failed, dsn.Failed)}, []step{taken, keep}, keeping, "[1]"},
		{"one failed, one is deferred", 2, true, []proto.Op{with(wanted, dsn.Failed, dsn.Deferred)}, []step{keep}, keeping, "[]"},
		{"a list with a member that failed", 1, true, []proto.Op{{Keep: true, Change: queue.Change{Outcomes: []mail.Outcome{{Action: dsn.Failed,
			Parts: []mail.Part{{Action: dsn.Failed}}}}}}}, []step{keep}, keeping, "[]"},
		{"failed, but nobody asks", 1, true, []proto.Op{with(proto.Op{}, dsn.Failed)}, []step{keep}, keeping, "[]"},
		{"nobody that there is", 1, false, []proto.Op{done(-1, 7), done(0)}, []step{taken, settled}, ended, "[0]"},
	} {
		w := newWait(tt.n, tt.refuse)
		for i := range tt.ops {
			if got := w.take(&tt.ops[i]); got != tt.want[i] {
				t.Errorf("%s: decision %d leads to %d, want %d", tt.name, i, got, tt.want[i])
			}
		}
		if w.phase != tt.phase || fmt.Sprint(w.doneRcpts()) != tt.done {
			t.Errorf("%s: phase %d, done %v; want %d, %s", tt.name, w.phase, w.doneRcpts(), tt.phase, tt.done)
		}
		if (w.answer != nil) != (slices.Contains(tt.want, refused)) || w.answer != nil && w.answer.DiagText != "no 0" {
			t.Errorf("%s: the answer is %+v", tt.name, w.answer)
		}
		if w.keep() {
			t.Errorf("%s: kept a second time", tt.name)
		}
	}
}

// Whatever is decided, a message has one fate; a recipient that is done was said to be done; 250 without the log takes
// that all are done; and a refusal that none is.
func TestWaitHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "recipients")
		w := newWait(n, rapid.Bool().Draw(t, "refuse"))
		said := make([]bool, n)
		fates := 0
		for range rapid.IntRange(1, 12).Draw(t, "decisions") {
			if rapid.IntRange(0, 9).Draw(t, "kind") == 0 {
				was := w.phase
				if w.keep() != (was == waiting) {
					t.Fatal("kept in the wrong phase")
				} else if was == waiting {
					fates++
				}
				continue
			}
			op := proto.Op{Keep: rapid.IntRange(0, 5).Draw(t, "keep") == 0, Remove: rapid.IntRange(0, 9).Draw(t, "remove") == 0}
			op.Done = rapid.SliceOfN(rapid.IntRange(-1, n), 0, 2).Draw(t, "done")
			for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 0, n, rapid.ID).Draw(t, "outcomes") {
				if rapid.Bool().Draw(t, "says") {
					op.Outcomes = append(op.Outcomes, mail.Outcome{Rcpt: i, Action: rapid.SampledFrom([]dsn.Action{dsn.Failed, dsn.Failed, dsn.Deferred}).Draw(t, "action")})
				}
			}
			was := w.phase
			if was == waiting && !op.Remove {
				for _, i := range op.Done {
					if i >= 0 && i < n {
						said[i] = true
					}
				}
			}
			got := w.take(&op)
			if (got == behind) != (was != waiting) {
				t.Fatalf("phase %d leads to %d", was, got)
			}
			switch got {
			case settled:
				fates++
				if slices.Contains(said, false) {
					t.Fatalf("250 for a message that not all have: %v", said)
				}
			case refused:
				fates++
				if slices.Contains(said, true) || len(op.Outcomes) != n || !w.refuse {
					t.Fatalf("refused, and %v have it", said)
				}
			case keep:
				fates++
			}
		}
		if fates > 1 {
			t.Fatalf("%d fates", fates)
		}
		for i, d := range w.done {
			if d != said[i] {
				t.Fatalf("done %v, said %v", w.done, said)
			}
		}
	})
}

// What is not plain new mail to a few recipients is stored before anybody gets it.
func TestMayWait(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(in *incoming, res *Result, opt *serverOptions){
		"":                  func(*incoming, *Result, *serverOptions) {},
		"nobody waits":      func(in *incoming, _ *Result, _ *serverOptions) { in.q.Wait = 0 },
		"content in a file": func(in *incoming, _ *Result, _ *serverOptions) { in.file = struct{ contentFile }{} },
		"exact doubt":       func(_ *incoming, _ *Result, opt *serverOptions) { opt.Exact = true },
		"events":            func(_ *incoming, _ *Result, opt *serverOptions) { opt.Events = new(event.Reporter) },
		"on hold":           func(_ *incoming, res *Result, _ *serverOptions) { res.Hold = true },
		"refused":           func(_ *incoming, res *Result, _ *serverOptions) { res.Refused = new(refusal) },
		"content filter":    func(_ *incoming, res *Result, _ *serverOptions) { res.Envelope.Filter = "scan:dummy" },
		"settles":           func(in *incoming, _ *Result, _ *serverOptions) { in.q.Settles = new(proto.Settle) },
		"a state":           func(in *incoming, _ *Result, _ *serverOptions) { in.q.State = new(queue.Change) },
		"not received":      func(in *incoming, _ *Result, _ *serverOptions) { in.q.Flags |= proto.SubmitNoReceive },
		"verification":      func(_ *incoming, res *Result, _ *serverOptions) { res.Envelope.Trace = mail.TraceProbe },
		"later":             func(_ *incoming, res *Result, _ *serverOptions) { res.Envelope.SendAt = time.Unix(1900000000, 0) },
		"too many": func(_ *incoming, res *Result, _ *serverOptions) {
			res.Envelope.Recipients = make([]mail.Recipient, maxWaitRcpts+1)
		},
		"a large envelope": func(in *incoming, _ *Result, _ *serverOptions) { in.stored = make([]byte, maxInlineEntry+1) },
		"success is to be told": func(_ *incoming, res *Result, _ *serverOptions) {
			res.Envelope.Recipients[1].Notify = dsn.NotifySuccess
		},
	} {
		s := &server{}
		in := &incoming{s: s, q: proto.Submit{Wait: time.Second}}
		res := &Result{Envelope: mail.Envelope{Recipients: make([]mail.Recipient, 2)}}
		change(in, res, &s.opt)
		if got := in.mayWait(res, false); got != (name == "") {
			t.Errorf("%q: may wait: %v", name, got)
		}
		if in.mayWait(res, true) {
			t.Errorf("%q: something is to be recorded of it, and it may wait", name)
		}
	}
	s := &server{}
	s.ending.Store(true)
	if (&incoming{s: s, q: proto.Submit{Wait: time.Second}}).mayWait(&Result{}, false) {
		t.Error("the process ends, and a message may wait")
	}
	full := &Result{Envelope: mail.Envelope{Recipients: make([]mail.Recipient, maxWaitRcpts)}}
	if !(&incoming{s: new(server), q: proto.Submit{Wait: time.Second}}).mayWait(full, false) {
		t.Errorf("%d recipients are too many", maxWaitRcpts)
	}
}
