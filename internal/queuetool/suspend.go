package queuetool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/jsontext"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/queuelist"
	"posthaste/internal/selection"
	"posthaste/internal/whoami"
)

const suspendUsage = "posthaste suspend TARGET [--reason TEXT] [--until TIME | --for TIME] [-n] [-j] | posthaste resume TARGET [-j] | posthaste suspended [-j]; " +
	"a TARGET is one of DESTINATION --domain=DOMAIN --nexthop=NEXTHOP --transport=NAME --sender=ADDRESS --sender-domain=DOMAIN --tenant=NAME --campaign=TENANT/NAME --source=NAME --site=SITE"

// Suspend is the command posthaste suspend, resume, suspended, limit, unlimit, limited, divert, undivert, diverted, bounce,
// unbounce or bounced, which verb says. It returns the exit status.
func Suspend(verb string, args []string, stdout, stderr io.Writer) int {
	c := &command{Tool: cli.Tool{Name: "posthaste " + verb, Stdout: stdout, Stderr: stderr}}
	return c.overrides(verb, args, time.Now())
}

// verbs are those that give orders to the queue manager for now.
var verbs = map[string]override.Kind{"suspend": override.Suspension, "resume": override.Suspension, "suspended": override.Suspension,
	"limit": override.Limit, "unlimit": override.Limit, "limited": override.Limit,
	"divert": override.Diversion, "undivert": override.Diversion, "diverted": override.Diversion,
	"bounce": override.Return, "unbounce": override.Return, "bounced": override.Return}

// Verbs are the commands that Suspend carries out.
func Verbs() []string { return slices.Sorted(maps.Keys(verbs)) }

// An order is a command line of one of the verbs.
type order struct {
	verb   string
	dir    string
	json   bool
	dry    bool
	target selection.Target
	given  bool // there is a target
	entry  proto.OverrideEntry
}

// overrides carries out one of the verbs.
func (c *command) overrides(verb string, args []string, now time.Time) int {
	o, err := parseOrder(verb, args, now)
	if err != nil {
		return c.Fail(err)
	}
	queue, err := queueclient.Open(o.dir)
	if err != nil {
		return c.Fail(err)
	}
	defer queue.Close()
	c.queue = queue
	permitted := queue.Permitted
	if c.permitted != nil {
		permitted = c.permitted
	}
	if !permitted() {
		what := "suspend or resume mail"
		switch verbs[verb] {
		case override.Limit:
			what = "limit deliveries"
		case override.Diversion:
			what = "divert mail"
		case override.Return:
			what = "return mail"
		}
		return c.Fatal(cli.ExitNoPerm, "User %s(%d) is not allowed to %s: that is for root and %s", whoami.Name(), os.Getuid(), what, queue.Config.String("mail_owner"))
	}
	ctx := context.Background()
	conn, err := queue.Manager(ctx)
	if errors.Is(err, queueclient.ErrDown) {
		return c.Fatal(cli.ExitUnavailable, "%v; the queue manager keeps what operators have ordered: start it first", err)
	}
	if err == nil {
		c.others, err = queue.Others(ctx, conn)
	}
	if err == nil {
		err = c.order(ctx, conn, o, now)
	}
	err = queueclient.Join(err, c.missed)
	if err != nil {
		return c.Fail(err)
	}
	return 0
}

// order has the queue manager do what is ordered.
func (c *command) order(ctx context.Context, conn *ipc.Conn, o *order, now time.Time) error {
	switch {
	case verbs[o.verb] == override.Limit:
		return c.limits(ctx, conn, o, now)
	case verbs[o.verb] == override.Diversion:
		return c.diversions(ctx, conn, o, now)
	case verbs[o.verb] == override.Return:
		return c.bounces(ctx, conn, o, now)
	case o.verb == "suspended":
		return c.orders(ctx, conn, o, &suspensions)
	case o.verb == "resume":
		return c.lift(ctx, conn, o, &suspensions)
	case o.dry:
		return c.wouldStop(ctx, conn, o, now)
	}
	if _, err := c.ask(ctx, conn, &proto.Override{Op: proto.OverridePut, Entry: o.entry}); err != nil {
		return err
	}
	if o.json {
		o.entry.Since = now
		return c.print(entryJSON(&o.entry, -1))
	}
	c.say("%s is suspended%s", o.target.Name(), end(o.entry.Until))
	return nil
}

// say tells the operator what has happened.
func (c *command) say(format string, args ...any) {
	fmt.Fprintf(c.Stderr, "%s: %s\n", c.Name, queuelist.Printable(fmt.Sprintf(format, args...)))
}

// print writes a line of output.
func (c *command) print(line string) error {
	if _, err := io.WriteString(c.Stdout, line+"\n"); err != nil {
		return cli.Errorf(cli.ExitIO, "%w", err)
	}
	return nil
}

// wouldStop says what a suspension would keep from being tried now. Nothing is changed.
func (c *command) wouldStop(ctx context.Context, conn *ipc.Conn, o *order, now time.Time) error {
	messages, octets, err := c.meant(ctx, conn, o, now)
	if err != nil {
		return err
	}
	if o.json {
		return c.print(fmt.Sprintf(`{"target": %s, "dry_run": true, "messages": %d, "octets": %d}`, jsontext.Quote(o.target.String()), messages, octets))
	}
	c.say("dry run, nothing is changed: %s would suspend %s, %d octets", o.target.Name(), queueclient.Messages(messages), octets)
	return nil
}

// meant counts the mail that a target means and that may be tried now.
func (c *command) meant(ctx context.Context, conn *ipc.Conn, o *order, now time.Time) (messages int, octets int64, err error) {
	// Which source mail goes from is drawn when it is to be delivered.
	if o.target.Source() != "" || o.target.Site() != "" && verbs[o.verb] != override.Return {
		return 0, 0, cli.Errorf(cli.ExitUsage, "-n: how much mail goes from a source, or to a site, cannot be said before")
	}
	where := selection.New(now)
	for _, word := range append(o.conditions(), [2]string{"queue", "incoming"}, [2]string{"queue", "active"}, [2]string{"queue", "deferred"}) {
		if err := where.Set(word[0], word[1]); err != nil {
			return 0, 0, cli.Errorf(cli.ExitUsage, "%w", err)
		}
	}
	err = c.queue.OnAll(ctx, conn, func(m queueclient.Caller) error {
		return queueclient.Select(ctx, m, &proto.Select{Where: where.Encode()}, func(r *proto.SelectReply) error {
			messages += len(r.IDs)
			octets += r.Octets
			return nil
		})
	})
	return messages, octets, err
}

// conditions select the mail that a target means.
func (o *order) conditions() [][2]string {
	by, value := o.target.Condition()
	// What is returned of a tenant may be for one domain, which stands in the place of a site.
	if group, domain, part := strings.Cut(value, "->"); part && verbs[o.verb] == override.Return {
		return [][2]string{{by, group}, {"domain", domain}}
	}
	return [][2]string{{by, value}}
}

// suspensions is how the tool speaks of suspensions.
var suspensions = manner{
	kind: override.Suspension, none: "%s is not suspended under that name: \"posthaste suspended\" lists the suspensions",
	member: "resumed", gone: "%s is resumed",
	line: func(name, since string, r *proto.OverrideReply, i int) string {
		return fmt.Sprintf("%s: suspended by %s, %s wait", name, since, queueclient.Messages(waiting(r, i)))
	},
	object: func(r *proto.OverrideReply, i int) string { return entryJSON(&r.Entries[i], waiting(r, i)) },
}

// waiting is how many messages wait for entry i of a list.
func waiting(r *proto.OverrideReply, i int) int {
	if i < len(r.Waiting) {
		return r.Waiting[i]
	}
	return 0
}

// entryJSON is a suspension as an object; waiting is -1 when it is not known.
func entryJSON(e *proto.OverrideEntry, waiting int) string {
	more := ""
	if waiting >= 0 {
		more = fmt.Sprintf(`, "waiting": %d`, waiting)
	}
	return object(e, "", more)
}

func end(until time.Time) string {
	if until.IsZero() {
		return ""
	}
	return " until " + until.Local().Format(time.DateTime)
}

// retryTime is how long a queue manager that takes over from another is waited for.
const retryTime = 10 * time.Second

// ask asks the queue manager here, and then those of all other nodes: what is ordered holds on all of them. The answer is theirs
// together. When another node does not answer, that is noted in c.missed: the order holds on those that have.
func (c *command) ask(ctx context.Context, conn *ipc.Conn, q *proto.Override) (*proto.OverrideReply, error) {
	all, err := askOne(ctx, conn, q)
	if err != nil {
		return nil, err
	}
	c.missed = queueclient.Join(c.missed, queueclient.EachNode(c.others, func(m queueclient.Caller) error {
		reply, err := askOne(ctx, m, q)
		if err == nil {
			merge(all, reply)
		}
		return err
	}))
	return all, nil
}

// merge adds another node's answer to what was answered before: the orders are the same, and what they are for is counted together.
func merge(all, reply *proto.OverrideReply) {
	all.Found = all.Found || reply.Found
	for len(all.Uses) < max(len(all.Entries), min(len(reply.Uses), 1)) {
		all.Uses = append(all.Uses, proto.OverrideUse{})
	}
	for len(all.Waiting) < len(all.Entries) {
		all.Waiting = append(all.Waiting, 0)
	}
	if len(reply.Entries) == 0 && len(reply.Uses) == 1 { // of a limit that begins
		addUse(&all.Uses[0], &reply.Uses[0])
	}
	for i := range reply.Entries {
		e := &reply.Entries[i]
		at := slices.IndexFunc(all.Entries, func(have proto.OverrideEntry) bool {
			return have.Of == e.Of && have.Target == e.Target && have.Name == e.Name
		})
		if at < 0 {
			at = len(all.Entries)
			all.Entries, all.Waiting, all.Uses = append(all.Entries, *e), append(all.Waiting, 0), append(all.Uses, proto.OverrideUse{})
		}
		all.Waiting[at] += waiting(reply, i)
		addUse(&all.Uses[at], use(reply, i))
	}
}

func addUse(to, use *proto.OverrideUse) {
	to.Destinations = max(to.Destinations, use.Destinations) // they are the same ones
	to.Busy += use.Busy
	to.Todo += use.Todo
}

// askOne asks a queue manager. During a reload the one that answers may not yet
// be the owner of the overrides: it is asked again.
func askOne(ctx context.Context, manager queueclient.Caller, q *proto.Override) (*proto.OverrideReply, error) {
	for limit := time.Now().Add(retryTime); ; time.Sleep(retryTime / 50) {
		reply := new(proto.OverrideReply)
		if err := manager.Call(ctx, q, reply); err != nil {
			return nil, cli.Errorf(cli.Status(err), "ask the queue manager: %w", err)
		}
		switch {
		case reply.Refused == "":
			return reply, nil
		case reply.Refused != override.ErrNotOwner.Error() || time.Now().After(limit):
			return nil, cli.Errorf(cli.ExitUnavailable, "%s", reply.Refused)
		}
	}
}

// valued are the options with a value, and for which verbs.
var valued = map[string]string{"-c": "suspend resume suspended limit unlimit limited divert undivert diverted bounce unbounce bounced", "--reason": "suspend limit divert bounce",
	"--until": "suspend limit divert bounce", "--for": "suspend limit divert bounce",
	"--destination": "suspend resume limit unlimit divert undivert", "--domain": "suspend resume divert undivert bounce unbounce", "--nexthop": "suspend resume limit unlimit divert undivert",
	"--transport": "suspend resume limit unlimit divert undivert", "--sender": "suspend resume bounce unbounce", "--sender-domain": "suspend resume bounce unbounce", "--source": "suspend resume",
	"--tenant": "suspend resume bounce unbounce", "--campaign": "suspend resume bounce unbounce", "--site": "suspend resume"}

// lists says whether a verb only lists.
func lists(verb string) bool {
	return verb == "suspended" || verb == "limited" || verb == "diverted" || verb == "bounced"
}

// begins says whether a verb orders something, which -n only looks at.
func begins(verb string) bool {
	return verb == "suspend" || verb == "limit" || verb == "divert" || verb == "bounce"
}

func parseOrder(verb string, args []string, now time.Time) (*order, error) {
	o := &order{verb: verb, entry: proto.OverrideEntry{Of: string(verbs[verb]), By: who()}}
	takes := func(words string) bool { return slices.Contains(strings.Fields(words), verb) }
	for i := 0; i < len(args); i++ {
		name, value, given := strings.Cut(args[i], "=")
		var err error
		switch {
		case takes(valued[name]) && !(name == "-c" && given):
			if !given {
				if i++; i >= len(args) {
					return nil, cli.Errorf(cli.ExitUsage, "%s: there is no value", name)
				}
				value = args[i]
			}
			err = o.option(name, value, now)
		case args[i] == "-j":
			o.json = true
		case begins(verb) && (args[i] == "-n" || args[i] == "--dry-run"):
			o.dry = true
		case verb == "limit" && args[i] == "--raise":
			o.entry.Raises = true
		case verb == "limit" && o.given && o.entry.Most == 0:
			o.entry.Most, err = parseMost(args[i])
		case verb == "divert" && o.given && o.entry.Nexthop == "" && !strings.HasPrefix(name, "-"):
			o.entry.Nexthop, err = parseNexthop(args[i])
		case strings.HasPrefix(name, "-") || o.given || lists(verb):
			err = fmt.Errorf("%q is not understood; usage: %s", args[i], o.usage())
		default: // as it stands in a list
			o.target, err = selection.ParseTarget(args[i])
			o.given = true
		}
		if err != nil {
			return nil, cli.Errorf(cli.ExitUsage, "%w", err)
		}
	}
	return o, o.check()
}

// usage says how a verb of this kind is written.
func (o *order) usage() string {
	switch verbs[o.verb] {
	case override.Limit:
		return limitUsage
	case override.Diversion:
		return divertUsage
	case override.Return:
		return bounceUsage
	}
	return suspendUsage
}

// check says what an order lacks, and what is too much.
func (o *order) check() error {
	switch {
	case !lists(o.verb) && !o.given && verbs[o.verb] == override.Diversion:
		return cli.Errorf(cli.ExitUsage, "%s what? Name a domain, .domain, [host]:port, transport:nexthop, transport: or *, or --domain=DOMAIN or --nexthop=NEXTHOP; usage: %s", o.verb, divertUsage)
	case !lists(o.verb) && !o.given && verbs[o.verb] == override.Return:
		return cli.Errorf(cli.ExitUsage, "%s which mail? Name a domain, or one of --domain --sender --sender-domain --tenant --campaign; usage: %s", o.verb, bounceUsage)
	case !lists(o.verb) && !o.given && verbs[o.verb] == override.Limit:
		return cli.Errorf(cli.ExitUsage, "%s what? Name a next hop: a domain, .domain, [host]:port, transport:nexthop, transport: or *; usage: %s", o.verb, limitUsage)
	case !lists(o.verb) && !o.given:
		return cli.Errorf(cli.ExitUsage, "%s what? Name a domain, .domain, [host]:port, transport:nexthop, * for all mail, or one of --domain --nexthop --transport --sender --sender-domain --tenant --campaign --source", o.verb)
	case len(o.entry.Reason) > override.MaxReason || !utf8.ValidString(o.entry.Reason):
		return cli.Errorf(cli.ExitUsage, "--reason: more than %d octets, or no UTF-8", override.MaxReason)
	}
	if o.given && verbs[o.verb] == override.Limit {
		if err := o.nexthop(); err != nil {
			return cli.Errorf(cli.ExitUsage, "%w", err)
		}
	}
	if verbs[o.verb] == override.Return {
		if err := o.checkBounce(); err != nil {
			return err
		}
	}
	if o.verb == "divert" && o.entry.Nexthop == "" {
		return cli.Errorf(cli.ExitUsage, "divert %s to which next hop? usage: %s", queuelist.Printable(o.target.Name()), divertUsage)
	}
	if verbs[o.verb] == override.Diversion && (o.target.IsSender() || o.target.IsGroup() || o.target.Source() != "") {
		return cli.Errorf(cli.ExitUsage, "a diversion is of destinations, and %s is none", queuelist.Printable(o.target.Name()))
	}
	if o.verb == "limit" && o.entry.Most == 0 {
		return cli.Errorf(cli.ExitUsage, "limit %s to how many deliveries at a time? usage: %s", queuelist.Printable(o.target.Name()), limitUsage)
	}
	if o.given {
		o.entry.Target = o.target.String()
	}
	return nil
}

// option takes an option that has a value.
func (o *order) option(name, value string, now time.Time) (err error) {
	switch name {
	case "-c":
		o.dir = value
		return nil
	case "--reason":
		o.entry.Reason = value
		return nil
	case "--until", "--for":
		return o.until(name, value, now)
	}
	if o.given {
		return errors.New("one target at a time: two are two commands")
	}
	o.given = true
	if name == "--sender-domain" {
		name, value = "--sender", "@"+strings.TrimPrefix(value, "@")
	}
	if o.target, err = selection.NewTarget(name[2:], value); err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// until reads the end of a suspension or limit.
func (o *order) until(name, value string, now time.Time) error {
	if !o.entry.Until.IsZero() {
		return cli.Errorf(cli.ExitUsage, "--until and --for: one end is enough")
	}
	if name == "--for" {
		d, err := selection.ParseTime(value)
		o.entry.Until = now.Add(d).Truncate(time.Second)
		return err
	}
	t, clock, err := queueclient.ParseMoment(value, now)
	switch {
	case err != nil:
		return cli.Errorf(cli.ExitUsage, "--until: %w", err)
	case t.After(now):
	case clock:
		t = t.AddDate(0, 0, 1)
	default:
		return cli.Errorf(cli.ExitUsage, "--until: %s lies in the past", value)
	}
	o.entry.Until = t
	return nil
}

// who orders it: the user, and who has become root for it, as sudo says.
func who() string {
	name := whoami.Name()
	if by := os.Getenv("SUDO_USER"); by != "" && os.Getuid() == 0 && by != name {
		return by + " as " + name
	}
	return name
}
