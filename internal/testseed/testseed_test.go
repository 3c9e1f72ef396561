package testseed

import "testing"

func TestFirst(t *testing.T) {
	t.Setenv(Variable, "17")
	if seed := First(t); seed != 17 {
		t.Errorf("%d", seed)
	}
	for _, text := range []string{"", "0", "x"} {
		t.Setenv(Variable, text)
		if seed := First(t); seed < 1<<40 { // nanoseconds of the clock
			t.Errorf("%q: %d", text, seed)
		}
	}
}
