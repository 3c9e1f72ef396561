package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/emersion/go-milter"
)

// filtered is mail that a mail filter looks at, the same one beside both: it has a process of its own, reads headers and
// body, and accepts.
func filtered() *contest {
	c := &contest{workload: like("relay", "milter")}
	c.messages = 3000
	counts, seen := map[*entrant]string{}, map[*entrant]int{}
	c.equip = func(e *entrant) (string, error) {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		var addrs [2]string
		for i := range addrs {
			port, err := freePort()
			if err != nil {
				return "", err
			}
			addrs[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		}
		counts[e] = addrs[1]
		if _, err := e.help("filter", addrs[1], nil, self, "-part", "filter", addrs[0], addrs[1]); err != nil {
			return "", err
		}
		return filterLines(addrs[0]), nil
	}
	c.check = func(e *entrant, t tally) error {
		n, err := askCount(counts[e])
		if err != nil {
			return err
		}
		had := n - seen[e]
		seen[e] = n
		if had != t.messages {
			return fmt.Errorf("the filter has seen %d of %d messages", had, t.messages)
		}
		return nil
	}
	return c
}

// askCount asks a filter how many messages it has seen whole.
func askCount(addr string) (int, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(b))
}

// runFilter is a mail filter on the first address. To who connects to the second one it says how many messages it has
// seen.
func runFilter(ctx context.Context, addr, countAddr string) error {
	filters, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	counts, err := net.Listen("tcp", countAddr)
	if err != nil {
		return err
	}
	var seen atomic.Int64
	srv := &milter.Server{NewMilter: func() milter.Milter { return &looker{seen: &seen} }}
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(filters) })
	wg.Go(func() {
		for {
			c, err := counts.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, seen.Load())
			c.Close()
		}
	})
	<-ctx.Done()
	filters.Close()
	counts.Close()
	wg.Wait()
	return nil
}

// A looker looks at the messages of a session, and accepts them.
type looker struct {
	milter.NoOpMilter
	seen  *atomic.Int64
	lines int
	about bool // there was a Subject:
}

// Header looks at a header field.
func (l *looker) Header(name, _ string, _ *milter.Modifier) (milter.Response, error) {
	l.about = l.about || textproto.CanonicalMIMEHeaderKey(name) == "Subject"
	return milter.RespContinue, nil
}

// BodyChunk looks at a part of the body.
func (l *looker) BodyChunk(chunk []byte, _ *milter.Modifier) (milter.Response, error) {
	l.lines += bytes.Count(chunk, []byte{'\n'})
	return milter.RespContinue, nil
}

// Body accepts a message, whose header and body it must have had.
func (l *looker) Body(*milter.Modifier) (milter.Response, error) {
	if l.about && l.lines > 0 {
		l.seen.Add(1)
	}
	l.about, l.lines = false, 0
	return milter.RespAccept, nil
}
