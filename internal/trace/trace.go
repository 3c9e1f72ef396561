// Package trace is "posthaste trace": it finds messages in the mail log, and follows each through all that it became.
//
//	posthaste trace [option ...] PATTERN ...
//	posthaste trace --build [--log FILE ...]
//
// Package track says what belongs together, and what the index is.
//
// # Security
//
// It reads the log, which is for those who may read its files, and writes nothing but the index. What it prints comes from
// strangers in part: what a terminal would not show as a character is shown as \x1b or \u202e.
//
// # Parameters
//
// import_environment, maillog_file, data_directory, track_index_directory, track_index_limit
//
// # Diagnostics
//
// Exit status 0 if something was found; 64 wrong usage; 66 nothing was found, or a log cannot be read; 69 the index cannot
// be made; 74 the output cannot be written; 75 another process is building the index; 78 wrong configuration.
package trace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/logread"
	"posthaste/internal/track"
)

// A command is one run.
type command struct {
	cli.Tool
	now  time.Time
	args arguments
	out  *bufio.Writer
	tty  bool // standard error is a terminal
	told time.Time
}

// Run carries out the command and returns its exit status.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := &command{Tool: cli.Tool{Name: "posthaste trace", Stdin: stdin, Stdout: stdout, Stderr: stderr}, now: time.Now()}
	if f, ok := stderr.(*os.File); ok {
		info, err := f.Stat()
		c.tty = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return c.run(ctx, args)
}

func (c *command) run(ctx context.Context, args []string) int {
	a, err := parse(args, c.now)
	if err != nil {
		return c.Fatal(cli.ExitUsage, "%v; usage: posthaste trace [option ...] pattern ...; see posthaste(1)", err)
	}
	c.args, c.out = a, bufio.NewWriter(c.Stdout)
	o, err := c.options()
	if err != nil {
		return c.Fail(err)
	}
	if a.build {
		return c.build(ctx, o)
	}
	found := 0
	show := func(f track.Found) bool {
		found++
		c.show(f)
		return c.out.Flush() == nil && (a.limit == 0 || found < a.limit)
	}
	if a.follow {
		err = track.Follow(ctx, o, a.query, func(s track.Live) bool {
			found++
			c.live(s)
			return c.out.Flush() == nil && (a.limit == 0 || found < a.limit)
		})
	} else {
		err = track.Search(ctx, o, a.query, show)
	}
	return c.end(err, found)
}

// end is the exit status.
func (c *command) end(err error, found int) int {
	c.quiet()
	failed := c.out.Flush()
	switch {
	case failed != nil && errors.Is(failed, syscall.EPIPE):
		return 0 // head has seen enough
	case failed != nil:
		return c.Fatal(cli.ExitIO, "%v", failed)
	case err != nil && !errors.Is(err, context.Canceled):
		return c.Fatal(cli.ExitNoInput, "%v", err)
	case found == 0:
		if c.tty && !c.args.follow {
			fmt.Fprintln(c.Stderr, "nothing was found") // a script has the exit status
		}
		return cli.ExitNoInput
	}
	return 0
}

// options are where the log and the index are.
func (c *command) options() (o track.Options, err error) {
	o = track.Options{Logs: c.args.logs, Others: len(c.args.logs) > 0, Stdin: c.Stdin, Now: c.now, Warn: c.warn, Progress: c.progress}
	cfg, err := config.Load(config.Dir(c.args.configDir))
	if err != nil {
		if len(o.Logs) == 0 || !c.args.noIndex {
			return o, cli.Errorf(cli.ExitConfig, "%w", err)
		}
		return o, nil
	}
	if !c.args.noIndex {
		o.Index, o.IndexLimit = cfg.String("track_index_directory"), int64(cfg.Int("track_index_limit"))
	}
	if o.IndexLimit == 0 {
		o.IndexLimit = math.MaxInt64
	}
	if o.Now = inZone(cfg, c.now); len(o.Logs) > 0 {
		return o, nil
	}
	name := cfg.String("maillog_file")
	if name == "" || name[0] != '/' || name == "/dev/stdout" {
		return o, cli.Errorf(cli.ExitUsage, "maillog_file is not a file: name the logs with --log, or - for standard input")
	}
	if o.Logs, err = logread.Rotated(name); err != nil {
		return o, cli.Errorf(cli.ExitNoInput, "%w", err)
	}
	return o, nil
}

// inZone is a time in the zone in which the mail system writes lines that do not name one: who looks for a message may have set another.
func inZone(cfg *config.Config, now time.Time) time.Time {
	for _, v := range cfg.List("import_environment") {
		if name, ok := strings.CutPrefix(v, "TZ="); ok {
			return now.In(zone(strings.TrimPrefix(name, ":")))
		}
	}
	return now
}

// zone is what a program has that finds this in TZ: a name, or a file.
func zone(name string) *time.Location {
	zone, err := time.LoadLocation(name)
	if strings.HasPrefix(name, "/") {
		var rules []byte
		if rules, err = os.ReadFile(name); err == nil {
			zone, err = time.LoadLocationFromTZData(name, rules)
		}
	}
	if err != nil {
		return time.UTC
	}
	return zone
}

// build makes the index.
func (c *command) build(ctx context.Context, o track.Options) int {
	b, err := track.Build(ctx, o)
	c.quiet()
	switch {
	case errors.Is(err, track.ErrBusy):
		return c.Fatal(cli.ExitTemp, "%v", err)
	case err != nil:
		return c.Fatal(cli.ExitUnavailable, "%v", err)
	}
	fmt.Fprintf(c.out, "%s: index of %d MB of log, %d MB of them new; the index has %.1f MB\n", o.Index, b.Text>>20, b.Added>>20, float64(b.Size)/(1<<20))
	if b.Refused {
		c.warn("track_index_limit is too small for all of it: a search goes through the oldest part of the log each time")
	}
	if err := c.out.Flush(); err != nil {
		return c.Fatal(cli.ExitIO, "%v", err)
	}
	return 0
}

func (c *command) warn(format string, args ...any) {
	c.quiet()
	c.Warn("%s", visible(fmt.Sprintf(format, args...)))
}

// progress says on a terminal how far the index is.
func (c *command) progress(done, total int64, now time.Time) {
	const often = 200 * time.Millisecond
	if !c.tty || now.Sub(c.told) < often || total < 64<<20 {
		return
	}
	c.told = now
	fmt.Fprintf(c.Stderr, "\rindexing: %d of about %d MB", done>>20, total>>20)
}

// quiet takes the progress off the terminal.
func (c *command) quiet() {
	if !c.told.IsZero() {
		c.told = time.Time{}
		fmt.Fprint(c.Stderr, "\r\x1b[K")
	}
}
