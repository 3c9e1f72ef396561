package trivialrewrite

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rewriteclient"
	"posthaste/internal/table"
	"posthaste/internal/testwait"
)

// lines is a log that counts.
type lines struct {
	mu   sync.Mutex
	text string
}

func (*lines) Format() maillog.Format { return maillog.Plain }
func (*lines) Close() error           { return nil }
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(b)
	return len(b), nil
}

// A table that fails is asked, and complained of, once for all who ask the same
// within a second, and again later.
func TestFailureOnce(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ setting, key string }{
		{"transport_maps", `"a@far.test"`},
		{"relocated_maps", `"a@far.test"`},
		{"sender_dependent_default_transport_maps", `"s@from.test"`},
	} {
		t.Run(tt.setting, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = a.test\n" + tt.setting + " = socketmap:unix:" + dir + "/none:x\n")
			if err != nil {
				t.Fatal(err)
			}
			r, err := New(cfg, table.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			said := new(lines)
			log := maillog.New("trivial-rewrite", said)
			defer log.Close()
			ctx, cancel := context.WithCancel(t.Context())
			s := newServer(ctx, r, log, keepingOf(cfg))
			path := filepath.Join(dir, "rewrite")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan struct{})
			go func() { defer close(served); s.IPC().Serve(ctx, l, time.Second) }()
			defer func() { cancel(); <-served; s.Close() }()
			c := rewriteclient.New(ipc.Unix(path))
			defer c.Close()
			ask := func() int {
				t.Helper()
				a, err := c.Resolve(t.Context(), "s@from.test", "a@far.test")
				if err != nil || a.Flags&proto.ResolveFail == 0 {
					t.Fatalf("%+v, %v", a, err)
				}
				log.Flush()
				said.mu.Lock()
				defer said.mu.Unlock()
				if n := strings.Count(said.text, "\n"); n == strings.Count(said.text, "lookup of "+tt.key) {
					return n
				}
				t.Fatalf("logged:\n%s", said.text)
				return 0
			}
			start := time.Now()
			for range 5 {
				if n := ask(); n != 1 && time.Since(start) < staleInterval {
					t.Fatalf("complained of %d times, want once", n)
				}
			}
			testwait.Until(t, "it is complained of again", func() bool { return ask() != 1 })
		})
	}
}

// Answers from tables are forgotten when a table has changed, and only then, but for those that depend on more than
// tables.
func TestStale(t *testing.T) {
	t.Parallel()
	const base = "compatibility_level = 3.6\nmyhostname = a.test\n"
	for _, tt := range []struct {
		name, config string
		limits       bool
		change       string // of the table, after three seconds
		want         time.Duration
		flags        [2]bool // Fixed and FixedSender of the answer
	}{
		{name: "no table", config: "relay_domains = b.test", flags: [2]bool{true, false}},
		{name: "unchanged", config: "transport_maps = texthash:{file}", want: maxStale, flags: [2]bool{true, false}},
		{name: "changed", config: "transport_maps = texthash:{file}", change: "far.test smtp:[other.test]\n", want: 4 * time.Second, flags: [2]bool{true, false}},
		{name: "a list in a table", config: "relay_domains = texthash:{file}", change: "b.test x\n", want: 4 * time.Second, flags: [2]bool{true, false}},
		{name: "a part of a table", config: "transport_maps = unionmap:{inline:{a=b}, texthash:{file}}", change: "b.test x\n", want: 4 * time.Second, flags: [2]bool{true, false}},
		{name: "by sender", config: "sender_dependent_relayhost_maps = texthash:{file}", change: "b.test x\n", want: 4 * time.Second, flags: [2]bool{false, true}},
		{name: "chance", config: "transport_maps = randmap:{smtp:[a.test], smtp:[b.test]}"},
		{name: "in the configuration", config: "transport_maps = inline:{ {b.test=smtp:} }", want: maxStale, flags: [2]bool{true, false}},
		{name: "users of the system", config: "relay_domains = unix:passwd.byname", want: staleInterval, flags: [2]bool{true, false}},
		{name: "failing", config: "transport_maps = fail:x", want: staleInterval, flags: [2]bool{true, false}},
		{name: "limits", config: "destination_limit_maps = texthash:{file}", limits: true, change: "b.test concurrency=2\n", want: 4 * time.Second, flags: [2]bool{true, false}},
		{name: "pools by sender", config: "sender_dependent_egress_pool_maps = texthash:{file}", limits: true, want: maxStale, flags: [2]bool{false, true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "table")
			write := func(text string) {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Error(err)
				}
				// Long before the bubble's time, or it would be read each time.
				if err := os.Chtimes(file, time.Time{}, time.Date(1999, 1, len(text), 0, 0, 0, 0, time.UTC)); err != nil {
					t.Error(err)
				}
			}
			write("c.test smtp:\n")
			synctest.Test(t, func(t *testing.T) {
				cfg, err := config.LoadString(base + strings.ReplaceAll(tt.config, "{file}", file) + "\n")
				if err != nil {
					t.Fatal(err)
				}
				r, err := New(cfg, table.Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				s := newServer(t.Context(), r, maillog.New("trivial-rewrite", new(lines)), keepingOf(cfg))
				defer s.log.Close()
				defer s.Close()
				reply := s.resolve(&proto.Resolve{Sender: "s@from.test", Address: "u@far.test", Limits: tt.limits})
				if got := [2]bool{reply.Fixed, reply.FixedSender}; got != tt.flags {
					t.Errorf("answer %+v: kept %v, want %v", reply, got, tt.flags)
				}
				kept := func() bool {
					synctest.Wait()
					s.mu.Lock()
					defer s.mu.Unlock()
					return s.timer != nil
				}
				start := time.Now()
				for kept() && time.Since(start) < time.Minute {
					time.Sleep(staleInterval / 2)
					if tt.change != "" && time.Since(start) == 3*time.Second+staleInterval/2 {
						write(tt.change)
					}
				}
				if got := time.Since(start); got != tt.want {
					t.Errorf("forgotten after %v, want %v", got, tt.want)
				}
			})
		})
	}
}

// An answer that was sought before a table changed, and given after that was seen, is forgotten soon.
func TestStaleOvertaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = a.test\ntransport_maps = inline:{ {b.test=smtp:} }\n")
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(cfg, table.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s := newServer(t.Context(), r, maillog.New("trivial-rewrite", new(lines)), keepingOf(cfg))
		defer s.log.Close()
		defer s.Close()
		s.expire(r.changes.Revision(), false)
		s.expire(r.changes.Revision()-1, false) // as if a file had been read again in between
		time.Sleep(staleInterval)
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.timer != nil {
			t.Error("the answer of an older table is still kept")
		}
	})
}
