package service

import (
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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
)

func TestCommandLine(t *testing.T) {
	t.Parallel()
	word := rapid.StringMatching(`[a-z:./0-9=| ]{1,10}`)
	rapid.Check(t, func(t *rapid.T) {
		want := &CommandLine{
			Name: word.Draw(t, "name"), Type: word.Draw(t, "type"),
			Sockets: rapid.IntRange(0, 20).Draw(t, "sockets"), MaxProc: rapid.IntRange(0, 1000).Draw(t, "maxproc"),
			Unprivileged: rapid.Bool().Draw(t, "u"), Chroot: rapid.Bool().Draw(t, "c"), Verbose: rapid.IntRange(0, 3).Draw(t, "v"),
			Args: rapid.SliceOfN(word, 0, 4).Draw(t, "args"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "n") {
			want.Overrides = append(want.Overrides, config.Override{
				Name: rapid.StringMatching(`[a-z_]{1,8}`).Draw(t, "param"), Value: rapid.StringMatching(`([a-z$][a-z ${}=]{0,10}[a-z}])?`).Draw(t, "value"),
			})
		}
		got, err := ParseCommandLine(want.Strings())
		if err != nil || fmt.Sprint(*got) != fmt.Sprint(*want) {
			t.Fatalf("%q: %+v, %v", want.Strings(), got, err)
		}
	})
}

func TestCommandLineRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, want string }{
		{"", "do not run it by hand"},
		{"-n smtp", "do not run it by hand"},
		{"-n smtp -t", "option -t: expected a value"},
		{"-n smtp -t inet -s x", "option -s x: expected a number"},
		{"-n smtp -t inet -p -1", "option -p -1: expected a number"},
		{"-n smtp -t inet -x y", "unknown option -x"},
		{"-n smtp -t inet -o nonsense", "nonsense"},
	} {
		if _, err := ParseCommandLine(strings.Fields(test.args)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %s", test.args, err, test.want)
		}
	}
}

func FuzzCommandLine(f *testing.F) {
	f.Add("-n\x00smtp\x00-t\x00inet\x00-o\x00a=b")
	f.Fuzz(func(t *testing.T, text string) {
		cl, err := ParseCommandLine(strings.Split(text, "\x00"))
		if err != nil {
			return
		}
		again, err := ParseCommandLine(cl.Strings())
		if err != nil || !slices.Equal(again.Strings(), cl.Strings()) {
			t.Errorf("%q: %+v, %v", text, again, err)
		}
	})
}

func newFlow(t *testing.T) *Flow {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Close(p[0])
		unix.Close(p[1])
	})
	return NewFlow(p[0], p[1])
}

func TestFlow(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	if f.Take() || f.Level() != 0 {
		t.Error("a token in a new pipe")
	}
	f.Put(3)
	f.Put(0)
	if !f.Take() || f.Level() != 2 {
		t.Errorf("level %d", f.Level())
	}
	f.Put(-1)
	if f.Level() != 1 {
		t.Errorf("level %d", f.Level())
	}
	f.Put(-100)
	if f.Level() != 0 || f.Take() {
		t.Errorf("level %d", f.Level())
	}
	f.Put(1 << 20) // more than a pipe holds: must not block
	if n := f.Level(); n < 4096 || n >= 1<<20 {
		t.Errorf("level %d", n)
	}
	var none *Flow
	none.Put(1)
	if !none.Take() || none.Level() != 0 {
		t.Error("without a pipe nobody waits")
	}
}

// TestFlowTokens: many takers get exactly the tokens that there are.
func TestFlowTokens(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	f.Put(1000)
	var got atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for f.Take() {
				got.Add(1)
			}
		})
	}
	wg.Wait()
	if got.Load() != 1000 {
		t.Errorf("%d tokens", got.Load())
	}
}

// pipeListener is a listener without a network.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
	errs  chan error
	addr  net.Addr
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{}), errs: make(chan error)}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case err := <-l.errs:
		return nil, err
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return l.addr }

// dial is nil when nobody accepts.
func (l *pipeListener) dial() net.Conn {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours
	case <-time.After(time.Hour):
		return nil
	}
}

func TestServeConnsLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := newPipeListener()
		var n, most atomic.Int64
		ended := make(chan error, 1)
		go func() {
			ended <- ServeConns(ctx, l, 2, func(_ context.Context, c net.Conn) {
				most.Store(max(most.Load(), n.Add(1)))
				io.Copy(io.Discard, c)
				n.Add(-1)
			})
		}()
		a, b := l.dial(), l.dial()
		if c := l.dial(); c != nil {
			t.Error("a third client was served")
		}
		a.Close()
		c := l.dial()
		if c == nil {
			t.Fatal("nobody is served after one has gone")
		}
		cancel()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("ended before its sessions")
		default:
		}
		b.Close()
		c.Close()
		if err := <-ended; err != nil || most.Load() != 2 || n.Load() != 0 {
			t.Errorf("%v; %d at once, %d left", err, most.Load(), n.Load())
		}
	})
}

// TestServeConnsErrors: what passes is waited for, what does not ends it.
func TestServeConnsErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		ended := make(chan error, 1)
		go func() { ended <- ServeConns(t.Context(), l, 0, func(_ context.Context, c net.Conn) {}) }()
		for range 5 {
			l.errs <- &net.OpError{Op: "accept", Err: os.NewSyscallError("accept", unix.EMFILE)}
		}
		if c := l.dial(); c == nil {
			t.Fatal("gave up")
		}
		broken := errors.New("broken")
		l.errs <- broken
		if err := <-ended; !errors.Is(err, broken) {
			t.Error(err)
		}
	})
}

// Why nobody can connect is said once for each reason, not each time that it
// is tried again.
func TestAcceptFaultsLogged(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"conns", "ipc"} {
		synctest.Test(t, func(t *testing.T) {
			l := newPipeListener()
			var text lockedText
			env := &Env{Listeners: []net.Listener{l}, activity: &activity{}, Log: maillog.New("postfix/x", maillog.NewWriter(&text, maillog.Format(0)))}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				if kind == "ipc" {
					ended <- env.ServeIPC(ctx, new(ipc.Server), time.Second)
				} else {
					ended <- env.ServeConns(ctx, func(context.Context, net.Conn) {})
				}
			}()
			for i := range 6 {
				reason := unix.EMFILE
				if i%2 > 0 {
					reason = unix.ENFILE
				}
				l.errs <- &net.OpError{Op: "accept", Err: os.NewSyscallError("accept", reason)}
			}
			synctest.Wait()
			env.Log.Flush()
			if got := text.String(); strings.Count(got, "cannot accept a connection") != 2 || strings.Count(got, unix.EMFILE.Error()+"\n") != 1 || strings.Count(got, unix.ENFILE.Error()+"\n") != 1 {
				t.Errorf("%s: logged\n%s", kind, got)
			}
			cancel()
			<-ended
		})
	}
}

// lockedText may be written by one and read by another.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestStopping(t *testing.T) {
	t.Parallel()
	stop, end := context.WithCancel(t.Context())
	ctx, retire := context.WithCancel(context.WithValue(stop, stopKey{}, stop))
	retire()
	if ctx.Err() == nil || Stopping(ctx).Err() != nil {
		t.Error("retiring ends what is in hand")
	}
	end()
	if Stopping(ctx).Err() == nil {
		t.Error("stopping does not")
	}
	if plain := t.Context(); Stopping(plain) != plain {
		t.Error("a plain context is not its own answer")
	}
}

func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var idle, used atomic.Int64
		env := &Env{activity: &activity{onUse: func() { used.Add(1) }}}
		env.activity.start(100*time.Second, func() { idle.Add(1) })
		time.Sleep(99 * time.Second)
		env.Used() // begins anew
		time.Sleep(99 * time.Second)
		done := env.Busy()
		other := env.Busy()
		time.Sleep(time.Hour)
		done()
		done() // counts once
		time.Sleep(time.Hour)
		if idle.Load() != 0 {
			t.Fatal("idle while busy")
		}
		other()
		time.Sleep(99 * time.Second)
		synctest.Wait()
		if idle.Load() != 0 {
			t.Error("idle too early")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if idle.Load() != 1 || used.Load() != 1 {
			t.Errorf("idle %d, used %d times", idle.Load(), used.Load())
		}
	})
}

// Clients do not get all descriptors: what serves them takes some, too.
func TestClients(t *testing.T) {
	t.Parallel()
	for files, want := range map[uint64]int{0: 1, 64: 1, 128: 32, 1024: 480, 1 << 20: 524256, unix.RLIM_INFINITY: 524256} {
		if got := affordable(files); got != want {
			t.Errorf("%d files: %d clients, want %d", files, got, want)
		}
	}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	most := affordable(r.Cur)
	for limit, want := range map[int]int{0: most, 1: 1, most: most, most + 1: most} {
		var out strings.Builder
		env := &Env{Name: "smtp", MaxProc: limit, Log: maillog.New("t", maillog.NewWriter(&out, maillog.Plain))}
		got := env.clients()
		env.Log.Close()
		if warned := strings.Contains(out.String(), "files open"); got != want || warned != (limit > most) {
			t.Errorf("process limit %d: %d clients, want %d; logged %q", limit, got, want, out.String())
		}
	}
}

func TestStress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, err := config.LoadString("smtpd_timeout = ${stress?{10}:{300}}s\n")
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		l := newPipeListener()
		l.addr = &net.TCPAddr{Port: 25}
		env := &Env{Name: "127.0.0.1:smtp", Type: "inet", Listeners: []net.Listener{l}, MaxProc: 7, Config: cfg, Log: maillog.New("t", maillog.NewWriter(&out, maillog.Plain))}
		limit := func() time.Duration { return env.SessionConfig().Duration("smtpd_timeout") }
		if limit() != 300*time.Second {
			t.Error("stress from the start")
		}
		env.overloaded(time.Now(), 7)
		env.overloaded(time.Now(), 7)
		if limit() != 10*time.Second {
			t.Error("no stress")
		}
		time.Sleep(stressTime)
		if limit() != 300*time.Second {
			t.Error("stress for ever")
		}
		env.Log.Close()
		want := "t: warning: service \"127.0.0.1:smtp\" (127.0.0.1:25) has reached its process limit \"7\": new clients may experience noticeable delays\n"
		if got := out.String(); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 3 {
			t.Errorf("logged %q", got)
		}
	})
}

func TestTrigger(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "qmgr")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := Trigger(path, "FADI", time.Minute); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, err := io.ReadAll(c); err != nil || string(b) != "FADI" {
		t.Errorf("%q, %v", b, err)
	}
	if err := Trigger(path+"x", "W", time.Minute); err == nil || !strings.Contains(err.Error(), path+"x") {
		t.Errorf("%v does not name the socket", err)
	}
}

func TestByHand(t *testing.T) {
	t.Parallel()
	cl := &CommandLine{Name: "smtp", Type: "inet", Sockets: 1 << 20}
	if err := checkInherited(cl); err == nil || !strings.Contains(err.Error(), "is missing: a service is started by master") {
		t.Error(err)
	}
}
