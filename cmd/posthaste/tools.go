package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"posthaste/etc"
	"posthaste/internal/account"
	"posthaste/internal/audit"
	"posthaste/internal/bounce"
	"posthaste/internal/bounceclass"
	"posthaste/internal/cert"
	"posthaste/internal/cli"
	"posthaste/internal/collate"
	"posthaste/internal/config"
	"posthaste/internal/dmarcreport"
	"posthaste/internal/domain"
	"posthaste/internal/eventtool"
	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/postcat"
	"posthaste/internal/postconf"
	"posthaste/internal/postkick"
	"posthaste/internal/postlog"
	"posthaste/internal/postmulti"
	"posthaste/internal/postqueue"
	"posthaste/internal/postsuper"
	"posthaste/internal/posttlsfinger"
	"posthaste/internal/qshape"
	"posthaste/internal/queuetool"
	"posthaste/internal/sasl"
	"posthaste/internal/sendmail"
	"posthaste/internal/service"
	"posthaste/internal/setup"
	"posthaste/internal/shaping"
	"posthaste/internal/sources"
	"posthaste/internal/spooltool"
	"posthaste/internal/srstool"
	"posthaste/internal/storage"
	"posthaste/internal/suppresstool"
	"posthaste/internal/table"
	"posthaste/internal/table/postmap"
	"posthaste/internal/table/proxymap"
	"posthaste/internal/token"
	"posthaste/internal/top"
	"posthaste/internal/trace"
	"posthaste/internal/watch"
	"posthaste/internal/whatif"
	"posthaste/local/postlock"
	"posthaste/master"
	"posthaste/qmgr/sched/simulate"
)

// A tool is one of the commands of the mail system. It returns its exit status.
type tool func(io streams, args []string) int

// own is a command of posthaste that reads standard input; name is how its messages begin.
func own(name string, run func(name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int) tool {
	return func(io streams, args []string) int { return run("posthaste "+name, args, io.in, io.out, io.err) }
}

// tools are the commands by name.
func tools() map[string]tool {
	all := map[string]tool{
		"sendmail":   func(io streams, args []string) int { return sendmailTool("sendmail", io, args) },
		"mailq":      func(io streams, args []string) int { return sendmailTool("mailq", io, args) },
		"newaliases": func(io streams, args []string) int { return sendmailTool("newaliases", io, args) },
		"postmulti":  postmultiTool,
		"postqueue":  func(io streams, args []string) int { return postqueueTool("postqueue", io, args) },
		"postconf": func(io streams, args []string) int {
			return runPostconf(args, io.out, io.err)
		},
		"postmap":   func(io streams, args []string) int { return postmapTool("postmap", io, args) },
		"postalias": func(io streams, args []string) int { return postmapTool("postalias", io, args) },
		"postsuper": func(io streams, args []string) int { return postsuper.Run("postsuper", args, io.in, io.out, io.err) },
		"postcat":   postcatTool,
		"qshape":    qshapeTool,
		"cluster":   clusterTool,
		"spool":     spoolTool,
		"explain": func(io streams, args []string) int {
			return spooltool.Explain("posthaste explain", args, io.out, io.err)
		},
		"sources": func(io streams, args []string) int { return sources.Run("posthaste sources", args, io.out, io.err) },
		"queue": func(io streams, args []string) int {
			return queuetool.Run("posthaste queue", args, func(args []string) int { return postqueueTool("postqueue", io, args) }, io.in, io.out, io.err)
		},
		"passwd":   func(io streams, args []string) int { return sasl.Passwd(args, io.in, io.out, io.err) },
		"simulate": func(io streams, args []string) int { return simulate.Command(args, io.in, io.out, io.err) },
		"postlog":  func(io streams, args []string) int { return postlog.Command(args, io.in, io.err) },
		"postkick": func(io streams, args []string) int { return postkick.Run(args, io.err) },
		"postlock": func(io streams, args []string) int { return postlock.Run(args, io.in, io.out, io.err) },
		"posttls-finger": func(io streams, args []string) int {
			return posttlsfinger.Run(args, io.out, io.err)
		},
		"audit":    own("audit", audit.Run),
		"classify": own("classify", bounceclass.Command),
		"shaping":  own("shaping", shaping.Command),
		"srs":      own("srs", srstool.Run),
		"suppress": own("suppress", suppresstool.Run),
		"account":  own("account", account.Run),
		"token":    func(io streams, args []string) int { return token.Run("posthaste token", args, io.out, io.err) },
		"events":   func(io streams, args []string) int { return eventtool.Run("posthaste events", args, io.out, io.err) },
		"whatif":   func(io streams, args []string) int { return whatif.Command("posthaste whatif", args, io.out, io.err) },
		"top":      func(io streams, args []string) int { return top.Run("posthaste top", args, io.out, io.err) },
		"trace":    func(io streams, args []string) int { return trace.Run(args, io.in, io.out, io.err) },
		"collate":  func(io streams, args []string) int { return collate.Command(args, io.in, io.out, io.err) },
		"domain":   own("domain", domain.Run),
		"cert":     func(io streams, args []string) int { return cert.Run("posthaste cert", args, io.out, io.err) },
		"setup":    setupTool,
		"dmarc":    own("dmarc", dmarcreport.Command),
		"dkim":     func(io streams, args []string) int { return dkimkey.Command(args, io.out, io.err) },
		"watch":    func(io streams, args []string) int { return watch.Command(args, io.out, io.err) },
	}
	for _, verb := range queuetool.Verbs() {
		all[verb] = func(io streams, args []string) int { return queuetool.Suspend(verb, args, io.out, io.err) }
	}
	return all
}

func runPostconf(args []string, stdout, stderr io.Writer) int {
	return postconf.Run(args, postconf.Build{
		MapTypes:   table.Types(),
		ServerSASL: []string{"accounts", "cyrus", "dovecot", "table"},
		Templates: func(cfg *config.Config, file string, expand bool, w io.Writer) error {
			return bounce.WriteTemplates(w, cfg, file, expand)
		},
	}, stdout, stderr)
}

// setupTool writes a configuration. It is checked by another process, which reads it as the mail
// system does when it starts.
func setupTool(io streams, args []string) int {
	ourselves := func(argv ...string) int {
		cmd := exec.Command("/proc/self/exe", argv[1:]...)
		cmd.Args, cmd.Stdin, cmd.Stdout, cmd.Stderr = argv, nil, io.out, io.err
		if err := cmd.Run(); err != nil {
			fmt.Fprintf(io.err, "posthaste setup: fatal: %s: %v\n", strings.Join(argv, " "), err)
			return 1
		}
		return 0
	}
	return setup.Run("posthaste setup", args, setup.Tools{Main: etc.Main, Master: etc.Master, Hostname: os.Hostname, Aliases: "/etc/aliases",
		Build: func(dir, table string) int { return ourselves("postalias", "-c", dir, table) },
		Check: func(dir string) int { return ourselves("posthaste", "-c", dir, "check") },
		Running: func(dir string) bool {
			cmd := exec.Command("/proc/self/exe", "-c", dir, "status")
			cmd.Args[0] = "posthaste"
			return cmd.Run() == nil
		}}, io.out, io.err)
}

func postmultiTool(io streams, args []string) int {
	return postmulti.Run(args, postmulti.Tools{Self: "/proc/self/exe", Main: etc.Main, Master: etc.Master, Stdin: io.in, Stdout: io.out, Stderr: io.err,
		Postconf: runPostconf})
}

// postmapTool is postmap or postalias. Where a database is asked, the program
// that can do that takes the place of this one.
func postmapTool(name string, io streams, args []string) int {
	database := func(spec string) bool { return !strings.HasPrefix(spec, "unix:") }
	if !slices.ContainsFunc(table.Proxied(strings.Join(args, " ")), database) {
		return postmap.Run(name, nil, args, io.in, io.out, io.err)
	}
	err := execTables(name, args)
	fmt.Fprintf(io.err, "%s: fatal: %v\n", name, err)
	return 1
}

func postcatTool(io streams, args []string) int {
	return elsewhere("postcat", io, args, func() int { return postcat.Run("postcat", args, nil, io.in, io.out, io.err) })
}

func qshapeTool(io streams, args []string) int {
	return elsewhere("qshape", io, args, func() int { return qshape.Run("qshape", args, nil, io.out, io.err) })
}

// elsewhere is a tool that reads mail. Where another engine than the log has that, the program that has the engine
// takes the place of this one; otherwise it is here.
func elsewhere(name string, io streams, args []string, here func() int) int {
	cfg, err := config.ReadFor(config.Dir(configDir(args)), "spool_type")
	if err != nil || !storage.Elsewhere(cfg) {
		return here() // which says what is wrong
	}
	err = execProgram(storage.Program, name, args)
	fmt.Fprintf(io.err, "%s: fatal: %v\n", name, err)
	return 1
}

// clusterTool is in the program that can speak to the database, and needs no spool_type: "init" comes before
// that is set.
func clusterTool(io streams, args []string) int {
	err := execProgram(storage.Program, "cluster", args)
	fmt.Fprintf(io.err, "posthaste cluster: fatal: %v\n", err)
	return 1
}

// spoolTool is posthaste spool. "migrate" is in the program that has both engines.
func spoolTool(io streams, args []string) int {
	_, verb, err := cli.Getopt(args, "c:")
	if err != nil || len(verb) == 0 || verb[0] != "migrate" {
		return elsewhere("spool", io, args, func() int { return spooltool.Run("posthaste spool", args, nil, io.in, io.out, io.err) })
	}
	err = execProgram(storage.Program, "spool", args)
	fmt.Fprintf(io.err, "posthaste spool: fatal: %v\n", err)
	return 1
}

// execTables executes proxymap's program under a name. It returns if it cannot.
func execTables(name string, args []string) error {
	return execProgram(proxymap.Program, name, args)
}

// execProgram executes another program of the mail system under a name. It returns if it cannot.
func execProgram(program, name string, args []string) error {
	cfg, err := config.ReadFor(config.Dir(configDir(args)), "daemon_directory")
	if err != nil {
		return err
	}
	path, err := service.ProgramPath(program, cfg.String("daemon_directory"))
	if err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", path, syscall.Exec(path, append([]string{name}, args...), os.Environ()))
}

// postqueueTool is postqueue or mailq. The program that is set-gid takes the
// place of this one where that is needed and there is one.
func postqueueTool(name string, io streams, args []string) int {
	if os.Getuid() != 0 {
		if err := execPostqueue(args); err != nil {
			fmt.Fprintf(io.err, "%s: fatal: %v\n", name, err)
			return 69
		}
	}
	return postqueue.Run(name, args, io.out, io.err)
}

// execPostqueue executes the set-gid postqueue. It returns if there is none,
// or with an error.
func execPostqueue(args []string) error {
	cfg, err := config.ReadFor(config.Dir(configDir(args)), "command_directory")
	if err != nil {
		return nil // postqueue itself says so
	}
	path := filepath.Join(cfg.String("command_directory"), "postqueue")
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&os.ModeSetgid == 0 {
		return nil
	}
	return fmt.Errorf("execute %s: %w", path, syscall.Exec(path, append([]string{"postqueue"}, args...), os.Environ()))
}

// sendmailTool is sendmail under one of its names, with what its options lead to.
func sendmailTool(name string, io streams, args []string) int {
	with := func(dir string, f func() int) int {
		if dir != "" {
			os.Setenv("MAIL_CONFIG", dir)
		}
		return f()
	}
	c := &sendmail.Command{Name: name, Stdin: io.in, Stdout: io.out, Stderr: io.err,
		Mailq: func(dir string) int {
			return with(dir, func() int { return postqueueTool("mailq", io, []string{"-p"}) })
		},
		Flush: func(dir string, args []string) int {
			return with(dir, func() int { return postqueueTool("postqueue", io, args) })
		},
		Newaliases: func(dir string) int {
			return with(dir, func() int { return postmap.Newaliases(nil, io.in, io.out, io.err) })
		},
		Daemon: func(dir string) int {
			return with(dir, func() int {
				return master.Command(master.Options{Services: services()}, []string{"start"}, io.out, io.err)
			})
		},
	}
	c.Session = func(dir string) int { return with(dir, func() int { return session(c) }) }
	return c.Run(args)
}
