package e2e

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"
)

var aliasSize = flag.Int("alias.n", 2000, "members of the alias in TestBigAlias")

// An alias that has many members: a message to it is
// queued for each of them, once, in one SMTP transaction. What it took is printed:
//
//	go test ./internal/e2e -run TestBigAlias -alias.n 50000 -v
func TestBigAlias(t *testing.T) {
	t.Parallel()
	n := *aliasSize
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true, main: next.relayhost() +
		"virtual_alias_maps = hash:{dir}/etc/virtual\nvirtual_alias_expansion_limit = 200000\nsmtp_destination_recipient_limit = 1000\n"})
	var members strings.Builder
	members.WriteString("all@town.test")
	for i := range n {
		fmt.Fprintf(&members, " citizen%d@to.test", i)
	}
	s.write("etc/virtual", members.String()+"\n")
	if out, status := s.tool(nil, "postmap", "hash:"+s.path("etc", "virtual")); status != 0 {
		t.Fatal(out)
	}
	s.start()
	s.mustSend("a@from.test", []string{"warm@to.test"}, "Subject: up\n\nx\n")
	s.waitLogN(`qmgr\[\d+\]: \w+: removed`, 1)

	began := time.Now()
	s.mustSend("a@from.test", []string{"all@town.test"}, "Subject: to all\n\nx\n")
	queued := time.Since(began)
	s.waitLog(fmt.Sprintf(`qmgr\[\d+\]: \w+: from=<a@from\.test>, size=\d+, nrcpt=%d \(queue active\)`, n))
	t.Logf("%d recipients: queued after %v, active after %v", n, queued, time.Since(began))
	s.waitLogN(`qmgr\[\d+\]: \w+: removed`, 2)
	t.Logf("delivered after %v", time.Since(began))

	seen := make(map[string]int)
	for _, m := range next.received() {
		for _, to := range m.to {
			seen[to]++
		}
	}
	if seen["warm@to.test"] != 1 || len(seen) != n+1 {
		t.Errorf("%d recipients got mail, want %d", len(seen), n+1)
	}
	for i := range n {
		if to := fmt.Sprintf("citizen%d@to.test", i); seen[to] != 1 {
			t.Fatalf("%s got it %d times", to, seen[to])
		}
	}
}
