package script

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/sasl"
	"posthaste/internal/table"
)

// The neighbours of the real Postfix's smtpd: the same fakes that ours has,
// behind the protocols that it speaks.

// serveUnix serves a socket that every user may connect to, until the test is
// over.
func serveUnix(t testing.TB, path string, serve func(net.Conn)) {
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(path, 0o666)
	var wg sync.WaitGroup
	ended := make(chan struct{})
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				served := make(chan struct{})
				wg.Go(func() { // a client that stays must not keep the test
					select {
					case <-ended:
						c.Close()
					case <-served:
					}
				})
				serve(c)
				close(served)
			})
		}
	})
	t.Cleanup(func() { l.Close(); close(ended); wg.Wait() })
}

// serveAttributes speaks Postfix's attribute protocol: names and values end
// with NUL, and a request with one more.
func serveAttributes(t testing.TB, path, protocol string, answer func(map[string]string) []string) {
	serveUnix(t, path, func(c net.Conn) {
		fmt.Fprintf(c, "protocol\x00%s\x00\x00", protocol)
		br := bufio.NewReader(c)
		for {
			request := map[string]string{}
			for {
				name, err := br.ReadString(0)
				if err != nil {
					return
				}
				if name == "\x00" {
					break
				}
				value, err := br.ReadString(0)
				if err != nil {
					return
				}
				request[strings.TrimSuffix(name, "\x00")] = strings.TrimSuffix(value, "\x00")
			}
			words := answer(request)
			if words == nil {
				return
			}
			io.WriteString(c, strings.Join(words, "\x00")+"\x00\x00")
		}
	})
}

// serveVerify is the fakeProber for Postfix.
func serveVerify(t testing.TB, path string) {
	serveAttributes(t, path, "address_verification_prrotocol", func(q map[string]string) []string {
		status, text, err := fakeProber{}.Probe(context.Background(), q["address"])
		if err != nil {
			return []string{"status", "-1", "recipient_status", "0", "reason", ""}
		}
		return []string{"status", "0", "recipient_status", strconv.Itoa(int(status)), "reason", text}
	})
}

// serveFlush is the fakeFlusher for Postfix.
func serveFlush(t testing.TB, path string) {
	serveAttributes(t, path, "queue_flush_protocol", func(q map[string]string) []string {
		if found, err := (fakeFlusher{}).Flush(context.Background(), q["site"]); err != nil || !found {
			return []string{"status", "-1"}
		}
		return []string{"status", "0"}
	})
}

// serveDovecot offers a table of users as Dovecot's authentication service
// does, with what Postfix asks of it.
func serveDovecot(t testing.TB, path, spec, realm string) {
	// The passwords of unknown users are compared with secrets made like the last one seen.
	// This one costs little: Postfix waits ten seconds for an answer, on a busy machine too.
	cheap := sasl.Secret{Iterations: 4096, Salt: []byte("salt"), StoredKey: make([]byte, 32), ServerKey: make([]byte, 32)}
	maps := table.OpenMaps("smtpd_sasl_path", []string{spec, "inline:{cheap=" + cheap.String() + "}"}, table.Options{Recheck: -1})
	users := sasl.NewUsers(maps, realm, nil, nil)
	t.Cleanup(users.Close)
	x, err := users.Start(t.Context(), "PLAIN", sasl.Client{})
	if err != nil {
		t.Fatal(err)
	}
	if _, done, err := x.Next(t.Context(), []byte("\x00cheap\x00wrong")); done || err == nil {
		t.Fatal("a wrong password is taken")
	}
	serveUnix(t, path, func(c net.Conn) {
		fmt.Fprint(c, "VERSION\t1\t1\nMECH\tPLAIN\tplaintext\nMECH\tLOGIN\tplaintext\nMECH\tSCRAM-SHA-256\tdictionary\tmutual-auth\n"+
			"SPID\t1\nCUID\t1\nCOOKIE\t0123456789abcdef0123456789abcdef\nDONE\n")
		open := map[string]sasl.Exchange{}
		sc := bufio.NewScanner(c)
		sc.Buffer(nil, 64<<10)
		for sc.Scan() {
			w := strings.Split(sc.Text(), "\t")
			if len(w) < 3 || w[0] != "AUTH" && w[0] != "CONT" {
				continue
			}
			id, response := w[1], ""
			if w[0] == "CONT" {
				response = w[2]
			} else {
				exchange, err := users.Start(context.Background(), w[2], sasl.Client{})
				if err != nil {
					fmt.Fprintf(c, "FAIL\t%s\treason=%v\n", id, err)
					continue
				}
				open[id] = exchange
				for _, p := range w[3:] {
					if r, found := strings.CutPrefix(p, "resp="); found {
						response = r
					}
				}
			}
			fmt.Fprintln(c, dovecotStep(open[id], id, response, w[0] == "CONT" || response != ""))
		}
	})
}

func dovecotStep(x sasl.Exchange, id, response string, given bool) string {
	fail := func(reason string) string { return "FAIL\t" + id + "\tuser=" + x.Username() + "\treason=" + reason }
	var in []byte
	if given {
		b, err := base64.StdEncoding.DecodeString(response)
		if err != nil {
			return fail("Invalid base64 data in initial response")
		}
		in = append([]byte{}, b...)
	}
	out, done, err := x.Next(context.Background(), in)
	switch {
	case err != nil:
		return fail(err.Error())
	case done:
		return "OK\t" + id + "\tuser=" + x.Username()
	}
	return "CONT\t" + id + "\t" + base64.StdEncoding.EncodeToString(out)
}

// A zoneServer is a name server at port 53 of some loopback address, whose
// zone can be exchanged: Postfix can be told no other port.
type zoneServer struct {
	addr string
	mu   sync.Mutex
	zone *fakezone.Zone
}

func newZoneServer(t testing.TB) *zoneServer {
	z := &zoneServer{zone: fakezone.Must("")}
	var pc net.PacketConn
	err := errors.New("no address")
	for i := 0; i < 50 && err != nil; i++ {
		z.addr = fmt.Sprintf("127.%d.%d.53", 20+i, os.Getpid()%250)
		pc, err = net.ListenPacket("udp", z.addr+":53")
	}
	if err != nil {
		t.Fatalf("no address for a name server: %v", err)
	}
	l, err := net.Listen("tcp", z.addr+":53")
	if err != nil {
		t.Fatal(err)
	}
	h := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		z.mu.Lock()
		zone := z.zone
		z.mu.Unlock()
		if m, err := zone.Exchange(ctx, q); err == nil {
			m.RecursionAvailable = true // or the C library takes an empty answer for a lame server's
			_ = w.WriteMsg(m)
		}
	})
	var wg sync.WaitGroup
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: h}, {Listener: l, Handler: h}} {
		ready := make(chan struct{})
		s.NotifyStartedFunc = func() { close(ready) }
		wg.Go(func() { _ = s.ActivateAndServe() })
		<-ready
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return z
}

func (z *zoneServer) set(t testing.TB, text string) {
	zone, err := fakezone.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.zone = zone
}

// mainLines reads a main.cf: comments left out, lines put together.
func mainLines(text string) (names []string, values map[string]string) {
	values = map[string]string{}
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.TrimSpace(line) == "" || line[0] == '#':
		case line[0] == ' ' || line[0] == '\t':
			values[last] += " " + strings.TrimSpace(line)
		default:
			name, value, _ := strings.Cut(line, "=")
			last = strings.TrimSpace(name)
			if _, twice := values[last]; !twice {
				names = append(names, last)
			}
			values[last] = strings.TrimSpace(value)
		}
	}
	return names, values
}
