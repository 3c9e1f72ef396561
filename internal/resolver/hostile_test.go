package resolver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// A name server, or whoever can send in its place, takes no more memory and time than one question
// is worth, whatever it sends.
func TestHostileServer(t *testing.T) {
	t.Parallel()
	const patience = 5 * time.Second
	tcp := func(m *dns.Msg) []byte {
		b, _ := m.Pack()
		return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
	}
	changed := func(q *dns.Msg, change func(m *dns.Msg)) *dns.Msg {
		m := goodReply(q)
		change(m)
		return m
	}
	for _, tt := range []struct {
		name, network string
		say           func(c net.Conn, q *dns.Msg)
		want          string // of the error; "truncated": TCP is asked
	}{
		{"nothing", "tcp", func(net.Conn, *dns.Msg) { time.Sleep(time.Hour) }, "timeout"},
		{"a length and nothing", "tcp", func(c net.Conn, _ *dns.Msg) { c.Write([]byte{0xff, 0xff}); time.Sleep(time.Hour) }, "timeout"},
		{"drop by drop", "tcp", func(c net.Conn, q *dns.Msg) {
			for _, b := range tcp(changed(q, func(m *dns.Msg) { m.Answer = append(m.Answer, m.Answer...) })) {
				c.Write([]byte{b})
				time.Sleep(time.Second)
			}
		}, "timeout"},
		{"a reply of no octets", "tcp", func(c net.Conn, _ *dns.Msg) { c.Write([]byte{0, 0}) }, "overflow"},
		{"the longest nonsense", "tcp", func(c net.Conn, _ *dns.Msg) {
			c.Write([]byte{0xff, 0xff})
			c.Write([]byte(strings.Repeat("\xc0", 0xffff)))
		}, "compression pointers"},
		{"the wrong number", "tcp", func(c net.Conn, q *dns.Msg) { c.Write(tcp(changed(q, func(m *dns.Msg) { m.Id++ }))) }, "another query"},
		{"the wrong question", "tcp", func(c net.Conn, q *dns.Msg) {
			c.Write(tcp(changed(q, func(m *dns.Msg) { m.Question[0].Name = "other.test." })))
		}, "reply to another"},
		{"the end", "tcp", func(net.Conn, *dns.Msg) {}, "EOF"},
		{"nothing", "udp", func(net.Conn, *dns.Msg) { time.Sleep(time.Hour) }, "timeout"},
		{"guesses without end", "udp", func(c net.Conn, q *dns.Msg) {
			b, _ := changed(q, func(m *dns.Msg) { m.Id++ }).Pack()
			for range 2 * maxForged {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}, "truncated"},
		{"empty datagrams, one by one", "udp", func(c net.Conn, _ *dns.Msg) {
			for range 60 {
				c.Write([]byte{0})
				time.Sleep(time.Second)
			}
		}, "timeout"},
	} {
		t.Run(tt.network+"/"+tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				q := new(dns.Msg)
				q.SetQuestion("host.test.", dns.TypeA)
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer theirs.Close()
					theirs.Read(make([]byte, 1000)) // the question
					tt.say(theirs, q)
				}()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				start := time.Now()
				m, err := converse(ctx, ours, tt.network, q)
				if took := time.Since(start); took > patience {
					t.Errorf("it took %v", took)
				}
				got := "an answer"
				switch {
				case err != nil:
					got = err.Error()
				case m.Truncated && len(m.Answer) == 0:
					got = "truncated"
				}
				if !strings.Contains(got, tt.want) {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				<-done
			})
		})
	}
}

// An error says which name server it was.
func TestHostileServerIsNamed(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := goodReply(q)
		m.Truncated = true
		_ = w.WriteMsg(m)
	})
	_, err := client(t, confWith(t, "options attempts:1\n", addr)).Addrs(t.Context(), "host.test", IPv4)
	if e, ok := errors.AsType[*Error](err); !ok || e.Kind != TempFail || !strings.Contains(fmt.Sprint(e.Err), addr) {
		t.Errorf("%+v", e)
	}
}

// endless answers each question with a new alias.
type endless struct{ asked atomic.Int32 }

func (e *endless) Exchange(_ context.Context, q *dns.Msg) (*dns.Msg, error) {
	n := e.asked.Add(1)
	if n > 100 {
		return nil, errors.New("there is no end")
	}
	m := new(dns.Msg)
	m.SetReply(q)
	m.Answer = []dns.RR{rr(fmt.Sprintf("%s 60 CNAME a%d.test.", q.Question[0].Name, n))}
	return m, nil
}

func TestEndlessAliases(t *testing.T) {
	t.Parallel()
	e := new(endless)
	c := New(Options{Exchanger: e, Hosts: os.DevNull})
	t.Cleanup(c.Close)
	_, err := c.MX(t.Context(), "host.test")
	if KindOf(err) != TempFail || e.asked.Load() > maxAliases+1 {
		t.Errorf("%v after %d questions", err, e.asked.Load())
	}
}

// large answers each question with records of 60 KB.
type large struct{}

func (large) Exchange(_ context.Context, q *dns.Msg) (*dns.Msg, error) {
	m := new(dns.Msg)
	m.SetReply(q)
	head := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 3600}
	text := strings.Repeat("x", 250)
	for range 60 {
		m.Answer = append(m.Answer, &dns.TXT{Hdr: head, Txt: []string{text, text, text, text}})
	}
	return m, nil
}

// The cache holds a number of octets, and not only one of questions.
func TestCacheOfLargeReplies(t *testing.T) {
	t.Parallel()
	c := New(Options{Exchanger: large{}, Hosts: os.DevNull})
	t.Cleanup(c.Close)
	const names = 1000
	for i := range names {
		if a, err := c.TXT(t.Context(), fmt.Sprintf("h%d.test", i)); err != nil || len(a.Records) != 60 {
			t.Fatalf("%d records, %v", len(a.Records), err)
		}
	}
	kept := 0
	for _, el := range c.cache.byKey {
		for _, r := range el.Value.(*cached).reply.rrs {
			kept += dns.Len(r)
		}
	}
	if kept > maxCached || kept < maxCached/2 || c.cache.size > maxCached || c.cache.order.Len() != len(c.cache.byKey) {
		t.Errorf("%d octets in %d replies are kept, counted as %d", kept, len(c.cache.byKey), c.cache.size)
	}
	if !c.known(fmt.Sprintf("h%d.test", names-1), dns.TypeTXT) || c.known("h0.test", dns.TypeTXT) {
		t.Error("it is not the oldest that goes")
	}
	c.cache.clear()
	if c.cache.size != 0 {
		t.Errorf("%d octets in an empty cache", c.cache.size)
	}
}
