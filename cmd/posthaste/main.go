// Servers of mail have certificates that nobody looks at, made by programs of
// all ages. One with a negative serial number must not keep TLS from working.

//go:debug x509negativeserial=1

// Posthaste is a mail transfer agent: every service and every tool of it in
// one program. Which one it is follows from the name it is called by, or from
// its first argument:
//
//	posthaste [-c config_dir] start | start-fg | stop | reload | abort | flush | check | status | ...
//	posthaste [-c config_dir] sendmail | mailq | postqueue | postconf | ... [arguments]
//	postfix reload              the same as posthaste reload, for scripts that know Postfix
//	sendmail -t                 a link named sendmail does what the tool does
//
// The services are executed by master under their own names and are not meant
// to be run by hand.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"posthaste/etc"
	"posthaste/internal/advice"
	"posthaste/internal/config"
	"posthaste/internal/migrate"
	"posthaste/internal/postfixtls"
	"posthaste/internal/postlog"
	"posthaste/internal/postmulti"
	"posthaste/internal/service"
	"posthaste/internal/tryout"
	"posthaste/internal/upgrade"
	"posthaste/internal/usage"
	"posthaste/master"
)

func main() {
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// run is main with everything from outside as arguments. It returns the exit
// status.
func run(argv []string, stdin io.Reader, stdout, stderr io.Writer) int {
	name, args := "posthaste", []string(nil)
	if len(argv) > 0 {
		name, args = filepath.Base(argv[0]), argv[1:]
	}
	opts := master.Options{Services: services(), Advice: advice.Report, Unwise: advice.Unwise}
	if name == master.Program {
		return master.Main(opts, args)
	}
	// Services in programs of their own are not run from here, and "events" is a command as well.
	if spec, ok := opts.Services[name]; ok && spec.Program == "" {
		return service.Main(spec, args)
	}
	io := streams{stdin, stdout, stderr}
	if tool, ok := tools()[name]; ok {
		if helped(name, args, stdout) {
			return 0
		}
		return tool(io, args)
	}
	flags, words := splitGlobal(args)
	if len(words) > 0 && helped(words[0], words[1:], stdout) {
		return 0
	}
	if len(words) > 0 {
		if tool, ok := tools()[words[0]]; ok {
			if dir := configDir(flags); dir != "" {
				os.Setenv("MAIL_CONFIG", dir) // for the tool and for what it executes
			}
			return tool(io, words[1:])
		}
	}
	if len(words) == 0 || words[0] == "help" || words[0] == "--help" || words[0] == "-h" {
		help(stdout)
		return 0
	}
	if words[0] == "version" || words[0] == "--version" {
		info, _ := debug.ReadBuildInfo()
		fmt.Fprint(stdout, version(info))
		return 0
	}
	if words[0] == "migrate" {
		if dir := configDir(flags); dir != "" {
			os.Setenv("MAIL_CONFIG", dir)
		}
		return migrateCommand(opts, words[1:], io)
	}
	if words[0] == "try" {
		return try(opts, words[1:], argv, stdout, stderr)
	}
	if configDir(flags) == "" && os.Getenv("MAIL_CONFIG") == "" {
		if status, done := everyInstance(words, stderr); done {
			return status
		}
	}
	if status, done := configure(flags, words, io); done {
		return status
	}
	return master.Command(opts, args, stdout, stderr)
}

// configure carries out the commands that change the configuration. Of set-permissions
// that is its settings; without any, or once they are made, it is master's.
func configure(flags, words []string, io streams) (status int, done bool) {
	if words[0] == "tls" {
		return tlsCommand(config.Dir(configDir(flags)), words[1:], io), true
	}
	if words[0] != "upgrade-configuration" && (words[0] != "set-permissions" || len(words) == 1) {
		return 0, false
	}
	dir := config.Dir(configDir(flags))
	tools := upgrade.Tools{Postconf: runPostconf, Master: etc.Master, Stdout: io.out, Stderr: io.err}
	if words[0] == "upgrade-configuration" {
		return upgrade.Run(dir, words[1:], tools), true
	}
	if status := upgrade.Set(dir, words[1:], tools); status != 0 {
		return status, true
	}
	return master.Command(master.Options{Services: services()}, append(slices.Clone(flags), words[0]), io.out, io.err), true
}

// tlsCommand turns TLS on, and makes keys and certificates.
func tlsCommand(dir string, args []string, std streams) int {
	log := func(text string) {
		// The person sees the text in any case.
		_ = postlog.Command([]string{"-c", dir, "-t", "postfix/postfix-tls-script", "--", text}, nil, io.Discard)
	}
	return postfixtls.Run(dir, args, postfixtls.Tools{Postconf: runPostconf, Log: log, Now: time.Now(), Stdout: std.out, Stderr: std.err})
}

// everyInstance gives a control command that names no instance to
// multi_instance_wrapper, if there are several instances.
func everyInstance(words []string, stderr io.Writer) (status int, done bool) {
	cfg, err := config.Load(config.DefaultDir)
	if err != nil {
		return 0, false // the command itself says why
	}
	argv, err := postmulti.Wrapper(cfg, words)
	if err == nil && argv != nil {
		err = fmt.Errorf("multi_instance_wrapper: %s: %w", argv[0], syscall.Exec(argv[0], argv, os.Environ()))
	}
	if err != nil {
		fmt.Fprintf(stderr, "posthaste: fatal: %v\n", err)
		return 1, true
	}
	return 0, false
}

// migrateCommand moves a site here from Postfix, or its queue back.
func migrateCommand(opts master.Options, args []string, io streams) int {
	m := migrate.Master{
		Knows: func(program string) bool { return master.Knows(program, opts.Services) },
		Notes: func(cfg *config.Config, services []config.Service) ([]string, error) {
			return master.Notes(cfg, services, opts.Services)
		},
	}
	return migrate.Run(args, m, io.in, io.out, io.err)
}

// try runs a private mail system in the foreground.
func try(opts master.Options, args, argv []string, stdout, stderr io.Writer) int {
	s, err := tryout.Parse(args, argv[0])
	if err == nil {
		err = s.Yield(argv, stderr)
	}
	if err == nil {
		err = s.Prepare(etc.Master)
	}
	if err != nil {
		fmt.Fprintf(stderr, "posthaste: fatal: %v\n", err)
		return 1
	}
	opts.ConfigDir = s.ConfigDir()
	opts.Ready = func() {
		if err := s.Greet(stdout); err != nil {
			fmt.Fprintf(stderr, "posthaste: warning: %v\n", err)
		}
	}
	return master.Command(opts, []string{"start-fg"}, stdout, stderr)
}

// streams are a program's standard input and outputs.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// splitGlobal cuts the options before the first word off.
func splitGlobal(args []string) (flags, words []string) {
	i := 0
	for i < len(args) && strings.HasPrefix(args[i], "-") && !slices.Contains([]string{"-h", "--help", "--version"}, args[i]) {
		if args[i] == "-c" {
			i++
		}
		i++
	}
	i = min(i, len(args))
	return args[:i], args[i:]
}

// configDir is the value of the last -c.
func configDir(flags []string) (dir string) {
	for i, f := range flags {
		if f == "-c" && i+1 < len(flags) {
			dir = flags[i+1]
		} else if attached, ok := strings.CutPrefix(f, "-c"); ok && attached != "" {
			dir = attached
		}
	}
	return dir
}

// ownCommands are the tools that Postfix does not have. There is no program of
// their names.
const ownCommands = `  explain ID|DESTINATION ... say why a message is still in the queue, or how a destination fares
  sources ...                show how the sources do that mail goes from: warm-up, limits, where they rest
  queue list|hold|release|delete|requeue|expire|flush ...
                             act on messages by sender, domain, next hop, reply, age ...
  suspend TARGET ...         stop the delivery of some mail
  resume TARGET              end a suspension
  suspended ...              list suspensions: by whom, why and until when
  limit DESTINATION N ...    limit simultaneous deliveries to a destination for now
  unlimit DESTINATION        end a limit
  limited ...                list limits: by whom, why and until when
  divert TARGET NEXTHOP ...  send some mail by another next hop for now
  undivert TARGET            end a diversion
  diverted ...               list diversions: by whom, why and until when
  bounce TARGET ...          return some mail to its senders for a time
  unbounce TARGET            end that
  bounced ...                list what is returned: by whom, why and until when
  top                        show the queues, the worst destinations and the suspensions
  spool check|doubtful|stats|dump|export|import|salvage ...
                             examine, copy or rescue the spool
  audit [FILE ...]           verify that all accepted mail was delivered, returned or is queued
  trace PATTERN ...          follow messages through forwards, lists, reports and filters, by the log
  collate [FILE ...]         group the log lines by message
  events COMMAND ...         show how far the receivers of events are, and send events again
  watch client|destination NAME
                             show the SMTP dialogues with one peer as they happen
  classify [REPLY ...]       say what kind of failure a server's reply describes
  shaping check|explain|...  say what the shaping files are worth, and what their rules have done
  account COMMAND ...        keep the accounts of people who send mail
  passwd [user]              make an entry for a table of users
  dkim genkey|record ...     make keys to sign mail with
  cert list|renew|rollover   show the servers' certificates and their TLSA records; renew one, or its key
  domain add|rotate|check|records ...
                             manage a mail domain: its settings, keys and DNS records
  token add|list|remove      make and remove tokens for programs that use HTTP
  cluster init|status|shards|doubtful|drain|undrain
                             make the database for a queue that several nodes share; show the nodes
  srs encode|decode [ADDRESS ...]
                             rewrite or decode the senders of forwarded mail
  suppress COMMAND ...       look at the suppression list, and change it
  dmarc report [FILE ...]    read DMARC and TLS reports: who sends in your domains' names
  setup site|relay|null-client|backup-mx|sender
                             write main.cf and master.cf for one of the usual cases
  whatif [-o NAME=VALUE ...] forecast when the queue will be empty, with other settings
  simulate [FILE]            run mail through the scheduler, in virtual time
`

// helped prints how a command is called, if its arguments ask for that, and says whether they did.
// Commands that have commands of their own may be asked behind those.
func helped(command string, args []string, w io.Writer) bool {
	if len(args) == 2 && slices.Contains([]string{"queue", "spool", "tls", "cert", "dkim", "dmarc", "domain", "token", "cluster", "events", "account", "srs", "suppress"}, command) {
		args = args[1:]
	}
	text := usage.Of(command)
	if !usage.Asked(args) || text == "" {
		return false
	}
	fmt.Fprint(w, text)
	return true
}

func help(w io.Writer) {
	var names []string
	for name := range tools() {
		if !strings.Contains(ownCommands, "  "+name+" ") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	fmt.Fprintf(w, `usage: posthaste [-c config_dir] COMMAND

Commands for the mail system:
  start start-fg stop reload abort flush check status set-permissions upgrade-configuration
  logrotate tls version
  migrate [--from dir] [--to dir] [--dry-run] [--queue | --back]
                             move a site from Postfix; move its queue there and back
  try [-d dir] [-p port]     run a private mail system on 127.0.0.1, to try things out

Commands that Postfix does not have:
%s
Tools, also available under their own names:
  %s

The manual page posthaste(1) describes each of them.
`, ownCommands, strings.Join(names, " "))
}
