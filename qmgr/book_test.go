package qmgr

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// checkBook counts everything again.
func checkBook(b *book) (problem string) {
	uses := map[nameID]uint32{}
	unknown, held := 0, 0
	for i := int32(1); i < b.used; i++ {
		p := b.at(i)
		if p.num == 0 {
			continue
		}
		if b.index.Find(p.num) != i {
			problem += fmt.Sprintf(" message %d is not in the index;", p.num)
		}
		if p.sender == 0 && p.flags&slipLost == 0 {
			unknown++
		}
		uses[p.sender]++
		if p.domain != 0 {
			uses[p.domain]++
		}
		if m, ok := b.more[p.num]; ok != (p.flags&slipMore != 0) {
			problem += fmt.Sprintf(" message %d: more: %v;", p.num, ok)
		} else if ok {
			held++
			m.each(func(id nameID, _ int) { uses[id]++ })
		}
	}
	for num, id := range b.campaigns {
		if uses[id]++; b.find(num) == nil {
			problem += fmt.Sprintf(" a campaign of message %d, which is gone;", num)
		}
	}
	delete(uses, 0)
	for id, e := range b.names.list {
		if e.uses != uses[nameID(id)] || e.uses > 0 && b.names.ids[e.text] != nameID(id) {
			problem += fmt.Sprintf(" name %q has %d uses, not %d;", e.text, e.uses, uses[nameID(id)])
		}
	}
	if unknown != b.unknown || held != len(b.more) || len(b.names.ids) != len(uses) {
		problem += fmt.Sprintf(" %d unknown, not %d; %d with more, not %d; %d names, not %d", b.unknown, unknown, len(b.more), held,
			len(b.names.ids), len(uses))
	}
	return problem
}

// What is put into the book comes out of it, whatever happens in between.
func TestBook(t *testing.T) {
	t.Parallel()
	type kept struct {
		id      mail.QueueID
		ref     queue.Ref
		nrcpt   int
		null    bool
		done    []byte
		domains map[string]int
	}
	rapid.Check(t, func(t *rapid.T) {
		b := newBook()
		want := map[sched.MsgID]*kept{}
		domain := rapid.SampledFrom([]string{"a.test", "b.test", "c.test", "@", ""})
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				num := sched.MsgID(rapid.Uint64Range(1, 60).Draw(t, "num"))
				if want[num] != nil {
					t.Skip("known")
				}
				k := &kept{nrcpt: rapid.IntRange(1, 80).Draw(t, "nrcpt"), null: rapid.Bool().Draw(t, "null"),
					ref: queue.Ref{File: 1, Segno: 1 << 40, Offset: uint32(num), Length: 9}}
				at := time.UnixMicro(rapid.Int64Range(1e15, 2e15).Draw(t, "created"))
				k.id = mail.MakeQueueID(at, uint64(num))
				if rapid.Bool().Draw(t, "some are done") {
					k.done = make([]byte, (k.nrcpt+7)/8)
					k.done[0] = 1
				}
				b.add(num, at, k.ref, k.nrcpt, k.null, slices.Clone(k.done))
				want[num] = k
			},
			"change": func(t *rapid.T) {
				if len(want) == 0 {
					t.Skip("none")
				}
				num := rapid.SampledFrom(slices.Sorted(maps.Keys(want))).Draw(t, "num")
				k, p := want[num], b.find(num)
				switch rapid.IntRange(0, 5).Draw(t, "what") {
				case 0:
					k.ref.Offset++
					p.setRef(k.ref)
				case 1:
					k.done = make([]byte, (k.nrcpt+7)/8)
					k.done[len(k.done)-1] = 1
					b.setDone(p, slices.Clone(k.done))
				case 2:
					k.domains = rapid.MapOfN(domain, rapid.IntRange(1, 200), 0, 4).Draw(t, "domains")
					b.setDomains(p, "s@"+domain.Draw(t, "sender"), k.domains)
				case 3:
					k.domains = nil
					b.forgetDomains(p)
				case 4:
					b.setLost(p)
				case 5:
					b.drop(num)
					delete(want, num)
				}
			},
			"": func(t *rapid.T) {
				if problem := checkBook(b); problem != "" {
					t.Fatal(problem)
				}
				for num, k := range want {
					p := b.find(num)
					m := b.message(p)
					if m.id != k.id || m.num != num || m.ref != k.ref || int(m.nrcpt) != k.nrcpt || m.null != k.null || !slices.Equal(m.done, k.done) {
						t.Fatalf("%+v, not %+v", m, k)
					}
					got := map[string]int{}
					one := len(k.domains) == 1
					b.eachDomain(p, 7, func(id nameID, n int) {
						if one {
							n = k.domains[b.names.list[id].text] // pending recipients are known elsewhere
						}
						got[b.names.list[id].text] += n
					})
					if p.sender == 0 && len(got) > 0 || !maps.Equal(got, k.domains) && len(k.domains) > 0 {
						t.Fatalf("domains %v, not %v", got, k.domains)
					}
				}
			},
		})
	})
}

// However much was said about however many recipients, it goes into frames,
// in order, and the change of queue with the last part.
func TestSplitOps(t *testing.T) {
	t.Parallel()
	words := strings.Repeat("no ", 2<<10)
	rapid.Check(t, func(t *rapid.T) {
		var ops []proto.Op
		type said struct {
			id   mail.QueueID
			rcpt int
			done bool
		}
		var want []said
		for i, n := range rapid.SliceOfN(rapid.IntRange(0, 100), 1, 4).Draw(t, "outcomes") {
			op := proto.Op{ID: mail.QueueID(fmt.Sprint("Q", i)), Change: queue.Change{Set: queue.SetQueue}}
			for r := range rapid.SampledFrom([]int{0, 0, 0, 0, 1, 1, maxRequest/8 + 10}).Draw(t, "done") {
				op.Done = append(op.Done, r)
				want = append(want, said{op.ID, r, true})
			}
			long := rapid.IntRange(0, len(words)).Draw(t, "length")
			for r := range n {
				op.Outcomes = append(op.Outcomes, mail.Outcome{Rcpt: r, Reason: words[:long], DiagText: words[:long]})
				want = append(want, said{op.ID, r, false})
			}
			ops = append(ops, op)
		}
		n := len(ops)
		var got []said
		var encoded []byte
		for _, part := range splitOps(ops) {
			for _, op := range part {
				for _, r := range op.Done {
					got = append(got, said{op.ID, r, true})
				}
				for _, o := range op.Outcomes {
					got = append(got, said{op.ID, o.Rcpt, false})
				}
				if op.Set != 0 {
					n--
				}
			}
			if encoded = (&proto.Record{Ops: part}).Append(encoded[:0]); len(encoded) > 2*maxRequest {
				t.Fatalf("%d octets in one request", len(encoded))
			}
		}
		if n != 0 || !slices.Equal(got, want) {
			t.Fatalf("%d changes of queue lost, %d outcomes of %d", n, len(got), len(want))
		}
	})
}
