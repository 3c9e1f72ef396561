package suppresstool

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

// A fakeService is the suppress service: a map, and an import that counts at its end. Pages have two entries.
type fakeService struct {
	mu      sync.Mutex
	entries map[string]proto.Suppression
	staged  map[string]proto.Suppression
	batch   string
}

func (f *fakeService) handle(_ *ipc.Conn, r *ipc.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch r.Kind {
	case proto.KindSuppressChange:
		q := new(proto.SuppressChange)
		if err := r.Decode(q); err != nil {
			r.Fail("%v", err)
			return
		}
		r.Reply(&proto.SuppressChanged{Count: f.change(q)})
	case proto.KindSuppressPage:
		q := new(proto.SuppressPage)
		if err := r.Decode(q); err != nil {
			r.Fail("%v", err)
			return
		}
		reply := new(proto.SuppressPageReply)
		for _, k := range slices.Sorted(maps.Keys(f.entries)) {
			e := f.entries[k]
			if q.Address != "" {
				if e.Address == q.Address {
					reply.Entries = append(reply.Entries, e)
				}
				continue
			}
			if k <= q.After || !q.All && e.List != q.List {
				continue
			}
			if len(reply.Entries) == 2 {
				last := reply.Entries[1]
				reply.Next = last.List + " " + last.Address
				break
			}
			reply.Entries = append(reply.Entries, e)
		}
		r.Reply(reply)
	case proto.KindSuppressAsk:
		q := new(proto.SuppressAsk)
		if err := r.Decode(q); err != nil {
			r.Fail("%v", err)
			return
		}
		e, ok := f.entries[q.List+" "+q.Address]
		r.Reply(&proto.SuppressAnswer{Suppressed: ok, Entry: e})
	}
}

func (f *fakeService) change(q *proto.SuppressChange) (n uint64) {
	into := f.entries
	switch {
	case q.What == proto.SuppressBegin:
		f.batch = q.Import
	case q.Import != f.batch && (q.What == proto.SuppressStage || q.What == proto.SuppressEnd):
		return 0 // of another import, or of none
	}
	switch q.What {
	case proto.SuppressBegin:
		f.staged = map[string]proto.Suppression{}
	case proto.SuppressEnd:
		maps.Copy(f.entries, f.staged)
	case proto.SuppressStage:
		into = f.staged
	}
	for _, e := range q.Entries {
		k := e.List + " " + e.Address
		_, there := into[k]
		if q.What == proto.SuppressRemove {
			delete(into, k)
		} else {
			into[k] = e
		}
		if there || q.What != proto.SuppressRemove {
			n++
		}
	}
	return n
}

// The command line and what comes of it, in the order in which it is typed.
func TestCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "private"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "private", "suppress"))
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeService{entries: map[string]proto.Suppression{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = (&ipc.Server{Handler: f.handle}).Serve(ctx, l, time.Second) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	if err := os.WriteFile(filepath.Join(dir, "main.cf"), []byte("compatibility_level = 3.6\nqueue_directory = "+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(stdin string, args ...string) (string, int) {
		var out bytes.Buffer
		args = append([]string{args[0], "-c", dir}, args[1:]...)
		status := Run("suppress", args, strings.NewReader(stdin), &out, &out)
		return out.String(), status
	}
	for _, tt := range []struct {
		args, stdin string
		status      int
		want        string // part of the output
	}{
		{args: "list"},
		{args: "add -l news -r moved -e 10 joe@x.test", status: 0},
		{args: "add jane@x.test"},
		{args: "check -l news joe@x.test jim@x.test", status: 1, want: "joe@x.test: moved, list news, since 20"},
		{args: "check -l news jim@x.test", want: "jim@x.test: not suppressed\n"},
		{args: "check jane@x.test", status: 1, want: "jane@x.test: manual, list *, since"},
		{args: "check joe@x.test", status: 1, want: "joe@x.test: moved, list news, since"},
		{args: "check -l * joe@x.test", want: "joe@x.test: not suppressed\n"},
		{args: "check jim@x.test", want: "jim@x.test: not suppressed, for any list\n"},
		{args: "list -l news -j", want: `{"list":"news","address":"joe@x.test","reason":"moved","origin":`},
		{args: "remove -l news jim@x.test", status: 65, want: "1 of 1 addresses were not on list news"},
		{args: "import -l marks", stdin: "\\#1@x.test\n\\\\2@x.test\na,b;c@x.test\n#4@x.test\n", want: "3 entries imported\n"},
		{args: "export -l marks", want: "\\#1@x.test\tmarks\t"},
		{args: "export -l marks", want: "\n\\\\2@x.test\tmarks\t"},
		{args: "export -l marks", want: "\na,b;c@x.test\tmarks\t"},
		{args: "import", stdin: "a@x.test,b@x.test\n", status: 65, want: "is no mail address"},
		{args: "import", stdin: "a@x.test;bounce\n", status: 65, want: "is no mail address"},
		{args: "import -l shop", stdin: "# old\na@x.test\r\n\nb@x.test\tnews\tbounce\t1795867200\t0\tQ1\t550 no\n", want: "2 entries imported\n"},
		{args: "export -l shop", want: "b@x.test\tshop\tbounce\t1795867200\t0\tQ1\t550 no\n"},
		{args: "import", stdin: "c@x.test\t*\tmoved\n", want: "1 entries imported\n"},
		{args: "export", want: "c@x.test\t*\tmoved\t"},
		{args: "import", stdin: "d@x.test\nno address\n", status: 65, want: `line 2: "no address" is no mail address; nothing was imported`},
		{args: "import", stdin: "d@x.test\tnews\tx\tsoon\n", status: 65, want: `line 1: "soon" is no time`},
		{args: "import", stdin: "d@x.test\ta b\n", status: 65, want: `"a b" is no name of a list`},
		{args: "import", stdin: "d@x.test" + strings.Repeat("x", 5000) + "\n", status: 66, want: "nothing was imported"},
		{args: "check -l news d@x.test", want: "d@x.test: not suppressed\n"},
		{args: "remove jane@x.test c@x.test"},
		{args: "add -l no*name a@x.test", status: 64},
		{args: "add -e 0 a@x.test", status: 64},
		{args: "add", status: 64},
		{args: "import /none", status: 66},
	} {
		out, status := run(tt.stdin, strings.Fields(tt.args)...)
		if status != tt.status || !strings.Contains(out, tt.want) {
			t.Errorf("%s: status %d, %s\nexpected %d, %s", tt.args, status, out, tt.status, tt.want)
		}
	}
	// All pages are printed, and what is exported can be imported.
	out, _ := run("", "export")
	if n := strings.Count(out, "\n"); n != 6 {
		t.Errorf("%d entries: %s", n, out)
	}
	before := fmt.Sprint(f.entries)
	f.entries = map[string]proto.Suppression{}
	if msg, status := run(out, "import"); status != 0 || fmt.Sprint(f.entries) != before {
		t.Errorf("%s\n%v\n%s", msg, f.entries, before)
	}
}
