package resolver

import "testing"

// TestTransitional is not parallel: how names are converted is the process's.
func TestTransitional(t *testing.T) {
	for _, c := range []struct {
		yes                bool
		name, ascii, other string
	}{
		{false, "faß.example", "xn--fa-hia.example", "xn--fa-hia.example"},
		{true, "faß.example", "fass.example", "fass.example"},
		{true, "bücher.example", "xn--bcher-kva.example", "xn--bcher-kva.example"},
		{true, "xn--fa-hia.example", "xn--fa-hia.example", "faß.example"},
	} {
		SetTransitional(c.yes)
		ascii, ok := ToASCII(c.name)
		if other := OtherForm(c.name); ascii != c.ascii || !ok || other != c.other {
			t.Errorf("%s, transitional %v: %s, %v, other form %s", c.name, c.yes, ascii, ok, other)
		}
	}
	SetTransitional(false)
}
