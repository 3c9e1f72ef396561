// Package pipe delivers to a command that is configured in master.cf, such as a
// mailing list manager, a content filter or another mail system.
//
//	maildrop  unix  -  n  n  -  -  pipe
//	  flags=DRXhu user=vmail argv=/usr/bin/maildrop -d ${recipient}
//
// # Attributes
//
//	user=NAME[:GROUP]  the user and group of the command; required; not root, not mail_owner
//	argv=WORD...       the command and its arguments; required, and the last attribute
//	directory=PATH     working directory; by default queue_directory
//	chroot=PATH        root directory
//	size=LIMIT         larger messages are returned
//	null_sender=TEXT   replaces the null sender; by default MAILER-DAEMON
//	eol=TEXT           line ending, with C escapes; by default \n
//	flags=BDFORXhqu.>
//
//	B  an empty line at the end           h  domains in macros in lower case
//	D  Delivered-To:, and loop detection  q  addresses in macros quoted
//	F  a "From " line                     u  local parts in macros in lower case
//	O  X-Original-To:                     .  lines that begin with "." get another
//	R  Return-Path:                       >  lines that begin with "From " get a ">"
//	X  this is final delivery: notices say delivered, not relayed
//
// Arguments may have the macros ${client_address}, ${client_helo},
// ${client_hostname}, ${client_port}, ${client_protocol}, ${domain},
// ${envid}, ${extension}, ${mailbox}, ${nexthop}, ${original_recipient},
// ${queue_id}, ${recipient}, ${sasl_method}, ${sasl_sender},
// ${sasl_username}, ${sender}, ${size}, ${user}. An argument with a macro that
// depends on the recipient is repeated for each recipient.
//
// The command is run without a shell; exit status, output and time are as
// package command describes. The outcome is the same for all recipients of a
// request.
//
// # Security
//
// Macros come from strangers. Each is part of a single argument, whatever its
// content. A command may still misinterpret an argument that begins with "-": put
// "--" before ${recipient}.
//
// # Parameters
//
// export_environment, mail_owner, owner_request_special, recipient_delimiter, TRANSPORT_time_limit (command_time_limit).
//
// # Diagnostics
//
//	relay=SERVICE, ..., status=sent (delivered via SERVICE service (OUTPUT))
package pipe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
	"posthaste/local/command"
	"posthaste/local/macro"
	"posthaste/local/mailbox"
	"posthaste/local/users"
)

// An Agent is a pipe transport. It is made by New.
type Agent struct {
	attributes
	service string
	log     *maillog.Logger
	split   *table.Search
	limit   time.Duration
	env     []string
}

// New returns an Agent for a service of this name in master.cf, with what
// follows the program's name there. db nil means the system's users. The
// error says what is wrong.
func New(cfg *config.Config, service string, args []string, db users.Database, log *maillog.Logger) (*Agent, error) {
	if db == nil {
		db = new(users.System)
	}
	a := &Agent{service: service, log: log,
		split: &table.Search{Delimiters: cfg.String("recipient_delimiter"), OwnerRequest: cfg.Bool("owner_request_special")},
		limit: cfg.Prefix(service).Duration("time_limit"), env: command.Environment(cfg.List("export_environment"))}
	if err := a.parse(args, db, cfg.String("mail_owner")); err != nil {
		return nil, fmt.Errorf("service %s: pipe: %w", service, err)
	}
	return a, nil
}

// Deliver implements agent.Deliverer.
func (a *Agent) Deliver(ctx context.Context, r *agent.Request) {
	all := func(f func(i int)) {
		for i := range r.Envelope.Recipients {
			if r.Pending(i) {
				f(i)
			}
		}
	}
	d := agent.Detail{Relay: a.service}
	switch {
	case a.size > 0 && r.Envelope.Size > a.size:
		all(func(i int) {
			r.Bounce(i, dsn.S(5, 2, 3), "message too large", d)
		})
		return
	case a.has('D', 'O') && len(r.Envelope.Recipients) > 1:
		a.log.Warning("pipe flags D and O require %s_destination_recipient_limit = 1", a.service)
		all(func(i int) { r.Defer(i, dsn.S(4, 3, 5), "mail system configuration error", d) })
		return
	case r.Envelope.Trace.DontDeliver():
		all(func(i int) { r.Sent(i, dsn.S(2, 0, 0), "delivers to command: "+a.argv[0], d) })
		return
	}
	content, err := r.Content()
	if err == nil {
		defer content.Close()
		err = a.loops(r, content)
	}
	if err != nil {
		all(func(i int) { r.Defer(i, dsn.S(4, 3, 0), err.Error(), d) })
		return
	}
	argv, err := a.expand(r)
	if err != nil {
		a.log.Warning("service %s: %v", a.service, err)
		all(func(i int) { r.Defer(i, dsn.S(4, 3, 5), "mail system configuration error", d) })
		return
	}
	anyone := false
	all(func(int) { anyone = true })
	if !anyone {
		return
	}
	res := a.run(ctx, r, argv, content)
	all(func(i int) { a.report(r, i, &res) })
}

// loops returns the message to its sender for recipients that have had it.
func (a *Agent) loops(r *agent.Request, content mailbox.Content) error {
	if !a.has('D') {
		return nil
	}
	visited, err := mailbox.Visited(content)
	for i := range r.Envelope.Recipients {
		if addr := r.Envelope.Recipients[i].Address; err == nil && visited[strings.ToLower(addr)] {
			r.Bounce(i, dsn.S(5, 4, 6), "mail forwarding loop for "+mailbox.External(addr), agent.Detail{Relay: a.service})
		}
	}
	return err
}

func (a *Agent) run(ctx context.Context, r *agent.Request, argv []string, content mailbox.Content) command.Result {
	env := r.Envelope
	head := mailbox.Head{Null: a.nullSender, Sender: env.Sender, Return: a.has('R')}
	if head.Sender == "" {
		head.Sender = a.nullSender
	}
	if a.has('F') {
		head.From = time.Now()
	}
	for i := range env.Recipients { // with D and O there is one
		if a.has('O') {
			head.Original = env.Recipients[i].Orig()
		}
		if a.has('D') {
			head.Delivered = env.Recipients[i].Address
		}
	}
	tail := ""
	if a.has('B') {
		tail = a.eol
	}
	form := mailbox.Form{EOL: a.eol, Quote: a.has('>'), Dots: a.has('.')}
	c := command.Command{Line: a.argv[0], Args: argv, Env: a.env, Dir: a.directory, Chroot: a.chroot, Rights: a.rights, Limit: a.limit}
	return c.Run(ctx, func(w *os.File) error {
		var bad *mailbox.ReadError
		if errors.As(mailbox.WriteTo(w, head.Append(nil, a.eol), content, tail, form), &bad) {
			return &command.FeedError{Err: bad.Err}
		}
		return nil
	})
}

// maxSaid is how much of a successful command's output is logged, in bytes.
const maxSaid = 100

func (a *Agent) report(r *agent.Request, i int, res *command.Result) {
	d := agent.Detail{Relay: a.service}
	switch {
	case res.OK:
		d.Action = dsn.Relayed
		if a.has('X') {
			d.Action = dsn.Delivered
		}
		text := "delivered via " + a.service + " service"
		if said := res.Output; said != "" {
			text += " (" + said[:min(len(said), maxSaid)] + ")"
		}
		r.Sent(i, dsn.S(2, 0, 0), text, d)
	case res.Status.Class == 4:
		d.DiagType, d.DiagText = "x-unix", res.Diag
		r.Defer(i, res.Status, res.Text, d)
	default:
		d.DiagType, d.DiagText = "x-unix", res.Diag
		r.Bounce(i, res.Status, res.Text, d)
	}
}

// expand makes the command's arguments.
func (a *Agent) expand(r *agent.Request) ([]string, error) {
	var out []string
	for _, word := range a.argv {
		perRecipient := false
		text, unknown, err := macro.Expand(word, a.names(r, 0, &perRecipient), "")
		if err == nil && unknown {
			err = fmt.Errorf("%s: unknown macro", word)
		}
		if err != nil {
			return nil, fmt.Errorf("argv: %w", err)
		}
		if !perRecipient {
			out = append(out, text)
			continue
		}
		for i := range r.Envelope.Recipients {
			if !r.Pending(i) {
				continue
			}
			if text, _, err = macro.Expand(word, a.names(r, i, &perRecipient), ""); err != nil {
				return nil, fmt.Errorf("argv: %w", err)
			}
			out = append(out, text)
		}
	}
	return out, nil
}

// names are the macros, for recipient i. perRecipient becomes true when one
// is asked for that differs from recipient to recipient.
func (a *Agent) names(r *agent.Request, i int, perRecipient *bool) macro.Names {
	env, rcpt := r.Envelope, &r.Envelope.Recipients[i]
	return func(name string) (string, bool) {
		if v, ok := a.recipientName(rcpt, name); ok {
			*perRecipient = true
			return v, true
		}
		switch name {
		case "sender":
			sender := env.Sender
			if sender == "" {
				sender = a.nullSender
			}
			return a.quoted(sender), true
		case "nexthop":
			return a.foldDomain(string(r.Nexthop)), true
		case "size":
			return strconv.FormatInt(env.Size, 10), true
		}
		v, ok := map[string]string{"queue_id": string(env.ID), "envid": env.EnvID, "client_address": env.Client.Addr,
			"client_helo": env.Client.Helo, "client_hostname": env.Client.Name, "client_port": env.Client.Port,
			"client_protocol": env.Client.Proto, "sasl_method": env.SASL.Method, "sasl_sender": env.SASL.Sender,
			"sasl_username": env.SASL.Username}[name]
		return v, ok
	}
}

// recipientName is a macro that says something of a recipient.
func (a *Agent) recipientName(rcpt *mail.Recipient, name string) (string, bool) {
	local, domain, _ := rfc5322.Split(rcpt.Address)
	user, ext := a.split.SplitExtension(local)
	switch name {
	case "recipient":
		return a.address(rcpt.Address), true
	case "original_recipient":
		return a.address(rcpt.Orig()), true
	case "user":
		return a.foldLocal(user), true
	case "mailbox":
		return a.foldLocal(local), true
	case "extension":
		if ext != "" {
			ext = ext[1:]
		}
		return a.foldLocal(ext), true
	case "domain":
		return a.foldDomain(domain), true
	}
	return "", false
}

func (a *Agent) address(addr string) string {
	local, domain, at := rfc5322.Split(addr)
	out := a.foldLocal(local)
	if at {
		out += "@" + a.foldDomain(domain)
	}
	return a.quoted(out)
}

func (a *Agent) quoted(addr string) string {
	if a.has('q') && addr != "" {
		return rfc5322.Quote(addr)
	}
	return addr
}

func (a *Agent) foldLocal(s string) string {
	if a.has('u') {
		return strings.ToLower(s)
	}
	return s
}

func (a *Agent) foldDomain(s string) string {
	if a.has('h') {
		return strings.ToLower(s)
	}
	return s
}
