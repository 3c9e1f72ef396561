package postmap

import (
	"strings"
	"testing"

	"posthaste/internal/table"
)

func FuzzAliases(f *testing.F) {
	f.Add("a: b\n \"c : d\" : |x\n# e\nf\\:g: h\n: i\n")
	f.Fuzz(func(t *testing.T, text string) {
		warned := 0
		err := aliasSyntax{}.parse("fuzz", text, func(string) { warned++ }, func(l table.Line) error {
			if l.Value == "" || l.Number == 0 || strings.Contains(l.Value, "\n") {
				t.Fatalf("%+v", l)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if warned > strings.Count(text, "\n")+1 {
			t.Fatalf("%d warnings", warned)
		}
	})
}
