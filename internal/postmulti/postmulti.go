// Package postmulti is the postmulti(1) command: several mail systems on one
// machine, which share programs, and have a configuration, a queue and data each.
//
// The primary instance is that of the configuration directory (-c, MAIL_CONFIG,
// /etc/posthaste). Its multi_instance_directories lists the configuration
// directories of the others. multi_instance_name is an instance's name, and the
// first word of its log lines; multi_instance_group is its group's.
//
//	postmulti -l [-ajRv] [-g group] [-i name]                    list instances
//	postmulti -p [-av] [-g group] [-i name] command ...          posthaste command, of each
//	postmulti -x [-aRv] [-g group] [-i name] program ...         a program, for each
//	postmulti -e action [options] [parameter=value ...]          change the list, or an instance
//
// With "-p start" an instance that multi_instance_enable does not enable is
// checked and not started; commands of postmulti_stop_commands go through the
// list backwards, and these and postmulti_control_commands pass over what is not
// enabled. A primary instance that is the only one is always enabled. "posthaste start" and its like do the same, by way of
// multi_instance_wrapper, where no configuration directory is named.
//
// # Security
//
// It has the rights of whoever calls it. Action destroy removes what the mail
// system has made in an instance's directories, and nothing else.
//
// # Parameters
//
// multi_instance_directories, multi_instance_enable, multi_instance_group,
// multi_instance_name, multi_instance_wrapper, postmulti_control_commands,
// postmulti_start_commands, postmulti_stop_commands, config_directory,
// data_directory, queue_directory.
//
// # Diagnostics
//
// The exit status is 0, or 1 if something failed: then the others were still
// tried, and the reason is on standard error.
package postmulti

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/jsontext"
)

// Tools are what the command is made of.
type Tools struct {
	Self     string                                            // the program posthaste
	Postconf func(args []string, stdout, stderr io.Writer) int // postconf(1)
	Main     string                                            // main.cf of a new instance
	Master   string                                            // its master.cf
	Stdin    io.Reader                                         // of the commands that are run
	Stdout   io.Writer
	Stderr   io.Writer
}

// An instance is one mail system.
type instance struct {
	dir     string
	cfg     *config.Config
	name    string // "": none
	group   string
	enabled bool
}

func load(dir string) (*instance, error) {
	cfg, err := config.Load(dir)
	if err != nil {
		return nil, err
	}
	return &instance{dir: dir, cfg: cfg, name: cfg.String("multi_instance_name"), group: cfg.String("multi_instance_group"),
		enabled: cfg.Bool("multi_instance_enable")}, nil
}

// is says whether the instance is meant by a name or a configuration directory.
func (i *instance) is(name string, primary bool) bool {
	return name == "-" && primary || i.name != "" && i.name == name || i.dir == name
}

// A command is one run of postmulti.
type command struct {
	Tools
	*options
	all []*instance // the primary one first
}

// Run carries out the command and returns its exit status.
func Run(args []string, t Tools) int {
	if err := run(args, t); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fmt.Fprintf(t.Stderr, "postmulti: fatal: %s\n", line)
		}
		return 1
	}
	return 0
}

func run(args []string, t Tools) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	c := &command{Tools: t, options: o}
	dir, err := filepath.Abs(config.Dir(o.dir))
	if err != nil {
		return err
	}
	primary, err := load(dir)
	if err != nil {
		return err
	}
	c.all = []*instance{primary}
	others := primary.cfg.List("multi_instance_directories")
	if len(others) == 0 {
		primary.enabled = true
	}
	for _, dir := range others {
		i, err := load(dir)
		if err != nil {
			if c.action == "deport" && c.name == dir {
				i = &instance{dir: dir}
			} else {
				return fmt.Errorf("multi_instance_directories: %w", err)
			}
		}
		c.all = append(c.all, i)
	}
	if c.mode == 'e' {
		return c.edit()
	}
	chosen := c.chosen()
	if len(chosen) == 0 {
		return errors.New("no matching instances")
	}
	switch c.mode {
	case 'l':
		c.list(chosen)
		return nil
	case 'p':
		return c.control(chosen)
	}
	return c.execute(chosen)
}

// chosen are the instances that -a, -g and -i name, in the order of -R.
func (c *command) chosen() []*instance {
	var chosen []*instance
	for n, i := range c.all {
		if (c.group == "" || c.group == i.group) && (c.name == "" || i.is(c.name, n == 0)) {
			chosen = append(chosen, i)
		}
	}
	if c.reverse {
		slices.Reverse(chosen)
	}
	return chosen
}

func (c *command) list(chosen []*instance) {
	for _, i := range chosen {
		enabled := "n"
		if i.enabled {
			enabled = "y"
		}
		if c.json {
			fmt.Fprintln(c.Stdout, jsontext.Object("name", orNone(i.name), "group", orNone(i.group), "enabled", enabled, "config_directory", i.dir))
			continue
		}
		fmt.Fprintf(c.Stdout, "%-15s %-15s %-9s %s\n", orNone(i.name), orNone(i.group), enabled, i.dir)
	}
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// control runs a posthaste command for instances.
func (c *command) control(chosen []*instance) error {
	is := func(parameter string) bool { return slices.Contains(c.all[0].cfg.List(parameter), c.words[0]) }
	start, stop := is("postmulti_start_commands"), is("postmulti_stop_commands")
	if stop {
		slices.Reverse(chosen)
	}
	var failed []error
	for _, i := range chosen {
		words := c.words
		if !i.enabled {
			switch {
			case start:
				words = []string{"check"}
			case stop || is("postmulti_control_commands"):
				continue
			}
		}
		failed = append(failed, c.start(i, c.posthaste(i, words...)))
	}
	return errors.Join(failed...)
}

// posthaste is a control command of an instance.
func (c *command) posthaste(i *instance, words ...string) *exec.Cmd {
	cmd := exec.Command(c.Self, append([]string{"-c", i.dir}, words...)...)
	cmd.Args[0] = "posthaste"
	return cmd
}

// execute runs a program for instances.
func (c *command) execute(chosen []*instance) error {
	var failed []error
	for _, i := range chosen {
		failed = append(failed, c.start(i, exec.Command(c.words[0], c.words[1:]...)))
	}
	return errors.Join(failed...)
}

// start runs a command in an instance's environment, and waits for it.
func (c *command) start(i *instance, cmd *exec.Cmd) error {
	enabled := "no"
	if i.enabled {
		enabled = "yes"
	}
	cmd.Env = append(os.Environ(), "MAIL_CONFIG="+i.dir, "config_directory="+i.dir,
		"command_directory="+i.cfg.String("command_directory"), "daemon_directory="+i.cfg.String("daemon_directory"),
		"queue_directory="+i.cfg.String("queue_directory"), "data_directory="+i.cfg.String("data_directory"),
		"multi_instance_name="+i.name, "multi_instance_group="+i.group, "multi_instance_enable="+enabled)
	if c.verbose {
		cmd.Env = append(cmd.Env, "MAIL_VERBOSE=1")
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("instance %s: %s: %w", i.dir, strings.Join(cmd.Args, " "), err)
	}
	return nil
}

// Wrapper is the command line that carries out a posthaste command for all
// instances: nil if there is one only.
func Wrapper(cfg *config.Config, words []string) ([]string, error) {
	if len(cfg.List("multi_instance_directories")) == 0 || len(words) == 0 {
		return nil, nil
	}
	wrapper := strings.Fields(cfg.String("multi_instance_wrapper"))
	if len(wrapper) == 0 {
		return nil, errors.New(`multi_instance_directories names other instances, but multi_instance_wrapper is empty: run "postmulti -e init", or name one instance with -c`)
	}
	if words[0] == "start-fg" {
		return nil, fmt.Errorf("start-fg is for one instance: name it, posthaste -c %s start-fg", cfg.Dir())
	}
	return append(wrapper, words...), nil
}
