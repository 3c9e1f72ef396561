package suppresstool

import (
	"bytes"
	"context"
	"fmt"
	"io"
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
	lost    bool // the list is
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
		n := f.change(q)
		f.lost = f.lost && (q.What != proto.SuppressEnd || q.Part)
		r.Reply(&proto.SuppressChanged{Count: n, Lost: f.lost && q.What == proto.SuppressEnd})
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
			if k <= q.After || q.Tenant != "" && !strings.HasPrefix(e.List, q.Tenant+"/") || q.Tenant == "" && !q.All && e.List != q.List {
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

// deaf is an output that is closed.
type deaf struct{}

func (deaf) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

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
		{args: "export -l marks", want: "\n\"\\\\2\"@x.test\tmarks\t"},
		{args: "export -l marks", want: "\n\"a,b;c\"@x.test\tmarks\t"},
		// Quotes and backslashes are those of RFC 5321, and go where they are not needed.
		{args: "import -l quoted", stdin: "\"j\\oe\"@x.test\n\"john doe\"@x.test\n\"a@b,c\"@x.test\n", want: "3 entries imported\n"},
		{args: "export -l quoted", want: "\njoe@x.test\tquoted\t"},
		{args: "export -l quoted", want: "\n\"john doe\"@x.test\tquoted\t"},
		{args: "export -l quoted -F csv", want: "\n\"\"\"john doe\"\"@x.test\",quoted,"},
		{args: "export -l quoted -F json", want: `"address":"\"john doe\"@x.test"`},
		{args: "list -l quoted", want: "\"john doe\"@x.test: import, list quoted, since"},
		{args: "check -l quoted \"joe\"@x.test", status: 1, want: "joe@x.test: import, list quoted, since"},
		{args: "check -l quoted \"jim\"@x.test", want: "jim@x.test: not suppressed\n"},
		{args: "check \"joe@x.test", status: 64, want: "is no mail address"},
		{args: "import -l quoted", stdin: "john doe@x.test\n", status: 65, want: "is no mail address"},
		{args: "import -l quoted", stdin: "\"joe\"@x.test,\"jim\"@x.test\n", status: 65, want: "is no mail address"},
		{args: "remove -l quoted joe@x.test \"a@b,c\"@x.test"},
		// What an earlier version took for an address can be exported, imported and removed.
		{args: "import -l former", stdin: "@x.test\n\"\"@y.test\n\"joe@x.test\na@x\"y.test\n", want: "4 entries imported\n"},
		{args: "export -l former", want: "\n\"\"@x.test\tformer\t"},
		{args: "export -l former", want: "\n\"\"@y.test\tformer\t"},
		{args: "export -l former", want: "\"\\\"joe\"@x.test\tformer\t"},
		{args: "remove -l former @x.test \"\"@y.test \"joe@x.test a@x\"y.test"},
		{args: "add -l former @x.test", status: 64, want: "is no mail address"},
		{args: "add joe", status: 64, want: "is no mail address"},
		{args: "import", stdin: "a@x.test,b@x.test\n", status: 65, want: "is no mail address"},
		{args: "import", stdin: "a@x.test;bounce\n", status: 65, want: "is no mail address"},
		{args: "import -l shop", stdin: "# old\na@x.test\r\n\nb@x.test\tnews\tbounce\t1795867200\t0\tQ1\t550 no\n", want: "2 entries imported\n"},
		{args: "export -l shop", want: "b@x.test\tshop\tbounce\t1795867200\t0\tQ1\t550 no\n"},
		{args: "import", stdin: "c@x.test\t*\tmoved\n", want: "1 entries imported\n"},
		{args: "export", want: "c@x.test\t*\tmoved\t"},
		{args: "import", stdin: "d@x.test\nno address\n", status: 65, want: `line 2: "no address" is no mail address; nothing was imported`},
		{args: "import", stdin: "d@x.test\tnews\tx\tsoon\n", status: 65, want: `line 1: "soon" is no time`},
		{args: "import", stdin: "d@x.test\tnews\tx\t1795867200000\n", status: 65, want: `line 1: "1795867200000" is no time`},
		{args: "import", stdin: "d@x.test\tnews\tx\t\t253402300800\n", status: 65, want: `line 1: "253402300800" is no time`},
		{args: "import", stdin: "d@x.test\ta b\n", status: 65, want: `"a b" is no name of a list`},
		{args: "import", stdin: "d@x.test" + strings.Repeat("x", 5000) + "\n", status: 66, want: "nothing was imported"},
		{args: "check -l news d@x.test", want: "d@x.test: not suppressed\n"},
		{args: "add -t bank -r moved e@x.test"},
		{args: "add -t bank -l letter -r moved f@x.test"},
		{args: "check -t bank -l letter f@x.test", status: 1, want: "f@x.test: moved, list bank/letter, since"},
		{args: "check -t bank f@x.test", want: "f@x.test: not suppressed\n"},
		{args: "check e@x.test", status: 1, want: "e@x.test: moved, list bank/, since"},
		{args: "export -t bank -l letter -F csv", want: "address,list,reason,time,until,origin,detail\nf@x.test,bank/letter,moved,20"},
		{args: "export -t bank -F json", want: `{"list":"bank/letter","address":"f@x.test","reason":"moved",`},
		{args: "import -t bank", stdin: "g@x.test\tother/\n", status: 65, want: `"other/" is a list of another tenant than bank`},
		{args: "import -t bank", stdin: "g@x.test\tbank/letter\nh@x.test\tletter\ni@x.test\t*\nj@x.test\n", want: "4 entries imported\n"},
		{args: "export -t bank -l letter", want: "g@x.test\tbank/letter\t"},
		{args: "export -t bank -l letter", want: "h@x.test\tbank/letter\t"},
		{args: "export -t bank", want: "i@x.test\tbank/\t"},
		{args: "remove -t bank e@x.test i@x.test j@x.test"},
		{args: "remove -t bank -l letter f@x.test g@x.test h@x.test"},
		{args: "remove -t bank e@x.test", status: 65, want: "1 of 1 addresses were not on list bank/"},
		{args: "import -F csv", stdin: "\ufeffReason,Address,until\r\nmoved,\"k@x.test\",2027-01-01\r\n,l@x.test,\r\n", want: "2 entries imported\n"},
		{args: "check -l news k@x.test", status: 0, want: "k@x.test: not suppressed"},
		{args: "check k@x.test", status: 1, want: "k@x.test: moved, list *, since"},
		{args: "check k@x.test", status: 1, want: ", until 2027-01-01 00:00 UTC"},
		{args: "import -F csv", stdin: "reason,mail\n", status: 65, want: `line 1: the column "mail": expected each of address, list,`},
		{args: "import -F csv", stdin: "address,address\n", status: 65, want: `the column "address"`},
		{args: "import -F csv", stdin: "reason\nmoved\n", status: 65, want: "line 1: there is no column address"},
		{args: "import -F csv", stdin: "address,reason\nk@x.test\n", status: 65, want: "line 2: it has 1 fields, and the first line has 2; nothing was imported"},
		{args: "import -F csv", stdin: "address,reason\n\"k@x.test,moved\n", status: 65, want: "line 2: "},
		{args: "import -F json", stdin: `{"address": "m@x.test", "time": "2026-11-28T12:00:00Z"}` + "\n\n", want: "1 entries imported\n"},
		{args: "import -F json", stdin: `{"address": "m@x.test", "why": "x"}` + "\n", status: 65, want: "why"},
		{args: "import -F json", stdin: `{"address": "m@x.test"} {"address": "n@x.test"}` + "\n", status: 65, want: "more than one value"},
		{args: "import -F json", stdin: "[]\n", status: 65, want: "line 1"},
		{args: "import -F xml", status: 64, want: "is no format"},
		{args: "export -t a/b", status: 64, want: "is no name of a tenant"},
		{args: "add -t bank -l * x@x.test", status: 64},
		{args: "remove k@x.test l@x.test m@x.test"},
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
	// An import of one list or tenant says that the whole is still lost.
	f.lost = true
	for _, args := range []string{"import -t bank", "import -l shop", "import -l *"} {
		if out, status := run("b@x.test\n", strings.Fields(args)...); status != 1 || !strings.Contains(out, "1 entries imported, and the suppression list is still lost: mail") {
			t.Errorf("%s: status %d, %s", args, status, out)
		}
	}
	if out, status := run("", "import"); status != 0 || out != "0 entries imported\n" {
		t.Errorf("status %d, %s", status, out)
	}
	if _, status := run("", "remove", "-t", "bank", "b@x.test"); status != 0 {
		t.Errorf("status %d", status)
	}
	if _, status := run("", "remove", "b@x.test"); status != 0 {
		t.Errorf("status %d", status)
	}
	// What counts has not failed, although nobody hears of it; what is to be printed has.
	for _, tt := range []struct {
		args   []string
		status int
	}{{[]string{"import", "-c", dir, "-l", "shop"}, 0}, {[]string{"export", "-c", dir}, 74}} {
		if status := Run("suppress", tt.args, strings.NewReader("b@x.test\tnews\tbounce\t1795867200\t0\tQ1\t550 no\n"), deaf{}, io.Discard); status != tt.status {
			t.Errorf("%s without a reader: status %d", tt.args[0], status)
		}
	}
	// All pages are printed, and what is exported can be imported, in each format.
	for format, head := range map[string]int{"tab": 0, "csv": 1, "json": 0} {
		out, _ := run("", "export", "-F", format)
		if n := strings.Count(out, "\n") - head; n != 7 {
			t.Errorf("%s: %d entries: %s", format, n, out)
		}
		before := fmt.Sprint(f.entries)
		f.entries = map[string]proto.Suppression{}
		if msg, status := run(out, "import", "-F", format); status != 0 || fmt.Sprint(f.entries) != before {
			t.Errorf("%s: %s\n%v\n%s", format, msg, f.entries, before)
		}
	}
}
