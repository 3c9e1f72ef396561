package doubtful

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

var t0 = time.Date(2026, 11, 23, 16, 0, 0, 0, time.UTC)

func entry(i int, why string) Entry {
	return Entry{ID: mail.QueueID(fmt.Sprintf("4jWn4F1YhnzSshsm%d", i)), Sender: "s@from.test", Rcpt: i % 3, Recipient: "r@to.test", Why: why,
		Found: t0.Add(time.Duration(i) * time.Second), State: Queued}
}

// The list is what was saved, bounded, and without what has been seen.
func TestList(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(512)
	if err := mem.MkdirAll("q"); err != nil {
		t.Fatal(err)
	}
	if l, err := Load(mem, "q"); err != nil || l != nil {
		t.Errorf("none: %v, %v", l, err)
	}
	var l List
	for i := range Max + 10 {
		l.Add(entry(i, InHand))
	}
	if len(l) != Max || l[0].Found != t0.Add(10*time.Second) {
		t.Errorf("%d entries, from %v on", len(l), l[0].Found)
	}
	last := entry(Max+9, InHand)
	last.Nexthop = "mx2"
	l.Add(last) // found once more
	if len(l) != Max || l[Max-1].Nexthop != "mx2" {
		t.Errorf("%d entries, %+v", len(l), l[Max-1])
	}
	if !l.Open(last.ID) || !l.End(last.ID, []int{last.Rcpt}, Delivered, t0) || l.Open(last.ID) || l.End(last.ID, nil, Removed, t0) {
		t.Error("it ends more or less than once")
	}
	if l.End(l[0].ID, []int{l[0].Rcpt + 1}, Delivered, t0) {
		t.Error("another recipient ends it")
	}
	l.Add(last)
	if len(l) != Max || l[Max-2].State != Delivered || l[Max-1].State != Queued {
		t.Errorf("a second time in doubt: %+v, %+v", l[Max-2], l[Max-1])
	}
	for range 2 {
		if err := l.Save(mem, "q"); err != nil {
			t.Fatal(err)
		}
		got, err := Load(mem, "q")
		if err != nil || !reflect.DeepEqual(got, l) {
			t.Fatalf("%d entries, %v", len(got), err)
		}
	}
	if err := SetSeen(mem, "q", t0.Add(100*time.Second)); err != nil {
		t.Fatal(err)
	}
	got, err := Load(mem, "q")
	if err != nil || len(got) != Max-92+1 && got[0].Found.Sub(t0) != 101*time.Second {
		t.Errorf("%d not seen, from %v on; %v", len(got), got[0].Found.Sub(t0), err)
	}
	if err := l.Save(mem, "q"); err != nil || len(l) != len(got) {
		t.Errorf("%d saved, %d not seen; %v", len(l), len(got), err)
	}
	if err := SetSeen(mem, "q", t0.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got, err := Load(mem, "q"); err != nil || len(got) != 0 {
		t.Errorf("all seen: %v, %v", got, err)
	}
}

// Whenever the power fails while the list is saved, the one from before or the new one is there.
func TestListPowerCut(t *testing.T) {
	t.Parallel()
	for n := 0; ; n++ {
		mem := vfs.NewMem(512)
		if err := mem.MkdirAll("q"); err != nil {
			t.Fatal(err)
		}
		old, now := List{entry(1, New)}, List{entry(1, New), entry(2, Trace)}
		if err := old.Save(mem, "q"); err != nil {
			t.Fatal(err)
		}
		left := n
		err := now.Save(&vfs.Faulty{FS: mem, Hook: func(op vfs.Op) error {
			switch op.Kind {
			case vfs.OpCreate, vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir, vfs.OpRemove, vfs.OpRename:
				if left--; left < 0 {
					return vfs.ErrCut
				}
			}
			return nil
		}}, "q")
		for name, l := range map[string]vfs.Loss{"nothing": {}, "names": {Names: func(_, _, ops int) int { return ops }, Count: func() bool { return true }}} {
			after := mem.Cut(l)
			got, lerr := Load(after, "q")
			if lerr != nil || !reflect.DeepEqual(got, old) && !reflect.DeepEqual(got, now) {
				t.Errorf("cut at operation %d, %s kept: %v, %v", n, name, got, lerr)
			}
			if lerr := now.Save(after, "q"); lerr != nil {
				t.Errorf("cut at operation %d: saved again: %v", n, lerr)
			}
		}
		if err == nil {
			if n < 6 {
				t.Errorf("only %d operations", n)
			}
			return
		}
		if !errors.Is(err, vfs.ErrCut) {
			t.Fatal(err)
		}
	}
}

// What is no list of ours is an error, and not read without bound.
func TestListDamaged(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"x\n", `{"queue_id":"a"}` + "\n{", strings.Repeat(" ", maxFile+1)} {
		mem := vfs.NewMem(4096)
		if err := mem.MkdirAll("q"); err != nil {
			t.Fatal(err)
		}
		if err := write(mem, "q", listName, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(mem, "q"); err == nil {
			t.Errorf("%.20q is read", text)
		}
	}
	mem := vfs.NewMem(512)
	if err := mem.MkdirAll("q"); err != nil {
		t.Fatal(err)
	}
	if err := write(mem, "q", seenName, []byte("2026-1")); err != nil {
		t.Fatal(err)
	}
	if seen, err := Seen(mem, "q"); err != nil || !seen.IsZero() {
		t.Errorf("%v, %v", seen, err)
	}
}
