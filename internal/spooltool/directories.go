package spooltool

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"posthaste/internal/cli"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
	"posthaste/internal/queueread"
	"posthaste/internal/spools"
	"posthaste/internal/vfs"
)

// eachPlace calls f for each spool of the queue that has had mail, and says which it is when there are several.
func (c *command) eachPlace(f func(pl *spools.Place) error) error {
	plan, err := c.queue.Plan()
	if err != nil {
		return err
	}
	for i := range plan.Places {
		pl := &plan.Places[i]
		if pl.Fresh {
			continue
		}
		if plan.Several() {
			fmt.Fprintf(c.out, "spool %d: %s\n", pl.Number, pl.Dir)
		}
		if err := f(pl); err != nil {
			return err
		}
	}
	return nil
}

// directories lists the spools.
func (c *command) directories(_ context.Context, _ options, args []string) error {
	if len(args) > 0 {
		return c.wrongUsage()
	}
	if err := c.there(); err != nil {
		return err
	}
	plan, err := c.queue.Plan()
	if err != nil {
		return err
	}
	messages := map[uint8]int{}
	if err := plan.View(nil, c.Warn, func(pl *spools.Place, _ queue.Entry) bool { messages[pl.Number]++; return true }); err != nil {
		return err
	}
	for i := range plan.Places {
		pl := &plan.Places[i]
		what := "takes mail"
		switch {
		case pl.Fresh:
			what = "not used yet"
		case !pl.Takes:
			what = "takes no new mail"
		}
		fsys := pl.FS
		if fsys == nil {
			fsys = vfs.OfOwner(pl.Dir)
		}
		free, err := fsys.Free(pl.Dir)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.out, "%2d %-17s %9d messages %15d octets free  %s\n", pl.Number, what, messages[pl.Number], free, pl.Dir)
	}
	for _, dir := range plan.Absent {
		fmt.Fprintf(c.out, " - %-17s %9s messages %15s octets free  %s\n", "absent", "?", "?", dir)
	}
	return nil
}

// stopped sees to it that the mail system is down, and this process the spool's owner's. The places of the plan have been reached.
func (c *command) stopped(ctx context.Context) (*spools.Plan, error) {
	if _, err := c.queue.Cleanup(ctx); !errors.Is(err, queueclient.ErrDown) {
		return nil, cli.Errorf(cli.ExitTemp, "the mail system is running: stop it first")
	}
	if err := c.there(); err != nil {
		return nil, err
	}
	plan, err := c.queue.Plan()
	if err != nil {
		return nil, err
	}
	return plan, nil
}

// drain moves all mail out of a spool.
func (c *command) drain(ctx context.Context, _ options, args []string) error {
	if len(args) != 1 {
		return c.wrongUsage()
	}
	dir := filepath.Clean(args[0])
	plan, err := c.stopped(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(plan.Places, func(pl spools.Place) bool { return pl.Dir == dir && pl.Number > 0 && !pl.Fresh })
	if at < 0 {
		return cli.Errorf(cli.ExitNoInput, "%s is not one of the directories with mail that \"posthaste spool directories\" lists", dir)
	}
	number := plan.Places[at].Number
	content, err := queueread.OpenContent(c.queue.Config)
	if err != nil {
		return cli.Errorf(cli.ExitConfig, "%w", err)
	}
	rd, err := c.queue.Reader()
	if err != nil {
		return err
	}
	defer rd.Close()
	if err := c.queue.BecomeOwner(); err != nil {
		return err
	}
	o := c.queue.SpoolOptions(c.Warn)
	if content != nil {
		defer content.Close()
		o.ContentFS = content
	}
	set, err := plan.Set(o)
	var held *vfs.LockedError
	if errors.As(err, &held) {
		return cli.Errorf(cli.ExitTemp, "%w; the mail system is starting or stopping: try again", err)
	}
	if err != nil {
		return err
	}
	moved, left, err := c.empty(plan, set, number, rd)
	if cerr := set.Close(); err == nil && cerr != nil {
		err = cerr
	}
	if err != nil {
		return cli.Errorf(cli.ExitIO, "%w; %d messages have been moved: run it again, or start the mail system as it was", err, moved)
	}
	fmt.Fprintf(c.out, "%d messages moved\n", moved)
	if left > 0 {
		return cli.Errorf(cli.ExitData, "%d messages cannot be read, and are still in %s: export or delete them, and run it again", left, dir)
	}
	fmt.Fprintf(c.out, "%s is empty: take it out of spool_directories before the next start\n", dir)
	return nil
}

// empty moves the mail, and notes before and after that it does.
func (c *command) empty(plan *spools.Plan, set *spools.Set, number uint8, rd queueread.Reader) (moved, left int, err error) {
	if err := plan.Begin(number); err != nil {
		return 0, 0, err
	}
	if moved, left, err = set.Drain(number, rd); err != nil {
		return moved, left, err
	}
	if left > 0 {
		return moved, left, plan.Settled(number)
	}
	return moved, 0, plan.End(number)
}

// forget gives up a spool that is absent.
func (c *command) forget(ctx context.Context, _ options, args []string) error {
	if len(args) != 1 {
		return c.wrongUsage()
	}
	plan, err := c.stopped(ctx)
	if err != nil {
		return err
	}
	if err := c.queue.BecomeOwner(); err != nil {
		return err
	}
	switch done, err := plan.Forget(args[0]); {
	case err != nil:
		return cli.Errorf(cli.ExitIO, "%w", err)
	case !done:
		return cli.Errorf(cli.ExitNoInput, "%s is not a directory of spool_directories_absent that has had mail", args[0])
	}
	fmt.Fprintf(c.out, "%s does not belong to the queue any more\n", filepath.Clean(args[0]))
	return nil
}
