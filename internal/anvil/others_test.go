package anvil

import (
	"testing"
	"time"
)

// What is counted elsewhere is in what Add and Lookup say, until it is too old, and not in what is told of here.
func TestOthers(t *testing.T) {
	t.Parallel()
	now := time.Unix(1800000000, 0)
	c := NewTable(Options[string]{Unit: time.Minute, Now: func() time.Time { return now }})
	all := func(c Counts) float64 { return float64(c[Message]) }
	c.Add("a", Message)
	c.SetOthers(map[string]Counts{"a": {Message: 5}, "b": {Message: 7}}, now.Add(time.Second))
	if n := c.Add("a", Message); n != 7 {
		t.Errorf("%d messages, want 7", n)
	}
	if a, b := c.Lookup("a")[Message], c.Lookup("b")[Message]; a != 7 || b != 7 {
		t.Errorf("%d and %d messages, want 7 and 7", a, b)
	}
	if list := c.Busiest(5, all); len(list) != 1 || list[0].Counts[Message] != 2 {
		t.Errorf("%v", list)
	}
	now = now.Add(time.Second)
	if n := c.Add("a", Message); n != 3 {
		t.Errorf("%d messages, want 3", n)
	}
	c.Add("c", Connections)
	now = now.Add(time.Minute)
	if n := c.Lookup("a")[Message]; n != 0 {
		t.Errorf("%d messages after the interval", n)
	}
	if list := c.Busiest(5, all); len(list) != 0 {
		t.Errorf("%v after the interval", list)
	}
}
