package e2e

import (
	"flag"
	"fmt"
	"regexp"
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

var listSize = flag.Int("list.n", 6000, "members of the lists in TestBigLists")

// Lists of local aliases: one that has its members in the alias table, one that
// has them in a file. They fill several frames between processes, and more than
// one message.
//
//	go test ./internal/e2e -run TestBigLists -list.n 500000 -v
func TestBigLists(t *testing.T) {
	t.Parallel()
	n := *listSize
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true, main: next.relayhost() + `alias_maps = hash:{dir}/etc/aliases
mydestination = home.test
smtp_destination_recipient_limit = 1000
qmgr_message_active_limit = 100
spool_segment_size = 1048576
`})
	var aliases, members strings.Builder
	aliases.WriteString("listed: :include:" + s.path("etc", "members") + "\nowner-listed: root\nnamed:")
	for i := range n {
		fmt.Fprintf(&members, "reader%d@to.test\n", i)
		fmt.Fprintf(&aliases, " citizen%d@to.test,", i)
	}
	s.write("etc/members", members.String())
	s.write("etc/aliases", strings.TrimSuffix(aliases.String(), ",")+"\n")
	if out, status := s.tool(nil, "postalias", "hash:"+s.path("etc", "aliases")); status != 0 {
		t.Fatal(out)
	}
	s.start()
	wait := func(what string, f func() bool) {
		for limit := time.Now().Add(patience + time.Duration(n)*time.Millisecond); !f(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("waited in vain: %s\n%.3000s", what, s.log())
			}
		}
	}
	for _, list := range []string{"listed", "named"} {
		began := time.Now()
		s.mustSend("a@from.test", []string{list + "@home.test"}, "Subject: to "+list+"\n\nx\n")
		queued := regexp.MustCompile(`to=<` + list + `@home\.test>, relay=local, .* status=sent \(forwarded as`)
		wait("the list queued again", func() bool { return queued.MatchString(s.log()) })
		t.Logf("%s: %d recipients queued again after %v", list, n, time.Since(began))
	}
	seen := make(map[string]int)
	wait("every member has the mail", func() bool {
		clear(seen)
		for _, m := range next.received() {
			for _, to := range m.to {
				seen[to]++
			}
		}
		return len(seen) == 2*n
	})
	for i := range n {
		for _, to := range []string{fmt.Sprintf("reader%d@to.test", i), fmt.Sprintf("citizen%d@to.test", i)} {
			if seen[to] != 1 {
				t.Fatalf("%s got it %d times", to, seen[to])
			}
		}
	}
	lists := make(map[string]bool)
	for _, m := range next.received() {
		lists[m.from] = true
	}
	if !lists["owner-listed@mta.test"] || !lists["a@from.test"] || len(lists) != 2 {
		t.Errorf("the lists' mail is from %v", lists)
	}
}
