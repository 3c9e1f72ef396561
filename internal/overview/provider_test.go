package overview

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"posthaste/internal/proto"
	"posthaste/internal/standing"
)

// taken counts n of each kind of a provider's.
func taken(b *standing.Book, now time.Time, provider, source string, n ...int) *standing.Book {
	for k, n := range n {
		for range n {
			b.Count(now, provider, source, standing.Kind(k))
		}
	}
	return b
}

// How providers take mail is added up over all nodes. Those that complain too much come first, then those with most mail; and a node
// that does not know it is named, and counts in everything else.
func TestProviders(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	a := taken(new(standing.Book), now, "bigmail", "mta1", 4000, 10, 2, 1, 3)
	taken(a, now, "bigmail", "mta2", 900, 0, 0, 0, 2)
	taken(a, now, "mx.small.test", "", 500, 1)
	taken(a, now.Add(-standing.Span), "gone.test", "", 9)
	b := taken(new(standing.Book), now, "bigmail", "mta1", 100)
	taken(b, now, "largemail", "mta1", 9000, 0, 0, 0, 9)
	taken(b, now, "yesterday.test", "mta1", 0, 0, 0, 0, 1)
	seen, err := SeeAll(t.Context(), []Manager{{"a", fakeManager{n: 2, taken: a}}, {"b", fakeManager{n: 3, taken: b}}, {"c", fakeManager{n: 4, fails: proto.KindStanding}}}, now)
	if err != nil {
		t.Fatal(err)
	}
	n := seen.Now
	if n.ProvidersFault != "node c: it does not answer" || len(n.Missing) > 0 || n.Queues[2].Messages != 9 {
		t.Errorf("%+v", n)
	}
	var text []string
	for i := range n.Providers {
		p := &n.Providers[i]
		text = append(text, fmt.Sprint(p.Name, ": ", p.Taken))
		for _, s := range p.Sources {
			text = append(text, fmt.Sprint(" ", s.Name, ": ", s.Taken))
		}
	}
	want := `bigmail: delivered 5,000, deferred 10, bounced 2, bounced later 1, complaints 5 (1.0 of a thousand)
 mta2: delivered 900, deferred 0, bounced 0, bounced later 0, complaints 2 (2.2 of a thousand)
 mta1: delivered 4,100, deferred 10, bounced 2, bounced later 1, complaints 3 (0.7 of a thousand)
mx.small.test: delivered 500, deferred 1, bounced 0, bounced later 0, complaints 0
yesterday.test: delivered 0, deferred 0, bounced 0, bounced later 0, complaints 1
 mta1: delivered 0, deferred 0, bounced 0, bounced later 0, complaints 1`
	want = "largemail: delivered 9,000, deferred 0, bounced 0, bounced later 0, complaints 9 (1.0 of a thousand)\n" +
		" mta1: delivered 9,000, deferred 0, bounced 0, bounced later 0, complaints 9 (1.0 of a thousand)\n" + want
	if got := strings.Join(text, "\n"); got != want {
		t.Errorf("%s\nexpected\n%s", got, want)
	}
	taken(b, now, "largemail", "mta2", 0, 0, 0, 0, 1)
	taken(b, now, "bigmail", "mta2", 0, 0, 0, 0, 1)
	for i := range 2 * mostProviders {
		taken(b, now, fmt.Sprint("p", i), "", 1)
	}
	list := providersOf(b.Rows(now))
	if len(list) != mostProviders || list[0].Name != "largemail" || !list[0].Much() {
		t.Errorf("%+v", list)
	}
}
