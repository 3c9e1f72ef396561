package e2e

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wholeDestinations runs TestManyDestinations at the size of 10,000, and the
// same number of messages for one destination, and prints both times.
var wholeDestinations = flag.Bool("destinations.whole", false, "10,000 destinations instead of 300, and the time that they take")

// listenLoopback listens on every address of the loopback interface.
func listenLoopback(t *testing.T) net.Listener {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var bound error
		err := c.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), "lo") })
		if bound != nil {
			return bound
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "tcp4", "0.0.0.0:0")
	if err != nil {
		t.Skipf("no socket for all of 127.0.0.0/8: %v", err)
	}
	return l
}

// sendMany sends a message to each recipient, over a few sessions at once.
func (s *system) sendMany(to []string) {
	s.t.Helper()
	next := make(chan string)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for r := range next {
				if err := s.send("from@many.test", []string{r}, "Subject: x\n\nx\n"); err != nil {
					s.t.Error(err)
				}
			}
		})
	}
	for _, r := range to {
		next <- r
	}
	close(next)
	wg.Wait()
}

// TestManyDestinations sends a message each to many destinations, every one a
// server with an address of its own: each arrives, once, where it belongs.
func TestManyDestinations(t *testing.T) {
	t.Parallel()
	n := 300
	if *wholeDestinations {
		n = 10000
	}
	run := func(dest func(i int) string) time.Duration {
		next := newSinkOn(t, listenLoopback(t), nil)
		to := make([]string, n)
		var routes strings.Builder
		for i := range to {
			to[i] = fmt.Sprintf("u%d@%s", i, dest(i))
			fmt.Fprintf(&routes, "d%[1]d-%[2]d.test smtp:[127.1.%[1]d.%[2]d]:%[3]d\n", i/250, i%250+1, next.port())
		}
		table := filepath.Join(t.TempDir(), "transport")
		if err := os.WriteFile(table, []byte(routes.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		s := newSystem(t, options{main: "transport_maps = texthash:" + table + "\n"})
		began := time.Now()
		s.sendMany(to)
		s.eventually("all have arrived", func() bool { return len(next.received()) >= n })
		took := time.Since(began)
		seen := make(map[string]int)
		for _, m := range next.received() {
			seen[strings.Join(m.to, " ")]++
		}
		for _, r := range to {
			if seen[r] != 1 {
				t.Errorf("%s: %d times", r, seen[r])
			}
		}
		return took
	}
	many := run(func(i int) string { return fmt.Sprintf("d%d-%d.test", i/250, i%250+1) })
	if *wholeDestinations {
		one := run(func(int) string { return "d0-1.test" })
		t.Logf("%d destinations: %v; one destination: %v; ratio %.2f", n, many, one, many.Seconds()/one.Seconds())
	}
}

// TestSilentHost has mail for a host that takes connections and then never
// says anything: what is for others passes it by.
func TestSilentHost(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	accepted := make(chan net.Conn, 100)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(accepted)
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	})
	defer func() {
		silent.Close()
		wg.Wait()
		for c := range accepted {
			c.Close()
		}
	}()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + fmt.Sprintf("transport_maps = inline:{silent.test=smtp:[127.0.0.1]:%d}\n",
		silent.Addr().(*net.TCPAddr).Port)})
	var to []string
	for i := range 30 {
		to = append(to, fmt.Sprintf("u%d@silent.test", i))
	}
	s.sendMany(to)
	first := <-accepted // its deliveries are under way
	defer first.Close()
	to = nil
	for i := range 100 {
		to = append(to, fmt.Sprintf("u%d@good.test", i))
	}
	s.sendMany(to)
	s.eventually("mail for others has arrived", func() bool { return len(next.received()) == len(to) })
	if log := s.log(); strings.Contains(log, "@silent.test>, relay") {
		t.Error("the silent host has been given up: this tests nothing")
	}
}
