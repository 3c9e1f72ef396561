// Package virtual delivers to mailboxes that are listed in tables, for domains
// whose users have no accounts on this system. There are no aliases, no .forward
// files and no commands.
//
// A recipient is looked up in virtual_mailbox_maps as user+ext@domain,
// user@domain and @domain. The result is a path below virtual_mailbox_base: a
// maildir if it ends in a slash, and an mbox file otherwise. virtual_uid_maps and
// virtual_gid_maps determine its owner and group.
//
// # Security
//
// A path from the tables cannot lead out of virtual_mailbox_base: a path with a
// ".." component is refused, and without virtual_mailbox_base nothing is
// delivered. User IDs below virtual_minimum_uid, and group 0, are refused. Files
// are written with the rights of that user and group only (packages mailbox and
// rights).
//
// # Parameters
//
// deliver_lock_attempts, deliver_lock_delay, enable_original_recipient,
// message_size_limit, myhostname, recipient_delimiter, stale_lock_time,
// strict_mailbox_ownership, virtual_gid_maps, virtual_mailbox_base,
// virtual_mailbox_limit (0: none; else not below message_size_limit),
// virtual_mailbox_lock, virtual_mailbox_maps, virtual_minimum_uid,
// virtual_transport, virtual_uid_maps.
//
// # Diagnostics
//
//	status=sent (delivered to mailbox), status=sent (delivered to maildir)
//	status=bounced (unknown user: "ADDRESS")
package virtual

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/rights"
	"posthaste/internal/service"
	"posthaste/internal/table"
	"posthaste/local/mailbox"
)

// An Agent is the virtual transport. It is made by New.
type Agent struct {
	service           string
	log               *maillog.Logger
	base              string
	minimumUID        int
	limit             int64
	lock              mailbox.Lock
	strictOwner       bool
	originalRecipient bool
	split             *table.Search
	boxes, uids, gids *table.Maps
	store             *mailbox.Store
}

// New returns an Agent for a service of this name in master.cf. The error
// says what in the configuration is wrong.
func New(cfg *config.Config, name string, log *maillog.Logger) (*Agent, error) {
	lock, err := mailbox.ParseLocks(cfg.List("virtual_mailbox_lock"))
	if err != nil {
		return nil, fmt.Errorf("virtual_mailbox_lock: %w", err)
	}
	if err := reachable(cfg, name); err != nil {
		return nil, err
	}
	opt := service.TableOptions(cfg, log).Sensitive()
	return &Agent{service: name, log: log, base: cfg.String("virtual_mailbox_base"), minimumUID: cfg.Int("virtual_minimum_uid"),
		limit: cfg.Bytes("virtual_mailbox_limit"), lock: lock, strictOwner: cfg.Bool("strict_mailbox_ownership"),
		originalRecipient: cfg.Bool("enable_original_recipient"),
		split:             &table.Search{Delimiters: cfg.String("recipient_delimiter")},
		boxes:             table.OpenMaps("virtual_mailbox_maps", cfg.List("virtual_mailbox_maps"), opt),
		uids:              table.OpenMaps("virtual_uid_maps", cfg.List("virtual_uid_maps"), opt),
		gids:              table.OpenMaps("virtual_gid_maps", cfg.List("virtual_gid_maps"), opt),
		store: mailbox.New(mailbox.Options{LockAttempts: cfg.Int("deliver_lock_attempts"), LockDelay: cfg.Duration("deliver_lock_delay"),
			StaleLock: cfg.Duration("stale_lock_time"), Hostname: cfg.String("myhostname"), Warn: log.Warning}),
	}, nil
}

// reachable says what is wrong with the settings of a service that mail reaches.
// One without a virtual_mailbox_base that virtual_transport does not name is
// only there: virtual_mailbox_maps is then for who delivers instead.
func reachable(cfg *config.Config, name string) error {
	base, most, message := cfg.String("virtual_mailbox_base"), cfg.Bytes("virtual_mailbox_limit"), cfg.Bytes("message_size_limit")
	transport, _, _ := strings.Cut(cfg.String("virtual_transport"), ":")
	switch {
	case base == "" && len(cfg.List("virtual_mailbox_maps")) > 0 && transport == name:
		return errors.New("virtual_mailbox_base is empty: expected the directory that mailboxes are in")
	case base != "" && most > 0 && (message <= 0 || most < message):
		return errors.New("virtual_mailbox_limit is smaller than message_size_limit")
	}
	return nil
}

// Close closes the tables. No delivery may be under way.
func (a *Agent) Close() error { return errors.Join(a.boxes.Close(), a.uids.Close(), a.gids.Close()) }

// Deliver implements agent.Deliverer.
func (a *Agent) Deliver(ctx context.Context, r *agent.Request) {
	content, err := r.Content()
	if err == nil {
		defer content.Close()
	}
	seen := map[string]bool{}
	for i := range r.Envelope.Recipients {
		if err != nil {
			r.Defer(i, dsn.S(4, 3, 0), err.Error(), a.detail())
			continue
		}
		addr := strings.ToLower(r.Envelope.Recipients[i].Address)
		switch {
		case seen[addr]:
			r.Sent(i, dsn.S(2, 0, 0), "duplicate", a.detail())
		default:
			seen[addr] = true
			a.recipient(ctx, r, i, addr, content)
		}
	}
}

func (a *Agent) detail() agent.Detail { return agent.Detail{Relay: a.service} }

// misconfigured defers a recipient for trouble that an administrator must mend.
func (a *Agent) misconfigured(r *agent.Request, i int, format string, args ...any) {
	a.log.Warning(format, args...)
	r.Defer(i, dsn.S(4, 3, 5), "mail system configuration error", a.detail())
}

const keys = table.KeyFull | table.KeyBare | table.KeyAtDomain

func (a *Agent) recipient(ctx context.Context, r *agent.Request, i int, addr string, content mailbox.Content) {
	box, _, found, err := a.boxes.LookupAddress(ctx, a.split, addr, keys)
	if err != nil {
		a.misconfigured(r, i, "recipient %s: %v", mailbox.External(addr), err)
		return
	}
	if !found {
		r.Bounce(i, dsn.S(5, 1, 1), fmt.Sprintf(`unknown user: "%s"`, mailbox.External(addr)), a.detail())
		return
	}
	if slices.Contains(strings.Split(box, "/"), "..") {
		a.misconfigured(r, i, "recipient %s: %s: path %q leads out of virtual_mailbox_base", mailbox.External(addr), a.boxes.Title(), box)
		return
	}
	who, err := a.rights(ctx, addr)
	if err != nil {
		a.misconfigured(r, i, "recipient %s: %v", mailbox.External(addr), err)
		return
	}
	if a.base == "" {
		a.misconfigured(r, i, "recipient %s: virtual_mailbox_base is empty", mailbox.External(addr))
		return
	}
	a.deliver(ctx, r, i, strings.TrimRight(a.base, "/")+"/"+box, who, content)
}

// rights are the owner's, from the tables.
func (a *Agent) rights(ctx context.Context, addr string) (rights.Rights, error) {
	uid, err := a.id(ctx, a.uids, addr, "uid", a.minimumUID)
	if err != nil {
		return rights.Rights{}, err
	}
	gid, err := a.id(ctx, a.gids, addr, "gid", 1)
	return rights.Rights{UID: uid, GID: gid}, err
}

func (a *Agent) id(ctx context.Context, maps *table.Maps, addr, kind string, least int) (int, error) {
	text, _, found, err := maps.LookupAddress(ctx, a.split, addr, keys)
	if err != nil {
		return 0, err
	}
	if !found {
		return 0, fmt.Errorf("not found in %s", maps.Title())
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < least {
		return 0, fmt.Errorf("bad %s %.40q in %s: expected a number from %d on", kind, text, maps.Title(), least)
	}
	return n, nil
}

func (a *Agent) deliver(ctx context.Context, r *agent.Request, i int, box string, who rights.Rights, content mailbox.Content) {
	isDir, what := strings.HasSuffix(box, "/"), "mailbox"
	if isDir {
		what = "maildir"
	}
	if r.Envelope.Trace.DontDeliver() {
		r.Sent(i, dsn.S(2, 0, 0), "delivers to "+what, a.detail())
		return
	}
	rcpt := &r.Envelope.Recipients[i]
	head := mailbox.Head{Null: "MAILER-DAEMON", Sender: r.Envelope.Sender, Return: true, Delivered: rcpt.Address}
	if a.originalRecipient {
		head.Original = rcpt.Orig()
	}
	var err error
	if isDir {
		err = a.store.Deliver(&mailbox.Maildir{Path: box, Rights: who, Limit: a.limit, Otherwise: dsn.S(4, 2, 0)}, head.Append(nil, "\n"), content)
		if errors.Is(err, unix.EACCES) {
			a.log.LogWarning(maillog.MaildirDenied{UID: who.UID, GID: who.GID, Reason: err.Error()})
			a.log.Warning("perhaps you need to create the maildirs in advance")
		}
	} else {
		head.From = time.Now()
		m := mailbox.Mbox{Path: path.Clean(box), Rights: who, Lock: a.lock, Limit: a.limit, Owner: -1, Otherwise: dsn.S(4, 2, 0)}
		if a.strictOwner {
			m.Owner = who.UID
		}
		err = a.store.Append(ctx, &m, head.Append(nil, "\n"), content)
	}
	a.report(r, i, err, what, box)
}

func (a *Agent) report(r *agent.Request, i int, err error, what, box string) {
	prefix := "delivery failed to mailbox " + box + ": "
	if what == "maildir" {
		prefix = "maildir delivery failed: "
	}
	var e *mailbox.Error
	switch {
	case err == nil:
		r.Sent(i, dsn.S(2, 0, 0), "delivered to "+what, a.detail())
	case !errors.As(err, &e):
		r.Defer(i, dsn.S(4, 3, 0), err.Error(), a.detail())
	case e.Status.Class == 4:
		r.Defer(i, e.Status, prefix+e.Error(), a.detail())
	default:
		r.Bounce(i, e.Status, prefix+e.Error(), a.detail())
	}
}
