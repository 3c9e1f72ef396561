package script

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"posthaste/internal/resolver"
)

// largeZone answers every question with as many and as long texts as a reply has room for.
type largeZone struct{ records, octets int }

func (z largeZone) Exchange(_ context.Context, q *dns.Msg) (*dns.Msg, error) {
	m := new(dns.Msg)
	m.SetReply(q)
	for i := range z.records {
		var texts []string
		for left := z.octets; left > 0; left -= 255 {
			texts = append(texts, strings.Repeat(string(rune('a'+i%26)), min(left, 255)))
		}
		m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 3600}, Txt: texts})
	}
	b, err := m.Pack() // memory that is shared with no other reply
	if err != nil {
		return nil, err
	}
	m = new(dns.Msg)
	return m, m.Unpack(b)
}

// manyNames asks for what would take twice the memory that a process keeps replies in.
func manyNames(t testing.TB, held func()) {
	c := resolver.New(resolver.Options{Exchanger: largeZone{records: 100, octets: 600}, Hosts: os.DevNull})
	defer c.Close()
	for i := range 1000 {
		if a, err := c.TXT(t.Context(), fmt.Sprintf("n%d.test", i)); err != nil || len(a.Records) != 100 {
			t.Fatalf("%d records: %v", len(a.Records), err)
		}
	}
	held()
}

// largeNames is one reply of nearly 64 KB.
func largeNames(t testing.TB, held func()) {
	c := resolver.New(resolver.Options{Exchanger: largeZone{records: 240, octets: 255}, Hosts: os.DevNull})
	defer c.Close()
	a, err := c.TXT(t.Context(), "large.test")
	held()
	if err != nil || len(a.Records) != 100 {
		t.Errorf("%d records: %v", len(a.Records), err)
	}
}
