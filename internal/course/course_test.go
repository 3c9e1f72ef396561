package course

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var begin = time.Unix(1_800_000_000, 0)

// A minute has the state at its first session, and sums over all of its sessions.
func TestMinutes(t *testing.T) {
	t.Parallel()
	var b Book
	st := b.Add(begin, "a", Session{Took: time.Second, Opened: true, Security: "TLSv1.3"})
	if st == nil {
		t.Fatal("the first session asks for no state")
	}
	st.Window = 5
	if b.Add(begin.Add(30*time.Second), "a", Session{Took: 2 * time.Second, Away: true, Opened: true, Security: "none"}) != nil || b.Add(begin.Add(59*time.Second), "a", Session{}) != nil {
		t.Error("a later one does")
	}
	if b.Add(begin.Add(-time.Hour), "a", Session{}) != nil {
		t.Error("a clock that was set back begins a minute")
	}
	b.Add(begin.Add(5*time.Minute), "a", Session{Security: "TLSv1.3"}).Window = 7
	got := b.Of("a").Minutes(begin)
	if len(got) != 2 || got[0] != (Minute{At: begin.Unix() / 60, State: State{Window: 5}, Sessions: 4, Away: 1, Opened: 2, Took: 3 * time.Second}) || got[1].Window != 7 || !got[1].Begin().Equal(begin.Add(5*time.Minute)) {
		t.Errorf("%+v", got)
	}
	if got := b.Of("a").Minutes(begin.Add(time.Minute)); len(got) != 1 || got[0].Window != 7 {
		t.Errorf("of later: %+v", got)
	}
	if got := b.Of("a").Minutes(begin.Add(time.Hour)); len(got) != 0 || b.Of("b") != nil {
		t.Errorf("of nothing: %+v", got)
	}
	if s := b.Of("a").Securities(); len(s) != 2 || s[0] != (Security{"TLSv1.3", 2, begin.Add(5 * time.Minute)}) || s[1].Text != "none" {
		t.Errorf("%+v", s)
	}
}

// Whatever comes, a book has no more than it may, and its minutes are the last ones, in order.
func TestBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var b Book
		now, n := begin, 0
		for range rapid.IntRange(1, 3*MaxMinutes).Draw(t, "sessions") {
			now = now.Add(time.Duration(rapid.IntRange(0, 150).Draw(t, "seconds")) * time.Second)
			b.Add(now, "a", Session{Security: strings.Repeat("x", rapid.IntRange(0, 300).Draw(t, "length"))})
			n++
		}
		m := b.Of("a").Minutes(time.Time{})
		if len(m) == 0 || len(m) > MaxMinutes || m[len(m)-1].At != now.Unix()/60 {
			t.Fatalf("%d minutes", len(m))
		}
		sum := 0
		for i := range m {
			if sum += int(m[i].Sessions); i > 0 && m[i].At <= m[i-1].At {
				t.Fatalf("%d after %d", m[i].At, m[i-1].At)
			}
		}
		if sum > n || len(m) < MaxMinutes && sum != n {
			t.Fatalf("%d sessions of %d", sum, n)
		}
		for _, s := range b.Of("a").Securities() {
			if len(s.Text) > maxText {
				t.Fatal(len(s.Text))
			}
		}
		if len(b.Of("a").Securities()) > MaxSecurities {
			t.Fatal(b.Of("a").Securities())
		}
	})
	var b Book
	for i := range MaxDestinations + 1 {
		b.Add(begin, fmt.Sprint(i), Session{})
		b.Add(begin, "kept", Session{})
	}
	if b.Of("0") != nil || b.Of("kept") == nil || b.Of(fmt.Sprint(MaxDestinations)) == nil || len(b.byName) != MaxDestinations || b.order.Len() != MaxDestinations {
		t.Errorf("%d destinations", len(b.byName))
	}
}
