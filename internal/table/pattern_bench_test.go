package table

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// BenchmarkPatterns is a line of text in a table of patterns that it does not match.
func BenchmarkPatterns(b *testing.B) {
	for _, n := range []int{1, 50, 1000} {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "/\\b(casino|poker%d)\\b.*http:\\/\\/[a-z0-9.]+\\/%d/ REJECT\n", i, i)
		}
		rules := parsePatterns(dialectPerl, "bench", text.String(), Options{})
		line := strings.Repeat("The quick brown fox jumps over. ", 2)
		for _, how := range []string{"filtered", "all"} {
			if how == "all" {
				tryAll(rules.rules)
			}
			b.Run(fmt.Sprintf("%d/%s", n, how), func(b *testing.B) {
				b.SetBytes(int64(len(line)))
				for b.Loop() {
					if _, found, err := rules.lookup(context.Background(), line); found || err != nil {
						b.Fatal(found, err)
					}
				}
			})
		}
	}
}
