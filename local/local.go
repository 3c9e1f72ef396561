package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/service"
	"posthaste/internal/submit"
	"posthaste/internal/table"
	"posthaste/local/mailbox"
	"posthaste/local/users"
)

// A rewriter says where addresses go: trivial-rewrite's client. Its methods
// are called concurrently.
type rewriter interface {
	Rewrite(ctx context.Context, rewriteContext, addr string) (string, error)
	Resolve(ctx context.Context, sender, addr string) (proto.ResolveReply, error)
	// Foresee begins to ask what both are going to be asked, without waiting.
	Foresee(ctx context.Context, sender, addr string)
}

// options are what an Agent is made of.
type options struct {
	Config   *config.Config
	Service  string         // name in master.cf, which trivial-rewrite's answers are compared with: local
	Users    users.Database // nil: the system's
	Rewriter rewriter
	Submit   *submit.Client
	Log      *maillog.Logger
	Environ  func(name string) (string, bool) // of the process, for export_environment; os.LookupEnv
	Change   func(op, path string) error      // see mailbox.Options
}

// An Agent delivers to local recipients. It is made by newAgent.
type Agent struct {
	*settings
	options
	// The only part that writes mailboxes; it takes on the recipient's rights for it. It lets one
	// delivery at a time into each mailbox of this process, besides the locks that others see.
	store *mailbox.Store
	split *table.Search // takes extensions off local parts
	// The tables are read with the mail system's rights. What aliases and commandMaps lead to may run
	// commands and write files: it is used with the rights of the table's owner, so that no table
	// may be of a kind that strangers can write (table.Options.Sensitive).
	aliases, commandMaps  *table.Maps
	transports, fallbacks *table.Maps // mailbox_transport_maps, fallback_transport_maps: by user
	biff                  *biff       // nil: nobody is told
}

// newAgent returns an Agent. The error says what in the configuration is wrong.
func newAgent(o options) (*Agent, error) {
	if o.Users == nil {
		o.Users = new(users.System)
	}
	if o.Environ == nil {
		o.Environ = os.LookupEnv
	}
	s, err := readSettings(o.Config, o.Users)
	if err != nil {
		return nil, err
	}
	cfg := o.Config
	topt := service.TableOptions(cfg, o.Log)
	sensitive := func(name string) *table.Maps { return table.OpenMaps(name, cfg.List(name), topt.Sensitive()) }
	// A recipient chooses the key. What a pattern copies from it into the name of a transport or a
	// next hop would be the recipient's choice too.
	topt.NoSubstitution = true
	maps := func(name string) *table.Maps { return table.OpenMaps(name, cfg.List(name), topt) }
	var notices *biff
	if cfg.Bool("biff") {
		notices = newBiff()
	}
	return &Agent{
		settings: s, options: o, biff: notices,
		store: mailbox.New(mailbox.Options{LockAttempts: cfg.Int("deliver_lock_attempts"), LockDelay: cfg.Duration("deliver_lock_delay"),
			StaleLock: cfg.Duration("stale_lock_time"), Hostname: s.hostname, Warn: o.Log.Warning, Change: o.Change}),
		split:   &table.Search{Delimiters: s.delimiters, OwnerRequest: s.ownerRequest, DoubleBounce: s.doubleBounce},
		aliases: sensitive("alias_maps"), commandMaps: sensitive("mailbox_command_maps"),
		transports: maps("mailbox_transport_maps"), fallbacks: maps("fallback_transport_maps"),
	}, nil
}

// Close closes the tables. No delivery may be under way.
func (a *Agent) Close() error {
	return errors.Join(a.aliases.Close(), a.transports.Close(), a.commandMaps.Close(), a.fallbacks.Close())
}

// Deliver implements agent.Deliverer.
func (a *Agent) Deliver(ctx context.Context, r *agent.Request) {
	content, err := r.Content()
	if err != nil {
		for i := range r.Envelope.Recipients {
			r.Defer(i, dsn.S(4, 3, 0), err.Error(), agent.Detail{Relay: a.Service})
		}
		return
	}
	defer content.Close()
	visited, err := mailbox.Visited(content)
	for i := range r.Envelope.Recipients {
		if err != nil {
			r.Defer(i, dsn.S(4, 3, 0), "message cannot be read from the queue: "+err.Error(), agent.Detail{Relay: a.Service})
			continue
		}
		d := &delivery{Agent: a, ctx: ctx, request: r, index: i, content: content, visited: visited, been: map[string]bool{}}
		d.run()
	}
}

// A delivery is that of one recipient of a request, with all that comes of
// expanding it. It belongs to one goroutine.
type delivery struct {
	*Agent
	ctx     context.Context
	request *agent.Request
	index   int // of the recipient, in the request
	content agent.Content
	// visited are the addresses that the message has been delivered to before, in lower case, from
	// the Delivered-To: lines of its header. One that comes up again is a loop, and the message is
	// returned. Empty for most mail, and bounded by the header's size.
	visited map[string]bool
	// been are the destinations of this expansion, so that two aliases which lead to one user make
	// one copy. Bounded by duplicate_filter_limit: beyond that, copies are made.
	been map[string]bool
	// forwards are new messages for what is not delivered here, one for each sender and each
	// Delivered-To: line. They are submitted when the whole expansion has come to an end without a
	// reason to try again: else the next attempt would submit them once more.
	forwards []*forward
	parts    []mail.Part   // what has come of it so far, and has been logged
	passed   *mail.Outcome // the last part, when another transport's agent has said it; nil: none has
	// allowances are what .forward files may still lead to, by user; nil: none was read.
	allowances map[string]*allowance
	// account is the last that user found: most of an expansion is about the same user. nil: nobody.
	account *users.User
	// deferred counts the parts that are to be tried again.
	deferred int
	// unfolded is set when the recipient was expanded and the sender wants to
	// hear of success: of that, then. Expanded for an alias, Delivered for a
	// list (RFC 3461 sections 5.2.7.3 and 5.2.7.4); 0: not.
	unfolded dsn.Action
}

// state is where in the expansion of a recipient we are. It is passed by
// value: each level has its own, so that a step cannot change what its siblings see.
type state struct {
	// level is the depth of the expansion. Beyond maxLevel it is a loop.
	level int
	addr  string // the present address, in standard form
	orig  string // as it was before local delivery began
	orcpt string // ORCPT of RCPT TO; empty: the sender gave none, or a list's owner has taken over
	// What the sender asked for (RFC 3461). Of a list's members nothing is asked.
	notify dsn.Notify
	envID  string
	ret    dsn.Ret
	sender string // envelope sender of what is forwarded: the message's own, or a list's owner
	// Parts of addr: its local part in lower case, that cut at the delimiter, the delimiter itself,
	// the domain. ext and delim are empty where there is no extension.
	local, user, ext, delim, domain string
	// unmatched is the extension that goes on to the address that the expansion leads to
	// (propagate_unmatched_extensions). Empty: none does.
	unmatched string
	delivered string // for the Delivered-To: line of what is forwarded
	owner     string // who is to hear of problems: an owner- alias, or whose .forward it is; empty: the sender
	listOwner bool   // owner is an owner- alias: the envelope is the list's
	from      string // the name that is being expanded: an alias that contains itself means the user; empty: none is
	kind      expansion
	// own: in a user's .forward file, or one that it includes. Such files belong to hostile users:
	// how much is read of them is bounded.
	own     bool
	led     *allowance // of the user whose .forward has led here, maybe through an administrator's list; nil: none has
	relayed bool       // luser_relay has led here: it does so once
	// rights are those that destinations are used with: of a user, or of whom a table or a file
	// belongs to. nil: nobody's in particular, which means default_privs for commands and files.
	rights *users.User
}

func (d *delivery) run() {
	env, rcpt := d.request.Envelope, &d.request.Envelope.Recipients[d.index]
	d.recipient(state{addr: rcpt.Address, orig: rcpt.Orig(), orcpt: rcpt.ORCPT, notify: rcpt.Notify, envID: env.EnvID, ret: env.Ret, sender: env.Sender})
	if d.deferred == 0 {
		d.sendForwards()
	}
	d.conclude()
}

// seen says whether this is the second time for a key, as far as
// duplicate_filter_limit remembers.
func (d *delivery) seen(format string, args ...any) bool {
	key := fmt.Sprintf(format, args...)
	if d.been[key] {
		return true
	}
	if d.duplicates == 0 || len(d.been) < d.duplicates {
		d.been[key] = true
	}
	return false
}

// sent says that the present address has its mail, or would have it where only that is asked.
func (d *delivery) sent(st *state, format string, args ...any) {
	d.add(st, dsn.Delivered, dsn.S(2, 0, 0), fmt.Sprintf(format, args...), "", "")
}

// deferIt says that the present address is to be tried again. The class of status does not matter.
func (d *delivery) deferIt(st *state, status dsn.Status, format string, args ...any) {
	d.add(st, dsn.Deferred, status.WithClass(4), fmt.Sprintf(format, args...), "", "")
}

// bounce says that the present address has failed for good. The class of status does not matter.
func (d *delivery) bounce(st *state, status dsn.Status, format string, args ...any) {
	d.add(st, dsn.Failed, status.WithClass(5), fmt.Sprintf(format, args...), "", "")
}

// failed defers or bounces, as the status says.
func (d *delivery) failed(st *state, status dsn.Status, text, diagType, diag string) {
	action := dsn.Failed
	if status.Class == 4 {
		action = dsn.Deferred
	}
	d.add(st, action, status, text, diagType, diag)
}

// head composes the lines that come before the message. envelope is a "From "
// line.
func (d *delivery) head(st *state, deliveredTo string, withDelivered, envelope bool) []byte {
	h := mailbox.Head{Null: "MAILER-DAEMON", Sender: st.sender, Return: true}
	if envelope {
		h.From = time.Now()
	}
	if d.originalRecipient {
		h.Original = st.orig
	}
	if withDelivered {
		h.Delivered = deliveredTo
	}
	return h.Append(nil, "\n")
}
