package feedback

import (
	"math"
	"strings"
	"testing"
)

// TestParse: every form that Postfix's parser takes and refuses. want is what
// it goes on with; ok says that it does so without a warning.
func TestParse(t *testing.T) {
	t.Parallel()
	n := func(base float64) Feedback { return Feedback{Base: base} }
	for text, test := range map[string]struct {
		want Feedback
		ok   bool
	}{
		"1":                              {n(1), true},
		"0":                              {n(0), true},
		"0.25":                           {n(0.25), true},
		".5":                             {n(0.5), true},
		"1.":                             {n(1), true},
		"+0.5":                           {n(0.5), true},
		"25e-2":                          {n(0.25), true},
		"1/4":                            {n(0.25), true},
		"1/8":                            {n(0.125), true},
		" 1 / 8":                         {n(0.125), true},
		"1/\t8":                          {n(0.125), true},
		"3/4":                            {n(0.75), true},
		"2/4":                            {n(0.5), true},
		"0.5/2":                          {n(0.25), true},
		"0.5/0.5":                        {n(1), true},
		"0/7":                            {n(0), true},
		"1/concurrency":                  {Feedback{1, Inverse}, true},
		"1 / concurrency":                {Feedback{1, Inverse}, true},
		"0.5/concurrency":                {Feedback{0.5, Inverse}, true},
		"1/Concurrency":                  {Feedback{1, Inverse}, true},
		"1/sqrt_concurrency":             {Feedback{1, Root}, true},
		" 0.25 / sqrt_concurrency":       {Feedback{0.25, Root}, true},
		"0.5x":                           {n(0.5), false},
		"0.25 # of four":                 {n(0.25), false},
		"":                               {n(1), false},
		" ":                              {n(1), false},
		"one":                            {n(1), false},
		"1/":                             {n(1), false},
		"/4":                             {n(1), false},
		"1/0":                            {n(1), false},
		"1/-4":                           {n(1), false},
		"-1":                             {n(1), false},
		"-1/4":                           {n(1), false},
		"-0.5/concurrency":               {n(1), false},
		"2":                              {n(1), false},
		"3/2":                            {n(1), false},
		"2/concurrency":                  {n(1), false},
		"1/n":                            {n(1), false},
		"1/4x":                           {n(1), false},
		"1/4 x":                          {n(1), false},
		"1/4 ":                           {n(1), false},
		"1//4":                           {n(1), false},
		"1/concurrency/2":                {n(1), false},
		"nan":                            {n(1), false},
		"inf":                            {n(1), false},
		"1/nan":                          {n(1), false},
		"1/inf":                          {n(1), false},
		"1/4000000000":                   {n(1), false},
		"1/" + strings.Repeat("0", 29):   {n(1), false},
		"0/0":                            {n(1), false},
		"1/4." + strings.Repeat("0", 28): {n(0.25), true},
		"1/4." + strings.Repeat("0", 29): {n(1), false},
	} {
		f, err := Parse(text)
		if f != test.want || (err == nil) != test.ok {
			t.Errorf("%q: %+v, %v; want %+v, taken without a warning: %v", text, f, err, test.want, test.ok)
		}
	}
}

// TestValue: what each law makes of the window.
func TestValue(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		f    Feedback
		n    int
		want float64
	}{
		{Feedback{0.25, Constant}, 16, 0.25},
		{Feedback{1, Inverse}, 16, 1.0 / 16},
		{Feedback{0.5, Inverse}, 4, 0.125},
		{Feedback{1, Root}, 16, 0.25},
		{Feedback{0.5, Root}, 4, 0.25},
	} {
		if got := test.f.Value(test.n); math.Abs(got-test.want) > 1e-12 {
			t.Errorf("%+v at %d: %g, want %g", test.f, test.n, got, test.want)
		}
	}
}

// FuzzParse: whatever is written in main.cf, the value is one to work with.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"1", "1/4", "1 / concurrency", "0.5x", "nan", "1/sqrt_concurrency"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, _ := Parse(text)
		for _, n := range []int{1, 2, 1000000} {
			if x := v.Value(n); !(x >= 0 && x <= 1) {
				t.Errorf("%q at window %d: %v", text, n, x)
			}
		}
	})
}
