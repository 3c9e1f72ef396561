// Package migrate is the command posthaste migrate: it moves a site from
// Postfix, and its queue there and back.
//
//	posthaste migrate [--from DIR] [--to DIR] [--dry-run]   the configuration
//	posthaste migrate --queue [--from DIR] [--to DIR]       the queue: from Postfix
//	posthaste migrate --back [--from DIR] [--to DIR]        the queue: to Postfix
//
// DIR are configuration directories: /etc/postfix and /etc/posthaste, where
// nothing else is said.
//
// # The configuration
//
// main.cf and master.cf are taken over with their comments. What names places and
// users of Postfix's is made a comment; a path below Postfix's configuration directory becomes one
// below ours, and the file it names is copied, with its owner and mode. Then each
// indexed table that the settings name is built. All of that is reported, then what will
// behave differently, and what a person has to decide. --dry-run only reports.
//
// A file that would be overwritten and is not the same is kept beside the
// new one, with ".before-migrate" at the end of its name. Nothing below the
// directory of --from is changed, so that the command can be repeated.
//
// # The queue
//
// --queue needs Posthaste running and Postfix stopped. Each message is removed from
// Postfix's queue when it is on stable storage in ours: repeating the command after an
// interruption moves what is left, and no message is in two queues. --back
// needs both stopped. It writes queue files into Postfix's incoming, deferred and hold
// queues, and why recipients wait into defer; when all of that is on stable storage it removes the messages from
// our queue. See package spooltool for what of a message is kept.
//
// # Security
//
// Copies have the owner and mode of what they are copies of, except that what belonged to
// Postfix's owner or group belongs to ours. The command is for root.
//
// # Diagnostics
//
// Exit status 0; 1 when something failed, which is said on standard error; 64 for wrong
// usage; --queue and --back exit as posthaste spool does. Decisions that are open are no failure.
package migrate

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/occupant"
	"posthaste/internal/service"
	"posthaste/internal/spooltool"
)

// postfixDir is where Postfix's configuration is.
const postfixDir = "/etc/postfix"

// dovecotDir is where Dovecot's is, in which sockets in Postfix's queue
// directory are looked for.
const dovecotDir = "/etc/dovecot"

// systemdDir is there where systemd runs the system's services.
const systemdDir = "/run/systemd/system"

// Options are what the command line says.
type options struct {
	from, to    string
	dry         bool
	queue, back bool
	dovecot     string // in tests other ones
	systemd     string
	groups      func(name string) []string // the groups that a user was put into
	listener    func(addr netip.AddrPort) (occupant.Program, bool)
}

// A Master is what has to be known of the program that runs services.
type Master struct {
	// Knows reports whether master.cf may name a program.
	Knows func(program string) bool
	// Notes says which services have no process and the like, or what is wrong.
	Notes func(cfg *config.Config, services []config.Service) ([]string, error)
}

// Run carries out posthaste migrate and returns its exit status.
func Run(args []string, m Master, stdin io.Reader, stdout, stderr io.Writer) int {
	t := &cli.Tool{Name: "posthaste migrate", Stdin: stdin, Stdout: stdout, Stderr: stderr}
	const usage = "usage: posthaste migrate [--from dir] [--to dir] [--dry-run] [--queue | --back]"
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(stdout, usage)
		return 0
	}
	if err != nil {
		return t.Fatal(cli.ExitUsage, "%v; %s", err, usage)
	}
	p, err := newPlan(o, m)
	if err != nil {
		return t.Fatal(1, "%v", err)
	}
	switch {
	case o.queue:
		args := []string{"-c", o.to, "import", "-r", p.old.queue}
		if o.dry {
			args[3] = "-n"
		}
		return spooltool.Run(t.Name, args, nil, stdin, stdout, stderr)
	case o.back:
		return spooltool.MoveBack(t.Name, o.to, p.old.spool(), stdout, stderr)
	}
	if err := p.run(stdout); err != nil {
		return t.Fatal(1, "%v", err)
	}
	return 0
}

func parse(args []string) (*options, error) {
	o := &options{dovecot: dovecotDir, systemd: systemdDir, groups: groups, listener: occupant.Of}
	f := flag.NewFlagSet("", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.from, "from", postfixDir, "")
	f.StringVar(&o.to, "to", config.Dir(""), "")
	f.BoolVar(&o.dry, "dry-run", false, "")
	f.BoolVar(&o.dry, "n", false, "")
	f.BoolVar(&o.queue, "queue", false, "")
	f.BoolVar(&o.back, "back", false, "")
	err := f.Parse(args)
	switch {
	case err != nil:
		return nil, err
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.queue && o.back:
		return nil, errors.New("--queue and --back are opposite directions")
	case o.back && o.dry:
		return nil, errors.New("--back has no dry run; posthaste mailq shows what it would move")
	}
	for _, dir := range []*string{&o.from, &o.to} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return nil, err
		}
	}
	if o.from == o.to {
		return nil, fmt.Errorf("%s cannot be both ends", o.from)
	}
	return o, nil
}

// A postfix is what has to be known of the installation that is moved.
type postfix struct {
	queue, data, owner, group, commands string
	hashed, hashDepth                   string // hash_queue_names, hash_queue_depth
}

// theirs reads Postfix's settings. Its defaults are not ours.
func theirs(cfg *config.Config) (postfix, error) {
	var errs []error
	get := func(name, postfixDefault string) string {
		if set, _, _ := cfg.IsSet(name); !set {
			return postfixDefault
		}
		v, err := cfg.Value(name)
		errs = append(errs, err)
		return v
	}
	p := postfix{get("queue_directory", "/var/spool/postfix"), get("data_directory", "/var/lib/postfix"),
		get("mail_owner", "postfix"), get("setgid_group", "postdrop"), get("command_directory", "/usr/sbin"),
		get("hash_queue_names", "deferred, defer"), get("hash_queue_depth", "1")}
	return p, errors.Join(errs...)
}

// spool is how the queue is kept.
func (p *postfix) spool() spooltool.PostfixQueue {
	depth, err := strconv.Atoi(p.hashDepth)
	if err != nil {
		depth = 1
	}
	return spooltool.PostfixQueue{Dir: p.queue, Depth: depth,
		Hashed: strings.FieldsFunc(p.hashed, func(r rune) bool { return strings.ContainsRune(", \t\n", r) })}
}

// groups are the groups that a user was put into, besides its own.
func groups(name string) (names []string) {
	a, err := service.LookupAccount(name)
	if err != nil {
		return nil // there is no such user
	}
	for _, id := range a.Groups {
		if g, err := user.LookupGroupId(strconv.Itoa(id)); err == nil {
			names = append(names, g.Name)
		}
	}
	return names
}

// newPlan reads what is to be moved, and decides what becomes of it.
func newPlan(o *options, m Master) (*plan, error) {
	p := &plan{options: o, Master: m, copies: map[string]bool{}}
	cfg, err := config.Read(o.from)
	if err != nil {
		return nil, fmt.Errorf("%w: %s has no Postfix configuration", err, o.from)
	}
	if p.old, err = theirs(cfg); err != nil {
		return nil, err
	}
	if o.queue || o.back {
		return p, nil
	}
	for _, f := range []struct {
		name string
		line func(config.LogicalLine, string) string
		to   *string
	}{{"main.cf", p.setting, &p.main}, {"master.cf", p.service, &p.master}} {
		b, err := os.ReadFile(filepath.Join(o.from, f.name))
		if err != nil {
			return nil, err
		}
		*f.to = rewrite(string(b), f.line)
	}
	p.instance()
	p.main = strings.TrimRight(p.main, "\n") + "\n"
	p.decide(cfg)
	return p, nil
}

// rewrite gives each logical line of a file its new text. Comments and empty lines stay.
func rewrite(text string, line func(l config.LogicalLine, raw string) string) string {
	var out strings.Builder
	at := 0
	for _, l := range config.LogicalLines(text) {
		out.WriteString(text[at:l.Start])
		out.WriteString(line(l, text[l.Start:l.End]))
		at = l.End
	}
	out.WriteString(text[at:])
	return out.String()
}
