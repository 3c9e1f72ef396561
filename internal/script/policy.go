package script

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
)

// fakePolicy is a policy server with rules.
type fakePolicy struct {
	l     net.Listener
	rules []string
	wg    sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func newFakePolicy(path, rules string) (*fakePolicy, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	p := &fakePolicy{l: l, rules: strings.Split(strings.TrimSpace(rules), "\n")}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, c)
			p.mu.Unlock()
			p.wg.Go(func() { p.serve(c) })
		}
	})
	return p, nil
}

func (p *fakePolicy) close() {
	p.l.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *fakePolicy) serve(c net.Conn) {
	defer c.Close()
	sc := bufio.NewScanner(c)
	var request []string
	for sc.Scan() {
		if sc.Text() != "" {
			request = append(request, sc.Text())
			continue
		}
		switch action := p.answer(request); action {
		case "CLOSE":
			return
		case "NONSENSE":
			fmt.Fprint(c, "hello there\n\n")
		default:
			fmt.Fprintf(c, "action=%s\n\n", action)
		}
		request = nil
	}
}

func (p *fakePolicy) answer(request []string) string {
	for _, rule := range p.rules {
		words, action, _ := strings.Cut(rule, "=>")
		all := true
		for _, w := range strings.Fields(words) {
			all = all && slices.Contains(request, w)
		}
		if all {
			return strings.TrimSpace(action)
		}
	}
	return "DUNNO"
}
