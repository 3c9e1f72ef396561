package watch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
)

const usage = "usage: posthaste watch [-c config_dir] client NAME|ADDRESS, or posthaste watch [-c config_dir] destination NAME|ADDRESS"

// lookAgain is how often the command looks for processes that have started.
const lookAgain = 200 * time.Millisecond

// Command carries out "posthaste watch" until it is interrupted, or out cannot be written, and
// returns its exit status.
func Command(args []string, out, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	return run(ctx, args, out, stderr)
}

func run(ctx context.Context, args []string, out, stderr io.Writer) int {
	fatal := func(format string, args ...any) int {
		fmt.Fprintf(stderr, "posthaste watch: fatal: "+format+"\n", args...)
		return 1
	}
	dir := ""
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		if args[0] != "-c" || len(args) < 2 {
			return fatal("unknown option %s; %s", args[0], usage)
		}
		dir, args = args[1], args[2:]
	}
	if len(args) != 2 || args[0] != string(Client) && args[0] != string(Destination) {
		return fatal("%s", usage)
	}
	if _, err := ParsePattern(args[1]); err != nil {
		return fatal("%s: %v", args[1], err)
	}
	cfg, err := config.Load(config.Dir(dir))
	if err != nil {
		return fatal("%v", err)
	}
	f := &follower{kind: Kind(args[0]), pattern: args[1], dir: filepath.Join(cfg.String("queue_directory"), Dir), out: out, stderr: stderr,
		follows: make(map[string]bool)}
	if err := f.run(ctx); err != nil {
		return fatal("%v", err)
	}
	return 0
}

// A follower is the command at work.
type follower struct {
	kind        Kind
	pattern     string
	dir         string
	out, stderr io.Writer

	printing sync.Mutex // of out

	mu      sync.Mutex
	follows map[string]bool // sockets of processes that are watched
	broken  error           // out cannot be written
	end     context.CancelFunc
}

// run follows all processes until ctx ends.
func (f *follower) run(ctx context.Context) error {
	ctx, f.end = context.WithCancel(ctx)
	defer f.end()
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		entries, err := os.ReadDir(f.dir)
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("only root may follow dialogues: %w", err)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			path := filepath.Join(f.dir, e.Name())
			if !strings.HasPrefix(e.Name(), string(f.kind)+".") || !f.begin(path) {
				continue
			}
			wg.Go(func() {
				defer f.done(path)
				f.follow(ctx, path)
			})
		}
		select {
		case <-ctx.Done():
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.broken
		case <-tick.C:
		}
	}
}

// begin notes that a process is watched, unless it is already.
func (f *follower) begin(path string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.follows[path]
	f.follows[path] = true
	return !was
}

func (f *follower) done(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.follows, path)
}

// follow prints what one process tells. A process that has died, or that ends, is passed over.
func (f *follower) follow(ctx context.Context, path string) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := fmt.Fprintf(c, "%s\n", f.pattern); err != nil {
		return
	}
	in := bufio.NewReaderSize(c, 4*maxLine)
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil { // also of one that is too long: it is none of ours
			return
		}
		text := string(maillog.AppendClean(nil, line[:len(line)-1]))
		if who, ok := strings.CutPrefix(text, "ok "); ok && first {
			f.note("following %s %s in %s\n", f.kind, f.pattern, who)
			continue
		}
		if why, ok := strings.CutPrefix(text, "error "); ok && first {
			f.fail(errors.New(why))
			return
		}
		f.print(text)
	}
}

// note says something to the person, on standard error.
func (f *follower) note(format string, args ...any) {
	f.printing.Lock()
	defer f.printing.Unlock()
	fmt.Fprintf(f.stderr, format, args...)
}

// fail ends the command.
func (f *follower) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken == nil {
		f.broken = err
		f.end()
	}
}

func (f *follower) print(text string) {
	f.printing.Lock()
	_, err := fmt.Fprintln(f.out, text)
	f.printing.Unlock()
	if err != nil {
		f.fail(err)
	}
}
