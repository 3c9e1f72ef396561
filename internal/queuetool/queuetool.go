// Package queuetool is the command posthaste queue: look at the queue and
// change it, by what mail has in common. It speaks the grammar of package
// selection.
//
//	posthaste queue list [-j] [CONDITION ...]
//	posthaste queue hold | release | delete | requeue | expire  ID ... | ALL | CONDITION ... [--dry-run]
//	posthaste queue flush  ID ... | ALL | CONDITION ... [--dry-run]
//	posthaste suspend TARGET [--reason TEXT] [--until TIME | --for TIME] [-n] [-j]
//	posthaste resume TARGET [-j]
//	posthaste suspended [-j]
//	posthaste limit DESTINATION NUMBER [--raise] [--reason TEXT] [--until TIME | --for TIME] [-n] [-j]
//	posthaste unlimit DESTINATION [-j]
//	posthaste limited [-j]
//	posthaste divert TARGET NEXTHOP [--reason TEXT] [--until TIME | --for TIME] [-n] [-j]
//	posthaste undivert TARGET [-j]
//	posthaste diverted [-j]
//	posthaste bounce TARGET --until TIME | --for TIME [--reason TEXT] [-n] [-j]
//	posthaste unbounce TARGET [-j]
//	posthaste bounced [-j]
//
// list and flush are postqueue's, for whom authorized_mailq_users and
// authorized_flush_users permit it; the others are postsuper's, for root and
// the mail owner. What changes the queue wants to be told what: queue IDs, at
// least one condition, or ALL. expire returns mail to its sender at once, also
// mail on hold. With --dry-run nothing is changed: what would be is listed and counted.
//
// While the mail system is down hold, release, delete and expire work on the
// spool itself; --nexthop, --transport and --destination do not, since only the running mail
// system knows where mail goes.
//
// suspend has mail wait. TARGET is a destination: a domain, .domain for its subdomains,
// [host]:port or another next hop, transport:nexthop, transport: for all of a transport's mail, or
// * for all mail; or --domain=DOMAIN, recipients there and nothing else, --nexthop=NEXTHOP, --transport=NAME,
// --sender=ADDRESS or --sender-domain=DOMAIN (package selection's Target). Nothing that is meant is handed to a
// delivery agent from the moment at which the command returns; deliveries under way end as they do. Waiting is
// no attempt, and so costs no retry; age still counts. A suspension holds over reload, stop and crash, until resume, or until
// the time given: 2026-11-24T08:00, 08:00 (the next time it is that late), or for so long (30m, 2h, 1d). No flush
// overrides it. When it ends, what has waited is tried, in the order of its arrival. With -n (--dry-run) nothing is
// changed: the messages are counted that would not be tried. suspended lists what is suspended by whom, and
// how many deferred messages wait for that, as far as they have come up since. With -j output is JSON. They are for root and
// the mail owner, and can be called as posthaste queue suspend and so on, too.
//
// limit bounds how many deliveries to a destination are under way at once, beside the limits of main.cf. A limit is
// of next hops, so that a domain means mail whose next hop it is. Of the limits that mean a next hop the
// narrowest counts. It takes effect, lasts and ends as a suspension does; deliveries under way are not
// interrupted. One that is not below main.cf's is refused, unless --raise says that it is to count. unlimit
// takes it back, limited lists them.
//
// divert has mail for other systems go by another next hop. TARGET is one of suspend's, but no sender; NEXTHOP is
// as in a transport table. What waits for its next attempt goes that way at that attempt. It lasts and ends as
// a suspension does. undivert takes it back, diverted lists them.
//
// bounce has mail returned to its sender without an attempt, for a time that must be given: what comes, and what is in the
// queue when it comes up. TARGET is a recipient's domain, a sender, a tenant or a campaign. What waits for its delivery is
// returned at once, and what an agent has is let be. unbounce takes it back, bounced lists what is returned, also by
// rules of shaping_files.
//
// Of a queue that nodes share (spool_type = postgresql) all of it is meant, on any node, and these orders hold on all
// nodes. A node that does not answer is named, and the exit status is 69: there the order does not hold, also when it is
// back, until it is given again. Counts are those of all nodes together.
//
// # Diagnostics
//
// Exit status 0, also when nothing was selected; 64 wrong usage; 66 resume, unlimit, undivert, unbounce: there is nothing to end; 69 the mail system is needed
// and down; 75 messages changed again and again meanwhile; 77 not permitted; 78 wrong configuration.
package queuetool

import (
	"io"
	"slices"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/mail"
	"posthaste/internal/postsuper"
	"posthaste/internal/queueclient"
)

const usage = "usage: %[1]s list [-j] [CONDITION ...] | %[1]s hold|release|delete|requeue|expire|flush ID ...|ALL|CONDITION ... [--dry-run]; a CONDITION is one of " +
	queueclient.SelectionUsage

// letters are postsuper's options for the verbs.
var letters = map[string]string{"hold": "-h", "release": "-H", "delete": "-d", "requeue": "-r", "expire": "-f"}

type command struct {
	cli.Tool
	// postqueue carries out that command, which may take a program that is set-gid.
	postqueue func(args []string) int
	// permitted says whether the user may suspend and resume; nil: the queue's owner decides.
	permitted func() bool
	queue     *queueclient.Queue
	others    []*queueclient.Node // other nodes that share the queue
	missed    error               // what an order did not come to on other nodes
}

// Run carries out the command and returns its exit status.
func Run(name string, args []string, postqueue func(args []string) int, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &command{Tool: cli.Tool{Name: name, Stdin: stdin, Stdout: stdout, Stderr: stderr}, postqueue: postqueue}
	if len(args) == 0 {
		return c.wrong()
	}
	verb, args := args[0], args[1:]
	switch {
	case verb == "list":
		return c.list(args)
	case verb == "flush":
		return c.flush(args)
	case verbs[verb] != "":
		return c.overrides(verb, args, time.Now())
	case letters[verb] != "":
		return c.change(verb, args)
	}
	return c.wrong()
}

func (c *command) wrong() int { return c.Fatal(cli.ExitUsage, usage, c.Name) }

// list has postqueue list.
func (c *command) list(args []string) int {
	how := "-p"
	if i := slices.Index(args, "-j"); i >= 0 {
		how, args = "-j", slices.Delete(slices.Clone(args), i, i+1)
	}
	w, err := split(args)
	if err != nil {
		return c.Fail(err)
	}
	if len(w.ids) > 0 || w.all || w.dry {
		return c.wrong()
	}
	return c.postqueue(append(w.options, how))
}

// flush has postqueue try mail.
func (c *command) flush(args []string) int {
	w, err := split(args)
	switch {
	case err != nil:
		return c.Fail(err)
	case !w.named(), len(w.ids) > 0 && (w.selects || w.dry):
		return c.wrong()
	case len(w.ids) == 0:
		return c.postqueue(append(w.options, "-f"))
	}
	for _, id := range w.ids {
		w.options = append(w.options, "-i", id)
	}
	return c.postqueue(w.options)
}

// change has postsuper change what is named.
func (c *command) change(verb string, args []string) int {
	w, err := split(args)
	if err != nil {
		return c.Fail(err)
	}
	if !w.named() {
		return c.Fatal(cli.ExitUsage, "%s what? Name queue IDs, or conditions such as --sender=ADDRESS (%s), or ALL", verb, queueclient.SelectionUsage)
	}
	if len(w.ids) == 0 {
		w.ids = []string{"ALL"}
	}
	for _, id := range w.ids {
		w.options = append(w.options, letters[verb], id)
	}
	return postsuper.Run(c.Name, w.options, c.Stdin, c.Stdout, c.Stderr)
}

// words are the arguments of a verb, sorted out.
type words struct {
	options []string // for the command that does it: conditions and flags, as they were given
	ids     []string
	all     bool
	selects bool // there are conditions
	dry     bool
}

// named says whether it was said which mail is meant.
func (w *words) named() bool { return w.all || w.selects || len(w.ids) > 0 }

// split sorts arguments out, and refuses what is not understood.
func split(args []string) (w words, err error) {
	where, dry, rest, err := queueclient.TakeSelection(args, time.Now())
	if err != nil {
		return w, err
	}
	w.selects, w.dry = !where.Empty(), dry
	for _, a := range where.Encode()[1:] {
		name, value, _ := strings.Cut(a, "=")
		if w.options = append(w.options, "--"+name); value != "" {
			w.options[len(w.options)-1] += "=" + value
		}
	}
	if dry {
		w.options = append(w.options, "--dry-run")
	}
	for i := 0; i < len(rest); i++ {
		switch a := rest[i]; {
		case a == "-v":
			w.options = append(w.options, a)
		case a == "-c" && i+1 < len(rest):
			i++
			w.options = append(w.options, a, rest[i])
		case a == "ALL":
			w.all = true
		case a == "-" || mail.QueueID(a).Valid():
			w.ids = append(w.ids, a)
		default:
			return w, cli.Errorf(cli.ExitUsage, "%q is neither a queue ID nor a condition", a)
		}
	}
	if w.all && len(w.ids) > 0 {
		return w, cli.Errorf(cli.ExitUsage, "ALL and queue IDs do not go together")
	}
	return w, nil
}
