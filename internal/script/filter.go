package script

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
)

// fakeFilter is an SMTP server with rules: what it says to which command.
type fakeFilter struct {
	l     net.Listener
	rules []string
	wg    sync.WaitGroup

	mu   sync.Mutex
	told []*strings.Builder // by connection: the end of one may overlap the next
}

func newFakeFilter(path, rules string) (*fakeFilter, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	f := &fakeFilter{l: l, rules: strings.Split(strings.TrimSpace(rules), "\n")}
	f.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			told := &strings.Builder{}
			f.mu.Lock()
			f.told = append(f.told, told)
			f.mu.Unlock()
			f.wg.Go(func() { f.serve(c, told) })
		}
	})
	return f, nil
}

func (f *fakeFilter) close() {
	f.l.Close()
	f.wg.Wait()
}

func (f *fakeFilter) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := ""
	for _, told := range f.told {
		all += told.String()
	}
	return all
}

func (f *fakeFilter) serve(c net.Conn, told *strings.Builder) {
	defer c.Close()
	sc := bufio.NewScanner(c)
	sc.Buffer(nil, 1<<20)
	fmt.Fprintf(c, "%s\r\n", f.answer("greeting"))
	inData := false
	for sc.Scan() {
		line := sc.Text()
		f.mu.Lock()
		fmt.Fprintln(told, strings.TrimSuffix(line, "\r"))
		f.mu.Unlock()
		if inData && line != "." {
			continue
		}
		inData = false
		reply := f.answer(line)
		if reply == "CLOSE" {
			return
		}
		fmt.Fprintf(c, "%s\r\n", strings.ReplaceAll(reply, "|", "\r\n"))
		inData = strings.HasPrefix(reply, "354")
	}
}

func (f *fakeFilter) answer(line string) string {
	for _, r := range f.rules {
		start, reply, _ := strings.Cut(r, "=>")
		if strings.HasPrefix(line, strings.TrimSpace(start)) {
			return strings.TrimSpace(reply)
		}
	}
	switch {
	case line == "greeting":
		return "220 filter"
	case strings.HasPrefix(line, "DATA"):
		return "354 go"
	case line == ".":
		return "250 2.0.0 Ok: queued as FILTER1"
	}
	return "250 2.0.0 Ok"
}
