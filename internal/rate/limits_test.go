package rate

import (
	"strings"
	"testing"
	"time"
)

func TestParseLimits(t *testing.T) {
	t.Parallel()
	all := Limits{20, Rate{5, time.Second}, Rate{1000, time.Hour}, Rate{50000, Day}, 100}
	for text, want := range map[string]Limits{
		"none":           {},
		"concurrency=20": {Concurrency: 20},
		"concurrency=20, connections=5/s, messages=1000/h, recipients=50000/d, messages_per_connection=100":   all,
		"messages_per_connection=100 recipients=50000/day\tmessages=1000/hr,connections=5/sec concurrency=20": all,
	} {
		l, err := ParseLimits(text)
		if err != nil || l != want {
			t.Errorf("%q: %+v, %v", text, l, err)
		}
		if again, err := ParseLimits(l.String()); err != nil || again != l {
			t.Errorf("%q is printed %q, and read %+v, %v", text, l, again, err)
		}
	}
	for text, why := range map[string]string{
		"":                                "no limit is named",
		" , ":                             "no limit is named",
		"none, concurrency=1":             `"none": there is no limit of this name`,
		"conections=5/s":                  `"conections": there is no limit of this name`,
		"concurrency":                     "the number is missing",
		"concurrency=0":                   "not from 1",
		"concurrency=many":                "not a number",
		"messages=5":                      "a number, a slash and a time",
		"messages=5/s, messages=5/s":      "named twice",
		"concurrency=1, concurrency=1":    "named twice",
		"Concurrency=1":                   "no limit of this name",
		"messages_per_connection=2000000": "not from 1 to 1000000",
	} {
		if _, err := ParseLimits(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v; want an error that says %s", text, err, why)
		}
	}
	// What is understood holds all the same.
	if l, err := ParseLimits("concurrency=3, foo=1, messages=5/s"); err == nil || l.Concurrency != 3 || l.Messages.N != 5 {
		t.Errorf("%+v, %v", l, err)
	}
}
