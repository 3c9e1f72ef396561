package table

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

// The suppression list as a table: whole addresses are asked for, with the scope that its name says, and a service that
// cannot say so is an error, not an answer.
func TestSuppressedTable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "suppress"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked []string
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = (&ipc.Server{Handler: func(_ *ipc.Conn, r *ipc.Request) {
			q := new(proto.SuppressAsk)
			if err := r.Decode(q); err != nil {
				r.Fail("%v", err)
				return
			}
			mu.Lock()
			asked = append(asked, q.List+" "+q.Address)
			mu.Unlock()
			if q.Address == "lost@x.test" {
				r.Fail("the list is lost")
				return
			}
			r.Reply(&proto.SuppressAnswer{Suppressed: (q.Address == "joe@x.test" || q.Address == "john doe@x.test") && q.List == "shop/", Entry: proto.Suppression{Reason: "complaint"}})
		}}).Serve(ctx, l, time.Second)
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	o := Options{Proxy: filepath.Join(dir, "proxymap")}
	for spec, want := range map[string]string{"suppress:shop/": "complaint", "suppress:shop": "-", "suppress:shop/letter": "-", "suppress:*": "-",
		"pipemap:{suppress:shop/, static:{REJECT you are on our list}}": "REJECT you are on our list"} {
		table, err := Open(spec, o)
		if err != nil {
			t.Fatal(err)
		}
		got, found, err := table.Lookup(t.Context(), "joe@x.test")
		if !found {
			got = "-"
		}
		if err != nil || got != want {
			t.Errorf("%s: %q, %v", spec, got, err)
		}
		for _, quoted := range []string{`"john doe"@x.test`, "john doe@x.test"} {
			other, found, err := table.Lookup(t.Context(), quoted)
			if !found {
				other = "-"
			}
			if err != nil || other != want {
				t.Errorf("%s: %s: %q, %v", spec, quoted, other, err)
			}
		}
		for _, part := range []string{"joe", "x.test", "@x.test", "joe@", ""} {
			if _, found, err := table.Lookup(t.Context(), part); found || err != nil {
				t.Errorf("%s: %q: %v, %v", spec, part, found, err)
			}
		}
		if _, _, err := table.Lookup(t.Context(), "lost@x.test"); err == nil || !strings.Contains(err.Error(), "the list is lost") {
			t.Errorf("%s: %v", spec, err)
		}
		table.Close()
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 4*5 {
		t.Errorf("%q", asked)
	}
	for _, bad := range []string{"suppress:a/b/c", "suppress:/", "suppress:/a", "suppress:a b", "suppress:a*"} {
		if _, err := Open(bad, o); err == nil {
			t.Errorf("%s was opened", bad)
		}
	}
}
