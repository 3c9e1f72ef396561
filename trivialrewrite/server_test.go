package trivialrewrite

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
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
		{"sender_dependent_default_transport_maps", `"s@from.test"`}, // of which no answer is kept
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
