// Package spooltool is the command posthaste spool: what lies in the spool, is
// it sound, and messages out of it and into it as plain files. And posthaste
// explain: why a message is still here, and how things are with a destination (package
// selection says what that is).
//
//	posthaste spool dump [-m]             the log, record by record; -m: the messages
//	posthaste spool check                 verify every checksum and count
//	posthaste spool doubtful [-js]        messages that may have arrived twice
//	posthaste spool stats                 how much there is of what
//	posthaste spool export ID             one message to standard output
//	posthaste spool export -d DIR ID ...  messages to files in DIR
//	posthaste spool export -a DIR         all messages
//	posthaste spool export -p DIR [-r]    all messages into a Postfix queue directory
//	posthaste spool import [-nrv] PATH ...
//	posthaste spool salvage [-d DIR] TARGET
//	posthaste spool migrate [-v] FROM     see package spoolmove
//	posthaste spool directories           the spools of the queue, and their disks
//	posthaste spool drain DIR             move all mail out of one of them
//	posthaste spool forget DIR            give up what is in one that is lost
//	posthaste explain ID | DESTINATION ...
//
// Exported files are described in package plain. Import takes such files, directories of
// them (*.msg), queue files of Postfix, and a Postfix queue directory, of which it takes
// incoming, active, deferred and hold. -n only reads; -r removes each file when its message
// is on stable storage, so that an import that was interrupted can be repeated;
// -v names each.
//
// Import goes through the running cleanup, as new mail does, but without address mapping
// and content checks: they have been applied. A message gets a new queue ID, and is
// otherwise as it was: sender, recipients but for those that are done, DSN
// parameters, the client's data, arrival, age, queue, next attempt, number of attempts,
// whether the sender has been warned, and what each recipient's last attempt came
// to, with what of an alias's members the sender has been told. Of a message in Postfix's deferred queue the last are taken from its defer
// directory; how many attempts there were Postfix does not record.
//
// Export with -p makes queue files in the incoming and hold queues of a Postfix, and
// needs that and our own mail system to be stopped. Messages that are not due are
// dated so that Postfix waits as long; recipients that are done are left out. -r removes
// the messages from our queue when all the files are on stable storage: after a
// power failure between the two, some are in both.
//
// What salvage finds of lost messages in the copies of damaged segments, in the spool's directory "damaged", it
// writes like one on hold, too.
//
// Salvage is for a spool that is damaged, or does not start: it writes every message that can be
// had to files in the directory TARGET, in the format of export, and goes on over all
// that is damaged or cannot be read. DIR is the spool, if it is not that of the
// configuration: a copy, for example. A message of which it is not known whether it has left the
// queue is written as one on hold. Content of large messages of which there
// is no envelope is written to ID.content. What could not be had is listed in TARGET/LOST, by queue
// ID where it is known. A spool that does not tell its identity any more is
// read all the same. Nothing in the spool is changed; stop the mail system before.
//
// check names what is damaged, and the queue IDs of messages that are lost, from
// the spool as it is, with the file and the octet where that is: before a start has done what it can about it. Files in the spool's
// directory "damaged" are of damage that a start has found before; they are listed,
// and are no finding.
//
// doubtful lists, oldest first, each recipient of whom it is not known whether a message was delivered
// when the mail system or the machine ended in the middle of it, and new mail whose client may have sent it
// again: what may have arrived twice. It says why, when that was found, and what has become of it: "in the
// queue"; "delivered again", from when on there may be two copies; or that it was returned or
// removed. With spool_exact_doubt it is known if it was "delivered, and not sent again", as when the agent that had
// it in hand lived on. -j has a line of JSON for each. -s says that they have been seen: they are not listed
// again. The newest 1000 are kept. While the mail system is down, what its next start is going to find
// is listed with them. With spool_exact_doubt the list is exact; without it, it has new mail that nobody
// had begun with, and deliveries of the last milliseconds before a crash may be missing.
//
// With spool_type = postgresql there are import, export to plain files while the mail system runs, of this node's
// part of the queue, and doubtful, which lists what was found on this node: posthaste cluster doubtful has what takeovers found.
//
// dump, check, doubtful (without -s) and stats only read, and may be used while the mail system runs; what they say
// is then of a moment for each part of the log, not of one moment for all.
//
// With several spools (spool_directories) dump, check and stats go through them one after the other, and say which. directories
// lists them: number, state ("takes mail", "takes no new mail", "not used yet", "absent"), messages, free space, and the directory.
// What it says of messages is what is on the disk. drain moves all mail of one to the others that take new mail, under
// the same queue IDs; the mail system is stopped before. Then the directory may be taken out of
// spool_directories. Messages that cannot be read stay, and are named; it has to be run again when they have been exported, or deleted. It may be
// run again after it was interrupted, and so may the mail system be started. forget has the mail system go on for good without a directory of
// spool_directories_absent, whose disk is lost: both parameters need not name it any more.
//
// # Security
//
// The commands need to read the spool: they are for root and the mail owner.
// A Postfix queue that a running Postfix works on is refused: its mail would
// arrive twice.
//
// # Diagnostics
//
// Exit status 0; 64 wrong usage; 65 damage was found, or some file is no
// message; 66 no such message; 69 the mail system is needed and down; 74 a file or the output cannot be
// written; 75 some message was refused; 77 not permitted; 78 wrong configuration.
package spooltool

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
	"posthaste/internal/selection"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
)

const usage = "usage: %s [-c config_dir] dump [-m] | check | doubtful [-js] | stats | export ID | export -d DIR ID ... | export -a DIR | export -p DIR [-r] | import [-nrv] PATH ... | salvage [-d DIR] TARGET | directories | drain DIR | forget DIR"

type command struct {
	cli.Tool
	queue *queueclient.Queue
	out   *cli.ErrWriter
}

// anyEngine says whether a subcommand works with every engine that keeps the queue: import speaks to cleanup, the list of
// doubtful messages is a file beside it, and
// export to plain files reads with the help of the running mail system.
func anyEngine(verb string, flags options) bool {
	return verb == "import" || verb == "doubtful" || verb == "export" && !flags.has('p')
}

// Run carries out posthaste spool and returns its exit status. kind is the engine that the program has for the queue
// beside the log; nil: none.
func Run(name string, args []string, kind storage.Kind, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &command{Tool: cli.Tool{Name: name, Stdin: stdin, Stderr: stderr}, out: &cli.ErrWriter{W: stdout}}
	opts, rest, err := cli.Getopt(args, "c:")
	if err != nil || len(rest) == 0 {
		return c.Fatal(cli.ExitUsage, usage, name)
	}
	dir := ""
	for _, o := range opts {
		dir = o.Value
	}
	verb := rest[0]
	run, letters := c.verb(verb)
	if run == nil {
		return c.Fatal(cli.ExitUsage, usage, name)
	}
	if opts, rest, err = cli.Getopt(rest[1:], letters); err != nil {
		return c.Fatal(cli.ExitUsage, "%v; "+usage, err, name)
	}
	if c.queue, err = queueclient.Open(dir); err != nil {
		return c.Fail(err)
	}
	defer c.queue.Close()
	if !c.queue.Permitted() {
		return c.Fatal(cli.ExitNoPerm, "only root and the mail owner (%s) may use this", c.queue.Config.String("mail_owner"))
	}
	c.queue.Storage = kind
	flags := make(options, len(opts))
	for _, o := range opts {
		flags[o.Letter] = o.Value
	}
	if !anyEngine(verb, flags) {
		if err := c.queue.OnlyLog(name); err != nil {
			return c.Fail(err)
		}
	}
	err = run(context.Background(), flags, rest)
	if err != nil {
		return c.Fail(err)
	}
	if c.out.Err != nil {
		return c.Fatal(cli.ExitIO, "%v", c.out.Err)
	}
	return 0
}

// MoveBack moves the queue of the mail system whose configuration is in dir to that
// of a Postfix, and returns the exit status. Both are stopped.
func MoveBack(name, dir string, to PostfixQueue, stdout, stderr io.Writer) int {
	c := &command{Tool: cli.Tool{Name: name, Stdin: strings.NewReader(""), Stderr: stderr}, out: &cli.ErrWriter{W: stdout}}
	var err error
	if c.queue, err = queueclient.Open(dir); err != nil {
		return c.Fail(err)
	}
	defer c.queue.Close()
	if !c.queue.Permitted() {
		return c.Fatal(cli.ExitNoPerm, "only root and the mail owner (%s) may use this", c.queue.Config.String("mail_owner"))
	}
	if err := c.queue.OnlyLog("to move the queue to Postfix"); err != nil {
		return c.Fail(err)
	}
	if err := c.toPostfix(context.Background(), to, true); err != nil {
		return c.Fail(err)
	}
	if c.out.Err != nil {
		return c.Fatal(cli.ExitIO, "%v", c.out.Err)
	}
	return 0
}

// options are those that were given to a subcommand.
type options map[byte]string

func (o options) has(letter byte) bool {
	_, ok := o[letter]
	return ok
}

// verb is what carries out a subcommand, and its options.
func (c *command) verb(name string) (run func(ctx context.Context, flags options, args []string) error, letters string) {
	switch name {
	case "dump":
		return c.dump, "m"
	case "check":
		return c.check, ""
	case "doubtful":
		return c.doubtful, "js"
	case "stats":
		return c.stats, ""
	case "export":
		return c.export, "a:d:p:r"
	case "import":
		return c.importAll, "nrv"
	case "directories":
		return c.directories, ""
	case "drain":
		return c.drain, ""
	case "forget":
		return c.forget, ""
	case "salvage":
		return func(_ context.Context, flags options, args []string) error { return c.salvage(flags, args) }, "d:"
	}
	return nil, ""
}

func (c *command) wrongUsage() error { return cli.Errorf(cli.ExitUsage, usage, c.Name) }

// there says whether there is a spool that can be read.
func (c *command) there() error {
	_, err := os.ReadDir(c.queue.Spool())
	switch {
	case errors.Is(err, os.ErrNotExist):
		return cli.Errorf(cli.ExitNoInput, "%s: nothing has been queued here yet", c.queue.Spool())
	case errors.Is(err, os.ErrPermission):
		return cli.Errorf(cli.ExitNoPerm, "%w", err)
	}
	return err
}

func (c *command) dump(_ context.Context, flags options, args []string) error {
	if len(args) > 0 {
		return c.wrongUsage()
	}
	if err := c.there(); err != nil {
		return err
	}
	if !flags.has('m') {
		return c.eachPlace(func(pl *spools.Place) error { return spool.Dump(pl.FS, pl.Dir, c.out) })
	}
	w := bufio.NewWriter(c.out)
	defer w.Flush() // its error is out's
	return c.queue.View(c.Warn, func(e queue.Entry) bool {
		fmt.Fprintf(w, "%s %s size %d rcpts %d pending %d attempts %d", e.ID, e.Queue, e.Size, e.NRcpt, e.NPending, e.Attempts)
		if !e.NextAttempt.IsZero() {
			fmt.Fprintf(w, " next %s", e.NextAttempt.UTC().Format(time.RFC3339))
		}
		if e.Warned {
			w.WriteString(" warned")
		}
		if e.Expire {
			w.WriteString(" expire")
		}
		fmt.Fprintf(w, " segment %d file %d at %d", e.Ref.Segno, e.Ref.File, e.Ref.Offset)
		if e.Ref.Spool > 0 {
			fmt.Fprintf(w, " spool %d", e.Ref.Spool)
		}
		w.WriteByte('\n')
		return c.out.Err == nil
	})
}

// checks is how often a spool in use is looked at before what seems damaged
// counts: it may only have changed meanwhile.
const checks = 3

func (c *command) check(ctx context.Context, _ options, args []string) error {
	if len(args) > 0 {
		return c.wrongUsage()
	}
	if err := c.there(); err != nil {
		return err
	}
	_, err := c.queue.Manager(ctx)
	running := !errors.Is(err, queueclient.ErrDown)
	// One that is damaged does not keep the others from being looked at.
	var errs []error
	err = c.eachPlace(func(pl *spools.Place) error {
		errs = append(errs, c.checkPlace(pl, running))
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// checkPlace checks one spool.
func (c *command) checkPlace(pl *spools.Place, running bool) (err error) {
	var rep spool.Report
	for try := 1; ; try++ {
		if rep, err = spool.Check(pl.FS, pl.Dir); err != nil {
			return err
		}
		if len(rep.Problems) == 0 || !running || try == checks {
			break
		}
	}
	for _, p := range rep.Problems {
		fmt.Fprintf(c.out, "problem: %s\n", p)
	}
	fmt.Fprintf(c.out, "%d messages, %d recipients pending; %d segments and %d free ones, %d octets; %d batches, %d records, %d batches in doubt\n",
		rep.Messages, rep.Pending, rep.Segments, rep.Free, rep.Bytes, rep.Batches, rep.Records, rep.Tail)
	for _, id := range rep.Lost {
		fmt.Fprintf(c.out, "lost: %s\n", id)
	}
	for _, name := range rep.Half {
		fmt.Fprintf(c.out, "half: %s: one of the two copies of its header is damaged, or of an older use; a crash leaves such, and the next use writes both\n", name)
	}
	if len(rep.Kept) > 0 {
		fmt.Fprintf(c.out, "of damage found before, %s has: %s\n", filepath.Join(pl.Dir, "damaged"), strings.Join(rep.Kept, " "))
	}
	if len(rep.Problems) == 0 {
		fmt.Fprintln(c.out, "consistent")
		return nil
	}
	hint := ""
	if running {
		hint = "; the mail system is running, and what changes meanwhile may look like damage: stop it to be sure"
	}
	return cli.Errorf(cli.ExitData, "%d problems, %d messages lost%s", len(rep.Problems), len(rep.Lost), hint)
}

// tally is what stats has counted of one queue.
type tally struct{ messages, recipients, octets int64 }

func (c *command) stats(_ context.Context, _ options, args []string) error {
	if len(args) > 0 {
		return c.wrongUsage()
	}
	if err := c.there(); err != nil {
		return err
	}
	queues := map[string]*tally{}
	var oldest, next time.Time
	err := c.queue.View(c.Warn, func(e queue.Entry) bool {
		t := queues[e.Queue.String()]
		if t == nil {
			t = new(tally)
			queues[e.Queue.String()] = t
		}
		t.messages++
		t.recipients += int64(e.NPending)
		t.octets += e.Size
		if at, _, err := e.ID.Parse(); err == nil && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
		if e.Queue == queue.Deferred && (next.IsZero() || e.NextAttempt.Before(next)) {
			next = e.NextAttempt
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, name := range []string{"incoming", "deferred", "hold", "corrupt"} {
		t := cmp.Or(queues[name], new(tally))
		fmt.Fprintf(c.out, "%-9s %9d messages %9d recipients %12d octets\n", name, t.messages, t.recipients, t.octets)
	}
	if !oldest.IsZero() {
		fmt.Fprintf(c.out, "oldest message of %s\n", oldest.Format(time.DateTime))
	}
	if !next.IsZero() {
		fmt.Fprintf(c.out, "next attempt at %s\n", next.Format(time.DateTime))
	}
	return c.usage()
}

// usage prints how many files each spool has.
func (c *command) usage() error {
	content, err := spool.ContentDir(nil, c.queue.Spool())
	if err != nil {
		return err
	}
	if content == "" {
		content = filepath.Join(c.queue.Spool(), "big")
	}
	return c.eachPlace(func(pl *spools.Place) error {
		big := filepath.Join(pl.Dir, "big")
		if pl.Number == 0 {
			big = content
		}
		for _, d := range []struct{ dir, what string }{{filepath.Join(pl.Dir, "seg"), "segments"}, {big, "files of large messages"}} {
			n, octets, err := usageOf(d.dir)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.out, "%d %s, %d octets\n", n, d.what, octets)
		}
		return nil
	})
}

// usageOf counts the files in a directory.
func usageOf(dir string) (n int, octets int64, err error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	for _, d := range list {
		if d.Name() == "IDENTITY" || d.IsDir() {
			continue // of a directory of content
		}
		if st, err := d.Info(); err == nil { // else it has gone meanwhile
			n++
			octets += st.Size()
		}
	}
	return n, octets, nil
}

// Explain carries out posthaste explain and returns its exit status.
func Explain(name string, args []string, stdout, stderr io.Writer) int {
	c := &command{Tool: cli.Tool{Name: name, Stderr: stderr}, out: &cli.ErrWriter{W: stdout}}
	opts, ids, err := cli.Getopt(args, "c:")
	if err != nil || len(ids) == 0 {
		return c.Fatal(cli.ExitUsage, "usage: %s [-c config_dir] queue_id | destination ...", name)
	}
	dir := ""
	for _, o := range opts {
		dir = o.Value
	}
	if c.queue, err = queueclient.Open(dir); err != nil {
		return c.Fail(err)
	}
	defer c.queue.Close()
	if err := c.explain(context.Background(), ids); err != nil {
		return c.Fail(err)
	}
	if c.out.Err != nil {
		return c.Fatal(cli.ExitIO, "%v", c.out.Err)
	}
	return 0
}

func (c *command) explain(ctx context.Context, args []string) error {
	for _, a := range args {
		if tenant, ok := strings.CutPrefix(a, "tenant="); mail.QueueID(a).Valid() || ok && mail.GroupName(tenant) {
			continue
		}
		if _, err := selection.ParseDestination(a); err != nil {
			return cli.Errorf(cli.ExitUsage, "%q is neither a queue ID nor a destination: %w", a, err)
		}
	}
	conn, err := c.queue.Manager(ctx)
	if err != nil {
		return cli.Errorf(cli.Status(err), "only the running queue manager knows: %w", err)
	}
	own, others, err := c.queue.Owners(ctx, conn)
	if err != nil {
		return err
	}
	for _, a := range args {
		var err error
		found := false
		if own {
			found, err = c.explainOne(ctx, conn, "", a)
		}
		// A message is on one node; a destination may have mail on all of them.
		for _, n := range others {
			if found && mail.QueueID(a).Valid() {
				err = nil // whoever else does not answer
				break
			}
			here, nerr := c.explainOne(ctx, n, n.Name, a)
			found, err = found || here, queueclient.Join(err, nerr)
		}
		switch {
		case err != nil:
			return err
		case !found:
			return cli.Errorf(cli.ExitNoInput, "message %s is not in the queue, or set aside as corrupt (postcat -q %s shows it then)", a, a)
		}
	}
	return nil
}

// explainOne explains a message or a destination, as far as one queue manager knows it; node is its name, if it is another node's.
func (c *command) explainOne(ctx context.Context, manager queueclient.Caller, node, arg string) (found bool, err error) {
	id := mail.QueueID(arg)
	_, _, noID := id.Parse()
	var reply proto.ExplainReply
	if id.Valid() {
		if err := manager.Call(ctx, &proto.Explain{ID: id}, &reply); err != nil {
			return false, err
		}
	}
	if len(reply.Lines) == 0 && noID != nil { // a transport may be named like a message, but for the form of our IDs
		if err := manager.Call(ctx, &proto.Explain{Destination: arg}, &reply); err != nil {
			return false, err
		}
	}
	if len(reply.Lines) == 0 {
		return false, nil
	}
	if node != "" {
		fmt.Fprintf(c.out, "On node %s:\n", node)
	}
	fmt.Fprintln(c.out, strings.Join(reply.Lines, "\n"))
	return true, nil
}
