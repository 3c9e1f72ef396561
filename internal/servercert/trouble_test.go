package servercert

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"
)

// TestTurn: each authority has the waits that its own refusals have led to, and is forgotten when they
// are long over.
func TestTurn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	a, b := Trouble{3, "a says no", now.Add(time.Hour)}, Trouble{1, "b says no", now.Add(time.Minute)}
	// As an older version has written it, which knew one authority only.
	st := new(State)
	if err := json.Unmarshal([]byte(`{"failures": 3, "problem": "a says no", "next": "2026-11-27T13:00:00Z"}`), st); err != nil {
		t.Fatal(err)
	}
	turn := func(url string, want Trouble) {
		t.Helper()
		if st.Turn(url, now); st.Asked != url || st.Trouble != want {
			t.Errorf("of %s: %+v, expected %+v", url, st.Trouble, want)
		}
		text, err := json.Marshal(st)
		again := new(State)
		if err != nil || json.Unmarshal(text, again) != nil || !reflect.DeepEqual(st.Trouble, again.Trouble) || len(st.Elsewhere) != len(again.Elsewhere) {
			t.Errorf("%v, %+v is kept as %s", err, st, text)
		}
	}
	turn("a", a)
	turn("a", a)
	turn("b", Trouble{})
	st.Trouble = b
	turn("c", Trouble{}) // which has refused nothing
	turn("b", b)
	turn("a", a)
	if len(st.Elsewhere) != 1 {
		t.Errorf("%v", st.Elsewhere)
	}
	for i := range 20 {
		turn(fmt.Sprint("x", i), Trouble{})
		st.Trouble = Trouble{1, "no", now.Add(time.Duration(i) * time.Second)}
	}
	if len(st.Elsewhere) != maxElsewhere {
		t.Errorf("%d authorities are remembered", len(st.Elsewhere))
	}
	turn("a", a) // it wants to be left in peace for longest
	now = a.Next.Add(forgive)
	turn("d", Trouble{})
	turn("a", a)
	now = now.Add(time.Second)
	turn("d", Trouble{})
	turn("a", Trouble{})
}
