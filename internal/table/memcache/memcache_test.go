package memcache

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/lockstep/hostile"
	"posthaste/internal/table"
	"posthaste/internal/testservers"
)

// opened opens a table with settings in a file. The warnings are collected.
func opened(t *testing.T, settings string, o table.Options) (table.Table, func() []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "table.cf")
	if err := os.WriteFile(path, []byte(settings+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var warnings []string
	o.Warn = func(text string) { mu.Lock(); warnings = append(warnings, text); mu.Unlock() }
	tab, err := Open(nil)(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tab.Close() })
	return tab, func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(warnings) }
}

func expect(t *testing.T, tab table.Table, key, want string) {
	t.Helper()
	value, found, err := tab.Lookup(t.Context(), key)
	got := value
	switch {
	case err != nil:
		got = "error: " + err.Error()
	case !found:
		got = "none"
	}
	if got != want && (!strings.HasPrefix(want, "error") || !strings.HasPrefix(got, want)) {
		t.Errorf("%q: %s, want %s", key, got, want)
	}
}

// store puts a value into a server by hand.
func store(t *testing.T, s *testservers.Server, key, value string) {
	t.Helper()
	if got := command(t, s, fmt.Sprintf("set %s 0 0 %d\r\n%s\r\n", key, len(value), value)); got != "STORED" {
		t.Fatalf("set %s: %s", key, got)
	}
}

// command is the first line of the answer to a request.
func command(t *testing.T, s *testservers.Server, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, text)
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

// The real server: values, formats, domains, its restart, and its socket.
func TestMemcached(t *testing.T) {
	t.Parallel()
	s := testservers.Memcached(t)
	store(t, s, "pk:alice@example.test", "one")
	store(t, s, "u:alice", "user")
	store(t, s, "empty@example.test", "")
	store(t, s, "long", strings.Repeat("x", 10240))
	store(t, s, "longer", strings.Repeat("x", 10241))
	store(t, s, "lines", "a\r\nEND\r\nVALUE b 0 1\r\nc")
	server := "memcache = inet:" + s.Addr + "\n"
	plain, _ := opened(t, server, table.Options{})
	expect(t, plain, "nobody", "none")
	expect(t, plain, "empty@example.test", "")
	expect(t, plain, "long", strings.Repeat("x", 10240))
	expect(t, plain, "longer", "error")
	expect(t, plain, "lines", "a\r\nEND\r\nVALUE b 0 1\r\nc")
	expect(t, plain, "long", strings.Repeat("x", 10240))
	for _, key := range []string{"a b", "pk:alice@example.test\r\nversion", "x\tnoreply", "\x7f", strings.Repeat("k", 251), "a\x00b", ""} {
		expect(t, plain, key, "none")
	}
	expect(t, plain, strings.Repeat("k", 250), "none")
	prefixed, _ := opened(t, server+"key_format = pk:%s\n", table.Options{})
	expect(t, prefixed, "ALICE@example.test", "one")
	expect(t, prefixed, "nobody", "none")
	expect(t, prefixed, strings.Repeat("k", 248), "none") // 251 with its prefix
	users, _ := opened(t, server+"key_format = u:%u\ndomain = example.test\n", table.Options{})
	expect(t, users, "alice@example.test", "user")
	expect(t, users, "alice@example.org", "none")
	expect(t, users, "alice", "none")
	expect(t, users, "@example.test", "none")
	s.Stop()
	expect(t, prefixed, "alice@example.test", "error: memcached at "+s.Addr)
	s.Start()
	store(t, s, "pk:alice@example.test", "two")
	expect(t, prefixed, "alice@example.test", "two") // nobody has closed what is open
}

// What the backup answers is stored, with flags and time; a server that is away
// costs a warning, no more.
func TestBackup(t *testing.T) {
	t.Parallel()
	s := testservers.Memcached(t)
	text := filepath.Join(t.TempDir(), "text")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(text, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	long, big := strings.Repeat("k", 251), strings.Repeat("v", 50)
	write("a one\nbig " + big + "\n" + long + " long\n\"a b\" blank\n")
	tab, warnings := opened(t, "memcache = "+s.Addr+"\nkey_format = p:%s\nbackup = texthash:"+text+
		"\nflags = 7\nttl = 1000\ndata_size_limit = 40\n", table.Options{Recheck: -1})
	expect(t, tab, "a", "one")
	if got := command(t, s, "get p:a\r\n"); got != "VALUE p:a 7 3" {
		t.Errorf("stored: %s", got)
	}
	write("a changed\n" + long + " long\nbig " + big + "\n\"a b\" blank\n")
	expect(t, tab, "a", "one") // from memcached
	expect(t, tab, "b", "none")
	expect(t, tab, "big", big)
	if got := command(t, s, "get p:big\r\n"); got != "END" {
		t.Errorf("a value over the limit is stored: %s", got)
	}
	expect(t, tab, long, "long") // memcached cannot have it
	if w := warnings(); len(w) > 0 {
		t.Errorf("warnings: %q", w)
	}
	s.Stop()
	expect(t, tab, "a", "changed")
	if w := warnings(); len(w) != 1 || !strings.Contains(w[0], "trying the backup") {
		t.Errorf("warnings: %q", w)
	}
	var listed []string
	if err := tab.(table.Sequence).All(func(key, _ string) bool { listed = append(listed, key); return true }); err != nil || len(listed) != 4 {
		t.Errorf("%q, %v", listed, err)
	}
	broken, _ := opened(t, "memcache = "+s.Addr+"\nbackup = fail:why\n", table.Options{})
	expect(t, broken, "a", "error")
}

func TestHostileServer(t *testing.T) {
	t.Parallel()
	p := hostile.Protocol{
		Question: func(r *bufio.Reader, _ net.Conn) (string, error) {
			line, err := r.ReadString('\n')
			return strings.TrimSpace(strings.TrimPrefix(line, "get ")), err
		},
		Answer: func(key string) []byte {
			return fmt.Appendf(nil, "VALUE %s 0 %d\r\n%s\r\nEND\r\n", key, len(key), key)
		},
		Endless: "VALUE one 0 10240\r\nx",
		Huge:    "VALUE one 0 2147483647\r\nx",
	}
	open := func(t *testing.T, path string) hostile.Client {
		tab, _ := opened(t, "memcache = unix:"+path+"\nmax_try = 1\nretry_pause = 0\n", table.Options{})
		return func(key string) (string, error) {
			value, found, err := tab.Lookup(t.Context(), key)
			if err == nil && !found {
				err = errors.New("not found")
			}
			return value, err
		}
	}
	hostile.Run(t, p, open)
	p.Endless = "VALUE "
	t.Run("line", func(t *testing.T) { hostile.Run(t, p, open) })
}

// What a server may not say, and how often it is asked.
func TestReplies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ reply, want string }{
		{"VALUE k 0 1\r\nv\r\nEND\r\n", "v"},
		{"VALUE k 4294967295 1 77\r\nv\r\nEND\r\n", "v"},
		{"END\r\n", "none"},
		{"VALUE other 0 1\r\nv\r\nEND\r\n", "error"},
		{"VALUE k 0 -1\r\nEND\r\n", "error"},
		{"VALUE k 0 1\r\nvv\r\nEND\r\n", "error"},
		{"VALUE k 0 1\r\nv\r\nVALUE k 0 1\r\nw\r\nEND\r\n", "error"},
		{"VALUE k 0\r\nEND\r\n", "error"},
		{"ERROR\r\n", "error"},
		{"SERVER_ERROR out of memory\r\n", "error"},
		{"STORED\r\n", "error"},
	} {
		asked := 0
		dial := func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() { // ends with the connection
				defer server.Close()
				r := bufio.NewReader(server)
				for {
					if _, err := r.ReadString('\n'); err != nil {
						return
					}
					asked++
					io.WriteString(server, c.reply)
				}
			}()
			return client, nil
		}
		tab, _ := opened(t, "memcache = host:1\nmax_try = 3\nretry_pause = 0\n", table.Options{Dial: dial})
		expect(t, tab, "k", c.want)
		tab.Close()
		if want := map[bool]int{true: 3, false: 1}[c.want == "error"]; asked != want {
			t.Errorf("%q: asked %d times, want %d", c.reply, asked, want)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"memcache = nowhere", "key_format = %x", "ttl = -1", "max_try = 0", "timeout = 0", "backup = nonsense:x", "backup = hash:/nonexistent"} {
		path := filepath.Join(t.TempDir(), "table.cf")
		if err := os.WriteFile(path, []byte(bad+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(nil)(path, table.Options{}); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	if _, err := table.Open("memcache:/x", table.Options{}.Sensitive()); err == nil || !strings.Contains(err.Error(), "not allowed") {
		t.Errorf("a table that says what is executed: %v", err)
	}
}

func FuzzReply(f *testing.F) {
	f.Add("VALUE k 0 1\r\nv\r\nEND\r\n")
	f.Add("VALUE k 0 2147483647\r\n")
	f.Fuzz(func(t *testing.T, reply string) {
		c := &cache{maxData: 100, maxLine: 100}
		value, found, err := c.readValue(bufio.NewReader(strings.NewReader(reply)), "k")
		if len(value) > 100 || found && err != nil {
			t.Fatalf("%q: %q %v %v", reply, value, found, err)
		}
	})
}
